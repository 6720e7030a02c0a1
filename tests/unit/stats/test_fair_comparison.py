"""The checks of who is compared: each withholds or qualifies a verdict that the interval alone would give."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.stats import (
    CupedAdjustment,
    DataQuality,
    DayCounts,
    DecisionCriteria,
    Estimate,
    EstimatePair,
    Guardrail,
    GuardrailEvidence,
    PhaseCounts,
    ResponseQuality,
    SegmentCounts,
    Verdict,
    VerdictEvidence,
    decide_verdict,
    evaluate_guardrail,
    parse_evidence,
)

EVEN = {"control": 0.5, "treatment": 0.5}


def _phase(control: int, treatment: int) -> PhaseCounts:
    return PhaseCounts.from_days(EVEN, [DayCounts(20_000, {"control": control, "treatment": treatment})])


def _pair(control: float, treatment: float, units: int = 5000, unit_variance: float = 1.0) -> EstimatePair:
    return EstimatePair(
        Estimate(units, control, unit_variance / units), Estimate(units, treatment, unit_variance / units)
    )


def _share_pair(control: float, treatment: float, units: int = 5000) -> EstimatePair:
    return EstimatePair(
        Estimate(units, control, control * (1 - control) / units),
        Estimate(units, treatment, treatment * (1 - treatment) / units),
    )


def _decide(**fields: Any) -> Verdict:
    """Return the verdict on a clear gain in an experiment without any fault but the given fields."""
    evidence = VerdictEvidence(
        control="control",
        treatment="treatment",
        metric="dcg@5",
        criteria=fields.pop("criteria", DecisionCriteria(mde=0.1, margin=0.0)),
        arms=_pair(2.0, 2.2),
        closed_days=fields.pop("closed_days", 10),
        students_per_day=(500.0, 500.0),
        phases=(_phase(6000, 6000),),
        compared_phases=(_phase(5000, 5000),),
        units=12_000,
        students=12_000,
        rated_share=_share_pair(0.4, 0.4),
        other_population=_pair(0.8, 0.88),
        max_value=12.0,
    )
    verdict = decide_verdict(msgspec.structs.replace(evidence, **fields))
    printed = parse_evidence(msgspec.json.decode(msgspec.json.encode(verdict.evidence)))
    assert decide_verdict(printed) == verdict, "the printed evidence reproduces the verdict"
    return verdict


def _codes(verdict: Verdict) -> set[str]:
    return {reason.code for reason in (*verdict.reasons, *verdict.notes)}


def test_without_any_fault_the_gain_is_shipped() -> None:
    """The reference case of this module."""
    verdict = _decide()
    assert verdict.state == "ship"
    assert _codes(verdict) == {"better"}


@pytest.mark.parametrize("margin", [0.0, 0.5])
def test_an_uneven_split_of_the_compared_students_withholds_ship_and_non_inferior(margin: float) -> None:
    """Students are split evenly at first exposure, but a tenth of the treatment's students has stopped rating."""
    verdict = _decide(criteria=DecisionCriteria(0.1, margin), compared_phases=(_phase(5000, 4500),))
    assert verdict.state == "continue"
    assert "compared_sample_ratio" in {reason.code for reason in verdict.reasons}


def test_the_sentence_on_the_compared_students_names_all_variants() -> None:
    """The students of both variants of a verdict may be equal in number while a third variant causes the mismatch."""
    shares = {"control": 0.4, "treatment": 0.4, "other": 0.2}
    phase = PhaseCounts(shares, {"control": 5000, "treatment": 5000, "other": 0})
    (reason,) = (reason for reason in _decide(compared_phases=(phase,)).reasons if reason.code.startswith("compared"))
    assert "0 students of other" in reason.text


def test_an_uneven_split_of_the_compared_students_does_not_hide_harm() -> None:
    """A loss is reported in spite of the uneven split."""
    assert _decide(arms=_pair(2.2, 2.0), compared_phases=(_phase(5000, 4500),)).state == "stop_harm"


