"""The analysis of stored sums: closed cohorts, allocation phases, verdict states, subgroups, and the printed JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.analysis import Analysis
from monitor.analysis.analysis_plan import list_allocation_phases
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import AllocationSettings, DecisionSettings, ExperimentSettings, GuardrailSettings
from monitor.metrics import RecordLayout
from monitor.stats import (
    Estimate,
    EstimatePair,
    Guardrail,
    SkippedEventCounts,
    Verdict,
    check_srm,
    compare_variants,
    decide_verdict,
    evaluate_guardrail,
    parse_evidence,
)
from tests.support.streams import EXPERIMENT
from tests.support.student_groups import (
    FIRST_DAY,
    SENSITIVE_EXPERIMENT,
    STUDENTS_WITH_EFFECT,
    STUDENTS_WITH_SEGMENT_EFFECT,
    SUBGROUP_EXPERIMENT,
    StudentGroup,
    make_students,
    sum_students,
    time_after_days,
    with_decision_settings,
)
from tests.support.units import analyze

EQUAL_SHARES = {"control": 0.5, "treatment": 0.5}


def _analyze_groups(
    experiment: ExperimentSettings, groups: list[StudentGroup], days: float, **overrides: Any
) -> Analysis:
    """Return the analysis of the students' sums, a number of days after the first midnight."""
    return analyze(experiment, sum_students(experiment, groups, **overrides), time_after_days(days))


def _treatment_verdict(
    experiment: ExperimentSettings, groups: list[StudentGroup], days: float, **overrides: Any
) -> Verdict:
    return _analyze_groups(experiment, groups, days, **overrides).verdicts["treatment"]


def _printed_json(analysis: Analysis) -> dict[str, Any]:
    """Return the analysis as read from its JSON text, which must not contain NaN or infinite numbers."""
    content: dict[str, Any] = json.loads(json.dumps(analysis.to_json(), allow_nan=False))
    return content


def _closed_estimates(analysis: Analysis, metric: str) -> tuple[Any, Any]:
    comparison = analysis.comparisons["treatment"][metric]["closed"]
    return comparison.control, comparison.treatment


class TestClosedEstimates:
    """Closed estimates, which decide, are over students whose own windows are over."""

    def test_means_are_over_students_whose_windows_are_over(self) -> None:
        """The window is three days from the first exposure, and a day for feedback; later students are not included."""
        analysis = _analyze_groups(EXPERIMENT, STUDENTS_WITH_EFFECT, 8)
        closed_students = [student for student in STUDENTS_WITH_EFFECT if student.first_day + 3 <= FIRST_DAY + 7]
        for variant, estimate in zip(("control", "treatment"), _closed_estimates(analysis, "dcg@5"), strict=True):
            values = [student.metric_value for student in closed_students if student.variant == variant]
            assert estimate.units == len(values)
            assert estimate.mean == pytest.approx(np.mean(values), abs=1e-8)
            assert estimate.variance == pytest.approx(np.var(values, ddof=1) / len(values), rel=1e-6)

    def test_a_cohort_closes_in_the_millisecond_in_which_its_window_ends(self) -> None:
        """A millisecond earlier the cohort is open."""
        students = sum_students(EXPERIMENT, STUDENTS_WITH_EFFECT)
        assert _closed_estimates(analyze(EXPERIMENT, students, time_after_days(4) - 1), "dcg@5")[0].units == 0
        assert _closed_estimates(analyze(EXPERIMENT, students, time_after_days(4)), "dcg@5")[0].units == 40

    def test_the_population_of_all_responses_counts_unrated_responses_as_0(self) -> None:
        """A student with one rated response of two has half of the rated response's value."""
        experiment = with_decision_settings(population="all")
        estimate, _ = _closed_estimates(_analyze_groups(experiment, STUDENTS_WITH_EFFECT, 20), "dcg@5")
        values = [
            student.metric_value * student.rated_responses / student.responses
            for student in STUDENTS_WITH_EFFECT
            if student.variant == "control"
        ]
        assert estimate.mean == pytest.approx(np.mean(values), abs=1e-8)

    def test_the_live_estimand_includes_open_cohorts_and_never_decides(self) -> None:
        """Live estimates are over all students, also over students whose windows are not over."""
        live = _analyze_groups(EXPERIMENT, STUDENTS_WITH_EFFECT, 5).comparisons["treatment"]["dcg@5"]["live"]
        assert (live.control.units, live.treatment.units) == (400, 400)
        assert not live.decides


