"""The headline of a treatment: the judged effect in per cent, and the verdict in three lines.

List, page, report, messages, terminal and boards begin with the headline, so that there is one answer to "by how much":
the relative effect on the primary metric over the students whose exposure window is complete, with its confidence
sequence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Literal, TypeAlias

from monitor.analysis import ExperimentSummary
from monitor.clock import DAY_MS
from monitor.config import DisplayTexts
from monitor.days import day_calendar
from monitor.errors import count_noun
from monitor.export.presentation import STATE_TITLES, TONES, format_time, meets_min_students, variant_title
from monitor.stats import (
    MIN_UNITS_FOR_DECISION,
    GuardrailResult,
    Verdict,
    VerdictState,
    capitalized_metric_label,
    days_until_decided,
    format_amount,
    format_changes,
    format_level,
    metric_label,
    metric_unit,
)

RelativeBounds: TypeAlias = tuple[float | None, float | None, float | None]
"""(effect, lower bound, upper bound) as fractions of the control's mean; None where undefined or hidden."""
_MAX_ANNOUNCED_DAYS: Final = 365.0
"""A longer time until a decision is stated as "more than a year"."""
_FINAL_STEPS: Final[Mapping[VerdictState, str]] = {
    "ship": "Roll out {treatment}: nothing more has to be waited for.",
    "non_inferior": "{treatment} may replace {control} if it has other advantages. No gain is certain yet.",
    "futile": "End the experiment: more students would not show a gain that matters.",
    "stop_harm": "Stop {treatment}, and find the cause of the harm.",
    "invalid": "Repair the cause. Then start a new experiment, because the students so far cannot be compared.",
}
_EVIDENCE_CODES: Final = frozenset({"better", "not_worse", "guardrail_held"})
"""Codes of reasons that speak for the treatment, so they block nothing."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The verdict on a treatment for readers with little time."""

    treatment: str
    """The name of the treatment."""
    label: str
    """The label of the treatment, with its name in parentheses; the name without a label."""
    state: VerdictState
    tone: Literal["good", "bad", "open"]
    title: str
    """The state in one to three words."""
    effect: str | None
    """The judged effect with its interval; None while it is unknown, hidden or invalid.

    In per cent of the control's mean or, where that is undefined, in the unit of the metric.
    """
    bounds: RelativeBounds
    known: str
    """What the data have shown, including certain harm of a guardrail metric."""
    blocking: str | None
    """What prevents the treatment from being shipped; None if nothing does."""
    next_step: str
    """What to do, or when the blocking question is expected to be decided."""
    students: tuple[int, int]
    """Judged students of the control and of the treatment."""

    def to_json(self) -> dict[str, Any]:
        """Return the headline as in the JSON of a verdict."""
        effect, lower, upper = self.bounds
        return {
            "title": self.title,
            "effect_text": self.effect,
            "effect": effect,
            "lower": lower,
            "upper": upper,
            "known": self.known,
            "blocking": self.blocking,
            "next_step": self.next_step,
            "students": {"control": self.students[0], "treatment": self.students[1]},
        }


def describe_headlines(experiment: ExperimentSummary, min_students: int = 1) -> list[Headline]:
    """Return the headline of each treatment; a variant with fewer than `min_students` students hides the effect."""
    if experiment.analysis is None:
        return []
    return [
        _describe_headline(experiment, name, verdict, is_hidden=not meets_min_students(verdict.primary, min_students))
        for name, verdict in experiment.analysis.verdicts.items()
    ]


def headlines_json(experiment: ExperimentSummary, min_students: int = 1) -> dict[str, dict[str, Any]]:
    """Return treatment → headline as JSON."""
    return {headline.treatment: headline.to_json() for headline in describe_headlines(experiment, min_students)}


