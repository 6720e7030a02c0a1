"""Decayed sums and means of observations, and of the stored time buckets of observations.

Under exponential decay, the sums of a chunk of buckets relative to the chunk's end are the same at any later time.
Chunks are whole half-lives apart, so sums of chunks are added with powers of two as weights, without rounding of
products.
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

from monitor.clock import DAY_MS
from monitor.config import DecaySpec
from monitor.metrics.fixed_point import FIXED_POINT_BITS
from monitor.metrics.ranked_lists import FloatArray, IntArray
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, OFFSET_BITS, RecordLayout, ResponseRecord, chunk_length_ms

ChunkNumbers: TypeAlias = "array[int]"
"""Numbers of chunks, ascending. Chunk n begins n chunk lengths after the Unix epoch."""

_UNIT: Final = float(2**-FIXED_POINT_BITS)
_MAX_AGE_HALF_LIVES: Final = 80
"""Chunks before the newest chunk that are read. The weight of older chunks is below 2⁻⁸⁰ of the newest chunk's."""


def decay_weights(ages_ms: FloatArray, decay: DecaySpec) -> FloatArray:
    """Return the weight of each age: 2^(−age/half_life), or 1/(1 + days) before the cutoff; 0 for negative ages."""
    if decay.half_life_ms is not None:
        weight = np.exp2(-ages_ms / decay.half_life_ms)
    else:
        weight = 1.0 / (1.0 + np.maximum(ages_ms, 0.0) / DAY_MS)
        if decay.cutoff_ms is not None:
            weight = np.where(ages_ms >= decay.cutoff_ms, 0.0, weight)
    return np.where(ages_ms < 0, 0.0, weight)


@dataclass(frozen=True, slots=True)
class ObservationGroups:
    """Groups of observations along the first axis, each group around a time; further axes are independent series.

    `count_moments` are Σ(t − time) in ms, `total_moments` Σx·(t − time). For single observations at exact times the
    moments are 0, and all results are exact.
    """

    times_ms: FloatArray
    counts: FloatArray
    count_moments: FloatArray
    totals: FloatArray
    total_moments: FloatArray
    squares: FloatArray
    time_error_ms: float = 0.0
    """How far an observation may be before the mean time of its group."""

    @classmethod
    def single(cls, times_ms: FloatArray, values: FloatArray) -> ObservationGroups:
        """Return groups with a single observation each."""
        zeros = np.zeros_like(times_ms)
        return cls(times_ms, np.ones_like(times_ms), zeros, values, zeros, values * values)

    @classmethod
    def of_buckets(
        cls, records: IntArray, middles_ms: FloatArray, layout: RecordLayout, span_ms: int
    ) -> ObservationGroups:
        """Return the groups of bucket records (buckets × … × `RecordLayout.response_width`) around their middles.

        The last axis becomes 2·m series: each metric over the responses with a value, then each ranking metric over
        all responses, where responses without a value count as 0, and each answer metric as before.
        """
        sums = ResponseRecord(records)
        count, offset = (
            np.concatenate(
                [with_value, np.where(layout.answer_metrics, with_value, responses[..., None])], axis=-1
            ).astype(np.float64)
            for responses, with_value in (
                (sums.responses, sums.counts(layout)),
                (sums.offsets, sums.count_offsets(layout)),
            )
        )
        total, total_offset = sums.totals, sums.offset_totals
        offset_ms = span_ms / (BUCKETS_PER_CHUNK << OFFSET_BITS)
        middle = (1 << OFFSET_BITS) / 2 - 0.5  # an offset represents the middle of its unit
        total_moment = (total_offset - middle * total) * (_UNIT * offset_ms)
        units = layout.unit_scales()
        squares = sums.squares / layout.square_scales()
        columns = total * _UNIT * units, total_moment * units, squares * units**2
        totals, total_moments, squares = (np.concatenate([column, column], axis=-1) for column in columns)
        return cls(
            times_ms=middles_ms.reshape(-1, *[1] * (records.ndim - 1)),
            counts=count,
            count_moments=(offset - middle * count) * offset_ms,
            totals=totals,
            total_moments=total_moments,
            squares=squares,
            time_error_ms=offset_ms / 2,
        )

    def mean_times_ms(self) -> FloatArray:
        """Return the mean time of each group's observations."""
        return self.times_ms + self.count_moments / np.maximum(self.counts, 1.0)

    def until(self, as_of_ms: float | FloatArray) -> NDArray[np.bool_]:
        """Return which groups have observations with a mean time until `as_of_ms`."""
        return (self.mean_times_ms() - self.time_error_ms <= as_of_ms) & (self.counts > 0)

    def weighted(self, weight: FloatArray, count_terms: FloatArray, total_terms: FloatArray) -> DecayedMoments:
        """Return the weighted sums over the first axis; terms are the first-order corrections of counts and totals."""
        squared = weight * weight
        counts, totals, squares = self.counts, self.totals, self.squares
        # Buckets have no time of squares. The time of the totals is used, so constant values have no spread.
        square_terms = squares * np.divide(total_terms, totals, out=np.zeros_like(totals), where=totals > 0)
        return DecayedMoments(
            weight=(weight * (counts + count_terms)).sum(axis=0),
            total=(weight * (totals + total_terms)).sum(axis=0),
            squared_weight=(squared * (counts + 2 * count_terms)).sum(axis=0),
            squared_weight_total=(squared * (totals + 2 * total_terms)).sum(axis=0),
            squared_weight_square=(squared * (squares + 2 * square_terms)).sum(axis=0),
        )


