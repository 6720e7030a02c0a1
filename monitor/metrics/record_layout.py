"""The stored sums: how entities turn into integers, and how means are read back from them.

Every stored number is a sum over entities (responses, students) of an integer function of that entity's state. A
change is stored as the difference: minus what the old state contributed, plus what the new one does. A real-valued
term is split into two integers (`limbs`: value = high·2²⁴ + low), so that no sum of them can overflow 64 bits within
10¹¹ entities. Three kinds of record exist, each a vector of 64-bit integers:

- of `Layout.response_width`: sums over responses, one record for all time and one for each time bucket of each decay;
- of `Layout.unit_width`: sums over students (or over responses that name no student), for the live estimand;
- of `Layout.cohort_width`: sums over the students first shown a response on one UTC day, for the closed-unit estimand.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from monitor.config import DecaySpec, ExperimentSettings, is_share
from monitor.metrics.fixed_point import SCALE_BITS, Scorer

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

LIMB_BITS: Final = 24
_UNIT = float(2**-SCALE_BITS)

BUCKETS_PER_CHUNK: Final = 64
"""Time buckets of one half-life, stored as one value."""

OFFSET_BITS: Final = 10
"""Where in its bucket an event lies is known to 1/1024 of the bucket. A bucket keeps Σ offset and Σ x·offset besides
counts and sums, so weights are taken to first order around its middle: each is right to (ln 2/128)²/2 = 0.0015 %."""

LATENCY_SQUARE_BITS = 14
"""Fraction bits kept of squared latencies, which are at most 2⁵⁴ ms²."""

AGES = ((0, "0"), (1, "1"), (2, "2–3"), (4, "4–7"), (8, "8+"))
"""(first day, name) of the ranges of days since a student's first exposure: an effect that fades was novelty."""

PAIR_WIDTH: Final = 11
"""[units with both, Σy (2), Σy² (2), Σx (2), Σx² (2), Σx·y (2)]: x is the student's mean from before the experiment."""

PART_WIDTH: Final = 10
"""[units with n_q, y (2), y² (2), units, y' (2), y'² (2)]: the primary metric's means of the students of a part."""


def limbs(terms: Floats) -> tuple[Ints, Ints]:
    """Split integer-valued terms (any shape, ≥ 0, < 2⁸⁷) into (low, high)."""
    high = np.floor(terms * 2.0**-LIMB_BITS)
    low = terms - high * 2.0**LIMB_BITS
    return low.astype(np.int64), high.astype(np.int64)


def join_limbs(low: Ints, high: Ints) -> Floats:
    """Return the sums that pairs of summed limbs stand for, in float64 (relative error below 2⁻⁵¹)."""
    joined: Floats = high.astype(np.float64) * 2.0**LIMB_BITS + low
    return joined


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
    primary: int = 0
    """Place of the primary metric among the metrics; only sums over parts of the students depend on it."""
    segments: int = 0
    """Number of segments, 0 if students belong to none."""
    novelty: bool = False
    """Whether there are sums by days since first exposure."""
    exposure_days: int = 3
    before: bool = False
    """Whether there are sums of pairs with what students were like before the experiment."""

    @classmethod
    def of(cls, experiment: ExperimentSettings) -> Layout:
        """Return the layout that an experiment's definitions imply."""
        return cls(
            metrics=len(experiment.metrics),
            squares=tuple(square_bits(bound) for bound in Scorer.of(experiment).bounds()),
            watched=tuple(SCALE_BITS if is_share(name) else LATENCY_SQUARE_BITS for name in experiment.watched),
            primary=[metric.name for metric in experiment.metrics].index(experiment.primary),
            segments=len(experiment.segments),
            novelty=experiment.novelty,
            exposure_days=experiment.exposure_days,
            before=experiment.pre_period_ms is not None,
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
        """[first exposures, units, units with n, Σn/N (2), Σ(n/N)² (2)] + m × 9 + w × 5 + parts × 10 + pairs × 11.

        Of closed windows. Per metric: [n_q>0, y (2), y² (2), y' (2), y'² (2)], where y = S/n_q over rated responses and
        y' = S/N over all responses are the student's means. Of what is watched: [units that have it, y (2), y² (2)], y
        the student's mean over all responses that have it. Parts (`PART_WIDTH`) are the segments, over closed windows,
        then the ages, over the days that each of them stands for; the last over all that come after. Pairs
        (`PAIR_WIDTH`) are over closed windows, of the primary metric over rated, then over all responses.
        """
        return self.part_place(self.parts) + (2 * PAIR_WIDTH if self.before else 0)

    @property
    def parts(self) -> int:
        """Number of parts: segments and ages."""
        return self.segments + (len(AGES) if self.novelty else 0)

    def part_place(self, part: int) -> int:
        """Return where in a cohort's record a part begins."""
        return self.watched_place + 5 * len(self.watched) + PART_WIDTH * part

    @property
    def kept_days(self) -> int:
        """How many days from the first exposure a student's row keeps apart."""
        return max(self.exposure_days, AGES[-1][0]) if self.novelty else self.exposure_days

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


def bucket_span_ms(decay: DecaySpec) -> int:
    """Return the length of a chunk of buckets: one half-life, or a day for reciprocal decay."""
    return decay.half_life_ms if decay.half_life_ms is not None else 86_400_000


def responses_of(record: Ints, layout: Layout) -> Iterator[tuple[int, float, float]]:
    """Yield (undefined, Σx, Σx²) for each metric of an all-time record."""
    totals = join_limbs(record[6::8], record[7::8]) * _UNIT
    squares = join_limbs(record[10::8], record[11::8]) / layout.square_scale()
    yield from zip(record[4::8].tolist(), totals.tolist(), squares.tolist(), strict=True)
