"""Several shards hold together what one would, whatever happens between two commits."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import REDIS_CLUSTER_HASH_SLOTS as SLOTS
from redis.crc import key_slot

from monitor.config import ExperimentSettings
from monitor.errors import StoreOwned, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.ingest.sharded import ShardedWriter
from monitor.ingest.source import Slice
from monitor.ingest.writer import Outcome, Writer
from monitor.store import Advance, Commit, Position, Sent, Shards, State, Status, drop_students, open_store
from monitor.store.keys import shard_tag
from tests.integration.test_exactness import _SLOW, MANY, Bench
from tests.integration.test_store import _rating, _response
from tests.servers.redis import RedisServer
from tests.support.dump import Dump, dump
from tests.support.streams import EXPERIMENT, HOUR, RICH, START, arrivals, changed, records_of, streams

Events = Sequence[Response | Feedback]
_NAMES = ["t:0", "t:1"]
_SIZES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=9)
_Reply = tuple[Status, list[Sent]]
_Ask = Callable[[Commit], Callable[[], Callable[[], _Reply]]]


class Crash(Exception):
    """The worker is gone."""


class Reader:
    """A worker on two partitions whose store fails when it is told to."""

    def __init__(self, bench: Bench, events: Events) -> None:
        self.bench = bench
        self.events = events
        self.calls = self.awaited = 0
        self.fail: Callable[[int], str] = lambda _call: ""
        self.writer = self._writer()

    def _writer(self) -> ShardedWriter:
        writer = self.bench.writer()
        assert isinstance(writer, ShardedWriter)
        for shard in writer._shards:
            ask = shard.store.ask

            def failing(changes: Commit, ask: _Ask = ask) -> Callable[[], Callable[[], _Reply]]:
                send = ask(changes)

                def sent() -> Callable[[], _Reply]:
                    self.calls += 1
                    how = self.fail(self.calls)
                    if how in {"before", "crash before"}:
                        raise Crash if how.startswith("crash") else StoreUnavailable("the request was lost")
                    reply = send()

                    def awaited() -> _Reply:
                        self.awaited += 1
                        said = reply()
                        if how:
                            raise Crash if how.startswith("crash") else StoreUnavailable("the reply was lost")
                        return said

                    return awaited

                return sent

            shard.store.ask = failing  # type: ignore[method-assign, assignment]
        return writer

    def read(self, sizes: Sequence[tuple[int, int]]) -> None:
        """Apply everything, in batches of so many records of each partition, as the worker does."""
        turn = 0
        while True:
            try:
                at = self._place()
                while slices := self._poll(at, sizes[turn % len(sizes)]) or self._poll(at, (1, 1)):
                    turn += 1
                    if all(self._process(part) for part in self.writer.parts(slices)):
                        at |= {each.partition: each.next_offset for each in slices}
                    else:
                        at = self._place()
                self._state()
            except Crash:
                self.writer = self._writer()
            else:
                return

    def _poll(self, at: dict[str, int], sizes: tuple[int, int]) -> list[Slice]:
        """Return the next records: every other event is in the other partition."""
        slices = []
        for place, (name, size) in enumerate(zip(_NAMES, sizes, strict=True)):
            numbers = range(len(self.events))[place :: len(_NAMES)]
            offsets = range(at[name], min(at[name] + size, len(numbers)))
            if offsets:
                payloads = [b"%d" % numbers[offset] for offset in offsets]
                slices.append(Slice(name, "event", at[name], records_of(payloads, offsets[0]), offsets[-1] + 1))
        return slices

    def _state(self) -> State:
        while True:
            with suppress(StoreUnavailable):
                return self.writer.state(_NAMES)

    def _place(self) -> dict[str, int]:
        while True:
            known = self._state().positions
            if known.keys() == set(_NAMES):
                return {name: position.next_offset for name, position in known.items()}
            with suppress(StoreUnavailable):
                missing = [name for name in _NAMES if name not in known]
                self.writer.advance([Advance(name, None, Position(0)) for name in missing], {})

    def _process(self, part: Sequence[Slice]) -> bool:
        advances = [Advance(each.partition, each.begin, Position(each.next_offset)) for each in part]
        batch = self.bench.taken(*[self.events[int(record.value or b"")] for each in part for record in each.records])
        while True:
            with suppress(StoreUnavailable):
                if self.writer.begin(batch, self.bench.late, advances)()[0] == "applied":
                    return True
            self._state()
            standing = self.writer.standing(advances)
            if standing != "to apply":
                return standing == "applied"


def _calm(server: RedisServer, events: Events, experiment: ExperimentSettings) -> Dump:
    bench = Bench(server, experiment)
    bench.feed([events])
    return dump(bench.shards, skips=True)


@settings(max_examples=80, suppress_health_check=_SLOW)
@given(data=st.data())
def test_lost_requests_lost_replies_and_crashes_between_any_two_commits(
    data: st.DataObject, redis_server: RedisServer
) -> None:
    """A batch that reached only some shards is finished, also when it is cut differently the next time."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH]))
    expected = _calm(redis_server, events, experiment)
    faults = data.draw(
        st.dictionaries(st.integers(1, 40), st.sampled_from(["before", "after", "crash before", "crash after"]))
    )
    reader = Reader(Bench(redis_server, experiment, data.draw(st.integers(2, 4)), many=data.draw(MANY)), events)
    reader.fail = lambda call: faults.get(call, "")
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


