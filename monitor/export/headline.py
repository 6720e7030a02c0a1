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
from monitor.config import DisplayTexts, is_proportion
from monitor.days import day_calendar
from monitor.errors import count_noun
from monitor.export.presentation import (
    STATE_DESCRIPTIONS,
    STATE_TITLES,
    TONES,
    format_relative_changes,
    format_time,
    meets_min_students,
    variant_title,
)
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
_NO_BOUNDS: Final[RelativeBounds] = (None, None, None)
_MAX_ANNOUNCED_DAYS: Final = 365.0
"""A longer time until a decision is stated as "more than a year"."""
_FINAL_STEPS: Final[Mapping[VerdictState, str]] = {
    "non_inferior": "{treatment} may replace {control} if it has other advantages: any loss is tolerable.",
    "futile": "End the experiment: more {noun}s would not show a gain that matters.",
    "stop_harm": "Stop {treatment}, and find the cause of the harm.",
    "invalid": "Repair the cause. Then start a new experiment, because the {noun}s so far cannot be compared.",
}
_ENDED: Final = "Ended without a decision"
_NOT_STARTED: Final = "Not started yet"
_ENDING: Final = "Ended, not decided yet"
_EVIDENCE_CODES: Final = frozenset({"better", "not_worse", "guardrail_held"})
"""Codes of reasons that speak for the treatment, so they block nothing."""
_DOUBT_CODES: Final = frozenset({"compared_sample_ratio", "populations_disagree", "undefined_disagree"})
"""Codes of reasons why the compared students may differ between the variants."""


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
    finding: str
    """What the data have shown, including certain harm of a guardrail metric."""
    obstacle: str | None
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
            "finding": self.finding,
            "obstacle": self.obstacle,
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
    view = _VerdictView(experiment, verdict, is_hidden=is_hidden)
    effect = None if is_hidden or _is_unusable(verdict) else _format_effect(verdict)
    return Headline(
        treatment=treatment,
        label=variant_title(treatment, verdict.evidence.texts),
        state=verdict.state,
        tone="bad" if _is_incomparable(verdict) else TONES.get(verdict.state, "open"),
        title=state_title(experiment, verdict),
        effect=effect,
        bounds=_NO_BOUNDS if is_hidden else judged_effect(verdict),
        finding=" ".join(view.describe_finding(effect)),
        obstacle=view.describe_obstacle(),
        next_step=view.describe_next_step(),
        students=(verdict.primary.control.units, verdict.primary.treatment.units),
    )


def judged_effect(verdict: Verdict) -> RelativeBounds:
    """Return the relative effect that is judged, with its bounds; all None unless all are known and may be used."""
    primary, relative = verdict.primary, (verdict.primary.difference.relative_effect, *verdict.relative_bounds)
    return _NO_BOUNDS if _is_unusable(verdict) or primary.lower is None or None in relative else relative


def _is_unusable(verdict: Verdict) -> bool:
    """Return whether the effect must not be used: the variants cannot be compared, or events are missing."""
    return _is_incomparable(verdict) or verdict.evidence.history.is_incomplete


def _is_incomparable(verdict: Verdict) -> bool:
    """Return whether the variants cannot be compared, also while the experiment is too young for a decision."""
    return verdict.state == "invalid" or bool(_list_validity_warnings(verdict))


def _list_validity_warnings(verdict: Verdict) -> tuple[str, ...]:
    """Return why the variants cannot be compared; nothing while a backfill counts earlier events."""
    if verdict.evidence.history.is_incomplete:
        return ()
    findings = (*verdict.reasons, *verdict.notes)
    return tuple(
        dict.fromkeys(finding.text for finding in findings if finding.is_warning and finding.is_about_validity)
    )


def state_title(experiment: ExperimentSummary, verdict: Verdict) -> str:
    """Return the state of a verdict in a few words."""
    if verdict.evidence.history.is_incomplete:
        return "Incomplete, so no decision yet"
    if experiment.has_not_started:
        return _NOT_STARTED
    if verdict.state in {"continue", "insufficient_data"}:
        if experiment.is_closed_by_clock or experiment.history.is_archived:
            return _ENDED
        if experiment.has_ended:
            return _ENDING if verdict.evidence.has_new_students and verdict.primary.control.units else _ENDED
    return STATE_TITLES[verdict.state]


def _format_effect(verdict: Verdict) -> str | None:
    """Return the judged effect with its interval; None without an interval, because few students prove nothing.

    Without relative bounds, for example if the control's mean may be 0, the effect is in the unit of the metric. The
    relative change of a share is named so, because it could be taken for percentage points.
    """
    primary, metric = verdict.primary, verdict.evidence.metric
    effect, relative = primary.difference.effect, primary.difference.relative_effect
    lower, upper = verdict.relative_bounds
    if effect is None or primary.lower is None or primary.upper is None:
        return None
    if relative is not None and lower is not None and upper is not None:
        change, low, high = format_relative_changes([relative, lower, upper])
        return f"{'relative ' if is_proportion(metric) else ''}{change} ({low} to {high})"
    change, low, high = format_changes(metric, [effect, primary.lower, primary.upper], sign=True)
    return f"{change}{metric_unit(metric, verdict.evidence.texts)} ({low} to {high})"


