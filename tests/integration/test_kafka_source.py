"""The Kafka source on a real broker: where it begins, what it reads, what it tells the group."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition

from monitor.config import KafkaSettings
from monitor.dead_letters import dead_letters
from monitor.ingest.dead_letters import DeadLetters
from monitor.ingest.kafka import KafkaSource
from monitor.ingest.source import Refused, Slice
from monitor.store import Position
from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually


@pytest.fixture(params=["kafka-python", "confluent"])
def settings(request: pytest.FixtureRequest, kafka: KafkaBroker) -> KafkaSettings:
    """Return settings for each client, with topics of their own: two partitions each."""
    name = f"source-{random.randrange(1 << 40):x}"
    made = KafkaSettings(kafka.bootstrap, f"{name}.r", f"{name}.f", f"{name}.d", group_id=name, client=request.param)
    for topic in (made.responses_topic, made.feedback_topic, made.dead_letter_topic):
        kafka.create_topic(topic, 2)
    return made


@contextmanager
def _source(settings: KafkaSettings) -> Iterator[KafkaSource]:
    source = KafkaSource(settings)
    try:
        yield source
    finally:
        source.close()


def _assigned(source: KafkaSource, count: int = 4) -> None:
    eventually("partitions are assigned", lambda: source.poll() or len(source.unplaced()) == count)


def _started(source: KafkaSource, positions: dict[str, Position] | None = None) -> dict[str, Position]:
    """Place the source as a worker does and return the positions."""
    _assigned(source)
    known = dict(positions or {})
    assert source.gaps(known, {}) == []
    known |= source.starts(known)
    source.place(known)
    return known


def _read(source: KafkaSource, records: int) -> list[Slice]:
    """Return slices until that many records have come, and what comes in the second after."""
    slices: list[Slice] = []

    def enough() -> bool:
        slices.extend(source.poll())
        return sum(len(each.offsets) for each in slices) >= records

    eventually("the records come", enough)
    until = time.monotonic() + 1
    while time.monotonic() < until:
        slices += source.poll()
    return slices


def test_only_committed_transactions_are_read_and_their_marks_are_passed(settings: KafkaSettings) -> None:
    """The position reaches the end although the last offsets hold no record."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=settings.group_id)
    producer.init_transactions()
    for text, commit in ((b"kept", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.send(settings.responses_topic, text, partition=0)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    with _source(settings) as source:
        _started(source)
        slices = _read(source, 1)
        assert [payload for each in slices for payload in each.payloads] == [b"kept"]
        name = f"{settings.responses_topic}:0"
        assert slices[-1].next_offset == 4
        assert source.trouble() is None
        assert source.ends()[name] == 4


def test_latest_is_decided_once_for_all_partitions(settings: KafkaSettings) -> None:
    """A partition that is added later is read from its beginning, whoever reads it."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for partition in range(2):
        producer.send(settings.responses_topic, b"old", partition=partition)
    producer.flush()
    with _source(replace(settings, start="latest")) as source:
        positions = _started(source)
        assert {name: each.next_offset for name, each in positions.items()} == {
            f"{topic}:{n}": int(topic == settings.responses_topic)
            for topic in (settings.responses_topic, settings.feedback_topic)
            for n in range(2)
        }
        with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
            admin.create_partitions({settings.responses_topic: 3})
        late = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
        late.send(settings.responses_topic, b"new", partition=2).get(30)
        late.close()
        _assigned(source, 5)
        assert source.gaps(positions, {}) == []
        starts = source.starts(positions)
        assert [(name[-2:], each.next_offset) for name, each in starts.items()] == [(":2", 0)]
    producer.close()


def test_held_partitions_wait_and_come_back_without_loss(settings: KafkaSettings) -> None:
    """Also when the client has fetched records of them already."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for number in range(8_000):
        producer.send(settings.responses_topic, b"%d" % number, partition=number % 2)
    producer.close()
    names = [f"{settings.responses_topic}:{n}" for n in range(2)]
    with _source(settings) as source:
        _started(source)
        slices: list[Slice] = []
        while sum(len(each.offsets) for each in slices) < 1_500:
            slices += source.poll()
        for turn in range(6):
            source.hold(names if turn % 2 else names[:1])
            slices += source.poll()
        source.hold(names)
        for _ in range(3):
            assert source.poll() == []
        source.hold([])
        slices += _read(source, 8_000 - sum(len(each.offsets) for each in slices))
    for n, name in enumerate(names):
        offsets = [offset for each in slices if each.partition == name for offset in each.offsets]
        payloads = [payload for each in slices if each.partition == name for payload in each.payloads]
        assert offsets == list(range(4_000))
        assert payloads == [b"%d" % number for number in range(n, 8_000, 2)]


def test_the_group_learns_how_far_the_store_is(settings: KafkaSettings) -> None:
    """At the latest when the worker leaves."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    producer.send(settings.responses_topic, b"1", partition=0).get(30)
    producer.close()
    with _source(settings) as source:
        _started(source)
        _read(source, 1)
        source.acknowledge({f"{settings.responses_topic}:0": 0})
        source.acknowledge({f"{settings.responses_topic}:0": 1})
    consumer = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers, group_id=settings.group_id)
    assert consumer.committed(TopicPartition(settings.responses_topic, 0)) == 1
    consumer.close()


def test_a_worker_without_partitions_knows_that_it_has_none(settings: KafkaSettings) -> None:
    """There may be more workers than partitions: they are ready to take over."""
    with _source(settings) as first, _source(settings) as second, _source(settings) as third:
        everybody = (first, second, third)

        def settled() -> bool:
            for each in everybody:
                each.poll()
            return all(each.joined() for each in everybody) and sum(len(each.own()) for each in everybody) == 4

        eventually("the group is settled", settled)
        assert sorted(len(each.own()) for each in everybody) == [0, 2, 2]


def test_a_record_of_nothing_can_be_kept(settings: KafkaSettings) -> None:
    """Neither key nor value: a tombstone of another client."""
    letters = DeadLetters(settings)
    try:
        letters.keep([(Refused("t:0", 7, None, "empty_payload", "expected a JSON object"), None)])
    finally:
        letters.close()
    (letter,) = dead_letters(settings)
    assert (letter.offset, letter.reason, letter.key, letter.value) == (7, "empty_payload", None, None)
