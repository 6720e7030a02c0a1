"""The layouts of the stored sums: the meaning of each integer of a record, and readers of records by name.

Every stored number is a sum over responses or students of an integer function of the response or student. A change is
stored as a difference: the new contribution minus the old contribution. A real-valued term is split into two words:
value = high · 2²⁴ + low. So no sum of words overflows 64 bits within 10¹¹ terms. A field marked (2) has two words, the
low word first.

There are three kinds of record and one vector, all of 64-bit integers:

- a record over responses (`ResponseField`, `ResponseRecord`): for all time, and for each time bucket of each decay;
- a record over students, for the live estimand (`UnitField`, `UnitRecord`). Responses that name no student are units,
  too;
- a record over a cohort, the students first exposed on one day, for the closed estimand (`CohortField`,
  `CohortRecord`);
- the sums vector of one student in one variant (`StudentField`), from which the records over students follow.

The `…Field` classes have the indices of the integers. `RecordLayout` has the widths of the records of an experiment and
the indices that depend on the experiment.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np

from monitor.clock import DAY_MS
from monitor.config import (
    RESPONSES_METRIC,
    RETURN_DAYS_METRIC,
    SESSION_RESPONSES_METRIC,
    SESSIONS_METRIC,
    DecaySpec,
    ExperimentSettings,
    Population,
)
from monitor.metrics.fixed_point import FIXED_POINT_BITS, Scorer, to_fixed_point
from monitor.metrics.ranked_lists import BoolArray, FloatArray, IntArray

LOW_WORD_BITS: Final = 24
_LOW_WORD_MASK: Final = (1 << LOW_WORD_BITS) - 1
_HIGH_WORD: Final = 2.0**LOW_WORD_BITS
_UNIT: Final = 2.0**-FIXED_POINT_BITS
"""One in the last place of a metric's value in fixed point."""
_FIXED_POINT_SCALE: Final = 2.0**FIXED_POINT_BITS

BUCKETS_PER_CHUNK: Final = 64
"""Time buckets of a chunk. A chunk is as long as one half-life and is stored as one value."""

OFFSET_BITS: Final = 10
"""An event's offset in its time bucket is stored in units of 1/1024 of the bucket.

A bucket has Σ offset and Σ x·offset besides counts and sums. Readers weight its events to first order around the
bucket's middle; the relative error of a weight is at most (ln 2/128)²/2 = 0.0015 %."""

_COUNT_SQUARE_BITS: Final = 14
"""Fraction bits of the squares of a student's counts and sums."""

EXPOSURE_AGES: Final = ((0, "0"), (1, "1"), (2, "2–3"), (4, "4–7"), (8, "8+"))
"""(first day, name) of the ranges of days since a student's first exposure. A novelty effect fades with these days."""


class StudentField:
    """Indices in a student's sums vector: m is the number of metrics.

    After `RATED` come Σ metric (m) in fixed point and the number of undefined responses (m): see
    `RecordLayout.student_totals`. Undefined are rated responses without a value of a ranking metric, and responses
    without a value of an answer metric.
    """

    RESPONSES: Final = 0
    RATED: Final = 1
    TOTALS: Final = 2


class ResponseField:
    """Indices in a record over responses: the head, before a block of `ResponseMetricField` for each metric.

    Offsets are those of the responses in their time bucket; they are 0 in the record for all time.
    """

    RESPONSES: Final = 0
    OFFSETS: Final = 1
    RATED: Final = 2
    RATED_OFFSETS: Final = 3
    METRICS: Final = 4


class ResponseMetricField:
    """Indices in a metric's block of a record over responses, where x is the value of a response."""

    UNDEFINED: Final = 0
    """Responses (of a ranking metric: rated responses) whose metric is undefined."""
    UNDEFINED_OFFSETS: Final = 1
    TOTAL: Final = 2
    """Σx (2)."""
    OFFSET_TOTAL: Final = 4
    """Σx·offset (2)."""
    SQUARES: Final = 6
    """Σx² (2)."""
    WIDTH: Final = 8


