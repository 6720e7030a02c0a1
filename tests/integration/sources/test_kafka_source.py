"""The Kafka source on a real broker: initial offsets, records, offset gaps, and offsets of the group."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from confluent_kafka import KafkaException
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError

from monitor.cli.dead_letters import read_dead_letters
from monitor.clock import wall_clock
from monitor.config import KafkaSettings
from monitor.decoding import RecordDecoder
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.errors import UsageError
from monitor.pipeline.batch_decoding import decode_records
from monitor.sources import confluent, kafka_python
from monitor.sources import kafka_source as kafka
from monitor.sources.dead_letter_queue import KafkaDeadLetterQueue
from monitor.sources.kafka_source import KafkaSource
from monitor.sources.source import PartitionRecords, RejectedRecord
from monitor.state import Position
from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually
from tests.support.streams import EXPERIMENT, settings_with


@pytest.fixture(params=["kafka-python", "confluent"])
def settings(request: pytest.FixtureRequest, kafka: KafkaBroker) -> KafkaSettings:
    """Return settings per client, with new topics of two partitions."""
    name = f"source-{random.randrange(1 << 40):x}"
    kafka_settings = KafkaSettings(
        kafka.bootstrap, f"{name}.r", f"{name}.f", f"{name}.d", group_id=name, client=request.param
    )
    for topic in (kafka_settings.responses_topic, kafka_settings.feedback_topic, kafka_settings.dead_letter_topic):
        kafka.create_topic(topic, 2)
    return kafka_settings


@contextmanager
def _source(settings: KafkaSettings) -> Iterator[KafkaSource]:
    source = KafkaSource(settings)
    try:
        yield source
    finally:
        source.close()


def _wait_for_assignment(source: KafkaSource, count: int = 4) -> None:
    eventually(
        "partitions are assigned",
        lambda: not source.poll() and source.connection_problem() is None and len(source.partitions_to_seek()) == count,
    )


def _seek_initial_positions(source: KafkaSource) -> dict[str, Position]:
    """Start the source at its initial positions, as a worker does, and return the positions."""
    _wait_for_assignment(source)
    assert source.find_offset_gaps({}) == []
    positions = dict(source.initial_positions({}))
    source.seek(positions)
    return positions


def _record_count(polled: Sequence[PartitionRecords]) -> int:
    return sum(len(partition_records.records) for partition_records in polled)


def _write_numbers(settings: KafkaSettings, records: int) -> None:
    """Write the numbers from 0 on to both partitions of the responses, in turn."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for number in range(records):
        producer.send(settings.responses_topic, b"%d" % number, partition=number % 2)
    producer.close()


def _partitions(settings: KafkaSettings) -> list[str]:
    return [f"{settings.responses_topic}:{n}" for n in range(2)]


def _read(source: KafkaSource, records: int) -> list[PartitionRecords]:
    """Poll until `records` have arrived, and for another second; return all polled records."""
    polled: list[PartitionRecords] = []

    def has_enough() -> bool:
        polled.extend(source.poll())
        return _record_count(polled) >= records

    eventually("the records arrive", has_enough)
    deadline_s = time.monotonic() + 1
    while time.monotonic() < deadline_s:
        polled += source.poll()
    return polled


