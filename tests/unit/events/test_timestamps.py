"""Event times are parsed like the standard library's ISO 8601, in all notations."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import InvalidEvent
from monitor.events import MAX_TIMESTAMP_MS, parse_timestamp_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TWO_DIGITS = st.integers(0, 99).map("{:02}".format)


def _parse_with_datetime(text: str) -> int | None:
    try:
        ms = (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError):
        return None
    return ms if 0 <= ms <= MAX_TIMESTAMP_MS else None


def _parse_or_none(text: str) -> int | None:
    try:
        return parse_timestamp_ms(text)
    except InvalidEvent:
        return None


@given(
    st.integers(1960, 9999) | st.integers(0, 9999),
    st.tuples(*[_TWO_DIGITS] * 5) | st.tuples(*[st.sampled_from(["01", "02", "12", "23", "28", "29", "30", "31"])] * 5),
    st.sampled_from(["", ".1", ".12", ".123", ".123456", ".1234567", ".12x", ",123", ".٣٤٥"]),
    st.sampled_from(["Z", "+00:00", "+02:00", "-05:30", "", "z", "Zz"]),
    st.sampled_from(["T", " ", "t"]),
)
def test_timestamps_are_parsed_like_datetime_fromisoformat(
    year: int, fields: tuple[str, ...], decimals: str, offset: str, separator: str
) -> None:
    """The texts include leap days, decimals, offsets, and invalid times."""
    month, day, hour, minute, second = fields
    text = f"{year:04}-{month}-{day}{separator}{hour}:{minute}:{second}{decimals}{offset}"
    assert _parse_or_none(text) == _parse_with_datetime(text)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))  # noqa: DTZ001  naive is what it wants
def test_every_time_until_9999_is_parsed(time: datetime) -> None:
    """The notation has milliseconds and Z."""
    text = f"{time.isoformat(timespec='milliseconds')}Z"
    assert _parse_or_none(text) == _parse_with_datetime(text)


def test_a_point_without_decimals_is_rejected() -> None:
    """Only some versions of Python accept it."""
    assert _parse_or_none("1970-01-01T01:01:01.Z") is None


@pytest.mark.parametrize("text", ["2024-02-29T00:00:00Z", "2000-02-29T23:59:59.999Z"])
def test_february_29_of_a_leap_year_is_accepted(text: str) -> None:
    """Leap years are every four years, including 2000."""
    assert _parse_or_none(text) == _parse_with_datetime(text) is not None


@pytest.mark.parametrize("text", ["2023-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2024-04-31T00:00:00Z"])
def test_days_that_do_not_exist_are_rejected(text: str) -> None:
    """2100 is no leap year, and April has 30 days."""
    assert _parse_or_none(text) is None


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-20T10:15:30.5Z",
        "2026-11-20 10:15:30,5+00:00",
        "20261120T101530.500000Z",
        "2026-11-20T12:15:30.5+02",
        "2026-11-20T05:45:30.5-0430",
    ],
)
def test_extended_and_basic_formats_are_accepted(text: str) -> None:
    """With T or a blank, a point or a comma, and any offset."""
    assert parse_timestamp_ms(text) == 1_795_169_730_500


@pytest.mark.parametrize(
    "text", ["2026-W47-5T10:15Z", "2026-324T10:15Z", "2026-11-20T24:00Z", "2026-11-20x10:15Z", "2026-11-20T10:15z"]
)
def test_forms_that_only_some_versions_of_python_accept_are_rejected(text: str) -> None:
    """An upgrade of Python changes no outcome."""
    with pytest.raises(InvalidEvent, match="invalid_timestamp"):
        parse_timestamp_ms(text)
