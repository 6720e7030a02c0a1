"""The texts of a plan for terminal and page: an answer, the values, tables of students, days and effects, notes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from monitor.analysis import ExperimentPlan, PrePeriod
from monitor.export.presentation import ABSENT_TEXT, format_count
from monitor.stats import (
    Requirement,
    ResolvableEffect,
    Shares,
    format_amount,
    format_changes,
    format_mean,
    metric_label,
    metric_unit,
)

_DAYS_PER_WEEK: Final = 7
_MAX_LISTED_DAYS: Final = 36_525
_PRE_PERIOD_COLUMN: Final = "with pre-period"
_NO_BREAK: Final = "\u202f"


@dataclass(frozen=True, slots=True)
class PlanTable:
    """A table with a heading; the first cell of each row names the row."""

    heading: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class PlanTexts:
    """A plan in words and tables."""

    title: str
    subject: str
    """The treatment and the metric, for the middle of a heading; "assumed responses" without an experiment."""
    answers: tuple[str, ...]
    """What the plan says, in sentences."""
    facts: tuple[tuple[str, str], ...]
    """(label, text) of the values from which the plan was computed."""
    tables: tuple[PlanTable, ...]
    notes: tuple[str, ...]


def describe_plan(plan: ExperimentPlan) -> PlanTexts:
    """Return the texts of a plan."""
    return PlanTexts(
        title=_title(plan),
        subject=_subject(plan),
        answers=tuple(_answers(plan)),
        facts=tuple(_facts(plan)),
        tables=(_share_table(plan), _effect_table(plan)),
        notes=tuple(_notes(plan)),
    )


def _title(plan: ExperimentPlan) -> str:
    return f"Plan of {plan.values.experiment}: {_subject(plan)}" if plan.values.experiment else "Plan from assumptions"


def _subject(plan: ExperimentPlan) -> str:
    values = plan.values
    treatment = values.texts.variant_label(values.treatment)
    parts = [treatment or "assumed responses", metric_label(values.metric, values.texts) if values.metric else ""]
    return ", ".join(filter(None, parts))


def _metric(plan: ExperimentPlan) -> str:
    return metric_label(plan.values.metric, plan.values.texts) if plan.values.metric else "the metric"


def _guardrail(plan: ExperimentPlan, name: str) -> str:
    return metric_label(name, plan.values.texts)


def _effect_text(plan: ExperimentPlan, effect: float) -> str:
    """Return an effect in the unit of the metric, with the percentage of the mean in parentheses if that is known."""
    metric, mean = plan.values.metric, plan.values.mean
    text = format_amount(metric, effect, plan.values.texts)
    if not mean or mean < 0:
        return text
    return f"{text} ({100 * effect / mean:.1f}{_NO_BREAK}% of the mean)"


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.3g}{_NO_BREAK}%"


def _days(days: float | None) -> str:
    """Return a number of whole days, rounded up; "not known" for None, and a phrase beyond 100 years."""
    if days is None:
        return "not known"
    if days > _MAX_LISTED_DAYS:
        return "over 100 years"
    whole_days = math.ceil(days - 1e-6)
    return f"{format_count(whole_days)} {'day' if whole_days == 1 else 'days'}"


def _days_cell(requirement: Requirement) -> str:
    """Return the number of days of a requirement for a table, rounded up; beyond a year only that."""
    if requirement.days is None:
        return _days(None)
    whole_days = math.ceil(requirement.days - 1e-6)
    return format_count(whole_days) if requirement.is_reachable else f">{_NO_BREAK}1 year"


def _main_requirement(requirements: Sequence[Requirement], power: float) -> Requirement:
    return next(requirement for requirement in requirements if requirement.power == power)


def _answers(plan: ExperimentPlan) -> list[str]:
    """Return sentences with the time to the mde at the main shares, and what to do if that takes too long."""
    noun = plan.values.unit_noun
    plain = _requirement_at(plan, plan.main_shares, with_pre_period=False)
    adjusted = _requirement_at(plan, plan.main_shares, with_pre_period=True)
    best = adjusted if adjusted is not None and _measures_pre_period(plan) else plain
    if best is None or best.days is None:
        guardrail = "" if best is None or best.last_test is None else f" on the {_guardrail(plan, best.last_test)}"
        return [f"The time to a decision is not known, because the guardrail{guardrail} has no values yet."]
    if best.is_reachable:
        sentences = [_reachable_sentence(plan, best), *_limiting_guardrail(plan, best)]
    else:
        sentences = [_unreachable_sentence(plan, best), *_limiting_guardrail(plan, best)]
        more = f"give the experiment more {noun}s{'' if plan.with_pre_period else ' or a pre-period'}"
        sentences.append(f"Choose a larger effect from the second table, or {more}.")
    if plan.values.days_to_power is not None:
        sentences.append(_progress_sentence(plan, plan.values.days_to_power))
    return sentences


def _reachable_sentence(plan: ExperimentPlan, requirement: Requirement) -> str:
    noun, effect = plan.values.unit_noun, _effect_text(plan, plan.values.assumptions.mde)
    return (
        f"If the treatment gets {_percent(plan.main_shares.treatment)} of the {noun}s, an effect of {effect} on "
        f"{_metric(plan)} is shown with {_percent(plan.main_power)} power after {_days(requirement.days)} and "
        f"{format_count(math.ceil(requirement.students or 0))} {noun}s in total."
    )


def _unreachable_sentence(plan: ExperimentPlan, requirement: Requirement) -> str:
    noun, effect = plan.values.unit_noun, _effect_text(plan, plan.values.assumptions.mde)
    return (
        f"An effect of {effect} on {_metric(plan)} cannot be shown within a year: at "
        f"{_rate(plan.values.assumptions.schedule.students_per_day)} new {noun}s per day, "
        f"{_percent(plan.main_power)} power needs {_days(requirement.days)}."
    )


def _progress_sentence(plan: ExperimentPlan, days_to_power: float) -> str:
    """Return a sentence with the days from now at the present shares, which the verdict has, too."""
    noun = plan.values.unit_noun
    control, treatment = plan.values.students or (0, 0)
    future = "they are enough" if days_to_power == 0 else f"{_days(days_to_power)} more are needed"
    return (
        f"The control already has {format_count(control)} and the treatment {format_count(treatment)} {noun}s. At the "
        f"present shares, {future} for 80{_NO_BREAK}% power."
    )


def _measures_pre_period(plan: ExperimentPlan) -> bool:
    return plan.pre_period is not None and plan.pre_period.source == "measured"


def _requirement_at(plan: ExperimentPlan, shares: Shares, *, with_pre_period: bool) -> Requirement | None:
    for row in plan.with_pre_period if with_pre_period else plan.without_pre_period:
        if row.shares == shares:
            return _main_requirement(row.requirements, plan.main_power)
    return None


def _limiting_guardrail(plan: ExperimentPlan, requirement: Requirement) -> list[str]:
    if requirement.last_test is None:
        return []
    noun = plan.values.unit_noun
    return [f"The guardrail on the {_guardrail(plan, requirement.last_test)} needs more {noun}s than the effect."]


def _rate(per_day: float) -> str:
    return f"{per_day:.3g}" if per_day < 1 else format_count(per_day)


def _facts(plan: ExperimentPlan) -> list[tuple[str, str]]:
    """Return the inputs of the plan."""
    values, assumptions = plan.values, plan.values.assumptions
    schedule, metric, noun = assumptions.schedule, plan.values.metric, plan.values.unit_noun
    deviations = [math.sqrt(item.variance) for item in (assumptions.control, assumptions.treatment)]
    spread = format_changes(metric, [sum(deviations) / 2])[0] + metric_unit(metric, plan.values.texts)
    origin = "of the store" if values.is_stored else "assumed"
    facts = [("smallest effect of interest", _effect_text(plan, assumptions.mde))]
    if values.mean is not None:
        facts.append(("mean of the control", f"{format_mean(metric, values.mean, values.texts)} ({origin})"))
    facts.append((f"standard deviation between {noun}s", f"{spread} ({origin})"))
    facts.append((f"{noun}s per day, all variants", _rate(schedule.students_per_day)))
    if values.responses_per_student is not None:
        facts.append((f"responses per {noun}", f"{values.responses_per_student:.3g}"))
    if values.correlation is not None:
        facts.append((f"correlation within a {noun}", f"{values.correlation:.2f}"))
    if plan.pre_period is not None:
        facts.append(("variance explained by the pre-period", _reduction_text(plan.pre_period)))
    level = f"{_percent(assumptions.alpha)}"
    if assumptions.treatments > 1:
        level += f", {assumptions.treatments} treatments"
    facts.append(("alpha", level))
    facts.append(("first decision", f"after {_days(schedule.min_days + schedule.window_days)} at the earliest"))
    if assumptions.guardrails:
        facts.append(
            (
                "guardrails",
                ", ".join(_guardrail(plan, item.guardrail.name) for item in assumptions.guardrails),
            )
        )
    return facts


def _reduction_text(pre_period: PrePeriod) -> str:
    sources = {"measured": "measured", "assumed": "assumed", "from_correlation": "at most, from the correlation"}
    return f"{_percent(pre_period.variance_reduction)} ({sources[pre_period.source]})"


def _share_table(plan: ExperimentPlan) -> PlanTable:
    """Return the table of students and days by share and power."""
    noun = plan.values.unit_noun
    power_columns = [f"{_percent(item.power)} power" for item in plan.without_pre_period[0].requirements]
    columns = ["treatment", f"{noun}s ({_percent(plan.main_power)})", *power_columns]
    if plan.with_pre_period:
        columns.append(f"{_percent(plan.main_power)}, {_PRE_PERIOD_COLUMN}")
    rows = []
    for index, row in enumerate(plan.without_pre_period):
        main = _main_requirement(row.requirements, plan.main_power)
        share = _percent(row.shares.treatment) + (" (now)" if row.shares == plan.values.own_shares else "")
        cells = [share, ABSENT_TEXT if main.students is None else format_count(math.ceil(main.students))]
        cells += [_days_cell(requirement) for requirement in row.requirements]
        if plan.with_pre_period:
            cells.append(_days_cell(_main_requirement(plan.with_pre_period[index].requirements, plan.main_power)))
        rows.append(tuple(cells))
    effect = format_amount(plan.values.metric, plan.values.assumptions.mde, plan.values.texts)
    guardrails = ", all guardrails held" if plan.values.assumptions.guardrails else ""
    return PlanTable(f"Days until an effect of {effect} is shown{guardrails}", tuple(columns), tuple(rows))


def _effect_table(plan: ExperimentPlan) -> PlanTable:
    """Return the table of the smallest effects that are shown after some weeks."""
    columns = ["after", f"{plan.values.unit_noun}s", "smallest effect"]
    if plan.effects_with_pre_period:
        columns.append(_PRE_PERIOD_COLUMN)
    rows = []
    for index, effect in enumerate(plan.effects):
        cells = [
            f"{effect.days / _DAYS_PER_WEEK:.0f} weeks",
            format_count(math.floor(effect.students)) if effect.students else ABSENT_TEXT,
            _smallest_effect(plan, effect),
        ]
        if plan.effects_with_pre_period:
            cells.append(_smallest_effect(plan, plan.effects_with_pre_period[index]))
        rows.append(tuple(cells))
    heading = (
        f"Smallest effect that is shown with {_percent(plan.main_power)} power, treatment "
        f"{_percent(plan.main_shares.treatment)}"
    )
    return PlanTable(heading, tuple(columns), tuple(rows))


def _smallest_effect(plan: ExperimentPlan, effect: ResolvableEffect) -> str:
    if effect.mde is None:
        return "no decision yet"
    metric, mean = plan.values.metric, plan.values.mean
    (number,) = format_changes(metric, [effect.mde])
    percentage = f" ({_percent(effect.mde / mean)})" if mean and mean > 0 else ""
    return f"{number}{metric_unit(metric, plan.values.texts)}{percentage}"


def _notes(plan: ExperimentPlan) -> list[str]:
    """Return what the numbers assume, in sentences."""
    values, noun = plan.values, plan.values.unit_noun
    window_days = values.assumptions.schedule.window_days
    once = f"{format_count(math.ceil(plan.fixed_horizon_students))} {noun}s at {_percent(plan.main_power)} power"
    windows = (
        f"Days count from the first response of the first {noun}. They include {_days(window_days)} for the first "
        f"days of the last {noun}s, the feedback window and the closing delay."
    )
    reading = (
        "You may read the results at any time, and a larger effect is shown sooner. A test that is read only once "
        f"needs {once}, and must not be read earlier."
    )
    power = (
        f"{_percent(plan.main_power)} power: if the effect exists, {100 * plan.main_power:.3g} of 100 such experiments "
        "show it by then."
    )
    notes = [power, windows, reading]
    if values.assumptions.treatments > 1:
        notes.append(f"Each of the {values.assumptions.treatments} treatments gets the share; the control the rest.")
    if values.is_stored:
        notes.append(
            f"Variance and new {noun}s per day stay as they are now. If the same {noun}s return each week, new ones "
            "become fewer, and days more."
        )
    if values.assumptions.guardrails:
        notes.append("Guardrails are planned for a treatment that does no harm.")
    if plan.pre_period is None:
        notes.append(
            f"With data from before the experiment (`pre_period`), fewer {noun}s suffice: state the correlation of a "
            f"{noun}'s means before and in the experiment to see how many."
        )
    elif plan.pre_period.source == "from_correlation":
        notes.append(
            f"The columns with pre-period are the best case: every {noun} has as many responses before the experiment "
            "as in it, and has not changed."
        )
    return notes
