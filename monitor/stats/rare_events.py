"""Values that few students have: a small sample's own spread says too little of them.

**At an end of the scale.** Of 60 students with a success rate of 2 %, three in ten samples have no success at all.
Their variance is 0 then, and an interval that takes it as it is excludes the truth in up to a third of experiments with
uneven shares, at some look. So where fewer than 20 students differ from one end of the scale, the spread gets what z²/2
students more who differ would add, as Agresti & Coull do for a proportion: of all of them where nobody differs, of none
from 20 on. z is the two-sided boundary in standard errors where it is tightest, 3.04 at 5 %.

By hand: no success among n students, z²/2 = 4.6. The variance of the mean gets 4.6/n², so that the boundary is at a
rate of 3.04·√4.6/n = 6.5/n at least, and (1 − 6.5/n)ⁿ < 0.0015.

**Anywhere, where shares are uneven.** The few may have none of those students who make the many's variance, and then
both parts of the variance are small: the many's for their number, the few's for want of those students. So it is taken
to be at least half of what it would be if both varied as the one that varies more. With equal numbers it is that in any
case, and so it is wherever neither variance is more than twice the other.

References: Agresti & Coull, "Approximate is better than 'exact' for interval estimation of binomial proportions",
Amer. Statist. 52(2), 1998. Kish 1965 (the effective number, (Σy)²/Σy²). Howard et al. 2021 (the boundary).
"""

from __future__ import annotations

import math
from typing import Final

from monitor.stats.argument_checks import level
from monitor.stats.estimates import Estimate

ENOUGH: Final = 20
"""Students who differ from an end of the scale, from which on their own spread is relied on."""
LEAST: Final = 0.5
"""Part of the variance that variants would have if they varied alike, which is always assumed."""


def students_to_add(alpha: float) -> float:
    """Return z²/2, with z = u(v)/√v at the v that ρ is tuned for; see `monitor.stats.sequences.tuned_rho`.

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

    >>> from monitor.stats.estimates import UnitSums
    >>> few, many = UnitSums(50, 2.0, 2.0).estimate(), UnitSums(60, 30.0, 30.0).estimate()
    >>> round(unseen_variance(many, few, 1.0, 0.05) * 50**2, 2)
    4.15

    Of 400 students with 1 ± 2 and 100 with 1 ± 0.5, the variance is 4/400 + 0.25/100, and half of 4/400 + 4/100 more:

    >>> control, treatment = Estimate(400, 1.0, 4.0 / 400), Estimate(100, 1.0, 0.25 / 100)
    >>> round(unseen_variance(control, treatment, None, 0.05), 6)
    0.0125
    """
    missing = _unequal(control, treatment)
    if largest is not None:
        missing += sum(students_to_add(alpha) * _rarity(own, largest) / own.units**2 for own in (control, treatment))
    return missing


def _unequal(control: Estimate, treatment: Estimate) -> float:
    """Return what is missing to half of the variance that there would be if both varied alike; of strata, of each."""
    if control.strata:
        pairs = zip(control.strata, treatment.strata, strict=True)
        return sum(share**2 * _unequal(one, other) for (share, one), (_, other) in pairs)
    both = (control, treatment), (treatment, control)
    known = (control.variance or 0.0) + (treatment.variance or 0.0)
    likewise = max(own.unit_variance or 0.0 for own, _ in both) * sum(1 / own.units for own, _ in both)
    as_the_other = sum((other.unit_variance or 0.0) / own.units for own, other in both if own.variance == 0)
    return max(as_the_other, LEAST * likewise - known, 0.0)


def unmet_variance(estimate: Estimate, worst: float, alpha: float) -> float:
    """Return what the variance of a mean lacks if few students may have the value `worst`, and nobody met it yet.

    Again z²/2 students who do, (worst − mean) away from the others; none from 20 on. So many would make all of the
    spread at least: how many there are is not known. They may all be of the stratum in which one weighs most.

    By hand: 1000 students with 800 ± 300 ms, of whom none can have met 30 s: 300²/29200² of a student, effectively.

    >>> seen = Estimate(1000, 800.0, 300.0**2 / 1000)
    >>> round(unmet_variance(seen, 30_000.0, 0.05) ** 0.5, 1)
    62.5
    """
    away = max(worst - (estimate.mean or 0.0), 0.0) ** 2
    parts = estimate.strata or ((1.0, estimate),)
    met = sum(part.units * (part.unit_variance or 0.0) for _, part in parts) / away if away else ENOUGH
    weight = max(share / part.units for share, part in parts)
    return students_to_add(alpha) * max(1 - met / ENOUGH, 0.0) * away * weight**2


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
