"""Guardrails: metrics that a treatment must not harm by more than a margin (non-inferiority tests).

The harm is the effect counted in the guardrail's harmful direction. Two one-sided confidence sequences bound the harm
from both sides and give the state:

- `crossed`: the lower bound of the harm is above the margin; the experiment should stop.
- `held`: the upper bound of the harm is below the margin; this guardrail does not prevent shipping.
- `tolerable`: as `held`, and the lower bound is above 0: a certain harm within the margin.
- `open`: the margin is between the two bounds.
- `unknown`: fewer than 50 students in a variant, or neither variant had an event that the metric counts.

A margin is absolute, or relative to the control's mean c. With the relative margin r the excess of the harm over the
margin is bounded: the contrast of the treatment's mean and (1 ± r)·c, whose variance includes that of the margin. The
bounds of the harm are then the estimated margin plus the bounds of the excess.

Shipping requires all guardrails to be held, so the bound for `held` needs no correction for their number. One crossed
guardrail is enough to stop, so α is divided by the number of guardrails for `crossed`: all guardrails together cross
by mistake with probability α at most.

Reference: Schultzberg, Ankargren & Frånberg, "Risk-aware product decisions in A/B tests with multiple metrics", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

import msgspec

from monitor.config import LATENCY_METRIC, RESPONSES_METRIC, SESSION_RESPONSES_METRIC, SESSIONS_METRIC
from monitor.stats.argument_checks import check_level, check_positive
from monitor.stats.comparison import MIN_UNITS_FOR_DECISION, days_to_reach, information_to_hold
from monitor.stats.confidence_sequences import HalfNormalMixture, mde_information
from monitor.stats.estimates import Effect, Estimate, estimate_effect
from monitor.stats.rare_events import missing_value_variance, small_sample_variance

GuardrailState = Literal["held", "tolerable", "open", "crossed", "unknown"]

_MAX_DAYS_TO_DECIDE: Final = 3650.0
_DAYS_PRECISION: Final = 0.02
"""Relative precision of the days until a decision, which rests on a guess about later students anyway."""
_TUNING_MEAN_FRACTION: Final = 0.25
_TYPICAL_MEANS: Final = {
    LATENCY_METRIC: 1000.0,
    RESPONSES_METRIC: 2.0,
    SESSIONS_METRIC: 2.0,
    SESSION_RESPONSES_METRIC: 2.0,
}
"""Typical means of metrics without a largest value, for tuning only."""


class Guardrail(msgspec.Struct, frozen=True):
    """A metric with a harmful direction and a tolerable margin."""

    name: str
    harmful_direction: Literal["up", "down"]
    margin: float
    """Tolerable harm, in the metric's own unit, or relative to the control's mean; above 0."""
    max_value: float | None = msgspec.field(default=None, name="largest")
    """The largest value that a student can have (1 for shares); None if values are unbounded."""
    timeout_value: float | None = None
    """For unbounded metrics: a value that rare students have and the sample may lack, such as a time-out."""
    is_relative: bool = False
    """Whether `margin` is a fraction of the control's mean."""
    min_value: float = msgspec.field(default=0.0, name="smallest")

    def absolute_margin(self, control_mean: float | None) -> float | None:
        """Return the tolerable harm in the metric's own unit; None if it is relative to an undefined mean."""
        if not self.is_relative:
            return self.margin
        return None if control_mean is None else self.margin * control_mean

    def can_be_crossed(self, control_mean: float | None) -> bool:
        """Return whether a harm above the margin is possible, for values between `min_value` and `max_value`."""
        margin = self.absolute_margin(control_mean)
        if margin is None or control_mean is None:
            return True
        if self.harmful_direction == "down":
            return margin < control_mean - self.min_value
        return self.max_value is None or margin < self.max_value - control_mean


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """A guardrail's state with the lower and the upper bound of the harm.

    The lower bound is valid with probability 1 − `crossing_alpha`, the upper bound with probability 1 − `alpha`.
    """

    guardrail: Guardrail
    control: Estimate
    treatment: Estimate
    difference: Effect
    alpha: float
    crossing_alpha: float
    margin: float | None
    """The tolerable harm in the metric's own unit; None if it is relative to an undefined mean."""
    least_harm: float | None
    """Lower bound of the harm; None if undefined."""
    most_harm: float | None
    """Upper bound of the harm; None if undefined."""
    state: GuardrailState
    is_certain_harm: bool = False
    """Whether the metric has certainly changed in the harmful direction, by whatever amount."""

    @property
    def is_held(self) -> bool:
        """Whether the harm is certainly below the margin, so that the guardrail does not prevent shipping."""
        return self.state in {"held", "tolerable"}


