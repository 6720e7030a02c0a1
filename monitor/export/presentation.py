"""The texts of terminal and web page: tables of experiments, footnotes, verdicts, and formatted numbers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal

from monitor.analysis import (
    DayDrift,
    DriftDistance,
    ExperimentSummary,
    ItemCoverage,
    StatePeriod,
    StoreSummary,
    UndeclaredExperiment,
    VariantSummary,
)
from monitor.config import NO_TEXTS, DisplayTexts, MetricSpec, is_proportion
from monitor.errors import count_noun, escape_controls
from monitor.metrics import LATENCY_BOUNDS_MS
from monitor.stats import (
    GuardrailResult,
    GuardrailState,
    VariantComparison,
    Verdict,
    VerdictState,
    capitalized_metric_label,
    format_amount,
    format_changes,
    format_difference,
    format_mean,
    metric_label,
    metric_unit,
)

ABSENT_TEXT: Final = "–"
STATE_TITLES: Final[Mapping[VerdictState, str]] = {
    "insufficient_data": "Too early to decide",
    "invalid": "Invalid",
    "stop_harm": "Stop",
    "ship": "Ship",
    "non_inferior": "Acceptable",
    "futile": "No relevant gain",
    "continue": "Keep running",
}
STATE_DESCRIPTIONS: Final[Mapping[VerdictState, str]] = {
    "insufficient_data": "the experiment is too short or has too few students for a decision",
    "invalid": "the variants cannot be compared; repair the cause before you use the effect",
    "stop_harm": "the treatment does more harm than is allowed",
    "ship": "the primary metric improved and no guardrail failed",
    "non_inferior": "the primary metric is not worse than is allowed and no guardrail failed",
    "futile": "an effect as large as the smallest effect of interest is ruled out",
    "continue": "the evidence does not suffice for another state yet",
}
GUARDRAIL_STATES: Final[Mapping[GuardrailState, str]] = {
    "held": "holds",
    "tolerable": "worse, within the margin",
    "crossed": "failed",
    "open": "still open",
    "unknown": "no data yet",
}
"""State of a guardrail → word for readers."""
FEEDBACK_HEADING: Final = "Share of responses with feedback"
QUALITY_HEADING: Final = "Data quality: events that do not count, or only in part"
_UNCOUNTED_LABELS: Final = {
    "before_response": "Reactions before the response",
    "outside_window": "Reactions after the feedback window",
    "item_not_shown": "Reactions to items not shown",
    "nothing_to_withdraw": "Withdrawals without a reaction",
    "off_scale": "Reactions off the scale",
}
UNDECLARED_COLUMNS: Final = ("Experiment", "Responses", "Variants seen", "First and last response")
_MAX_UNDECLARED_ROWS: Final = 20
_MAX_UNDECLARED_VARIANTS: Final = 6
COUNT_EXPLANATION: Final = "n: number of responses behind the value"
TONES: Final[Mapping[VerdictState, Literal["good", "bad"]]] = {
    "ship": "good",
    "non_inferior": "good",
    "stop_harm": "bad",
    "invalid": "bad",
}
_MAX_LABEL_CHARACTERS: Final = 40
_SMALLEST_DISPLAYED_MEAN: Final = 5e-5
"""A smaller mean is displayed as 0, so a relative difference from it would be misleading."""
_MIN_RESPONSES_FOR_DIFFERENCE: Final = 100
"""(Effective) responses in both variants from which on a relative difference of means is displayed."""
_MAX_PERCENT_DECIMALS: Final = 4
_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_DECAY_UNITS: Final[Mapping[str, tuple[str, float]]] = {
    "s": ("s", 1 / 3600),
    "m": ("min", 1 / 60),
    "h": ("h", 1),
    "d": ("d", 24),
}
"""Unit in the name of a decay → (unit for readers, hours)."""
_DECAY_PERIODS: Final = ((0.25, "Last minutes"), (6.0, "Last hours"), (72.0, "Last days"), (720.0, "Last weeks"))
"""(Half-life in hours below which the period is used, period)."""
_OF_CLOCK: Final = " of this computer's clock"
_MAX_AHEAD_S: Final = 5
"""A time that is so little ahead of the clock counts as now: clocks of two computers differ."""


@dataclass(frozen=True, slots=True)
class TableRow:
    """A row of an experiment's table: a value of a quantity and a detail per variant, the control first.

    `heading` is printed above the first row of a group; empty for groups without one. A label that begins with the
    heading may be printed without it.
    """

    label: str
    values: tuple[str, ...]
    details: tuple[str, ...]
    group: str
    heading: str = ""
    primary: bool = False
    description: str = ""
    """Explains the heading, if that is the name of a metric."""


def format_count(value: float) -> str:
    r"""Return a count with narrow spaces between groups of three digits.

    >>> format_count(1_234_567.0)
    '1\u202f234\u202f567'
    """
    return f"{value:,.0f}".replace(",", "\u202f")


def format_counted(number: int, singular: str, plural: str | None = None) -> str:
    """Return a number with its noun as `count_noun` does, with narrow spaces between groups of three digits."""
    return count_noun(number, singular, plural, "\u202f")


def describe_unmatched_feedback(summary: StoreSummary) -> str | None:
    """Return a sentence with the number of unmatched feedback events by kind, largest first; None without any."""
    counts = sorted(summary.unmatched_feedback.items(), key=lambda kind: -kind[1])
    kinds = ", ".join(f"{kind} {format_count(number)}" for kind, number in counts if number)
    return f"Feedback without a response: {kinds}. Its responses had not arrived when it expired." if kinds else None


def undeclared_rows(summary: StoreSummary) -> list[tuple[str, ...]]:
    """Return a row for each of the undeclared experiments with the most responses; see `UNDECLARED_COLUMNS`."""
    return [_undeclared_row(experiment) for experiment in summary.undeclared[:_MAX_UNDECLARED_ROWS]]


def _undeclared_row(experiment: UndeclaredExperiment) -> tuple[str, ...]:
    shown_variants = list(experiment.variants.items())[:_MAX_UNDECLARED_VARIANTS]
    other_responses = experiment.other_variant_responses + sum(experiment.variants.values())
    other_responses -= sum(responses for _, responses in shown_variants)
    variants = [
        f"{escape_controls(name)} {format_percent(experiment.share(responses))}" for name, responses in shown_variants
    ]
    if other_responses:
        variants.append(f"others {format_percent(experiment.share(other_responses))}")
    return (
        f"{escape_controls(experiment.name)}{_did_you_mean(experiment.similar_name)}",
        format_count(experiment.responses),
        ", ".join(variants) or ABSENT_TEXT,
        f"{format_time(experiment.first_ms)} – {format_time(experiment.last_ms)}",
    )


def undeclared_notes(summary: StoreSummary) -> list[str]:
    """Return sentences about the undeclared experiments with the next step; none without undeclared experiments."""
    notes = []
    hidden_count = len(summary.undeclared) - _MAX_UNDECLARED_ROWS
    if hidden_count > 0:
        notes.append(f"And {format_counted(hidden_count, 'more experiment')}: /api/experiments lists all.")
    if summary.unnamed_undeclared_responses:
        notes.append(
            f"{format_counted(summary.unnamed_undeclared_responses, 'response')} of experiments that are not recorded "
            "by name: see the keys names and limit of [discover]."
        )
    if summary.undeclared:
        names = [
            experiment.name
            for experiment in sorted(summary.undeclared, key=lambda experiment: experiment.similar_name is not None)
            if experiment.is_declarable
        ]
        notes.append(
            "Responses of undeclared experiments do not count. Correct a misspelt name in the events. To count an "
            f"experiment, declare it: `ab-monitor experiments adopt {shlex.quote(names[0]) if names else 'NAME'} "
            "--config FILE`."
        )
    return notes


def format_percent(fraction: float | None) -> str:
    """Return a fraction as a percentage with a decimal; None gives a dash."""
    return ABSENT_TEXT if fraction is None else f"{fraction:.1%}".replace("%", "\u202f%")


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit of which at least two have passed.

    >>> format_duration(150).replace(chr(0x202F), " "), format_duration(7_200).replace(chr(0x202F), " ")
    ('2 min', '2 h')
    """
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f}\u202f{unit}"
    return f"{seconds:.0f}\u202fs"


