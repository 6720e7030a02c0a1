"""Rows as bytes: four bytes of version (big-endian; they only tell states apart), then the content.

The first byte of a version is the row's mark, 1 to 127: which partition brought what made it (a student's is that of
the response). The others count how often it was written, beginning anew at 1 after the largest. A commit that changes
a row, not one that makes it, is noted in the store under the row's mark: a worker that finds there what it expects
knows that nobody else has changed such rows meanwhile, and need not have each of them compared.

A student's see `monitor.students`. A response's is, numbers big-endian, varints as in `monitor.varints`:

| bytes | what |
| --- | --- |
| 4 | version |
| 4 | arm: experiment · 256 + variant, -1 while the response has not been seen |
| 1 | flags: 3 bits of how many reactions there are (7: a varint says), then student, ranks, latency, category |
| 1 | how many items there are (255: a varint says) |
| 6 | time in ms |
| | the varints of items and reactions, latency in ms and category, each only if its flag is set |
| 10 | student, if there is one |
| 6 each | items |
| | ranks as varints, if they are not 1, 2, 3 … |
| | reactions, by time |

The sweep looks for arm and time where they are. A reaction is its time since the one before it (of the first since the
response, which may be negative), a byte of flags (from the highest: 3 bits kind, 1 score, 2 item, 2 tag), its id behind
the length, and what the flags say is there: the tag unless it is none or that of the response's student; the item's
place in the list, or its hash if it is not in there; a kind without number behind its length; the score as one byte,
or as eight of float64 if it is no whole number below 256.
"""

from __future__ import annotations

import math
from typing import Final

from librt.strings import BytesWriter, read_f64_be, read_i64_be, write_f64_be, write_i64_be
from mypy_extensions import i64, u8

from monitor.attribution import BEFORE, MAX_REACTIONS, PENDING, UNKNOWN, Reaction, Row, place_of
from monitor.errors import StoreOwned
from monitor.identity import ITEM_BYTES, STUDENT_BYTES, TAG_BYTES
from monitor.students import NEVER, Student
from monitor.varints import Reader, write_signed, write_unsigned

MARKS: Final = 127
_COUNT_BITS: Final = 24
_HEAD_BYTES: Final = 16
_ARM_BITS: Final = 32
_TIME_BITS: Final = 48
_BYTE: Final = 255
_FLAGS_PLACE: Final = 56
_MANY: Final = 7
"""In the place of how many reactions there are: a varint says."""
_STUDENT: Final = 8
_RANKS: Final = 16
_LATENCY: Final = 32
_CATEGORY: Final = 64

_OWN_TAG: Final = 1
_OTHER_TAG: Final = 2
_TAG: Final = 3
_LISTED: Final = 4
_UNLISTED: Final = 8
_ITEM: Final = 12
_WIDE: Final = 16
_KIND_PLACE: Final = 5
_KINDS: Final = ["", "rating", "clicked", "watched", "helpful", "escalated", "reviewed"]
"""Kinds by their number, which rows hold: only ever add to them, up to number 7. 0 is any other."""
_NUMBERS: Final = {kind: number for number, kind in enumerate(_KINDS)}


def unwritten(mark: i64) -> int:
    """Return the version of a row that is not in the store yet."""
    return mark << _COUNT_BITS


def is_unwritten(version: i64) -> bool:
    """Return whether a version is that of a row that is not in the store yet."""
    return version & (1 << _COUNT_BITS) - 1 == 0


def mark_of(version: i64) -> int:
    """Return the mark of a row of that version."""
    return version >> _COUNT_BITS


def next_version(version: i64) -> int:
    """Return the version that follows when the row is written."""
    largest: i64 = (1 << _COUNT_BITS) - 1
    if version & largest == largest:
        return version - largest + 1
    return version + 1


