"""The set of declared experiments in the store: reading, and writing of the next version.

The first shard stores the set. Every shard stores the version under which its events are decoded: commits compare it.
A version is written to the first shard and then to the others. If a worker ends in between, the next worker that reads
the set completes the other shards, so there is nothing to undo.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from monitor.analysis import BackfillProgress, ExperimentHistory
from monitor.config import DeclaredExperiment, DeclaredSet, decode_declared_set, definitions_json, encode_declared_set
from monitor.engine import IdHasher
from monitor.errors import CorruptStore
from monitor.state.backfills import BackfillState
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.skip_counts import skipped_responses_field
from monitor.state.store_shard import StoreShard


def read_declared_set(store: ShardedStore) -> DeclaredSet:
    """Return the set of declared experiments; version 0 without experiments for a new store.

    Raises `StoreUnavailable`, and `CorruptStore` if the set is missing or damaged.
    """
    keys = store.first_shard.keys
    with translating_errors(store.settings):
        # In this order: both are written together.
        version = store.client.hget(keys.meta, "experiments_version")
        text = store.client.get(keys.experiments_set)
    if text is None:
        if version is None:
            return DeclaredSet()
        raise CorruptStore(
            f"the store key {keys.experiments_set.decode()} is missing, so the definitions of the aggregates are "
            "unknown. Run `ab-monitor rebuild`, which computes the aggregates again from Kafka"
        )
    try:
        return decode_declared_set(text)
    except ValueError as error:
        raise CorruptStore(
            f"the store key {keys.experiments_set.decode()} is damaged ({error}). Run `ab-monitor rebuild`, which "
            "computes the aggregates again from Kafka"
        ) from error


def read_experiments_versions(store: ShardedStore) -> set[int]:
    """Return the versions of the set that the shards have: one, unless a change is in progress.

    0 stands for a new store. Raises `StoreUnavailable`.
    """
    with translating_errors(store.settings):
        return {int(store.client.hget(shard.keys.meta, "experiments_version") or 0) for shard in store}


def update_declared_set(
    store: ShardedStore, hash_key: bytes, change: Callable[[DeclaredSet], DeclaredSet]
) -> DeclaredSet:
    """Store the next version of the set, and return it; the stored set if `change` returns it unchanged.

    `change` is called again if another process has changed the set meanwhile. Raises `StoreUnavailable`.
    """
    while True:
        current = read_declared_set(store)
        new = change(current)
        if new is current or _declare(store.first_shard, hash_key, current, new):
            complete_shards(store, hash_key, new)
            return new


def complete_shards(store: ShardedStore, hash_key: bytes, declared_set: DeclaredSet) -> None:
    """Move the other shards to the version of a set, if they have an older one. Raises `StoreUnavailable`."""
    for shard in store:
        if shard is not store.first_shard:
            with translating_errors(store.settings):
                version = int(store.client.hget(shard.keys.meta, "experiments_version") or 0)
            if version < declared_set.version:
                _declare(shard, hash_key, DeclaredSet(version), declared_set)


def _declare(shard: StoreShard, hash_key: bytes, current: DeclaredSet, new: DeclaredSet) -> bool:
    """Move a shard to the new set; return False, and write nothing, if it has another version than the current one."""
    keys, is_first = shard.keys, shard.keys.shard == 0
    filling = [
        experiment
        for experiment in new.experiments
        if experiment.is_filling and experiment.since_version > current.version
    ]
    id_hasher = IdHasher(hash_key)
    header = {
        "version": new.version,
        "expected_version": current.version if is_first else False,
        "skipped_fields": [_skipped_field(experiment, id_hasher) for experiment in filling],
    }
    script_keys = [keys.meta, keys.positions, keys.events_skipped]
    script_keys += [keys.backfill_targets(experiment.number) for experiment in filling]
    if is_first:
        script_keys += [keys.experiments_set, keys.definitions, keys.horizons]
        names = {experiment.name for experiment in new.experiments}
        header |= {
            "experiments_set": encode_declared_set(new).decode(),
            "definitions": {experiment.name: definitions_json(experiment) for experiment in new.experiments}
            | {experiment.name: False for experiment in current.experiments if experiment.name not in names},
            "horizons": {str(experiment.number): experiment.settings.horizon_ms for experiment in new.experiments},
        }
    with translating_errors(shard.settings):
        is_written = shard.run_script(shard.scripts.declare, script_keys, [msgspec.msgpack.encode(header)])
    return bool(is_written)


def _skipped_field(experiment: DeclaredExperiment, id_hasher: IdHasher) -> str:
    """Return the field of skipped events that shows whether there is anything to fill.

    Return "" if events were counted under an earlier number: these were not skipped.
    """
    return "" if experiment.superseded_numbers else skipped_responses_field(experiment.name, id_hasher).decode()


def experiment_histories(
    declared_set: DeclaredSet, backfills: Mapping[int, BackfillState]
) -> dict[str, ExperimentHistory]:
    """Return the history of each experiment of a service's set; empty for a store that was filled from files."""
    if not declared_set.is_in_force:
        return {}
    return {experiment.name: _history(experiment, backfills) for experiment in declared_set.experiments}


def _history(experiment: DeclaredExperiment, backfills: Mapping[int, BackfillState]) -> ExperimentHistory:
    progress = None
    if experiment.is_filling:
        state = backfills.get(experiment.number)
        if state is None:
            progress = BackfillProgress("running")
        else:
            name: Literal["running", "failed"] = "failed" if state.state == "failed" else "running"
            progress = BackfillProgress(name, state.progress_ratio, state.reason or None)
    return ExperimentHistory(
        declared_at_ms=experiment.declared_ms,
        definition_version=experiment.definition_version,
        definition_since_ms=experiment.definition_since_ms,
        changes=experiment.changes,
        archived_at_ms=experiment.archived_ms,
        complete_since_ms=experiment.complete_since_ms,
        backfill=progress,
        is_previous_definition=experiment.previous is not None,
    )