def test_only_committed_transactions_are_read_and_their_markers_are_skipped(settings: KafkaSettings) -> None:
    """The position advances to the end offset, although the last offsets have no record."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, transactional_id=settings.group_id)
    producer.init_transactions()
    for text, commit in ((b"committed", True), (b"aborted", False)):
        producer.begin_transaction()
        producer.send(settings.responses_topic, text, partition=0)
        producer.flush()
        if commit:
            producer.commit_transaction()
        else:
            producer.abort_transaction()
    producer.close()
    with _source(settings) as source:
        _seek_initial_positions(source)
        polled = _read(source, 1)
        assert [record.value for partition_records in polled for record in partition_records.records] == [b"committed"]
        name = f"{settings.responses_topic}:0"
        assert polled[-1].next_offset == 4
        assert source.connection_problem() is None
        assert source.end_offsets()[name] == 4


Content = tuple[bytes | None, bytes | None]


def _write(settings: KafkaSettings, codec: str | None, outcomes: Sequence[str]) -> list[Content]:
    """Write 300 records per outcome to the first partition; return (key, value) of the records that are not aborted."""
    transactional = {"transactional_id": f"{settings.group_id}-{codec}"} if outcomes[0] else {}
    producer = KafkaProducer(
        bootstrap_servers=settings.bootstrap_servers, compression_type=codec, linger_ms=200, **transactional
    )
    if transactional:
        producer.init_transactions()
    visible_records: list[Content] = []
    for outcome in outcomes:
        if transactional:
            producer.begin_transaction()
        for number in range(300):
            key = None if number % 3 == 0 else b"%d" % number
            value = None if number % 30 == 29 else f"{codec} {outcome} {number} ".encode() * (number % 7)
            producer.send(settings.responses_topic, value, key, [("name", b"text")] * (number % 3), partition=0)
            if outcome != "abort":
                visible_records.append((key, value))
        producer.flush()
        if transactional:
            (producer.commit_transaction if outcome == "commit" else producer.abort_transaction)()
    producer.close()
    return visible_records


def test_records_are_read_as_they_were_written(settings: KafkaSettings) -> None:
    """With any compression, with headers, without key or value, in a transaction, from any offset of a batch."""
    name = f"{settings.responses_topic}:0"
    written: list[Content] = []
    for codec, outcomes in (
        (None, ("",)), ("gzip", ("commit", "abort")), ("snappy", ("",)), ("lz4", ("abort", "commit")), ("zstd", ("",)),
    ):  # fmt: skip
        written += _write(settings, codec, outcomes)

    def read_from(start_offset: int) -> list[Content]:
        contents: list[Content] = []
        with _source(replace(settings, max_poll_records=100, group_id=f"{settings.group_id}-{start_offset}")) as source:
            _wait_for_assignment(source)
            source.seek(
                {
                    partition: Position(start_offset if partition == name else 0)
                    for partition in source.partitions_to_seek()
                }
            )

            def has_all_records() -> bool:
                for partition_records in source.poll():
                    assert len(partition_records.records) <= 100
                    contents.extend((record.key, record.value) for record in partition_records.records)
                return len(contents) >= len(written) - start_offset

            eventually("all records are read", has_all_records)
        return contents

    for start_offset in (0, 7, 300, 450):
        assert read_from(start_offset) == written[start_offset:]


def test_start_latest_applies_to_the_first_partitions_and_not_to_added_ones(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every worker reads a partition that is added later from the first record."""
    for client in (confluent, kafka_python):
        monkeypatch.setattr(client, "METADATA_MAX_AGE_MS", 3_000)
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for partition in range(2):
        producer.send(settings.responses_topic, b"old", partition=partition)
    producer.flush()
    with _source(replace(settings, start="latest")) as source:
        positions = _seek_initial_positions(source)
        assert {name: position.next_offset for name, position in positions.items()} == {
            f"{topic}:{n}": int(topic == settings.responses_topic)
            for topic in (settings.responses_topic, settings.feedback_topic)
            for n in range(2)
        }
        with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
            admin.create_partitions({settings.responses_topic: 3})
        new_producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
        new_producer.send(settings.responses_topic, b"new", partition=2).get(30)
        new_producer.close()
        _wait_for_assignment(source, 5)
        assert source.find_offset_gaps(positions) == []
        initial_positions = source.initial_positions(positions)
        assert [(name[-2:], position.next_offset) for name, position in initial_positions.items()] == [(":2", 0)]
    producer.close()


def test_paused_partitions_return_all_records_after_resume(settings: KafkaSettings) -> None:
    """Also if the client had already fetched records of the paused partitions."""
    _write_numbers(settings, 8_000)
    names = _partitions(settings)
    with _source(settings) as source:
        _seek_initial_positions(source)
        polled: list[PartitionRecords] = []
        while _record_count(polled) < 1_500:
            polled += source.poll()
        for turn in range(6):
            source.pause(names[:1])
            (source.pause if turn % 2 else source.resume)(names[1:])
            polled += source.poll()
        source.pause(names)
        for _ in range(3):
            assert source.poll() == []
        source.resume(names)
        polled += _read(source, 8_000 - _record_count(polled))
    for n, name in enumerate(names):
        records = [
            record
            for partition_records in polled
            if partition_records.partition == name
            for record in partition_records.records
        ]
        assert [record.offset for record in records] == list(range(4_000))
        assert [record.value for record in records] == [b"%d" % number for number in range(n, 8_000, 2)]