def format_age(at_ms: int | None, now_ms: int) -> str:
    """Return the time since `at_ms`; None gives "never". A time in the future is ahead of this computer's clock."""
    if at_ms is None:
        return "never"
    seconds = (now_ms - at_ms) // 1000
    if seconds < -_MAX_AHEAD_S:
        return f"{format_duration(-seconds)} ahead{_OF_CLOCK}"
    return f"{format_duration(max(seconds, 0))} ago"


def _short_age(at_ms: int | None, now_ms: int) -> str:
    """Return `format_age` without the explanation of a time in the future, which is a footnote of the table."""
    return format_age(at_ms, now_ms).removesuffix(_OF_CLOCK)


def _format_optional_time(at_ms: int | None) -> str:
    """Return a time in UTC without the year, which would make tables too wide for terminals of 80 columns."""
    return "" if at_ms is None else re.sub(r" \d{4},", ",", format_time(at_ms))


def describe_future_events(experiment: ExperimentSummary, now_ms: int) -> str | None:
    """Return a sentence if events are ahead of the reader's clock, with the possible causes; otherwise None."""
    newest_ms = max((variant.last_event_at_ms or 0 for variant in experiment.variants.values()), default=0)
    age = format_age(newest_ms, now_ms)
    if not age.endswith(_OF_CLOCK):
        return None
    return (
        f"The newest event is {age}. This is normal for replayed or simulated data; otherwise a clock is wrong, here "
        "or at the producer."
    )


