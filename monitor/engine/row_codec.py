"""The stored bytes of rows, and of changes of stored sums.

A row is a fixed head (big-endian), then a msgpack array.

| row | head | array |
| --- | --- | --- |
| response | version (4 bytes), arm (4, signed), ms (8) | kinds, student, items, ranks, latency, category, reactions |
| student | version (4) | time, variant and category of the first response, blocks |

The kinds of the reactions stand apart only while there is no response: sweep.lua counts them when such a row expires,
and Redis' MessagePack cannot read the binary strings of the other elements.

`monitor.engine.response_row` and `monitor.engine.student` document the elements. A version grows by 1 with each
write; commit.lua compares it, and sweep.lua reads arm, time and kinds.

A change of a stored vector of 64-bit integers is packed as runs of neighbours for the commit script. A run is two bytes
of the index of its first integer, two bytes of its length (32768 more if one of its integers is beyond the largest that
commit.lua adds at once), and the integers in eight bytes each, all big-endian.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from struct import Struct, pack, unpack_from
from typing import Final

import msgspec
from mypy_extensions import i64

from monitor.engine.id_hash import ITEM_BYTES, STUDENT_BYTES, TAG_BYTES
from monitor.engine.response_row import MAX_REACTIONS, MISSING, NO_RESPONSE, Reaction, ResponseRow
from monitor.engine.student import BLOCK_HEAD, Student
from monitor.errors import StoreOwned

_RESPONSE_HEAD: Final = Struct(">IiQ")
_STUDENT_HEAD: Final = Struct(">I")
_TIME_BITS: Final = 48
_FIRST: Final = 3
"""Integers of a student before its blocks."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_response: Final = msgspec.msgpack.Decoder(
    tuple[
        list[str] | None,
        bytes,
        bytes,
        tuple[int, ...] | None,
        int,
        int,
        tuple[tuple[int, str, bytes, bytes, str, float], ...],
    ]
).decode
_decode_student: Final = msgspec.msgpack.Decoder(list[int]).decode


def encode_response(row: ResponseRow) -> bytes:
    """Return the stored bytes of a response."""
    head = _RESPONSE_HEAD.pack(row.version, row.arm, row.timestamp_ms)
    kinds = [reaction[4] for reaction in row.reactions] if row.arm == NO_RESPONSE else None
    body: bytes = _encode((kinds, row.student, row.items, row.ranks, row.latency_ms, row.category, row.reactions))
    return head + body


def decode_response(stored: bytes) -> ResponseRow:
    """Return the response that `encode_response` wrote; raises `StoreOwned` for other bytes."""
    row = ResponseRow()
    read_response(row, stored)
    return row


def read_response(row: ResponseRow, stored: bytes) -> None:
    """Set a row to the response that `encode_response` wrote; raises `StoreOwned` for other bytes."""
    try:
        _read_response(row, stored)
    except (ValueError, msgspec.MsgspecError) as error:
        raise damaged("the row of a response", error) from None


def _read_response(row: ResponseRow, stored: bytes) -> None:
    if len(stored) < _RESPONSE_HEAD.size:
        raise ValueError(f"{len(stored)} bytes, expected at least {_RESPONSE_HEAD.size}")
    version, arm, timestamp_ms = _RESPONSE_HEAD.unpack_from(stored)
    body = _decode_response(memoryview(stored)[_RESPONSE_HEAD.size :])
    _, student, items, ranks, latency_ms, category, reactions = body
    count = len(items) // ITEM_BYTES
    if (
        arm < NO_RESPONSE
        or timestamp_ms >> _TIME_BITS
        or len(student) not in (0, STUDENT_BYTES)
        or len(items) != count * ITEM_BYTES
        or (ranks is not None and len(ranks) != count)
        or min(latency_ms, category) < MISSING
        or len(reactions) > MAX_REACTIONS
    ):
        raise ValueError(
            f"arm {arm}, time {timestamp_ms}, a student of {len(student)} bytes, items of {len(items)}, "
            f"ranks {ranks}, latency {latency_ms}, category {category}, {len(reactions)} reactions"
        )
    for reaction in reactions:
        _check_reaction(reaction)
    row.timestamp_ms = timestamp_ms
    row.arm = arm
    row.student = student
    row.items = items
    row.ranks = ranks
    row.latency_ms = latency_ms
    row.category = category
    row.reactions = reactions
    row.version = version