def test_with_another_rated_share_the_other_population_must_agree() -> None:
    """The rated share falls by 4 points, which the old limit of 5 points allowed; over all responses it is a loss."""
    agreeing = _decide(rated_share=_share_pair(0.40, 0.36), other_population=_pair(0.8, 0.9))
    assert agreeing.state == "ship"
    assert "rated_share_differs" in _codes(agreeing)
    harmed = _decide(rated_share=_share_pair(0.40, 0.36), other_population=_pair(0.8, 0.7))
    assert harmed.state == "continue"
    assert "populations_disagree" in _codes(harmed)


def test_undefined_values_that_depend_on_the_variant_must_not_cause_the_gain() -> None:
    """The treatment has more students without any gain: left out it is better, counted as 0 it is not."""
    shares = _share_pair(0.05, 0.15)
    agreeing = _decide(undefined_share=shares, undefined_as_zero=_pair(1.9, 2.1))
    assert agreeing.state == "ship"
    assert "undefined_share_differs" in _codes(agreeing)
    assert _decide(undefined_share=shares, undefined_as_zero=_pair(1.9, 1.87)).state == "continue"
    assert _decide(undefined_share=_share_pair(0.05, 0.05), undefined_as_zero=_pair(1.9, 1.87)).state == "ship"
    # Within a tolerable loss, a better primary metric never has a worse state.
    tolerant = DecisionCriteria(0.1, 0.2)
    for effect in (0.0, 0.2):
        arms = _pair(2.0, 2.0 + effect)
        verdict = _decide(
            criteria=tolerant, arms=arms, undefined_share=shares, undefined_as_zero=_pair(1.9, 1.88), guardrails=()
        )
        assert verdict.state == "non_inferior"


def test_responses_without_user_id_make_no_decision_beyond_one_percent() -> None:
    """Several of them may come from one student, so they are no independent units."""
    assert _decide(anonymous_units=120).state == "ship"
    verdict = _decide(anonymous_units=121)
    assert (verdict.state, verdict.reasons[0].code) == ("invalid", "anonymous_units")
    assert "1.01 %" in verdict.reasons[0].text


def test_the_minimum_duration_counts_entry_days_with_complete_windows() -> None:
    """Fourteen days after the start, six entry days are not enough for whole weeks."""
    verdict = _decide(closed_days=6)
    assert verdict.state == "insufficient_data"
    assert verdict.reasons[0].text == (
        "The windows of the students of 6 entry days are complete; at least 7 entry days are required (min_days): "
        "about 1 more day."
    )
    assert _decide(closed_days=7).state == "ship"


def test_a_verdict_names_the_units_that_are_compared() -> None:
    """With unit = "group", numbers of groups are not called numbers of students."""
    for fields in (
        {"closed_days": 6},
        {"closed_days": 6, "has_new_students": False},
        {"crossovers": 900},
        {"arms": _pair(1.0, 1.1, units=3)},
        {"segments": (SegmentCounts("algebra", (_phase(3000, 2000),)),)},
        {"excluded_phases": (_phase(300, 200),)},
    ):
        (student_text, *_), (group_text, *_) = (
            [reason.text for reason in _decide(unit=unit, **fields).reasons] for unit in ("user", "group")
        )
        assert "tudent" in student_text
        assert group_text == student_text.replace("student", "group").replace("Student", "Group")


def test_a_segment_with_another_split_makes_the_comparison_invalid() -> None:
    """The mismatches of two segments cancel out over all students."""
    segments = (SegmentCounts("algebra", (_phase(3000, 2000),)), SegmentCounts("essays", (_phase(2000, 3000),)))
    verdict = _decide(segments=segments)
    assert verdict.state == "invalid"
    assert [reason.code for reason in verdict.reasons] == ["segment_sample_ratio"] * 2
    assert "algebra" in verdict.reasons[0].text


def test_excluded_students_of_another_split_make_the_comparison_invalid() -> None:
    """The exclusion depends on the variant, although the split of the compared students is as intended."""
    assert _decide(excluded_phases=(_phase(250, 250),)).state == "ship"
    verdict = _decide(excluded_phases=(_phase(300, 200),))
    assert verdict.state == "invalid"
    (reason,) = verdict.reasons
    assert reason.code == "excluded_sample_ratio"
    assert "control has 300" in reason.text
    assert "treatment has 200" in reason.text


