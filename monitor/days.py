"""The days of an experiment: the dates of a time zone, numbered from 1970-01-01 on."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from itertools import pairwise
from typing import Final
from zoneinfo import ZoneInfo

from monitor.clock import DAY_MS, HOUR_MS

UTC_ZONE: Final = "UTC"
_DAY_S: Final = 86_400
_LAST_CHANGE_S: Final = 4_102_444_800
"""The beginning of the year 2100. The offset of this time applies to all later times."""
_STEP_S: Final = 3 * _DAY_S
"""Two changes of a zone's offset are at least six days apart (in Brazil, the West Bank and Gaza)."""
_BEGINNING_MS: Final = -(1 << 62)
_END_MS: Final = 1 << 62
"""Times before and after all event times."""


@dataclass(frozen=True, slots=True)
class DayCalendar:
    """The days of a time zone; day 0 is 1970-01-01.

    A day begins at the first moment of its date, and ends where the next day begins. So a day has 23 or 25 hours if the
    clock is changed on it. If the clock is put back across midnight, the repeated time is part of the later day. A date
    that the zone has skipped is a day without a moment.

    >>> berlin = day_calendar("Europe/Berlin")
    >>> summer_time_begins = 20_541  # 2026-03-29
    >>> (berlin.end_ms(summer_time_begins) - berlin.start_ms(summer_time_begins)) // HOUR_MS
    23
    """

    zone: str
    """Name in the IANA database."""
    period_starts_ms: tuple[int, ...] = field(repr=False, compare=False)
    """Start of each period with a constant offset from UTC, ascending; the first is before all event times."""
    offsets_ms: tuple[int, ...] = field(repr=False, compare=False)
    """Local time minus UTC in each period."""
    floors_ms: tuple[int, ...] = field(repr=False, compare=False)
    """Local midnight of the day at the start of each period: a smaller local time in the period is a repeated one."""

    def day_number(self, timestamp_ms: int) -> int:
        """Return the day of a time; a later time has the same or a later day."""
        return self._local_ms(timestamp_ms) // DAY_MS

    def hour(self, timestamp_ms: int) -> int:
        """Return the hour on the clock of the zone, 0 to 23; 0 for time that is repeated after midnight."""
        return self._local_ms(timestamp_ms) % DAY_MS // HOUR_MS

    def start_ms(self, day: int) -> int:
        """Return the first moment of a day."""
        period = bisect_left(self.floors_ms, day * DAY_MS) - 1
        start_ms = day * DAY_MS - self.offsets_ms[period]
        return min(start_ms, self._period_end_ms(period))

    def end_ms(self, day: int) -> int:
        """Return the first moment after a day."""
        return self.start_ms(day + 1)

    def hour_start_ms(self, day: int, hour: int) -> int:
        """Return the first moment of a day at which the clock shows an hour, or a later one if the hour is skipped."""
        start_ms, end_ms = self.start_ms(day), self.end_ms(day)
        first, last = (bisect_right(self.period_starts_ms, moment) - 1 for moment in (start_ms, end_ms - 1))
        for period in range(first, last + 1):
            moment_ms = max(day * DAY_MS + hour * HOUR_MS - self.offsets_ms[period], self.period_starts_ms[period])
            if moment_ms < min(end_ms, self._period_end_ms(period)):
                return max(moment_ms, start_ms)
        return end_ms

    def is_start(self, timestamp_ms: int) -> bool:
        """Return whether a time is the first moment of a day: midnight, or a later time if midnight is skipped."""
        return self.start_ms(self.day_number(timestamp_ms)) == timestamp_ms

    def date_text(self, day: int) -> str:
        """Return the ISO 8601 date of a day.

        >>> day_calendar("UTC").date_text(20_541)
        '2026-03-29'
        """
        return datetime.fromtimestamp(day * _DAY_S, UTC).date().isoformat()

    @property
    def zone_note(self) -> str:
        """The name of the zone for a text with a date, such as " (Europe/Berlin)"; empty for UTC."""
        return "" if self.zone == UTC_ZONE else f" ({self.zone})"

    def _period_end_ms(self, period: int) -> int:
        return self.period_starts_ms[period + 1] if period + 1 < len(self.period_starts_ms) else _END_MS

    def _local_ms(self, timestamp_ms: int) -> int:
        period = bisect_right(self.period_starts_ms, timestamp_ms) - 1
        return max(timestamp_ms + self.offsets_ms[period], self.floors_ms[period])


@cache
def day_calendar(zone: str) -> DayCalendar:
    """Return the calendar of a time zone; raises ValueError if the IANA database lacks the zone."""
    try:
        zone_info = ZoneInfo(zone)
    except (ValueError, OSError, KeyError) as error:
        raise ValueError(f"the time zone is {zone!r}, expected one of the IANA database of this computer") from error
    starts_ms, offsets_ms, floors_ms = [_BEGINNING_MS], [_offset_ms(zone_info, 0)], [_BEGINNING_MS]
    for change_s in () if zone == UTC_ZONE else _find_changes_s(zone_info):
        change_ms, offset_ms = change_s * 1000, _offset_ms(zone_info, change_s)
        day_before = max(change_ms - 1 + offsets_ms[-1], floors_ms[-1]) // DAY_MS
        starts_ms.append(change_ms)
        offsets_ms.append(offset_ms)
        floors_ms.append(max((change_ms + offset_ms) // DAY_MS, day_before) * DAY_MS)
    return DayCalendar(zone, tuple(starts_ms), tuple(offsets_ms), tuple(floors_ms))


def _find_changes_s(zone: ZoneInfo) -> list[int]:
    """Return the times in seconds, from 1970 to 2100, at which the offset from UTC changes."""
    times_s = range(0, _LAST_CHANGE_S + _STEP_S, _STEP_S)
    steps = pairwise((time_s, _offset_ms(zone, time_s)) for time_s in times_s)
    return [
        _find_change_s(zone, start_s, end_s)
        for (start_s, offset_ms), (end_s, next_offset_ms) in steps
        if offset_ms != next_offset_ms
    ]


def _find_change_s(zone: ZoneInfo, start_s: int, end_s: int) -> int:
    """Return the time of the only change of the offset within a step."""
    offset_ms = _offset_ms(zone, start_s)
    return bisect_left(range(end_s), 1, start_s, key=lambda time_s: int(_offset_ms(zone, time_s) != offset_ms))


def _offset_ms(zone: ZoneInfo, time_s: int) -> int:
    offset = datetime.fromtimestamp(time_s, zone).utcoffset()
    assert offset is not None
    return round(offset.total_seconds() * 1000)
