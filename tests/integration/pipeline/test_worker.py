"""The loop, on a real store."""

from __future__ import annotations

import gc
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.app import Opening, opened, worker_for
from monitor.clock import HOUR_MS, wall_clock
from monitor.errors import DependencyUnavailable, StoreUnavailable
from monitor.events import instant_ms
from monitor.pipeline.batch_applier import Outcomes
from monitor.pipeline.commit_pipeline import Batch, PendingCommit
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.worker import Worker
from monitor.sources import jsonl as files
from monitor.sources.jsonl import FileSource
from monitor.sources.source import Slice
from monitor.state import Advance, Commit, Position, RedisStore, Status
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.streams import EXPERIMENT, START


def _has_rows(changes: Commit) -> bool:
    return bool(changes.row_keys or changes.new_row_keys)


class _Trouble:
    """A store whose replies are lost now and then, before or after it has applied what it was sent."""

    def __init__(self, store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self._commit = store.commit
        self._sent = 0
        monkeypatch.setattr(store, "commit", self.commit)

    def commit(self, changes: Commit) -> Status:
        if not _has_rows(changes):
            return self._commit(changes)
        self._sent += 1
        turn = self._sent % 4
        if turn == 1:
            raise StoreUnavailable("nothing can be sent")
        if turn == 2:
            raise StoreUnavailable("the request was lost")
        status = self._commit(changes)
        if turn == 3:
            raise StoreUnavailable("the reply was lost")
        return status


def _recorded(steps: list[str], source: FileSource, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Record when the worker polls (and whether it waits), sends a batch, and knows that it was applied."""
    poll, submit, applied = source.poll, worker._writer.submit, worker._applied

    def polled(*, wait: bool = True) -> Sequence[Slice]:
        steps.append("wait" if wait else "read")
        return poll(wait=wait)

    def submitted(batch: Batch, late: Mapping[str, int]) -> PendingCommit:
        steps.append("sent")
        return submit(batch, late)

    def known(batch: Batch, outcomes: Outcomes) -> None:
        steps.append("known")
        applied(batch, outcomes)

    monkeypatch.setattr(source, "poll", polled)
    monkeypatch.setattr(worker._writer, "submit", submitted)
    monkeypatch.setattr(worker, "_applied", known)


@contextmanager
def _reading(
    path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch, responses: int = 40, most: int = 3
) -> Iterator[tuple[Worker, FileSource, Opening]]:
    """Yield a worker that is to read so many responses, three at a time."""
    monkeypatch.setattr(files, "_BATCH_LINES", 3)
    monkeypatch.setattr(files, "_IDLE_S", 0.0)
    response = {"experiment": EXPERIMENT.name, "variant": "control", "items": [{"item_id": "v", "position": 1}]}
    lines = [
        {**response, "response_id": f"r-{n}", "timestamp": START + n, "user_id": f"s-{n % 5}"} for n in range(responses)
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    source = FileSource([str(path)], instant_ms, report=print)
    with opened(bench.settings, wall_clock) as opening:
        topics = {"response": "file", "feedback": "file"}
        settings = replace(bench.settings, kafka=replace(bench.settings.kafka, max_poll_records=most))
        yield worker_for(settings, opening, source, Telemetry(), topics, wall_clock), source, opening
    source.close()


def test_a_service_looks_for_cyclic_garbage_seldom(redis_server: RedisServer) -> None:
    """Every cached row would be walked each time."""
    before = gc.get_threshold()
    gc.set_threshold(700)
    try:
        with opened(Bench(redis_server).settings, wall_clock):
            assert gc.get_threshold()[0] > 100 * 700
    finally:
        gc.set_threshold(*before)


def test_nothing_is_lost_or_doubled_while_replies_get_lost(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next batch has been read by then, and is applied after the one that was in doubt."""
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch) as (worker, _, opening):
        _Trouble(opening.store.first, monkeypatch)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
    assert summary.variants["control"].responses == 40
    assert worker.events == 40


def test_the_next_batch_is_read_while_the_store_is_at_work(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once, without waiting, between what is sent and its outcome."""
    said: list[str] = []
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch, 9) as (worker, source, _):
        _recorded(said, source, worker, monkeypatch)
        worker.run()
    batch = ["sent", "read", "known"]
    assert said[-10:] == ["wait", *batch * 3]


def test_small_batches_are_finished_first(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What arrives while the store is at work is in the very next batch."""
    said: list[str] = []
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch, 9, 64) as (worker, source, _):
        _recorded(said, source, worker, monkeypatch)
        worker.run()
    assert said[-10:] == [*["wait", "sent", "known"] * 3, "wait"]


def test_a_batch_is_finished_before_an_outage_is_waited_for(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source fails while the store is at work: all that was read before is known when that is said."""
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch) as (worker, source, opening):
        poll = source.poll
        known: list[int] = []

        def polled(*, wait: bool = True) -> Sequence[Slice]:
            if not wait and len(known) < 3:
                raise DependencyUnavailable("Kafka refuses something")
            return poll(wait=wait)

        monkeypatch.setattr(source, "poll", polled)
        monkeypatch.setattr(source, "idle", lambda: known.append(worker.events))
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
    assert known == [3, 6, 9]
    assert summary.variants["control"].responses == worker.events == 40


@pytest.mark.parametrize("away", [False, True])
def test_what_was_read_ahead_is_read_again_when_positions_have_moved(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    """Another worker has applied the batch that was in doubt, and more; this one is ready, also after an outage."""
    bench = Bench(redis_server)
    path = tmp_path / "events.jsonl"
    with _reading(path, bench, monkeypatch) as (worker, _, opening):
        store = opening.store.first
        commit = store.commit

        def overtaken(changes: Commit) -> Status:
            if _has_rows(changes):
                monkeypatch.setattr(store, "commit", commit)
                with _reading(path, bench, monkeypatch) as (other, _, _):
                    other.run()
                    assert other.events == 40
                if away:
                    raise StoreUnavailable("nothing can be sent")
            return commit(changes)

        monkeypatch.setattr(store, "commit", overtaken)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
    assert summary.variants["control"].responses == 40
    assert worker.events == 0
    assert worker.readiness() == ()


def test_what_was_read_ahead_of_a_partition_that_the_store_has_lost_is_read_again(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch at the store is of another partition, and is applied."""
    bench = Bench(redis_server)
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    with _reading(first, bench, monkeypatch, 9) as (worker, _, opening):
        lines = first.read_text().splitlines()
        first.write_text("\n".join(lines[:3]))
        second.write_text("\n".join(lines[3:]))
        source = FileSource([str(first), str(second)], instant_ms, report=print)
        monkeypatch.setattr(worker, "_source", source)
        store = opening.store.first
        commit = store.commit

        def forgetful(changes: Commit) -> Status:
            status = commit(changes)
            if not _has_rows(changes):
                return status
            monkeypatch.setattr(store, "commit", commit)
            (lost,) = set(source.own()) - {step.partition for step in changes.advances}
            store.client.hdel(store.keys.positions, lost)
            raise StoreUnavailable("the reply was lost")

        monkeypatch.setattr(store, "commit", forgetful)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
        source.close()
    assert summary.variants["control"].responses == worker.events == 9


def test_partitions_that_wait_for_another_workers_go_on_as_soon_as_that_has_caught_up(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has nothing to read asks how far the slowest is each time, not once a second, and then for all of it."""
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch, 9) as (worker, source, opening):
        slow = Advance("other:0", None, Position(1, START - 10 * HOUR_MS))
        other = RedisStore(opening.store.first.settings)
        other.state()
        assert other.commit(Commit(advances=[slow])) == "applied"
        poll, ends = source.poll, source.ends
        held: set[str] = set()
        waited: list[bool] = []
        looks: list[int] = []
        positions = worker._writer.positions

        def looked() -> Mapping[str, Position]:
            looks.append(len(waited))
            return positions()

        def polled(*, wait: bool = True) -> Sequence[Slice]:
            if not held:
                return poll(wait=wait)
            waited.append(wait)
            if len(waited) == 8:
                caught_up = Advance("other:0", 1, Position(2, START))
                assert other.commit(Commit(advances=[caught_up])) == "applied"
            return []

        def hold(partitions: Collection[str]) -> None:
            held.clear()
            held.update(partitions)

        monkeypatch.setattr("monitor.pipeline.worker._HOUSEKEEPING_S", 3600.0)
        monkeypatch.setattr(worker._writer, "positions", looked)
        monkeypatch.setattr(source, "poll", polled)
        monkeypatch.setattr(source, "hold", hold)
        monkeypatch.setattr(source, "ends", lambda: {**ends(), "other:0": 5})
        worker.run()
    assert waited == [False] * 8
    assert looks[:2] == [0, 8]
    assert worker.events == 9


def test_what_others_swept_while_a_reply_was_lost_is_known(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's count of sweeps was read anew, so nothing else would refuse what is late by now."""
    bench = Bench(redis_server)
    events = tmp_path / "events.jsonl"
    response = {
        "response_id": "r-1",
        "timestamp": START,
        "experiment": EXPERIMENT.name,
        "variant": "control",
        "items": [],
    }
    events.write_text(json.dumps({**response, "items": []}))
    source = FileSource([str(events)], instant_ms, report=print)
    topics = {"response": "file", "feedback": "file"}
    with opened(bench.settings, wall_clock) as opening:
        worker = worker_for(bench.settings, opening, source, Telemetry(), topics, wall_clock)
        store = opening.store.first
        commit = store.commit

        def lost(changes: Commit) -> Status:
            status = commit(changes)
            if _has_rows(changes):
                _, other = bench.worker()
                other.sweep(str(bench.number), [START // HOUR_MS], START + 7 * HOUR_MS)
                raise StoreUnavailable("the reply was lost")
            return status

        monkeypatch.setattr(store, "commit", lost)
        worker.run()
        assert worker._progress.late_before()[str(bench.number)] >= START + 7 * HOUR_MS
    source.close()


def test_a_store_that_loses_events_at_the_end_of_a_file_gets_them_again(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last look at the store finds that it has gone back: the file is not finished then."""
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch, 9) as (worker, source, opening):
        store, positions = opening.store.first, worker._writer.positions
        losses: list[int] = []

        def lost_once() -> Mapping[str, Position]:
            if source.finished() and not losses:
                losses.append(store.client.delete(store.keys.positions))
            return positions()

        monkeypatch.setattr("monitor.pipeline.worker._OTHERS_S", 0.0)
        monkeypatch.setattr(worker._writer, "positions", lost_once)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
        assert losses == [1]
        assert [position.next_offset for position in store.positions().values()] == [9]
    assert summary.variants["control"].responses == 9
