"""A group member on kafka-python: pure Python, always installed.

kafka-python calls rebalance callbacks on its I/O thread: the callback pauses the assigned partitions, and the worker's
thread resumes them with `seek`.
"""

from __future__ import annotations

import gc
import logging
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Final

import kafka
from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    LogTruncationError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)

from monitor.config import KafkaSettings
from monitor.sources.consumer import (
    FETCH_MS,
    METADATA_MS,
    SESSION_MS,
    OffsetOutOfRange,
    partition_name,
    partition_of,
)
from monitor.sources.kafka_connection import connect, translate_error
from monitor.sources.source import Record

log = logging.getLogger(__name__)
_FETCH_BYTES: Final = 3 << 20
"""Of all partitions in one fetch, as stored on the broker; decompressed records take several times as much memory."""
_PARTITION_FETCH_BYTES: Final = 2 << 20
_FILL_S: Final = 0.25
"""Longest time that a poll waits to become full while the partitions are known to have more."""
_FILL_POLL_MS: Final = 20
_COLLECT_EMPTY_POLLS: Final = 50
_CLOSE_MS: Final = 5_000
_REVOKED: Final = (ValueError, KeyError, AssertionError, IllegalStateError)
"""Errors of the client about a partition that a rebalance on its I/O thread has just taken away."""


def client_version() -> str:
    """Return the name and version of the client."""
    return f"kafka-python {kafka.__version__}"


