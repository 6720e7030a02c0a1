"""Sufficient statistics, read from the stored records of `monitor.metrics.record_layout`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.clock import DAY_MS
from monitor.metrics import LIMB_BITS, PAIR_WIDTH, SCALE_BITS, Ints, Layout
from monitor.stats.cuped import PairedSums
from monitor.stats.estimates import Estimate, RatioSums, UnitSums
from monitor.stats.evidence import Skipped

Population: TypeAlias = Literal["rated", "all"]
"""Means over rated responses, or over all of them with unrated ones counting 0."""

_SCALE = float(1 << SCALE_BITS)
_LIMB = float(1 << LIMB_BITS)
_LIMB_MASK = (1 << LIMB_BITS) - 1


class Cohorts(Mapping[int, Ints]):
    """UTC day since 1970 → record over a variant's students first exposed there; many add up in one call."""

    def __init__(self, days: Sequence[int], table: Ints) -> None:
        self._places = {day: place for place, day in enumerate(days)}
        self._table = table

    @classmethod
    def of(cls, records: Mapping[int, Ints], width: int) -> Cohorts:
        """Return such records of that width."""
        if isinstance(records, Cohorts):
            return records
        return cls(list(records), np.array(list(records.values()), dtype=np.int64).reshape(len(records), width))

    def __getitem__(self, day: int) -> Ints:
        record: Ints = self._table[self._places[day]]
        return record

    def __iter__(self) -> Iterator[int]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def filled(self, last: int) -> set[int]:
        """Return the days up to `last` whose record is not zero."""
        filled = np.count_nonzero(self._table, axis=1).tolist()
        return {day for day, place in self._places.items() if filled[place] and day <= last}

    def count(self, days: Iterable[int], place: int = 0) -> int:
        """Return the sum of one integer of the records of some days; the first is the students first exposed there."""
        return int(self._table[self._rows(days), place].sum())

    def total(self, days: Iterable[int]) -> Ints:
        total: Ints = self._table[self._rows(days)].sum(axis=0)
        return total

    def _rows(self, days: Iterable[int]) -> NDArray[np.intp]:
        return np.array([self._places[day] for day in days if day in self._places], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class StoredStudents:
    """What the store holds of an experiment's students, summed over its shards."""

    units: Mapping[str, Ints]
    """Variant → record over students (`Layout.unit_width`)."""
    cohorts: Mapping[str, Mapping[int, Ints]]
    """Variant → UTC day since 1970 → record over the students first exposed there (`Layout.cohort_width`)."""
    newest_ms: int | None
    """The experiment's newest event."""
    lost_events: int = 0
    """Events that were gone from Kafka before they could be applied; of all experiments, as nobody has read them."""
    refused_share: float | None = None
    """Of the newest events of the topics, of all experiments; None where there were none."""
    skipped: Skipped | None = None

    def live(self, layout: Layout, population: Population) -> Mapping[str, list[Estimate]]:
        return {
            name: [live_sums(record, layout, metric, population).estimate() for metric in range(layout.metrics)]
            for name, record in self.units.items()
        }


def is_closed(day: int, at_ms: int, exposure_days: int, feedback_window_ms: int) -> bool:
    """Return whether the windows of students first exposed on a UTC day (days since 1970) are over at an event time."""
    return (day + exposure_days) * DAY_MS + feedback_window_ms <= at_ms


def closed_units(record: Ints, layout: Layout, metric: int, population: Population) -> UnitSums:
    """Return the sums over students of one metric (its index) from the sum of closed cohorts' records."""
    first = 7 + 9 * metric + (1 if population == "rated" else 5)
    units = int(record[units_place(metric, population)])
    return _unit_sums(units, record[first : first + 4], 2.0 ** layout.squares[metric])


def units_place(metric: int, population: Population) -> int:
    """Return where a record over cohorts has how many students one metric (its index) has a mean of."""
    return 7 + 9 * metric if population == "rated" else 1


def closed_rated_shares(record: Ints) -> UnitSums:
    """Return the sums over students of the rated share of their responses, from the sum of closed cohorts' records."""
    return _unit_sums(int(record[1]), record[3:7], _SCALE)


def closed_watched(record: Ints, layout: Layout, place: int) -> UnitSums:
    """Return the sums over students of what is watched at a place, from the sum of closed cohorts' records."""
    at = layout.watched_place + 5 * place
    return _unit_sums(int(record[at]), record[at + 1 : at + 5], 2.0 ** layout.watched[place])


def closed_part(record: Ints, layout: Layout, part: int, population: Population) -> UnitSums:
    """Return the sums over the students of a part (`Layout.part_place`) of the primary metric."""
    at = layout.part_place(part) + (0 if population == "rated" else 5)
    return _unit_sums(int(record[at]), record[at + 1 : at + 5], 2.0 ** layout.squares[layout.primary])


def closed_pairs(record: Ints, layout: Layout, population: Population) -> PairedSums:
    """Return the sums over students of the primary metric now and before the experiment, of those who have both."""
    at = layout.part_place(layout.parts) + (0 if population == "rated" else PAIR_WIDTH)
    total, squares, before, before_squares, products = _pairs(record[at + 1 : at + PAIR_WIDTH])
    scale = pair_scale(layout)
    return PairedSums(
        int(record[at]), total / _SCALE, squares / scale, before / _SCALE, before_squares / scale, products / scale
    )


def pair_scale(layout: Layout) -> float:
    """Return 2^bits of the squares of pairs."""
    return 2.0 ** layout.squares[layout.primary]


def live_sums(record: Ints, layout: Layout, metric: int, population: Population) -> RatioSums:
    """Return the sums of one metric (its index) over all responses from a variant's record over students."""
    at = 13 + 12 * metric
    pairs = _pairs(record[at + 2 : at + 12])
    total, products = pairs[0] / _SCALE, pairs[2 if population == "rated" else 4] / _SCALE
    squares = pairs[1] / 2.0 ** layout.squares[metric]
    if population == "rated":
        return RatioSums(int(record[at]), total, float(record[at + 1]), squares, products, pairs[3])
    return RatioSums(int(record[3]), total, float(record[4]), squares, products, float(_pairs(record[7:9])[0]))


def live_rated_shares(record: Ints) -> RatioSums:
    """Return the sums of the rated share over all responses from a variant's record over students."""
    shown_squares, rated_squares, products = _pairs(record[7:13])
    return RatioSums(int(record[3]), float(record[5]), float(record[4]), rated_squares, products, shown_squares)


def _unit_sums(units: int, limbs: Ints, square_scale: float) -> UnitSums:
    """Return the sums of [Σy (2), Σy² (2)]; a spread that is within the rounding of the squares is none.

    Each square is rounded to 1/square_scale, so students with one and the same value would seem to vary.
    """
    total, squares = _pairs(limbs)
    total, squares = total / _SCALE, squares / square_scale
    even = total * (total / units) if units else 0.0
    return UnitSums(units, total, even if squares - even <= units / square_scale else squares)


def _pairs(limbs: Ints) -> list[float]:
    """Return the sums that pairs of limbs stand for, as `join_limbs` does: of so few, numpy's calls would cost more."""
    summed = limbs.tolist()
    pairs = zip(summed[0::2], summed[1::2], strict=True)
    return [float(high + (low >> LIMB_BITS)) * _LIMB + float(low & _LIMB_MASK) for low, high in pairs]
