"""Summaries of the store's content: the read model of the status command, the HTTP API, the page and Prometheus.

Undefined numbers are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from monitor.analysis.analyzer import Analysis
from monitor.analysis.drift import DayDrift
from monitor.analysis.item_sums import ItemCoverage
from monitor.analysis.triage import TriageEntry
from monitor.analysis.undeclared import UndeclaredExperiment
from monitor.clock import DAY_MS
from monitor.config import NO_TEXTS, DisplayTexts, MetricSpec
from monitor.metrics import TrafficCounts
from monitor.stats import DataQuality, ExperimentHistory

_KEYS_BY_TREATMENT: Final = ("comparisons", "guardrails", "verdict", "segments", "novelty")
"""JSON keys of an analysis whose values are objects by treatment."""
_LATENCY_PERCENTILES: Final = (50, 95, 99)


class DecayedMean(msgspec.Struct, frozen=True):
    """A decayed mean of a metric of a variant; the names of the fields are JSON keys."""

    mean: float | None
    """Over rated responses (of an answer metric: over all responses with a value)."""
    effective_count: float | None
    mean_over_all: float | None
    """Over all responses, with unrated responses counted as 0; `mean` for an answer metric."""
    effective_count_over_all: float | None
    standard_error: float | None
    """Of `mean`, without the design effect."""


class MetricSummary(msgspec.Struct, frozen=True):
    """A metric of a variant over all time; the names of the fields are JSON keys, but for `design_effect`."""

    count: int
    """Rated responses (of an answer metric: responses) for which the metric is defined."""
    undefined: int
    """Rated responses (of an answer metric: responses) for which the metric is undefined."""
    sum: float
    mean: float | None
    """Over the responses for which the metric is defined."""
    mean_over_all: float | None
    """Over all responses, with unrated responses counted as 0; `mean` for an answer metric."""
    variance: float | None
    """Sample variance over the `count` responses."""
    decayed: Mapping[str, DecayedMean]
    """Name of the decay → decayed mean."""
    design_effect: float | None = None
    """Variance of the mean with several responses per student, relative to independent responses; None if unknown."""
    capped: int | None = None
    """Responses whose value was above the range and counts as its largest value; None without such a limit."""

    @property
    def standard_error(self) -> float | None:
        """The standard error of the mean with the design effect; None if the variance or the design effect is None."""
        if self.variance is None or self.design_effect is None:
            return None
        return math.sqrt(self.variance / self.count * self.design_effect)


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """Number and latency of a variant's responses."""

    all_time: TrafficCounts
    recent: TrafficCounts
    """From `since_ms` to before `until_ms`, by event time."""
    since_ms: int
    until_ms: int

    @property
    def responses_per_second(self) -> float:
        """Recent responses per second of event time."""
        return self.recent.responses * 1000 / (self.until_ms - self.since_ms)

    def to_json(self, *, experiment_responses: int) -> dict[str, Any]:
        """Return the traffic as JSON; `experiment_responses` are the recent responses of all variants."""
        recent = self.recent
        return {
            "since": format_timestamp(self.since_ms),
            "until": format_timestamp(self.until_ms),
            "responses": recent.responses,
            "responses_per_second": self.responses_per_second,
            "used": recent.responses > 0 if experiment_responses else None,
            "empty_share": recent.empty_share,
            "empty_responses": self.all_time.empty_responses,
            "latency": {
                "count": sum(recent.latency_buckets),
                **{
                    f"p{percentile}": recent.latency_quantile_s(percentile / 100) for percentile in _LATENCY_PERCENTILES
                },
            },
        }


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """Counts, metrics, traffic and drift of a variant."""

    responses: int
    rated_responses: int
    students: int
    """Students with a response; responses that name no student are counted by `responses_without_user`."""
    responses_without_user: int
    feedback: Mapping[str, int]
    """Current reactions by kind."""
    responses_with_feedback: Mapping[str, int]
    """Responses with at least one reaction, by kind."""
    last_response_at_ms: int | None
    last_event_at_ms: int | None
    metrics: Mapping[str, MetricSummary]
    traffic: TrafficSummary | None = None
    """None if not requested."""
    category_drift: DayDrift | None = None
    """Drift of the responses by category; None without declared categories, or without the day or its reference."""
    item_drift: DayDrift | None = None
    """Drift of the shown items by cell; None without the day or its reference."""
    coverage: ItemCoverage | None = None
    """None if items are not counted, if there are too many items, or if not requested."""
    excluded_responses: int = 0
    """Responses that a rule of `exclude` matches: no other number contains them."""
    excluded_students: int = 0
    """Students with an excluded response."""
    primary_correlation: float | None = None
    """Correlation of the primary metric between two responses of a student; None if unknown. Not in the JSON."""

    @property
    def rated_share(self) -> float | None:
        """Share of the responses that are rated; None without responses."""
        return self.rated_responses / self.responses if self.responses else None


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """The variants of an experiment, in the order of the configuration, and the analysis of the treatments."""

    name: str
    control: str
    primary: str
    crossovers: int
    """Students who saw more than one variant."""
    variants: Mapping[str, VariantSummary]
    analysis: Analysis | None = None
    """None if not requested."""
    metric_specs: tuple[MetricSpec, ...] = ()
    """The metrics of the settings, in the order of the variants' `metrics`."""
    starts_at_ms: int | None = None
    ends_at_ms: int | None = None
    """The planned end; None without one."""
    intended_shares: Mapping[str, float] = field(default_factory=dict)
    """Variant → intended share of the students at the newest event; variants without a share are absent."""
    data_quality: DataQuality | None = None
    """Missing responses by variant; None if not requested."""
    categories_for_review: tuple[TriageEntry, ...] | None = None
    """Categories with bad answers, most urgent first; None if items are not counted, or if not requested."""
    newest_event_ms: int = 0
    """Time of the newest event of any experiment; 0 before the first event."""
    history: ExperimentHistory = field(default_factory=ExperimentHistory)
    unit_id_name: str = "user id"
    """What identifies a student for readers: the user id, or the field with the id of the group."""
    unit_noun: str = "student"
    """The noun for a unit in sentences: student or group."""
    owner: str = ""
    hypothesis: str = ""
    link: str = ""
    """An http or https address with more about the experiment; empty if not configured, like owner and hypothesis."""
    texts: DisplayTexts = NO_TEXTS
    """Labels, units and descriptions of metrics, variants and kinds of feedback."""

    @property
    def has_ranking_metrics(self) -> bool:
        """Whether any metric is computed from the grades of ranked items."""
        return any(metric.is_ranking for metric in self.metric_specs)

    @property
    def depends_on_feedback(self) -> bool:
        """Whether any metric depends on feedback, so that responses can be rated."""
        return any(metric.depends_on_feedback for metric in self.metric_specs)

    @property
    def lower_is_better(self) -> list[str]:
        """The metrics of which lower values are better."""
        return [metric.name for metric in self.metric_specs if metric.lower_is_better]

    @property
    def last_event_at_ms(self) -> int | None:
        """Time of the experiment's newest event; None without events."""
        return max(
            (variant.last_event_at_ms for variant in self.variants.values() if variant.last_event_at_ms is not None),
            default=None,
        )

    @property
    def has_not_started(self) -> bool:
        """Whether the configured start is later than the newest event of any experiment."""
        return self.starts_at_ms is not None and 0 < self.newest_event_ms < self.starts_at_ms

    @property
    def has_ended(self) -> bool:
        """Whether the planned end has passed, by event time."""
        return self.analysis is not None and self.ends_at_ms is not None and self.analysis.as_of_ms >= self.ends_at_ms

    @property
    def is_closed_by_clock(self) -> bool:
        """Whether the experiment is over, and the clock or `--as-of` instead of a later event has closed windows."""
        return self.analysis is not None and 0 < self.newest_event_ms < self.analysis.as_of_ms

    def variants_control_first(self) -> list[tuple[str, VariantSummary]]:
        """Return (name, summary) of the control, then of the other variants in their order."""
        return sorted(self.variants.items(), key=lambda named_variant: named_variant[0] != self.control)

    def to_json(self) -> dict[str, Any]:
        """Return the experiment as in the JSON of `status`."""
        recent_responses = sum(
            variant.traffic.recent.responses for variant in self.variants.values() if variant.traffic is not None
        )
        return {
            "control": self.control,
            "primary": self.primary,
            "lower_is_better": self.lower_is_better,
            "crossovers": self.crossovers,
            "owner": self.owner or None,
            "hypothesis": self.hypothesis or None,
            "link": self.link or None,
            "texts": self.texts.to_json(),
            **_history_json(self.history),
            "variants": {name: _variant_json(variant, recent_responses) for name, variant in self.variants.items()},
            **({} if self.data_quality is None else {"data_quality": _data_quality_json(self.data_quality)}),
            **(
                {}
                if self.categories_for_review is None
                else {"attention": [entry.to_json() for entry in self.categories_for_review]}
            ),
            **self.analysis_json(),
        }

    def analysis_json(self) -> dict[str, Any]:
        """Return the analysis with the event time as JSON; an empty object without an analysis."""
        if self.analysis is None:
            return {}
        return {
            "judged_at": format_timestamp(self.analysis.as_of_ms),
            "closed_by": "clock" if self.is_closed_by_clock else "events",
            **self.analysis.to_json(),
        }


