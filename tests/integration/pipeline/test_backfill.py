"""The backfill of one experiment beside a live worker: the same aggregates as without a late declaration."""

from __future__ import annotations

import json
import random
import threading
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, TopicPartition

from monitor.clock import DAY_MS, HOUR_MS, wall_clock
from monitor.config import DecaySpec, ExperimentSettings, KafkaSettings, MetricSpec, Settings, StoreSettings
from monitor.config.loading import parse_settings
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.engine.row_codec import decode_response_row
from monitor.pipeline import backfill as backfill_module
from monitor.pipeline.backfill import ExperimentBackfill, RemainingRecords
from monitor.pipeline.backfill_runner import BackfillRunner
from monitor.pipeline.commit_pipeline import ShardedWriter
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.watermark import WatermarkTracker
from monitor.pipeline.worker import Worker
from monitor.sources import HistoryReader, KafkaSource
from monitor.state import (
    PENDING_FEEDBACK,
    ShardedStore,
    StoreReader,
    initialize_store,
    read_backfill_targets,
    read_backfills,
    read_skipped_events,
)
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import eventually
from tests.support.dump import Dump, dump
from tests.support.streams import EXPERIMENT, START

A = replace(EXPERIMENT, name="a")
B = replace(EXPERIMENT, name="b")
KEPT_A = replace(A, items=None, retention_ms=400 * DAY_MS)
KEPT_B = replace(B, items=None, retention_ms=400 * DAY_MS)
"""Without records beyond retention, which are deleted at some time after an hour has passed."""
REDEFINED_A = replace(
    KEPT_A,
    metrics=(MetricSpec("dcg@5", "dcg", 5), MetricSpec("rr@2", "rr", 2)),
    gain="linear",
    decay=(DecaySpec("2h", 2 * HOUR_MS),),
)
PARTITIONS = 3
WireEvent = tuple[str, str, dict[str, Any]]
"""(kind, user, fields)."""


def make_events(seed: int, count: int, start_ms: int, prefix: str) -> list[WireEvent]:
    """Return the events of `count` responses, out of order and with repetitions; a tenth is invalid or undeclared."""
    chance = random.Random(seed)
    timed: list[tuple[float, WireEvent]] = []
    for number in range(count):
        user = f"u{chance.randrange(60)}"
        at_ms = start_ms + number * 10_000
        response_id = f"{prefix}{number}"
        items = [{"item_id": f"v{chance.randrange(40)}", "position": position} for position in (1, 2, 3)]
        response = {
            "response_id": response_id,
            "timestamp": at_ms,
            "experiment": chance.choice(["a", "a", "b", "b", "undeclared"]),
            "variant": chance.choice(["control", "treatment"] * 9 + ["unknown"]),
            "items": items if chance.random() > 0.03 else "none",
            "user_id": user,
            "latency_ms": chance.randrange(1000),
        }
        timed.append((number + chance.uniform(0, 40), ("response", user, response)))
        if chance.random() < 0.1:
            timed.append((number + chance.uniform(0, 300), ("response", user, response)))
        if chance.random() < 0.05:
            revision = {**response, "latency_ms": 7, "timestamp": at_ms - chance.randrange(2) * HOUR_MS}
            timed.append((number + chance.uniform(0, 300), ("response", user, revision)))
        for reaction in range(chance.randrange(4)):
            feedback = {
                "feedback_id": f"{response_id}-{reaction}",
                "response_id": response_id,
                "timestamp": at_ms + chance.randrange(600_000),
                "kind": chance.choice(["rating", "helpful"]),
                "user_id": user,
                "item_id": items[chance.randrange(3)]["item_id"],
                "score": float(chance.randrange(5)),
            }
            timed.append((number + chance.uniform(0, 400), ("feedback", user, feedback)))
    return [event for _, event in sorted(timed, key=lambda pair: pair[0])]


