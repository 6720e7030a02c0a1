"""The stored sums: how entities turn into integers, and how means are read back from them.

Every stored number is a sum over entities (responses, students) of an integer function of that entity's state. A
change is stored as the difference: minus what the old state contributed, plus what the new one does. A real-valued
term is split into two integers (`limbs`: value = high·2²⁴ + low), so that no sum of them can overflow 64 bits within
10¹¹ entities. Three kinds of record exist, each a vector of 64-bit integers:

- `ResponseLayout`: sums over responses, one record for all time and one for each time bucket of each decay;
- `UnitLayout`: sums over students (or over responses that name no student), for the live estimand;
- `CohortLayout`: sums over the students first shown a response on one UTC day, for the closed-unit estimand.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.config import DecaySpec, ExperimentSettings, is_share
from monitor.ranking import SCALE_BITS, Scorer

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

LIMB_BITS = 24
_LIMB_MASK = (1 << LIMB_BITS) - 1
_UNIT = float(2**-SCALE_BITS)

BUCKETS_PER_CHUNK = 64
"""Time buckets of one half-life, stored as one value."""

OFFSET_BITS = 10
"""Where in its bucket an event lies is known to 1/1024 of the bucket. A bucket keeps Σ offset and Σ x·offset besides
counts and sums, so weights are taken to first order around its middle: each is right to (ln 2/128)²/2 = 0.0015 %."""

LATENCY_SQUARE_BITS = 14
"""Fraction bits kept of squared latencies, which are at most 2⁵⁴ ms²."""

_REACH_HALF_LIVES = 80
"""Chunks read back from the newest: what lies further has a weight under 2⁻⁸⁰ of it."""


def limbs(terms: Floats) -> tuple[Ints, Ints]:
    """Split integer-valued terms (any shape, ≥ 0, < 2⁸⁷) into (low, high)."""
    high = np.floor(terms * 2.0**-LIMB_BITS)
    low = terms - high * 2.0**LIMB_BITS
    return low.astype(np.int64), high.astype(np.int64)


def join_limbs(low: Ints, high: Ints) -> Floats:
    """Return the sums that pairs of summed limbs stand for, in float64 (relative error 2⁻⁵³)."""
    carry = low >> LIMB_BITS
    return (high + carry).astype(np.float64) * 2.0**LIMB_BITS + (low & _LIMB_MASK).astype(np.float64)


def square_bits(largest: int) -> int:
    """Return the fraction bits kept of squares: 30 for contributions up to 2⁷, two fewer for each doubling."""
    return SCALE_BITS - 2 * max(0, math.ceil(math.log2(max(largest * _UNIT, 1.0))) - 7)


@dataclass(frozen=True, slots=True)
class Layout:
    """Names the integers of an experiment's records; `metrics` is the number of metrics, m below."""

    metrics: int
    squares: tuple[int, ...]
    """Fraction bits of each metric's squares."""
    watched: tuple[int, ...] = ()
    """Fraction bits of the squares of what guardrails watch besides (`ExperimentSettings.watched`), w below."""

    @classmethod
    def of(cls, experiment: ExperimentSettings) -> Layout:
        """Return the layout that an experiment's definitions imply."""
        return cls(
            metrics=len(experiment.metrics),
            squares=tuple(square_bits(bound) for bound in Scorer.of(experiment).bounds()),
            watched=tuple(SCALE_BITS if is_share(name) else LATENCY_SQUARE_BITS for name in experiment.watched),
        )

    @property
    def response_width(self) -> int:
        """[responses, Σ offset, rated, Σ offset of rated] + m × 8.

        Per metric: [undefined, Σ offset of undefined, Σx (2), Σx·offset (2), Σx² (2)]; without offsets for all time.
        """
        return 4 + 8 * self.metrics

    @property
    def unit_width(self) -> int:
        """[students, crossovers, without user, units, N, n, units with n, ΣN² (2), Σn² (2), Σn·N (2)] + m × 12.

        The first three count presences (a student in a variant). With N responses, n rated, per metric
        n_q = n − undefined and S = Σ metric, the others are sums over units: those with one variant only, and responses
        that name no student. Per metric: [n_q>0, n_q, S (2), S² (2), S·n_q (2), n_q² (2), S·N (2)]. Among them are
        Q = ΣS², R = ΣS·N and P = ΣN² of the cluster-robust variance, for both populations.
        """
        return 13 + 12 * self.metrics

    @property
    def cohort_width(self) -> int:
        """[first exposures, units, units with n, Σn/N (2), Σ(n/N)² (2)] + m × 9 + w × 5, of closed windows.

        Per metric: [n_q>0, y (2), y² (2), y' (2), y'² (2)], where y = S/n_q over rated responses and y' = S/N over all
        responses are the student's means. Of what is watched: [units that have it, y (2), y² (2)], y the student's mean
        over all responses that have it.
        """
        return self.watched_place + 5 * len(self.watched)

    @property
    def watched_place(self) -> int:
        """Where in a cohort's record what is watched begins."""
        return 7 + 9 * self.metrics

    @property
    def sums_width(self) -> int:
        """Length of a student's sums vector: 2 + 2·m + 2·w."""
        return 2 + 2 * self.metrics + 2 * len(self.watched)

    def square_scale(self) -> Floats:
        """Return 2^bits of each metric's squares (m)."""
        return np.array([2.0**bits for bits in self.squares])


