"""What a batch adds to the stored records of one experiment: entities come in, sums of integers come out.

What was added is taken away by adding it once more with the sign −1; `monitor.aggregates.Layout` names the integers.
Compiled (deploy/native.py): every addition is one of 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, TypeAlias, final

from librt.vecs import append, vec
from mypy_extensions import i64

from monitor.aggregates import AGES, BUCKETS_PER_CHUNK, LIMB_BITS, OFFSET_BITS, PAIR_WIDTH, PART_WIDTH, Layout
from monitor.attribution import BEFORE, DAY_MS, UNKNOWN
from monitor.ranking import SCALE_BITS
from monitor.students import NEVER, Student

CELL_BITS: Final = 48
"""A bucket, an hour or a day in the low bits of a cell's number, the variant above."""
_REMEMBERED: Final = 16
"""Cells: by the last two bits of the variant and of the bucket, hour or day."""
_LOW: Final = (1 << LIMB_BITS) - 1
_HIGH: Final = 2.0**-LIMB_BITS
_CARRY: Final = 2.0**LIMB_BITS
_UNIT: Final = 2.0**-SCALE_BITS
_SCALE: Final = 2.0**SCALE_BITS
_MOST: Final = 2.0**70
_WHOLE: Final = 2.0**52
"""From here on every float64 is an integer; below, adding and subtracting it rounds half to even."""

_AGE_DAYS: Final = [(first, end) for (first, _), (end, _) in pairwise(AGES)]

Record: TypeAlias = "vec[i64]"


@final
class Finder:
    """Finds records of one width by their cells, those that were used last without a look into the dictionary."""

    __slots__ = ("_cells", "_last", "_records", "_width")

    def __init__(self, records: dict[int, Record], width: i64) -> None:
        self._records = records
        self._width: i64 = width
        self._cells = vec[i64]([-1] * _REMEMBERED)
        self._last: list[Record] = [vec[i64]()] * _REMEMBERED

    def at(self, cell: i64) -> Record:
        """Return the record of a cell, one of zeros if there is none yet."""
        place = cell & 3 | (cell >> CELL_BITS & 3) << 2
        if self._cells[place] == cell:
            return self._last[place]
        known = self._records.get(cell)
        if known is None:
            known = zeros(self._width)
            self._records[cell] = known
        self._cells[place] = cell
        self._last[place] = known
        return known


def zeros(width: i64) -> Record:
    """Return a record of nothing."""
    record = vec[i64](capacity=width)
    for _ in range(width):
        record = append(record, 0)
    return record


