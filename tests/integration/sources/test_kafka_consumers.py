"""The contract of `Consumer`, for both Kafka clients on a real broker."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from monitor.config import KafkaSettings
from monitor.decoding import Record
from monitor.sources.consumer import Consumer, OffsetOutOfRange
from monitor.sources.kafka_source import create_consumer
from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually

_MAX_RECORDS = 1000


class Member:
    """A consumer that has joined a group, with a record of all assignments."""

    def __init__(self, settings: KafkaSettings) -> None:
        self.assignments: list[set[str]] = []
        self.consumer: Consumer = create_consumer(settings)
        self.consumer.subscribe([settings.responses_topic, settings.feedback_topic], self._on_assign)

    def _on_assign(self, partitions: Collection[str]) -> None:
        self.assignments.append(set(partitions))

    def wait_for_assignment(self) -> None:
        """Poll until partitions are assigned; no poll may return records."""

        def is_assigned() -> bool:
            assert not self.consumer.poll(0.1, _MAX_RECORDS)
            return bool(self.assignments)

        eventually("partitions are assigned", is_assigned)

    def read(self, count: int, partition: str) -> list[Record]:
        """Return at least `count` next records of a partition."""
        records: list[Record] = []

        def has_enough() -> bool:
            records.extend(self.consumer.poll(0.1, _MAX_RECORDS).get(partition, ()))
            return len(records) >= count

        eventually("the records arrive", has_enough, every_s=0)
        return records

    def assert_no_records(self, seconds: float = 0.6) -> None:
        """Poll for some time; no poll may return records."""
        deadline_s = time.monotonic() + seconds
        while time.monotonic() < deadline_s:
            assert not self.consumer.poll(0.1, _MAX_RECORDS)


@pytest.fixture(params=["kafka-python", "confluent"])
def settings(request: pytest.FixtureRequest, kafka: KafkaBroker) -> KafkaSettings:
    """Return settings for each client, with new topics: two partitions of responses, a partition of feedback."""
    name = f"consumer-{random.randrange(1 << 40):x}"
    kafka_settings = KafkaSettings(kafka.bootstrap, f"{name}.r", f"{name}.f", group_id=name, client=request.param)
    kafka.create_topic(kafka_settings.responses_topic, 2)
    kafka.create_topic(kafka_settings.feedback_topic, 1)
    return kafka_settings


@contextmanager
def _joined(settings: KafkaSettings) -> Iterator[Member]:
    member = Member(settings)
    try:
        member.wait_for_assignment()
        yield member
    finally:
        member.consumer.close({})


def _partitions(settings: KafkaSettings) -> list[str]:
    return [f"{settings.responses_topic}:0", f"{settings.responses_topic}:1", f"{settings.feedback_topic}:0"]


def _write(settings: KafkaSettings, values: Sequence[bytes | None], partition: int = 0) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for value in values:
        producer.send(settings.responses_topic, value, key=b"key", partition=partition)
    producer.close()


def test_assigned_partitions_return_no_records_before_seek(settings: KafkaSettings) -> None:
    """The consumer does not start at the group's committed offsets."""
    _write(settings, [b"a"])
    with _joined(settings) as member:
        assert member.assignments == [set(_partitions(settings))]
        assert set(member.consumer.assignment()) == set(_partitions(settings))
        member.assert_no_records()


def test_records_have_offset_key_and_value(settings: KafkaSettings) -> None:
    """The value is None for a record without a value."""
    _write(settings, [b"a", None, b"c"])
    first = _partitions(settings)[0]
    with _joined(settings) as member:
        member.consumer.seek({first: 1})
        records = member.read(2, first)
        assert [(record.offset, record.key, record.value) for record in records] == [
            (1, b"key", None),
            (2, b"key", b"c"),
        ]
        assert member.consumer.position(first) == 3
        assert member.consumer.end_offsets()[first] == 3


def test_a_poll_returns_at_most_max_records(settings: KafkaSettings) -> None:
    """The next polls return the remaining records, in order."""
    _write(settings, [b"%d" % number for number in range(100)])
    first = _partitions(settings)[0]
    with _joined(settings) as member:
        member.consumer.seek({first: 0})
        values: list[bytes | None] = []

        def all_read() -> bool:
            records = member.consumer.poll(0.1, 7).get(first, ())
            assert len(records) <= 7
            values.extend(record.value for record in records)
            return len(values) == 100

        eventually("all records arrive", all_read, every_s=0)
        assert values == [b"%d" % number for number in range(100)]


