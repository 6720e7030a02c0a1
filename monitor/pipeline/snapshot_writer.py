"""Keeping the history: a snapshot of every experiment at each full hour of event time, by whoever comes first."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

from monitor.analysis import snapshot as taken
from monitor.analysis import superfluous
from monitor.clock import HOUR_MS
from monitor.errors import AbMonitorError
from monitor.pipeline.watermark import Progress
from monitor.state import History, Reader

log = logging.getLogger(__name__)
_SHARE: Final = 0.01
"""Of one worker's time that the snapshots of all may take: while a backlog is read, hours pass faster than they can be
looked at."""
_TAKES_S: Final = 0.015
"""A snapshot, as long as this worker has taken none."""
_AT_MOST_S: Final = 1.0
"""What one is taken to have taken at most: a store that did not answer is not waited for a hundred times as long."""


class Historian:
    """Takes snapshots. A store that does not answer costs one of them, and never holds the worker up."""

    def __init__(self, reader: Reader, seconds: Callable[[], float] = time.monotonic) -> None:
        self._reader = reader
        self._seconds = seconds
        self._history = History(reader.store)
        self._hour = 0
        self._newest: int | None = None
        """Of all hours that there were snapshots of when this worker last looked."""
        self._takes_s = _TAKES_S
        self._not_before = 0.0

    def note(self, progress: Progress) -> None:
        """Take the snapshots of the hour that the watermark has reached, unless they are there.

        Decayed means and closed windows are as of the full hour, other sums those of this moment. After somebody else
        has taken some, this worker waits as if it had been itself.
        """
        hour = progress.watermark_ms() // HOUR_MS
        if self._seconds() < self._not_before or (hour <= self._hour and self._newest is not None):
            return
        try:
            self._look(hour)
        except AbMonitorError as error:
            # Whatever it is, the worker's own reading and writing says so, and knows what to do.
            self._hour, self._newest = hour, self._newest or 0
            log.info("no snapshot taken hour=%d reason=%s", hour, error)
        if hour > 0:  # 0 before the first event
            self._not_before = self._seconds() + self._takes_s / _SHARE

    def _look(self, hour: int) -> None:
        known = {name: self._history.hours(number) for name, number in self._reader.numbers.items()}
        seen, self._newest = self._newest, max([max(hours, default=0) for hours in known.values()], default=0)
        if hour <= self._hour:
            return
        if all(hour in hours for hours in known.values()):
            self._hour = hour
        elif seen is None or self._newest <= seen:
            self._hour = self._newest = hour
            started = self._seconds()
            try:
                self._take(hour, known)
            finally:
                self._takes_s = min(self._seconds() - started, _AT_MOST_S)

    def _take(self, hour: int, known: Mapping[str, set[int]]) -> None:
        numbers = self._reader.numbers
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
