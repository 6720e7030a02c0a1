"""What an operator should know of a store before trusting it with aggregates."""

from __future__ import annotations

from typing import Final

import redis.exceptions

from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards

_OLDEST: Final = {"redis": (6, 2), "valkey": (7, 2)}


def warnings(store: Shards) -> list[str]:
    """Return what is unsafe in the servers' settings, a sentence each; raises `StoreUnavailable`."""
    with unavailable(store.settings):
        return list(dict.fromkeys([*_crowded(store), *(warning for shard in store for warning in _warnings(shard))]))


def _crowded(store: Shards) -> list[str]:
    """Return whether masters of a cluster are idle while others hold several shards."""
    if not hasattr(store.client, "get_primaries"):
        return []
    masters = len(store.client.get_primaries())
    used = len({store.client.get_node_from_key(shard.keys.meta).name for shard in store})
    if used == min(masters, len(store)):
        return []
    return [
        f"the {len(store)} shards lie on {used} of {masters} masters: move slots, or rebuild with more store.shards"
    ]


def _warnings(store: RedisStore) -> list[str]:
    found = []
    server = store.on_own_node(store.client.info, "server")
    name = "valkey" if "valkey_version" in server else "redis"
    version = str(server.get(f"{name}_version", "0.0"))
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST[name]:
        found.append(
            f"{name} {version} is older than {'.'.join(map(str, _OLDEST[name]))}, the oldest that is supported"
        )
    memory = store.on_own_node(store.client.info, "memory")
    policy = memory.get("maxmemory_policy")
    if policy is not None and policy != "noeviction":
        found.append(f"maxmemory-policy is {policy}: the store may evict aggregates and rows; set it to noeviction")
    persistence = store.on_own_node(store.client.info, "persistence")
    if not persistence.get("aof_enabled"):
        if _snapshots(store) == "":
            found.append(
                "nothing is persisted: a restart loses every aggregate; set appendonly yes, appendfsync everysec"
            )
        else:
            found.append(
                "appendonly is off: a crash loses what came after the last snapshot, to be applied again from Kafka "
                "only as far back as Kafka keeps it; set appendonly yes, appendfsync everysec"
            )
    return found


def _snapshots(store: RedisStore) -> str | None:
    """Return the `save` setting; None where this user may not read it."""
    try:
        return str(store.on_own_node(store.client.config_get, "save").get("save", ""))
    except redis.exceptions.ResponseError:
        return None
