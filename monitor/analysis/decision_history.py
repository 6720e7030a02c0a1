"""The history of a treatment's verdict: when each state was first reached and changed, from hourly snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from monitor.analysis.snapshots import EffectInterval, SnapshotHistory
from monitor.analysis.summary import ExperimentSummary, format_timestamp
from monitor.clock import HOUR_MS
from monitor.stats import VerdictState


@dataclass(frozen=True, slots=True)
class StatePeriod:
    """A period in which the verdict on a treatment had the same state."""

    state: VerdictState
    since_ms: int
    """Event time of the first snapshot with the state, or of the analysis if no snapshot has the state yet."""
    until_ms: int | None
    """Event time of the first later snapshot with another state; None for the newest period."""
    effect: EffectInterval
    """The primary metric's effect and interval at `since_ms`."""


VerdictHistory: TypeAlias = Mapping[str, tuple[StatePeriod, ...]]
"""Treatment → periods of the verdict's states, oldest first."""


def list_verdict_history(experiment: ExperimentSummary, snapshots: SnapshotHistory) -> VerdictHistory:
    """Return the history of the verdicts up to the time of the experiment's analysis, for the primary metric.

    If the present state is in no snapshot yet, its period begins at the time of the analysis. A past analysis adds no
    period, because it is computed with the counts of today.
    """
    analysis = experiment.analysis
    if analysis is None:
        return {}
    past_snapshots = {
        hour: snapshot
        for hour, snapshot in snapshots.items()
        if snapshot.metric == experiment.primary and hour * HOUR_MS <= analysis.as_of_ms
    }
    history = {}
    for treatment, verdict in analysis.verdicts.items():
        periods = list_state_periods(past_snapshots, treatment)
        if periods and periods[-1].state != verdict.state and analysis.as_of_ms >= experiment.newest_event_ms:
            effect = verdict.primary.difference.effect, verdict.primary.lower, verdict.primary.upper
            periods = (
                *periods[:-1],
                replace(periods[-1], until_ms=analysis.as_of_ms),
                StatePeriod(verdict.state, analysis.as_of_ms, None, effect),
            )
        history[treatment] = periods
    return history


def list_state_periods(snapshots: SnapshotHistory, treatment: str) -> tuple[StatePeriod, ...]:
    """Return the periods of a treatment's states, oldest first; empty without snapshots of the treatment."""
    periods: list[StatePeriod] = []
    for hour, snapshot in sorted(snapshots.items()):
        results = snapshot.treatments.get(treatment)
        if results is None or (periods and periods[-1].state == results.state):
            continue
        since_ms = hour * HOUR_MS
        if periods:
            periods[-1] = replace(periods[-1], until_ms=since_ms)
        periods.append(StatePeriod(results.state, since_ms, None, results.closed))
    return tuple(periods)


def history_json(history: VerdictHistory) -> dict[str, list[dict[str, Any]]]:
    """Return a history as in `verdict --json`, with times in ISO 8601."""
    return {
        treatment: [
            {
                "state": period.state,
                "since": format_timestamp(period.since_ms),
                "until": None if period.until_ms is None else format_timestamp(period.until_ms),
                **dict(zip(("effect", "lower", "upper"), period.effect, strict=True)),
            }
            for period in periods
        ]
        for treatment, periods in history.items()
    }
