"""Prometheus metrics of the experiments, built at each scrape, and the catalogue of all metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, Final, TypeAlias, get_args

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
    UnknownMetricFamily,
)
from prometheus_client.registry import Collector

from monitor.analysis import Analysis, ExperimentSummary, StoreSummary, VariantSummary
from monitor.engine import UNCOUNTED_REACTIONS
from monitor.errors import DependencyUnavailable
from monitor.export.headline import judged_effect
from monitor.pipeline import PROCESS_METRICS, ExportedMetric
from monitor.stats import DataQuality, VerdictState

log = logging.getLogger(__name__)


AddSample: TypeAlias = Callable[[str, tuple[str, ...], float | None], None]

_VARIANT: Final = ("experiment", "variant")
_EFFECT: Final = (*_VARIANT, "metric", "estimand")
_GUARDRAIL: Final = (*_VARIANT, "guardrail")
_DECAYED: Final = (*_VARIANT, "metric", "decay")
_MEASURE: Final = (*_VARIANT, "measure")
_EXPERIMENT: Final = ("experiment",)
_CATEGORY: Final = ("experiment", "category")
_STORE_UP: Final = ExportedMetric(
    "abmonitor_store_up", "gauge", (), "1 if the store answered this scrape, 0 if it did not."
)
_STARTS: Final = ExportedMetric(
    "abmonitor_starts_total",
    "counter",
    (),
    "Starts of workers since the store was created, counted in the store: also those that ended before any scrape.",
)
_EXPERIMENT_INFO: Final = ExportedMetric(
    "abmonitor_experiment_info",
    "info",
    ("experiment", "control", "primary", "lower_is_better"),
    "Control variant and primary metric of the experiment, as labels, and whether lower values of that metric are "
    "better (true or false); the value is always 1.",
)
# `abmonitor_metric_sum` and `abmonitor_metric_count` may decrease after a revision, so counter would be wrong. promtool
# reserves the suffixes `_sum` and `_count` for summaries and histograms, so it rejects gauge. Only unknown is left.
_EXPERIMENT_METRICS: Final = (
    ExportedMetric("abmonitor_responses", "gauge", _VARIANT, "Responses of the variant, all time, without duplicates."),
    ExportedMetric(
        "abmonitor_rated_responses",
        "gauge",
        _VARIANT,
        "Responses of the variant with at least one graded item, all time. In an experiment without ranking metrics: "
        "with feedback that the metrics use.",
    ),
    ExportedMetric(
        "abmonitor_students",
        "gauge",
        _VARIANT,
        "Students who were shown the variant, all time; each response without a user id counts as one student.",
    ),
    ExportedMetric(
        "abmonitor_excluded_responses",
        "gauge",
        _VARIANT,
        "Responses of the variant that a rule of exclude matches, all time; no other number contains them.",
    ),
    ExportedMetric(
        "abmonitor_excluded_students", "gauge", _VARIANT, "Students with excluded responses of the variant, all time."
    ),
    ExportedMetric(
        "abmonitor_feedback",
        "gauge",
        (*_VARIANT, "kind"),
        "Reactions to the responses of the variant, all time, by kind; a revised reaction counts once.",
    ),
    ExportedMetric(
        "abmonitor_uncounted_feedback",
        "gauge",
        (*_VARIANT, "reason"),
        "Reactions to the responses of the variant that do not count, all time, by reason: before_response, "
        "item_not_shown, nothing_to_withdraw, off_scale or outside_window.",
    ),
    ExportedMetric(
        "abmonitor_missing_responses_total",
        "counter",
        (*_VARIANT, "reason"),
        "Response events of the variant that do not count, by reason: late, or the reason of the rejection.",
    ),
    ExportedMetric(
        "abmonitor_placeholder_user_responses_total",
        "counter",
        _VARIANT,
        "Response events of the variant with a placeholder, such as null, instead of a user id.",
    ),
    ExportedMetric(
        "abmonitor_repeated_item_responses_total",
        "counter",
        _VARIANT,
        "Response events of the variant with an item more than once; the smallest position of the item counts.",
    ),
    ExportedMetric(
        "abmonitor_undeclared_variant_responses_total",
        "counter",
        _EXPERIMENT,
        "Response events of the experiment whose variant is not declared; they do not count.",
    ),
    ExportedMetric(
        "abmonitor_metric_sum",
        "unknown",
        (*_VARIANT, "metric"),
        "Sum of the metric over the responses for which it is defined, all time, in the unit of the metric. Ranking "
        "metrics are defined on rated responses.",
    ),
    ExportedMetric(
        "abmonitor_metric_count",
        "unknown",
        (*_VARIANT, "metric"),
        "Number of responses for which the metric is defined, all time.",
    ),
    ExportedMetric(
        "abmonitor_capped_responses",
        "gauge",
        (*_VARIANT, "metric"),
        "Responses of the variant whose value of the metric is above the configured range, all time; the largest value "
        "of the range counts.",
    ),
    ExportedMetric(
        "abmonitor_metric_mean",
        "gauge",
        _DECAYED,
        "Mean of the metric over the responses of abmonitor_metric_count, in the unit of the metric. The label decay "
        "is the half-life of the weights, such as 24h; none means all time with equal weights.",
    ),
    ExportedMetric(
        "abmonitor_metric_effective_count",
        "unknown",
        _DECAYED,
        "Effective number of responses of the mean: the squared sum of the weights divided by the sum of the "
        "squared weights. The label decay is that of the mean.",
    ),
    ExportedMetric(
        "abmonitor_metric_standard_error",
        "gauge",
        _DECAYED,
        "Standard error of the mean, in the unit of the metric. It accounts for several responses per student: for "
        "means with a decay by the design effect of the mean of all time.",
    ),
    ExportedMetric(
        "abmonitor_variant_last_event_timestamp_seconds",
        "gauge",
        _VARIANT,
        "Timestamp of the newest event of the variant, in seconds since 1970-01-01 UTC.",
    ),
    ExportedMetric(
        "abmonitor_variant_last_response_timestamp_seconds",
        "gauge",
        _VARIANT,
        "Timestamp of the newest response of the variant, in seconds since 1970-01-01 UTC.",
    ),
    ExportedMetric(
        "abmonitor_empty_responses", "gauge", _VARIANT, "Responses of the variant without any item, all time."
    ),
    ExportedMetric(
        "abmonitor_response_latency_seconds",
        "histogram",
        _VARIANT,
        "Time the chatbot took for a response, all time, in seconds, from the field latency_ms of the response.",
    ),
    ExportedMetric(
        "abmonitor_category_responses",
        "gauge",
        (*_VARIANT, "category"),
        "Responses of the last full day, by category: a declared one, other (any other value), or none (no value).",
    ),
    ExportedMetric(
        "abmonitor_drift_distance",
        "gauge",
        _MEASURE,
        "Distance of the categories of the last full day from the reference distribution, without a unit. The "
        "label measure is psi (population stability index) or js (Jensen-Shannon distance).",
    ),
    ExportedMetric(
        "abmonitor_drift_threshold",
        "gauge",
        _MEASURE,
        "Threshold of abmonitor_drift_distance, without a unit; a larger distance is drift at level drift.alpha.",
    ),
    ExportedMetric(
        "abmonitor_item_drift_distance",
        "gauge",
        _MEASURE,
        "Distance of the items recommended on the last full day from the reference distribution, without a unit. "
        "The label measure is psi (population stability index) or js (Jensen-Shannon distance).",
    ),
    ExportedMetric(
        "abmonitor_item_drift_threshold",
        "gauge",
        _MEASURE,
        "Threshold of abmonitor_item_drift_distance, without a unit; a larger distance is drift at level drift.alpha.",
    ),
    ExportedMetric(
        "abmonitor_shown_items",
        "gauge",
        _VARIANT,
        "Number of distinct items that the variant has shown within the configured items.horizon.",
    ),
    ExportedMetric(
        "abmonitor_catalogue_coverage",
        "gauge",
        _VARIANT,
        "Fraction of the configured items.catalogue that the variant has shown within items.horizon, from 0 to 1.",
    ),
    ExportedMetric(
        "abmonitor_attention_priority",
        "gauge",
        _CATEGORY,
        "Review priority of the category, from 0 to 1: lower bound (95 %) of its share of bad responses in the last 10 "
        "days. Review the largest first.",
    ),
    ExportedMetric(
        "abmonitor_attention_bad_answers",
        "gauge",
        _CATEGORY,
        "Bad responses of the category on the current day: without any item, or rated without a relevant item.",
    ),
    ExportedMetric(
        "abmonitor_intended_share",
        "gauge",
        _VARIANT,
        "Intended fraction of students in the variant, from 0 to 1.",
    ),
    ExportedMetric(
        "abmonitor_experiment_start_timestamp_seconds",
        "gauge",
        _EXPERIMENT,
        "Configured start of the experiment (starts_at), in seconds since 1970-01-01 UTC.",
    ),
    ExportedMetric(
        "abmonitor_effect",
        "gauge",
        _EFFECT,
        "Estimated effect: mean of the variant minus mean of the control, in the unit of the metric. "
        "The label estimand is closed (students whose windows are over; decides the verdict) or live (all responses so "
        "far; approximate).",
    ),
    ExportedMetric(
        "abmonitor_effect_lower",
        "gauge",
        _EFFECT,
        "Lower bound of abmonitor_effect, in the unit of the metric, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_effect_upper",
        "gauge",
        _EFFECT,
        "Upper bound of abmonitor_effect, in the unit of the metric, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_relative_effect",
        "gauge",
        _VARIANT,
        "The effect that is judged: the closed effect on the primary metric, as a fraction of the control's mean. "
        "It is the first number on page, report and message.",
    ),
    ExportedMetric(
        "abmonitor_relative_effect_lower",
        "gauge",
        _VARIANT,
        "Lower bound of abmonitor_relative_effect, as a fraction, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_relative_effect_upper",
        "gauge",
        _VARIANT,
        "Upper bound of abmonitor_relative_effect, as a fraction, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_sample_ratio_log_e",
        "gauge",
        _EXPERIMENT,
        "Evidence against the intended split of students: natural logarithm of the e-value of the sample ratio "
        "mismatch test, without a unit. From 4.6 on (by chance once in 100 experiments), the verdict is invalid.",
    ),
    ExportedMetric(
        "abmonitor_crossover_students",
        "gauge",
        _EXPERIMENT,
        "Students who were shown more than one variant of the experiment, all time, without those of dropped variants.",
    ),
    ExportedMetric(
        "abmonitor_verdict",
        "gauge",
        (*_VARIANT, "state"),
        "1 for the current state of the verdict on the variant, 0 for each other state.",
    ),
    ExportedMetric(
        "abmonitor_verdict_reason",
        "gauge",
        (*_VARIANT, "reason"),
        "1 for a reason of the verdict on the variant, 0 for a note that does not change the verdict.",
    ),
    ExportedMetric(
        "abmonitor_guardrail_least_harm",
        "gauge",
        _GUARDRAIL,
        "Lower bound of the harm, in the unit of the guardrail, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_guardrail_most_harm",
        "gauge",
        _GUARDRAIL,
        "Upper bound of the harm, in the unit of the guardrail, from an anytime-valid confidence sequence.",
    ),
    ExportedMetric(
        "abmonitor_guardrail_margin",
        "gauge",
        _GUARDRAIL,
        "Largest harm that is tolerable, in the unit of the guardrail.",
    ),
    ExportedMetric(
        "abmonitor_days_to_resolve",
        "gauge",
        _VARIANT,
        "Estimated number of days until an effect of the configured mde would show with a probability of 50 %, "
        "if as many students come as in the last week.",
    ),
    _EXPERIMENT_INFO,
    ExportedMetric(
        "abmonitor_unmatched_feedback_total",
        "counter",
        ("kind",),
        "Feedback events that expired before their response was stored, over all experiments, by kind.",
    ),
    ExportedMetric(
        "abmonitor_undeclared_experiments",
        "gauge",
        (),
        "Number of experiments that the configuration does not declare and that are recorded by name, all time.",
    ),
    ExportedMetric(
        "abmonitor_undeclared_experiment_responses_total",
        "counter",
        _EXPERIMENT,
        "Response events of the experiment, which the configuration does not declare; they do not count. At most "
        "discover.limit experiments are exported.",
    ),
    _STARTS,
    _STORE_UP,
)
METRIC_CATALOGUE: Final = (
    *_EXPERIMENT_METRICS,
    *(metric for metric in PROCESS_METRICS if metric.name != _STORE_UP.name),
)
"""All metrics of `/metrics/experiments` and `/metrics`; boards and alerting rules use only metrics listed here."""
_FAMILY_TYPES: Final[Mapping[str, Callable[..., Metric]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "unknown": UnknownMetricFamily,
}


class ExperimentsCollector(Collector):
    """Reads a summary at each scrape and yields the metrics of all experiments that are not archived.

    Undefined values have no sample, and neither have means and effects over fewer than `min_display_students` students.
    """

    def __init__(
        self,
        summary: Callable[[], StoreSummary],
        min_display_students: int,
        read_starts: Callable[[], int] | None = None,
    ) -> None:
        """`read_starts` returns the number of starts of workers; None: the number is not exported."""
        self._summary = summary
        self._min_students = min_display_students
        self._read_starts = read_starts
        self._is_store_down = False

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(_STORE_UP.name, _STORE_UP.help, labels=())
        try:
            summary = self._summary()
            starts = None if self._read_starts is None else self._read_starts()
        except DependencyUnavailable as error:
            # Once per outage: the worker logs the pause, and scrapes are frequent.
            log.log(logging.DEBUG if self._is_store_down else logging.WARNING, "scrape without store reason=%s", error)
            self._is_store_down = True
            up.add_metric((), 0)
            yield up
            return
        self._is_store_down = False
        up.add_metric((), 1)
        families: dict[str, Any] = {
            metric.name.removeprefix("abmonitor_"): _FAMILY_TYPES[metric.metric_type](
                metric.name, metric.help, labels=metric.label_names
            )
            for metric in _EXPERIMENT_METRICS
            if metric.metric_type in _FAMILY_TYPES and metric is not _STORE_UP
        }
        info = InfoMetricFamily("abmonitor_experiment", _EXPERIMENT_INFO.help, labels=("experiment",))

        def add(name: str, labels: tuple[str, ...], value: float | None) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        add("starts_total", (), starts)
        for kind, count in summary.unmatched_feedback.items():
            add("unmatched_feedback_total", (kind,), count)
        add("undeclared_experiments", (), len(summary.undeclared))
        for undeclared in summary.undeclared:
            add("undeclared_experiment_responses_total", (undeclared.name,), undeclared.responses)
        for experiment in summary.running_experiments:
            is_lower_better = str(experiment.primary in experiment.lower_is_better).lower()
            info.add_metric(
                (experiment.name,),
                {"control": experiment.control, "primary": experiment.primary, "lower_is_better": is_lower_better},
            )
            _add_experiment(add, experiment, self._min_students)
            _add_latencies(families["response_latency_seconds"], experiment)
        yield from (*families.values(), info, up)


def _add_experiment(add: AddSample, experiment: ExperimentSummary, min_students: int) -> None:
    hidden_variants = {name for name, variant in experiment.variants.items() if variant.students < min_students}
    for name, variant in experiment.variants.items():
        variant_labels = (experiment.name, name)
        add("responses", variant_labels, variant.responses)
        add("rated_responses", variant_labels, variant.rated_responses)
        add("students", variant_labels, variant.students)
        add("excluded_responses", variant_labels, variant.excluded_responses)
        add("excluded_students", variant_labels, variant.excluded_students)
        for kind, count in variant.feedback.items():
            add("feedback", (*variant_labels, kind), count)
        _add_traffic(add, variant_labels, variant, is_frozen=experiment.history.frozen_at_ms is not None)
        if name not in hidden_variants:
            _add_day_statistics(add, variant_labels, variant)
            _add_metrics(add, variant_labels, variant)
    if experiment.data_quality is not None:
        _add_data_quality(add, experiment.name, experiment.data_quality)
    for entry in experiment.categories_for_review or ():
        add("attention_priority", (experiment.name, entry.name), entry.priority)
        add("attention_bad_answers", (experiment.name, entry.name), entry.bad_answers_today)
    for name, share in experiment.intended_shares.items():
        add("intended_share", (experiment.name, name), share)
    if experiment.starts_at_ms is not None:
        add("experiment_start_timestamp_seconds", (experiment.name,), experiment.starts_at_ms / 1000)
    if experiment.analysis is not None:
        add("crossover_students", (experiment.name,), _count_crossovers(experiment, experiment.analysis))
        _add_analysis(add, experiment, experiment.analysis, hidden_variants)


def _count_crossovers(experiment: ExperimentSummary, analysis: Analysis) -> int:
    """Return the crossovers that matter to any treatment with a share: students of a dropped variant do not."""
    shares = experiment.intended_shares
    counts = [
        verdict.evidence.crossovers for name, verdict in analysis.verdicts.items() if not shares or shares.get(name)
    ]
    return max(counts, default=experiment.crossovers)


def _add_data_quality(add: AddSample, experiment: str, quality: DataQuality) -> None:
    for name, counts in quality.variants.items():
        for reason, responses in {**counts.rejected, "late": counts.late}.items():
            add("missing_responses_total", (experiment, name, reason), responses)
        add("placeholder_user_responses_total", (experiment, name), counts.placeholder_users)
        add("repeated_item_responses_total", (experiment, name), counts.repeated_items)
        for reason in UNCOUNTED_REACTIONS:
            add("uncounted_feedback", (experiment, name, reason), counts.uncounted_reactions.get(reason, 0))
    add("undeclared_variant_responses_total", (experiment,), sum(quality.undeclared_variants.values()))


def _add_traffic(add: AddSample, variant_labels: tuple[str, ...], variant: VariantSummary, *, is_frozen: bool) -> None:
    """Add the samples of a variant's traffic; frozen numbers have no newest event, or it would seem to be missing."""
    for kind, at_ms in (("event", variant.last_event_at_ms), ("response", variant.last_response_at_ms)):
        if at_ms is not None and not is_frozen:
            add(f"variant_last_{kind}_timestamp_seconds", variant_labels, at_ms / 1000)
    if variant.traffic is not None:
        add("empty_responses", variant_labels, variant.traffic.all_time.empty_responses)
    if variant.coverage is not None:
        add("shown_items", variant_labels, variant.coverage.items)
        add("catalogue_coverage", variant_labels, variant.coverage.share)


