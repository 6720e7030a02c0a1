"""Skipped events, of experiments that the configuration does not declare: counts, log lines and verdicts."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.analysis import StoreSummary
from monitor.app import WritableStore, create_worker, open_writable_store
from monitor.clock import wall_clock
from monitor.config import DiscoverSettings, ExperimentSettings, Settings, StoreSettings
from monitor.engine import BatchChanges
from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreUnavailable
from monitor.export.presentation import experiment_footnotes
from monitor.pipeline import skipped_events
from monitor.pipeline.skipped_events import SkippedEventCounter
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.worker import Worker
from monitor.sources import jsonl
from monitor.state import Commit, CommitStatus, StoreShard
from monitor.state.skip_counts import (
    OTHER_EXPERIMENTS_FIELD,
    forget_skipped_experiment,
    read_skipped_events,
    read_skipped_fields,
    read_undeclared_experiments,
    skipped_responses_field,
)
from monitor.stats import SkippedEventCounts
from tests.servers.redis import RedisServer
from tests.support.files import file_source
from tests.support.streams import EXPERIMENT, HOUR, START

OLD = replace(EXPERIMENT, name="old", items=None)
NEW = replace(OLD, name="new")
_TOPICS = {"response": "file", "feedback": "file"}
Fields = dict[str, Any]


def _response(experiment: str, number: int, at_ms: int = START) -> Fields:
    return {
        "response_id": f"{experiment}-{number}",
        "timestamp": at_ms + number,
        "experiment": experiment,
        "variant": "control",
        "user_id": f"student-{number}",
        "items": [{"item_id": "video", "position": 1}],
    }


def _rating(experiment: str, number: int) -> Fields:
    identity = f"{experiment}-{number}"
    at_ms = START + HOUR + number
    return {"feedback_id": f"f-{identity}", "response_id": identity, "timestamp": at_ms, "kind": "rating", "score": 3}


class SharedLog:
    """A store and a growing log of events, which workers with different configurations read in turn."""

    def __init__(self, server: RedisServer, directory: Path, shards: int) -> None:
        self.directory = directory
        self.paths: list[str] = []
        self.store = StoreSettings(url=server.url, user_hash_key="a key", shards=shards)
        self.discover = DiscoverSettings()
        server.client().flushall()

    def settings(self, *experiments: ExperimentSettings) -> Settings:
        """Return settings with the experiments."""
        return Settings(experiments, store=self.store, discover=self.discover)

    def write(self, events: Sequence[Fields]) -> None:
        """Append events to the log as a new file, since a file with changed content is read from its beginning."""
        path = self.directory / f"{len(self.paths)}.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        self.paths.append(str(path))

    @contextmanager
    def worker(self, *experiments: ExperimentSettings) -> Iterator[tuple[Worker, WritableStore]]:
        """Yield a worker that is configured with the experiments, and the store."""
        settings = self.settings(*experiments)
        source = file_source(self.paths)
        with open_writable_store(settings, wall_clock) as opening:
            yield create_worker(settings, opening, source, Telemetry(), _TOPICS, wall_clock), opening
        source.close()

    def read(self, *experiments: ExperimentSettings, events: Sequence[Fields] = ()) -> None:
        """Append events to the log; run a worker with the experiments to the end of the log."""
        self.write(events)
        with self.worker(*experiments) as (worker, _):
            worker.run()

    def summary(self, *experiments: ExperimentSettings) -> StoreSummary:
        """Return the summary that a reader with the experiments computes."""
        with open_writable_store(self.settings(*experiments), wall_clock) as opening:
            return opening.reader.read_summary()

    def skipped(
        self, experiment: ExperimentSettings, *other_experiments: ExperimentSettings
    ) -> SkippedEventCounts | None:
        """Return the skipped events in the verdict, after checking that all outputs agree."""
        with open_writable_store(self.settings(experiment, *other_experiments), wall_clock) as opening:
            summary = opening.reader.read_summary().experiments[experiment.name]
        assert summary.analysis is not None
        verdict = summary.analysis.verdicts["treatment"]
        skipped = verdict.evidence.skipped_events
        assert ("skipped_events" in {reason.code for reason in verdict.notes}) == (skipped is not None)
        assert (f"{skipped}." in experiment_footnotes(summary, 0)) == (skipped is not None)
        assert ("ab-monitor replay" in json.dumps(summary.analysis.to_json())) == (skipped is not None)
        return skipped


@pytest.fixture(params=[1, 3])
def shared_log(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path) -> SharedLog:
    """Return a log with a store of one shard, or of three shards."""
    return SharedLog(redis_server, tmp_path, request.param)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name == skipped_events.__name__
    ]


def test_an_added_experiment_reports_the_events_that_were_skipped_before(
    shared_log: SharedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The verdict and the log of the first worker report the number of responses and their times."""
    shared_log.read(OLD, events=[_response("new", number) for number in range(5)])
    shared_log.read(OLD, events=[_response("old", number) for number in range(3)])
    assert not _warnings(caplog)
    shared_log.read(OLD, NEW, events=[_response("new", number, START + HOUR) for number in range(5, 9)])
    assert shared_log.skipped(NEW, OLD) == SkippedEventCounts(5, 0, 0, START, START + 4)
    assert shared_log.skipped(OLD, NEW) is None
    (warning,) = _warnings(caplog)
    assert warning.startswith(
        "experiment is incomplete experiment=new reason=5 responses were skipped, dated 2026-01-01T00:00:00Z to "
    )