@final
class Tally:
    """The sums of one experiment."""

    __slots__ = (
        "_before", "_buckets", "_cohort_width", "_cohorts", "_exposure_days", "_first_pair", "_first_part", "_metrics",
        "_novelty", "_primary", "_response_width", "_responses", "_segments", "_spans_ms", "_squares", "_totals",
        "_unit_width", "_units", "_watched", "_window", "buckets", "cohorts", "responses", "units",
    )  # fmt: skip

    def __init__(self, layout: Layout, spans_ms: Sequence[int]) -> None:
        """Begin with nothing; the spans are those of the decays' chunks (`bucket_span_ms`)."""
        self._metrics: i64 = layout.metrics
        self._squares: list[float] = [2.0**bits for bits in layout.squares]
        self._watched: list[float] = [2.0**bits for bits in layout.watched]
        self._primary: i64 = layout.primary
        self._segments: i64 = layout.segments
        self._novelty = layout.novelty
        self._exposure_days: i64 = layout.exposure_days
        self._first_part: i64 = layout.part_place(0)
        self._before = layout.before
        self._first_pair: i64 = layout.part_place(layout.parts)
        self._spans_ms: list[int] = list(spans_ms)
        self._response_width: i64 = layout.response_width
        self._unit_width: i64 = layout.unit_width
        self._cohort_width: i64 = layout.cohort_width
        self.responses: dict[int, Record] = {}
        """Variant → record over all time."""
        self.buckets: list[dict[int, Record]] = [{} for _ in spans_ms]
        """Decay → cell of a variant and a bucket → record."""
        self.units: dict[int, Record] = {}
        """Variant → record over students."""
        self.cohorts: dict[int, Record] = {}
        """Cell of a variant and a day → record."""
        self._totals = zeros(layout.sums_width)
        """Of the student at hand, as is the next one: made once."""
        self._window = zeros(layout.sums_width)
        self._responses = Finder(self.responses, self._response_width)
        self._buckets = [Finder(each, self._response_width) for each in self.buckets]
        self._units = Finder(self.units, self._unit_width)
        self._cohorts = Finder(self.cohorts, self._cohort_width)

    def add_response(self, sign: i64, variant: i64, timestamp_ms: i64, rated: bool, values: tuple[int, ...]) -> None:  # noqa: FBT001
        """Add a response's metrics, -1 where they are undefined, or take them away."""
        self._add_metrics(self._responses.at(variant), sign, 0, rated, values)
        for place, span_ms in enumerate(self._spans_ms):
            fine: i64 = timestamp_ms * (BUCKETS_PER_CHUNK << OFFSET_BITS) // i64(span_ms)
            record = self._buckets[place].at(variant << CELL_BITS | fine >> OFFSET_BITS)
            self._add_metrics(record, sign, fine & ((1 << OFFSET_BITS) - 1), rated, values)

    def _add_metrics(self, record: Record, sign: i64, offset: i64, rated: bool, values: tuple[int, ...]) -> None:  # noqa: FBT001
        record[0] += sign
        record[1] += sign * offset
        if not rated:
            return
        record[2] += sign
        record[3] += sign * offset
        metric: i64 = 0
        while metric < self._metrics:
            value = i64(values[metric])
            at = 4 + 8 * metric
            if value < 0:
                record[at] += sign
                record[at + 1] += sign * offset
            elif value > 0:
                record[at + 2] += sign * (value & _LOW)
                record[at + 3] += sign * (value >> LIMB_BITS)
                moment = value * offset
                record[at + 4] += sign * (moment & _LOW)
                record[at + 5] += sign * (moment >> LIMB_BITS)
                scaled = float(value) * _UNIT
                _add_limbs(record, at + 6, sign, _rounded(scaled * scaled * self._squares[metric]))
            metric += 1

    def add_anonymous(self, sign: i64, variant: i64, timestamp_ms: i64, category: i64, sums: tuple[int, ...]) -> None:
        """Add a response that names no student: a unit of its own, or take it away."""
        unit = vec[i64](sums)
        units = self._units.at(variant)
        units[2] += sign
        cohort = self._cohorts.at(variant << CELL_BITS | timestamp_ms // DAY_MS)
        self._add_unit(units, cohort, sign, category, unit, unit)
        if self._novelty:
            self._add_part(cohort, sign, self._segments, unit)

    def add_student(self, sign: i64, student: Student) -> None:
        """Add a student to each variant with responses, to its cohort, and as a statistical unit, or take it away."""
        if student.first_ms == NEVER:
            return
        day: i64 = student.first_ms // DAY_MS
        cohort = self._cohorts.at(student.first_variant << CELL_BITS | day)
        cohort[0] += sign
        variant = student.only_variant()
        if variant < 0:
            variants = student.variants()
            for shown in variants:
                self._units.at(shown)[0] += sign
            if len(variants) > 1:
                # A crossover is left out of the comparison.
                self._units.at(student.first_variant)[1] += sign
        else:
            units = self._units.at(variant)
            units[0] += sign
            if variant != student.first_variant:
                # The response that the student was first shown does not stand.
                cohort = self._cohorts.at(variant << CELL_BITS | day)
            totals, window = self._totals, self._window
            student.totals(variant, totals)
            student.days(variant, 0, self._exposure_days, window)
            self._add_unit(units, cohort, sign, student.first_category, totals, window)
            if self._novelty:
                self._add_ages(cohort, sign, student, variant, totals)
            if self._before:
                student.totals(BEFORE, totals)
                self._add_pairs(cohort, sign, window, totals)

    def _add_unit(
        self, units: Record, cohort: Record, sign: i64, category: i64, totals: Record, window: Record
    ) -> None:
        """Add a unit to its variant's record and to its cohort's."""
        self._add_totals(units, sign, totals)
        if window[0] != 0:
            self._add_window(cohort, sign, window)
            if self._watched:
                self._add_watched(cohort, sign, window)
            if self._segments:
                self._add_part(cohort, sign, category - UNKNOWN, window)

    def _add_ages(self, record: Record, sign: i64, student: Student, variant: i64, totals: Record) -> None:
        """Add the student to each range of days since first exposure with responses."""
        rest, sums = vec[i64](totals), vec[i64](totals)
        for age, (first, end) in enumerate(_AGE_DAYS):
            student.days(variant, first, end, sums)
            self._add_part(record, sign, self._segments + age, sums)
            place: i64 = 0
            while place < len(rest):
                rest[place] -= sums[place]
                place += 1
        self._add_part(record, sign, self._segments + len(_AGE_DAYS), rest)

    def _add_pairs(self, record: Record, sign: i64, window: Record, before: Record) -> None:
        """Add [units, y, y², x, x², x·y] of the primary metric over rated, then over all responses."""
        metric = self._primary
        undefined = 2 + self._metrics + metric
        total, earlier = float(window[2 + metric]), float(before[2 + metric])
        at = self._first_pair
        self._add_pair(record, at, sign, total, window[1] - window[undefined], earlier, before[1] - before[undefined])
        self._add_pair(record, at + PAIR_WIDTH, sign, total, window[0], earlier, before[0])

    def _add_pair(
        self, record: Record, at: i64, sign: i64, total: float, count: i64, earlier: float, earlier_count: i64
    ) -> None:
        if count <= 0 or earlier_count <= 0:
            return
        squares = self._squares[self._primary]
        y, x = _rounded(max(total, 0.0) / float(count)), _rounded(max(earlier, 0.0) / float(earlier_count))
        record[at] += sign
        _add_mean(record, at + 1, sign, y, squares)
        _add_mean(record, at + 5, sign, x, squares)
        _add_limbs(record, at + 9, sign, _rounded((x * _UNIT) * (y * _UNIT) * squares))

    def _add_part(self, record: Record, sign: i64, part: i64, sums: Record) -> None:
        """Add [units with n_q, y, y², units, y', y'²] of the primary metric; see `Layout.part_place`."""
        metric = self._primary
        total, count = sums[2 + metric], sums[0]
        defined = sums[1] - sums[2 + self._metrics + metric]
        at = self._first_part + PART_WIDTH * part
        if defined > 0:
            record[at] += sign
        if count > 0:
            record[at + 5] += sign
        if total > 0:
            squares = self._squares[metric]
            _add_mean(record, at + 1, sign, float(total) / (float(defined) if defined > 0 else 1.0), squares)
            _add_mean(record, at + 6, sign, float(total) / (float(count) if count > 0 else 1.0), squares)

    def _add_totals(self, record: Record, sign: i64, totals: Record) -> None:
        """Add [units, N, n, units with n, N², n², n·N] + per metric [n_q>0, n_q, S, S², S·n_q, n_q², S·N]."""
        metrics = self._metrics
        count, rated = totals[0], totals[1]
        shown = float(count)
        record[3] += sign
        record[4] += sign * count
        _add_whole(record, 7, sign, count * count)
        if rated == 0:
            return
        record[5] += sign * rated
        record[6] += sign
        _add_whole(record, 9, sign, rated * rated)
        _add_whole(record, 11, sign, rated * count)
        metric: i64 = 0
        while metric < metrics:
            at = 13 + 12 * metric
            total = totals[2 + metric]
            defined = rated - totals[2 + metrics + metric]
            value, number = float(total) * _UNIT, float(defined)
            if defined > 0:
                record[at] += sign
                record[at + 1] += sign * defined
                _add_whole(record, at + 8, sign, defined * defined)
            if total > 0:
                _add_whole(record, at + 2, sign, total)
                _add_limbs(record, at + 4, sign, _rounded(value * value * self._squares[metric]))
                _add_limbs(record, at + 6, sign, _rounded(value * number * _SCALE))
                _add_limbs(record, at + 10, sign, _rounded(value * shown * _SCALE))
            metric += 1

    def _add_window(self, record: Record, sign: i64, window: Record) -> None:
        """Add [units, units with n, n/N, (n/N)²] + per metric [n_q>0, y, y², y', y'²], y = S/n_q and y' = S/N."""
        metrics = self._metrics
        count, rated = window[0], window[1]
        if count > 0:
            record[1] += sign
        if rated <= 0:
            return
        record[2] += sign
        shown = float(count) if count > 0 else 1.0
        share = _rounded(float(rated) / shown * _SCALE)
        _add_limbs(record, 3, sign, share)
        _add_limbs(record, 5, sign, _rounded((share * _UNIT) * (share * _UNIT) * _SCALE))
        metric: i64 = 0
        while metric < metrics:
            at = 7 + 9 * metric
            total, defined = float(window[2 + metric]), rated - window[2 + metrics + metric]
            if defined > 0:
                record[at] += sign
            if total > 0:
                squares = self._squares[metric]
                _add_mean(record, at + 1, sign, total / (float(defined) if defined > 0 else 1.0), squares)
                _add_mean(record, at + 5, sign, total / shown, squares)
            metric += 1

    def _add_watched(self, record: Record, sign: i64, window: Record) -> None:
        """Add [units that have it, y, y²] of all that is watched; y is a mean over the responses that have it."""
        watched: i64 = len(self._watched)
        first = 2 + 2 * self._metrics
        at = 7 + 9 * self._metrics
        place: i64 = 0
        while place < watched:
            total, known = window[first + place], window[0] - window[first + watched + place]
            if known > 0:
                record[at] += sign
                if total > 0:
                    _add_mean(record, at + 1, sign, float(total) / float(known) * _SCALE, self._watched[place])
            at += 5
            place += 1


def _add_mean(record: Record, at: i64, sign: i64, mean: float, squares: float) -> None:
    """Add a student's mean, in fixed point, and its square at this scale."""
    whole = _rounded(mean)
    scaled = whole * _UNIT
    _add_limbs(record, at, sign, whole)
    _add_limbs(record, at + 2, sign, _rounded(scaled * scaled * squares))


def _rounded(number: float) -> float:
    """Round a number ≥ 0 half to even."""
    return (number + _WHOLE) - _WHOLE if number < _WHOLE else number


def _add_whole(record: Record, at: i64, sign: i64, number: i64) -> None:
    """Add an integer in its two limbs; see `monitor.aggregates.limbs`."""
    record[at] += sign * (number & _LOW)
    record[at + 1] += sign * (number >> LIMB_BITS)


def _add_limbs(record: Record, at: i64, sign: i64, number: float) -> None:
    """Add a whole number ≥ 0 in its two limbs, at most 2⁷⁰ of it.

    Nothing but a million points of one student's comes near: an id that many share. Sums of more would not fit the
    commit script's float64.
    """
    number = min(_MOST, number)
    high = i64(number * _HIGH)
    record[at] += sign * i64(number - float(high) * _CARRY)
    record[at + 1] += sign * high
