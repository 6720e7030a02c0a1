"""Snapshots of an experiment's results, and the pruning of old snapshots."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.analysis.snapshots import (
    MAX_DAILY_SNAPSHOTS,
    MAX_HOURLY_SNAPSHOTS,
    DecayedMeanSnapshot,
    ExperimentSnapshot,
    select_prunable_hours,
    take_snapshot,
)
from monitor.analysis.summary import DecayedMean, ExperimentSummary, MetricSummary, VariantSummary
from tests.support.student_groups import SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, sum_students, time_after_days
from tests.support.units import analyze


def _variant(mean: float, design_effect: float | None = 4.0) -> VariantSummary:
    metric = MetricSummary(
        count=400,
        undefined=0,
        sum=800.0,
        mean=2.0,
        mean_over_all=0.8,
        variance=1.9,
        decayed={"24h": DecayedMean(mean, 212.4, 0.85, 530.9, 0.1)},
        design_effect=design_effect,
    )
    return VariantSummary(1000, 400, 400, 0, {}, {}, 7, 9, {"dcg@5": metric})


def _summary(**variants: VariantSummary) -> ExperimentSummary:
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT)
    analysis = analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14))
    return ExperimentSummary("ranker", "control", "dcg@5", 3, variants, analysis)


SUMMARY = _summary(control=_variant(2.0), treatment=_variant(2.5))


class TestSnapshot:
    """The content of a snapshot."""

    def test_a_snapshot_has_state_intervals_counts_and_decayed_means(self) -> None:
        """Decayed means have a standard error with the design effect."""
        snapshot = take_snapshot(SUMMARY)
        assert snapshot is not None
        assert SUMMARY.analysis is not None
        comparisons = SUMMARY.analysis.comparisons["treatment"]["dcg@5"]
        closed, live = comparisons["closed"], comparisons["live"]
        treatment, control = snapshot.treatments["treatment"], snapshot.variants["control"]
        assert treatment.state == "ship"
        assert treatment.closed == (closed.difference.effect, closed.lower, closed.upper)
        assert treatment.live == (live.difference.effect, live.lower, live.upper)
        assert (snapshot.crossovers, control.responses, control.rated_responses) == (3, 1000, 400)
        assert snapshot.variants["treatment"].decayed_means["24h"] == DecayedMeanSnapshot(2.5, 0.2, 212.4)

    def test_without_a_design_effect_there_is_no_standard_error(self) -> None:
        """Otherwise the responses of one student would count as independent."""
        snapshot = take_snapshot(_summary(control=_variant(2.0, None), treatment=_variant(2.5)))
        assert snapshot is not None
        assert snapshot.variants["control"].decayed_means["24h"].standard_error is None

    def test_without_events_or_analysis_there_is_no_snapshot(self) -> None:
        """Before the first event, and for a summary without an analysis."""
        variant = replace(_variant(2.0), last_event_at_ms=None)
        assert take_snapshot(_summary(control=variant, treatment=variant)) is None
        assert take_snapshot(replace(SUMMARY, analysis=None)) is None

    def test_a_snapshot_survives_messagepack(self) -> None:
        """Values of another type are rejected."""
        snapshot = take_snapshot(SUMMARY)
        packed = msgspec.msgpack.encode(snapshot)
        assert msgspec.msgpack.decode(packed, type=ExperimentSnapshot) == snapshot
        assert len(packed) < 500
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(["dcg@5", "many"]), type=ExperimentSnapshot)


class TestPruning:
    """Recent snapshots are kept by the hour, older snapshots by the day."""

    @given(hours=st.sets(st.integers(0, 60_000), max_size=300), run=st.integers(0, 2_500))
    def test_the_number_of_retained_snapshots_is_limited(self, hours: set[int], run: int) -> None:
        """All of the newest, and the first one of each earlier day, whatever was pruned before."""
        stored_hours = hours | set(range(60_000, 60_000 + run))
        retained_hours = sorted(stored_hours - set(select_prunable_hours(stored_hours)))
        assert len(retained_hours) <= MAX_HOURLY_SNAPSHOTS + MAX_DAILY_SNAPSHOTS
        assert retained_hours[-MAX_HOURLY_SNAPSHOTS:] == sorted(stored_hours)[-MAX_HOURLY_SNAPSHOTS:]
        earlier_hours = retained_hours[:-MAX_HOURLY_SNAPSHOTS]
        assert len({hour // 24 for hour in earlier_hours}) == len(earlier_hours)
        assert select_prunable_hours(retained_hours) == []

    def test_pruning_every_hour_retains_the_same_as_pruning_once(self) -> None:
        """Each day keeps the first hour, even if the day was pruned before its last hour."""
        stored_hours: set[int] = set()
        for hour in range(3_000):
            stored_hours.add(hour)
            stored_hours -= set(select_prunable_hours(stored_hours))
        assert stored_hours == set(range(3_000)) - set(select_prunable_hours(range(3_000)))
        assert len(stored_hours) == MAX_HOURLY_SNAPSHOTS + 2_000 // 24 + 1

    def test_daily_snapshots_are_pruned_after_years(self) -> None:
        """The oldest are deleted first."""
        stored_hours = [24 * day for day in range(3_000)]
        assert sorted(set(stored_hours) - set(select_prunable_hours(stored_hours))) == stored_hours[-2_000:]