@settings(max_examples=80, suppress_health_check=_SLOW)
@given(data=st.data())
def test_shards_that_come_back_without_their_last_commits(data: st.DataObject, redis_server: RedisServer) -> None:
    """What they lost is applied again, and what others had from them is taken back first."""
    events = [event for batch in data.draw(arrivals(data.draw(streams()))) for event in batch]
    experiment = data.draw(st.sampled_from([EXPERIMENT, RICH]))
    expected = _calm(redis_server, events, experiment)
    sizes = data.draw(_SIZES)
    shards = data.draw(st.integers(2, 3))
    back = data.draw(st.dictionaries(st.integers(0, shards - 1), st.integers(1, 30), min_size=1))
    faults = data.draw(st.dictionaries(st.integers(1, 20), st.sampled_from(["before", "after", "crash after"])))
    reader = Reader(Bench(redis_server, experiment, shards, many=data.draw(MANY)), events)
    copies: dict[int, dict[bytes, bytes]] = {}

    def look(call: int) -> str:
        for shard, when in back.items():
            if call == when:
                copies[shard] = _copy(reader.bench.shards, shard)
        return ""

    reader.fail = look
    reader.read(sizes)
    assert dump(reader.bench.shards, skips=True) == expected
    for shard, copy in copies.items():
        _go_back(reader.bench.shards, shard, copy)
    reader.writer = reader._writer()
    reader.calls, reader.fail = 0, lambda call: faults.get(call, "")
    reader.read(sizes[::-1])
    assert dump(reader.bench.shards, skips=True) == expected


def test_a_shard_that_has_lost_more_than_is_kept_is_named(redis_server: RedisServer) -> None:
    """Numbers that nobody can make right are not shown as right."""
    bench = Bench(redis_server, shards=2)
    reader = Reader(bench, [_response(number, START) for number in range(40)])
    reader.read([(5, 5)])
    for name in list(bench.store.client.scan_iter(b"abm:*:j:*")):
        bench.store.client.delete(name)
    _go_back(bench.shards, 0, {})
    for shard in bench.shards:
        bench.store.client.hset(shard.keys.meta, "schema", 2)
    with pytest.raises(StoreOwned, match=r"shard 0 of 2 has lost more.*rebuild"):
        bench.writer().state(_NAMES)


def test_an_emptied_shard_is_refused_at_the_start(redis_server: RedisServer) -> None:
    """Whichever it is."""
    for shard in range(3):
        bench = Bench(redis_server, shards=3)
        reader = Reader(bench, [_response(number, START) for number in range(9)])
        reader.read([(2, 1)])
        _go_back(bench.shards, shard, {})
        with pytest.raises(StoreOwned, match=f"shard {shard} of 3 was emptied"):
            open_store(bench.shards, bench.settings)


