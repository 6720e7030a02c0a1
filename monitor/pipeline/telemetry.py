"""Metrics of the worker process on /metrics, and log lines on the lag."""

from __future__ import annotations

import logging
import time
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

from monitor.config import ReloadResult
from monitor.decoding import IGNORED_REASONS
from monitor.events import REJECTION_REASONS
from monitor.pipeline.pauses import DEPENDENCIES
from monitor.state import BackfillState

Family = TypeVar("Family", Counter, Gauge, Histogram, Info)
OUTCOMES: Final = ("applied", "duplicate", "revised", "late", "skipped", "rejected")
NOTIFICATION_OUTCOMES: Final = ("sent", "failed", "dropped")
_PARTITION_LABELS: Final = ("topic", "partition")
_LAG_REPORT_INTERVAL_S: Final = 10.0
_MAX_RATE_PERIOD_S: Final = 60.0
"""After a longer time without reports the worker has waited for a dependency, so the change of the lag is no rate."""
_MIN_REPORTED_LAG: Final = 10_000
"""Smallest lag, in events, that is logged."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ExportedMetric:
    """Description of a metric: a counter's name includes the suffix `_total`, a histogram's name has no suffix."""

    name: str
    metric_type: Literal["gauge", "counter", "histogram", "info", "unknown"]
    label_names: tuple[str, ...]
    help: str
    buckets: tuple[float, ...] = ()


PROCESS_METRICS: Final = (
    ExportedMetric(
        "abmonitor_topic_info",
        "info",
        ("topic", "event_type"),
        "Type of the events of the topic (response or feedback), as a label; the value is always 1.",
    ),
    ExportedMetric(
        "abmonitor_events_total",
        "counter",
        ("topic", "outcome"),
        "Events read from the topic, by outcome: applied, duplicate, revised, late, skipped or rejected.",
    ),
    ExportedMetric(
        "abmonitor_rejected_events_total",
        "counter",
        ("topic", "reason"),
        "Events that were rejected and written to the dead-letter topic, by reason of the rejection.",
    ),
    ExportedMetric(
        "abmonitor_ignored_records_total",
        "counter",
        ("topic", "reason"),
        "Records without events that were not rejected: tombstones, records of other kinds (filtered), empty lists.",
    ),
    ExportedMetric(
        "abmonitor_consumer_lag_events",
        "gauge",
        _PARTITION_LABELS,
        "Number of events in the partition that are not applied yet.",
    ),
    # 0 if the partition is read to its end.
    ExportedMetric(
        "abmonitor_consumer_lag_seconds",
        "gauge",
        _PARTITION_LABELS,
        "Age of the newest applied event of the partition while more events wait, in seconds; 0 if none waits.",
    ),
    # Applying the events, and waiting for the commit's reply, without the time for polling and decoding in between.
    ExportedMetric(
        "abmonitor_commit_seconds",
        "histogram",
        (),
        "Time to apply and commit one batch, in seconds, without the time to read and decode the next batch.",
        (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
    ),
    ExportedMetric(
        "abmonitor_batch_events",
        "histogram",
        (),
        "Number of events per committed batch.",
        (1, 3, 10, 30, 100, 300, 1000, 3000, 1e4),
    ),
    # Of the newest event of each poll and partition.
    ExportedMetric(
        "abmonitor_event_delay_seconds",
        "histogram",
        (),
        "Time from an event's timestamp to its commit, in seconds, for the newest event of each partition in a batch.",
        (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60, 600, 3600, 86_400),
    ),
    # Commits that were not applied, because another worker had changed a position or a row.
    ExportedMetric(
        "abmonitor_commit_conflicts_total",
        "counter",
        (),
        "Commits that the store rejected because another worker had changed a position or a row; they are retried.",
    ),
    # With kafka.on_lost_history = "continue".
    ExportedMetric(
        "abmonitor_lost_events_total",
        "counter",
        _PARTITION_LABELS,
        "Events that Kafka deleted before the worker applied them, and that the worker skipped.",
    ),
    # Consumers that rejoined the group because a partition had records but returned none.
    ExportedMetric(
        "abmonitor_consumer_restarts_total",
        "counter",
        (),
        "Number of times that the worker rejoined its consumer group because its Kafka consumer had stalled.",
    ),
    ExportedMetric(
        "abmonitor_store_up", "gauge", (), "1 if the last read or write of the store succeeded, 0 if it failed."
    ),
    ExportedMetric(
        "abmonitor_paused",
        "gauge",
        ("reason",),
        "1 while the worker waits for a dependency, 0 otherwise. The label reason is store, kafka or dead_letters.",
    ),
    # Written by every worker, for the experiments of its configuration that have been backfilled.
    ExportedMetric(
        "abmonitor_backfill_progress_ratio",
        "gauge",
        ("experiment",),
        "Share of the earlier events that the backfill of the experiment has applied; 1 if it is complete.",
    ),
    ExportedMetric(
        "abmonitor_backfill_failed",
        "gauge",
        ("experiment",),
        "1 if the last attempt to backfill the experiment has failed, 0 otherwise.",
    ),
    ExportedMetric(
        "abmonitor_notifications_total",
        "counter",
        ("channel", "outcome"),
        "Attempts of this worker to send a message to the channel: sent, failed, or dropped after three days.",
    ),
    # Of the worker that delivers messages; other workers have no series.
    ExportedMetric(
        "abmonitor_notifications_waiting",
        "gauge",
        ("channel",),
        "Messages that the channel has not received yet. Only the worker that delivers messages has the metric.",
    ),
    ExportedMetric(
        "abmonitor_config_last_reload_successful",
        "gauge",
        (),
        "1 if the configuration was valid when it was last read, 0 if the running one stayed in force.",
    ),
    ExportedMetric(
        "abmonitor_config_last_reload_success_timestamp_seconds",
        "gauge",
        (),
        "Time at which a valid configuration was last read, in seconds since the Unix epoch.",
    ),
    ExportedMetric(
        "abmonitor_config_info",
        "info",
        ("digest",),
        "Digest of the experiments in force, as a label; the value is always 1.",
    ),
    ExportedMetric(
        "abmonitor_build_info",
        "info",
        ("version", "config_digest"),
        "Version and digest of the configuration without secrets, as labels; the value is always 1.",
    ),
)


class Telemetry:
    """Process metrics of a worker, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)
        self.topic_info = self._metric(Info, "abmonitor_topic_info")
        self.events = self._metric(Counter, "abmonitor_events_total")
        self.rejected_events = self._metric(Counter, "abmonitor_rejected_events_total")
        self.ignored_records = self._metric(Counter, "abmonitor_ignored_records_total")
        self.lag_events = self._metric(Gauge, "abmonitor_consumer_lag_events")
        self.lag_seconds = self._metric(Gauge, "abmonitor_consumer_lag_seconds")
        self.commit_seconds = self._metric(Histogram, "abmonitor_commit_seconds")
        self.batch_events = self._metric(Histogram, "abmonitor_batch_events")
        self.event_delay_seconds = self._metric(Histogram, "abmonitor_event_delay_seconds")
        self.commit_conflicts = self._metric(Counter, "abmonitor_commit_conflicts_total")
        self.lost_events = self._metric(Counter, "abmonitor_lost_events_total")
        self.consumer_restarts = self._metric(Counter, "abmonitor_consumer_restarts_total")
        self.store_up = self._metric(Gauge, "abmonitor_store_up")
        self.paused = self._metric(Gauge, "abmonitor_paused")
        for dependency in DEPENDENCIES:
            self.paused.labels(dependency).set(0)
        self.backfill_progress_ratio = self._metric(Gauge, "abmonitor_backfill_progress_ratio")
        self.backfill_failed = self._metric(Gauge, "abmonitor_backfill_failed")
        self.notifications = self._metric(Counter, "abmonitor_notifications_total")
        self.notifications_waiting = self._metric(Gauge, "abmonitor_notifications_waiting")
        self.build_info = self._metric(Info, "abmonitor_build_info")
        self.config_last_reload_successful = self._metric(Gauge, "abmonitor_config_last_reload_successful")
        self.config_last_reload_success = self._metric(Gauge, "abmonitor_config_last_reload_success_timestamp_seconds")
        self.record_reload(ReloadResult(is_successful=True, text="started"))
        self.config_info = self._metric(Info, "abmonitor_config_info")
        self._lag_labels: set[tuple[str, str]] = set()

    def _metric(self, family: Callable[..., Family], name: str) -> Family:
        """Return the registered metric for an entry of `PROCESS_METRICS`."""
        (metric,) = (metric for metric in PROCESS_METRICS if metric.name == name)
        options = {"buckets": metric.buckets} if metric.buckets else {}
        return family(name.removesuffix("_info"), metric.help, metric.label_names, registry=self.registry, **options)

    def record_reload(self, result: ReloadResult) -> None:
        """Set whether the last reload of the configuration succeeded, and when."""
        self.config_last_reload_successful.set(result.is_successful)
        if result.is_successful:
            self.config_last_reload_success.set_to_current_time()

    def set_config(self, digest: str) -> None:
        """Set the digest of the experiments in force; the series of the previous digest is removed."""
        self.config_info.clear()
        self.config_info.labels(digest).info({})

    def set_lags(self, assignment: Collection[str], lags: Iterable[tuple[str, int, float]]) -> None:
        """Set the lag of partitions: (partition, events, seconds); remove partitions outside the assignment.

        The last lag of a revoked partition would otherwise remain, and raise alerts, permanently.
        """
        assigned_labels = {_partition_labels(partition) for partition in assignment}
        for partition, events, seconds in lags:
            labels = _partition_labels(partition)
            self._lag_labels.add(labels)
            self.lag_events.labels(*labels).set(events)
            self.lag_seconds.labels(*labels).set(seconds)
        for labels in self._lag_labels - assigned_labels:
            self.lag_events.remove(*labels)
            self.lag_seconds.remove(*labels)
        self._lag_labels &= assigned_labels

    def set_backfills(self, states: Mapping[str, BackfillState]) -> None:
        """Set the metrics of backfills; `states` is the state by name of the experiment. Others have no series."""
        self.backfill_progress_ratio.clear()
        self.backfill_failed.clear()
        for name, state in states.items():
            self.backfill_progress_ratio.labels(name).set(state.progress_ratio)
            self.backfill_failed.labels(name).set(state.state == "failed")

    def initialize_channels(self, channels: Iterable[str]) -> None:
        """Create the series of every channel of messages, with all outcomes at 0."""
        for channel in channels:
            for outcome in NOTIFICATION_OUTCOMES:
                self.notifications.labels(channel, outcome)

    def set_waiting_notifications(self, waiting: Mapping[str, int]) -> None:
        """Set the number of waiting messages by channel; other channels have no series."""
        self.notifications_waiting.clear()
        for channel, messages in waiting.items():
            self.notifications_waiting.labels(channel).set(messages)

    def initialize_topics(self, topics: Mapping[str, str]) -> None:
        """Create the series of every topic, by event type, with all outcomes and reasons at 0.

        Prometheus computes no increase from the first value of a series, so a series must begin at 0.
        """
        for event_type, topic in topics.items():
            self.topic_info.labels(topic, event_type).info({})
            for outcome in OUTCOMES:
                self.events.labels(topic, outcome)
            for reason in REJECTION_REASONS:
                self.rejected_events.labels(topic, reason)
            for ignored_reason in IGNORED_REASONS:
                self.ignored_records.labels(topic, ignored_reason)

    def count_outcomes(self, topics: Mapping[str, str], outcomes: Mapping[tuple[str, str], int]) -> None:
        """Count events by outcome; `topics` is the topic by event type."""
        for (event_type, outcome), events in outcomes.items():
            self.events.labels(topics[event_type], outcome).inc(events)

    def observe_batch(self, events: int, newest_event_ms: Iterable[int], now_ms: int) -> None:
        """Observe the size of a committed batch, and the age of the newest event of each partition."""
        self.batch_events.observe(events)
        for event_time_ms in newest_event_ms:
            self.event_delay_seconds.observe(max(now_ms - event_time_ms, 0) / 1000)

    def outcome_totals(self) -> Counter_[str]:
        """Return the number of events by outcome, over all topics; ignored records have the outcome "ignored"."""
        totals: Counter_[str] = Counter_()
        for family in (*self.events.collect(), *self.ignored_records.collect()):
            for sample in family.samples:
                if sample.name.endswith("_total"):
                    totals[sample.labels.get("outcome", "ignored")] += int(sample.value)
        return totals