def evaluate_guardrail(
    guardrail: Guardrail, control: Estimate, treatment: Estimate, *, alpha: float, guardrails: int = 1
) -> GuardrailResult:
    """Return the state of one of several `guardrails`, from bounds that are tightest where the margin is resolved."""
    check_positive(f"the margin of {guardrail.name}", guardrail.margin)
    crossing_alpha = check_level("alpha", alpha) / max(guardrails, 1)
    difference = estimate_effect(control, treatment)
    margin = guardrail.absolute_margin(control.mean)
    baseline, contrast, counted_margin = control, difference, 0.0
    if guardrail.is_relative and margin is not None and difference.information is not None:
        baseline, counted_margin = _allowed_estimate(guardrail, control), margin
        contrast = estimate_effect(baseline, treatment)
    lower, upper = _harm_bounds(guardrail, contrast, baseline, treatment, crossing_alpha, alpha)
    direct_lower = lower
    if baseline is not control:
        # The bounds contain an estimated margin, so the sign of the harm has a bound of its own.
        direct_lower, _ = _harm_bounds(guardrail, difference, control, treatment, crossing_alpha, alpha)
    lower = None if lower is None else lower + counted_margin
    upper = None if upper is None else upper + counted_margin
    is_certain_harm = lower is not None and direct_lower is not None and min(lower, direct_lower) > 0
    state: GuardrailState = "open"
    if upper is None or margin is None:
        state = "unknown"
    elif upper < margin:
        state = "tolerable" if is_certain_harm else "held"
    elif lower is not None and lower > margin:
        state = "crossed"
    return GuardrailResult(
        guardrail, control, treatment, difference, alpha, crossing_alpha, margin, lower, upper, state, is_certain_harm
    )


def days_until_decided(result: GuardrailResult, students_per_day: tuple[float, float]) -> float | None:
    """Return the days until an open guardrail is held or crossed, if means and variances stay as observed.

    `students_per_day` are the new students of (control, treatment). None if the guardrail is not open, or if the
    decision takes more than ten years.
    """
    if result.state != "open" or not all(students_per_day):
        return None
    guardrails = round(result.alpha / result.crossing_alpha)

    def is_decided(days: float) -> bool:
        arms = (
            _grow_estimate(arm, round(rate * days))
            for arm, rate in zip((result.control, result.treatment), students_per_day, strict=True)
        )
        return evaluate_guardrail(result.guardrail, *arms, alpha=result.alpha, guardrails=guardrails).state != "open"

    undecided_days, days = 0.0, 1.0
    while not is_decided(days):
        undecided_days, days = days, 2 * days
        if days > _MAX_DAYS_TO_DECIDE:
            return None
    while days - undecided_days > _DAYS_PRECISION * days:
        middle = (undecided_days + days) / 2
        undecided_days, days = (undecided_days, middle) if is_decided(middle) else (middle, days)
    return days


def _grow_estimate(estimate: Estimate, new_units: int) -> Estimate:
    """Return the estimate with more students of the same mean and variance per student, without strata."""
    units = estimate.units + new_units
    unit_variance = estimate.unit_variance
    return Estimate(units, estimate.mean, None if unit_variance is None else unit_variance / units)


def days_to_hold(result: GuardrailResult, power: float, students_per_day: tuple[float, float]) -> float | None:
    """Return the days until the guardrail is held with probability `power`, if the treatment does no harm.

    None if the margin or a variance is undefined, if nothing varies, or if more than ten years are needed. Corrections
    of small samples and rare events are left out.
    """
    if not result.margin:
        return None
    guardrail = result.guardrail
    baseline = _allowed_estimate(guardrail, result.control) if guardrail.is_relative else result.control
    information = information_to_hold(result.margin, result.alpha, power, tuning_margin(guardrail))
    return days_to_reach(information, baseline, result.treatment, students_per_day)