class KafkaPythonConsumer:
    """See `Consumer`.

    Each poll takes everything that was fetched, and the records that do not fit are kept here. kafka-python 3.0.12
    cannot keep them: if a partition is paused while some of its parsed records are left, it may never be read again
    (`Fetcher.fetched_records` only resumes it when no other partition is in line). Parsed records are never left when
    a poll asks for all of them.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._paused: set[TopicPartition] = set()
        self._empty_polls = 0
        self._fetched: dict[TopicPartition, list[Record]] = {}
        """Records not returned yet, in the order in which partitions take their turn."""
        self._consumer = connect(
            KafkaConsumer,
            settings,
            group_id=settings.group_id,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=SESSION_MS,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            partition_assignment_strategy=(RangePartitionAssignor,),
            allow_auto_create_topics=False,
            fetch_max_wait_ms=FETCH_MS,
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            metadata_max_age_ms=METADATA_MS,
            metrics_enabled=False,
        )

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:
        self._consumer.subscribe(topics=topics, listener=_Rebalances(self._consumer, on_assign))
        # Wait for metadata before the first poll joins the group: a leader that does not know the partitions of a topic
        # yet assigns them to nobody, and rebalances the group again when it learns them.
        try:
            missing = set(topics) - self._consumer.topics()
        except KafkaError as error:
            raise translate_error(self._settings, error) from error
        if missing:
            log.info("joining the group without metadata topics=%s", ",".join(sorted(missing)))

    def assignment(self) -> Collection[str]:
        return {partition_name(*partition) for partition in self._consumer.assignment()}

    def seek(self, offsets: Mapping[str, int]) -> None:
        for name, offset in offsets.items():
            partition = partition_of(name)
            self._fetched.pop(partition, None)
            with suppress(*_REVOKED):
                self._consumer.seek(partition, offset)
                if partition not in self._paused:
                    self._consumer.resume(partition)

    def pause(self, partitions: Collection[str]) -> None:
        for partition in map(partition_of, partitions):
            self._paused.add(partition)
            with suppress(*_REVOKED):
                self._consumer.pause(partition)

    def resume(self, partitions: Collection[str]) -> None:
        for partition in map(partition_of, partitions):
            self._paused.discard(partition)
            with suppress(*_REVOKED):
                self._consumer.resume(partition)

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        """See `Consumer`: a poll with records waits for more that is known to be there, as full batches cost less."""
        fill_until = time.monotonic() + _FILL_S
        timeout_ms = int(timeout_s * 1000)
        missing = max_records - sum(map(len, self._readable().values()))
        while missing > 0:
            if missing < max_records:
                timeout_ms = min(timeout_ms, _FILL_POLL_MS)
            fetched = self._fetch(timeout_ms)
            missing = max_records - sum(map(len, self._readable().values()))
            if not fetched or self._backlog() < missing or time.monotonic() > fill_until:
                break
            timeout_ms = _FILL_POLL_MS
        polled: dict[str, Sequence[Record]] = {}
        for partition, records in self._readable().items():
            if max_records <= 0:
                break
            polled[partition_name(*partition)] = records[:max_records]
            del self._fetched[partition]
            if len(records) > max_records:
                self._fetched[partition] = records[max_records:]
            max_records -= len(records)
        return polled

    def _readable(self) -> dict[TopicPartition, list[Record]]:
        """Return the fetched records of assigned partitions that are not paused; forget those of revoked ones."""
        assigned, paused = self._consumer.assignment(), self._consumer.paused()
        self._fetched = {partition: records for partition, records in self._fetched.items() if partition in assigned}
        return {partition: records for partition, records in self._fetched.items() if partition not in paused}

    def _fetch(self, timeout_ms: int) -> bool:
        """Return whether more records have been fetched."""
        try:
            polled = self._consumer.poll(timeout_ms=timeout_ms, max_records=sys.maxsize)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError, LogTruncationError) as error:
            raise OffsetOutOfRange(str(error)) from error
        except KafkaError as error:
            raise translate_error(self._settings, error) from error
        for partition, records in polled.items():
            self._fetched.setdefault(partition, []).extend(records)
        if not polled:
            self._collect_garbage()
        return bool(polled)

    def _collect_garbage(self) -> None:
        """Free the memory that empty polls leave behind, now and then.

        In kafka-python 3.0.12 each leaves a timeout error in a reference cycle with its traceback, which keeps the
        fetch that was under way: a hundred megabytes a minute if the collector is left to its schedule.
        """
        self._empty_polls += 1
        if self._empty_polls >= _COLLECT_EMPTY_POLLS:
            self._empty_polls = 0
            gc.collect(1)

    def _backlog(self) -> int:
        """Return how many offsets are known to follow the fetched records."""
        backlog = 0
        for partition, records in self._readable().items():
            backlog += max(0, (self._end_offset(partition) or 0) - records[-1].offset - 1)
        return backlog

    def position(self, partition: str) -> int | None:
        place = partition_of(partition)
        if place in self._fetched:
            return self._fetched[place][0].offset
        position: int | None = None
        with suppress(KafkaError, *_REVOKED):
            position = self._consumer.position(place, timeout_ms=0)
        return position

    def end_offsets(self) -> Mapping[str, int]:
        ends = {partition_name(*each): self._end_offset(each) for each in self._consumer.assignment()}
        return {name: end for name, end in ends.items() if end is not None}

    def _end_offset(self, partition: TopicPartition) -> int | None:
        end: int | None = None
        with suppress(*_REVOKED):
            end = self._consumer.highwater(partition)
        return end

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        try:
            self._consumer.commit_async(_commit(offsets))
        except KafkaError as error:
            raise translate_error(self._settings, error) from error

    def close(self, offsets: Mapping[str, int]) -> None:
        if offsets:
            with suppress(KafkaError):
                self._consumer.commit(_commit(offsets), timeout_ms=_CLOSE_MS)
        self._consumer.close(autocommit=False, timeout_ms=_CLOSE_MS)


def _commit(offsets: Mapping[str, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {partition_of(name): OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()}


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python carries no types
    """Pauses assigned partitions until they are sought."""

    def __init__(self, consumer: KafkaConsumer, on_assign: Callable[[Collection[str]], None]) -> None:
        self._consumer = consumer
        self._on_assign = on_assign

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._consumer.pause(*assigned)
        for partition in assigned:
            # With any position kafka-python neither asks for the group's offset nor complains that there is none.
            self._consumer.seek(partition, 0)
        log.info("partitions assigned count=%d", len(assigned))
        self._on_assign([partition_name(*partition) for partition in assigned])

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        log.info("partitions revoked count=%d", len(revoked))