class TestVerdictStates:
    """The state of a verdict follows from the stored sums."""

    @pytest.mark.parametrize(
        ("means", "days", "state"),
        [
            ((1.5, 2.0), 14.0, "ship"),
            ((2.0, 1.5), 14.0, "stop_harm"),
            ((2.0, 2.0), 14.0, "futile"),
            ((1.5, 2.0), 6.0, "insufficient_data"),
        ],
    )
    def test_the_state_follows_from_the_effect_and_the_age(
        self, means: tuple[float, float], days: float, state: str
    ) -> None:
        """Better, worse, equal, and better but too early."""
        groups = [*make_students("control", means[0], 800, seed=1), *make_students("treatment", means[1], 800, seed=2)]
        assert _treatment_verdict(SENSITIVE_EXPERIMENT, groups, days).state == state

    def test_without_variance_neither_estimand_has_an_interval(self) -> None:
        """Fixed-point sums are rounded; the rounding errors do not count as variance."""
        groups = [
            StudentGroup(variant, FIRST_DAY, value, responses=responses, rated_responses=responses, student_count=40)
            for variant, value in (("control", 0.8691), ("treatment", 0.7382))
            for responses in (2, 5, 9)
        ]
        analysis = _analyze_groups(SENSITIVE_EXPERIMENT, groups, 14)
        verdict = analysis.verdicts["treatment"]
        assert (verdict.state, verdict.days_to_resolve) == ("insufficient_data", None)
        for by_estimand in analysis.comparisons["treatment"].values():
            assert [comparison.lower for comparison in by_estimand.values()] == [None, None]

    def test_a_sample_ratio_mismatch_makes_the_verdict_invalid(self) -> None:
        """The size of the effect does not matter."""
        groups = [*make_students("control", 1.5, 1000), *make_students("treatment", 2.0, 600)]
        verdict = _treatment_verdict(SENSITIVE_EXPERIMENT, groups, 14)
        assert (verdict.state, verdict.reasons[0].code) == ("invalid", "sample_ratio")

    def test_lost_events_make_the_verdict_invalid(self) -> None:
        """The content of lost events is unknown."""
        verdict = _treatment_verdict(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14, lost_events=3)
        assert (verdict.state, verdict.reasons[0].code) == ("invalid", "lost_events")

    def test_skipped_events_add_a_note_and_keep_the_state(self) -> None:
        """Skipped events are missing from all variants; otherwise the sample ratio test would raise an alarm."""
        skipped_events = SkippedEventCounts(
            responses=5, reactions=0, unnamed=0, first_ms=FIRST_DAY * DAY_MS, last_ms=time_after_days(14)
        )
        verdict = _treatment_verdict(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14, skipped_events=skipped_events)
        assert verdict.state == _treatment_verdict(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14).state
        (text,) = [note.text for note in verdict.notes if note.code == "skipped_events"]
        assert text.startswith("5 responses were skipped, dated 20")
        assert text.endswith(
            "did not have the experiment. To count them, `ab-monitor replay` all files into another database."
        )
        evidence = parse_evidence(json.loads(json.dumps(verdict.to_json()))["evidence"])
        assert decide_verdict(evidence).notes == verdict.notes

    def test_crossovers_are_a_share_of_all_students(self) -> None:
        """Nine of 809 students are more than one per cent."""
        groups = [*STUDENTS_WITH_EFFECT, *[StudentGroup("control", FIRST_DAY, 1.0)] * 9]
        students = sum_students(SENSITIVE_EXPERIMENT, groups)
        students.variant_records["control"][1] = 9
        verdict = analyze(SENSITIVE_EXPERIMENT, students, time_after_days(14)).verdicts["treatment"]
        assert (verdict.evidence.crossovers, verdict.evidence.students) == (9, 809)
        assert verdict.reasons[0].code == "crossovers"

    def test_an_empty_store_gives_insufficient_data_and_nulls(self) -> None:
        """Undefined numbers are null in JSON, not 0."""
        content = _printed_json(analyze(EXPERIMENT, sum_students(EXPERIMENT, []), 0))
        assert content["verdict"]["treatment"]["state"] == "insufficient_data"
        assert content["verdict"]["treatment"]["days_to_resolve"] is None
        assert content["comparisons"]["treatment"]["dcg@5"]["closed"]["lower"] is None

    def test_a_treatment_without_a_share_has_no_verdict(self) -> None:
        """Students who see the treatment all the same are stray traffic."""
        experiment = replace(EXPERIMENT, variants={"control": 1.0, "treatment": 0.0})
        analysis = _analyze_groups(experiment, STUDENTS_WITH_EFFECT, 14)
        assert analysis.verdicts == {}
        assert analysis.sample_ratio.stray_variants == ("treatment",)


