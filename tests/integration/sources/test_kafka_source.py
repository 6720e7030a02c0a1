"""The Kafka source on a real broker: where it begins, what it reads, what it tells the group."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

from monitor.cli.dead_letters import dead_letters
from monitor.clock import wall_clock
from monitor.config import KafkaSettings
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.decoder import Decoder
from monitor.engine.id_hash import IdHasher
from monitor.errors import UsageError
from monitor.pipeline.batch_decoding import decode
from monitor.sources import confluent, kafka_python
from monitor.sources import kafka_source as kafka
from monitor.sources.dead_letter_queue import DeadLetters
from monitor.sources.kafka_source import KafkaSource
from monitor.sources.source import Refused, Slice
from monitor.state import Position
from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually
from tests.support.streams import EXPERIMENT, settings_with


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
    eventually(
        "partitions are assigned",
        lambda: not source.poll() and source.trouble() is None and len(source.unplaced()) == count,
    )


def _started(source: KafkaSource, positions: dict[str, Position] | None = None) -> dict[str, Position]:
    """Place the source as a worker does and return the positions."""
    _assigned(source)
    known = dict(positions or {})
    assert source.gaps(known) == []
    known |= source.starts(known)
    source.place(known)
    return known


def _fill(settings: KafkaSettings, records: int) -> None:
    """Write numbers to the responses, to both partitions in turn."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for number in range(records):
        producer.send(settings.responses_topic, b"%d" % number, partition=number % 2)
    producer.close()


def _partitions(settings: KafkaSettings) -> list[str]:
    return [f"{settings.responses_topic}:{n}" for n in range(2)]


def _read(source: KafkaSource, records: int) -> list[Slice]:
    """Return slices until that many records have come, and what comes in the second after."""
    slices: list[Slice] = []

    def enough() -> bool:
        slices.extend(source.poll())
        return sum(len(each.records) for each in slices) >= records

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
        assert [record.value for each in slices for record in each.records] == [b"kept"]
        name = f"{settings.responses_topic}:0"
        assert slices[-1].next_offset == 4
        assert source.trouble() is None
        assert source.ends()[name] == 4


Content = tuple[bytes | None, bytes | None]


def _write(settings: KafkaSettings, codec: str | None, outcomes: Sequence[str]) -> list[Content]:
    """Write 300 records to the first partition for each outcome, and return (key, value) of those that stand."""
    transactional = {"transactional_id": f"{settings.group_id}-{codec}"} if outcomes[0] else {}
    producer = KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, compression_type=codec, linger_ms=200, **transactional
    )
    if transactional:
        producer.init_transactions()
    stand: list[Content] = []
    for outcome in outcomes:
        if transactional:
            producer.begin_transaction()
        for place in range(300):
            key = None if place % 3 == 0 else b"%d" % place
            value = None if place % 30 == 29 else f"{codec} {outcome} {place} ".encode() * (place % 7)
            producer.send(settings.responses_topic, value, key, [("name", b"text")] * (place % 3), partition=0)
            if outcome != "abort":
                stand.append((key, value))
        producer.flush()
        if transactional:
            (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)()
    producer.close()
    return stand


def test_records_are_read_as_they_were_written(settings: KafkaSettings) -> None:
    """With any compression, with headers, without key or value, in a transaction, from the midst of a batch on."""
    name = f"{settings.responses_topic}:0"
    written: list[Content] = []
    for codec, outcomes in (
        (None, ("",)), ("gzip", ("commit", "abort")), ("snappy", ("",)), ("lz4", ("abort", "commit")), ("zstd", ("",)),
    ):  # fmt: skip
        written += _write(settings, codec, outcomes)

    def contents(begin: int) -> list[Content]:
        read: list[Content] = []
        with _source(replace(settings, max_poll_records=100, group_id=f"{settings.group_id}-{begin}")) as source:
            _assigned(source)
            source.place({each: Position(begin if each == name else 0) for each in source.unplaced()})

            def enough() -> bool:
                for each in source.poll():
                    assert len(each.records) <= 100
                    read.extend((record.key, record.value) for record in each.records)
                return len(read) >= len(written) - begin

            eventually("all are read", enough)
        return read

    for begin in (0, 7, 300, 450):
        assert contents(begin) == written[begin:]


