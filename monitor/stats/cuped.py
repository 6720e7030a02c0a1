"""CUPED: regression adjustment by each student's mean of the same metric from before the experiment.

y* = y − θ·(x − x̄), with the covariate x, the student's mean before the experiment. The assignment cannot have changed
x, so the expected effect is unchanged, and its variance falls by the squared correlation of x and y. θ and x̄ are
pooled over all variants: separate values would adjust the variants differently. Strata that are compared separately
(`estimate_stratified`) have separate x̄, and θ is computed from the variation within strata. Students without an x keep
y unchanged and are a stratum of their own, because they differ from the others: they are newer. Whether a student has
an x is also decided before the experiment.

Reference: Deng, Xu, Kohavi & Walker, "Improving the sensitivity of online controlled experiments by utilizing
pre-experiment data", WSDM 2013.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.stats.estimates import AdditiveSums, Estimate, SampleMeanStatistic

_RELATIVE_ROUNDING_ERROR: Final = 1e-12
"""A spread below this part of the sum of squares is float64 rounding and is taken as 0."""


class CovariateStatistic(AdditiveSums, frozen=True):
    """Sums over the units with a value y and a covariate x from before the experiment: n, Σy, Σy², Σx, Σx², Σxy."""

    units: int = 0
    total: float = 0.0
    sum_of_squares: float = 0.0
    covariate_total: float = 0.0
    covariate_sum_of_squares: float = 0.0
    sum_of_products: float = 0.0


@dataclass(frozen=True, slots=True)
class RegressionAdjustedStatistics:
    """The statistics of y* of every variant, by stratum, with the θ of the adjustment."""

    theta: float
    strata: Sequence[Mapping[str, SampleMeanStatistic]]
    """Variant → statistic; two for each stratum of the input: the students with a covariate, then those without."""


def estimate_theta(strata: Sequence[CovariateStatistic], resolution: float = 0.0) -> float | None:
    """Return θ = cov(y, x)/var(x) within strata, about the means of each stratum; None if x varies in no stratum.

    `resolution` is the possible rounding error of each square of x. A stratum in which x varies by less is left out.

    By hand: (x, y) = (1, 1), (2, 3), (3, 5) are on a line of slope 2, (5, 1), (7, 5) on another line of slope 2. All
    five points together would have a slope of 8/23.2.

    >>> strata = [CovariateStatistic(3, 9.0, 35.0, 6.0, 14.0, 22.0), CovariateStatistic(2, 6.0, 26.0, 12.0, 74.0, 40.0)]
    >>> estimate_theta(strata)
    2.0
    """
    spread = product = 0.0
    for sums in strata:
        if sums.units:
            stratum_spread = sums.covariate_sum_of_squares - sums.covariate_total / sums.units * sums.covariate_total
            if stratum_spread > max(sums.units * resolution, _RELATIVE_ROUNDING_ERROR * sums.covariate_sum_of_squares):
                spread += stratum_spread
                product += sums.sum_of_products - sums.covariate_total / sums.units * sums.total
    return product / spread if spread else None


def adjust_statistic(
    statistic: SampleMeanStatistic, covariates: CovariateStatistic, theta: float, centre: float, resolution: float = 0.0
) -> SampleMeanStatistic:
    """Return the statistic of y − θ·(x − centre) for units with a covariate x and of y for all other units.

    `statistic` is over all units, including the units of `covariates`; both may be over the same units. `resolution` is
    the possible rounding error of each square and product. A remaining spread within these errors is taken as 0, so
    that rounding decides nothing.
    """
    shift = covariates.covariate_total - centre * covariates.units
    spread = (
        covariates.covariate_sum_of_squares
        - 2 * centre * covariates.covariate_total
        + centre * centre * covariates.units
    )
    product = covariates.sum_of_products - centre * covariates.total
    sum_of_squares = statistic.sum_of_squares - 2 * theta * product + theta * theta * spread
    total = statistic.total - theta * shift
    zero_spread_squares = total * (total / statistic.units) if statistic.units else 0.0
    rounding_error = max(
        statistic.units * resolution * (1 + abs(theta)) ** 2,
        _RELATIVE_ROUNDING_ERROR * (statistic.sum_of_squares + theta * theta * covariates.covariate_sum_of_squares),
    )
    if sum_of_squares - zero_spread_squares <= rounding_error:
        sum_of_squares = zero_spread_squares
    return SampleMeanStatistic(statistic.units, total, sum_of_squares)


def apply_cuped(
    strata: Sequence[Mapping[str, tuple[SampleMeanStatistic, CovariateStatistic]]], resolution: float = 0.0
) -> RegressionAdjustedStatistics | None:
    """Return the adjusted statistics of all variants; None if no student has a covariate, or covariates do not vary.

    `resolution`: see `estimate_theta`.
    """
    pooled_covariates: list[CovariateStatistic] = [
        sum((covariates for _, covariates in variants.values()), CovariateStatistic()) for variants in strata
    ]
    theta = estimate_theta(pooled_covariates, resolution)
    if theta is None:
        return None
    centres = [sums.covariate_total / sums.units if sums.units else 0.0 for sums in pooled_covariates]
    adjusted_strata: list[Mapping[str, SampleMeanStatistic]] = []
    for variants, centre in zip(strata, centres, strict=True):
        covered = {name: _covered_statistic(covariates) for name, (_, covariates) in variants.items()}
        adjusted_strata += [
            {
                name: adjust_statistic(covered[name], covariates, theta, centre, resolution)
                for name, (_, covariates) in variants.items()
            },
            {name: _subtract(statistic, covered[name]) for name, (statistic, _) in variants.items()},
        ]
    return RegressionAdjustedStatistics(theta, adjusted_strata)


def _covered_statistic(covariates: CovariateStatistic) -> SampleMeanStatistic:
    """Return the statistic of y over the units with a covariate."""
    return SampleMeanStatistic(covariates.units, covariates.total, covariates.sum_of_squares)


def _subtract(statistic: SampleMeanStatistic, part: SampleMeanStatistic) -> SampleMeanStatistic:
    """Return the statistic over the units of `statistic` that are not units of `part`."""
    return SampleMeanStatistic(
        statistic.units - part.units,
        statistic.total - part.total,
        max(statistic.sum_of_squares - part.sum_of_squares, 0.0),
    )


def variance_reduction(raw: tuple[Estimate, Estimate], adjusted: tuple[Estimate, Estimate]) -> float | None:
    """Return the fraction by which the adjustment lowered the variance of the effect, from (control, treatment) pairs.

    0.3 saves 30 % of the students. None if a variance is undefined or the unadjusted variance is 0.
    """
    raw_variances = [estimate.variance for estimate in raw]
    adjusted_variances = [estimate.variance for estimate in adjusted]
    if None in raw_variances or None in adjusted_variances or not sum(raw_variances):  # type: ignore[arg-type]
        return None
    return 1 - sum(adjusted_variances) / sum(raw_variances)  # type: ignore[arg-type]
