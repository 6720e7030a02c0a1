"""Relative effects with anytime-valid bounds, by inverting a family of sequential tests (Fieller's method).

The relative effect ρ = m_t/m_c − 1 is 0 for no effect. For each ρ the contrast D(ρ) = m_t − (1 + ρ)·m_c of two
independent means has the variance v_t + (1 + ρ)²·v_c, and its mean is 0 if ρ is the true relative effect. The interval
contains every ρ whose test by a normal mixture does not reject now. The test of the true ρ ever rejects with
probability α at most, so the interval is valid at every interim analysis, although m_c is estimated.

The mixture of each ρ is tuned for the effect mde·√((1 + (1 + ρ)²)/2), a fixed function of ρ. For ρ = 0 the test is that
of the absolute effect, so both intervals exclude 0 at the same moments.

Reference: Fieller, "Some problems in interval estimation", J. R. Stat. Soc. B 16(2), 1954.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final

from monitor.stats.comparison import MIN_UNITS_FOR_INTERVAL
from monitor.stats.confidence_sequences import NormalMixture, find_root, mde_information
from monitor.stats.estimates import Estimate
from monitor.stats.rare_events import small_sample_variance

_FIRST_DISTANCE: Final = 2.0**-20
_MAX_RELATIVE_EFFECT: Final = 1e6
"""A larger distance of a bound from the estimate is reported as None: the control's mean may be 0."""


def relative_confidence_sequence(
    control: Estimate,
    treatment: Estimate,
    *,
    alpha: float,
    mde: float,
    max_value: float | None = None,
    min_value: float = 0.0,
) -> tuple[float | None, float | None]:
    """Return the bounds of the relative effect m_t/m_c − 1 at level 1 − `alpha`, valid at every interim analysis.

    `mde` is the absolute effect that tunes the interval; `max_value` is the largest value that a student can have (the
    smallest is 0), or None. A bound is None if it is unknown or unbounded: with fewer than 20 students in a variant,
    without variation, or if the control's mean is not distinguishable from 0.

    >>> control, treatment = Estimate(5000, 2.0, 0.0004), Estimate(5000, 2.2, 0.0004)
    >>> lower, upper = relative_confidence_sequence(control, treatment, alpha=0.05, mde=0.1)
    >>> f"{lower:.4f} {upper:.4f}"
    '0.0558 0.1463'
    """
    if min(control.units, treatment.units) < MIN_UNITS_FOR_INTERVAL or not control.mean or treatment.mean is None:
        return None, None
    if control.variance is None or treatment.variance is None or not control.variance + treatment.variance:
        return None, None
    control_mean, treatment_mean = control.mean, treatment.mean
    control_variance, treatment_variance = control.variance, treatment.variance
    added_variance = small_sample_variance(control, treatment, max_value, alpha, min_value)
    estimate = treatment_mean / control_mean - 1

    def excess(relative_effect: float) -> float:
        """Return |D(ρ)| minus the half width of its interval: negative for the ρ that are not rejected."""
        factor = 1 + relative_effect
        variance = treatment_variance + factor * factor * control_variance + added_variance * max(1.0, factor * factor)
        mixture = NormalMixture.tune(mde_information(mde * math.sqrt((1 + factor * factor) / 2)), alpha)
        return abs(treatment_mean - factor * control_mean) - mixture.half_width(1 / variance, alpha)

    lower_distance = _first_crossing(lambda distance: excess(estimate - distance))
    upper_distance = _first_crossing(lambda distance: excess(estimate + distance))
    return (
        None if lower_distance is None else estimate - lower_distance,
        None if upper_distance is None else estimate + upper_distance,
    )


def _first_crossing(excess: Callable[[float], float]) -> float | None:
    """Return the distance at which `excess`, negative at 0, reaches 0; None if it does not up to 10⁶."""
    near, far = 0.0, _FIRST_DISTANCE
    while excess(far) < 0:
        near, far = far, far * 2
        if far > _MAX_RELATIVE_EFFECT:
            return None
    return find_root(excess, near, far)
