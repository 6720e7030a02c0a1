"""Accumulators of the changes that a batch makes to an experiment's stored sums.

Every stored integer is a sum, over responses or students, of an integer function of the response or student. A changed
contribution is stored as its difference: the new integers minus the old integers. `monitor.metrics.record_layout` and
`monitor.metrics.traffic` document the records. Each class here has the integers of one record, or of a part of a
record, in the order of the record.

A unit, here, is a unit of the analysis: a student with responses of exactly one variant, or a response without a
student. A cell is the key of a record by variant and period: the variant in the high bits, the number of the period (a
time bucket, an hour since 1970, or a day of the experiment) in the low `PERIOD_BITS`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

from mypy_extensions import i64

from monitor.clock import HOUR_MS
from monitor.engine.id_hash import ITEM_HASH_BYTES
from monitor.engine.local_days import UTC_DAYS, LocalDays
from monitor.engine.response_row import MISSING, PRE_PERIOD_VARIANT
from monitor.engine.student import NEVER_EXPOSED_MS, SESSION_COUNTS, Student, StudentState, SumsVector
from monitor.metrics import (
    BUCKETS_PER_CHUNK,
    EXPOSURE_AGES,
    FIXED_POINT_BITS,
    HOUR_RECORD_WIDTH,
    ITEM_CELL_COUNT,
    LATENCY_BOUNDS_MS,
    LOW_WORD_BITS,
    OFFSET_BITS,
    CohortField,
    CohortMetricField,
    DayField,
    HourField,
    MeanField,
    PairField,
    RecordLayout,
    ResponseField,
    ResponseMetricField,
    StudentField,
    StudentMetric,
    SubgroupField,
    UndefinedField,
    UnitField,
    UnitMetricField,
    day_record_width,
)

PERIOD_BITS: Final = 48
"""Low bits of a cell, which contain the number of the period."""

_SCALE: Final = 2.0**FIXED_POINT_BITS
_UNIT: Final = 2.0**-FIXED_POINT_BITS
"""The value of the last bit of a fixed-point number."""
_LOW_WORD_MASK: Final = (1 << LOW_WORD_BITS) - 1
_OFFSET_MASK: Final = (1 << OFFSET_BITS) - 1
_MAX_TERM: Final = 2.0**70
"""Bound of a term: larger terms would not fit the commit script's float64.
Only a user id that about a million users share would have terms near the bound."""
_MAX_INTEGER: Final = 2.0**62
"""Numbers below this bound fit an `i64`."""
_MIN_INTEGRAL_FLOAT: Final = 2.0**52
"""Every float64 from 2⁵² on is an integer. Adding and then subtracting 2⁵² rounds a smaller number half to even."""
_ITEM_CELL_MASK: Final = ITEM_CELL_COUNT - 1
_LATENCY_BOUNDS_MS: Final = list(LATENCY_BOUNDS_MS)
"""A list, because compiled code would build a tuple of integers in every call."""
_AGE_BAND_DAYS: Final = [(first_day, end_day) for (first_day, _), (end_day, _) in pairwise(EXPOSURE_AGES)]
"""Bands of days since first exposure, except for the last band, which has no end."""


def round_half_even(number: float) -> float:
    """Return a non-negative number, rounded half to even."""
    return (number + _MIN_INTEGRAL_FLOAT) - _MIN_INTEGRAL_FLOAT if number < _MIN_INTEGRAL_FLOAT else number


def mean_or_zero(total: i64, count: i64) -> float:
    """Return total / count, 0 if the count is 0."""
    return float(total) / float(count) if count > 0 else 0.0


@final
class WideSum:
    """A sum in two 64-bit words: value = high · 2²⁴ + low.

    Every term is split before it is added, so that no word overflows.
    """

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.low: i64 = 0
        self.high: i64 = 0

    def add_integer(self, sign: i64, term: i64) -> None:
        """Add (sign 1) or subtract (sign -1) an integer."""
        self.low += sign * (term & _LOW_WORD_MASK)
        self.high += sign * (term >> LOW_WORD_BITS)

    def add(self, sign: i64, term: float) -> None:
        """Add or subtract a non-negative number without fraction."""
        if term < _MAX_INTEGER:
            self.add_integer(sign, i64(term))
        else:
            term = min(_MAX_TERM, term)
            high = i64(term * 2.0**-LOW_WORD_BITS)
            self.low += sign * i64(term - float(high) * 2.0**LOW_WORD_BITS)
            self.high += sign * high

    def replace_integer(self, old: i64, new: i64) -> None:
        """Subtract the old integer and add the new integer."""
        self.low += (new & _LOW_WORD_MASK) - (old & _LOW_WORD_MASK)
        self.high += (new >> LOW_WORD_BITS) - (old >> LOW_WORD_BITS)

    def replace(self, old: float, new: float) -> None:
        """Subtract the old number and add the new number, after rounding; both are non-negative."""
        if old != new:
            self.add(-1, round_half_even(old))
            self.add(1, round_half_even(new))

    def write(self, record: list[int], index: i64) -> None:
        """Set the integers of a record at `index` and `index` + 1 to the low and the high word."""
        record[index] = self.low
        record[index + 1] = self.high


@final
class MeanSums:
    """The number of units with a mean y, Σy and Σy²."""

    __slots__ = ("squares", "total", "units")

    def __init__(self) -> None:
        self.units: i64 = 0
        self.total = WideSum()
        self.squares = WideSum()

    def replace(self, old: float, new: float, square_scale: float) -> None:
        """Replace a unit's mean, in fixed point; `square_scale` is the scale of the stored squares."""
        if old != new:
            old, new = round_half_even(old), round_half_even(new)
            self.total.replace(old, new)
            old, new = old * _UNIT, new * _UNIT
            self.squares.replace(old * old * square_scale, new * new * square_scale)


