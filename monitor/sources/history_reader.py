"""Records that Kafka retains before given offsets, read without joining the consumer group or committing offsets."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable
from monitor.sources.consumer import Consumer
from monitor.sources.kafka_connection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ClusterAdmin,
    describe_missing_topic,
    kafka_connection_problem,
)
from monitor.sources.kafka_source import create_consumer
from monitor.sources.source import PartitionRecords
from monitor.state import Position

_POLL_TIMEOUT_S: Final = 0.2
_STALLED_AFTER_S: Final = 60.0
"""If no partition advances for this time, `poll` raises an error, and the caller connects again."""
_NOTHING: Final = range(0)


class HistoryReader:
    """Reads ranges of offsets. Used by a single thread.

    Methods may raise `DependencyUnavailable`, and `UsageError` if the cluster does not permit the request. Create a new
    reader after an error.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin = ClusterAdmin(settings)
        self._consumer: Consumer | None = None
        self._next_offsets: dict[str, int] = {}
        self._end_offsets: dict[str, int] = {}
        """End of the range of each unfinished partition."""
        self._progress_s = 0.0

    def find_ranges(self, targets: Mapping[str, Position]) -> dict[str, range]:
        """Return, by partition, the offsets before a target that Kafka retains.

        A partition of a topic that is not configured, or that was recreated since, has none of these offsets.
        """
        topics = {topic for topic in map(_topic, targets) if topic in self._settings.topics}
        descriptions = self._admin.describe_topics(topics) if topics else {}
        missing_topics = sorted(topics - descriptions.keys())
        if missing_topics:
            # The main job waits for the topic, too. Kafka may know the topic in a moment.
            raise DependencyUnavailable(describe_missing_topic(self._settings, missing_topics[0], ()))
        readable = [
            name
            for name, target in targets.items()
            if (description := descriptions.get(_topic(name))) is not None
            and name in description.partitions
            and target.log.topic_id in ("", description.topic_id)
        ]
        earliest_offsets = self._admin.list_offsets(readable, EARLIEST_OFFSET)
        end_offsets = self._admin.list_offsets(readable, LATEST_OFFSET)
        ranges = {
            # If the log was truncated, its end is before the target.
            name: range(earliest_offsets[name], min(targets[name].next_offset, end_offsets[name]))
            for name in readable
        }
        return {name: ranges.get(name, _NOTHING) for name in targets}

    def start(self, ranges: Mapping[str, range]) -> None:
        """Make `poll` return the records of the ranges, and of no other partition; empty ranges are finished."""
        unfinished = {name: offsets for name, offsets in ranges.items() if offsets}
        self._next_offsets = {name: offsets.start for name, offsets in unfinished.items()}
        self._end_offsets = {name: offsets.stop for name, offsets in unfinished.items()}
        self._progress_s = time.monotonic()
        if unfinished:
            if self._consumer is None:
                self._consumer = create_consumer(self._settings)
            self._consumer.assign(self._next_offsets.keys())
            self._consumer.seek(self._next_offsets)
            # `poll` has paused the partitions of finished ranges.
            self._consumer.resume(self._next_offsets.keys())

    def unfinished_partitions(self) -> Collection[str]:
        """Return the partitions that are not read to the end of their range."""
        return self._end_offsets.keys()

    def poll(self) -> Sequence[PartitionRecords]:
        """Return the next records; waits for a fraction of a second if there are none.

        `next_offset` of the last records of a range is the end of the range, also if the offsets before the end have no
        record. Raises `OffsetOutOfRange` if Kafka has deleted the next records meanwhile.
        """
        if self._consumer is None:
            return []
        polled = self._consumer.poll(_POLL_TIMEOUT_S, self._settings.max_poll_records)
        all_records = []
        for name in list(self._end_offsets):
            records = polled.get(name, ())
            start_offset, end_offset = self._next_offsets[name], self._end_offsets[name]
            records_of_range = [record for record in records if record.offset < end_offset]
            next_offset = records_of_range[-1].offset + 1 if records_of_range else start_offset
            if len(records_of_range) < len(records):
                next_offset = end_offset
            elif not records:
                # Transaction markers, aborted and compacted records have no record.
                next_offset = min(max(self._consumer.position(name) or 0, start_offset), end_offset)
            if next_offset > start_offset:
                self._next_offsets[name] = next_offset
                all_records.append(PartitionRecords(name, _topic(name), start_offset, records_of_range, next_offset))
            if next_offset >= end_offset:
                del self._end_offsets[name]
                self._consumer.pause((name,))
        now_s = time.monotonic()
        if all_records:
            self._progress_s = now_s
        elif now_s - self._progress_s > _STALLED_AFTER_S:
            raise DependencyUnavailable(
                kafka_connection_problem(self._settings)
                or f"Kafka at {self._settings.bootstrap_servers} has returned no records for {_STALLED_AFTER_S:g} s"
            )
        return all_records

    def close(self) -> None:
        """Close the connections."""
        self._admin.close()
        if self._consumer is not None:
            self._consumer.close({})


def _topic(partition: str) -> str:
    return partition.rpartition(":")[0]
