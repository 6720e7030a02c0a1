"""Schema, experiments and hash key of a store: registered by workers, checked by all commands."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any

from monitor.clock import wall_clock
from monitor.config import (
    DeclaredSet,
    Definition,
    ExperimentSettings,
    Settings,
    add_file_experiments,
    definition_changes,
)
from monitor.errors import CorruptStore, IncompatibleStore
from monitor.state.declared_experiments import read_declared_set, update_declared_set
from monitor.state.keys import ACTIVE_GENERATION_KEY, FIRST_SHARD_PREFIX
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import SCHEMA, StoreShard

_HASH_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class StoreMetadata:
    """The declared experiments and the hash key of a store."""

    declared_set: DeclaredSet
    hash_key: bytes
    """Key of the hashes of ids."""
    horizons_ms: Mapping[str, int]
    """Number of each stored experiment, declared or not → how long the experiment's rows may change."""
    store_ids: tuple[bytes, ...]
    """Random id of each shard, which differs after a reset."""

    @property
    def numbers(self) -> Mapping[str, int]:
        """Return declared experiment → its number in the store."""
        return {experiment.name: experiment.number for experiment in self.declared_set.experiments}


def read_shown_experiments(store: ShardedStore, settings: Settings) -> tuple[Settings, Mapping[str, int], DeclaredSet]:
    """Return the settings with the experiments that readers show, their numbers, and the stored set; writes nothing.

    In the store of a service these are the declared experiments, with further ones of the file, whose numbers are below
    0. Otherwise they are those of the file. Raises `UnusableStore`.
    """
    declared_set = _read_checked_set(store, settings)
    configured = _configured(declared_set, settings)
    if declared_set.is_in_force:
        names = {experiment.name for experiment in declared_set.experiments}
        shown = [experiment.served for experiment in declared_set.experiments]
        shown += [definition for definition in configured if definition.settings.name not in names]
    else:
        _check_definitions(declared_set, settings.experiments)
        shown = configured
    numbers = {definition.settings.name: definition.number for definition in shown}
    return replace(settings, experiments=tuple(definition.settings for definition in shown)), numbers, declared_set


def _read_checked_set(store: ShardedStore, settings: Settings) -> DeclaredSet:
    with translating_errors(settings.store):
        meta = _check_schemas(store)
    _check_hash_key(settings, meta)
    return read_declared_set(store)


def _configured(declared_set: DeclaredSet, settings: Settings) -> list[Definition]:
    """Return the file's experiments with their numbers; below 0 for an experiment that is not stored."""
    numbers = {experiment.name: experiment.number for experiment in declared_set.experiments}
    return [
        Definition(numbers.get(experiment.name, -1 - index), experiment)
        for index, experiment in enumerate(settings.experiments)
    ]


def initialize_store(store: ShardedStore, settings: Settings) -> StoreMetadata:
    """Declare the configured experiments that the store lacks, and return the metadata of the store.

    Raises `UnusableStore`, and writes nothing, if the store has another schema, another hash key, or other definitions
    of an experiment. `join_store` accepts other definitions.
    """

    def declare_missing(current: DeclaredSet) -> DeclaredSet:
        _check_definitions(current, settings.experiments)
        names = {experiment.name for experiment in current.counted}
        missing = [experiment for experiment in settings.experiments if experiment.name not in names]
        return add_file_experiments(current, missing, "the command line", wall_clock()) if missing else current

    return join_store(store, settings, declare_missing)


def join_store(store: ShardedStore, settings: Settings, change: Callable[[DeclaredSet], DeclaredSet]) -> StoreMetadata:
    """Initialize a store if it is new, change the set of declared experiments, and return the metadata.

    `change` returns the next version of the set, or the set itself. Raises `UnusableStore` if the store has another
    schema or another hash key, and the errors of `change`.
    """
    with translating_errors(settings.store):
        meta = _check_schemas(store)
        if int(meta.get(b"shards", len(store))) != len(store):
            raise IncompatibleStore(
                f"another worker has created the store with {int(meta[b'shards'])} shards, but this worker expects "
                f"{len(store)}. Start this worker again"
            )
        change(read_declared_set(store))
        first_shard, client = store.first_shard, store.client
        hash_key = _initialize_hash_key(first_shard, settings, meta)
        for shard in reversed(store):
            client.hsetnx(shard.keys.meta, "store_id", secrets.token_hex(_HASH_KEY_BYTES))
            # One write: without a number of shards, a stored schema would mean one shard.
            shard_count = {"shards": len(store)} if shard is first_shard else {}
            client.hset(shard.keys.meta, mapping={"schema": SCHEMA, **shard_count})
        client.set(ACTIVE_GENERATION_KEY, store.active_generation, nx=True)
    return _change_set(store, hash_key, _read_store_ids(store), change)


def change_declared_set(
    store: ShardedStore, metadata: StoreMetadata, change: Callable[[DeclaredSet], DeclaredSet]
) -> StoreMetadata:
    """Change the set of a store that was joined before, and return the new metadata.

    `change` returns the next version of the set, or the set itself. Raises `CorruptStore`, and writes nothing, if the
    store was emptied or replaced since.
    """
    if _read_store_ids(store) != metadata.store_ids:
        raise CorruptStore(
            "the store was emptied while it was in use. Start the command again: events are then read from the "
            "position that kafka.start sets"
        )
    return _change_set(store, metadata.hash_key, metadata.store_ids, change)


