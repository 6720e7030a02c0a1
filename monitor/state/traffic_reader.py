"""TrafficAccumulator in the store, summed over the shards: counts by variant and hour, and differences between days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from monitor.analysis import SMALLEST_ALPHA, Counts, DayDrift, TrafficSummary, day_drift
from monitor.clock import HOUR_MS
from monitor.config import NONE, OTHER, ExperimentSettings, Settings
from monitor.engine import IdHasher
from monitor.metrics import (
    FIRST_CATEGORY,
    FIRST_CELL,
    ITEM_CELLS,
    TRAFFIC_WIDTH,
    Ints,
    TrafficCounts,
    cell_of,
    day_width,
)
from monitor.state.record_reader import decode_records, transaction, values
from monitor.state.shards import Shards
from monitor.state.store_metadata import stored_hash_key

_CELLS: Final = tuple(f"cell {number:02}" for number in range(ITEM_CELLS))
_STEPS: Final = 4
"""A divisor is rounded up, in so many steps to each doubling: a response more makes no other threshold of a day."""

Arm: TypeAlias = tuple[int, int]
"""(experiment number, variant)."""
Drifts: TypeAlias = tuple[DayDrift | None, DayDrift | None]
"""Differences of categories and of items."""
Days: TypeAlias = Mapping[int, Ints]
"""UTC day → record, see `monitor.metrics.traffic`; a day without responses is missing."""


def read_traffic(store: Shards, arms: Sequence[Arm], until_ms: int) -> dict[Arm, TrafficSummary]:
    """Return every variant's traffic, over all time and recently, at the same moment on each shard.

    Recent are the last whole hour before `until_ms` and the hour that has begun since: an hour or more, less than two.
    Raises `StoreUnavailable`.
    """
    hours = range(until_ms // HOUR_MS - 1, -(-until_ms // HOUR_MS))
    total = np.zeros((len(arms) * (1 + len(hours)), TRAFFIC_WIDTH), dtype=np.int64)
    for shard in store:
        keys = shard.keys
        names = [
            name for arm in arms for name in (keys.traffic(*arm), *(keys.traffic_hour(*arm, hour) for hour in hours))
        ]
        total += decode_records(names, values(shard, names), TRAFFIC_WIDTH)
    records = total.reshape(len(arms), 1 + len(hours), TRAFFIC_WIDTH)
    all_time, recent = records[:, 0].tolist(), records[:, 1:].sum(axis=1).tolist()
    return {
        arm: TrafficSummary(
            TrafficCounts.of(all_time[index]), TrafficCounts.of(recent[index]), hours.start * HOUR_MS, until_ms
        )
        for index, arm in enumerate(arms)
    }


class UsedVariant(NamedTuple):
    """A variant whose last day is compared with its reference days."""

    experiment: ExperimentSettings
    number: int
    variant: int
    responses_per_student: float
    """Σm²/Σm over the students, m the responses of each; at least 1."""


class DayReader:
    """Reads differences between days; computes each reference that is given by item only once."""

    def __init__(self, store: Shards, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._width = max(day_width(len(experiment.categories)) for experiment in settings.experiments)
        self._references: dict[str, Counts] = {}

    def drifts(self, variants: Sequence[UsedVariant], today: int) -> Mapping[Arm, Drifts]:
        """Return how the categories and the items of each variant's last day before `today` differ from references.

        None where a day or a reference is missing. Raises `StoreUnavailable`.
        """
        by_arm = {(variant.number, variant.variant): variant for variant in variants}
        days = self._read({arm: variant.experiment.drift.days for arm, variant in by_arm.items()}, today - 1)
        return {arm: self._drifts_of(variant, days[arm], today) for arm, variant in by_arm.items()}

    def _drifts_of(self, variant: UsedVariant, days: Days, today: int) -> Drifts:
        experiment, categories = variant.experiment, None
        alpha = max(experiment.drift.alpha / len(experiment.variants), SMALLEST_ALPHA)
        if experiment.categories:
            names = (*sorted(experiment.categories), OTHER, NONE)
            counts = {day: _counts(names, record[FIRST_CATEGORY:]) for day, record in days.items()}
            alike = _rounded(variant.responses_per_student)
            categories = day_drift(counts, today, experiment.drift.reference, alpha=alpha, alike=alike)
        reference = self._items_reference(experiment)
        counts = {day: _counts(_CELLS, record[FIRST_CELL:FIRST_CATEGORY]) for day, record in days.items()}
        together = _items_per_answer(days, today, reference)
        alike = _rounded(variant.responses_per_student * together)
        items = day_drift(counts, today, reference, alpha=alpha, alike=alike, together=ceil(together))
        return categories, items

    def _items_reference(self, experiment: ExperimentSettings) -> int | Counts:
        """Return a number of days, or the counts of shown items by cell."""
        reference = experiment.drift.items_reference
        if isinstance(reference, int):
            return reference
        if experiment.name not in self._references:
            identities = IdHasher(stored_hash_key(self._store, self._settings))
            counts = dict.fromkeys(_CELLS, 0)
            for item, count in reference.items():
                counts[_CELLS[cell_of(identities.item(item))]] += count
            self._references[experiment.name] = counts
        return self._references[experiment.name]

    def _read(self, reference_days: Mapping[Arm, int], last: int) -> Mapping[Arm, Days]:
        """Return the first days of each variant, as many as are given from its first responses on, and its last day."""
        days_read: dict[Arm, Days] = {arm: {} for arm in reference_days}
        named = self._named(list(reference_days), last)
        while any(named.values()):
            chosen = {
                arm: [day for day in days if day < days[0] + reference_days[arm] or day == last]
                for arm, days in named.items()
                if days
            }
            records = self._records({arm: days for arm, days in chosen.items() if days})
            days_read |= records
            # The index still names a day that a revision has emptied: then another one is the first.
            emptied = [arm for arm, days in records.items() if reference_days[arm] and chosen[arm][0] not in days]
            named = {arm: named[arm][1:] for arm in emptied}
        return days_read

    def _named(self, arms: Sequence[Arm], last: int) -> dict[Arm, list[int]]:
        """Return the days up to `last` in the indexes, at the same moment on each shard."""
        named: dict[Arm, set[int]] = {arm: set() for arm in arms}
        for shard in self._store:
            indexes = [("ZRANGE", shard.keys.days(*arm), 0, -1) for arm in arms]
            for arm, days in zip(arms, transaction(shard, indexes), strict=True):
                named[arm].update(map(int, days))
        return {arm: sorted(day for day in days if day <= last) for arm, days in named.items()}

    def _records(self, days_by_arm: Mapping[Arm, Sequence[int]]) -> dict[Arm, Days]:
        """Return the records of days that have responses, at the same moment on each shard."""
        keys = [(arm, day) for arm, days in days_by_arm.items() for day in days]
        total = np.zeros((len(keys), self._width), dtype=np.int64)
        for shard in self._store:
            names = [shard.keys.day(*arm, day) for arm, day in keys]
            total += decode_records(names, values(shard, names), self._width)
        records = dict(zip(keys, total, strict=True))
        return {
            arm: {day: records[arm, day] for day in days if records[arm, day][0]} for arm, days in days_by_arm.items()
        }


def _counts(names: Sequence[str], record: Ints) -> Counts:
    return dict(zip(names, record.tolist(), strict=False))


def _items_per_answer(days: Days, today: int, reference: int | Counts) -> float:
    """Return Σm²/Σm over the answers that are compared, m the items of each; 1 where none has any."""
    compared = {today - 1}
    if isinstance(reference, int) and days:
        compared |= set(range(min(days), min(days) + reference))
    records = [record for day, record in days.items() if day in compared]
    shown = sum(int(record[FIRST_CELL:FIRST_CATEGORY].sum()) for record in records)
    return sum(int(record[1]) for record in records) / shown if shown else 1.0


def _rounded(divisor: float) -> float:
    return float(2.0 ** (ceil(_STEPS * log2(divisor)) / _STEPS))