def test_two_workers_finish_what_each_other_has_begun(redis_server: RedisServer) -> None:
    """A worker that takes a partition over delivers what the one before had sent."""
    bench = Bench(redis_server, shards=3)
    events: list[Response | Feedback] = [_response(number, START) for number in range(30)]
    events += [_rating(number, START + 1) for number in range(30)]
    first = Reader(bench, events)
    first.fail = lambda call: "before" if call > 6 else ""
    slices = first._poll(first._place(), (15, 15))
    advances = [Advance(each.partition, each.begin, Position(each.next_offset)) for each in slices]
    with pytest.raises(StoreUnavailable):
        first.writer.begin(bench.taken(*events[:30]), bench.late, advances)()
    second: Writer = bench.writer()
    assert {position.next_offset for position in second.state(_NAMES).positions.values()} == {15}
    first.fail = lambda _call: ""
    first.read([(30, 30)])
    assert dump(bench.shards, skips=True) == _calm(redis_server, events, EXPERIMENT)


def _begun(reader: Reader, size: int = 15) -> Outcome:
    """Have the reader's writer begin with so many records of each partition."""
    slices = reader._poll(reader._place(), (size, size))
    advances = [Advance(each.partition, each.begin, Position(each.next_offset)) for each in slices]
    events = [reader.events[int(record.value or b"")] for each in slices for record in each.records]
    return reader.writer.begin(reader.bench.taken(*events), reader.bench.late, advances)


def test_shards_are_at_work_at_the_same_time(redis_server: RedisServer) -> None:
    """None waits for another but for what that sends it."""
    reader = Reader(Bench(redis_server, shards=3), _events())
    said: list[str] = []
    assert isinstance(reader.writer, ShardedWriter)
    reader._place()
    for number, shard in enumerate(reader.writer._shards):
        ask = shard.store.ask

        def recorded(changes: Commit, ask: _Ask = ask, number: int = number) -> Callable[[], Callable[[], _Reply]]:
            said.append(f"asked {number}")
            send = ask(changes)

            def sent() -> Callable[[], _Reply]:
                said.append(f"sent {number}")
                reply = send()
                return lambda: (said.append(f"known {number}"), reply())[1]  # type: ignore[func-returns-value]

            return sent

        shard.store.ask = recorded  # type: ignore[method-assign, assignment]
    outcome = _begun(reader)
    asked, sent, known = ([f"{what} {number}" for number in range(3)] for what in ("asked", "sent", "known"))
    assert said == asked + sent
    assert outcome()[0] == "applied"
    assert said == (asked + sent + known) * 2


@pytest.mark.parametrize("call", range(1, 7))
@pytest.mark.parametrize("how", ["before", "after"])
def test_nothing_is_waited_for_when_a_shard_cannot_be_reached(redis_server: RedisServer, how: str, call: int) -> None:
    """Each would take a timeout; and a connection with an unread reply would answer something else with it."""
    reader = Reader(Bench(redis_server, shards=3), _events())
    _begun(reader, 1)()
    assert isinstance(reader.writer, ShardedWriter)
    pool = reader.writer._shards[0].store.client.connection_pool
    reader._place()
    begun, awaited = reader.calls, reader.awaited
    reader.fail = lambda number: how if number == begun + call else ""
    with pytest.raises(StoreUnavailable):
        _begun(reader)()
    assert not pool._in_use_connections
    assert reader.awaited - awaited == (call if how == "after" else call - 1 - (call - 1) % 3)
    reader.fail = lambda _number: ""
    reader.read([(5, 5)])
    assert dump(reader.bench.shards, skips=True) == _calm(redis_server, _events(), EXPERIMENT)


def test_what_others_settle_meanwhile_is_not_settled_twice(redis_server: RedisServer) -> None:
    """Nor kept of what was worked out for it, when the next lane is about the same student."""
    bench = Bench(redis_server, shards=3)
    events: list[Response | Feedback] = [changed(_response(number, START), user_id="one") for number in range(12)]
    reader = Reader(bench, events)
    reader._place()
    reader.calls, reader.fail = 0, lambda call: "before" if call > 3 else ""
    with pytest.raises(StoreUnavailable):
        _begun(reader)()
    first, second = bench.writer(), bench.writer()
    assert isinstance(first, ShardedWriter)
    assert isinstance(second, ShardedWriter)
    second._forget()
    states = [shard.store.state() for shard in second._shards]
    (lane, ends), *others = second._lanes.look([state.lanes for state in states]).items()
    assert len({(target, name) for (_, target, name), _ in [(lane, ends), *others]}) == 1
    assert len(others) == 2
    store = first._shards[lane[1]].store
    ask = store.ask

    def overtaken(changes: Commit) -> Callable[[], Callable[[], _Reply]]:
        store.ask = ask  # type: ignore[method-assign]
        del changes
        second._settle(*lane, *ends)
        return lambda: lambda: ("changed", [])

    store.ask = overtaken  # type: ignore[method-assign, assignment]
    first.state(_NAMES)
    assert store.ask is ask
    reader.fail = lambda _number: ""
    reader.read([(5, 5)])
    assert dump(bench.shards, skips=True) == _calm(redis_server, events, EXPERIMENT)