def test_no_skipped_events_are_reported_if_all_events_were_counted(
    shared_log: SharedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Events of undeclared variants, or outside the experiment's time, are not skipped events."""
    odd = [{**_response("new", 1), "variant": "unknown"}, _response("new", 2, START - HOUR)]
    shared_log.read(OLD, replace(NEW, starts_at_ms=START), events=[*odd, _response("new", 3), _rating("new", 3)])
    assert shared_log.skipped(replace(NEW, starts_at_ms=START), OLD) is None
    assert not _warnings(caplog)


def test_an_experiment_that_was_removed_and_added_again_is_incomplete(
    shared_log: SharedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """Reactions to earlier responses of the experiment are missing, too. The removal itself is no warning."""
    caplog.set_level(logging.INFO)
    shared_log.read(OLD, NEW, events=[_response("new", number) for number in range(4)])
    shared_log.read(
        OLD, events=[*(_rating("new", number) for number in range(4)), _response("new", 7), _rating("new", 7)]
    )
    assert not _warnings(caplog)
    messages = [record.getMessage() for record in caplog.records if record.name == skipped_events.__name__]
    (message,) = messages
    assert message.startswith("experiment is not in the configuration experiment=new: its results remain in the store")
    assert shared_log.skipped(NEW, OLD) == SkippedEventCounts(1, 4, 0, START + 7, START + HOUR + 3)
    caplog.clear()
    shared_log.read(OLD, NEW)
    (warning,) = _warnings(caplog)
    assert warning.startswith("experiment is incomplete experiment=new reason=1 response and 4 reactions were skipped")


def test_skipped_events_of_unknown_or_inactive_experiments_are_not_logged(
    shared_log: SharedLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The store does not have the experiment, or no event has arrived since the worker started."""
    shared_log.read(OLD, NEW, events=[_response("new", 1)])
    shared_log.read(OLD, events=[_response("stranger", 1)])
    assert not _warnings(caplog)
    shared_log.read(OLD, events=[_response("new", 2)])
    caplog.clear()
    shared_log.read(OLD, events=[_response("stranger", 2)])
    assert not _warnings(caplog)


def test_skipped_reactions_without_a_new_response_are_counted(shared_log: SharedLog) -> None:
    """The verdict counts the reactions."""
    shared_log.read(OLD, NEW, events=[_response("new", 1)])
    shared_log.read(OLD, events=[_rating("new", 1)])
    assert shared_log.skipped(NEW, OLD) == SkippedEventCounts(0, 1, 0, START + HOUR + 1, START + HOUR + 1)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, True),
        ({"starts_at_ms": START + 4}, True),
        ({"starts_at_ms": START + 5}, False),
        ({"starts_at_ms": START + HOUR, "pre_period_ms": HOUR}, True),
        ({"ends_at_ms": START + 1}, True),
        ({"ends_at_ms": START}, False),
    ],
)
def test_events_outside_an_experiments_time_are_not_reported_as_skipped(
    redis_server: RedisServer, tmp_path: Path, changes: dict[str, int], *, missing: bool
) -> None:
    """Responses before the start, or after the end, would not have been counted."""
    shared_log = SharedLog(redis_server, tmp_path, 1)
    shared_log.read(OLD, events=[_response("new", number) for number in range(5)])
    assert (shared_log.skipped(replace(NEW, **changes), OLD) is not None) == missing  # type: ignore[arg-type]


def test_skipped_events_are_counted_once_although_replies_are_lost(
    shared_log: SharedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts are written with the positions, on each shard."""
    monkeypatch.setattr(jsonl, "_MAX_POLL_LINES", 3)
    monkeypatch.setattr(jsonl, "_POLL_TIMEOUT_S", 0.0)
    shared_log.write([_response("new", number) for number in range(20)])
    with shared_log.worker(OLD) as (worker, opening):
        for shard in opening.shards:
            _lose_replies(shard, monkeypatch)
        worker.run()
    assert shared_log.skipped(NEW, OLD) == SkippedEventCounts(20, 0, 0, START, START + 19)


def _lose_replies(store: StoreShard, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, calls = store.commit, 0

    def failing_commit(changes: Commit) -> CommitStatus:
        nonlocal calls
        calls += 1
        if calls % 5 == 3:
            raise StoreUnavailable("nothing can be sent")
        status = commit(changes)
        if calls % 5 == 0:
            raise StoreUnavailable("the reply was lost")
        return status

    monkeypatch.setattr(store, "commit", failing_commit)


def test_the_number_of_separately_counted_experiments_is_limited(
    shared_log: SharedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody may write new names. Events beyond the limit may be of any experiment."""
    monkeypatch.setattr(skipped_events, "_MAX_COUNTED_EXPERIMENTS", 2)
    names = ["first", "second", "third", "fourth"]
    for first_number in (0, 20):
        for name in names:
            shared_log.read(OLD, events=[_response(name, number) for number in range(first_number, first_number + 20)])
    with open_writable_store(shared_log.settings(OLD), wall_clock) as opening:
        stored_fields = [read_skipped_fields(shard) for shard in opening.shards]
        id_hasher = IdHasher(opening.metadata.hash_key)
        assert sum(read_skipped_events(opening.shards).events.values()) == 160
    first_fields = {skipped_responses_field(name, id_hasher) for name in names[:2]}
    # A file is a partition of the first shard.
    counted_fields = [fields.counts for fields in stored_fields]
    assert counted_fields == [{*first_fields, OTHER_EXPERIMENTS_FIELD}, *[set()] * (len(stored_fields) - 1)]
    assert shared_log.skipped(OLD) == SkippedEventCounts(0, 0, 80, START, START + 39)
    first = replace(OLD, name="first")
    assert shared_log.skipped(first, OLD) == SkippedEventCounts(40, 0, 80, START, START + 39)
    expected_text = (
        "40 responses and perhaps some of 80 responses of experiments that are not counted one by one were skipped"
    )
    assert str(shared_log.skipped(first, OLD)).startswith(expected_text)


def _arm(experiment: str, variant: str, number: int) -> Fields:
    response_id = f"{experiment[:9]}-{variant[:9]}-{number}"
    return {**_response(experiment, number), "response_id": response_id, "variant": variant}


def test_an_undeclared_experiment_is_recorded_with_its_variants_and_times(shared_log: SharedLog) -> None:
    """The experiment with the most responses is first; a declared experiment is no longer listed."""
    shared_log.read(OLD, events=[_arm("small", "a", 1)])
    shared_log.read(OLD, events=[_arm("new", "control", number) for number in range(3)])
    shared_log.read(OLD, events=[_arm("new", "treatment", 7)])
    new, small = shared_log.summary(OLD).undeclared
    assert (new.name, new.responses, new.first_ms, new.last_ms) == ("new", 4, START, START + 7)
    assert (dict(new.variants), new.other_variant_responses) == ({"control": 3, "treatment": 1}, 0)
    assert (small.name, dict(small.variants)) == ("small", {"a": 1})
    assert [experiment.name for experiment in shared_log.summary(OLD, NEW).undeclared] == ["small"]


def test_the_number_of_recorded_variants_is_limited(shared_log: SharedLog) -> None:
    """Anybody may write new names. Further variants are counted together; known variants still count separately."""
    shared_log.read(OLD, events=[_arm("new", f"variant {number:02}", number) for number in range(30)])
    shared_log.read(OLD, events=[_arm("new", f"variant {number:02}", 100 + number) for number in (0, 29)])
    (new,) = shared_log.summary(OLD).undeclared
    assert new.responses == 32
    assert dict(new.variants) == {"variant 00": 2} | {f"variant {number:02}": 1 for number in range(1, 20)}
    assert new.other_variant_responses == 11


def test_only_matching_names_are_stored_up_to_the_limit(shared_log: SharedLog) -> None:
    """Other experiments are counted without names, so the results of each are incomplete once it is declared."""
    shared_log.discover = DiscoverSettings(names=("ranker-*", "x"), limit=2)
    for name in ("secret", "ranker-1", "ranker-2", "ranker-3", "ranker-1"):
        shared_log.read(OLD, events=[_arm(name, "control", len(shared_log.paths))])
    summary = shared_log.summary(OLD)
    assert [(experiment.name, experiment.responses) for experiment in summary.undeclared] == [
        ("ranker-1", 2), ("ranker-2", 1),
    ]  # fmt: skip
    assert summary.unnamed_undeclared_responses == 2
    with open_writable_store(shared_log.settings(OLD), wall_clock) as opening:
        keys = [key for shard in opening.shards for key in opening.shards.client.scan_iter(shard.keys.prefix + b"*")]
        dump = b"".join(opening.shards.client.dump(key) for key in set(keys))
        assert b"ranker-1" in dump
        assert b"secret" not in dump
        assert b"ranker-3" not in dump
    secret = replace(OLD, name="secret")
    assert shared_log.skipped(secret, OLD) == SkippedEventCounts(1, 0, 0, START, START)
    assert shared_log.summary(OLD, secret).unnamed_undeclared_responses == 1


def test_workers_that_record_new_experiments_share_the_limit(redis_server: RedisServer, tmp_path: Path) -> None:
    """A worker reads the stored names again before it adds an experiment."""
    shared_log = SharedLog(redis_server, tmp_path, 1)
    with open_writable_store(shared_log.settings(OLD), wall_clock) as opening:
        shard = opening.shards.first_shard
        shard.read_state()
        workers = [
            SkippedEventCounter(shard, IdHasher(opening.metadata.hash_key), DiscoverSettings(limit=2)) for _ in range(2)
        ]
        for worker, name in ((0, "one"), (1, "two"), (0, "three"), (1, "one")):
            commit, batch = Commit(), BatchChanges()
            batch.count_skipped_response(name, "a", START)
            workers[worker].append_to_commit(commit, batch)
            assert shard.commit(commit) == "applied"
    assert [experiment.name for experiment in shared_log.summary(OLD).undeclared] == ["one", "two"]


def test_names_that_no_longer_match_are_not_shown(shared_log: SharedLog) -> None:
    """A narrower pattern hides names that were recorded before."""
    shared_log.read(OLD, events=[_arm("noise", "a", 1), _arm("ranker", "a", 2)])
    shared_log.discover = DiscoverSettings(names=("ranker*",))
    summary = shared_log.summary(OLD)
    assert [experiment.name for experiment in summary.undeclared] == ["ranker"]
    assert summary.unnamed_undeclared_responses == 1


def test_names_are_stored_with_at_most_100_characters(shared_log: SharedLog) -> None:
    """A name that was cut, or has control characters, cannot be declared."""
    odd = "a\nb\u001b[2J"
    shared_log.read(OLD, events=[_arm("x" * 200, "y" * 200, 1), _arm("x" * 201, "y", 2), _arm(odd, odd, 3)])
    long, short = shared_log.summary(OLD).undeclared
    assert (long.name, long.responses) == ("x" * 99 + "…", 2)
    assert dict(long.variants) == {"y": 1, "y" * 99 + "…": 1}
    assert (short.name, dict(short.variants)) == (odd, {odd: 1})
    assert not long.is_declarable
    assert not short.is_declarable
    assert list(long.declarable_variants) == ["y"]


def test_recorded_variants_are_counted_once_although_replies_are_lost(
    shared_log: SharedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names and variants are written with the positions."""
    monkeypatch.setattr(jsonl, "_MAX_POLL_LINES", 3)
    monkeypatch.setattr(jsonl, "_POLL_TIMEOUT_S", 0.0)
    shared_log.write([_arm("new", "control" if number % 4 else "treatment", number) for number in range(20)])
    with shared_log.worker(OLD) as (worker, opening):
        for shard in opening.shards:
            _lose_replies(shard, monkeypatch)
        worker.run()
    (new,) = shared_log.summary(OLD).undeclared
    assert (new.responses, dict(new.variants)) == (20, {"control": 15, "treatment": 5})


def test_a_forgotten_experiment_leaves_no_trace_and_is_complete(shared_log: SharedLog) -> None:
    """Counts of other experiments remain."""
    shared_log.read(OLD, NEW, events=[_response("new", 1)])
    shared_log.read(OLD, events=[_rating("new", 1), *(_arm("new", f"v{number}", number) for number in range(30))])
    shared_log.read(OLD, events=[_arm("other", "a", 1)])
    assert shared_log.skipped(NEW, OLD) is not None
    with open_writable_store(shared_log.settings(OLD, NEW), wall_clock) as opening:
        id_hasher = IdHasher(opening.metadata.hash_key)
        numbers = [opening.metadata.numbers["new"]]
        for _ in range(2):
            forget_skipped_experiment(opening.shards, "new", id_hasher, numbers)
        (other,) = read_undeclared_experiments(opening.shards, [], shared_log.discover)
        assert (other.name, dict(other.variants)) == ("other", {"a": 1})
        for shard in opening.shards:
            fields = read_skipped_fields(shard)
            assert len(fields.counts) == len(fields.names) == len(fields.variants)
            times = opening.shards.client.hkeys(shard.keys.newest_times)
            assert len([name for name in times if b"est:" in name]) == 2 * len(fields.counts)
            assert opening.shards.client.hlen(shard.keys.variants_skipped) == len(fields.counts)
    assert shared_log.skipped(NEW, OLD) is None
