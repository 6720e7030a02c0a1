"""Decayed sums and means of observations, and of the time buckets that are stored of them.

Under exponential decay, the sums of a chunk of buckets relative to the chunk's own end are the same at any later time.
Chunks are whole half-lives apart, so their sums are put together with powers of two: only the sum itself is rounded.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.config import DecaySpec
from monitor.metrics.fixed_point import SCALE_BITS
from monitor.metrics.record_layout import (
    BUCKETS_PER_CHUNK,
    OFFSET_BITS,
    Floats,
    Ints,
    Layout,
    bucket_span_ms,
    join_limbs,
)

Chunks: TypeAlias = "array[int]"
"""Numbers of chunks, rising."""

_UNIT: Final = float(2**-SCALE_BITS)
_DAY_MS: Final = 86_400_000
_MAX_AGE_HALF_LIVES: Final = 80
"""Chunks read back from the newest: the weight of older ones is under 2⁻⁸⁰ of its weight."""


def weights(ages_ms: Floats, decay: DecaySpec) -> Floats:
    """Return each age's weight: 2^(−age/half_life), or 1/(1 + days) and 0 from the cutoff; 0 for a negative age."""
    if decay.half_life_ms is not None:
        weight = np.exp2(-ages_ms / decay.half_life_ms)
    else:
        weight = 1.0 / (1.0 + np.maximum(ages_ms, 0.0) / _DAY_MS)
        if decay.cutoff_ms is not None:
            weight = np.where(ages_ms >= decay.cutoff_ms, 0.0, weight)
    return np.where(ages_ms < 0, 0.0, weight)


@dataclass(frozen=True, slots=True)
class Groups:
    """Groups of observations along the first axis, each around one time; further axes are independent series.

    `…_moments` are Σ(t − time), in ms, and Σx·(t − time). For single observations at known times the moments are 0 and
    everything below is exact.
    """

    times_ms: Floats
    counts: Floats
    count_moments: Floats
    totals: Floats
    total_moments: Floats
    squares: Floats
    doubt_ms: float = 0.0
    """How far an observation may lie before the mean time of its group."""

    @classmethod
    def single(cls, times_ms: Floats, values: Floats) -> Groups:
        """Return groups of one observation each."""
        none = np.zeros_like(times_ms)
        return cls(times_ms, np.ones_like(times_ms), none, values, none, values * values)

    @classmethod
    def of_buckets(cls, records: Ints, middles_ms: Floats, layout: Layout, span_ms: int) -> Groups:
        """Return the groups of bucket records (buckets × … × `response_width`) around the middles of their buckets.

        The last axis becomes 2·m series: each metric over the rated responses where it is defined, then over all
        responses, where those without a value count 0.
        """
        metrics = records[..., 4:].reshape(*records.shape[:-1], layout.metrics, 8)
        count, offset = (
            np.concatenate(
                [
                    records[..., 2 + place, None] - metrics[..., place],
                    np.broadcast_to(records[..., place, None], metrics.shape[:-1]),
                ],
                axis=-1,
            ).astype(np.float64)
            for place in (0, 1)
        )
        total, total_offset, square = (join_limbs(metrics[..., place], metrics[..., place + 1]) for place in (2, 4, 6))
        offset_ms = span_ms / (BUCKETS_PER_CHUNK << OFFSET_BITS)
        middle = (1 << OFFSET_BITS) / 2 - 0.5  # an offset stands for the middle of its unit
        total_moment = (total_offset - middle * total) * (_UNIT * offset_ms)
        columns = total * _UNIT, total_moment, square / layout.square_scale()
        totals, total_moments, squares = (np.concatenate([column, column], axis=-1) for column in columns)
        return cls(
            times_ms=middles_ms.reshape(-1, *[1] * (records.ndim - 1)),
            counts=count,
            count_moments=(offset - middle * count) * offset_ms,
            totals=totals,
            total_moments=total_moments,
            squares=squares,
            doubt_ms=offset_ms / 2,
        )

    def mean_times_ms(self) -> Floats:
        """Return the mean time of each group's observations."""
        return self.times_ms + self.count_moments / np.maximum(self.counts, 1.0)

    def until(self, as_of_ms: float | Floats) -> NDArray[np.bool_]:
        """Return which groups have observations, at `as_of_ms` at the latest."""
        return (self.mean_times_ms() - self.doubt_ms <= as_of_ms) & (self.counts > 0)

    def weighted(self, weight: Floats, count_terms: Floats, total_terms: Floats) -> Moments:
        """Return the sums over the first axis; terms are the first-order corrections of counts and totals."""
        squared = weight * weight
        counts, totals, squares = self.counts, self.totals, self.squares
        # Buckets keep no time of squares. They are taken to be where the totals are: constant values have no spread.
        square_terms = squares * np.divide(total_terms, totals, out=np.zeros_like(totals), where=totals > 0)
        return Moments(
            weight=(weight * (counts + count_terms)).sum(axis=0),
            total=(weight * (totals + total_terms)).sum(axis=0),
            squared_weight=(squared * (counts + 2 * count_terms)).sum(axis=0),
            squared_weight_total=(squared * (totals + 2 * total_terms)).sum(axis=0),
            squared_weight_square=(squared * (squares + 2 * square_terms)).sum(axis=0),
        )


