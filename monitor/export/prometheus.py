"""The experiments' aggregates as Prometheus families, made at each scrape; and the catalogue of every metric name."""

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

from monitor.analysis import ExperimentSummary, Judgement, Summary, VariantSummary
from monitor.errors import DependencyUnavailable
from monitor.pipeline import PROCESS_METRICS, Exported
from monitor.stats import State

log = logging.getLogger(__name__)


Add: TypeAlias = Callable[[str, tuple[str, ...], float | None], None]

_ARM: Final = ("experiment", "variant")
_EFFECT: Final = (*_ARM, "metric", "estimand")
_GUARDRAIL: Final = (*_ARM, "guardrail")
_DECAYED: Final = (*_ARM, "metric", "decay")
_MEASURE: Final = (*_ARM, "measure")
_EXPERIMENT: Final = ("experiment",)
_CATEGORY: Final = ("experiment", "category")
_STORE_UP: Final = Exported("abmonitor_store_up", "gauge", (), "1 if the store answered")
# A sum and a count may fall after a revision, so they are no counters; and promtool reserves the suffixes for summaries
# and histograms, so they are no gauges either: unknown is what is left.
_EXPERIMENTS: Final = (
    Exported("abmonitor_responses", "gauge", _ARM, "Responses that count"),
    Exported("abmonitor_rated_responses", "gauge", _ARM, "Responses with at least one graded item"),
    Exported("abmonitor_students", "gauge", _ARM, "Students, and responses that name none"),
    Exported("abmonitor_feedback", "gauge", (*_ARM, "kind"), "Current reactions by kind"),
    Exported("abmonitor_metric_sum", "unknown", (*_ARM, "metric"), "Sum of the metric over rated responses"),
    Exported("abmonitor_metric_count", "unknown", (*_ARM, "metric"), "Rated responses where the metric is defined"),
    Exported("abmonitor_metric_mean", "gauge", _DECAYED, "Mean over rated responses"),
    Exported("abmonitor_metric_effective_count", "unknown", _DECAYED, "Effective sample size of the mean"),
    Exported(
        "abmonitor_metric_standard_error",
        "gauge",
        _DECAYED,
        "Standard error of the mean; of a decayed one, responses taken as independent",
    ),
    Exported(
        "abmonitor_variant_last_event_timestamp_seconds",
        "gauge",
        _ARM,
        "Time of the variant's newest event, since 1970",
    ),
    Exported(
        "abmonitor_variant_last_response_timestamp_seconds",
        "gauge",
        _ARM,
        "Time of the variant's newest response, since 1970",
    ),
    Exported("abmonitor_empty_responses", "gauge", _ARM, "Responses without any item"),
    Exported("abmonitor_response_latency_seconds", "histogram", _ARM, "How long the bot took, as responses say"),
    Exported(
        "abmonitor_category_responses",
        "gauge",
        (*_ARM, "category"),
        "Responses of the last whole UTC day by declared category, other and none",
    ),
    Exported(
        "abmonitor_drift_distance",
        "gauge",
        _MEASURE,
        "How far the categories of the last whole UTC day are from their reference",
    ),
    Exported("abmonitor_drift_threshold", "gauge", _MEASURE, "What chance exceeds on a share alpha of all days"),
    Exported(
        "abmonitor_item_drift_distance",
        "gauge",
        _MEASURE,
        "How far the items recommended on the last whole UTC day are from their reference",
    ),
    Exported("abmonitor_item_drift_threshold", "gauge", _MEASURE, "What chance exceeds on a share alpha of all days"),
    Exported("abmonitor_shown_items", "gauge", _ARM, "Different items shown over the horizon of `items`"),
    Exported("abmonitor_catalogue_coverage", "gauge", _ARM, "Share of the catalogue that was shown over that horizon"),
    Exported(
        "abmonitor_attention_priority",
        "gauge",
        _CATEGORY,
        "Priority in (0, 1) of a category by its bad answers: what to look at first",
    ),
    Exported("abmonitor_attention_bad_answers", "gauge", _CATEGORY, "Bad answers of a category today"),
    Exported("abmonitor_intended_share", "gauge", _ARM, "Share of students that the variant is meant to get"),
    Exported(
        "abmonitor_experiment_start_timestamp_seconds",
        "gauge",
        _EXPERIMENT,
        "Configured start of the experiment, since 1970",
    ),
    Exported("abmonitor_effect", "gauge", _EFFECT, "Mean of the variant minus that of the control"),
    Exported("abmonitor_effect_lower", "gauge", _EFFECT, "Lower bound of the effect, valid at every look"),
    Exported("abmonitor_effect_upper", "gauge", _EFFECT, "Upper bound of the effect, valid at every look"),
    Exported("abmonitor_sample_ratio_log_e", "gauge", _EXPERIMENT, "Evidence that students are not split as meant"),
    Exported("abmonitor_crossover_students", "gauge", _EXPERIMENT, "Students who saw more than one variant"),
    Exported("abmonitor_verdict", "gauge", (*_ARM, "state"), "1 for the state that applies, 0 for the others"),
    Exported(
        "abmonitor_verdict_reason", "gauge", (*_ARM, "reason"), "1 for what the verdict rests on, 0 for what is noted"
    ),
    Exported("abmonitor_guardrail_least_harm", "gauge", _GUARDRAIL, "Lower bound of the harm, valid at every look"),
    Exported("abmonitor_guardrail_most_harm", "gauge", _GUARDRAIL, "Upper bound of the harm, valid at every look"),
    Exported("abmonitor_guardrail_margin", "gauge", _GUARDRAIL, "Tolerable harm"),
    Exported("abmonitor_days_to_resolve", "gauge", _ARM, "Days until the smallest effect of interest is resolved"),
    Exported(
        "abmonitor_experiment_info", "info", ("experiment", "control", "primary"), "The experiment's configuration"
    ),
    Exported(
        "abmonitor_unmatched_feedback_total", "counter", ("kind",), "Feedback that expired before its response arrived"
    ),
    _STORE_UP,
)
CATALOGUE: Final = (*_EXPERIMENTS, *(metric for metric in PROCESS_METRICS if metric.name != _STORE_UP.name))
"""Every metric of both endpoints: boards and rules may name nothing else."""
_FAMILIES: Final[Mapping[str, Callable[..., Metric]]] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
    "unknown": UnknownMetricFamily,
}


