"""What a batch adds to an experiment's records, as the commit script takes it."""

from __future__ import annotations

from collections.abc import Mapping
from struct import unpack_from
from typing import Final, final

from librt.strings import BytesWriter, write_i32_be, write_i64_be
from mypy_extensions import i64, u8

from monitor.aggregates import BUCKETS_PER_CHUNK
from monitor.attribution import PENDING
from monitor.cells import CELL_BITS, Record
from monitor.config import DecaySpec
from monitor.ingest.batch import Arm, Batch
from monitor.ingest.experiment import PENDING_CLASS
from monitor.store import Commit, Keys
from monitor.tally import Tally
from monitor.traffic import Traffic

_PLACE: Final = (1 << CELL_BITS) - 1
_RUN: Final = 1000
"""Integers of a run at most: Lua takes 8 000 values at once, two for each of them."""
_GAP: Final = 16
"""Zeros that are written rather than another run begun; 8 and 32 cost the store the same (measured by hand)."""
_WIDE: Final = 1 << 15
"""Marks a run with integers beyond the largest: see commit.lua."""
_LARGEST: Final = 1 << 51


def write_tally(commit: Commit, keys: Keys, number: int, decays: tuple[DecaySpec, ...], tally: Tally) -> None:
    """Append what changes of all records, in the runs that commit.lua takes."""
    for variant, record in tally.responses.items():
        _write(commit, keys.responses(number, variant), record)
    for variant, record in tally.units.items():
        _write(commit, keys.units(number, variant), record)
    for cell, record in tally.cohorts.items():
        variant, day = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.cohort(number, variant, day), record):
            commit.stamps += (keys.cohorts(number, variant), day)
    for decay, buckets in zip(decays, tally.buckets, strict=True):
        _write_buckets(commit, keys, number, decay.name, buckets)


def write_traffic(commit: Commit, keys: Keys, number: int, traffic: Traffic) -> None:
    """Append what changes of all records, as `write_tally` does."""
    for variant, record in traffic.everything().items():
        _write(commit, keys.traffic(number, variant), record)
    for cell, record in traffic.hours.items():
        variant, hour = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.traffic_hour(number, variant, hour), record):
            commit.stamps += (keys.traffic_hours(number, variant), hour)
    for cell, record in traffic.days.items():
        variant, day = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.day(number, variant, day), record):
            commit.stamps += (keys.days(number, variant), day)


def write_batch(commit: Commit, keys: Keys, batch: Batch) -> None:
    """Append what a batch changes besides rows and tallies."""
    for number, traffic in batch.traffic.items():
        write_traffic(commit, keys, number, traffic)
    for arm, changes in batch.arms.items():
        _write_arm(commit, keys, arm, changes)
    for (key, counted), change in batch.counts.items():
        if change:
            commit.counts += (key, counted, change)
    for (key, item), (name, index, era) in batch.names.items():
        commit.names += (key, item, name.encode())
        batch.stamps.add((index, era))
    for index, at in batch.stamps:
        commit.stamps += (index, at)
    for cell, noted in batch.notes.items():
        number, hour = cell >> CELL_BITS, cell & _PLACE
        experiment = PENDING_CLASS if number == PENDING else str(number)
        writer = BytesWriter()
        for row in noted:
            writer.append(u8(len(row)))
            writer.write(row)
        commit.notes += (keys.hour(experiment, hour), f"{experiment}:{hour}".encode(), writer.getvalue(), len(noted))


def _write_arm(commit: Commit, keys: Keys, arm: int, changes: Arm) -> None:
    number, variant = arm >> 8, arm & 255
    key = keys.kinds(number, variant)
    for mark, counts in ((b"", changes.kinds), (b"+", changes.answered)):
        for kind, count in counts.items():
            if count:
                commit.counts += (key, mark + kind.encode(), count)
    if changes.response_ms:
        commit.latest += (b"%d:%d:r" % (number, variant), changes.response_ms)
    if changes.event_ms:
        commit.latest += (b"%d:%d:e" % (number, variant), changes.event_ms)


def _write_buckets(commit: Commit, keys: Keys, number: int, decay: str, buckets: Mapping[int, Record]) -> None:
    chunks: dict[int, _Runs] = {}
    for cell in sorted(buckets):
        bucket: i64 = cell & _PLACE
        chunk = cell >> CELL_BITS << CELL_BITS | bucket // BUCKETS_PER_CHUNK
        runs = chunks.get(chunk)
        if runs is None:
            runs = chunks[chunk] = _Runs()
        record = buckets[cell]
        runs.add(bucket % BUCKETS_PER_CHUNK * len(record), record)
    for chunk, runs in chunks.items():
        packed = runs.packed()
        if packed:
            variant, place = chunk >> CELL_BITS, chunk & _PLACE
            commit.differences += (keys.chunk(number, variant, decay, place), packed)
            commit.stamps += (keys.chunks(number, variant, decay), place)


def _write(commit: Commit, key: bytes, record: Record) -> bool:
    runs = _Runs()
    runs.add(0, record)
    packed = runs.packed()
    if not packed:
        return False
    commit.differences += (key, packed)
    return True


@final
class _Runs:
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

    def add(self, first: i64, record: Record) -> None:
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
        """Return the runs as commit.lua takes them."""
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
