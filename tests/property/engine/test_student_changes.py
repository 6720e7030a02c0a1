"""Property tests of `MetricAccumulator.replace_student`: a replacement equals a subtraction and an addition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitor.clock import DAY_MS
from monitor.engine.accumulator import CohortSums, MetricAccumulator, UnitSums
from monitor.engine.response_row import PRE_PERIOD_VARIANT
from monitor.engine.student import Student
from monitor.metrics.record_layout import RecordLayout

WIDTH = 10
TRACKED_DAYS = 9
Change = tuple[int, int, int, tuple[int, ...]]

_PLAIN = RecordLayout(4, (30, 28, 30, 12), (False, False, True, True), exposure_days=2)
_IN_SEGMENTS = replace(_PLAIN, primary_index=1, segment_count=3)
_OF_SCORES = replace(_PLAIN, least_values=(0, 0, 0, 1), primary_index=3, segment_count=3, has_pre_period=True)
_LAYOUTS = st.sampled_from(
    [
        *[_PLAIN] * 2,
        *[_IN_SEGMENTS] * 2,
        _OF_SCORES,
        replace(_PLAIN, has_exposure_ages=True),
        replace(_PLAIN, has_pre_period=True),
    ]
)
_FRACTION = 1 << 30
_START = 20_000 * DAY_MS + 5
_RANKING = st.sampled_from([(0, 0), (_FRACTION, 0), (3 * _FRACTION // 7, 0), (9 * _FRACTION, 0), (0, 1)])
_ANSWER = st.sampled_from([(1, 0), (900, 0), (_FRACTION, 0), (0, 1)])
"""(value, 1 if it is undefined)"""


def _sums(rated: bool, ranking: list[tuple[int, int]], answers: list[tuple[int, int]]) -> tuple[int, ...]:  # noqa: FBT001
    metrics = [*(ranking if rated else [(0, 0), (0, 0)]), *answers]
    return (1, int(rated), *[number for column in zip(*metrics, strict=True) for number in column])


_CHANGE = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2]).map(lambda day: _START + day * DAY_MS),
    st.sampled_from([0, 0, 0, 0, 0, 1, PRE_PERIOD_VARIANT]),
    st.integers(-1, 1),
    st.just(())
    | st.builds(
        _sums,
        st.booleans(),
        st.lists(_RANKING, min_size=2, max_size=2),
        st.lists(_ANSWER, min_size=2, max_size=2),
    ),
)
"""The sums vector of a response; () for one that was shown and does not count."""


def _apply(student: Student, changes: list[Change]) -> None:
    for timestamp_ms, variant, category, difference in changes:
        if difference:
            student.add_difference(timestamp_ms, variant, category, difference, TRACKED_DAYS)
        elif variant != PRE_PERIOD_VARIANT:
            student.record_exposure(timestamp_ms, variant, category, TRACKED_DAYS)


def _inverse(changes: list[Change]) -> list[Change]:
    return [(*change[:3], tuple([-number for number in change[3]])) for change in changes if change[3]]


def _student(changes: list[Change]) -> Student:
    student = Student(WIDTH)
    _apply(student, changes)
    return student


def _records(accumulator: MetricAccumulator) -> list[dict[int, list[int]]]:
    """Return the records that a commit would write: records with a change other than 0."""

    def changed(records: Mapping[int, UnitSums | CohortSums]) -> dict[int, list[int]]:
        return {cell: integers for cell, record in records.items() if any(integers := record.integers())}

    return [changed(accumulator.unit_sums), changed(accumulator.cohort_sums)]


@settings(max_examples=600)
@example(_IN_SEGMENTS, [(_START, 0, 1, (1, 1, _FRACTION, _FRACTION, 0, 0, 1, 900, 0, 0))], [(_START, 0, 0, ())], 0)
@given(_LAYOUTS, st.lists(_CHANGE, min_size=1, max_size=5), st.lists(_CHANGE, max_size=3), st.sampled_from([0, 5]))
def test_replacing_a_student_equals_subtracting_and_adding_the_student(
    layout: RecordLayout, first_changes: list[Change], later_changes: list[Change], reversed_count: int
) -> None:
    """Including students with a changed variant, new crossovers, and students who lose all responses."""
    later_changes = [*later_changes, *_inverse(first_changes[:reversed_count])]
    added, replaced = MetricAccumulator(layout, []), MetricAccumulator(layout, [])
    student = _student(first_changes)
    added.add_student(-1, student)
    _apply(student, later_changes)
    added.add_student(1, student)
    student = _student(first_changes)
    old = replaced.capture_state(student)
    _apply(student, later_changes)
    replaced.replace_student(old, replaced.capture_state(student))
    assert _records(replaced) == _records(added)


@given(_LAYOUTS, st.lists(_CHANGE, max_size=5))
def test_subtracting_an_added_student_leaves_no_change(layout: RecordLayout, changes: list[Change]) -> None:
    """The accumulator then has no record with a change."""
    accumulator = MetricAccumulator(layout, [])
    student = _student(changes)
    accumulator.add_student(1, student)
    accumulator.add_student(-1, student)
    assert _records(accumulator) == [{}, {}]
