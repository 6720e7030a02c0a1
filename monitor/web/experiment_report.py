"""The report on an experiment: an HTML file with the decision, the evidence, and an explanation of the method."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any, Final

from monitor.analysis import StatePeriod, list_verdict_history
from monitor.clock import DAY_MS
from monitor.config import LATENCY_METRIC, DisplayTexts, ExperimentSettings
from monitor.export import (
    ABSENT_TEXT,
    GUARDRAIL_STATES,
    QUALITY_HEADING,
    STATE_DESCRIPTIONS,
    STATE_TITLES,
    ReportData,
    data_quality_rows,
    describe_archiving,
    describe_closing,
    describe_effect,
    describe_first_decision,
    describe_state,
    describe_time_to_decide,
    format_age,
    format_count,
    format_optional_difference,
    format_optional_mean,
    format_time,
    meets_min_students,
)
from monitor.stats import (
    MIN_UNITS_FOR_INTERVAL,
    GuardrailResult,
    SegmentComparison,
    VariantComparison,
    Verdict,
    VerdictState,
    capitalized_metric_label,
    format_amount,
    metric_label,
)
from monitor.web import experiment_charts as charts
from monitor.web.pages import load_template
from monitor.web.standalone import standalone_context

_MOODS: Final[Mapping[VerdictState, str]] = {
    "ship": "good",
    "non_inferior": "good",
    "stop_harm": "bad",
    "invalid": "bad",
    "futile": "calm",
    "insufficient_data": "calm",
    "continue": "calm",
}
"""State of a verdict → CSS class of its colour."""
_MAX_STATE_CHANGES: Final = 50


def render_experiment_report(report: ReportData, now_ms: int | None = None) -> str:
    """Return the report as a self-contained HTML file; with `now_ms`, with the newest event's age."""
    verdicts, history = report.latest_analysis.verdicts, list_verdict_history(report.summary, report.snapshots)
    return load_template("experiment.html").render(
        **standalone_context(),
        newest_event=format_time(report.as_of_ms) + ("" if now_ms is None else _describe_age(report.as_of_ms, now_ms)),
        sample_size=_describe_sample_size(report),
        closing=describe_closing(report.summary),
        archiving=describe_archiving(report.summary),
        headlines=[
            _headline_context(report, name, verdict, history.get(name, ())) for name, verdict in verdicts.items()
        ],
        treatments=[_treatment_context(report, *treatment) for treatment in verdicts.items()],
        report=report,
        meets_min_students=partial(_meets_min_students, report),
        format_mean=partial(format_optional_mean, texts=report.settings.texts),
        format_difference=partial(format_optional_difference, texts=report.settings.texts),
        format_amount=partial(format_amount, texts=report.settings.texts),
        metric_label=partial(metric_label, texts=report.settings.texts),
        axis_unit=" (ms)" if report.settings.primary == LATENCY_METRIC else "",
        format_signed_percent=_format_signed_percent,
        format_time=format_time,
        quality_heading=QUALITY_HEADING,
        quality_rows=data_quality_rows(report.summary),
        student_count_chart=charts.student_count_chart(report),
        responses_without_user=sum(variant.responses_without_user for variant in report.summary.variants.values()),
        decayed_means={
            "charts": list(charts.decayed_mean_charts(report)),
            "from_snapshots": sum(means.from_snapshot for means in report.decayed_means),
            "recomputed": sum(not means.from_snapshot for means in report.decayed_means),
        },
        state_changes=[
            {"name": name, "rows": rows[-_MAX_STATE_CHANGES:], "omitted_count": max(len(rows) - _MAX_STATE_CHANGES, 0)}
            for name, periods in history.items()
            if (rows := list(_state_changes(report, name, periods)))
        ],
        snapshot_charts=list(charts.snapshot_charts(report)),
        settings=report.settings,
        criteria=next((verdict.evidence.criteria for verdict in verdicts.values()), None),
        adjustment_days=_adjustment_days(report),
        state_titles=STATE_TITLES,
        state_descriptions=STATE_DESCRIPTIONS,
    )


def _describe_age(at_ms: int, now_ms: int) -> str:
    """Return the age of an event when the report is created, in parentheses."""
    age = format_age(at_ms, now_ms)
    return f" ({age.replace(' ago', ' before this report')})"


def _describe_sample_size(report: ReportData) -> str | None:
    """Return the number of students and responses with the first day; None before the first student."""
    if not report.daily_splits:
        return None
    calendar = report.settings.calendar
    first_day = calendar.day_number(report.daily_splits[0].as_of_ms)
    date = format_time(first_day * DAY_MS).partition(",")[0]
    students = sum(report.daily_splits[-1].students.values())
    responses = sum(variant.responses for variant in report.summary.variants.values())
    return f"{format_count(students)} students and {format_count(responses)} responses since {date}{calendar.zone_note}"


