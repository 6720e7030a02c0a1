"""Rows as bytes: four bytes of version (big-endian; they only tell states apart), then a MessagePack array."""

from __future__ import annotations

import msgspec
import numpy as np

from monitor.aggregates import Ints
from monitor.attribution import Row, Student
from monitor.errors import StoreOwned

_encode = msgspec.msgpack.Encoder().encode
_decode_row = msgspec.msgpack.Decoder(
    tuple[int, int, bytes, bytes, tuple[int, ...] | None, list[tuple[int, str, bytes, bytes, str, float]]]
).decode
_decode_student = msgspec.msgpack.Decoder(tuple[int, int, list[list[int]], list[list[int]]]).decode

VERSION_BYTES = 4


def encode_row(row: Row) -> bytes:
    """Return the bytes of a row; the arm comes first, where the sweep looks for it."""
    return row.version.to_bytes(VERSION_BYTES) + _encode(
        (row.arm, row.timestamp_ms, row.student, row.items, row.ranks, row.reactions)
    )


def decode_row(stored: bytes) -> Row:
    """Return the row that `encode_row` wrote; raises `StoreOwned` for anything else."""
    try:
        arm, timestamp_ms, student, items, ranks, reactions = _decode_row(memoryview(stored)[VERSION_BYTES:])
    except msgspec.MsgspecError as error:
        raise _damaged("the row of a response", error) from None
    return Row(timestamp_ms, arm, student, items, ranks, reactions, int.from_bytes(stored[:VERSION_BYTES]))


def encode_student(student: Student) -> bytes:
    """Return the bytes of a student's row; sums without what is zero at their end."""
    totals, days = student.totals, student.days
    return student.version.to_bytes(VERSION_BYTES) + _encode(
        (
            student.first_ms,
            student.first_variant,
            [[variant, *_trimmed(totals[variant])] for variant in (totals if len(totals) == 1 else sorted(totals))],
            [[*key, *_trimmed(days[key])] for key in (days if len(days) == 1 else sorted(days))],
        )
    )


def decode_student(stored: bytes, width: int) -> Student:
    """Return the student that `encode_student` wrote, with sums vectors of `width`; raises `StoreOwned`."""
    try:
        first_ms, first_variant, totals, days = _decode_student(memoryview(stored)[VERSION_BYTES:])
        return Student(
            first_ms,
            first_variant,
            {variant: _padded(sums, width) for variant, *sums in totals},
            {(variant, day): _padded(sums, width) for variant, day, *sums in days},
            int.from_bytes(stored[:VERSION_BYTES]),
        )
    except (msgspec.MsgspecError, ValueError) as error:
        raise _damaged("the row of a student", error) from None


def decode_record(key: bytes, stored: bytes | None) -> Ints:
    """Return the integers of a record over responses or students, none if there is nothing; raises `StoreOwned`."""
    if stored is not None and len(stored) % 8:
        raise _damaged(key.decode(), f"{len(stored)} bytes are no whole number of integers")
    return np.frombuffer(stored or b"", dtype=">i8").astype(np.int64)


def _damaged(what: str, why: object) -> StoreOwned:
    return StoreOwned(f"{what} is damaged ({why}): the store cannot be trusted. `ab-monitor rebuild` makes a new one")


def _trimmed(sums: list[int]) -> list[int]:
    """Return the sums without their undefined counts if those are 0, and only the responses if the rest is."""
    if not any(sums[1:]):
        return sums[:1]
    half = len(sums) // 2 + 1
    return sums if any(sums[half:]) else sums[:half]


def _padded(sums: list[int], width: int) -> list[int]:
    return sums + [0] * (width - len(sums))
