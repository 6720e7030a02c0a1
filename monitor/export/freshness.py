"""Freshness: whether an experiment's newest event is older than its usual traffic explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from monitor.analysis import format_timestamp
from monitor.clock import HOUR_MS, HOURS_PER_DAY
from monitor.export.presentation import format_count, format_duration

HISTORY_HOURS: Final = 7 * 24
_MIN_RESPONSES_DUE: Final = 3.0
"""The newest event is older than three usual gaps if this number of responses was due since."""
_MIN_AGE_MS: Final = 300_000
"""Delivery in batches, and a restart of the service, make shorter gaps."""
_MIN_HISTORY_MS: Final = 600_000


@dataclass(frozen=True, slots=True)
class Freshness:
    """Age of an experiment's newest event, and the responses that were due since."""

    newest_ms: int
    age_ms: int
    responses_due: float

    @property
    def is_stale(self) -> bool:
        """Whether the newest event is older than three usual gaps, and than five minutes."""
        return self.age_ms >= _MIN_AGE_MS and self.responses_due >= _MIN_RESPONSES_DUE

    def describe(self) -> str:
        """Return a sentence with the age and the number of responses that were due."""
        age, due = format_duration(self.age_ms // 1000), format_count(round(self.responses_due))
        return f"the newest event is {age} old; about {due} responses were due since"

    def to_json(self) -> dict[str, Any]:
        """Return the freshness as JSON."""
        return {
            "newest_event_at": format_timestamp(self.newest_ms),
            "age_seconds": self.age_ms / 1000,
            "responses_due": round(self.responses_due, 1),
            "stale": self.is_stale,
        }


def measure_freshness(hourly_responses: Mapping[int, int], newest_ms: int, now_ms: int) -> Freshness:
    """Return the freshness from the responses by hour (since 1970) of the last week before the newest event.

    The rate of an hour of the day is the mean of the same hour on earlier days, so that a quiet night is not stale.
    Within the first day, the rate is the mean since the first response.

    >>> hourly = {hour: 60 for hour in range(500_000, 500_072)}
    >>> freshness = measure_freshness(hourly, 500_072 * HOUR_MS, 500_072 * HOUR_MS + 600_000)
    >>> freshness.responses_due, freshness.is_stale
    (10.0, True)
    """
    newest_hour = newest_ms // HOUR_MS
    hours = range(max(min(hourly_responses, default=newest_hour), newest_hour - HISTORY_HOURS), newest_hour)
    if len(hours) < HOURS_PER_DAY:
        history_ms = max(newest_ms - hours.start * HOUR_MS, _MIN_HISTORY_MS)
        rate_per_ms = sum(hourly_responses.values()) / history_ms
        due = rate_per_ms * max(now_ms - newest_ms, 0)
    else:
        due = _integrate(_rates_by_hour_of_day(hourly_responses, hours), newest_ms, now_ms)
    return Freshness(newest_ms, max(now_ms - newest_ms, 0), due)


def _rates_by_hour_of_day(hourly_responses: Mapping[int, int], hours: range) -> list[float]:
    """Return the mean number of responses per hour, by hour of the day (UTC)."""
    rates = []
    for hour_of_day in range(HOURS_PER_DAY):
        counts = [hourly_responses.get(hour, 0) for hour in hours if hour % HOURS_PER_DAY == hour_of_day]
        rates.append(sum(counts) / len(counts))
    return rates


def _integrate(rates: list[float], from_ms: int, until_ms: int) -> float:
    """Return the number of responses that are due in a period."""
    whole_days, rest_ms = divmod(max(until_ms - from_ms, 0), HOURS_PER_DAY * HOUR_MS)
    due, at_ms, end_ms = whole_days * sum(rates), from_ms, from_ms + rest_ms
    while at_ms < end_ms:
        next_ms = min((at_ms // HOUR_MS + 1) * HOUR_MS, end_ms)
        due += rates[at_ms // HOUR_MS % HOURS_PER_DAY] * (next_ms - at_ms) / HOUR_MS
        at_ms = next_ms
    return due