class TestExperimentAge:
    """Entry days with complete windows, and students per day."""

    def test_entry_days_are_closed_from_the_first_student_or_the_start_on(self) -> None:
        """Students enter on ten days; a window is three days and a day for feedback."""
        students = sum_students(EXPERIMENT, STUDENTS_WITH_EFFECT)
        closed_days = [
            analyze(experiment, students, time_after_days(days)).verdicts["treatment"].evidence.closed_days
            for experiment, days in (
                (EXPERIMENT, 3.99),
                (EXPERIMENT, 4),
                (EXPERIMENT, 7.5),
                (EXPERIMENT, 50),
                (replace(EXPERIMENT, starts_at_ms=time_after_days(2.5)), 50),
            )
        ]
        assert closed_days == [0, 1, 4, 10, 8]

    def test_a_day_whose_record_has_returned_to_zero_does_not_count(self) -> None:
        """If a late event moves a student's first exposure to an earlier day, the old day stays in the store."""
        students = sum_students(EXPERIMENT, STUDENTS_WITH_EFFECT)
        empty_record = np.zeros(RecordLayout.for_experiment(EXPERIMENT).cohort_width, dtype=np.int64)
        control_cohorts = {FIRST_DAY - 20: empty_record, **students.cohorts["control"]}
        students = replace(students, cohorts={**students.cohorts, "control": control_cohorts})
        assert analyze(EXPERIMENT, students, time_after_days(5)).verdicts["treatment"].evidence.closed_days == 2

    @pytest.mark.parametrize("stray_day", [FIRST_DAY - 20_000, FIRST_DAY - 3, FIRST_DAY + 13])
    def test_a_stray_student_days_before_or_after_the_others_adds_no_entry_days(self, stray_day: int) -> None:
        """A single response with a wrong time does not satisfy `min_days`."""
        groups = [*STUDENTS_WITH_EFFECT, *make_students("control", 1.0, 1, days=1, first_day=stray_day)]
        assert _treatment_verdict(EXPERIMENT, groups, 50).evidence.closed_days == 10

    def test_few_students_on_the_first_days_of_a_ramp_up_are_entry_days(self) -> None:
        """Twelve of 4 012 students enter on the first two days."""
        groups = [
            *make_students("control", 1.0, 12, days=2),
            *make_students("control", 1.0, 4000, days=8, first_day=FIRST_DAY + 2),
        ]
        assert _treatment_verdict(EXPERIMENT, groups, 50).evidence.closed_days == 9

    def test_students_per_day_are_over_the_last_closed_week(self) -> None:
        """Days without students are included."""
        groups = [
            *make_students("control", 1.5, 100, days=1),
            *make_students("treatment", 2.0, 70, days=7, first_day=FIRST_DAY + 1),
        ]
        assert _treatment_verdict(EXPERIMENT, groups, 11).evidence.students_per_day == (0.0, 10.0)


