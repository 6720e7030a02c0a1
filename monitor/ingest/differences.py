"""What a batch adds to an experiment's records, as the commit script takes it."""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64

from monitor.aggregates import BUCKETS_PER_CHUNK
from monitor.config import DecaySpec
from monitor.engine.accumulator import CELL_BITS, Accumulator, ResponseSums
from monitor.engine.delta_runs import pack_runs
from monitor.engine.response_row import NO_RESPONSE
from monitor.engine.traffic_accumulator import TrafficAccumulator
from monitor.ingest.batch import Arm, Batch
from monitor.ingest.experiment import PENDING_CLASS
from monitor.store import Commit, Keys

_PLACE: Final = (1 << CELL_BITS) - 1
_FULL: Final = 16
"""Bytes of a chunk of time buckets, for each of its integers, from which on it is summed up: twice what they take."""


def write_tally(commit: Commit, keys: Keys, number: int, decays: tuple[DecaySpec, ...], tally: Accumulator) -> None:
    """Append what changes of all records, in the runs that commit.lua takes."""
    for variant, responses in tally.responses.items():
        _write(commit, keys.responses(number, variant), responses.integers())
    for variant, units in tally.units.items():
        _write(commit, keys.units(number, variant), units.integers())
    for cell, cohort in tally.cohorts.items():
        variant, day = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.cohort(number, variant, day), cohort.integers()):
            commit.members.add((keys.cohorts(number, variant), day))
    for decay, buckets in zip(decays, tally.buckets, strict=True):
        _write_buckets(commit, keys, number, decay.name, buckets)


def write_traffic(commit: Commit, keys: Keys, number: int, traffic: TrafficAccumulator) -> None:
    """Append what changes of all records, as `write_tally` does."""
    for variant, record in traffic.totals().items():
        _write(commit, keys.traffic(number, variant), record)
    for cell, record in traffic.hours.items():
        variant, hour = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.traffic_hour(number, variant, hour), record):
            commit.members.add((keys.traffic_hours(number, variant), hour))
    for cell, record in traffic.days.items():
        variant, day = cell >> CELL_BITS, cell & _PLACE
        if _write(commit, keys.day(number, variant, day), record):
            commit.members.add((keys.days(number, variant), day))


def write_batch(commit: Commit, keys: Keys, batch: Batch) -> None:
    """Append what a batch changes besides rows and tallies."""
    for number, oldest_ms in batch.reached.items():
        commit.oldest_dependencies[_class_of(number)] = oldest_ms
    for number, traffic in batch.traffic.items():
        write_traffic(commit, keys, number, traffic)
    for arm, changes in batch.arms.items():
        _write_arm(commit, keys, arm, changes)
    for (key, counted), change in batch.counts.items():
        if change:
            commit.counters[key, counted] += change
    for (key, item), (name, index, era) in batch.names.items():
        commit.texts[key, item] = name.encode()
        batch.stamps.add((index, era))
    commit.members |= batch.stamps
    _write_notes(commit, keys, batch)


def _write_notes(commit: Commit, keys: Keys, batch: Batch) -> None:
    """Append what the sweep has to know of rows."""
    for cell, moved in batch.moved.items():
        place = keys.moved(_class_of(cell >> CELL_BITS), cell & _PLACE)
        for row in moved:
            commit.texts[place, row] = b""
    for cell, noted in batch.notes.items():
        number, hour = cell >> CELL_BITS, cell & _PLACE
        experiment = _class_of(number)
        names = b"".join([bytes((len(row),)) + row for row in noted])
        commit.hours.append((keys.hour(experiment, hour), f"{experiment}:{hour}", names))


def _class_of(number: int) -> str:
    return PENDING_CLASS if number == NO_RESPONSE else str(number)


def _write_arm(commit: Commit, keys: Keys, arm: int, changes: Arm) -> None:
    number, variant = arm >> 8, arm & 255
    key = keys.kinds(number, variant)
    for mark, counts in ((b"", changes.kinds), (b"+", changes.answered)):
        for kind, count in counts.items():
            if count:
                commit.counters[key, mark + kind.encode()] += count
    if changes.response_ms:
        commit.see_latest(f"{number}:{variant}:r", changes.response_ms)
    if changes.event_ms:
        commit.see_latest(f"{number}:{variant}:e", changes.event_ms)


def _write_buckets(commit: Commit, keys: Keys, number: int, decay: str, buckets: dict[int, ResponseSums]) -> None:
    chunks: dict[int, list[tuple[int, list[int]]]] = {}
    width: i64 = 0
    for cell in sorted(buckets):
        bucket: i64 = cell & _PLACE
        chunk = cell >> CELL_BITS << CELL_BITS | bucket // BUCKETS_PER_CHUNK
        integers = buckets[cell].integers()
        width = len(integers)
        vectors = chunks.get(chunk)
        if vectors is None:
            vectors = chunks[chunk] = []
        vectors.append((bucket % BUCKETS_PER_CHUNK * width, integers))
    full = _FULL * BUCKETS_PER_CHUNK * width
    for chunk, vectors in chunks.items():
        packed = pack_runs(vectors)
        if packed:
            variant, place = chunk >> CELL_BITS, chunk & _PLACE
            commit.chunks[keys.chunk(number, variant, decay, place)] = packed
            commit.chunk_limits.append(full)
            commit.members.add((keys.chunks(number, variant, decay), place))


def _write(commit: Commit, key: bytes, record: list[int]) -> bool:
    packed = pack_runs([(0, record)])
    if not packed:
        return False
    commit.sums[key] = packed
    return True
