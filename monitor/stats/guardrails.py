"""Guardrails: what must not get worse while the primary metric gets better.

A guardrail has a direction in which it is bad and a margin that is tolerable. Two one-sided confidence sequences about
the harm (the effect, counted in the bad direction) look at it from both sides:

- `crossed`: the harm is shown to be above the margin; the experiment should stop;
- `held`: the harm is shown to be below the margin; as far as this guardrail goes, the treatment may ship;
- `open`: neither yet; `unknown`: fewer than 50 students in a variant, or nothing of what is watched in either.

Shipping asks every guardrail to be held, so no correction for their number is due; that one crosses by mistake has
probability α for each of them.

Reference: Schultzberg, Ankargren & Frånberg, "Risk-aware product decisions in A/B tests with multiple metrics", 2024.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from monitor.stats.argument_checks import level, positive
from monitor.stats.comparison import DECIDING_UNITS
from monitor.stats.estimates import Effect, Estimate, effect_of
from monitor.stats.rare_events import unmet_variance, unseen_variance
from monitor.stats.sequences import HalfNormalMixture, mde_information

GuardrailState = Literal["held", "open", "crossed", "unknown"]


@dataclass(frozen=True, slots=True)
class Guardrail:
    """What is watched."""

    name: str
    bad: Literal["up", "down"]
    margin: float
    """Tolerable harm, in the metric's own unit; above 0."""
    largest: float | None = None
    """The largest value that a student can have, 1 for shares (the smallest is 0); None if there is none."""
    worst: float | None = None
    """Without a `largest` one: a value that few may have and nobody yet, such as a time-out; None for none."""


@dataclass(frozen=True, slots=True)
class GuardrailResult:
    """What is known about the harm; bounds are one-sided, each at level 1 − alpha."""

    guardrail: Guardrail
    control: Estimate
    treatment: Estimate
    difference: Effect
    alpha: float
    least_harm: float | None
    most_harm: float | None
    state: GuardrailState


def watch(guardrail: Guardrail, control: Estimate, treatment: Estimate, *, alpha: float) -> GuardrailResult:
    """Return what the guardrail's sequences say, tightest where they just resolve its margin."""
    positive(f"the margin of {guardrail.name}", guardrail.margin)
    difference = effect_of(control, treatment)
    least, most = _bounds(guardrail, difference, control, treatment, level("alpha", alpha))
    state: GuardrailState = "open"
    if most is None:
        state = "unknown"
    elif most < guardrail.margin:
        state = "held"
    elif least is not None and least > guardrail.margin:
        state = "crossed"
    return GuardrailResult(guardrail, control, treatment, difference, alpha, least, most, state)


def _bounds(
    guardrail: Guardrail, difference: Effect, control: Estimate, treatment: Estimate, alpha: float
) -> tuple[float | None, float | None]:
    """Return the least and the most harm that is compatible with what was seen."""
    if difference.effect is None or min(control.units, treatment.units) < DECIDING_UNITS:
        return None, None
    if guardrail.bad == "up" and control.mean == treatment.mean == 0:
        # Nothing of the kind was ever seen: perhaps it has another name.
        return None, None
    if difference.information is None:
        return None, _most_unseen(guardrail, treatment, alpha)
    unseen = unseen_variance(control, treatment, guardrail.largest, alpha)
    mixture = HalfNormalMixture.tuned(mde_information(guardrail.margin), alpha)
    information = difference.information

    def half(lacking: float) -> float:
        return mixture.half_width(1 / (1 / information + lacking) if lacking else information, alpha)

    harm = difference.effect if guardrail.bad == "up" else -difference.effect
    # What the treatment has not met would make the harm larger, what the control has not met smaller.
    unmet = [
        0.0 if guardrail.worst is None else unmet_variance(each, guardrail.worst, alpha)
        for each in ((control, treatment) if guardrail.bad == "up" else (treatment, control))
    ]
    return harm - half(unseen + unmet[0]), harm + half(unseen + unmet[1])


def _most_unseen(guardrail: Guardrail, treatment: Estimate, alpha: float) -> float | None:
    """Return a bound of the harm if not one of the treatment's students showed any: L·(1 − α^(1/n)).

    Were the mean harm m of values from 0 to L, a student would show none with probability 1 − m/L at most. Having seen
    none can only end, so the bound may be watched.
    """
    if guardrail.largest is None:
        return None
    best = 0.0 if guardrail.bad == "up" else guardrail.largest
    return guardrail.largest * (1 - alpha ** (1 / treatment.units)) if treatment.mean == best else None
