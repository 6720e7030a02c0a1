"""The charts of an experiment's report: effects, harm, students and decayed means over time, and subgroups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from monitor.analysis import Analysis, DecayedMeanSnapshot
from monitor.clock import HOUR_MS
from monitor.config import is_proportion
from monitor.export import ReportData, decay_label
from monitor.stats import (
    GuardrailResult,
    SegmentComparison,
    VariantComparison,
    Verdict,
    decay_band_multiplier,
    metric_label,
)
from monitor.web.charts import ForestRow, Line, Point, ReferenceLine, forest_plot_svg, line_chart_svg

_TREATMENT_STYLE_COUNT: Final = 6
_MIN_BAND_RESPONSES: Final = 50
"""Effective responses. Below this, a decayed mean leaves its band far more often than the band's level."""


def legend_entries(report: ReportData) -> list[tuple[str, str]]:
    """Return (variant, CSS class of the line) of all variants, the control first."""
    control = report.settings.control
    treatments = [name for name in report.summary.variants if name != control]
    return [
        (control, "v0"),
        *((name, f"v{1 + index % _TREATMENT_STYLE_COUNT}") for index, name in enumerate(treatments)),
    ]


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
    return Line("all responses", "live", points, band=False)


def effect_chart(report: ReportData, treatment: str, verdict: Verdict) -> str | None:
    """Return the SVG of the effect on the primary metric over time, with bounds; None without any value."""
    criteria, gain_sign = verdict.evidence.criteria, -1 if verdict.evidence.lower_is_better else 1
    reference_lines = [
        ReferenceLine("no difference", 0.0, "zero"),
        ReferenceLine("smallest effect of interest", gain_sign * criteria.mde),
    ]
    if criteria.margin:
        reference_lines.append(ReferenceLine("allowed loss", -gain_sign * criteria.margin))
    points = [_effect_point(report, analysis, treatment) for analysis in report.interim_analyses]
    return line_chart_svg(
        f"effect of {treatment} on {metric_label(report.settings.primary)} over time",
        [Line("effect", "treatment", points), live_effect_line(report, treatment)],
        reference_lines,
        percent=is_proportion(report.settings.primary),
    )


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


def guardrail_chart(report: ReportData, treatment: str, guardrail_index: int) -> str | None:
    """Return the SVG of the harm on a guardrail over time, with bounds and margin; None without any value."""
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
    guardrail, margin = results[-1][1].guardrail, results[-1][1].margin
    reference_lines = [ReferenceLine("no harm", 0.0, "zero")]
    if margin is not None:
        reference_lines.append(ReferenceLine("allowed harm", margin, "limit"))
    title = f"harm of {treatment} on {metric_label(guardrail.name)} over time"
    return line_chart_svg(title, [Line("harm", "harm", points)], reference_lines, percent=is_proportion(guardrail.name))


def subgroup_chart(
    title: str, subgroups: Sequence[tuple[SegmentComparison, VariantComparison | None]], metric: str
) -> str | None:
    """Return the forest plot of the effects within subgroups; a subgroup without a comparison has only a name."""
    rows = []
    for segment, comparison in subgroups:
        # A value without an interval would look certain.
        bounded = comparison if comparison is not None and comparison.lower is not None else None
        effect = None if bounded is None else bounded.difference.effect
        bounds = (None, None) if bounded is None else (bounded.lower, bounded.upper)
        rows.append(ForestRow(segment.name, effect, *bounds, highlighted=segment.discovered))
    return forest_plot_svg(title, rows, percent=is_proportion(metric))


def student_share_chart(report: ReportData, treatment: str) -> str | None:
    """Return the SVG of a variant's observed and intended share of students over time, a line per allocation phase."""
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
    lines = [Line("intended", "intended", intended, band=False), Line("observed", "treatment", observed)]
    return line_chart_svg(f"share of students in {treatment} over time", lines, percent=True)


def student_count_chart(report: ReportData) -> str | None:
    """Return the SVG of the cumulative number of students of each variant; None before the first student."""
    lines = [
        Line(
            name,
            style,
            [Point(split.as_of_ms, float(split.students[name])) for split in report.daily_splits],
            band=False,
        )
        for name, style in legend_entries(report)
    ]
    return line_chart_svg("students over time, by variant", lines, [ReferenceLine("none", 0.0, "zero")])


def snapshot_charts(report: ReportData) -> Iterator[tuple[str, str]]:
    """Yield (title, SVG) of the charts that only snapshots have data for; nothing with fewer than two snapshots."""
    if len(report.snapshots) > 1:
        snapshots = [(hour * HOUR_MS, snapshot) for hour, snapshot in report.snapshots.items()]
        response_lines, rated_lines = [], []
        for name, style in legend_entries(report):
            variants = [(at_ms, snapshot.variants[name]) for at_ms, snapshot in snapshots if name in snapshot.variants]
            response_lines.append(Line(name, style, [Point(at_ms, variant.responses) for at_ms, variant in variants]))
            rated_shares = [
                (at_ms, variant.rated_responses / variant.responses) for at_ms, variant in variants if variant.responses
            ]
            rated_lines.append(Line(name, style, [Point(at_ms, share) for at_ms, share in rated_shares]))
        crossovers = [Point(at_ms, snapshot.crossovers or None) for at_ms, snapshot in snapshots]
        zero = ReferenceLine("none", 0.0, "zero")
        for title, lines, reference_lines, percent in (
            ("number of responses, by variant", response_lines, [zero], False),
            ("share of rated responses, by variant", rated_lines, [], True),
            ("students with more than one variant", [Line("crossovers", "harm", crossovers)], [zero], False),
        ):
            svg = line_chart_svg(title, lines, reference_lines, percent=percent)
            if svg is not None and (lines is not rated_lines or report.summary.depends_on_feedback):
                yield title, svg


def decayed_mean_charts(report: ReportData) -> Iterator[dict[str, Any]]:
    """Yield a chart for each decay, with bands that are valid simultaneously over the plotted time.

    See `decay_band_multiplier` for the width of the bands.
    """
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
            Line(
                name, style, [decayed_mean_point(at_ms, means.get(name), multiplier) for at_ms, means in means_by_time]
            )
            for name, style in legend_entries(report)
        ]
        yield {
            "label": decay_label(decay.name),
            "band_multiplier": None if multiplier is None else f"{multiplier:.2f}",
            "chart": line_chart_svg(
                f"mean {report.settings.primary}, {decay_label(decay.name).lower()}, by variant",
                lines,
                percent=is_proportion(report.settings.primary),
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
