"""Guardrails: metrics that a treatment must not harm by more than a margin (non-inferiority tests).

The harm is the effect counted in the guardrail's harmful direction. Two one-sided confidence sequences bound the harm
from both sides and give the state:

- `crossed`: the lower bound of the harm is above the margin; the experiment should stop.
- `held`: the upper bound of the harm is below the margin; this guardrail does not prevent shipping.
- `open`: the margin is between the two bounds.
- `unknown`: fewer than 50 students in a variant, or neither variant had an event that the metric counts.

Shipping requires all guardrails to be held, so their number needs no correction. Each guardrail crosses by mistake with
probability α at most.

Reference: Schultzberg, Ankargren & Frånberg, "Risk-aware product decisions in A/B tests with multiple metrics", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import msgspec

from monitor.stats.argument_checks import check_level, check_positive
from monitor.stats.comparison import MIN_UNITS_FOR_DECISION
from monitor.stats.confidence_sequences import HalfNormalMixture, mde_information
from monitor.stats.estimates import Effect, Estimate, estimate_effect
from monitor.stats.rare_events import rare_event_variance, timeout_variance

GuardrailState = Literal["held", "open", "crossed", "unknown"]


class Guardrail(msgspec.Struct, frozen=True):
    """A metric with a harmful direction and a tolerable margin."""

    name: str
    harmful_direction: Literal["up", "down"]
    margin: float
    """Tolerable harm, in the metric's own unit; above 0."""
    max_value: float | None = msgspec.field(default=None, name="largest")
    """The largest value that a student can have (1 for shares, the smallest is 0); None if values are unbounded."""
    timeout_value: float | None = None
    """For unbounded metrics: a value that rare students have and the sample may lack, such as a time-out."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """A guardrail's state with the lower and the upper bound of the harm, each valid with probability 1 − alpha."""

    guardrail: Guardrail
    control: Estimate
    treatment: Estimate
    difference: Effect
    alpha: float
    least_harm: float | None
    """Lower bound of the harm; None if undefined."""
    most_harm: float | None
    """Upper bound of the harm; None if undefined."""
    state: GuardrailState


def evaluate_guardrail(
    guardrail: Guardrail, control: Estimate, treatment: Estimate, *, alpha: float
) -> GuardrailResult:
    """Return the state of a guardrail, from bounds of level 1 − `alpha`, tightest where the margin is resolved."""
    check_positive(f"the margin of {guardrail.name}", guardrail.margin)
    difference = estimate_effect(control, treatment)
    lower, upper = _harm_bounds(guardrail, difference, control, treatment, check_level("alpha", alpha))
    state: GuardrailState = "open"
    if upper is None:
        state = "unknown"
    elif upper < guardrail.margin:
        state = "held"
    elif lower is not None and lower > guardrail.margin:
        state = "crossed"
    return GuardrailResult(guardrail, control, treatment, difference, alpha, lower, upper, state)


def _harm_bounds(
    guardrail: Guardrail, difference: Effect, control: Estimate, treatment: Estimate, alpha: float
) -> tuple[float | None, float | None]:
    """Return the lower and the upper bound of the harm; None if undefined."""
    if difference.effect is None or min(control.units, treatment.units) < MIN_UNITS_FOR_DECISION:
        return None, None
    if guardrail.harmful_direction == "up" and control.mean == treatment.mean == 0:
        # No such event was ever counted: the name in the configuration may be misspelt.
        return None, None
    if difference.information is None:
        return None, _zero_event_harm_bound(guardrail, treatment, alpha)
    added_variance = rare_event_variance(control, treatment, guardrail.max_value, alpha)
    mixture = HalfNormalMixture.tune(mde_information(guardrail.margin), alpha)
    information = difference.information

    def half_width(extra_variance: float) -> float:
        return mixture.half_width(1 / (1 / information + extra_variance) if extra_variance else information, alpha)

    harm = difference.effect if guardrail.harmful_direction == "up" else -difference.effect
    # Time-outs missing from the treatment's sample would increase the harm, from the control's sample decrease it.
    lower_variance, upper_variance = (
        0.0 if guardrail.timeout_value is None else timeout_variance(estimate, guardrail.timeout_value, alpha)
        for estimate in ((control, treatment) if guardrail.harmful_direction == "up" else (treatment, control))
    )
    return harm - half_width(added_variance + lower_variance), harm + half_width(added_variance + upper_variance)


def _zero_event_harm_bound(guardrail: Guardrail, treatment: Estimate, alpha: float) -> float | None:
    """Return the upper bound L·(1 − α^(1/n)) of the harm if n treatment students showed no harm; otherwise None.

    If the mean harm were m, of values from 0 to L, a student would show no harm with probability 1 − m/L at most. A
    sample without events lasts until the first event and never returns, so the bound is valid at all times together.
    """
    if guardrail.max_value is None:
        return None
    harmless_mean = 0.0 if guardrail.harmful_direction == "up" else guardrail.max_value
    return guardrail.max_value * (1 - alpha ** (1 / treatment.units)) if treatment.mean == harmless_mean else None