@dataclass
class Topics:
    """Two topics with events."""

    kafka: KafkaSettings

    def write(self, events: Sequence[WireEvent], *, transaction: str | None = None) -> None:
        """Write the events, partitioned by user; within a transaction, if the transaction has a name."""
        options = {} if transaction is None else {"transactional.id": transaction}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5, **options})
        if transaction is not None:
            producer.init_transactions(30)
            producer.begin_transaction()
        for kind, user, fields in events:
            (topic, *_) = self.kafka.topics_of("response" if kind == "response" else "feedback")
            payload = json.dumps({**fields, "type": kind} if self.kafka.sources else fields).encode()
            number = int(user[1:]) % PARTITIONS
            producer.produce(topic, payload, partition=number, timestamp=fields["timestamp"])
        assert producer.flush(30) == 0
        if transaction is not None:
            producer.commit_transaction(30)

    def end_offsets(self) -> dict[str, int]:
        """Return the end offset of each partition."""
        with closing(HistoryReader(self.kafka)) as reader:
            names = [f"{topic}:{number}" for topic in self.kafka.topics for number in range(PARTITIONS)]
            return reader._admin.list_offsets(names, -1)

    def delete_before(self, offsets: Mapping[str, int]) -> None:
        """Delete the records of partitions before offsets."""
        with KafkaAdminClient(bootstrap_servers=self.kafka.bootstrap_servers) as admin:
            admin.delete_records({TopicPartition(*_topic_and_number(name)): offset for name, offset in offsets.items()})


def _topic_and_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition(":")
    return topic, int(number)


class Deployment:
    """A store and the workers of one configuration at a time; experiments have explicit numbers."""

    def __init__(self, server: RedisServer, database: int, kafka: KafkaSettings, shard_count: int = 1) -> None:
        url = server.url.rpartition("/")[0] + f"/{database}"
        store_settings = StoreSettings(url=url, user_hash_key="a key for tests", shards=shard_count)
        self.settings = Settings((A, B), kafka=kafka, store=store_settings)
        self.store = ShardedStore(store_settings, shard_count=shard_count)
        self.store.client.flushdb()
        self.metadata = initialize_store(self.store, self.settings)
        self.id_hasher = IdHasher(self.metadata.hash_key)

    def experiments(self, settings: Mapping[int, ExperimentSettings]) -> list[Experiment]:
        """Return the experiments by number."""
        return [Experiment(number, experiment) for number, experiment in settings.items()]

    @contextmanager
    def worker(
        self,
        settings: Mapping[int, ExperimentSettings],
        *,
        superseded_numbers: frozenset[int] = frozenset(),
        held: Collection[str] = (),
    ) -> Iterator[Worker]:
        """Run a worker with the experiments while the block runs."""
        experiments = self.experiments(settings)
        shards = self.store.reconnect()
        for shard in shards:
            shard.is_initialized = True
        reader = StoreReader(self.store.reconnect(), self.settings, self.metadata.numbers, wall_clock)
        source = KafkaSource(self.settings.kafka)
        horizons_ms = {str(number): experiment.horizon_ms for number, experiment in settings.items()}
        worker = Worker(
            held_numbers=lambda: held,
            settings=self.settings,
            normalizer=EventNormalizer(experiments, self.id_hasher),
            writer=ShardedWriter(experiments, self.id_hasher, shards, superseded_numbers=superseded_numbers),
            watermark_tracker=WatermarkTracker(
                {**dict.fromkeys(map(str, superseded_numbers), A.horizon_ms), **horizons_ms}, held=held
            ),
            retention_cleaners=[RetentionCleaner(shard, experiments) for shard in shards],
            snapshot_writer=SnapshotWriter(reader),
            source=source,
            telemetry=Telemetry(),
            clock=wall_clock,
            topics=self.settings.kafka.topic_labels,
            accepts_rejected_backlog=True,
        )
        errors: list[BaseException] = []

        def run() -> None:
            try:
                worker.run()
            except BaseException as error:  # raised again, and reported to the test
                errors.append(error)
                raise

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield worker
        finally:
            worker.stop()
            thread.join()
            source.close()
            shards.close()
        assert not errors

    def wait_until_applied(self, offsets: Mapping[str, int]) -> None:
        """Wait until the workers have applied all records before the offsets."""

        def is_applied() -> bool:
            positions = self.store.read_positions()
            return all(name in positions and positions[name].next_offset >= end for name, end in offsets.items())

        eventually("the records are applied", is_applied, within_s=60)

    def declare(self, number: int) -> None:
        """Make the present positions the targets of a backfill."""
        for shard in self.store:
            stored = self.store.client.hgetall(shard.keys.positions)
            self.store.client.hset(shard.keys.backfill_targets(number), mapping=stored)

    def backfill(
        self,
        number: int,
        settings: Mapping[int, ExperimentSettings],
        *,
        superseded_numbers: frozenset[int] = frozenset(),
        on_progress: Callable[[RemainingRecords], object] = lambda _: None,
    ) -> RemainingRecords:
        """Run a backfill to its end or its first error."""
        with closing(
            ExperimentBackfill(
                settings=self.settings,
                experiments=self.experiments(settings),
                number=number,
                superseded_numbers=superseded_numbers,
                id_hasher=self.id_hasher,
                store=self.store,
                clock=wall_clock,
                stop=threading.Event(),
                on_progress=on_progress,
                rest_ratio=0,
            )
        ) as backfill:
            return backfill.run()

    def response_rows(self, number: int) -> list[bytes]:
        """Return the names of the rows of the experiment's responses."""
        client = self.store.client
        return [
            key.removeprefix(shard.keys.response_row(b""))
            for shard in self.store
            for key in client.scan_iter(shard.keys.response_row(b"*"))
            if decode_response_row(client.get(key)).variant_key >> 8 == number
        ]

    def dump(self, *numbers: int) -> Dump:
        """Return the aggregates of the experiments, and their data quality."""
        aggregates = {
            key: value
            for key, value in dump(self.store).items()
            if key.partition(b":")[2].partition(b":")[0] in {b"%d" % number for number in numbers}
        }
        for number in numbers:
            counts: dict[int | bytes, int] = {}
            for shard in self.store:
                for field, value in self.store.client.hgetall(shard.keys.data_quality(number)).items():
                    counts[field] = counts.get(field, 0) + int(value)
            aggregates[b"data_quality:%d" % number] = counts
        return aggregates


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill_module, "_BATCH_RECORDS", 100)