def test_a_paused_partition_returns_all_its_records_after_resume(settings: KafkaSettings) -> None:
    """Also if a poll has returned a part of the fetched records. Other partitions are read meanwhile."""
    first, second, _ = _partitions(settings)
    _write(settings, [b"x"] * 50)
    with _joined(settings) as member:
        member.consumer.seek({first: 0, second: 0})

        def next_records() -> list[Record]:
            return list(member.consumer.poll(0.1, 10).get(first, ()))

        records = eventually("records arrive", next_records)
        member.consumer.pause([first])
        member.assert_no_records()
        _write(settings, [b"y"] * 3, partition=1)
        assert len(member.read(3, second)) == 3
        member.consumer.resume([first])
        records += member.read(50 - len(records), first)
        assert [record.offset for record in records] == list(range(50))


def test_a_paused_partition_remains_paused_after_seek(settings: KafkaSettings) -> None:
    """After resume, the partition is read from the new offset."""
    first = _partitions(settings)[0]
    _write(settings, [b"x"] * 5)
    with _joined(settings) as member:
        member.consumer.seek({first: 0})
        member.read(5, first)
        member.consumer.pause([first])
        member.consumer.seek({first: 3})
        member.assert_no_records()
        member.consumer.resume([first])
        assert [record.offset for record in member.read(2, first)] == [3, 4]


def test_calls_for_unassigned_partitions_are_ignored(settings: KafkaSettings) -> None:
    """A rebalance may have revoked the partitions a moment ago."""
    with _joined(settings) as member:
        unassigned = f"{settings.responses_topic}:7"
        member.consumer.pause([unassigned])
        member.consumer.resume([unassigned])
        member.consumer.seek({unassigned: 3})
        assert member.consumer.position(unassigned) is None
        assert set(member.consumer.assignment()) == set(_partitions(settings))


def test_seek_to_a_deleted_offset_raises_offset_out_of_range(settings: KafkaSettings) -> None:
    """The client never chooses an offset by itself. After a valid `seek`, the partition is read."""
    first = _partitions(settings)[0]
    _write(settings, [b"x"] * 10)
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(settings.responses_topic, 0): 6})

    def poll_without_records() -> bool:
        assert not member.consumer.poll(0.1, _MAX_RECORDS)
        return False

    with _joined(settings) as member:
        member.consumer.seek({first: 2})
        with pytest.raises(OffsetOutOfRange):
            eventually("an error is raised", poll_without_records)
        member.consumer.seek({first: 6})
        assert [record.offset for record in member.read(4, first)] == [6, 7, 8, 9]


def test_partitions_can_be_read_without_joining_the_group(settings: KafkaSettings) -> None:
    """The members of the group keep their partitions, also those with the same static id."""
    first, second, _ = _partitions(settings)
    _write(settings, [b"a", b"b"])
    _write(settings, [b"c"], partition=1)
    static_settings = replace(settings, group_instance_id="static")
    with _joined(static_settings) as member:
        consumer = create_consumer(static_settings)
        reader = Member.__new__(Member)
        reader.consumer = consumer
        for partition, offset in ((first, 1), (second, 0), (first, 0)):
            consumer.assign({partition: offset})
            assert set(consumer.assignment()) == {partition}
            assert reader.read(1, partition)[0].offset == offset
            consumer.pause([partition])
        consumer.close({})
        member.assert_no_records()
        assert member.assignments == [set(_partitions(settings))]


def _commit_while_running(member: Member, offsets: dict[str, int]) -> None:
    member.consumer.commit_group_offsets(offsets)


def _commit_at_the_end(member: Member, offsets: dict[str, int]) -> None:
    member.consumer.close(offsets)


@pytest.mark.parametrize("commit", [_commit_while_running, _commit_at_the_end])
def test_offsets_are_committed_to_the_group(
    settings: KafkaSettings, commit: Callable[[Member, dict[str, int]], None]
) -> None:
    """Lag dashboards read the committed offsets."""
    _write(settings, [b"x"] * 5)
    reader = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers, group_id=settings.group_id)
    with _joined(settings) as member:
        commit(member, {_partitions(settings)[0]: 4})
        partition = TopicPartition(settings.responses_topic, 0)
        eventually("the offset is committed", lambda: reader.committed(partition) == 4)
    reader.close()


def test_members_share_the_partitions_and_take_over_when_a_member_leaves(settings: KafkaSettings) -> None:
    """After each rebalance, the callback gets all partitions of the member, including retained partitions."""
    with _joined(settings) as first:
        second = Member(replace(settings, group_instance_id=None))

        def is_shared() -> bool:
            first.consumer.poll(1.0, _MAX_RECORDS)
            second.consumer.poll(1.0, _MAX_RECORDS)
            assignments = [member.assignments[-1] if member.assignments else set() for member in (first, second)]
            return (
                all(assignments)
                and sum(map(len, assignments)) == 3
                and set.union(*assignments) == set(_partitions(settings))
            )

        eventually("both members have partitions", is_shared, within_s=150.0)
        second.consumer.close({})

        def has_all_partitions() -> bool:
            first.consumer.poll(0.1, _MAX_RECORDS)
            return first.assignments[-1] == set(_partitions(settings))

        eventually("the first member has all partitions", has_all_partitions)