def _check_reaction(reaction: Reaction) -> None:
    at_ms, _, tag, item, _, score = reaction
    if at_ms < 0 or at_ms >> _TIME_BITS:
        raise ValueError(f"a reaction at {at_ms} ms, expected 0 to 2^{_TIME_BITS}")
    if len(tag) not in (0, TAG_BYTES) or len(item) not in (0, ITEM_BYTES):
        raise ValueError(f"a reaction by {len(tag)} bytes of student to {len(item)} bytes of item")
    if not 0 <= score < math.inf:
        raise ValueError(f"a score of {score}, expected a finite number from 0")


def encode_student(student: Student) -> bytes:
    """Return the stored bytes of a student."""
    first = [student.first_ms, student.first_variant, student.first_category]
    body: bytes = _encode(first + student.blocks)
    return _STUDENT_HEAD.pack(student.version) + body


def decode_student(stored: bytes, width: int) -> Student:
    """Return the student that `encode_student` wrote, with sums vectors of `width`; raises `StoreOwned`."""
    student = Student(width)
    read_student(student, stored)
    return student


def read_student(student: Student, stored: bytes) -> None:
    """Set a student to the one that `encode_student` wrote; raises `StoreOwned` for other bytes."""
    try:
        _read_student(student, stored)
    except (ValueError, msgspec.MsgspecError) as error:
        raise damaged("the row of a student", error) from None


def _read_student(student: Student, stored: bytes) -> None:
    integers = _decode_student(memoryview(stored)[_STUDENT_HEAD.size :])
    step = student.width + BLOCK_HEAD
    if len(integers) < _FIRST or (len(integers) - _FIRST) % step:
        raise ValueError(f"{len(integers)} integers, expected {_FIRST} and blocks of {step}")
    (student.version,) = _STUDENT_HEAD.unpack_from(stored)
    student.first_ms, student.first_variant, student.first_category = integers[0], integers[1], integers[2]
    student.blocks = integers[_FIRST:]


def damaged(value: str, reason: object) -> StoreOwned:
    """Return the error for a stored value that cannot be read."""
    return StoreOwned(
        f"{value} is damaged ({reason}): the store cannot be trusted. `ab-monitor rebuild` makes a new one"
    )


_MAX_RUN: Final = 1000
"""Integers of a run: Lua unpacks 8 000 values at once, and a run needs two for each integer."""
_MAX_GAP: Final = 16
"""Zeros between two integers of one run; a larger gap begins another run."""
_WIDE: Final = 1 << 15
_LARGEST: Final = 1 << 51


def pack_runs(vectors: Iterable[tuple[int, list[int]]]) -> bytes:
    """Return the runs of some vectors' integers, b"" if all are 0.

    A vector is the index of its first integer and the integers; indices ascend from one vector to the next.
    """
    packed = []
    run: list[int] = []
    start: i64 = 0
    for first, integers in vectors:
        index: i64 = first
        for number in integers:
            if number:
                gap = index - start - i64(len(run))
                if not run or gap > _MAX_GAP or i64(len(run)) + gap >= _MAX_RUN:
                    if run:
                        packed.append(_pack_run(start, run))
                    run = []
                    start = index
                    gap = 0
                while gap > 0:
                    run.append(0)
                    gap -= 1
                run.append(number)
            index += 1
    if run:
        packed.append(_pack_run(start, run))
    return b"".join(packed)


def _pack_run(start: int, run: list[int]) -> bytes:
    wide = max(run) > _LARGEST or min(run) < -_LARGEST
    return pack(f">HH{len(run)}q", start, len(run) | (_WIDE if wide else 0), *run)


def unpack_runs(packed: bytes) -> list[tuple[int, int]]:
    """Return the (index, change) pairs of packed runs."""
    changes: list[tuple[int, int]] = []
    at = 0
    while at < len(packed):
        first, length = unpack_from(">HH", packed, at)
        count = length & ~_WIDE
        changes += enumerate(unpack_from(f">{count}q", packed, at + 4), first)
        at += 4 + 8 * count
    return changes