def test_partitions_that_are_resumed_after_a_rewind_are_read_after_seek(settings: KafkaSettings) -> None:
    """`resume` before `seek` takes effect with `seek`."""
    _write_numbers(settings, 200)
    with _source(settings) as source:
        positions = _seek_initial_positions(source)
        assert len(_read(source, 200)) > 0
        source.pause(_partitions(settings))
        source.rewind()
        source.resume(_partitions(settings))
        source.seek(positions)
        assert _record_count(_read(source, 200)) == 200


def test_a_poll_without_waiting_returns_records_that_have_arrived(settings: KafkaSettings) -> None:
    """Workers poll without waiting while a commit is pending."""
    _write_numbers(settings, 200)
    with _source(settings) as source:
        _seek_initial_positions(source)
        unread_count = 200

        def all_read() -> bool:
            nonlocal unread_count
            unread_count -= _record_count(source.poll(wait=False))
            return unread_count == 0

        eventually("all records are read", all_read, every_s=0.01)
        assert source.poll(wait=False) == []


def test_a_poll_during_a_backlog_returns_more_than_a_default_fetch(settings: KafkaSettings) -> None:
    """Clients fetch a megabyte per partition by default."""
    _write_kilobytes(settings, 10 << 10)
    max_count, expected_count = 0, 1500
    with _source(replace(settings, max_poll_records=4000)) as source:
        _seek_initial_positions(source)

        def has_large_poll() -> bool:
            nonlocal max_count
            max_count = max([max_count, *(len(partition_records.records) for partition_records in source.poll())])
            return max_count > expected_count

        eventually("a poll returns many records of a partition", has_large_poll)


def _write_kilobytes(settings: KafkaSettings, records: int) -> None:
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers, max_request_size=1 << 20)
    for _ in range(records):
        producer.send(settings.responses_topic, bytes(1000), partition=0)
    producer.close()


def test_empty_polls_leave_few_errors_in_memory(settings: KafkaSettings) -> None:
    """Errors in reference cycles, and the fetches that they reference, are only freed by garbage collection."""
    with _source(settings) as source:
        _seek_initial_positions(source)
        gc.collect()
        gc.disable()
        try:
            for _ in range(80):
                source.poll(wait=False)
                source.poll()
            _write_numbers(settings, 2)
            _read(source, 2)
            errors = [item for item in gc.get_objects() if isinstance(item, (KafkaError, KafkaException))]
        finally:
            gc.enable()
        # Without a collection after every 50 empty polls, nearly all errors of the 160 polls would remain.
        assert len(errors) < 70


def test_end_offsets_are_updated_while_all_partitions_are_paused(settings: KafkaSettings) -> None:
    """The lag, which raises alerts, grows during an outage of the store."""
    with _source(settings) as source:
        _seek_initial_positions(source)
        source.poll()
        source.poll_paused()
        _write_numbers(settings, 10)

        def has_end_offsets() -> bool:
            source.poll_paused()
            end_offsets = source.end_offsets()
            return [end_offsets[name] for name in _partitions(settings)] == [5, 5]

        eventually("the end offsets are known", has_end_offsets)
        assert _record_count(_read(source, 10)) == 10


