"""The sequential comparison of a treatment with the control on a metric, and the days until it has enough power."""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import msgspec

from monitor.stats.confidence_sequences import (
    HalfNormalMixture,
    NormalMixture,
    anytime_p_value,
    find_root,
    mde_information,
)
from monitor.stats.estimates import Effect, Estimand, Estimate, estimate_effect
from monitor.stats.rare_events import small_sample_variance

MIN_UNITS_FOR_INTERVAL = 20
"""Students per variant from which an interval is computed: with fewer, means are not close enough to normal."""

MIN_UNITS_FOR_DECISION = 50
"""Students per variant from which a verdict may use an interval."""

_MAX_DAYS_TO_RESOLVE = 3650.0


class VariantComparison(msgspec.Struct, frozen=True):
    """The effect of a treatment with the current bounds of the confidence sequence.

    Intervals of earlier interim analyses are never intersected with the current one. The intersection would be
    narrower, and empty if the true effect drifts.
    """

    estimand: Estimand
    control: Estimate
    treatment: Estimate
    difference: Effect
    alpha: float
    lower: float | None
    """Lower bound at level 1 − alpha; None with fewer than 20 students in a variant, or if nothing varies."""
    upper: float | None
    log_e: float | None
    """ln of the current evidence e against no effect. e is an e-process: without an effect, e reaches 1/α at any time
    with probability ≤ α."""
    p: float | None
    """Anytime-valid p-value, from the largest e so far."""

    @property
    def decides(self) -> bool:
        """Whether a verdict may use the interval: closed estimand, and at least 50 students per variant."""
        enough_units = min(self.control.units, self.treatment.units) >= MIN_UNITS_FOR_DECISION
        return self.estimand == "closed" and enough_units and self.lower is not None


def compare_variants(
    control: Estimate,
    treatment: Estimate,
    *,
    alpha: float,
    mde: float,
    max_value: float | None = None,
    min_value: float = 0.0,
    estimand: Estimand = "closed",
    largest_log_e: float | None = None,
) -> VariantComparison:
    """Return the comparison at level 1 − `alpha`, with the interval tightest where an effect of `mde` is resolved.

    `min_value` and `max_value` are the ends of the scale of a student's values; None if there is no largest one. If few
    students differ from either end of this scale, bounds and e include `monitor.stats.rare_events`.
    `largest_log_e` is the largest ln e of earlier interim analyses under the same `alpha` and `mde`, for the p-value.
    None: the p-value is that of the current analysis.
    """
    return compare_with_mixture(
        tuned_mixture(mde, alpha),
        control,
        treatment,
        alpha,
        max_value=max_value,
        min_value=min_value,
        estimand=estimand,
        largest_log_e=largest_log_e,
    )


@lru_cache(maxsize=256)
def tuned_mixture(mde: float, alpha: float) -> NormalMixture:
    """Return the mixture for an effect of `mde`, which is the same at all interim analyses."""
    return NormalMixture.tune(mde_information(mde), alpha)


def compare_with_mixture(
    mixture: NormalMixture,
    control: Estimate,
    treatment: Estimate,
    alpha: float,
    *,
    max_value: float | None = None,
    min_value: float = 0.0,
    family_alpha: float | None = None,
    estimand: Estimand = "closed",
    largest_log_e: float | None = None,
) -> VariantComparison:
    """Return the comparison at level 1 − `alpha` under a given mixture.

    `family_alpha` is the level of the rare-event correction, so that e does not depend on `alpha`; default: `alpha`.
    """
    difference = estimate_effect(control, treatment)
    effect, information = difference.effect, difference.information
    if effect is None or information is None or min(control.units, treatment.units) < MIN_UNITS_FOR_INTERVAL:
        return VariantComparison(estimand, control, treatment, difference, alpha, None, None, None, None)
    added_variance = small_sample_variance(control, treatment, max_value, family_alpha or alpha, min_value)
    if added_variance:
        information = 1 / (1 / information + added_variance)
    half_width = mixture.half_width(information, alpha)
    log_e = mixture.log_e(information * effect, information)
    p = anytime_p_value(log_e if largest_log_e is None else max(log_e, largest_log_e))
    lower, upper = effect - half_width, effect + half_width
    return VariantComparison(estimand, control, treatment, difference, alpha, lower, upper, log_e, p)


def split_alpha(alpha: float, treatments: int) -> float:
    """Return alpha/treatments, so that any of the comparisons is wrong with probability ≤ `alpha` (Bonferroni)."""
    if treatments < 1:
        raise ValueError(f"treatments is {treatments!r}, expected at least one besides the control")
    return alpha / treatments


@lru_cache(maxsize=256)
def information_to_resolve(mde: float, alpha: float, power: float = 0.5) -> float:
    """Return the information at which a true effect of `mde` excludes 0 with probability `power`.

    That is where mde − z·se equals the half width, with z the `power` quantile of the normal distribution. For a power
    of 50 % the half width equals `mde`: an observed effect of `mde` excludes 0, and an observed effect of 0 excludes
    `mde`. The sequence may also have excluded 0 earlier, so the probability of a decision by then is a little larger.

    >>> needed_information = information_to_resolve(0.1, 0.05)
    >>> round(needed_information), round(NormalMixture.tune(900, 0.05).half_width(needed_information, 0.05), 12)
    (921, 0.1)
    >>> round(information_to_resolve(0.1, 0.05, power=0.8))
    1515
    """
    return _information_to_resolve(tuned_mixture(mde, alpha), mde, alpha, power)


@lru_cache(maxsize=256)
def information_to_hold(margin: float, alpha: float, power: float, tuning_margin: float) -> float:
    """Return the information at which a guardrail without any harm is held with probability `power`.

    `tuning_margin` is the harm for which the sequence is tuned; it is not `margin` if that is relative to a mean.
    """
    mixture = HalfNormalMixture.tune(mde_information(tuning_margin), alpha)
    return _information_to_resolve(mixture, margin, alpha, power)


def _information_to_resolve(
    mixture: NormalMixture | HalfNormalMixture, distance: float, alpha: float, power: float
) -> float:
    z = NormalDist().inv_cdf(power)

    def surplus(information: float) -> float:
        return distance - z / math.sqrt(information) - mixture.half_width(information, alpha) if information else -1.0

    upper_bound = mde_information(distance)
    while surplus(upper_bound) < 0:
        upper_bound *= 2
    return find_root(surplus, 0.0, upper_bound)


def days_to_reach(
    information: float, control: Estimate, treatment: Estimate, units_per_day: tuple[float, float]
) -> float | None:
    """Return the days until the effect has the `information`, if (control, treatment) students come at `units_per_day`.

    The variance per student of each variant is assumed to be constant. 0 if the information is reached already. None if
    it is not reached within ten years at this rate, if a variance is undefined, or if nothing varies.
    """
    if not (control.unit_variance or treatment.unit_variance):
        return None
    if control.unit_variance is None or treatment.unit_variance is None:
        return None
    resolving_variance = 1 / information
    variants = [
        (estimate.unit_variance or 0.0, estimate.units, rate)
        for estimate, rate in zip((control, treatment), units_per_day, strict=True)
    ]

    def surplus(days: float) -> float:
        """Return `resolving_variance` minus the variance of the effect after so many days."""
        return resolving_variance - sum(variance / (units + rate * days) for variance, units, rate in variants)

    if surplus(0.0) >= 0:
        return 0.0
    return find_root(surplus, 0.0, _MAX_DAYS_TO_RESOLVE) if surplus(_MAX_DAYS_TO_RESOLVE) >= 0 else None
