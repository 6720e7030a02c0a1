"""The texts of terminal and web page: tables of experiments, footnotes, verdicts, and formatted numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from monitor.analysis import DayDrift, DriftDistance, ExperimentSummary, ItemCoverage, StoreSummary, VariantSummary
from monitor.metrics import LATENCY_BOUNDS_MS
from monitor.stats import GuardrailResult, VariantComparison, Verdict, VerdictState

ABSENT_TEXT: Final = "–"
STATE_DESCRIPTIONS: Final[Mapping[VerdictState, str]] = {
    "insufficient_data": "there is too little data to say anything",
    "invalid": "the data is no fair comparison, whatever it shows",
    "stop_harm": "it does more harm than is tolerable: stop it",
    "ship": "it is better, and nothing speaks against it: ship it",
    "non_inferior": "it is not worse than is tolerable",
    "futile": "an effect that matters can be ruled out",
    "continue": "nothing is decided yet: go on",
}
_TONES: Final[Mapping[VerdictState, Literal["good", "bad"]]] = {
    "ship": "good",
    "non_inferior": "good",
    "stop_harm": "bad",
    "invalid": "bad",
}
_MAX_LABEL_CHARACTERS: Final = 20
_SMALLEST_DISPLAYED_MEAN: Final = 5e-5
"""A smaller mean is displayed as 0, so a relative difference from it would be misleading."""
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of an experiment's table: a value of a quantity and a detail per variant, the control first."""

    label: str
    values: tuple[str, ...]
    details: tuple[str, ...]
    group: str
    primary: bool = False


def format_count(value: float) -> str:
    r"""Return a count with narrow spaces between groups of three digits.

    >>> format_count(1_234_567.0)
    '1\u202f234\u202f567'
    """
    return f"{value:,.0f}".replace(",", "\u202f")


def describe_unmatched_feedback(summary: StoreSummary) -> str | None:
    """Return a sentence with the number of unmatched feedback events by kind, largest first; None without any."""
    counts = sorted(summary.unmatched_feedback.items(), key=lambda kind: -kind[1])
    kinds = ", ".join(f"{kind} {format_count(number)}" for kind, number in counts if number)
    return f"Unmatched feedback: {kinds} (no response was stored when they expired)" if kinds else None


def format_percent(fraction: float | None) -> str:
    """Return a fraction as a percentage with a decimal; None gives a dash."""
    return ABSENT_TEXT if fraction is None else f"{fraction:.1%}".replace("%", "\u202f%")


def format_age(at_ms: int | None, now_ms: int) -> str:
    """Return the time since `at_ms` in the largest unit of which at least two have passed; None gives "never"."""
    if at_ms is None:
        return "never"
    seconds = max(now_ms - at_ms, 0) // 1000
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds // length}\u202f{unit} ago"
    return f"{seconds}\u202fs ago"


def format_significant(value: float | None) -> str:
    """Return a number with four significant digits; None gives a dash."""
    return ABSENT_TEXT if value is None else f"{value:.4g}"


def _format_mean(value: float | None) -> str:
    return ABSENT_TEXT if value is None else f"{value:.4f}"


def _format_relative_difference(value: float | None, control: float | None) -> str:
    """Return the difference from the control as a percentage of the control; empty if the control displays as 0."""
    if value is None or control is None or abs(control) < _SMALLEST_DISPLAYED_MEAN:
        return ""
    return f"{(value - control) / control:+.1%}".replace("%", "\u202f%")


def experiment_table_rows(experiment: ExperimentSummary, now_ms: int, min_students: int = 1) -> list[TableRow]:
    """Return the rows of an experiment's table; a mean over fewer than `min_students` students is a dash."""
    variants = [variant for _, variant in experiment.variants_control_first()]

    def row(
        label: str,
        group: str,
        value: Callable[[VariantSummary], str],
        detail: Callable[[VariantSummary], str] | None = None,
    ) -> TableRow:
        details = tuple(detail(variant) if detail else "" for variant in variants)
        return TableRow(label, tuple(value(variant) for variant in variants), details, group)

    table = [
        row("responses", "traffic", lambda variant: format_count(variant.responses)),
        row("students", "traffic", lambda variant: format_count(variant.students)),
        row(
            "rated share",
            "traffic",
            lambda variant: format_percent(variant.rated_share),
            lambda variant: f"n {format_count(variant.rated_responses)}",
        ),
        row("last event", "traffic", lambda variant: format_age(variant.last_event_at_ms, now_ms)),
        row("last response", "traffic", lambda variant: format_age(variant.last_response_at_ms, now_ms)),
        *_traffic_rows(variants),
        *_coverage_row([variant.coverage for variant in variants]),
        *_drift_row("category drift", [variant.category_drift for variant in variants]),
        *_drift_row("item drift", [variant.item_drift for variant in variants]),
    ]
    for kind in sorted({kind for variant in variants for kind in variant.responses_with_feedback}):
        counts = [variant.responses_with_feedback.get(kind, 0) for variant in variants]
        shares = [
            format_percent(n / variant.responses if variant.responses else None)
            for n, variant in zip(counts, variants, strict=True)
        ]
        label = kind if len(kind) <= _MAX_LABEL_CHARACTERS else kind[: _MAX_LABEL_CHARACTERS - 1] + "…"
        table.append(
            TableRow(f"with {label}", tuple(shares), tuple(f"n {format_count(n)}" for n in counts), "feedback")
        )
    for name in variants[0].metrics:
        table += _metric_rows(experiment, name, variants, min_students)
    return table