class UnitField:
    """Indices in a record over students: the head, before a block of `UnitMetricField` for each metric.

    The first two count students in a variant. The others are sums over units: students with one variant only, and
    responses that name no student. N are the responses of a unit, n its rated ones.
    """

    STUDENTS: Final = 0
    CROSSOVERS: Final = 1
    """Students with more than one variant; such students are no units."""
    ANONYMOUS_RESPONSES: Final = 2
    """Responses that name no student."""
    UNITS: Final = 3
    RESPONSES: Final = 4
    """ΣN."""
    RATED: Final = 5
    """Σn."""
    RATED_UNITS: Final = 6
    """Units with n > 0."""
    RESPONSE_SQUARES: Final = 7
    """ΣN² (2)."""
    RATED_COUNT_SQUARES: Final = 9
    """Σn² (2)."""
    RATED_RESPONSE_PRODUCTS: Final = 11
    """Σn·N (2)."""
    METRICS: Final = 13


class UnitMetricField:
    """Indices in a metric's block of a record over students, where S = Σ metric.

    n_q = n − undefined is the number of responses with a value; for an answer metric it is N − undefined.
    Among the sums are Q = ΣS², R = ΣS·N and P = ΣN² of the cluster-robust variance, for both populations.
    """

    UNITS: Final = 0
    """Units with n_q > 0."""
    DEFINED: Final = 1
    """Σn_q."""
    TOTAL: Final = 2
    """ΣS (2)."""
    SQUARES: Final = 4
    """ΣS² (2)."""
    DEFINED_PRODUCTS: Final = 6
    """ΣS·n_q (2)."""
    DEFINED_SQUARES: Final = 8
    """Σn_q² (2)."""
    RESPONSE_PRODUCTS: Final = 10
    """ΣS·N (2)."""
    WIDTH: Final = 12


class CohortField:
    """Indices in a record over a cohort, of windows that begin with the day of first exposure.

    After the metrics' blocks of `CohortMetricField` come a block of `MeanField` for each student metric, a block of
    `UndefinedField` if the primary metric may be undefined, a block of `SubgroupField` for each subgroup, and two
    blocks of `PairField` if the experiment has a pre-period.
    """

    EXPOSURES: Final = 0
    """Students first exposed on the day."""
    UNITS: Final = 1
    """Students with a response in the window and in one variant only."""
    RATED_UNITS: Final = 2
    """Units with a rated response."""
    RATED_SHARE_TOTAL: Final = 3
    """Σn/N (2)."""
    RATED_SHARE_SQUARES: Final = 5
    """Σ(n/N)² (2)."""
    EXPOSURE_HOURS: Final = 7
    """Students first exposed in each of the 24 hours of the day."""
    METRICS: Final = 31


class CohortMetricField:
    """Indices in a metric's block of a record over a cohort.

    y = S/n_q is a student's mean over the responses with a value, y' = S/N over all responses. For a score,
    y' = (S − least·n_q)/N: responses without a score count as the least score, which readers add again.
    """

    RATED_UNITS: Final = 0
    """Students with n_q > 0; the students with y' are `CohortField.UNITS`."""
    RATED_TOTAL: Final = 1
    """Σy (2)."""
    RATED_SQUARES: Final = 3
    """Σy² (2)."""
    ALL_TOTAL: Final = 5
    """Σy' (2)."""
    ALL_SQUARES: Final = 7
    """Σy'² (2)."""
    WIDTH: Final = 9


class MeanField:
    """Indices in a block of a student metric, where y is the student's value."""

    UNITS: Final = 0
    TOTAL: Final = 1
    """Σy (2)."""
    SQUARES: Final = 3
    """Σy² (2)."""
    WIDTH: Final = 5


class UndefinedField:
    """Indices in the block of undefined values of the primary metric, over the students with n > 0.

    u is the share of a student's rated responses whose metric is undefined, y₀ = S/n the mean with undefined values
    as 0.
    """

    SHARE_TOTAL: Final = 0
    """Σu (2)."""
    SHARE_SQUARES: Final = 2
    """Σu² (2)."""
    AS_ZERO_TOTAL: Final = 4
    """Σy₀ (2)."""
    AS_ZERO_SQUARES: Final = 6
    """Σy₀² (2)."""
    WIDTH: Final = 8


