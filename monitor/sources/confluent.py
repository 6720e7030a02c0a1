"""The consumer on confluent-kafka (librdkafka), the optional dependency `fast`.

librdkafka fetches in threads of its own. This module assigns a partition to librdkafka only after `seek`, with an
explicit offset, so that librdkafka never chooses an offset. librdkafka runs rebalance callbacks within `consume` and
`close`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kafka.errors import for_code

from monitor.config import KafkaSettings
from monitor.decoding import Headers, Record
from monitor.errors import DependencyUnavailable, UsageError
from monitor.sources.consumer import (
    FETCH_MAX_WAIT_MS,
    METADATA_MAX_AGE_MS,
    RECONNECT_BACKOFF_MAX_MS,
    SESSION_TIMEOUT_MS,
    OffsetOutOfRange,
    partition_name,
)
from monitor.sources.kafka_connection import BOOTSTRAP_TIMEOUT_MS, translate_kafka_error
from monitor.sources.source import PlainRecord

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

log = logging.getLogger(__name__)
_MAX_QUEUED_KB: Final = 4_096
"""Size of the records fetched ahead, over all partitions. The default of 64 MB would be a third of a worker's memory.

With twice this size and twice `_FETCH_BYTES`, a worker used 20 to 30 MB more. With half, three shards took 6 % more
CPU.
"""
_PARTITION_FETCH_BYTES: Final = 2 << 20
"""Large, so that a batch contains few partitions: such a batch has fewer students, and so fewer rows to commit."""
_FETCH_BYTES: Final = 8 << 20
_MAX_QUEUED_RECORDS: Final = 10_000_000
_MAX_POLL_RECORDS: Final = 1_000_000
"""Largest values that librdkafka accepts."""
_PREFETCHED_POLLS: Final = 0.5
"""Records fetched ahead of each partition, as a fraction of a poll; those of a paused partition are fetched again."""
_QUEUE_FULL_BACKOFF_MS: Final = 20
"""Pause before the next fetch when enough records are queued. The default of a second could leave the queue empty."""


def client_version() -> str:
    """Return the name and versions of the client; raises `UsageError` if confluent-kafka is not installed."""
    client = _client()
    return f"confluent-kafka {client.version()}, librdkafka {client.libversion()[0]}"


def _client() -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415  an extra
    except ImportError as error:
        raise UsageError(
            f"kafka.client: got 'confluent', but confluent-kafka is not installed ({error}). Install the extra with "
            "`pip install '.[fast]'`, or set kafka.client to kafka-python"
        ) from error
    return confluent_kafka


def _configuration(settings: KafkaSettings) -> dict[str, Any]:
    prefetched_records = max(1, int(settings.max_poll_records * _PREFETCHED_POLLS))
    options = {
        "bootstrap.servers": settings.bootstrap_servers,
        "group.id": settings.group_id,
        "group.instance.id": settings.group_instance_id,
        "security.protocol": settings.security_protocol,
        "ssl.ca.location": settings.ssl_ca_file,
        "ssl.certificate.location": settings.ssl_cert_file,
        "ssl.key.location": settings.ssl_key_file,
        "ssl.key.password": settings.ssl_key_password,
        "ssl.endpoint.identification.algorithm": "https" if settings.ssl_check_hostname else "none",
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password,
        "session.timeout.ms": SESSION_TIMEOUT_MS,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "range",
        "enable.partition.eof": True,
        "topic.metadata.refresh.interval.ms": METADATA_MAX_AGE_MS,
        "reconnect.backoff.max.ms": RECONNECT_BACKOFF_MAX_MS,
        "fetch.wait.max.ms": FETCH_MAX_WAIT_MS,
        "fetch.message.max.bytes": _PARTITION_FETCH_BYTES,
        "fetch.max.bytes": _FETCH_BYTES,
        "queued.min.messages": min(prefetched_records, _MAX_QUEUED_RECORDS),
        "queued.max.messages.kbytes": _MAX_QUEUED_KB,
        "fetch.queue.backoff.ms": _QUEUE_FULL_BACKOFF_MS,
        # A child of kafka-python's logger, so that the command line silences both clients in the same way.
        "logger": logging.getLogger("kafka.librdkafka"),
    }
    return {name: value for name, value in options.items() if value is not None}


class ConfluentConsumer:
    """Implements `Consumer` on confluent-kafka."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        client = _client()
        errors = client.KafkaError
        self._partition = client.TopicPartition
        # Error codes of librdkafka itself have no other public names.
        self._end_of_partition = errors._PARTITION_EOF  # noqa: SLF001
        self._fatal = errors._FATAL  # noqa: SLF001
        self._out_of_range = {
            errors._AUTO_OFFSET_RESET,  # noqa: SLF001
            errors._LOG_TRUNCATION,  # noqa: SLF001
            errors.OFFSET_OUT_OF_RANGE,
        }
        self._transient = {errors.UNKNOWN_TOPIC_OR_PART, errors.LEADER_NOT_AVAILABLE}
        self._assigned: set[str] = set()
        self._positions: dict[str, int] = {}
        """Next offset of each partition since its `seek`."""
        self._paused: set[str] = set()
        try:
            self._consumer: Consumer = client.Consumer(_configuration(settings))
        except client.KafkaException as error:
            raise UsageError(
                f"kafka: librdkafka rejects a setting of the section [kafka]: {error.args[0].str()}. Correct the "
                "setting, or set kafka.client to kafka-python"
            ) from error
        try:
            self._consumer.list_topics(settings.topics[0], timeout=BOOTSTRAP_TIMEOUT_MS / 1000)
        except client.KafkaException as error:
            self._consumer.close()
            raise DependencyUnavailable(
                f"Kafka at {settings.bootstrap_servers}: librdkafka: {error.args[0].str()}"
            ) from error

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:

        def assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned = {partition_name(partition.topic, partition.partition) for partition in partitions}
            self._positions = {}
            consumer.assign([])
            log.info("partitions assigned count=%d", len(partitions))
            on_assign(self._assigned)

        def revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned, self._positions = set(), {}
            consumer.unassign()
            log.info("partitions revoked count=%d", len(partitions))

        self._consumer.subscribe(list(topics), on_assign=assign, on_revoke=revoke)

    def assign(self, partitions: Collection[str]) -> None:
        self._assigned, self._positions = set(partitions), {}

    def assignment(self) -> Collection[str]:
        return self._assigned

    def seek(self, offsets: Mapping[str, int]) -> None:
        self._positions |= {name: offset for name, offset in offsets.items() if name in self._assigned}
        self._consumer.assign(self._partitions(self._positions))
        # librdkafka keeps the paused state of partitions across assignments.
        self._consumer.pause(self._partitions(self._paused))
        self._consumer.resume(self._partitions(self._positions.keys() - self._paused))

    def pause(self, partitions: Collection[str]) -> None:
        self._paused |= set(partitions)
        self._consumer.pause(self._partitions(partitions))

    def resume(self, partitions: Collection[str]) -> None:
        self._paused -= set(partitions)
        self._consumer.resume(self._partitions(partitions))

    def _partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return the named partitions for librdkafka, with their positions; without partitions that wait for `seek`."""
        return [self._topic_partition(name, self._positions[name]) for name in names if name in self._positions]

    def _topic_partition(self, name: str, offset: int) -> TopicPartition:
        topic, _, number = name.rpartition(":")
        partition: TopicPartition = self._partition(topic, int(number), offset)
        return partition

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        max_records = min(max_records, _MAX_POLL_RECORDS)
        # `consume` blocks until it has all requested records. So block for one record, then take the others at once.
        messages = self._consumer.consume(max_records, 0)
        if timeout_s and not messages:
            messages = self._consumer.consume(1, timeout_s)
            if messages and max_records > 1:
                messages += self._consumer.consume(max_records - 1, 0)
        polled: dict[str, list[Message]] = {}
        end_offsets: dict[str, int] = {}
        previous_key, partition_messages = None, []
        for message in messages:
            error = message.error()
            if error is None:
                # Messages of one partition arrive in runs, so the dictionary is only used when the partition changes.
                partition_key = message.topic(), message.partition()
                if partition_key != previous_key:
                    previous_key = partition_key
                    partition_messages = polled.setdefault(f"{partition_key[0]}:{partition_key[1]}", [])
                partition_messages.append(message)
            elif error.code() == self._end_of_partition:
                end_offsets[f"{message.topic()}:{message.partition()}"] = message.offset() or 0
            else:
                self._raise_unless_transient(error)
        records = {name: _records(messages) for name, messages in polled.items() if name in self._positions}
        self._positions |= {name: partition_records[-1].offset + 1 for name, partition_records in records.items()}
        # A transaction marker at the end of a partition is no message, so only the end offset is beyond it.
        for name in end_offsets.keys() & self._positions.keys():
            self._positions[name] = max(end_offsets[name], self._positions[name])
        return records

    def _raise_unless_transient(self, error: KafkaError) -> None:
        """Raise an error that librdkafka does not recover from by itself; log any other error."""
        code = error.code()
        if code in self._out_of_range:
            raise OffsetOutOfRange(error.str())
        if code == self._fatal:
            # For example, another member has taken over kafka.group_instance_id. librdkafka never reads again.
            raise UsageError(f"Kafka at {self._settings.bootstrap_servers}: {error.str()}")
        if code > 0 and code not in self._transient:
            raise translate_kafka_error(self._settings, for_code(code)(error.str()))
        log.debug("librdkafka reported an error reason=%s", error)

    def position(self, partition: str) -> int | None:
        return self._positions.get(partition)

    def end_offsets(self) -> Mapping[str, int]:
        end_offsets = {}
        for name in self._assigned:
            offset_range = self._consumer.get_watermark_offsets(self._topic_partition(name, 0), cached=True)
            if offset_range is not None and offset_range[1] >= 0:
                end_offsets[name] = offset_range[1]
        return end_offsets

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        self._consumer.commit(
            offsets=[self._topic_partition(name, offset) for name, offset in offsets.items()], asynchronous=True
        )

    def close(self, offsets: Mapping[str, int]) -> None:
        """Commit the offsets and leave the group; librdkafka first waits for the response to the commit."""
        if offsets:
            self.commit_group_offsets(offsets)
        self._consumer.close()


def _records(messages: Sequence[Message]) -> list[PlainRecord]:
    return [
        PlainRecord(
            message.offset() or 0,
            message.key(),
            message.value(),
            message.timestamp()[1],
            cast("Headers", message.headers() or ()),
        )
        for message in messages
    ]
