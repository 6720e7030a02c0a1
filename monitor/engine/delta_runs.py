"""Changes of stored vectors of 64-bit integers, packed as runs of neighbours for the commit script.

A run is two bytes of the index of its first integer, two bytes of its length (32768 more if one of its integers is
beyond the largest that commit.lua adds at once), and the integers in eight bytes each, all big-endian.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import pack, unpack_from
from typing import Final

from mypy_extensions import i64

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
