"""Watermark alignment: during a backlog, partitions far ahead of the slowest partition in event time are paused."""

from __future__ import annotations

import logging
import time
from collections.abc import Set as AbstractSet
from typing import Final

from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.watermark import WatermarkTracker
from monitor.sources import Source

log = logging.getLogger(__name__)
_LOG_INTERVAL_S: Final = 60.0
_SLOWEST_POLL_INTERVAL_S: Final = 0.02


class WatermarkAligner:
    """Pauses assigned partitions that are more than `max_skew_ms` ahead of the watermark."""

    def __init__(self, source: Source, tracker: WatermarkTracker, writer: ShardedWriter, max_skew_ms: int) -> None:
        self._source = source
        self._tracker = tracker
        self._writer = writer
        self._max_skew_ms = max_skew_ms
        self._last_log_s = -_LOG_INTERVAL_S
        self.paused_partitions: AbstractSet[str] = frozenset()

    def align(self) -> None:
        """Pause the partitions that are too far ahead of the watermark, and resume all other partitions."""
        paused_partitions = self._tracker.partitions_to_pause(self._source.assignment(), self._max_skew_ms)
        self._source.pause(paused_partitions)
        self._source.resume(self.paused_partitions - paused_partitions)
        self.paused_partitions = paused_partitions
        now_s = time.monotonic()
        if paused_partitions and now_s - self._last_log_s > _LOG_INTERVAL_S:
            self._last_log_s = now_s
            log.info("watermark alignment paused partitions count=%d", len(paused_partitions))

    def resume_all(self) -> None:
        """Resume the paused partitions, for a worker that continues with the same source."""
        self._source.resume(self.paused_partitions)
        self.paused_partitions = frozenset()

    def all_partitions_paused(self) -> bool:
        """Return whether no record can arrive, because all assigned partitions wait for another worker's partition."""
        return bool(self.paused_partitions) and self.paused_partitions >= set(self._source.assignment())

    def wait_for_slowest(self) -> bool:
        """Return whether the positions of other workers should be read now, because paused partitions may resume.

        If all assigned partitions are paused, blocks for a moment and reads only the offset of the slowest partition.
        This read costs less than reading all positions.
        """
        slowest = self._tracker.slowest_partition()
        if slowest is None or not self.all_partitions_paused():
            return bool(self.paused_partitions)
        time.sleep(_SLOWEST_POLL_INTERVAL_S)
        partition, next_offset = slowest
        return self._writer.read_applied_offset(partition) != next_offset
