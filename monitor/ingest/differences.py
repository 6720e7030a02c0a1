"""What a batch adds to an experiment's records, as the commit script takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from librt.strings import BytesWriter, write_i64_be
from mypy_extensions import i64

from monitor.aggregates import BUCKETS_PER_CHUNK
from monitor.config import DecaySpec
from monitor.store import Commit, Keys
from monitor.tally import CELL_BITS, Record, Tally
from monitor.traffic import Traffic

_PLACE: Final = (1 << CELL_BITS) - 1


def write_tally(commit: Commit, keys: Keys, number: int, decays: tuple[DecaySpec, ...], tally: Tally) -> None:
    """Append the changed integers of all records: 2 bytes of index and 8 of difference each."""
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
    """Append the changed integers of all records, as `write_tally` does."""
    for variant, record in traffic.everything().items():
        _write(commit, keys.traffic(number, variant), record)
    for cell, record in traffic.hours.items():
        variant, hour = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.traffic_hour(number, variant, hour), record):
            commit.stamps += (keys.traffic_hours(number, variant), hour)
    for cell, record in traffic.days.items():
        variant, day = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.categories(number, variant, day), record):
            commit.stamps += (keys.category_days(number, variant), day)


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
    """Append what is not 0; the record's first integer has the index `first`."""
    at: i64 = 0
    while at < len(record):
        if record[at] != 0:
            index = first + at
            writer.append(index >> 8)
            writer.append(index & 255)
            write_i64_be(writer, record[at])
        at += 1


def unpacked(packed: bytes) -> list[tuple[int, int]]:
    """Return (index, difference) of what was written of one key."""
    return [
        (int.from_bytes(packed[at : at + 2]), int.from_bytes(packed[at + 2 : at + 10], signed=True))
        for at in range(0, len(packed), 10)
    ]
