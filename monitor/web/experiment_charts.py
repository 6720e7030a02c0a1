"""The charts of an experiment's report: effects, harm, students and decayed means over time, and subgroups."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from monitor.analysis import Analysis, DecayedMeanSnapshot
from monitor.clock import HOUR_MS
from monitor.config import is_proportion
from monitor.export import GUARDRAIL_STATES, ReportData, decay_label, format_optional_difference, list_day_marks
from monitor.stats import (
    GuardrailResult,
    GuardrailState,
    SegmentComparison,
    VariantComparison,
    Verdict,
    capitalized_metric_label,
    decay_band_multiplier,
    metric_label,
    metric_unit,
)
from monitor.web.chart_specs import (
    PER_CENT,
    ChartSpec,
    EventMark,
    ForestRow,
    GuardrailBar,
    GuardrailTone,
    Line,
    Point,
    ReferenceLine,
    Unit,
    forest_plot_spec,
    guardrail_bars_spec,
    time_chart_spec,
)

_MIN_BAND_RESPONSES: Final = 50
"""Effective responses. Below this, a decayed mean leaves its band far more often than the band's level."""
_HARM_COLOR: Final = 2
_GUARDRAIL_TONES: Final[Mapping[GuardrailState, GuardrailTone]] = {
    "held": "good",
    "tolerable": "tolerable",
    "crossed": "bad",
}
"""State of a guardrail → colour of its bar; "open" for all other states."""
_IMPORTANT_KINDS: Final = frozenset({"left_band", "verdict_change"})
"""Remarks of a day whose labels have priority in charts."""


def _value_unit(report: ReportData, metric: str) -> Unit:
    """Return the unit of a metric's values."""
    return "%" if is_proportion(metric) else _difference_unit(report, metric)


def _difference_unit(report: ReportData, metric: str) -> Unit:
    """Return the unit of differences of a metric's values."""
    return metric_unit(metric, report.settings.texts).strip()


def _scale(metric: str) -> float:
    """Return the factor from a metric's values to those in its unit; a configured unit changes no number."""
    return PER_CENT if is_proportion(metric) else 1.0


def _unit_noun(report: ReportData) -> str:
    """Return the noun for a unit of the experiment: student or group."""
    return next((verdict.evidence.unit_noun for verdict in report.latest_analysis.verdicts.values()), "student")


def _variant_labels(report: ReportData) -> dict[str, str]:
    """Return variant → label of its lines, the control first; labels that several variants have are not used."""
    names = [name for name, _ in report.summary.variants_control_first()]
    labels = [report.settings.texts.variant_label(name) for name in names]
    return {name: label if labels.count(label) == 1 else name for name, label in zip(names, labels, strict=True)}


def live_effect_line(report: ReportData, treatment: str) -> Line:
    """Return the line of the live effect (over all responses so far), read from the snapshots."""
    treatment_snapshots = [
        (hour * HOUR_MS, snapshot.treatments[treatment])
        for hour, snapshot in report.snapshots.items()
        if treatment in snapshot.treatments
    ]
    points = [
        Point(at_ms, snapshot.live[0] if report.was_displayed(treatment, at_ms) else None)
        for at_ms, snapshot in treatment_snapshots
    ]
    return Line("all responses so far, approximate", points, 0, "dotted", band=False)


def effect_chart(report: ReportData, treatment: str, verdict: Verdict) -> ChartSpec | None:
    """Return the chart of the effect on the primary metric over time, with bounds; None without any value."""
    criteria, gain_sign = verdict.evidence.criteria, -1 if verdict.evidence.lower_is_better else 1
    texts = report.settings.texts
    reference_lines = [
        ReferenceLine(0.0),
        ReferenceLine(gain_sign * criteria.mde, "smallest effect of interest"),
    ]
    if criteria.margin:
        reference_lines.append(ReferenceLine(-gain_sign * criteria.margin, "allowed loss", is_limit=True))
    points = [_effect_point(report, analysis, treatment) for analysis in report.interim_analyses]
    return time_chart_spec(
        f"effect of {texts.variant_label(treatment)} on {metric_label(report.settings.primary, texts)} over time",
        [Line(f"effect per {_unit_noun(report)}", points), live_effect_line(report, treatment)],
        reference_lines=reference_lines,
        events=_event_marks(report, treatment),
        unit=_difference_unit(report, report.settings.primary),
        scale=_scale(report.settings.primary),
        signed=True,
        value_title="effect",
        zone=report.settings.day_zone,
    )


