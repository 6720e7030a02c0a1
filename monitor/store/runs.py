"""Vectors of 64-bit integers as runs of neighbours: what a commit adds to one, and how time buckets are stored.

A run is two bytes of the index of its first integer, two of how many it has (32768 more if one of them is beyond what
commit.lua adds at once), and those in eight bytes each, big-endian.

A chunk of time buckets is eight bytes of head, and runs that may overlap: it holds their sums. A commit only appends
to it, as adding is dear in a script. What has become long is read, summed here and put in its place, unless the head
says that somebody else has done so. Compiled (deploy/native.py).
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final, final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i32_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64, u8

HEAD_BYTES: Final = 8
"""Of a stored chunk: the number of the commit that began it, and how often it was summed up since."""
_RUN: Final = 1000
"""Integers of a run at most: Lua takes 8 000 values at once, two for each of them."""
_GAP: Final = 16
"""Zeros that are written rather than another run begun; 8 and 32 cost the store the same (measured by hand)."""
_WIDE: Final = 1 << 15
"""Marks a run with integers beyond the largest: see commit.lua."""
_LARGEST: Final = 1 << 51
_RUN_HEAD: Final = 4
_INTEGER: Final = 8


@final
class Runs:
    """What changes of the integers under one key, as runs of neighbours; few zeros cost less than another run."""

    __slots__ = ("_first", "_head", "_many", "_wide", "_writer")

    def __init__(self) -> None:
        self._writer = BytesWriter()
        self._head: i64 = 0
        """Where the last run begins in what is written."""
        self._first: i64 = 0
        """The index of its first integer."""
        self._many: i64 = 0
        """How many it has so far."""
        self._wide = False
        """Whether one of them is beyond what the script adds at once."""

    def add(self, first: i64, record: vec[i64]) -> None:
        """Append a record whose first integer has the index `first`; those that follow each other share runs."""
        at: i64 = 0
        while at < len(record):
            if record[at] != 0:
                self._append(first + at, record[at])
            at += 1

    def _append(self, index: i64, number: i64) -> None:
        writer = self._writer
        gap = index - self._first - self._many
        if self._many == 0 or not 0 <= gap <= _GAP or self._many + gap >= _RUN:
            self._close()
            self._head = len(writer)
            write_i32_be(writer, 0)
            self._first = index
            self._many = 0
            self._wide = False
            gap = 0
        self._many += gap + 1
        while gap > 0:
            write_i64_be(writer, 0)
            gap -= 1
        write_i64_be(writer, number)
        self._wide = self._wide or not -_LARGEST <= number <= _LARGEST

    def _close(self) -> None:
        """Say at its head what the last run is."""
        if self._many == 0:
            return
        said = self._first << 16 | self._many | (_WIDE if self._wide else 0)
        for place in range(4):
            self._writer[self._head + place] = u8(said >> (24 - 8 * place) & 255)

    def packed(self) -> bytes:
        """Return the runs."""
        self._close()
        return self._writer.getvalue()


def unpacked(packed: bytes) -> list[tuple[int, int]]:
    """Return (index, difference) of what was written of one key."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(packed):
        first, many = unpack_from(">HH", packed, at)
        count = many & ~_WIDE
        found += enumerate(unpack_from(f">{count}q", packed, at + 4), first)
        at += 4 + 8 * count
    return found


def summed(chunk: bytes) -> bytes:
    """Return the integers of a chunk as far as any run reaches, big-endian; raises ValueError for what is none."""
    if _is_one_run(chunk):
        return chunk[HEAD_BYTES + _RUN_HEAD :]
    sums = vec[i64]()
    nothing: i64 = 0
    at: i64 = HEAD_BYTES
    while at != len(chunk):
        if at + _RUN_HEAD > len(chunk):
            raise ValueError(f"{len(chunk)} bytes end within the head of a run")
        head: i64 = i64(read_i32_be(chunk, at))
        first, count = head >> 16 & 0xFFFF, head & _WIDE - 1
        at += _RUN_HEAD
        if at + _INTEGER * count > len(chunk):
            raise ValueError(f"{len(chunk)} bytes end within a run")
        while len(sums) < first + count:
            sums = append(sums, nothing)
        place: i64 = 0
        while place < count:
            sums[first + place] += read_i64_be(chunk, at)
            at += _INTEGER
            place += 1
    writer = BytesWriter()
    place = 0
    while place < len(sums):
        write_i64_be(writer, sums[place])
        place += 1
    return writer.getvalue()


def _is_one_run(chunk: bytes) -> bool:
    """Return whether there is one run of all integers from the first on, as of what was summed up last."""
    if len(chunk) < HEAD_BYTES + _RUN_HEAD:
        return False
    head: i64 = i64(read_i32_be(chunk, HEAD_BYTES))
    return head >> 16 == 0 and HEAD_BYTES + _RUN_HEAD + _INTEGER * (head & _WIDE - 1) == len(chunk)


def as_runs(integers: bytes) -> bytes:
    """Return integers, big-endian, as runs without a gap, of as many as a head can say."""
    parts = []
    most = _WIDE - 1
    for first in range(0, len(integers) // _INTEGER, most):
        part = integers[_INTEGER * first : _INTEGER * (first + most)]
        parts.append((first << 16 | len(part) // _INTEGER).to_bytes(_RUN_HEAD, "big") + part)
    return b"".join(parts)
