"""Changes of a running experiment: carried allocations, and the phrases of changed shares and criteria."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import (
    AllocationSettings,
    DecisionSettings,
    ExperimentSettings,
    GuardrailSettings,
    MetricSpec,
    aggregate_definitions,
    carry_allocations,
    describe_allocation_changes,
    describe_criteria_changes,
)

START_MS = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp() * 1000)
CHANGED_MS = START_MS + 5 * DAY_MS + 9 * HOUR_MS
METRICS = (MetricSpec("dcg@5", "dcg", 5), MetricSpec("success@5", "success", 5))
RUNNING = ExperimentSettings(
    "ranker", "control", {"control": 0.5, "treatment": 0.5}, starts_at_ms=START_MS, metrics=METRICS
)


def _with_shares(**shares: float) -> ExperimentSettings:
    return replace(RUNNING, variants=shares)


def _with_allocations(*allocations: tuple[int, dict[str, float]], **shares: float) -> ExperimentSettings:
    decision = DecisionSettings(allocations=tuple(AllocationSettings(*allocation) for allocation in allocations))
    return replace(RUNNING, variants=shares or RUNNING.variants, decision=decision)


def _timeline(experiment: ExperimentSettings) -> list[tuple[int, dict[str, float]]]:
    return [(allocation.from_ms, dict(allocation.shares)) for allocation in experiment.decision.allocations]


class TestShares:
    """Changed shares are an allocation from the time of the change."""

    def test_changed_shares_begin_at_the_time_of_the_change(self) -> None:
        """The earlier shares stay those before the change."""
        carried = carry_allocations(RUNNING, _with_shares(control=0.9, treatment=0.1), CHANGED_MS)
        assert carried.variants == RUNNING.variants
        assert _timeline(carried) == [(CHANGED_MS, {"control": 0.9, "treatment": 0.1})]
        assert describe_allocation_changes(RUNNING, carried, CHANGED_MS) == [
            ("shares", "shares of control, treatment: 0.5, 0.5 → 0.9, 0.1")
        ]

    def test_an_unchanged_file_changes_nothing(self) -> None:
        """The result of the first call is also the result of each later call."""
        configured = _with_shares(control=0.9, treatment=0.1)
        carried = carry_allocations(RUNNING, configured, CHANGED_MS)
        again = carry_allocations(carried, configured, CHANGED_MS + DAY_MS)
        assert again == carried
        assert describe_allocation_changes(carried, again, CHANGED_MS + DAY_MS) == []
        assert carry_allocations(RUNNING, RUNNING, CHANGED_MS) == RUNNING

    def test_each_change_adds_an_allocation(self) -> None:
        """Shares that return to the first ones are a change, too."""
        carried = carry_allocations(RUNNING, _with_shares(control=0.9, treatment=0.1), CHANGED_MS)
        again = carry_allocations(carried, RUNNING, CHANGED_MS + DAY_MS)
        assert _timeline(again) == [
            (CHANGED_MS, {"control": 0.9, "treatment": 0.1}),
            (CHANGED_MS + DAY_MS, {"control": 0.5, "treatment": 0.5}),
        ]

    def test_shares_may_change_freely_before_the_experiment_starts(self) -> None:
        """Without students there is nothing to carry."""
        configured = _with_shares(control=0.9, treatment=0.1)
        assert carry_allocations(RUNNING, configured, START_MS) == configured

    def test_other_changed_settings_are_those_of_the_file(self) -> None:
        """Only shares are carried."""
        configured = replace(RUNNING, decision=DecisionSettings(mde=0.02))
        assert carry_allocations(RUNNING, configured, CHANGED_MS) == configured


class TestDeclaredAllocations:
    """Allocations of the file stay valid beside carried ones."""

    def test_a_declared_future_allocation_follows_the_carried_change(self) -> None:
        """A new share now, and another one that the file announces."""
        later_ms = CHANGED_MS + 3 * DAY_MS
        configured = _with_allocations((later_ms, {"control": 0.2, "treatment": 0.8}), control=0.9, treatment=0.1)
        carried = carry_allocations(RUNNING, configured, CHANGED_MS)
        assert _timeline(carried) == [
            (CHANGED_MS, {"control": 0.9, "treatment": 0.1}),
            (later_ms, {"control": 0.2, "treatment": 0.8}),
        ]
        assert carry_allocations(carried, configured, later_ms + DAY_MS) == carried
        assert describe_allocation_changes(RUNNING, carried, CHANGED_MS)[1:] == [
            ("shares", "shares of control, treatment from 2026-11-09 09:00 UTC: 0.2, 0.8")
        ]

    def test_a_declared_past_allocation_is_no_change_at_the_time_of_the_reload(self) -> None:
        """An engineer who declares when the shares changed gets exactly that phase."""
        configured = _with_allocations((CHANGED_MS - DAY_MS, {"control": 0.9, "treatment": 0.1}))
        assert carry_allocations(RUNNING, configured, CHANGED_MS) == configured

    def test_a_file_corrects_the_recorded_time_of_a_change(self) -> None:
        """Declared allocations replace the carried ones from the first declared one on."""
        carried = carry_allocations(RUNNING, _with_shares(control=0.9, treatment=0.1), CHANGED_MS)
        configured = _with_allocations(
            (CHANGED_MS - HOUR_MS, {"control": 0.5, "treatment": 0.5}),
            (CHANGED_MS + HOUR_MS, {"control": 0.9, "treatment": 0.1}),
        )
        assert carry_allocations(carried, configured, CHANGED_MS + DAY_MS) == configured

    def test_an_announced_allocation_that_the_file_drops_does_not_happen(self) -> None:
        """Only the file announces future shares."""
        announced = _with_allocations((CHANGED_MS + DAY_MS, {"control": 0.9, "treatment": 0.1}))
        carried = carry_allocations(announced, RUNNING, CHANGED_MS)
        assert _timeline(carried) == []
        assert describe_allocation_changes(announced, carried, CHANGED_MS) == [
            ("shares", "no change of shares at 2026-11-07 09:00 UTC")
        ]

    def test_a_past_allocation_that_the_file_merges_into_the_variants_stays(self) -> None:
        """A tidied file does not change which shares applied when."""
        declared = _with_allocations((CHANGED_MS - DAY_MS, {"control": 0.9, "treatment": 0.1}))
        carried = carry_allocations(declared, _with_shares(control=0.9, treatment=0.1), CHANGED_MS)
        assert carried == declared


class TestVariants:
    """Added variants have no share before the change, dropped ones none after it."""

    def test_an_added_variant_has_no_share_before_the_change(self) -> None:
        """The first phase is that of the other variants."""
        configured = _with_shares(control=0.4, treatment=0.3, other=0.3)
        carried = carry_allocations(RUNNING, configured, CHANGED_MS)
        assert dict(carried.variants) == {"control": 0.5, "treatment": 0.5, "other": 0.0}
        assert _timeline(carried) == [(CHANGED_MS, {"control": 0.4, "treatment": 0.3, "other": 0.3})]
        assert describe_allocation_changes(RUNNING, carried, CHANGED_MS) == [
            ("variants", "other added; shares of control, treatment, other: 0.5, 0.5, 0 → 0.4, 0.3, 0.3")
        ]
        assert carry_allocations(carried, configured, CHANGED_MS + DAY_MS) == carried

    def test_a_dropped_variant_stays_without_a_share(self) -> None:
        """Its results stay, and no stored sum changes."""
        running = _with_shares(control=0.4, treatment=0.3, other=0.3)
        configured = _with_shares(control=0.5, treatment=0.5)
        carried = carry_allocations(running, configured, CHANGED_MS)
        assert carried.variants == running.variants
        assert _timeline(carried) == [(CHANGED_MS, {"control": 0.5, "treatment": 0.5})]
        assert aggregate_definitions(carried) == aggregate_definitions(running)
        assert describe_allocation_changes(running, carried, CHANGED_MS) == [
            ("variants", "other dropped; shares of control, treatment, other: 0.4, 0.3, 0.3 → 0.5, 0.5, 0")
        ]
        assert carry_allocations(carried, configured, CHANGED_MS + DAY_MS) == carried

    def test_a_dropped_variant_can_return(self) -> None:
        """The variant gets a share again from the second change on."""
        running = _with_shares(control=0.4, treatment=0.3, other=0.3)
        carried = carry_allocations(running, _with_shares(control=0.5, treatment=0.5), CHANGED_MS)
        again = carry_allocations(carried, running, CHANGED_MS + DAY_MS)
        assert again.variants == running.variants
        assert _timeline(again)[1:] == [(CHANGED_MS + DAY_MS, dict(running.variants))]

    def test_a_new_variant_without_a_share_is_a_change(self) -> None:
        """It changes the stored sums, although no student is assigned to it."""
        carried = carry_allocations(RUNNING, _with_shares(control=0.5, treatment=0.5, other=0.0), CHANGED_MS)
        assert _timeline(carried) == []
        assert [kind for kind, _ in describe_allocation_changes(RUNNING, carried, CHANGED_MS)] == ["variants"]


class TestCriteria:
    """Phrases of changed criteria."""

    @pytest.mark.parametrize(
        ("changes", "phrase"),
        [
            ({"mde": 0.02}, "mde not set → 0.02"),
            ({"margin": 0.05}, "margin 0 → 0.05"),
            ({"alpha": 0.1}, "alpha 0.05 → 0.1"),
            ({"min_days": 14.0}, "min_days 7 → 14"),
            ({"population": "all"}, "population rated → all"),
            ({"guardrails": ()}, "guardrail rated_share down by relative_margin 0.1 → none"),
            (
                {"guardrails": (GuardrailSettings("rated_share", "down", 0.05),)},
                "guardrail rated_share down by relative_margin 0.1 → down by margin 0.05",
            ),
        ],
    )
    def test_a_changed_criterion_has_a_phrase_with_both_values(self, changes: dict[str, Any], phrase: str) -> None:
        """A reader sees what was changed."""
        configured = replace(RUNNING, decision=replace(RUNNING.decision, **changes))
        assert describe_criteria_changes(RUNNING, configured) == [phrase]

    def test_control_primary_metric_and_waiting_times_are_criteria(self) -> None:
        """Verdicts depend on them, but no stored sum does."""
        configured = replace(
            RUNNING, control="treatment", primary="success@5", closing_delay_ms=6 * HOUR_MS, allowed_lateness_ms=DAY_MS
        )
        assert aggregate_definitions(configured) == aggregate_definitions(RUNNING)
        assert describe_criteria_changes(RUNNING, configured) == [
            "control control → treatment",
            "primary dcg@5 → success@5",
            "closing_delay not set → 6h",
            "allowed_lateness 7d → 1d",
        ]

    def test_a_primary_metric_with_its_own_sums_is_a_definition(self) -> None:
        """The change of the definition reports it."""
        running = replace(RUNNING, categories=("geometry",))
        assert describe_criteria_changes(running, replace(running, primary="success@5")) == []

    def test_a_new_guardrail_with_its_own_sums_is_a_definition_and_a_changed_margin_is_not(self) -> None:
        """Only a change that needs no other sums is one of criteria alone."""
        defaults = RUNNING.decision.guardrails
        escalated = GuardrailSettings("share:escalated", "up", 0.01)
        metrics = (*RUNNING.metrics, MetricSpec("share:escalated", "share", kind="escalated"))
        watched = replace(RUNNING, metrics=metrics, decision=DecisionSettings(guardrails=(*defaults, escalated)))
        looser = replace(watched, decision=DecisionSettings(guardrails=(*defaults, replace(escalated, margin=0.02))))
        assert describe_criteria_changes(RUNNING, watched) == []
        assert describe_criteria_changes(watched, looser) == [
            "guardrail share:escalated up by margin 0.01 → up by margin 0.02"
        ]

    def test_shares_are_no_criteria(self) -> None:
        """Shares have phrases of their own."""
        assert describe_criteria_changes(RUNNING, _with_shares(control=0.9, treatment=0.1)) == []