# ---------------------------------------------------------------------------------------------- time buckets, decay


def bucket_span_ms(decay: DecaySpec) -> int:
    """Return the length of a chunk of buckets: one half-life, or a day for reciprocal decay."""
    return decay.half_life_ms if decay.half_life_ms is not None else 86_400_000


def oldest_chunk(newest_ms: int, retention_ms: int, span_ms: int) -> int:
    """Return the first chunk that retention keeps, given the experiment's newest event."""
    return (newest_ms - retention_ms) // span_ms


def weights(ages_ms: Floats, decay: DecaySpec) -> Floats:
    """Return each age's weight: 2^(−age/half_life), or 1/(1 + days) and 0 from the cutoff; 0 for a negative age."""
    if decay.half_life_ms is not None:
        weight = np.exp2(-ages_ms / decay.half_life_ms)
    else:
        weight = 1.0 / (1.0 + np.maximum(ages_ms, 0.0) / 86_400_000)
        if decay.cutoff_ms is not None:
            weight = np.where(ages_ms >= decay.cutoff_ms, 0.0, weight)
    return np.where(ages_ms < 0, 0.0, weight)


@dataclass(frozen=True, slots=True)
class Groups:
    """n groups of observations, each around one time; `…_moments` are Σ(t − time), in ms, and Σx·(t − time).

    For single observations at known times the moments are 0 and everything below is exact.
    """

    times_ms: Floats
    counts: Floats
    count_moments: Floats
    totals: Floats
    total_moments: Floats
    squares: Floats
    doubt_ms: float = 0.0
    """How far a time may lie before the mean that stands for it."""

    @classmethod
    def single(cls, times_ms: Floats, values: Floats) -> Groups:
        """Return groups of one observation each."""
        none = np.zeros_like(times_ms)
        return cls(times_ms, np.ones_like(times_ms), none, values, none, values * values)

    def mean_times_ms(self) -> Floats:
        """Return the mean time of each group's observations."""
        return self.times_ms + self.count_moments / np.maximum(self.counts, 1.0)


