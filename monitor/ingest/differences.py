"""What a batch adds to an experiment's records, as the commit script takes it."""

from __future__ import annotations

from collections.abc import Mapping
from struct import unpack_from
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from monitor.aggregates import BUCKETS_PER_CHUNK
from monitor.config import DecaySpec
from monitor.store import Commit, Keys
from monitor.tally import CELL_BITS, Record, Tally
from monitor.traffic import Traffic

_PLACE: Final = (1 << CELL_BITS) - 1
_RUN: Final = 1000
"""Integers of a run at most: Lua takes 8 000 values at once, two for each of them."""


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


def _write_buckets(commit: Commit, keys: Keys, number: int, decay: str, buckets: Mapping[int, Record]) -> None:
    chunks: dict[int, BytesWriter] = {}
    for cell, record in buckets.items():
        bucket: i64 = cell & _PLACE
        chunk = cell >> CELL_BITS << CELL_BITS | bucket // BUCKETS_PER_CHUNK
        writer = chunks.get(chunk)
        if writer is None:
            writer = chunks[chunk] = BytesWriter()
        _pack(writer, bucket % BUCKETS_PER_CHUNK * len(record), record)
    for chunk, writer in chunks.items():
        if len(writer):
            variant, place = chunk >> CELL_BITS, chunk & _PLACE
            commit.differences += (keys.chunk(number, variant, decay, place), writer.getvalue())
            commit.stamps += (keys.chunks(number, variant, decay), place)


def _write(commit: Commit, key: bytes, record: Record) -> bool:
    writer = BytesWriter()
    _pack(writer, 0, record)
    if not len(writer):
        return False
    commit.differences += (key, writer.getvalue())
    return True


def _pack(writer: BytesWriter, first: i64, record: Record) -> None:
    """Append the record, whose first integer has the index `first`, from its first change to its last."""
    begin: i64 = 0
    end: i64 = len(record)
    while begin < end and record[begin] == 0:
        begin += 1
    while end > begin and record[end - 1] == 0:
        end -= 1
    while begin < end:
        last = min(end, begin + _RUN)
        _write_short(writer, first + begin)
        _write_short(writer, last - begin)
        while begin < last:
            write_i64_be(writer, record[begin])
            begin += 1


def _write_short(writer: BytesWriter, number: i64) -> None:
    writer.append(number >> 8)
    writer.append(number & 255)


def unpacked(packed: bytes) -> list[tuple[int, int]]:
    """Return (index, difference) of what was written of one key."""
    found: list[tuple[int, int]] = []
    at = 0
    while at < len(packed):
        first, count = unpack_from(">HH", packed, at)
        found += enumerate(unpack_from(f">{count}q", packed, at + 4), first)
        at += 4 + 8 * count
    return found
