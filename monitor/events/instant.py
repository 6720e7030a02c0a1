"""Times of events: ISO 8601 with an offset, or milliseconds, as whole milliseconds since the epoch."""

# ruff: noqa: PLR2004  the numbers of the calendar and the clock

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from mypy_extensions import i64

from monitor.errors import Refusal

LATEST_MS: Final = 253_402_300_799_999
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME: Final = 40

_ZERO: Final = 48
_DASH: Final = 45
_COLON: Final = 58
_POINT: Final = 46
_T: Final = 84
_Z: Final = 90
_WHOLE: Final = 20
"""Characters of a time without decimals."""
_MONTHS: Final = bytes((31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31))


def instant_ms(timestamp: str | int) -> int:
    """Return an event's time in milliseconds since the epoch, cut to the millisecond; raises `Refusal`."""
    if isinstance(timestamp, int):
        instant = timestamp
    elif timestamp.isascii() and (usual := _usual_ms(timestamp.encode())) >= 0:
        return usual
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


def _usual_ms(text: bytes) -> i64:
    """Return the time that is written as 2026-01-31T12:00:00Z or with three decimals and more; -1 if it is not."""
    end: i64 = len(text) - 1
    if not _WHOLE <= len(text) <= _LONGEST_TIME or text[end] != _Z or text[10] != _T:
        return -1
    if text[4] != _DASH or text[7] != _DASH or text[13] != _COLON or text[16] != _COLON:
        return -1
    millisecond: i64 = 0
    if len(text) > _WHOLE:
        if text[19] != _POINT or end < 23 or _number(text, 23, end) < 0:
            return -1
        millisecond = _number(text, 20, 23)
    year, month, day = _number(text, 0, 4), _number(text, 5, 7), _number(text, 8, 10)
    hour, minute, second = _number(text, 11, 13), _number(text, 14, 16), _number(text, 17, 19)
    if year < 1970 or not 1 <= month <= 12 or not 1 <= day <= _days_of(year, month):
        return -1
    if not (0 <= hour < 24 and 0 <= minute < 60 and 0 <= second < 60) or millisecond < 0:
        return -1
    # Years are taken to begin in March, so that a leap day is the last one.
    if month < 3:
        year -= 1
        month += 12
    days = 365 * year + year // 4 - year // 100 + year // 400 + (153 * month - 457) // 5 + day - 719_469
    return ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + millisecond


def _number(text: bytes, at: i64, end: i64) -> i64:
    """Return the digits from one place until before another as a number; -1 if there is anything else."""
    number: i64 = 0
    while at < end:
        digit = i64(text[at]) - _ZERO
        if not 0 <= digit <= 9:
            return -1
        number = (10 * number + digit) % 1_000_000
        at += 1
    return number


def _days_of(year: i64, month: i64) -> i64:
    if month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0):
        return 29
    return _MONTHS[month - 1]
