"""The content of an experiment's page and of its report file: one view, so that their numbers always agree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import product
from typing import Any, Final, Literal

from monitor.analysis import Analysis, DayEntry, StatePeriod, list_verdict_history
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import LATENCY_METRIC, DisplayTexts, ExperimentSettings, is_proportion
from monitor.export import (
    ABSENT_TEXT,
    COUNT_EXPLANATION,
    GUARDRAIL_STATES,
    REVIEW_NOTE,
    STATE_DESCRIPTIONS,
    STATE_TITLES,
    Freshness,
    Headline,
    ReportData,
    build_day_table,
    describe_archiving,
    describe_closing,
    describe_first_decision,
    describe_headlines,
    experiment_footnotes,
    experiment_table_rows,
    format_age,
    format_count,
    format_optional_difference,
    format_optional_mean,
    format_percent,
    meets_min_students,
)
from monitor.stats import (
    MIN_UNITS_FOR_INTERVAL,
    DiagnosticMetric,
    GuardrailResult,
    SegmentComparison,
    VariantComparison,
    Verdict,
    capitalized_metric_label,
    describe_guardrail,
    format_amount,
    format_changes,
    format_level,
    metric_label,
    metric_unit,
    relative_confidence_sequence,
)
from monitor.web import experiment_charts as charts
from monitor.web.glossary import TermLinks

Difference = Literal["relative", "absolute"]
_MAX_STATE_CHANGES: Final = 50
_MAX_REVIEW_ENTRIES: Final = 10
_MIN_RESPONSES_FOR_MEAN: Final = 100
_GUARDRAIL_TONES: Final[Mapping[str, str]] = {"held": "good", "tolerable": "open", "crossed": "bad"}
_DETAIL_TITLES: Final[Mapping[str, str]] = {
    "traffic": "Traffic, latency and change of categories",
    "feedback": "Feedback",
    "quality": "Events that do not count, or only in part",
    "metrics": "All metrics over all responses",
}
"""Group of rows → heading of the details."""


@dataclass(frozen=True, slots=True)
class ChartRange:
    """The days that charts show: moving the charts never changes a verdict."""

    from_ms: int
    until_ms: int
    """Exclusive."""
    text: str

    def contains(self, at_ms: int) -> bool:
        """Return whether a time is in the range."""
        return self.from_ms <= at_ms < self.until_ms

    def _begins_in_range(self, day: DayEntry) -> bool:
        return self.contains(day.start_ms)

    def cut(self, report: ReportData) -> ReportData:
        """Return the report with the points of its charts that are in the range."""
        log = report.day_log
        return replace(
            report,
            day_log=None if log is None else replace(log, days=tuple(filter(self._begins_in_range, log.days))),
            interim_analyses=tuple(
                analysis for analysis in report.interim_analyses if self.contains(analysis.as_of_ms)
            ),
            daily_splits=tuple(split for split in report.daily_splits if self.contains(split.as_of_ms)),
            decayed_means=tuple(means for means in report.decayed_means if self.contains(means.at_ms)),
            snapshots={hour: snapshot for hour, snapshot in report.snapshots.items() if self.contains(hour * HOUR_MS)},
        )


def describe_experiment(
    report: ReportData,
    term: TermLinks,
    *,
    now_ms: int | None = None,
    freshness: Freshness | None = None,
    chart_range: ChartRange | None = None,
    difference: Difference = "relative",
    has_data_problems: bool = False,
) -> dict[str, Any]:
    """Return the values of `experiment_sections.html`.

    `now_ms` adds the age of the newest event. `freshness` is that of the experiment's newest event, None if unknown.
    `has_data_problems` is whether many events of the service do not count.
    """
    summary, settings, texts = report.summary, report.settings, report.settings.texts
    verdicts, history = report.latest_analysis.verdicts, list_verdict_history(summary, report.snapshots)
    charted = report if chart_range is None else chart_range.cut(report)
    min_students = max(report.min_students, 1)
    return {
        "name": settings.name,
        "report": report,
        "settings": settings,
        "term": term,
        "now_ms": now_ms,
        "newest_event_age": None if now_ms is None or report.is_past else format_age(report.as_of_ms, now_ms),
        "staleness": None if report.is_past else _describe_staleness(freshness),
        "first_day": _first_day(report),
        "student_total": sum(report.daily_splits[-1].students.values()) if report.daily_splits else 0,
        "response_total": sum(variant.responses for variant in summary.variants.values()),
        "closing": describe_closing(summary),
        "archiving": describe_archiving(summary),
        "difference": difference,
        "has_data_problems": has_data_problems,
        "chart_range": chart_range,
        "headlines": [
            _headline_context(report, headline, verdicts[headline.treatment], history.get(headline.treatment, ()))
            for headline in describe_headlines(summary, min_students)
        ],
        "treatments": [_treatment_context(charted, report, *treatment) for treatment in verdicts.items()],
        "metric_rows": [row for name, verdict in verdicts.items() for row in metric_rows(report, name, verdict)],
        "primary_label": capitalized_metric_label(settings.primary, texts),
        "labels": {name: texts.variant_label(name) for name in settings.variants},
        "lower_is_better": settings.primary in summary.lower_is_better,
        "axis_unit": " (ms)" if settings.primary == LATENCY_METRIC else "",
        "meets_min_students": partial(_meets_min_students, report),
        "format_amount": partial(format_amount, texts=texts),
        "metric_label": partial(metric_label, texts=texts),
        "days": None if report.day_log is None else build_day_table(report.day_log, summary, min_students),
        "range_means": [] if chart_range is None else list(_range_means(report, chart_range)),
        "student_count_chart": charts.student_count_chart(charted),
        "split": _split_context(report),
        "crossovers": summary.crossovers,
        "responses_without_user": sum(variant.responses_without_user for variant in summary.variants.values()),
        "excluded_students": sum(variant.excluded_students for variant in summary.variants.values()),
        "excluded_responses": sum(variant.excluded_responses for variant in summary.variants.values()),
        "decayed_means": {
            "charts": list(charts.decayed_mean_charts(charted)),
            "from_snapshots": sum(means.from_snapshot for means in charted.decayed_means),
            "recomputed": sum(not means.from_snapshot for means in charted.decayed_means),
        },
        "details": [] if report.is_past else list(_details(report, now_ms or report.as_of_ms)),
        "footnotes": [] if report.is_past else experiment_footnotes(summary, now_ms or report.as_of_ms, min_students),
        "review_entries": None
        if summary.categories_for_review is None or report.is_past
        else summary.categories_for_review[:_MAX_REVIEW_ENTRIES],
        "review_note": REVIEW_NOTE,
        "items_page": None,
        "count_explanation": COUNT_EXPLANATION,
        "state_changes": [
            {
                "label": texts.variant_label(name),
                "rows": rows[-_MAX_STATE_CHANGES:],
                "omitted_count": max(len(rows) - _MAX_STATE_CHANGES, 0),
            }
            for name, periods in history.items()
            if (rows := list(_state_changes(report, name, periods)))
        ],
        "snapshot_charts": list(charts.snapshot_charts(charted)),
        "criteria": next((verdict.evidence.criteria for verdict in verdicts.values()), None),
        "adjustment_days": _adjustment_days(report),
        "state_titles": STATE_TITLES,
        "state_descriptions": STATE_DESCRIPTIONS,
        "guardrail_states": GUARDRAIL_STATES,
    }


def _describe_staleness(freshness: Freshness | None) -> str | None:
    """Return a sentence if the newest event is older than usual; None if not."""
    if freshness is None or not freshness.is_stale:
        return None
    sentence = freshness.describe()
    return f"{sentence[0].upper()}{sentence[1:]}."


def _first_day(report: ReportData) -> str | None:
    """Return the date of the first student; None before that."""
    if not report.daily_splits:
        return None
    calendar = report.settings.calendar
    day = calendar.day_number(report.daily_splits[0].as_of_ms)
    return f"{format_day(day * DAY_MS)}{calendar.zone_note}"


def format_day(day_ms: int) -> str:
    """Return the date of a time in UTC with its weekday.

    >>> format_day(1_795_478_400_000)
    'Tue 24 Nov 2026'
    """
    date = datetime.fromtimestamp(day_ms / 1000, UTC)
    return f"{date:%a} {date.day} {date:%b %Y}"


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
    report: ReportData, headline: Headline, verdict: Verdict, periods: Sequence[StatePeriod]
) -> dict[str, Any]:
    is_displayed = _meets_min_students(report, verdict.primary)
    comparisons = {report.settings.primary: verdict.primary, **dict(verdict.diagnostics)} if is_displayed else {}
    disagreements = describe_disagreements(report.settings, comparisons)
    first_decision = describe_first_decision(periods, verdict)
    return {
        "headline": headline,
        "disagreements": [sentence for sentence, contradictory in disagreements.items() if contradictory],
        "reasons": [reason.text for reason in verdict.reasons if is_displayed or reason.is_about_validity],
        "notes": [
            *(note.text for note in verdict.notes if is_displayed or note.is_about_validity),
            *(sentence for sentence, contradictory in disagreements.items() if not contradictory),
            *([first_decision] if is_displayed and first_decision is not None else []),
        ],
    }


def _meets_min_students(report: ReportData, comparison: VariantComparison) -> bool:
    """Return whether both variants have at least `min_students` students, and any students at all."""
    return meets_min_students(comparison, max(report.min_students, 1))


@dataclass(frozen=True, slots=True)
class MetricRow:
    """A metric of a treatment against the control, as texts."""

    metric: str
    label: str
    treatment: str
    role: Literal["primary", "guardrail", "secondary"]
    control_mean: str
    treatment_mean: str
    relative: str
    """Relative difference; a dash if undefined, or over too few students."""
    relative_interval: str
    """That of the relative difference; of a guardrail the absolute one, which is compared with the margin."""
    absolute: str
    absolute_interval: str
    students: tuple[int, int]
    """Of the control and of the treatment."""
    rule: str
    """The rule that the row satisfies."""
    tone: str
    """CSS class of the rule: good, bad, open, or empty for a metric that only describes."""
    is_uncertain: bool
    """Whether too few students are behind the row for an interval."""


def metric_rows(report: ReportData, treatment: str, verdict: Verdict) -> list[MetricRow]:
    """Return a row per metric: the primary metric, then guardrails, then metrics that only describe."""
    guardrails = {result.guardrail.name: result for result in verdict.guardrails}
    rows = [_primary_row(report, treatment, verdict)]
    rows += [_guardrail_row(report, treatment, result) for result in verdict.guardrails]
    specs = {metric.name: metric for metric in verdict.evidence.diagnostics}
    rows += [
        _secondary_row(report, treatment, specs[name], comparison)
        for name, comparison in verdict.diagnostics
        if name not in guardrails
    ]
    return rows


def _primary_row(report: ReportData, treatment: str, verdict: Verdict) -> MetricRow:
    primary, metric = verdict.primary, verdict.evidence.metric
    direction = -1 if verdict.evidence.lower_is_better else 1
    rule, tone = "decides: may be better or worse", "open"
    if primary.lower is None or primary.upper is None:
        rule = "decides: not known yet"
    elif primary.lower > 0 or primary.upper < 0:
        is_better = direction * primary.lower > 0
        rule, tone = ("decides: better", "good") if is_better else ("decides: worse", "bad")
    return _comparison_row(report, treatment, metric, "primary", primary, verdict.relative_bounds, rule=rule, tone=tone)


def _secondary_row(
    report: ReportData, treatment: str, spec: DiagnosticMetric, comparison: VariantComparison
) -> MetricRow:
    bounds = relative_confidence_sequence(
        spec.arms.control,
        spec.arms.treatment,
        alpha=comparison.alpha,
        mde=spec.mde,
        max_value=spec.max_value,
        min_value=spec.min_value,
    )
    return _comparison_row(
        report, treatment, spec.name, "secondary", comparison, bounds, rule="describes only", tone=""
    )


def _guardrail_row(report: ReportData, treatment: str, result: GuardrailResult) -> MetricRow:
    """Return the row of a guardrail; the interval has the two bounds of its change, which the margin is compared to."""
    least, most = result.least_harm, result.most_harm
    bounds = (least, most) if result.guardrail.harmful_direction == "up" else (_negated(most), _negated(least))
    state, texts = GUARDRAIL_STATES[result.state], report.settings.texts
    noun = "rise" if result.guardrail.harmful_direction == "up" else "fall"
    allowed = (
        ""
        if result.margin is None
        else f" (allowed {noun} {format_amount(result.guardrail.name, result.margin, texts)})"
    )
    row = _comparison_row(
        report,
        treatment,
        result.guardrail.name,
        "guardrail",
        result,
        (None, None),
        rule=f"guardrail: {state}{allowed}",
        tone=_GUARDRAIL_TONES.get(result.state, "open"),
        absolute_bounds=bounds,
    )
    return replace(row, relative_interval=row.absolute_interval)


def _negated(value: float | None) -> float | None:
    return None if value is None else -value


def _comparison_row(
    report: ReportData,
    treatment: str,
    metric: str,
    role: Literal["primary", "guardrail", "secondary"],
    comparison: VariantComparison | GuardrailResult,
    relative_bounds: tuple[float | None, float | None],
    *,
    rule: str,
    tone: str,
    absolute_bounds: tuple[float | None, float | None] | None = None,
) -> MetricRow:
    control, treated, effect = comparison.control, comparison.treatment, comparison.difference.effect
    texts = report.settings.texts
    if isinstance(comparison, VariantComparison):
        absolute_bounds = comparison.lower, comparison.upper
    is_hidden = not meets_min_students(comparison, max(report.min_students, 1))
    is_uncertain = min(control.units, treated.units) < MIN_UNITS_FOR_INTERVAL
    unit = " points" if is_proportion(metric) else metric_unit(metric, texts)
    absolute = absolute_interval = relative = relative_interval = ABSENT_TEXT
    if not is_hidden and not is_uncertain and effect is not None:
        lower, upper = absolute_bounds or (None, None)
        known = [value for value in (effect, lower, upper) if value is not None]
        changes = iter(format_changes(metric, known, sign=True))
        absolute = f"{next(changes)}{unit}"
        if lower is not None and upper is not None:
            absolute_interval = f"{next(changes)} to {next(changes)}{unit}"
        elif upper is not None:
            absolute_interval = f"at most {next(changes)}{unit}"
        relative = _format_change(comparison.difference.relative_effect)
        if None not in relative_bounds:
            relative_interval = " to ".join(map(_format_change, relative_bounds))
    return MetricRow(
        metric=metric,
        label=capitalized_metric_label(metric, texts),
        treatment=texts.variant_label(treatment),
        role=role,
        control_mean=format_optional_mean(metric, None if is_hidden else control.mean, texts),
        treatment_mean=format_optional_mean(metric, None if is_hidden else treated.mean, texts),
        relative=relative,
        relative_interval=relative_interval,
        absolute=absolute,
        absolute_interval=absolute_interval,
        students=(control.units, treated.units),
        rule=f"{rule.partition(':')[0]}: too few students" if is_hidden or is_uncertain else rule,
        tone="open" if (is_hidden or is_uncertain) and role != "secondary" else tone,
        is_uncertain=is_uncertain,
    )


def _format_change(fraction: float | None) -> str:
    if fraction is None:
        return ABSENT_TEXT
    return f"{round(100 * fraction, 1) + 0.0:+.1f} %".replace("-", "\u2212")


def _treatment_context(charted: ReportData, report: ReportData, name: str, verdict: Verdict) -> dict[str, Any]:
    """Return the sections of a treatment; `charted` has the points of the charts, `report` all numbers."""
    criteria = verdict.evidence.criteria
    return {
        "name": name,
        "label": report.settings.texts.variant_label(name),
        "effect_chart": charts.effect_chart(charted, name, verdict),
        "has_live_effect": sum(point.value is not None for point in charts.live_effect_line(charted, name).points) > 1,
        "effect_rows": [_effect_cells(report, analysis, name) for analysis in report.interim_analyses],
        "level": format_level(verdict.primary.alpha),
        "margin": criteria.margin,
        "mde": format_amount(verdict.evidence.metric, criteria.mde, report.settings.texts),
        "guardrails": [
            _guardrail_context(charted, report, name, index, result) for index, result in enumerate(verdict.guardrails)
        ],
        "guardrail_bars": charts.guardrail_bars_chart(report, name, verdict),
        "student_share_chart": charts.student_share_chart(charted, name),
        "segments": _subgroups_context(
            report,
            f"effect of {report.settings.texts.variant_label(name)} by category",
            report.latest_analysis.subgroup_effects[name].segments,
        ),
        "exposure_ages": _subgroups_context(
            report,
            f"effect of {report.settings.texts.variant_label(name)} by days since first exposure",
            report.latest_analysis.subgroup_effects[name].exposure_ages,
        ),
    }


def _effect_cells(report: ReportData, analysis: Analysis, treatment: str) -> list[str]:
    """Return the cells (day, relative effect, interval, control, treatment, students) of a step of the effect."""
    verdict, metric = analysis.verdicts[treatment], report.settings.primary
    primary = verdict.primary
    is_displayed = _meets_min_students(report, primary) and primary.lower is not None
    relative = primary.difference.relative_effect if is_displayed else None
    bounds = verdict.relative_bounds if is_displayed else (None, None)
    return [
        f"{format_day(analysis.as_of_ms)}",
        _format_change(relative),
        ABSENT_TEXT if None in bounds else " to ".join(map(_format_change, bounds)),
        *(
            format_optional_mean(metric, arm.mean if is_displayed else None, report.settings.texts)
            for arm in (primary.control, primary.treatment)
        ),
        f"{format_count(primary.control.units)} + {format_count(primary.treatment.units)}",
    ]


def _guardrail_context(
    charted: ReportData, report: ReportData, name: str, guardrail_index: int, result: GuardrailResult
) -> dict[str, Any]:
    guardrail, is_displayed, texts = result.guardrail, report.is_displayed(result), report.settings.texts
    title = capitalized_metric_label(guardrail.name, texts)
    return {
        "title": title,
        "name": f"{title} must not {'rise' if guardrail.harmful_direction == 'up' else 'fall'}",
        "state": GUARDRAIL_STATES[result.state],
        "tone": _GUARDRAIL_TONES.get(result.state, "open"),
        "sentence": describe_guardrail(result, texts)
        if is_displayed
        else f"The {metric_label(guardrail.name, texts)} is hidden: too few students.",
        "control": format_optional_mean(guardrail.name, result.control.mean if is_displayed else None, texts),
        "treatment": format_optional_mean(guardrail.name, result.treatment.mean if is_displayed else None, texts),
        "margin": format_optional_difference(guardrail.name, result.margin, texts, sign=False),
        "chart": charts.guardrail_chart(charted, name, guardrail_index),
    }


def _subgroups_context(report: ReportData, title: str, segments: Sequence[SegmentComparison]) -> dict[str, Any]:
    subgroups = [
        (segment, segment.comparison if _meets_min_students(report, segment.comparison) else None)
        for segment in segments
    ]
    return {
        "title": title,
        "rows": [_subgroup_row(report, segment) for segment in segments],
        "chart": charts.subgroup_chart(report, title, subgroups),
    }


def _subgroup_row(report: ReportData, segment: SegmentComparison) -> dict[str, Any]:
    """Return a row of a subgroup; an effect without an interval would look certain, so it is left out."""
    comparison, metric, texts = segment.comparison, report.settings.primary, report.settings.texts
    effect, lower, upper = comparison.difference.effect, comparison.lower, comparison.upper
    students = comparison.control.units, comparison.treatment.units
    row = {"name": segment.name, "students": students, "is_shown": segment.discovered, "effect": None, "interval": None}
    if _meets_min_students(report, comparison) and effect is not None and lower is not None and upper is not None:
        unit = " points" if is_proportion(metric) else metric_unit(metric, texts)
        change, low, high = format_changes(metric, [effect, lower, upper], sign=True)
        row |= {"effect": f"{change}{unit}", "interval": f"{low} to {high}{unit}"}
    return row


def _range_means(report: ReportData, chart_range: ChartRange) -> Iterator[tuple[str, str, str]]:
    """Yield (variant, mean, number of responses) of the primary metric over the days in a range.

    Fewer than 100 responses show no mean.
    """
    days = [] if report.day_log is None else [day for day in report.day_log.days if chart_range.contains(day.start_ms)]
    metric, texts = report.settings.primary, report.settings.texts
    for name, _ in report.summary.variants_control_first():
        sums = [(day.variants[name].count, day.variants[name].mean) for day in days if name in day.variants]
        count = sum(responses for responses, mean in sums if mean is not None)
        total = sum(responses * mean for responses, mean in sums if mean is not None)
        mean = total / count if count >= _MIN_RESPONSES_FOR_MEAN else None
        yield texts.variant_label(name), format_optional_mean(metric, mean, texts), format_count(count)


def _split_context(report: ReportData) -> dict[str, Any]:
    """Return the split of the students: a sentence, the phases with their variants, and days that are left out."""
    result, calendar = report.latest_analysis.sample_ratio, report.settings.calendar
    excluded = report.latest_analysis.excluded_sample_ratio
    phases = [
        {
            "students": phase.students,
            "arms": [
                (
                    arm.variant,
                    format_percent(arm.intended),
                    ABSENT_TEXT if arm.observed is None else format_percent(arm.observed),
                )
                for arm in phase.arms
            ],
        }
        for phase in result.phases
    ]
    return {
        "alarm": result.alarm,
        "sentence": "The variants have as many students as intended, apart from chance."
        if not result.alarm
        else "The variants do not have as many students as intended. Do not use the effects: tell an engineer.",
        "since": None if result.mismatch_day is None else format_day(result.mismatch_day * DAY_MS),
        "p": f"{result.p:.2g}",
        "alpha": f"{result.alpha:g}",
        "phases": phases,
        "excluded": None if excluded is None else {"alarm": excluded.alarm, "p": f"{excluded.p:.2g}"},
        "left_out_days": [calendar.date_text(day) for day in report.latest_analysis.excluded_days],
    }


def _details(report: ReportData, now_ms: int) -> Iterator[dict[str, Any]]:
    """Yield the groups of rows about all responses, which decide nothing, each with its heading."""
    rows = experiment_table_rows(report.summary, now_ms, max(report.min_students, 1))
    for group, title in _DETAIL_TITLES.items():
        selected = [row for row in rows if (row.group if row.group in _DETAIL_TITLES else "metrics") == group]
        if selected:
            yield {"id": f"details-{group}", "title": title, "rows": selected}


def _state_changes(report: ReportData, treatment: str, periods: Sequence[StatePeriod]) -> Iterator[list[Any]]:
    """Yield the cells (time, state, effect, lower, upper) of each period of a treatment's state."""
    for period in periods:
        was_displayed = report.was_displayed(treatment, period.since_ms)
        effect_cells = [
            format_optional_difference(report.settings.primary, value if was_displayed else None, report.settings.texts)
            for value in period.effect
        ]
        yield [period.since_ms, STATE_TITLES[period.state], *effect_cells]


def _adjustment_days(report: ReportData) -> str | None:
    """Return the length of the pre-period in days; None if no estimate is adjusted by CUPED."""
    pre_period_ms = report.settings.pre_period_ms
    is_adjusted = any(verdict.unadjusted is not None for verdict in report.latest_analysis.verdicts.values())
    return f"{pre_period_ms / DAY_MS:g}" if pre_period_ms is not None and is_adjusted else None