def _add_day_statistics(add: AddSample, variant_labels: tuple[str, ...], variant: VariantSummary) -> None:
    """Add the samples of the last whole day: responses by category, and drift."""
    if variant.category_drift is not None:
        for category, count in variant.category_drift.counts.items():
            add("category_responses", (*variant_labels, category), count)
    for prefix, day in (("drift", variant.category_drift), ("item_drift", variant.item_drift)):
        for measure, distance in () if day is None else (("psi", day.drift.psi), ("js", day.drift.js)):
            if distance is not None:
                add(f"{prefix}_distance", (*variant_labels, measure), distance.value)
                add(f"{prefix}_threshold", (*variant_labels, measure), distance.threshold)


def _add_latencies(family: HistogramMetricFamily, experiment: ExperimentSummary) -> None:
    """Add a latency histogram per variant, over all responses.

    A revision may lower a bucket, and `rate()` would take that for a restart. Gauge histograms would be correct, but
    the text format lacks them, and `promtool` and boards do not support the names of their sum and count in
    OpenMetrics. Queries therefore use `delta()`, as for the other sums.
    """
    for name, variant in experiment.variants.items():
        if variant.traffic is not None:
            traffic = variant.traffic.all_time
            buckets = [
                ("+Inf" if bound == math.inf else repr(bound), count)
                for bound, count in traffic.cumulative_latency_buckets()
            ]
            family.add_metric((experiment.name, name), buckets, traffic.latency_total_ms / 1000)


