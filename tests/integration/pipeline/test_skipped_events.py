"""What workers skip because their configuration lacks the experiment is counted, and said where people decide."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.app import Opening, opened, worker_for
from monitor.clock import wall_clock
from monitor.config import ExperimentSettings, Settings, StoreSettings
from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreUnavailable
from monitor.events import instant_ms
from monitor.export.presentation import notes
from monitor.pipeline import skipped_events as skips
from monitor.pipeline.batch_applier import Outcomes
from monitor.pipeline.skipped_events import SkipsSaid
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.worker import Worker
from monitor.sources import jsonl as files
from monitor.sources.jsonl import FileSource
from monitor.state import Commit, RedisStore, Status
from monitor.state.skip_counts import OTHERS, counted, responses_field, skipped_events
from monitor.stats import Skipped
from tests.servers.redis import RedisServer
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


class Town:
    """A store, and a log that workers with different configurations read on, one after the other."""

    def __init__(self, server: RedisServer, directory: Path, shards: int) -> None:
        self.directory = directory
        self.logs: list[str] = []
        self.store = StoreSettings(url=server.url, user_hash_key="a key", shards=shards)
        server.client().flushall()

    def settings(self, *experiments: ExperimentSettings) -> Settings:
        """Return the settings of a worker that knows these experiments."""
        return Settings(experiments, store=self.store)

    def write(self, events: Sequence[Fields]) -> None:
        """Append events to the log: as a file of its own, since one that has grown is another one."""
        path = self.directory / f"{len(self.logs)}.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
        self.logs.append(str(path))

    @contextmanager
    def worker(self, *experiments: ExperimentSettings) -> Iterator[tuple[Worker, Opening]]:
        """Yield a worker that knows these experiments."""
        settings = self.settings(*experiments)
        source = FileSource(self.logs, instant_ms, report=print)
        with opened(settings, wall_clock) as opening:
            yield worker_for(settings, opening, source, Telemetry(), _TOPICS, wall_clock), opening
        source.close()

    def read(self, *experiments: ExperimentSettings, events: Sequence[Fields] = ()) -> None:
        """Have a worker that knows these experiments read to the end of the log, after more events were written."""
        self.write(events)
        with self.worker(*experiments) as (worker, _):
            worker.run()

    def skipped(self, experiment: ExperimentSettings, *others: ExperimentSettings) -> Skipped | None:
        """Return what a verdict says was skipped; every place where people look has to say so, or not."""
        with opened(self.settings(experiment, *others), wall_clock) as opening:
            summary = opening.reader.summary().experiments[experiment.name]
        assert summary.judgement is not None
        verdict = summary.judgement.verdicts["treatment"]
        found = verdict.evidence.skipped
        assert ("skipped_events" in {note.code for note in verdict.notes}) == (found is not None)
        assert (f"{found}." in notes(summary)) == (found is not None)
        assert ("ab-monitor rebuild" in json.dumps(summary.judgement.to_json())) == (found is not None)
        return found


@pytest.fixture(params=[1, 3])
def town(request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path: Path) -> Town:
    """Return a place with a store of one shard, or of several."""
    return Town(redis_server, tmp_path, request.param)


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        each.getMessage() for each in caplog.records if each.levelno == logging.WARNING and each.name == skips.__name__
    ]


def test_an_experiment_that_is_added_knows_what_was_read_before(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """How many responses, and of which time; the log of its first worker says so."""
    town.read(OLD, events=[_response("new", number) for number in range(5)])
    town.read(OLD, events=[_response("old", number) for number in range(3)])
    assert not _warnings(caplog)
    town.read(OLD, NEW, events=[_response("new", number, START + HOUR) for number in range(5, 9)])
    assert town.skipped(NEW, OLD) == Skipped(5, 0, 0, START, START + 4)
    assert town.skipped(OLD, NEW) is None
    (said,) = _warnings(caplog)
    assert said.startswith("incomplete experiment=new reason=5 responses were skipped, dated 2026-01-01T00:00:00Z to ")


def test_nothing_is_said_where_everything_was_counted(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """Variants that are not declared, and times that are not the experiment's, are no holes."""
    odd = [{**_response("new", 1), "variant": "unknown"}, _response("new", 2, START - HOUR)]
    town.read(OLD, replace(NEW, starts_at_ms=START), events=[*odd, _response("new", 3), _rating("new", 3)])
    assert town.skipped(replace(NEW, starts_at_ms=START), OLD) is None
    assert not _warnings(caplog)