def test_a_split_that_changes_within_the_day_makes_the_comparison_invalid() -> None:
    """Mornings get too many students of the control, evenings too few; over the day the split is even."""
    morning = SegmentCounts("08:00–09:00 UTC", (_phase(700, 500),))
    noon = SegmentCounts("12:00–13:00 UTC", (_phase(600, 600),))
    evening = SegmentCounts("18:00–19:00 UTC", (_phase(480, 720),))
    verdict = _decide(exposure_hours=(morning, noon, evening))
    assert (verdict.state, [reason.code for reason in verdict.reasons]) == ("invalid", ["hour_sample_ratio"])
    assert "at 18:00–19:00 UTC and 1 other hour are not split" in verdict.reasons[0].text
    assert _decide(exposure_hours=(noon,) * 24).state == "ship"


@pytest.mark.parametrize(
    ("name", "mean", "deviation"), [("latency_ms", 600.0, 400.0), ("responses_per_student", 3.0, 2.0)]
)
def test_a_relative_margin_of_an_unbounded_metric_can_be_held(name: str, mean: float, deviation: float) -> None:
    """With 20 000 students per variant, a tenth of the mean is many standard errors."""
    guardrail = Guardrail(name, "up", 0.1, is_relative=True)
    arm = Estimate(20_000, mean, deviation**2 / 20_000)
    assert evaluate_guardrail(guardrail, arm, arm, alpha=0.05).state == "held"


def test_late_delivery_that_depends_on_the_variant_is_a_note() -> None:
    """The newest closed days lack the events that have not arrived."""
    verdict = _decide(late_arrivals=_share_pair(0.02, 0.12))
    (note,) = (reason for reason in verdict.notes if reason.code == "delivery_differs")
    assert "2.00 % of control and 12.00 % of treatment came more than an hour" in note.text
    assert "delivery_differs" not in _codes(_decide(late_arrivals=_share_pair(0.12, 0.12)))


def test_crossovers_are_tested_by_first_variant_and_bounded() -> None:
    """One percent of crossovers is within the limit, unless most of them began in one variant."""
    even = _decide(left_out_phases=(_phase(25, 25),), crossovers=50)
    assert even.state == "ship"
    (note,) = (reason for reason in even.notes if reason.code == "left_out_students")
    # 25 of 5025 students left out of each variant, with values from 0 to 12 and means 2.0 and 2.2.
    fall, rise = 25 / 5025 * (2.2 + 10.0), 25 / 5025 * (9.8 + 2.0)
    assert f"lower the effect by {fall:.4f} or raise it by {rise:.4f}" in note.text
    assert _decide(left_out_phases=(_phase(5, 45),), crossovers=50).reasons[0].code == "uneven_crossovers"


def test_an_unbalanced_covariate_leaves_the_decision_to_the_unadjusted_comparison() -> None:
    """Students of the treatment were better before the experiment already."""
    adjustment = CupedAdjustment(0.5, 8000, _pair(2.0, 2.05), _pair(0.8, 0.82), _pair(2.0, 2.0), _share_pair(0.8, 0.8))
    balanced = _decide(adjustment=adjustment)
    assert balanced.state == "ship"
    assert "adjusted" in _codes(balanced)
    for unbalanced in (
        replace(adjustment, covariate=_pair(2.0, 2.2)),
        replace(adjustment, covered_share=_share_pair(0.8, 0.7)),
    ):
        verdict = _decide(adjustment=unbalanced)
        assert verdict.primary.difference.effect == pytest.approx(0.05)
        assert verdict.state == "continue"
        assert "covariate_unbalanced" in _codes(verdict)
        assert verdict.unadjusted is None, "pages and JSON report no adjustment that is not used"
        assert verdict.variance_reduction is None


@pytest.mark.parametrize(("adjusted_variance", "change"), [(0.5, "reduces"), (1.1, "increases")])
def test_the_note_on_cuped_states_whether_the_variance_falls(adjusted_variance: float, change: str) -> None:
    """The students without a covariate, or few students, may cause a larger variance."""
    adjustment = CupedAdjustment(0.5, 8000, _pair(2.0, 2.2), _pair(0.8, 0.9), _pair(2.0, 2.0), _share_pair(0.8, 0.8))
    verdict = _decide(adjustment=adjustment, arms=_pair(2.0, 2.2, unit_variance=adjusted_variance))
    (note,) = (reason for reason in verdict.notes if reason.code == "adjusted")
    assert f"{change} the variance of the effect by {'50.0' if change == 'reduces' else '10.0'} %" in note.text