class TestAllocationPhases:
    """Intended shares that change during the experiment."""

    def test_a_change_at_midnight_begins_a_phase(self) -> None:
        """Each phase has its own counts, and fits its own shares although the total fits neither."""
        experiment = _ramp_up_at(time_after_days(5))
        groups = [
            *make_students("control", 1.5, 900, days=5, seed=1),
            *make_students("treatment", 2.0, 100, days=5, seed=2),
            *make_students("control", 1.5, 500, days=5, seed=3, first_day=FIRST_DAY + 5),
            *make_students("treatment", 2.0, 500, days=5, seed=4, first_day=FIRST_DAY + 5),
        ]
        analysis = _analyze_groups(experiment, groups, 20)
        phases = analysis.verdicts["treatment"].evidence.phases
        assert [dict(phase.students) for phase in phases] == [
            {"control": 900, "treatment": 100},
            {"control": 500, "treatment": 500},
        ]
        assert not analysis.sample_ratio.alarm
        assert analysis.excluded_days == ()

    def test_the_day_within_which_shares_change_is_excluded_and_listed(self) -> None:
        """The stored sums of a day do not separate students before the change from students after the change."""
        experiment = _ramp_up_at(time_after_days(5) + 9 * HOUR_MS)
        groups = [*STUDENTS_WITH_EFFECT, *[StudentGroup("control", FIRST_DAY + 5, 4.0)] * 50]
        analysis = _analyze_groups(experiment, groups, 20)
        evidence = analysis.verdicts["treatment"].evidence
        assert [sum(phase.students.values()) for phase in evidence.phases] == [400, 320]
        assert evidence.arms.control.units == 360
        day = datetime.fromtimestamp(time_after_days(5) / 1000, UTC).date().isoformat()
        assert analysis.to_json()["sample_ratio"]["days_left_out"] == [day]

    def test_json_has_the_observed_share_of_each_variant_with_bounds(self) -> None:
        """Of each phase: the students, the observed share, and the bounds of the true share."""
        analysis = _analyze_groups(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14)
        content = analysis.to_json()["sample_ratio"]
        sample_ratio, (phase,) = analysis.sample_ratio, content["phases"]
        assert (content["alpha"], content["log_e"], content["alarm"]) == (
            sample_ratio.alpha,
            sample_ratio.log_e,
            sample_ratio.alarm,
        )
        assert content.keys() > {"p", "mismatch", "empty", "stray", "days_left_out"}
        assert sum(arm["students"] for arm in phase["arms"]) == phase["students"]
        for arm in phase["arms"]:
            assert arm.keys() == {"variant", "students", "intended", "observed", "lower", "upper"}
            assert arm["observed"] == arm["students"] / phase["students"]
            assert arm["lower"] < arm["observed"] < arm["upper"]

    def test_two_changes_within_a_day_leave_no_phase_between_them(self) -> None:
        """The shares between the two changes are in force on no whole day."""
        changes = tuple(AllocationSettings(time_after_days(5) + hour * HOUR_MS, EQUAL_SHARES) for hour in (9, 10))
        phases = list_allocation_phases(with_decision_settings(allocations=changes))
        assert [(phase.first_day, phase.end_day) for phase in phases] == [
            (None, FIRST_DAY + 5),
            (FIRST_DAY + 6, None),
        ]

    @pytest.mark.parametrize(("ms_into_day", "excluded_days"), [(0, []), (1, [4, 5]), (HOUR_MS, [5]), (-HOUR_MS, [4])])
    def test_a_change_near_midnight_leaves_both_days_out(self, ms_into_day: int, excluded_days: list[int]) -> None:
        """Configuration and chatbot are changed one after the other; a declared midnight is exact."""
        experiment = _ramp_up_at(time_after_days(5) + ms_into_day)
        phases = list_allocation_phases(experiment)
        days = [day for day in range(10) if not any(FIRST_DAY + day in phase for phase in phases)]
        assert days == excluded_days

    def test_a_ramp_up_does_not_reverse_the_sign_of_an_effect(self) -> None:
        """Bad days with few treated students, good days with many: pooled, the treatment would seem much better."""
        experiment = _ramp_up_at(time_after_days(5))
        groups = [
            *make_students("control", 1.0, 900, days=5, seed=1),
            *make_students("treatment", 0.8, 100, days=5, seed=2),
            *make_students("control", 3.0, 500, days=5, seed=3, first_day=FIRST_DAY + 5),
            *make_students("treatment", 2.8, 500, days=5, seed=4, first_day=FIRST_DAY + 5),
        ]
        pooled, stratified = (
            _analyze_groups(settings_of_phases, groups, 20).comparisons["treatment"]["dcg@5"]["closed"]
            for settings_of_phases in (EXPERIMENT, experiment)
        )
        assert (pooled.difference.effect or 0) > 0.5
        assert stratified.difference.effect == pytest.approx(-0.2, abs=0.06)

    def test_students_of_days_after_the_analysis_are_not_counted(self) -> None:
        """As of an earlier time, phases count students up to and including the day of that time."""
        verdict = _treatment_verdict(EXPERIMENT, STUDENTS_WITH_EFFECT, 5)
        assert verdict.evidence.phases[0].students == {"control": 240, "treatment": 240}


