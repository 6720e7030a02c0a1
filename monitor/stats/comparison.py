"""One treatment against the control on one metric, with everything that may be said about it."""

from __future__ import annotations

from functools import lru_cache

import msgspec

from monitor.stats.estimates import Effect, Estimand, Estimate, effect_of
from monitor.stats.rare_events import unseen_variance
from monitor.stats.sequences import NormalMixture, anytime_p, mde_information, root

SHOWN_UNITS = 20
"""Students per variant from which an interval is shown: below, means are not yet near enough to normal."""

DECIDING_UNITS = 50
"""Students per variant from which an interval decides."""

_LONGEST_DAYS = 3650.0


class Comparison(msgspec.Struct, frozen=True):
    """A treatment's effect with its confidence sequence, as it stands now.

    Intervals of earlier looks are never intersected with it: that would be narrower, and empty where the truth drifts.
    """

    estimand: Estimand
    control: Estimate
    treatment: Estimate
    difference: Effect
    alpha: float
    lower: float | None
    """The sequence's bounds at level 1 − alpha; None below 20 students per variant, or where nothing varies."""
    upper: float | None
    log_e: float | None
    """Evidence now against no effect; an e-process, so e ≥ 1/α ever happens with probability α at most."""
    p: float | None
    """Anytime-valid: from the largest e so far."""

    @property
    def decides(self) -> bool:
        """Whether a verdict may rest on it: closed units, and 50 of them per variant."""
        enough = min(self.control.units, self.treatment.units) >= DECIDING_UNITS
        return self.estimand == "closed" and enough and self.lower is not None


def compare(
    control: Estimate,
    treatment: Estimate,
    *,
    alpha: float,
    mde: float,
    largest: float | None = None,
    estimand: Estimand = "closed",
    largest_log_e: float | None = None,
) -> Comparison:
    """Return the comparison at level 1 − `alpha`, its band tightest where it resolves an effect of `mde`.

    `largest` is the largest value that a student can have (the smallest is 0), if there is one: where few students
    differ from either, bounds and e are those of `monitor.stats.rare_events`. `largest_log_e` is the largest of earlier
    looks under the same `alpha` and `mde`, for p; default: none was kept.
    """
    return compare_under(
        mixture_for(mde, alpha),
        control,
        treatment,
        alpha,
        largest=largest,
        estimand=estimand,
        largest_log_e=largest_log_e,
    )


@lru_cache(maxsize=256)
def mixture_for(mde: float, alpha: float) -> NormalMixture:
    """Return the mixture for an effect of `mde`: the same for every look."""
    return NormalMixture.tuned(mde_information(mde), alpha)


def compare_under(
    mixture: NormalMixture,
    control: Estimate,
    treatment: Estimate,
    alpha: float,
    *,
    largest: float | None = None,
    family_alpha: float | None = None,
    estimand: Estimand = "closed",
    largest_log_e: float | None = None,
) -> Comparison:
    """Return the comparison under a mixture that was tuned elsewhere.

    `family_alpha` is the level of what rare events add, so that e stays the same at all levels; default: `alpha`.
    """
    difference = effect_of(control, treatment)
    effect, information = difference.effect, difference.information
    if effect is None or information is None or min(control.units, treatment.units) < SHOWN_UNITS:
        return Comparison(estimand, control, treatment, difference, alpha, None, None, None, None)
    unseen = unseen_variance(control, treatment, largest, family_alpha or alpha)
    if unseen:
        information = 1 / (1 / information + unseen)
    half = mixture.half_width(information, alpha)
    log_e = mixture.log_e(information * effect, information)
    p = anytime_p(log_e if largest_log_e is None else max(log_e, largest_log_e))
    return Comparison(estimand, control, treatment, difference, alpha, effect - half, effect + half, log_e, p)


def split_alpha(alpha: float, treatments: int) -> float:
    """Return each treatment's part of `alpha`: any of them is wrong with probability `alpha` at most (Bonferroni)."""
    if treatments < 1:
        raise ValueError(f"treatments is {treatments!r}, expected at least one besides the control")
    return alpha / treatments


@lru_cache(maxsize=256)
def resolving_information(mde: float, alpha: float) -> float:
    """Return the information at which the half width has come down to the `mde`.

    There an observed effect of `mde` excludes 0, and one of 0 excludes `mde`.

    >>> needed = resolving_information(0.1, 0.05)
    >>> round(needed), round(NormalMixture.tuned(900, 0.05).half_width(needed, 0.05), 12)
    (921, 0.1)
    """
    mixture, most = mixture_for(mde, alpha), mde_information(mde)
    while mixture.half_width(most, alpha) > mde:
        most *= 2
    return root(lambda information: mde - mixture.half_width(information, alpha), 0.0, most)


def days_to_resolve(
    control: Estimate, treatment: Estimate, units_per_day: tuple[float, float], *, alpha: float, mde: float
) -> float | None:
    """Return the days until the half width is down to `mde`, with this many (control, treatment) students a day.

    Each variant's variance per student is taken to stay. 0 if it is resolved already; None if it never will be at this
    rate (or within ten years), if the variances are not known, or if nothing varies.
    """
    if not (control.unit_variance or treatment.unit_variance):
        return None
    if control.unit_variance is None or treatment.unit_variance is None:
        return None
    allowed = 1 / resolving_information(mde, alpha)
    arms = [
        (estimate.unit_variance or 0.0, estimate.units, rate)
        for estimate, rate in zip((control, treatment), units_per_day, strict=True)
    ]

    def missing(days: float) -> float:
        return allowed - sum(variance / (units + rate * days) for variance, units, rate in arms)

    if missing(0.0) >= 0:
        return 0.0
    return root(missing, 0.0, _LONGEST_DAYS) if missing(_LONGEST_DAYS) >= 0 else None