def _traffic_rows(variants: list[VariantSummary]) -> list[TableRow]:
    """Return rows on the traffic of the last hour or two; no rows if a variant has no traffic counts."""
    traffics = [variant.traffic for variant in variants if variant.traffic is not None]
    if len(traffics) < len(variants):
        return []
    latency_counts = tuple(f"n {format_count(sum(traffic.recent.latency_buckets))}" for traffic in traffics)
    response_counts = tuple(f"n {format_count(traffic.recent.responses)}" for traffic in traffics)
    rates = tuple(f"{traffic.responses_per_second:.3g}" for traffic in traffics)
    empty_shares = tuple(format_percent(traffic.recent.empty_share) for traffic in traffics)
    table = [
        TableRow("responses/s", rates, response_counts, "traffic"),
        TableRow("empty answers", empty_shares, response_counts, "traffic"),
    ]
    if any(sum(traffic.all_time.latency_buckets) for traffic in traffics):
        for level in (0.5, 0.95, 0.99):
            quantiles = tuple(_format_seconds(traffic.recent.latency_quantile_s(level)) for traffic in traffics)
            table.append(TableRow(f"latency p{level * 100:.0f}", quantiles, latency_counts, "traffic"))
    return table


def _coverage_row(coverages: list[ItemCoverage | None]) -> list[TableRow]:
    """Return a row with the number of distinct items shown; no row if `items` is not configured."""
    if not any(coverages):
        return []
    values = tuple(ABSENT_TEXT if coverage is None else format_count(coverage.items) for coverage in coverages)
    details = tuple(
        "" if coverage is None or coverage.share is None else f"{format_percent(coverage.share)} of all"
        for coverage in coverages
    )
    return [TableRow("different items", values, details, "traffic")]


def _drift_row(label: str, drifts: list[DayDrift | None]) -> list[TableRow]:
    """Return a row with the distance of the last whole day from the reference; no row if no distance is defined."""
    distances = [(day.drift.js, day.drift.psi) if day is not None else (None, None) for day in drifts]
    if not any(js for js, _ in distances):
        return []
    values = tuple(ABSENT_TEXT if js is None else f"{js.value:.3f}" for js, _ in distances)
    return [TableRow(label, values, tuple(_describe_drift(js, psi) for js, psi in distances), "traffic")]


def _describe_drift(js: DriftDistance | None, psi: DriftDistance | None) -> str:
    """Return "changed" if both distances exceed their thresholds, as in the alert; otherwise the threshold of JS."""
    if js is None or psi is None:
        return ""
    return "changed" if js.exceeded and psi.exceeded else f"chance < {js.threshold:.3f}"


def _format_seconds(value: float | None) -> str:
    if value is None:
        return ABSENT_TEXT
    # A quantile above the last bound of the histogram has the value of that bound.
    return f"{'> ' if value * 1000 >= LATENCY_BOUNDS_MS[-1] else ''}{value:.3g}\u202fs"


def _metric_rows(
    experiment: ExperimentSummary, name: str, variants: list[VariantSummary], min_students: int
) -> list[TableRow]:
    is_primary = name == experiment.primary
    metrics = [variant.metrics[name] for variant in variants]
    displayed = [variant.students >= min_students for variant in variants]
    decays = list(metrics[0].decayed)
    table = []
    for label, means, sizes in [
        ("all time", [metric.mean for metric in metrics], [float(metric.count) for metric in metrics]),
        *(
            (
                f"decay {decay}",
                [metric.decayed[decay].mean for metric in metrics],
                [metric.decayed[decay].effective_count or 0.0 for metric in metrics],
            )
            for decay in decays
        ),
    ]:
        displayed_means = [mean if is_displayed else None for mean, is_displayed in zip(means, displayed, strict=True)]
        details = [
            "" if mean is None else _mean_details(mean, displayed_means[0] if index else None, size)
            for index, (mean, size) in enumerate(zip(displayed_means, sizes, strict=True))
        ]
        table.append(TableRow(label, tuple(map(_format_mean, displayed_means)), tuple(details), name, is_primary))
    return table