def test_applied_offsets_are_committed_to_the_group_when_the_source_closes(settings: KafkaSettings) -> None:
    """Lag dashboards read the committed offsets."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    producer.send(settings.responses_topic, b"1", partition=0).get(30)
    producer.close()
    with _source(settings) as source:
        _seek_initial_positions(source)
        _read(source, 1)
        source.commit_group_offsets({f"{settings.responses_topic}:0": 0})
        source.commit_group_offsets({f"{settings.responses_topic}:0": 1})
    consumer = KafkaConsumer(bootstrap_servers=settings.bootstrap_servers, group_id=settings.group_id)
    assert consumer.committed(TopicPartition(settings.responses_topic, 0)) == 1
    consumer.close()


def test_a_worker_without_partitions_has_an_empty_assignment(settings: KafkaSettings) -> None:
    """With more workers than partitions, the worker is ready to take over."""
    with (
        _source(settings) as first,
        _source(settings) as second,
        _source(settings) as third,
        ThreadPoolExecutor(3) as executor,
    ):
        sources = (first, second, third)

        def poll(source: KafkaSource) -> None:
            source.poll()
            # As a worker does: the source rejoins if the group has no owner for some partitions.
            source.connection_problem()

        def is_stable() -> bool:
            # At the same time, as workers do: a member that polls alone waits for the others to join.
            list(executor.map(poll, sources))
            partition_count = sum(len(source.assignment()) for source in sources)
            return all(source.has_assignment() for source in sources) and partition_count == 4

        eventually("the group is stable", is_stable)
        assert sorted(len(source.assignment()) for source in sources) == [0, 2, 2]


def test_a_record_without_key_and_value_is_written_as_a_dead_letter(settings: KafkaSettings) -> None:
    """Other clients may write such records."""
    dead_letter_queue = KafkaDeadLetterQueue(settings)
    try:
        dead_letter_queue.write([RejectedRecord("t:0", 7, None, "empty_payload", "expected a JSON object")])
    finally:
        dead_letter_queue.close()
    (letter,) = read_dead_letters(settings)
    assert (letter.offset, letter.reason, letter.key, letter.value) == (7, "empty_payload", None, None)


def test_a_rewind_or_a_pause_skips_no_records(settings: KafkaSettings) -> None:
    """At the end of the log, and before the end, where the client has already fetched more records."""
    _write_numbers(settings, 6_000)
    names = _partitions(settings)
    with _source(settings) as source:
        positions = _seek_initial_positions(source)
        for record_count in (6_000, 1, 2_500):
            polled: list[PartitionRecords] = []
            while _record_count(polled) < record_count:
                polled += source.poll()
            source.poll_paused()
            source.rewind()
            assert source.poll() == []
            assert len(source.partitions_to_seek()) == 4
            source.seek(positions)
        polled = []
        while _record_count(polled) < 1_000:
            polled += source.poll()
        for _ in range(3):
            source.poll_paused()
        polled += _read(source, 6_000 - _record_count(polled))
    for name in names:
        of_partition = [partition_records for partition_records in polled if partition_records.partition == name]
        offsets = [record.offset for partition_records in of_partition for record in partition_records.records]
        assert offsets == list(range(3_000))
        next_offsets = [partition_records.next_offset for partition_records in of_partition]
        assert [partition_records.start_offset for partition_records in of_partition] == [0, *next_offsets[:-1]]


def test_partitions_at_a_deleted_offset_wait_for_seek_and_have_a_gap(settings: KafkaSettings) -> None:
    """The client never chooses an offset by itself."""
    _write_numbers(settings, 200)
    with KafkaAdminClient(bootstrap_servers=settings.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(settings.responses_topic, n): 60 for n in range(2)})
    with _source(settings) as source:
        _wait_for_assignment(source)
        source.seek({name: Position(7) for name in source.partitions_to_seek()})
        eventually("the partitions wait for seek", lambda: source.poll() or len(source.partitions_to_seek()) == 4)
        gaps = source.find_offset_gaps({name: Position(7) for name in _partitions(settings)})
        assert [(gap.lost_count, gap.resume_position.next_offset) for gap in gaps] == [(53, 60), (53, 60)]


def test_dead_letters_have_the_key_of_the_rejected_record(settings: KafkaSettings) -> None:
    """A dead letter can be sent again as the original record."""
    producer = KafkaProducer(bootstrap_servers=settings.bootstrap_servers)
    for key in (b"student-1", None):
        producer.send(settings.feedback_topic, key=key, value=b"{", partition=1).get(30)
    producer.close()
    config = replace(settings_with(EXPERIMENT), kafka=settings)
    normalizer = EventNormalizer([Experiment(1, config.experiments[0])], IdHasher(b"key"))
    with _source(settings) as source:
        _seek_initial_positions(source)
        refused = decode_records(_read(source, 2), RecordDecoder(config), normalizer, wall_clock()).rejected_records
        source.dead_letter_queue.write(refused)
    assert sorted((letter.offset, letter.key) for letter in read_dead_letters(settings)) == [
        (0, b"student-1"),
        (1, None),
    ]


def test_workers_with_different_clients_share_a_group(settings: KafkaSettings) -> None:
    """A deployment can change the client worker by worker. Equal partition numbers of both topics go to one worker."""
    other_client = replace(settings, client="confluent" if settings.client == "kafka-python" else "kafka-python")
    with _source(settings) as first:
        _seek_initial_positions(first)
        with _source(other_client) as second:

            def is_shared() -> bool:
                for source in (first, second):
                    source.poll()
                return len(first.assignment()) == len(second.assignment()) == 2

            eventually("both workers have two partitions", is_shared)
            assert {name[-2:] for name in first.assignment()} ^ {name[-2:] for name in second.assignment()} == {
                ":0",
                ":1",
            }
        _wait_for_assignment(first)


def test_fetched_end_offsets_include_unread_and_newly_added_partitions(
    settings: KafkaSettings, kafka: KafkaBroker
) -> None:
    """The watermark, and so the deletion of rows, depends on these offsets."""
    with _source(settings) as source:
        _seek_initial_positions(source)
        _write_numbers(settings, 4)
        with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
            admin.create_partitions({settings.feedback_topic: 3})
        added = f"{settings.feedback_topic}:2"
        end_offsets = eventually(
            "the new partition has an end offset",
            lambda: added in (fetched_offsets := source.fetch_end_offsets()) and fetched_offsets,
        )
        assert end_offsets == dict.fromkeys(_partitions(settings), 2) | {
            f"{settings.feedback_topic}:{number}": 0 for number in range(3)
        }


@pytest.mark.parametrize("settings", ["kafka-python"], indirect=True)
def test_the_source_rejoins_if_the_group_leaves_partitions_unassigned(
    settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group leader without the metadata of a topic assigns its partitions to no member, possibly for ever."""
    original_assign = RangePartitionAssignor.assign
    sources: list[KafkaSource] = []

    def assign_without_feedback(_: object, cluster: Any, members: Any) -> Any:
        for member in () if sources and sources[0].restarts else members:
            member.metadata.topics.remove(settings.feedback_topic)
        return original_assign(cluster, members)

    monkeypatch.setattr(RangePartitionAssignor, "assign", classmethod(assign_without_feedback))
    monkeypatch.setattr(kafka, "_UNASSIGNED_AFTER_S", 5.0)
    monkeypatch.setattr(kafka, "_METADATA_INTERVAL_S", 0.5)
    monkeypatch.setattr(kafka, "_PROBE_INTERVAL_S", 0.2)
    with _source(settings) as source:
        sources.append(source)
        _wait_for_assignment(source, 4)
        assert source.restarts >= 1


