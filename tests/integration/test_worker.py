"""The loop, on a real store."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from monitor.clock import wall_clock
from monitor.errors import StoreUnavailable
from monitor.events import instant_ms
from monitor.ingest import files
from monitor.ingest.experiment import HOUR_MS
from monitor.ingest.files import FileSource
from monitor.ingest.telemetry import Telemetry
from monitor.ingest.worker import Worker
from monitor.service import Opening, opened, worker_for
from monitor.store import Commit, Status
from tests.integration.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.streams import EXPERIMENT, START


@contextmanager
def _reading(path: Path, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Worker, Opening]]:
    """Yield a worker that is to read forty responses, three at a time."""
    monkeypatch.setattr(files, "_BATCH_LINES", 3)
    monkeypatch.setattr(files, "_IDLE_S", 0.0)
    response = {"experiment": EXPERIMENT.name, "variant": "control", "items": [{"item_id": "v", "position": 1}]}
    lines = [{**response, "response_id": f"r-{n}", "timestamp": START + n, "user_id": f"s-{n % 5}"} for n in range(40)]
    path.write_text("\n".join(map(json.dumps, lines)))
    source = FileSource([str(path)], instant_ms, report=print)
    with opened(bench.settings, wall_clock) as opening:
        topics = {"response": "file", "feedback": "file"}
        yield worker_for(bench.settings, opening, source, Telemetry(), topics, wall_clock), opening
    source.close()


def test_nothing_is_lost_or_doubled_while_replies_get_lost(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the store has applied what it was sent, or after."""
    with _reading(tmp_path / "events.jsonl", Bench(redis_server), monkeypatch) as (worker, opening):
        store, sent = opening.store.first, 0
        commit = store.commit

        def troubled(changes: Commit) -> Status:
            nonlocal sent
            sent += bool(changes.rows)
            if changes.rows and sent % 3 == 1:
                raise StoreUnavailable("nothing can be sent")
            status = commit(changes)
            if changes.rows and sent % 3 == 2:
                raise StoreUnavailable("the reply was lost")
            return status

        monkeypatch.setattr(store, "commit", troubled)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
    assert summary.variants["control"].responses == worker.events == 40


def test_a_batch_that_another_worker_has_applied_is_left_to_it(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And all that the other one has applied after it."""
    bench = Bench(redis_server)
    path = tmp_path / "events.jsonl"
    with _reading(path, bench, monkeypatch) as (worker, opening):
        store = opening.store.first
        commit = store.commit

        def overtaken(changes: Commit) -> Status:
            if changes.rows:
                monkeypatch.setattr(store, "commit", commit)
                with _reading(path, bench, monkeypatch) as (other, _):
                    other.run()
                    assert other.events == 40
            return commit(changes)

        monkeypatch.setattr(store, "commit", overtaken)
        worker.run()
        (summary,) = opening.reader.summary().experiments.values()
    assert summary.variants["control"].responses == 40
    assert worker.events == 0


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
            if changes.rows:
                _, other = bench.worker()
                other.sweep(str(bench.number), START // HOUR_MS, START + 7 * HOUR_MS)
                raise StoreUnavailable("the reply was lost")
            return status

        monkeypatch.setattr(store, "commit", lost)
        worker.run()
        assert worker._progress.late_before()[str(bench.number)] >= START + 7 * HOUR_MS
    source.close()
