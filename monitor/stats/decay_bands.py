"""Uncertainty bands around decayed means, for display only; verdicts do not use bands.

An exponentially decayed mean forgets old data, so no band is valid for ever: watched for long enough, any constant band
is left by chance. The multiplier c of the standard error is therefore chosen to cover a whole horizon.

References: Leadbetter, Lindgren & Rootzén, "Extremes and related properties of random sequences and processes", 1983,
theorem 12.2.9 (with α = 1). Kish, "Survey sampling", 1965, section 8.2 (the design effect).
"""

from __future__ import annotations

import math

from monitor.stats.argument_checks import check_non_negative, check_positive
from monitor.stats.confidence_sequences import find_root

BAND_MULTIPLIERS = ((1, 2.53), (7, 3.29), (14, 3.51), (28, 3.72), (56, 3.92))
"""(horizon in half-lives, c): simulated, 5 % over the whole horizon, two-sided, hourly checks, a half-life of a day."""


def decay_band_multiplier(half_lives: float) -> float:
    """Return c such that a decayed mean ± c·se covers the true mean throughout a horizon with probability 95 %.

    Up to 56 half-lives, c is the multiplier of the next larger horizon in `BAND_MULTIPLIERS`. Beyond, c solves
    2·ln 2·T·c·φ(c) = −ln 0.95: a decayed mean is nearly an Ornstein-Uhlenbeck process with autocorrelation 2^(−|lag|),
    and the equation is the asymptotic rate at which such a process crosses high levels. The equation is for continuous
    observation, so the band is slightly too wide for hourly checks.

    >>> decay_band_multiplier(7), decay_band_multiplier(20), round(decay_band_multiplier(672), 2)
    (3.29, 3.72, 4.56)
    """
    check_positive("half_lives", half_lives)
    for horizon, multiplier in BAND_MULTIPLIERS:
        if half_lives <= horizon:
            return multiplier
    rate = 2 * math.log(2) * half_lives / math.sqrt(2 * math.pi)
    expected_crossings = -math.log(0.95)
    upper_bound = math.sqrt(2 * math.log(rate / expected_crossings)) + 3
    return find_root(
        lambda c: expected_crossings - rate * c * math.exp(-c * c / 2), BAND_MULTIPLIERS[-1][1], upper_bound
    )


def design_effect(clustered_variance: float, independent_variance: float) -> float | None:
    """Return the factor by which several responses per student increase the variance of a mean (Kish 1965).

    Both arguments are variances of the all-time mean over responses: the cluster-robust variance of `RatioStatistic`,
    and s²/n as if responses were independent. The factor is at least 1, and None if `independent_variance` is 0.
    """
    check_non_negative("clustered_variance", clustered_variance)
    if not check_non_negative("independent_variance", independent_variance):
        return None
    return max(1.0, clustered_variance / independent_variance)
