"""Days of a time zone: days of 23, 24 and 25 hours, skipped dates and repeated time."""

from __future__ import annotations

from datetime import date, datetime

import pytest

from monitor.clock import HOUR_MS
from monitor.days import day_calendar
from monitor.engine.local_days import LocalDays


def _time_ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def _day(text: str) -> int:
    return date.fromisoformat(text).toordinal() - date(1970, 1, 1).toordinal()


@pytest.mark.parametrize(
    ("zone", "time", "day", "hour"),
    [
        ("UTC", "2026-03-28T23:59:59.999Z", "2026-03-28", 23),
        ("UTC", "2026-03-29T00:00:00Z", "2026-03-29", 0),
        ("Europe/Berlin", "2026-03-28T22:59:59.999Z", "2026-03-28", 23),
        ("Europe/Berlin", "2026-03-28T23:00:00Z", "2026-03-29", 0),
        ("Europe/Berlin", "2026-03-29T00:59:59Z", "2026-03-29", 1),
        ("Europe/Berlin", "2026-03-29T01:00:00Z", "2026-03-29", 3),
        ("Europe/Berlin", "2026-03-29T21:59:59.999Z", "2026-03-29", 23),
        ("Europe/Berlin", "2026-03-29T22:00:00Z", "2026-03-30", 0),
        ("Europe/Berlin", "2026-10-25T00:30:00Z", "2026-10-25", 2),
        ("Europe/Berlin", "2026-10-25T01:30:00Z", "2026-10-25", 2),
        ("Europe/Berlin", "2026-10-25T22:59:59Z", "2026-10-25", 23),
        ("Europe/Berlin", "2026-10-25T23:00:00Z", "2026-10-26", 0),
        ("America/New_York", "2026-03-08T04:59:59Z", "2026-03-07", 23),
        ("America/New_York", "2026-03-08T05:00:00Z", "2026-03-08", 0),
        ("America/New_York", "2026-03-09T03:59:59Z", "2026-03-08", 23),
        ("America/New_York", "2026-11-02T04:59:59Z", "2026-11-01", 23),
        ("America/New_York", "2099-07-01T03:59:59Z", "2099-06-30", 23),
        ("Asia/Kolkata", "2026-03-28T18:29:59Z", "2026-03-28", 23),
        ("Asia/Kolkata", "2026-03-28T18:30:00Z", "2026-03-29", 0),
        ("Australia/Lord_Howe", "2026-04-04T12:59:59Z", "2026-04-04", 23),
        ("Australia/Lord_Howe", "2026-04-04T13:00:00Z", "2026-04-05", 0),
        ("Australia/Lord_Howe", "2026-04-04T15:00:00Z", "2026-04-05", 1),
        ("Australia/Lord_Howe", "2026-04-05T13:29:59Z", "2026-04-05", 23),
        ("Australia/Lord_Howe", "2026-04-05T13:30:00Z", "2026-04-06", 0),
        ("Pacific/Apia", "2011-12-30T09:59:59Z", "2011-12-29", 23),
        ("Pacific/Apia", "2011-12-30T10:00:00Z", "2011-12-31", 0),
        ("Pacific/Kiritimati", "2026-03-28T10:00:00Z", "2026-03-29", 0),
        ("America/St_Johns", "2010-11-07T02:30:30Z", "2010-11-07", 0),
        ("America/St_Johns", "2010-11-07T02:31:00Z", "2010-11-07", 0),
        ("America/St_Johns", "2010-11-07T03:29:59Z", "2010-11-07", 0),
        ("America/St_Johns", "2010-11-07T04:30:00Z", "2010-11-07", 1),
    ],
)
def test_the_day_of_a_time_is_the_date_in_the_zone(zone: str, time: str, day: str, hour: int) -> None:
    """The compiled form computes the same; after a clock was put back across midnight, the hour is 0."""
    calendar = day_calendar(zone)
    days = LocalDays(calendar)
    assert calendar.date_text(calendar.day_number(_time_ms(time))) == day
    assert calendar.hour(_time_ms(time)) == hour
    assert (days.day_number(_time_ms(time)), days.hour(_time_ms(time))) == (_day(day), hour)


