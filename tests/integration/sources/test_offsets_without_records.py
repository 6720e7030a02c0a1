"""Offsets that have no record leave no lag: transaction markers, aborted transactions, and compacted records."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import pytest
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from monitor.config import KafkaSettings, LimitSettings
from monitor.engine import EventBatch
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.watermark import WatermarkTracker
from monitor.sources.kafka_source import KafkaSource
from monitor.state import StoreState
from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually

COMPACTED: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": "100",
    "min.cleanable.dirty.ratio": "0.001",
    "min.compaction.lag.ms": "0",
    "delete.retention.ms": "0",
}
QUIET, BUSY = 0, 1
"""Numbers of the partitions of the responses."""
Record = tuple[str, str | None]
"""(key, value)."""


@pytest.fixture(scope="module")
def broker() -> Iterator[KafkaBroker]:
    """Yield a broker that compacts every few milliseconds."""
    with KafkaBroker(settings={"log.cleaner.backoff.ms": "50"}) as kafka_broker:
        yield kafka_broker


@pytest.fixture(params=["kafka-python", "confluent"])
def settings(request: pytest.FixtureRequest, broker: KafkaBroker) -> KafkaSettings:
    """Return settings per client, with new topics: compacted responses in two partitions, feedback in one."""
    name = f"gaps-{random.randrange(1 << 40):x}"
    kafka_settings = KafkaSettings(broker.bootstrap, f"{name}.r", f"{name}.f", group_id=name, client=request.param)
    broker.create_topic(kafka_settings.responses_topic, 2, COMPACTED)
    broker.create_topic(kafka_settings.feedback_topic, 1)
    return kafka_settings


class Log:
    """A partition."""

    def __init__(self, settings: KafkaSettings, topic: str, number: int = QUIET) -> None:
        self._bootstrap_servers = settings.bootstrap_servers
        self._topic, self._number = topic, number
        self.name = f"{topic}:{number}"
        self._producer = self._create_producer({})

    def write(self, *records: Record) -> None:
        """Write the records; a few of them are one batch."""
        self._produce(self._producer, records)

    def write_transaction(self, *records: Record, commit: bool) -> None:
        """Write the records and a marker: of the commit, or of the abort."""
        producer = self.begin_transaction(*records)
        (producer.commit_transaction if commit else producer.abort_transaction)(30)

    def begin_transaction(self, *records: Record) -> Producer:
        """Write the records in a new transaction, and return the producer, which has to end the transaction."""
        producer = self._create_producer({"transactional.id": f"{self._topic}-{random.randrange(1 << 40):x}"})
        producer.init_transactions(30)
        producer.begin_transaction()
        self._produce(producer, records)
        return producer

    def _create_producer(self, options: Mapping[str, object]) -> Producer:
        # Compaction keeps the last batch of an idempotent producer, without its records.
        return Producer(
            {
                "bootstrap.servers": self._bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 50,
                "log_level": 0,
                **options,
            }
        )

    def _produce(self, producer: Producer, records: Sequence[Record]) -> None:
        for key, value in records:
            producer.produce(self._topic, value=value, key=key, partition=self._number)
        assert producer.flush(30) == 0

    def offsets(self) -> list[int]:
        """Return the offsets of the records that a new consumer reads."""
        partition = TopicPartition(self._topic, self._number)
        consumer = KafkaConsumer(
            bootstrap_servers=self._bootstrap_servers,
            isolation_level="read_committed",
            group_id=None,
            enable_auto_commit=False,
        )
        try:
            consumer.assign([partition])
            consumer.seek_to_beginning(partition)
            end_offset = consumer.end_offsets([partition])[partition]
            offsets: list[int] = []
            while consumer.position(partition) < end_offset:
                polled = consumer.poll(timeout_ms=100)
                offsets += [record.offset for records in polled.values() for record in records]
            return offsets
        finally:
            consumer.close()

    def wait_for_compaction(self, offsets: Sequence[int]) -> None:
        """Return when only the records with these offsets remain, before aborted transactions.

        Kafka compacts the segments before the last one, and only if something was written since the last compaction.
        """

        def is_compacted() -> bool:
            self.write_transaction(("aborted", "1"), commit=False)
            return self.offsets() == list(offsets)

        eventually("the log is compacted", is_compacted)


def _write_committed(log: Log) -> None:
    log.write_transaction(("a", "1"), commit=True)


def _write_aborted(log: Log) -> None:
    log.write_transaction(("a", "1"), ("b", "2"), commit=False)


def _write_compacted(log: Log) -> None:
    """Write records that are all compacted; the end is an aborted record."""
    log.write(("a", "1"), ("b", "1"))
    log.write(("a", None), ("b", None))
    log.wait_for_compaction([])


def _write_compacted_end_of_batch(log: Log) -> None:
    """Write a batch whose last record is compacted; the end is an aborted record."""
    log.write(("a", "1"), ("b", None))
    log.wait_for_compaction([0])


TAILS: list[Callable[[Log], None]] = [
    _write_committed,
    _write_aborted,
    _write_compacted,
    _write_compacted_end_of_batch,
]


class Reader:
    """A source, with the positions that a worker would store if no record were an event."""

    def __init__(self, source: KafkaSource) -> None:
        self.source = source
        self.offsets: dict[str, list[int]] = {}
        self.tracker = WatermarkTracker({"1": 0})

    def start(self, next_offsets: Mapping[str, int]) -> None:
        """Wait for the assignment, and read the partitions from the given offsets on, others from their start."""

        def is_assigned() -> bool:
            assert not self.source.poll()
            return self.source.connection_problem() is None and len(self.source.partitions_to_seek()) == 3

        eventually("the partitions are assigned", is_assigned)
        positions = dict(self.source.initial_positions({}))
        positions |= {name: replace(positions[name], next_offset=offset) for name, offset in next_offsets.items()}
        assert self.source.find_offset_gaps(positions) == []
        self.source.seek(positions)
        self.tracker.load_state(StoreState(0, 0, {}, positions))

    def poll(self) -> None:
        """Poll once, as a worker does; the records of each partition continue those of the last poll."""
        polled = self.source.poll()
        for records in polled:
            assert records.start_offset == self.tracker.position(records.partition).next_offset
            self.offsets.setdefault(records.partition, []).extend(record.offset for record in records.records)
        assert len({records.partition for records in polled}) == len(polled)
        updates = self.tracker.next_position_updates(polled, DecodedBatch(EventBatch()), LimitSettings(), {})
        self.tracker.apply_position_updates(updates)
        assert self.source.connection_problem() is None

    def lag(self, partition: str) -> int:
        """Return the number of offsets before the end of the partition, as a worker computes the number."""
        lags = self.tracker.partition_lags([partition], self.source.fetch_end_offsets(), 0)
        return next(lag_events for _, lag_events, _ in lags)

    def read_to_the_end(self, partition: str) -> None:
        """Poll until the partition has no lag."""

        def has_no_lag() -> bool:
            self.poll()
            return self.lag(partition) == 0

        eventually("the lag is 0", has_no_lag)


@contextmanager
def _reader(settings: KafkaSettings, **next_offsets: int) -> Iterator[Reader]:
    source = KafkaSource(settings)
    try:
        reader = Reader(source)
        reader.start(next_offsets)
        yield reader
    finally:
        source.close()


@pytest.mark.parametrize("write_tail", TAILS)
def test_a_tail_without_records_leaves_no_lag(settings: KafkaSettings, write_tail: Callable[[Log], None]) -> None:
    """The source starts before the tail."""
    log = Log(settings, settings.responses_topic)
    write_tail(log)
    with _reader(settings) as reader:
        reader.read_to_the_end(log.name)
        assert reader.offsets.get(log.name, []) == log.offsets()


@pytest.mark.parametrize("write_tail", TAILS)
def test_a_tail_without_records_leaves_no_lag_while_another_partition_is_busy(
    settings: KafkaSettings, write_tail: Callable[[Log], None]
) -> None:
    """The busy partition always has a backlog of many polls."""
    log, busy = (Log(settings, settings.responses_topic, number) for number in (QUIET, BUSY))
    keys = map(str, count())
    write_tail(log)
    busy.write(*[(next(keys), "1") for _ in range(2_000)])
    with _reader(replace(settings, max_poll_records=50)) as reader:

        def has_no_lag() -> bool:
            busy.write(*[(next(keys), "1") for _ in range(50)])
            reader.poll()
            return reader.lag(log.name) == 0

        eventually("the lag is 0", has_no_lag, every_s=0)
        assert reader.lag(busy.name)
        assert reader.offsets.get(log.name, []) == log.offsets()


@pytest.mark.parametrize("next_offset", [0, 1])
def test_a_position_whose_record_was_compacted_continues_at_the_next_record(
    settings: KafkaSettings, next_offset: int
) -> None:
    """No record was lost, so the position has no offset gap."""
    log = Log(settings, settings.responses_topic)
    log.write(("a", "1"), ("b", "1"), ("a", "2"), ("c", "1"))
    log.write(("b", "2"), ("d", None), ("a", "3"))
    log.wait_for_compaction([3, 4, 6])
    with _reader(settings, **{log.name: next_offset}) as reader:
        reader.read_to_the_end(log.name)
        assert reader.offsets[log.name] == [3, 4, 6]


def test_ten_thousand_records_without_a_value_leave_no_lag(settings: KafkaSettings) -> None:
    """Records that are neither events nor rejected delay no other partition."""
    log = Log(settings, settings.feedback_topic)
    log.write(*[(f"{number}", None) for number in range(10_000)])
    with _reader(settings) as reader:
        reader.read_to_the_end(log.name)
        assert reader.offsets[log.name] == list(range(10_000))
        rejections = reader.tracker.position(log.name).rejections
        assert (rejections.consecutive, rejections.rejected) == (0, 0)
        reader.tracker.update_end_offsets(reader.source.fetch_end_offsets())
        assert reader.tracker.total_lag_events() == 0
        assert reader.tracker.slowest_partition() is None


def test_an_open_transaction_lags_only_until_it_is_aborted(settings: KafkaSettings) -> None:
    """The transaction of a producer that has gone idle is aborted by Kafka."""
    log = Log(settings, settings.feedback_topic)
    producer = log.begin_transaction(("a", "1"))
    with _reader(settings) as reader:

        def has_lag() -> bool:
            reader.poll()
            return reader.lag(log.name) == 1

        eventually("the record counts as lag", has_lag)
        producer.abort_transaction(30)
        reader.read_to_the_end(log.name)
        assert reader.tracker.position(log.name).next_offset == 2
