"""Warnings about unsafe settings of the Redis or Valkey servers of a store."""

from __future__ import annotations

from typing import Final

import redis.exceptions

from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_shard import StoreShard

_MIN_VERSIONS: Final = {"redis": (6, 2), "valkey": (7, 2)}


def read_server_warnings(store: ShardedStore) -> list[str]:
    """Return a sentence for each unsafe setting of the servers. Raises `StoreUnavailable`."""
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
    return sentences


def _read_save_setting(store: StoreShard) -> str | None:
    """Return the server's `save` setting; None if the user has no right to read it."""
    try:
        return str(store.execute_on_node(store.client.config_get, "save").get("save", ""))
    except redis.exceptions.ResponseError:
        return None
