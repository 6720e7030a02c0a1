"""What is remembered of time buckets is what a reader without memory finds."""

from __future__ import annotations

import random
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis.crc import key_slot

from monitor.errors import StoreOwned, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.metrics.decay import merge_moments
from monitor.metrics.record_layout import Floats
from monitor.state import Advance, Position, Reader
from tests.integration.pipeline.test_exactness import _SLOW, Bench
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer, redis_binary
from tests.support.oracle import decayed_mean, judge
from tests.support.streams import EXPERIMENT, START, arrivals, streams

HOUR = 3_600_000


@pytest.mark.parametrize("scores", [[4.0], [3.0, 4.0], [0.0, 1.0, 4.0]])
def test_standard_errors_are_those_of_single_responses(redis_server: RedisServer, scores: list[float]) -> None:
    """Within some per cent, as a bucket does not know where its squares are; what does not vary has none."""
    bench, chance = Bench(redis_server), random.Random(3)
    at_ms = sorted(START + chance.randrange(24 * HOUR) for _ in range(60))
    grades = np.array([chance.choice(scores) for _ in at_ms])
    events: list[Response | Feedback] = []
    for number, (at, grade) in enumerate(zip(at_ms, grades.tolist(), strict=True)):
        events += [_response(number, at), Feedback(f"f-{number}", f"r-{number}", at + 1, "rating", None, "v-1", grade)]
    bench.feed([events])
    summary = bench.reader.summary()
    found = summary.experiments["ranker"].variants["control"].metrics["dcg@5"].decayed
    for name, half_life_ms in (("1h", HOUR), ("24h", 24 * HOUR)):
        weights = np.exp2((np.array(at_ms) - summary.as_of_ms) / half_life_ms)
        mean = weights @ grades / weights.sum()
        expected = np.sqrt(weights**2 @ (grades - mean) ** 2) / weights.sum()
        assert found[name].standard_error == pytest.approx(expected, rel=0.05, abs=1e-6)


def _fresh(bench: Bench) -> Reader:
    return Reader(bench.shards, bench.settings, bench.opened.numbers, lambda: 0)


@settings(max_examples=10, suppress_health_check=_SLOW)
@given(data=st.data(), shards=st.sampled_from([1, 3]), retention_h=st.sampled_from([24, 100, 720]))
def test_a_reader_with_a_past_says_what_a_new_one_says(
    data: st.DataObject, shards: int, retention_h: int, redis_server: RedisServer
) -> None:
    """Whatever was read before, of whichever time: to the last digit, also after old chunks have changed or gone."""
    # Coverage of items is up to an hour old, by design.
    bench = Bench(redis_server, replace(EXPERIMENT, retention_ms=retention_h * HOUR, items=None), shards)
    writer, offset = bench.writer(), 0
    writer.state()
    for batch in data.draw(arrivals(data.draw(streams()))):
        step = Advance("t:0", offset or None, Position(offset + len(batch)))
        assert bench.submit(writer, [*batch], step).status.result() == "applied"
        offset += len(batch)
        for as_of_ms in (None, START + data.draw(st.integers(0, 200)) * HOUR, None):
            assert bench.reader.summary(as_of_ms) == _fresh(bench).summary(as_of_ms)


