"""The changes of a batch → the arguments of the commit script."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from monitor.config import DecaySpec
from monitor.engine import (
    CELL_BITS,
    NO_RESPONSE,
    Accumulator,
    ArmChanges,
    Batch,
    ResponseSums,
    TrafficAccumulator,
    pack_runs,
)
from monitor.metrics import BUCKETS_PER_CHUNK
from monitor.state.keys import PENDING_CLASS, Keys
from monitor.state.store_records import Commit

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


def write_batch(commit: Commit, keys: Keys, decays: Mapping[int, tuple[DecaySpec, ...]], batch: Batch) -> None:
    """Append the changes of a batch; `decays` are those of each experiment's number."""
    _write_rows(commit, keys, batch)
    for number, accumulator in batch.accumulators.items():
        write_tally(commit, keys, number, decays[number], accumulator)
    for number, traffic in batch.traffic.items():
        write_traffic(commit, keys, number, traffic)
    for number, oldest_ms in batch.oldest_dependencies_ms.items():
        commit.oldest_dependencies[_class_of(number)] = oldest_ms
    for arm, changes in batch.arms.items():
        _write_arm(commit, keys, arm, changes)
    for place, change in batch.item_counts.items():
        if change:
            commit.counters[place] += change
    for place, item_id in batch.item_names.items():
        commit.texts[place] = item_id.encode()
    commit.members |= batch.index_members
    _write_hours(commit, keys, batch)


def _write_rows(commit: Commit, keys: Keys, batch: Batch) -> None:
    tables = [(keys.row(b""), batch.response_rows)]
    tables += [(keys.students(number), rows) for number, rows in batch.student_rows.items()]
    for prefix, rows in tables:
        commit.new_row_keys += [prefix + name for name, _, is_new in rows if is_new]
        commit.new_row_values += [row for _, row, is_new in rows if is_new]
        commit.row_keys += [prefix + name for name, _, is_new in rows if not is_new]
        commit.row_values += [row for _, row, is_new in rows if not is_new]


def _write_hours(commit: Commit, keys: Keys, batch: Batch) -> None:
    """Append the hours with which rows are swept."""
    for cell, names in batch.moved_rows.items():
        key = keys.moved(_class_of(cell >> CELL_BITS), cell & _PLACE)
        for name in names:
            commit.texts[key, name] = b""
    for cell, names in batch.new_rows.items():
        experiment, hour = _class_of(cell >> CELL_BITS), cell & _PLACE
        packed = b"".join([bytes((len(name),)) + name for name in names])
        commit.hours.append((keys.hour(experiment, hour), f"{experiment}:{hour}", packed))


def _class_of(number: int) -> str:
    return PENDING_CLASS if number == NO_RESPONSE else str(number)


def _write_arm(commit: Commit, keys: Keys, arm: int, changes: ArmChanges) -> None:
    number, variant = arm >> 8, arm & 255
    key = keys.kinds(number, variant)
    for mark, counts in ((b"", changes.reactions), (b"+", changes.responses)):
        for kind, count in counts.items():
            if count:
                commit.counters[key, mark + kind.encode()] += count
    if changes.newest_response_ms:
        commit.see_latest(f"{number}:{variant}:r", changes.newest_response_ms)
    if changes.newest_event_ms:
        commit.see_latest(f"{number}:{variant}:e", changes.newest_event_ms)


def _write_buckets(commit: Commit, keys: Keys, number: int, decay: str, buckets: dict[int, ResponseSums]) -> None:
    chunks: dict[int, list[tuple[int, list[int]]]] = {}
    width = 0
    for cell in sorted(buckets):
        bucket = cell & _PLACE
        chunk = cell >> CELL_BITS << CELL_BITS | bucket // BUCKETS_PER_CHUNK
        integers = buckets[cell].integers()
        width = len(integers)
        chunks.setdefault(chunk, []).append((bucket % BUCKETS_PER_CHUNK * width, integers))
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
