"""Health of the service: workers, arriving events by topic, freshness of the experiments, and what is wrong."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from monitor import __version__
from monitor.analysis import StoreSummary, format_timestamp
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import Settings, config_digest
from monitor.export.freshness import HISTORY_HOURS, Freshness, measure_freshness
from monitor.export.presentation import format_count, format_counted, format_duration
from monitor.pipeline import DataProblem, read_data_problems
from monitor.state import (
    Delivery,
    Failure,
    Outbox,
    ServiceRecords,
    StoreReader,
    TopicArrivals,
    WorkerRecord,
    read_arrivals,
    read_hourly_responses,
    read_service_records,
)

_RUNNING_MS: Final = 60_000
"""A worker that has not renewed its record for this time has ended, or does not reach the store."""
_RECENT_FAILURE_MS: Final = HOUR_MS
_RECOVERED_MS: Final = 600_000
"""A failure is over once a worker that started afterwards has run for this time."""
_LARGE_LAG_EVENTS: Final = 10_000
_MAX_REASONS: Final = 3
MAX_READING_AGE_S: Final = 5.0
"""A page is brought up to date as often."""
_Reading = TypeVar("_Reading")
_USER: Final = re.compile(r"(?<=//)[^/@,]*@")


@dataclass(frozen=True, slots=True)
class ServiceHealth:
    """State of the service at a time, from the records in the store."""

    now_ms: int
    store_address: str
    """URL of the store without user and password."""
    config_digest: str
    """Digest of the configuration of the process that reads."""
    data_problems: Sequence[DataProblem] = ()
    last_hour: Mapping[str, TopicArrivals] = field(default_factory=dict)
    last_day: Mapping[str, TopicArrivals] = field(default_factory=dict)
    service: ServiceRecords = field(default_factory=ServiceRecords)
    freshness: Mapping[str, Freshness] = field(default_factory=dict)
    """Experiment → freshness; absent are experiments without events, ended ones, and those with frozen numbers."""
    deliveries: Sequence[Delivery] = ()
    """Messages that wait for a channel, oldest first."""

    @property
    def lag_events(self) -> int | None:
        """Events that no worker has applied, by the newest record of a worker; None if unknown."""
        return None if self.service.newest_lag is None else self.service.newest_lag[1]

    @property
    def paused(self) -> dict[str, str]:
        """Dependency → why running workers wait for the dependency."""
        return {name: reason for worker in self._running_workers() for name, reason in worker.paused.items()}

    def conditions(self) -> list[str]:
        """Return a sentence for each thing that is wrong: events that do not count first."""
        return [*(problem.text for problem in self.data_problems), *self.service_conditions()]

    def service_conditions(self) -> list[str]:
        """Return the conditions of workers and experiments, without those of single topics."""
        stale = [f"{name}: {state.describe()}" for name, state in self.freshness.items() if state.is_stale]
        return [*self.worker_conditions(), *stale, *self.message_conditions()]

    def message_conditions(self) -> list[str]:
        """Return a sentence for each channel that has not accepted a message."""
        sentences = []
        for channel, deliveries in self.deliveries_by_channel().items():
            error = _delivery_error(deliveries)
            if error is not None:
                waiting = format_counted(len(deliveries), "message waits", "messages wait")
                sentences.append(f"{waiting} for the channel {channel}: {error}")
        return sentences

    def deliveries_by_channel(self) -> dict[str, list[Delivery]]:
        """Return channel → messages that wait, oldest first."""
        channels = dict.fromkeys(delivery.channel for delivery in self.deliveries)
        return {name: [delivery for delivery in self.deliveries if delivery.channel == name] for name in channels}

    def worker_conditions(self) -> list[str]:
        """Return a sentence for each thing that is wrong with the workers; empty if none has ever started."""
        sentences = [f"paused reason={name}: {reason}" for name, reason in self.paused.items()]
        failure = self.service.last_failure
        if failure is not None and not self._has_recovered(failure):
            age = format_duration(max(self.now_ms - failure.at_ms, 0) // 1000)
            sentences.append(f"a worker ended {age} ago with exit code {failure.exit_code}: {failure.reason}")
        running_workers = self._running_workers()
        if not running_workers and self.service.starts:
            sentences.append("no worker has reported within the last minute: is `ab-monitor run` running?")
        if len({worker.config_digest for worker in running_workers}) > 1:
            sentences.append("the workers have different configurations: restart those with the old one")
        if (self.lag_events or 0) >= _LARGE_LAG_EVENTS:
            sentences.append(f"{format_counted(self.lag_events or 0, 'event waits', 'events wait')} to be applied")
        return sentences

    def _running_workers(self) -> list[WorkerRecord]:
        return [worker for _, worker in self.service.workers if self.now_ms - worker.seen_ms < _RUNNING_MS]

    def _has_recovered(self, failure: Failure) -> bool:
        """Return whether the failure is an hour old, or a worker has run long enough since."""
        return self.now_ms - failure.at_ms >= _RECENT_FAILURE_MS or any(
            worker.started_ms >= failure.at_ms and self.now_ms - worker.started_ms >= _RECOVERED_MS
            for worker in self._running_workers()
        )

    def to_json(self) -> dict[str, Any]:
        """Return the object of `status --health --json`."""
        failure = self.service.last_failure
        return {
            "at": format_timestamp(self.now_ms),
            "conditions": self.conditions(),
            "problems": [problem.to_json() for problem in self.data_problems],
            "version": __version__,
            "config_digest": self.config_digest,
            "store": self.store_address,
            "lag_events": self.lag_events,
            "paused": self.paused,
            "starts": self.service.starts,
            "last_failure": None
            if failure is None
            else {"exit_code": failure.exit_code, "reason": failure.reason, "at": format_timestamp(failure.at_ms)},
            "workers": {
                name: {
                    "version": worker.version,
                    "config_digest": worker.config_digest,
                    "started_at": format_timestamp(worker.started_ms),
                    "seen_at": format_timestamp(worker.seen_ms),
                    "paused": worker.paused,
                }
                for name, worker in self.service.workers
            },
            "topics": {
                topic: {
                    "last_hour": _arrivals_json(self.last_hour.get(topic, TopicArrivals())),
                    "last_day": _arrivals_json(counts),
                }
                for topic, counts in self.last_day.items()
            },
            "experiments": {name: state.to_json() for name, state in self.freshness.items()},
            "messages": {
                channel: {"waiting": len(deliveries), "error": _delivery_error(deliveries)}
                for channel, deliveries in self.deliveries_by_channel().items()
            },
        }


def _delivery_error(deliveries: Sequence[Delivery]) -> str | None:
    """Return why the oldest failed message has failed; None before the first failed attempt."""
    return next((delivery.error for delivery in deliveries if delivery.error), None)


def read_freshness(reader: StoreReader, summary: StoreSummary, now_ms: int) -> dict[str, Freshness]:
    """Return experiment → freshness. Raises `StoreUnavailable`.

    Absent are experiments without events, ended ones, and those with frozen numbers.
    """
    freshness = {}
    for experiment in reader.experiments:
        newest_ms = summary.experiments[experiment.name].last_event_at_ms
        has_ended = experiment.ends_at_ms is not None and experiment.ends_at_ms <= now_ms
        if newest_ms is None or has_ended or summary.experiments[experiment.name].history.frozen_at_ms is not None:
            continue
        newest_hour = newest_ms // HOUR_MS
        hourly_responses = read_hourly_responses(
            reader.store,
            reader.numbers[experiment.name],
            len(experiment.variants),
            range(newest_hour - HISTORY_HOURS, newest_hour + 1),
        )
        freshness[experiment.name] = measure_freshness(hourly_responses, newest_ms, now_ms)
    return freshness


def read_health(
    reader: StoreReader, settings: Settings, summary: StoreSummary, now_ms: int, digest: str | None = None
) -> ServiceHealth:
    """Return the health of the service; `summary` has the times of the newest events. Raises `StoreUnavailable`.

    `digest` is the `config_digest` of the settings; None computes it, which takes longer with many experiments.
    """
    arrivals = read_arrivals(reader.store, now_ms - DAY_MS, now_ms)
    return ServiceHealth(
        now_ms=now_ms,
        store_address=_USER.sub("", settings.store.url),
        config_digest=config_digest(settings) if digest is None else digest,
        data_problems=read_data_problems(reader, arrivals, now_ms),
        last_hour=arrivals.since(now_ms - HOUR_MS),
        last_day=arrivals.since(now_ms - DAY_MS),
        service=read_service_records(reader.store),
        freshness=read_freshness(reader, summary, now_ms),
        deliveries=Outbox(reader.store).read_deliveries(),
    )


class RecentReading(Generic[_Reading]):
    """A reading of the store that all requests of the last seconds share: a new one reads thousands of keys."""

    def __init__(
        self,
        read: Callable[[], _Reading],
        max_age_s: float = MAX_READING_AGE_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read = read
        self._max_age_s = max_age_s
        self._monotonic_s = monotonic_s
        self._lock = threading.Lock()
        self._last_reading: tuple[float, _Reading] | None = None
        """(monotonic time before the reading, its result)."""

    def read(self) -> _Reading:
        """Return the last reading, or a new one if the last is older. Raises the errors of `read`.

        Of several threads, one reads and the others wait.
        """
        with self._lock:
            now_s = self._monotonic_s()
            if self._last_reading is None or now_s - self._last_reading[0] > self._max_age_s:
                self._last_reading = now_s, self._read()
            return self._last_reading[1]


def health_facts(health: ServiceHealth) -> list[tuple[str, str]]:
    """Return (label, text) of the facts about the service, for the page and the terminal."""
    lag = "unknown" if health.lag_events is None else format_count(health.lag_events)
    facts = [
        ("events that wait", lag),
        ("paused", "; ".join(f"{name}: {reason}" for name, reason in health.paused.items()) or "no"),
        ("version", __version__),
        ("configuration", health.config_digest),
        ("store", health.store_address),
        ("messages that wait", format_count(len(health.deliveries))),
        ("starts of workers", format_count(health.service.starts)),
    ]
    failure = health.service.last_failure
    if failure is not None:
        facts.append(
            ("last failure", f"exit code {failure.exit_code}, {format_timestamp(failure.at_ms)}: {failure.reason}")
        )
    for name, worker in health.service.workers:
        age = format_duration(max(health.now_ms - worker.seen_ms, 0) // 1000)
        facts.append(
            (f"worker {name}", f"version {worker.version}, configuration {worker.config_digest}, reported {age} ago")
        )
    return facts


def arrival_rows(arrivals: Mapping[str, TopicArrivals]) -> list[tuple[str, list[str]]]:
    """Return (label, text for each topic in the order of `arrivals`) of the counts of arriving events."""
    counts = list(arrivals.values())
    numbers: list[tuple[str, list[int]]] = [
        ("received", [topic.received for topic in counts]),
        ("rejected", [topic.rejected.total() for topic in counts]),
        ("skipped", [topic.outcomes["skipped"] for topic in counts]),
        ("late", [topic.outcomes["late"] for topic in counts]),
        ("unmatched", [topic.unmatched for topic in counts]),
        ("ignored", [topic.ignored.total() for topic in counts]),
    ]
    rows = [(label, list(map(format_count, row))) for label, row in numbers]
    reasons = [
        ", ".join(f"{reason} {format_count(number)}" for reason, number in topic.rejected.most_common(_MAX_REASONS))
        for topic in counts
    ]
    return [*rows, ("reasons", reasons)] if any(reasons) else rows


def _arrivals_json(counts: TopicArrivals) -> dict[str, Any]:
    return {
        "received": counts.received,
        "rejected": dict(counts.rejected.most_common()),
        "outcomes": dict(Counter(counts.outcomes).most_common()),
        "unmatched": counts.unmatched,
        "ignored": dict(counts.ignored.most_common()),
        "undeclared": [
            {"experiment": experiment, "variant": variant or None, "responses": responses}
            for (experiment, variant), responses in counts.undeclared.most_common()
        ],
    }