@dataclass(frozen=True, slots=True)
class StoreSummary:
    """Summaries of all experiments."""

    as_of_ms: int
    """Event time to which decayed means are decayed."""
    experiments: Mapping[str, ExperimentSummary]
    unmatched_feedback: Mapping[str, int] = field(default_factory=dict)
    """Feedback kind, sorted → number of reactions, of any experiment, that expired before their response arrived.

    Kinds in the configuration are always present, also with the number 0.
    """
    totals_as_of_ms: int | None = None
    """Time of the newest event: the time of all-time counts, crossovers and live comparisons; None: `as_of_ms`."""
    undeclared: tuple[UndeclaredExperiment, ...] = ()
    """Undeclared experiments that are recorded by name, most responses first."""
    unnamed_undeclared_responses: int = 0
    """Responses of undeclared experiments that are not recorded by name."""

    @property
    def running_experiments(self) -> list[ExperimentSummary]:
        """The experiments that are not archived."""
        return [experiment for experiment in self.experiments.values() if not experiment.history.is_archived]

    @property
    def archived_experiments(self) -> list[ExperimentSummary]:
        """The archived experiments: their events do not count any more."""
        return [experiment for experiment in self.experiments.values() if experiment.history.is_archived]

    def to_json(self) -> dict[str, Any]:
        """Return the object of `status --json`."""
        return {
            "as_of": format_timestamp(self.as_of_ms),
            "totals_as_of": self._totals_as_of(),
            "unmatched_feedback": dict(self.unmatched_feedback),
            "undeclared": list(map(undeclared_json, self.undeclared)),
            "unnamed_undeclared_responses": self.unnamed_undeclared_responses,
            "experiments": {name: experiment.to_json() for name, experiment in self.experiments.items()},
        }

    def _totals_as_of(self) -> str:
        return format_timestamp(self.as_of_ms if self.totals_as_of_ms is None else self.totals_as_of_ms)

    def verdict_json(self, experiment: str, treatment: str | None = None) -> dict[str, Any]:
        """Return the object of `verdict --json`, with the results of all treatments or of `treatment` only.

        Raises KeyError for an experiment or a treatment that is not in the summary.
        """
        summary = self.experiments[experiment]
        return {
            "experiment": summary.name,
            "control": summary.control,
            "primary": summary.primary,
            "lower_is_better": summary.lower_is_better,
            "totals_as_of": self._totals_as_of(),
            "crossovers": summary.crossovers,
            **_history_json(summary.history),
            **{
                key: {treatment: value[treatment]} if treatment is not None and key in _KEYS_BY_TREATMENT else value
                for key, value in summary.analysis_json().items()
            },
        }


