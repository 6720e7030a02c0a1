"""The days of an experiment by event time, in compiled form."""

from __future__ import annotations

from typing import Final, final

from mypy_extensions import i64

from monitor.clock import DAY_MS, HOUR_MS
from monitor.days import UTC_ZONE, DayCalendar, day_calendar


@final
class LocalDays:
    """Computes the same days and hours as the `monitor.days.DayCalendar` that it is created from."""

    __slots__ = ("_floors_ms", "_offset_ms", "_offsets_ms", "_period_starts_ms", "_periods")

    def __init__(self, calendar: DayCalendar) -> None:
        self._period_starts_ms: list[int] = list(calendar.period_starts_ms)
        self._offsets_ms: list[int] = list(calendar.offsets_ms)
        self._floors_ms: list[int] = list(calendar.floors_ms)
        self._periods: i64 = len(calendar.offsets_ms)
        self._offset_ms: i64 = calendar.offsets_ms[0]

    def day_number(self, timestamp_ms: i64) -> i64:
        """Return the day of a time: see `DayCalendar.day_number`."""
        return self._local_ms(timestamp_ms) // DAY_MS

    def hour(self, timestamp_ms: i64) -> i64:
        """Return the hour of a time, 0 to 23: see `DayCalendar.hour`."""
        return self._local_ms(timestamp_ms) % DAY_MS // HOUR_MS

    def _local_ms(self, timestamp_ms: i64) -> i64:
        if self._periods == 1:
            return timestamp_ms + self._offset_ms
        starts_ms = self._period_starts_ms
        period: i64 = 0
        end = self._periods
        while end - period > 1:
            middle = (period + end) // 2
            if timestamp_ms < starts_ms[middle]:
                end = middle
            else:
                period = middle
        local_ms = timestamp_ms + i64(self._offsets_ms[period])
        floor_ms: i64 = self._floors_ms[period]
        return max(local_ms, floor_ms)


UTC_DAYS: Final = LocalDays(day_calendar(UTC_ZONE))