@final
class ResponseMetricSums:
    """Sums of a metric over responses: see `ResponseMetricField`."""

    __slots__ = ("offset_products", "squares", "total", "undefined", "undefined_offset_total")

    def __init__(self) -> None:
        self.undefined: i64 = 0
        self.undefined_offset_total: i64 = 0
        self.total = WideSum()
        self.offset_products = WideSum()
        self.squares = WideSum()


@final
class ResponseSums:
    """Sums over responses: see `ResponseField`."""

    __slots__ = (
        "_has_answer_metrics", "metric_sums", "offset_total", "rated_offset_total", "rated_responses", "responses",
    )  # fmt: skip

    def __init__(self, metric_count: int, has_answer_metrics: bool) -> None:  # noqa: FBT001
        self._has_answer_metrics = has_answer_metrics
        self.responses: i64 = 0
        self.offset_total: i64 = 0
        self.rated_responses: i64 = 0
        self.rated_offset_total: i64 = 0
        self.metric_sums = [ResponseMetricSums() for _ in range(metric_count)]

    def add(
        self,
        sign: i64,
        offset: i64,
        is_rated: bool,  # noqa: FBT001
        metric_values: tuple[int, ...],
        square_scales: list[float],
    ) -> None:
        """Add or subtract a response at an offset in the time bucket; an undefined metric has the value -1."""
        self.responses += sign
        self.offset_total += sign * offset
        if is_rated:
            self.rated_responses += sign
            self.rated_offset_total += sign * offset
        elif not self._has_answer_metrics:
            return
        for index, sums in enumerate(self.metric_sums):
            value: i64 = metric_values[index]
            if value < 0:
                sums.undefined += sign
                sums.undefined_offset_total += sign * offset
            elif value > 0:
                sums.total.add_integer(sign, value)
                sums.offset_products.add_integer(sign, value * offset)
                scaled = float(value) * _UNIT
                sums.squares.add(sign, round_half_even(scaled * scaled * square_scales[index]))

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        record: list[int] = [0] * (ResponseField.METRICS + ResponseMetricField.WIDTH * len(self.metric_sums))
        record[ResponseField.RESPONSES] = self.responses
        record[ResponseField.OFFSETS] = self.offset_total
        record[ResponseField.RATED] = self.rated_responses
        record[ResponseField.RATED_OFFSETS] = self.rated_offset_total
        start: i64 = ResponseField.METRICS
        for sums in self.metric_sums:
            record[start + ResponseMetricField.UNDEFINED] = sums.undefined
            record[start + ResponseMetricField.UNDEFINED_OFFSETS] = sums.undefined_offset_total
            sums.total.write(record, start + ResponseMetricField.TOTAL)
            sums.offset_products.write(record, start + ResponseMetricField.OFFSET_TOTAL)
            sums.squares.write(record, start + ResponseMetricField.SQUARES)
            start += ResponseMetricField.WIDTH
        return record


@final
class UnitMetricAccumulator:
    """Sums of a metric over units: see `UnitMetricField`."""

    __slots__ = (
        "defined_products",
        "defined_responses",
        "defined_squares",
        "defined_units",
        "response_products",
        "squares",
        "total",
    )

    def __init__(self) -> None:
        self.defined_units: i64 = 0
        self.defined_responses: i64 = 0
        self.total = WideSum()
        self.squares = WideSum()
        self.defined_products = WideSum()
        self.defined_squares = WideSum()
        self.response_products = WideSum()