def _describe_headline(experiment: ExperimentSummary, treatment: str, verdict: Verdict, *, is_hidden: bool) -> Headline:
    primary = verdict.primary
    is_hidden = is_hidden or verdict.state == "invalid" or verdict.evidence.history.is_incomplete
    effect = None if is_hidden else _format_effect(verdict)
    return Headline(
        treatment=treatment,
        label=variant_title(treatment, verdict.evidence.texts),
        state=verdict.state,
        tone=TONES.get(verdict.state, "open"),
        title=state_title(experiment, verdict),
        effect=effect,
        bounds=(None, None, None) if effect is None else (primary.difference.relative_effect, *verdict.relative_bounds),
        known=" ".join(_describe_known(verdict, effect, is_hidden=is_hidden)),
        blocking=_describe_blocking(verdict),
        next_step=_describe_next_step(experiment, verdict),
        students=(primary.control.units, primary.treatment.units),
    )


def state_title(experiment: ExperimentSummary, verdict: Verdict) -> str:
    """Return the state of a verdict in a few words."""
    if verdict.evidence.history.is_incomplete:
        return "Incomplete, so no decision yet"
    if experiment.is_closed_by_clock and verdict.state in {"continue", "insufficient_data"}:
        return "Ended without a decision"
    return STATE_TITLES[verdict.state]


def _format_effect(verdict: Verdict) -> str | None:
    """Return the judged effect with its interval; None without an interval, because few students prove nothing.

    Without relative bounds, for example if the control's mean may be 0, the effect is in the unit of the metric.
    """
    primary, metric = verdict.primary, verdict.evidence.metric
    effect, relative = primary.difference.effect, primary.difference.relative_effect
    lower, upper = verdict.relative_bounds
    if effect is None or primary.lower is None or primary.upper is None:
        return None
    if relative is not None and lower is not None and upper is not None:
        return f"{_format_percent(relative)} ({_format_percent(lower)} to {_format_percent(upper)})"
    change, low, high = format_changes(metric, [effect, primary.lower, primary.upper], sign=True)
    return f"{change}{metric_unit(metric, verdict.evidence.texts)} ({low} to {high})"


def _format_percent(fraction: float) -> str:
    percent = round(100 * fraction, 1) + 0.0
    return f"{percent:+.1f} %".replace("-", "\u2212")


def _describe_known(verdict: Verdict, effect: str | None, *, is_hidden: bool) -> Iterator[str]:
    """Yield sentences on the primary metric, and on guardrail metrics that have certainly changed for the worse."""
    evidence, primary, treatment = verdict.evidence, verdict.primary, verdict.evidence.treatment_label
    label = capitalized_metric_label(evidence.metric, evidence.texts)
    if verdict.state == "invalid":
        yield "The variants cannot be compared, so no effect is known."
        return
    if effect is None:
        yield f"The effect of {treatment} on {metric_label(evidence.metric, evidence.texts)} is not known yet."
    else:
        assert primary.lower is not None
        assert primary.upper is not None
        level = f"{format_level(primary.alpha)} confidence, however often you look"
        direction = -1 if evidence.lower_is_better else 1
        if primary.lower <= 0 <= primary.upper:
            finding = f"may be better or worse with {treatment}"
        elif direction * primary.lower > 0:
            finding = f"is better with {treatment}"
        else:
            finding = f"is worse with {treatment}"
        yield f"{label} {finding}: {effect}, {level}."
    if not is_hidden:
        for result in verdict.guardrails:
            if result.is_certain_harm:
                yield _describe_certain_harm(result, evidence.texts)


def _describe_certain_harm(result: GuardrailResult, texts: DisplayTexts) -> str:
    """Return a sentence with the bounds of a certain harm and the margin."""
    name, verb = result.guardrail.name, "rose" if result.guardrail.harmful_direction == "up" else "fell"
    low, high, margin = format_changes(name, [result.least_harm or 0.0, result.most_harm or 0.0, result.margin or 0.0])
    conclusion = {
        "tolerable": f"within the allowed {margin}",
        "crossed": f"more than the allowed {margin}",
    }.get(result.state, f"which may be more than the allowed {margin}")
    label, unit = capitalized_metric_label(name, texts), metric_unit(name, texts)
    return f"{label} certainly {verb}, by {low} to {high}{unit}: {conclusion}."