def test_a_mismatch_that_later_students_hide_is_reported_as_earlier() -> None:
    """The shares are even again, so the sentence does not state that they are uneven now."""
    days = [
        DayCounts(20_000, {"control": 100, "treatment": 170}),
        DayCounts(20_001, {"control": 5070, "treatment": 5000}),
    ]
    (reason,) = _decide(phases=(PhaseCounts.from_days(EVEN, days),)).reasons
    assert reason.text.startswith("Students were not split as intended, which later students hide; now control has")
    assert "detected on 2024-10-04" in reason.text


def test_one_lost_event_is_singular() -> None:
    """The pronoun agrees with the number."""
    assert "1 event was lost before the monitor could count it." in {
        reason.text for reason in _decide(lost_events=1).reasons
    }


def test_live_and_closed_effects_that_exclude_each_other_are_reported() -> None:
    """The note does not change the state."""
    verdict = _decide(live=_pair(2.0, 1.9))
    assert verdict.state == "ship"
    assert "live_disagrees" in _codes(verdict)
    assert "live_disagrees" not in _codes(_decide(live=_pair(2.0, 2.15)))


def test_futile_excludes_a_gain_and_says_so() -> None:
    """A loss is not excluded, so the sentence is about gains only."""
    verdict = _decide(arms=_pair(2.0, 1.99), criteria=DecisionCriteria(mde=0.1, margin=0.0))
    assert verdict.state == "futile"
    assert verdict.reasons[0].text == (
        "A gain on dcg@5 of 0.1, the smallest effect of interest, or more can be excluded."
    )