@final
class UnitSums:
    """Sums over units, and counts of students: see `UnitField`."""

    __slots__ = (
        "_base_indices", "_has_answer_metrics", "anonymous", "crossovers", "metric_sums", "rated_response_products",
        "rated_responses", "rated_squares",
        "rated_units", "response_squares", "responses", "students", "units",
    )  # fmt: skip

    def __init__(self, base_indices: list[int], has_answer_metrics: bool) -> None:  # noqa: FBT001
        self._base_indices = base_indices
        """For each metric, the index of the responses that may have a value: see `RecordLayout.base_index`."""
        self._has_answer_metrics = has_answer_metrics
        self.students: i64 = 0
        self.crossovers: i64 = 0
        self.anonymous: i64 = 0
        self.units: i64 = 0
        self.responses: i64 = 0
        self.rated_responses: i64 = 0
        self.rated_units: i64 = 0
        self.response_squares = WideSum()
        self.rated_squares = WideSum()
        self.rated_response_products = WideSum()
        self.metric_sums = [UnitMetricAccumulator() for _ in base_indices]

    def replace(self, old: SumsVector, new: SumsVector, undefined_start: i64, square_scales: list[float]) -> None:
        """Replace the sums vector of a unit; the vector of a missing unit is zeros."""
        old_responses: i64 = old[StudentField.RESPONSES]
        new_responses: i64 = new[StudentField.RESPONSES]
        old_rated: i64 = old[StudentField.RATED]
        new_rated: i64 = new[StudentField.RATED]
        self.units += i64(new_responses > 0) - i64(old_responses > 0)
        self.responses += new_responses - old_responses
        self.response_squares.replace_integer(old_responses * old_responses, new_responses * new_responses)
        if old_rated == 0 and new_rated == 0 and not self._has_answer_metrics:
            return
        self.rated_responses += new_rated - old_rated
        self.rated_units += i64(new_rated > 0) - i64(old_rated > 0)
        self.rated_squares.replace_integer(old_rated * old_rated, new_rated * new_rated)
        self.rated_response_products.replace_integer(old_rated * old_responses, new_rated * new_responses)
        for index, sums in enumerate(self.metric_sums):
            old_total: i64 = old[StudentField.TOTALS + index]
            new_total: i64 = new[StudentField.TOTALS + index]
            base: i64 = self._base_indices[index]
            old_defined = i64(old[base]) - i64(old[undefined_start + index])
            new_defined = i64(new[base]) - i64(new[undefined_start + index])
            old_value, new_value = float(old_total) * _UNIT, float(new_total) * _UNIT
            if old_defined != new_defined or old_total != new_total:
                scale = square_scales[index]
                sums.defined_units += i64(new_defined > 0) - i64(old_defined > 0)
                sums.defined_responses += new_defined - old_defined
                sums.total.replace_integer(old_total, new_total)
                sums.squares.replace(old_value * old_value * scale, new_value * new_value * scale)
                sums.defined_products.replace(
                    old_value * float(old_defined) * _SCALE, new_value * float(new_defined) * _SCALE
                )
                sums.defined_squares.replace_integer(old_defined * old_defined, new_defined * new_defined)
            sums.response_products.replace(
                old_value * float(old_responses) * _SCALE, new_value * float(new_responses) * _SCALE
            )

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        record: list[int] = [0] * (UnitField.METRICS + UnitMetricField.WIDTH * len(self.metric_sums))
        record[UnitField.STUDENTS] = self.students
        record[UnitField.CROSSOVERS] = self.crossovers
        record[UnitField.ANONYMOUS_RESPONSES] = self.anonymous
        record[UnitField.UNITS] = self.units
        record[UnitField.RESPONSES] = self.responses
        record[UnitField.RATED] = self.rated_responses
        record[UnitField.RATED_UNITS] = self.rated_units
        self.response_squares.write(record, UnitField.RESPONSE_SQUARES)
        self.rated_squares.write(record, UnitField.RATED_COUNT_SQUARES)
        self.rated_response_products.write(record, UnitField.RATED_RESPONSE_PRODUCTS)
        start: i64 = UnitField.METRICS
        for sums in self.metric_sums:
            record[start + UnitMetricField.UNITS] = sums.defined_units
            record[start + UnitMetricField.DEFINED] = sums.defined_responses
            sums.total.write(record, start + UnitMetricField.TOTAL)
            sums.squares.write(record, start + UnitMetricField.SQUARES)
            sums.defined_products.write(record, start + UnitMetricField.DEFINED_PRODUCTS)
            sums.defined_squares.write(record, start + UnitMetricField.DEFINED_SQUARES)
            sums.response_products.write(record, start + UnitMetricField.RESPONSE_PRODUCTS)
            start += UnitMetricField.WIDTH
        return record


