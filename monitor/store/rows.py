"""Rows as bytes: four bytes of version (big-endian; they only tell states apart), then the content.

A response's is a MessagePack array, a student's see `monitor.students`.
"""

from __future__ import annotations

import msgspec
import numpy as np

from monitor.aggregates import Ints
from monitor.attribution import Row
from monitor.errors import StoreOwned
from monitor.students import Student

_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(
    tuple[
        int, int, bytes, bytes, tuple[int, ...] | None, int, int, tuple[tuple[int, str, bytes, bytes, str, float], ...]
    ]
).decode

VERSION_BYTES = 4


def encode_row(row: Row) -> bytes:
    """Return the bytes of a row; the arm comes first, where the sweep looks for it."""
    return row.version.to_bytes(VERSION_BYTES, "big") + _encode(
        (row.arm, row.timestamp_ms, row.student, row.items, row.ranks, row.latency_ms, row.category, row.reactions)
    )


def decode_row(stored: bytes) -> Row:
    """Return the row that `encode_row` wrote; raises `StoreOwned` for anything else."""
    try:
        arm, timestamp_ms, student, items, ranks, latency_ms, category, reactions = _decode_row(
            memoryview(stored)[VERSION_BYTES:]
        )
    except msgspec.MsgspecError as error:
        raise _damaged("the row of a response", error) from None
    version = int.from_bytes(stored[:VERSION_BYTES])
    return Row(timestamp_ms, arm, student, items, ranks, latency_ms, category, reactions, version)


def decode_student(stored: bytes, width: int) -> Student:
    """Return the student that `Student.encode` wrote, with sums vectors of `width`; raises `StoreOwned`."""
    try:
        return Student.decode(stored, width)
    except ValueError as error:
        raise _damaged("the row of a student", error) from None


def decode_record(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a record over responses or students, none if there is nothing; raises `StoreOwned`."""
    if stored is not None and len(stored) % 8:
        raise _damaged(key.decode(), f"{len(stored)} bytes are no whole number of integers")
    return np.frombuffer(stored or b"", dtype=">i8").astype(np.int64)


def _damaged(what: str, why: object) -> StoreOwned:
    return StoreOwned(f"{what} is damaged ({why}): the store cannot be trusted. `ab-monitor rebuild` makes a new one")
