"""Months of daily means, with and without a broken day: how often a day is remarked as outside its band.

Judged by `build_day_log`: 7 days without a band, then 28 judged days, two variants. Students have several responses, on
neighbouring days, with a correlation of 0.3 within a student.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np

from monitor.analysis import DayReading, VariantDaySums, build_day_log
from monitor.clock import DAY_MS
from monitor.export.presentation import STATE_TITLES
from monitor.metrics import FloatArray
from monitor.stats import BAND_DAYS, MIN_DAYS_BEFORE, ExperimentHistory, SampleMeanStatistic
from tests.support.streams import EXPERIMENT

FIRST_DAY: Final = 20_767
DAYS: Final = MIN_DAYS_BEFORE + BAND_DAYS
BROKEN_DAY: Final = 20
"""Days after the first."""
_CORRELATION: Final = 0.3
_MEAN, _DEVIATION = 2.0, 1.3
_WEEKEND_DAYS: Final = (5, 6)
_NORMAL: Final = NormalDist()


@dataclass(frozen=True)
class Traffic:
    """The responses of a variant by day."""

    students_per_day: int
    """Students whose first response is on a working day."""
    responses_per_student: float = 1.0
    """Mean number; a student's responses are on the student's first two or three days."""
    weekend_share: float = 1.0
    """Students on a day of a weekend, relative to a working day."""
    weekend_effect: float = 0.0
    day_deviation: float = 0.0
    """Standard deviation of a day's true mean, the same in both variants."""
    rare_share: float | None = None
    """The metric is a share of responses with this mean; None for grades."""
    growth: float = 1.0
    """Students of the last day relative to the first."""


TRAFFIC: Final[Mapping[str, Traffic]] = {
    "400 independent responses a day": Traffic(400),
    "150 students a day with 6 responses each": Traffic(150, 6),
    "fewer and worse responses on weekends": Traffic(300, 3, weekend_share=0.3, weekend_effect=-0.15),
    "means differ between days": Traffic(800, 3, day_deviation=0.1),
    "traffic grows fourfold": Traffic(150, 6, day_deviation=0.02, growth=4),
    "a share of 1 %": Traffic(300, 3, rare_share=0.01),
}


def remarked_days(chance: np.random.Generator, traffic: Traffic, drop: float = 0.0) -> set[tuple[int, str]]:
    """Return (days after the first, variant) of the means out of their bands.

    The treatment's mean is lower by the share `drop` on `BROKEN_DAY`.
    """
    day_effects = traffic.day_deviation * chance.normal(size=DAYS)
    days: dict[int, dict[str, VariantDaySums]] = {FIRST_DAY + day: {} for day in range(DAYS)}
    for variant in EXPERIMENT.variants:
        lost = drop if variant == "treatment" else 0.0
        counts, totals, squares = _daily_sums(chance, traffic, day_effects, lost)
        for day in range(DAYS):
            statistic = SampleMeanStatistic(int(counts[day]), float(totals[day]), float(squares[day]))
            days[FIRST_DAY + day][variant] = VariantDaySums(int(counts[day]), statistic)
    reading = DayReading(days, {}, (FIRST_DAY + DAYS) * DAY_MS)
    log = build_day_log(EXPERIMENT, reading, ExperimentHistory(), {}, STATE_TITLES, {})
    return {
        (entry.day - FIRST_DAY, name)
        for entry in log.days
        for name, variant in entry.variants.items()
        if variant.left_band
    }


def _daily_sums(
    chance: np.random.Generator, traffic: Traffic, day_effects: FloatArray, drop: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return Σ1, Σy and Σy² by day."""
    is_weekend = np.isin((FIRST_DAY + np.arange(DAYS) + 3) % 7, _WEEKEND_DAYS)
    expected = traffic.students_per_day * np.geomspace(1, traffic.growth, DAYS)
    arrivals = chance.poisson(np.where(is_weekend, traffic.weekend_share, 1.0) * expected)
    first_days = np.repeat(np.arange(DAYS), arrivals)
    extra = (
        chance.poisson(traffic.responses_per_student - 1, len(first_days)) if traffic.responses_per_student > 1 else 0
    )
    students = np.repeat(np.arange(len(first_days)), 1 + extra)
    delays = chance.geometric(0.7, len(students)) - 1 if traffic.responses_per_student > 1 else 0
    days = first_days[students] + delays
    students, days = students[days < DAYS], days[days < DAYS]
    ability = chance.normal(0, _CORRELATION**0.5, len(first_days))[students]
    noise = ability + chance.normal(0, (1 - _CORRELATION) ** 0.5, len(students))
    if traffic.rare_share is None:
        means = _MEAN + day_effects[days] + traffic.weekend_effect * is_weekend[days]
        values = means * np.where(days == BROKEN_DAY, 1 - drop, 1.0) + _DEVIATION * noise
    else:
        values = (noise > _NORMAL.inv_cdf(1 - traffic.rare_share)).astype(float)
    counts, totals, squares = (
        np.bincount(days, weights, DAYS).astype(np.float64) for weights in (np.ones_like(values), values, values**2)
    )
    return counts, totals, squares