@final
class MetricMeanSums:
    """Sums of the units' means y and y' of a metric: see `CohortMetricField` and `SubgroupField`.

    y is a unit's mean over the responses with a value, y' over all responses.
    """

    __slots__ = ("over_rated", "over_responses")

    def __init__(self) -> None:
        self.over_rated = MeanSums()
        self.over_responses = MeanSums()

    def replace(
        self,
        metric: i64,
        base: i64,
        undefined_start: i64,
        old: SumsVector,
        new: SumsVector,
        least_value: i64,
        square_scale: float,
    ) -> None:
        """Replace the means of a unit with the given sums vectors; `base` is the metric's `RecordLayout.base_index`."""
        old_total: i64 = old[StudentField.TOTALS + metric]
        new_total: i64 = new[StudentField.TOTALS + metric]
        old_responses: i64 = old[StudentField.RESPONSES]
        new_responses: i64 = new[StudentField.RESPONSES]
        old_defined = i64(old[base]) - i64(old[undefined_start + metric])
        new_defined = i64(new[base]) - i64(new[undefined_start + metric])
        self.over_rated.units += i64(new_defined > 0) - i64(old_defined > 0)
        self.over_responses.units += i64(new_responses > 0) - i64(old_responses > 0)
        if old_total != 0 or new_total != 0:
            self.over_rated.replace(
                mean_or_zero(old_total, old_defined), mean_or_zero(new_total, new_defined), square_scale
            )
            old_total -= least_value * old_defined
            new_total -= least_value * new_defined
            self.over_responses.replace(
                mean_or_zero(old_total, old_responses), mean_or_zero(new_total, new_responses), square_scale
            )


@final
class CovariatePairSums:
    """Sums for CUPED over units with outcome and covariate: see `PairField`.

    The outcome y is a unit's mean after exposure, the covariate x the student's mean in the pre-period.
    """

    __slots__ = ("covariate", "outcome", "products")

    def __init__(self) -> None:
        self.outcome = MeanSums()
        self.covariate = MeanSums()
        self.products = WideSum()

    def add(
        self, sign: i64, total: i64, count: i64, covariate_total: i64, covariate_count: i64, square_scale: float
    ) -> None:
        """Add or subtract a unit; do nothing if outcome or covariate has no observations."""
        if count <= 0 or covariate_count <= 0:
            return
        outcome, covariate = mean_or_zero(total, count), mean_or_zero(covariate_total, covariate_count)
        self.outcome.units += sign
        if sign > 0:
            self.outcome.replace(0.0, outcome, square_scale)
            self.covariate.replace(0.0, covariate, square_scale)
        else:
            self.outcome.replace(outcome, 0.0, square_scale)
            self.covariate.replace(covariate, 0.0, square_scale)
        outcome, covariate = round_half_even(outcome) * _UNIT, round_half_even(covariate) * _UNIT
        self.products.add(sign, round_half_even(covariate * outcome * square_scale))


@final
class CohortSums:
    """Sums over a cohort, the students first exposed on the same day: see `CohortField`."""

    __slots__ = (
        "_layout",
        "covariate_pairs",
        "exposure_hours",
        "exposures",
        "metric_means",
        "rated_share",
        "student_metric_means",
        "subgroup_means",
        "undefined_as_zero",
        "undefined_share",
        "units",
    )

    def __init__(self, layout: RecordLayout) -> None:
        self._layout = layout
        self.exposures: i64 = 0
        self.exposure_hours: dict[int, int] = {}
        """Hour of the day → change of the students first exposed in this hour."""
        self.units: i64 = 0
        self.rated_share = MeanSums()
        self.metric_means = [MetricMeanSums() for _ in range(layout.metric_count)]
        self.student_metric_means = [MeanSums() for _ in layout.student_metrics]
        self.undefined_share = MeanSums()
        self.undefined_as_zero = MeanSums()
        self.subgroup_means = [MetricMeanSums() for _ in range(layout.subgroup_count)]
        self.covariate_pairs = [CovariatePairSums(), CovariatePairSums()] if layout.has_pre_period else []

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        layout = self._layout
        record: list[int] = [0] * layout.cohort_width
        record[CohortField.EXPOSURES] = self.exposures
        for hour, exposures in self.exposure_hours.items():
            record[CohortField.EXPOSURE_HOURS + hour] = exposures
        record[CohortField.UNITS] = self.units
        record[CohortField.RATED_UNITS] = self.rated_share.units
        self.rated_share.total.write(record, CohortField.RATED_SHARE_TOTAL)
        self.rated_share.squares.write(record, CohortField.RATED_SHARE_SQUARES)
        start: i64 = CohortField.METRICS
        for means in self.metric_means:
            record[start + CohortMetricField.RATED_UNITS] = means.over_rated.units
            means.over_rated.total.write(record, start + CohortMetricField.RATED_TOTAL)
            means.over_rated.squares.write(record, start + CohortMetricField.RATED_SQUARES)
            means.over_responses.total.write(record, start + CohortMetricField.ALL_TOTAL)
            means.over_responses.squares.write(record, start + CohortMetricField.ALL_SQUARES)
            start += CohortMetricField.WIDTH
        for sums in self.student_metric_means:
            record[start + MeanField.UNITS] = sums.units
            sums.total.write(record, start + MeanField.TOTAL)
            sums.squares.write(record, start + MeanField.SQUARES)
            start += MeanField.WIDTH
        if layout.has_undefined:
            self.undefined_share.total.write(record, start + UndefinedField.SHARE_TOTAL)
            self.undefined_share.squares.write(record, start + UndefinedField.SHARE_SQUARES)
            self.undefined_as_zero.total.write(record, start + UndefinedField.AS_ZERO_TOTAL)
            self.undefined_as_zero.squares.write(record, start + UndefinedField.AS_ZERO_SQUARES)
        start = layout.subgroup_index(0)
        for subgroup in self.subgroup_means:
            record[start + SubgroupField.RATED_UNITS] = subgroup.over_rated.units
            subgroup.over_rated.total.write(record, start + SubgroupField.RATED_TOTAL)
            subgroup.over_rated.squares.write(record, start + SubgroupField.RATED_SQUARES)
            record[start + SubgroupField.ALL_UNITS] = subgroup.over_responses.units
            subgroup.over_responses.total.write(record, start + SubgroupField.ALL_TOTAL)
            subgroup.over_responses.squares.write(record, start + SubgroupField.ALL_SQUARES)
            start += SubgroupField.WIDTH
        start = layout.pair_index(0)
        for pair in self.covariate_pairs:
            record[start + PairField.UNITS] = pair.outcome.units
            pair.outcome.total.write(record, start + PairField.TOTAL)
            pair.outcome.squares.write(record, start + PairField.SQUARES)
            pair.covariate.total.write(record, start + PairField.COVARIATE_TOTAL)
            pair.covariate.squares.write(record, start + PairField.COVARIATE_SQUARES)
            pair.products.write(record, start + PairField.PRODUCTS)
            start += PairField.WIDTH
        return record


