"""Interim analyses and student splits recomputed for past times."""

from __future__ import annotations

from itertools import pairwise

import pytest

from monitor.analysis.interim_history import (
    MAX_INTERIM_ANALYSES,
    compute_interim_analyses,
    compute_student_splits,
    count_students_until,
)
from monitor.clock import DAY_MS
from tests.support.student_groups import (
    FIRST_DAY,
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    StudentGroup,
    make_students,
    sum_students,
    time_after_days,
)
from tests.support.units import analyze


def _students_until(groups: list[StudentGroup], last_day: int) -> list[StudentGroup]:
    return [group for group in groups if group.first_day <= last_day]


@pytest.mark.parametrize("step", [0, 3, 9])
def test_an_interim_analysis_equals_an_analysis_of_the_students_until_then(step: int) -> None:
    """Closed estimates, bounds and guardrails are the same as with only the students of that time in the store."""
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    analyses = compute_interim_analyses(SENSITIVE_EXPERIMENT, students, time_after_days(14.5))
    assert [analysis.as_of_ms for analysis in analyses] == [
        *(time_after_days(day) for day in range(4, 14)),
        time_after_days(14.5),
    ]
    interim = analyses[step]
    students_until_then = _students_until(STUDENTS_WITH_EFFECT, (interim.as_of_ms - 1) // DAY_MS)
    verdict = analyze(
        SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, students_until_then), interim.as_of_ms
    ).verdicts["treatment"]
    assert interim.verdicts["treatment"].primary == verdict.primary
    assert interim.verdicts["treatment"].guardrails == verdict.guardrails
    assert verdict.primary.control.units == 40 * (step + 1)


def test_the_last_interim_analysis_is_the_current_one() -> None:
    """The same records at the same time give the same verdicts."""
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    interim_analyses = compute_interim_analyses(SENSITIVE_EXPERIMENT, students, time_after_days(14))
    assert interim_analyses[-1].verdicts == analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14)).verdicts


def test_the_student_split_of_a_day_is_as_of_its_end() -> None:
    """Students of later days are not counted; the last day may be unfinished."""
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    splits = compute_student_splits(SENSITIVE_EXPERIMENT, students, time_after_days(9.5))
    assert [split.as_of_ms for split in splits] == [
        *(time_after_days(day) - 1 for day in range(1, 10)),
        time_after_days(9.5),
    ]
    for number, split in enumerate(splits, 1):
        assert split.students == {"control": 40 * number, "treatment": 40 * number}
        students_until_then = _students_until(STUDENTS_WITH_EFFECT, FIRST_DAY + number - 1)
        analysis = analyze(
            SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, students_until_then), split.as_of_ms
        )
        assert split.sample_ratio == analysis.sample_ratio


def test_days_after_the_given_time_are_ignored() -> None:
    """Later days add neither students nor interim analyses nor splits."""
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    assert count_students_until(students, SENSITIVE_EXPERIMENT.calendar, time_after_days(2) - 1) == {
        "control": 80,
        "treatment": 80,
    }
    assert len(compute_interim_analyses(SENSITIVE_EXPERIMENT, students, time_after_days(3))) == 1
    assert compute_student_splits(SENSITIVE_EXPERIMENT, students, time_after_days(-1)) == ()


def test_the_history_of_several_years_is_thinned_out_evenly() -> None:
    """The number of steps is limited, and the last day is included."""
    days = 2 * MAX_INTERIM_ANALYSES + 7
    groups = [*make_students("control", 1.5, days, days=days), *make_students("treatment", 2.0, days, days=days)]
    splits = compute_student_splits(
        SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, groups), time_after_days(days)
    )
    assert len(splits) <= MAX_INTERIM_ANALYSES
    assert {later.as_of_ms - earlier.as_of_ms for earlier, later in pairwise(splits)} == {3 * DAY_MS}
    assert splits[-1].students == {"control": days, "treatment": days}


def test_histories_begin_with_the_first_entry_day_and_not_with_a_stray_student() -> None:
    """One student of 1970 adds neither an interim analysis nor a split over decades."""
    stray_student = make_students("control", 1.0, 1, days=1, first_day=0)
    students = sum_students(SENSITIVE_EXPERIMENT, [*STUDENTS_WITH_EFFECT, *stray_student])
    splits = compute_student_splits(SENSITIVE_EXPERIMENT, students, time_after_days(9.5))
    assert splits[0].as_of_ms == time_after_days(1) - 1
    assert compute_interim_analyses(SENSITIVE_EXPERIMENT, students, time_after_days(9.5))[0].as_of_ms == (
        time_after_days(4)
    )
