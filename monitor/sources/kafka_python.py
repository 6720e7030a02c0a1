"""The consumer on kafka-python, which is pure Python and always installed.

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
from monitor.decoding import Record
from monitor.sources.consumer import (
    FETCH_MAX_WAIT_MS,
    METADATA_MAX_AGE_MS,
    SESSION_TIMEOUT_MS,
    OffsetOutOfRange,
    parse_partition_name,
    partition_name,
)
from monitor.sources.kafka_connection import connect_kafka_client, translate_kafka_error

log = logging.getLogger(__name__)
_FETCH_BYTES: Final = 3 << 20
"""Size of one fetch over all partitions, compressed as on the broker; decompressed, several times as large."""
_PARTITION_FETCH_BYTES: Final = 2 << 20
_MAX_FILL_S: Final = 0.25
"""Longest time that a poll waits to become full, while the partitions have more records."""
_FILL_POLL_MS: Final = 20
_COLLECT_EMPTY_POLLS: Final = 50
_CLOSE_TIMEOUT_MS: Final = 5_000
_REVOKED_ERRORS: Final = (ValueError, KeyError, AssertionError, IllegalStateError)
"""Errors that kafka-python raises for a partition that a rebalance on its I/O thread has just revoked."""


def client_version() -> str:
    """Return the name and version of the client."""
    return f"kafka-python {kafka.__version__}"


class KafkaPythonConsumer:
    """Implements `Consumer` on kafka-python.

    Each poll takes all fetched records from kafka-python, and this class buffers the surplus. kafka-python 3.0.12 must
    not buffer records. A partition that is paused while the client still has parsed records may never be read again:
    `Fetcher.fetched_records` resumes such a partition only when no other partition is queued.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._paused: set[TopicPartition] = set()
        self._empty_polls = 0
        self._fetched: dict[TopicPartition, list[Record]] = {}
        """Records that no poll has returned yet, by partition; the first partition is returned first."""
        self._consumer = connect_kafka_client(
            KafkaConsumer,
            settings,
            group_id=settings.group_id,
            group_instance_id=settings.group_instance_id,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            enable_auto_commit=False,
            auto_offset_reset="none",
            isolation_level="read_committed",
            partition_assignment_strategy=(RangePartitionAssignor,),
            allow_auto_create_topics=False,
            fetch_max_wait_ms=FETCH_MAX_WAIT_MS,
            fetch_max_bytes=_FETCH_BYTES,
            max_partition_fetch_bytes=_PARTITION_FETCH_BYTES,
            metadata_max_age_ms=METADATA_MAX_AGE_MS,
            metrics_enabled=False,
        )

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:
        self._consumer.subscribe(topics=topics, listener=_RebalanceListener(self._consumer, on_assign))
        # Wait for metadata before the first poll joins the group: a leader without the metadata of a topic assigns its
        # partitions to no member, and rebalances the group again when the metadata has arrived.
        try:
            missing_topics = set(topics) - self._consumer.topics()
        except KafkaError as error:
            raise translate_kafka_error(self._settings, error) from error
        if missing_topics:
            log.info("joining the group before the topics exist missing_topics=%s", ",".join(sorted(missing_topics)))

    def assign(self, partitions: Collection[str]) -> None:
        topic_partitions = [parse_partition_name(name) for name in partitions]
        self._consumer.assign(topic_partitions)
        self._consumer.pause(*topic_partitions)

    def assignment(self) -> Collection[str]:
        return {partition_name(*partition) for partition in self._consumer.assignment()}

    def seek(self, offsets: Mapping[str, int]) -> None:
        for name, offset in offsets.items():
            partition = parse_partition_name(name)
            self._fetched.pop(partition, None)
            with suppress(*_REVOKED_ERRORS):
                self._consumer.seek(partition, offset)
                if partition not in self._paused:
                    self._consumer.resume(partition)

    def pause(self, partitions: Collection[str]) -> None:
        for partition in map(parse_partition_name, partitions):
            self._paused.add(partition)
            with suppress(*_REVOKED_ERRORS):
                self._consumer.pause(partition)

    def resume(self, partitions: Collection[str]) -> None:
        for partition in map(parse_partition_name, partitions):
            self._paused.discard(partition)
            with suppress(*_REVOKED_ERRORS):
                self._consumer.resume(partition)

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        """Return the next records; see `Consumer`.

        If partitions have more records, a poll waits briefly to become full, because full batches cost less per record.
        """
        deadline_s = time.monotonic() + _MAX_FILL_S
        timeout_ms = int(timeout_s * 1000)
        missing_records = max_records - sum(map(len, self._returnable_records().values()))
        while missing_records > 0:
            if missing_records < max_records:
                timeout_ms = min(timeout_ms, _FILL_POLL_MS)
            has_fetched = self._fetch(timeout_ms)
            missing_records = max_records - sum(map(len, self._returnable_records().values()))
            if not has_fetched or self._backlog() < missing_records or time.monotonic() > deadline_s:
                break
            timeout_ms = _FILL_POLL_MS
        polled: dict[str, Sequence[Record]] = {}
        for partition, records in self._returnable_records().items():
            if max_records <= 0:
                break
            polled[partition_name(*partition)] = records[:max_records]
            del self._fetched[partition]
            if len(records) > max_records:
                self._fetched[partition] = records[max_records:]
            max_records -= len(records)
        return polled

    def _returnable_records(self) -> dict[TopicPartition, list[Record]]:
        """Return the fetched records of assigned, unpaused partitions; drop the records of revoked partitions."""
        assigned, paused = self._consumer.assignment(), self._consumer.paused()
        self._fetched = {partition: records for partition, records in self._fetched.items() if partition in assigned}
        return {partition: records for partition, records in self._fetched.items() if partition not in paused}

    def _fetch(self, timeout_ms: int) -> bool:
        """Fetch once into the buffer; return whether any records arrived."""
        try:
            polled = self._consumer.poll(timeout_ms=timeout_ms, max_records=sys.maxsize)
        except (NoOffsetForPartitionError, OffsetOutOfRangeError, LogTruncationError) as error:
            raise OffsetOutOfRange(str(error)) from error
        except KafkaError as error:
            raise translate_kafka_error(self._settings, error) from error
        for partition, records in polled.items():
            self._fetched.setdefault(partition, []).extend(records)
        if not polled:
            self._collect_garbage()
        return bool(polled)

    def _collect_garbage(self) -> None:
        """Run Python's cyclic garbage collector after every `_COLLECT_EMPTY_POLLS` empty polls.

        In kafka-python 3.0.12 an empty poll leaves a timeout error in a reference cycle with its traceback, which
        references the open fetch. Without extra collections, these fetches take a hundred megabytes per minute.
        """
        self._empty_polls += 1
        if self._empty_polls >= _COLLECT_EMPTY_POLLS:
            self._empty_polls = 0
            gc.collect(1)

    def _backlog(self) -> int:
        """Return the number of offsets between the fetched records and the last fetched ends of their partitions."""
        backlog = 0
        for partition, records in self._returnable_records().items():
            backlog += max(0, (self._end_offset(partition) or 0) - records[-1].offset - 1)
        return backlog

    def position(self, partition: str) -> int | None:
        topic_partition = parse_partition_name(partition)
        if topic_partition in self._fetched:
            return self._fetched[topic_partition][0].offset
        position: int | None = None
        with suppress(KafkaError, *_REVOKED_ERRORS):
            position = self._consumer.position(topic_partition, timeout_ms=0)
        return position

    def end_offsets(self) -> Mapping[str, int]:
        end_offsets = {
            partition_name(*partition): self._end_offset(partition) for partition in self._consumer.assignment()
        }
        return {name: offset for name, offset in end_offsets.items() if offset is not None}

    def _end_offset(self, partition: TopicPartition) -> int | None:
        end_offset: int | None = None
        with suppress(*_REVOKED_ERRORS):
            end_offset = self._consumer.highwater(partition)
        return end_offset

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        try:
            self._consumer.commit_async(_offsets_to_commit(offsets))
        except KafkaError as error:
            raise translate_kafka_error(self._settings, error) from error

    def close(self, offsets: Mapping[str, int]) -> None:
        if offsets:
            with suppress(KafkaError):
                self._consumer.commit(_offsets_to_commit(offsets), timeout_ms=_CLOSE_TIMEOUT_MS)
        self._consumer.close(autocommit=False, timeout_ms=_CLOSE_TIMEOUT_MS)


def _offsets_to_commit(offsets: Mapping[str, int]) -> dict[TopicPartition, OffsetAndMetadata]:
    return {parse_partition_name(name): OffsetAndMetadata(offset, "", -1) for name, offset in offsets.items()}


class _RebalanceListener(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python carries no types
    """Pauses newly assigned partitions until `seek`."""

    def __init__(self, consumer: KafkaConsumer, on_assign: Callable[[Collection[str]], None]) -> None:
        self._consumer = consumer
        self._on_assign = on_assign

    def on_partitions_assigned(self, assigned_partitions: list[TopicPartition]) -> None:
        self._consumer.pause(*assigned_partitions)
        for partition in assigned_partitions:
            # Any position prevents kafka-python from fetching the group's offset, and from raising if there is none.
            self._consumer.seek(partition, 0)
        log.info("partitions assigned count=%d", len(assigned_partitions))
        self._on_assign([partition_name(*partition) for partition in assigned_partitions])

    def on_partitions_revoked(self, revoked_partitions: list[TopicPartition]) -> None:
        log.info("partitions revoked count=%d", len(revoked_partitions))
