"""Several shards hold together what one shard would, whatever happens between two commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Event

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from monitor.config import ExperimentSettings
from monitor.errors import StoreOwned, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.pipeline.commit_pipeline import PendingCommit, ShardedWriter
from monitor.state import Advance, Commit, Position, Shards, Status, open_store
from monitor.state.keys import shard_tag
from tests.integration.pipeline.test_exactness import _SLOW, Bench, homes_of
from tests.integration.state.test_redis_store import _rating, _response
from tests.servers.redis import RedisServer
from tests.support.dump import Dump, dump
from tests.support.streams import EXPERIMENT, RICH, START, arrivals, streams

Events = Sequence[Response | Feedback]
_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=9)
_FAULTS = st.sampled_from(["before", "after", "crash before", "crash after"])


class Crash(Exception):
    """The worker is gone."""


class Reader:
    """A worker on one partition of each shard, whose commits fail where `fail` says so."""

    def __init__(self, bench: Bench, events: Events) -> None:
        self.bench = bench
        homes = homes_of(events, len(bench.shards))
        self.events = {
            f"t:{shard}": [event for event in events if homes[event.response_id] == shard]
            for shard in range(len(bench.shards))
        }
        self.commits = 0
        self.fail: Callable[[int], str] = lambda _commit: ""
        self.after_batch: Callable[[int], None] = lambda _number: None
        self.writer = self.new_writer()

    def new_writer(self) -> ShardedWriter:
        """Return a writer whose commits fail before or after they reach the store."""
        writer = self.bench.writer()
        for shard in writer._shards:
            commit = shard.commit

            def failing(changes: Commit, commit: Callable[[Commit], Status] = commit) -> Status:
                self.commits += 1
                fault = self.fail(self.commits)
                if fault in {"before", "crash before"}:
                    raise Crash if fault.startswith("crash") else StoreUnavailable("the request was lost")
                status = commit(changes)
                if fault:
                    raise Crash if fault.startswith("crash") else StoreUnavailable("the reply was lost")
                return status

            shard.commit = failing  # type: ignore[method-assign, assignment]
        return writer

    def read(self, sizes: Sequence[int]) -> None:
        """Apply everything, in batches of so many records of each partition; start anew after a crash."""
        turn = 0
        while True:
            try:
                at = self.place()
                while any(at[name] < len(events) for name, events in self.events.items()):
                    at = self._step(at, sizes[turn % len(sizes)])
                    turn += 1
                    self.after_batch(turn)
            except Crash:
                self.writer.close()
                self.writer = self.new_writer()
            else:
                return

    def place(self) -> dict[str, int]:
        """Return the stored offset of every partition, after giving a first position to those without."""
        while True:
            known = self.writer.state().positions
            missing = [name for name in self.events if name not in known]
            if not missing:
                return {name: position.next_offset for name, position in known.items()}
            with suppress(StoreUnavailable):
                self.writer.advance([Advance(name, None, Position(0)) for name in missing], {})

    def submit(self, at: dict[str, int], size: int) -> list[PendingCommit]:
        """Begin with the next records of every partition."""
        pending = []
        for name, events in self.events.items():
            own = events[at[name] : at[name] + size]
            if own:
                step = Advance(name, at[name], Position(at[name] + len(own)))
                pending.append(self.bench.submit(self.writer, own, step))
        return pending

    def _step(self, at: dict[str, int], size: int) -> dict[str, int]:
        errors = [pending.status.exception() for pending in self.submit(at, size)]
        if any(isinstance(error, Crash) for error in errors):
            raise Crash
        return {name: position.next_offset for name, position in self.writer.state().positions.items()}


def _calm(server: RedisServer, events: Events, experiment: ExperimentSettings) -> Dump:
    bench = Bench(server, experiment)
    bench.feed([events])
    return dump(bench.shards, skips=True)


@settings(max_examples=60, suppress_health_check=_SLOW)
@given(data=st.data())
def test_lost_requests_lost_replies_and_crashes_change_nothing(data: st.DataObject, redis_server: RedisServer) -> None:
    """Each shard's commit is complete in itself: a batch that reached only some shards goes on with the others."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH]))
    expected = _calm(redis_server, events, experiment)
    faults = data.draw(st.dictionaries(st.integers(1, 30), _FAULTS))
    reader = Reader(Bench(redis_server, experiment, data.draw(st.integers(2, 4))), events)
    reader.fail = lambda commit: faults.get(commit, "")
    reader.read(data.draw(_SIZES))
    assert dump(reader.bench.shards, skips=True) == expected


def _copy(store: Shards, shard: int) -> dict[bytes, bytes]:
    pattern = b"abm:{%b}:*" % shard_tag(shard, len(store))
    return {name: store.client.dump(name) for name in store.client.scan_iter(pattern)}


