"""The layouts of traffic records: responses and latencies by hour, shown items and categories by day.

Quantiles of latencies follow Prometheus' `histogram_quantile`: latencies are assumed to be uniform within a bucket, and
a quantile in the last, open bucket is the bucket's lower bound.

Shown items are counted in cells, which the items' keyed hashes select. A day's record has the same size for any number
of items, and the count of each cell is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from monitor.clock import DAY_MS, HOUR_MS
from monitor.metrics.ranked_lists import IntArray

LATENCY_BOUNDS_MS: Final = (
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 20_000, 30_000, 60_000,
)  # fmt: skip
"""Inclusive upper bounds of the latency buckets; a further bucket is above the last bound."""

DELAY_BOUNDS_MS: Final = (HOUR_MS, 6 * HOUR_MS, DAY_MS, 3 * DAY_MS)
"""Inclusive upper bounds of the classes of delays from an event to its record; a further class is above the last."""

ITEM_CELL_COUNT: Final = 64
"""A power of two: the low bits of the last byte of an item's hash are the number of the item's cell."""


class HourField:
    """Indices in the traffic record of a variant's hour, and in the sum of such records over all time."""

    RESPONSES: Final = 0
    EMPTY_RESPONSES: Final = 1
    """Responses without items."""
    LATENCY_TOTAL: Final = 2
    """Σ latency in ms."""
    LATENCY_BUCKETS: Final = 3
    """Responses in each bucket of `LATENCY_BOUNDS_MS`, then above the last bound, if the response has a latency."""


HOUR_RECORD_WIDTH: Final = HourField.LATENCY_BUCKETS + len(LATENCY_BOUNDS_MS) + 1
"""Number of integers of an hour's record."""


class DayField:
    """Indices in the record of a variant's day."""

    RESPONSES: Final = 0
    ITEM_COUNT_SQUARES: Final = 1
    """Σm² over the responses, m the number of items of a response."""
    ITEM_CELLS: Final = 2
    """Shown items in each of `ITEM_CELL_COUNT` cells."""
    CATEGORIES: Final = ITEM_CELLS + ITEM_CELL_COUNT
    """Responses by declared category, in sorted order, then of another category, then without a category."""


def day_record_width(category_count: int) -> int:
    """Return the number of integers of a day's record for a number of declared categories."""
    return DayField.CATEGORIES + (category_count + 2 if category_count else 0)


@dataclass(frozen=True, slots=True)
class DayRecord:
    """The record of a variant's day by name."""

    integers: IntArray
    """At least `day_record_width` integers."""

    @property
    def responses(self) -> int:
        """Responses of the day."""
        return int(self.integers[DayField.RESPONSES])

    @property
    def item_count_squares(self) -> int:
        """Σm² over the responses, m the number of items of a response."""
        return int(self.integers[DayField.ITEM_COUNT_SQUARES])

    @property
    def item_cells(self) -> IntArray:
        """Shown items in each of `ITEM_CELL_COUNT` cells."""
        cells: IntArray = self.integers[DayField.ITEM_CELLS : DayField.CATEGORIES]
        return cells

    @property
    def categories(self) -> IntArray:
        """Responses by declared category, then of another category, then without a category."""
        categories: IntArray = self.integers[DayField.CATEGORIES :]
        return categories


def item_cell(item: bytes) -> int:
    """Return the cell number of an item's hash, from 0 to `ITEM_CELL_COUNT` − 1."""
    return item[-1] % ITEM_CELL_COUNT


@dataclass(frozen=True)
class TrafficCounts:
    """Counts over the responses of a variant in a period of time."""

    responses: int = 0
    empty_responses: int = 0
    latency_total_ms: int = 0
    """Σ latency in ms, over the responses with a latency."""
    latency_buckets: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_MS) + 1)
    """Responses by bucket of `LATENCY_BOUNDS_MS`."""

    @classmethod
    def from_record(cls, record: Sequence[int]) -> TrafficCounts:
        """Return the counts of an hour's record, or of a sum of such records."""
        return cls(
            responses=record[HourField.RESPONSES],
            empty_responses=record[HourField.EMPTY_RESPONSES],
            latency_total_ms=record[HourField.LATENCY_TOTAL],
            latency_buckets=tuple(record[HourField.LATENCY_BUCKETS :]),
        )

    @property
    def empty_share(self) -> float | None:
        """Share of responses without items; None without responses."""
        return self.empty_responses / self.responses if self.responses else None

    def cumulative_latency_buckets(self) -> list[tuple[float, int]]:
        """Return (upper bound in seconds, responses up to the bound) for each bucket; the last bound is infinite."""
        cumulative_buckets, total = [], 0
        bounds = [*[bound / 1000 for bound in LATENCY_BOUNDS_MS], float("inf")]
        for bound, count in zip(bounds, self.latency_buckets, strict=True):
            total += count
            cumulative_buckets.append((bound, total))
        return cumulative_buckets

    def latency_quantile_s(self, share: float) -> float | None:
        """Return the quantile of latencies for a share, in seconds; None without latencies.

        With two responses between 0.05 s and 0.1 s, the median is the middle of the bucket.

        >>> TrafficCounts(latency_buckets=(0, 2, *[0] * 16)).latency_quantile_s(0.5)
        0.07500000000000001
        """
        buckets = self.cumulative_latency_buckets()
        rank = share * buckets[-1][1]
        if not buckets[-1][1]:
            return None
        lower, below = 0.0, 0
        for bound, total in buckets[:-1]:
            if total >= rank and total > below:
                return lower + (bound - lower) * (rank - below) / (total - below)
            lower, below = bound, total
        return lower
