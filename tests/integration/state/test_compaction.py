"""Commits append to chunks of time buckets; compaction of long chunks loses and doubles nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from monitor.config import complete_backfill, remove_experiment, replace_file_experiments
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.errors import CorruptStore, StoreUnavailable
from monitor.events import Feedback, Response
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, RecordLayout
from monitor.pipeline.batch_applier import BatchApplier
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.pipeline.commit_pipeline import ShardBatch, ShardedWriter
from monitor.state import (
    BackfillState,
    Position,
    PositionUpdate,
    ShardedStore,
    StoreShard,
    compact_time_buckets,
    delete_experiment,
    forget_skipped_experiment,
    is_file_in_use,
    join_store,
    mark_initialized,
    read_backfill_targets,
    read_backfills,
    read_stored_numbers,
    record_file_in_use,
    release_backfill_lease,
    renew_backfill_lease,
    write_backfill,
)
from monitor.state.record_reader import decode_chunk
from tests.servers.cluster import RedisCluster
from tests.servers.redis import RedisServer
from tests.support.dump import dump
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, HOUR, START, normalize_events


def _rated(number: int) -> list[Response | Feedback]:
    at_ms = START + number % 60
    response = Response(f"r-{number}", at_ms, "ranker", "control", ("video-1",), None, f"student-{number}")
    return [response, Feedback(f"f-{number}", f"r-{number}", at_ms + 1, "rating", None, "video-1", 4.0)]


def _apply(
    bench: StoreBench, worker: tuple[BatchApplier, StoreShard], partition: str, number: int, *, long: bool
) -> None:
    """Apply a rated response as the next batch of a partition; with `long`, its chunks are compacted afterwards."""
    engine, store = worker
    commit, _ = engine.apply(bench.normalize(*_rated(number)), bench.expired_before_ms)
    assert commit.compaction_limits
    commit.compaction_limits = [0 if long else 1 << 30] * len(commit.compaction_limits)
    position = bench.first_shard.read_positions().get(partition)
    begin = None if position is None else position.next_offset
    commit.position_updates = [PositionUpdate(partition, begin, Position((begin or 0) + 2))]
    assert store.commit(commit) == "applied"
    compact_time_buckets(store)


def _meanwhile(store: StoreShard, change: Callable[[], object]) -> None:
    """Call a function once, after compaction has read chunks and before it writes."""
    read_rows = store.read_rows

    def read_rows_with_change(keys: Sequence[bytes]) -> list[bytes | None]:
        stored_rows = read_rows(keys)
        if keys and keys[0].startswith(store.keys.prefix + b"bucket_chunk:"):
            store.read_rows = read_rows  # type: ignore[method-assign]
            change()
        return stored_rows

    store.read_rows = read_rows_with_change  # type: ignore[method-assign]


def _chunk(bench: StoreBench) -> bytes:
    return bench.first_shard.keys.bucket_chunk(bench.experiment_number, 0, "1h", START // HOUR)


def _expected(server: RedisServer, numbers: Sequence[int]) -> object:
    bench = StoreBench(server)
    bench.apply([[event for number in numbers for event in _rated(number)]])
    return dump(bench.first_shard)


def test_a_compacted_chunk_is_at_most_twice_as_long_as_its_integers_and_one_batch(store_server: RedisServer) -> None:
    """With compaction after every commit, after any number of commits; a batch adds one bucket at most."""
    expected = _expected(store_server, range(400))
    bench = StoreBench(store_server)
    chunk_bytes = 8 * RecordLayout.for_experiment(EXPERIMENT).response_width * BUCKETS_PER_CHUNK
    longest = 0
    engine, store = bench.connect_engine()
    for number in range(400):
        step = PositionUpdate("t:0", 2 * number or None, Position(2 * number + 2))
        commit, _ = engine.apply(bench.normalize(*_rated(number)), bench.expired_before_ms)
        commit.position_updates = [step]
        assert store.commit(commit) == "applied"
        compact_time_buckets(store)
        longest = max(longest, bench.first_shard.client.strlen(_chunk(bench)))
    assert chunk_bytes < longest < 2.1 * chunk_bytes
    assert dump(bench.first_shard) == expected


@pytest.fixture
def documented_rights(store_server: RedisServer) -> Iterator[Callable[[StoreBench], None]]:
    """Return a function that gives the connections of a bench only the rights in docs/security.md."""
    admin = store_server.client()
    document = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    for line in re.findall(r"^(ACL SETUSER ab-monitor .*)$", document, re.MULTILINE):
        admin.execute_command(*line.replace("PASSWORD", "for-tests").split())

    def restrict(bench: StoreBench) -> None:
        bench.store = ShardedStore(replace(bench.settings.store, username="ab-monitor", password="for-tests"))
        mark_initialized(bench.store, bench.metadata.declared_set)

    yield restrict
    admin.acl_deluser("ab-monitor")


def test_the_documented_redis_rights_are_enough_for_compaction(
    store_server: RedisServer, documented_rights: Callable[[StoreBench], None]
) -> None:
    """With the rights in docs/security.md only, and two workers, so that row versions are compared."""
    expected = _expected(store_server, range(4))
    bench = StoreBench(store_server, eager=True)
    documented_rights(bench)
    bench.apply([_rated(number) for number in range(4)], worker_count=2, worker_order=(0, 1))
    assert dump(bench.first_shard) == expected
    assert (
        bench.first_shard.client.strlen(_chunk(bench)) <= 8 * RecordLayout.for_experiment(EXPERIMENT).response_width + 4
    )


def test_the_documented_redis_rights_are_enough_to_declare_backfill_and_delete_experiments(
    store_server: RedisServer, documented_rights: Callable[[StoreBench], None]
) -> None:
    """With the rights in docs/security.md only; the key of the deleted experiment's rows is gone."""
    bench = StoreBench(store_server)
    documented_rights(bench)
    bench.apply([_rated(number) for number in range(4)])
    store, name = bench.store, EXPERIMENT.name
    changed = replace(EXPERIMENT, gain="exp2")
    metadata = join_store(store, bench.settings, lambda current: replace_file_experiments(current, [changed], "a", 1))
    declared = metadata.declared_set.find(name)
    assert declared is not None
    assert declared.is_filling
    record_file_in_use(store, "digest", 1)
    assert is_file_in_use(store, "digest", 1)

    assert renew_backfill_lease(store, declared.number, "owner", 60_000)
    assert renew_backfill_lease(store, declared.number, "owner", 60_000)
    assert read_backfill_targets(store, declared.number)
    id_hasher = IdHasher(metadata.hash_key)
    experiment = Experiment(declared.number, changed)
    writer = ShardedWriter(
        [experiment],
        id_hasher,
        store.reconnect(backfill=declared.number),
        superseded_numbers=frozenset(declared.superseded_numbers),
        backfilled_number=declared.number,
    )
    writer.reload_state()
    events = normalize_events(EventNormalizer([experiment], id_hasher), _rated(0))
    batch = ShardBatch(0, 0, DecodedBatch(events), [PositionUpdate("t:0", None, Position(2))])
    assert writer.submit(batch, {**bench.expired_before_ms, str(declared.number): 0}).result() == "applied"
    writer.close()
    write_backfill(store, declared.number, BackfillState("complete", 1, 2))
    assert read_backfills(store)[declared.number].state == "complete"
    forget_skipped_experiment(store, name, id_hasher, [declared.number])
    release_backfill_lease(store, declared.number, "owner")

    join_store(store, bench.settings, lambda current: complete_backfill(current, declared.number, None, 3))
    join_store(store, bench.settings, lambda current: replace_file_experiments(current, [], "b", 4))
    join_store(store, bench.settings, lambda current: remove_experiment(current, name, "test", 5))
    for number in (declared.number, *declared.superseded_numbers):
        assert number in read_stored_numbers(store)
        assert delete_experiment(store, number)
        assert number not in read_stored_numbers(store)