class SubgroupField:
    """Indices in a subgroup's block, where y and y' are the means of the primary metric: see `CohortMetricField`.

    Segments are over the window; ranges of days since first exposure are over their own days, the last over all later
    ones.
    """

    RATED_UNITS: Final = 0
    RATED_TOTAL: Final = 1
    RATED_SQUARES: Final = 3
    ALL_UNITS: Final = 5
    ALL_TOTAL: Final = 6
    ALL_SQUARES: Final = 8
    WIDTH: Final = 10


class PairField:
    """Indices in a block of pairs: students with a mean y in the window and a mean x in the pre-period.

    Both are means of the primary metric: in the first block over rated responses, in the second over all responses.
    """

    UNITS: Final = 0
    TOTAL: Final = 1
    """Σy (2)."""
    SQUARES: Final = 3
    """Σy² (2)."""
    COVARIATE_TOTAL: Final = 5
    """Σx (2)."""
    COVARIATE_SQUARES: Final = 7
    """Σx² (2)."""
    PRODUCTS: Final = 9
    """Σx·y (2)."""
    WIDTH: Final = 11


def join_words(low: IntArray, high: IntArray) -> FloatArray:
    """Return the values of summed low and high words, in float64 (relative error below 2⁻⁵¹)."""
    joined: FloatArray = high.astype(np.float64) * 2.0**LOW_WORD_BITS + low
    return joined


def _join_word_pair(integers: list[int], index: int) -> float:
    """Return the sum of the words at `index` and `index` + 1, like `join_words`; faster for a single sum."""
    low, high = integers[index], integers[index + 1]
    return float(high + (low >> LOW_WORD_BITS)) * _HIGH_WORD + float(low & _LOW_WORD_MASK)


def square_bits(max_contribution: int) -> int:
    """Return the fraction bits of squares: 30 for contributions up to 2⁷, two fewer for each doubling."""
    return FIXED_POINT_BITS - 2 * max(0, math.ceil(math.log2(max(max_contribution * _UNIT, 1.0))) - 7)


StudentMeasure: TypeAlias = Literal[
    "responses", "return_days", "total", "sessions", "session_responses", "session_share"
]


@dataclass(frozen=True, slots=True)
class StudentMetric:
    """A metric that has one value for a student's exposure window: see `ExperimentSettings.student_metrics`."""

    measure: StudentMeasure
    metric: int = -1
    """Of `total` and `session_share`: the number of the experiment's metric."""

    @classmethod
    def of(cls, name: str, experiment: ExperimentSettings) -> StudentMetric:
        """Return the student metric with a name."""
        prefix, _, metric = name.partition(":")
        index = [metric.name for metric in experiment.metrics].index(metric) if metric else -1
        return cls(_STUDENT_MEASURES[prefix], index)

    @property
    def is_per_session(self) -> bool:
        """Whether sessions are counted; students without a session then have no value."""
        return self.measure in ("sessions", "session_responses", "session_share")


_STUDENT_MEASURES: Final[dict[str, StudentMeasure]] = {
    RESPONSES_METRIC: "responses",
    RETURN_DAYS_METRIC: "return_days",
    "per_student": "total",
    SESSIONS_METRIC: "sessions",
    SESSION_RESPONSES_METRIC: "session_responses",
    "sessions_with": "session_share",
}


