"""Keeping the history: a snapshot of every experiment at each full hour of event time, by whoever comes first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from monitor.errors import AbMonitorError
from monitor.history import HOUR_MS, superfluous
from monitor.history import snapshot as taken
from monitor.ingest.progress import Progress
from monitor.store import History, Reader

log = logging.getLogger(__name__)
_SHARE: Final = 0.01
"""Of a worker's time that snapshots may take: while a backlog is read, hours pass faster than they can be looked at."""


class Historian:
    """Takes snapshots. A store that does not answer costs one of them, and never holds the worker up."""

    def __init__(self, reader: Reader, seconds: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._seconds = seconds
        self._history = History(reader.store)
        self._hour = 0
        self._not_before = 0.0

    def note(self, progress: Progress) -> None:
        """Take the snapshots of the hour that the watermark has reached, unless they are there.

        Decayed means and closed windows are as of the full hour, other sums those of this moment.
        """
        hour = progress.watermark_ms() // HOUR_MS
        started = self._seconds()
        if hour <= self._hour or started < self._not_before:
            return
        self._hour = hour
        try:
            self._take(hour)
        except AbMonitorError as error:
            # Whatever it is, the worker's own reading and writing says so, and knows what to do.
            log.info("no snapshot taken hour=%d reason=%s", hour, error)
        now = self._seconds()
        self._not_before = now + (now - started) / _SHARE

    def _take(self, hour: int) -> None:
        numbers = self._reader.numbers
        known = {name: self._history.hours(number) for name, number in numbers.items()}
        if all(hour in hours for hours in known.values()):
            return
        summary = self._reader.summary(hour * HOUR_MS)
        for name, experiment in summary.experiments.items():
            found, hours = taken(experiment), known[name]
            if found is None or hour in hours:
                continue
            if found == self._history.latest(numbers[name], hours):
                # Nothing has changed since: an experiment that is over does not push its own history out.
                continue
            self._history.add(numbers[name], hour, found)
            if gone := superfluous({*hours, hour}):
                self._history.drop(numbers[name], gone)
