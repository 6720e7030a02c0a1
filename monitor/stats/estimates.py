"""Sufficient statistics of a variant, estimates of means with variances, and effects of treatments.

Sufficient statistics add up in any order and grouping, so a scrape reads a few sums and never single students. An
estimate is a mean with the variance of that mean. Undefined numbers are None. A scrape creates hundreds of these
records, so they are msgspec structs: a frozen dataclass takes several times as long to create.

There are two estimands (docs/statistics.md):

- closed: the mean over students of the student's own mean within the student's window (`SampleMeanStatistic`).
  Students are independent and enter once, so confidence sequences are valid. This estimand decides.
- live: the ratio Σ metric / Σ responses over all responses so far (`RatioStatistic`), with the cluster-robust variance
  of a ratio. A student's contribution keeps changing, so confidence sequences are approximate. This estimand is only
  displayed.

References: Deng, Knoblich & Lu, "Applying the delta method in metric analytics", KDD 2018. Cochran, "Some methods for
strengthening the common χ² tests", Biometrics 10(4), 1954 (the weights of strata).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Self, TypeAlias

import msgspec
from msgspec.structs import astuple

_RELATIVE_ROUNDING_ERROR: Final = 1e-8
"""A spread below this part of the sum of squares is rounding of the fixed-point sums and is taken as 0."""

Estimand: TypeAlias = Literal["closed", "live"]


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mean of a variant over `units` students, with the variance of the mean."""

    units: int
    mean: float | None
    """None without units."""
    variance: float | None
    """The squared standard error of the mean; None with fewer than two units."""
    strata: tuple[tuple[float, Estimate], ...] = ()
    """(weight, estimate) of each stratum of a stratified estimate, weights summing to 1; empty if not stratified."""

    @property
    def unit_variance(self) -> float | None:
        """The variance per unit, `variance` times `units`; None if the variance is undefined."""
        return None if self.variance is None else self.variance * self.units


class AdditiveSums(msgspec.Struct, frozen=True):
    """Sums that are merged by adding field to field."""

    def __add__(self, addend: Self) -> Self:
        return type(self)(*(a + b for a, b in zip(astuple(self), astuple(addend), strict=True)))


class SampleMeanStatistic(AdditiveSums, frozen=True):
    """Sufficient statistic of a mean over independent units with values y: n, Σy, Σy²."""

    units: int = 0
    total: float = 0.0
    sum_of_squares: float = 0.0

    def estimate(self) -> Estimate:
        """Return the mean and the variance s²/n of the mean, where s² has the divisor n − 1.

        By hand: values 1, 2, 6 have mean 3 and s² = (4 + 1 + 9)/2 = 7.

        >>> SampleMeanStatistic(3, 9.0, 41.0).estimate()
        Estimate(units=3, mean=3.0, variance=2.3333333333333335, strata=())
        """
        n = self.units
        if n == 0:
            return Estimate(0, None, None)
        mean = self.total / n
        if n == 1:
            return Estimate(1, mean, None)
        return Estimate(n, mean, max(self.sum_of_squares - self.total * mean, 0.0) / (n - 1) / n)


def estimate_stratified(
    strata: Sequence[tuple[SampleMeanStatistic, SampleMeanStatistic]],
) -> tuple[Estimate, Estimate]:
    """Return the estimates of control and treatment from (control, treatment) statistics of each stratum.

    Strata are allocation phases. While intended shares change, the students of the variants come from different days,
    and plain means would differ for that reason alone (Simpson's paradox). Both variants therefore get the same weight
    n_c·n_t/(n_c + n_t) in each stratum (Cochran 1954), which is optimal if all students have the same variance. A
    stratum with fewer than two students in a variant is left out, and its students are not counted. A single stratum
    needs no weights and is never left out. Without any stratum the means are None.

    By hand: weights 2·2/4 = 1 and 4·4/8 = 2; control (0 + 2·3)/3 = 2, treatment (1 + 2·4)/3 = 3, and a variance of
    (1·1 + 4·0)/9 each, for values at a distance of 1 from the mean in the first stratum and of 0 in the second.

    >>> first = SampleMeanStatistic(2, 0.0, 2.0), SampleMeanStatistic(2, 2.0, 4.0)
    >>> second = SampleMeanStatistic(4, 12.0, 36.0), SampleMeanStatistic(4, 16.0, 64.0)
    >>> control, treatment = estimate_stratified([first, second])
    >>> control.units, control.mean, treatment.mean, round(9 * control.variance, 12)
    (6, 2.0, 3.0, 1.0)
    """
    if len(strata) == 1:
        ((control, treatment),) = strata
        return control.estimate(), treatment.estimate()
    pairs = [(a.estimate(), b.estimate()) for a, b in strata if min(a.units, b.units) > 1]
    weights = [a.units * b.units / (a.units + b.units) for a, b in pairs]
    return _average_strata([a for a, _ in pairs], weights), _average_strata([b for _, b in pairs], weights)


