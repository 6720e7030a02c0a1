"""Encoding of stored rows, and of the changes of stored vectors, as bytes.

A row is a fixed head (big-endian), then a msgpack array. The session is left out if the response has none.

| row | head (bytes) | array |
| --- | --- | --- |
| response | version 4, variant key 4, ms 8 | kinds, student, items, ranks, latency, category, reactions, session |
| student | version 4 | time, variant and category of the first response, blocks |

The kinds of reactions are listed separately only while the response is missing. expire.lua counts the kinds when such a
row expires, and the MessagePack library of Redis cannot read the binary strings of the other elements.

`monitor.engine.response_row` and `monitor.engine.student` document the elements. A version grows by 1 with each
write; commit.lua compares versions, and expire.lua reads variant key, time and kinds.

A change of a stored vector of 64-bit integers is packed as runs of consecutive integers for commit.lua. A run is the
index of its first integer (2 bytes), its length (2 bytes) and its integers (8 bytes each), all big-endian. The length
is raised by 32768 if the run has an integer beyond 2⁵¹, which commit.lua cannot add exactly in one float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from struct import Struct, pack, unpack_from
from typing import Final

import msgspec
from mypy_extensions import i64

from monitor.engine.id_hash import ITEM_HASH_BYTES, STUDENT_HASH_BYTES, STUDENT_TAG_BYTES
from monitor.engine.local_days import UTC_DAYS, LocalDays
from monitor.engine.response_row import MAX_REACTIONS, MISSING, NO_RESPONSE, WITHDRAWN, Reaction, ResponseRow
from monitor.engine.student import BLOCK_HEAD_LENGTH, Student
from monitor.errors import CorruptStore

_RESPONSE_HEAD: Final = Struct(">IiQ")
_STUDENT_HEAD: Final = Struct(">I")
_TIME_BITS: Final = 48
_STUDENT_FIELDS: Final = 3
"""Integers of a student before the blocks."""

_pack_body: Final = msgspec.msgpack.Encoder().encode
_unpack_response_body: Final = msgspec.msgpack.Decoder(
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
_unpack_response_with_session: Final = msgspec.msgpack.Decoder(
    tuple[
        list[str] | None,
        bytes,
        bytes,
        tuple[int, ...] | None,
        int,
        int,
        tuple[tuple[int, str, bytes, bytes, str, float], ...],
        int,
    ]
).decode
_ARRAY_OF_8: Final = 0x98
"""The first byte of a msgpack array of eight elements: of a response with a session."""
_unpack_student_body: Final = msgspec.msgpack.Decoder(list[int]).decode


def encode_response_row(row: ResponseRow) -> bytes:
    """Return the stored bytes of a response row."""
    head = _RESPONSE_HEAD.pack(row.version, row.variant_key, row.timestamp_ms)
    kinds = [reaction[4] for reaction in row.reactions] if row.variant_key == NO_RESPONSE else None
    fields = (kinds, row.student_hash, row.item_hashes, row.ranks, row.latency_ms, row.category, row.reactions)
    body: bytes = _pack_body(fields if row.session == MISSING else (*fields, row.session))
    return head + body


def decode_response_row(stored: bytes) -> ResponseRow:
    """Return the decoded row of a response; raises `CorruptStore` for invalid bytes."""
    row = ResponseRow()
    load_response_row(row, stored)
    return row


def load_response_row(row: ResponseRow, stored: bytes) -> None:
    """Set a row to the content of stored bytes; raises `CorruptStore` for other bytes."""
    try:
        _load_response_row(row, stored)
    except (ValueError, msgspec.MsgspecError) as error:
        raise damaged_value_error("the row of a response", error) from None


def _load_response_row(row: ResponseRow, stored: bytes) -> None:
    if len(stored) < _RESPONSE_HEAD.size:
        raise ValueError(f"{len(stored)} bytes, expected at least {_RESPONSE_HEAD.size}")
    version, variant_key, timestamp_ms = _RESPONSE_HEAD.unpack_from(stored)
    body, session = memoryview(stored)[_RESPONSE_HEAD.size :], MISSING
    if len(body) > 0 and body[0] == _ARRAY_OF_8:
        _, student_hash, item_hashes, ranks, latency_ms, category, reactions, session = _unpack_response_with_session(
            body
        )
    else:
        _, student_hash, item_hashes, ranks, latency_ms, category, reactions = _unpack_response_body(body)
    count = len(item_hashes) // ITEM_HASH_BYTES
    if (
        variant_key < NO_RESPONSE
        or timestamp_ms >> _TIME_BITS
        or len(student_hash) not in (0, STUDENT_HASH_BYTES)
        or len(item_hashes) != count * ITEM_HASH_BYTES
        or (ranks is not None and len(ranks) != count)
        or min(latency_ms, category, session) < MISSING
        or len(reactions) > MAX_REACTIONS
    ):
        raise ValueError(
            f"variant key {variant_key}, time {timestamp_ms}, a student of {len(student_hash)} bytes, "
            f"items of {len(item_hashes)} bytes, ranks {ranks}, latency {latency_ms}, category {category}, "
            f"{len(reactions)} reactions"
        )
    for reaction in reactions:
        _check_reaction(reaction)
    row.timestamp_ms = timestamp_ms
    row.variant_key = variant_key
    row.student_hash = student_hash
    row.item_hashes = item_hashes
    row.ranks = ranks
    row.latency_ms = latency_ms
    row.category = category
    row.reactions = reactions
    row.session = session
    row.version = version


def _check_reaction(reaction: Reaction) -> None:
    timestamp_ms, _, student_tag, item, _, score = reaction
    if timestamp_ms < 0 or timestamp_ms >> _TIME_BITS:
        raise ValueError(f"a reaction at {timestamp_ms} ms, expected 0 to 2^{_TIME_BITS}")
    if len(student_tag) not in (0, STUDENT_TAG_BYTES) or len(item) not in (0, ITEM_HASH_BYTES):
        raise ValueError(f"a reaction by {len(student_tag)} bytes of student to {len(item)} bytes of item")
    if not 0 <= score < math.inf and score != WITHDRAWN:
        raise ValueError(f"a score of {score}, expected a finite number from 0, or {WITHDRAWN:g} for a withdrawal")


def encode_student_row(student: Student) -> bytes:
    """Return the stored bytes of a student row."""
    first_exposure = [student.first_exposure_ms, student.first_variant, student.first_category]
    body: bytes = _pack_body(first_exposure + student.blocks)
    return _STUDENT_HEAD.pack(student.version) + body


def decode_student_row(stored: bytes, sums_width: int, days: LocalDays = UTC_DAYS) -> Student:
    """Return the decoded row of a student with sums vectors of a given length; raises `CorruptStore`."""
    student = Student(sums_width, days)
    load_student_row(student, stored)
    return student


def load_student_row(student: Student, stored: bytes) -> None:
    """Set a student to the content of stored bytes; raises `CorruptStore` for other bytes."""
    try:
        _load_student_row(student, stored)
    except (ValueError, msgspec.MsgspecError) as error:
        raise damaged_value_error("the row of a student", error) from None


def _load_student_row(student: Student, stored: bytes) -> None:
    integers = _unpack_student_body(memoryview(stored)[_STUDENT_HEAD.size :])
    block_width = student.sums_width + BLOCK_HEAD_LENGTH
    if len(integers) < _STUDENT_FIELDS or (len(integers) - _STUDENT_FIELDS) % block_width:
        raise ValueError(f"{len(integers)} integers, expected {_STUDENT_FIELDS} and blocks of {block_width}")
    (student.version,) = _STUDENT_HEAD.unpack_from(stored)
    student.first_exposure_ms, student.first_variant, student.first_category = integers[0], integers[1], integers[2]
    student.blocks = integers[_STUDENT_FIELDS:]


def damaged_value_error(value: str, reason: object) -> CorruptStore:
    """Return the error for a stored value that cannot be decoded; `value` describes the value."""
    return CorruptStore(f"{value} is damaged ({reason}). Other values may be damaged as well: run `ab-monitor rebuild`")


_MAX_RUN: Final = 1000
"""Most integers of a run. Lua unpacks at most 8 000 values per call, and a run needs two values per integer."""
_MAX_GAP: Final = 16
"""Most consecutive zeros in a run; after a longer gap another run begins."""
_WIDE_FLAG: Final = 1 << 15
"""Added to the length of a run with an integer beyond `_MAX_NARROW_INTEGER`."""
_MAX_NARROW_INTEGER: Final = 1 << 51
"""commit.lua adds integers up to this absolute value in one float64."""


def pack_vector_changes(vectors: Iterable[tuple[int, list[int]]]) -> bytes:
    """Return the changes of a stored vector as runs, b"" if all changes are 0.

    `vectors` has (index of the first integer, changes of consecutive integers), ascending and without overlap.
    """
    packed = []
    run: list[int] = []
    run_start: i64 = 0
    for first_index, integers in vectors:
        index: i64 = first_index
        for number in integers:
            if number:
                gap = index - run_start - i64(len(run))
                if not run or gap > _MAX_GAP or i64(len(run)) + gap >= _MAX_RUN:
                    if run:
                        packed.append(_pack_run(run_start, run))
                    run = []
                    run_start = index
                    gap = 0
                while gap > 0:
                    run.append(0)
                    gap -= 1
                run.append(number)
            index += 1
    if run:
        packed.append(_pack_run(run_start, run))
    return b"".join(packed)


def _pack_run(first_index: int, run: list[int]) -> bytes:
    is_wide = max(run) > _MAX_NARROW_INTEGER or min(run) < -_MAX_NARROW_INTEGER
    return pack(f">HH{len(run)}q", first_index, len(run) | (_WIDE_FLAG if is_wide else 0), *run)


def unpack_vector_changes(packed: bytes) -> list[tuple[int, int]]:
    """Return the (index, change) pairs of the runs that `pack_vector_changes` returns."""
    changes: list[tuple[int, int]] = []
    run_start = 0
    while run_start < len(packed):
        first_index, length = unpack_from(">HH", packed, run_start)
        count = length & ~_WIDE_FLAG
        changes += enumerate(unpack_from(f">{count}q", packed, run_start + 4), first_index)
        run_start += 4 + 8 * count
    return changes
