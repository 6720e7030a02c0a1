"""Timestamps of events: ISO 8601 with an offset, or integer milliseconds since the epoch."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from monitor.errors import InvalidEvent

MAX_TIMESTAMP_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND: Final = timedelta(milliseconds=1)
_MAX_LENGTH: Final = 40
_ISO_8601: Final = re.compile(
    r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}"
    r"(?:[Tt ](?:[01][0-9]|2[0-3])(?::?[0-9]{2}){0,2}(?:[.,][0-9]+)?(?:Z|[+-][0-9]{2}(?::?[0-9]{2}){0,2})?)?"
)
"""The part of ISO 8601 that every version of Python accepts: some also accept week dates and the hour 24."""
_OUT_OF_RANGE: Final = "timestamp: expected a time from 1970 to 9999"


def parse_timestamp_ms(timestamp: str | int, zone: tzinfo | None = None) -> int:
    """Return a timestamp in milliseconds since the Unix epoch, rounded down; raises `InvalidEvent`.

    A time without an offset is a time of the zone; of an hour that occurs twice, the first counts.
    """
    if isinstance(timestamp, int):
        timestamp_ms = timestamp
    else:
        try:
            is_accepted = len(timestamp) <= _MAX_LENGTH and _ISO_8601.fullmatch(timestamp) is not None
            parsed_time = datetime.fromisoformat(timestamp if is_accepted else "")
        except ValueError:
            raise InvalidEvent(
                "invalid_timestamp", "timestamp: expected ISO 8601 with an offset, or integer milliseconds"
            ) from None
        if parsed_time.tzinfo is None and zone is not None:
            parsed_time = parsed_time.replace(tzinfo=zone)
        if parsed_time.tzinfo is None:
            raise InvalidEvent("timestamp_without_offset", "timestamp: expected an offset, such as Z or +02:00")
        try:
            timestamp_ms = (parsed_time - _EPOCH) // _MILLISECOND
        except OverflowError:
            raise InvalidEvent("invalid_timestamp", _OUT_OF_RANGE) from None
    if not 0 <= timestamp_ms <= MAX_TIMESTAMP_MS:
        raise InvalidEvent("invalid_timestamp", _OUT_OF_RANGE)
    return timestamp_ms