class TestGuardrails:
    """Relative margins, guardrails that cannot fail, and the error rate of several guardrails."""

    def test_a_relative_margin_is_crossed_by_a_fall_that_an_absolute_one_allows(self) -> None:
        """Where 4 % rate, a fall to 3 % is a quarter of the ratings, and 5 points can never be lost."""
        arms = _share_pair(0.04, 0.03, units=100_000)
        relative = Guardrail("rated_share", "down", 0.1, 1.0, is_relative=True)
        absolute = Guardrail("rated_share", "down", 0.05, 1.0)
        assert evaluate_guardrail(relative, arms.control, arms.treatment, alpha=0.05).state == "crossed"
        assert evaluate_guardrail(absolute, arms.control, arms.treatment, alpha=0.05).state == "tolerable"

    @pytest.mark.parametrize(("treatment", "state"), [(0.40, "held"), (0.37, "open"), (0.32, "crossed")])
    def test_a_relative_margin_is_held_open_or_crossed(self, treatment: float, state: str) -> None:
        """A tenth of 40 % is 4 points."""
        guardrail = Guardrail("rated_share", "down", 0.1, 1.0, is_relative=True)
        arms = _share_pair(0.4, treatment, units=10_000)
        result = evaluate_guardrail(guardrail, arms.control, arms.treatment, alpha=0.05)
        assert result.state == state
        assert result.margin == pytest.approx(0.04)

    @given(st.floats(0.01, 0.9), st.floats(0.01, 0.9), st.integers(50, 100_000), st.sampled_from(["up", "down"]))
    def test_the_bounds_and_the_margin_agree_with_the_state(
        self, control: float, treatment: float, units: int, direction: Literal["up", "down"]
    ) -> None:
        """Also for a relative margin, whose size is estimated: a sentence with both never contradicts itself."""
        guardrail = Guardrail("rated_share", direction, 0.1, 1.0, is_relative=True)
        arms = _share_pair(control, treatment, units)
        result = evaluate_guardrail(guardrail, arms.control, arms.treatment, alpha=0.05, guardrails=2)
        assert result.margin is not None
        assert result.least_harm is not None
        assert result.most_harm is not None
        assert result.is_held == (result.most_harm < result.margin)
        assert result.state != "tolerable" or result.least_harm > 0
        assert (result.state == "crossed") == (result.least_harm > result.margin)

    def test_a_guardrail_that_cannot_fail_is_reported(self) -> None:
        """The margin is as large as the share itself."""
        guardrail = Guardrail("rated_share", "down", 0.05, 1.0)
        verdict = _decide(guardrails=(GuardrailEvidence(guardrail, _share_pair(0.04, 0.04)),))
        assert "guardrail_idle" in _codes(verdict)
        assert "guardrail_idle" not in _codes(
            _decide(guardrails=(GuardrailEvidence(guardrail, _share_pair(0.4, 0.4)),))
        )

    def test_a_relative_guardrail_is_not_idle_because_the_control_has_a_mean_of_0(self) -> None:
        """The advice to set a relative margin would be wrong: the margin is relative already."""
        guardrail = Guardrail("rated_share", "down", 0.1, 1.0, is_relative=True)
        verdict = _decide(guardrails=(GuardrailEvidence(guardrail, _share_pair(0.0, 0.0)),))
        assert "guardrail_idle" not in _codes(verdict)

    def test_a_guardrail_is_not_idle_while_the_control_has_few_students(self) -> None:
        """The mean of a few students does not show whether the margin is too large."""
        guardrail = Guardrail("rated_share", "down", 0.05, 1.0)
        verdict = _decide(guardrails=(GuardrailEvidence(guardrail, _share_pair(0.0, 0.0, units=2)),))
        assert "guardrail_idle" not in _codes(verdict)

    def test_alpha_is_split_over_guardrails_for_crossing_only(self) -> None:
        """With ten guardrails the lower bound of the harm is lower, and the upper bound is the same."""
        guardrail, arms = Guardrail("share:escalated", "up", 0.01, 1.0), _share_pair(0.02, 0.04)
        single = evaluate_guardrail(guardrail, arms.control, arms.treatment, alpha=0.05)
        one_of_ten = evaluate_guardrail(guardrail, arms.control, arms.treatment, alpha=0.05, guardrails=10)
        assert one_of_ten.crossing_alpha == pytest.approx(0.005)
        assert single.least_harm is not None
        assert one_of_ten.least_harm is not None
        assert one_of_ten.least_harm < single.least_harm
        assert one_of_ten.most_harm == single.most_harm


class TestPower:
    """The days until a decision is likely."""

    def test_80_percent_power_takes_longer_than_50_percent_and_includes_guardrails(self) -> None:
        """A guardrail with a small margin takes longest."""
        plain = _decide(arms=_pair(2.0, 2.05, units=500))
        assert plain.days_to_resolve is not None
        assert plain.days_to_power is not None
        assert 0 < plain.days_to_resolve < plain.days_to_power
        guardrail = GuardrailEvidence(Guardrail("share:escalated", "up", 0.002, 1.0), _share_pair(0.05, 0.05, 500))
        guarded = _decide(arms=_pair(2.0, 2.05, units=500), guardrails=(guardrail,))
        assert guarded.days_to_power is not None
        assert guarded.days_to_power > plain.days_to_power

    def test_a_wait_of_more_than_90_days_is_reported(self) -> None:
        """With 5 students a day, an effect of 0.1 takes years."""
        verdict = _decide(arms=_pair(2.0, 2.05, units=500), students_per_day=(5.0, 5.0))
        assert verdict.state == "continue"
        assert "low_power" in _codes(verdict)


