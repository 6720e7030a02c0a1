"""What this process says of itself on /metrics; every name in one place."""

from __future__ import annotations

from collections import Counter as Counter_
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
)

from monitor.events import REASONS

Family = TypeVar("Family", Counter, Gauge, Histogram, Info)
OUTCOMES: Final = ("applied", "duplicate", "revised", "late", "skipped", "rejected")


_PARTITION: Final = ("topic", "partition")


@dataclass(frozen=True, slots=True)
class Exported:
    """One metric as it is scraped; a counter's name carries its suffix, a histogram's does not."""

    name: str
    kind: Literal["gauge", "counter", "histogram", "info", "unknown"]
    labels: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


PROCESS_METRICS: Final = (
    Exported("abmonitor_topic_info", "info", ("topic", "event_type"), "Which type of event each topic has"),
    Exported("abmonitor_events_total", "counter", ("topic", "outcome"), "Events by outcome"),
    Exported("abmonitor_rejected_events_total", "counter", ("topic", "reason"), "Refused events by reason"),
    Exported("abmonitor_consumer_lag_events", "gauge", _PARTITION, "Events not yet applied"),
    # 0 at the end of the partition.
    Exported(
        "abmonitor_consumer_lag_seconds", "gauge", _PARTITION, "Age of the newest applied event while more are waiting"
    ),
    # Attribution, the write of positions and effects, and what is left to wait for its reply after reading ahead.
    Exported(
        "abmonitor_commit_seconds",
        "histogram",
        (),
        "Time to apply and commit one batch",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    ),
    Exported("abmonitor_batch_events", "histogram", (), "Events per commit", (1, 3, 10, 30, 100, 300, 1000, 3000, 1e4)),
    # Newest event of each poll and partition.
    Exported(
        "abmonitor_event_delay_seconds",
        "histogram",
        (),
        "Time from an event's timestamp to its commit",
        (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86_400),
    ),
    # Batches that were not applied because another worker had moved the positions or changed a row.
    Exported("abmonitor_commit_conflicts_total", "counter", (), "Commits refused because the store had moved on"),
    # With kafka.on_lost_history = "continue".
    Exported("abmonitor_lost_events_total", "counter", _PARTITION, "Events gone from Kafka before they were applied"),
    # Times the consumer joined its group anew because nothing arrived although there was something.
    Exported("abmonitor_consumer_restarts_total", "counter", (), "Stalled consumers replaced"),
    Exported("abmonitor_store_up", "gauge", (), "1 if the store answered last"),
    Exported("abmonitor_paused", "gauge", (), "1 while consumption waits for a dependency"),
)


class Telemetry:
    """The process metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.topics = self._metric(Info, "abmonitor_topic_info")
        self.events = self._metric(Counter, "abmonitor_events_total")
        self.rejected = self._metric(Counter, "abmonitor_rejected_events_total")
        self.lag_events = self._metric(Gauge, "abmonitor_consumer_lag_events")
        self.lag_seconds = self._metric(Gauge, "abmonitor_consumer_lag_seconds")
        self.commit_seconds = self._metric(Histogram, "abmonitor_commit_seconds")
        self.batch_events = self._metric(Histogram, "abmonitor_batch_events")
        self.event_delay_seconds = self._metric(Histogram, "abmonitor_event_delay_seconds")
        self.commit_conflicts = self._metric(Counter, "abmonitor_commit_conflicts_total")
        self.lost = self._metric(Counter, "abmonitor_lost_events_total")
        self.restarts = self._metric(Counter, "abmonitor_consumer_restarts_total")
        self.store_up = self._metric(Gauge, "abmonitor_store_up")
        self.paused = self._metric(Gauge, "abmonitor_paused")
        self._lagging: set[tuple[str, str]] = set()

    def _metric(self, family: Callable[..., Family], name: str) -> Family:
        """Return a metric of `PROCESS_METRICS`, registered."""
        (metric,) = (each for each in PROCESS_METRICS if each.name == name)
        options = {"buckets": metric.buckets} if metric.buckets else {}
        return family(name.removesuffix("_info"), metric.help, metric.labels, registry=self.registry, **options)

    def show_lags(self, own: Collection[str], lags: Iterable[tuple[str, int, float]]) -> None:
        """Show how many events, and seconds, partitions are behind; none that is somebody else's by now."""
        shown = {_place(partition) for partition in own}
        for partition, events, seconds in lags:
            place = _place(partition)
            self._lagging.add(place)
            self.lag_events.labels(*place).set(events)
            self.lag_seconds.labels(*place).set(seconds)
        for place in self._lagging - shown:
            self.lag_events.remove(*place)
            self.lag_seconds.remove(*place)
        self._lagging &= shown

    def expect(self, topics: Mapping[str, str]) -> None:
        """Export every topic's type of event, and its outcomes and reasons from the start, at 0.

        `topics` has a topic for each type. Prometheus sees no increase in a series that begins above 0.
        """
        for event_type, topic in topics.items():
            self.topics.labels(topic, event_type).info({})
            for outcome in OUTCOMES:
                self.events.labels(topic, outcome)
            for reason in REASONS:
                self.rejected.labels(topic, reason)

    def count(self, topics: Mapping[str, str], outcomes: Mapping[tuple[str, str], int]) -> None:
        """Count what became of events; `topics` names each kind's."""
        for (kind, outcome), events in outcomes.items():
            self.events.labels(topics[kind], outcome).inc(events)

    def see_batch(self, events: int, newest_ms: Iterable[int], now_ms: int) -> None:
        """Show the size of a batch, and how old the newest events of its partitions are."""
        self.batch_events.observe(events)
        for each in newest_ms:
            self.event_delay_seconds.observe(max(now_ms - each, 0) / 1000)

    def outcomes(self) -> Counter_[str]:
        """Return how many events had each outcome, over all topics."""
        found: Counter_[str] = Counter_()
        for family in self.events.collect():
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    found[sample.labels["outcome"]] += int(sample.value)
        return found


def _place(partition: str) -> tuple[str, str]:
    topic, _, number = partition.rpartition(":")
    return topic, number