@dataclass(frozen=True, slots=True)
class RecordLayout:
    """The widths of an experiment's records, and the indices that depend on the experiment's definitions."""

    metric_count: int
    square_bits: tuple[int, ...]
    """Fraction bits of the squares of each metric."""
    is_over_responses: tuple[bool, ...] = ()
    """Whether each metric is over responses (an answer metric) instead of rated responses; () if none is."""
    least_values: tuple[int, ...] = ()
    """The least value of each metric in fixed point; () if all are 0."""
    stored_units: tuple[float, ...] = ()
    """`MetricSpec.stored_unit` of each metric; () if all are 1."""
    student_metrics: tuple[StudentMetric, ...] = ()
    has_undefined: bool = False
    """Whether records have sums of undefined values of the primary metric."""
    primary_index: int = 0
    """Index of the primary metric among the metrics; only subgroups, pairs and undefined values depend on it."""
    segment_count: int = 0
    """Number of segments; 0 without declared categories."""
    has_exposure_ages: bool = False
    """Whether records have sums by days since first exposure."""
    exposure_days: int = 3
    has_pre_period: bool = False
    """Whether records have sums of pairs with students' means before the experiment."""

    @classmethod
    def for_experiment(cls, experiment: ExperimentSettings) -> RecordLayout:
        """Return the layout that an experiment's definitions imply."""
        bounds = Scorer.for_experiment(experiment).bounds()
        answer_metrics = experiment.answer_metrics
        return cls(
            metric_count=len(experiment.metrics),
            square_bits=tuple(
                map(square_bits, (*bounds, *(to_fixed_point(each.most / each.stored_unit) for each in answer_metrics)))
            ),
            is_over_responses=(False,) * len(bounds) + (True,) * len(answer_metrics) if answer_metrics else (),
            least_values=(0,) * len(bounds) + tuple(to_fixed_point(metric.least) for metric in answer_metrics)
            if any(metric.least for metric in answer_metrics)
            else (),
            stored_units=tuple(metric.stored_unit for metric in experiment.metrics)
            if any(metric.stored_unit != 1 for metric in answer_metrics)
            else (),
            student_metrics=tuple(StudentMetric.of(name, experiment) for name in experiment.student_metrics),
            has_undefined=experiment.primary_may_be_undefined,
            primary_index=[metric.name for metric in experiment.metrics].index(experiment.primary),
            segment_count=len(experiment.segments),
            has_exposure_ages=experiment.novelty,
            exposure_days=experiment.exposure_days,
            has_pre_period=experiment.pre_period_ms is not None,
        )

    @property
    def response_width(self) -> int:
        """Number of integers of a record over responses."""
        return ResponseField.METRICS + ResponseMetricField.WIDTH * self.metric_count

    @property
    def unit_width(self) -> int:
        """Number of integers of a record over students."""
        return UnitField.METRICS + UnitMetricField.WIDTH * self.metric_count

    @property
    def cohort_width(self) -> int:
        """Number of integers of a record over a cohort."""
        return self.pair_index(1) + PairField.WIDTH if self.has_pre_period else self.pair_index(0)

    def cohort_metric_index(self, metric: int) -> int:
        """Return the index of a metric's block in a record over a cohort."""
        return CohortField.METRICS + CohortMetricField.WIDTH * metric

    def student_metric_index(self, metric: int) -> int:
        """Return the index of the block of student metric number `metric` in a record over a cohort."""
        return self.cohort_metric_index(self.metric_count) + MeanField.WIDTH * metric

    @property
    def student_metric_bits(self) -> tuple[int, ...]:
        """Fraction bits of the squares of each student metric."""
        return tuple(
            FIXED_POINT_BITS if metric.measure == "session_share" else _COUNT_SQUARE_BITS
            for metric in self.student_metrics
        )

    @property
    def undefined_index(self) -> int:
        """Index of the block of undefined values in a record over a cohort."""
        return self.student_metric_index(len(self.student_metrics))

    @property
    def subgroup_count(self) -> int:
        """Number of subgroups: the segments, then the ranges of days since first exposure."""
        return self.segment_count + (len(EXPOSURE_AGES) if self.has_exposure_ages else 0)

    def subgroup_index(self, subgroup: int) -> int:
        """Return the index of a subgroup's block in a record over a cohort."""
        undefined_width = UndefinedField.WIDTH if self.has_undefined else 0
        return self.undefined_index + undefined_width + SubgroupField.WIDTH * subgroup

    def segment_units_index(self, segment: int) -> int:
        """Return the index in a record over a cohort of the number of students of a segment."""
        return self.subgroup_index(segment) + SubgroupField.ALL_UNITS

    def pair_index(self, population: int) -> int:
        """Return the index of the block of pairs over rated responses (0) or over all responses (1)."""
        return self.subgroup_index(self.subgroup_count) + PairField.WIDTH * population

    def cohort_units_index(self, metric: int, population: Population) -> int:
        """Return the index in a record over a cohort of the number of students with a mean of a metric."""
        if population == "all":
            return CohortField.UNITS
        return self.cohort_metric_index(metric) + CohortMetricField.RATED_UNITS

    @property
    def tracked_days(self) -> int:
        """Number of days from first exposure on with separate sums in a student's row."""
        return max(self.exposure_days, EXPOSURE_AGES[-1][0]) if self.has_exposure_ages else self.exposure_days

    @property
    def student_totals(self) -> slice:
        """The part of a student's sums vector with Σ metric of each metric."""
        return slice(StudentField.TOTALS, StudentField.TOTALS + self.metric_count)

    @property
    def student_undefined(self) -> slice:
        """The part of a student's sums vector with the number of undefined responses of each metric."""
        return slice(self.student_totals.stop, self.student_totals.stop + self.metric_count)

    @property
    def sums_width(self) -> int:
        """Number of integers of a student's sums vector."""
        return int(self.student_undefined.stop)

    @property
    def answer_metrics(self) -> BoolArray:
        """Which metrics are answer metrics (m)."""
        return np.array(self.is_over_responses or (False,) * self.metric_count)

    def base_index(self, metric: int) -> int:
        """Return the index in a student's sums vector of the responses that may have a value of metric `metric`."""
        is_over_responses = bool(self.is_over_responses) and self.is_over_responses[metric]
        return StudentField.RESPONSES if is_over_responses else StudentField.RATED

    def least_value(self, metric: int) -> int:
        """Return the least value of metric `metric` in fixed point."""
        return self.least_values[metric] if self.least_values else 0

    def stored_unit(self, metric: int) -> float:
        """Return the unit in which values of metric `metric` are stored."""
        return self.stored_units[metric] if self.stored_units else 1.0

    def unit_scales(self) -> FloatArray:
        """Return the unit in which values of each metric are stored (m)."""
        return np.array(self.stored_units or (1.0,) * self.metric_count)

    def square_scales(self) -> FloatArray:
        """Return 2^bits of the squares of each metric (m)."""
        return np.array([2.0**bits for bits in self.square_bits])


