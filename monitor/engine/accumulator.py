"""The changes that one batch makes to the stored sums of one experiment.

Every stored integer is a sum over responses or students of an integer function of the response or student. A changed
contribution is stored as its difference: the new integers minus the old ones. `monitor.metrics.record_layout` and
`monitor.metrics.traffic` document the records; each class here has the integers of one record, or of a part of a
record, in the order in which they are stored.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

from mypy_extensions import i64

from monitor.clock import DAY_MS, HOUR_MS
from monitor.engine.id_hash import ITEM_BYTES
from monitor.engine.response_row import MISSING, PRE_PERIOD
from monitor.engine.student import NEVER, Student, StudentState, Sums
from monitor.metrics import (
    AGES,
    BUCKETS_PER_CHUNK,
    FIRST_BUCKET,
    FIRST_CATEGORY,
    FIRST_CELL,
    ITEM_CELLS,
    LATENCY_BOUNDS_MS,
    LIMB_BITS,
    OFFSET_BITS,
    SCALE_BITS,
    TRAFFIC_WIDTH,
    Layout,
    day_width,
)

CELL_BITS: Final = 48
"""A cell's number has a bucket, hour or day in its low bits, and the variant above."""

_SCALE: Final = 2.0**SCALE_BITS
_UNIT: Final = 2.0**-SCALE_BITS
"""One in the last place of a contribution in fixed point."""
_LOW: Final = (1 << LIMB_BITS) - 1
_OFFSET: Final = (1 << OFFSET_BITS) - 1
_MAX_TERM: Final = 2.0**70
"""A larger term would not fit the commit script's float64. Only an id that a million users share comes near."""
_MAX_INTEGER: Final = 2.0**62
_WHOLE: Final = 2.0**52
"""From here on every float64 is an integer; below, adding and subtracting it rounds half to even."""
_CELL_MASK: Final = ITEM_CELLS - 1
_BOUNDS_MS: Final = list(LATENCY_BOUNDS_MS)
"""A list, because compiled code would build a tuple of integers anew for each call."""
_AGE_DAYS: Final = [(first, end) for (first, _), (end, _) in pairwise(AGES)]


def rounded(number: float) -> float:
    """Return a number ≥ 0 rounded half to even."""
    return (number + _WHOLE) - _WHOLE if number < _WHOLE else number


def mean(total: i64, count: i64) -> float:
    """Return a student's mean, 0 without observations."""
    return float(total) / float(count) if count > 0 else 0.0


@final
class WideSum:
    """A sum in two words, value = high · 2²⁴ + low. Every term is split before it is added."""

    __slots__ = ("high", "low")

    def __init__(self) -> None:
        self.low: i64 = 0
        self.high: i64 = 0

    def add_integer(self, sign: i64, term: i64) -> None:
        """Add or subtract an integer."""
        self.low += sign * (term & _LOW)
        self.high += sign * (term >> LIMB_BITS)

    def add(self, sign: i64, term: float) -> None:
        """Add or subtract a rounded number ≥ 0."""
        if term < _MAX_INTEGER:
            self.add_integer(sign, i64(term))
        else:
            term = min(_MAX_TERM, term)
            high = i64(term * 2.0**-LIMB_BITS)
            self.low += sign * i64(term - float(high) * 2.0**LIMB_BITS)
            self.high += sign * high

    def replace_integer(self, old: i64, new: i64) -> None:
        """Subtract one integer and add another."""
        self.low += (new & _LOW) - (old & _LOW)
        self.high += (new >> LIMB_BITS) - (old >> LIMB_BITS)

    def replace(self, old: float, new: float) -> None:
        """Subtract one number ≥ 0, rounded, and add another."""
        if old != new:
            self.add(-1, rounded(old))
            self.add(1, rounded(new))

    def integers(self) -> list[int]:
        """Return the two words."""
        return [self.low, self.high]


