"""Time buckets read back: series of one variant and decay, and what stretches of them amount to together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.aggregates import (
    BUCKETS_PER_CHUNK,
    OFFSET_BITS,
    Floats,
    Groups,
    Ints,
    Layout,
    Moments,
    join_limbs,
)
from monitor.ranking import SCALE_BITS

_UNIT = float(2**-SCALE_BITS)


@dataclass(frozen=True, slots=True)
class Digest:
    """Exponentially decayed sums of a stretch of time; 2·m columns: metrics over rated, then over all responses.

    They are relative to each column's newest observation, so stretches can be put together (`together`), and one that
    has not changed need not be read again.
    """

    newest_ms: Floats
    """−∞ without an observation."""
    sums: Floats
    """5 × 2·m: Σw, Σw·x, Σw², Σw²·x, Σw²·x²."""
    from_ms: float
    """From here on nothing in it lies in the future: it is the same at every later time."""

    @classmethod
    def empty(cls, metrics: int) -> Digest:
        """Return the digest of nothing."""
        return cls(np.full(2 * metrics, -np.inf), np.zeros((5, 2 * metrics)), -np.inf)


def together(digests: Sequence[Digest], half_life_ms: int) -> tuple[Floats, list[Moments]]:
    """Return the newest observation's time (−∞ without one) and the moments of each column over all stretches."""
    newest_ms = np.stack([digest.newest_ms for digest in digests])
    last_ms = newest_ms.max(axis=0)
    reference_ms = np.where(np.isfinite(last_ms), last_ms, 0.0)
    # Nothing of a stretch without an observation is left: 2 to the power of −∞.
    factor = np.exp2((newest_ms - reference_ms) / half_life_ms)
    squared = factor * factor
    scaled = np.stack([factor, factor, squared, squared, squared], axis=1)
    sums = (np.stack([digest.sums for digest in digests]) * scaled).sum(axis=0)
    return last_ms, [
        Moments(weight, squared_weight, total, squared_weight_total, squared_weight_square)
        for weight, total, squared_weight, squared_weight_total, squared_weight_square in sums.T.tolist()
    ]


@dataclass(frozen=True, slots=True)
class Series:
    """The non-empty time buckets of one variant and decay, oldest first."""

    middle_ms: Floats
    offset_ms: float
    """Milliseconds of one unit of offset."""
    records: Ints
    """n × response_width"""
    squares: Floats
    """Scale of each metric's squares."""

    def _moments(self, counts: Floats, offsets: Floats) -> Floats:
        """Return Σ(t − middle) in ms from Σ1 and Σ offset; an offset stands for the middle of its unit."""
        half = (1 << OFFSET_BITS) / 2 - 0.5
        return (offsets - half * counts) * self.offset_ms

    def _groups(self, metric: int, counts: Floats, offsets: Floats) -> Groups:
        at = 4 + 8 * metric
        records = self.records
        totals = join_limbs(records[:, at + 2], records[:, at + 3]) * _UNIT
        moments = join_limbs(records[:, at + 4], records[:, at + 5]) * _UNIT
        squares = join_limbs(records[:, at + 6], records[:, at + 7]) / self.squares[metric]
        return Groups(
            self.middle_ms,
            counts,
            self._moments(counts, offsets),
            totals,
            self._moments(totals, moments),
            squares,
            doubt_ms=self.offset_ms / 2,
        )

    def rated(self, metric: int) -> Groups:
        """Return one metric over the rated responses where it is defined."""
        at = 4 + 8 * metric
        counts, offsets = self.records[:, 2] - self.records[:, at], self.records[:, 3] - self.records[:, at + 1]
        return self._groups(metric, counts.astype(np.float64), offsets.astype(np.float64))

    def everything(self, metric: int) -> Groups:
        """Return one metric over all responses, those without a value counting 0."""
        return self._groups(metric, self.records[:, 0].astype(np.float64), self.records[:, 1].astype(np.float64))

    def digest(self, half_life_ms: int, as_of_ms: float) -> Digest:
        """Return what the series amounts to at `as_of_ms` under exponential decay, for every metric at once."""
        count = len(self.squares)
        parts = self.records[:, 4:].reshape(len(self.records), count, 8)
        everything = np.repeat(self.records[:, :2, None], count, axis=2)
        rated = self.records[:, 2:4, None] - np.moveaxis(parts[:, :, :2], 1, 2)
        counts, offsets = np.moveaxis(np.concatenate([rated, everything], axis=2).astype(np.float64), 1, 0)
        totals = np.tile(join_limbs(parts[:, :, 2], parts[:, :, 3]) * _UNIT, 2)
        moments = np.tile(join_limbs(parts[:, :, 4], parts[:, :, 5]) * _UNIT, 2)
        squares = np.tile(join_limbs(parts[:, :, 6], parts[:, :, 7]) / self.squares, 2)
        count_moments, total_moments = self._moments(counts, offsets), self._moments(totals, moments)
        times_ms = self.middle_ms[:, None]
        means_ms = times_ms + count_moments / np.maximum(counts, 1.0)
        known_ms = np.where(counts > 0, means_ms - self.offset_ms / 2, -np.inf)
        live = (counts > 0) & (known_ms <= as_of_ms)
        newest_ms = np.where(live, means_ms, -np.inf).max(axis=0, initial=-np.inf)
        reference_ms = np.where(np.isfinite(newest_ms), newest_ms, self.middle_ms.max(initial=0.0))
        weight = np.where(live, np.exp2((times_ms - reference_ms) / half_life_ms), 0.0)
        squared, slope = weight * weight, math.log(2) / half_life_ms
        sums = np.stack(
            [
                (weight * (counts + slope * count_moments)).sum(axis=0),
                (weight * (totals + slope * total_moments)).sum(axis=0),
                (squared * (counts + 2 * slope * count_moments)).sum(axis=0),
                (squared * (totals + 2 * slope * total_moments)).sum(axis=0),
                (squared * squares).sum(axis=0),
            ]
        )
        return Digest(newest_ms, sums, float(known_ms.max(initial=-np.inf)))

    @classmethod
    def read(cls, records: Ints, numbers: Ints, span_ms: int, layout: Layout) -> Series:
        """Return the series that bucket records (n × response_width) with bucket numbers (n) stand for."""
        width_ms = span_ms / BUCKETS_PER_CHUNK
        return cls(
            numbers.astype(np.float64) * width_ms + width_ms / 2,
            width_ms / (1 << OFFSET_BITS),
            records,
            layout.square_scale(),
        )
