"""The days of an experiment in a time zone: closing, changes of shares and sentences at local midnight."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from monitor.analysis import Analysis, compute_student_splits, find_analysis_time
from monitor.analysis.analysis_plan import list_allocation_phases
from monitor.clock import HOUR_MS
from monitor.config import AllocationSettings, DecisionSettings, ExperimentChange, ExperimentSettings
from monitor.stats import ExperimentHistory, parse_evidence
from tests.support.oracle import local_day, local_time_ms
from tests.support.streams import EXPERIMENT
from tests.support.student_groups import SENSITIVE_EXPERIMENT, StudentGroup, make_students, sum_students
from tests.support.units import analyze

BERLIN = "Europe/Berlin"
SUMMER_TIME_BEGINS = local_day("UTC", 1_774_742_400_000)
"""2026-03-29, which has 23 hours in Berlin."""
FIRST_DAY = SUMMER_TIME_BEGINS - 2
EQUAL_SHARES = {"control": 0.5, "treatment": 0.5}


def _experiment(zone: str = BERLIN, base: ExperimentSettings = SENSITIVE_EXPERIMENT) -> ExperimentSettings:
    return replace(base, day_zone=zone)


def _students(first_day: int = FIRST_DAY, days: int = 10) -> list[StudentGroup]:
    return [
        student
        for seed, variant in enumerate(("control", "treatment"))
        for student in make_students(variant, 1.5, 40 * days, days=days, seed=seed, first_day=first_day)
    ]


def _closed_students(experiment: ExperimentSettings, as_of_ms: int) -> int:
    analysis = analyze(experiment, sum_students(experiment, _students()), as_of_ms)
    return analysis.comparisons["treatment"]["dcg@5"]["closed"].control.units


@pytest.mark.parametrize("zone", ["UTC", BERLIN, "America/New_York", "Asia/Kolkata", "Pacific/Kiritimati"])
def test_a_cohort_closes_a_feedback_window_after_its_last_local_day(zone: str) -> None:
    """Three dates from the first exposure on, and 24 hours; a millisecond earlier the cohort is open."""
    experiment = _experiment(zone)
    for day in range(FIRST_DAY, FIRST_DAY + 4):
        closing_ms = local_time_ms(zone, day + 3) + experiment.feedback_window_ms
        closed_cohorts = day - FIRST_DAY + 1
        assert _closed_students(experiment, closing_ms) == 40 * closed_cohorts
        assert _closed_students(experiment, closing_ms - 1) == 40 * (closed_cohorts - 1)


def test_entry_days_are_counted_by_local_date() -> None:
    """The day on which summer time begins is one of them."""
    experiment = _experiment(base=replace(SENSITIVE_EXPERIMENT, starts_at_ms=local_time_ms(BERLIN, FIRST_DAY + 1)))
    students = sum_students(experiment, _students())
    for days in range(1, 5):
        closing_ms = local_time_ms(BERLIN, FIRST_DAY + days + 3) + experiment.feedback_window_ms
        counts = [
            analyze(experiment, students, time_ms).verdicts["treatment"].evidence.closed_days
            for time_ms in (closing_ms - 1, closing_ms)
        ]
        assert counts == [days - 1, days]


@pytest.mark.parametrize(
    ("zone", "hour", "excluded_days"),
    [(BERLIN, 0, []), (BERLIN, 2, [0]), ("UTC", 0, [-1]), ("America/New_York", 0, [-1])],
)
def test_a_change_of_shares_at_local_midnight_leaves_no_day_out(zone: str, hour: int, excluded_days: list[int]) -> None:
    """The change is at midnight, or two hours later, in Berlin; days are those of the experiment's zone."""
    change_ms = local_time_ms(BERLIN, SUMMER_TIME_BEGINS) + hour * HOUR_MS
    decision = DecisionSettings(allocations=(AllocationSettings(change_ms, EQUAL_SHARES),))
    experiment = _experiment(zone, replace(EXPERIMENT, variants={"control": 0.9, "treatment": 0.1}, decision=decision))
    phases = list_allocation_phases(experiment)
    days = range(-5, 5)
    assert [day for day in days if not any(SUMMER_TIME_BEGINS + day in phase for phase in phases)] == excluded_days
    for phase, shares in zip(phases, (experiment.variants, EQUAL_SHARES), strict=True):
        assert phase.intended_shares == shares