@pytest.mark.parametrize(
    ("zone", "day", "start", "hours"),
    [
        ("UTC", "2026-03-29", "2026-03-29T00:00:00Z", 24),
        ("Europe/Berlin", "2026-03-28", "2026-03-27T23:00:00Z", 24),
        ("Europe/Berlin", "2026-03-29", "2026-03-28T23:00:00Z", 23),
        ("Europe/Berlin", "2026-10-25", "2026-10-24T22:00:00Z", 25),
        ("America/New_York", "2026-03-08", "2026-03-08T05:00:00Z", 23),
        ("America/New_York", "2026-11-01", "2026-11-01T04:00:00Z", 25),
        ("Asia/Kolkata", "2026-03-29", "2026-03-28T18:30:00Z", 24),
        ("Australia/Lord_Howe", "2026-04-05", "2026-04-04T13:00:00Z", 24.5),
        ("Australia/Lord_Howe", "2026-10-04", "2026-10-03T13:30:00Z", 23.5),
        ("Pacific/Apia", "2011-12-29", "2011-12-29T10:00:00Z", 24),
        ("Pacific/Apia", "2011-12-30", "2011-12-30T10:00:00Z", 0),
        ("Pacific/Apia", "2011-12-31", "2011-12-30T10:00:00Z", 24),
        ("Pacific/Kiritimati", "2026-03-29", "2026-03-28T10:00:00Z", 24),
        ("Asia/Beirut", "2026-03-29", "2026-03-28T22:00:00Z", 23),
        ("America/St_Johns", "2010-11-07", "2010-11-07T02:30:00Z", 25),
    ],
)
def test_a_day_lasts_from_the_first_moment_of_its_date_to_that_of_the_next(
    zone: str, day: str, start: str, hours: float
) -> None:
    """A date that the zone has skipped is empty; a day whose midnight was skipped begins at 01:00."""
    calendar = day_calendar(zone)
    assert calendar.start_ms(_day(day)) == _time_ms(start)
    assert calendar.end_ms(_day(day)) == _time_ms(start) + hours * HOUR_MS
    assert calendar.is_start(_time_ms(start))
    assert not calendar.is_start(_time_ms(start) + 1)
    assert not calendar.is_start(_time_ms(start) - 1)


@pytest.mark.parametrize(
    ("zone", "day", "hour", "start"),
    [
        ("Europe/Berlin", "2026-03-29", 1, "2026-03-29T00:00:00Z"),
        ("Europe/Berlin", "2026-03-29", 2, "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-03-29", 3, "2026-03-29T01:00:00Z"),
        ("Europe/Berlin", "2026-10-25", 2, "2026-10-25T00:00:00Z"),
        ("Europe/Berlin", "2026-10-25", 3, "2026-10-25T02:00:00Z"),
        ("Asia/Kolkata", "2026-03-29", 1, "2026-03-28T19:30:00Z"),
        ("Australia/Lord_Howe", "2026-04-05", 1, "2026-04-04T14:00:00Z"),
        ("Asia/Beirut", "2026-03-29", 0, "2026-03-28T22:00:00Z"),
    ],
)
def test_an_hour_begins_when_the_clock_first_shows_it(zone: str, day: str, hour: int, start: str) -> None:
    """An hour that the clock skips begins with the next one."""
    assert day_calendar(zone).hour_start_ms(_day(day), hour) == _time_ms(start)


def test_texts_name_every_zone_but_utc() -> None:
    """Dates without a zone are dates in UTC."""
    assert [day_calendar(zone).zone_note for zone in ("UTC", "Europe/Berlin")] == ["", " (Europe/Berlin)"]


def test_an_unknown_zone_has_no_calendar() -> None:
    """A name is no path, and a part of a name is no zone."""
    for name in ("Europe/Frankfurt", "Europe", "../UTC", ""):
        with pytest.raises(ValueError, match=rf"the time zone is '{name}', expected one of the IANA database"):
            day_calendar(name)