def _format_signed_percent(fraction: float | None, *, sign: bool = False) -> str:
    if fraction is None:
        return ABSENT_TEXT
    percent = f"{round(fraction, 3) + 0.0:{'+' if sign else ''}.1%}"
    return _with_minus_sign(percent.replace("%", "\u202f%"))


def _with_minus_sign(text: str) -> str:
    """Return the text with each hyphen replaced by a minus sign (U+2212)."""
    return text.replace("-", "−")


def describe_disagreements(
    settings: ExperimentSettings, comparisons: Mapping[str, VariantComparison]
) -> dict[str, bool]:
    """Return sentence → whether both intervals exclude 0, for pairs of an nDCG and a DCG (or CG) that disagree.

    Two metrics disagree if their effects have opposite signs and at least one interval excludes 0. If both intervals
    exclude 0, the metrics contradict each other, which nDCG with the ideal of the shown list can cause. If the primary
    metric is a DCG or CG, only pairs with the primary metric are listed.
    """
    measures = {metric.name: metric.measure for metric in settings.metrics if metric.name in comparisons}
    normalized_metrics = [name for name, measure in measures.items() if measure == "ndcg"]
    gain_metrics = [name for name, measure in measures.items() if measure in {"cg", "dcg"}]
    gain_metrics = [settings.primary] if settings.primary in gain_metrics else gain_metrics
    disagreements, texts = {}, settings.texts
    for normalized, gain in product(normalized_metrics, gain_metrics):
        pair = comparisons[normalized], comparisons[gain]
        significant_count = sum(map(_excludes_zero, pair))
        if _effect_sign(pair[0]) * _effect_sign(pair[1]) < 0 and significant_count:
            movements = f"{_describe_movement(normalized, pair[0], texts)}, {_describe_movement(gain, pair[1], texts)}."
            contradictory = significant_count == len(pair)
            sentence = (
                f"disagree: {movements} {_explain_disagreement(settings, gain)}"
                if contradictory
                else f"differ: {movements}"
            )
            titles = f"{texts.metric_title(normalized)} and {texts.metric_title(gain)}"
            disagreements[f"{titles} {sentence}"] = contradictory
    return disagreements


def _effect_sign(comparison: VariantComparison) -> int:
    effect = comparison.difference.effect or 0.0
    return (effect > 0) - (effect < 0)


def _excludes_zero(comparison: VariantComparison) -> bool:
    lower, upper = comparison.lower, comparison.upper
    return lower is not None and upper is not None and (lower > 0 or upper < 0)


def _describe_movement(name: str, comparison: VariantComparison, texts: DisplayTexts) -> str:
    title, direction = texts.metric_title(name), "higher" if _effect_sign(comparison) > 0 else "lower"
    if comparison.lower is None:
        return f"{title} is {direction}, with too few students for an interval"
    bounds = " to ".join(
        format_optional_difference(name, bound, texts) for bound in (comparison.lower, comparison.upper)
    )
    if not _excludes_zero(comparison):
        return f"{title} has no clear change ({bounds})"
    return f"{title} is {direction} ({bounds})"


def _explain_disagreement(settings: ExperimentSettings, gain: str) -> str:
    if settings.ideal == "shown":
        return (
            "nDCG compares each response with the best order of its own videos (ideal: shown), so a variant that finds "
            f"fewer good videos can have a higher nDCG. Use {settings.texts.metric_title(gain)}."
        )
    return "Check the cuts of both metrics: with the same cut, they order single responses in the same way."


def _headline_context(
    report: ReportData, name: str, verdict: Verdict, periods: Sequence[StatePeriod]
) -> dict[str, Any]:
    is_displayed = report.is_displayed(verdict.primary)
    comparisons = {report.settings.primary: verdict.primary, **dict(verdict.diagnostics)} if is_displayed else {}
    disagreements = describe_disagreements(report.settings, comparisons)
    contradictions = [sentence for sentence, contradictory in disagreements.items() if contradictory]
    first_decision = describe_first_decision(periods, verdict)
    minor_disagreements = [sentence for sentence, contradictory in disagreements.items() if not contradictory]
    return {
        "treatment": name,
        "mood": _MOODS[verdict.state],
        "sentence": describe_state(
            verdict,
            is_displayed=_meets_min_students(report, verdict.primary),
            is_over=report.summary.is_closed_by_clock,
        ),
        "effect": _describe_effect(report, name, verdict),
        "disagreements": contradictions,
        "reasons": [reason.text for reason in verdict.reasons if is_displayed or reason.is_about_validity],
        "notes": [
            *(note.text for note in verdict.notes if is_displayed or note.is_about_validity),
            *minor_disagreements,
            *([first_decision] if is_displayed and first_decision is not None else []),
        ],
        "time_to_decide": describe_time_to_decide(verdict)
        if is_displayed and not report.summary.is_closed_by_clock
        else None,
    }


