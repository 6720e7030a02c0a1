"""What this process says of itself on /metrics; every name in one place."""

from __future__ import annotations

from collections import Counter as Counter_
from collections.abc import Collection, Iterable, Mapping
from typing import Final

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

OUTCOMES: Final = ("applied", "duplicate", "revised", "late", "skipped", "rejected")


class Telemetry:
    """The process metrics of one worker, in a registry of their own."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        self.registry = registry
        self.topics = Info(
            "abmonitor_topic", "Which type of event each topic has", ["topic", "event_type"], registry=registry
        )
        # What became of each event: applied, duplicate, revised, late, skipped or rejected.
        self.events = Counter("abmonitor_events", "Events by outcome", ["topic", "outcome"], registry=registry)
        # Why events were refused; the reasons are those of docs/events.md.
        self.rejected = Counter(
            "abmonitor_rejected_events", "Refused events by reason", ["topic", "reason"], registry=registry
        )
        # Events between the position and the end of the partition.
        self.lag_events = Gauge(
            "abmonitor_consumer_lag_events", "Events not yet applied", ["topic", "partition"], registry=registry
        )
        # Age of the newest applied event while there are newer ones; 0 at the end of the partition.
        self.lag_seconds = Gauge(
            "abmonitor_consumer_lag_seconds",
            "Age of the newest applied event while more are waiting",
            ["topic", "partition"],
            registry=registry,
        )
        # Attribution, the write of positions and effects, and what is left to wait for its reply after reading ahead.
        self.commit_seconds = Histogram(
            "abmonitor_commit_seconds",
            "Time to apply and commit one batch",
            registry=registry,
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
        )
        self.batch_events = Histogram(
            "abmonitor_batch_events",
            "Events per commit",
            registry=registry,
            buckets=(1, 3, 10, 30, 100, 300, 1000, 3000, 10_000),
        )
        # Newest event of each poll and partition: from its timestamp to its commit.
        self.event_delay_seconds = Histogram(
            "abmonitor_event_delay_seconds",
            "Time from an event's timestamp to its commit",
            registry=registry,
            buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86_400),
        )
        # Batches that were not applied because somebody else had moved the positions or changed a row.
        self.commit_conflicts = Counter(
            "abmonitor_commit_conflicts", "Commits refused because the store had moved on", registry=registry
        )
        # Offsets that Kafka no longer had when they were to be applied (kafka.on_lost_history = "continue").
        self.lost = Counter(
            "abmonitor_lost_events",
            "Events gone from Kafka before they were applied",
            ["topic", "partition"],
            registry=registry,
        )
        # Times the consumer joined its group anew because nothing arrived although there was something.
        self.restarts = Counter("abmonitor_consumer_restarts", "Stalled consumers replaced", registry=registry)
        self.store_up = Gauge("abmonitor_store_up", "1 if the store answered last", registry=registry)
        self.paused = Gauge("abmonitor_paused", "1 while consumption waits for a dependency", registry=registry)
        self.store_up.set(0)
        self.paused.set(0)
        self._lagging: set[tuple[str, str]] = set()

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
