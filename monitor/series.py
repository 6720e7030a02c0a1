"""Time buckets read back: series of one variant and decay, and what chunks of them amount to together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

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
_MIDDLES: Final = (np.arange(BUCKETS_PER_CHUNK) + 0.5) / BUCKETS_PER_CHUNK
"""Of a chunk's buckets, in chunks from its beginning."""
_WEIGHTS: Final = np.exp2(_MIDDLES - 1)
"""Of a chunk's buckets under exponential decay, relative to the chunk's end: a chunk is as long as the half-life."""
_NOTHING_LEFT: Final = 2000
"""Half-lives after which a weight is 0 in float64."""


def digests(
    records: Ints, chunks: Sequence[int], half_lives_ms: Sequence[int], layout: Layout, as_of_ms: float
) -> tuple[Floats, Floats]:
    """Return what each chunk amounts to at `as_of_ms` under exponential decay, relative to its own end.

    Each chunk has its half-life. Records are n × buckets × response_width, sums n × 5 × 2·m: Σw, Σw·x, Σw², Σw²·x,
    Σw²·x² of the metrics over rated, then over all responses. With them comes the time from which on nothing in a chunk
    lies in the future, so that its sums are the same at every later time; −∞ for an empty one.
    """
    columns = np.ascontiguousarray(np.moveaxis(records, 2, 0))
    head, parts = columns[:4], columns[4:].reshape(layout.metrics, 8, *records.shape[:2]).swapaxes(0, 1)
    spans_ms = np.array(half_lives_ms, dtype=np.float64)[:, None]
    offset_ms, slope = spans_ms / (BUCKETS_PER_CHUNK << OFFSET_BITS), math.log(2) / spans_ms
    totals = join_limbs(parts[2], parts[3]) * _UNIT
    total_moments = slope * _moments(totals, join_limbs(parts[4], parts[5]) * _UNIT, offset_ms)
    squares = join_limbs(parts[6], parts[7]) / layout.square_scale()[:, None, None]
    early_ms = (np.array(chunks)[:, None] + _MIDDLES) * spans_ms - offset_ms / 2
    found, from_ms = [], np.full(len(chunks), -np.inf)
    for numbers in (head[2:, None] - parts[:2], head[:2, None]):
        counts, offsets = numbers.astype(np.float64)
        moments = _moments(counts, offsets, offset_ms)
        known_ms = np.where(counts > 0, early_ms + moments / np.maximum(counts, 1), -np.inf)
        from_ms = np.maximum(from_ms, known_ms.max(axis=(0, 2)))
        weight = np.where((counts > 0) & (known_ms <= as_of_ms), _WEIGHTS, 0.0)
        squared, moments = weight * weight, slope * moments
        sums = [
            weight * (counts + moments),
            weight * (totals + total_moments),
            squared * (counts + 2 * moments),
            squared * (totals + 2 * total_moments),
            squared * squares,
        ]
        found.append([np.broadcast_to(each.sum(axis=2), (layout.metrics, len(chunks))) for each in sums])
    return np.moveaxis(np.concatenate(found, axis=1), 2, 0), from_ms


def together(sums: Sequence[Floats], chunks: Sequence[Sequence[int]]) -> Moments:
    """Return the moments of each stretch of chunks (rows) and column, of `digests` with as many columns.

    They are relative to the end of the newest chunk with an observation. Chunks are apart by whole half-lives, so
    nothing is rounded but the sum.
    """
    lengths = [len(stretch) for stretch in chunks]
    filled = [at for at, length in enumerate(lengths) if length]
    found = np.zeros((len(sums), *np.shape(sums[0])[1:]))
    if filled:
        rows = np.concatenate(sums)
        places = np.concatenate(chunks)[:, None]
        starts = np.cumsum([0, *[lengths[at] for at in filled[:-1]]])
        newest = np.maximum.reduceat(np.where(rows[:, 0] > 0, places, 0), starts, axis=0)
        behind = np.clip(np.repeat(newest, [lengths[at] for at in filled], axis=0) - places, 0, _NOTHING_LEFT)
        factor = np.ldexp(1.0, -behind.astype(np.int32))[:, None]
        rows[:, :2] *= factor
        rows[:, 2:] *= factor * factor
        found[filled] = np.add.reduceat(rows, starts, axis=0)
    weight, total, squared_weight, squared_weight_total, squared_weight_square = np.moveaxis(found, 1, 0)
    return Moments(weight, squared_weight, total, squared_weight_total, squared_weight_square)


def _moments(counts: Floats, offsets: Floats, offset_ms: float | Floats) -> Floats:
    """Return Σ(t − middle) in ms from Σ1 and Σ offset; an offset stands for the middle of its unit."""
    half = (1 << OFFSET_BITS) / 2 - 0.5
    return (offsets - half * counts) * offset_ms


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

    def _groups(self, metric: int, counts: Floats, offsets: Floats) -> Groups:
        at = 4 + 8 * metric
        records = self.records
        totals = join_limbs(records[:, at + 2], records[:, at + 3]) * _UNIT
        moments = join_limbs(records[:, at + 4], records[:, at + 5]) * _UNIT
        squares = join_limbs(records[:, at + 6], records[:, at + 7]) / self.squares[metric]
        return Groups(
            self.middle_ms,
            counts,
            _moments(counts, offsets, self.offset_ms),
            totals,
            _moments(totals, moments, self.offset_ms),
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
