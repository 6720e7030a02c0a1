"""Variants in which few students differ from an end of the scale: their own spread says too little of the truth.

Of 60 students with a success rate of 2 %, three in ten samples have no success at all. Their variance is 0 then, and an
interval that takes it as it is excludes the truth in up to a third of experiments with uneven shares, at some look. So
where fewer than 20 students differ from one end of the scale, the spread gets what z²/2 students more who differ would
add, as Agresti & Coull do for a proportion: of all of them where nobody differs, of none from 20 on. z is the two-sided
boundary in standard errors where it is tightest, 3.04 at 5 %.

By hand: no success among n students, z²/2 = 4.6. The variance of the mean gets 4.6/n², so that the boundary is at a
rate of 3.04·√4.6/n = 6.5/n at least, and (1 − 6.5/n)ⁿ < 0.0015.

References: Agresti & Coull, "Approximate is better than 'exact' for interval estimation of binomial proportions",
Amer. Statist. 52(2), 1998. Kish 1965 (the effective number, (Σy)²/Σy²). Howard et al. 2021 (the boundary).
"""

from __future__ import annotations

import math
from typing import Final

from monitor.inference.checks import level
from monitor.inference.estimates import Estimate

ENOUGH: Final = 20
"""Students who differ from an end of the scale, from which on their own spread is relied on."""


def students_to_add(alpha: float) -> float:
    """Return z²/2, with z = u(v)/√v at the v that ρ is tuned for; see `monitor.inference.sequences.tuned_rho`.

    >>> round(students_to_add(0.05), 2), round(math.sqrt(2 * students_to_add(0.05)), 2)
    (4.61, 3.04)
    """
    odds = -2 * math.log(level("alpha", alpha))
    tuned = odds + math.log1p(odds)
    return (1 + 1 / tuned) * (math.log1p(tuned) + odds) / 2


def unseen_variance(control: Estimate, treatment: Estimate, largest: float | None, alpha: float) -> float:
    """Return what the variance of the difference lacks, 0 where it rests on enough; both estimates are to be known.

    `largest` is the largest value that a student can have, the smallest is 0; None if there is no bound. A variant in
    which nothing varies, while the other one does, is taken to vary as that one.

    By hand: of 50 students two have a success, so 18/20 of 4.6 students are added, each with 1/50².

    >>> from monitor.inference.estimates import UnitSums
    >>> few, many = UnitSums(50, 2.0, 2.0).estimate(), UnitSums(400, 200.0, 200.0).estimate()
    >>> round(unseen_variance(many, few, 1.0, 0.05) * 50**2, 2)
    4.15
    """
    missing = 0.0
    for own, other in ((control, treatment), (treatment, control)):
        if own.variance == 0:
            missing += (other.unit_variance or 0.0) / own.units
        if largest is not None:
            missing += students_to_add(alpha) * _rarity(own, largest) / own.units**2
    return missing


def _rarity(estimate: Estimate, largest: float) -> float:
    """Return the square of what a student who differs from an end differs by, times how far from enough they are.

    With y the distance from the end, (Σy)²/Σy² students differ, by Σy²/Σy; where none does, by all of the scale.
    """
    mean, units = estimate.mean or 0.0, estimate.units
    spread = (estimate.unit_variance or 0.0) * (units - 1) / units
    found = 0.0
    for distance in (mean, largest - mean):
        square = spread + distance * distance
        differing = units * distance * distance / square if square else 0.0
        by = min(square / distance, largest) if distance > 0 else largest
        found += max(1 - differing / ENOUGH, 0.0) * by * by
    return found