def test_latest_is_decided_once_for_all_partitions(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition that is added later is read from its beginning, whoever reads it."""
    for client in (confluent, kafka_python):
        monkeypatch.setattr(client, "METADATA_MS", 3_000)
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
        assert source.gaps(positions) == []
        starts = source.starts(positions)
        assert [(name[-2:], each.next_offset) for name, each in starts.items()] == [(":2", 0)]
    producer.close()


def test_held_partitions_wait_and_come_back_without_loss(settings: KafkaSettings) -> None:
    """Also when the client has fetched records of them already."""
    _fill(settings, 8_000)
    names = _partitions(settings)
    with _source(settings) as source:
        _started(source)
        slices: list[Slice] = []
        while sum(len(each.records) for each in slices) < 1_500:
            slices += source.poll()
        for turn in range(6):
            source.hold(names if turn % 2 else names[:1])
            slices += source.poll()
        source.hold(names)
        for _ in range(3):
            assert source.poll() == []
        source.hold([])
        slices += _read(source, 8_000 - sum(len(each.records) for each in slices))
    for n, name in enumerate(names):
        records = [record for each in slices if each.partition == name for record in each.records]
        assert [record.offset for record in records] == list(range(4_000))
        assert [record.value for record in records] == [b"%d" % number for number in range(n, 8_000, 2)]


def test_what_was_held_is_read_when_it_was_placed_again(settings: KafkaSettings) -> None:
    """Nobody holds it any more since the source went back."""
    _fill(settings, 200)
    with _source(settings) as source:
        positions = _started(source)
        assert len(_read(source, 200)) > 0
        source.hold(_partitions(settings))
        source.rewind()
        source.hold([])
        source.place(positions)
        assert sum(len(each.records) for each in _read(source, 200)) == 200


def test_what_has_arrived_is_read_without_waiting(settings: KafkaSettings) -> None:
    """While the store is at work on the batch before, a worker takes what there is."""
    _fill(settings, 200)
    with _source(settings) as source:
        _started(source)
        left = 200

        def all_read() -> bool:
            nonlocal left
            left -= sum(len(each.records) for each in source.poll(wait=False))
            return left == 0

        eventually("all are read", all_read, every_s=0.01)
        assert source.poll(wait=False) == []


def test_a_backlog_is_read_in_large_parts(settings: KafkaSettings) -> None:
    """A poll waits for more of a backlog than the megabyte that a client fetches by default."""
    _write_kilobytes(settings, 10 << 10)
    largest, expected = 0, 1500
    with _source(replace(settings, max_poll_records=4000)) as source:
        _started(source)

        def enough() -> bool:
            nonlocal largest
            largest = max([largest, *(len(each.records) for each in source.poll())])
            return largest > expected

        eventually("a poll brings more of a partition", enough)


def _write_kilobytes(settings: KafkaSettings, records: int) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, max_request_size=1 << 20)
    for _ in range(records):
        producer.send(settings.responses_topic, bytes(1000), partition=0)
    producer.close()


def test_polls_without_records_leave_few_errors_behind(settings: KafkaSettings) -> None:
    """What only Python's search for cyclic garbage frees would stay for minutes, and with it all that is being read."""
    with _source(settings) as source:
        _started(source)
        gc.collect()
        gc.disable()
        try:
            for _ in range(80):
                source.poll(wait=False)
                source.poll()
            _fill(settings, 2)
            _read(source, 2)
            left = [each for each in gc.get_objects() if isinstance(each, (KafkaError, KafkaException))]
        finally:
            gc.enable()
        # They are freed after every fifty empty polls; of 160 polls nearly all would be left.
        assert len(left) < 70


def test_what_waits_is_seen_while_nothing_is_read(settings: KafkaSettings) -> None:
    """The store is away, and events come: their number is the lag that people are called by."""
    with _source(settings) as source:
        _started(source)
        source.poll()
        source.idle()
        _fill(settings, 10)

        def seen() -> bool:
            source.idle()
            ends = source.ends()
            return [ends[name] for name in _partitions(settings)] == [5, 5]

        eventually("the ends are known", seen)
        assert sum(len(each.records) for each in _read(source, 10)) == 10


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
                each.trouble()  # as a worker does: it rejoins if the group has no owner for some partitions
            return all(each.joined() for each in everybody) and sum(len(each.own()) for each in everybody) == 4

        eventually("the group is settled", settled)
        assert sorted(len(each.own()) for each in everybody) == [0, 2, 2]


def test_a_record_of_nothing_can_be_kept(settings: KafkaSettings) -> None:
    """Neither key nor value: a tombstone of another client."""
    letters = DeadLetters(settings)
    try:
        letters.keep([Refused("t:0", 7, None, "empty_payload", "expected a JSON object")])
    finally:
        letters.close()
    (letter,) = dead_letters(settings)
    assert (letter.offset, letter.reason, letter.key, letter.value) == (7, "empty_payload", None, None)


def test_going_back_skips_nothing(settings: KafkaSettings) -> None:
    """Nor does waiting; at the end of the log as in the midst of it, where the client has fetched more already."""
    _fill(settings, 6_000)
    names = _partitions(settings)
    with _source(settings) as source:
        positions = _started(source)
        for before in (6_000, 1, 2_500):
            slices: list[Slice] = []
            while sum(len(each.records) for each in slices) < before:
                slices += source.poll()
            source.idle()
            source.rewind()
            assert source.poll() == []
            assert len(source.unplaced()) == 4
            source.place(positions)
        slices = []
        while sum(len(each.records) for each in slices) < 1_000:
            slices += source.poll()
        for _ in range(3):
            source.idle()
        slices += _read(source, 6_000 - sum(len(each.records) for each in slices))
    for name in names:
        own = [each for each in slices if each.partition == name]
        assert [record.offset for each in own for record in each.records] == list(range(3_000))
        assert [each.begin for each in own] == [0, *(each.next_offset for each in own[:-1])]


def test_a_position_that_is_gone_is_placed_again(settings: KafkaSettings) -> None:
    """The client never chooses another one by itself, neither at the first record nor later."""
    _fill(settings, 200)
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(settings.responses_topic, n): 60 for n in range(2)})
    with _source(settings) as source:
        _assigned(source)
        source.place({name: Position(7) for name in source.unplaced()})
        eventually("the partitions are to be placed again", lambda: source.poll() or len(source.unplaced()) == 4)
        gaps = source.gaps({name: Position(7) for name in _partitions(settings)})
        assert [(each.lost, each.resume.next_offset) for each in gaps] == [(53, 60), (53, 60)]


