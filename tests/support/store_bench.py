"""A store with workers that need no Kafka, and the traffic that several test files feed to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import numpy as np
from hypothesis import HealthCheck

from monitor.clock import HOUR_MS
from monitor.config import DecisionSettings, ExperimentSettings, Settings, StoreSettings
from monitor.engine import EventBatch, EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.events import Feedback, Response
from monitor.pipeline.batch_applier import BatchApplier
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.commit_pipeline import PendingCommit, ShardBatch, ShardedWriter
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.watermark import WatermarkTracker
from monitor.state import (
    Commit,
    Position,
    PositionUpdate,
    ShardedStore,
    StoreReader,
    StoreShard,
    StoreState,
    compact_time_buckets,
    initialize_store,
)
from monitor.state.keys import PENDING_FEEDBACK
from monitor.state.store_records import CommitStatus
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS
from tests.support.streams import EXPERIMENT, HOUR, START, normalize_events, settings_with

EventSequence = Sequence[Response | Feedback]
SLOW_HEALTH_CHECKS = [
    HealthCheck.too_slow,
    HealthCheck.function_scoped_fixture,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
]
USER_HASH_KEY = "a key for tests"


class StoreBench:
    """A store and any number of workers, each with a separate partition."""

    def __init__(
        self,
        server: RedisServer | RedisCluster,
        experiment: ExperimentSettings = EXPERIMENT,
        shard_count: int = 1,
        *,
        eager: bool = False,
    ) -> None:
        """Empty the server. With `eager`, workers compact the time buckets after every commit."""
        self.eager = eager
        self.settings: Settings = replace(
            settings_with(experiment),
            store=StoreSettings(url=server.url, user_hash_key=USER_HASH_KEY, shards=shard_count),
        )
        self.store = ShardedStore(self.settings.store, shard_count=shard_count)
        self.first_shard = self.store.first_shard
        self.first_shard.client.flushall()
        self.metadata = initialize_store(self.store, self.settings)
        self.reader = StoreReader(self.store, self.settings, self.metadata.numbers, lambda: 0)
        self.experiment_number = self.metadata.numbers[experiment.name]
        self.experiment = Experiment(self.experiment_number, self.settings.experiments[0])
        self.normalizer = EventNormalizer([self.experiment], IdHasher(self.metadata.hash_key))
        self.expired_before_ms = {str(self.experiment_number): 0, PENDING_FEEDBACK: 0}

    def normalize(self, *events: Response | Feedback) -> EventBatch:
        """Return the events as a worker applies them after decoding."""
        return normalize_events(self.normalizer, events)

    def connect_engine(self) -> tuple[BatchApplier, StoreShard]:
        """Return the engine of a new worker, and a connection to the first shard."""
        store = StoreShard(self.settings.store)
        store.experiments_version = self.metadata.declared_set.version
        store.read_state()
        return BatchApplier([self.experiment], IdHasher(self.metadata.hash_key), store, max_cached_rows=4), store

    def connect_writer(self) -> ShardedWriter:
        """Return the writer of a new worker."""
        shards = self.store.reconnect()
        if self.eager:
            for shard in shards:
                _sum_up_always(shard)
        return ShardedWriter([self.experiment], IdHasher(self.metadata.hash_key), shards, max_cached_rows=4)

    def submit(
        self, writer: ShardedWriter, events: EventBatch | Sequence[Response | Feedback], *advances: PositionUpdate
    ) -> PendingCommit:
        """Submit events of a single shard's partitions to a writer, with the updates of the positions."""
        decoded = DecodedBatch(events if isinstance(events, EventBatch) else self.normalize(*events))
        batch = ShardBatch(writer.shard_of(advances[0].partition), 0, decoded, list(advances))
        return writer.submit(batch, self.expired_before_ms)

    def apply(
        self, batches: Sequence[EventSequence], *, worker_count: int = 1, worker_order: Sequence[int] = (0,)
    ) -> None:
        """Apply the batches in order, by the workers in `worker_order`; after a conflict, apply a batch again.

        With several shards, each worker has a partition on each shard, and the events of a student are in partitions
        with the same number.
        """
        crew = [self.connect_writer() for _ in range(worker_count)]
        for writer in crew:
            assert writer.reload_state()
        homes = shards_by_response([event for batch in batches for event in batch], len(self.store))
        offsets: Counter[str] = Counter()
        for number, batch in enumerate(batches):
            turn = worker_order[number % len(worker_order)] % worker_count
            writer = crew[turn]
            for shard in range(len(self.store)):
                events = [event for event in batch if homes[event.response_id] == shard]
                name = f"t:{turn}" if len(self.store) == 1 else f"t{turn}:{shard}"
                step = PositionUpdate(name, offsets[name] or None, Position(offsets[name] + len(events)))
                while events and (status := self.submit(writer, events, step).result()) != "applied":
                    assert status == "rows_changed"
                    writer.reload_state()
                offsets[name] += len(events)
        for writer in crew:
            writer.close()


