"""The stored bytes of rows: a fixed head (big-endian), then a msgpack array.

| row | head | array |
| --- | --- | --- |
| response | version (4 bytes), arm (4, signed), ms (8) | kinds, student, items, ranks, latency, category, reactions |
| student | version (4) | time, variant and category of the first response, blocks without trailing zeros |

The kinds of the reactions stand apart only while there is no response: sweep.lua counts them when such a row expires,
and Redis' MessagePack cannot read the binary strings of the other elements.

`monitor.engine.response_row` and `monitor.engine.student` document the elements. A version grows by 1 with each
write; commit.lua compares it, and sweep.lua reads arm, time and kinds.
"""

from __future__ import annotations

import math
from struct import Struct
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
_decode_student: Final = msgspec.msgpack.Decoder(tuple[int, int, int, list[list[int]]]).decode


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
    blocks, step = student.blocks, student.width + BLOCK_HEAD
    stripped: list[list[int]] = []
    at: i64 = 0
    while at < i64(len(blocks)):
        end = at + step
        while blocks[end - 1] == 0 and end > at + BLOCK_HEAD:
            end -= 1
        stripped.append(blocks[at:end])
        at += step
    body: bytes = _encode((student.first_ms, student.first_variant, student.first_category, stripped))
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
    first_ms, first_variant, first_category, stripped = _decode_student(memoryview(stored)[_STUDENT_HEAD.size :])
    step = student.width + BLOCK_HEAD
    blocks: list[int] = []
    for block in stripped:
        if not BLOCK_HEAD <= len(block) <= step:
            raise ValueError(f"a block of {len(block)} integers, expected {BLOCK_HEAD} to {step}")
        blocks += block
        blocks += [0] * (step - len(block))
    (student.version,) = _STUDENT_HEAD.unpack_from(stored)
    student.first_ms = first_ms
    student.first_variant = first_variant
    student.first_category = first_category
    student.blocks = blocks


def damaged(value: str, reason: object) -> StoreOwned:
    """Return the error for a stored value that cannot be read."""
    return StoreOwned(
        f"{value} is damaged ({reason}): the store cannot be trusted. `ab-monitor rebuild` makes a new one"
    )
