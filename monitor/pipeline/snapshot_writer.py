"""Hourly snapshots of every experiment, by event time, written by the first worker whose watermark enters the hour."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from monitor.analysis import select_prunable_hours, take_snapshot
from monitor.clock import HOUR_MS
from monitor.errors import AbMonitorError
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import SnapshotLog, StoreReader

log = logging.getLogger(__name__)
_TIME_SHARE: Final = 0.01
"""Largest share of a worker's time for snapshots. During a backlog, the watermark passes hours faster than snapshots
can be written."""
_INITIAL_DURATION_S: Final = 0.015
"""Assumed duration of a snapshot before this worker has written any."""
_MAX_DURATION_S: Final = 1.0
"""Longer durations count as this duration, so that an outage of the store does not delay snapshots by minutes."""


class SnapshotWriter:
    """Writes due snapshots. If the store does not respond, a snapshot is omitted; the worker does not wait."""

    def __init__(self, reader: StoreReader, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._monotonic_s = monotonic_s
        self._snapshot_log = SnapshotLog(reader.store)
        self._last_hour = 0
        """Hour of the last snapshot that was written or found."""
        self._newest_stored_hour: int | None = None
        """Newest hour with a snapshot of any experiment; None before the first check."""
        self._duration_s = _INITIAL_DURATION_S
        self._next_check_s = 0.0

    def write_if_due(self, tracker: WatermarkTracker) -> None:
        """Write the snapshots of the watermark's hour, unless already stored.

        Decayed means and closed cohorts are as of the full hour; all other sums are as of the time of writing. If
        another worker has written snapshots, this worker waits as if it had written them. Nothing is written while the
        watermark waits for current end offsets: before the first confirmation it is days after 1970.
        """
        if tracker.needs_confirmation():
            return
        hour = tracker.watermark_ms() // HOUR_MS
        has_checked = self._newest_stored_hour is not None
        if self._monotonic_s() < self._next_check_s or (hour <= self._last_hour and has_checked):
            return
        try:
            self._write_unless_stored(hour)
        except AbMonitorError as error:
            # The next read or write of the worker fails with the same error, which the worker handles.
            self._last_hour, self._newest_stored_hour = hour, self._newest_stored_hour or 0
            log.debug("snapshot not written hour=%d reason=%s", hour, error)
        if hour > 0:  # 0 before the first event
            self._next_check_s = self._monotonic_s() + self._duration_s / _TIME_SHARE

    def _write_unless_stored(self, hour: int) -> None:
        """Write the snapshots of the hour, unless stored, or unless another worker has written since the last check."""
        stored_hours = {name: self._snapshot_log.read_hours(number) for name, number in self._reader.numbers.items()}
        previous_newest_hour = self._newest_stored_hour
        self._newest_stored_hour = max([max(hours, default=0) for hours in stored_hours.values()], default=0)
        if hour <= self._last_hour:
            return
        if all(hour in hours for hours in stored_hours.values()):
            self._last_hour = hour
        elif previous_newest_hour is None or self._newest_stored_hour <= previous_newest_hour:
            self._last_hour = self._newest_stored_hour = hour
            started_s = self._monotonic_s()
            try:
                self._write(hour, stored_hours)
            finally:
                self._duration_s = min(self._monotonic_s() - started_s, _MAX_DURATION_S)

    def _write(self, hour: int, stored_hours: Mapping[str, set[int]]) -> None:
        """Write the snapshot of every experiment that has changed, and delete snapshots that reports do not need."""
        numbers = self._reader.numbers
        summary = self._reader.read_summary(hour * HOUR_MS)
        for name, experiment in summary.experiments.items():
            snapshot, hours = take_snapshot(experiment), stored_hours[name]
            # Numbers that are being filled would be a false history, and frozen numbers do not change.
            is_settled = experiment.history.backfill is None and not experiment.history.is_archived
            if snapshot is None or hour in hours or not is_settled:
                continue
            if snapshot == self._snapshot_log.read_newest(numbers[name], hours):
                # Equal snapshots of an ended experiment would displace its history.
                continue
            self._snapshot_log.add(numbers[name], hour, snapshot)
            if prunable_hours := select_prunable_hours({*hours, hour}):
                self._snapshot_log.delete(numbers[name], prunable_hours)
