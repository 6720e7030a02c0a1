"""Decayed means from time buckets: a reader with a cache returns the same as a reader without a cache."""

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

from monitor.errors import CorruptStore, IncompatibleStore, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.metrics import FloatArray
from monitor.metrics.decay import merge_moments
from monitor.state import Position, PositionUpdate, StoreReader
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer, redis_binary
from tests.support.oracle import compute_expected_responses, expected_decayed_mean
from tests.support.store_bench import SLOW_HEALTH_CHECKS, StoreBench
from tests.support.streams import EXPERIMENT, START, arrivals, streams

HOUR = 3_600_000


@pytest.mark.parametrize("scores", [[4.0], [3.0, 4.0], [0.0, 1.0, 4.0]])
def test_decayed_standard_errors_equal_those_from_single_responses(
    redis_server: RedisServer, scores: list[float]
) -> None:
    """Within some per cent, because a bucket has no times of its squares; constant values have no standard error."""
    bench, chance = StoreBench(redis_server), random.Random(3)
    at_ms = sorted(START + chance.randrange(24 * HOUR) for _ in range(60))
    grades = np.array([chance.choice(scores) for _ in at_ms])
    events: list[Response | Feedback] = []
    for number, (time_ms, grade) in enumerate(zip(at_ms, grades.tolist(), strict=True)):
        events += [
            _response(number, time_ms),
            Feedback(f"f-{number}", f"r-{number}", time_ms + 1, "rating", None, "v-1", grade),
        ]
    bench.apply([events])
    summary = bench.reader.read_summary()
    decayed = summary.experiments["ranker"].variants["control"].metrics["dcg@5"].decayed
    for name, half_life_ms in (("1h", HOUR), ("24h", 24 * HOUR)):
        weights = np.exp2((np.array(at_ms) - summary.as_of_ms) / half_life_ms)
        mean = weights @ grades / weights.sum()
        expected = np.sqrt(weights**2 @ (grades - mean) ** 2) / weights.sum()
        assert decayed[name].standard_error == pytest.approx(expected, rel=0.05, abs=1e-6)


def _fresh(bench: StoreBench) -> StoreReader:
    return StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: 0)


@settings(max_examples=10, suppress_health_check=SLOW_HEALTH_CHECKS)
@given(data=st.data(), shards=st.sampled_from([1, 3]), retention_h=st.sampled_from([24, 100, 720]))
def test_a_reader_with_a_filled_cache_returns_the_same_as_a_new_reader(
    data: st.DataObject, shards: int, retention_h: int, redis_server: RedisServer
) -> None:
    """After any readings of any times, to the last digit, also after old chunks have changed or were deleted."""
    # Coverage of items is up to an hour old, by design.
    bench = StoreBench(redis_server, replace(EXPERIMENT, retention_ms=retention_h * HOUR, items=None), shards)
    writer, offset = bench.connect_writer(), 0
    writer.reload_state()
    for batch in data.draw(arrivals(data.draw(streams()))):
        step = PositionUpdate("t:0", offset or None, Position(offset + len(batch)))
        assert bench.submit(writer, [*batch], step).result() == "applied"
        offset += len(batch)
        for as_of_ms in (None, START + data.draw(st.integers(0, 200)) * HOUR, None):
            assert bench.reader.read_summary(as_of_ms) == _fresh(bench).read_summary(as_of_ms)


