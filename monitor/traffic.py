"""How much a variant is used and how it answers: traffic and latencies by the hour, items and categories by the day.

Every integer is a sum over responses of a function of one response, as in `monitor.aggregates`: what was added is taken
away by adding it once more with the sign −1. Compiled (deploy/native.py).

A quantile of latencies is read from the histogram as Prometheus' `histogram_quantile` does: latencies are taken to be
spread evenly within a bucket, and one in the last, open bucket is given as its lower bound.

Items are counted in cells, chosen by the items' keyed hashes: as many items as there may be, a day takes the same few
bytes, and what is counted is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.attribution import DAY_MS
from monitor.cells import CELL_BITS, Finder, Record, zeros
from monitor.identity import ITEM_BYTES

HOUR_MS: Final = 3_600_000
LATENCY_BOUNDS_MS: Final = (
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 20_000, 30_000, 60_000,
)  # fmt: skip
"""Upper bounds of the buckets, inclusive; there is one more above the last."""
_BOUNDS: Final = vec[i64](LATENCY_BOUNDS_MS)
_FIRST_BUCKET: Final = 3
TRAFFIC_WIDTH: Final = _FIRST_BUCKET + len(LATENCY_BOUNDS_MS) + 1
"""[responses, empty ones, Σ latency in ms, responses by latency …]; who gives no latency is in no bucket."""

ITEM_CELLS: Final = 64
"""A power of two: the low bits of the last byte of an item's hash say in which cell it is counted."""
FIRST_CELL: Final = 2
FIRST_CATEGORY: Final = FIRST_CELL + ITEM_CELLS
"""Places in a day's record: [responses, Σ items of a response², items shown by cell …, responses by category …]."""


@final
class Traffic:
    """The sums of one experiment; `categories` is the number of those declared, 0 for none to be counted."""

    __slots__ = ("_categories", "_days", "_hours", "days", "hours")

    def __init__(self, categories: int) -> None:
        """Begin with nothing."""
        self._categories: i64 = categories
        self.hours: dict[int, Record] = {}
        """Cell of a variant and an hour since 1970 → record of `TRAFFIC_WIDTH`."""
        self.days: dict[int, Record] = {}
        """Cell of a variant and a UTC day → record; its last places are the declared categories, others, none."""
        self._hours = Finder(self.hours, TRAFFIC_WIDTH)
        self._days = Finder(self.days, day_width(categories))

    def add(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        items: bytes,
        latency_ms: i64,
        category: i64,
    ) -> None:
        """Add a response with the hashes of its items, or take it away; an unknown latency or category is below 0."""
        record = self._hours.at(variant << CELL_BITS | timestamp_ms // HOUR_MS)
        record[0] += sign
        if not items:
            record[1] += sign
        if latency_ms >= 0:
            record[2] += sign * latency_ms
            record[_FIRST_BUCKET + _bucket_of(latency_ms)] += sign
        day = self._days.at(variant << CELL_BITS | timestamp_ms // DAY_MS)
        day[0] += sign
        shown = i64(len(items)) // ITEM_BYTES
        day[1] += sign * shown * shown
        at: i64 = 0
        while at < shown:
            day[FIRST_CELL + cell_of(items, at)] += sign
            at += 1
        if self._categories > 0:
            day[FIRST_CATEGORY + (category if category >= 0 else self._categories + 1)] += sign

    def everything(self) -> dict[int, Record]:
        """Return the sums over all hours, by variant."""
        found: dict[int, Record] = {}
        for cell, record in self.hours.items():
            variant = cell >> CELL_BITS
            total = found.get(variant)
            if total is None:
                total = found[variant] = zeros(TRAFFIC_WIDTH)
            at: i64 = 0
            while at < TRAFFIC_WIDTH:
                total[at] += record[at]
                at += 1
        return found


def _bucket_of(latency_ms: i64) -> i64:
    """Return the latency's bucket, from 0 on."""
    low: i64 = 0
    high: i64 = len(_BOUNDS)
    while low < high:
        middle = (low + high) >> 1
        if _BOUNDS[middle] < latency_ms:
            low = middle + 1
        else:
            high = middle
    return low


def day_width(categories: int) -> int:
    """Return the integers of a day's record with so many declared categories."""
    return FIRST_CATEGORY + (categories + 2 if categories else 0)


def cell_of(items: bytes, place: i64) -> i64:
    """Return the cell of an item, from 0 on, by its place in a list of hashes."""
    return i64(items[(place + 1) * ITEM_BYTES - 1]) & (ITEM_CELLS - 1)


@dataclass(frozen=True)
class Flow:
    """What the responses of some time were like."""

    responses: int = 0
    empty: int = 0
    latency_ms: int = 0
    """Sum over the responses that give one."""
    latencies: tuple[int, ...] = (0,) * (TRAFFIC_WIDTH - _FIRST_BUCKET)
    """Responses by bucket of `LATENCY_BOUNDS_MS`."""

    @classmethod
    def of(cls, record: Sequence[int]) -> Flow:
        """Return what a record of `TRAFFIC_WIDTH` integers says."""
        return cls(record[0], record[1], record[2], tuple(record[_FIRST_BUCKET:]))

    @property
    def empty_share(self) -> float | None:
        """Responses without any item, of all; None without responses."""
        return self.empty / self.responses if self.responses else None

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (upper bound in seconds, responses up to it) of every bucket; the last bound is infinite."""
        found, total = [], 0
        bounds = [*[bound / 1000 for bound in LATENCY_BOUNDS_MS], float("inf")]
        for bound, count in zip(bounds, self.latencies, strict=True):
            total += count
            found.append((bound, total))
        return found

    def latency_s(self, share: float) -> float | None:
        """Return the latency in seconds that this share of the responses does not exceed; None where none is known.

        Two responses between 0.05 s and 0.1 s: half of them up to the middle of that bucket.

        >>> Flow(latencies=(0, 2, *[0] * 16)).latency_s(0.5)
        0.075
        """
        buckets = self.cumulative()
        rank = share * buckets[-1][1]
        if not buckets[-1][1]:
            return None
        lower, below = 0.0, 0
        for bound, total in buckets[:-1]:
            if total >= rank and total > below:
                return lower + (bound - lower) * (rank - below) / (total - below)
            lower, below = bound, total
        return lower
