"""Sufficient statistics of one variant, and the estimates made from them.

Each kind of sums adds up, in any order and grouping, so a scrape reads a few sums and never a student. An estimate is a
mean with the variance of that mean; what is undefined is None. A scrape makes hundreds, so they are structs of msgspec:
a frozen dataclass takes several times as long to make. Two estimands (docs/statistics.md):

- closed units: the mean over students of a student's mean in the student's own window (`UnitSums`). Students are
  independent and enter once, so confidence sequences hold. It decides.
- live: the ratio Σ metric / Σ responses over everything so far (`RatioSums`), with the variance of a cluster-robust
  ratio estimator. A student's contribution goes on changing, so sequences about it are approximate. It shows.

References: Deng, Knoblich & Lu, "Applying the delta method in metric analytics", KDD 2018. Cochran, "Some methods for
strengthening the common χ² tests", Biometrics 10(4), 1954 (the weights of strata).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import astuple

_ROUNDING: Final = 1e-8
"""Of sums of squares that are kept in fixed point: a spread within it is none."""

Estimand: TypeAlias = Literal["closed", "live"]


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """A variant's mean over `units` students."""

    units: int
    mean: float | None
    """None without units."""
    variance: float | None
    """Of the mean: the squared standard error. None with fewer than two units."""
    strata: tuple[tuple[float, Estimate], ...] = ()
    """What it was put together from, each with its share of the weight (`stratified`); nothing if it was not."""

    @property
    def unit_variance(self) -> float | None:
        """What one unit contributes to the variance, so that it is this over the number of units."""
        return None if self.variance is None else self.variance * self.units


