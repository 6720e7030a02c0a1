"""Several readings as of one moment of a shard: a transaction, without what redis-py's pipeline makes of each reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import redis.exceptions

from monitor.store.connection import unavailable
from monitor.store.redis import RedisStore

_ELSEWHERE: Final = (
    redis.exceptions.MovedError,
    # Of a master that is gone: its replica may have taken over.
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
)


def at_once(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the replies to commands, which must not watch keys; of a hash see `pairs`. Raises `StoreUnavailable`."""
    with unavailable(store.settings):
        try:
            return _replies(store, commands)
        except _ELSEWHERE:
            if not store.clustered:
                raise
            # By such a command a cluster's client learns who holds this shard by now.
            store.on_own_node(store.client.execute_command, "HGET", store.keys.meta, "seq")
            return _replies(store, commands)


def values(store: RedisStore, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of keys as of one moment: None where there is none.

    Raises `StoreOwned` where something else than a value is stored: MGET says of that what it says of nothing.
    """
    found = store.values(keys)
    at_once(store, [("GET", key) for key, value in zip(keys, found, strict=True) if value is None])
    return found


def _replies(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    if not commands:
        return []
    pipeline = store.client.pipeline(transaction=True)
    for command in commands:
        pipeline.execute_command(*command)
    found: list[Any] = pipeline.execute(raise_on_error=False)
    for command, reply in zip(commands, found, strict=True):
        if isinstance(reply, Exception):
            raise redis.exceptions.ResponseError(f"{command[1].decode()}: {reply}") from reply
    return found
