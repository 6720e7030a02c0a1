"""What the store holds, as records: the one form behind status, HTTP, page and Prometheus. Undefined is None."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from monitor.analysis.drift import DayDrift
from monitor.analysis.item_sums import Coverage
from monitor.analysis.triage import Entry
from monitor.analysis.verdicts import Judgement
from monitor.clock import DAY_MS
from monitor.metrics import TrafficCounts

_BY_TREATMENT: Final = ("comparisons", "guardrails", "verdict", "segments", "novelty")


class DecayedMean(msgspec.Struct, frozen=True):
    """One metric under one decay, over rated and over all responses."""

    mean: float | None
    effective_count: float | None
    mean_over_all: float | None
    effective_count_over_all: float | None
    standard_error: float | None


class MetricSummary(msgspec.Struct, frozen=True):
    """One metric of one variant over all time; `variance` is the sample variance over rated responses."""

    count: int
    undefined: int
    sum: float
    mean: float | None
    mean_over_all: float | None
    variance: float | None
    decayed: Mapping[str, DecayedMean]
    design_effect: float | None = None
    """How many times more the mean varies because students give several responses; None where that is not known."""

    @property
    def standard_error(self) -> float | None:
        """Of the mean, responses of one student taken as alike; None where that is not known."""
        if self.variance is None or self.design_effect is None:
            return None
        return math.sqrt(self.variance / self.count * self.design_effect)


_QUANTILES: Final = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class TrafficSummary:
    """How much one variant is used and how it answers."""

    everything: TrafficCounts
    """Over all time."""
    recent: TrafficCounts
    """Since `since_ms`."""
    since_ms: int
    until_ms: int

    @property
    def responses_per_second(self) -> float:
        """Recent ones; by event time."""
        return self.recent.responses * 1000 / (self.until_ms - self.since_ms)

    def to_json(self, *, others: int) -> dict[str, Any]:
        recent = self.recent
        return {
            "since": iso(self.since_ms),
            "until": iso(self.until_ms),
            "responses": recent.responses,
            "responses_per_second": self.responses_per_second,
            "used": recent.responses > 0 if others else None,
            "empty_share": recent.empty_share,
            "empty_responses": self.everything.empty,
            "latency": {
                "count": sum(recent.latencies),
                **{f"p{share}": recent.latency_s(share / 100) for share in _QUANTILES},
            },
        }


@dataclass(frozen=True, slots=True)
class VariantSummary:
    """One variant."""

    responses: int
    rated_responses: int
    students: int
    """Students, plus each response that names none."""
    responses_without_user: int
    feedback: Mapping[str, int]
    """Current reactions by kind."""
    responses_with_feedback: Mapping[str, int]
    """Responses with at least one reaction, by kind."""
    last_response_at_ms: int | None
    last_event_at_ms: int | None
    metrics: Mapping[str, MetricSummary]
    traffic: TrafficSummary | None = None
    """None where nobody asked for it."""
    categories: DayDrift | None = None
    """None where no categories are declared, or a day or its reference is missing."""
    recommended: DayDrift | None = None
    """The items shown, by cell; None where a day or its reference is missing."""
    coverage: Coverage | None = None
    """None where items are not counted, or are too many, or nobody asked."""

    @property
    def rated_share(self) -> float | None:
        """Rated responses of all."""
        return self.rated_responses / self.responses if self.responses else None


@dataclass(frozen=True, slots=True)
class ExperimentSummary:
    """One experiment; variants in the order of the configuration."""

    name: str
    control: str
    primary: str
    crossovers: int
    """Students who saw more than one variant."""
    variants: Mapping[str, VariantSummary]
    judgement: Judgement | None = None
    """None where nobody asked for it."""
    starts_at_ms: int | None = None
    intended_shares: Mapping[str, float] = field(default_factory=dict)
    """Of students, in force at the newest event; variants without one are missing."""
    attention: tuple[Entry, ...] | None = None
    """Categories to look at first; None where items are not counted, or nobody asked."""

    def ordered(self) -> list[tuple[str, VariantSummary]]:
        return sorted(self.variants.items(), key=lambda each: each[0] != self.control)

    def to_json(self) -> dict[str, Any]:
        recent = sum(each.traffic.recent.responses for each in self.variants.values() if each.traffic is not None)
        return {
            "control": self.control,
            "primary": self.primary,
            "crossovers": self.crossovers,
            "variants": {name: _variant_json(variant, recent) for name, variant in self.variants.items()},
            **({} if self.attention is None else {"attention": [each.to_json() for each in self.attention]}),
            **self.judged_json(),
        }

    def judged_json(self) -> dict[str, Any]:
        """Return what may be said about the variants, and of which time; nothing where nobody asked for it."""
        if self.judgement is None:
            return {}
        return {"judged_at": iso(self.judgement.at_ms), **self.judgement.to_json()}


@dataclass(frozen=True, slots=True)
class Summary:
    """Everything, decayed to `as_of_ms`."""

    as_of_ms: int
    experiments: Mapping[str, ExperimentSummary]
    unmatched_feedback: Mapping[str, int] = field(default_factory=dict)
    """Reactions of all time, of whichever experiment, that expired before their response arrived; by kind, sorted.

    Kinds that the configuration names are present from the start, with 0.
    """

    def to_json(self) -> dict[str, Any]:
        experiments = {name: each.to_json() for name, each in self.experiments.items()}
        unmatched = dict(self.unmatched_feedback)
        return {"as_of": iso(self.as_of_ms), "unmatched_feedback": unmatched, "experiments": experiments}

    def verdict_json(self, experiment: str, treatment: str | None = None) -> dict[str, Any]:
        """Return the object of `verdict --json`, or what is in it about one treatment.

        Raises KeyError for an experiment that is not here.
        """
        found = self.experiments[experiment]
        return {
            "experiment": found.name,
            "control": found.control,
            "primary": found.primary,
            "crossovers": found.crossovers,
            **{
                key: {treatment: held[treatment]} if treatment is not None and key in _BY_TREATMENT else held
                for key, held in found.judged_json().items()
            },
        }


def iso(at_ms: int) -> str:
    """Return a time as ISO 8601 in UTC, with milliseconds."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _variant_json(variant: VariantSummary, recent: int) -> dict[str, Any]:
    """Return the object of one variant of an experiment that had so many recent responses."""
    return {
        "responses": variant.responses,
        "rated_responses": variant.rated_responses,
        "rated_share": variant.rated_share,
        "students": variant.students,
        "responses_without_user": variant.responses_without_user,
        "feedback": dict(variant.feedback),
        "responses_with_feedback": dict(variant.responses_with_feedback),
        "last_response_at": None if variant.last_response_at_ms is None else iso(variant.last_response_at_ms),
        "last_event_at": None if variant.last_event_at_ms is None else iso(variant.last_event_at_ms),
        **({} if variant.traffic is None else {"traffic": variant.traffic.to_json(others=recent)}),
        **({} if variant.categories is None else {"categories": _categories_json(variant.categories)}),
        **({} if variant.recommended is None else {"recommended": _recommended_json(variant.recommended)}),
        **({} if variant.coverage is None else {"coverage": _coverage_json(variant.coverage)}),
        "metrics": {name: _metric_json(metric) for name, metric in variant.metrics.items()},
    }


def _categories_json(found: DayDrift) -> dict[str, Any]:
    return {
        "day": iso(found.day * DAY_MS)[:10],
        "counts": dict(found.counts),
        "reference": dict(found.reference),
        "responses_per_student": found.alike,
        "drift": asdict(found.drift),
    }


def _recommended_json(found: DayDrift) -> dict[str, Any]:
    """Return what is compared of the items; how often each cell's were shown would tell nobody anything."""
    return {
        "day": iso(found.day * DAY_MS)[:10],
        "shown": sum(found.counts.values()),
        "reference": sum(found.reference.values()),
        "items_per_student": found.alike,
        "drift": asdict(found.drift),
    }


def _coverage_json(found: Coverage) -> dict[str, Any]:
    return {"since": iso(found.since_ms), "items": found.items, "share": found.share}


def _metric_json(metric: MetricSummary) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.to_builtins(metric)
    del content["design_effect"]
    return content
