"""Reports of a worker: its record in the store, and log lines on events that do not count."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence

from monitor.clock import HOUR_MS, Clock
from monitor.errors import AbMonitorError
from monitor.pipeline.data_problems import DataProblem, find_data_problems
from monitor.state import (
    ArrivalLog,
    StoreReader,
    WorkerRecord,
    read_arrivals,
    read_stored_experiments,
    remove_worker,
    write_worker,
)

log = logging.getLogger(__name__)
_RECORD_INTERVAL_S = 10.0
_PROBLEM_INTERVAL_S = 60.0


class StatusReporter:
    """Renews the record of a worker every ten seconds, and logs ongoing data problems once a minute.

    If the store does not respond, a report is omitted; the worker does not wait.
    """

    def __init__(
        self,
        reader: StoreReader,
        *,
        version: str,
        config_digest: str,
        clock: Clock,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._version = version
        self._config_digest = config_digest
        self._clock = clock
        self._monotonic_s = monotonic_s
        self._worker_id = f"{socket.gethostname()}:{os.getpid()}"
        self._started_ms = clock()
        self._next_record_s = 0.0
        self._next_problems_s = 0.0
        self._last_paused: Mapping[str, str] = {}
        self.data_problems: Sequence[str] = ()
        """Sentences about events of the last hour that do not count, as of the last report."""

    def report(self, paused: Mapping[str, str], lag_events: int | None) -> None:
        """Report if due: `paused` are the reasons by dependency, `lag_events` the events that no worker has applied."""
        now_s = self._monotonic_s()
        try:
            if now_s >= self._next_record_s or paused.keys() != self._last_paused.keys():
                self._next_record_s, self._last_paused = now_s + _RECORD_INTERVAL_S, paused
                record = WorkerRecord(
                    self._version, self._config_digest, self._started_ms, self._clock(), dict(paused), lag_events
                )
                write_worker(self._reader.store, self._worker_id, record)
                self._report_data_problems(now_s)
        except AbMonitorError as error:
            # The next read or write of the worker fails with the same error, which the worker handles.
            log.debug("status not reported reason=%s", error)

    def _report_data_problems(self, now_s: float) -> None:
        """Read the data problems, and log ongoing ones unless the last minute has a log line."""
        now_ms = self._clock()
        arrivals = read_arrivals(self._reader.store, now_ms - HOUR_MS, now_ms)
        problems = read_data_problems(self._reader, arrivals, now_ms)
        self.data_problems = tuple(problem.text for problem in problems)
        ongoing_texts = [problem.text for problem in problems if problem.is_ongoing]
        if ongoing_texts and now_s >= self._next_problems_s:
            self._next_problems_s = now_s + _PROBLEM_INTERVAL_S
            for text in ongoing_texts:
                log.warning("%s", text)

    def close(self) -> None:
        """Remove the record of the worker."""
        try:
            remove_worker(self._reader.store, self._worker_id)
        except AbMonitorError as error:
            log.debug("worker not removed reason=%s", error)


def read_data_problems(reader: StoreReader, arrivals: ArrivalLog, now_ms: int) -> list[DataProblem]:
    """Return the data problems of the last hour, which `arrivals` includes. Raises `StoreUnavailable`."""
    archived_experiments = {name for name, history in reader.histories.items() if history.is_archived}
    declared_variants = {
        experiment.name: experiment.variants
        for experiment in reader.experiments
        if experiment.name not in archived_experiments
    }
    stored_experiments = read_stored_experiments(reader.store).keys()
    removed_experiments = archived_experiments | (stored_experiments - declared_variants.keys())
    return find_data_problems(arrivals, declared_variants, removed_experiments, now_ms)