@dataclass(frozen=True, slots=True)
class DecayedMoments:
    """Decayed sums of any number of series: Σw, Σw·x, Σw², Σw²·x, Σw²·x². An undefined statistic is NaN.

    Exponential weights are relative to a time that cancels in all statistics.
    """

    weight: FloatArray
    total: FloatArray
    squared_weight: FloatArray
    squared_weight_total: FloatArray
    squared_weight_square: FloatArray

    @property
    def mean(self) -> FloatArray:
        """Mean Σw·x / Σw; undefined without weight."""
        return _ratio(self.total, self.weight)

    @property
    def effective_count(self) -> FloatArray:
        """Effective number of observations (Σw)² / Σw² (Kish 1965); undefined without weight."""
        return _ratio(self.weight**2, self.squared_weight)

    @property
    def standard_error(self) -> FloatArray:
        """Standard error √(Σw²(x − mean)²) / Σw; undefined with fewer than two effective observations."""
        mean = self.mean
        spread = self.squared_weight_square - 2 * mean * self.squared_weight_total + mean**2 * self.squared_weight
        is_defined = self.effective_count >= 2  # noqa: PLR2004  one observation has no spread
        return np.where(is_defined, _ratio(np.sqrt(np.maximum(spread, 0.0)), self.weight), np.nan)


def _ratio(numerator: FloatArray, denominator: FloatArray) -> FloatArray:
    """Return the quotients, NaN for denominators that are not positive."""
    return np.divide(numerator, denominator, out=np.full_like(denominator, np.nan), where=denominator > 0)


def decayed_moments(groups: ObservationGroups, as_of_ms: float, decay: DecaySpec) -> DecayedMoments:
    """Return the decayed moments of groups of observations, summed over the first axis.

    Groups after `as_of_ms` do not count. Exponential weights are relative to the newest counted group of each series,
    so weights do not underflow when the newest group is old.

    >>> day = 86_400_000.0
    >>> week = ObservationGroups.single(np.array([0.0, day, 2 * day]), np.array([0.9, 0.7, 1.0]))
    >>> sums = decayed_moments(week, int(402 * day), DecaySpec("1d", half_life_ms=86_400_000))
    >>> round(float(sums.mean), 12), round(float(sums.effective_count), 12)
    (0.9, 2.333333333333)
    """
    is_counted, means_ms = groups.until(as_of_ms), groups.mean_times_ms()
    if decay.half_life_ms is not None:
        newest_ms = np.where(is_counted, means_ms, -np.inf).max(axis=0, initial=-np.inf)
        ages_ms = np.where(is_counted, newest_ms - groups.times_ms, np.inf)
        slope = math.log(2) / decay.half_life_ms
        weight = np.exp2(-ages_ms / decay.half_life_ms)
        return groups.weighted(weight, slope * groups.count_moments, slope * groups.total_moments)
    # Weights at the mean time of a group: there the age is not negative, and on the correct side of the cutoff.
    weight = np.where(is_counted, decay_weights(np.maximum(as_of_ms - means_ms, 0.0), decay), 0.0)
    total_moments = groups.total_moments - groups.totals * (means_ms - groups.times_ms)
    return groups.weighted(weight, np.zeros_like(groups.counts), weight / DAY_MS * total_moments)