@final
class MeanSums:
    """[units, Σy (2), Σy² (2)] over the units that have a mean y."""

    __slots__ = ("squares", "total", "units")

    def __init__(self) -> None:
        self.units: i64 = 0
        self.total = WideSum()
        self.squares = WideSum()

    def replace(self, old: float, new: float, square_scale: float) -> None:
        """Replace a unit's mean, in fixed point; squares are stored at their own scale."""
        if old != new:
            old, new = rounded(old), rounded(new)
            self.total.replace(old, new)
            old, new = old * _UNIT, new * _UNIT
            self.squares.replace(old * old * square_scale, new * new * square_scale)

    def integers(self) -> list[int]:
        """Return the five integers."""
        return [self.units, *self.total.integers(), *self.squares.integers()]


@final
class ResponseMetricSums:
    """[undefined, Σ offset of undefined, Σx (2), Σx·offset (2), Σx² (2)] of one metric over responses."""

    __slots__ = ("offset_total", "squares", "total", "undefined", "undefined_offset")

    def __init__(self) -> None:
        self.undefined: i64 = 0
        self.undefined_offset: i64 = 0
        self.total = WideSum()
        self.offset_total = WideSum()
        self.squares = WideSum()


@final
class ResponseSums:
    """[responses, Σ offset, rated, Σ offset of rated] and the sums of each metric, over responses."""

    __slots__ = ("metrics", "offset", "rated", "rated_offset", "responses")

    def __init__(self, metrics: int) -> None:
        self.responses: i64 = 0
        self.offset: i64 = 0
        self.rated: i64 = 0
        self.rated_offset: i64 = 0
        self.metrics = [ResponseMetricSums() for _ in range(metrics)]

    def add(
        self,
        sign: i64,
        offset: i64,
        rated: bool,  # noqa: FBT001
        values: tuple[int, ...],
        square_scales: list[float],
    ) -> None:
        """Add or subtract a response; -1 is the value of an undefined metric."""
        self.responses += sign
        self.offset += sign * offset
        if not rated:
            return
        self.rated += sign
        self.rated_offset += sign * offset
        for index, sums in enumerate(self.metrics):
            value: i64 = values[index]
            if value < 0:
                sums.undefined += sign
                sums.undefined_offset += sign * offset
            elif value > 0:
                sums.total.add_integer(sign, value)
                sums.offset_total.add_integer(sign, value * offset)
                scaled = float(value) * _UNIT
                sums.squares.add(sign, rounded(scaled * scaled * square_scales[index]))

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        integers: list[int] = [self.responses, self.offset, self.rated, self.rated_offset]
        for sums in self.metrics:
            integers += [sums.undefined, sums.undefined_offset]
            for wide in (sums.total, sums.offset_total, sums.squares):
                integers += wide.integers()
        return integers


@final
class UnitMetricSums:
    """[n_q>0, n_q, S (2), S² (2), S·n_q (2), n_q² (2), S·N (2)] of one metric over units."""

    __slots__ = ("defined", "defined_squares", "products", "squares", "total", "total_responses", "units")

    def __init__(self) -> None:
        self.units: i64 = 0
        self.defined: i64 = 0
        self.total = WideSum()
        self.squares = WideSum()
        self.products = WideSum()
        self.defined_squares = WideSum()
        self.total_responses = WideSum()


