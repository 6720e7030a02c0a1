"""Warnings about unsafe settings of the Redis or Valkey servers of a store, and about reasons to reject writes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import redis.exceptions

from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import StoreShard

_MIN_VERSIONS: Final = {"redis": (6, 2), "valkey": (7, 2)}


def read_server_warnings(store: ShardedStore) -> list[str]:
    """Return a sentence for each unsafe setting of the servers, and for each reason to reject writes.

    Raises `StoreUnavailable`.
    """
    with translating_errors(store.settings):
        return list(
            dict.fromkeys(
                [*_uneven_shards(store), *(warning for shard in store for warning in _server_warnings(shard))]
            )
        )


def _uneven_shards(store: ShardedStore) -> list[str]:
    """Return a warning if masters of a cluster have no shard while other masters have several."""
    if not hasattr(store.client, "get_primaries"):
        return []
    masters = len(store.client.get_primaries())
    used = len({store.client.get_node_from_key(shard.keys.meta).name for shard in store})
    if used == min(masters, len(store)):
        return []
    warning = (
        f"the {len(store)} shards of the store are on {used} of {masters} masters: move slots to the other masters, or "
        "increase store.shards and run `ab-monitor rebuild`"
    )
    return [warning]


def _server_warnings(store: StoreShard) -> list[str]:
    sentences = []
    server = store.execute_on_node(store.client.info, "server")
    name = "valkey" if "valkey_version" in server else "redis"
    version = str(server.get(f"{name}_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _MIN_VERSIONS[name]:
        sentences.append(
            f"{name} {version} is older than {'.'.join(map(str, _MIN_VERSIONS[name]))}, the oldest supported version: "
            "upgrade the server"
        )
    memory = store.execute_on_node(store.client.info, "memory")
    policy = memory.get("maxmemory_policy")
    if policy is not None and policy != "noeviction":
        sentences.append(
            f"maxmemory-policy is {policy}, so the server may delete aggregates and rows: set maxmemory-policy to "
            "noeviction"
        )
    persistence = store.execute_on_node(store.client.info, "persistence")
    if not persistence.get("aof_enabled"):
        if _read_save_setting(store) == "":
            sentences.append(
                "persistence is off, so a restart of the server loses all aggregates: set appendonly yes and "
                "appendfsync everysec"
            )
        else:
            sentences.append(
                "appendonly is off, so a crash of the server loses all writes since its last snapshot; events that "
                "Kafka has deleted are then lost: set appendonly yes and appendfsync everysec"
            )
    return [*sentences, *_write_obstacles(memory, persistence)]


def _write_obstacles(memory: Mapping[str, Any], persistence: Mapping[str, Any]) -> Iterator[str]:
    """Yield a sentence for each reason why the server rejects writes, though it answers reads; from its INFO."""
    if persistence.get("rdb_last_bgsave_status") == "err" or persistence.get("aof_last_write_status") == "err":
        yield (
            "the server could not write its last snapshot or its append-only file, so it may reject all writes "
            "(MISCONF): free disk space of the server"
        )
    limit_bytes = int(memory.get("maxmemory", 0))
    if 0 < limit_bytes <= int(memory.get("used_memory", 0)):
        yield f"the server uses all of its maxmemory ({limit_bytes} bytes), so it rejects writes (OOM): raise maxmemory"


def _read_save_setting(store: StoreShard) -> str | None:
    """Return the server's `save` setting; None if the user has no right to read it."""
    try:
        return str(store.execute_on_node(store.client.config_get, "save").get("save", ""))
    except redis.exceptions.ResponseError:
        return None
