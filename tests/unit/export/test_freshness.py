"""Freshness of an experiment, judged against its usual traffic."""

from __future__ import annotations

import pytest

from monitor.clock import HOUR_MS
from monitor.export.freshness import measure_freshness

NEWEST_HOUR = 24 * 20_000 + 12
MINUTE_MS = 60_000


@pytest.mark.parametrize(
    ("per_hour", "minutes", "is_stale"),
    [(60, 4, False), (60, 6, True), (6, 6, False), (6, 29, False), (6, 31, True), (1, 170, False), (1, 190, True)],
)
def test_an_experiment_is_stale_after_three_usual_gaps_and_five_minutes(
    per_hour: int, minutes: int, *, is_stale: bool
) -> None:
    """The usual gap is derived from the hours of the last week."""
    hourly = {NEWEST_HOUR - number: per_hour for number in range(1, 170)}
    newest_ms = NEWEST_HOUR * HOUR_MS
    assert measure_freshness(hourly, newest_ms, newest_ms + minutes * MINUTE_MS).is_stale == is_stale


def test_a_quiet_night_is_not_stale_but_a_quiet_morning_is() -> None:
    """Traffic from 8 to 20 o'clock only."""
    evening_hour = 24 * 20_000 + 20
    hourly = {hour: 100 for hour in range(evening_hour - 168, evening_hour) if 8 <= hour % 24 < 20}
    newest_ms = evening_hour * HOUR_MS
    assert not measure_freshness(hourly, newest_ms, newest_ms + 11 * HOUR_MS).is_stale
    assert measure_freshness(hourly, newest_ms, newest_ms + 13 * HOUR_MS).is_stale


def test_a_young_experiment_is_stale_by_its_mean_rate() -> None:
    """Its hours of the day are not known yet."""
    newest_ms = NEWEST_HOUR * HOUR_MS + 10 * MINUTE_MS
    hourly = {NEWEST_HOUR - 1: 120, NEWEST_HOUR: 20}
    assert measure_freshness(hourly, newest_ms, newest_ms + HOUR_MS).responses_due == pytest.approx(120)


def test_an_event_from_the_future_is_fresh() -> None:
    """The clock of a producer may be ahead."""
    newest_ms = NEWEST_HOUR * HOUR_MS
    freshness = measure_freshness({NEWEST_HOUR - 30: 1}, newest_ms, newest_ms - HOUR_MS)
    assert (freshness.age_ms, freshness.responses_due, freshness.is_stale) == (0, 0, False)


def test_months_without_an_event_are_stale() -> None:
    """Whole days are added up."""
    hourly = {NEWEST_HOUR - number: 10 for number in range(1, 100)}
    newest_ms = NEWEST_HOUR * HOUR_MS
    due = measure_freshness(hourly, newest_ms, newest_ms + 60 * 24 * HOUR_MS).responses_due
    assert due == pytest.approx(60 * 24 * 10)