@final
class UnitSums:
    """Sums over students, and over responses without a student: see `Layout.unit_width`."""

    __slots__ = (
        "anonymous", "crossovers", "metrics", "rated", "rated_responses", "rated_squares", "rated_units",
        "response_squares", "responses", "students", "units",
    )  # fmt: skip

    def __init__(self, metrics: int) -> None:
        self.students: i64 = 0
        self.crossovers: i64 = 0
        self.anonymous: i64 = 0
        self.units: i64 = 0
        self.responses: i64 = 0
        self.rated: i64 = 0
        self.rated_units: i64 = 0
        self.response_squares = WideSum()
        self.rated_squares = WideSum()
        self.rated_responses = WideSum()
        self.metrics = [UnitMetricSums() for _ in range(metrics)]

    def replace(self, old: Sums, new: Sums, square_scales: list[float]) -> None:
        """Replace the sums vector of a unit; a vector of zeros stands for no unit."""
        old_responses: i64 = old[0]
        new_responses: i64 = new[0]
        old_rated: i64 = old[1]
        new_rated: i64 = new[1]
        self.units += i64(new_responses > 0) - i64(old_responses > 0)
        self.responses += new_responses - old_responses
        self.response_squares.replace_integer(old_responses * old_responses, new_responses * new_responses)
        if old_rated == 0 and new_rated == 0:
            return
        self.rated += new_rated - old_rated
        self.rated_units += i64(new_rated > 0) - i64(old_rated > 0)
        self.rated_squares.replace_integer(old_rated * old_rated, new_rated * new_rated)
        self.rated_responses.replace_integer(old_rated * old_responses, new_rated * new_responses)
        undefined: i64 = 2 + len(self.metrics)
        for index, sums in enumerate(self.metrics):
            old_total: i64 = old[2 + index]
            new_total: i64 = new[2 + index]
            old_defined = old_rated - i64(old[undefined + index])
            new_defined = new_rated - i64(new[undefined + index])
            old_value, new_value = float(old_total) * _UNIT, float(new_total) * _UNIT
            if old_defined != new_defined or old_total != new_total:
                scale = square_scales[index]
                sums.units += i64(new_defined > 0) - i64(old_defined > 0)
                sums.defined += new_defined - old_defined
                sums.total.replace_integer(old_total, new_total)
                sums.squares.replace(old_value * old_value * scale, new_value * new_value * scale)
                sums.products.replace(old_value * float(old_defined) * _SCALE, new_value * float(new_defined) * _SCALE)
                sums.defined_squares.replace_integer(old_defined * old_defined, new_defined * new_defined)
            sums.total_responses.replace(
                old_value * float(old_responses) * _SCALE, new_value * float(new_responses) * _SCALE
            )

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        integers: list[int] = [
            self.students, self.crossovers, self.anonymous, self.units, self.responses, self.rated, self.rated_units,
        ]  # fmt: skip
        for wide in (self.response_squares, self.rated_squares, self.rated_responses):
            integers += wide.integers()
        for sums in self.metrics:
            integers += [sums.units, sums.defined]
            for wide in (sums.total, sums.squares, sums.products, sums.defined_squares, sums.total_responses):
                integers += wide.integers()
        return integers


@final
class MetricMeans:
    """[n_q>0, Σy (2), Σy² (2), Σy' (2), Σy'² (2)] of a metric: y over rated, y' over all responses of a student."""

    __slots__ = ("over_rated", "over_responses")

    def __init__(self) -> None:
        self.over_rated = MeanSums()
        self.over_responses = MeanSums()

    def replace(self, metric: i64, metrics: i64, old: Sums, new: Sums, square_scale: float) -> None:
        """Replace the means of a unit."""
        old_total: i64 = old[2 + metric]
        new_total: i64 = new[2 + metric]
        old_responses: i64 = old[0]
        new_responses: i64 = new[0]
        old_defined = i64(old[1]) - i64(old[2 + metrics + metric])
        new_defined = i64(new[1]) - i64(new[2 + metrics + metric])
        self.over_rated.units += i64(new_defined > 0) - i64(old_defined > 0)
        self.over_responses.units += i64(new_responses > 0) - i64(old_responses > 0)
        if old_total != 0 or new_total != 0:
            self.over_rated.replace(mean(old_total, old_defined), mean(new_total, new_defined), square_scale)
            self.over_responses.replace(mean(old_total, old_responses), mean(new_total, new_responses), square_scale)


@final
class PairSums:
    """[units, Σy (2), Σy² (2), Σx (2), Σx² (2), Σx·y (2)]: x is a student's mean from before the experiment."""

    __slots__ = ("earlier", "later", "products")

    def __init__(self) -> None:
        self.later = MeanSums()
        self.earlier = MeanSums()
        self.products = WideSum()

    def add(self, sign: i64, total: i64, count: i64, earlier_total: i64, earlier_count: i64, scale: float) -> None:
        """Add or subtract a unit if it has both means."""
        if count <= 0 or earlier_count <= 0:
            return
        later, earlier = mean(total, count), mean(earlier_total, earlier_count)
        self.later.units += sign
        if sign > 0:
            self.later.replace(0.0, later, scale)
            self.earlier.replace(0.0, earlier, scale)
        else:
            self.later.replace(later, 0.0, scale)
            self.earlier.replace(earlier, 0.0, scale)
        self.products.add(sign, rounded((rounded(earlier) * _UNIT) * (rounded(later) * _UNIT) * scale))

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        return [*self.later.integers(), *self.earlier.integers()[1:], *self.products.integers()]