class MetricSums(NamedTuple):
    """Sums of a metric over the responses of a record that have a value."""

    responses: int
    """Responses with a value."""
    undefined: int
    """Responses (of a ranking metric: rated responses) without a value."""
    total: float
    """Σx."""
    squares: float
    """Σx²."""


@dataclass(frozen=True, slots=True)
class ResponseRecord:
    """Records over responses by name; m is the number of metrics."""

    integers: IntArray
    """… × `RecordLayout.response_width`."""

    @property
    def responses(self) -> IntArray:
        """Responses (…)."""
        return self._counts(ResponseField.RESPONSES)

    @property
    def offsets(self) -> IntArray:
        """Σ offset of the responses (…)."""
        return self._counts(ResponseField.OFFSETS)

    @property
    def rated(self) -> IntArray:
        """Rated responses (…)."""
        return self._counts(ResponseField.RATED)

    @property
    def rated_offsets(self) -> IntArray:
        """Σ offset of the rated responses (…)."""
        return self._counts(ResponseField.RATED_OFFSETS)

    @property
    def undefined(self) -> IntArray:
        """Responses (of a ranking metric: rated responses) with an undefined metric (… × m)."""
        return self._metric_integers(ResponseMetricField.UNDEFINED)

    @property
    def undefined_offsets(self) -> IntArray:
        """Σ offset of the responses with an undefined metric (… × m)."""
        return self._metric_integers(ResponseMetricField.UNDEFINED_OFFSETS)

    @property
    def totals(self) -> FloatArray:
        """Σx in fixed point (… × m)."""
        return self._metric_sums(ResponseMetricField.TOTAL)

    @property
    def offset_totals(self) -> FloatArray:
        """Σx·offset in fixed point (… × m)."""
        return self._metric_sums(ResponseMetricField.OFFSET_TOTAL)

    @property
    def squares(self) -> FloatArray:
        """Σx² in units of 2^−`RecordLayout.square_bits` (… × m)."""
        return self._metric_sums(ResponseMetricField.SQUARES)

    def metric_sums(self, layout: RecordLayout) -> list[MetricSums]:
        """Return the sums of each metric of a single record."""
        units = layout.unit_scales()
        totals, squares = self.totals * _UNIT * units, self.squares / layout.square_scales() * units**2
        columns = zip(
            self.counts(layout).tolist(), self.undefined.tolist(), totals.tolist(), squares.tolist(), strict=True
        )
        return [MetricSums(*sums) for sums in columns]

    def counts(self, layout: RecordLayout) -> IntArray:
        """Return the responses with a value of each metric (… × m)."""
        return _over_metrics(layout, self.responses, self.rated) - self.undefined

    def count_offsets(self, layout: RecordLayout) -> IntArray:
        """Return Σ offset of the responses with a value of each metric (… × m)."""
        return _over_metrics(layout, self.offsets, self.rated_offsets) - self.undefined_offsets

    def _counts(self, field: int) -> IntArray:
        counts: IntArray = self.integers[..., field]
        return counts

    def _metric_integers(self, field: int) -> IntArray:
        integers: IntArray = self.integers[..., ResponseField.METRICS + field :: ResponseMetricField.WIDTH]
        return integers

    def _metric_sums(self, field: int) -> FloatArray:
        return join_words(self._metric_integers(field), self._metric_integers(field + 1))