class TestDistantMde:
    """An mde that is far from the effects that the data can show."""

    @pytest.mark.parametrize("state", ["continue", "insufficient_data"])
    def test_an_mde_that_90_days_do_not_nearly_resolve_is_reported(self, state: str) -> None:
        """The interval is then still wider than three times the mde, also if no time to its resolution is known."""
        verdict = _decide(
            criteria=DecisionCriteria(0.001, 0.0),
            arms=_pair(2.0, 2.01, units=500),
            students_per_day=(5.0, 5.0),
            closed_days=10 if state == "continue" else 1,
        )
        assert (verdict.state, verdict.days_to_power) == (state, None)
        (note,) = (note for note in verdict.notes if note.code == "low_power")
        assert "after 90 days, over 3 times the smallest effect of interest, 0.001" in note.text

    def test_an_mde_of_more_than_five_half_widths_is_reported(self) -> None:
        """The data show much smaller effects. The state does not change."""
        verdict = _decide(criteria=DecisionCriteria(1.0, 0.0))
        assert verdict.state == "ship"
        (note,) = (note for note in verdict.notes if note.code == "coarse_mde")
        assert "over 5 times smaller" in note.text
        assert not note.is_warning

    def test_an_mde_near_the_resolution_has_no_note(self) -> None:
        """The interval is ±0.06 for an mde of 0.1."""
        assert not {"low_power", "coarse_mde"} & _codes(_decide())


def test_the_relative_effect_has_bounds() -> None:
    """+10 %, with an interval that excludes 0 because the absolute one does."""
    lower, upper = _decide().relative_bounds
    assert lower is not None
    assert upper is not None
    assert 0 < lower < 0.1 < upper


def _quality(rejected: tuple[int, int], undeclared: int = 0, responses: int = 5000) -> DataQuality:
    variants = {
        name: ResponseQuality(responses, {"repeated_item": number} if number else {})
        for name, number in zip(("control", "treatment"), rejected, strict=True)
    }
    return DataQuality(variants, {"T": undeclared} if undeclared else {})


def test_rejections_that_depend_on_the_variant_make_the_comparison_invalid() -> None:
    """The rejected responses may be the worst of the variant, however few they are among all events."""
    verdict = _decide(data_quality=_quality((0, 495)), rejected_share=0.0065)
    assert verdict.state == "invalid"
    assert verdict.reasons[0].code == "uneven_rejections"
    assert "9.01 % of treatment and 0.00 % of control" in verdict.reasons[0].text


def test_missing_responses_that_could_change_the_effect_make_the_comparison_invalid() -> None:
    """Nobody knows to which variant the responses of an undeclared variant belong."""
    verdict = _decide(data_quality=_quality((0, 0), undeclared=300))
    assert (verdict.state, verdict.reasons[0].code) == ("invalid", "many_rejections")
    assert "300 responses of undeclared variants ('T' (did you mean treatment?))" in verdict.reasons[0].text


def test_responses_of_a_misspelt_experiment_make_the_comparison_invalid() -> None:
    """They may all be the worst responses of one variant."""
    quality = msgspec.structs.replace(_quality((0, 0)), other_spellings={"Ranker V2": 300})
    verdict = _decide(data_quality=quality)
    assert (verdict.state, verdict.reasons[0].code) == ("invalid", "many_rejections")
    assert "300 responses with another spelling of the experiment ('Ranker V2')" in verdict.reasons[0].text


def test_a_number_of_entry_days_that_cannot_grow_is_not_promised() -> None:
    """All students entered on two days: no further day comes."""
    verdict = _decide(closed_days=2, has_new_students=False)
    assert "2 entry days are complete" in verdict.reasons[0].text
    assert "the number does not grow. Lower min_days, or add students." in verdict.reasons[0].text


def test_missing_group_ids_are_named_if_the_units_are_groups() -> None:
    """A user id would not help."""
    for unit, field in (("group", "group_id"), ("class_id", "class_id")):
        text = _decide(anonymous_units=500, unit=unit).reasons[0].text
        assert f"without a {field}" in text
        assert f"Send a {field} with each response." in text


def test_a_large_share_of_missing_responses_is_a_warning_if_their_effect_is_unknown() -> None:
    """Without a largest value, no bound of the effect is known."""
    verdict = _decide(data_quality=_quality((100, 100)), max_value=None)
    assert verdict.state == "ship"
    (note,) = (note for note in verdict.notes if note.code == "many_rejections")
    assert note.is_warning


def test_few_missing_responses_are_a_note() -> None:
    """The verdict states their number and cause."""
    verdict = _decide(data_quality=_quality((3, 2)))
    assert verdict.state == "ship"
    assert not verdict.has_warnings
    (note,) = (note for note in verdict.notes if note.code == "rejections")
    assert note.text == "0.05 % of the responses are missing from the comparison: 5 responses rejected."
