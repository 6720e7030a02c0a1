"""The fast conversions of usual values give the values of the converters that handle all types."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.decoding.mapping import _SHORTCUTS, Converter
from monitor.errors import InvalidEvent

_SECONDS = st.integers(0, 10**13).map(lambda at_ms: at_ms / 1000) | st.floats(0, 2e12, allow_nan=False)
_VALUES: st.SearchStrategy[Any] = (
    st.text()
    | st.integers()
    | st.integers(-(2**140), 2**140)
    | st.floats()
    | _SECONDS
    | st.datetimes()
    | st.datetimes(timezones=st.just(UTC))
)


def _convert(convert: Converter, value: object, cast: str | None) -> object:
    try:
        return convert("field", value, cast, None)
    except InvalidEvent:
        return "rejected"


@pytest.mark.parametrize(("convert", "cast"), _SHORTCUTS)
@given(value=_VALUES)
def test_a_fast_conversion_gives_the_value_of_the_converter(
    convert: Converter, cast: str | None, value: object
) -> None:
    """Or nothing, for values that the converter must handle."""
    shortcut = _SHORTCUTS[convert, cast].get(type(value))
    converted = None if shortcut is None else shortcut(value)
    if converted is not None:
        assert repr(converted) == repr(_convert(convert, value, cast))


@given(at_ms=st.integers(0, 10**13))
def test_seconds_with_three_decimals_are_converted_fast(at_ms: int) -> None:
    """Those of a producer that has milliseconds."""
    ((shortcuts),) = [table for (_, cast), table in _SHORTCUTS.items() if cast == "s"]
    assert shortcuts[float](at_ms / 1000) == at_ms


def test_a_date_with_a_zone_is_converted_fast() -> None:
    """As Avro and Protobuf have it."""
    ((shortcuts),) = [table for table in _SHORTCUTS.values() if datetime in table]
    assert shortcuts[datetime](datetime(1970, 1, 1, 0, 0, 1, 123_999, tzinfo=UTC)) == 1123