def _describe_blocking(verdict: Verdict) -> str | None:
    """Return the reasons that speak against shipping the treatment now; None if there are none."""
    texts = [reason.text for reason in verdict.reasons if reason.code not in _EVIDENCE_CODES]
    return " ".join(texts) or None


def _describe_next_step(experiment: ExperimentSummary, verdict: Verdict) -> str:
    """Return what to do, or when the blocking question is expected to be decided, with the planned end."""
    if verdict.evidence.history.is_incomplete:
        return "Wait until the earlier events are counted."
    if experiment.is_closed_by_clock and verdict.state in {"continue", "insufficient_data"}:
        return "The experiment is over: decide without its verdict, or start a new experiment with more students."
    if verdict.state in _FINAL_STEPS:
        labels = {"treatment": verdict.evidence.treatment_label, "control": verdict.evidence.control_label}
        return _FINAL_STEPS[verdict.state].format(**labels)
    sentences = ["Keep the experiment running.", *_describe_waiting(experiment, verdict)]
    if experiment.ends_at_ms is not None:
        sentences.append(f"The planned end is {format_time(experiment.ends_at_ms)}.")
    return " ".join(sentences)


def _describe_waiting(experiment: ExperimentSummary, verdict: Verdict) -> Iterator[str]:
    """Yield sentences on the time until what blocks a decision is decided."""
    evidence, texts = verdict.evidence, verdict.evidence.texts
    codes = {reason.code for reason in verdict.reasons}
    if verdict.state == "insufficient_data":
        days = _days_until_sufficient(verdict)
        if days is not None:
            yield f"The first decision is possible {_in_days(experiment, verdict, days)}."
        return
    if "undecided" in codes:
        mde = format_amount(evidence.metric, evidence.criteria.mde, texts)
        label = metric_label(evidence.metric, texts)
        if verdict.days_to_resolve is None:
            yield f"When an effect of {mde} on {label} would show is not known yet."
        else:
            timing = _in_days(experiment, verdict, verdict.days_to_resolve)
            yield f"An effect of {mde} on {label} would show {timing}, with a probability of 50 %."
            if verdict.days_to_power is not None:
                timing = _in_days(experiment, verdict, verdict.days_to_power)
                yield f"The probability is 80 %, all guardrails held, {timing}."
    if "guardrail_open" in codes:
        open_guardrails = [result for result in verdict.guardrails if result.state in {"open", "unknown"}]
        for result in open_guardrails:
            label = metric_label(result.guardrail.name, texts)
            days = days_until_decided(result, evidence.students_per_day)
            if result.state == "unknown":
                yield f"When the guardrail on the {label} is decided is not known yet."
            elif days is None:
                yield (
                    f"If the {label} stays as observed, it is too close to its margin to be decided within a year: "
                    "decide whether this margin matters."
                )
            else:
                timing = _in_days(experiment, verdict, days)
                yield f"If the {label} stays as observed, its guardrail is decided {timing}."


def _days_until_sufficient(verdict: Verdict) -> float | None:
    """Return the days until both variants have enough students and entry days; None if unknown."""
    evidence = verdict.evidence
    days = [max(evidence.criteria.min_days - evidence.closed_days, 0.0)]
    arms = verdict.primary.control, verdict.primary.treatment
    for arm, rate in zip(arms, evidence.students_per_day, strict=True):
        missing = MIN_UNITS_FOR_DECISION - arm.units
        if missing > 0:
            if not rate:
                return None
            days.append(missing / rate)
    return max(days) if evidence.has_new_students else None


def _in_days(experiment: ExperimentSummary, verdict: Verdict, days: float) -> str:
    """Return when something is expected, as a number of days and a date in the experiment's zone."""
    if days > _MAX_ANNOUNCED_DAYS:
        return "in more than a year at the present number of new students"
    assert experiment.analysis is not None
    number = max(math.ceil(days), 1)
    calendar = day_calendar(verdict.evidence.day_zone)
    day = calendar.day_number(experiment.analysis.as_of_ms) + number
    date = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=day * DAY_MS)
    return f"in about {count_noun(number, 'day')}, on {date.day} {date:%B}{calendar.zone_note}"
