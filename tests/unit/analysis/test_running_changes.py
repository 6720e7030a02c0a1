"""Verdicts on experiments that were changed while they ran: phases of shares, variants, notes, missing events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from monitor.analysis import BackfillProgress, ExperimentHistory
from monitor.clock import HOUR_MS
from monitor.config import ExperimentChange, ExperimentSettings, carry_allocations
from monitor.metrics import CohortField, UnitField
from monitor.stats import (
    DataQuality,
    ResponseQuality,
    Verdict,
    check_srm,
    decide_verdict,
    parse_evidence,
)
from tests.calibration.share_changes import CHANGES, share_change_alarms
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

HALVES = {"control": 0.5, "treatment": 0.5}
THIRDS = {"control": 1 / 3, "treatment": 1 / 3, "other": 1 / 3}
UNEVEN = {"control": 0.9, "treatment": 0.1}


def _change_shares(before: Mapping[str, float], after: Mapping[str, float], days: float) -> ExperimentSettings:
    """Return the sensitive experiment, with shares that change a number of days after the first midnight."""
    previous = replace(SENSITIVE_EXPERIMENT, variants=before)
    return carry_allocations(previous, replace(previous, variants=after), time_after_days(days))


def _verdict(history: ExperimentHistory, days: float = 14, **overrides: Any) -> Verdict:
    students = sum_students(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, history=history, **overrides)
    return analyze(SENSITIVE_EXPERIMENT, students, time_after_days(days)).verdicts["treatment"]


def _notes(verdict: Verdict) -> dict[str, str]:
    return {note.code: note.text for note in verdict.notes}


class TestSampleRatio:
    """A change of shares, at any time of the day, is no sample ratio mismatch."""

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_change_of_shares_raises_no_false_alarm(self, change: str) -> None:
        """The level is 1 %: 30 experiments have at most 3 alarms with a probability of 0.9998."""
        alarms = [share_change_alarms(np.random.default_rng([3, run]), change) for run in range(30)]
        by_phase, pooled = map(sum, zip(*alarms, strict=True))
        assert by_phase <= 3
        assert pooled == 30

    def test_a_mismatch_after_the_change_is_still_found(self) -> None:
        """The days after the change are tested against the new shares."""
        experiment = _change_shares(HALVES, UNEVEN, 5.4)
        groups = [
            StudentGroup(variant, FIRST_DAY + day, 2.0, student_count=count)
            for day in range(10)
            for variant, count in (("control", 50 if day < 5 else 80), ("treatment", 50 if day < 5 else 30))
        ]
        analysis = analyze(experiment, sum_students(experiment, groups), time_after_days(20))
        assert analysis.sample_ratio.mismatch
        assert [phase.log_e > 4 for phase in analysis.sample_ratio.phases] == [False, True]


class TestVariants:
    """An added variant is judged by its own days; a dropped one does not harm the others."""

    def test_an_added_variant_needs_days_of_its_own(self) -> None:
        """Days before the variant had a share do not count for `min_days`."""
        experiment = _change_shares(HALVES, THIRDS, 8)
        experiment = replace(experiment, decision=replace(experiment.decision, min_days=7))
        groups = [*STUDENTS_WITH_EFFECT]
        for seed, name in enumerate(("control", "treatment", "other"), 3):
            groups += make_students(name, 2.0, 150, days=4, seed=seed, first_day=FIRST_DAY + 8)
        verdicts = analyze(experiment, sum_students(experiment, groups), time_after_days(20)).verdicts
        assert {name: verdict.evidence.closed_days for name, verdict in verdicts.items()} == {
            "treatment": 12,
            "other": 4,
        }
        assert [reason.code for reason in verdicts["other"].reasons] == ["young"]

    def test_an_added_variant_is_compared_with_students_of_its_own_time(self) -> None:
        """Earlier students of the control were better: pooled, the new variant would seem worse."""
        experiment = _change_shares(HALVES, THIRDS, 8)
        groups = [*make_students("control", 3.0, days=8, seed=1), *make_students("treatment", 3.0, days=8, seed=2)]
        for seed, name in enumerate(("control", "treatment", "other"), 3):
            groups += make_students(name, 1.5, 400, days=8, seed=seed, first_day=FIRST_DAY + 8)
        comparison = (
            analyze(experiment, sum_students(experiment, groups), time_after_days(30)).verdicts["other"].primary
        )
        assert comparison.lower is not None
        assert comparison.upper is not None
        assert comparison.lower < 0 < comparison.upper

    def test_students_of_a_dropped_variant_who_get_another_one_are_no_crossovers_of_the_others(self) -> None:
        """They are first exposed to neither of the compared variants, so they are left out of both."""
        experiment = _change_shares(THIRDS, HALVES, 8)
        groups = []
        for seed, name in enumerate(THIRDS, 1):
            groups += make_students(name, 2.0, 400, days=8, seed=seed)
        for seed, name in enumerate(HALVES, 5):
            groups += make_students(name, 2.0, 400, days=8, seed=seed, first_day=FIRST_DAY + 8)
        students = sum_students(experiment, groups)
        students.variant_records["other"][UnitField.CROSSOVERS] += 200
        for record in students.cohorts["other"].values():
            record[CohortField.EXPOSURES] += 25
            record[CohortField.EXPOSURE_HOURS] += 25
        verdicts = analyze(experiment, students, time_after_days(30)).verdicts
        codes = {name: {finding.code for finding in (*v.reasons, *v.notes)} for name, v in verdicts.items()}
        assert not {"crossovers", "uneven_crossovers"} & codes["treatment"]
        assert codes["other"] >= {"crossovers", "uneven_crossovers"}
        assert verdicts["treatment"].evidence.crossovers == 0

    def test_uneven_rejections_of_pooled_phases_need_an_effect(self) -> None:
        """One bad day before the change of shares makes the pooled shares of rejected responses differ."""
        experiment = _change_shares(HALVES, UNEVEN, 10)
        quality = DataQuality(
            {
                "control": ResponseQuality(90_000, {"repeated_item": 500}),
                "treatment": ResponseQuality(20_000, {"repeated_item": 500}),
            }
        )
        assert quality.missing_share_difference("control", "treatment", 0.01) is not None
        groups = [
            *STUDENTS_WITH_EFFECT,
            *make_students("control", 1.5, 450, days=5, seed=3, first_day=FIRST_DAY + 10),
            *make_students("treatment", 2.0, 50, days=5, seed=4, first_day=FIRST_DAY + 10),
        ]
        students = sum_students(experiment, groups, data_quality=quality)
        verdict = analyze(experiment, students, time_after_days(30)).verdicts["treatment"]
        assert verdict.state == "ship"
        bad = DataQuality({**quality.variants, "treatment": ResponseQuality(5_000, {"repeated_item": 400})})
        students = replace(students, data_quality=bad)
        verdict = analyze(experiment, students, time_after_days(30)).verdicts["treatment"]
        assert [reason.code for reason in verdict.reasons] == ["many_rejections"]


class TestNotes:
    """A verdict names the changes of the running experiment, with dates."""

    CHANGED_MS = time_after_days(5) + 9 * HOUR_MS

    def _history(self, kind: Any, text: str, at_ms: int = CHANGED_MS) -> ExperimentHistory:
        return ExperimentHistory(changes=(ExperimentChange(at_ms, kind, text),))

    def test_criteria_changed_after_data_are_noted_with_the_date(self) -> None:
        """The state is that of the current criteria."""
        verdict = _verdict(self._history("criteria", "mde 0.05 → 0.02"))
        assert verdict.state == "ship"
        note = _notes(verdict)["criteria_changed"]
        assert note.startswith("Decision criteria changed on 2026-01-06: mde 0.05 → 0.02.")
        assert "weaker evidence" in note

    def test_criteria_changed_before_the_first_response_are_not_noted(self) -> None:
        """Nobody had seen data."""
        students = sum_students(
            SENSITIVE_EXPERIMENT,
            STUDENTS_WITH_EFFECT,
            history=self._history("criteria", "mde 0.05 → 0.02", time_after_days(0) + 9 * HOUR_MS),
        )
        for cohorts in students.cohorts.values():
            cohorts[FIRST_DAY][CohortField.EXPOSURE_HOURS + 10] = 40
        verdict = analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14)).verdicts["treatment"]
        assert verdict.evidence.first_response_ms == time_after_days(0) + 10 * HOUR_MS
        assert "criteria_changed" not in _notes(verdict)

    def test_changed_definitions_are_noted_like_criteria(self) -> None:
        """A metric chosen after a look at the data is as weak as a chosen margin."""
        verdict = _verdict(self._history("definition", "gain linear → exp2"))
        assert _notes(verdict)["criteria_changed"].startswith("Definitions changed on 2026-01-06: gain linear → exp2.")

    def test_changed_shares_explain_the_missing_interval_over_all_responses(self) -> None:
        """The note has the change, and no note appears if the shares are constant."""
        experiment = _change_shares(HALVES, UNEVEN, 10)
        groups = [*STUDENTS_WITH_EFFECT, StudentGroup("control", FIRST_DAY + 12, 2.0)]
        history = self._history("shares", "shares of control, treatment: 0.5, 0.5 → 0.9, 0.1")
        students = sum_students(experiment, groups, history=history)
        analysis = analyze(experiment, students, time_after_days(20))
        note = _notes(analysis.verdicts["treatment"])["shares_changed"]
        assert note.startswith("Intended shares changed on 2026-01-06: shares of control, treatment: 0.5, 0.5 →")
        assert "has no interval" in note
        assert analysis.comparisons["treatment"]["dcg@5"]["live"].lower is None
        assert "shares_changed" not in _notes(_verdict(ExperimentHistory()))

    def test_missing_early_events_are_noted_with_the_time(self) -> None:
        """Kafka's retention limits what a backfill can count."""
        verdict = _verdict(ExperimentHistory(complete_since_ms=self.CHANGED_MS))
        assert _notes(verdict)["complete_since"].startswith(
            "Complete since 2026-01-06 09:00 UTC: Kafka no longer had earlier events."
        )

    def test_shares_that_changed_before_the_early_events_went_missing_are_named(self) -> None:
        """Returning students seem to be new, but were assigned under the earlier shares."""
        history = self._history("shares", "shares of control, treatment: 0.5, 0.5 → 0.9, 0.1")
        later, earlier = (
            _notes(_verdict(replace(history, complete_since_ms=self.CHANGED_MS + offset_ms)))["complete_since"]
            for offset_ms in (HOUR_MS, -HOUR_MS)
        )
        assert "assigned under other shares" in later
        assert "assigned under other shares" not in earlier

    @pytest.mark.parametrize(
        ("backfill", "progress"),
        [
            (BackfillProgress("running", 0.434), "is 43 % filled"),
            (BackfillProgress("running"), "is being filled"),
            (BackfillProgress("failed", 0.4, "the topic was deleted."), "could not be filled: the topic was deleted"),
        ],
    )
    def test_numbers_of_the_previous_definition_still_decide(self, backfill: BackfillProgress, progress: str) -> None:
        """They are complete, and marked until the new numbers are."""
        history = ExperimentHistory(definition_since_ms=self.CHANGED_MS, backfill=backfill, is_previous_definition=True)
        verdict = _verdict(history)
        assert verdict.state == "ship"
        assert _notes(verdict)["previous_definition"] == (
            f"Numbers of the previous definition, up to 2026-01-06 09:00 UTC; the new definition {progress}."
        )