def _over_metrics(layout: RecordLayout, of_responses: IntArray, of_rated: IntArray) -> IntArray:
    """Return the integers that belong to each metric: those of all responses, or of the rated ones (… × m)."""
    selected: IntArray = np.where(layout.answer_metrics, of_responses[..., None], of_rated[..., None])
    return selected


class UnitMetricSums(NamedTuple):
    """Sums of a metric over units, with the letters of `UnitMetricField`."""

    units: int
    """Units with n_q > 0."""
    defined: int
    """Σn_q."""
    total: float
    """ΣS."""
    squares: float
    """ΣS²."""
    defined_products: float
    """ΣS·n_q."""
    defined_squares: float
    """Σn_q²."""
    response_products: float
    """ΣS·N."""


@dataclass(frozen=True, slots=True)
class UnitRecord:
    """A record over students by name."""

    integers: IntArray
    """`RecordLayout.unit_width` integers."""

    @property
    def students(self) -> int:
        """Students in the variant."""
        return int(self.integers[UnitField.STUDENTS])

    @property
    def crossovers(self) -> int:
        """Students with several variants."""
        return int(self.integers[UnitField.CROSSOVERS])

    @property
    def anonymous_responses(self) -> int:
        """Responses that name no student."""
        return int(self.integers[UnitField.ANONYMOUS_RESPONSES])

    @property
    def units(self) -> int:
        """Students with a single variant, and responses that name no student."""
        return int(self.integers[UnitField.UNITS])

    @property
    def responses(self) -> int:
        """ΣN."""
        return int(self.integers[UnitField.RESPONSES])

    @property
    def rated(self) -> int:
        """Σn."""
        return int(self.integers[UnitField.RATED])

    @property
    def response_squares(self) -> float:
        """ΣN²."""
        return self._sum(UnitField.RESPONSE_SQUARES)

    @property
    def rated_squares(self) -> float:
        """Σn²."""
        return self._sum(UnitField.RATED_COUNT_SQUARES)

    @property
    def rated_response_products(self) -> float:
        """Σn·N."""
        return self._sum(UnitField.RATED_RESPONSE_PRODUCTS)

    def metric_sums(self, layout: RecordLayout, metric: int) -> UnitMetricSums:
        """Return the sums of metric number `metric`."""
        start = UnitField.METRICS + UnitMetricField.WIDTH * metric
        block = self.integers[start : start + UnitMetricField.WIDTH].tolist()
        unit = layout.stored_unit(metric)
        scale = unit / _FIXED_POINT_SCALE
        return UnitMetricSums(
            units=block[UnitMetricField.UNITS],
            defined=block[UnitMetricField.DEFINED],
            total=_join_word_pair(block, UnitMetricField.TOTAL) * scale,
            squares=_join_word_pair(block, UnitMetricField.SQUARES) / 2.0 ** layout.square_bits[metric] * unit**2,
            defined_products=_join_word_pair(block, UnitMetricField.DEFINED_PRODUCTS) * scale,
            defined_squares=_join_word_pair(block, UnitMetricField.DEFINED_SQUARES),
            response_products=_join_word_pair(block, UnitMetricField.RESPONSE_PRODUCTS) * scale,
        )

    def _sum(self, field: int) -> float:
        return _join_word_pair(self.integers[field : field + 2].tolist(), 0)


