"""Chunks of time buckets are only appended to; what has become long is summed up, and nothing is lost or doubled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.errors import StoreOwned, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, Layout
from monitor.pipeline.batch_applier import Engine
from monitor.state import Advance, Position, RedisStore, Shards, sum_up
from monitor.state.record_reader import decode_chunk
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.streams import EXPERIMENT, HOUR, START


def _rated(number: int) -> list[Response | Feedback]:
    at_ms = START + number % 60
    shown = Response(f"r-{number}", at_ms, "ranker", "control", ("video-1",), None, f"student-{number}")
    return [shown, Feedback(f"f-{number}", f"r-{number}", at_ms + 1, "rating", None, "video-1", 4.0)]


def _apply(bench: Bench, worker: tuple[Engine, RedisStore], lane: str, number: int, *, long: bool) -> None:
    """Apply a rated response as the next batch of a partition, and have what it touches summed up or left as it is."""
    engine, store = worker
    commit, _ = engine.apply(bench.taken(*_rated(number)), bench.late)
    assert commit.chunk_limits
    commit.chunk_limits = [0 if long else 1 << 30] * len(commit.chunk_limits)
    held = bench.store.positions().get(lane)
    begin = None if held is None else held.next_offset
    commit.advances = [Advance(lane, begin, Position((begin or 0) + 2))]
    assert store.commit(commit) == "applied"
    sum_up(store)


def _meanwhile(store: RedisStore, change: Callable[[], object]) -> None:
    """Have something happen once, between the reading of chunks and what is written of them."""
    read = store.rows

    def rows(keys: Sequence[bytes]) -> list[bytes | None]:
        found = read(keys)
        if keys and keys[0].startswith(store.keys.prefix + b"b:"):
            store.rows = read  # type: ignore[method-assign]
            change()
        return found

    store.rows = rows  # type: ignore[method-assign]


def _chunk(bench: Bench) -> bytes:
    return bench.store.keys.chunk(bench.number, 0, "1h", START // HOUR)


def _expected(server: RedisServer, numbers: Sequence[int]) -> object:
    bench = Bench(server)
    bench.feed([[event for number in numbers for event in _rated(number)]])
    return dump(bench.store)


def test_a_chunk_is_never_much_longer_than_its_integers_twice(store_server: RedisServer) -> None:
    """However many commits write to it, where it is summed up after each; a batch is as much as one bucket at most."""
    expected = _expected(store_server, range(400))
    bench = Bench(store_server)
    whole = 8 * Layout.of(EXPERIMENT).response_width * BUCKETS_PER_CHUNK
    longest = 0
    engine, store = bench.worker()
    for number in range(400):
        step = Advance("t:0", 2 * number or None, Position(2 * number + 2))
        commit, _ = engine.apply(bench.taken(*_rated(number)), bench.late)
        commit.advances = [step]
        assert store.commit(commit) == "applied"
        sum_up(store)
        longest = max(longest, bench.store.client.strlen(_chunk(bench)))
    assert whole < longest < 2.1 * whole
    assert dump(bench.store) == expected


def test_the_documented_user_may(store_server: RedisServer) -> None:
    """With the rights of docs/security.md and no others; two workers, so that rows are looked for and compared."""
    expected = _expected(store_server, range(4))
    bench = Bench(store_server, eager=True)
    admin = store_server.client()
    document = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    for line in re.findall(r"^(ACL SETUSER ab-monitor .*)$", document, re.MULTILINE):
        admin.execute_command(*line.replace("PASSWORD", "for-tests").split())
    try:
        bench.shards = Shards(replace(bench.settings.store, username="ab-monitor", password="for-tests"))
        bench.feed([_rated(number) for number in range(4)], workers=2, turns=(0, 1))
        assert dump(bench.store) == expected
        assert bench.store.client.strlen(_chunk(bench)) <= 8 * Layout.of(EXPERIMENT).response_width + 4
    finally:
        admin.acl_deluser("ab-monitor")


def test_on_a_cluster(redis_server: RedisServer) -> None:
    """Each shard's chunks by a script on the node that has them."""
    expected = _expected(redis_server, range(8))
    with RedisCluster() as cluster:
        bench = Bench(cluster, shards=3, eager=True)
        bench.feed([_rated(number) for number in range(8)])
        assert dump(bench.shards) == expected
        for shard in bench.shards:
            chunk = shard.keys.chunk(bench.number, 0, "1h", START // HOUR)
            assert shard.client.strlen(chunk) <= 8 * Layout.of(EXPERIMENT).response_width + 4


def test_what_others_append_meanwhile_stays(store_server: RedisServer) -> None:
    """Behind the sums."""
    expected = _expected(store_server, range(4))
    bench = Bench(store_server)
    one, other = bench.worker(), bench.worker()
    _apply(bench, one, "t:0", 0, long=False)
    _meanwhile(one[1], lambda: _apply(bench, other, "t:1", 1, long=False))
    _apply(bench, one, "t:0", 2, long=True)
    other[0].forget()
    other[1].state()
    _apply(bench, other, "t:1", 3, long=True)
    assert dump(bench.store) == expected


def test_what_others_have_summed_up_meanwhile_is_left_alone(store_server: RedisServer) -> None:
    """Also if it has become as long as it was by then."""
    expected = _expected(store_server, range(24))
    bench = Bench(store_server)
    one, other = bench.worker(), bench.worker()
    for number in range(4):
        _apply(bench, one, "t:0", number, long=False)

    def overtaken() -> None:
        length = bench.store.client.strlen(_chunk(bench))
        _apply(bench, other, "t:1", 4, long=True)
        for number in range(5, 23):
            _apply(bench, other, "t:1", number, long=False)
        assert bench.store.client.strlen(_chunk(bench)) > length

    _meanwhile(one[1], overtaken)
    _apply(bench, one, "t:0", 23, long=True)
    assert dump(bench.store) == expected


@pytest.mark.parametrize("again", [False, True], ids=["gone", "begun anew"])
def test_what_has_gone_meanwhile_is_left_alone(store_server: RedisServer, *, again: bool) -> None:
    """With its retention, with its generation or with all of the store: the sums of before are nobody's."""
    bench = Bench(store_server)
    one, other = bench.worker(), bench.worker()
    _apply(bench, one, "t:0", 0, long=False)
    left: bytes | None = None

    def gone() -> None:
        nonlocal left
        bench.store.client.delete(_chunk(bench))
        if again:
            for number in range(1, 5):
                _apply(bench, other, "t:1", number, long=False)
        left = bench.store.client.get(_chunk(bench))

    _meanwhile(one[1], gone)
    _apply(bench, one, "t:0", 5, long=True)
    found = bench.store.client.get(_chunk(bench))
    assert decode_chunk(_chunk(bench), found).tolist() == decode_chunk(_chunk(bench), left).tolist()


def test_what_has_gone_before_is_left_alone(store_server: RedisServer) -> None:
    """Nothing is made of a chunk that is not there when it is read."""
    bench = Bench(store_server)
    _, store = bench.worker()
    store.long_chunks[_chunk(bench)] = 0
    sum_up(store)
    assert bench.store.client.get(_chunk(bench)) is None


def test_a_server_that_has_lost_what_was_read_keeps_what_it_has(store_server: RedisServer) -> None:
    """Shorter than what was read, and the same as far as it goes."""
    bench = Bench(store_server)
    worker = bench.worker()
    for number in range(3):
        _apply(bench, worker, "t:0", number, long=False)
    lost = bench.store.client.get(_chunk(bench))
    _meanwhile(worker[1], lambda: bench.store.client.set(_chunk(bench), lost))
    _apply(bench, worker, "t:0", 3, long=True)
    assert bench.store.client.get(_chunk(bench)) == lost


def test_a_store_that_goes_before_that_has_the_commit(store_server: RedisServer) -> None:
    """The batch was applied, and what could not be summed up is, the next time."""
    expected = _expected(store_server, range(2))
    bench = Bench(store_server)
    worker = bench.worker()
    _apply(bench, worker, "t:0", 0, long=False)

    def gone() -> None:
        raise StoreUnavailable("gone for a moment")

    _meanwhile(worker[1], gone)
    with pytest.raises(StoreUnavailable):
        _apply(bench, worker, "t:0", 1, long=True)
    assert dump(bench.store) == expected
    length = bench.store.client.strlen(_chunk(bench))
    sum_up(worker[1])
    assert bench.store.client.strlen(_chunk(bench)) < length
    assert dump(bench.store) == expected


def test_a_damaged_chunk_is_named(store_server: RedisServer) -> None:
    """It is not replaced by what could be read of it."""
    bench = Bench(store_server)
    worker = bench.worker()
    _apply(bench, worker, "t:0", 0, long=False)
    bench.store.client.append(_chunk(bench), b"damage")
    with pytest.raises(StoreOwned, match="is damaged"):
        _apply(bench, worker, "t:0", 1, long=True)
