"""What is recommended, and about which categories, by UTC day: as the store holds it, summed over the shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2
from typing import Final, NamedTuple

import numpy as np

from monitor.aggregates import Ints
from monitor.config import ExperimentSettings, Settings
from monitor.config.records import NONE, OTHER
from monitor.drift import SMALLEST_ALPHA, Counts, DayDrift, day_drift
from monitor.engine.id_hash import IdHasher
from monitor.store.moments import at_once, values
from monitor.store.opening import stored_hash_key
from monitor.store.rows import decode_records
from monitor.store.shards import Shards
from monitor.traffic import FIRST_CATEGORY, FIRST_CELL, ITEM_CELLS, cell_of, day_width

_CELLS: Final = tuple(f"cell {number:02}" for number in range(ITEM_CELLS))
_STEPS: Final = 4
"""A divisor is rounded up, in so many steps to each doubling: a response more makes no other threshold of a day."""

Place = tuple[int, int]
"""(experiment number, variant)."""
Days = Mapping[int, Ints]
"""UTC day → record, see `monitor.traffic`; a day without responses is missing."""


class Used(NamedTuple):
    """A variant that was used."""

    experiment: ExperimentSettings
    number: int
    variant: int
    responses_per_student: float
    """Σm²/Σm over the students, m the responses of each; at least 1."""


@dataclass(frozen=True, slots=True)
class Drifts:
    """How a variant's last whole day differs from its references; None where a day or a reference is missing."""

    categories: DayDrift | None
    items: DayDrift | None


class DayReader:
    """Reads how days differ; remembers references that are given by item."""

    def __init__(self, store: Shards, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._widest = max(day_width(len(each.categories)) for each in settings.experiments)
        self._references: dict[str, Counts] = {}

    def drifts(self, used: Sequence[Used], today: int) -> Mapping[Place, Drifts]:
        """Return how each variant's last day before `today` differs. Raises `StoreUnavailable`."""
        places = {(each.number, each.variant): each for each in used}
        days = self._read({place: each.experiment.drift.days for place, each in places.items()}, today - 1)
        return {place: self._drifts_of(each, days[place], today) for place, each in places.items()}

    def _drifts_of(self, used: Used, days: Days, today: int) -> Drifts:
        experiment, categories = used.experiment, None
        alpha = max(experiment.drift.alpha / len(experiment.variants), SMALLEST_ALPHA)
        if experiment.categories:
            names = (*sorted(experiment.categories), OTHER, NONE)
            counts = {day: _counts(names, record[FIRST_CATEGORY:]) for day, record in days.items()}
            alike = _rounded(used.responses_per_student)
            categories = day_drift(counts, today, experiment.drift.reference, alpha=alpha, alike=alike)
        reference = self._items_reference(experiment)
        counts = {day: _counts(_CELLS, record[FIRST_CELL:FIRST_CATEGORY]) for day, record in days.items()}
        together = _items_per_answer(days, today, reference)
        alike = _rounded(used.responses_per_student * together)
        return Drifts(
            categories, day_drift(counts, today, reference, alpha=alpha, alike=alike, together=ceil(together))
        )

    def _items_reference(self, experiment: ExperimentSettings) -> int | Counts:
        """Return a number of days, or how often items were shown by cell."""
        given = experiment.drift.items_reference
        if isinstance(given, int):
            return given
        known = self._references.get(experiment.name)
        if known is None:
            identities = IdHasher(stored_hash_key(self._store, self._settings))
            counts = dict.fromkeys(_CELLS, 0)
            for item, shown in given.items():
                counts[_CELLS[cell_of(identities.item(item))]] += shown
            known = self._references[experiment.name] = counts
        return known

    def _read(self, wanted: Mapping[Place, int], last: int) -> Mapping[Place, Days]:
        """Return so many first days of each variant, from the first one with responses on, and its last one."""
        found: Mapping[Place, Days] = {place: {} for place in wanted}
        named = self._named(list(wanted), last)
        while any(named.values()):
            asked = {
                place: [day for day in days if day < days[0] + wanted[place] or day == last]
                for place, days in named.items()
                if days
            }
            records = self._records({place: days for place, days in asked.items() if days})
            found = {**found, **records}
            # The index still names a day that a revision has emptied: then another one is the first.
            emptied = [place for place, days in records.items() if wanted[place] and asked[place][0] not in days]
            named = {place: named[place][1:] for place in emptied}
        return found

    def _named(self, places: Sequence[Place], last: int) -> dict[Place, list[int]]:
        """Return the days up to `last` that the indexes name, in one transaction on each shard."""
        named: dict[Place, set[int]] = {place: set() for place in places}
        for shard in self._store:
            indexes = [("ZRANGE", shard.keys.days(*place), 0, -1) for place in places]
            for place, days in zip(places, at_once(shard, indexes), strict=True):
                named[place].update(map(int, days))
        return {place: sorted(day for day in days if day <= last) for place, days in named.items()}

    def _records(self, wanted: Mapping[Place, Sequence[int]]) -> dict[Place, Days]:
        """Return the records of days that have responses, of one moment on each shard."""
        asked = [(place, day) for place, days in wanted.items() for day in days]
        total = np.zeros((len(asked), self._widest), dtype=np.int64)
        for shard in self._store:
            names = [shard.keys.day(*place, day) for place, day in asked]
            total += decode_records(names, values(shard, names), self._widest)
        records = dict(zip(asked, total, strict=True))
        return {
            place: {day: records[place, day] for day in days if records[place, day][0]}
            for place, days in wanted.items()
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
