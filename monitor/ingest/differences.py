"""Differences of a whole batch, in numpy: changed responses and students → changed integers of the stored records."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from monitor.aggregates import BUCKETS_PER_CHUNK, Ints, Layout, bucket_span_ms, buckets, grouped, rows_of
from monitor.config import DecaySpec
from monitor.store import Commit, Keys

DIFFERENCE: Final = np.dtype([("index", ">u2"), ("difference", ">i8")])
"""How a commit writes one changed integer of a record."""
_VARIANT_SHIFT = 48


@dataclass(slots=True)
class Changes:
    """What a batch changes in one experiment; the lists are flat rows of integers."""

    responses: list[int] = field(default_factory=list)
    """(sign, variant, ms, rated, m values)"""
    units: list[bytes] = field(default_factory=list)
    """Units that are new or have changed, as `pack_unit` writes them."""
    former_units: list[bytes] = field(default_factory=list)
    """What those were before."""
    presence: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(variant, 0 students | 1 crossovers | 2 responses without user) → change"""
    cohorts: Counter[tuple[int, int]] = field(default_factory=Counter)
    """(variant, day) → change in students first shown a response there"""


def write_responses(
    commit: Commit, keys: Keys, number: int, layout: Layout, decays: tuple[DecaySpec, ...], changes: Changes
) -> None:
    """Append what changed responses add to the all-time records and to the time buckets of every decay."""
    if not changes.responses:
        return
    rows = rows_of(changes.responses, 4 + layout.metrics)
    sign, variant, timestamp_ms, rated = rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3]
    terms = layout.response_terms(rated, rows[:, 4:])
    variants, sums = grouped(variant, terms * sign[:, None])
    for index, total in zip(variants.tolist(), sums, strict=True):
        _write_record(commit, keys.responses(number, index), total)
    for decay in decays:
        bucket, offset = buckets(timestamp_ms, bucket_span_ms(decay))
        layout.place_in_bucket(terms, rated, rows[:, 4:], offset)
        cells = variant << _VARIANT_SHIFT | bucket
        _write_buckets(commit, keys, number, decay.name, *grouped(cells, terms * sign[:, None]))


def _write_buckets(commit: Commit, keys: Keys, number: int, decay: str, cells: Ints, sums: Ints) -> None:
    row, column = np.nonzero(sums)
    if not len(row):
        return
    bucket = cells[row] & ((1 << _VARIANT_SHIFT) - 1)
    packed = np.empty(len(row), dtype=DIFFERENCE)
    packed["index"] = bucket % BUCKETS_PER_CHUNK * sums.shape[1] + column
    packed["difference"] = sums[row, column]
    chunk = cells[row] >> _VARIANT_SHIFT << _VARIANT_SHIFT | bucket // BUCKETS_PER_CHUNK
    starts = np.flatnonzero(np.concatenate(([True], chunk[1:] != chunk[:-1]))).tolist()
    for start, end in zip(starts, [*starts[1:], len(row)], strict=True):
        variant, place = int(chunk[start]) >> _VARIANT_SHIFT, int(chunk[start]) & ((1 << _VARIANT_SHIFT) - 1)
        commit.differences += (keys.chunk(number, variant, decay, place), packed[start:end].tobytes())
        commit.stamps += (keys.chunks(number, variant, decay), place)


def write_units(commit: Commit, keys: Keys, number: int, layout: Layout, changes: Changes) -> None:
    """Append what changed students add to their variants' and their cohort days' records."""
    totals: dict[int, Ints] = {}
    days: dict[int, Ints] = {}
    if changes.units or changes.former_units:
        width = layout.sums_width
        packed = b"".join(changes.units + changes.former_units)
        rows = np.frombuffer(packed, dtype=np.int64).reshape(-1, 2 + 2 * width)
        variant, day = rows[:, 0], rows[:, 1]
        sign = np.ones((len(rows), 1), dtype=np.int64)
        sign[len(changes.units) :] = -1
        terms = layout.unit_terms(rows[:, 2 : 2 + width]) * sign
        totals = dict(zip(*_listed(grouped(variant, terms)), strict=True))
        terms = layout.cohort_terms(rows[:, 2 + width :]) * sign
        days = dict(zip(*_listed(grouped(variant << _VARIANT_SHIFT | day, terms)), strict=True))
    for (index, place), change in changes.presence.items():
        totals.setdefault(index, np.zeros(layout.unit_width, dtype=np.int64))[place] += change
    for (index, first), change in changes.cohorts.items():
        cell = index << _VARIANT_SHIFT | first
        days.setdefault(cell, np.zeros(layout.cohort_width, dtype=np.int64))[0] += change
    for index, total in totals.items():
        _write_record(commit, keys.units(number, index), total)
    for cell, total in days.items():
        index, first = cell >> _VARIANT_SHIFT, cell & ((1 << _VARIANT_SHIFT) - 1)
        if _write_record(commit, keys.cohort(number, index, first), total):
            commit.stamps += (keys.cohorts(number, index), first)


def _listed(groups: tuple[Ints, Ints]) -> tuple[list[int], list[Ints]]:
    return groups[0].tolist(), list(groups[1])


def _write_record(commit: Commit, key: bytes, total: Ints) -> bool:
    (places,) = np.nonzero(total)
    if not len(places):
        return False
    packed = np.empty(len(places), dtype=DIFFERENCE)
    packed["index"] = places
    packed["difference"] = total[places]
    commit.differences += (key, packed.tobytes())
    return True
