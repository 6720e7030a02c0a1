"""CUPED: a student's own mean from before the experiment explains part of the spread, and is taken out of it.

y* = y − θ·(x − x̄), with x the student's mean before the experiment. Assignment cannot have changed x, so the effect
stays what it was, and its variance falls by the squared correlation. θ and x̄ are pooled over all variants: one of each
per variant would let them differ in what they take out. A student without an x keeps y as it is; having an x is itself
settled before the experiment.

Reference: Deng, Xu, Kohavi & Walker, "Improving the sensitivity of online controlled experiments by utilizing
pre-experiment data", WSDM 2013.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.inference.estimates import Estimate, Sums, UnitSums

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
    """The adjusted sums of every variant, to be used like any others."""

    theta: float
    variants: Mapping[str, UnitSums]


def regression(pooled: PairedSums, resolution: float = 0.0) -> tuple[float, float] | None:
    """Return θ = cov(y, x)/var(x) and x̄ of the sums of all variants together; None where x does not vary.

    Each square may be off by `resolution`: what varies by less does not.

    By hand: (x, y) = (1, 1), (2, 3), (3, 5) lie on a line of slope 2 around x̄ = 2.

    >>> regression(PairedSums(3, 9.0, 35.0, 6.0, 14.0, 22.0))
    (2.0, 2.0)
    """
    if pooled.units == 0:
        return None
    centre = pooled.before / pooled.units
    spread = pooled.before_squares - centre * pooled.before
    if spread <= max(pooled.units * resolution, _ROUNDING * pooled.before_squares):
        return None
    return (pooled.products - centre * pooled.total) / spread, centre


def adjusted_sums(sums: UnitSums, paired: PairedSums, theta: float, centre: float) -> UnitSums:
    """Return the sums of y − θ·(x − centre) for the units of `paired`, of y for the other units of `sums`.

    `sums` are over all units, those of `paired` among them.
    """
    shift = paired.before - centre * paired.units
    spread = paired.before_squares - 2 * centre * paired.before + centre * centre * paired.units
    product = paired.products - centre * paired.total
    squares = sums.squares - 2 * theta * product + theta * theta * spread
    return UnitSums(sums.units, sums.total - theta * shift, squares)


def adjust(variants: Mapping[str, tuple[UnitSums, PairedSums]], resolution: float = 0.0) -> Adjusted | None:
    """Return the adjusted sums of all variants; None where no student has an x, or x does not vary."""
    pooled = PairedSums()
    for _, paired in variants.values():
        pooled += paired
    found = regression(pooled, resolution)
    if found is None:
        return None
    theta, centre = found
    adjusted = {name: adjusted_sums(*variant, theta, centre) for name, variant in variants.items()}
    return Adjusted(theta, adjusted)


def variance_reduction(raw: tuple[Estimate, Estimate], adjusted: tuple[Estimate, Estimate]) -> float | None:
    """Return the part by which a difference's variance fell: 0.3 saves 30 % of the students. None if unknown."""
    before = [estimate.variance for estimate in raw]
    after = [estimate.variance for estimate in adjusted]
    if None in before or None in after or not sum(before):  # type: ignore[arg-type]
        return None
    return 1 - sum(after) / sum(before)  # type: ignore[arg-type]