@pytest.fixture(params=["kafka-python", "confluent"])
def topics(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Topics:
    """Return new topics, read by each client library."""
    return _create_topics(kafka, request.param)


@pytest.fixture
def kafka_python_topics(kafka: KafkaBroker) -> Topics:
    """Return new topics, read by kafka-python."""
    return _create_topics(kafka, "kafka-python")


MIXED_SOURCES = """
[[experiments]]
name = "a"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
[[kafka.sources]]
topics = ["TOPIC"]
event = "response"
when = { type = ["response"] }
[kafka.sources.fields]
response_id = "response_id"
timestamp = "timestamp"
experiment = "experiment"
variant = "variant"
user_id = "user_id"
latency_ms = "latency_ms"
items = { each = "items", item_id = "item_id", position = "position" }
[[kafka.sources]]
topics = ["TOPIC"]
event = "feedback"
when = { type = ["feedback"] }
[kafka.sources.fields]
feedback_id = "feedback_id"
response_id = "response_id"
timestamp = "timestamp"
kind = "kind"
item_id = "item_id"
user_id = "user_id"
score = "score"
"""
"""Both types of events in one topic."""


@pytest.fixture(params=[("kafka-python", "two topics"), ("kafka-python", "one topic"), ("confluent", "one topic")])
def any_topics(request: pytest.FixtureRequest, kafka: KafkaBroker) -> Topics:
    """Return new topics, or one new topic with both types of events."""
    client, topic_count = request.param
    topics = _create_topics(kafka, client)
    if topic_count == "two topics":
        return topics
    text = MIXED_SOURCES.replace("TOPIC", topics.kafka.responses_topic)
    sources = parse_settings(tomllib.loads(text), {}).kafka.sources
    return Topics(replace(topics.kafka, sources=sources))


def _create_topics(kafka: KafkaBroker, client: Any) -> Topics:
    name = f"backfill-{random.randrange(1 << 40):x}"
    settings = KafkaSettings(kafka.bootstrap, f"{name}.r", f"{name}.f", f"{name}.d", group_id=name, client=client)
    for topic in settings.topics:
        kafka.create_topic(topic, PARTITIONS)
    kafka.create_topic(settings.dead_letter_topic, 1)
    return Topics(settings)


def _undisturbed(
    server: RedisServer, topics: Topics, settings: Mapping[int, ExperimentSettings], *numbers: int
) -> Dump:
    """Return the aggregates of a worker that counts all experiments from the beginning."""
    group_id = f"{topics.kafka.group_id}-undisturbed"
    deployment = Deployment(server, 1, replace(topics.kafka, group_id=group_id))
    with deployment.worker(settings):
        deployment.wait_until_applied(topics.end_offsets())
    return deployment.dump(*numbers)


FIRST_EVENTS = make_events(1, 900, START, "first")
LATER_EVENTS = make_events(2, 500, START + 900 * 10_000, "second")
EVENTS_AFTER_A_MONTH = make_events(3, 300, START + 30 * DAY_MS, "third")


@pytest.mark.parametrize("shard_count", [1, 3])
def test_a_backfill_beside_a_live_worker_gives_the_aggregates_of_an_undisturbed_worker(
    topics: Topics, redis_server: RedisServer, shard_count: int
) -> None:
    """Events of the past are out of order, repeated, revised and partly rejected; events arrive meanwhile."""
    # The events of the first half and of the second half are mixed at the boundary.
    events = FIRST_EVENTS + LATER_EVENTS
    deployment = Deployment(redis_server, 0, topics.kafka, shard_count)
    topics.write(events[: len(FIRST_EVENTS) - 300])
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    held = ["2", PENDING_FEEDBACK]
    with deployment.worker({1: A, 2: B}, held=held):
        writer = threading.Thread(target=topics.write, args=(events[len(FIRST_EVENTS) - 300 :],))
        writer.start()
        progress = deployment.backfill(2, {1: A, 2: B})
        writer.join()
        deployment.wait_until_applied(topics.end_offsets())
    assert progress == RemainingRecords(0, None)
    actual = deployment.dump(1, 2)
    assert actual == _undisturbed(redis_server, topics, {1: A, 2: B}, 1, 2)
    assert len(actual) > 50


class _Kill(Exception):
    """Stands for the end of a process between two batches."""


def _killed_every(batches: int) -> Callable[[RemainingRecords], None]:
    """Return a function that raises `_Kill` at every call whose number is a multiple of `batches`."""
    call_count = 0

    def on_progress(_progress: RemainingRecords) -> None:
        nonlocal call_count
        call_count += 1
        if call_count % batches == 0:
            raise _Kill

    return on_progress


def _backfill_with_kills(deployment: Deployment, number: int, settings: Mapping[int, ExperimentSettings]) -> int:
    """Run the backfill to its end with a kill after every four batches; return the number of kills."""
    on_progress, kills = _killed_every(5), 0
    while True:
        try:
            deployment.backfill(number, settings, on_progress=on_progress)
        except _Kill:
            kills += 1
        else:
            return kills


def test_a_backfill_that_is_killed_between_batches_applies_every_record_once(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """Each further process continues at the committed positions."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka, 2)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    topics.write(LATER_EVENTS)
    with deployment.worker({1: A, 2: B}, held=["2", PENDING_FEEDBACK]):
        kills = _backfill_with_kills(deployment, 2, {1: A, 2: B})
        deployment.wait_until_applied(topics.end_offsets())
    assert kills >= 3
    assert deployment.dump(1, 2) == _undisturbed(redis_server, topics, {1: A, 2: B}, 1, 2)


def test_a_runner_completes_a_backfill_beside_a_live_worker(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The responses that workers had skipped before the declaration are no longer reported as missing."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka, 2)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    assert read_skipped_events(deployment.store).responses_by_name()["b"]
    deployment.declare(2)
    completed: list[tuple[int, int | None]] = []
    runner = BackfillRunner(
        settings=deployment.settings,
        experiments=deployment.experiments({1: A, 2: B}),
        unfinished=[2],
        superseded_numbers=frozenset(),
        id_hasher=deployment.id_hasher,
        store=deployment.store,
        telemetry=Telemetry(),
        clock=wall_clock,
        on_complete=lambda *arguments: completed.append(arguments),
    )
    with deployment.worker({1: A, 2: B}, held=runner.held_numbers()):
        runner.start()
        topics.write(LATER_EVENTS)
        eventually("the backfill is complete", lambda: completed)
        deployment.wait_until_applied(topics.end_offsets())
    runner.stop()
    assert completed == [(2, None)]
    state = read_backfills(deployment.store)[2]
    assert (state.state, state.progress_ratio) == ("complete", 1.0)
    assert state.records_total == sum(
        position.next_offset for position in read_backfill_targets(deployment.store, 2).values()
    )
    assert read_skipped_events(deployment.store).responses_by_name().keys() == {"undeclared"}
    assert deployment.dump(1, 2) == _undisturbed(redis_server, topics, {1: A, 2: B}, 1, 2)


def test_two_processes_that_work_on_the_same_backfill_apply_every_record_once(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The positions in the commits decide, not the lease."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    results: list[RemainingRecords] = []
    processes = [
        threading.Thread(target=lambda: results.append(deployment.backfill(2, {1: A, 2: B}))) for _ in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert results == [RemainingRecords(0, None)] * 2
    assert deployment.dump(1, 2) == _undisturbed(redis_server, topics, {1: A, 2: B}, 1, 2)


def test_neither_responses_nor_pending_feedback_expire_before_the_backfill_is_complete(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The workers have already read events that are a month newer. Rows of other experiments expire meanwhile."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS[:-600])
    with deployment.worker({1: KEPT_A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    with deployment.worker({1: KEPT_A, 2: KEPT_B}, held=["2", PENDING_FEEDBACK]) as worker:
        topics.write(FIRST_EVENTS[-600:])
        deployment.wait_until_applied(topics.end_offsets())
        topics.write(EVENTS_AFTER_A_MONTH)
        deployment.wait_until_applied(topics.end_offsets())

        def has_expired_rows() -> bool:
            state = deployment.store.first_shard.client.hgetall(deployment.store.first_shard.keys.meta)
            return b"expired_before:1" in state

        eventually("rows of the other experiment expire", has_expired_rows)
        deployment.backfill(2, {1: KEPT_A, 2: KEPT_B})
        worker._watermark_tracker.hold(())
    with deployment.worker({1: KEPT_A, 2: KEPT_B}):
        topics.write(make_events(4, 50, START + 31 * DAY_MS, "fourth"))
        deployment.wait_until_applied(topics.end_offsets())
    assert deployment.dump(1, 2) == _undisturbed(redis_server, topics, {1: KEPT_A, 2: KEPT_B}, 1, 2)


def test_feedback_that_has_expired_without_a_response_is_applied_by_the_backfill(
    any_topics: Topics, redis_server: RedisServer
) -> None:
    """Before the declaration, workers deleted the feedback, because they had skipped the response."""
    topics = any_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    shard = deployment.store.first_shard
    for events in (FIRST_EVENTS, EVENTS_AFTER_A_MONTH, make_events(4, 50, START + 31 * DAY_MS, "fourth")):
        topics.write(events)
        with deployment.worker({1: KEPT_A}):
            deployment.wait_until_applied(topics.end_offsets())
            if events is not FIRST_EVENTS:
                eventually("feedback expires", lambda: shard.client.exists(shard.keys.feedback_unmatched))
    deployment.declare(2)
    deployment.backfill(2, {1: KEPT_A, 2: KEPT_B})
    assert deployment.dump(1, 2) == _undisturbed(redis_server, topics, {1: KEPT_A, 2: KEPT_B}, 1, 2)


def test_a_redefined_experiment_is_filled_under_its_new_number_and_the_old_sums_remain(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The rows move from the old number to the new one; the old aggregates stay as at the change."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: KEPT_A, 2: KEPT_B}):
        deployment.wait_until_applied(topics.end_offsets())
    old_aggregates = deployment.dump(1)
    deployment.declare(3)
    settings = {3: REDEFINED_A, 2: KEPT_B}
    superseded_numbers = frozenset({1})
    with deployment.worker(settings, superseded_numbers=superseded_numbers, held=["3", PENDING_FEEDBACK]):
        topics.write(LATER_EVENTS)
        deployment.backfill(3, settings, superseded_numbers=superseded_numbers)
        deployment.wait_until_applied(topics.end_offsets())
    with deployment.worker(settings, superseded_numbers=superseded_numbers):
        topics.write(EVENTS_AFTER_A_MONTH)
        deployment.wait_until_applied(topics.end_offsets())
    assert deployment.dump(1) == old_aggregates
    assert deployment.dump(2, 3) == _undisturbed(redis_server, topics, settings, 2, 3)


def test_rows_that_have_left_a_superseded_number_do_not_expire_with_it(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The lists of the old number still name these rows."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: KEPT_A}):
        deployment.wait_until_applied(topics.end_offsets())
    row_count = len(deployment.response_rows(1))
    deployment.declare(3)
    superseded_numbers = frozenset({1})
    deployment.backfill(3, {3: REDEFINED_A}, superseded_numbers=superseded_numbers)
    assert (len(deployment.response_rows(1)), len(deployment.response_rows(3))) == (0, row_count)
    keys = deployment.store.first_shard.keys
    with deployment.worker({3: REDEFINED_A}, superseded_numbers=superseded_numbers, held=["3", PENDING_FEEDBACK]):
        topics.write(EVENTS_AFTER_A_MONTH)

        def has_expired_hours() -> bool:
            fields = deployment.store.client.hkeys(keys.expiry_hours)
            return not any(field.startswith(b"1:") for field in fields)

        eventually("all hours of the old number have expired", has_expired_hours)
    first_rows = [name for name in deployment.response_rows(3) if name.startswith(b"first")]
    assert len(first_rows) == row_count


def test_an_experiment_is_complete_from_the_first_record_on_that_kafka_still_has(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """The largest time over all partitions with deleted records counts."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    events = [event for event in FIRST_EVENTS if event[2]["items" if event[0] == "response" else "score"] != "none"]
    topics.write(events)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    deleted_count = 100
    topics.delete_before({f"{topics.kafka.responses_topic}:{number}": deleted_count for number in (0, 2)})
    progress = deployment.backfill(2, {1: A, 2: B})
    retained_times = []
    for number in (0, 2):
        partition_events = [event for event in events if event[0] == "response" and int(event[1][1:]) % 3 == number]
        retained_times.append(partition_events[deleted_count][2]["timestamp"])
    assert progress == RemainingRecords(0, max(retained_times))


def test_records_that_kafka_deletes_before_the_backfill_reaches_them_are_missing(
    topics: Topics, redis_server: RedisServer
) -> None:
    """The backfill continues at the first record that is left, and reports the time of that record."""
    deployment = Deployment(redis_server, 0, topics.kafka)
    events = [event for event in FIRST_EVENTS if event[0] == "response"]
    topics.write(events)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    partition = f"{topics.kafka.responses_topic}:0"

    def stop_within_partition(_progress: RemainingRecords) -> None:
        keys = deployment.store.first_shard.keys
        if deployment.store.client.hget(keys.backfill_positions(2), partition) is not None:
            raise _Kill

    with pytest.raises(_Kill):
        deployment.backfill(2, {1: A, 2: B}, on_progress=stop_within_partition)
    end_offset = topics.end_offsets()[partition]
    topics.delete_before({partition: end_offset - 5})
    first_retained = [event for event in events if int(event[1][1:]) % PARTITIONS == 0][end_offset - 5]
    progress = deployment.backfill(2, {1: A, 2: B})
    assert progress == RemainingRecords(0, first_retained[2]["timestamp"])


def test_a_partition_without_any_retained_record_is_complete_after_its_newest_event(
    kafka_python_topics: Topics, redis_server: RedisServer
) -> None:
    """All later events of the partition are counted by the workers."""
    topics = kafka_python_topics
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS)
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    topics.delete_before(topics.end_offsets())
    newest_ms = max(position.newest_ms for position in deployment.store.read_positions().values())
    assert deployment.backfill(2, {1: A, 2: B}) == RemainingRecords(0, newest_ms + 1)


def test_a_target_behind_a_transaction_marker_is_reached(topics: Topics, redis_server: RedisServer) -> None:
    """The offset before the target has no record, with and without records behind the target."""
    deployment = Deployment(redis_server, 0, topics.kafka)
    topics.write(FIRST_EVENTS, transaction=f"{topics.kafka.group_id}-1")
    with deployment.worker({1: A}):
        deployment.wait_until_applied(topics.end_offsets())
    deployment.declare(2)
    deployment.declare(3)
    assert deployment.backfill(2, {1: A, 2: B}) == RemainingRecords(0, None)
    topics.write(LATER_EVENTS, transaction=f"{topics.kafka.group_id}-2")
    assert deployment.backfill(3, {1: A, 3: replace(B, name="undeclared")}) == RemainingRecords(0, None)
    with deployment.worker({1: A, 2: B, 3: replace(B, name="undeclared")}):
        deployment.wait_until_applied(topics.end_offsets())
    expected_settings = {1: A, 2: B, 3: replace(B, name="undeclared")}
    assert deployment.dump(1, 2, 3) == _undisturbed(redis_server, topics, expected_settings, 1, 2, 3)