def _add_analysis(
    add: AddSample, experiment: ExperimentSummary, analysis: Analysis, hidden_variants: Collection[str]
) -> None:
    """Add the verdicts; add effects and harms only if neither variant is in `hidden_variants`."""
    if not experiment.history.is_incomplete:
        # Students seem to have come later than they did, perhaps under other shares.
        add("sample_ratio_log_e", (experiment.name,), analysis.sample_ratio.log_e)
    for name, verdict in analysis.verdicts.items():
        variant_labels = (experiment.name, name)
        for state in get_args(VerdictState):
            add("verdict", (*variant_labels, state), float(state == verdict.state))
        values_by_code = dict.fromkeys((note.code for note in verdict.notes), 0.0)
        values_by_code |= dict.fromkeys((reason.code for reason in verdict.reasons), 1.0)
        for code, value in values_by_code.items():
            add("verdict_reason", (*variant_labels, code), value)
        add("days_to_resolve", variant_labels, verdict.days_to_resolve)
        if name in hidden_variants or experiment.control in hidden_variants:
            continue
        effect, lower, upper = judged_effect(verdict)
        add("relative_effect", variant_labels, effect)
        add("relative_effect_lower", variant_labels, lower)
        add("relative_effect_upper", variant_labels, upper)
        for result in verdict.guardrails:
            guardrail_labels = (*variant_labels, result.guardrail.name)
            add("guardrail_least_harm", guardrail_labels, result.least_harm)
            add("guardrail_most_harm", guardrail_labels, result.most_harm)
            add("guardrail_margin", guardrail_labels, result.margin)
        for metric, estimands in analysis.comparisons[name].items():
            for estimand, comparison in estimands.items():
                labels = (*variant_labels, metric, estimand)
                add("effect", labels, comparison.difference.effect)
                add("effect_lower", labels, comparison.lower)
                add("effect_upper", labels, comparison.upper)


def _add_metrics(add: AddSample, variant_labels: tuple[str, ...], variant: VariantSummary) -> None:
    for name, metric in variant.metrics.items():
        add("metric_sum", (*variant_labels, name), metric.sum)
        add("metric_count", (*variant_labels, name), metric.count)
        add("capped_responses", (*variant_labels, name), metric.capped)
        labels = (*variant_labels, name, "none")
        add("metric_mean", labels, metric.mean)
        add("metric_standard_error", labels, metric.standard_error)
        if metric.mean is not None:
            add("metric_effective_count", labels, metric.count)
        for decay, decayed in metric.decayed.items():
            labels = (*variant_labels, name, decay)
            add("metric_mean", labels, decayed.mean)
            add("metric_effective_count", labels, decayed.effective_count)
            if decayed.standard_error is not None:
                # Responses of one student are similar, in recent means as in the mean of all time.
                design_effect = 1.0 if metric.design_effect is None else metric.design_effect
                add("metric_standard_error", labels, decayed.standard_error * design_effect**0.5)