def _event_marks(report: ReportData, treatment: str | None = None) -> list[EventMark]:
    """Return the changes and unusual days; without a log of the days, the changes of the intended shares.

    With a treatment, those of other treatments are left out.
    """
    if report.day_log is not None:
        variants = None if treatment is None else {report.settings.control, treatment}
        marks = list_day_marks(report.day_log, report.summary, report.min_students, variants)
        return [EventMark(mark.time_ms, mark.label, mark.kind in _IMPORTANT_KINDS) for mark in marks]
    return _share_changes(report)


def _share_changes(report: ReportData) -> list[EventMark]:
    """Return the changes of the intended shares after the first day, until the newest event."""
    first_ms = report.daily_splits[0].as_of_ms if report.daily_splits else report.as_of_ms
    times = [allocation.from_ms for allocation in report.settings.decision.allocations]
    return [EventMark(at_ms, "share change") for at_ms in times if first_ms <= at_ms <= report.as_of_ms]


def _effect_point(report: ReportData, analysis: Analysis, treatment: str) -> Point:
    """Return the effect at an interim analysis with bounds, or a gap if the bounds are undefined or hidden."""
    primary = analysis.verdicts[treatment].primary
    if primary.lower is None or not report.is_displayed(primary):
        # A value without a band would look certain.
        return Point(analysis.as_of_ms, None)
    return Point(analysis.as_of_ms, primary.difference.effect, primary.lower, primary.upper)


def observed_harm(result: GuardrailResult) -> float | None:
    """Return the observed difference from the control, positive in the guardrail's harmful direction."""
    difference = result.difference.effect
    return None if difference is None else difference if result.guardrail.harmful_direction == "up" else -difference


def guardrail_bars_chart(report: ReportData, treatment: str, verdict: Verdict) -> ChartSpec | None:
    """Return the harm on all guardrails against their margins; None without a guardrail with bounds and a margin."""
    texts = report.settings.texts
    bars = [
        GuardrailBar(
            label=capitalized_metric_label(result.guardrail.name, texts),
            lower=result.least_harm,
            upper=result.most_harm,
            observed=observed_harm(result),
            margin=result.margin,
            tone=_GUARDRAIL_TONES.get(result.state, "open"),
            state=GUARDRAIL_STATES[result.state],
            interval=_describe_harm(report, result, result.least_harm, result.most_harm),
        )
        for result in verdict.guardrails
        if result.margin and result.least_harm is not None and result.most_harm is not None
        if report.is_displayed(result)
    ]
    title = f"harm of {texts.variant_label(treatment)} on guardrails, compared with the allowed harm"
    return guardrail_bars_spec(title, bars)


def _describe_harm(report: ReportData, result: GuardrailResult, least: float, most: float) -> str:
    name, texts = result.guardrail.name, report.settings.texts
    bounds = " to ".join(format_optional_difference(name, bound, texts) for bound in (least, most))
    return f"{bounds}, allowed {format_optional_difference(name, result.margin, texts, sign=False)}"