@dataclass(frozen=True, slots=True)
class _VerdictView:
    """The verdict on a treatment as sentences; an effect that `is_hidden` appears in none of them."""

    experiment: ExperimentSummary
    verdict: Verdict
    is_hidden: bool

    @property
    def codes(self) -> frozenset[str]:
        """The codes of the reasons."""
        return frozenset(reason.code for reason in self.verdict.reasons)

    def describe_finding(self, effect: str | None) -> Iterator[str]:
        """Yield sentences on the primary metric, and on guardrail metrics that have changed for the worse."""
        evidence, primary = self.verdict.evidence, self.verdict.primary
        label, treatment = metric_label(evidence.metric, evidence.texts), evidence.treatment_label
        if _is_incomparable(self.verdict):
            yield "The variants cannot be compared, so no effect is known."
            return
        if effect is None or primary.lower is None or primary.upper is None:
            is_known = primary.difference.effect is not None and primary.lower is not None and self.is_hidden
            reason = f"hidden, because a variant has few {evidence.unit_noun}s" if is_known else "not known yet"
            yield f"The effect of {treatment} on {label} is {reason}."
        else:
            level = f"{format_level(primary.alpha)} confidence, however often you look"
            sign = -1 if evidence.lower_is_better else 1
            is_doubtful = self.verdict.state == "insufficient_data" or self.codes & _DOUBT_CODES
            if primary.lower <= 0 <= primary.upper:
                finding = f"may be better or worse with {treatment}"
            elif is_doubtful:
                finding = f"is {'higher' if primary.lower > 0 else 'lower'} with {treatment} so far"
            else:
                finding = f"is {'better' if sign * primary.lower > 0 else 'worse'} with {treatment}"
            title = capitalized_metric_label(evidence.metric, evidence.texts)
            yield f"{title} {finding}: {effect}, {level}."
        if not self.is_hidden and not _is_unusable(self.verdict):
            for result in self.verdict.guardrails:
                if result.is_certain_harm and result.state != "crossed":
                    yield _describe_certain_harm(result, evidence.texts)

    def describe_obstacle(self) -> str | None:
        """Return the findings that speak against shipping the treatment now; None if there are none."""
        texts = [
            reason.text
            for reason in self.verdict.reasons
            if reason.code not in _EVIDENCE_CODES and (not self.is_hidden or reason.is_about_validity)
        ]
        return " ".join(dict.fromkeys((*_list_validity_warnings(self.verdict), *texts))) or (
            f"{STATE_DESCRIPTIONS[self.verdict.state].capitalize()}."
            if self.is_hidden and self.verdict.state not in {"ship", "non_inferior"}
            else None
        )

    def describe_next_step(self) -> str:
        """Return what to do, or when the blocking question is expected to be decided, with the planned end."""
        experiment, evidence, state = self.experiment, self.verdict.evidence, self.verdict.state
        if evidence.history.is_incomplete:
            return "Wait until the earlier events are counted."
        if experiment.history.is_archived:
            return "The experiment is archived: no further events count."
        if state != "invalid" and _is_incomparable(self.verdict):
            return "Repair the cause now: waiting does not help."
        if state == "ship":
            return self._describe_roll_out()
        if state in _FINAL_STEPS:
            labels = {"treatment": evidence.treatment_label, "control": evidence.control_label}
            return _FINAL_STEPS[state].format(noun=evidence.unit_noun, **labels)
        return self._describe_undecided_step()

    def _describe_undecided_step(self) -> str:
        """Return what to do while there is no decision."""
        noun = self.verdict.evidence.unit_noun
        title = state_title(self.experiment, self.verdict)
        if title == _NOT_STARTED and self.experiment.starts_at_ms is not None:
            return f"The experiment starts on {format_time(self.experiment.starts_at_ms)}."
        if title == _ENDED:
            return f"The experiment is over: decide without its verdict, or start a new experiment with more {noun}s."
        if title == _ENDING:
            return "The experiment has ended. Its verdict is final once the last windows are complete."
        if not self.verdict.evidence.has_new_students:
            return (
                f"No new {noun}s enter the experiment, so waiting decides nothing: end the experiment, or add {noun}s."
            )
        sentences = ["Keep the experiment running.", *self._describe_waiting()]
        if self.experiment.ends_at_ms is not None:
            sentences.append(f"The planned end is {format_time(self.experiment.ends_at_ms)}.")
        return " ".join(sentences)

    def _describe_roll_out(self) -> str:
        analysis, treatment = self.experiment.analysis, self.verdict.evidence.treatment_label
        assert analysis is not None
        if sum(verdict.state == "ship" for verdict in analysis.verdicts.values()) > 1:
            return f"Roll out {treatment} or another treatment to ship: they are not compared with each other."
        return f"Roll out {treatment}: nothing more has to be waited for."

    def _describe_waiting(self) -> Iterator[str]:
        """Yield sentences on the time until the blocking question is decided."""
        if self.verdict.state == "insufficient_data":
            days = self._days_until_sufficient()
            if days is not None:
                yield f"The first decision is possible {self._in_days(days)}."
        elif self.is_hidden:
            return
        elif "undecided" in self.codes:
            yield from self._describe_primary_waiting()
        elif "guardrail_open" in self.codes:
            for result in self.verdict.guardrails:
                if result.state in {"open", "unknown"}:
                    yield self._describe_guardrail_waiting(result)

    def _describe_primary_waiting(self) -> Iterator[str]:
        """Yield sentences on the time until the smallest effect of interest would show."""
        verdict, evidence, primary = self.verdict, self.verdict.evidence, self.verdict.primary
        criteria, days = evidence.criteria, verdict.days_to_resolve
        label = metric_label(evidence.metric, evidence.texts)
        mde = format_amount(evidence.metric, criteria.mde, evidence.texts)
        assert primary.lower is not None
        assert primary.upper is not None
        is_narrow = (primary.upper - primary.lower) / 2 <= criteria.mde
        if is_narrow:
            yield f"The interval is narrow enough to show an effect of {mde} on {label}: the effect may be smaller."
        elif not days:  # a small sample widens the interval for an unknown time
            yield f"The time until an effect of {mde} on {label} would show is not known yet."
            return
        else:
            yield f"An effect of {mde} on {label} would show {self._in_days(days)}, with a probability of 50 %."
        if verdict.days_to_power:
            timing = self._in_days(verdict.days_to_power)
            yield f"The probability is 80 %, including that all guardrails hold, {timing}."

    def _describe_guardrail_waiting(self, result: GuardrailResult) -> str:
        """Return a sentence on the time until a guardrail is decided."""
        label = metric_label(result.guardrail.name, self.verdict.evidence.texts)
        rates = self.verdict.evidence.students_per_day_with(result.control, result.treatment)
        days = days_until_decided(result, rates)
        if result.state == "unknown":
            return f"Guardrail on {label}: the time until it is decided is not known yet."
        if days is None:
            return (
                f"Guardrail on {label}: the observed difference is too close to the margin to be decided within ten "
                "years. Consider whether this margin matters."
            )
        return f"Guardrail on {label}: if the difference stays as observed, it is decided {self._in_days(days)}."

    def _days_until_sufficient(self) -> float | None:
        """Return the days until both variants have enough students and entry days; None if unknown."""
        evidence = self.verdict.evidence
        if "no_variation" in self.codes:
            return None
        days = [max(evidence.criteria.min_days - evidence.closed_days, 0.0)]
        arms = self.verdict.primary.control, self.verdict.primary.treatment
        for arm, rate in zip(arms, evidence.students_per_day, strict=True):
            missing = MIN_UNITS_FOR_DECISION - arm.units
            if missing > 0:
                if not rate:
                    return None
                days.append(missing / rate)
        return max(days)

    def _in_days(self, days: float) -> str:
        """Return when something is expected, as a number of days and a date in the experiment's zone."""
        evidence = self.verdict.evidence
        if days > _MAX_ANNOUNCED_DAYS:
            return f"in more than a year at the present number of new {evidence.unit_noun}s"
        assert self.experiment.analysis is not None
        number = max(math.ceil(days), 1)
        calendar = day_calendar(evidence.day_zone)
        day = calendar.day_number(self.experiment.analysis.as_of_ms) + number
        date = datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=day * DAY_MS)
        return f"in about {count_noun(number, 'day')}, on {date.day} {date:%B}{calendar.zone_note}"


def _describe_certain_harm(result: GuardrailResult, texts: DisplayTexts) -> str:
    """Return a sentence with the bounds of a harm that is certain at the levels of the bounds, and the margin."""
    name, verb = result.guardrail.name, "rose" if result.guardrail.harmful_direction == "up" else "fell"
    low, high, margin = format_changes(name, [result.least_harm or 0.0, result.most_harm or 0.0, result.margin or 0.0])
    conclusion = "within" if result.state == "tolerable" else "which may be more than"
    label, unit = capitalized_metric_label(name, texts), metric_unit(name, texts)
    return (
        f"{label} {verb} by {low} to {high}{unit}, {conclusion} the allowed {margin} ({format_level(result.alpha)} "
        "confidence)."
    )
