"""Stored traffic, summed over the shards: counts by variant and hour, and distribution drift between days."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, log2
from typing import Final, NamedTuple, TypeAlias

import numpy as np

from monitor.analysis import MIN_DRIFT_ALPHA, CellCounts, DayDrift, TrafficSummary, measure_day_drift
from monitor.clock import HOUR_MS
from monitor.config import NO_CATEGORY, OTHER_CATEGORY, ExperimentSettings, Settings
from monitor.engine import IdHasher
from monitor.metrics import (
    HOUR_RECORD_WIDTH,
    ITEM_CELL_COUNT,
    DayRecord,
    IntArray,
    TrafficCounts,
    day_record_width,
    item_cell,
)
from monitor.state.record_reader import decode_records, read_in_transaction, read_records
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_metadata import read_hash_key

_CELLS: Final = tuple(f"cell {number:02}" for number in range(ITEM_CELL_COUNT))
_STEPS_PER_DOUBLING: Final = 4
"""Divisors are rounded up in steps of a quarter of a doubling, so a further response rarely changes a threshold."""

VariantNumbers: TypeAlias = tuple[int, int]
"""(experiment number, index of the variant)."""
Drifts: TypeAlias = tuple[DayDrift | None, DayDrift | None]
"""Drift of the categories and of the displayed items."""
Days: TypeAlias = Mapping[int, IntArray]
"""Day → record, see `monitor.metrics.traffic`; a day without responses is missing."""


def read_traffic(
    store: ShardedStore, variants: Sequence[VariantNumbers], until_ms: int
) -> dict[VariantNumbers, TrafficSummary]:
    """Return the traffic of each variant, over all time and recently, at the same moment on each shard.

    Recent traffic is that of the last complete hour before `until_ms` and of the current hour.
    Raises `StoreUnavailable`.
    """
    hours = range(until_ms // HOUR_MS - 1, -(-until_ms // HOUR_MS))
    total = np.zeros((len(variants) * (1 + len(hours)), HOUR_RECORD_WIDTH), dtype=np.int64)
    for shard in store:
        keys = shard.keys
        record_keys = [
            key
            for variant in variants
            for key in (keys.traffic(*variant), *(keys.traffic_hour(*variant, hour) for hour in hours))
        ]
        total += decode_records(record_keys, read_records(shard, record_keys), HOUR_RECORD_WIDTH)
    records = total.reshape(len(variants), 1 + len(hours), HOUR_RECORD_WIDTH)
    all_time, recent = records[:, 0].tolist(), records[:, 1:].sum(axis=1).tolist()
    return {
        variant: TrafficSummary(
            TrafficCounts.from_record(all_time[index]),
            TrafficCounts.from_record(recent[index]),
            hours.start * HOUR_MS,
            until_ms,
        )
        for index, variant in enumerate(variants)
    }


class VariantTraffic(NamedTuple):
    """A variant, for the comparison of the variant's last day with reference days."""

    experiment: ExperimentSettings
    number: int
    variant: int
    responses_per_student: float
    """Σm²/Σm over the students, m the responses of each; at least 1."""