def test_what_was_applied_is_told_although_another_shard_refused(redis_server: RedisServer) -> None:
    """Every event has one outcome, however often its batch is begun."""
    bench = Bench(redis_server, shards=3)
    reader = Reader(bench, _events(30))
    _begun(reader, 5)()
    other = bench.writer()
    other.state(["t:0"])
    step = Advance("t:2", None, Position(1))
    assert other.begin(bench.taken(_rating(0, START + 2)), bench.late, [step])()[0] == "applied"
    slices = reader._poll(dict.fromkeys(_NAMES, 5), (25, 25))
    advances = [Advance(each.partition, each.begin, Position(each.next_offset)) for each in slices]
    events = bench.taken(*[reader.events[int(record.value or b"")] for each in slices for record in each.records])
    status, outcomes = reader.writer.begin(events, bench.late, advances)()
    assert status != "applied"
    assert not outcomes
    while status != "applied":
        reader.writer.state(_NAMES)
        status, outcomes = reader.writer.begin(events, bench.late, advances)()
    assert sum(outcomes.values()) == 50


def _events(count: int = 20) -> list[Response | Feedback]:
    return [
        *(_response(number, START) for number in range(count)),
        *(_rating(number, START + 1) for number in range(count)),
    ]


def test_a_log_that_was_entered_anew_on_some_shards_is_entered_on_all(redis_server: RedisServer) -> None:
    """What is read again changes nothing, and no shard takes the new log's offsets for those of the old one."""
    for lost_by in (None, 0, 1):
        bench = Bench(redis_server, shards=2)
        reader = Reader(bench, _events())
        reader.read([(5, 5)])
        expected = dump(bench.shards)
        before = [_copy(bench.shards, shard) for shard in range(2)]
        step = Advance(_NAMES[0], 20, Position(20).entered("anew", 3), "")
        if lost_by is None:
            reader.calls, reader.fail = 0, lambda call: "before" if call == 2 else ""
            with pytest.raises(StoreUnavailable):
                reader.writer.advance([step], {_NAMES[0]: 7})
        else:
            assert reader.writer.advance([step], {_NAMES[0]: 7})
            _go_back(bench.shards, lost_by, before[lost_by])
        writer = bench.writer()
        held = writer.state(_NAMES)
        assert held.positions[_NAMES[0]] == Position(3, origin="anew#1@3")
        assert held.furthest == {_NAMES[0]: 3, _NAMES[1]: 20}
        late = Advance(_NAMES[0], 3, Position(4, origin="another"))
        assert writer.begin(bench.taken(), bench.late, [late])()[0] == "moved"
        assert writer.standing([late]) == "moved"
        lost = redis_server.client().hgetall(bench.store.keys.lost)
        assert lost == ({} if lost_by == 0 else {_NAMES[0].encode(): b"7"})
        assert dump(bench.shards) == expected


def test_the_furthest_shard_is_told(redis_server: RedisServer) -> None:
    """A log that ends before it has lost what only some shards have applied."""
    bench = Bench(redis_server, shards=2)
    reader = Reader(bench, _events())
    reader._place()
    reader.calls, reader.fail = 0, lambda call: "before" if call == 2 else ""
    with pytest.raises(StoreUnavailable):
        reader.writer.advance([Advance(_NAMES[0], 0, Position(9))], {})
    held = bench.writer().state(_NAMES)
    assert (held.positions[_NAMES[0]].next_offset, held.furthest[_NAMES[0]]) == (0, 9)


