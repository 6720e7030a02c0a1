"""Partitions that wait for the slowest: those far ahead of it in event time, while there is a backlog."""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet
from typing import Final

from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.watermark import Progress
from monitor.sources import Source

log = logging.getLogger(__name__)
_SAID_S: Final = 60.0
_REST_S: Final = 0.02


class Holding:
    """Holds back what is more than `by_ms` ahead of the watermark."""

    def __init__(self, source: Source, progress: Progress, writer: ShardedWriter, by_ms: int) -> None:
        self._source = source
        self._progress = progress
        self._writer = writer
        self._by_ms = by_ms
        self._said_at = -_SAID_S
        self.held: AbstractSet[str] = frozenset()

    def align(self) -> None:
        """Read nothing more from partitions that are far ahead, until the slowest has caught up."""
        self.held = self._progress.ahead(self._source.own(), self._by_ms)
        self._source.hold(self.held)
        now = time.monotonic()
        if self.held and now - self._said_at > _SAID_S:
            self._said_at = now
            log.info("partitions far ahead in event time are held back count=%d", len(self.held))

    def all_held(self) -> bool:
        """Return whether nothing can come, because all of the source's partitions wait for somebody else's."""
        return bool(self.held) and self.held >= set(self._source.own())

    def rest(self) -> bool:
        """Wait for a moment, if nothing can come; return whether how far others are may make a difference now.

        It can to what is held, if what all wait for is elsewhere than is believed: to ask for that alone costs less
        than looking at everything.
        """
        slowest = self._progress.slowest()
        if slowest is None or not self.all_held():
            return bool(self.held)
        time.sleep(_REST_S)
        partition, offset = slowest
        return self._writer.applied_offset(partition) != offset