def test_compaction_on_a_cluster_changes_no_sum(redis_server: RedisServer) -> None:
    """Chunks are compacted by a script on the node of their shard."""
    expected = _expected(redis_server, range(8))
    with RedisCluster() as cluster:
        bench = StoreBench(cluster, shard_count=3, eager=True)
        bench.apply([_rated(number) for number in range(8)])
        assert dump(bench.store) == expected
        for shard in bench.store:
            chunk = shard.keys.bucket_chunk(bench.experiment_number, 0, "1h", START // HOUR)
            assert shard.client.strlen(chunk) <= 8 * RecordLayout.for_experiment(EXPERIMENT).response_width + 4


def test_runs_appended_by_another_worker_during_compaction_stay(store_server: RedisServer) -> None:
    """The runs are behind the sums."""
    expected = _expected(store_server, range(4))
    bench = StoreBench(store_server)
    first_worker, second_worker = bench.connect_engine(), bench.connect_engine()
    _apply(bench, first_worker, "t:0", 0, long=False)
    _meanwhile(first_worker[1], lambda: _apply(bench, second_worker, "t:1", 1, long=False))
    _apply(bench, first_worker, "t:0", 2, long=True)
    second_worker[0].clear_cache()
    second_worker[1].read_state()
    _apply(bench, second_worker, "t:1", 3, long=True)
    assert dump(bench.first_shard) == expected


def test_a_chunk_compacted_by_another_worker_meanwhile_is_not_replaced(store_server: RedisServer) -> None:
    """Even if the chunk has grown to the same length again."""
    expected = _expected(store_server, range(24))
    bench = StoreBench(store_server)
    first_worker, second_worker = bench.connect_engine(), bench.connect_engine()
    for number in range(4):
        _apply(bench, first_worker, "t:0", number, long=False)

    def overtaken() -> None:
        length = bench.first_shard.client.strlen(_chunk(bench))
        _apply(bench, second_worker, "t:1", 4, long=True)
        for number in range(5, 23):
            _apply(bench, second_worker, "t:1", number, long=False)
        assert bench.first_shard.client.strlen(_chunk(bench)) > length

    _meanwhile(first_worker[1], overtaken)
    _apply(bench, first_worker, "t:0", 23, long=True)
    assert dump(bench.first_shard) == expected


@pytest.mark.parametrize("is_recreated", [False, True], ids=["delete_chunk", "begun anew"])
def test_a_chunk_that_disappears_during_compaction_is_not_restored(
    store_server: RedisServer, *, is_recreated: bool
) -> None:
    """Retention, a deleted generation or an emptied store may delete a chunk; old sums must not be written."""
    bench = StoreBench(store_server)
    first_worker, second_worker = bench.connect_engine(), bench.connect_engine()
    _apply(bench, first_worker, "t:0", 0, long=False)
    recreated_chunk: bytes | None = None

    def delete_chunk() -> None:
        nonlocal recreated_chunk
        bench.first_shard.client.delete(_chunk(bench))
        if is_recreated:
            for number in range(1, 5):
                _apply(bench, second_worker, "t:1", number, long=False)
        recreated_chunk = bench.first_shard.client.get(_chunk(bench))

    _meanwhile(first_worker[1], delete_chunk)
    _apply(bench, first_worker, "t:0", 5, long=True)
    stored_chunk = bench.first_shard.client.get(_chunk(bench))
    assert decode_chunk(_chunk(bench), stored_chunk).tolist() == decode_chunk(_chunk(bench), recreated_chunk).tolist()


def test_a_chunk_that_disappeared_before_compaction_is_not_restored(store_server: RedisServer) -> None:
    """Compaction does not create a chunk that is absent when it is read."""
    bench = StoreBench(store_server)
    _, store = bench.connect_engine()
    store.chunks_to_compact[_chunk(bench)] = 0
    compact_time_buckets(store)
    assert bench.first_shard.client.get(_chunk(bench)) is None


def test_a_chunk_that_lost_its_last_runs_is_not_replaced_by_older_sums(store_server: RedisServer) -> None:
    """After lost writes, the chunk is a prefix of the bytes that were read."""
    bench = StoreBench(store_server)
    worker = bench.connect_engine()
    for number in range(3):
        _apply(bench, worker, "t:0", number, long=False)
    lost = bench.first_shard.client.get(_chunk(bench))
    _meanwhile(worker[1], lambda: bench.first_shard.client.set(_chunk(bench), lost))
    _apply(bench, worker, "t:0", 3, long=True)
    assert bench.first_shard.client.get(_chunk(bench)) == lost


def test_an_outage_during_compaction_does_not_affect_the_commit(store_server: RedisServer) -> None:
    """The batch was applied, and the next call compacts the chunk."""
    expected = _expected(store_server, range(2))
    bench = StoreBench(store_server)
    worker = bench.connect_engine()
    _apply(bench, worker, "t:0", 0, long=False)

    def raise_outage() -> None:
        raise StoreUnavailable("gone for a moment")

    _meanwhile(worker[1], raise_outage)
    with pytest.raises(StoreUnavailable):
        _apply(bench, worker, "t:0", 1, long=True)
    assert dump(bench.first_shard) == expected
    length = bench.first_shard.client.strlen(_chunk(bench))
    compact_time_buckets(worker[1])
    assert bench.first_shard.client.strlen(_chunk(bench)) < length
    assert dump(bench.first_shard) == expected


def test_compaction_of_a_damaged_chunk_raises_corrupt_store_with_the_key(store_server: RedisServer) -> None:
    """The chunk is not replaced by a part of its sums."""
    bench = StoreBench(store_server)
    worker = bench.connect_engine()
    _apply(bench, worker, "t:0", 0, long=False)
    bench.first_shard.client.append(_chunk(bench), b"damage")
    with pytest.raises(CorruptStore, match="is damaged"):
        _apply(bench, worker, "t:0", 1, long=True)
