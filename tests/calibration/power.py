"""Simulated experiments with an effect: the sample until it is shown, relative to an analysis with a fixed horizon."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from monitor.stats import SampleMeanStatistic, compare_variants
from tests.calibration.populations import ALPHA, MDE, excludes_zero

EFFECTS: Final = (0.5, 1.0, 2.0)
"""True effects, as multiples of the mde for which the confidence sequence is tuned."""
LARGEST_RATIO: Final = 2.4
"""The largest sample for 80 % power that is accepted, if the true effect is the mde."""
LOOKS_PER_HORIZON: Final = 40
MAX_HORIZONS: Final = 5
_FIXED_HORIZON_Z: Final = 1.959964 + 0.841621
"""Sum of the normal quantiles for α = 0.05 two-sided and a power of 80 %."""


def fixed_horizon_students(effect: float) -> int:
    """Return the students per variant with which one analysis has 80 % power, for values with a variance of 1.

    >>> fixed_horizon_students(0.1)
    1570
    """
    return math.ceil(2 * (_FIXED_HORIZON_Z / effect) ** 2)


def relative_sample(chance: np.random.Generator, effect: float) -> float:
    """Return the students per variant at the first look that shows the effect, relative to the fixed horizon.

    Infinite if no look within five fixed horizons shows the effect as a gain.
    """
    horizon = fixed_horizon_students(effect)
    step = max(horizon // LOOKS_PER_HORIZON, 1)
    students, totals, squares = 0, np.zeros(2), np.zeros(2)
    while students < MAX_HORIZONS * horizon:
        values = chance.normal([[3.0], [3.0 + effect]], 1.0, (2, step))
        students, totals, squares = students + step, totals + values.sum(axis=1), squares + (values**2).sum(axis=1)
        arms = (SampleMeanStatistic(students, float(totals[arm]), float(squares[arm])).estimate() for arm in (0, 1))
        comparison = compare_variants(*arms, alpha=ALPHA, mde=MDE)
        if comparison.decides and excludes_zero(comparison) and (comparison.difference.effect or 0.0) > 0:
            return students / horizon
    return math.inf
