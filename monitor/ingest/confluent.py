"""A member of the group on librdkafka, by confluent-kafka: the extra `fast`.

librdkafka fetches in threads of its own and hands out whole batches. Only placed partitions are ever assigned to it,
each at an explicit offset, so it has nothing to decide about offsets. It calls back within `consume` and `close`.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from kafka.errors import for_code

from monitor.config import KafkaSettings
from monitor.errors import DependencyUnavailable, UsageError
from monitor.ingest.connection import BOOTSTRAP_MS, admission, refused
from monitor.ingest.membership import (
    FETCH_MS,
    METADATA_MS,
    POLL_MS,
    RECONNECT_MS,
    SESSION_MS,
    Displaced,
    Fetched,
)
from monitor.ingest.probing import explained
from monitor.ingest.records import Records

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

log = logging.getLogger(__name__)
_POLL_S: Final = POLL_MS / 1000
_QUEUED_KB: Final = 4_096
"""Of records fetched ahead, over all partitions; the default of 64 MB would be a third of the worker's memory.

With twice as much here and in a round a worker had 20 to 30 MB more, with half as much three shards took 6 % more CPU.
"""
_FETCHED_BYTES: Final = 2 << 20
"""Of one partition at once, or one larger record: a batch of few partitions has fewer students, so fewer rows."""
_ROUND_BYTES: Final = 8 << 20
"""Of all partitions at once."""
_MOST_AHEAD: Final = 10_000_000
"""What the client takes for a number of records fetched ahead."""
_AHEAD: Final = 2
"""A poll's records by this are fetched ahead of each partition: what is ahead of one that is held is fetched again."""
_QUEUE_FULL_MS: Final = 20
"""So long it waits before it fetches more when it has enough; the default of a second lets the worker wait for it."""
_MOST_AT_ONCE: Final = 1_000_000
"""What the client takes for a number of records."""


def check_client(settings: KafkaSettings) -> str:
    """Return the name and version of the client once it has reached the cluster; raises as `ConfluentMember` does."""
    _connected(settings).close()
    import confluent_kafka  # noqa: PLC0415  an extra

    return f"confluent-kafka {confluent_kafka.version()}, librdkafka {confluent_kafka.libversion()[0]}"


def _connected(settings: KafkaSettings) -> Consumer:
    """Return a consumer that has reached the cluster.

    Raises `UsageError` if the client is not installed, or it or the cluster refuses the settings, and
    `DependencyUnavailable` if nobody answers.
    """
    try:
        from confluent_kafka import Consumer, KafkaException  # noqa: PLC0415  an extra
    except ImportError as error:
        raise UsageError(
            f"kafka.client = \"confluent\" needs confluent-kafka: pip install 'ab-monitor[fast]' ({error})"
        ) from error
    # What is refused is so in the same words as with the other client.
    options = admission(settings)
    try:
        consumer = Consumer(_configuration(settings))
    except KafkaException as error:
        raise UsageError(f"kafka: librdkafka does not accept these settings: {error.args[0].str()}") from error
    try:
        consumer.list_topics(settings.responses_topic, timeout=BOOTSTRAP_MS / 1000)
    except KafkaException as error:
        consumer.close()
        raise explained(settings, options, DependencyUnavailable(error.args[0].str())) from error
    return consumer