class TestAnalysisPlan:
    """Error levels, effects of interest and guardrails from the settings."""

    def test_each_treatment_has_an_equal_part_of_alpha(self) -> None:
        """Two treatments have half of alpha each; a variant that never has a share has no part."""
        shares = {"control": 0.4, "treatment": 0.3, "other": 0.3, "idle": 0.0}
        analysis = _analyze_groups(replace(EXPERIMENT, variants=shares), STUDENTS_WITH_EFFECT, 14)
        assert set(analysis.verdicts) == {"treatment", "other"}
        assert analysis.comparisons["treatment"]["rr@5"]["live"].alpha == 0.025

    def test_the_default_mde_is_a_hundredth_of_the_largest_value(self) -> None:
        """The MDE of another metric is the same share of the largest value of that metric."""
        evidence = _treatment_verdict(EXPERIMENT, STUDENTS_WITH_EFFECT, 14).evidence
        max_dcg = 4 * sum(1 / np.log2(rank + 1) for rank in range(1, 6))
        assert evidence.criteria.mde == pytest.approx(max_dcg / 100)
        assert {metric.name: metric.mde for metric in evidence.diagnostics}["rr@5"] == pytest.approx(0.01)

    def test_guardrails_can_be_metrics_and_the_rated_share(self) -> None:
        """Each guardrail is in its metric's own unit, with the largest possible value of a student."""
        guardrails = (GuardrailSettings("rr@5", "down", 0.1), GuardrailSettings("rated_share", "up", 0.2))
        verdict = _treatment_verdict(with_decision_settings(guardrails=guardrails), STUDENTS_WITH_EFFECT, 14)
        assert [(result.guardrail.name, result.guardrail.max_value) for result in verdict.guardrails] == [
            ("rr@5", 1.0),
            ("rated_share", 1.0),
        ]
        assert verdict.guardrails[1].control.mean == 0.75


@st.composite
def _student_groups(draw: st.DrawFn) -> list[StudentGroup]:
    """Draw a few groups of equal students, from none to a million times as many in one variant as in another."""
    groups = draw(
        st.lists(
            st.tuples(
                st.sampled_from(("control", "treatment", "other")),
                st.integers(FIRST_DAY - 3, FIRST_DAY + 12),
                st.sampled_from((0.0, 1e-9, 0.5, 1.0, 11.0)),
                st.sampled_from(((1, 0), (1, 1), (7, 3), (1_000_000, 1))),
                st.sampled_from((1, 2, 49, 50, 60, 5_000_000)),
            ),
            max_size=8,
        )
    )
    return [StudentGroup(variant, day, value, *responses, count) for variant, day, value, responses, count in groups]