@dataclass(frozen=True, slots=True)
class Moments:
    """Decayed sums of any number of series: Σw, Σw·x, Σw², Σw²·x, Σw²·x². NaN is an undefined statistic.

    Exponential weights are relative to some time, which cancels in all statistics.
    """

    weight: Floats
    total: Floats
    squared_weight: Floats
    squared_weight_total: Floats
    squared_weight_square: Floats

    @property
    def mean(self) -> Floats:
        """Σw·x / Σw; undefined without weight."""
        return _ratio(self.total, self.weight)

    @property
    def effective_count(self) -> Floats:
        """(Σw)² / Σw² (Kish 1965); undefined without weight."""
        return _ratio(self.weight**2, self.squared_weight)

    @property
    def standard_error(self) -> Floats:
        """√(Σw²(x − mean)²) / Σw; undefined with fewer than two effective observations."""
        mean = self.mean
        spread = self.squared_weight_square - 2 * mean * self.squared_weight_total + mean**2 * self.squared_weight
        # One observation has no spread.
        enough = self.effective_count >= 2  # noqa: PLR2004
        return np.where(enough, _ratio(np.sqrt(np.maximum(spread, 0.0)), self.weight), np.nan)


def _ratio(part: Floats, whole: Floats) -> Floats:
    return np.divide(part, whole, out=np.full_like(whole, np.nan), where=whole > 0)


def decayed(groups: Groups, as_of_ms: float, decay: DecaySpec) -> Moments:
    """Return the decayed moments of groups of observations, summed over the first axis.

    Groups after `as_of_ms` do not count. Exponential weights are relative to each series' newest group that counts:
    nothing underflows however long ago that was.

    >>> day = 86_400_000.0
    >>> week = Groups.single(np.array([0.0, day, 2 * day]), np.array([0.9, 0.7, 1.0]))
    >>> sums = decayed(week, int(402 * day), DecaySpec("1d", half_life_ms=86_400_000))
    >>> round(float(sums.mean), 12), round(float(sums.effective_count), 12)
    (0.9, 2.333333333333)
    """
    live, means_ms = groups.until(as_of_ms), groups.mean_times_ms()
    if decay.half_life_ms is not None:
        newest_ms = np.where(live, means_ms, -np.inf).max(axis=0, initial=-np.inf)
        ages_ms = np.where(live, newest_ms - groups.times_ms, np.inf)
        slope = math.log(2) / decay.half_life_ms
        weight = np.exp2(-ages_ms / decay.half_life_ms)
        return groups.weighted(weight, slope * groups.count_moments, slope * groups.total_moments)
    # Around the mean time: neither does an age become negative there, nor is it on the other side of the cutoff.
    weight = np.where(live, weights(np.maximum(as_of_ms - means_ms, 0.0), decay), 0.0)
    total_moments = groups.total_moments - groups.totals * (means_ms - groups.times_ms)
    return groups.weighted(weight, np.zeros_like(groups.counts), weight / _DAY_MS * total_moments)


def bucket_middles_ms(chunks: Sequence[int], span_ms: int) -> Floats:
    """Return the times in the middle of all buckets of some chunks, which are `span_ms` long."""
    buckets = np.asarray(chunks, dtype=np.float64)[:, None] * BUCKETS_PER_CHUNK + np.arange(BUCKETS_PER_CHUNK) + 0.5
    middles_ms: Floats = buckets.ravel() * (span_ms / BUCKETS_PER_CHUNK)
    return middles_ms


def chunk_moments(records: Ints, layout: Layout, half_life_ms: int, as_of_ms: Sequence[int] | None = None) -> Floats:
    """Return the fields of `Moments` of chunks under exponential decay, relative to the end of each: chunks × 5 × 2·m.

    Records are chunks × buckets × `response_width`. Buckets after `as_of_ms`, which is counted from the end of each
    chunk, do not count.
    """
    middles_ms = bucket_middles_ms([-1], half_life_ms)
    groups = Groups.of_buckets(np.swapaxes(records, 0, 1), middles_ms, layout, half_life_ms)
    weight, slope = np.exp2(groups.times_ms / half_life_ms), math.log(2) / half_life_ms
    if as_of_ms is not None:
        weight = np.where(groups.until(np.reshape(as_of_ms, (-1, 1))), weight, 0.0)
    moments = groups.weighted(weight, slope * groups.count_moments, slope * groups.total_moments)
    return np.stack(astuple(moments), axis=1)


def merge_moments(sums: Floats, chunks: Sequence[int]) -> Floats:
    """Return the sums of chunks (n × 5 × series) as one (5 × series), relative to each series' newest observation.

    More precisely, relative to the end of the chunk that it is in.
    """
    numbers = np.asarray(chunks)[:, None]
    newest = np.where(sums[:, 0] > 0, numbers, chunks[0]).max(axis=0)
    weight = np.ldexp(1.0, np.minimum(numbers - newest, 0))
    squared = weight * weight
    added: Floats = (sums * np.stack([weight, weight, squared, squared, squared], axis=1)).sum(axis=0)
    return added


def relevant_chunks(stored: Chunks, as_of_ms: int, decay: DecaySpec, oldest: int, anchor: int | None = None) -> Chunks:
    """Return the stored chunks that a reading at `as_of_ms` needs: those whose weight is not negligible.

    Exponential weights are relative to the newest observation, which `anchor` says is in that chunk or before; by
    default it is taken to be in the newest chunk.
    """
    span_ms = bucket_span_ms(decay)
    past = stored[bisect_left(stored, oldest) : bisect_right(stored, as_of_ms // span_ms)]
    if not past:
        return past
    if decay.cutoff_ms is not None:
        return past[bisect_right(past, (as_of_ms - decay.cutoff_ms) / span_ms - 1) :]
    newest = past[-1] if anchor is None else past[max(bisect_right(past, anchor) - 1, 0)]
    return past[bisect_left(past, newest - _MAX_AGE_HALF_LIVES) :]