def _every_minute(hours: int) -> list[Response | Feedback]:
    return [_response(minute, START + minute * HOUR // 60) for minute in range(60 * hours)]


def test_what_has_not_changed_is_not_read_again(redis_server: RedisServer) -> None:
    """A hundred hours of buckets cross the wire once, those of exponential decays."""
    bench = Bench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.feed([_every_minute(hours=100)])
    client = redis_server.client()

    def sent() -> int:
        before = client.info("stats")["total_net_output_bytes"]
        bench.reader.summary()
        return int(client.info("stats")["total_net_output_bytes"] - before)

    first = sent()
    assert sent() < first / 5


def test_readings_of_the_past_do_not_drive_out_what_is_remembered_of_now(redis_server: RedisServer) -> None:
    """Nothing is read again by a reading of now, whatever times were asked for in between."""
    bench = Bench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.feed([_every_minute(hours=300)])
    client = redis_server.client()

    def sent(as_of_ms: int | None) -> int:
        before = client.info("stats")["total_net_output_bytes"]
        bench.reader.summary(as_of_ms)
        return int(client.info("stats")["total_net_output_bytes"] - before)

    first, now = sent(None), sent(None)
    assert now < first / 5
    assert sent(START + 100 * HOUR) > 5 * now
    assert sent(None) < 1.5 * now


def test_readings_at_once_do_not_change_what_another_has_found(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the same chunks, one as of a time when some of what is in them had not happened yet."""
    bench = Bench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.feed([[_response(number, START + number * HOUR // 8) for number in range(8)]])
    late, early = START + HOUR, START + HOUR // 2
    found = bench.reader.summary(late)
    place = "monitor.state.time_buckets.merge_moments"

    def interrupted(*window: Any) -> Floats:
        monkeypatch.setattr(place, merge_moments)
        bench.reader.summary(early)
        return merge_moments(*window)

    monkeypatch.setattr(place, interrupted)
    assert bench.reader.summary(late) == found
    assert bench.reader.summary(late) == found


def test_many_may_read_at_once_while_events_are_applied(redis_server: RedisServer) -> None:
    """What they remember together is not mixed up: afterwards all say what a new reader says."""
    bench = Bench(redis_server, replace(EXPERIMENT, retention_ms=100 * HOUR))
    writer = bench.writer()
    writer.state()
    with ThreadPoolExecutor(6) as readers:
        for number in range(30):
            batch = [_response(number * 10 + place, START + (number + place) * 5 * HOUR) for place in range(10)]
            step = Advance("t:0", number * 10 or None, Position(number * 10 + 10))
            reading = [readers.submit(bench.reader.summary, as_of_ms) for as_of_ms in (None, None, START + 50 * HOUR)]
            assert bench.submit(writer, [*batch], step).status.result() == "applied"
            for each in reading:
                each.result()
        for as_of_ms in (None, START + 50 * HOUR):
            for found in readers.map(bench.reader.summary, [as_of_ms] * 6):
                assert found == _fresh(bench).summary(as_of_ms)


def test_what_was_observed_long_ago_is_found(redis_server: RedisServer) -> None:
    """Ratings lie hundreds of half-lives behind the newest response, and older chunks are not asked for at first."""
    bench = Bench(redis_server)
    events: list[Response | Feedback] = [_response(number, START + number * HOUR // 2) for number in range(800)]
    events += [
        Feedback(f"f-{number}", f"r-{number}", START + number * HOUR // 2, "rating", "s-1", "v-1", float(number % 5))
        for number in range(3, 40)
    ]
    bench.feed([events])
    summary = bench.reader.summary()
    judged = [each for each in judge(EXPERIMENT, events) if each.rated]
    for metric in EXPERIMENT.metrics:
        values = [(each.response.timestamp_ms, each.metrics[metric.name]) for each in judged]
        defined = [(at_ms, value) for at_ms, value in values if value is not None]
        expected = decayed_mean(defined, summary.as_of_ms, HOUR)
        found = summary.experiments["ranker"].variants["control"].metrics[metric.name].decayed["1h"]
        assert expected is not None
        assert (found.mean, found.effective_count) == pytest.approx(expected, rel=1e-4)


def test_a_server_that_lost_commits_is_read_anew() -> None:
    """Other events under the same commit numbers are not taken for those that are gone."""
    with RedisServer(redis_binary()) as server:
        bench = Bench(server)
        bench.feed([[_response(1, START)]])
        assert bench.reader.summary() == _fresh(bench).summary()
        server.process.stop()
        shutil.rmtree(server.directory / "appendonlydir")
        server.start()
        again = Bench(server)
        again.feed([[_response(number, START) for number in range(5)]])
        bench.reader.store.client.close()
        assert bench.reader.summary() == _fresh(again).summary()
        assert bench.reader.summary().experiments["ranker"].variants["control"].responses == 5


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_a_store_that_was_reset_is_read_anew(commits: int, redis_server: RedisServer) -> None:
    """Its commits are counted from the beginning again, whether they are fewer or more by now."""
    bench = Bench(redis_server)
    bench.feed([[_response(number, START)] for number in range(3)])
    assert bench.reader.summary() == _fresh(bench).summary()
    redis_server.client().flushdb()
    again = Bench(redis_server)
    again.feed([[_response(number, START + HOUR)] for number in range(commits)])
    assert bench.reader.summary() == _fresh(again).summary()


def test_slots_that_have_moved_are_read_where_they_are() -> None:
    """By a reader that has asked another master before."""
    with RedisCluster() as cluster:
        bench = Bench(cluster, shards=3)
        bench.feed([[_response(number, START + number * HOUR) for number in range(9)]])
        found = bench.reader.summary()
        assert found.experiments["ranker"].variants["control"].responses == 9
        for shard in bench.shards:
            slot = key_slot(shard.keys.prefix)
            source = cluster.master_of(slot)
            cluster.move(slot, next(server for server in cluster.servers if server is not source))
            assert bench.reader.summary() == found


def test_a_replica_that_has_taken_over_is_read() -> None:
    """By a reader that has asked its master before, and sends nothing else."""
    with RedisCluster(replicas=1) as cluster:
        bench = Bench(cluster)
        bench.feed([[_response(number, START) for number in range(9)]])
        found = bench.reader.summary()
        slot = key_slot(bench.store.keys.prefix)
        bench.store.client.wait(1, 5_000, target_nodes=bench.store.client.get_node_from_key(bench.store.keys.meta))
        cluster.master_of(slot).process.kill()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert bench.reader.summary() == found
                break
            except StoreUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.2)


@pytest.mark.parametrize("what", ["kinds", "traffic", "responses", "cohort", "chunk"])
def test_what_is_of_another_type_is_named(store_server: RedisServer, what: str) -> None:
    """It is not taken for nothing, where it is read by itself or with others."""
    bench = Bench(store_server, shards=3)
    bench.feed([[_response(number, START) for number in range(20)]])
    keys = bench.store.keys
    more = {"cohort": (START // (24 * HOUR),), "chunk": ("1h", START // HOUR)}.get(what, ())
    name = getattr(keys, what)(bench.number, sorted(EXPERIMENT.variants).index("control"), *more)
    bench.store.client.delete(name)
    bench.store.client.sadd(name, b"x")
    with pytest.raises(StoreOwned, match=rf"holds something else under the prefix abm: \({re.escape(name.decode())}: "):
        _fresh(bench).summary()


@pytest.mark.parametrize("what", ["responses", "units"])
def test_a_record_over_all_time_that_is_too_long_is_named(store_server: RedisServer, what: str) -> None:
    """What was added to it is not left out."""
    bench = Bench(store_server)
    name = getattr(bench.store.keys, what)(bench.number, 0)
    bench.store.client.set(name, bytes(8 * 1000))
    with pytest.raises(StoreOwned, match=rf"{re.escape(name.decode())} is damaged \(8000 bytes"):
        bench.reader.summary()


def _response(number: int, at_ms: int) -> Response:
    return Response(f"r-{number}", at_ms, "ranker", "control", ("v-1",), None, f"student-{number}")