def describe_closing(experiment: ExperimentSummary) -> str | None:
    """Return a sentence if the clock has closed windows, with the assumption behind it; otherwise None."""
    if not experiment.is_closed_by_clock:
        return None
    return (
        f"The experiment is over, and the newest event is of {format_time(experiment.newest_event_ms)}, so the clock "
        "has closed windows. This assumes that all topics were read to their end."
    )


def format_time(at_ms: int) -> str:
    """Return a time in UTC with the precision of a minute.

    >>> format_time(1_767_225_660_500)
    '1 Jan 2026, 00:01 UTC'
    """
    timestamp = datetime.fromtimestamp(at_ms / 1000, UTC)
    return f"{timestamp.day} {timestamp:%b %Y, %H:%M} UTC"


def describe_as_of(summary: StoreSummary, now_ms: int) -> str:
    """Return the time of the newest event with its age, the past time of the results, or that there is no event yet."""
    event_times = [
        variant.last_event_at_ms
        for experiment in summary.experiments.values()
        for variant in experiment.variants.values()
        if variant.last_event_at_ms is not None
    ]
    if not event_times:
        return "No event of a declared experiment yet"
    label = "As of" if summary.as_of_ms < max(event_times) else "Newest event:"
    return f"{label} {format_time_with_age(summary.as_of_ms, now_ms)}"


def format_time_with_age(at_ms: int, now_ms: int) -> str:
    """Return a time in UTC with its age in parentheses."""
    return f"{format_time(at_ms)} ({format_age(at_ms, now_ms)})"


def decay_label(decay: str) -> str:
    """Return the label of a decay for readers, from its name in the configuration.

    >>> decay_label("1h"), decay_label("24h"), decay_label("reciprocal-10d")
    ('Last hours (1 h half-life)', 'Last days (24 h half-life)', 'Last 10 days (weight 1/(1 + age in days))')
    """
    if match := re.fullmatch(r"reciprocal-(\d+)d", decay):
        return f"Last {match[1]} days (weight 1/(1 + age in days))"
    match = re.fullmatch(r"(\d+)([smhd])", decay)
    if match is None:
        return f"Recent ({decay} half-life)"
    unit, hours = _DECAY_UNITS[match[2]]
    half_life_h = int(match[1]) * hours
    period = next((name for limit, name in _DECAY_PERIODS if half_life_h < limit), "Last months")
    return f"{period} ({match[1]} {unit} half-life)"


def format_significant(value: float | None) -> str:
    """Return a number with four significant digits; None gives a dash."""
    return ABSENT_TEXT if value is None else f"{value:.4g}"