def _configuration(settings: KafkaSettings) -> dict[str, Any]:
    """Return librdkafka's names and values of the settings."""
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
        "fetch.message.max.bytes": _FETCHED_BYTES,
        "fetch.max.bytes": _ROUND_BYTES,
        "queued.min.messages": min(max(1, settings.max_poll_records // _AHEAD), _MOST_AHEAD),
        "queued.max.messages.kbytes": _QUEUED_KB,
        "fetch.queue.backoff.ms": _QUEUE_FULL_MS,
        # Below the other client's, which the command line keeps silent unless asked.
        "logger": logging.getLogger("kafka.librdkafka"),
    }
    return {name: value for name, value in chosen.items() if value is not None}


class ConfluentMember:
    """See `Member`."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer = _connected(settings)
        from confluent_kafka import KafkaError, TopicPartition  # noqa: PLC0415  an extra

        self._partition = TopicPartition
        self._end = KafkaError._PARTITION_EOF  # noqa: SLF001  its public name
        self._fatal = KafkaError._FATAL  # noqa: SLF001  the same
        self._displacing = {
            KafkaError._AUTO_OFFSET_RESET,  # noqa: SLF001  the same
            KafkaError._LOG_TRUNCATION,  # noqa: SLF001  the same
            KafkaError.OFFSET_OUT_OF_RANGE,
        }
        self._passing = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE}
        self._most = min(settings.max_poll_records, _MOST_AT_ONCE)
        self._joined = False
        self._assigned: dict[str, TopicPartition] = {}
        self._reached: dict[str, int] = {}
        """Position of every placed partition: what was handed out, or read over, ends here."""
        self._held: set[str] = set()
        self._resting = False
        self._consumer.subscribe(
            [settings.responses_topic, settings.feedback_topic], on_assign=self._on_assign, on_revoke=self._on_revoke
        )

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        self._assigned = {_name(each): each for each in partitions}
        self._reached = {}
        consumer.assign([])
        log.info("partitions assigned count=%d", len(partitions))

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._assigned = {}
        self._reached = {}
        consumer.unassign()
        log.info("partitions revoked count=%d", len(partitions))

    def joined(self) -> bool:
        """See `Member`."""
        return self._joined

    def assigned(self) -> Collection[str]:
        """See `Member`."""
        return self._assigned.keys()

    def unplaced(self) -> Sequence[str]:
        """See `Member`."""
        return sorted(self._assigned.keys() - self._reached.keys())

    def place(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        self._reached |= {name: offset for name, offset in offsets.items() if name in self._assigned}
        self._read()

    def _read(self) -> None:
        """Have exactly the placed partitions read, each from its position on."""
        self._resting = False
        self._consumer.assign(self._at(self._reached))
        # What was paused stays so when it is assigned again.
        self._consumer.pause(self._at(self._held & self._reached.keys()))
        self._consumer.resume(self._at(self._reached.keys() - self._held))

    def _at(self, names: Iterable[str]) -> list[TopicPartition]:
        return [self._place(name, self._reached[name]) for name in names]

    def _place(self, name: str, offset: int) -> TopicPartition:
        topic, _, number = name.rpartition(":")
        return self._partition(topic, int(number), offset)

    def rewind(self) -> None:
        """See `Member`."""
        self._reached = {}
        self._consumer.assign([])

    def hold(self, partitions: Collection[str]) -> None:
        """See `Member`."""
        held = set(partitions)
        if not self._resting:
            self._consumer.pause(self._at((held - self._held) & self._reached.keys()))
            self._consumer.resume(self._at((self._held - held) & self._reached.keys()))
        self._held = held

    def poll(self, *, wait: bool) -> Sequence[Fetched]:
        """See `Member`."""
        if self._resting:
            self._read()
        # With a time to wait, the client waits until it has all that it was asked for: so for one, then the rest.
        messages = self._consumer.consume(self._most, 0)
        if wait and not messages:
            messages = self._consumer.consume(1, _POLL_S)
        if wait and len(messages) == 1 < self._most:
            messages += self._consumer.consume(self._most - 1, 0)
        found: dict[tuple[str | None, int | None], list[Message]] = {}
        ends = {}
        last, own = None, []
        for message in messages:
            error = message.error()
            if error is None:
                # Those of one fetch follow each other.
                place = message.topic(), message.partition()
                if place != last:
                    last, own = place, found.setdefault(place, [])
                own.append(message)
            elif error.code() == self._end:
                ends[f"{message.topic()}:{message.partition()}"] = message.offset() or 0
            else:
                self._judge(error)
        batches = []
        for (topic, number), own in found.items():
            name = f"{topic}:{number}"
            if name in self._reached:
                offsets = _offsets(own)
                self._reached[name] = offsets[-1] + 1
                payloads, keys = [each.value() for each in own], [each.key() for each in own]
                batches.append(Fetched(name, Records.of(offsets, payloads, keys)))
        # An end lies behind what transactions leave in the log.
        self._reached |= {name: max(end, self._reached[name]) for name, end in ends.items() if name in self._reached}
        return batches

    def _judge(self, error: KafkaError) -> None:
        """Raise for what does not pass by itself, with all partitions to be placed again.

        The records that came along are not handed out then, and the client would go on behind them.
        """
        code = error.code()
        if code in self._displacing:
            raise Displaced(error.str())
        if code == self._fatal:
            # As when another member has taken over its name; it never reads again.
            raise UsageError(f"Kafka at {self._settings.bootstrap_servers}: {error.str()}")
        if code > 0 and code not in self._passing:
            self.rewind()
            raise refused(self._settings, for_code(code)(error.str()))
        log.debug("the client says: %s", error)

    def stay(self) -> None:
        """See `Member`: consume with nothing assigned."""
        if not self._resting:
            self._resting = True
            self._consumer.assign([])
        for message in self._consumer.consume(1, 2 * _POLL_S):
            log.debug("passed over while waiting: %s", message.error())

    def position(self, partition: str) -> int | None:
        """See `Member`."""
        return self._reached.get(partition)

    def highwater(self, partition: str) -> int | None:
        """See `Member`."""
        marks = self._consumer.get_watermark_offsets(self._assigned[partition], cached=True)
        return None if marks is None or marks[1] < 0 else marks[1]

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        commit = [self._place(name, offset) for name, offset in offsets.items()]
        self._consumer.commit(offsets=commit, asynchronous=True)

    def close(self, offsets: Mapping[str, int]) -> None:
        """See `Member`."""
        if offsets:
            self.acknowledge(offsets)
        self._consumer.close()


def _offsets(messages: Sequence[Message]) -> Sequence[int]:
    """Return the offsets of a partition's messages, of which only the ends are asked for where none is left out."""
    first, last = cast(int, messages[0].offset()), cast(int, messages[-1].offset())
    if last - first + 1 == len(messages):
        return range(first, last + 1)
    return [cast(int, each.offset()) for each in messages]


def _name(partition: TopicPartition) -> str:
    return f"{partition.topic}:{partition.partition}"