def encode_row(row: Row) -> bytes:
    """Return the bytes of a row."""
    writer = BytesWriter()
    version: i64 = row.version
    arm: i64 = row.arm
    timestamp_ms: i64 = row.timestamp_ms
    items, ranks = row.items, row.ranks
    many: i64 = len(row.reactions)
    count: i64 = len(items) // ITEM_BYTES
    flags = _flags(row, many)
    write_i64_be(writer, version << _ARM_BITS | arm & (1 << _ARM_BITS) - 1)
    write_i64_be(writer, flags << _FLAGS_PLACE | (min(_BYTE, count)) << _TIME_BITS | timestamp_ms)
    if count >= _BYTE:
        write_unsigned(writer, count)
    if many >= _MANY:
        write_unsigned(writer, many)
    if flags & _LATENCY:
        write_unsigned(writer, row.latency_ms)
    if flags & _CATEGORY:
        write_unsigned(writer, row.category)
    writer.write(row.student)
    writer.write(items)
    if ranks is not None:
        for rank in ranks:
            write_unsigned(writer, rank)
    if many:
        _write_reactions(writer, row)
    return writer.getvalue()


def _flags(row: Row, many: i64) -> i64:
    flags: i64 = min(_MANY, many)
    if row.student:
        flags |= _STUDENT
    if row.ranks is not None:
        flags |= _RANKS
    if row.latency_ms != UNKNOWN:
        flags |= _LATENCY
    if row.category != UNKNOWN:
        flags |= _CATEGORY
    return flags


def _write_reactions(writer: BytesWriter, row: Row) -> None:
    own, items = row.student[:TAG_BYTES], row.items
    before_ms: i64 = row.timestamp_ms
    first = True
    for reaction in row.reactions:
        at_ms: i64 = reaction[0]
        if first:
            write_signed(writer, at_ms - before_ms)
        else:
            write_unsigned(writer, at_ms - before_ms)
        before_ms = at_ms
        first = False
        _write_reaction(writer, reaction, own, items)


def _write_reaction(writer: BytesWriter, reaction: Reaction, own: bytes, items: bytes) -> None:
    _, name, tag, item, kind, score = reaction
    number = _NUMBERS.get(kind, 0)
    small: i64 = int(score) if score <= _BYTE else -1
    place: i64 = place_of(item, items) if item else -1
    flags: i64 = number << _KIND_PLACE
    if tag:
        flags |= _OWN_TAG if tag == own else _OTHER_TAG
    if item:
        flags |= _UNLISTED if place < 0 else _LISTED
    if float(small) != score:
        flags |= _WIDE
    writer.append(u8(flags))
    _write_text(writer, name)
    if flags & _OTHER_TAG:
        writer.write(tag)
    if place >= 0:
        write_unsigned(writer, place)
    else:
        writer.write(item)
    if number == 0:
        _write_text(writer, kind)
    if flags & _WIDE:
        write_f64_be(writer, score)
    else:
        writer.append(u8(small))


def _write_text(writer: BytesWriter, text: str) -> None:
    raw = text.encode()
    write_unsigned(writer, len(raw))
    writer.write(raw)


def decode_row(stored: bytes) -> Row:
    """Return the row that `encode_row` wrote; raises `StoreOwned` for anything else."""
    row = Row()
    read_row(row, stored)
    return row


def read_row(row: Row, stored: bytes) -> None:
    """Have a row become what `encode_row` wrote; raises `StoreOwned` for anything else."""
    try:
        _read(row, stored)
    except ValueError as error:
        raise _damaged("the row of a response", error) from None


