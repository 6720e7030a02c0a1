"""Snapshots in a real store: taken by the worker's housekeeping, once an hour, and in nobody's way."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from monitor.analysis.snapshots import DAYS_KEPT, HOUR_MS, HOURS_KEPT, snapshot
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.pipeline.snapshot_writer import Historian
from monitor.pipeline.watermark import Progress
from monitor.state import History, Position, Reader, Shards, State
from monitor.state.generations import drop, next_store
from tests.integration.analysis.test_stored_verdicts import DECIDED, _traffic
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.oracle import DAY
from tests.support.streams import START

DOCUMENT = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
DAY_9 = START // HOUR_MS + 9 * 24


def _at(bench: Bench, hour: int) -> Progress:
    """Return the progress of a worker whose watermark has just reached that hour."""
    progress = Progress(bench.opened.horizons_ms)
    progress.load(State(0, 0, {}, {"t:0": Position(1, hour * HOUR_MS + 1)}))
    progress.see_ends({"t:0": 1})
    return progress


def _note(bench: Bench, *hours: int) -> None:
    """Have a worker come by at these hours, with time enough between them."""
    historian = Historian(bench.reader)
    for hour in hours:
        historian.note(_at(bench, hour))
        historian._not_before = 0.0


@pytest.fixture(params=[1, 3])
def bench(request: pytest.FixtureRequest, redis_server: RedisServer) -> Bench:
    """Return a store with two weeks of traffic, on one shard or on three."""
    made = Bench(redis_server, DECIDED, request.param)
    made.feed([_traffic()])
    return made


def test_a_snapshot_is_what_was_read_at_that_hour(bench: Bench) -> None:
    """A function of what the store says as of the hour, and of nothing else."""
    _note(bench, DAY_9)
    expected = snapshot(bench.reader.summary(DAY_9 * HOUR_MS).experiments["ranker"])
    assert History(bench.shards).read(bench.number) == {DAY_9: expected}
    assert expected is not None
    assert expected.variants["control"].decayed["24h"].standard_error is not None
    assert bench.reader.history("ranker") == {DAY_9: expected}


def test_whoever_comes_first_takes_it(bench: Bench) -> None:
    """The second worker finds it there; the first one's stays, though more is known by now."""
    _note(bench, DAY_9)
    before = bench.reader.history("ranker")
    held = replace(DECIDED, primary="cg@5")
    other = Reader(bench.shards, replace(bench.settings, experiments=(held,)), bench.opened.numbers, lambda: 0)
    again = snapshot(other.summary().experiments["ranker"])
    assert again is not None
    History(bench.shards).add(bench.number, DAY_9, again)
    assert bench.reader.history("ranker") == before


def test_hours_without_anything_new_have_none(bench: Bench) -> None:
    """What is over does not push its own history out."""
    _note(bench, *range(DAY_9 + 24 * 100, DAY_9 + 24 * 100 + 5))
    assert list(bench.reader.history("ranker")) == [DAY_9 + 24 * 100]


def test_before_the_first_event_there_is_nothing_to_tell(redis_server: RedisServer) -> None:
    """An experiment that is only declared has no history."""
    empty = Bench(redis_server, DECIDED)
    _note(empty, DAY_9)
    assert empty.reader.history("ranker") == {}


def test_history_is_no_part_of_the_aggregates(bench: Bench) -> None:
    """Stores are compared without it, and it stands on the first shard alone."""
    before = dump(bench.shards)
    _note(bench, DAY_9, DAY_9 + 1)
    assert dump(bench.shards) == before
    names = {bytes(name) for name in bench.store.client.scan_iter(b"abm:*:p:*")}
    assert names == {bench.store.keys.history(bench.number)}


