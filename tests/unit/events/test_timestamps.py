"""Times of events are read as the standard library reads them, however they are written."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.errors import Refusal
from monitor.events import LATEST_MS, instant_ms

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TWO_DIGITS = st.integers(0, 99).map("{:02}".format)


def _by_library(text: str) -> int | None:
    try:
        ms = (datetime.fromisoformat(text) - _EPOCH) // timedelta(milliseconds=1)
    except (ValueError, TypeError):
        return None
    return ms if 0 <= ms <= LATEST_MS else None


def _by_us(text: str) -> int | None:
    try:
        return instant_ms(text)
    except Refusal:
        return None


@given(
    st.integers(1960, 9999) | st.integers(0, 9999),
    st.tuples(*[_TWO_DIGITS] * 5) | st.tuples(*[st.sampled_from(["01", "02", "12", "23", "28", "29", "30", "31"])] * 5),
    st.sampled_from(["", ".1", ".12", ".123", ".123456", ".1234567", ".", ".12x", ",123", ".٣٤٥"]),
    st.sampled_from(["Z", "+00:00", "+02:00", "-05:30", "", "z", "Zz"]),
    st.sampled_from(["T", " ", "t"]),
)
def test_a_time_is_what_the_library_says(
    year: int, fields: tuple[str, ...], decimals: str, offset: str, between: str
) -> None:
    """Leap days, decimals, offsets, and whatever is no time at all."""
    month, day, hour, minute, second = fields
    text = f"{year:04}-{month}-{day}{between}{hour}:{minute}:{second}{decimals}{offset}"
    assert _by_us(text) == _by_library(text)


@given(st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 31, 23, 59, 59)))  # noqa: DTZ001  naive is what it wants
def test_every_moment_is_read(moment: datetime) -> None:
    """In the usual form."""
    text = f"{moment.isoformat(timespec='milliseconds')}Z"
    assert _by_us(text) == _by_library(text)


@pytest.mark.parametrize("text", ["2024-02-29T00:00:00Z", "2000-02-29T23:59:59.999Z"])
def test_leap_days_are_days(text: str) -> None:
    """Every four years, and in 2000."""
    assert _by_us(text) == _by_library(text) is not None


@pytest.mark.parametrize("text", ["2023-02-29T00:00:00Z", "2100-02-29T00:00:00Z", "2024-04-31T00:00:00Z"])
def test_other_days_are_none(text: str) -> None:
    """Not every four years."""
    assert _by_us(text) is None
