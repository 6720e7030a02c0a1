"""The changes that one batch makes to the stored traffic of one experiment; `monitor.traffic` documents the records."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, final

from mypy_extensions import i64

from monitor.clock import DAY_MS, HOUR_MS
from monitor.engine.accumulator import CELL_BITS
from monitor.engine.id_hash import ITEM_BYTES
from monitor.traffic import (
    FIRST_BUCKET,
    FIRST_CATEGORY,
    FIRST_CELL,
    ITEM_CELLS,
    LATENCY_BOUNDS_MS,
    TRAFFIC_WIDTH,
    day_width,
)

_CELL_MASK: Final = ITEM_CELLS - 1
_BOUNDS_MS: Final = list(LATENCY_BOUNDS_MS)
"""A list, because compiled code would build a tuple of integers anew for each call."""


@final
class TrafficAccumulator:
    """The changes of one experiment's traffic; `categories` is the number of declared ones, 0 to count none."""

    __slots__ = ("_categories", "_day_width", "days", "hours")

    def __init__(self, categories: int) -> None:
        self._categories: i64 = categories
        self._day_width = day_width(categories)
        self.hours: dict[int, list[int]] = {}
        """Cell of a variant and an hour since 1970 → record of `TRAFFIC_WIDTH`."""
        self.days: dict[int, list[int]] = {}
        """Cell of a variant and a UTC day → record; its last integers are the declared categories, others, none."""

    def add(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        items: bytes,
        latency_ms: int,
        category: i64,
    ) -> None:
        """Add or subtract a response with the hashes of its items; an unknown latency or category is below 0."""
        hour = _record(self.hours, variant << CELL_BITS | timestamp_ms // HOUR_MS, TRAFFIC_WIDTH)
        _add(hour, 0, sign)
        if not items:
            _add(hour, 1, sign)
        if latency_ms >= 0:
            _add(hour, 2, sign * i64(latency_ms))
            _add(hour, FIRST_BUCKET + i64(bisect_left(_BOUNDS_MS, latency_ms)), sign)
        day = _record(self.days, variant << CELL_BITS | timestamp_ms // DAY_MS, self._day_width)
        _add(day, 0, sign)
        end: i64 = len(items)
        shown = end // ITEM_BYTES
        _add(day, 1, sign * shown * shown)
        at: i64 = ITEM_BYTES - 1
        while at < end:
            _add(day, FIRST_CELL + (i64(items[at]) & _CELL_MASK), sign)
            at += ITEM_BYTES
        if self._categories > 0:
            _add(day, FIRST_CATEGORY + (category if category >= 0 else self._categories + 1), sign)

    def totals(self) -> dict[int, list[int]]:
        """Return the sums over all hours, by variant."""
        totals: dict[int, list[int]] = {}
        for cell, record in self.hours.items():
            total = _record(totals, cell >> CELL_BITS, TRAFFIC_WIDTH)
            for index, number in enumerate(record):
                total[index] += number
        return totals


def _record(records: dict[int, list[int]], cell: i64, width: i64) -> list[int]:
    """Return the record of a cell, which is created with zeros if it is missing."""
    record = records.get(cell)
    if record is None:
        record = records[cell] = [0] * width
    return record


def _add(record: list[int], index: i64, change: i64) -> None:
    number: i64 = record[index]
    record[index] = number + change