def test_a_sample_ratio_is_tested_within_the_shares_of_each_local_day() -> None:
    """After a ramp-up at local midnight, no day is left out and all students have their intended shares."""
    change_ms = local_time_ms(BERLIN, SUMMER_TIME_BEGINS)
    decision = DecisionSettings(allocations=(AllocationSettings(change_ms, EQUAL_SHARES),))
    experiment = _experiment(
        base=replace(EXPERIMENT, variants={"control": 0.9, "treatment": 0.1}, decision=decision, categories=())
    )
    groups = [
        *make_students("control", 1.5, 1800, days=2, first_day=FIRST_DAY),
        *make_students("treatment", 1.5, 200, days=2, first_day=FIRST_DAY),
        *make_students("control", 1.5, 2500, days=5, first_day=SUMMER_TIME_BEGINS),
        *make_students("treatment", 1.5, 2500, days=5, first_day=SUMMER_TIME_BEGINS),
    ]
    as_of_ms = local_time_ms(BERLIN, SUMMER_TIME_BEGINS + 5)
    for zone, excluded_days in ((BERLIN, ()), ("UTC", (SUMMER_TIME_BEGINS - 1,))):
        analysis = _analyze_in(replace(experiment, day_zone=zone), groups, as_of_ms)
        assert analysis.excluded_days == excluded_days
    analysis = _analyze_in(experiment, groups, as_of_ms)
    assert not analysis.sample_ratio.mismatch
    assert [phase.students for phase in analysis.verdicts["treatment"].evidence.phases] == [
        {"control": 1800, "treatment": 200},
        {"control": 2500, "treatment": 2500},
    ]


def _analyze_in(experiment: ExperimentSettings, groups: list[StudentGroup], as_of_ms: int) -> Analysis:
    return analyze(experiment, sum_students(experiment, groups), as_of_ms)


def test_the_clock_closes_all_windows_of_an_ended_experiment_by_local_days() -> None:
    """The last cohort of an experiment that ends at local midnight closes three local days after its own midnight."""
    ends_at_ms = local_time_ms(BERLIN, SUMMER_TIME_BEGINS)
    experiment = _experiment(base=replace(SENSITIVE_EXPERIMENT, ends_at_ms=ends_at_ms))
    all_closed_ms = local_time_ms(BERLIN, SUMMER_TIME_BEGINS + 2) + experiment.feedback_window_ms
    assert find_analysis_time(experiment, 0, all_closed_ms + HOUR_MS) == all_closed_ms


def test_a_split_of_students_is_as_of_the_end_of_a_local_day() -> None:
    """Also of the day with 23 hours."""
    experiment = _experiment()
    as_of_ms = local_time_ms(BERLIN, FIRST_DAY + 4, 12)
    splits = compute_student_splits(experiment, sum_students(experiment, _students()), as_of_ms)
    assert [split.as_of_ms for split in splits] == [
        *(local_time_ms(BERLIN, FIRST_DAY + day) - 1 for day in range(1, 5)),
        as_of_ms,
    ]


def test_texts_with_dates_name_the_zone() -> None:
    """Dates in UTC need no name; JSON always has the name."""
    groups = [*_students(), *make_students("control", 1.5, 400, days=10, first_day=FIRST_DAY)]
    as_of_ms = local_time_ms(BERLIN, FIRST_DAY + 20)
    change = ExperimentChange(local_time_ms(BERLIN, FIRST_DAY + 5, 0, 30), "criteria", "alpha: 0.05 → 0.01")
    for zone, note, day in ((BERLIN, " (Europe/Berlin)", "2026-04-01"), ("UTC", "", "2026-03-31")):
        experiment = _experiment(zone)
        students = sum_students(experiment, groups, history=ExperimentHistory(changes=(change,)))
        analysis = analyze(experiment, students, as_of_ms)
        verdict = analysis.verdicts["treatment"]
        texts = {reason.code: reason.text for reason in (*verdict.reasons, *verdict.notes)}
        assert analysis.sample_ratio.mismatch_day is not None
        assert (
            f"detected on 2026-03-{analysis.sample_ratio.mismatch_day - FIRST_DAY + 27}{note}. "
            in texts["sample_ratio"]
        )
        assert f"changed on {day}{note}: alpha" in texts["criteria_changed"]
        assert analysis.to_json()["day_zone"] == zone
        assert verdict.evidence.day_zone == zone


def test_evidence_with_an_unknown_zone_is_malformed() -> None:
    """As any other wrong value in the JSON of a verdict."""
    experiment = _experiment()
    analysis = analyze(experiment, sum_students(experiment, _students()), local_time_ms(BERLIN, FIRST_DAY + 20))
    evidence = analysis.to_json()["verdict"]["treatment"]["evidence"]
    assert parse_evidence(evidence).day_zone == BERLIN
    with pytest.raises(msgspec.ValidationError, match="the time zone is 'Europe/Frankfurt'"):
        parse_evidence({**evidence, "day_zone": "Europe/Frankfurt"})