class ExperimentsCollector(Collector):
    """Reads a summary at each scrape. An undefined value, or one that rests on too few students, is left out."""

    def __init__(self, summary: Callable[[], Summary], min_display_students: int) -> None:
        self._summary = summary
        self._min_students = min_display_students

    def collect(self) -> Iterator[Metric]:
        up = GaugeMetricFamily(_STORE_UP.name, _STORE_UP.help, labels=())
        try:
            summary = self._summary()
        except DependencyUnavailable as error:
            log.warning("scrape without store reason=%s", error)
            up.add_metric((), 0)
            yield up
            return
        up.add_metric((), 1)
        families: dict[str, Any] = {
            metric.name.removeprefix("abmonitor_"): _FAMILIES[metric.kind](
                metric.name, metric.help, labels=metric.labels
            )
            for metric in _EXPERIMENTS
            if metric.kind in _FAMILIES and metric is not _STORE_UP
        }
        info = InfoMetricFamily("abmonitor_experiment", "The experiment's configuration", labels=("experiment",))

        def add(name: str, labels: tuple[str, ...], value: float | None) -> None:
            if value is not None:
                families[name].add_metric(labels, value)

        for kind, count in summary.unmatched_feedback.items():
            add("unmatched_feedback_total", (kind,), count)
        for experiment in summary.experiments.values():
            info.add_metric((experiment.name,), {"control": experiment.control, "primary": experiment.primary})
            _add_experiment(add, experiment, self._min_students)
            _add_latencies(families["response_latency_seconds"], experiment)
        yield from (*families.values(), info, up)


def _add_experiment(add: Add, experiment: ExperimentSummary, min_students: int) -> None:
    hidden = {name for name, variant in experiment.variants.items() if variant.students < min_students}
    for name, variant in experiment.variants.items():
        arm = (experiment.name, name)
        add("responses", arm, variant.responses)
        add("rated_responses", arm, variant.rated_responses)
        add("students", arm, variant.students)
        for kind, count in variant.feedback.items():
            add("feedback", (*arm, kind), count)
        _add_traffic(add, arm, variant)
        if name not in hidden:
            _add_days(add, arm, variant)
            _add_metrics(add, arm, variant)
    for entry in experiment.attention or ():
        add("attention_priority", (experiment.name, entry.name), entry.priority)
        add("attention_bad_answers", (experiment.name, entry.name), entry.today)
    for name, share in experiment.intended_shares.items():
        add("intended_share", (experiment.name, name), share)
    if experiment.starts_at_ms is not None:
        add("experiment_start_timestamp_seconds", (experiment.name,), experiment.starts_at_ms / 1000)
    if experiment.judgement is not None:
        add("crossover_students", (experiment.name,), experiment.crossovers)
        _add_judgement(add, experiment, experiment.judgement, hidden)


