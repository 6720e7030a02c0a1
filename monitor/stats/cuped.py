"""CUPED: a student's own mean from before the experiment explains part of the spread, and is taken out of it.

y* = y − θ·(x − x̄), with x the student's mean before the experiment. Assignment cannot have changed x, so the effect
stays what it was, and its variance falls by the squared correlation. θ and x̄ are pooled over all variants: one of each
per variant would let them differ in what they take out. Strata that are compared each by itself (`stratified`) have
their own x̄, and θ is of what varies within them. A student without an x keeps y as it is; having an x is itself settled
before the experiment.

Reference: Deng, Xu, Kohavi & Walker, "Improving the sensitivity of online controlled experiments by utilizing
pre-experiment data", WSDM 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.stats.estimates import Estimate, Sums, UnitSums

_ROUNDING: Final = 1e-12
"""Of a sum of squares in float64."""


class PairedSums(Sums, frozen=True):
    """Sums over the units with both values: n, Σy, Σy², Σx, Σx², Σxy."""

    units: int = 0
    total: float = 0.0
    squares: float = 0.0
    before: float = 0.0
    before_squares: float = 0.0
    products: float = 0.0


@dataclass(frozen=True, slots=True)
class Adjusted:
    """The adjusted sums of every variant, by stratum, to be used like any others."""

    theta: float
    strata: Sequence[Mapping[str, UnitSums]]


def slope(strata: Sequence[PairedSums], resolution: float = 0.0) -> float | None:
    """Return θ = cov(y, x)/var(x) within the strata, each about its own means; None where x does not vary in any.

    Each square may be off by `resolution`: what varies by less does not.

    By hand: (x, y) = (1, 1), (2, 3), (3, 5) lie on a line of slope 2, (5, 1), (7, 5) on another one. All five points
    together would have a slope of 8/23.2.

    >>> slope([PairedSums(3, 9.0, 35.0, 6.0, 14.0, 22.0), PairedSums(2, 6.0, 26.0, 12.0, 74.0, 40.0)])
    2.0
    """
    spread = product = 0.0
    for sums in strata:
        if sums.units:
            own = sums.before_squares - sums.before / sums.units * sums.before
            if own > max(sums.units * resolution, _ROUNDING * sums.before_squares):
                spread += own
                product += sums.products - sums.before / sums.units * sums.total
    return product / spread if spread else None


def adjusted_sums(sums: UnitSums, paired: PairedSums, theta: float, centre: float) -> UnitSums:
    """Return the sums of y − θ·(x − centre) for the units of `paired`, of y for the other units of `sums`.

    `sums` are over all units, those of `paired` among them.
    """
    shift = paired.before - centre * paired.units
    spread = paired.before_squares - 2 * centre * paired.before + centre * centre * paired.units
    product = paired.products - centre * paired.total
    squares = sums.squares - 2 * theta * product + theta * theta * spread
    return UnitSums(sums.units, sums.total - theta * shift, squares)


def adjust(strata: Sequence[Mapping[str, tuple[UnitSums, PairedSums]]], resolution: float = 0.0) -> Adjusted | None:
    """Return the adjusted sums of all variants; None where no student has an x, or x does not vary."""
    together = [sum((paired for _, paired in variants.values()), PairedSums()) for variants in strata]
    theta = slope(together, resolution)
    if theta is None:
        return None
    centres = [sums.before / sums.units if sums.units else 0.0 for sums in together]
    adjusted = [
        {name: adjusted_sums(*sums, theta, centre) for name, sums in variants.items()}
        for variants, centre in zip(strata, centres, strict=True)
    ]
    return Adjusted(theta, adjusted)


def variance_reduction(raw: tuple[Estimate, Estimate], adjusted: tuple[Estimate, Estimate]) -> float | None:
    """Return the part by which a difference's variance fell: 0.3 saves 30 % of the students. None if unknown."""
    before = [estimate.variance for estimate in raw]
    after = [estimate.variance for estimate in adjusted]
    if None in before or None in after or not sum(before):  # type: ignore[arg-type]
        return None
    return 1 - sum(after) / sum(before)  # type: ignore[arg-type]
