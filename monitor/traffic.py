"""How much a variant is used and how it answers: responses, empty ones, latencies by the hour, categories by the day.

Every integer is a sum over responses of a function of one response, as in `monitor.aggregates`: what was added is taken
away by adding it once more with the sign −1. Compiled (deploy/native.py).

A quantile of latencies is read from the histogram as Prometheus' `histogram_quantile` does: latencies are taken to be
spread evenly within a bucket, and one in the last, open bucket is given as its lower bound.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

from mypy_extensions import i64

from monitor.attribution import DAY_MS
from monitor.tally import CELL_BITS, Record, record_in

HOUR_MS: Final = 3_600_000
LATENCY_BOUNDS_MS: Final = (
    50, 100, 200, 300, 500, 750, 1000, 1500, 2000, 3000, 5000, 7500, 10_000, 15_000, 20_000, 30_000, 60_000,
)  # fmt: skip
"""Upper bounds of the buckets, inclusive; there is one more above the last."""
_FIRST_BUCKET: Final = 3
TRAFFIC_WIDTH: Final = _FIRST_BUCKET + len(LATENCY_BOUNDS_MS) + 1
"""[responses, empty ones, Σ latency in ms, responses by latency …]; who gives no latency is in no bucket."""


@final
class Traffic:
    """The sums of one experiment; `categories` is the number of those declared, 0 for none to be counted."""

    __slots__ = ("_categories", "days", "hours")

    def __init__(self, categories: int) -> None:
        """Begin with nothing."""
        self._categories: i64 = categories
        self.hours: dict[int, Record] = {}
        """Cell of a variant and an hour since 1970 → record of `TRAFFIC_WIDTH`."""
        self.days: dict[int, Record] = {}
        """Cell of a variant and a UTC day → responses by category: the declared ones, others, none."""

    def add(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        empty: bool,  # noqa: FBT001
        latency_ms: i64,
        category: i64,
    ) -> None:
        """Add a response, or take it away; a latency or a category below 0 is not known."""
        record = record_in(self.hours, variant << CELL_BITS | timestamp_ms // HOUR_MS, TRAFFIC_WIDTH)
        record[0] += sign
        if empty:
            record[1] += sign
        if latency_ms >= 0:
            record[2] += sign * latency_ms
            record[_FIRST_BUCKET + i64(bisect_left(LATENCY_BOUNDS_MS, latency_ms))] += sign
        if self._categories > 0:
            place = category if category >= 0 else self._categories + 1
            record_in(self.days, variant << CELL_BITS | timestamp_ms // DAY_MS, self._categories + 2)[place] += sign

    def everything(self) -> dict[int, Record]:
        """Return the sums over all hours, by variant."""
        found: dict[int, Record] = {}
        for cell, record in self.hours.items():
            total = record_in(found, cell >> CELL_BITS, TRAFFIC_WIDTH)
            at: i64 = 0
            while at < TRAFFIC_WIDTH:
                total[at] += record[at]
                at += 1
        return found


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
