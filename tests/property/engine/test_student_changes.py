"""What a student counts for is replaced as if it were taken away and added again, whatever has changed in between."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st

from monitor.clock import DAY_MS
from monitor.engine.accumulator import Accumulator, CohortSums, UnitSums
from monitor.engine.response_row import PRE_PERIOD
from monitor.engine.student import Student
from monitor.metrics.record_layout import Layout

WIDTH = 10
KEPT_DAYS = 9
Change = tuple[int, int, int, tuple[int, ...]]

_IN_SEGMENTS = Layout(2, (30, 28), (30, 12), primary=1, segments=3, exposure_days=2)
_LAYOUTS = st.sampled_from(
    [
        *[Layout(2, (30, 28), (30, 12), exposure_days=2)] * 2,
        *[_IN_SEGMENTS] * 2,
        Layout(2, (30, 28), (30, 12), novelty=True, exposure_days=2),
        Layout(2, (30, 28), (30, 12), exposure_days=2, before=True),
    ]
)
_FRACTION = 1 << 30
_START = 20_000 * DAY_MS + 5
_METRIC = st.sampled_from([(0, 0), (_FRACTION, 0), (3 * _FRACTION // 7, 0), (9 * _FRACTION, 0), (0, 1)])
_GUARDRAIL = st.sampled_from([(0, 0), (1, 0), (900, 0), (0, 1)])
"""(value, 1 if it is undefined)"""


def _sums(rated: bool, metrics: list[tuple[int, int]], guardrails: list[tuple[int, int]]) -> tuple[int, ...]:  # noqa: FBT001
    metrics = metrics if rated else [(0, 0), (0, 0)]
    return (
        1,
        int(rated),
        *[number for pairs in (metrics, guardrails) for column in zip(*pairs, strict=True) for number in column],
    )


_CHANGE = st.tuples(
    st.sampled_from([0, 0, 0, 1, 2]).map(lambda day: _START + day * DAY_MS),
    st.sampled_from([0, 0, 0, 0, 0, 1, PRE_PERIOD]),
    st.integers(-1, 1),
    st.just(())
    | st.builds(
        _sums,
        st.booleans(),
        st.lists(_METRIC, min_size=2, max_size=2),
        st.lists(_GUARDRAIL, min_size=2, max_size=2),
    ),
)
"""The sums vector of a response; () for one that was shown and does not count."""


def _apply(student: Student, changes: list[Change]) -> None:
    for at_ms, variant, category, difference in changes:
        if difference:
            student.add(at_ms, variant, category, difference, KEPT_DAYS)
        elif variant != PRE_PERIOD:
            student.expose(at_ms, variant, category, KEPT_DAYS)


def _reversed(changes: list[Change]) -> list[Change]:
    return [(*each[:3], tuple([-number for number in each[3]])) for each in changes if each[3]]


def _student(changes: list[Change]) -> Student:
    student = Student(WIDTH)
    _apply(student, changes)
    return student


def _records(tally: Accumulator) -> list[dict[int, list[int]]]:
    """Return what would be written: nothing where nothing changes."""

    def changed(records: Mapping[int, UnitSums | CohortSums]) -> dict[int, list[int]]:
        return {cell: integers for cell, record in records.items() if any(integers := record.integers())}

    return [changed(tally.units), changed(tally.cohorts)]


@settings(max_examples=600)
@example(_IN_SEGMENTS, [(_START, 0, 1, (1, 1, _FRACTION, _FRACTION, 0, 0, 1, 900, 0, 0))], [(_START, 0, 0, ())], 0)
@given(_LAYOUTS, st.lists(_CHANGE, min_size=1, max_size=5), st.lists(_CHANGE, max_size=3), st.sampled_from([0, 5]))
def test_replacing_is_taking_away_and_adding(
    layout: Layout, first: list[Change], then: list[Change], reversed_: int
) -> None:
    """The same integers, also for those who become another variant's, or nobody's."""
    then = [*then, *_reversed(first[:reversed_])]
    apart, at_once = Accumulator(layout, []), Accumulator(layout, [])
    student = _student(first)
    apart.add_student(-1, student)
    _apply(student, then)
    apart.add_student(1, student)
    student = _student(first)
    old = at_once.state_of(student)
    _apply(student, then)
    at_once.replace_student(old, at_once.state_of(student))
    assert _records(at_once) == _records(apart)


@given(_LAYOUTS, st.lists(_CHANGE, max_size=5))
def test_what_is_added_can_be_taken_away(layout: Layout, changes: list[Change]) -> None:
    """Nothing is left behind."""
    tally = Accumulator(layout, [])
    student = _student(changes)
    tally.add_student(1, student)
    tally.add_student(-1, student)
    assert _records(tally) == [{}, {}]
