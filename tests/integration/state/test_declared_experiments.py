"""The set of declared experiments in a real store: concurrent changes, several shards, deletion."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from monitor.config import (
    DeclaredSet,
    ExperimentSettings,
    archive_experiment,
    declare_experiments,
    remove_experiment,
    replace_file_experiments,
)
from monitor.errors import CorruptStore, ExperimentsChanged
from monitor.state import (
    Commit,
    Position,
    PositionUpdate,
    ShardedStore,
    change_declared_set,
    complete_shards,
    delete_experiment,
    join_store,
    read_backfill_targets,
    read_declared_set,
    update_declared_set,
)
from tests.servers.redis import RedisServer
from tests.support.store_bench import StoreBench, make_response
from tests.support.streams import EXPERIMENT, START

SECOND = replace(EXPERIMENT, name="second")
THIRD = replace(EXPERIMENT, name="third")
HASH_KEY = b"key"


@pytest.fixture(params=[1, 3])
def bench(request: pytest.FixtureRequest, redis_server: RedisServer) -> StoreBench:
    """Return a store with an experiment and an applied response, on a single shard or on three shards."""
    opened = StoreBench(redis_server, EXPERIMENT, request.param)
    opened.apply([[make_response(1, START)]])
    return opened


def _declaring(experiment: ExperimentSettings) -> Callable[[DeclaredSet], DeclaredSet]:
    return lambda current: declare_experiments(current, [experiment], "a command", 1)


def _names(store: ShardedStore) -> list[str]:
    return [experiment.name for experiment in read_declared_set(store).counted]


def test_of_two_changes_at_the_same_time_none_is_lost(bench: StoreBench) -> None:
    """The second change is made again, on top of the first."""
    other = bench.store.reconnect()
    calls = []

    def change(current: DeclaredSet) -> DeclaredSet:
        calls.append(current.version)
        if len(calls) == 1:
            update_declared_set(other, HASH_KEY, _declaring(SECOND))
        return _declaring(THIRD)(current)

    changed = update_declared_set(bench.store, HASH_KEY, change)
    assert changed == read_declared_set(bench.store)
    assert _names(bench.store) == ["ranker", "second", "third"]
    assert calls == [1, 2]


def test_a_commit_of_events_that_were_decoded_under_an_older_set_changes_nothing(bench: StoreBench) -> None:
    """On every shard; reading the state tells the worker that the set was changed."""
    worker = bench.store.reconnect()
    for shard in worker:
        shard.is_initialized = True
        shard.read_state()
    update_declared_set(bench.store, HASH_KEY, _declaring(SECOND))
    for number, shard in enumerate(worker):
        commit = Commit(position_updates=[PositionUpdate(f"t:{30 + number}", None, Position(1))])
        assert shard.commit(commit) == "experiments_changed"
        with pytest.raises(ExperimentsChanged):
            shard.read_state()


def test_shards_that_a_killed_writer_has_not_reached_are_completed(redis_server: RedisServer) -> None:
    """By the next process that reads the set; targets are the positions of that time."""
    bench = StoreBench(redis_server, EXPERIMENT, 3)
    bench.apply([[make_response(number, START + number) for number in range(20)]])
    changed = _declaring(SECOND)(read_declared_set(bench.store))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("monitor.state.declared_experiments.complete_shards", lambda *_: None)
        update_declared_set(bench.store, HASH_KEY, lambda _: changed)
    versions = [shard.client.hget(shard.keys.meta, "experiments_version") for shard in bench.store]
    assert versions == [b"2", b"1", b"1"]
    complete_shards(bench.store, HASH_KEY, changed)
    assert {shard.client.hget(shard.keys.meta, "experiments_version") for shard in bench.store} == {b"2"}


def test_a_store_that_was_emptied_is_not_created_again_while_it_is_in_use(bench: StoreBench) -> None:
    """A new hash key would give other ids to the same students."""
    metadata = bench.metadata
    joined = join_store(bench.store, bench.settings, lambda current: current)
    bench.store.client.flushall()
    with pytest.raises(CorruptStore, match="emptied while it was in use"):
        change_declared_set(bench.store, joined, lambda current: current)
    assert bench.store.client.dbsize() == 0
    assert metadata.hash_key == joined.hash_key


def test_a_deletion_leaves_rows_that_have_moved_to_another_number(bench: StoreBench) -> None:
    """A backfill may move rows of an earlier definition to the new one at the same time."""
    (shard,) = [shard for shard in bench.store if list(shard.client.scan_iter(shard.keys.response_row(b"*")))]
    (row_key,) = shard.client.scan_iter(shard.keys.response_row(b"*"))
    row = shard.client.get(row_key)
    moved_row = row[:4] + (2 << 8).to_bytes(4) + row[8:]
    shard.client.set(row_key, moved_row)
    assert delete_experiment(bench.store, bench.experiment_number) > 0
    assert shard.client.get(row_key) == moved_row
    left = [key for key in shard.client.scan_iter(shard.keys.prefix + b"*") if b":1" in key and key != row_key]
    assert left == []


def test_an_experiment_that_was_deleted_and_is_declared_again_is_filled_from_the_beginning(bench: StoreBench) -> None:
    """Its events were counted before, so none of them was skipped."""
    update_declared_set(bench.store, HASH_KEY, lambda current: replace_file_experiments(current, [SECOND], "a file", 2))
    update_declared_set(bench.store, HASH_KEY, lambda current: remove_experiment(current, "ranker", "a command", 3))
    again = update_declared_set(bench.store, HASH_KEY, _declaring(EXPERIMENT)).find("ranker")
    assert again is not None
    assert again.superseded_numbers == (1,)
    assert again.is_filling
    assert read_backfill_targets(bench.store, again.number)


def test_a_change_that_changes_nothing_makes_no_version(bench: StoreBench) -> None:
    """Otherwise every worker would start anew."""
    update_declared_set(bench.store, HASH_KEY, _declaring(SECOND))
    before = read_declared_set(bench.store)
    assert update_declared_set(bench.store, HASH_KEY, _declaring(SECOND)) == before
    archived = update_declared_set(
        bench.store, HASH_KEY, lambda current: archive_experiment(current, "second", "a command", 3)
    )
    assert archived.version == before.version + 1