def _change_set(
    store: ShardedStore, hash_key: bytes, store_ids: tuple[bytes, ...], change: Callable[[DeclaredSet], DeclaredSet]
) -> StoreMetadata:
    declared_set = update_declared_set(store, hash_key, change)
    with translating_errors(store.settings):
        stored_horizons = store.client.hgetall(store.first_shard.keys.horizons)
    mark_initialized(store, declared_set)
    horizons_ms = {number.decode(): int(ms) for number, ms in stored_horizons.items()}
    return StoreMetadata(declared_set, hash_key, horizons_ms, store_ids)


def _read_store_ids(store: ShardedStore) -> tuple[bytes, ...]:
    with translating_errors(store.settings):
        return tuple(store.client.hget(shard.keys.meta, "store_id") or b"" for shard in store)


def mark_initialized(store: ShardedStore, declared_set: DeclaredSet) -> None:
    """Make the commits through a connection expect that the store has this version of the set."""
    for shard in store:
        shard.is_initialized, shard.experiments_version = True, declared_set.version


def read_stored_experiments(store: ShardedStore) -> dict[str, dict[str, Any]]:
    """Return experiment → a dictionary with the stored `number` and `definitions` of the experiment."""
    with translating_errors(store.settings):
        texts = store.client.hgetall(store.first_shard.keys.definitions)
    return {name.decode(): json.loads(text) for name, text in texts.items()}


def read_hash_key(store: ShardedStore, settings: Settings) -> bytes:
    """Return the key of the hashes of ids: from the settings, or else from the store; empty for a new store."""
    configured_key = _configured_hash_key(settings)
    if configured_key is not None:
        return configured_key
    with translating_errors(settings.store):
        return store.client.hget(store.first_shard.keys.meta, "hash_key") or b""


def _check_schemas(store: ShardedStore) -> Mapping[bytes, bytes]:
    """Return the hash meta of the first shard. Raises `UnusableStore` unless all shards, or none, have `SCHEMA`."""
    metas: list[Mapping[bytes, bytes]] = [store.client.hgetall(shard.keys.meta) for shard in store]
    schema = metas[0].get(b"schema")
    if schema is None:
        # Schemas up to 13 had other key names, and the first schema had no generations.
        for key in (store.first_shard.keys.meta_of_old_schema, FIRST_SHARD_PREFIX + b"m"):
            schema = schema or store.client.hget(key, "schema")
    if schema is not None and int(schema) != SCHEMA:
        raise IncompatibleStore(
            f"the store has schema {int(schema)}, but this version of AB Monitor needs schema {SCHEMA}. Run "
            "`ab-monitor rebuild`, which fills a new generation from Kafka"
        )
    is_used = [b"schema" in metas[0] or b"commits" in meta for meta in metas]
    has_schema = [b"schema" in meta for meta in metas]
    if any(is_used) and not all(has_schema):
        raise CorruptStore(
            f"shard {has_schema.index(False)} of {len(store)} (counted from 0) is empty, but other shards are not, so "
            "its data is lost. Run `ab-monitor rebuild`, which fills all shards from Kafka"
        )
    return metas[0]


def _check_definitions(declared_set: DeclaredSet, configured: Sequence[ExperimentSettings]) -> None:
    differences: list[str] = []
    for experiment in configured:
        declared = declared_set.find(experiment.name)
        if declared is not None:
            differences += definition_changes(declared.settings, experiment)
    if differences:
        raise IncompatibleStore(
            "the aggregates in the store have other definitions than the configuration file: "
            + "; ".join(differences)
            + ". Only a service (`ab-monitor run`) changes the definitions of a store. Restore the definitions in the "
            "file, give the experiment a new name, or point store.url at another database and replay all files"
        )


def _initialize_hash_key(store: StoreShard, settings: Settings, meta: Mapping[bytes, bytes]) -> bytes:
    """Return the configured hash key, or else the stored hash key, which is created at random if absent.

    Raises `UnusableStore` if the ids in the store were hashed with another key.
    """
    _check_hash_key(settings, meta)
    configured_key = _configured_hash_key(settings)
    if configured_key is None:
        store.client.hsetnx(store.keys.meta, "hash_key", secrets.token_bytes(_HASH_KEY_BYTES))
        stored_key: bytes = store.client.hget(store.keys.meta, "hash_key")
        return stored_key
    store.client.hsetnx(store.keys.meta, "hash_check", _hash_check(configured_key))
    _check_hash_key(settings, store.client.hgetall(store.keys.meta))
    return configured_key


def _configured_hash_key(settings: Settings) -> bytes | None:
    secret = settings.store.user_hash_key
    return None if secret is None else blake2b(secret.encode(), digest_size=_HASH_KEY_BYTES).digest()


def _hash_check(key: bytes) -> bytes:
    """Return a digest that identifies a hash key and does not reveal the key."""
    return blake2b(b"check", key=key, digest_size=_HASH_KEY_BYTES).digest()


def _check_hash_key(settings: Settings, meta: Mapping[bytes, bytes]) -> None:
    """Raise `UnusableStore` if the ids in the store were hashed with another key."""
    configured_key = _configured_hash_key(settings)
    if configured_key is None:
        if b"hash_check" in meta and b"hash_key" not in meta:
            raise IncompatibleStore(
                "store.user_hash_key: not set, but the store was created with a key. Set the same key in "
                "ABMONITOR_STORE_USER_HASH_KEY"
            )
    elif b"hash_key" in meta:
        raise IncompatibleStore(
            "store.user_hash_key: set, but the store was created without a key. Remove the key, or use an empty store"
        )
    elif meta.get(b"hash_check", _hash_check(configured_key)) != _hash_check(configured_key):
        raise IncompatibleStore(
            "store.user_hash_key: the store was created with another key. Set that key, or use an empty store"
        )