class TestIncompleteNumbers:
    """Numbers that a backfill still fills decide nothing."""

    @pytest.mark.parametrize(
        ("backfill", "progress"),
        [
            (BackfillProgress("running", 0.434), "is 43 % filled"),
            (BackfillProgress("failed", None, "disk full"), "could not be filled: disk full"),
        ],
    )
    def test_an_incomplete_experiment_has_no_decision(self, backfill: BackfillProgress, progress: str) -> None:
        """A running and a failed backfill: events are missing."""
        verdict = _verdict(ExperimentHistory(backfill=backfill))
        assert verdict.state == "insufficient_data"
        (reason,) = verdict.reasons
        assert reason.code == "incomplete"
        assert progress in reason.text

    def test_incomplete_numbers_raise_no_alarm(self) -> None:
        """Students seem to have come later than they did, so their split proves nothing."""
        groups = [*STUDENTS_WITH_EFFECT, *make_students("control", 1.5, 800, seed=3)]
        history = ExperimentHistory(backfill=BackfillProgress("running", 0.5))
        analyses = [
            analyze(SENSITIVE_EXPERIMENT, sum_students(SENSITIVE_EXPERIMENT, groups, history=each), time_after_days(14))
            for each in (ExperimentHistory(), history)
        ]
        assert [analysis.verdicts["treatment"].has_warnings for analysis in analyses] == [True, False]
        assert [analysis.sample_ratio.alarm for analysis in analyses] == [True, False]

    def test_the_evidence_reproduces_the_verdict(self) -> None:
        """A reader of the JSON computes the same state and notes."""
        history = ExperimentHistory(
            changes=(ExperimentChange(TestNotes.CHANGED_MS, "criteria", "mde 0.05 → 0.02"),),
            backfill=BackfillProgress("running", 0.5),
        )
        for each in (history, replace(history, backfill=None)):
            verdict = _verdict(each)
            parsed = parse_evidence(verdict.to_json()["evidence"])
            assert decide_verdict(parsed) == replace(verdict, sample_ratio=check_srm(parsed.phases))
