"""Consistent reading of records and chunks, and decoding of their integers with numpy."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import Any, Final

import numpy as np
import redis.exceptions

from monitor.errors import CorruptStore
from monitor.metrics import IntArray
from monitor.state.redis_connection import translating_errors
from monitor.state.store_shard import StoreShard

_INTEGER: Final = np.dtype(">i8")
_RUN_HEAD: Final = Struct(">HH")
_MAX_RUN_INTEGERS: Final = (1 << 15) - 1
"""Largest number of integers in a run or chunk; the next bit marks runs with large integers, for lua/commit.lua."""
_REDIRECTION_ERRORS: Final = (
    redis.exceptions.MovedError,
    # The master may have failed, and a replica may have replaced the master.
    redis.exceptions.ConnectionError,
    redis.exceptions.TimeoutError,
)


def read_in_transaction(store: StoreShard, commands: Sequence[Sequence[Any]]) -> list[Any]:
    """Return the replies to read commands, all at the same moment; the second word of a command is a key.

    Raises `StoreUnavailable`, or `CorruptStore` that names the first key with a value of another type.
    """
    if not commands:
        return []
    with translating_errors(store.settings):
        try:
            replies = _execute(store, commands)
        except _REDIRECTION_ERRORS:
            if not store.clustered:
                raise
            # After such an error, a command outside a transaction makes the cluster client find the current master.
            store.execute_on_node(store.client.execute_command, "HGET", store.keys.meta, "commits")
            replies = _execute(store, commands)
        for command, reply in zip(commands, replies, strict=True):
            if isinstance(reply, Exception):
                raise redis.exceptions.ResponseError(f"{command[1].decode()}: {reply}") from reply
    return replies


def _execute(store: StoreShard, commands: Sequence[Sequence[Any]]) -> list[Any]:
    with store.client.pipeline(transaction=True) as pipeline:
        for command in commands:
            pipeline.execute_command(*command)
        replies: list[Any] = pipeline.execute(raise_on_error=False)
    return replies


def read_records(store: StoreShard, keys: Sequence[bytes]) -> list[bytes | None]:
    """Return the values of keys, all at the same moment; None for a key without a value.

    Raises the errors of `read_in_transaction`. MGET returns None for a value of another type as well. So GET is sent
    for each None, which returns an error for another type.
    """
    replies = store.read_values(keys)
    read_in_transaction(store, [("GET", key) for key, value in zip(keys, replies, strict=True) if value is None])
    return replies


def decode_record(key: bytes, stored: bytes | None) -> IntArray:
    """Return the integers of a record; an empty array for a key without value. Raises `CorruptStore`."""
    content = stored or b""
    if len(content) % _INTEGER.itemsize:
        raise _damaged(key, f"{len(content)} bytes, expected a multiple of {_INTEGER.itemsize}")
    return np.frombuffer(content, _INTEGER).astype(np.int64)


def decode_records(keys: Sequence[bytes], stored: Sequence[bytes | None], width: int) -> IntArray:
    """Return a table of records × `width` integers; absent integers are 0.

    Raises `CorruptStore` for other bytes, and for a record with more integers.
    """
    row_bytes = width * _INTEGER.itemsize
    for key, record in zip(keys, stored, strict=True):
        if record is not None and (len(record) % _INTEGER.itemsize or len(record) > row_bytes):
            raise _damaged(key, f"{len(record)} bytes, expected at most {width} integers of {_INTEGER.itemsize} bytes")
    table = b"".join([(record or b"").ljust(row_bytes, b"\0") for record in stored])
    return np.frombuffer(table, _INTEGER).reshape(-1, width).astype(np.int64)


def decode_chunk(key: bytes, stored: bytes | None) -> IntArray:
    """Return the integers of a chunk of time buckets, up to the largest end of a run; see `add_chunk`."""
    total = np.zeros(_MAX_RUN_INTEGERS, dtype=np.int64)
    return total[: add_chunk(total, key, stored)]


def add_chunk(total: IntArray, key: bytes, stored: bytes | None) -> int:
    """Add the runs of a chunk of time buckets (`monitor.engine.row_codec`) to a total, in place.

    Return the largest end of a run. Raises `CorruptStore` for other bytes, and for more integers.
    """
    content, offset, largest_end = stored or b"", 0, 0
    size = len(content)
    while offset < size:
        first, count = (
            _RUN_HEAD.unpack_from(content, offset) if offset + _RUN_HEAD.size <= size else (0, _MAX_RUN_INTEGERS)
        )
        count &= _MAX_RUN_INTEGERS
        end = first + count
        offset += _RUN_HEAD.size
        if offset + count * _INTEGER.itemsize > size:
            raise _damaged(key, f"{size} bytes end within a run of integers")
        if end > len(total):
            raise _damaged(key, f"{end} integers, expected at most {len(total)}")
        changed = total[first:end]
        changed += np.frombuffer(content, _INTEGER, count, offset)
        offset += count * _INTEGER.itemsize
        largest_end = max(largest_end, end)
    return largest_end


def encode_chunk(integers: IntArray) -> bytes:
    """Return up to 32 767 integers as a run; no bytes for no integers. The largest chunk has 10 496 integers.

    The run has no mark for large integers, because only lua/commit.lua uses the mark, and not for chunks.
    """
    return len(integers).to_bytes(_RUN_HEAD.size, "big") + integers.astype(_INTEGER).tobytes() if len(integers) else b""


def _damaged(key: bytes, reason: str) -> CorruptStore:
    return CorruptStore(
        f"the store key {key.decode()} is damaged ({reason}). Other values may be damaged as well: run "
        "`ab-monitor rebuild`, which computes the aggregates again from Kafka"
    )