@final
class MetricAccumulator:
    """Changes of an experiment's sums over responses and students; empty when created."""

    __slots__ = (
        "_base_indices", "_chunk_lengths_ms", "_days", "_empty_state", "_exposure_days", "_has_age_bands",
        "_has_answer_metrics", "_has_pre_period", "_has_undefined", "_layout", "_least_values", "_primary_metric",
        "_segment_count", "_square_scales", "_student_metric_scales", "_student_metrics", "_undefined_start",
        "_uses_sessions", "bucket_sums", "cohort_sums", "response_sums",
        "unit_sums",
    )  # fmt: skip

    def __init__(self, layout: RecordLayout, chunk_lengths_ms: Sequence[int], days: LocalDays = UTC_DAYS) -> None:
        """Create an accumulator; `chunk_lengths_ms` has the length of a chunk for each decay (`chunk_length_ms`)."""
        self._layout = layout
        self._days = days
        self._undefined_start: i64 = layout.student_undefined.start
        self._square_scales: list[float] = [2.0**bits for bits in layout.square_bits]
        self._student_metrics: list[StudentMetric] = list(layout.student_metrics)
        self._student_metric_scales: list[float] = [2.0**bits for bits in layout.student_metric_bits]
        self._uses_sessions = any(metric.is_per_session for metric in layout.student_metrics)
        self._has_answer_metrics = any(layout.is_over_responses)
        self._base_indices = [layout.base_index(metric) for metric in range(layout.metric_count)]
        self._least_values = [layout.least_value(metric) for metric in range(layout.metric_count)]
        self._primary_metric: i64 = layout.primary_index
        self._segment_count: i64 = layout.segment_count
        self._has_age_bands = layout.has_exposure_ages
        self._has_pre_period = layout.has_pre_period
        self._has_undefined = layout.has_undefined
        self._exposure_days: i64 = layout.exposure_days
        self._chunk_lengths_ms: list[int] = list(chunk_lengths_ms)
        self._empty_state = StudentState(Student(layout.sums_width), 0)
        """The state of a missing unit: sums of zeros."""
        zeros = [0] * layout.sums_width
        self._empty_state.total_sums = self._empty_state.window_sums = self._empty_state.pre_period_sums = zeros
        self._empty_state.age_band_sums = [zeros for _ in EXPOSURE_AGES]
        self._empty_state.session_counts = [0] * (SESSION_COUNTS + layout.metric_count)
        self.response_sums: dict[int, ResponseSums] = {}
        """Variant → sums over its responses of all time."""
        self.bucket_sums: list[dict[int, ResponseSums]] = [{} for _ in chunk_lengths_ms]
        """For each decay: cell of a variant and a time bucket → sums over the responses of the bucket."""
        self.unit_sums: dict[int, UnitSums] = {}
        """Variant → sums over units, and counts of students."""
        self.cohort_sums: dict[int, CohortSums] = {}
        """Cell of a variant and a day → sums over the cohort of that day."""

    def add_response(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        is_rated: bool,  # noqa: FBT001
        metric_values: tuple[int, ...],
    ) -> None:
        """Add or subtract a response; an undefined metric has the value -1."""
        self._get_response_sums(self.response_sums, variant).add(sign, 0, is_rated, metric_values, self._square_scales)
        for decay_index, length_ms in enumerate(self._chunk_lengths_ms):
            bucket_and_offset: i64 = timestamp_ms * (BUCKETS_PER_CHUNK << OFFSET_BITS) // i64(length_ms)
            cell = variant << PERIOD_BITS | bucket_and_offset >> OFFSET_BITS
            sums = self._get_response_sums(self.bucket_sums[decay_index], cell)
            sums.add(sign, bucket_and_offset & _OFFSET_MASK, is_rated, metric_values, self._square_scales)

    def add_anonymous_response(
        self, sign: i64, variant: i64, timestamp_ms: i64, category: i64, sums: tuple[int, ...], session: i64 = MISSING
    ) -> None:
        """Add or subtract a response without a student, which is a unit with the sums vector `sums`."""
        self._get_unit_sums(variant).anonymous += sign
        unit = Student(self._layout.sums_width, self._days)
        unit.add_difference(timestamp_ms, variant, category, sums, 1, session)
        self._add_unit(sign, self.capture_state(unit))

    def capture_state(self, student: Student) -> StudentState:
        """Return the current state of a student, an argument of `replace_student`."""
        state = StudentState(student, self._exposure_days)
        if self._has_age_bands and state.single_variant >= 0:
            remaining_sums, state.age_band_sums = state.total_sums, []
            for first_day, end_day in _AGE_BAND_DAYS:
                band_sums = student.window_sums(state.single_variant, first_day, end_day)
                state.age_band_sums.append(band_sums)
                remaining_sums = [total - number for total, number in zip(remaining_sums, band_sums, strict=True)]
            state.age_band_sums.append(remaining_sums)
        if self._uses_sessions and state.single_variant >= 0:
            state.session_counts = student.count_sessions(state.single_variant, self._exposure_days)
        if self._has_pre_period:
            state.pre_period_sums = student.total_sums(PRE_PERIOD_VARIANT)
        return state

    def add_student(self, sign: i64, student: Student) -> None:
        """Add or subtract a student."""
        self._add_student_state(sign, self.capture_state(student))

    def _add_student_state(self, sign: i64, state: StudentState) -> None:
        """Add or subtract a student: in the counts of all variants, in the cohort, and as a unit or a crossover."""
        if state.first_exposure_ms == NEVER_EXPOSED_MS:
            return
        cohort = self._get_cohort_sums(state.first_variant, state.first_exposure_ms)
        cohort.exposures += sign
        hour = int(self._days.hour(state.first_exposure_ms))
        cohort.exposure_hours[hour] = cohort.exposure_hours.get(hour, 0) + int(sign)
        for variant in state.variants:
            self._get_unit_sums(variant).students += sign
        if state.single_variant >= 0:
            self._add_unit(sign, state)
        elif state.variants:
            # Crossovers are no units: comparisons exclude students with more than one variant.
            self._get_unit_sums(state.first_variant).crossovers += sign

    def replace_student(self, old: StudentState, new: StudentState) -> None:
        """Subtract the state of a student before a change, and add the state after the change."""
        if (
            new.single_variant >= 0
            and new.single_variant == old.single_variant
            and new.first_exposure_ms == old.first_exposure_ms
            and new.first_variant == old.first_variant
            and new.first_category == old.first_category
        ):
            self._replace_unit(new, old, new)
        else:
            self._add_student_state(-1, old)
            self._add_student_state(1, new)

    def _add_unit(self, sign: i64, state: StudentState) -> None:
        """Add or subtract a unit."""
        if sign > 0:
            self._replace_unit(state, self._empty_state, state)
        else:
            self._replace_unit(state, state, self._empty_state)

    def _replace_unit(self, exposed: StudentState, old: StudentState, new: StudentState) -> None:
        """Replace the sums of a unit; `exposed` is the state with the unit's variant and first exposure."""
        variant, first_exposure_ms = exposed.single_variant, exposed.first_exposure_ms
        unit_sums = self._get_unit_sums(variant)
        unit_sums.replace(old.total_sums, new.total_sums, self._undefined_start, self._square_scales)
        if old.window_sums != new.window_sums:
            cohort = self._get_cohort_sums(variant, first_exposure_ms)
            self._replace_window_sums(cohort, old.window_sums, new.window_sums)
            if self._segment_count:
                self._replace_subgroup(cohort, exposed.first_category - MISSING, old.window_sums, new.window_sums)
        if self._student_metrics:
            self._replace_student_metrics(self._get_cohort_sums(variant, first_exposure_ms), old, new)
        if self._has_age_bands:
            cohort = self._get_cohort_sums(variant, first_exposure_ms)
            for age_band, (old_vector, new_vector) in enumerate(zip(old.age_band_sums, new.age_band_sums, strict=True)):
                self._replace_subgroup(cohort, self._segment_count + age_band, old_vector, new_vector)
        if self._has_pre_period:
            cohort = self._get_cohort_sums(variant, first_exposure_ms)
            self._add_covariate_pairs(cohort, -1, old.window_sums, old.pre_period_sums)
            self._add_covariate_pairs(cohort, 1, new.window_sums, new.pre_period_sums)

    def _replace_window_sums(self, cohort: CohortSums, old: SumsVector, new: SumsVector) -> None:
        """Replace a unit's sums over the exposure window, the compared days after first exposure."""
        old_responses: i64 = old[StudentField.RESPONSES]
        new_responses: i64 = new[StudentField.RESPONSES]
        old_rated: i64 = old[StudentField.RATED]
        new_rated: i64 = new[StudentField.RATED]
        cohort.units += i64(new_responses > 0) - i64(old_responses > 0)
        cohort.rated_share.units += i64(new_rated > 0) - i64(old_rated > 0)
        cohort.rated_share.replace(
            mean_or_zero(old_rated, old_responses) * _SCALE, mean_or_zero(new_rated, new_responses) * _SCALE, _SCALE
        )
        if old_rated != 0 or new_rated != 0 or self._has_answer_metrics:
            for index, means in enumerate(cohort.metric_means):
                self._replace_means(means, index, old, new)
        if self._has_undefined and (old_rated != 0 or new_rated != 0):
            undefined, total = self._undefined_start + self._primary_metric, StudentField.TOTALS + self._primary_metric
            cohort.undefined_share.replace(
                mean_or_zero(old[undefined], old_rated) * _SCALE,
                mean_or_zero(new[undefined], new_rated) * _SCALE,
                _SCALE,
            )
            cohort.undefined_as_zero.replace(
                mean_or_zero(old[total], old_rated),
                mean_or_zero(new[total], new_rated),
                self._square_scales[self._primary_metric],
            )

    def _replace_means(self, means: MetricMeanSums, metric: i64, old: SumsVector, new: SumsVector) -> None:
        """Replace a unit's means of a metric."""
        means.replace(
            metric,
            self._base_indices[metric],
            self._undefined_start,
            old,
            new,
            self._least_values[metric],
            self._square_scales[metric],
        )

    def _replace_student_metrics(self, cohort: CohortSums, old: StudentState, new: StudentState) -> None:
        """Replace a unit's values of the student metrics in the exposure window."""
        for metric, scale, sums in zip(
            self._student_metrics, self._student_metric_scales, cohort.student_metric_means, strict=True
        ):
            old_value, new_value = _student_metric_value(metric, old), _student_metric_value(metric, new)
            sums.units += i64(new_value >= 0) - i64(old_value >= 0)
            sums.replace(max(old_value, 0.0), max(new_value, 0.0), scale)

    def _replace_subgroup(self, cohort: CohortSums, subgroup: i64, old: SumsVector, new: SumsVector) -> None:
        """Replace a unit's means of the primary metric in a subgroup: a segment or an age band."""
        self._replace_means(cohort.subgroup_means[subgroup], self._primary_metric, old, new)

    def _add_covariate_pairs(self, cohort: CohortSums, sign: i64, window: SumsVector, pre_period: SumsVector) -> None:
        """Add or subtract a unit's pairs of the primary metric: over rated responses, and over all responses."""
        metric = self._primary_metric
        base, undefined = self._base_indices[metric], self._undefined_start + metric
        least, scale = self._least_values[metric], self._square_scales[metric]
        responses, pre_period_responses = window[StudentField.RESPONSES], pre_period[StudentField.RESPONSES]
        total, pre_period_total = window[StudentField.TOTALS + metric], pre_period[StudentField.TOTALS + metric]
        defined, pre_period_defined = window[base] - window[undefined], pre_period[base] - pre_period[undefined]
        cohort.covariate_pairs[0].add(sign, total, defined, pre_period_total, pre_period_defined, scale)
        total -= least * defined
        pre_period_total -= least * pre_period_defined
        cohort.covariate_pairs[1].add(sign, total, responses, pre_period_total, pre_period_responses, scale)

    def _get_response_sums(self, records: dict[int, ResponseSums], cell: i64) -> ResponseSums:
        sums = records.get(cell)
        if sums is None:
            sums = records[cell] = ResponseSums(self._layout.metric_count, self._has_answer_metrics)
        return sums

    def _get_unit_sums(self, variant: i64) -> UnitSums:
        sums = self.unit_sums.get(variant)
        if sums is None:
            sums = self.unit_sums[variant] = UnitSums(self._base_indices, self._has_answer_metrics)
        return sums

    def _get_cohort_sums(self, variant: i64, first_exposure_ms: i64) -> CohortSums:
        cell = variant << PERIOD_BITS | self._days.day_number(first_exposure_ms)
        sums = self.cohort_sums.get(cell)
        if sums is None:
            sums = self.cohort_sums[cell] = CohortSums(self._layout)
        return sums


