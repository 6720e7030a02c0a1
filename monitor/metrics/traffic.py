"""Records of traffic and latencies by the hour, and of shown items and categories by the day.

A quantile of latencies is read from the histogram as Prometheus' `histogram_quantile` does: latencies are taken to be
spread evenly within a bucket, and one in the last, open bucket is given as its lower bound.

Items are counted in cells, chosen by the items' keyed hashes: as many items as there may be, a day takes the same few
bytes, and what is counted is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LATENCY_BOUNDS_MS: Final = (
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 20_000, 30_000, 60_000,
)  # fmt: skip
"""Upper bounds of the buckets, inclusive; there is one more above the last."""
FIRST_BUCKET: Final = 3
TRAFFIC_WIDTH: Final = FIRST_BUCKET + len(LATENCY_BOUNDS_MS) + 1
"""[responses, empty ones, Σ latency in ms, responses by latency …]; who gives no latency is in no bucket."""

ITEM_CELLS: Final = 64
"""A power of two: the low bits of the last byte of an item's hash say in which cell it is counted."""
FIRST_CELL: Final = 2
FIRST_CATEGORY: Final = FIRST_CELL + ITEM_CELLS
"""Places in a day's record: [responses, Σ items of a response², items shown by cell …, responses by category …]."""


def day_width(categories: int) -> int:
    """Return the integers of a day's record with so many declared categories."""
    return FIRST_CATEGORY + (categories + 2 if categories else 0)


def cell_of(item: bytes) -> int:
    """Return the cell of an item's hash, from 0 on."""
    return item[-1] % ITEM_CELLS


@dataclass(frozen=True)
class TrafficCounts:
    """What the responses of some time were like."""

    responses: int = 0
    empty: int = 0
    latency_ms: int = 0
    """Sum over the responses that give one."""
    latencies: tuple[int, ...] = (0,) * (TRAFFIC_WIDTH - FIRST_BUCKET)
    """Responses by bucket of `LATENCY_BOUNDS_MS`."""

    @classmethod
    def of(cls, record: Sequence[int]) -> TrafficCounts:
        """Return what a record of `TRAFFIC_WIDTH` integers says."""
        return cls(record[0], record[1], record[2], tuple(record[FIRST_BUCKET:]))

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
