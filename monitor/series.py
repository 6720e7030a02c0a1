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
from monitor.weighing import COLUMNS, WEIGHTS

_UNIT = float(2**-SCALE_BITS)
_WEIGHTS: Final = np.array([WEIGHTS, [weight * weight for weight in WEIGHTS]])
_NOTHING_LEFT: Final = 2000
"""Half-lives after which a weight is 0 in float64."""
_POWERS: Final = np.ldexp(1.0, -np.arange(_NOTHING_LEFT + 1))
"""Weights after so many half-lives."""


def reached_buckets(chunks: Sequence[int], half_lives_ms: Sequence[int], as_of_ms: int) -> Ints:
    """Return the bucket of each chunk that a time is in; −1 if it is before them, `BUCKETS_PER_CHUNK` if after."""
    begins, spans_ms = np.array(chunks, dtype=np.int64), np.array(half_lives_ms, dtype=np.int64)
    reached: Ints = as_of_ms * BUCKETS_PER_CHUNK // spans_ms - begins * BUCKETS_PER_CHUNK
    return reached.clip(-1, BUCKETS_PER_CHUNK)


def digests(
    weighed: bytes, chunks: Sequence[int], half_lives_ms: Sequence[int], reached: Ints, layout: Layout, as_of_ms: int
) -> tuple[Floats, Floats]:
    """Return what each chunk amounts to at `as_of_ms` under exponential decay, relative to its own end.

    Each has its half-life, and was weighed until the bucket that was reached (`reached_buckets`). Sums are n × 5 × 2·m:
    Σw, Σw·x, Σw², Σw²·x, Σw²·x² of the metrics over rated, then over all responses. With them comes a time from which
    on they are the same, since nothing in the chunk lies in the future: `as_of_ms` at the latest, or ∞ if something
    does.
    """
    read = np.frombuffer(weighed, dtype="<f8").reshape(len(chunks), -1)
    shape = len(chunks), 3, layout.metrics, COLUMNS
    columns = np.moveaxis(read[:, :-1].reshape(shape), (1, 3, 2, 0), (0, 1, 2, 3))
    begins, spans_ms = np.array(chunks, dtype=np.int64), np.array(half_lives_ms, dtype=np.int64)
    offset_ms = _offset_ms(spans_ms)
    at = reached.clip(0, BUCKETS_PER_CHUNK - 1)
    current = columns[2]
    counts = current[:2]
    early_ms = (begins + (at + 0.5) / BUCKETS_PER_CHUNK) * spans_ms - offset_ms / 2
    past = early_ms + _moments(counts, current[2:4], offset_ms) / np.maximum(counts, 1) <= as_of_ms
    inside = (at == reached) & (counts > 0)
    cut = (inside & ~past).any(axis=(0, 1))
    # Of a bucket that the time cuts through some columns count and others do not: it is added by itself.
    weighted = _WEIGHTS[:, None, None, at] * current
    sums = _weighted(columns[:2] + np.where(cut, 0.0, weighted), spans_ms, layout)
    if cut.any():
        sums += np.where(cut & inside & past, _weighted(weighted, spans_ms, layout), 0.0)
    from_ms = np.where(cut | (read[:, -1] > 0), np.inf, np.minimum((begins + 1) * spans_ms, as_of_ms))
    return np.moveaxis(sums.reshape(5, 2 * layout.metrics, len(chunks)), 2, 0), from_ms


def _weighted(columns: Floats, spans_ms: Ints, layout: Layout) -> Floats:
    """Return the sums (5 × 2 × m × n) of columns that were weighted with w, and with w² (2 × 8 × m × n)."""
    offset_ms, slope = _offset_ms(spans_ms), math.log(2) / spans_ms
    counts, totals = columns[:, :2], columns[:, 4:5] * _UNIT
    count_moments = slope * _moments(counts, columns[:, 2:4], offset_ms)
    total_moments = slope * _moments(totals, columns[:, 5:6] * _UNIT, offset_ms)
    sums = np.empty((5, *counts.shape[1:]))
    sums[0], sums[2] = counts[0] + count_moments[0], counts[1] + 2 * count_moments[1]
    sums[1], sums[3] = totals[0] + total_moments[0], totals[1] + 2 * total_moments[1]
    squares = columns[1, 6:7]
    square_moments = slope * _moments(squares, columns[1, 7:], offset_ms)
    sums[4] = (squares + 2 * square_moments) / layout.square_scale()[:, None]
    return sums


def _offset_ms(spans_ms: Ints) -> Floats:
    """Return the milliseconds of one unit of offset in chunks of these lengths."""
    return spans_ms / (BUCKETS_PER_CHUNK << OFFSET_BITS)


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
        places = np.concatenate(chunks, dtype=np.int64)[:, None]
        starts = np.cumsum([0, *[lengths[at] for at in filled[:-1]]])
        newest = np.maximum.reduceat(np.where(rows[:, 0] > 0, places, 0), starts, axis=0)
        behind = np.repeat(newest, [lengths[at] for at in filled], axis=0) - places
        factor = _POWERS[np.clip(behind, 0, _NOTHING_LEFT)][:, None]
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
