"""Confidence sequences: intervals that hold at every look at once, however often anybody looks and whenever they stop.

The clock is information, v = 1/se², and the walk on it is S = v·(estimate − truth), which behaves as Brownian motion.
A mixture of likelihood ratios over the size of the effect is an e-process: its mean never exceeds one while the
hypothesis is true, so it passes 1/α with probability at most α, ever (Ville 1939). Inverting it gives the interval.

References: Robbins, "Statistical methods related to the law of the iterated logarithm", Ann. Math. Statist. 1970.
Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Statist.
49(2), 2021 (normal mixtures, and how to tune them). Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform
central limit theory and asymptotic confidence sequences", Ann. Statist. 52(6), 2024 (why it holds for means of unknown
variance from some sample size on).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from monitor.stats.argument_checks import level, positive

_FAR_LEFT = -30.0
"""Below it the normal tail is taken from its asymptotic series, which is then right to 10⁻⁹."""


def mde_information(mde: float) -> float:
    """Return the information (3/mde)² at which a sequence should be tightest: where it just resolves the `mde`."""
    return (3 / positive("mde", mde)) ** 2


def tuned_rho(information: float, alpha: float) -> float:
    """Return the ρ that makes the two-sided band tightest at `information`, to first order.

    ρ = v/(2 ln(1/α) + ln(1 + 2 ln(1/α))), Howard et al. 2021.

    >>> round(tuned_rho(100, 0.05), 5)
    12.60056
    """
    odds = -2 * math.log(level("alpha", alpha))
    return positive("information", information) / (odds + math.log1p(odds))


@dataclass(frozen=True, slots=True)
class NormalMixture:
    """Robbins' two-sided mixture: effects of both signs, drawn from N(0, 1/ρ)."""

    rho: float

    @classmethod
    def tuned(cls, information: float, alpha: float) -> NormalMixture:
        """Return the mixture that is tightest at `information` for intervals of level 1 − `alpha`."""
        return cls(tuned_rho(information, alpha))

    def log_e(self, walk: float, information: float) -> float:
        """Return ln e, the evidence against a walk without drift: ln(√(ρ/(v + ρ))·exp(S²/(2(v + ρ))))."""
        spread = information + self.rho
        return 0.5 * math.log(self.rho / spread) + walk * walk / (2 * spread)

    def boundary(self, information: float, alpha: float) -> float:
        """Return u(v) = √((v + ρ)·ln((v + ρ)/(ρα²))), which |S| ever passes with probability at most `alpha`.

        >>> round(NormalMixture.tuned(100, 0.05).boundary(100, 0.05), 5)
        30.35209
        """
        spread = information + self.rho
        return math.sqrt(spread * (math.log(spread / self.rho) - 2 * math.log(level("alpha", alpha))))

    def half_width(self, information: float, alpha: float) -> float:
        """Return u(v)/v, half of the interval's width."""
        return self.boundary(information, alpha) / information


@dataclass(frozen=True, slots=True)
class HalfNormalMixture:
    """The one-sided mixture: effects above 0 only, drawn from a half-normal; its ρ is tuned at 2α."""

    rho: float

    @classmethod
    def tuned(cls, information: float, alpha: float) -> HalfNormalMixture:
        """Return the mixture whose one-sided bound of level 1 − `alpha` is tightest at `information`."""
        return cls(tuned_rho(information, 2 * alpha))

    def log_e(self, walk: float, information: float) -> float:
        """Return ln e, the evidence against a walk with a drift of at most 0: ln 2Φ(S/√(v + ρ)) more than two-sided."""
        spread = information + self.rho
        return math.log(2) + 0.5 * math.log(self.rho / spread) + _log_tilted_cdf(walk / math.sqrt(spread))

    def boundary(self, information: float, alpha: float) -> float:
        """Return the S at which e = 1/α, which S ever passes with probability at most `alpha`.

        >>> round(HalfNormalMixture.tuned(100, 0.05).boundary(100, 0.05), 5)
        27.66071
        """
        threshold = -math.log(level("alpha", alpha))
        widest = NormalMixture(self.rho).boundary(information, alpha)
        return root(lambda walk: self.log_e(walk, information) - threshold, 0.0, widest)

    def half_width(self, information: float, alpha: float) -> float:
        """Return the distance from the estimate to its one-sided bound."""
        return self.boundary(information, alpha) / information


def anytime_p(largest_log_e: float) -> float:
    """Return min(1, 1/max e): the p-value that goes with the largest e seen so far, valid whenever one stops."""
    return min(1.0, math.exp(-largest_log_e))


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Return where a rising function passes 0 between `low` (below 0) and `high`, to the last bit, by bisection."""
    while low < (middle := low + (high - low) / 2) < high:
        if rising(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def _log_tilted_cdf(z: float) -> float:
    """Return z²/2 + ln Φ(z); far to the left from Φ(z) = φ(z)/|z|·(1 − z⁻² + 3z⁻⁴ − 15z⁻⁶ + 105z⁻⁸ − …)."""
    if z > _FAR_LEFT:
        return z * z / 2 + math.log(math.erfc(-z / math.sqrt(2)) / 2)
    square = z * z
    series = (((105 / square - 15) / square + 3) / square - 1) / square
    return math.log1p(series) - math.log(-z * math.sqrt(2 * math.pi))