def undeclared_json(experiment: UndeclaredExperiment) -> dict[str, Any]:
    """Return an undeclared experiment as in the JSON of `status`."""
    return {
        "name": experiment.name,
        "responses": experiment.responses,
        "first_at": format_timestamp(experiment.first_ms),
        "last_at": format_timestamp(experiment.last_ms),
        "variants": {
            name: {"responses": responses, "share": experiment.share(responses)}
            for name, responses in experiment.variants.items()
        },
        "other_variant_responses": experiment.other_variant_responses,
        "similar_name": experiment.similar_name,
    }


def _history_json(history: ExperimentHistory) -> dict[str, Any]:
    """Return the time of archiving and the other facts on the declaration as JSON."""
    return {
        "archived_at": _format_optional_timestamp(history.archived_at_ms),
        "declaration": {
            "declared_at": _format_optional_timestamp(history.declared_at_ms),
            "definition_version": history.definition_version,
            "definition_since": _format_optional_timestamp(history.definition_since_ms),
            "is_previous_definition": history.is_previous_definition,
            "complete_since": _format_optional_timestamp(history.complete_since_ms),
            "backfill": msgspec.to_builtins(history.backfill),
            "changes": [
                {"at": format_timestamp(change.at_ms), "kind": change.kind, "text": change.text}
                for change in history.changes
            ],
        },
    }