class StudentMeanSums(NamedTuple):
    """Sums over the students who have a mean y."""

    units: int
    total: float
    """Σy."""
    squares: float
    """Σy²."""
    square_scale: float
    """Each y² was rounded to a multiple of 1/`square_scale`."""

    def scaled(self, factor: float) -> StudentMeanSums:
        """Return the sums of factor·y.

        >>> StudentMeanSums(2, 3.0, 5.0, 4.0).scaled(2.0)  # 1, 2 become 2, 4
        StudentMeanSums(units=2, total=6.0, squares=20.0, square_scale=1.0)
        """
        square = factor * factor
        return StudentMeanSums(self.units, self.total * factor, self.squares * square, self.square_scale / square)

    def shifted(self, constant: float) -> StudentMeanSums:
        """Return the sums of y + constant.

        >>> StudentMeanSums(2, 3.0, 5.0, 1.0).shifted(1.0)  # 1, 2 become 2, 3
        StudentMeanSums(units=2, total=5.0, squares=13.0, square_scale=1.0)
        """
        units, total, squares, square_scale = self
        return StudentMeanSums(
            units,
            total + units * constant,
            squares + 2 * constant * total + units * constant * constant,
            square_scale,
        )


class StudentPairSums(NamedTuple):
    """Sums over the students who have a mean y in the window and a mean x in the pre-period."""

    units: int
    total: float
    """Σy."""
    squares: float
    """Σy²."""
    covariate_total: float
    """Σx."""
    covariate_squares: float
    """Σx²."""
    products: float
    """Σx·y."""

    def scaled(self, factor: float) -> StudentPairSums:
        """Return the sums of factor·x and factor·y.

        >>> StudentPairSums(1, 1.0, 1.0, 2.0, 4.0, 2.0).scaled(2.0)  # y = 1, x = 2
        StudentPairSums(units=1, total=2.0, squares=4.0, covariate_total=4.0, covariate_squares=16.0, products=8.0)
        """
        square = factor * factor
        return StudentPairSums(
            self.units,
            self.total * factor,
            self.squares * square,
            self.covariate_total * factor,
            self.covariate_squares * square,
            self.products * square,
        )

    def shifted(self, constant: float) -> StudentPairSums:
        """Return the sums of x + constant and y + constant.

        >>> StudentPairSums(1, 1.0, 1.0, 2.0, 4.0, 2.0).shifted(1.0)  # y = 1, x = 2
        StudentPairSums(units=1, total=2.0, squares=4.0, covariate_total=3.0, covariate_squares=9.0, products=6.0)
        """
        units, total, squares, covariate_total, covariate_squares, products = self
        added_square = units * constant * constant
        return StudentPairSums(
            units,
            total + units * constant,
            squares + 2 * constant * total + added_square,
            covariate_total + units * constant,
            covariate_squares + 2 * constant * covariate_total + added_square,
            products + constant * (total + covariate_total) + added_square,
        )


