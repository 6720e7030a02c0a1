"""Taking possession of a store: its schema, its experiments' numbers and definitions, its hash key."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from monitor.config import Settings, definition_differences, definitions
from monitor.errors import StoreOwned
from monitor.state.keys import LIVE, ROOT
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import SCHEMA, RedisStore
from monitor.state.shards import Shards

_KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Opened:
    """What a worker or a reader needs to know of the store."""

    numbers: Mapping[str, int]
    """Experiment → its number in the store."""
    hash_key: bytes
    horizons_ms: Mapping[str, int]
    """Number of every experiment, also of those that are no longer configured → how long its rows may change."""


def view_store(store: Shards, settings: Settings) -> Mapping[str, int]:
    """Return the configured experiments' numbers without writing anything; negative ones for those it does not know.

    Raises `StoreOwned` as `open_store` does.
    """
    with unavailable(settings.store):
        meta = _check_schemas(store)
        stored = _registered(store, meta)
    _check_hash_key(settings, meta)
    _check_definitions(stored, {experiment.name: definitions(experiment) for experiment in settings.experiments})
    return {
        each.name: int(stored[each.name]["number"]) if each.name in stored else -1 - place
        for place, each in enumerate(settings.experiments)
    }


def open_store(store: Shards, settings: Settings) -> Opened:
    """Register the configured experiments and return their numbers and the hash key.

    Raises `StoreOwned` when the store was made by another schema, under another hash key, or when an experiment's
    aggregates were made under other definitions: nothing is written then.
    """
    wanted = {experiment.name: definitions(experiment) for experiment in settings.experiments}
    with unavailable(settings.store):
        meta = _check_schemas(store)
        stored = _registered(store, meta)
        _check_definitions(stored, wanted)
        if int(meta.get(b"shards", len(store))) != len(store):
            raise StoreOwned(f"the store has {int(meta[b'shards'])} shards, not {len(store)}")
        keys, client = store.first.keys, store.client
        hash_key = _hash_key(store.first, settings, meta)
        for shard in reversed(store):
            client.hsetnx(shard.keys.meta, "made", secrets.token_hex(_KEY_BYTES))
            # A schema without a number of shards would mean one.
            shards = {"shards": len(store)} if shard is store.first else {}
            client.hset(shard.keys.meta, mapping={"schema": SCHEMA, **shards})
        client.set(LIVE, store.live, nx=True)
        for name, definition in wanted.items():
            if name not in stored:
                # Unless somebody has done so by now.
                register, names = store.first.scripts.register, [keys.meta, keys.definitions]
                store.first.run_script(register, names, [name, json.dumps(definition, sort_keys=True)])
        stored = stored_experiments(store)
        horizons = {str(stored[each.name]["number"]): each.horizon_ms for each in settings.experiments}
        client.hset(keys.horizons, mapping=horizons)
        known = client.hgetall(keys.horizons)
    _check_definitions(stored, wanted)
    for shard in store:
        shard.opened = True
    numbers = {name: int(stored[name]["number"]) for name in wanted}
    return Opened(numbers, hash_key, {number.decode(): int(ms) for number, ms in known.items()})


def stored_experiments(store: Shards) -> dict[str, dict[str, Any]]:
    """Return experiment → its number and definitions."""
    with unavailable(store.settings):
        texts = store.client.hgetall(store.first.keys.definitions)
    return {name.decode(): json.loads(text) for name, text in texts.items()}


def stored_hash_key(store: Shards, settings: Settings) -> bytes:
    """Return the key that the rows were made with; empty where there is none yet."""
    own = _own_key(settings)
    if own is not None:
        return own
    with unavailable(settings.store):
        return store.client.hget(store.first.keys.meta, "hash_key") or b""


def _registered(store: Shards, meta: Mapping[bytes, bytes]) -> dict[str, dict[str, Any]]:
    stored = stored_experiments(store)
    if not stored and int(meta.get(b"experiments", 0)):
        raise StoreOwned(
            f"{store.first.keys.definitions.decode()} is missing, which says what the aggregates are of. "
            "`ab-monitor rebuild` makes new ones from Kafka"
        )
    return stored


def _check_schemas(store: Shards) -> Mapping[bytes, bytes]:
    """Return what the first shard says of itself, once all of them are of this schema, or none is of any."""
    metas = [store.client.hgetall(shard.keys.meta) for shard in store]
    schema = metas[0].get(b"schema")
    if schema is None:
        # Until schema 2 there were no generations.
        schema = store.client.hget(ROOT + b"m", "schema")
    if schema is not None and int(schema) != SCHEMA:
        raise StoreOwned(
            f"the store has schema {int(schema)}, this version reads and writes schema {SCHEMA}: "
            "`ab-monitor rebuild` makes a new one from Kafka"
        )
    used = [b"schema" in metas[0] or b"seq" in meta for meta in metas]
    known = [b"schema" in meta for meta in metas]
    if any(used) and not all(known):
        raise StoreOwned(
            f"shard {known.index(False)} of {len(store)} was emptied, others were not: what it held is missing. "
            "`ab-monitor rebuild` makes everything new from Kafka"
        )
    found: Mapping[bytes, bytes] = metas[0]
    return found


def _check_definitions(stored: Mapping[str, dict[str, Any]], wanted: Mapping[str, dict[str, object]]) -> None:
    differences: list[str] = []
    for name, definition in wanted.items():
        if name in stored:
            # Through JSON, as the stored ones came.
            made_with = json.loads(json.dumps(definition))
            differences += definition_differences(name, stored[name]["definitions"], made_with)
    if differences:
        raise StoreOwned(
            "the store's aggregates were made under other definitions: "
            + "; ".join(differences)
            + ". Use the old definitions, make new aggregates from Kafka with `ab-monitor rebuild`, give the "
            "experiment a new name, or point store.url at another database"
        )


def _hash_key(store: RedisStore, settings: Settings, meta: Mapping[bytes, bytes]) -> bytes:
    """Return the configured key, or the one that the store made for itself; refuse one the rows were not made with."""
    _check_hash_key(settings, meta)
    key = _own_key(settings)
    if key is None:
        store.client.hsetnx(store.keys.meta, "hash_key", secrets.token_bytes(_KEY_BYTES))
        made: bytes = store.client.hget(store.keys.meta, "hash_key")
        return made
    store.client.hsetnx(store.keys.meta, "hash_check", _hash_check(key))
    _check_hash_key(settings, store.client.hgetall(store.keys.meta))
    return key


def _own_key(settings: Settings) -> bytes | None:
    secret = settings.store.user_hash_key
    return None if secret is None else blake2b(secret.encode(), digest_size=_KEY_BYTES).digest()


def _hash_check(key: bytes) -> bytes:
    return blake2b(b"check", key=key, digest_size=_KEY_BYTES).digest()


def _check_hash_key(settings: Settings, meta: Mapping[bytes, bytes]) -> None:
    """Raise `StoreOwned` if the rows were made with another key."""
    key = _own_key(settings)
    if key is None:
        if b"hash_check" in meta and b"hash_key" not in meta:
            raise StoreOwned("the store was made with a store.user_hash_key; set the same one")
    elif b"hash_key" in meta:
        raise StoreOwned("the store was made without store.user_hash_key; start without it, or with an empty store")
    elif meta.get(b"hash_check", _hash_check(key)) != _hash_check(key):
        raise StoreOwned("the store was made with another store.user_hash_key")