class Sums(msgspec.Struct, frozen=True):
    """Sums that add up, field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*(a + b for a, b in zip(astuple(self), astuple(other), strict=True)))


class UnitSums(Sums, frozen=True):
    """Sums over independent units with values y: n, Σy, Σy²."""

    units: int = 0
    total: float = 0.0
    squares: float = 0.0

    def estimate(self) -> Estimate:
        """Return the mean and its variance s²/n, s² with n − 1.

        By hand: values 1, 2, 6 have mean 3 and s² = (4 + 1 + 9)/2 = 7.

        >>> UnitSums(3, 9.0, 41.0).estimate()
        Estimate(units=3, mean=3.0, variance=2.3333333333333335, strata=())
        """
        n = self.units
        if n == 0:
            return Estimate(0, None, None)
        mean = self.total / n
        if n == 1:
            return Estimate(1, mean, None)
        return Estimate(n, mean, max(self.squares - self.total * mean, 0.0) / (n - 1) / n)


def stratified(strata: Sequence[tuple[UnitSums, UnitSums]]) -> tuple[Estimate, Estimate]:
    """Return the estimates of control and treatment from their sums in strata that are compared each by itself.

    While shares change, the variants' students come from different days, and their plain means would differ for that
    alone (Simpson's paradox). Both get the same weights here, n_c·n_t/(n_c + n_t) of each stratum (Cochran 1954): those
    that are best where all students vary alike. A stratum with fewer than two students on either side says nothing
    about a difference, and its students are not counted; a single one is taken as it is.

    By hand: weights 2·2/4 = 1 and 4·4/8 = 2; control (0 + 2·3)/3 = 2, treatment (1 + 2·4)/3 = 3, and a variance of
    (1·1 + 4·0)/9 each, for values that lie 1 from the mean of the first stratum and at that of the second.

    >>> first = UnitSums(2, 0.0, 2.0), UnitSums(2, 2.0, 4.0)
    >>> second = UnitSums(4, 12.0, 36.0), UnitSums(4, 16.0, 64.0)
    >>> control, treatment = stratified([first, second])
    >>> control.units, control.mean, treatment.mean, round(9 * control.variance, 12)
    (6, 2.0, 3.0, 1.0)
    """
    if len(strata) == 1:
        ((control, treatment),) = strata
        return control.estimate(), treatment.estimate()
    pairs = [(a.estimate(), b.estimate()) for a, b in strata if min(a.units, b.units) > 1]
    weights = [a.units * b.units / (a.units + b.units) for a, b in pairs]
    return _weighted([a for a, _ in pairs], weights), _weighted([b for _, b in pairs], weights)


def _weighted(parts: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    if not parts:
        return Estimate(0, None, None)
    total, mean, variance = sum(weights), 0.0, 0.0
    strata = tuple((weight / total, part) for part, weight in zip(parts, weights, strict=True))
    for share, part in strata:
        mean += share * (part.mean or 0.0)
        variance += share**2 * (part.variance or 0.0)
    return Estimate(sum(part.units for part in parts), mean, variance, strata)


class RatioSums(Sums, frozen=True):
    """Sums over C clusters (students) with S = Σ metric and N responses each: C, ΣS, ΣN, Q = ΣS², R = ΣS·N, P = ΣN²."""

    units: int = 0
    total: float = 0.0
    count: float = 0.0
    total_squares: float = 0.0
    products: float = 0.0
    count_squares: float = 0.0

    def estimate(self) -> Estimate:
        """Return m = ΣS/ΣN and its variance C/(C − 1)·Σ(S − mN)²/(ΣN)², as C/(C − 1)·(Q − 2mR + m²P)/(ΣN)².

        The delta method for a ratio of means over units (Deng, Knoblich & Lu 2018), which is the
        cluster-robust (CR1) variance of a mean over responses.

        By hand: students (S, N) = (2, 1) and (2, 3): m = 4/4 = 1, Σ(S − N)² = 1 + 1, variance 2/1·2/16 = 0.25.

        >>> RatioSums(2, 4.0, 4.0, 8.0, 8.0, 10.0).estimate()
        Estimate(units=2, mean=1.0, variance=0.25, strata=())
        """
        if self.count <= 0:
            return Estimate(self.units, None, None)
        mean = self.total / self.count
        if self.units < 2:  # noqa: PLR2004  one cluster has no spread
            return Estimate(self.units, mean, None)
        spread = self.total_squares - 2 * mean * self.products + mean * mean * self.count_squares
        if spread <= _ROUNDING * self.total_squares:
            spread = 0.0
        return Estimate(self.units, mean, self.units / (self.units - 1) * spread / self.count**2)


class Effect(msgspec.Struct, frozen=True):
    """Treatment minus control; every field is None where a mean or its variance is."""

    effect: float | None
    standard_error: float | None
    relative_effect: float | None
    """Of the control's mean; None where that is 0."""
    relative_standard_error: float | None

    @property
    def information(self) -> float | None:
        """1/se², the clock of a confidence sequence; None where nothing varies."""
        return 1 / self.standard_error**2 if self.standard_error else None


def effect_of(control: Estimate, treatment: Estimate) -> Effect:
    """Return the effect of the treatment with its standard errors.

    The variants' students are different ones, so variances add. Relative: delta method for a quotient of independent
    means, se² = se_t²/m_c² + m_t²·se_c²/m_c⁴ (Deng, Knoblich & Lu 2018).

    By hand: 12 ± 0.3 against 10 ± 0.4: 2 ± 0.5; relative 0.2, se² = 0.09/100 + 144·0.16/10⁴.

    >>> effect = effect_of(Estimate(9, 10.0, 0.16), Estimate(9, 12.0, 0.09))
    >>> effect.effect, effect.standard_error, effect.relative_effect
    (2.0, 0.5, 0.2)
    >>> round(effect.relative_standard_error**2, 6)
    0.003204
    """
    if control.mean is None or treatment.mean is None:
        return Effect(None, None, None, None)
    effect = treatment.mean - control.mean
    relative = effect / control.mean if control.mean else None
    if control.variance is None or treatment.variance is None:
        return Effect(effect, None, relative, None)
    standard_error = (control.variance + treatment.variance) ** 0.5
    if relative is None:
        return Effect(effect, standard_error, None, None)
    quotient = treatment.mean / control.mean
    relative_variance = (treatment.variance + quotient * quotient * control.variance) / control.mean**2
    return Effect(effect, standard_error, relative, relative_variance**0.5)