def test_a_refused_record_is_kept_with_its_key(settings: KafkaSettings) -> None:
    """As it was, so that it can be sent again."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for key in (b"student-1", None):
        producer.send(settings.feedback_topic, key=key, value=b"{", partition=1).get(30)
    producer.close()
    config = settings_with(EXPERIMENT)
    normalizer = EventNormalizer([Experiment(1, config.experiments[0])], IdHasher(b"key"))
    with _source(settings) as source:
        _started(source)
        refused = decode(_read(source, 2), Decoder(config), normalizer, wall_clock()).refused
        source.keep_refused(refused)
    assert sorted((each.offset, each.key) for each in dead_letters(settings)) == [(0, b"student-1"), (1, None)]


def test_workers_with_either_client_share_a_group(settings: KafkaSettings) -> None:
    """So that they can be changed one by one; the same numbers of both topics go to one worker."""
    other = replace(settings, client="confluent" if settings.client == "kafka-python" else "kafka-python")
    with _source(settings) as first:
        _started(first)
        with _source(other) as second:

            def shared() -> bool:
                for each in (first, second):
                    each.poll()
                return len(first.own()) == len(second.own()) == 2

            eventually("each has a half", shared)
            assert {name[-2:] for name in first.own()} ^ {name[-2:] for name in second.own()} == {":0", ":1"}
        _assigned(first)


def test_ends_are_asked_for_where_nothing_was_read_and_where_partitions_were_added(
    settings: KafkaSettings, kafka: KafkaBroker
) -> None:
    """On them rests what may be forgotten, and a backlog may have come for everybody a moment ago."""
    with _source(settings) as source:
        _started(source)
        _fill(settings, 4)
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            admin.create_partitions({settings.feedback_topic: 3})
        added = f"{settings.feedback_topic}:2"
        ends = eventually("the new partition has an end", lambda: added in (ends := source.ask_ends()) and ends)
        assert ends == dict.fromkeys(_partitions(settings), 2) | {
            f"{settings.feedback_topic}:{number}": 0 for number in range(3)
        }


@pytest.mark.parametrize("settings", ["kafka-python"], indirect=True)
def test_partitions_that_were_forgotten_are_shared_out_again(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that does not know a topic yet gives its partitions to nobody, and may never come back to it."""
    share = RangePartitionAssignor.assign
    sources: list[KafkaSource] = []

    def forgetful(_: object, cluster: Any, members: Any) -> Any:
        for member in () if sources and sources[0].restarts else members:
            member.metadata.topics.remove(settings.feedback_topic)
        return share(cluster, members)

    monkeypatch.setattr(RangePartitionAssignor, "assign", classmethod(forgetful))
    monkeypatch.setattr(kafka, "_UNOWNED_S", 5.0)
    monkeypatch.setattr(kafka, "_LOOK_EVERY_S", 0.5)
    monkeypatch.setattr(kafka, "_PROBE_EVERY_S", 0.2)
    with _source(settings) as source:
        sources.append(source)
        _assigned(source, 4)
        assert source.restarts >= 1


@pytest.mark.parametrize("settings", ["kafka-python"], indirect=True)
def test_the_group_is_joined_with_the_partitions_known(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that joins before it knows them shares out nothing, and on a busy machine may never come back to it."""
    share = RangePartitionAssignor.assign
    shared: list[int] = []

    def noting(_: object, cluster: Any, members: Any) -> Any:
        assignment = share(cluster, members)
        shared.append(sum(len(each.partitions()) for each in assignment.values()))
        return assignment

    monkeypatch.setattr(RangePartitionAssignor, "assign", classmethod(noting))
    for number in range(10):
        with _source(replace(settings, group_id=f"{settings.group_id}-{number}")) as source:
            _started(source)
            source.poll()
    assert set(shared) == {4}


def test_a_member_of_the_same_name_takes_over(settings: KafkaSettings) -> None:
    """The one before it ends, since neither client ever reads again; kafka-python hears of it when it commits."""
    own = replace(settings, group_instance_id="worker-1")
    offsets = count(1)
    with _source(own) as first:
        _started(first)

        def going_on() -> None:
            first.acknowledge(dict.fromkeys(first.own(), next(offsets)))
            first.poll()

        with _source(own) as second:
            _started(second)
            with pytest.raises(UsageError, match=r"fenced|group_instance_id"):
                eventually("it is told", going_on)
