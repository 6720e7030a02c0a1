"""Records of integers in the store: reading several at the same moment, and decoding their bytes with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import redis.exceptions

from monitor.errors import StoreOwned
from monitor.metrics import Ints
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore

_INTEGER: Final = np.dtype(">i8")
_HEAD: Final = Struct(">HH")
_LARGEST_RUN: Final = (1 << 15) - 1
"""Integers of a run or a chunk; the bit above marks runs with large ones, for commit.lua."""
_REDIRECTED: Final = (
    redis.exceptions.MovedError,
    # The master may be gone, and its replica have taken over.
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
)


def transaction(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the replies to commands that only read, all at the same moment. Each command's second word is a key.

    Raises `StoreUnavailable`, or `StoreOwned` that names the first key with a value of another type.
    """
    if not commands:
        return []
    with unavailable(store.settings):
        try:
            replies = _executed(store, commands)
        except _REDIRECTED:
            if not store.clustered:
                raise
            # A command outside a transaction has a cluster's client look for the master after each of these errors.
            store.on_own_node(store.client.execute_command, "HGET", store.keys.meta, "seq")
            replies = _executed(store, commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise redis.exceptions.ResponseError(f"{command[1].decode()}: {reply}") from reply
    return replies


def _executed(store: RedisStore, commands: Sequence[Sequence[Any]]) -> list[Any]:
    with store.client.pipeline(transaction=True) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies


def values(store: RedisStore, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of keys at the same moment, None for a key without value. Raises the errors of `transaction`.

    MGET replies None to a value of another type, too. GET replies an error.
    """
    replies = store.values(keys)
    transaction(store, [("GET", key) for key, value in zip(keys, replies, strict=True) if value is None])
    return replies


def decode_record(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a record, none if nothing is stored; raises `StoreOwned` for other bytes."""
    content = stored or b""
    if len(content) % _INTEGER.itemsize:
        raise _damaged(key, f"{len(content)} bytes are no whole number of integers")
    return np.frombuffer(content, _INTEGER).astype(np.int64)


def decode_records(keys: Sequence[bytes], stored: Sequence[bytes | None], width: int) -> Ints:
    """Return the integers of records as rows of a table of this width, zeros where nothing is stored.

    Raises `StoreOwned` for other bytes, and for a record with more integers.
    """
    row_bytes = width * _INTEGER.itemsize
    for key, record in zip(keys, stored, strict=True):
        if record is not None and (len(record) % _INTEGER.itemsize or len(record) > row_bytes):
            raise _damaged(key, f"{len(record)} bytes are no {width} integers or fewer")
    table = b"".join([(record or b"").ljust(row_bytes, b"\0") for record in stored])
    return np.frombuffer(table, _INTEGER).reshape(-1, width).astype(np.int64)


def decode_chunk(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a chunk of time buckets, up to the end of its longest run; see `add_chunk`."""
    total = np.zeros(_LARGEST_RUN, dtype=np.int64)
    return total[: add_chunk(total, key, stored)]


def add_chunk(total: Ints, key: bytes, stored: bytes | None) -> int:
    """Add the integers of a chunk of time buckets, which is stored as runs (`monitor.engine.row_codec`), to a total.

    Return where in the total the last run ends. Raises `StoreOwned` for other bytes, and for more integers.
    """
    content, offset, last_end = stored or b"", 0, 0
    size = len(content)
    while offset < size:
        first, count = _HEAD.unpack_from(content, offset) if offset + _HEAD.size <= size else (0, _LARGEST_RUN)
        count &= _LARGEST_RUN
        end = first + count
        offset += _HEAD.size
        if offset + count * _INTEGER.itemsize > size:
            raise _damaged(key, f"{size} bytes end within a run")
        if end > len(total):
            raise _damaged(key, f"{end} integers, expected {len(total)} or fewer")
        part = total[first:end]
        part += np.frombuffer(content, _INTEGER, count, offset)
        offset += count * _INTEGER.itemsize
        last_end = max(last_end, end)
    return last_end


def encode_chunk(integers: Ints) -> bytes:
    """Return up to 32 767 integers as one run, no bytes for no integers; a chunk with the most metrics has 10 496.

    The run is without the mark of large integers, which is for commit.lua.
    """
    return len(integers).to_bytes(_HEAD.size, "big") + integers.astype(_INTEGER).tobytes() if len(integers) else b""


def _damaged(key: bytes, reason: str) -> StoreOwned:
    return StoreOwned(
        f"{key.decode()} is damaged ({reason}): the store cannot be trusted. `ab-monitor rebuild` makes a new one"
    )