def test_a_worker_with_an_old_configuration_says_what_it_skips(
    town: Town, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each experiment that the store has, also if it gets that later; of others it says nothing."""
    monkeypatch.setattr(files, "_BATCH_LINES", 2)
    monkeypatch.setattr(skips, "_LOOK_S", 0.0)
    town.write([_response("new", number) for number in range(6)] + [_response("other", number) for number in range(2)])
    with town.worker(OLD) as (worker, opening):
        commit = opening.store.first.commit
        commits = 0

        def registered(changes: Commit) -> Status:
            nonlocal commits
            commits += 1
            if commits == 3:
                assert not _warnings(caplog)
                with opened(town.settings(OLD, NEW), wall_clock):
                    pass
            return commit(changes)

        monkeypatch.setattr(opening.store.first, "commit", registered)
        worker.run()
    (said,) = _warnings(caplog)
    assert said.startswith("events are skipped for good experiment=new reason=the store has it")
    assert town.skipped(NEW, OLD) == Skipped(6, 0, 0, START, START + 5)


def test_one_that_is_taken_out_and_put_back_has_a_hole(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """Reactions to its earlier responses are missing as well."""
    town.read(OLD, NEW, events=[_response("new", number) for number in range(4)])
    town.read(OLD, events=[*(_rating("new", number) for number in range(4)), _response("new", 7), _rating("new", 7)])
    (said,) = _warnings(caplog)
    assert said.startswith("events are skipped for good experiment=new")
    assert town.skipped(NEW, OLD) == Skipped(1, 4, 0, START + 7, START + HOUR + 3)
    caplog.clear()
    town.read(OLD, NEW)
    (said,) = _warnings(caplog)
    assert said.startswith("incomplete experiment=new reason=1 response and 4 reactions were skipped")


def test_what_is_skipped_of_others_is_not_said(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of an experiment that nobody has, nor of one of which nothing has come since the worker began."""
    town.read(OLD, NEW, events=[_response("new", 1)])
    town.read(OLD, events=[_response("stranger", 1)])
    assert not _warnings(caplog)
    town.read(OLD, events=[_response("new", 2)])
    caplog.clear()
    town.read(OLD, events=[_response("stranger", 2)])
    assert not _warnings(caplog)


def test_reactions_alone_are_said(town: Town, caplog: pytest.LogCaptureFixture) -> None:
    """No new response has to come."""
    town.read(OLD, NEW, events=[_response("new", 1)])
    town.read(OLD, events=[_rating("new", 1)])
    assert len(_warnings(caplog)) == 1
    assert town.skipped(NEW, OLD) == Skipped(0, 1, 0, START + HOUR + 1, START + HOUR + 1)


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
def test_what_it_would_not_have_counted_is_not_missing(
    redis_server: RedisServer, tmp_path: Path, changes: dict[str, int], *, missing: bool
) -> None:
    """Responses before it starts, or after it has ended."""
    town = Town(redis_server, tmp_path, 1)
    town.read(OLD, events=[_response("new", number) for number in range(5)])
    assert (town.skipped(replace(NEW, **changes), OLD) is not None) == missing  # type: ignore[arg-type]


def test_what_is_skipped_is_counted_once(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the positions: whatever replies get lost, and whichever shards had the batch."""
    monkeypatch.setattr(files, "_BATCH_LINES", 3)
    monkeypatch.setattr(files, "_IDLE_S", 0.0)
    town.write([_response("new", number) for number in range(20)])
    with town.worker(OLD) as (worker, opening):
        for shard in opening.store:
            _lose_replies(shard, monkeypatch)
        worker.run()
    assert town.skipped(NEW, OLD) == Skipped(20, 0, 0, START, START + 19)


def _lose_replies(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    commit, calls = store.commit, 0

    def failing(changes: Commit) -> Status:
        nonlocal calls
        calls += 1
        if calls % 5 == 3:
            raise StoreUnavailable("nothing can be sent")
        status = commit(changes)
        if calls % 5 == 0:
            raise StoreUnavailable("the reply was lost")
        return status

    monkeypatch.setattr(store, "commit", failing)


def test_names_are_bounded(town: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody may write a new one; any experiment may be among those beyond."""
    monkeypatch.setattr(skips, "_MOST", 2)
    names = ["first", "second", "third", "fourth"]
    for begin in (0, 20):
        for name in names:
            town.read(OLD, events=[_response(name, number) for number in range(begin, begin + 20)])
    with opened(town.settings(OLD), wall_clock) as opening:
        own = [counted(shard) for shard in opening.store]
        identities = IdHasher(opening.held.hash_key)
        assert sum(skipped_events(opening.store).events.values()) == 160
    named = {responses_field(name, identities) for name in names[:2]}
    assert own == [{*named, OTHERS}, *[set()] * (len(own) - 1)]  # a file is on the first shard
    assert town.skipped(OLD) == Skipped(0, 0, 80, START, START + 39)
    first = replace(OLD, name="first")
    assert town.skipped(first, OLD) == Skipped(40, 0, 80, START, START + 39)
    said = "40 responses and perhaps some of 80 responses of experiments that are not counted one by one were skipped"
    assert str(town.skipped(first, OLD)).startswith(said)


def test_the_store_is_looked_at_now_and_then(redis_server: RedisServer, tmp_path: Path) -> None:
    """And nothing is, where nothing was skipped."""
    town = Town(redis_server, tmp_path, 1)
    clock = [100.0]
    with opened(town.settings(OLD), wall_clock) as opening:
        said = SkipsSaid(opening.reader, IdHasher(opening.held.hash_key), lambda: clock[0])
        asked: list[float] = []

        def looked(_: object) -> None:
            asked.append(clock[0])
            raise StoreUnavailable("gone")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(skips, "stored_experiments", looked)
            for clock[0] in (100.0, 101.0, 109.9, 110.0):
                said.note(_outcomes("applied"))
                said.note(_outcomes("skipped"))
    assert asked == [100.0, 110.0]


def _outcomes(outcome: str) -> Outcomes:
    return Counter({("response", outcome): 1})
