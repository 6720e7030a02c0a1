"""Days of any zone at any time agree with the standard library, and never go back."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo, available_timezones

from hypothesis import example, given
from hypothesis import strategies as st

from monitor.days import day_calendar
from monitor.engine.local_days import LocalDays
from tests.support.oracle import local_day

_END_MS = round(datetime(2100, 1, 1, tzinfo=UTC).timestamp() * 1000)
ZONES = st.sampled_from(sorted(available_timezones()))
TIMES_MS = st.integers(0, _END_MS - 1)


@given(zone=ZONES, time_ms=TIMES_MS)
@example(zone="Europe/Berlin", time_ms=1_774_746_000_000)
def test_a_time_is_within_its_day(zone: str, time_ms: int) -> None:
    """From the first moment of the day on, and before the first moment of the next day."""
    calendar = day_calendar(zone)
    day = calendar.day_number(time_ms)
    assert calendar.start_ms(day) <= time_ms < calendar.end_ms(day)
    assert calendar.day_number(calendar.start_ms(day)) == day
    assert calendar.day_number(calendar.start_ms(day) - 1) < day
    hour = calendar.hour(time_ms)
    assert calendar.start_ms(day) <= calendar.hour_start_ms(day, hour) <= time_ms
    assert calendar.hour(calendar.hour_start_ms(day, hour)) == hour


@given(zone=ZONES, times_ms=st.tuples(TIMES_MS, st.integers(0, 90_000_000)))
def test_a_later_time_has_no_earlier_day(zone: str, times_ms: tuple[int, int]) -> None:
    """Also if the clock was put back across midnight."""
    time_ms, later_by_ms = times_ms
    calendar = day_calendar(zone)
    assert calendar.day_number(time_ms) <= calendar.day_number(time_ms + later_by_ms)
    assert calendar.start_ms(calendar.day_number(time_ms)) <= calendar.start_ms(calendar.day_number(time_ms) + 1)


@given(zone=ZONES, time_ms=TIMES_MS)
def test_the_day_is_the_date_or_the_next_one_within_repeated_time(zone: str, time_ms: int) -> None:
    """The compiled form computes the same days and hours."""
    calendar, date = day_calendar(zone), local_day(zone, time_ms)
    day, days = calendar.day_number(time_ms), LocalDays(calendar)
    assert (days.day_number(time_ms), days.hour(time_ms)) == (day, calendar.hour(time_ms))
    if day != date:
        assert day == date + 1
        assert local_day(zone, calendar.start_ms(day)) == day
    else:
        assert calendar.hour(time_ms) == datetime.fromtimestamp(time_ms // 1000, ZoneInfo(zone)).hour
