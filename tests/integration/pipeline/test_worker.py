"""The worker's main loop on a real store: pipelining, conflicts, outages, watermark alignment."""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.app import WritableStore, create_worker, open_writable_store
from monitor.clock import HOUR_MS, wall_clock
from monitor.errors import DependencyUnavailable, StoreUnavailable
from monitor.pipeline.batch_applier import OutcomeCounts
from monitor.pipeline.commit_pipeline import PendingCommit, ShardBatch
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.worker import Worker
from monitor.sources import jsonl
from monitor.sources.jsonl import FileSource
from monitor.sources.source import PartitionRecords
from monitor.state import Commit, CommitStatus, Position, PositionUpdate, StoreShard
from tests.servers.redis import RedisServer
from tests.support.files import file_source
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, START


def _has_rows(changes: Commit) -> bool:
    return bool(changes.changed_row_keys or changes.new_row_keys)


class _FailingCommits:
    """Commits of rows that fail three times out of four, before or after the store has applied the commit."""

    def __init__(self, store: StoreShard, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = store.commit
        self._commit_count = 0
        monkeypatch.setattr(store, "commit", self.commit)

    def commit(self, changes: Commit) -> CommitStatus:
        if not _has_rows(changes):
            return self._commit(changes)
        self._commit_count += 1
        fault = self._commit_count % 4
        if fault == 1:
            raise StoreUnavailable("nothing can be sent")
        if fault == 2:
            raise StoreUnavailable("the request was lost")
        status = self._commit(changes)
        if fault == 3:
            raise StoreUnavailable("the reply was lost")
        return status


def _record_steps(steps: list[str], source: FileSource, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Append to `steps` when the worker polls (waiting or not), submits a batch, and records an applied batch."""
    poll, submit, record_applied = source.poll, worker._writer.submit, worker._record_applied

    def recorded_poll(*, wait: bool = True) -> Sequence[PartitionRecords]:
        steps.append("poll, waiting" if wait else "poll")
        return poll(wait=wait)

    def recorded_submit(batch: ShardBatch, late_before_ms: Mapping[str, int]) -> PendingCommit:
        steps.append("submit")
        return submit(batch, late_before_ms)

    def recorded_applied(batch: ShardBatch, outcomes: OutcomeCounts) -> None:
        steps.append("applied")
        record_applied(batch, outcomes)

    monkeypatch.setattr(source, "poll", recorded_poll)
    monkeypatch.setattr(worker._writer, "submit", recorded_submit)
    monkeypatch.setattr(worker, "_record_applied", recorded_applied)


@contextmanager
def _file_worker(
    path: Path, bench: StoreBench, monkeypatch: pytest.MonkeyPatch, responses: int = 40, max_poll_records: int = 3
) -> Iterator[tuple[Worker, FileSource, WritableStore]]:
    """Yield a worker for a file of `responses` responses, with the file source (3 lines per poll) and the store."""
    monkeypatch.setattr(jsonl, "_MAX_POLL_LINES", 3)
    monkeypatch.setattr(jsonl, "_POLL_TIMEOUT_S", 0.0)
    response = {"experiment": EXPERIMENT.name, "variant": "control", "items": [{"item_id": "v", "position": 1}]}
    lines = [
        {**response, "response_id": f"r-{n}", "timestamp": START + n, "user_id": f"s-{n % 5}"} for n in range(responses)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    source = file_source([path], report=print)
    with open_writable_store(bench.settings, wall_clock) as opening:
        topics = {"response": "file", "feedback": "file"}
        settings = replace(bench.settings, kafka=replace(bench.settings.kafka, max_poll_records=max_poll_records))
        yield create_worker(settings, opening, source, Telemetry(), topics, wall_clock), source, opening
    source.close()


def test_a_service_runs_the_cyclic_garbage_collector_rarely(redis_server: RedisServer) -> None:
    """Each run visits every cached row."""
    initial_threshold = gc.get_threshold()
    gc.set_threshold(700)
    try:
        with open_writable_store(StoreBench(redis_server).settings, wall_clock):
            assert gc.get_threshold()[0] > 100 * 700
    finally:
        gc.set_threshold(*initial_threshold)


def test_nothing_is_lost_or_doubled_while_replies_get_lost(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch is already polled, and is applied after the batch whose reply was lost."""
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch) as (worker, _, opening):
        _FailingCommits(opening.shards.first_shard, monkeypatch)
        worker.run()
        (summary,) = opening.reader.read_summary().experiments.values()
    assert summary.variants["control"].responses == 40
    assert worker.processed_records == 40


def test_the_next_batch_is_polled_while_a_commit_is_pending(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, without waiting for records, between submit and result."""
    steps: list[str] = []
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch, 9) as (worker, source, _):
        _record_steps(steps, source, worker, monkeypatch)
        worker.run()
    batch = ["submit", "poll", "applied"]
    assert steps[-10:] == ["poll, waiting", *batch * 3]


def test_a_small_batch_is_committed_before_the_next_poll(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All records that arrive during the commit then form one batch."""
    steps: list[str] = []
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch, 9, 64) as (worker, source, _):
        _record_steps(steps, source, worker, monkeypatch)
        worker.run()
    assert steps[-10:] == [*["poll, waiting", "submit", "applied"] * 3, "poll, waiting"]


def test_a_pending_commit_is_completed_before_the_worker_waits_for_the_source(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poll fails while a commit is pending: the commit's result is recorded before the worker waits."""
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch) as (worker, source, opening):
        poll = source.poll
        processed_counts: list[int] = []

        def failing_poll(*, wait: bool = True) -> Sequence[PartitionRecords]:
            if not wait and len(processed_counts) < 3:
                raise DependencyUnavailable("Kafka refuses something")
            return poll(wait=wait)

        monkeypatch.setattr(source, "poll", failing_poll)
        monkeypatch.setattr(source, "poll_paused", lambda: processed_counts.append(worker.processed_records))
        worker.run()
        (summary,) = opening.reader.read_summary().experiments.values()
    assert processed_counts == [3, 6, 9]
    assert summary.variants["control"].responses == worker.processed_records == 40


@pytest.mark.parametrize("is_unavailable", [False, True])
def test_polled_records_are_read_again_if_another_worker_has_changed_the_positions(
    tmp_path: Path,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    *,
    is_unavailable: bool,
) -> None:
    """Another worker has applied the pending batch, and more. This worker is ready, also after an outage.

    A conflict is logged for debugging only, because several workers have conflicts all the time.
    """
    caplog.set_level(logging.DEBUG)
    bench = StoreBench(redis_server)
    path = tmp_path / "events.jsonl"
    with _file_worker(path, bench, monkeypatch) as (worker, _, opening):
        store = opening.shards.first_shard
        commit = store.commit

        def commit_after_other_worker(changes: Commit) -> CommitStatus:
            if _has_rows(changes):
                monkeypatch.setattr(store, "commit", commit)
                with _file_worker(path, bench, monkeypatch) as (other_worker, _, _):
                    other_worker.run()
                    assert other_worker.processed_records == 40
                if is_unavailable:
                    raise StoreUnavailable("nothing can be sent")
            return commit(changes)

        monkeypatch.setattr(store, "commit", commit_after_other_worker)
        worker.run()
        (summary,) = opening.reader.read_summary().experiments.values()
    assert summary.variants["control"].responses == 40
    assert worker.processed_records == 0
    assert worker.readiness() == ()
    logged = [
        (record.levelname, record.getMessage())
        for record in caplog.records
        if record.name.endswith((".worker", ".pauses"))
    ]
    if is_unavailable:
        assert [*logged[:2], logged[-1]] == [
            ("WARNING", "paused reason=store error=nothing can be sent"),
            ("DEBUG", "retrying commits"),
            ("INFO", "resumed reason=store"),
        ]
    else:
        assert logged == [("DEBUG", "commit conflict status=positions_changed")]


def test_an_outage_of_the_source_is_logged_once_as_paused_and_resumed(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Outages of Kafka and of the store have the same words."""
    caplog.set_level(logging.INFO)
    problems = iter(["Kafka at broker:9092: Connection refused"])
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch) as (worker, source, _):
        monkeypatch.setattr(source, "connection_problem", lambda: next(problems, None))
        worker.run()
    logged = [record.getMessage() for record in caplog.records if record.name.endswith(".pauses")]
    assert logged == ["paused reason=kafka error=Kafka at broker:9092: Connection refused", "resumed reason=kafka"]
    assert worker.readiness() == ()


def test_polled_records_are_read_again_if_the_store_has_lost_their_partition(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pending batch, of another partition, is applied."""
    bench = StoreBench(redis_server)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with _file_worker(first, bench, monkeypatch, 9) as (worker, _, opening):
        lines = first.read_text().splitlines()
        first.write_text("\n".join(lines[:3]))
        second.write_text("\n".join(lines[3:]))
        source = file_source([first, second])
        monkeypatch.setattr(worker, "_source", source)
        store = opening.shards.first_shard
        commit = store.commit

        def commit_and_lose_partition(changes: Commit) -> CommitStatus:
            status = commit(changes)
            if not _has_rows(changes):
                return status
            monkeypatch.setattr(store, "commit", commit)
            (lost_partition,) = set(source.assignment()) - {update.partition for update in changes.position_updates}
            store.client.hdel(store.keys.positions, lost_partition)
            raise StoreUnavailable("the reply was lost")

        monkeypatch.setattr(store, "commit", commit_and_lose_partition)
        worker.run()
        (summary,) = opening.reader.read_summary().experiments.values()
        source.close()
    assert summary.variants["control"].responses == worker.processed_records == 9


def test_paused_partitions_resume_as_soon_as_the_slowest_worker_has_caught_up(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker with paused partitions only reads the slowest offset in each turn, and all positions once it changes."""
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch, 9) as (worker, source, opening):
        slow_update = PositionUpdate("other:0", None, Position(1, START - 10 * HOUR_MS))
        other_worker = StoreShard(opening.shards.first_shard.settings)
        other_worker.experiments_version = opening.metadata.declared_set.version
        other_worker.read_state()
        assert other_worker.commit(Commit(position_updates=[slow_update])) == "applied"
        poll, end_offsets, read_positions = source.poll, source.end_offsets, worker._writer.read_positions
        paused: set[str] = set()
        paused_polls: list[bool] = []
        position_reads: list[int] = []

        def recorded_read_positions() -> Mapping[str, Position]:
            position_reads.append(len(paused_polls))
            return read_positions()

        def recorded_poll(*, wait: bool = True) -> Sequence[PartitionRecords]:
            if not paused:
                return poll(wait=wait)
            paused_polls.append(wait)
            if len(paused_polls) == 8:
                last_update = PositionUpdate("other:0", 1, Position(2, START))
                assert other_worker.commit(Commit(position_updates=[last_update])) == "applied"
            return []

        def pause(partitions: Collection[str]) -> None:
            paused.update(partitions)

        def resume(partitions: Collection[str]) -> None:
            paused.difference_update(partitions)

        monkeypatch.setattr("monitor.pipeline.worker._HOUSEKEEPING_INTERVAL_S", 3600.0)
        monkeypatch.setattr(worker._writer, "read_positions", recorded_read_positions)
        monkeypatch.setattr(source, "poll", recorded_poll)
        monkeypatch.setattr(source, "pause", pause)
        monkeypatch.setattr(source, "resume", resume)
        monkeypatch.setattr(source, "end_offsets", lambda: {**end_offsets(), "other:0": 5})
        worker.run()
    assert paused_polls == [False] * 8
    assert position_reads[:2] == [0, 8]
    assert worker.processed_records == 9


def test_paused_partitions_are_resumed_for_the_worker_that_follows_changed_experiments(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next worker has the same source, and has paused nothing itself."""
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch, 9) as (worker, source, opening):
        store = opening.shards.first_shard
        slow_update = PositionUpdate("other:0", None, Position(1, START - 10 * HOUR_MS))
        store.read_state()
        assert store.commit(Commit(position_updates=[slow_update])) == "applied"
        poll, end_offsets = source.poll, source.end_offsets
        paused: set[str] = set()
        paused_polls: list[set[str]] = []

        def poll_until_paused(*, wait: bool = True) -> Sequence[PartitionRecords]:
            if not paused:
                return poll(wait=wait)
            paused_polls.append({*paused})
            store.client.hincrby(store.keys.meta, "experiments_version", 1)
            store.read_state()
            return []

        monkeypatch.setattr(source, "poll", poll_until_paused)
        monkeypatch.setattr(source, "pause", paused.update)
        monkeypatch.setattr(source, "resume", paused.difference_update)
        monkeypatch.setattr(source, "end_offsets", lambda: {**end_offsets(), "other:0": 5})
        worker.run()
    assert worker.have_experiments_changed
    assert len(paused_polls) == 1
    assert not paused


def test_an_expiry_by_another_worker_while_a_reply_was_lost_makes_events_late(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker has read the new number of expirations, so no later commit would detect the expiry."""
    bench = StoreBench(redis_server)
    events_file = tmp_path / "events.jsonl"
    response = {
        "response_id": "r-1",
        "timestamp": START,
        "experiment": EXPERIMENT.name,
        "variant": "control",
        "items": [],
    }
    events_file.write_text(json.dumps({**response, "items": []}))
    source = file_source([events_file])
    topics = {"response": "file", "feedback": "file"}
    with open_writable_store(bench.settings, wall_clock) as opening:
        worker = create_worker(bench.settings, opening, source, Telemetry(), topics, wall_clock)
        store = opening.shards.first_shard
        commit = store.commit

        def commit_and_lose_reply(changes: Commit) -> CommitStatus:
            status = commit(changes)
            if _has_rows(changes):
                _, other_shard = bench.connect_engine()
                other_shard.expire_rows(str(bench.experiment_number), [START // HOUR_MS], START + 7 * HOUR_MS)
                raise StoreUnavailable("the reply was lost")
            return status

        monkeypatch.setattr(store, "commit", commit_and_lose_reply)
        worker.run()
        assert worker._watermark_tracker.late_before_ms()[str(bench.experiment_number)] >= START + 7 * HOUR_MS
    source.close()


def test_commits_that_the_store_loses_at_the_end_of_a_file_are_repeated(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last check of the stored positions finds the loss, so the worker does not stop."""
    with _file_worker(tmp_path / "events.jsonl", StoreBench(redis_server), monkeypatch, 9) as (worker, source, opening):
        store, read_positions = opening.shards.first_shard, worker._writer.read_positions
        deleted_counts: list[int] = []

        def lose_and_read_positions() -> Mapping[str, Position]:
            if source.is_exhausted() and not deleted_counts:
                deleted_counts.append(store.client.delete(store.keys.positions))
            return read_positions()

        monkeypatch.setattr("monitor.pipeline.worker._POSITIONS_INTERVAL_S", 0.0)
        monkeypatch.setattr(worker._writer, "read_positions", lose_and_read_positions)
        worker.run()
        (summary,) = opening.reader.read_summary().experiments.values()
        assert deleted_counts == [1]
        assert [position.next_offset for position in store.read_positions().values()] == [9]
    assert summary.variants["control"].responses == 9
