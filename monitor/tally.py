"""What a batch adds to the stored records of one experiment: entities come in, sums of integers come out.

What was added is taken away by adding it once more with the sign −1, or replaced where it has changed;
`monitor.aggregates.Layout` names the integers.
Compiled (deploy/native.py): every addition is one of 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.aggregates import AGES, BUCKETS_PER_CHUNK, OFFSET_BITS, PAIR_WIDTH, PART_WIDTH, Layout
from monitor.attribution import BEFORE, DAY_MS, UNKNOWN
from monitor.cells import (
    CELL_BITS,
    UNIT,
    Beside,
    Finder,
    Record,
    add_limbs,
    add_mean,
    add_whole,
    mean,
    replace_limbs,
    replace_mean,
    replace_whole,
    rounded,
    zeros,
)
from monitor.ranking import SCALE_BITS
from monitor.students import NEVER, Only, Student

_SCALE: Final = 2.0**SCALE_BITS
_AGE_DAYS: Final = [(first, end) for (first, _), (end, _) in pairwise(AGES)]


@final
class Tally:
    """The sums of one experiment."""

    __slots__ = (
        "_before", "_cohort_width", "_cohorts", "_exposure_days", "_first_pair", "_first_part", "_metrics",
        "_noted", "_nothing", "_novelty", "_only", "_primary", "_response_width", "_responses", "_segments",
        "_spans_ms", "_squares", "_unit_width", "_units", "_was", "_watched", "buckets", "cohorts", "responses",
        "units",
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
        self.buckets = [Beside(self._response_width) for _ in spans_ms]
        """Decay → records by the cell of a variant and a bucket."""
        self.units: dict[int, Record] = {}
        """Variant → record over students."""
        self.cohorts: dict[int, Record] = {}
        """Cell of a variant and a day → record."""
        self._only = Only(layout.sums_width)
        """The student at hand, and below the same one before it changes: made once."""
        self._was = Only(layout.sums_width)
        self._nothing = zeros(layout.sums_width)
        self._noted = False
        """Whether the student at hand has not been taken away yet: see `note`."""
        self._responses = Finder(self.responses, self._response_width)
        self._units = Finder(self.units, self._unit_width)
        self._cohorts = Finder(self.cohorts, self._cohort_width)

    def add_response(self, sign: i64, variant: i64, timestamp_ms: i64, rated: bool, values: tuple[int, ...]) -> None:  # noqa: FBT001
        """Add a response's metrics, -1 where they are undefined, or take them away."""
        self._add_metrics(self._responses.at(variant), 0, sign, 0, rated, values)
        for place, span_ms in enumerate(self._spans_ms):
            fine: i64 = timestamp_ms * (BUCKETS_PER_CHUNK << OFFSET_BITS) // i64(span_ms)
            buckets = self.buckets[place]
            begin = buckets.at(variant << CELL_BITS | fine >> OFFSET_BITS)
            self._add_metrics(buckets.numbers, begin, sign, fine & ((1 << OFFSET_BITS) - 1), rated, values)

    def _add_metrics(
        self,
        record: Record,
        begin: i64,
        sign: i64,
        offset: i64,
        rated: bool,  # noqa: FBT001
        values: tuple[int, ...],
    ) -> None:
        record[begin] += sign
        record[begin + 1] += sign * offset
        if not rated:
            return
        record[begin + 2] += sign
        record[begin + 3] += sign * offset
        metric: i64 = 0
        while metric < self._metrics:
            value = i64(values[metric])
            at = begin + 4 + 8 * metric
            if value < 0:
                record[at] += sign
                record[at + 1] += sign * offset
            elif value > 0:
                add_whole(record, at + 2, sign, value)
                add_whole(record, at + 4, sign, value * offset)
                scaled = float(value) * UNIT
                add_limbs(record, at + 6, sign, rounded(scaled * scaled * self._squares[metric]))
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
        variant = student.only_variant()
        if variant < 0:
            self._cohorts.at(student.first_variant << CELL_BITS | student.first_ms // DAY_MS)[0] += sign
            variants = student.variants()
            for shown in variants:
                self._units.at(shown)[0] += sign
            if len(variants) > 1:
                # A crossover is left out of the comparison.
                self._units.at(student.first_variant)[1] += sign
            return
        only = self._only
        only.look(student, variant, self._exposure_days)
        cohort = self._add_only(sign, only)
        if self._novelty:
            self._add_ages(cohort, sign, student, variant, only.totals)
        if self._before:
            student.totals(BEFORE, only.totals)
            self._add_pairs(cohort, sign, only.window, only.totals)

    def note(self, student: Student) -> None:
        """Remember what a student counts for, or take it away, before a change; `replace` is next, of the same one."""
        variant: i64 = -1
        if student.first_ms != NEVER and not (self._novelty or self._before):
            variant = student.only_variant()
        self._noted = variant >= 0
        if self._noted:
            self._was.look(student, variant, self._exposure_days)
        else:
            self.add_student(-1, student)

    def replace(self, student: Student) -> None:
        """Add the student who was noted as it is now, and leave alone what has stayed as it was."""
        was, now = self._was, self._only
        if not self._noted:
            self.add_student(1, student)
        elif student.only_variant() != was.variant or not was.begins_as(student):
            self._add_only(-1, was)
            self.add_student(1, student)
        else:
            now.look(student, was.variant, self._exposure_days)
            units = self._units.at(now.variant)
            self._replace_totals(units, was.totals, now.totals)
            if now.differs_in_window(was):
                cohort = self._cohorts.at(now.variant << CELL_BITS | now.first_ms // DAY_MS)
                self._replace_in_cohort(cohort, now.first_category, was.window, now.window)

    def _add_only(self, sign: i64, only: Only) -> Record:
        """Add a student of one variant, and return the record of the cohort."""
        day = only.first_ms // DAY_MS
        cohort = self._cohorts.at(only.first_variant << CELL_BITS | day)
        cohort[0] += sign
        units = self._units.at(only.variant)
        units[0] += sign
        if only.variant != only.first_variant:
            # The response that the student was first shown does not stand.
            cohort = self._cohorts.at(only.variant << CELL_BITS | day)
        self._add_unit(units, cohort, sign, only.first_category, only.totals, only.window)
        return cohort

    def _add_unit(
        self, units: Record, cohort: Record, sign: i64, category: i64, totals: Record, window: Record
    ) -> None:
        """Add a unit to its variant's record and to its cohort's."""
        units[3] += sign
        if sign > 0:
            self._replace_totals(units, self._nothing, totals)
            self._replace_in_cohort(cohort, category, self._nothing, window)
        else:
            self._replace_totals(units, totals, self._nothing)
            self._replace_in_cohort(cohort, category, window, self._nothing)

    def _replace_in_cohort(self, cohort: Record, category: i64, was: Record, now: Record) -> None:
        """Replace a unit's sums over the days that are compared; without a response it is in none of them."""
        old = was if was[0] != 0 else self._nothing
        new = now if now[0] != 0 else self._nothing
        self._replace_window(cohort, old, new)
        if self._watched:
            self._replace_watched(cohort, old, new)
        if self._segments:
            self._replace_part(cohort, category - UNKNOWN, old, new)

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
        y, x = rounded(max(total, 0.0) / float(count)), rounded(max(earlier, 0.0) / float(earlier_count))
        record[at] += sign
        add_mean(record, at + 1, sign, y, squares)
        add_mean(record, at + 5, sign, x, squares)
        add_limbs(record, at + 9, sign, rounded((x * UNIT) * (y * UNIT) * squares))

    def _add_part(self, record: Record, sign: i64, part: i64, sums: Record) -> None:
        if sign > 0:
            self._replace_part(record, part, self._nothing, sums)
        else:
            self._replace_part(record, part, sums, self._nothing)

    def _replace_part(self, record: Record, part: i64, was: Record, now: Record) -> None:
        """Replace [units with n_q, y, y², units, y', y'²] of the primary metric; see `Layout.part_place`."""
        metric = self._primary
        undefined = 2 + self._metrics + metric
        old, new = was[2 + metric], now[2 + metric]
        known, defined = was[1] - was[undefined], now[1] - now[undefined]
        at = self._first_part + PART_WIDTH * part
        record[at] += i64(defined > 0) - i64(known > 0)
        record[at + 5] += i64(now[0] > 0) - i64(was[0] > 0)
        if old > 0 or new > 0:
            squares = self._squares[metric]
            replace_mean(record, at + 1, mean(old, known), mean(new, defined), squares)
            replace_mean(record, at + 6, mean(old, was[0]), mean(new, now[0]), squares)

    def _replace_totals(self, record: Record, was: Record, now: Record) -> None:
        """Replace [N, n, units with n, N², n², n·N] + per metric [n_q>0, n_q, S, S², S·n_q, n_q², S·N] of a unit."""
        metrics = self._metrics
        count, rated, counted, graded = now[0], now[1], was[0], was[1]
        record[4] += count - counted
        replace_whole(record, 7, counted * counted, count * count)
        if rated == 0 and graded == 0:
            return
        record[5] += rated - graded
        record[6] += i64(rated != 0) - i64(graded != 0)
        replace_whole(record, 9, graded * graded, rated * rated)
        replace_whole(record, 11, graded * counted, rated * count)
        shown, seen = float(count), float(counted)
        metric: i64 = 0
        while metric < metrics:
            at = 13 + 12 * metric
            new, defined = max(now[2 + metric], 0), rated - now[2 + metrics + metric]
            old, known = max(was[2 + metric], 0), graded - was[2 + metrics + metric]
            # Only while shards are brought in line can there be more of a unit than rated responses.
            if rated == 0:
                new = defined = 0
            if graded == 0:
                old = known = 0
            value, before = float(new) * UNIT, float(old) * UNIT
            if defined != known or new != old:
                number, earlier = max(defined, 0), max(known, 0)
                squares = self._squares[metric]
                record[at] += i64(number > 0) - i64(earlier > 0)
                record[at + 1] += number - earlier
                replace_whole(record, at + 8, earlier * earlier, number * number)
                replace_whole(record, at + 2, old, new)
                replace_limbs(record, at + 4, before * before * squares, value * value * squares)
                replace_limbs(record, at + 6, before * float(known) * _SCALE, value * float(defined) * _SCALE)
            if new != 0 or old != 0:
                replace_limbs(record, at + 10, before * seen * _SCALE, value * shown * _SCALE)
            metric += 1

    def _replace_window(self, record: Record, was: Record, now: Record) -> None:
        """Replace [units, units with n, n/N, (n/N)²] + per metric [n_q>0, y, y², y', y'²], y = S/n_q and y' = S/N."""
        count, counted = now[0], was[0]
        # Only while shards are brought in line can there be fewer of a unit than none.
        rated, graded = max(now[1], 0), max(was[1], 0)
        record[1] += i64(count > 0) - i64(counted > 0)
        if rated == 0 and graded == 0:
            return
        record[2] += i64(rated > 0) - i64(graded > 0)
        replace_mean(record, 3, mean(graded, counted) * _SCALE, mean(rated, count) * _SCALE, _SCALE)
        metrics = self._metrics
        metric: i64 = 0
        while metric < metrics:
            at = 7 + 9 * metric
            undefined = 2 + metrics + metric
            new, defined = now[2 + metric], rated - now[undefined]
            old, known = was[2 + metric], graded - was[undefined]
            if rated == 0:
                new = defined = 0
            if graded == 0:
                old = known = 0
            record[at] += i64(defined > 0) - i64(known > 0)
            if new > 0 or old > 0:
                squares = self._squares[metric]
                replace_mean(record, at + 1, mean(old, known), mean(new, defined), squares)
                replace_mean(record, at + 5, mean(old, counted), mean(new, count), squares)
            metric += 1

    def _replace_watched(self, record: Record, was: Record, now: Record) -> None:
        """Replace [units that have it, y, y²] of all that is watched; y is a mean over the responses that have it."""
        watched: i64 = len(self._watched)
        first = 2 + 2 * self._metrics
        at = 7 + 9 * self._metrics
        place: i64 = 0
        while place < watched:
            missing = first + watched + place
            known, counted = now[0] - now[missing], was[0] - was[missing]
            new, old = i64(0), i64(0)
            if known > 0:
                new = now[first + place]
            if counted > 0:
                old = was[first + place]
            record[at] += i64(known > 0) - i64(counted > 0)
            replace_mean(record, at + 1, mean(old, counted) * _SCALE, mean(new, known) * _SCALE, self._watched[place])
            at += 5
            place += 1