def bucket_midpoints_ms(chunks: Sequence[int], span_ms: int) -> FloatArray:
    """Return the midpoints of all buckets of chunks, in ms; a chunk is `span_ms` long."""
    buckets = np.asarray(chunks, dtype=np.float64)[:, None] * BUCKETS_PER_CHUNK + np.arange(BUCKETS_PER_CHUNK) + 0.5
    middles_ms: FloatArray = buckets.ravel() * (span_ms / BUCKETS_PER_CHUNK)
    return middles_ms


def chunk_moments(
    records: IntArray, layout: RecordLayout, half_life_ms: int, as_of_ms: Sequence[int] | None = None
) -> FloatArray:
    """Return the fields of `DecayedMoments` of chunks under exponential decay: chunks × 5 × 2·m.

    Weights are relative to the end of each chunk. Records are chunks × buckets ×
    `RecordLayout.response_width`. `as_of_ms` has a time for each chunk, relative to the chunk's end; later buckets do
    not count.
    """
    middles_ms = bucket_midpoints_ms([-1], half_life_ms)
    groups = ObservationGroups.of_buckets(np.swapaxes(records, 0, 1), middles_ms, layout, half_life_ms)
    weight, slope = np.exp2(groups.times_ms / half_life_ms), math.log(2) / half_life_ms
    if as_of_ms is not None:
        weight = np.where(groups.until(np.reshape(as_of_ms, (-1, 1))), weight, 0.0)
    moments = groups.weighted(weight, slope * groups.count_moments, slope * groups.total_moments)
    return np.stack(astuple(moments), axis=1)


def merge_moments(sums: FloatArray, chunks: Sequence[int]) -> FloatArray:
    """Return the sum (5 × series) of the moments of chunks (n × 5 × series).

    Weights are relative to the end of the chunk with the newest observation of each series.
    """
    numbers = np.asarray(chunks)[:, None]
    newest = np.where(sums[:, 0] > 0, numbers, chunks[0]).max(axis=0)
    weight = np.ldexp(1.0, np.minimum(numbers - newest, 0))
    squared = weight * weight
    total: FloatArray = (sums * np.stack([weight, weight, squared, squared, squared], axis=1)).sum(axis=0)
    return total


def relevant_chunks(
    stored: ChunkNumbers, as_of_ms: int, decay: DecaySpec, oldest: int, anchor: int | None = None
) -> ChunkNumbers:
    """Return the stored chunks with a weight at `as_of_ms` that is not negligible, from chunk `oldest` on.

    Exponential weights are relative to the newest observation. `anchor` is the number of that observation's chunk, by
    default the newest chunk.
    """
    span_ms = chunk_length_ms(decay)
    past = stored[bisect_left(stored, oldest) : bisect_right(stored, as_of_ms // span_ms)]
    if not past:
        return past
    if decay.cutoff_ms is not None:
        return past[bisect_right(past, (as_of_ms - decay.cutoff_ms) / span_ms - 1) :]
    newest = past[-1] if anchor is None else past[max(bisect_right(past, anchor) - 1, 0)]
    return past[bisect_left(past, newest - _MAX_AGE_HALF_LIVES) :]