@dataclass(frozen=True, slots=True)
class CohortRecord:
    """A record over a cohort, or a sum of such records, by name."""

    integers: IntArray
    """`RecordLayout.cohort_width` integers."""
    layout: RecordLayout

    @property
    def rated_students(self) -> int:
        """Students with a rated response in the window."""
        return int(self.integers[CohortField.RATED_UNITS])

    def rated_share_means(self) -> StudentMeanSums:
        """Return the sums of students' shares of rated responses."""
        return self._mean_sums(CohortField.UNITS, CohortField.RATED_SHARE_TOTAL, _FIXED_POINT_SCALE)

    def metric_means(self, metric: int, population: Population) -> StudentMeanSums:
        """Return the sums of students' means of metric number `metric`."""
        start = self.layout.cohort_metric_index(metric)
        total = CohortMetricField.RATED_TOTAL if population == "rated" else CohortMetricField.ALL_TOTAL
        units_index = self.layout.cohort_units_index(metric, population)
        sums = self._mean_sums(units_index, start + total, 2.0 ** self.layout.square_bits[metric])
        return sums.scaled(self.layout.stored_unit(metric)).shifted(self._least_value(metric, population))

    def student_metric_means(self, metric: int) -> StudentMeanSums:
        """Return the sums of students' values of student metric number `metric`."""
        start = self.layout.student_metric_index(metric)
        scale = 2.0 ** self.layout.student_metric_bits[metric]
        sums = self._mean_sums(start + MeanField.UNITS, start + MeanField.TOTAL, scale)
        student_metric = self.layout.student_metrics[metric]
        is_sum = student_metric.measure == "total"
        return sums.scaled(self.layout.stored_unit(student_metric.metric)) if is_sum else sums

    def undefined_share_means(self) -> StudentMeanSums:
        """Return the sums of students' shares of rated responses whose primary metric is undefined."""
        start = self.layout.undefined_index + UndefinedField.SHARE_TOTAL
        return self._mean_sums(CohortField.RATED_UNITS, start, _FIXED_POINT_SCALE)

    def undefined_as_zero_means(self) -> StudentMeanSums:
        """Return the sums of students' means of the primary metric over rated responses, undefined values as 0."""
        start = self.layout.undefined_index + UndefinedField.AS_ZERO_TOTAL
        scale = 2.0 ** self.layout.square_bits[self.layout.primary_index]
        return self._mean_sums(CohortField.RATED_UNITS, start, scale)

    def subgroup_means(self, subgroup: int, population: Population) -> StudentMeanSums:
        """Return the sums of the primary metric's means of the students of subgroup number `subgroup`."""
        start = self.layout.subgroup_index(subgroup)
        if population == "rated":
            units, total = SubgroupField.RATED_UNITS, SubgroupField.RATED_TOTAL
        else:
            units, total = SubgroupField.ALL_UNITS, SubgroupField.ALL_TOTAL
        primary = self.layout.primary_index
        sums = self._mean_sums(start + units, start + total, 2.0 ** self.layout.square_bits[primary])
        return sums.scaled(self.layout.stored_unit(primary)).shifted(self._least_value(primary, population))

    def pair_sums(self, population: Population) -> StudentPairSums:
        """Return the sums of the primary metric's means in the window and in the pre-period."""
        start = self.layout.pair_index(0 if population == "rated" else 1)
        block = self.integers[start : start + PairField.WIDTH].tolist()
        scale = 2.0 ** self.layout.square_bits[self.layout.primary_index]
        sums = StudentPairSums(
            units=block[PairField.UNITS],
            total=_join_word_pair(block, PairField.TOTAL) / _FIXED_POINT_SCALE,
            squares=_join_word_pair(block, PairField.SQUARES) / scale,
            covariate_total=_join_word_pair(block, PairField.COVARIATE_TOTAL) / _FIXED_POINT_SCALE,
            covariate_squares=_join_word_pair(block, PairField.COVARIATE_SQUARES) / scale,
            products=_join_word_pair(block, PairField.PRODUCTS) / scale,
        )
        primary = self.layout.primary_index
        return sums.scaled(self.layout.stored_unit(primary)).shifted(self._least_value(primary, population))

    def _least_value(self, metric: int, population: Population) -> float:
        """Return what the stored means of a metric lack: the least value, over all responses."""
        return self.layout.least_value(metric) * _UNIT if population == "all" else 0.0

    def _mean_sums(self, units_index: int, total_index: int, square_scale: float) -> StudentMeanSums:
        """Return sums with the words of Σy at `total_index` and the words of Σy² behind the words of Σy."""
        words = self.integers[total_index : total_index + 4].tolist()
        total, squares = _join_word_pair(words, 0) / _FIXED_POINT_SCALE, _join_word_pair(words, 2) / square_scale
        return StudentMeanSums(int(self.integers[units_index]), total, squares, square_scale)


def chunk_length_ms(decay: DecaySpec) -> int:
    """Return the length of a chunk of time buckets: a half-life, or a day for reciprocal decay."""
    return decay.half_life_ms if decay.half_life_ms is not None else DAY_MS