def _mean_details(mean: float, control_mean: float | None, size: float) -> str:
    """Return the relative difference from the control, if defined, and the (effective) number of responses."""
    difference = _format_relative_difference(mean, control_mean)
    return f"{difference}  n {format_count(size)}" if difference else f"n {format_count(size)}"


def describe_verdict(treatment: str, verdict: Verdict) -> str:
    """Return a sentence with the state of a treatment's verdict and the meaning of the state."""
    return f"{treatment}: {verdict.state} – {STATE_DESCRIPTIONS[verdict.state]}."


class TreatmentDecision(NamedTuple):
    """The verdict on a treatment as text."""

    tone: Literal["good", "bad", "open"]
    sentence: str
    reasons: tuple[str, ...]


def describe_decisions(experiment: ExperimentSummary, min_students: int = 1) -> list[TreatmentDecision]:
    """Return the verdict on each treatment, without reasons if a variant has fewer than `min_students` students."""
    verdicts = {} if experiment.analysis is None else experiment.analysis.verdicts
    return [
        TreatmentDecision(
            _TONES.get(verdict.state, "open"),
            describe_verdict(name, verdict),
            tuple(reason.text for reason in verdict.reasons if meets_min_students(verdict.primary, min_students)),
        )
        for name, verdict in verdicts.items()
    ]


def meets_min_students(comparison: VariantComparison | GuardrailResult, min_students: int) -> bool:
    """Return whether both variants of a comparison have at least `min_students` students."""
    return min(comparison.control.units, comparison.treatment.units) >= min_students


def experiment_footnotes(experiment: ExperimentSummary, min_students: int = 1) -> list[str]:
    """Return the footnotes of an experiment's table; effects on fewer than `min_students` students are left out."""
    footnotes: list[str] = []
    anonymous_count = sum(variant.responses_without_user for variant in experiment.variants.values())
    if anonymous_count:
        footnotes.append(
            f"{format_count(anonymous_count)} responses name no student: each counts as a student of its own."
        )
    if experiment.crossovers:
        footnotes.append(f"{format_count(experiment.crossovers)} students saw more than one variant.")
    undefined = sum(metric.undefined for variant in experiment.variants.values() for metric in variant.metrics.values())
    if undefined:
        footnotes.append(
            f"{format_count(undefined)} rated responses have an undefined nDCG "
            "(no gain to be had): left out of its mean."
        )
    footnotes += _skipped_event_footnotes(experiment)
    footnotes += _subgroup_footnotes(experiment, min_students)
    if any(variant.traffic is not None for variant in experiment.variants.values()):
        footnotes.append("Responses per second, empty answers and latencies are those of the last one to two hours.")
    if any((variant.category_drift or variant.item_drift) is not None for variant in experiment.variants.values()):
        footnotes.append("Drift: Jensen-Shannon distance of the last whole UTC day from the reference.")
    footnotes.append(
        "Means over rated responses; n is the (effective) number of them. Differences describe, verdicts decide."
    )
    return footnotes


def _skipped_event_footnotes(experiment: ExperimentSummary) -> list[str]:
    """Return a sentence if events of the experiment were skipped. All verdicts contain the same number."""
    verdicts = {} if experiment.analysis is None else experiment.analysis.verdicts
    sentences = [
        f"{verdict.evidence.skipped_events}."
        for verdict in verdicts.values()
        if verdict.evidence.skipped_events is not None
    ]
    return sentences[:1]


def _subgroup_footnotes(experiment: ExperimentSummary, min_students: int) -> Iterator[str]:
    """Yield a sentence for each subgroup with a significant effect, corrected for the number of subgroups."""
    if experiment.analysis is None:
        return
    for treatment, effects in experiment.analysis.subgroup_effects.items():
        for title, segments in (
            ("first question in", effects.segments),
            ("days since the first answer:", effects.exposure_ages),
        ):
            for segment in segments:
                lower, upper = segment.comparison.lower, segment.comparison.upper
                is_displayed = meets_min_students(segment.comparison, min_students)
                if segment.discovered and is_displayed and lower is not None and upper is not None:
                    yield f"{treatment}, {title} {segment.name}: {experiment.primary} {lower:+.4g} to {upper:+.4g}."