@pytest.mark.parametrize("settings", ["kafka-python"], indirect=True)
def test_the_first_assignment_contains_all_partitions(settings: KafkaSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer waits for metadata before joining; a group leader without metadata would assign nothing."""
    original_assign = RangePartitionAssignor.assign
    assigned_counts: list[int] = []

    def record_assignment(_: object, cluster: Any, members: Any) -> Any:
        assignment = original_assign(cluster, members)
        assigned_counts.append(sum(len(member.partitions()) for member in assignment.values()))
        return assignment

    monkeypatch.setattr(RangePartitionAssignor, "assign", classmethod(record_assignment))
    for number in range(10):
        with _source(replace(settings, group_id=f"{settings.group_id}-{number}")) as source:
            _seek_initial_positions(source)
            source.poll()
    assert set(assigned_counts) == {4}


def test_a_second_member_with_the_same_instance_id_fences_the_first(settings: KafkaSettings) -> None:
    """The first member raises, since a fenced client never reads again; kafka-python is fenced when it commits."""
    static_member = replace(settings, group_instance_id="worker-1")
    offsets = count(1)
    with _source(static_member) as first:
        _seek_initial_positions(first)

        def commit_and_poll() -> None:
            first.commit_group_offsets(dict.fromkeys(first.assignment(), next(offsets)))
            first.poll()

        with _source(static_member) as second:
            _seek_initial_positions(second)
            with pytest.raises(UsageError, match=r"fenced|group_instance_id"):
                eventually("the first member is fenced", commit_and_poll)