def _allowed_estimate(guardrail: Guardrail, control: Estimate) -> Estimate:
    """Return the estimate of the mean that a relative margin just allows: (1 ± margin) times the control's mean."""
    factor = 1 + guardrail.margin if guardrail.harmful_direction == "up" else 1 - guardrail.margin

    def scale(estimate: Estimate) -> Estimate:
        return Estimate(
            estimate.units,
            None if estimate.mean is None else factor * estimate.mean,
            None if estimate.variance is None else factor * factor * estimate.variance,
            tuple((weight, scale(stratum)) for weight, stratum in estimate.strata),
        )

    return scale(control)


def tuning_margin(guardrail: Guardrail) -> float:
    """Return the absolute harm for which the sequence is tuned: fixed in advance, also for a relative margin.

    The mean that a relative margin refers to is not known in advance. The sequence is tuned for a quarter of the
    metric's scale, or for a typical mean of a metric without a largest value.
    """
    if not guardrail.is_relative:
        return guardrail.margin
    scale_mean = _TUNING_MEAN_FRACTION * (guardrail.max_value or 1.0)
    return guardrail.margin * _TYPICAL_MEANS.get(guardrail.name, scale_mean)


def _harm_bounds(
    guardrail: Guardrail,
    difference: Effect,
    control: Estimate,
    treatment: Estimate,
    lower_alpha: float,
    upper_alpha: float,
) -> tuple[float | None, float | None]:
    """Return the lower and the upper bound of the harm at levels 1 − α of their own; None if undefined."""
    if difference.effect is None or min(control.units, treatment.units) < MIN_UNITS_FOR_DECISION:
        return None, None
    if guardrail.harmful_direction == "up" and control.mean == treatment.mean == 0:
        # No such event was ever counted: the name in the configuration may be misspelt.
        return None, None
    if difference.information is None:
        return None, _zero_event_harm_bound(guardrail, treatment, upper_alpha)
    information = difference.information
    lower_source, upper_source = (control, treatment) if guardrail.harmful_direction == "up" else (treatment, control)

    def half_width(alpha: float, estimate: Estimate) -> float:
        """Return the distance of a bound that time-outs missing from the sample of `estimate` would move."""
        extra_variance = small_sample_variance(control, treatment, guardrail.max_value, alpha, guardrail.min_value)
        if guardrail.timeout_value is not None:
            timeout_value = max(guardrail.timeout_value, estimate.mean or 0.0)
            extra_variance += missing_value_variance(estimate, timeout_value, alpha)
        return _one_sided_half_width(
            tuning_margin(guardrail), 1 / (1 / information + extra_variance) if extra_variance else information, alpha
        )

    harm = difference.effect if guardrail.harmful_direction == "up" else -difference.effect
    # Time-outs missing from the treatment's sample would increase the harm, from the control's sample decrease it.
    return harm - half_width(lower_alpha, lower_source), harm + half_width(upper_alpha, upper_source)


@lru_cache(maxsize=256)
def _one_sided_half_width(tuned_margin: float, information: float, alpha: float) -> float:
    """Return the distance of a bound at level 1 − `alpha`; the two bounds of a harm often have the same."""
    return HalfNormalMixture.tune(mde_information(tuned_margin), alpha).half_width(information, alpha)


def _zero_event_harm_bound(guardrail: Guardrail, treatment: Estimate, alpha: float) -> float | None:
    """Return the upper bound L·(1 − α^(1/n)) of the harm if n treatment students showed no harm; otherwise None.

    If the mean harm were m, of values from 0 to L, a student would show no harm with probability 1 − m/L at most. A
    sample without events lasts until the first event and never returns, so the bound is valid at all times together.
    """
    if guardrail.max_value is None:
        return None
    harmless_mean = guardrail.min_value if guardrail.harmful_direction == "up" else guardrail.max_value
    scale = guardrail.max_value - guardrail.min_value
    return scale * (1 - alpha ** (1 / treatment.units)) if treatment.mean == harmless_mean else None