def _partition_labels(partition: str) -> tuple[str, str]:
    topic, _, number = partition.rpartition(":")
    return topic, number


class LagReporter:
    """Logs every ten seconds, while a backlog is read, the lag of all workers and the expected end of the backlog."""

    def __init__(self, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._monotonic_s = monotonic_s
        self._last_report_s = monotonic_s()
        self._last_lag_events: int | None = None
        self._is_catching_up = False

    def report(self, lag_events: int, processed_records: int) -> None:
        """Log the lag of all workers, unless the last report is recent or the lag is small.

        `processed_records` is the number of records that this worker has committed so far.
        """
        now_s = self._monotonic_s()
        elapsed_s = now_s - self._last_report_s
        if elapsed_s > _MAX_RATE_PERIOD_S:
            self._last_lag_events = None
        if elapsed_s < _LAG_REPORT_INTERVAL_S and self._last_lag_events is not None:
            return
        if lag_events >= _MIN_REPORTED_LAG:
            decrease_per_s = (
                (self._last_lag_events - lag_events) / elapsed_s if self._last_lag_events is not None else 0.0
            )
            end = "unknown" if self._last_lag_events is None else "never at this rate"
            if decrease_per_s > 0:
                end = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + lag_events / decrease_per_s))
            log.info(
                "catching up lag=%d decrease_per_second=%d processed_records=%d expected_end=%s",
                lag_events,
                decrease_per_s,
                processed_records,
                end,
            )
            self._is_catching_up = True
        elif self._is_catching_up:
            log.info("caught up lag=%d processed_records=%d", lag_events, processed_records)
            self._is_catching_up = False
        self._last_report_s, self._last_lag_events = now_s, lag_events
