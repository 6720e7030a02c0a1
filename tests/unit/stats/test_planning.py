"""Planning: hand-computed numbers of students and days, and agreement with the verdict of the same data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from monitor.days import day_calendar
from monitor.stats import (
    DecisionCriteria,
    Estimate,
    EstimatePair,
    Guardrail,
    GuardrailEvidence,
    PlanAssumptions,
    PlannedGuardrail,
    Schedule,
    Shares,
    StudentValues,
    Verdict,
    VerdictEvidence,
    decide_verdict,
    is_cohort_closed,
    plan_shares,
    resolvable_effects,
)
from monitor.stats.comparison import information_to_hold, information_to_resolve
from monitor.stats.planning import students_to_hold, students_to_resolve

DAY_MS = 86_400_000
EVEN, UNEVEN = Shares(0.5, 0.5), Shares(0.9, 0.1)
VALUES = StudentValues(mean=3.0, variance=4.0)
ASSUMPTIONS = PlanAssumptions(0.2, VALUES, replace(VALUES, variance=5.0), Schedule(students_per_day=100))
RATED = StudentValues(mean=0.4, variance=0.12)


def _escalations(margin: float) -> Guardrail:
    """Return the guardrail on escalations with a margin."""
    return Guardrail("share:escalated", "up", margin, max_value=1.0)


def _verdict(
    units: tuple[int, int],
    per_day: tuple[float, float],
    guardrail: PlannedGuardrail | None = None,
    mde: float = ASSUMPTIONS.mde,
) -> Verdict:
    """Return the verdict of an experiment without any effect or harm, with the variances of `ASSUMPTIONS`."""

    def pair(control: StudentValues, treatment: StudentValues) -> EstimatePair:
        return EstimatePair(
            *(
                Estimate(number, control.mean, values.variance / number)
                for number, values in zip(units, (control, treatment), strict=True)
            )
        )

    return decide_verdict(
        VerdictEvidence(
            control="control",
            treatment="treatment",
            metric="dcg@5",
            criteria=DecisionCriteria(mde=mde, margin=0.0),
            arms=pair(ASSUMPTIONS.control, ASSUMPTIONS.treatment),
            closed_days=9,
            students_per_day=per_day,
            phases=(),
            guardrails=()
            if guardrail is None
            else (GuardrailEvidence(guardrail.guardrail, pair(guardrail.control, guardrail.treatment)),),
        )
    )


@pytest.mark.parametrize("shares", [EVEN, UNEVEN])
@pytest.mark.parametrize("power", [0.5, 0.8])
def test_students_are_the_needed_information_times_the_variance_of_one_student(shares: Shares, power: float) -> None:
    """N = I·(V_c/a + V_t/b)."""
    needed = information_to_resolve(0.2, 0.05, power) * (4 / shares.control + 5 / shares.treatment)
    assert students_to_resolve(ASSUMPTIONS, shares, power) == pytest.approx(needed)


@pytest.mark.parametrize("shares", [EVEN, UNEVEN])
def test_planned_students_agree_with_the_days_to_resolve_of_the_verdict(shares: Shares) -> None:
    """The verdict's days are those in which the students come who are missing."""
    planned = students_to_resolve(ASSUMPTIONS, shares, 0.5)
    assert planned is not None
    units = round(1000 * shares.control), round(1000 * shares.treatment)
    days = _verdict(units, (100 * shares.control, 100 * shares.treatment)).days_to_resolve
    assert days == pytest.approx((planned - 1000) / 100)


@pytest.mark.parametrize("margin", [0.02, 0.2])
def test_planned_students_agree_with_the_days_to_power_of_the_verdict(margin: float) -> None:
    """With a guardrail that needs more students than the effect, and with one that needs fewer."""
    guardrail = PlannedGuardrail(_escalations(margin), RATED, RATED)
    assumptions = replace(ASSUMPTIONS, guardrails=(guardrail,))
    ((requirement,),) = [plan.requirements for plan in plan_shares(assumptions, [EVEN], [0.8])]
    days = _verdict((500, 500), (50, 50), guardrail).days_to_power
    assert requirement.students is not None
    assert days == pytest.approx((requirement.students - 1000) / 100)
    assert requirement.last_test == ("share:escalated" if margin == 0.02 else None)
    assert requirement.days == pytest.approx(requirement.students / 100 + 3)


def test_more_treatments_need_more_students() -> None:
    """Each treatment has an equal part of alpha."""
    one, three = (
        students_to_resolve(replace(ASSUMPTIONS, treatments=treatments), Shares(0.25, 0.25), 0.8)
        for treatments in (1, 3)
    )
    assert one is not None
    assert three is not None
    assert three > 1.15 * one


def test_rare_successes_need_more_students_than_the_variance_alone() -> None:
    """So that at least 20 students of each variant differ from 0."""
    rare = StudentValues(mean=0.002, variance=0.002 * 0.998)
    assumptions = PlanAssumptions(0.02, rare, rare, Schedule(100))
    plain = students_to_resolve(assumptions, EVEN, 0.8)
    corrected = students_to_resolve(replace(assumptions, max_value=1.0), EVEN, 0.8)
    assert plain is not None
    assert corrected is not None
    assert corrected > 1.3 * plain


