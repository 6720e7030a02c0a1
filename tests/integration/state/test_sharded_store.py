"""Several shards have the same aggregates as a single shard, after any failure between two commits."""

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
from monitor.errors import CorruptStore, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.pipeline.commit_pipeline import PendingCommit, ShardedWriter
from monitor.state import Commit, CommitStatus, LogEpoch, Position, PositionUpdate, ShardedStore, initialize_store
from monitor.state.keys import shard_tag
from tests.servers.redis import RedisServer
from tests.support.dump import Dump, dump
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench, make_rating, make_response, shards_by_response
from tests.support.streams import EXPERIMENT, RICH, START, arrivals, streams

Events = Sequence[Response | Feedback]
_SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=9)
_FAULTS = st.sampled_from(["before", "after", "crash before", "crash after"])


class Crash(Exception):
    """The worker is gone."""


class Reader:
    """A worker with a partition on each shard, whose commits fail as `fail` decides."""

    def __init__(self, bench: StoreBench, events: Events) -> None:
        self.bench = bench
        homes = shards_by_response(events, len(bench.store))
        self.events = {
            f"t:{shard}": [event for event in events if homes[event.response_id] == shard]
            for shard in range(len(bench.store))
        }
        self.commits = 0
        self.fail: Callable[[int], str] = lambda _commit: ""
        self.after_batch: Callable[[int], None] = lambda _number: None
        self.writer = self.new_writer()

    def new_writer(self) -> ShardedWriter:
        """Return a writer whose commits fail before or after the store executes them."""
        writer = self.bench.connect_writer()
        for shard in writer._shards:
            commit = shard.commit

            def failing(changes: Commit, commit: Callable[[Commit], CommitStatus] = commit) -> CommitStatus:
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
                offsets = self.read_offsets()
                while any(offsets[name] < len(events) for name, events in self.events.items()):
                    offsets = self._step(offsets, sizes[turn % len(sizes)])
                    turn += 1
                    self.after_batch(turn)
            except Crash:
                self.writer.close()
                self.writer = self.new_writer()
            else:
                return

    def read_offsets(self) -> dict[str, int]:
        """Return partition → stored offset; partitions without a position get the position 0 first."""
        while True:
            positions = self.writer.reload_state().positions
            missing = [name for name in self.events if name not in positions]
            if not missing:
                return {name: position.next_offset for name, position in positions.items()}
            with suppress(StoreUnavailable):
                self.writer.update_positions([PositionUpdate(name, None, Position(0)) for name in missing], {})

    def submit(self, offsets: dict[str, int], size: int) -> list[PendingCommit]:
        """Begin with the next records of every partition."""
        pending = []
        for name, events in self.events.items():
            batch = events[offsets[name] : offsets[name] + size]
            if batch:
                step = PositionUpdate(name, offsets[name], Position(offsets[name] + len(batch)))
                pending.append(self.bench.submit(self.writer, batch, step))
        return pending

    def _step(self, offsets: dict[str, int], size: int) -> dict[str, int]:
        crashed = False
        for pending in self.submit(offsets, size):
            try:
                pending.result()
            except StoreUnavailable:
                pass
            except Crash:
                crashed = True
        if crashed:
            raise Crash
        return {name: position.next_offset for name, position in self.writer.reload_state().positions.items()}


def _calm(server: RedisServer, events: Events, experiment: ExperimentSettings) -> Dump:
    bench = StoreBench(server, experiment)
    bench.apply([events])
    return dump(bench.store, skips=True)