def shards_by_response(events: EventSequence, shards: int) -> Mapping[str, int]:
    """Return response id → shard, from the hash of the response's student."""
    students = {event.response_id: event.user_id for event in events if isinstance(event, Response)}
    return {
        event.response_id: crc32((students.get(event.response_id) or event.response_id).encode()) % shards
        for event in events
    }


def _sum_up_always(store: StoreShard) -> None:
    original = store.commit

    def eagerly(commit: Commit) -> CommitStatus:
        commit.compaction_limits = [0] * len(commit.compaction_limits)
        status = original(commit)
        compact_time_buckets(store)
        return status

    store.commit = eagerly  # type: ignore[method-assign]


DECISION_EXPERIMENT = replace(EXPERIMENT, decision=DecisionSettings(mde=0.3, min_days=0))
HOUR_OF_DAY_9 = START // HOUR_MS + 9 * 24


def make_response(number: int, at_ms: int) -> Response:
    """Return a response with the item `video-1` in the variant `control`."""
    return Response(f"r-{number}", at_ms, "ranker", "control", ("video-1",), None, f"student-{number}")


def make_rating(number: int, at_ms: int, score: float = 4.0) -> Feedback:
    """Return a rating of the item of `make_response(number, …)`."""
    return Feedback(f"f-{number}", f"r-{number}", at_ms, "rating", None, "video-1", score)


def student_traffic(students: int = 160, days: int = 12) -> list[Response | Feedback]:
    """Return events of students with several responses on different days, some rated, and of a few crossovers."""
    chance = np.random.default_rng(7)
    events: list[Response | Feedback] = []
    for student in range(students):
        variant = ("control", "treatment")[student % 2]
        first = START + int(chance.integers(0, days * DAY_MS))
        for number in range(int(chance.integers(1, 6))):
            at_ms = first + int(chance.integers(0, 5 * DAY_MS))
            response_id = f"r-{student}-{number}"
            displayed_variant = "treatment" if student % 50 == 0 and number else variant
            items = ("video-1", "video-2")
            user_id = None if student % 40 == 3 else f"student-{student}"
            events.append(Response(response_id, at_ms, "ranker", displayed_variant, items, None, user_id))
            if chance.random() < 0.7:
                score = float(chance.integers(0, 5))
                events.append(
                    Feedback(f"f-{response_id}", response_id, at_ms + HOUR, "rating", user_id, "video-2", score)
                )
    return events


def create_tracker_at_hour(bench: StoreBench, hour: int) -> WatermarkTracker:
    """Return a watermark tracker whose watermark is one millisecond after the beginning of an hour."""
    progress = WatermarkTracker(bench.metadata.horizons_ms)
    progress.load_state(StoreState(0, 0, {}, {"t:0": Position(1, hour * HOUR_MS + 1)}))
    progress.update_end_offsets({"t:0": 1})
    return progress


def take_snapshots(bench: StoreBench, *hours: int) -> None:
    """Write a snapshot for each hour, without waiting for the writer's interval."""
    historian = SnapshotWriter(bench.reader)
    for hour in hours:
        historian.write_if_due(create_tracker_at_hour(bench, hour))
        historian._next_check_s = 0.0
