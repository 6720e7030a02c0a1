"""Variants in which hardly a student differs from an end of the scale: their own spread says too little of the truth.

Of 60 students with a success rate of 2 %, a third of the samples have no success at all. Their variance is 0 then, and
an interval that takes it as it is excludes the truth in up to a third of experiments with uneven shares, however late
one looks. So where fewer than 20 students differ from one end, z²/2 pseudo-students at that end's other side are added
to the spread, as Agresti & Coull do for a proportion; z is the boundary in standard errors.

By hand: no success among n of a proportion, and z² = 11 for a band at 5 %: the variance of the mean is 5.5/n². What a
band excludes is then a rate from 7.8/n on, and (1 − 7.8/n)ⁿ < 0.0005.

References: Agresti & Coull, "Approximate is better than 'exact' for interval estimation of binomial proportions",
Amer. Statist. 52(2), 1998. Kish 1965 (the effective number, (Σy)²/Σy²).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from monitor.inference.estimates import Effect, Estimate

ENOUGH: Final = 20
"""Students who differ from an end of the scale, from which on their own spread is relied on."""


def differing(estimate: Estimate, largest: float) -> float:
    """Return how many students differ from 0, or from `largest` if that are fewer: the effective number, n·m²/E[y²].

    By hand: two of 50 students have 1, the others 0; of values from 0 to 1, that is 2.

    >>> from monitor.inference.estimates import UnitSums
    >>> round(differing(UnitSums(50, 2.0, 2.0).estimate(), 1.0), 9)
    2.0
    >>> round(differing(UnitSums(50, 48.0, 48.0).estimate(), 1.0), 9)
    2.0
    """
    if estimate.mean is None or estimate.unit_variance is None:
        return 0.0
    spread = estimate.unit_variance * (estimate.units - 1) / estimate.units
    ends = (estimate.mean, largest - estimate.mean)
    return min(estimate.units * end * end / (spread + end * end) if end else 0.0 for end in ends)


def information(
    difference: Effect,
    control: Estimate,
    treatment: Estimate,
    largest: float | None,
    boundary: Callable[[float], float],
) -> float | None:
    """Return 1/se² of the difference, where `boundary` says how far the walk may be at an information.

    None where neither varies. `largest` is the largest value that a student can have, the smallest is 0; None if there
    is no bound. A variant in which nothing varies is taken to vary as the other one does.
    """
    plain = difference.information
    if plain is None:
        return None
    missing = 0.0
    for own, other in ((control, treatment), (treatment, control)):
        if own.variance == 0:
            missing += (other.unit_variance or 0.0) / own.units
        if largest is not None and differing(own, largest) < ENOUGH:
            missing += boundary(plain) ** 2 / plain / 2 * (largest / own.units) ** 2
    return 1 / (1 / plain + missing) if missing else plain