def test_a_relative_margin_needs_as_many_students_as_the_verdict_predicts() -> None:
    """The contrast is with (1 − r) times the control's mean, and the sequence is not tuned for that mean."""
    guardrail = PlannedGuardrail(Guardrail("rated_share", "down", 0.1, max_value=1.0, is_relative=True), RATED, RATED)
    students = students_to_hold(replace(ASSUMPTIONS, guardrails=(guardrail,)), guardrail, EVEN, 0.9)
    assert students is not None
    assert students == pytest.approx(information_to_hold(0.04, 0.05, 0.9, 0.025) * (0.81 * 0.12 / 0.5 + 0.12 / 0.5))
    days = _verdict((500, 500), (50, 50), guardrail, mde=1.0).days_to_power
    assert days == pytest.approx((students - 1000) / 100)


def test_a_guardrail_that_more_students_have_needs_fewer_days() -> None:
    """Half of the students are rated, so a day has twice as many with a share of escalations."""
    guardrail = PlannedGuardrail(_escalations(0.02), RATED, RATED)
    once, twice = (
        students_to_hold(ASSUMPTIONS, replace(guardrail, students_ratio=ratio), EVEN, 0.8) for ratio in (1.0, 2.0)
    )
    assert once is not None
    assert twice == pytest.approx(once / 2)


def test_a_time_out_that_the_sample_may_lack_needs_six_to_seven_students_per_time_out_and_margin() -> None:
    """As in docs/statistics.md: 1800 to 2100 students per variant for 30 s and 100 ms."""
    latency = StudentValues(mean=800.0, variance=300.0**2)
    guardrail = Guardrail("latency_ms", "up", 100.0, timeout_value=30_000.0)
    students = students_to_hold(ASSUMPTIONS, PlannedGuardrail(guardrail, latency, latency), EVEN, 0.5)
    assert students is not None
    assert 1700 < students / 2 < 2200


def test_a_guardrail_without_any_event_makes_the_plan_unknown() -> None:
    """Its variance is unknown."""
    never = StudentValues(0.0, 0.0)
    assumptions = replace(ASSUMPTIONS, guardrails=(PlannedGuardrail(_escalations(0.02), never, never),))
    ((requirement,),) = [plan.requirements for plan in plan_shares(assumptions, [EVEN], [0.8])]
    assert (requirement.students, requirement.days, requirement.is_reachable) == (None, None, False)
    assert requirement.last_test == "share:escalated"


def test_fewer_than_50_students_in_a_variant_never_decide() -> None:
    """However large the effect is."""
    assert students_to_resolve(replace(ASSUMPTIONS, mde=100.0), UNEVEN, 0.8) == pytest.approx(500)


@pytest.mark.parametrize("exposure_days", [1, 3])
@pytest.mark.parametrize("entry_days", [2, 9])
def test_the_planned_day_is_the_one_on_which_the_last_cohort_closes(exposure_days: int, entry_days: int) -> None:
    """With a feedback window of 12 hours."""
    calendar, closing_ms = day_calendar("UTC"), DAY_MS // 2
    days = Schedule(100, exposure_days, 0.5, min_days=1).days_to_decide(100 * entry_days)
    at_ms = round(days * DAY_MS)
    assert is_cohort_closed(entry_days - 1, calendar, at_ms, exposure_days, closing_ms)
    assert not is_cohort_closed(entry_days - 1, calendar, at_ms - 1, exposure_days, closing_ms)


@pytest.mark.parametrize("max_value", [None, 5.0])
def test_resolvable_effects_need_the_students_of_the_day(max_value: float | None) -> None:
    """An mde from the table, planned for, needs exactly the students of that day."""
    assumptions = replace(ASSUMPTIONS, max_value=max_value)
    early, late = resolvable_effects(assumptions, EVEN, 0.8, [7, 28])
    assert early.mde is None
    assert late.mde is not None
    assert late.students == 2500
    assert students_to_resolve(replace(assumptions, mde=late.mde), EVEN, 0.8) == pytest.approx(2500)


def test_a_pre_period_lowers_the_students_by_the_squared_correlation() -> None:
    """A correlation of 0.6 saves 36 %."""
    plain = students_to_resolve(ASSUMPTIONS, EVEN, 0.8)
    reduced = students_to_resolve(ASSUMPTIONS.reduce_variance(0.36), EVEN, 0.8)
    assert plain is not None
    assert reduced == pytest.approx(0.64 * plain)


def test_a_plan_beyond_a_year_is_not_reachable() -> None:
    """The days are still known."""
    assumptions = replace(ASSUMPTIONS, mde=0.01)
    ((requirement,),) = [plan.requirements for plan in plan_shares(assumptions, [EVEN], [0.8])]
    assert not requirement.is_reachable
    assert requirement.days is not None
    assert requirement.days > 365


def test_wrong_assumptions_are_rejected() -> None:
    """The message names the value and the expectation."""
    with pytest.raises(ValueError, match="students_per_day is 0, expected a finite number above 0"):
        Schedule(0)
    with pytest.raises(ValueError, match=r"shares are 0.0 and 1.0, expected positive numbers"):
        Shares(0.0, 1.0)
    with pytest.raises(ValueError, match="variance is 0 in both variants"):
        replace(ASSUMPTIONS, control=StudentValues(1.0, 0.0), treatment=StudentValues(1.0, 0.0))