@dataclass(frozen=True, slots=True)
class Moments:
    """Decayed sums of one series: Σw, Σw², Σw·x, Σw²·x, Σw²·x² (exponential weights: relative to the newest)."""

    weight: float
    squared_weight: float
    total: float
    squared_weight_total: float
    squared_weight_square: float

    @property
    def mean(self) -> float | None:
        """Σw·x / Σw; None without weight."""
        return self.total / self.weight if self.weight > 0 else None

    @property
    def effective_count(self) -> float:
        """(Σw)² / Σw² (Kish 1965); 0 without weight."""
        return self.weight**2 / self.squared_weight if self.squared_weight > 0 else 0.0

    @property
    def standard_error(self) -> float | None:
        """√(Σw²(x − mean)²) / Σw; None with fewer than two effective observations."""
        mean = self.mean
        if mean is None or self.effective_count < 2:  # noqa: PLR2004  one observation has no spread
            return None
        spread = self.squared_weight_square - 2 * mean * self.squared_weight_total + mean**2 * self.squared_weight
        return math.sqrt(max(spread, 0.0)) / self.weight


def decayed(groups: Groups, as_of_ms: int, decay: DecaySpec) -> Moments:
    """Return the decayed moments of groups of observations.

    Groups after `as_of_ms` do not count. Exponential weights are taken relative to the newest group that counts: the
    common factor cancels in every mean, and nothing underflows however long ago it was.

    >>> day = 86_400_000.0
    >>> week = Groups.single(np.array([0.0, day, 2 * day]), np.array([0.9, 0.7, 1.0]))
    >>> sums = decayed(week, int(402 * day), DecaySpec("1d", half_life_ms=86_400_000))
    >>> round(sums.mean, 12), round(sums.effective_count, 12)
    (0.9, 2.333333333333)
    """
    means_ms = groups.mean_times_ms()
    live = (means_ms - groups.doubt_ms <= as_of_ms) & (groups.counts > 0)
    if not live.any():
        return Moments(0.0, 0.0, 0.0, 0.0, 0.0)
    times_ms = groups.times_ms[live]
    if decay.half_life_ms is not None:
        weight = np.exp2((times_ms - means_ms[live].max()) / decay.half_life_ms)
        slope = np.full_like(weight, math.log(2) / decay.half_life_ms)
    else:
        weight = weights(np.maximum(as_of_ms - times_ms, 0.0), decay)
        slope = weight / 86_400_000
    squared = weight * weight
    counts, totals, squares = groups.counts[live], groups.totals[live], groups.squares[live]
    count_moments, total_moments = slope * groups.count_moments[live], slope * groups.total_moments[live]
    return Moments(
        weight=float(weight @ (counts + count_moments)),
        squared_weight=float(squared @ (counts + 2 * count_moments)),
        total=float(weight @ (totals + total_moments)),
        squared_weight_total=float(squared @ (totals + 2 * total_moments)),
        squared_weight_square=float(squared @ squares),
    )


def chunks_in_reach(
    stored: Sequence[int], as_of_ms: int, decay: DecaySpec, oldest: int, anchor: int | None = None
) -> Sequence[int]:
    """Return the chunks, of rising ones, that a reading at `as_of_ms` needs: those whose weight is not nothing.

    Exponential weights are relative to the newest observation, which `anchor` says is in that chunk or before; by
    default it is taken to be in the newest chunk.
    """
    span_ms = bucket_span_ms(decay)
    past = stored[bisect_left(stored, oldest) : bisect_right(stored, as_of_ms // span_ms)]
    if not past:
        return []
    if decay.cutoff_ms is not None:
        return past[bisect_right(past, (as_of_ms - decay.cutoff_ms) / span_ms - 1) :]
    newest = past[-1] if anchor is None else past[max(bisect_right(past, anchor) - 1, 0)]
    return past[bisect_left(past, newest - _REACH_HALF_LIVES) :]


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


def responses_of(record: Ints, layout: Layout) -> Iterator[tuple[int, float, float]]:
    """Yield (undefined, Σx, Σx²) for each metric of an all-time record."""
    totals = join_limbs(record[6::8], record[7::8]) * _UNIT
    squares = join_limbs(record[10::8], record[11::8]) / layout.square_scale()
    yield from zip(record[4::8].tolist(), totals.tolist(), squares.tolist(), strict=True)