def _go_back(store: Shards, shard: int, copy: dict[bytes, bytes]) -> None:
    for name in _copy(store, shard):
        store.client.delete(name)
    for name, content in copy.items():
        store.client.restore(name, 0, content)


@settings(max_examples=40, suppress_health_check=_SLOW)
@given(data=st.data())
def test_a_shard_that_comes_back_without_its_last_commits_is_caught_up(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """Its own positions say what it has lost; the other shards are not touched."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    expected = _calm(redis_server, events, EXPERIMENT)
    shards, sizes = data.draw(st.integers(2, 3)), data.draw(_SIZES)
    back = data.draw(st.dictionaries(st.integers(0, shards - 1), st.integers(1, 8), min_size=1))
    reader = Reader(Bench(redis_server, EXPERIMENT, shards), events)
    copies: dict[int, dict[bytes, bytes]] = {}

    def copy(number: int) -> None:
        copies.update({shard: _copy(reader.bench.shards, shard) for shard, when in back.items() if when == number})

    reader.after_batch = copy
    reader.read(sizes)
    assert dump(reader.bench.shards, skips=True) == expected
    for shard, stored in copies.items():
        _go_back(reader.bench.shards, shard, stored)
    reader.after_batch = lambda _number: None
    reader.read(sizes[::-1])
    assert dump(reader.bench.shards, skips=True) == expected


def test_an_emptied_shard_is_refused_at_the_start(redis_server: RedisServer) -> None:
    """Whichever it is."""
    for shard in range(3):
        bench = Bench(redis_server, shards=3)
        Reader(bench, [_response(number, START) for number in range(9)]).read([2])
        _go_back(bench.shards, shard, {})
        with pytest.raises(StoreOwned, match=f"shard {shard} of 3 was emptied"):
            open_store(bench.shards, bench.settings)


def test_a_partition_is_stored_on_the_shard_of_its_number_only(redis_server: RedisServer) -> None:
    """Position, rows and sums."""
    bench = Bench(redis_server, shards=3)
    writer = bench.writer()
    writer.state()
    events: Events = [_response(1, START), _rating(1, START + 1)]
    assert bench.submit(writer, events, Advance("t:5", None, Position(2))).status.result() == "applied"
    keys = {name.split(b":")[1] for name in bench.store.client.scan_iter(b"abm:*:r*")}
    assert keys == {b"{%b}" % shard_tag(2, 3)}
    assert [bool(shard.positions()) for shard in bench.shards] == [False, False, True]
    assert bench.reader.summary().experiments["ranker"].variants["control"].responses == 1


def test_shards_commit_at_the_same_time(redis_server: RedisServer) -> None:
    """A shard that does not answer does not keep the others from their commits."""
    bench = Bench(redis_server, shards=2)
    responses: Events = [_response(number, START) for number in range(20)]
    reader = Reader(bench, responses)
    at = reader.place()
    answers, commit = Event(), reader.writer._shards[0].commit

    def slow(changes: Commit) -> Status:
        answers.wait()
        return commit(changes)

    reader.writer._shards[0].commit = slow  # type: ignore[method-assign, assignment]
    first, second = reader.submit(at, 20)
    assert second.status.result(timeout=30) == "applied"
    assert not first.status.done()
    answers.set()
    assert first.status.result(timeout=30) == "applied"


def test_a_loss_is_counted_on_the_shard_of_its_partition(redis_server: RedisServer) -> None:
    """A new log is entered there, and nowhere else."""
    bench = Bench(redis_server, shards=2)
    reader = Reader(bench, [_response(number, START) for number in range(20)])
    reader.read([5])
    offset = reader.place()["t:1"]
    step = Advance("t:1", offset, Position(offset).entered("anew", 3), "")
    assert reader.writer.advance([step], {"t:1": 7})
    assert reader.writer.state().positions["t:1"] == Position(3, origin="anew#1@3")
    lost = [bench.store.client.hgetall(shard.keys.lost) for shard in bench.shards]
    assert lost == [{}, {b"t:1": b"7"}]
    assert not reader.writer.advance([step], {"t:1": 7})


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6, 12, 64])
def test_tags_give_masters_with_equal_ranges_equal_shares(shards: int) -> None:
    """As many masters as shards hold one shard each; the first shard's tag is 0 however many there are."""
    tags = [shard_tag(shard, shards) for shard in range(shards)]
    assert tags[0] == b"0"
    assert len(set(tags)) == shards
    slots = sorted(key_slot(tag) for tag in tags)
    distances = [(after - before) % SLOTS for before, after in zip(slots, [*slots[1:], slots[0]], strict=True)]
    assert shards == 1 or min(distances) > 0.8 * SLOTS / shards
