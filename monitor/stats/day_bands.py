"""The band of a day's mean: a prediction interval from the days before. It marks days, and verdicts do not use it.

The means of two days differ by more than chance within the days: weekends, exams and slow changes move all of a day's
responses together, and several responses of a student are alike. So the band is estimated from the days before, and not
only from the responses of the day.

References: Hahn & Meeker, "Statistical intervals", 1991, section 4.7 (prediction interval of a further observation).
Hedges & Olkin, "Statistical methods for meta-analysis", 1985, section 9.3 (variance between groups). Laney, "Improved
control charts for attributes", Quality Engineering 14(4), 2002 (limits for days of very different sizes). Abramowitz &
Stegun, "Handbook of mathematical functions", 1964, 26.7.3 and 26.7.4 (Student's t distribution).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final, NamedTuple

from monitor.stats.argument_checks import check_positive
from monitor.stats.confidence_sequences import find_root
from monitor.stats.estimates import SampleMeanStatistic

MIN_DAYS_BEFORE: Final = 7
"""Days before a day from which on the day has a band: with a week, weekends are in the variance between days."""
MAX_DAYS_BEFORE: Final = 28
BAND_DAYS: Final = 28
BAND_ALPHA: Final = 0.05
"""Probability that any variant leaves a band within `BAND_DAYS` days, if nothing changes."""
_ROUNDING_ERROR: Final = 1e-9
_LARGEST_QUANTILE: Final = 1e6


class DayBand(NamedTuple):
    """The usual mean of a day, and the interval that the day's mean leaves only rarely by chance."""

    usual: float
    lower: float
    upper: float

    def contains(self, mean: float) -> bool:
        """Return whether a day's mean is in the band, or beyond it only by rounding."""
        tolerance = _ROUNDING_ERROR * abs(self.usual)
        return self.lower - tolerance <= mean <= self.upper + tolerance

    def clip(self, least: float, most: float) -> DayBand:
        """Return the part of the band within the range of a metric's values.

        >>> DayBand(0.05, -0.009, 0.109).clip(0.0, 1.0)
        DayBand(usual=0.05, lower=0.0, upper=0.109)
        """
        return DayBand(self.usual, max(self.lower, least), min(self.upper, most))


def predict_day_mean(
    days_before: Sequence[SampleMeanStatistic], day: SampleMeanStatistic, alpha: float
) -> DayBand | None:
    """Return the prediction interval with level 1 − `alpha` of a day's mean; None with too few days before.

    Each statistic is over the responses of a day, at least one. The usual mean is the mean of the k daily means, each
    day with equal weight. With their variance S², the variance of the responses s² (pooled over the days, or that of
    the day if larger) and n responses of the day, the variance of the day's mean is the larger one of

    - max(0, S² − v̄) + s²/n, where v̄ is the mean of s²/nⱼ over the days: variance between days (Hedges & Olkin);
    - max(1, S²/v̄)·s²/n: variance within days is larger than that of independent responses (Laney).

    The half-width is t(k − 1)·√(variance + max(S², v̄)/k). For days of equal size it is that of Hahn & Meeker, or more.

    By hand: daily means 1 … 7 without spread within days have mean 4 and S² = 28/6; t(6) at 5 % is 2.4469.

    >>> constant_days = [SampleMeanStatistic(100, 100.0 * mean, 100.0 * mean**2) for mean in range(1, 8)]
    >>> band = predict_day_mean(constant_days, SampleMeanStatistic(100, 400.0, 1600.0), 0.05)
    >>> band.usual, round(band.upper - 4, 4), round(2.4469 * (28 / 6 * (1 + 1 / 7)) ** 0.5, 4)
    (4.0, 5.6509, 5.6509)
    """
    k = len(days_before)
    if k < MIN_DAYS_BEFORE:
        return None
    means = [statistic.total / statistic.units for statistic in days_before]
    usual = math.fsum(means) / k
    between = math.fsum((mean - usual) ** 2 for mean in means) / (k - 1)
    pooled = sum((_spread(statistic) for statistic in days_before), 0.0) / max(
        sum(statistic.units - 1 for statistic in days_before), 1
    )
    within = max(pooled, _spread(day) / max(day.units - 1, 1))
    expected = within * math.fsum(1 / statistic.units for statistic in days_before) / k
    dispersion = max(1.0, between / expected) if expected > 0 else 1.0
    of_day = max(max(0.0, between - expected) + within / day.units, dispersion * within / day.units)
    half_width = t_quantile(k - 1, alpha) * math.sqrt(of_day + max(between, expected) / k)
    return DayBand(usual, usual - half_width, usual + half_width)


def _spread(statistic: SampleMeanStatistic) -> float:
    """Return Σ(x − mean)²."""
    return max(statistic.sum_of_squares - statistic.total**2 / statistic.units, 0.0)


@cache
def t_quantile(degrees_of_freedom: int, alpha: float) -> float:
    """Return t with P(|T| > t) = `alpha` for Student's t distribution with a whole number of degrees of freedom.

    >>> [round(t_quantile(degrees, 0.05), 3) for degrees in (1, 2, 6, 27)]
    [12.706, 4.303, 2.447, 2.052]
    """
    check_positive("degrees_of_freedom", degrees_of_freedom)
    return find_root(lambda t: alpha - _t_tail(t, degrees_of_freedom), 0.0, _LARGEST_QUANTILE)


def _t_tail(t: float, degrees_of_freedom: int) -> float:
    """Return P(|T| > t) by the finite series of Abramowitz & Stegun in θ = atan(t/√ν)."""
    theta = math.atan(t / math.sqrt(degrees_of_freedom))
    cosine_square = math.cos(theta) ** 2
    is_odd = degrees_of_freedom % 2
    term = math.cos(theta) if is_odd else 1.0
    total = 0.0
    for index in range(degrees_of_freedom // 2):
        total += term
        first = 2 * index + (2 if is_odd else 1)
        term *= cosine_square * first / (first + 1)
    series = math.sin(theta) * total
    return 1 - (2 / math.pi * (theta + series) if is_odd else series)