class TestRobustness:
    """Any stored sums can be analyzed and printed."""

    @settings(max_examples=200)
    @given(_student_groups(), st.sampled_from((0.0, 3.9, 4.0, 9.5, 40.0)), st.sampled_from((0, 1, 2)))
    def test_any_sums_give_finite_json_and_a_reproducible_state(
        self, groups: list[StudentGroup], days: float, change_count: int
    ) -> None:
        """Numbers in the JSON are finite, and the printed evidence leads to the printed state."""
        shares = {"control": 0.6, "treatment": 0.399999, "other": 0.000001}
        changes = (
            AllocationSettings(time_after_days(2), EQUAL_SHARES),
            AllocationSettings(time_after_days(5.5), shares),
        )
        decision = DecisionSettings(allocations=changes[:change_count], min_days=0)
        experiment = replace(EXPERIMENT, variants=shares, decision=decision)
        for verdict in _printed_json(_analyze_groups(experiment, groups, days))["verdict"].values():
            assert decide_verdict(parse_evidence(verdict["evidence"])).state == verdict["state"]


class TestReproducibility:
    """Every verdict can be recomputed from the numbers that are printed with the verdict."""

    @pytest.mark.parametrize("days", [0.0, 6.0, 9.0, 14.0])
    @pytest.mark.parametrize("means", [(1.5, 2.0), (2.0, 1.5), (2.0, 2.0)])
    def test_a_verdict_can_be_recomputed_from_the_json(self, means: tuple[float, float], days: float) -> None:
        """State, reasons, bounds, guardrails, sample ratio and days, through text and back."""
        groups = [*make_students("control", means[0], seed=1), *make_students("treatment", means[1], seed=2)]
        content = _printed_json(_analyze_groups(SENSITIVE_EXPERIMENT, groups, days))
        verdict = content["verdict"]["treatment"]
        recomputed = json.loads(json.dumps(decide_verdict(parse_evidence(verdict["evidence"])).to_json()))
        for key in ("state", "reasons", "notes", "days_to_resolve"):
            assert recomputed[key] == verdict[key]
        assert recomputed["guardrails"] == content["guardrails"]["treatment"]
        for metric, comparison in [("dcg@5", recomputed["primary"]), *recomputed["diagnostics"]]:
            assert comparison.items() <= content["comparisons"]["treatment"][metric]["closed"].items()
        assert recomputed["sample_ratio"].items() <= content["sample_ratio"].items()
        assert recomputed["other_population"].items() <= verdict["other_population"].items()

    def test_a_live_comparison_can_be_recomputed_from_the_json(self) -> None:
        """From the printed estimates and level, and the MDE in the evidence."""
        content = _printed_json(_analyze_groups(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14))
        live = content["comparisons"]["treatment"]["dcg@5"]["live"]
        evidence = parse_evidence(content["verdict"]["treatment"]["evidence"])
        assert live["approximate"]
        recomputed = compare_variants(
            **_parse_estimates(live),
            alpha=live["alpha"],
            mde=evidence.criteria.mde,
            max_value=evidence.max_value,
            estimand="live",
        )
        assert (recomputed.lower, recomputed.upper, recomputed.p) == (live["lower"], live["upper"], live["p"])

    def test_the_sample_ratio_of_the_analysis_is_that_of_the_evidence(self) -> None:
        """The sample ratio is printed once for all verdicts."""
        analysis = _analyze_groups(SENSITIVE_EXPERIMENT, STUDENTS_WITH_EFFECT, 14)
        evidence = analysis.verdicts["treatment"].evidence
        assert analysis.sample_ratio == check_srm(evidence.phases, alpha=evidence.criteria.sample_ratio_alpha)


