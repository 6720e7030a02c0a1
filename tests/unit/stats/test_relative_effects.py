"""Relative effects with anytime-valid bounds."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.stats import Estimate, compare_variants
from monitor.stats.relative_effects import relative_confidence_sequence


@given(st.floats(0.5, 5.0), st.floats(0.5, 5.0), st.floats(1e-4, 1e-2), st.floats(1e-4, 1e-2))
def test_relative_and_absolute_interval_exclude_no_effect_together(
    control_mean: float, treatment_mean: float, control_variance: float, treatment_variance: float
) -> None:
    """The test of a relative effect of 0 is the test of an absolute effect of 0."""
    control = Estimate(2000, control_mean, control_variance)
    treatment = Estimate(2000, treatment_mean, treatment_variance)
    lower, upper = relative_confidence_sequence(control, treatment, alpha=0.05, mde=0.1)
    comparison = compare_variants(control, treatment, alpha=0.05, mde=0.1)
    assert lower is not None
    assert comparison.lower is not None
    assert comparison.upper is not None
    for relative_bound, absolute_bound in ((lower, comparison.lower), (upper, comparison.upper)):
        if relative_bound is not None and abs(absolute_bound) > 1e-9:
            assert (relative_bound > 0) == (absolute_bound > 0)


def test_with_an_exact_control_the_bounds_are_the_absolute_bounds_divided_by_its_mean() -> None:
    """Without variance of the control at a mean of 1, relative and absolute effects are nearly the same."""
    control, treatment = Estimate(10**9, 1.0, 1e-12), Estimate(5000, 1.001, 1e-4)
    lower, upper = relative_confidence_sequence(control, treatment, alpha=0.05, mde=0.1)
    comparison = compare_variants(control, treatment, alpha=0.05, mde=0.1)
    # The floor of the variance for uneven shares applies to both.
    assert lower == pytest.approx(comparison.lower, rel=0.02)
    assert upper == pytest.approx(comparison.upper, rel=0.02)


def test_the_bounds_are_unknown_if_the_control_may_be_0() -> None:
    """Of a mean of 0.02 ± 0.02 no multiple can be bounded; without students nothing is known."""
    control, treatment = Estimate(500, 0.02, 0.0004), Estimate(500, 0.03, 0.0004)
    assert relative_confidence_sequence(control, treatment, alpha=0.05, mde=0.1) == (None, None)
    nobody = Estimate(0, None, None)
    assert relative_confidence_sequence(nobody, nobody, alpha=0.05, mde=0.1) == (None, None)


def test_the_interval_contains_the_true_relative_effect_at_all_of_many_analyses() -> None:
    """Of 200 simulated experiments with 50 analyses each, at most 5 % ever exclude the true effect of +20 %."""
    random, runs, errors = np.random.default_rng(3), 200, 0
    sizes = np.arange(200, 10_001, 200)
    for _ in range(runs):
        control_sums, treatment_sums = (
            np.cumsum(random.normal(mean, 1.0, (50, 200)).sum(axis=1)) for mean in (0.5, 0.6)
        )
        for size, control_sum, treatment_sum in zip(sizes, control_sums, treatment_sums, strict=True):
            lower, upper = relative_confidence_sequence(
                Estimate(int(size), control_sum / size, 1 / size),
                Estimate(int(size), treatment_sum / size, 1 / size),
                alpha=0.05,
                mde=0.1,
            )
            if (lower is not None and lower > 0.2) or (upper is not None and upper < 0.2):
                errors += 1
                break
    assert errors <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5