class DriftReader:
    """Reads the drift between days; the reference of configured item counts is computed only once."""

    def __init__(self, store: ShardedStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._width = max(
            (day_record_width(len(experiment.categories)) for experiment in settings.experiments), default=0
        )
        self._references: dict[str, CellCounts] = {}

    def read_drifts(self, variants: Sequence[VariantTraffic], until_ms: int) -> Mapping[VariantNumbers, Drifts]:
        """Return the drift of each variant's last day before the day of a time from reference days.

        The drifts are of categories and of items. A drift is None if a day or the reference is missing. Raises
        `StoreUnavailable`.
        """
        by_numbers = {(variant.number, variant.variant): variant for variant in variants}
        todays = {numbers: variant.experiment.calendar.day_number(until_ms) for numbers, variant in by_numbers.items()}
        days = self._read(
            {numbers: variant.experiment.drift.reference_days for numbers, variant in by_numbers.items()},
            {numbers: today - 1 for numbers, today in todays.items()},
        )
        return {
            numbers: self._drifts_of(variant, days[numbers], todays[numbers]) for numbers, variant in by_numbers.items()
        }

    def _drifts_of(self, variant: VariantTraffic, days: Days, today: int) -> Drifts:
        experiment, categories = variant.experiment, None
        alpha = max(experiment.drift.alpha / len(experiment.variants), MIN_DRIFT_ALPHA)
        if experiment.categories:
            names = (*sorted(experiment.categories), OTHER_CATEGORY, NO_CATEGORY)
            counts = {day: _counts(names, DayRecord(record).categories) for day, record in days.items()}
            cluster_size = _round_up(variant.responses_per_student)
            categories = measure_day_drift(
                counts, today, experiment.drift.reference, alpha=alpha, cluster_size=cluster_size
            )
        reference = self._items_reference(experiment)
        counts = {day: _counts(_CELLS, DayRecord(record).item_cells) for day, record in days.items()}
        items_per_answer = _items_per_answer(days, today, reference)
        cluster_size = _round_up(variant.responses_per_student * items_per_answer)
        items = measure_day_drift(
            counts, today, reference, alpha=alpha, cluster_size=cluster_size, cells_per_cluster=ceil(items_per_answer)
        )
        return categories, items

    def _items_reference(self, experiment: ExperimentSettings) -> int | CellCounts:
        """Return the number of reference days, or the configured reference counts of items by cell."""
        reference = experiment.drift.items_reference
        if isinstance(reference, int):
            return reference
        if experiment.name not in self._references:
            id_hasher = IdHasher(read_hash_key(self._store, self._settings))
            counts = dict.fromkeys(_CELLS, 0)
            for item, count in reference.items():
                counts[_CELLS[item_cell(id_hasher.hash_item(item))]] += count
            self._references[experiment.name] = counts
        return self._references[experiment.name]

    def _read(
        self, reference_days: Mapping[VariantNumbers, int], last_days: Mapping[VariantNumbers, int]
    ) -> Mapping[VariantNumbers, Days]:
        """Return the records of each variant's first days, as many as `reference_days`, and of the last day."""
        days_read: dict[VariantNumbers, Days] = {numbers: {} for numbers in reference_days}
        listed_days = self._list_days(last_days)
        while any(listed_days.values()):
            days_to_read = {
                numbers: [day for day in days if day < days[0] + reference_days[numbers] or day == last_days[numbers]]
                for numbers, days in listed_days.items()
                if days
            }
            records = self._read_records({numbers: days for numbers, days in days_to_read.items() if days})
            days_read |= records
            # The index may list a day that has no response any more, after a revision. Then the next day is the first.
            emptied = [
                numbers
                for numbers, days in records.items()
                if reference_days[numbers] and days_to_read[numbers][0] not in days
            ]
            listed_days = {numbers: listed_days[numbers][1:] for numbers in emptied}
        return days_read

    def _list_days(self, last_days: Mapping[VariantNumbers, int]) -> dict[VariantNumbers, list[int]]:
        """Return the days up to each variant's last day in the indexes, at the same moment on each shard."""
        listed_days: dict[VariantNumbers, set[int]] = {numbers: set() for numbers in last_days}
        for shard in self._store:
            indexes = [("ZRANGE", shard.keys.traffic_day_index(*numbers), 0, -1) for numbers in last_days]
            for numbers, days in zip(last_days, read_in_transaction(shard, indexes), strict=True):
                listed_days[numbers].update(map(int, days))
        return {
            numbers: sorted(day for day in days if day <= last_days[numbers]) for numbers, days in listed_days.items()
        }

    def _read_records(self, days_by_variant: Mapping[VariantNumbers, Sequence[int]]) -> dict[VariantNumbers, Days]:
        """Return the records of the days with responses, at the same moment on each shard."""
        keys = [(numbers, day) for numbers, days in days_by_variant.items() for day in days]
        total = np.zeros((len(keys), self._width), dtype=np.int64)
        for shard in self._store:
            record_keys = [shard.keys.traffic_day(*numbers, day) for numbers, day in keys]
            total += decode_records(record_keys, read_records(shard, record_keys), self._width)
        records = dict(zip(keys, total, strict=True))
        return {
            numbers: {day: records[numbers, day] for day in days if DayRecord(records[numbers, day]).responses}
            for numbers, days in days_by_variant.items()
        }


def _counts(names: Sequence[str], record: IntArray) -> CellCounts:
    return dict(zip(names, record.tolist(), strict=False))


def _items_per_answer(days: Days, today: int, reference: int | CellCounts) -> float:
    """Return Σm²/Σm over the compared answers, where m is the number of items of an answer; 1 without items."""
    compared = {today - 1}
    if isinstance(reference, int) and days:
        compared |= set(range(min(days), min(days) + reference))
    records = [record for day, record in days.items() if day in compared]
    item_count = sum(int(DayRecord(record).item_cells.sum()) for record in records)
    return sum(DayRecord(record).item_count_squares for record in records) / item_count if item_count else 1.0


def _round_up(divisor: float) -> float:
    return float(2.0 ** (ceil(_STEPS_PER_DOUBLING * log2(divisor)) / _STEPS_PER_DOUBLING))
