"""Vectors of 64-bit integers as runs of neighbours: what a commit adds to one, and how time buckets are stored.

A run is two bytes of the index of its first integer, two of how many it has (32768 more if one of them is beyond what
commit.lua adds at once), and those in eight bytes each, big-endian.

A chunk of time buckets is stored as runs that may overlap, and holds their sums. A commit only appends to it, as adding
is dear in a script. What has become long is read and summed here, and what was read replaced by what it amounts to.
Compiled (deploy/native.py).
"""

from __future__ import annotations

from struct import unpack_from
from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from librt.vecs import vec
from mypy_extensions import i64, u8

_RUN: Final = 1000
"""Integers of a run at most: Lua takes 8 000 values at once, two for each of them."""
_GAP: Final = 16
"""Zeros that are written rather than another run begun; 8 and 32 cost the store the same (measured by hand)."""
_WIDE: Final = 1 << 15
"""Marks a run with integers beyond the largest: see commit.lua."""
_LARGEST: Final = 1 << 51
_HEAD: Final = 4
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

    def add(self, first: i64, numbers: vec[i64], begin: i64, width: i64) -> None:
        """Append the record of so many numbers that begins there, its first with the index `first`.

        Those that follow each other share runs.
        """
        at: i64 = 0
        while at < width:
            number = numbers[begin + at]
            if number != 0:
                self._append(first + at, number)
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
        found += enumerate(unpack_from(f">{count}q", packed, at + _HEAD), first)
        at += _HEAD + _INTEGER * count
    return found