def guardrail_chart(report: ReportData, treatment: str, guardrail_index: int) -> ChartSpec | None:
    """Return the chart of the harm on a guardrail over time, with bounds and margin; None without any value."""
    results = [
        (analysis.as_of_ms, analysis.verdicts[treatment].guardrails[guardrail_index])
        for analysis in report.interim_analyses
    ]
    points = [
        Point(at_ms, observed_harm(result), result.least_harm, result.most_harm)
        if result.least_harm is not None and report.is_displayed(result)
        else Point(at_ms, None)
        for at_ms, result in results
    ]
    guardrail, margin, texts = results[-1][1].guardrail, results[-1][1].margin, report.settings.texts
    reference_lines = [ReferenceLine(0.0)]
    if margin is not None:
        reference_lines.append(ReferenceLine(margin, "allowed harm", is_limit=True))
    return time_chart_spec(
        f"harm of {texts.variant_label(treatment)} on {metric_label(guardrail.name, texts)} over time",
        [Line("harm", points, _HARM_COLOR)],
        reference_lines=reference_lines,
        events=_event_marks(report, treatment),
        unit=_difference_unit(report, guardrail.name),
        scale=_scale(guardrail.name),
        signed=True,
        value_title="harm",
        zone=report.settings.day_zone,
    )


def subgroup_chart(
    report: ReportData, title: str, subgroups: Sequence[tuple[SegmentComparison, VariantComparison | None]]
) -> ChartSpec | None:
    """Return the forest plot of the effects within subgroups; a subgroup without a comparison has only a name."""
    rows = []
    for segment, comparison in subgroups:
        # A value without an interval would look certain.
        bounded = comparison if comparison is not None and comparison.lower is not None else None
        effect = None if bounded is None else bounded.difference.effect
        bounds = (None, None) if bounded is None else (bounded.lower, bounded.upper)
        rows.append(ForestRow(segment.name, effect, *bounds, highlighted=segment.discovered))
    unit = _difference_unit(report, report.settings.primary)
    return forest_plot_spec(
        title,
        rows,
        unit=unit,
        scale=_scale(report.settings.primary),
        row_title="subgroup",
        missing_text=f"too few {_unit_noun(report)}s",
    )


def student_share_chart(report: ReportData, treatment: str) -> ChartSpec | None:
    """Return the chart of a variant's observed and intended share of students, a line per allocation phase."""
    observed: list[Point] = []
    intended: list[Point] = []
    phase_count = 1
    for split in report.daily_splits:
        if len(split.sample_ratio.phases) > phase_count:
            # A gap separates the lines of two phases.
            phase_count = len(split.sample_ratio.phases)
            observed.append(Point(split.as_of_ms, None))
            intended.append(Point(split.as_of_ms, None))
        arm = next((arm for arm in split.sample_ratio.phases[-1].arms if arm.variant == treatment), None)
        if arm is not None and arm.observed is not None:
            observed.append(Point(split.as_of_ms, arm.observed, *arm.bounds()))
            intended.append(Point(split.as_of_ms, arm.intended))
    lines = [Line("observed", observed), Line("intended", intended, 0, "dashed", band=False)]
    return time_chart_spec(
        f"share of {_unit_noun(report)}s in {report.settings.texts.variant_label(treatment)} over time",
        lines,
        events=_event_marks(report),
        unit="%",
        scale=PER_CENT,
        value_title="share",
        zone=report.settings.day_zone,
    )


def student_count_chart(report: ReportData) -> ChartSpec | None:
    """Return the chart of the cumulative number of students of each variant; None before the first student."""
    lines = [
        _variant_line(label, color, [Point(split.as_of_ms, split.students[name]) for split in report.daily_splits])
        for color, (name, label) in enumerate(_variant_labels(report).items())
    ]
    return time_chart_spec(
        f"{_unit_noun(report)}s over time, by variant",
        lines,
        reference_lines=[ReferenceLine(0.0)],
        value_title=f"{_unit_noun(report)}s",
        zone=report.settings.day_zone,
    )


def _variant_line(label: str, color: int, points: Sequence[Point], *, band: bool = False) -> Line:
    return Line(label, points, color, "solid" if color else "dashed", band=band)


