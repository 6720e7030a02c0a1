"""Bands around decayed means: for watching. They never enter a verdict.

An exponentially decayed mean forgets as it goes, so its band has no end at which it is right: watched for long enough,
any constant band is left. c is chosen so that the whole of a horizon is covered.

References: Leadbetter, Lindgren & Rootzén, "Extremes and related properties of random sequences and processes", 1983,
theorem 12.2.9 (with α = 1). Kish, "Survey sampling", 1965, section 8.2 (the design effect).
"""

from __future__ import annotations

import math

from monitor.stats.argument_checks import not_negative, positive
from monitor.stats.sequences import root

BAND_CONSTANTS = ((1, 2.53), (7, 3.29), (14, 3.51), (28, 3.72), (56, 3.92))
"""(half-lives watched, c): simulated, 5 % over the whole horizon, two-sided, hourly looks at a half-life of a day."""


def band_constant(half_lives: float) -> float:
    """Return c, such that a mean ± c·se covers the truth throughout a horizon with 95 %.

    Up to 56 half-lives the next larger horizon of `BAND_CONSTANTS`. Beyond, the c with 2·ln 2·T·c·φ(c) = −ln 0.95: a
    decayed mean is nearly an Ornstein-Uhlenbeck process with autocorrelation 2^(−|lag|), whose high levels are passed
    like this; looking continuously, so a little wide.

    >>> band_constant(7), band_constant(20), round(band_constant(672), 2)
    (3.29, 3.72, 4.56)
    """
    positive("half_lives", half_lives)
    for horizon, constant in BAND_CONSTANTS:
        if half_lives <= horizon:
            return constant
    rate = 2 * math.log(2) * half_lives / math.sqrt(2 * math.pi)
    allowed = -math.log(0.95)
    most = math.sqrt(2 * math.log(rate / allowed)) + 3
    return root(lambda c: allowed - rate * c * math.exp(-c * c / 2), BAND_CONSTANTS[-1][1], most)


def design_effect(clustered_variance: float, independent_variance: float) -> float | None:
    """Return how many times more a mean over responses varies because students give several (Kish 1965).

    Both are variances of the all-time mean: that of `RatioSums`, and s²/n as if responses were independent. At least 1;
    None where the second is 0.
    """
    not_negative("clustered_variance", clustered_variance)
    if not not_negative("independent_variance", independent_variance):
        return None
    return max(1.0, clustered_variance / independent_variance)