@final
class TrafficAccumulator:
    """Changes of an experiment's counts of traffic; empty when created."""

    __slots__ = ("_category_count", "_day_width", "_days", "day_records", "hour_records")

    def __init__(self, category_count: int, days: LocalDays = UTC_DAYS) -> None:
        """Create an accumulator; `category_count` is the number of declared categories, 0 to count none."""
        self._days = days
        self._category_count: i64 = category_count
        self._day_width = day_record_width(category_count)
        self.hour_records: dict[int, list[int]] = {}
        """Cell of a variant and an hour since 1970 → record of `HOUR_RECORD_WIDTH` integers."""
        self.day_records: dict[int, list[int]] = {}
        """Cell of a variant and a day of the experiment → record of `day_record_width` integers.

        The last integers count declared categories, undeclared categories, and responses without a category.
        """

    def add_response(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        item_hashes: bytes,
        latency_ms: int,
        category: i64,
    ) -> None:
        """Add or subtract a response; a missing latency or category is negative."""
        hour = _get_or_create_record(
            self.hour_records, variant << PERIOD_BITS | timestamp_ms // HOUR_MS, HOUR_RECORD_WIDTH
        )
        _add_at_index(hour, HourField.RESPONSES, sign)
        if not item_hashes:
            _add_at_index(hour, HourField.EMPTY_RESPONSES, sign)
        if latency_ms >= 0:
            _add_at_index(hour, HourField.LATENCY_TOTAL, sign * i64(latency_ms))
            bucket = i64(bisect_left(_LATENCY_BOUNDS_MS, latency_ms))
            _add_at_index(hour, HourField.LATENCY_BUCKETS + bucket, sign)
        day = _get_or_create_record(
            self.day_records, variant << PERIOD_BITS | self._days.day_number(timestamp_ms), self._day_width
        )
        _add_at_index(day, DayField.RESPONSES, sign)
        end: i64 = len(item_hashes)
        item_count = end // ITEM_HASH_BYTES
        _add_at_index(day, DayField.ITEM_COUNT_SQUARES, sign * item_count * item_count)
        last_byte: i64 = ITEM_HASH_BYTES - 1
        while last_byte < end:
            _add_at_index(day, DayField.ITEM_CELLS + (i64(item_hashes[last_byte]) & _ITEM_CELL_MASK), sign)
            last_byte += ITEM_HASH_BYTES
        if self._category_count > 0:
            index = category if category >= 0 else self._category_count + 1
            _add_at_index(day, DayField.CATEGORIES + index, sign)

    def variant_totals(self) -> dict[int, list[int]]:
        """Return variant → sum of the records of all hours."""
        totals: dict[int, list[int]] = {}
        for cell, record in self.hour_records.items():
            total = _get_or_create_record(totals, cell >> PERIOD_BITS, HOUR_RECORD_WIDTH)
            for index, number in enumerate(record):
                total[index] += number
        return totals