def _ramp_up_at(change_ms: int) -> ExperimentSettings:
    """Return the experiment with shares of 90 : 10 before a time and 50 : 50 from that time on."""
    return replace(
        EXPERIMENT,
        variants={"control": 0.9, "treatment": 0.1},
        decision=DecisionSettings(allocations=(AllocationSettings(change_ms, EQUAL_SHARES),)),
    )


def _parse_estimates(comparison: Mapping[str, Any]) -> dict[str, Any]:
    pair: EstimatePair = msgspec.convert({key: comparison[key] for key in ("control", "treatment")}, EstimatePair)
    return {"control": pair.control, "treatment": pair.treatment}


class TestSubgroupEffects:
    """Exploratory effects by category and by days since first exposure."""

    def test_only_the_segment_with_an_effect_is_discovered(self) -> None:
        """Exactly the intervals of discovered segments exclude 0; empty segments are listed."""
        analysis = _analyze_groups(SUBGROUP_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT, 14)
        segments = {segment.name: segment for segment in analysis.subgroup_effects["treatment"].segments}
        assert list(segments) == ["none", "fractions", "geometry", "other"]
        assert [name for name, segment in segments.items() if segment.discovered] == ["fractions"]
        lower, upper = segments["geometry"].comparison.lower, segments["geometry"].comparison.upper
        assert lower is not None
        assert upper is not None
        assert lower < 0 < upper
        assert (segments["fractions"].comparison.lower or 0) > 0
        assert segments["other"].comparison.control.units == 0

    def test_an_exposure_age_is_compared_once_it_is_over(self) -> None:
        """Age 0 is over for a day's students a feedback window after the next midnight."""
        students = sum_students(SUBGROUP_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT)
        for as_of_ms, expected_units in (
            (time_after_days(2), [60, 0, 0, 0, 0]),
            (time_after_days(2) - 1, [0, 0, 0, 0, 0]),
        ):
            effects = analyze(SUBGROUP_EXPERIMENT, students, as_of_ms).subgroup_effects["treatment"]
            assert [age.comparison.control.units for age in effects.exposure_ages] == expected_units

    def test_verdicts_do_not_depend_on_subgroups(self) -> None:
        """The same students, with and without subgroups; the evidence also has the counts of the segments."""
        verdict = _treatment_verdict(SUBGROUP_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT, 14)
        plain_verdict = _treatment_verdict(SENSITIVE_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT, 14)
        assert [segment.name for segment in verdict.evidence.segments] == ["none", "fractions", "geometry", "other"]
        evidence = msgspec.structs.replace(verdict.evidence, segments=())
        assert replace(verdict, evidence=evidence) == plain_verdict

    def test_json_lists_subgroups_and_has_empty_lists_without_subgroups(self) -> None:
        """By treatment, with all fields of a comparison."""
        content = _printed_json(_analyze_groups(SUBGROUP_EXPERIMENT, STUDENTS_WITH_SEGMENT_EFFECT, 14))
        fractions = content["segments"]["treatment"][1]
        assert (fractions["segment"], fractions["discovered"]) == ("fractions", True)
        assert fractions["control"]["units"] == 300
        assert [age["approximate"] for age in content["novelty"]["treatment"]] == [False] * 4 + [True]
        without_subgroups = replace(SENSITIVE_EXPERIMENT, categories=())
        content = _analyze_groups(without_subgroups, STUDENTS_WITH_SEGMENT_EFFECT, 14).to_json()
        assert (content["segments"], content["novelty"]) == ({"treatment": []}, {"treatment": []})


@pytest.mark.parametrize(("control_share", "state"), [(0.0, "unknown"), (0.02, "held")])
def test_a_guardrail_on_a_reaction_that_never_occurs_is_not_held(control_share: float, state: str) -> None:
    """Otherwise a kind that is misspelled in the configuration would let a treatment ship."""
    guardrail = Guardrail("feedback:escalatd", "up", 0.05, 1.0)
    control = Estimate(2000, control_share, control_share * 1e-6)
    assert evaluate_guardrail(guardrail, control, Estimate(2000, 0.0, 0.0), alpha=0.05).state == state