def _every_minute(hours: int) -> list[Response | Feedback]:
    return [_response(minute, START + minute * HOUR // 60) for minute in range(60 * hours)]


def test_unchanged_chunks_are_not_read_again(redis_server: RedisServer) -> None:
    """A hundred hours of buckets of exponential decays are sent only once."""
    bench = StoreBench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.apply([_every_minute(hours=100)])
    client = redis_server.client()

    def count_commands() -> int:
        before = client.info("stats")["total_net_output_bytes"]
        bench.reader.read_summary()
        return int(client.info("stats")["total_net_output_bytes"] - before)

    first = count_commands()
    assert count_commands() < first / 5


def test_readings_of_the_past_do_not_replace_the_cache_of_the_present(redis_server: RedisServer) -> None:
    """A reading of the present sends no further commands after readings of past times."""
    bench = StoreBench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.apply([_every_minute(hours=300)])
    client = redis_server.client()

    def count_commands(as_of_ms: int | None) -> int:
        before = client.info("stats")["total_net_output_bytes"]
        bench.reader.read_summary(as_of_ms)
        return int(client.info("stats")["total_net_output_bytes"] - before)

    first, now = count_commands(None), count_commands(None)
    assert now < first / 5
    assert count_commands(START + 100 * HOUR) > 5 * now
    assert count_commands(None) < 1.5 * now


def test_concurrent_readings_do_not_change_each_others_cache(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two readings use the same chunks, and in one of them some of the events are in the future."""
    bench = StoreBench(redis_server, replace(EXPERIMENT, decay=EXPERIMENT.decay[:2]))
    bench.apply([[_response(number, START + number * HOUR // 8) for number in range(8)]])
    late, early = START + HOUR, START + HOUR // 2
    summary = bench.reader.read_summary(late)
    function_path = "monitor.state.time_buckets.merge_moments"

    def interrupted(*window: Any) -> FloatArray:
        monkeypatch.setattr(function_path, merge_moments)
        bench.reader.read_summary(early)
        return merge_moments(*window)

    monkeypatch.setattr(function_path, interrupted)
    assert bench.reader.read_summary(late) == summary
    assert bench.reader.read_summary(late) == summary


def test_threads_read_the_same_summary_while_events_are_applied(redis_server: RedisServer) -> None:
    """Their common cache stays correct: afterwards all readings equal that of a new reader."""
    bench = StoreBench(redis_server, replace(EXPERIMENT, retention_ms=100 * HOUR))
    writer = bench.connect_writer()
    writer.reload_state()
    with ThreadPoolExecutor(6) as readers:
        for number in range(30):
            batch = [_response(number * 10 + index, START + (number + index) * 5 * HOUR) for index in range(10)]
            step = PositionUpdate("t:0", number * 10 or None, Position(number * 10 + 10))
            reading = [
                readers.submit(bench.reader.read_summary, as_of_ms) for as_of_ms in (None, None, START + 50 * HOUR)
            ]
            assert bench.submit(writer, [*batch], step).result() == "applied"
            for future in reading:
                future.result()
        for as_of_ms in (None, START + 50 * HOUR):
            for summary in readers.map(bench.reader.read_summary, [as_of_ms] * 6):
                assert summary == _fresh(bench).read_summary(as_of_ms)


def test_the_decayed_mean_of_a_rarely_observed_metric_uses_old_chunks(redis_server: RedisServer) -> None:
    """Ratings lie hundreds of half-lives behind the newest response, and older chunks are not asked for at first."""
    bench = StoreBench(redis_server)
    events: list[Response | Feedback] = [_response(number, START + number * HOUR // 2) for number in range(800)]
    events += [
        Feedback(f"f-{number}", f"r-{number}", START + number * HOUR // 2, "rating", "s-1", "v-1", float(number % 5))
        for number in range(3, 40)
    ]
    bench.apply([events])
    summary = bench.reader.read_summary()
    judged = [
        expected_response
        for expected_response in compute_expected_responses(EXPERIMENT, events)
        if expected_response.is_rated
    ]
    for metric in EXPERIMENT.metrics:
        values = [
            (expected_response.response.timestamp_ms, expected_response.metrics[metric.name])
            for expected_response in judged
        ]
        defined = [(at_ms, value) for at_ms, value in values if value is not None]
        expected = expected_decayed_mean(defined, summary.as_of_ms, HOUR)
        decayed = summary.experiments["ranker"].variants["control"].metrics[metric.name].decayed["1h"]
        assert expected is not None
        assert (decayed.mean, decayed.effective_count) == pytest.approx(expected, rel=1e-4)


def test_the_cache_is_dropped_after_a_server_lost_commits() -> None:
    """Commits with the same numbers contain other events."""
    with RedisServer(redis_binary()) as server:
        bench = StoreBench(server)
        bench.apply([[_response(1, START)]])
        assert bench.reader.read_summary() == _fresh(bench).read_summary()
        server.process.stop()
        shutil.rmtree(server.directory / "appendonlydir")
        server.start()
        second_bench = StoreBench(server)
        second_bench.apply([[_response(number, START) for number in range(5)]])
        bench.reader.store.client.close()
        assert bench.reader.read_summary() == _fresh(second_bench).read_summary()
        assert bench.reader.read_summary().experiments["ranker"].variants["control"].responses == 5


@pytest.mark.parametrize("commits", [1, 3, 5])
def test_the_cache_is_dropped_after_a_reset(commits: int, redis_server: RedisServer) -> None:
    """The commits of the new store are counted from 0, so there may be fewer or more than before."""
    bench = StoreBench(redis_server)
    bench.apply([[_response(number, START)] for number in range(3)])
    assert bench.reader.read_summary() == _fresh(bench).read_summary()
    redis_server.client().flushdb()
    second_bench = StoreBench(redis_server)
    second_bench.apply([[_response(number, START + HOUR)] for number in range(commits)])
    assert bench.reader.read_summary() == _fresh(second_bench).read_summary()


def test_a_reader_follows_slots_that_move_to_another_master() -> None:
    """By a reader that has asked another master before."""
    with RedisCluster() as cluster:
        bench = StoreBench(cluster, shard_count=3)
        bench.apply([[_response(number, START + number * HOUR) for number in range(9)]])
        summary = bench.reader.read_summary()
        assert summary.experiments["ranker"].variants["control"].responses == 9
        for shard in bench.store:
            slot = key_slot(shard.keys.prefix)
            source = cluster.master_of(slot)
            cluster.move(slot, next(server for server in cluster.servers if server is not source))
            assert bench.reader.read_summary() == summary


def test_a_reader_follows_a_failover_to_a_replica() -> None:
    """The reader has sent commands to the former master, and sends no other commands."""
    with RedisCluster(replicas=1) as cluster:
        bench = StoreBench(cluster)
        bench.apply([[_response(number, START) for number in range(9)]])
        summary = bench.reader.read_summary()
        slot = key_slot(bench.first_shard.keys.prefix)
        bench.first_shard.client.wait(
            1, 5_000, target_nodes=bench.first_shard.client.get_node_from_key(bench.first_shard.keys.meta)
        )
        cluster.master_of(slot).process.kill()
        deadline = time.monotonic() + 60
        while True:
            try:
                assert bench.reader.read_summary() == summary
                break
            except StoreUnavailable:
                assert time.monotonic() < deadline
                time.sleep(0.2)


@pytest.mark.parametrize("key_name", ["feedback_kinds", "traffic", "all_time_sums", "cohort_sums", "bucket_chunk"])
def test_a_key_of_another_type_is_reported_with_its_name(store_server: RedisServer, key_name: str) -> None:
    """The key is not treated as absent, whether it is read alone or together with other keys."""
    bench = StoreBench(store_server, shard_count=3)
    bench.apply([[_response(number, START) for number in range(20)]])
    keys = bench.first_shard.keys
    more = {"cohort_sums": (START // (24 * HOUR),), "bucket_chunk": ("1h", START // HOUR)}.get(key_name, ())
    name = getattr(keys, key_name)(bench.experiment_number, sorted(EXPERIMENT.variants).index("control"), *more)
    bench.first_shard.client.delete(name)
    bench.first_shard.client.sadd(name, b"x")
    with pytest.raises(
        IncompatibleStore, match=rf"a key with the prefix abm: has another type than .*\({re.escape(name.decode())}: "
    ):
        _fresh(bench).read_summary()


@pytest.mark.parametrize("key_name", ["all_time_sums", "unit_sums"])
def test_an_all_time_record_with_too_many_integers_is_reported_with_its_key(
    store_server: RedisServer, key_name: str
) -> None:
    """The additional integers are not ignored."""
    bench = StoreBench(store_server)
    name = getattr(bench.first_shard.keys, key_name)(bench.experiment_number, 0)
    bench.first_shard.client.set(name, bytes(8 * 1000))
    with pytest.raises(CorruptStore, match=rf"{re.escape(name.decode())} is damaged \(8000 bytes"):
        bench.reader.read_summary()


def _response(number: int, at_ms: int) -> Response:
    return Response(f"r-{number}", at_ms, "ranker", "control", ("v-1",), None, f"student-{number}")