def test_there_are_never_more_than_so_many(bench: Bench) -> None:
    """Older hours are thinned to days as new ones come."""
    history = History(bench.shards)
    _note(bench, DAY_9)
    taken = history.read(bench.number)[DAY_9]
    for hour in range(DAY_9 - 3_000, DAY_9):
        history.add(bench.number, hour, msgspec.structs.replace(taken, crossovers=hour))
    _note(bench, DAY_9 + 1)
    hours = history.hours(bench.number)
    assert len(hours) == HOURS_KEPT + len({hour // 24 for hour in range(DAY_9 - 3_000, DAY_9 + 2 - HOURS_KEPT)})
    assert len(hours) <= HOURS_KEPT + DAYS_KEPT


def test_a_generation_takes_its_history_along(bench: Bench) -> None:
    """With everything else of it; and nobody who is late brings it back."""
    _note(bench, DAY_9)
    taken = bench.reader.history("ranker")[DAY_9]
    building = next_store(bench.shards)
    History(building).add(bench.number, DAY_9, taken)
    assert History(building).read(bench.number) == {}, "a generation without a schema is not there"
    drop(bench.shards, 0)
    History(bench.shards).add(bench.number, DAY_9, taken)
    assert list(bench.store.client.scan_iter(b"abm:{*}:0:*")) == []


def test_snapshots_of_another_version_are_not_read(bench: Bench) -> None:
    """They are left alone, and the others are found."""
    _note(bench, DAY_9)
    bench.store.client.hset(bench.store.keys.history(bench.number), str(DAY_9 - 1), b"\x93\x01\x02\x03")
    assert list(bench.reader.history("ranker")) == [DAY_9]


def test_what_is_no_history_is_named_and_in_nobodys_way(bench: Bench) -> None:
    """A worker goes on; who asks for it is told in a line."""
    bench.store.client.set(bench.store.keys.history(bench.number), b"something else")
    _note(bench, DAY_9)
    with pytest.raises(StoreOwned, match="holds something else under the prefix abm:"):
        bench.reader.history("ranker")


class Away(Reader):
    """A reader whose store is away."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.shards, bench.settings, bench.opened.numbers, lambda: 0)
        self.asked = 0

    def summary(self, as_of_ms: int | None = None) -> Any:
        del as_of_ms
        self.asked += 1
        raise StoreUnavailable("the store is away")


def test_an_outage_costs_a_snapshot_and_nothing_else(bench: Bench) -> None:
    """The worker is not held up, and tries the next hour."""
    reader = Away(bench)
    historian = Historian(reader)
    for hour in (DAY_9, DAY_9, DAY_9 + 1):
        historian.note(_at(bench, hour))
        historian._not_before = 0.0
    assert reader.asked == 2


def test_a_backlog_is_not_looked_at_hour_by_hour(bench: Bench) -> None:
    """A snapshot that takes a second is followed by a hundred without one."""
    clock = [0.0]

    class Slow(Away):
        """Takes a second."""

        def summary(self, as_of_ms: int | None = None) -> Any:
            clock[0] += 1.0
            return super().summary(as_of_ms)

    reader = Slow(bench)
    historian = Historian(reader, lambda: clock[0])
    for step in range(300):
        clock[0] = max(clock[0], float(step))
        historian.note(_at(bench, DAY_9 + step))
    assert reader.asked == 3


def test_several_workers_take_no_more_of_a_backlog_than_one(bench: Bench) -> None:
    """Whoever sees that others have just taken one waits; an hour that is nobody's is taken all the same."""
    clock = [0.0]

    class Slow(Reader):
        """Takes 15 ms."""

        def summary(self, as_of_ms: int | None = None) -> Any:
            clock[0] += 0.015
            return super().summary(as_of_ms)

    reader = Slow(bench.shards, bench.settings, bench.opened.numbers, lambda: 0)
    historians = [Historian(reader, lambda: clock[0]) for _ in range(4)]
    for historian in historians:
        historian.note(_at(bench, 0))
    for step in range(300):
        clock[0] = max(clock[0], step / 10)
        for historian in historians:
            historian.note(_at(bench, DAY_9 + step))
    assert 18 <= len(bench.reader.history("ranker")) <= 20
    for _ in range(2):
        clock[0] += 20
        historians[0].note(_at(bench, DAY_9 + 400))
    assert DAY_9 + 400 in bench.reader.history("ranker")


def test_the_watermark_says_which_hour_it_is(bench: Bench) -> None:
    """A partition that is far ahead does not make it later: others have that hour still to come."""
    progress = _at(bench, DAY_9)
    progress.load(State(0, 0, {}, {"t:0": Position(1, DAY_9 * HOUR_MS + 1), "t:1": Position(1, DAY_9 * HOUR_MS + DAY)}))
    progress.see_ends({"t:0": 5, "t:1": 5})
    Historian(bench.reader).note(progress)
    assert list(bench.reader.history("ranker")) == [DAY_9]


def test_the_documented_rights_are_enough(bench: Bench, redis_server: RedisServer) -> None:
    """The service writes and thins it, a reader reads it and cannot change it."""
    admin = redis_server.client()
    try:
        for line in re.findall(r"^(ACL SETUSER .*)$", DOCUMENT, re.MULTILINE):
            admin.execute_command(*line.replace("PASSWORD", "a-secret").split())
        stores = {
            user: Shards(replace(bench.settings.store, username=user, password="a-secret"), count=len(bench.shards))
            for user in ("ab-monitor", "ab-monitor-reader")
        }
        service = Reader(stores["ab-monitor"], bench.settings, bench.opened.numbers, lambda: 0)
        admin.script_flush()
        historian = Historian(service)
        for hour in (DAY_9, DAY_9 + 1):
            historian.note(_at(bench, hour))
            historian._not_before = 0.0
        History(service.store).drop(bench.number, [DAY_9])
        reader = Reader(stores["ab-monitor-reader"], bench.settings, bench.opened.numbers, lambda: 0)
        assert list(reader.history("ranker")) == [DAY_9 + 1]
        assert reader.students("ranker").cohorts
        with pytest.raises(UsageError, match="refuses this user"):
            History(reader.store).drop(bench.number, [DAY_9 + 1])
    finally:
        admin.acl_deluser("ab-monitor", "ab-monitor-reader")