def snapshot_charts(report: ReportData) -> Iterator[tuple[str, ChartSpec]]:
    """Yield (title, chart) of the charts that only snapshots have data for; nothing with fewer than two snapshots."""
    if len(report.snapshots) > 1:
        snapshots = [(hour * HOUR_MS, snapshot) for hour, snapshot in report.snapshots.items()]
        response_lines, rated_lines = [], []
        for color, (name, label) in enumerate(_variant_labels(report).items()):
            variants = [(at_ms, snapshot.variants[name]) for at_ms, snapshot in snapshots if name in snapshot.variants]
            response_points = [Point(at_ms, variant.responses) for at_ms, variant in variants]
            response_lines.append(_variant_line(label, color, response_points))
            rated_shares = [
                (at_ms, variant.rated_responses / variant.responses) for at_ms, variant in variants if variant.responses
            ]
            rated_lines.append(_variant_line(label, color, [Point(at_ms, share) for at_ms, share in rated_shares]))
        crossovers = [Point(at_ms, snapshot.crossovers or None) for at_ms, snapshot in snapshots]
        zero = [ReferenceLine(0.0)]
        charts: tuple[tuple[str, Sequence[Line], Sequence[ReferenceLine], Unit, str], ...] = (
            ("number of responses, by variant", response_lines, zero, "", "responses"),
            ("share of rated responses, by variant", rated_lines, [], "%", "share"),
            (
                f"{_unit_noun(report)}s with more than one variant",
                [Line("crossovers", crossovers, _HARM_COLOR)],
                zero,
                "",
                f"{_unit_noun(report)}s",
            ),
        )
        for title, lines, reference_lines, unit, value_title in charts:
            spec = time_chart_spec(
                title,
                lines,
                reference_lines=reference_lines,
                unit=unit,
                scale=PER_CENT if unit else 1.0,
                value_title=value_title,
                zone=report.settings.day_zone,
            )
            if spec is not None and (lines is not rated_lines or report.summary.depends_on_feedback):
                yield title, spec


def decayed_mean_charts(report: ReportData) -> Iterator[dict[str, Any]]:
    """Yield a chart for each decay, with bands that are valid simultaneously over the plotted time.

    See `decay_band_multiplier` for the width of the bands.
    """
    metric_title = report.settings.texts.metric_title(report.settings.primary)
    for decay in report.settings.decay:
        means_by_time = [
            (decayed.at_ms, decayed.means[decay.name])
            for decayed in report.decayed_means
            if decay.name in decayed.means
        ]
        multiplier = None
        if decay.half_life_ms is not None and len(means_by_time) > 1:
            multiplier = decay_band_multiplier((means_by_time[-1][0] - means_by_time[0][0]) / decay.half_life_ms)
        lines = [
            _variant_line(
                label,
                color,
                [decayed_mean_point(at_ms, means.get(name), multiplier) for at_ms, means in means_by_time],
                band=True,
            )
            for color, (name, label) in enumerate(_variant_labels(report).items())
        ]
        yield {
            "label": decay_label(decay.name),
            "band_multiplier": None if multiplier is None else f"{multiplier:.2f}",
            "chart": time_chart_spec(
                f"mean {metric_title}, {decay_label(decay.name).lower()}, by variant",
                lines,
                unit=_value_unit(report, report.settings.primary),
                scale=_scale(report.settings.primary),
                value_title="mean",
                zone=report.settings.day_zone,
            ),
        }


def decayed_mean_point(at_ms: int, decayed: DecayedMeanSnapshot | None, band_multiplier: float | None) -> Point:
    """Return a decayed mean with a band of `band_multiplier` standard errors.

    The band is None if the standard error is undefined or the mean has fewer than 50 effective responses.
    """
    if decayed is None or decayed.mean is None:
        return Point(at_ms, None)
    enough = decayed.effective_count is not None and decayed.effective_count >= _MIN_BAND_RESPONSES
    if band_multiplier is None or decayed.standard_error is None or not enough:
        return Point(at_ms, decayed.mean)
    half_width = band_multiplier * decayed.standard_error
    return Point(at_ms, decayed.mean, decayed.mean - half_width, decayed.mean + half_width)