def _read(row: Row, stored: bytes) -> None:
    if len(stored) < _HEAD_BYTES:
        raise ValueError(f"{len(stored)} bytes, expected at least {_HEAD_BYTES}")
    written = read_i64_be(stored, 0)
    version = written >> _ARM_BITS
    arm = written & (1 << _ARM_BITS) - 1
    if arm >= 1 << _ARM_BITS - 1:
        arm -= 1 << _ARM_BITS
    head = read_i64_be(stored, 8)
    if version < 0 or arm < PENDING or head < 0:
        raise ValueError("no row begins so")
    flags = head >> _FLAGS_PLACE
    timestamp_ms = head & (1 << _TIME_BITS) - 1
    reader = Reader(stored, _HEAD_BYTES)
    count = head >> _TIME_BITS & _BYTE
    if count == _BYTE:
        count = reader.unsigned()
    many = flags & _MANY
    if many == _MANY:
        many = reader.unsigned()
    latency_ms: i64 = reader.unsigned() if flags & _LATENCY else UNKNOWN
    category: i64 = reader.unsigned() if flags & _CATEGORY else UNKNOWN
    student = reader.take(STUDENT_BYTES) if flags & _STUDENT else b""
    if count > reader.left() or many > MAX_REACTIONS:
        raise ValueError(f"{count} items and {many} reactions in {reader.left()} bytes")
    items = reader.take(count * ITEM_BYTES)
    ranks = tuple([int(reader.unsigned()) for _ in range(count)]) if flags & _RANKS else None
    reactions = _reactions(reader, many, timestamp_ms, student[:TAG_BYTES], items) if many else ()
    if reader.left():
        raise ValueError(f"{reader.left()} bytes too many")
    row.timestamp_ms = timestamp_ms
    row.arm = arm
    row.student = student
    row.items = items
    row.ranks = ranks
    row.latency_ms = latency_ms
    row.category = category
    row.reactions = reactions
    row.version = version


def _reactions(reader: Reader, many: i64, before_ms: i64, own: bytes, items: bytes) -> tuple[Reaction, ...]:
    found: list[Reaction] = []
    at_ms = before_ms
    for number in range(many):
        at_ms += reader.unsigned() if number else reader.signed()
        if not 0 <= at_ms < 1 << _TIME_BITS:
            raise ValueError("a reaction at no possible time")
        flags = reader.byte()
        name = _text(reader)
        tag = _tag(reader, flags & _TAG, own)
        item = _item(reader, flags & _ITEM, items)
        kind = _kind(reader, flags >> _KIND_PLACE)
        score = read_f64_be(reader.take(8), 0) if flags & _WIDE else float(reader.byte())
        if not 0 <= score < math.inf:
            raise ValueError(f"a score of {score}")
        found.append((at_ms, name, tag, item, kind, score))
    return tuple(found)


def _tag(reader: Reader, whose: i64, own: bytes) -> bytes:
    if whose == 0:
        return b""
    if whose == _OTHER_TAG:
        return reader.take(TAG_BYTES)
    if whose != _OWN_TAG or not own:
        raise ValueError("a reaction by nobody")
    return own


def _item(reader: Reader, where: i64, items: bytes) -> bytes:
    if where == 0:
        return b""
    if where == _UNLISTED:
        return reader.take(ITEM_BYTES)
    place = reader.unsigned()
    if where != _LISTED or place >= len(items) // ITEM_BYTES:
        raise ValueError(f"a reaction to item {place} of {len(items) // ITEM_BYTES}")
    return items[place * ITEM_BYTES : (place + 1) * ITEM_BYTES]


def _kind(reader: Reader, number: i64) -> str:
    if number == 0:
        return _text(reader)
    if number >= len(_KINDS):
        raise ValueError(f"a reaction of kind {number}")
    return _KINDS[number]


def _text(reader: Reader) -> str:
    return reader.take(reader.unsigned()).decode()


def decode_student(stored: bytes, width: int) -> Student:
    """Return the student that `Student.encode` wrote, with sums vectors of `width`; raises `StoreOwned`."""
    student = Student(NEVER, BEFORE, width)
    read_student(student, stored)
    return student


def read_student(student: Student, stored: bytes) -> None:
    """Have a student read its row; raises `StoreOwned`."""
    try:
        student.read(stored)
    except ValueError as error:
        raise _damaged("the row of a student", error) from None


def _damaged(what: str, why: object) -> StoreOwned:
    return StoreOwned(f"{what} is damaged ({why}): the store cannot be trusted. `ab-monitor rebuild` makes a new one")