def _average_strata(estimates: Sequence[Estimate], weights: Sequence[float]) -> Estimate:
    """Return the weighted mean of a variant's estimates with the variance; both are None without strata."""
    if not estimates:
        return Estimate(0, None, None)
    total_weight, mean, variance = sum(weights), 0.0, 0.0
    strata = tuple((weight / total_weight, estimate) for weight, estimate in zip(weights, estimates, strict=True))
    for weight, estimate in strata:
        mean += weight * (estimate.mean or 0.0)
        variance += weight**2 * (estimate.variance or 0.0)
    return Estimate(sum(estimate.units for estimate in estimates), mean, variance, strata)


class RatioStatistic(AdditiveSums, frozen=True):
    """Sufficient statistic of a ratio of means over clusters: C, ΣS, ΣN, Q = ΣS², R = ΣS·N, P = ΣN².

    A cluster is a student with the numerator S = Σ metric and the denominator N = number of responses.
    """

    units: int = 0
    numerator_total: float = 0.0
    denominator_total: float = 0.0
    numerator_sum_of_squares: float = 0.0
    sum_of_products: float = 0.0
    denominator_sum_of_squares: float = 0.0

    def estimate(self) -> Estimate:
        """Return the ratio m = ΣS/ΣN and the variance C/(C − 1)·Σ(S − mN)²/(ΣN)².

        The sum of squares is computed as Q − 2mR + m²P. This is the delta method for a ratio of means over units
        (Deng, Knoblich & Lu 2018), equal to the cluster-robust (CR1) variance of a mean over responses. The mean is
        None without responses, the variance None with fewer than two students.

        By hand: students (S, N) = (2, 1) and (2, 3): m = 4/4 = 1, Σ(S − N)² = 1 + 1, variance 2/1·2/16 = 0.25.

        >>> RatioStatistic(2, 4.0, 4.0, 8.0, 8.0, 10.0).estimate()
        Estimate(units=2, mean=1.0, variance=0.25, strata=())
        """
        if self.denominator_total <= 0:
            return Estimate(self.units, None, None)
        mean = self.numerator_total / self.denominator_total
        if self.units < 2:  # noqa: PLR2004  one cluster has no spread
            return Estimate(self.units, mean, None)
        residual_squares = (
            self.numerator_sum_of_squares
            - 2 * mean * self.sum_of_products
            + mean * mean * self.denominator_sum_of_squares
        )
        if residual_squares <= _RELATIVE_ROUNDING_ERROR * self.numerator_sum_of_squares:
            residual_squares = 0.0
        return Estimate(self.units, mean, self.units / (self.units - 1) * residual_squares / self.denominator_total**2)


def shift_estimate(estimate: Estimate, constant: float) -> Estimate:
    """Return the estimate of values to which a constant is added.

    >>> shift_estimate(Estimate(2, 3.0, 0.5), -1.0)
    Estimate(units=2, mean=2.0, variance=0.5, strata=())
    """
    if not constant:
        return estimate
    mean = None if estimate.mean is None else estimate.mean + constant
    strata = tuple((weight, shift_estimate(stratum, constant)) for weight, stratum in estimate.strata)
    return Estimate(estimate.units, mean, estimate.variance, strata)


class Effect(msgspec.Struct, frozen=True):
    """The difference treatment − control; fields that need an undefined mean or variance are None."""

    effect: float | None
    standard_error: float | None
    relative_effect: float | None
    """The effect divided by the control's mean; None if that mean is 0."""
    relative_standard_error: float | None

    @property
    def information(self) -> float | None:
        """1/se², the clock of a confidence sequence; None if the standard error is undefined or 0."""
        return 1 / self.standard_error**2 if self.standard_error else None


def estimate_effect(control: Estimate, treatment: Estimate) -> Effect:
    """Return the absolute and the relative effect of the treatment with standard errors.

    The variants have different students, so variances add. The relative error is the delta method for a quotient of
    independent means, se² = se_t²/m_c² + m_t²·se_c²/m_c⁴ (Deng, Knoblich & Lu 2018).

    By hand: 12 ± 0.3 against 10 ± 0.4: 2 ± 0.5; relative 0.2, se² = 0.09/100 + 144·0.16/10⁴.

    >>> effect = estimate_effect(Estimate(9, 10.0, 0.16), Estimate(9, 12.0, 0.09))
    >>> effect.effect, effect.standard_error, effect.relative_effect
    (2.0, 0.5, 0.2)
    >>> round(effect.relative_standard_error**2, 6)
    0.003204
    """
    if control.mean is None or treatment.mean is None:
        return Effect(None, None, None, None)
    effect = treatment.mean - control.mean
    relative_effect = effect / control.mean if control.mean else None
    if control.variance is None or treatment.variance is None:
        return Effect(effect, None, relative_effect, None)
    standard_error = (control.variance + treatment.variance) ** 0.5
    if relative_effect is None:
        return Effect(effect, standard_error, None, None)
    quotient = treatment.mean / control.mean
    relative_variance = (treatment.variance + quotient * quotient * control.variance) / control.mean**2
    return Effect(effect, standard_error, relative_effect, relative_variance**0.5)