def _student_metric_value(metric: StudentMetric, state: StudentState) -> float:
    """Return the value of a student metric in fixed point; −1 for a student without responses, or without sessions."""
    if state.window_sums[StudentField.RESPONSES] <= 0:
        return -1.0
    if metric.is_per_session:
        return _session_metric_value(metric, state.session_counts)
    if metric.measure == "total":
        return float(state.window_sums[StudentField.TOTALS + metric.metric])
    count: i64 = state.window_sums[StudentField.RESPONSES]
    if metric.measure == "return_days":
        count = max(state.active_days - 1, 0)
    return float(count) * _SCALE


def _session_metric_value(metric: StudentMetric, session_counts: list[int]) -> float:
    """Return the value of a metric per session in fixed point; −1 for a student without sessions."""
    sessions: i64 = session_counts[0]
    if sessions <= 0:
        return -1.0
    if metric.measure == "sessions":
        return float(sessions) * _SCALE
    count: i64 = session_counts[1]
    if metric.measure == "session_share":
        count = session_counts[SESSION_COUNTS + metric.metric]
    return float(count) / float(sessions) * _SCALE


def _get_or_create_record(records: dict[int, list[int]], cell: i64, width: i64) -> list[int]:
    """Return the record of a cell; a missing record is created with zeros."""
    record = records.get(cell)
    if record is None:
        record = records[cell] = [0] * width
    return record


def _add_at_index(record: list[int], index: i64, change: i64) -> None:
    number: i64 = record[index]
    record[index] = number + change