def _data_quality_json(quality: DataQuality) -> dict[str, Any]:
    return {
        "missing_share": quality.missing_share,
        "undeclared_variants": dict(quality.undeclared_variants),
        "other_spellings": dict(quality.other_spellings),
        "variants": {
            name: {**msgspec.to_builtins(counts), "missing_share": counts.missing_share}
            for name, counts in quality.variants.items()
        },
    }


def format_timestamp(timestamp_ms: int) -> str:
    """Return a time in milliseconds since the Unix epoch as ISO 8601 in UTC, with milliseconds.

    >>> format_timestamp(0)
    '1970-01-01T00:00:00.000Z'
    """
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _variant_json(variant: VariantSummary, experiment_responses: int) -> dict[str, Any]:
    """Return a variant as JSON; `experiment_responses` are the recent responses of all variants."""
    content: dict[str, Any] = {
        "responses": variant.responses,
        "rated_responses": variant.rated_responses,
        "rated_share": variant.rated_share,
        "students": variant.students,
        "responses_without_user": variant.responses_without_user,
        "excluded_responses": variant.excluded_responses,
        "excluded_students": variant.excluded_students,
        "feedback": dict(variant.feedback),
        "responses_with_feedback": dict(variant.responses_with_feedback),
        "last_response_at": _format_optional_timestamp(variant.last_response_at_ms),
        "last_event_at": _format_optional_timestamp(variant.last_event_at_ms),
    }
    if variant.traffic is not None:
        content["traffic"] = variant.traffic.to_json(experiment_responses=experiment_responses)
    if variant.category_drift is not None:
        content["categories"] = _category_drift_json(variant.category_drift)
    if variant.item_drift is not None:
        content["recommended"] = _item_drift_json(variant.item_drift)
    if variant.coverage is not None:
        content["coverage"] = _coverage_json(variant.coverage)
    return {**content, "metrics": {name: _metric_json(metric) for name, metric in variant.metrics.items()}}


def _format_optional_timestamp(timestamp_ms: int | None) -> str | None:
    return None if timestamp_ms is None else format_timestamp(timestamp_ms)


def _category_drift_json(day_drift: DayDrift) -> dict[str, Any]:
    """Return the drift of the responses by category as JSON."""
    return {
        "day": format_timestamp(day_drift.day * DAY_MS)[:10],
        "counts": dict(day_drift.counts),
        "reference": dict(day_drift.reference),
        "responses_per_student": day_drift.cluster_size,
        "drift": asdict(day_drift.drift),
    }


def _item_drift_json(day_drift: DayDrift) -> dict[str, Any]:
    """Return the drift of the shown items as JSON, with totals only: cells of items have no meaning for a reader."""
    return {
        "day": format_timestamp(day_drift.day * DAY_MS)[:10],
        "shown": sum(day_drift.counts.values()),
        "reference": sum(day_drift.reference.values()),
        "items_per_student": day_drift.cluster_size,
        "drift": asdict(day_drift.drift),
    }


def _coverage_json(coverage: ItemCoverage) -> dict[str, Any]:
    return {"since": format_timestamp(coverage.since_ms), "items": coverage.items, "share": coverage.share}


def _metric_json(metric: MetricSummary) -> dict[str, Any]:
    """Return the fields of a metric as JSON, without the design effect."""
    content: dict[str, Any] = msgspec.to_builtins(metric)
    del content["design_effect"]
    return content
