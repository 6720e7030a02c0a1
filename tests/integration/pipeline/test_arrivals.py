"""Counts of arriving events by topic: in the store, in the log, and in the health of the service."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis import ExperimentHistory
from monitor.app import WritableStore, create_worker, open_writable_store
from monitor.clock import HOUR_MS, wall_clock
from monitor.config import KafkaSettings
from monitor.errors import StoreUnavailable
from monitor.export import read_health
from monitor.pipeline import RetentionCleaner, StatusReporter, Telemetry, Worker, read_data_problems
from monitor.sources import jsonl
from monitor.state import Commit, CommitStatus, StoreReader, TopicArrivals, read_arrivals
from tests.servers.redis import RedisServer
from tests.support.files import file_source
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, START

_TOPICS = {"response": "answers", "feedback": "answers", "event": "answers"}
_NOW = 1_795_000_000_000 // HOUR_MS * HOUR_MS + 30 * 60_000


def _response(number: int, experiment: str = EXPERIMENT.name, variant: str = "control") -> dict[str, Any]:
    return {
        "response_id": f"r-{number}",
        "timestamp": START + number,
        "experiment": experiment,
        "variant": variant,
        "items": [],
    }


@contextmanager
def _service_worker(
    directory: Path, bench: StoreBench, events: list[dict[str, Any]]
) -> Iterator[tuple[Worker, WritableStore]]:
    """Yield a worker of the service that reads the events from a file, and the store."""
    path = directory / "events.jsonl"
    path.write_text("\n".join(map(json.dumps, events)))
    source = file_source([path], report=lambda _: None)
    kafka = KafkaSettings(responses_topic=_TOPICS["response"], feedback_topic=_TOPICS["feedback"])
    settings = replace(bench.settings, kafka=kafka)
    with open_writable_store(settings, wall_clock) as store:
        yield (
            create_worker(settings, store, source, Telemetry(), _TOPICS, lambda: _NOW, belongs_to_service=True),
            store,
        )
    source.close()


def _arrivals(store: WritableStore) -> TopicArrivals:
    return read_arrivals(store.shards, _NOW - HOUR_MS, _NOW).since(_NOW - HOUR_MS)["answers"]


def test_every_record_counts_once_although_replies_are_lost(
    tmp_path: Path, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are part of the commit that stores the positions."""
    monkeypatch.setattr(jsonl, "_MAX_POLL_LINES", 3)
    monkeypatch.setattr(jsonl, "_POLL_TIMEOUT_S", 0.0)
    events = [
        *(_response(number) for number in range(20)),
        *({"response_id": str(number)} for number in range(7)),
        *(_response(100 + number, experiment="Ranker") for number in range(5)),
        *(_response(200 + number, variant="T") for number in range(4)),
    ]
    with _service_worker(tmp_path, StoreBench(redis_server), events) as (worker, store):
        shard = store.shards.first_shard
        commit, calls = shard.commit, 0

        def failing_commit(changes: Commit) -> CommitStatus:
            nonlocal calls
            calls += 1
            if calls % 4 == 1:
                raise StoreUnavailable("nothing can be sent")
            status = commit(changes)
            if calls % 4 == 3:
                raise StoreUnavailable("the reply was lost")
            return status

        monkeypatch.setattr(shard, "commit", failing_commit)
        worker.run()
        counts = _arrivals(store)
    assert counts.received == 36
    assert counts.rejected.total() == 7
    assert counts.undeclared == {("Ranker", ""): 5, (EXPERIMENT.name, "T"): 4}
    assert counts.outcomes["skipped"] >= 5


def test_ongoing_problems_are_logged_once_a_minute(
    tmp_path: Path, redis_server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    """At WARNING, as long as such events arrive; not when they are over."""
    events = [{"response_id": str(number)} for number in range(12)]
    with _service_worker(tmp_path, StoreBench(redis_server), events) as (worker, store):
        worker.run()
        caplog.clear()
        clock_ms, monotonic_s = [_NOW], [0.0]
        reporter = StatusReporter(
            store.reader,
            version="1",
            config_digest="d",
            clock=lambda: clock_ms[0],
            monotonic_s=lambda: monotonic_s[0],
        )
        for _ in range(13):
            reporter.report({}, 0)
            monotonic_s[0] += 10.0
        texts = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert texts == [reporter.data_problems[0]] * 3
        assert texts[0].startswith("last hour: 12 of 12 messages of answers rejected")
        caplog.clear()
        clock_ms[0] += 20 * 60_000
        monotonic_s[0] += 60.0
        reporter.report({}, 0)
        assert reporter.data_problems[0].endswith("None within the last ten minutes")
        assert not caplog.records


def test_the_health_names_problems_versions_and_the_store(tmp_path: Path, redis_server: RedisServer) -> None:
    """For `status --health`, the page and /api/health."""
    bench = StoreBench(redis_server)
    with _service_worker(tmp_path, bench, [_response(1, experiment="Ranker")]) as (worker, store):
        worker.run()
        health = read_health(store.reader, bench.settings, store.reader.read_summary(), _NOW).to_json()
    (problem,) = health["problems"]
    assert (problem["kind"], problem["count"], problem["received"]) == ("undeclared_experiment", 1, 1)
    assert "did you mean 'ranker'?" in problem["text"]
    assert problem["text"] in health["conditions"]
    assert health["store"] == bench.settings.store.url
    assert health["topics"]["answers"]["last_hour"]["outcomes"] == {"skipped": 1}


@pytest.mark.parametrize("is_archived", [False, True])
def test_events_of_an_archived_experiment_are_no_problem(
    tmp_path: Path, redis_server: RedisServer, *, is_archived: bool
) -> None:
    """They are skipped on purpose."""
    bench = StoreBench(redis_server)
    history = ExperimentHistory(archived_at_ms=_NOW if is_archived else None)
    with _service_worker(tmp_path, bench, [_response(1, variant="T")]) as (worker, store):
        worker.run()
        reader = StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: _NOW)
        reader.histories = {"ranker": history}
        arrivals = read_arrivals(store.shards, _NOW - HOUR_MS, _NOW)
        assert bool(read_data_problems(reader, arrivals, _NOW)) is not is_archived


def test_counts_are_deleted_after_48_hours(tmp_path: Path, redis_server: RedisServer) -> None:
    """Once an hour, by any worker, also while no event arrives."""
    bench = StoreBench(redis_server)
    with _service_worker(tmp_path, bench, [_response(1)]) as (worker, store):
        worker.run()
        shard = store.shards.first_shard
        key = shard.keys.arrivals(_NOW // HOUR_MS)
        for hours, is_stored in ((48, 1), (49, 0)):
            later_ms = _NOW + hours * HOUR_MS
            cleaner = RetentionCleaner(shard, [], feedback_topic="answers", clock=partial(int, later_ms))
            cleaner._delete_old_arrivals()
            assert store.shards.client.exists(key) == is_stored
        assert store.shards.client.zcard(shard.keys.arrival_index) == 0
