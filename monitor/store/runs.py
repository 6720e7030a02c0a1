"""Time buckets as stored: runs of neighbours (`monitor.engine.delta_runs`), which are added up.

A chunk of time buckets is stored as runs that may overlap, and holds their sums. A commit only appends to it, as adding
is dear in a script. What has become long is read and summed here, and what was read replaced by what it amounts to.
Compiled (deploy/native.py).
"""

from __future__ import annotations

from typing import Final

from librt.strings import BytesWriter, read_i32_be, read_i64_be, write_i64_be
from librt.vecs import append, vec
from mypy_extensions import i64

_WIDE: Final = 1 << 15
"""Marks a run with integers beyond the largest: see commit.lua."""
_HEAD: Final = 4
_INTEGER: Final = 8


def add_runs(sums: vec[i64], runs: bytes) -> vec[i64]:
    """Add what runs amount to, as far as any reaches; what is returned may be another vector. Raises ValueError."""
    nothing: i64 = 0
    at: i64 = 0
    while at != len(runs):
        if at + _HEAD > len(runs):
            raise ValueError(f"{len(runs)} bytes end within the head of a run")
        head: i64 = i64(read_i32_be(runs, at))
        first, count = head >> 16 & 0xFFFF, head & _WIDE - 1
        at += _HEAD
        if at + _INTEGER * count > len(runs):
            raise ValueError(f"{len(runs)} bytes end within a run")
        while len(sums) < first:
            sums = append(sums, nothing)
        place = first
        while place < first + count:
            number = read_i64_be(runs, at)
            if place < len(sums):
                sums[place] += number
            else:
                sums = append(sums, number)
            at += _INTEGER
            place += 1
    return sums


def summed(runs: bytes) -> bytes:
    """Return the integers that runs add up to as far as any reaches, big-endian; raises ValueError for other bytes."""
    sums = add_runs(vec[i64](), runs)
    writer = BytesWriter()
    place: i64 = 0
    while place < len(sums):
        write_i64_be(writer, sums[place])
        place += 1
    return writer.getvalue()


def as_run(integers: bytes) -> bytes:
    """Return up to 32 767 integers, big-endian, as one run, without the mark of large ones: it is not for commit.lua.

    A chunk with the most metrics that there may be has 10 496.
    """
    return (len(integers) // _INTEGER).to_bytes(_HEAD, "big") + integers if integers else b""
