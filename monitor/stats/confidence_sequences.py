"""Confidence sequences (sequential tests): intervals that are valid at all times together, whenever a reader stops.

The clock is the information v = 1/se². On this clock S = v·(estimate − truth) behaves like Brownian motion. A mixture
of likelihood ratios over the size of the effect is an e-process: its mean never exceeds 1 while the null hypothesis is
true, so it ever exceeds 1/α with probability α at most (Ville 1939). Inverting the test gives the interval.

References: Robbins, "Statistical methods related to the law of the iterated logarithm", Ann. Math. Statist. 1970.
Howard, Ramdas, McAuliffe & Sekhon, "Time-uniform, nonparametric, nonasymptotic confidence sequences", Ann. Statist.
49(2), 2021 (normal mixtures and their tuning). Waudby-Smith, Arbour, Sinha, Kennedy & Ramdas, "Time-uniform central
limit theory and asymptotic confidence sequences", Ann. Statist. 52(6), 2024 (why the sequences are valid for means of
unknown variance from some sample size on).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from monitor.stats.argument_checks import check_level, check_positive

_ASYMPTOTIC_TAIL_Z = -30.0
"""Below this z the normal tail is computed from its asymptotic series, which is then accurate to 10⁻⁹."""


def mde_information(mde: float) -> float:
    """Return the information (3/mde)² for tuning: a sequence tuned for `mde` just resolves `mde` at about (3/mde)²."""
    return (3 / check_positive("mde", mde)) ** 2


def optimal_rho(information: float, alpha: float) -> float:
    """Return the ρ that makes the two-sided interval tightest at `information`, to first order.

    ρ = v/(2 ln(1/α) + ln(1 + 2 ln(1/α))), Howard et al. 2021.

    >>> round(optimal_rho(100, 0.05), 5)
    12.60056
    """
    log_term = -2 * math.log(check_level("alpha", alpha))
    return check_positive("information", information) / (log_term + math.log1p(log_term))


@dataclass(frozen=True, slots=True)
class NormalMixture:
    """Robbins' two-sided mixture: effects of both signs, drawn from N(0, 1/ρ)."""

    rho: float

    @classmethod
    def tune(cls, information: float, alpha: float) -> NormalMixture:
        """Return the mixture with the tightest intervals of level 1 − `alpha` at `information`."""
        return cls(optimal_rho(information, alpha))

    def log_e(self, score: float, information: float) -> float:
        """Return ln e, the evidence against no effect: ln(√(ρ/(v + ρ))·exp(S²/(2(v + ρ)))).

        `score` is S = information times the observed effect.
        """
        shifted_information = information + self.rho
        return 0.5 * math.log(self.rho / shifted_information) + score * score / (2 * shifted_information)

    def boundary(self, information: float, alpha: float) -> float:
        """Return u(v) = √((v + ρ)·ln((v + ρ)/(ρα²))), which |S| ever exceeds with probability at most `alpha`.

        >>> round(NormalMixture.tune(100, 0.05).boundary(100, 0.05), 5)
        30.35209
        """
        shifted_information = information + self.rho
        log_term = math.log(shifted_information / self.rho) - 2 * math.log(check_level("alpha", alpha))
        return math.sqrt(shifted_information * log_term)

    def half_width(self, information: float, alpha: float) -> float:
        """Return u(v)/v, half of the interval's width."""
        return self.boundary(information, alpha) / information


@dataclass(frozen=True, slots=True)
class HalfNormalMixture:
    """Mixture over positive effects only, drawn from a half-normal distribution; ρ is tuned at 2α."""

    rho: float

    @classmethod
    def tune(cls, information: float, alpha: float) -> HalfNormalMixture:
        """Return the mixture with the tightest bound of level 1 − `alpha` at `information`."""
        return cls(optimal_rho(information, 2 * alpha))

    def log_e(self, score: float, information: float) -> float:
        """Return ln e, the evidence against an effect of at most 0: the two-sided ln e plus ln 2Φ(S/√(v + ρ)).

        `score` is S = information times the observed effect.
        """
        shifted_information = information + self.rho
        log_density_ratio = 0.5 * math.log(self.rho / shifted_information)
        return math.log(2) + log_density_ratio + _log_tilted_cdf(score / math.sqrt(shifted_information))

    def boundary(self, information: float, alpha: float) -> float:
        """Return the S at which e = 1/α, which S ever exceeds with probability at most `alpha`.

        >>> round(HalfNormalMixture.tune(100, 0.05).boundary(100, 0.05), 5)
        27.66071
        """
        threshold = -math.log(check_level("alpha", alpha))
        two_sided_boundary = NormalMixture(self.rho).boundary(information, alpha)
        return find_root(lambda score: self.log_e(score, information) - threshold, 0.0, two_sided_boundary)

    def half_width(self, information: float, alpha: float) -> float:
        """Return the distance between the estimate and the bound, u(v)/v."""
        return self.boundary(information, alpha) / information


def anytime_p_value(largest_log_e: float) -> float:
    """Return the anytime-valid p-value min(1, 1/max e), from the ln of the largest e so far."""
    return min(1.0, math.exp(-largest_log_e))


def find_root(increasing_function: Callable[[float], float], low: float, high: float) -> float:
    """Return where an increasing function crosses 0 between `low` and `high`, to the last bit, by bisection.

    The function is negative at `low` and at least 0 at `high`.
    """
    while low < (middle := low + (high - low) / 2) < high:
        if increasing_function(middle) < 0:
            low = middle
        else:
            high = middle
    return high


def _log_tilted_cdf(z: float) -> float:
    """Return z²/2 + ln Φ(z); far to the left from Φ(z) = φ(z)/|z|·(1 − z⁻² + 3z⁻⁴ − 15z⁻⁶ + 105z⁻⁸ − …)."""
    if z > _ASYMPTOTIC_TAIL_Z:
        return z * z / 2 + math.log(math.erfc(-z / math.sqrt(2)) / 2)
    square = z * z
    series = (((105 / square - 15) / square + 3) / square - 1) / square
    return math.log1p(series) - math.log(-z * math.sqrt(2 * math.pi))
