"""The history of a verdict's states."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.analysis import ExperimentSummary
from monitor.analysis.decision_history import history_json, list_state_periods, list_verdict_history
from monitor.analysis.snapshots import ExperimentSnapshot, TreatmentSnapshot
from monitor.clock import HOUR_MS
from monitor.export.presentation import describe_history
from monitor.stats import VerdictState
from tests.support.student_groups import SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, sum_students, time_after_days
from tests.support.units import analyze


def _snapshot(state: VerdictState, effect: float) -> ExperimentSnapshot:
    interval = (effect, effect - 0.1, effect + 0.1)
    return ExperimentSnapshot("dcg@5", 0, {}, {"treatment": TreatmentSnapshot(state, interval, interval)})


def test_periods_begin_with_the_first_snapshot_of_a_state_and_end_with_the_next_state() -> None:
    """A state that was reached, withdrawn and reached again has two periods; the first is found."""
    states: list[VerdictState] = ["continue", "continue", "ship", "ship", "continue", "ship"]
    snapshots = {hour: _snapshot(state, 0.1 * hour) for hour, state in enumerate(states)}
    periods = list_state_periods(snapshots, "treatment")
    assert [(period.state, period.since_ms, period.until_ms) for period in periods] == [
        ("continue", 0, 2 * HOUR_MS),
        ("ship", 2 * HOUR_MS, 4 * HOUR_MS),
        ("continue", 4 * HOUR_MS, 5 * HOUR_MS),
        ("ship", 5 * HOUR_MS, None),
    ]
    assert history_json({"treatment": periods})["treatment"][1] == {
        "state": "ship",
        "since": "1970-01-01T02:00:00.000Z",
        "until": "1970-01-01T04:00:00.000Z",
        "effect": 0.2,
        "lower": 0.1,
        "upper": pytest.approx(0.3),
    }
    assert describe_history(periods, "ship") == (
        "History: Ship since 1 Jan 1970, 05:00 UTC; Ship first on 1 Jan 1970, 02:00 UTC, withdrawn on 1 Jan 1970, "
        "04:00 UTC."
    )
    assert describe_history(periods, "continue") is None
    assert describe_history(periods[:3], "continue") == (
        "History: Keep running since 1 Jan 1970, 04:00 UTC; Ship first on 1 Jan 1970, 02:00 UTC, withdrawn on 1 Jan "
        "1970, 04:00 UTC."
    )


def test_a_treatment_without_snapshots_has_no_history() -> None:
    """The treatment was added later."""
    assert list_state_periods({1: _snapshot("ship", 0.2)}, "other") == ()


def test_a_present_state_without_a_snapshot_begins_at_the_analysis() -> None:
    """The clock may decide an ended experiment after the last snapshot. A past analysis adds no state."""
    hour = time_after_days(10) // HOUR_MS
    snapshots = {hour: _snapshot("continue", 0.1)}
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    analysis = analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14))
    summary = ExperimentSummary("ranker", "control", "dcg@5", 0, {}, analysis, newest_event_ms=time_after_days(12))
    kept_running, shipped = list_verdict_history(summary, snapshots)["treatment"]
    assert (kept_running.state, kept_running.until_ms) == ("continue", time_after_days(14))
    assert (shipped.state, shipped.since_ms, shipped.until_ms) == ("ship", time_after_days(14), None)
    later_event = replace(summary, newest_event_ms=time_after_days(15))
    assert [period.state for period in list_verdict_history(later_event, snapshots)["treatment"]] == ["continue"]
    assert list_verdict_history(replace(summary, primary="ndcg@5"), snapshots) == {"treatment": ()}
