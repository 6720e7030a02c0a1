"""The history of a verdict's states."""

from __future__ import annotations

import pytest

from monitor.analysis.decision_history import history_json, list_state_periods
from monitor.analysis.snapshots import ExperimentSnapshot, TreatmentSnapshot
from monitor.clock import HOUR_MS
from monitor.export.presentation import describe_history
from monitor.stats import VerdictState


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