def format_optional_mean(metric: str, value: float | None, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the mean of a metric with its unit; None gives a dash."""
    return ABSENT_TEXT if value is None else format_mean(metric, value, texts)


def format_optional_difference(
    metric: str, value: float | None, texts: DisplayTexts = NO_TEXTS, *, sign: bool = True
) -> str:
    """Return a difference of means of a metric with its unit, as `format_difference` does; None gives a dash."""
    return ABSENT_TEXT if value is None else format_difference(metric, value, texts, sign=sign)


def _format_displayed_difference(metric: str, value: float | None, control: float | None) -> str:
    """Return the difference from the control: for shares in points, otherwise as a percentage of the control.

    Empty without a mean, and if a control that is no share displays as 0.
    """
    if value is None or control is None:
        return ""
    if is_proportion(metric):
        return format_difference(metric, value - control, sign=True)
    if abs(control) < _SMALLEST_DISPLAYED_MEAN:
        return ""
    return f"{(value - control) / control:+.1%}".replace("%", "\u202f%").replace("-", "\u2212")


def experiment_table_rows(experiment: ExperimentSummary, now_ms: int, min_students: int = 1) -> list[TableRow]:
    """Return the rows of an experiment's table; a mean over fewer than `min_students` students is a dash."""
    variants = [variant for _, variant in experiment.variants_control_first()]

    def row(
        label: str, value: Callable[[VariantSummary], str], detail: Callable[[VariantSummary], str] | None = None
    ) -> TableRow:
        details = tuple(detail(variant) if detail else "" for variant in variants)
        return TableRow(label, tuple(value(variant) for variant in variants), details, "traffic")

    table = [
        row("Responses", lambda variant: format_count(variant.responses)),
        row("Students", lambda variant: format_count(variant.students)),
        *(
            [
                row(
                    "Share of rated responses",
                    lambda variant: format_percent(variant.rated_share),
                    lambda variant: _count_text(variant.rated_responses),
                )
            ]
            if experiment.depends_on_feedback
            else []
        ),
        row(
            "Newest event",
            lambda variant: _short_age(variant.last_event_at_ms, now_ms),
            lambda variant: _format_optional_time(variant.last_event_at_ms),
        ),
        row(
            "Newest response",
            lambda variant: _short_age(variant.last_response_at_ms, now_ms),
            lambda variant: _format_optional_time(variant.last_response_at_ms),
        ),
        *_traffic_rows(variants),
        *_coverage_row([variant.coverage for variant in variants]),
        *_drift_row("Change of categories", [variant.category_drift for variant in variants]),
        *_drift_row("Change of items shown", [variant.item_drift for variant in variants]),
    ]
    for kind in sorted({kind for variant in variants for kind in variant.responses_with_feedback}):
        counts = [variant.responses_with_feedback.get(kind, 0) for variant in variants]
        shares = [
            format_percent(n / variant.responses if variant.responses else None)
            for n, variant in zip(counts, variants, strict=True)
        ]
        kind_label = experiment.texts.kind_label(kind)
        is_short = len(kind_label) <= _MAX_LABEL_CHARACTERS
        short_kind = kind_label if is_short else kind_label[: _MAX_LABEL_CHARACTERS - 1] + "…"
        label = f"{FEEDBACK_HEADING} '{short_kind}'"
        details = tuple(map(_count_text, counts))
        table.append(TableRow(label, tuple(shares), details, "feedback", FEEDBACK_HEADING))
    table += data_quality_rows(experiment)
    for metric in experiment.metric_specs:
        is_primary = metric.name == experiment.primary
        table += _metric_rows(metric, variants, min_students, experiment.texts, is_primary=is_primary)
    return table


def _exclusion_rows(experiment: ExperimentSummary) -> list[TableRow]:
    """Return rows with the excluded responses and students; no rows if there are none.

    Values and details are in the order of `ExperimentSummary.variants_control_first`.
    """
    variants = [variant for _, variant in experiment.variants_control_first()]
    if not any(variant.excluded_responses for variant in variants):
        return []
    numbers = [(variant.excluded_responses, variant.responses + variant.excluded_responses) for variant in variants]
    responses = tuple(format_count(excluded) for excluded, _ in numbers)
    shares = tuple(format_percent(excluded / total if total else None) for excluded, total in numbers)
    students = tuple(format_count(variant.excluded_students) for variant in variants)
    return [
        TableRow("Excluded responses", responses, shares, "quality", QUALITY_HEADING),
        TableRow("Excluded students", students, ("",) * len(variants), "quality", QUALITY_HEADING),
    ]


def data_quality_rows(experiment: ExperimentSummary) -> list[TableRow]:
    """Return rows with the numbers of events that do not count, or only in part; without rows of zeros.

    Values and details are in the order of `ExperimentSummary.variants_control_first`.
    """
    table, quality = _exclusion_rows(experiment), experiment.data_quality
    if quality is None:
        return table
    variants = [quality.variants[name] for name, _ in experiment.variants_control_first()]

    def rows(label: str, numbers: list[int], details: list[str]) -> list[TableRow]:
        if not any(numbers):
            return []
        return [TableRow(label, tuple(map(format_count, numbers)), tuple(details), "quality", QUALITY_HEADING)]

    def response_rows(label: str, numbers: list[int]) -> list[TableRow]:
        received = [variant.responses + variant.missing for variant in variants]
        shares = [
            format_percent(number / total if total else None) for number, total in zip(numbers, received, strict=True)
        ]
        return rows(label, numbers, shares)

    for reason in sorted({reason for variant in variants for reason in variant.rejected}):
        table += response_rows(f"Rejected, {reason}", [variant.rejected.get(reason, 0) for variant in variants])
    table += response_rows("Late responses", [variant.late for variant in variants])
    table += response_rows("Placeholder user ids", [variant.placeholder_users for variant in variants])
    table += response_rows("Responses with repeated items", [variant.repeated_items for variant in variants])
    for reason, label in _UNCOUNTED_LABELS.items():
        numbers = [variant.uncounted_reactions.get(reason, 0) for variant in variants]
        table += rows(label, numbers, [""] * len(variants))
    for metric in experiment.metric_specs:
        summaries = [variant.metrics[metric.name] for _, variant in experiment.variants_control_first()]
        shares = [format_percent(summary.capped / summary.count) if summary.capped else "" for summary in summaries]
        most = format_amount(metric.name, metric.most, experiment.texts)
        label = f"{experiment.texts.metric_title(metric.name)}, capped at {most}"
        table += rows(label, [summary.capped or 0 for summary in summaries], shares)
    return table


def _traffic_rows(variants: list[VariantSummary]) -> list[TableRow]:
    """Return rows on the traffic of the last one to two hours; no rows if a variant has no traffic counts."""
    traffics = [variant.traffic for variant in variants if variant.traffic is not None]
    if len(traffics) < len(variants):
        return []
    latency_counts = tuple(_count_text(sum(traffic.recent.latency_buckets)) for traffic in traffics)
    response_counts = tuple(_count_text(traffic.recent.responses) for traffic in traffics)
    rates = tuple(f"{traffic.responses_per_second:.3g}" for traffic in traffics)
    empty_shares = tuple(format_percent(traffic.recent.empty_share) for traffic in traffics)
    table = [
        TableRow("Responses per second", rates, response_counts, "traffic"),
        TableRow("Responses without items", empty_shares, response_counts, "traffic"),
    ]
    if any(sum(traffic.all_time.latency_buckets) for traffic in traffics):
        for level, label in ((0.5, "Latency, median"), (0.95, "Latency, 95 % below"), (0.99, "Latency, 99 % below")):
            quantiles = tuple(_format_seconds(traffic.recent.latency_quantile_s(level)) for traffic in traffics)
            table.append(TableRow(label, quantiles, latency_counts, "traffic"))
    return table


def _coverage_row(coverages: list[ItemCoverage | None]) -> list[TableRow]:
    """Return a row with the number of distinct items shown; no row if `items` is not configured."""
    if not any(coverages):
        return []
    values = tuple(ABSENT_TEXT if coverage is None else format_count(coverage.items) for coverage in coverages)
    details = tuple(
        "" if coverage is None or coverage.share is None else f"{format_percent(coverage.share)} of the catalogue"
        for coverage in coverages
    )
    return [TableRow("Distinct items shown", values, details, "traffic")]


def _drift_row(label: str, drifts: list[DayDrift | None]) -> list[TableRow]:
    """Return a row with the distance of the last whole day from the reference; no row if no distance is defined."""
    distances = [(day.drift.js, day.drift.psi) if day is not None else (None, None) for day in drifts]
    if not any(js for js, _ in distances):
        return []
    values = tuple(ABSENT_TEXT if js is None else f"{js.value:.3f}" for js, _ in distances)
    return [TableRow(label, values, tuple(_describe_drift(js, psi) for js, psi in distances), "traffic")]


def _describe_drift(js: DriftDistance | None, psi: DriftDistance | None) -> str:
    """Return "changed" if both distances exceed their thresholds, as in the alert; otherwise "usual".

    In both cases the limit is the threshold of the displayed Jensen-Shannon distance.
    """
    if js is None or psi is None:
        return ""
    return f"{'changed' if js.exceeded and psi.exceeded else 'usual'}, limit {js.threshold:.3f}"


def _format_seconds(value: float | None) -> str:
    if value is None:
        return ABSENT_TEXT
    # A quantile above the last bound of the histogram has the value of that bound.
    return f"{'> ' if value * 1000 >= LATENCY_BOUNDS_MS[-1] else ''}{value:.3g}\u202fs"


def _metric_rows(
    spec: MetricSpec, variants: list[VariantSummary], min_students: int, texts: DisplayTexts, *, is_primary: bool
) -> list[TableRow]:
    name = spec.name
    heading = _metric_heading(spec, texts, is_primary=is_primary)
    description = describe_metric(spec, texts)
    metrics = [variant.metrics[name] for variant in variants]
    displayed = [variant.students >= min_students for variant in variants]
    decays = list(metrics[0].decayed)
    table = []
    over_all = [variant.metrics[name].mean_over_all for variant in variants]
    has_unrated = any(variant.responses > metric.count for variant, metric in zip(variants, metrics, strict=True))
    for label, means, sizes in [
        ("All time", [metric.mean for metric in metrics], [float(metric.count) for metric in metrics]),
        # Feedback that is always positive, such as clicks, gives every rated response the same success.
        *(
            [("Over all responses", over_all, [float(variant.responses) for variant in variants])]
            if spec.is_ranking and has_unrated and any(mean is not None for mean in over_all)
            else []
        ),
        *(
            (
                decay_label(decay),
                [metric.decayed[decay].mean for metric in metrics],
                [metric.decayed[decay].effective_count or 0.0 for metric in metrics],
            )
            for decay in decays
        ),
    ]:
        displayed_means = [mean if is_displayed else None for mean, is_displayed in zip(means, displayed, strict=True)]
        details = [
            "" if mean is None else _mean_details(name, mean, displayed_means[0] if index else None, size, sizes[0])
            for index, (mean, size) in enumerate(zip(displayed_means, sizes, strict=True))
        ]
        values = tuple(format_optional_mean(name, mean, texts) for mean in displayed_means)
        table.append(TableRow(label, values, tuple(details), name, heading, is_primary, description))
    return table


def describe_metric(spec: MetricSpec, texts: DisplayTexts) -> str:
    """Return sentences that explain a metric's heading; empty for the name of a ranking metric.

    They are the description of the configuration, and the name of a metric whose heading is a label.
    """
    text = texts.metric_text(spec.name)
    default = "" if spec.is_ranking or text.label else capitalized_metric_label(spec.name, texts)
    name = f"Metric {spec.name}." if text.label else ""
    return " ".join(filter(None, (text.description or default, name)))


def _metric_heading(spec: MetricSpec, texts: DisplayTexts, *, is_primary: bool) -> str:
    """Return the label or name of a metric with its role and, if lower values are better, its direction.

    >>> _metric_heading(MetricSpec("dcg@5", "dcg", 5), NO_TEXTS, is_primary=True)
    'dcg@5 (primary metric, mean)'
    >>> empty = MetricSpec("empty", "empty", lower_is_better=True, is_guardrail_only=True)
    >>> _metric_heading(empty, NO_TEXTS, is_primary=False)
    'empty (guardrail, mean, lower is better)'
    """
    role = "primary metric" if is_primary else "guardrail" if spec.is_guardrail_only else ""
    facts = (role, "mean", "lower is better" if spec.lower_is_better else "")
    return f"{texts.metric_title(spec.name)} ({', '.join(fact for fact in facts if fact)})"


def _mean_details(metric: str, mean: float, control_mean: float | None, size: float, control_size: float) -> str:
    """Return the difference from the control, if defined, and the (effective) number of responses.

    Over few responses the difference is left out, because readers would take chance for an effect.
    """
    difference = (
        _format_displayed_difference(metric, mean, control_mean)
        if min(size, control_size) >= _MIN_RESPONSES_FOR_DIFFERENCE
        else ""
    )
    return f"{difference}  {_count_text(size)}" if difference else _count_text(size)


def _count_text(number: float) -> str:
    return f"n = {format_count(number)}"


def variant_title(name: str, texts: DisplayTexts) -> str:
    """Return the label of a variant with its name, which commands need, in parentheses; the name without a label."""
    label = texts.variant_label(name)
    return name if label == name else f"{label} ({name})"


def describe_effect(control: str, treatment: str, verdict: Verdict) -> str | None:
    """Return a sentence with both means of the primary metric and the relative effect; None without an effect."""
    primary, metric, texts = verdict.primary, verdict.evidence.metric, verdict.evidence.texts
    if primary.difference.effect is None or primary.control.mean is None or primary.treatment.mean is None:
        return None
    relative = ""
    if primary.difference.relative_effect is not None:
        # Next to shares in per cent, a percentage could be taken for percentage points.
        prefix = "relative change " if is_proportion(metric) else ""
        relative = f" ({prefix}{format_relative_changes([primary.difference.relative_effect])[0]}"
        lower, upper = verdict.relative_bounds
        if lower is not None and upper is not None:
            relative += f", interval {' to '.join(format_relative_changes([lower, upper]))}"
        relative += ")"
    label = metric_label(metric, texts)
    label = f"mean {label}" if label == metric else label
    subject = f"{label[0].upper()}{label[1:]}{' per student' if label.startswith('mean') else ', mean over students'}"
    return (
        f"{subject}: {format_mean(metric, primary.treatment.mean, texts)} with {texts.variant_label(treatment)}, "
        f"{format_mean(metric, primary.control.mean, texts)} with {texts.variant_label(control)}{relative}."
    )


def format_relative_changes(fractions: Sequence[float]) -> list[str]:
    """Return relative changes in per cent, with as many decimals as keep every number other than 0 from being "0".

    >>> format_relative_changes([0.16, -0.072]), format_relative_changes([0.0004, 0.0])
    (['+16.0 %', '−7.2 %'], ['+0.04 %', '+0.00 %'])
    """
    percents = [100 * fraction for fraction in fractions]
    decimals = next(
        (
            number
            for number in range(1, _MAX_PERCENT_DECIMALS)
            if all(round(percent, number) or not percent for percent in percents)
        ),
        _MAX_PERCENT_DECIMALS,
    )
    return [
        f"{round(percent, decimals) + 0.0:+,.{decimals}f} %".replace(",", "\u202f").replace("-", "\u2212")
        for percent in percents
    ]


def describe_history(periods: Sequence[StatePeriod], state: VerdictState) -> str | None:
    """Return a sentence with the beginning of the present `state` and the first decision to ship.

    None if the newest snapshot has another state: a replay stores no snapshot of its last hours.
    """
    if not periods or periods[-1].state != state:
        return None
    newest = periods[-1]
    sentence = f"History: {STATE_TITLES[newest.state]} since {format_time(newest.since_ms)}"
    shipped = next((period for period in periods if period.state == "ship"), None)
    if shipped is None or shipped is newest:
        return f"{sentence}."
    withdrawn = "" if shipped.until_ms is None else f", withdrawn on {format_time(shipped.until_ms)}"
    return f"{sentence}; {STATE_TITLES['ship']} first on {format_time(shipped.since_ms)}{withdrawn}."


def describe_first_decision(periods: Sequence[StatePeriod], verdict: Verdict) -> str | None:
    """Return a sentence with the effect at the first decision to ship and the shrunken effect; None without either."""
    first_effect = next((period.effect[0] for period in periods if period.state == "ship"), None)
    if first_effect is None or verdict.shrunken_effect is None:
        return None
    metric = verdict.evidence.metric
    first, shrunken = format_changes(metric, [first_effect, verdict.shrunken_effect], sign=True)
    return (
        f"The effect at the moment of a decision is too large on average: {first} at the first {STATE_TITLES['ship']}; "
        f"shrunken towards 0, it is now {shrunken}{metric_unit(metric, verdict.evidence.texts)}."
    )


def describe_changes(experiment: ExperimentSummary) -> list[str]:
    """Return sentences on changes of the running experiment, and on events that its numbers do not contain."""
    verdicts = () if experiment.analysis is None else experiment.analysis.verdicts.values()
    findings = [finding for verdict in verdicts for finding in (*verdict.reasons, *verdict.notes)]
    return list(dict.fromkeys(finding.text for finding in findings if finding.is_about_history))


def describe_archiving(experiment: ExperimentSummary) -> str | None:
    """Return a sentence with the times of archiving and of the newest event; None for a running experiment."""
    if experiment.history.archived_at_ms is None:
        return None
    newest = (
        "without any event"
        if experiment.last_event_at_ms is None
        else (f"with the newest event of {format_time(experiment.last_event_at_ms)}")
    )
    return f"Archived on {format_time(experiment.history.archived_at_ms)}, {newest}; later events do not count."


def meets_min_students(comparison: VariantComparison | GuardrailResult, min_students: int) -> bool:
    """Return whether both variants of a comparison have at least `min_students` students."""
    return min(comparison.control.units, comparison.treatment.units) >= min_students


def experiment_footnotes(experiment: ExperimentSummary, now_ms: int, min_students: int = 1) -> list[str]:
    """Return the footnotes of an experiment's table; effects on fewer than `min_students` students are left out."""
    future_events = describe_future_events(experiment, now_ms)
    footnotes = [sentence for sentence in (describe_closing(experiment), future_events) if sentence is not None]
    anonymous_count = sum(variant.responses_without_user for variant in experiment.variants.values())
    student_count = sum(variant.students for variant in experiment.variants.values())
    if anonymous_count:
        footnotes.append(
            f"{format_counted(anonymous_count, 'response has', 'responses have')} no {experiment.unit_id_name}; "
            "each is compared like a student: "
            f"{format_percent(anonymous_count / (anonymous_count + student_count))} of all compared. Above 1 % there "
            "is no decision."
        )
    if experiment.crossovers:
        footnotes.append(
            f"{format_count(experiment.crossovers)} students saw more than one variant and are not compared."
        )
    footnotes += _undefined_value_footnotes(experiment)
    footnotes += _skipped_event_footnotes(experiment)
    footnotes += _undeclared_variant_footnotes(experiment)
    footnotes += _subgroup_footnotes(experiment, min_students)
    if any(variant.traffic is not None for variant in experiment.variants.values()):
        footnotes.append(
            "Responses per second, responses without items and latencies (in seconds) are of the last one to two hours."
        )
    if any((variant.category_drift or variant.item_drift) is not None for variant in experiment.variants.values()):
        footnotes.append(
            "Change of categories and items: Jensen-Shannon distance (0 to 1) between the last full day and the "
            "reference. Up to the limit, chance explains it."
        )
    footnotes.append(
        f"n is the number of responses behind a value; for weighted means, the effective number. "
        f"{_describe_means(experiment)}Values with a sign are differences from the control; do not decide by them, but "
        "by the verdict."
    )
    return footnotes


def _describe_means(experiment: ExperimentSummary) -> str:
    """Return sentences, each with a blank behind, on the responses that the experiment's means are over."""
    sentences = []
    if experiment.has_ranking_metrics:
        sentences.append("Means of ranking metrics are over rated responses; over all responses, unrated ones are 0. ")
    elif experiment.depends_on_feedback:
        sentences.append("A response is rated if it has feedback that the metrics use. ")
    if any(not metric.is_ranking for metric in experiment.metric_specs):
        sentences.append("Means of answer metrics are over all responses with a value. ")
    return "".join(sentences)


def _undefined_value_footnotes(experiment: ExperimentSummary) -> Iterator[str]:
    """Yield sentences with the numbers of responses for which a metric is undefined."""
    counts = {
        metric: sum(variant.metrics[metric.name].undefined for variant in experiment.variants.values())
        for metric in experiment.metric_specs
    }
    without_gain = sum(count for metric, count in counts.items() if metric.is_ranking)
    if without_gain:
        yield (
            f"{format_counted(without_gain, 'rated response has', 'rated responses have')} no item with a gain above "
            "0. An undefined nDCG is not in the mean."
        )
    for metric, count in counts.items():
        if count and not metric.is_ranking:
            missing = f"feedback '{experiment.texts.kind_label(metric.kind)}'" if metric.kind else "latency"
            number = format_counted(count, "response")
            yield f"{number} without {missing}: not in the {metric_label(metric.name, experiment.texts)}."


def _skipped_event_footnotes(experiment: ExperimentSummary) -> list[str]:
    """Return a sentence if events of the experiment were skipped. All verdicts contain the same number."""
    verdicts = {} if experiment.analysis is None else experiment.analysis.verdicts
    sentences = [
        f"{str(verdict.evidence.skipped_events).rstrip('.')}."
        for verdict in verdicts.values()
        if verdict.evidence.skipped_events is not None
    ]
    return sentences[:1]


def _undeclared_variant_footnotes(experiment: ExperimentSummary) -> list[str]:
    """Return a sentence with the undeclared variants of the experiment's responses, if there are any."""
    quality = experiment.data_quality
    if quality is None or not quality.undeclared_variants:
        return []
    variants = ", ".join(
        f"{name!r} {format_count(count)}{_did_you_mean(quality.similar_variant(name))}"
        for name, count in quality.undeclared_variants.items()
    )
    return [f"Responses of variants that the configuration does not declare, which do not count: {variants}."]


def _did_you_mean(name: str | None) -> str:
    return "" if name is None else f" (did you mean {name}?)"


def _subgroup_footnotes(experiment: ExperimentSummary, min_students: int) -> Iterator[str]:
    """Yield a sentence for each subgroup with a significant effect, corrected for the number of subgroups."""
    texts = experiment.texts
    if experiment.analysis is None:
        return
    for treatment, effects in experiment.analysis.subgroup_effects.items():
        for title, segments in (
            ("first question in category", effects.segments),
            ("days since the first response:", effects.exposure_ages),
        ):
            for segment in segments:
                lower, upper = segment.comparison.lower, segment.comparison.upper
                is_displayed = meets_min_students(segment.comparison, min_students)
                if segment.discovered and is_displayed and lower is not None and upper is not None:
                    low, high = format_changes(experiment.primary, [lower, upper], sign=True)
                    effect = f"effect on {metric_label(experiment.primary, texts)} {low} to {high}"
                    unit = metric_unit(experiment.primary, texts)
                    yield f"{texts.variant_label(treatment)}, {title} {segment.name}: {effect}{unit}."
