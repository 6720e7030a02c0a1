"""Records of integers in the store: several read as of one moment, and the integers that their bytes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import redis.exceptions

from monitor.aggregates import Ints
from monitor.errors import StoreOwned
from monitor.store.connection import unavailable
from monitor.store.redis import RedisStore

_INTEGER_BYTES: Final = 8
_HEAD_BYTES: Final = 4
_MOST: Final = (1 << 15) - 1
"""Integers of a run; the bit above marks large ones, for commit.lua."""
_REDIRECTED: Final = (
    redis.exceptions.MovedError,
    # The master may be gone, and its replica have taken over.
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
)


def at_once(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the replies to reading commands, whose second word is a key of the shard, as of one moment.

    Raises `StoreUnavailable`, or `StoreOwned` that names the key where a value of another type is stored.
    """
    if not commands:
        return []
    with unavailable(store.settings):
        try:
            replies = _transaction(store, commands)
        except _REDIRECTED:
            if not store.clustered:
                raise
            # A command outside a transaction has a cluster's client look for the master after each of these errors.
            store.on_own_node(store.client.execute_command, "HGET", store.keys.meta, "seq")
            replies = _transaction(store, commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise redis.exceptions.ResponseError(f"{command[1].decode()}: {reply}") from reply
    return replies


def _transaction(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    with store.client.pipeline(transaction=True) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies


def values(store: RedisStore, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of keys as of one moment: None where there is none. Raises what `at_once` raises.

    MGET replies nothing for a value of another type, GET an error that names it.
    """
    found = store.values(keys)
    at_once(store, [("GET", key) for key, value in zip(keys, found, strict=True) if value is None])
    return found


def decode_record(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a record, none if nothing is stored; raises `StoreOwned` for other bytes."""
    content = stored or b""
    if len(content) % _INTEGER_BYTES:
        raise _damaged(key, f"{len(content)} bytes are no whole number of integers")
    return np.frombuffer(content, dtype=">i8").astype(np.int64)


def decode_records(keys: Sequence[bytes], stored: Sequence[bytes | None], width: int) -> Ints:
    """Return the integers of records as rows of a table, zeros where nothing is stored.

    Raises `StoreOwned` for other bytes, and for more than `width` integers.
    """
    for key, record in zip(keys, stored, strict=True):
        if record is not None and (len(record) % _INTEGER_BYTES or len(record) > _INTEGER_BYTES * width):
            raise _damaged(key, f"{len(record)} bytes are no {width} integers or fewer")
    whole = b"".join([(record or b"").ljust(_INTEGER_BYTES * width, b"\0") for record in stored])
    return np.frombuffer(whole, dtype=">i8").reshape(-1, width).astype(np.int64)


def decode_chunk(key: bytes, stored: bytes | None, width: int | None = None) -> Ints:
    """Return the integers that the runs of a chunk of time buckets add up to (`monitor.store.runs`).

    They are `width` many; by default as many as any run reaches. Raises `StoreOwned` for other bytes or more integers.
    """
    content, at = stored or b"", 0
    runs: list[tuple[int, Ints]] = []
    while at < len(content):
        head = content[at : at + _HEAD_BYTES].ljust(_HEAD_BYTES, b"\xff")
        first, count = int.from_bytes(head[:2], "big"), int.from_bytes(head[2:], "big") & _MOST
        at += _HEAD_BYTES
        if at + _INTEGER_BYTES * count > len(content):
            raise _damaged(key, f"{len(content)} bytes end within a run")
        runs.append((first, np.frombuffer(content, ">i8", count, at)))
        at += _INTEGER_BYTES * count
    reach = max((first + len(run) for first, run in runs), default=0)
    if width is not None and reach > width:
        raise _damaged(key, f"{reach} integers, expected {width} or fewer")
    total = np.zeros(reach if width is None else width, dtype=np.int64)
    for first, run in runs:
        total[first : first + len(run)] += run
    return total


def encode_chunk(integers: Ints) -> bytes:
    """Return up to 32 767 integers as one run, nothing for none; a chunk with the most metrics has 10 496.

    The run is without the mark of large integers, which is for commit.lua.
    """
    return len(integers).to_bytes(_HEAD_BYTES, "big") + integers.astype(">i8").tobytes() if len(integers) else b""


def _damaged(key: bytes, why: str) -> StoreOwned:
    return StoreOwned(
        f"{key.decode()} is damaged ({why}): the store cannot be trusted. `ab-monitor rebuild` makes a new one"
    )