@final
class CohortSums:
    """Sums over the students whose first response was on one UTC day: see `Layout.cohort_width`."""

    __slots__ = ("exposures", "guardrails", "metrics", "pairs", "parts", "rated_share", "units")

    def __init__(self, layout: Layout) -> None:
        self.exposures: i64 = 0
        self.units: i64 = 0
        self.rated_share = MeanSums()
        self.metrics = [MetricMeans() for _ in range(layout.metrics)]
        self.guardrails = [MeanSums() for _ in layout.watched]
        self.parts = [MetricMeans() for _ in range(layout.parts)]
        self.pairs = [PairSums(), PairSums()] if layout.before else []

    def integers(self) -> list[int]:
        """Return the integers of the record."""
        integers: list[int] = [self.exposures, self.units, *self.rated_share.integers()]
        for means in self.metrics:
            integers += means.over_rated.integers()
            integers += means.over_responses.integers()[1:]
        for sums in self.guardrails:
            integers += sums.integers()
        for part in self.parts:
            integers += part.over_rated.integers()
            integers += part.over_responses.integers()
        for pair in self.pairs:
            integers += pair.integers()
        return integers


@final
class Accumulator:
    """The changes of one experiment's sums over responses and students; nothing at first."""

    __slots__ = (
        "_exposure_days", "_guardrail_scales", "_layout", "_metrics", "_nothing", "_novelty", "_pre_period",
        "_primary", "_segments", "_spans_ms", "_square_scales", "buckets", "cohorts", "responses", "units",
    )  # fmt: skip

    def __init__(self, layout: Layout, spans_ms: Sequence[int]) -> None:
        """Create an accumulator; `spans_ms` are the lengths of each decay's chunks (`bucket_span_ms`)."""
        self._layout = layout
        self._metrics: i64 = layout.metrics
        self._square_scales: list[float] = [2.0**bits for bits in layout.squares]
        self._guardrail_scales: list[float] = [2.0**bits for bits in layout.watched]
        self._primary: i64 = layout.primary
        self._segments: i64 = layout.segments
        self._novelty = layout.novelty
        self._pre_period = layout.before
        self._exposure_days: i64 = layout.exposure_days
        self._spans_ms: list[int] = list(spans_ms)
        self._nothing = StudentState(Student(layout.sums_width), 0)
        """Stands for no unit: sums of zeros."""
        self._nothing.totals = self._nothing.window = self._nothing.earlier = [0] * layout.sums_width
        self._nothing.ages = [[0] * layout.sums_width for _ in AGES]
        self.responses: dict[int, ResponseSums] = {}
        """Variant → sums over all responses."""
        self.buckets: list[dict[int, ResponseSums]] = [{} for _ in spans_ms]
        """For each decay: cell of a variant and a time bucket → sums over the bucket's responses."""
        self.units: dict[int, UnitSums] = {}
        """Variant → sums over students."""
        self.cohorts: dict[int, CohortSums] = {}
        """Cell of a variant and a UTC day → sums over the students first exposed on that day."""

    def add_response(self, sign: i64, variant: i64, timestamp_ms: i64, rated: bool, values: tuple[int, ...]) -> None:  # noqa: FBT001
        """Add or subtract a response; -1 is the value of an undefined metric."""
        self._response_sums(self.responses, variant).add(sign, 0, rated, values, self._square_scales)
        for decay, span_ms in enumerate(self._spans_ms):
            fine: i64 = timestamp_ms * (BUCKETS_PER_CHUNK << OFFSET_BITS) // i64(span_ms)
            sums = self._response_sums(self.buckets[decay], variant << CELL_BITS | fine >> OFFSET_BITS)
            sums.add(sign, fine & _OFFSET, rated, values, self._square_scales)

    def add_anonymous(self, sign: i64, variant: i64, timestamp_ms: i64, category: i64, sums: tuple[int, ...]) -> None:
        """Add or subtract a response without a student, which is a unit of its own."""
        self._unit_sums(variant).anonymous += sign
        unit = Student(self._layout.sums_width)
        unit.add(timestamp_ms, variant, category, sums, 1)
        self._add_unit(sign, self.state_of(unit))

    def state_of(self, student: Student) -> StudentState:
        """Return a student's present state, for `replace_student`."""
        state = StudentState(student, self._exposure_days)
        if self._novelty and state.variant >= 0:
            rest, state.ages = state.totals, []
            for first, end in _AGE_DAYS:
                age = student.window(state.variant, first, end)
                state.ages.append(age)
                rest = [total - number for total, number in zip(rest, age, strict=True)]
            state.ages.append(rest)
        if self._pre_period:
            state.earlier = student.totals(PRE_PERIOD)
        return state

    def add_student(self, sign: i64, student: Student) -> None:
        """Add or subtract a student."""
        self._add_state(sign, self.state_of(student))

    def _add_state(self, sign: i64, state: StudentState) -> None:
        """Add or subtract a student: a presence in each variant, an exposure, and a unit unless it is a crossover."""
        if state.first_ms == NEVER:
            return
        self._cohort_sums(state.first_variant, state.first_ms).exposures += sign
        for variant in state.variants:
            self._unit_sums(variant).students += sign
        if state.variant >= 0:
            self._add_unit(sign, state)
        elif state.variants:
            # The comparison leaves crossovers out.
            self._unit_sums(state.first_variant).crossovers += sign

    def replace_student(self, old: StudentState, new: StudentState) -> None:
        """Subtract a student's state before a change, and add the one after it."""
        if (
            new.variant >= 0
            and new.variant == old.variant
            and new.first_ms == old.first_ms
            and new.first_variant == old.first_variant
            and new.first_category == old.first_category
        ):
            self._replace_unit(new, old, new)
        else:
            self._add_state(-1, old)
            self._add_state(1, new)

    def _add_unit(self, sign: i64, state: StudentState) -> None:
        """Add or subtract a unit."""
        if sign > 0:
            self._replace_unit(state, self._nothing, state)
        else:
            self._replace_unit(state, state, self._nothing)

    def _replace_unit(self, exposed: StudentState, old: StudentState, new: StudentState) -> None:
        """Replace the sums of a unit; `exposed` has the variant and the first exposure of both."""
        variant, first_ms = exposed.variant, exposed.first_ms
        self._unit_sums(variant).replace(old.totals, new.totals, self._square_scales)
        if old.window != new.window:
            cohort = self._cohort_sums(variant, first_ms)
            self._replace_window(cohort, old.window, new.window)
            if self._segments:
                self._replace_part(cohort, exposed.first_category - MISSING, old.window, new.window)
        if self._novelty:
            cohort = self._cohort_sums(variant, first_ms)
            for age, (old_sums, new_sums) in enumerate(zip(old.ages, new.ages, strict=True)):
                self._replace_part(cohort, self._segments + age, old_sums, new_sums)
        if self._pre_period:
            cohort = self._cohort_sums(variant, first_ms)
            self._add_pairs(cohort, -1, old.window, old.earlier)
            self._add_pairs(cohort, 1, new.window, new.earlier)

    def _replace_window(self, cohort: CohortSums, old: Sums, new: Sums) -> None:
        """Replace a unit's sums over the days after exposure that are compared."""
        old_responses: i64 = old[0]
        new_responses: i64 = new[0]
        cohort.units += i64(new_responses > 0) - i64(old_responses > 0)
        cohort.rated_share.units += i64(new[1] > 0) - i64(old[1] > 0)
        cohort.rated_share.replace(mean(old[1], old_responses) * _SCALE, mean(new[1], new_responses) * _SCALE, _SCALE)
        if old[1] or new[1]:
            for index, means in enumerate(cohort.metrics):
                means.replace(index, self._metrics, old, new, self._square_scales[index])
        count: i64 = len(self._guardrail_scales)
        at = 2 + 2 * self._metrics
        for index, sums in enumerate(cohort.guardrails):
            old_count = old_responses - i64(old[at + count])
            new_count = new_responses - i64(new[at + count])
            sums.units += i64(new_count > 0) - i64(old_count > 0)
            sums.replace(
                mean(old[at], old_count) * _SCALE, mean(new[at], new_count) * _SCALE, self._guardrail_scales[index]
            )
            at += 1

    def _replace_part(self, cohort: CohortSums, part: i64, old: Sums, new: Sums) -> None:
        """Replace a unit's means of the primary metric in a part: a segment or an age."""
        scale = self._square_scales[self._primary]
        cohort.parts[part].replace(self._primary, self._metrics, old, new, scale)

    def _add_pairs(self, cohort: CohortSums, sign: i64, window: Sums, earlier: Sums) -> None:
        """Add or subtract a unit's pairs of the primary metric, over rated and over all responses."""
        total, undefined = 2 + self._primary, 2 + self._metrics + self._primary
        scale = self._square_scales[self._primary]
        rated, earlier_rated = i64(window[1] - window[undefined]), i64(earlier[1] - earlier[undefined])
        cohort.pairs[0].add(sign, window[total], rated, earlier[total], earlier_rated, scale)
        cohort.pairs[1].add(sign, window[total], window[0], earlier[total], earlier[0], scale)

    def _response_sums(self, records: dict[int, ResponseSums], cell: i64) -> ResponseSums:
        sums = records.get(cell)
        if sums is None:
            sums = records[cell] = ResponseSums(self._layout.metrics)
        return sums

    def _unit_sums(self, variant: i64) -> UnitSums:
        sums = self.units.get(variant)
        if sums is None:
            sums = self.units[variant] = UnitSums(self._layout.metrics)
        return sums

    def _cohort_sums(self, variant: i64, first_ms: i64) -> CohortSums:
        cell = variant << CELL_BITS | first_ms // DAY_MS
        sums = self.cohorts.get(cell)
        if sums is None:
            sums = self.cohorts[cell] = CohortSums(self._layout)
        return sums