def _add_traffic(add: Add, arm: tuple[str, ...], variant: VariantSummary) -> None:
    for kind, at_ms in (("event", variant.last_event_at_ms), ("response", variant.last_response_at_ms)):
        if at_ms is not None:
            add(f"variant_last_{kind}_timestamp_seconds", arm, at_ms / 1000)
    if variant.traffic is not None:
        add("empty_responses", arm, variant.traffic.everything.empty)
    if variant.coverage is not None:
        add("shown_items", arm, variant.coverage.items)
        add("catalogue_coverage", arm, variant.coverage.share)


def _add_days(add: Add, arm: tuple[str, ...], variant: VariantSummary) -> None:
    """Add categories and drift of the last whole day."""
    if variant.categories is not None:
        for category, count in variant.categories.counts.items():
            add("category_responses", (*arm, category), count)
    for prefix, day in (("drift", variant.categories), ("item_drift", variant.recommended)):
        for measure, distance in () if day is None else (("psi", day.drift.psi), ("js", day.drift.js)):
            if distance is not None:
                add(f"{prefix}_distance", (*arm, measure), distance.value)
                add(f"{prefix}_threshold", (*arm, measure), distance.threshold)


def _add_latencies(family: HistogramMetricFamily, experiment: ExperimentSummary) -> None:
    """Add each variant's histogram over all time.

    A revision may lower it, which a histogram's readers take for a restart. Gauge histograms would be right, but the
    text format has none, and in OpenMetrics their sum and count have names that `promtool` and boards do not know; so
    it is read by `delta()`, as the other sums are.
    """
    for name, variant in experiment.variants.items():
        if variant.traffic is not None:
            flow = variant.traffic.everything
            buckets = [("+Inf" if bound == math.inf else repr(bound), count) for bound, count in flow.cumulative()]
            family.add_metric((experiment.name, name), buckets, flow.latency_ms / 1000)


def _add_judgement(add: Add, experiment: ExperimentSummary, judgement: Judgement, hidden: Collection[str]) -> None:
    """Add the verdicts, without effects where the control or the treatment has too few students."""
    add("sample_ratio_log_e", (experiment.name,), judgement.sample_ratio.log_e)
    for name, verdict in judgement.verdicts.items():
        arm = (experiment.name, name)
        for state in get_args(State):
            add("verdict", (*arm, state), float(state == verdict.state))
        reasons = dict.fromkeys((note.code for note in verdict.notes), 0.0)
        reasons |= dict.fromkeys((reason.code for reason in verdict.reasons), 1.0)
        for code, value in reasons.items():
            add("verdict_reason", (*arm, code), value)
        add("days_to_resolve", arm, verdict.days_to_resolve)
        if name in hidden or experiment.control in hidden:
            continue
        for result in verdict.guardrails:
            guardrail = (*arm, result.guardrail.name)
            add("guardrail_least_harm", guardrail, result.least_harm)
            add("guardrail_most_harm", guardrail, result.most_harm)
            add("guardrail_margin", guardrail, result.guardrail.margin)
        for metric, estimands in judgement.comparisons[name].items():
            for estimand, comparison in estimands.items():
                labels = (*arm, metric, estimand)
                add("effect", labels, comparison.difference.effect)
                add("effect_lower", labels, comparison.lower)
                add("effect_upper", labels, comparison.upper)


def _add_metrics(add: Add, arm: tuple[str, ...], variant: VariantSummary) -> None:
    for name, metric in variant.metrics.items():
        add("metric_sum", (*arm, name), metric.sum)
        add("metric_count", (*arm, name), metric.count)
        labels = (*arm, name, "none")
        add("metric_mean", labels, metric.mean)
        add("metric_standard_error", labels, metric.standard_error)
        if metric.mean is not None:
            add("metric_effective_count", labels, metric.count)
        for decay, decayed in metric.decayed.items():
            labels = (*arm, name, decay)
            add("metric_mean", labels, decayed.mean)
            add("metric_effective_count", labels, decayed.effective_count)
            add("metric_standard_error", labels, decayed.standard_error)