def _sent_only(bench: Bench) -> Reader:
    """Apply all responses on one shard, and leave what they mean for students on the other on the way."""
    reader = Reader(bench, _events())
    slices = reader._poll(reader._place(), (10, 10))
    advances = [Advance(each.partition, each.begin, Position(each.next_offset)) for each in slices]
    reader.calls, reader.fail = 0, lambda call: "before" if call > 2 else ""
    with pytest.raises(StoreUnavailable):
        reader.writer.begin(bench.taken(*reader.events[:20]), bench.late, advances)()
    reader.fail = lambda _call: ""
    return reader


def test_what_nobody_owns_any_more_is_finished_by_anybody(redis_server: RedisServer) -> None:
    """A file's lines have partitions of their own, which no later worker has."""
    bench = Bench(redis_server, shards=2)
    _sent_only(bench)
    assert bench.reader.summary().experiments["ranker"].variants["control"].students < 20
    bench.writer().state(["another:0"])
    assert bench.reader.summary().experiments["ranker"].variants["control"].students == 20


def test_what_was_on_the_way_when_an_experiment_ended_arrives(redis_server: RedisServer) -> None:
    """Responses that were counted count for their students, too, as long as those are there."""
    bench = Bench(redis_server, replace(EXPERIMENT, ends_at_ms=START + HOUR), shards=2)
    reader = _sent_only(bench)
    for shard in bench.shards:
        shard.sweep(str(bench.number), [START // HOUR], START + HOUR)
    reader._state()
    assert bench.reader.summary().experiments["ranker"].variants["control"].students == 20


def test_work_of_an_experiment_that_is_not_configured_is_left_to_those_that_know_it(redis_server: RedisServer) -> None:
    """Unless it is this worker's own."""
    bench = Bench(redis_server, shards=2)
    _sent_only(bench)
    bench.experiment.number = 7
    other = bench.writer()
    other.state(["another:0"])
    time.sleep(1.1)
    assert not other.look()[1]
    with pytest.raises(StoreOwned, match="number 1, which is not configured"):
        other.state(_NAMES)


def test_a_shard_that_loses_its_first_position_begins_where_the_others_began(redis_server: RedisServer) -> None:
    """Not where they stand: what is between would be missing on it."""
    bench = Bench(redis_server, shards=2)
    writer = bench.writer()
    writer.state(_NAMES)
    name = _NAMES[0]
    assert writer.advance([Advance(name, None, Position.start("T", 60))], {})
    assert writer.advance([Advance(name, 60, Position(100, origin="T#0@60"))], {})
    for names in (bench.shards[1].keys.offsets, bench.shards[1].keys.progress):
        bench.store.client.hdel(names, name)
    assert name not in writer.state(_NAMES).positions
    assert writer.advance([Advance(name, None, Position.start("T", 0))], {})
    assert writer.state(_NAMES).positions[name] == Position(60, origin="T#0@60")


def test_students_of_an_experiment_that_is_over_do_not_come_back(redis_server: RedisServer) -> None:
    """What was on the way to them when their rows went is of no use."""
    bench = Bench(redis_server, replace(EXPERIMENT, ends_at_ms=START + HOUR), shards=2)
    reader = _sent_only(bench)
    for shard in bench.shards:
        shard.sweep(str(bench.number), [START // HOUR], START + HOUR)
        list(drop_students(shard, bench.number))
    reader._state()
    assert not list(bench.store.client.scan_iter(b"abm:*:s*"))


def test_a_server_that_was_started_again_is_noticed_without_any_events(redis_server: RedisServer) -> None:
    """Before the other shards forget what it may have lost."""
    bench = Bench(redis_server, shards=2)
    writer = bench.writer()
    writer.state(_NAMES)
    assert not writer.look()[1]
    assert isinstance(writer, ShardedWriter)
    writer._shards[1].store._run = "another"
    assert writer.look()[1]


@pytest.mark.parametrize("shards", [1, 2, 3, 4, 6, 12, 64])
def test_tags_give_masters_with_equal_ranges_equal_shares(shards: int) -> None:
    """As many masters as shards hold one shard each; the first shard's tag is 0 however many there are."""
    tags = [shard_tag(shard, shards) for shard in range(shards)]
    assert tags[0] == b"0"
    assert len(set(tags)) == shards
    slots = sorted(key_slot(tag) for tag in tags)
    distances = [(after - before) % SLOTS for before, after in zip(slots, [*slots[1:], slots[0]], strict=True)]
    assert shards == 1 or min(distances) > 0.8 * SLOTS / shards
