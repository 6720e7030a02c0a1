"""A group member on librdkafka, by confluent-kafka: the extra `fast`.

librdkafka fetches in its own threads. Only partitions that have been sought are ever assigned to it, each at an
explicit offset, so librdkafka never chooses one. It calls back within `consume` and `close`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from kafka.errors import for_code

from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable, UsageError
from monitor.sources.consumer import FETCH_MS, METADATA_MS, RECONNECT_MS, SESSION_MS, OffsetOutOfRange, partition_name
from monitor.sources.kafka_connection import BOOTSTRAP_MS, translate_error
from monitor.sources.source import PlainRecord, Record

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

log = logging.getLogger(__name__)
_QUEUED_KB: Final = 4_096
"""Of records fetched ahead, over all partitions; the default of 64 MB would be a third of the worker's memory.

With twice as much here and in a round a worker had 20 to 30 MB more, with half as much three shards took 6 % more CPU.
"""
_PARTITION_FETCH_BYTES: Final = 2 << 20
"""A batch of few partitions has fewer students, so fewer rows."""
_FETCH_BYTES: Final = 8 << 20
_MAX_QUEUED_RECORDS: Final = 10_000_000
_MAX_POLL_RECORDS: Final = 1_000_000
"""Largest values that librdkafka accepts."""
_POLLS_AHEAD: Final = 0.5
"""Part of a poll that is fetched ahead of each partition: what is ahead of a paused one is fetched again."""
_QUEUE_FULL_MS: Final = 20
"""Pause before the next fetch when enough is queued; after the default of a second the worker would wait for it."""


def client_version() -> str:
    """Return the name and versions of the client; raises `UsageError` if it is not installed."""
    client = _client()
    return f"confluent-kafka {client.version()}, librdkafka {client.libversion()[0]}"


def _client() -> Any:
    try:
        import confluent_kafka  # noqa: PLC0415  an extra
    except ImportError as error:
        raise UsageError(
            f"kafka.client = \"confluent\" needs confluent-kafka: pip install '.[fast]' ({error})"
        ) from error
    return confluent_kafka


def _configuration(settings: KafkaSettings) -> dict[str, Any]:
    queued = max(1, int(settings.max_poll_records * _POLLS_AHEAD))
    chosen = {
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
        "session.timeout.ms": SESSION_MS,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "range",
        "enable.partition.eof": True,
        "topic.metadata.refresh.interval.ms": METADATA_MS,
        "reconnect.backoff.max.ms": RECONNECT_MS,
        "fetch.wait.max.ms": FETCH_MS,
        "fetch.message.max.bytes": _PARTITION_FETCH_BYTES,
        "fetch.max.bytes": _FETCH_BYTES,
        "queued.min.messages": min(queued, _MAX_QUEUED_RECORDS),
        "queued.max.messages.kbytes": _QUEUED_KB,
        "fetch.queue.backoff.ms": _QUEUE_FULL_MS,
        # Below the other client's, which the command line keeps silent unless asked.
        "logger": logging.getLogger("kafka.librdkafka"),
    }
    return {name: value for name, value in chosen.items() if value is not None}


class ConfluentConsumer:
    """See `Consumer`."""

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
        """Of the partitions that have been sought."""
        self._paused: set[str] = set()
        try:
            self._consumer: Consumer = client.Consumer(_configuration(settings))
        except client.KafkaException as error:
            raise UsageError(f"kafka: librdkafka does not accept these settings: {error.args[0].str()}") from error
        try:
            self._consumer.list_topics(settings.responses_topic, timeout=BOOTSTRAP_MS / 1000)
        except client.KafkaException as error:
            self._consumer.close()
            raise DependencyUnavailable(
                f"Kafka at {settings.bootstrap_servers}: librdkafka: {error.args[0].str()}"
            ) from error

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:

        def assign(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned = {partition_name(each.topic, each.partition) for each in partitions}
            self._positions = {}
            consumer.assign([])
            log.info("partitions assigned count=%d", len(partitions))
            on_assign(self._assigned)

        def revoke(consumer: Consumer, partitions: list[TopicPartition]) -> None:
            self._assigned, self._positions = set(), {}
            consumer.unassign()
            log.info("partitions revoked count=%d", len(partitions))

        self._consumer.subscribe(list(topics), on_assign=assign, on_revoke=revoke)

    def assignment(self) -> Collection[str]:
        return self._assigned

    def seek(self, offsets: Mapping[str, int]) -> None:
        self._positions |= {name: offset for name, offset in offsets.items() if name in self._assigned}
        self._consumer.assign(self._partitions(self._positions))
        # librdkafka remembers what was paused in an earlier assignment.
        self._consumer.pause(self._partitions(self._paused))
        self._consumer.resume(self._partitions(self._positions.keys() - self._paused))

    def pause(self, partitions: Collection[str]) -> None:
        self._paused |= set(partitions)
        self._consumer.pause(self._partitions(partitions))

    def resume(self, partitions: Collection[str]) -> None:
        self._paused -= set(partitions)
        self._consumer.resume(self._partitions(partitions))

    def _partitions(self, names: Iterable[str]) -> list[TopicPartition]:
        """Return those of the partitions that have been sought, at their positions."""
        return [self._at(name, self._positions[name]) for name in names if name in self._positions]

    def _at(self, name: str, offset: int) -> TopicPartition:
        topic, _, number = name.rpartition(":")
        partition: TopicPartition = self._partition(topic, int(number), offset)
        return partition

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        max_records = min(max_records, _MAX_POLL_RECORDS)
        # `consume` waits until it has as many as it was asked for: so it waits for one record, then takes the rest.
        messages = self._consumer.consume(max_records, 0)
        if timeout_s and not messages:
            messages = self._consumer.consume(1, timeout_s)
            if messages and max_records > 1:
                messages += self._consumer.consume(max_records - 1, 0)
        polled: dict[str, list[Message]] = {}
        ends: dict[str, int] = {}
        last, partition_messages = None, []
        for message in messages:
            error = message.error()
            if error is None:
                # The messages of one fetch follow each other.
                place = message.topic(), message.partition()
                if place != last:
                    last, partition_messages = place, polled.setdefault(f"{place[0]}:{place[1]}", [])
                partition_messages.append(message)
            elif error.code() == self._end_of_partition:
                ends[f"{message.topic()}:{message.partition()}"] = message.offset() or 0
            else:
                self._raise(error)
        records = {name: _records(messages) for name, messages in polled.items() if name in self._positions}
        self._positions |= {name: partition_records[-1].offset + 1 for name, partition_records in records.items()}
        # The end of a partition lies behind its last transaction marker.
        for name in ends.keys() & self._positions.keys():
            self._positions[name] = max(ends[name], self._positions[name])
        return records

    def _raise(self, error: KafkaError) -> None:
        """Raise for an error that librdkafka does not recover from by itself."""
        code = error.code()
        if code in self._out_of_range:
            raise OffsetOutOfRange(error.str())
        if code == self._fatal:
            # For example, another member has taken over kafka.group_instance_id; librdkafka never reads again.
            raise UsageError(f"Kafka at {self._settings.bootstrap_servers}: {error.str()}")
        if code > 0 and code not in self._transient:
            raise translate_error(self._settings, for_code(code)(error.str()))
        log.debug("librdkafka reports: %s", error)

    def position(self, partition: str) -> int | None:
        return self._positions.get(partition)

    def end_offsets(self) -> Mapping[str, int]:
        ends = {}
        for name in self._assigned:
            marks = self._consumer.get_watermark_offsets(self._at(name, 0), cached=True)
            if marks is not None and marks[1] >= 0:
                ends[name] = marks[1]
        return ends

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        self._consumer.commit(offsets=[self._at(name, offset) for name, offset in offsets.items()], asynchronous=True)

    def close(self, offsets: Mapping[str, int]) -> None:
        """See `Consumer`; librdkafka waits for the answer to a commit before it leaves."""
        if offsets:
            self.commit_group_offsets(offsets)
        self._consumer.close()


def _records(messages: Sequence[Message]) -> list[PlainRecord]:
    return [PlainRecord(message.offset() or 0, message.key(), message.value()) for message in messages]