@final
class TrafficAccumulator:
    """The changes of one experiment's traffic; `categories` is the number of declared ones, 0 to count none."""

    __slots__ = ("_categories", "_day_width", "days", "hours")

    def __init__(self, categories: int) -> None:
        self._categories: i64 = categories
        self._day_width = day_width(categories)
        self.hours: dict[int, list[int]] = {}
        """Cell of a variant and an hour since 1970 → record of `TRAFFIC_WIDTH`."""
        self.days: dict[int, list[int]] = {}
        """Cell of a variant and a UTC day → record; its last integers are the declared categories, others, none."""

    def add(
        self,
        sign: i64,
        variant: i64,
        timestamp_ms: i64,
        items: bytes,
        latency_ms: int,
        category: i64,
    ) -> None:
        """Add or subtract a response with the hashes of its items; an unknown latency or category is below 0."""
        hour = _record(self.hours, variant << CELL_BITS | timestamp_ms // HOUR_MS, TRAFFIC_WIDTH)
        _add(hour, 0, sign)
        if not items:
            _add(hour, 1, sign)
        if latency_ms >= 0:
            _add(hour, 2, sign * i64(latency_ms))
            _add(hour, FIRST_BUCKET + i64(bisect_left(_BOUNDS_MS, latency_ms)), sign)
        day = _record(self.days, variant << CELL_BITS | timestamp_ms // DAY_MS, self._day_width)
        _add(day, 0, sign)
        end: i64 = len(items)
        shown = end // ITEM_BYTES
        _add(day, 1, sign * shown * shown)
        at: i64 = ITEM_BYTES - 1
        while at < end:
            _add(day, FIRST_CELL + (i64(items[at]) & _CELL_MASK), sign)
            at += ITEM_BYTES
        if self._categories > 0:
            _add(day, FIRST_CATEGORY + (category if category >= 0 else self._categories + 1), sign)

    def totals(self) -> dict[int, list[int]]:
        """Return the sums over all hours, by variant."""
        totals: dict[int, list[int]] = {}
        for cell, record in self.hours.items():
            total = _record(totals, cell >> CELL_BITS, TRAFFIC_WIDTH)
            for index, number in enumerate(record):
                total[index] += number
        return totals


def _record(records: dict[int, list[int]], cell: i64, width: i64) -> list[int]:
    """Return the record of a cell, which is created with zeros if it is missing."""
    record = records.get(cell)
    if record is None:
        record = records[cell] = [0] * width
    return record


def _add(record: list[int], index: i64, change: i64) -> None:
    number: i64 = record[index]
    record[index] = number + change