def _describe_effect(report: ReportData, treatment: str, verdict: Verdict) -> str:
    settings, primary = report.settings, verdict.primary
    effect = describe_effect(settings.control, treatment, verdict)
    if effect is None or not _meets_min_students(report, primary):
        label = metric_label(settings.primary, settings.texts)
        return f"No effect on {label} is known yet: too few students have complete first days."
    if min(primary.control.units, primary.treatment.units) < MIN_UNITS_FOR_INTERVAL:
        return f"{effect} An interval needs at least {MIN_UNITS_FOR_INTERVAL} students per variant."
    if primary.lower is None:
        return f"{effect} All students have the same value, so there is no interval."
    return (
        f"{effect} The true difference is in the interval with {100 * (1 - primary.alpha):.4g} % confidence, however "
        "often you look."
    )


def _meets_min_students(report: ReportData, comparison: VariantComparison) -> bool:
    """Return whether both variants have at least `min_students` students, and any students at all."""
    return meets_min_students(comparison, max(report.min_students, 1))


def _treatment_context(report: ReportData, name: str, verdict: Verdict) -> dict[str, Any]:
    criteria = verdict.evidence.criteria
    return {
        "name": name,
        "effect_chart": charts.effect_chart(report, name, verdict),
        "has_live_effect": sum(point.value is not None for point in charts.live_effect_line(report, name).points) > 1,
        "margin": criteria.margin,
        "mde": format_amount(verdict.evidence.metric, criteria.mde, report.settings.texts),
        "guardrails": [
            _guardrail_context(report, name, index, result) for index, result in enumerate(verdict.guardrails)
        ],
        "guardrail_bars": charts.guardrail_bars_chart(report, name, verdict),
        "student_share_chart": charts.student_share_chart(report, name),
        "segments": _subgroups_context(
            report, f"effect of {name} by category", report.latest_analysis.subgroup_effects[name].segments
        ),
        "exposure_ages": _subgroups_context(
            report,
            f"effect of {name} by days since first exposure",
            report.latest_analysis.subgroup_effects[name].exposure_ages,
        ),
    }


def _subgroups_context(report: ReportData, title: str, segments: Sequence[SegmentComparison]) -> dict[str, Any]:
    subgroups = [
        (segment, segment.comparison if _meets_min_students(report, segment.comparison) else None)
        for segment in segments
    ]
    return {"title": title, "rows": segments, "chart": charts.subgroup_chart(report, title, subgroups)}


def _guardrail_context(report: ReportData, name: str, guardrail_index: int, result: GuardrailResult) -> dict[str, Any]:
    guardrail, is_displayed, texts = result.guardrail, report.is_displayed(result), report.settings.texts
    changes = (result.least_harm, result.most_harm, charts.observed_harm(result))
    title = capitalized_metric_label(guardrail.name, texts)
    return {
        "title": title,
        "name": f"{title} must not {'rise' if guardrail.harmful_direction == 'up' else 'fall'}",
        "margin": format_optional_difference(guardrail.name, result.margin, texts, sign=False),
        "state": GUARDRAIL_STATES[result.state],
        "cells": [
            *(
                format_optional_difference(guardrail.name, change if is_displayed else None, texts, sign=False)
                for change in changes
            ),
            *(
                format_optional_mean(guardrail.name, arm.mean if is_displayed else None, texts)
                for arm in (result.control, result.treatment)
            ),
        ],
        "chart": charts.guardrail_chart(report, name, guardrail_index),
    }


def _state_changes(report: ReportData, treatment: str, periods: Sequence[StatePeriod]) -> Iterator[list[str]]:
    """Yield the cells (time, state, effect, lower, upper, description) of each period of a treatment's state."""
    for period in periods:
        was_displayed = report.was_displayed(treatment, period.since_ms)
        effect_cells = [
            format_optional_difference(report.settings.primary, value if was_displayed else None, report.settings.texts)
            for value in period.effect
        ]
        description = STATE_DESCRIPTIONS[period.state]
        yield [format_time(period.since_ms), STATE_TITLES[period.state], *effect_cells, description]


def _adjustment_days(report: ReportData) -> str | None:
    """Return the length of the pre-period in days; None if no estimate is adjusted by CUPED."""
    pre_period_ms = report.settings.pre_period_ms
    is_adjusted = any(verdict.unadjusted is not None for verdict in report.latest_analysis.verdicts.values())
    return f"{pre_period_ms / DAY_MS:g}" if pre_period_ms is not None and is_adjusted else None