@settings(max_examples=60, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data())
def test_lost_requests_lost_replies_and_crashes_do_not_change_the_aggregates(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """Commits of shards are independent: a batch that was committed on some shards continues on the other shards."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH]))
    expected = _calm(redis_server, events, experiment)
    faults = data.draw(st.dictionaries(st.integers(1, 30), _FAULTS))
    reader = Reader(StoreBench(redis_server, experiment, data.draw(st.integers(2, 4))), events)
    reader.fail = lambda commit: faults.get(commit, "")
    reader.read(data.draw(_SIZES))
    assert dump(reader.bench.store, skips=True) == expected


def _copy(store: ShardedStore, shard: int) -> dict[bytes, bytes]:
    pattern = b"abm:{%b}:*" % shard_tag(shard, len(store))
    return {name: store.client.dump(name) for name in store.client.scan_iter(pattern)}


def _go_back(store: ShardedStore, shard: int, copy: dict[bytes, bytes]) -> None:
    for name in _copy(store, shard):
        store.client.delete(name)
    for name, content in copy.items():
        store.client.restore(name, 0, content)


@settings(max_examples=40, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data())
def test_events_are_read_again_for_a_shard_that_lost_its_last_commits(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """The positions of the shard show the lost events; the other shards do not change."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    expected = _calm(redis_server, events, EXPERIMENT)
    shards, sizes = data.draw(st.integers(2, 3)), data.draw(_SIZES)
    back = data.draw(st.dictionaries(st.integers(0, shards - 1), st.integers(1, 8), min_size=1))
    reader = Reader(StoreBench(redis_server, EXPERIMENT, shards), events)
    copies: dict[int, dict[bytes, bytes]] = {}

    def copy(number: int) -> None:
        copies.update({shard: _copy(reader.bench.store, shard) for shard, when in back.items() if when == number})

    reader.after_batch = copy
    reader.read(sizes)
    assert dump(reader.bench.store, skips=True) == expected
    for shard, stored in copies.items():
        _go_back(reader.bench.store, shard, stored)
    reader.after_batch = lambda _number: None
    reader.read(sizes[::-1])
    assert dump(reader.bench.store, skips=True) == expected


def test_a_store_with_an_emptied_shard_is_rejected_at_the_start(redis_server: RedisServer) -> None:
    """For each shard."""
    for shard in range(3):
        bench = StoreBench(redis_server, shard_count=3)
        Reader(bench, [make_response(number, START) for number in range(9)]).read([2])
        _go_back(bench.store, shard, {})
        with pytest.raises(CorruptStore, match=rf"shard {shard} of 3 \(counted from 0\) is empty"):
            initialize_store(bench.store, bench.settings)


def test_a_partition_is_stored_on_the_shard_of_its_number_only(redis_server: RedisServer) -> None:
    """Position, rows and sums."""
    bench = StoreBench(redis_server, shard_count=3)
    writer = bench.connect_writer()
    writer.reload_state()
    events: Events = [make_response(1, START), make_rating(1, START + 1)]
    assert bench.submit(writer, events, PositionUpdate("t:5", None, Position(2))).result() == "applied"
    keys = {name.split(b":")[1] for name in bench.first_shard.client.scan_iter(b"abm:*:r*")}
    assert keys == {b"{%b}" % shard_tag(2, 3)}
    assert [bool(shard.read_positions()) for shard in bench.store] == [False, False, True]
    assert bench.reader.read_summary().experiments["ranker"].variants["control"].responses == 1


def test_shards_commit_at_the_same_time(redis_server: RedisServer) -> None:
    """A shard that does not reply does not delay the commits of other shards."""
    bench = StoreBench(redis_server, shard_count=2)
    responses: Events = [make_response(number, START) for number in range(20)]
    reader = Reader(bench, responses)
    offsets = reader.read_offsets()
    answers, commit = Event(), reader.writer._shards[0].commit

    def slow(changes: Commit) -> CommitStatus:
        answers.wait()
        return commit(changes)

    reader.writer._shards[0].commit = slow  # type: ignore[method-assign, assignment]
    first, second = reader.submit(offsets, 20)
    assert second.result(30) == "applied"
    with pytest.raises(TimeoutError):
        first.result(0)
    answers.set()
    assert first.result(30) == "applied"


def test_lost_events_are_counted_on_the_shard_of_their_partition(redis_server: RedisServer) -> None:
    """Only that shard stores the new log and the count."""
    bench = StoreBench(redis_server, shard_count=2)
    reader = Reader(bench, [make_response(number, START) for number in range(20)])
    reader.read([5])
    offset = reader.read_offsets()["t:1"]
    step = PositionUpdate("t:1", offset, Position(offset).after_reset("anew", 3), LogEpoch())
    assert reader.writer.update_positions([step], {"t:1": 7})
    assert reader.writer.reload_state().positions["t:1"] == Position(3, log=LogEpoch("anew", 1, 3))
    lost = [bench.first_shard.client.hgetall(shard.keys.events_lost) for shard in bench.store]
    assert lost == [{}, {b"t:1": b"7"}]
    assert not reader.writer.update_positions([step], {"t:1": 7})


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6, 12, 64])
def test_hash_tags_give_masters_with_equal_slot_ranges_equal_numbers_of_shards(shards: int) -> None:
    """With as many masters as shards, each master has a shard; the tag of the first shard is always 0."""
    tags = [shard_tag(shard, shards) for shard in range(shards)]
    assert tags[0] == b"0"
    assert len(set(tags)) == shards
    slots = sorted(key_slot(tag) for tag in tags)
    distances = [(after - before) % SLOTS for before, after in zip(slots, [*slots[1:], slots[0]], strict=True)]
    assert shards == 1 or min(distances) > 0.8 * SLOTS / shards
