"""Timestamps of events: ISO 8601 with an offset, or integer milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from monitor.errors import Refusal

LATEST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_LENGTH: Final = 40
_OUT_OF_RANGE: Final = "timestamp: expected a time from 1970 to 9999"


def instant_ms(timestamp: str | int) -> int:
    """Return a timestamp as milliseconds since the epoch, rounded down; raises `Refusal`."""
    if isinstance(timestamp, int):
        instant = timestamp
    else:
        try:
            moment = datetime.fromisoformat(timestamp if len(timestamp) <= _MAX_LENGTH else "")
        except ValueError:
            raise Refusal(
                "invalid_timestamp", "timestamp: expected ISO 8601 with an offset, or integer milliseconds"
            ) from None
        if moment.tzinfo is None:
            raise Refusal("timestamp_without_offset", "timestamp: expected an offset, such as Z or +02:00")
        try:
            instant = (moment - _EPOCH) // _MILLISECOND
        except OverflowError:
            raise Refusal("invalid_timestamp", _OUT_OF_RANGE) from None
    if not 0 <= instant <= LATEST_MS:
        raise Refusal("invalid_timestamp", _OUT_OF_RANGE)
    return instant
