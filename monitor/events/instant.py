"""Times of events: ISO 8601 with an offset, or milliseconds, as whole milliseconds since the epoch."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from monitor.errors import Refusal

LATEST_MS: Final = 253_402_300_799_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME: Final = 40


def instant_ms(timestamp: str | int) -> int:
    """Return an event's time in milliseconds since the epoch, cut to the millisecond; raises `Refusal`."""
    if isinstance(timestamp, int):
        instant = timestamp
    else:
        try:
            moment = datetime.fromisoformat(timestamp if len(timestamp) <= _LONGEST_TIME else "")
        except ValueError:
            raise Refusal(
                "invalid_timestamp", "timestamp: expected ISO 8601 with an offset, or integer milliseconds"
            ) from None
        if moment.tzinfo is None:
            raise Refusal("timestamp_without_offset", "timestamp: expected an offset, such as Z or +02:00")
        try:
            since = moment - _EPOCH
        except OverflowError:
            raise Refusal("invalid_timestamp", "timestamp: expected a time from 1970 to 9999") from None
        instant = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if not 0 <= instant <= LATEST_MS:
        raise Refusal("invalid_timestamp", "timestamp: expected a time from 1970 to 9999")
    return instant
