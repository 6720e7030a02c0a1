"""Variance corrections for small samples, in comparisons, guardrails, segments and verdicts."""

from __future__ import annotations

import math
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.stats import (
    DecisionCriteria,
    EstimatePair,
    Guardrail,
    PhaseCounts,
    SampleMeanStatistic,
    VariantComparison,
    VerdictEvidence,
    compare_segments,
    compare_variants,
    decide_verdict,
)
from monitor.stats.confidence_sequences import NormalMixture, mde_information
from monitor.stats.estimates import Estimate, estimate_effect, estimate_stratified
from monitor.stats.guardrails import evaluate_guardrail

MDE, ALPHA = 0.05, 0.05


def proportion(students: int, successes: int) -> Estimate:
    """Return the estimate of a success rate."""
    return SampleMeanStatistic(students, float(successes), float(successes)).estimate()


def compare_proportions(control: Estimate, treatment: Estimate, max_value: float | None = 1.0) -> VariantComparison:
    """Return the comparison of two success rates."""
    return compare_variants(control, treatment, alpha=ALPHA, mde=MDE, max_value=max_value)


def round_trip_json(estimate: Estimate) -> Estimate:
    """Return the estimate after encoding to JSON and decoding."""
    return msgspec.json.decode(msgspec.json.encode(estimate), type=Estimate)


def interval_width(comparison: VariantComparison) -> float:
    """Return the width of the interval."""
    assert comparison.lower is not None
    assert comparison.upper is not None
    return comparison.upper - comparison.lower


def excludes_effect(comparison: VariantComparison, effect: float) -> bool:
    """Return whether an effect is outside of the interval."""
    assert comparison.lower is not None
    assert comparison.upper is not None
    return not comparison.lower <= effect <= comparison.upper


@pytest.mark.parametrize(
    ("control_counts", "treatment_counts"), [((5000, 100), (200, 0)), ((5000, 100), (320, 1)), ((5000, 4850), (70, 70))]
)
def test_a_small_sample_with_hardly_any_exception_shows_no_effect(
    control_counts: tuple[int, int], treatment_counts: tuple[int, int]
) -> None:
    """With a success rate of 2 %, 200 students without a success are chance; the uncorrected interval excludes 0."""
    control, treatment = proportion(*control_counts), proportion(*treatment_counts)
    comparison = compare_proportions(control, treatment)
    assert not excludes_effect(comparison, 0.0)
    assert comparison.log_e is not None
    assert comparison.log_e < math.log(1 / ALPHA)
    assert comparison.difference == estimate_effect(control, treatment)
    information = comparison.difference.information or math.nan
    half_width = NormalMixture.tune(mde_information(MDE), ALPHA).half_width(information, ALPHA)
    assert abs(comparison.difference.effect or 0.0) > half_width


def test_a_large_effect_is_shown_in_spite_of_the_correction() -> None:
    """60 students without a success differ from a control with a success rate of 60 %."""
    assert excludes_effect(compare_proportions(proportion(1200, 720), proportion(60, 0)), 0.0)


def test_from_twenty_deviating_students_on_the_interval_is_uncorrected() -> None:
    """With 20 deviating students the intervals are identical; with 19 the corrected interval is a little wider."""
    control = proportion(2000, 200)
    for successes, is_uncorrected in ((20, True), (380, True), (19, False), (381, False)):
        bounded, unbounded = (
            compare_proportions(control, proportion(400, successes), max_value) for max_value in (1.0, None)
        )
        assert (bounded == unbounded) is is_uncorrected
        assert interval_width(unbounded) <= interval_width(bounded) < 1.02 * interval_width(unbounded)


@given(st.integers(50, 500), st.floats(0.01, 0.99), st.floats(0.05, 1.0))
def test_the_corrected_width_changes_little_with_an_additional_student(
    students: int, mean: float, relative_spread: float
) -> None:
    """For any metric from 0 to 10 the width changes by less than 10 %, and is at least the uncorrected width."""
    spread = relative_spread * mean * (1 - mean) * 100
    widths = []
    for units in (students, students + 1):
        estimate = Estimate(units, 10 * mean, spread / units)
        bounded, unbounded = (
            compare_variants(estimate, estimate, alpha=ALPHA, mde=1.0, max_value=max_value)
            for max_value in (10.0, None)
        )
        widths.append(interval_width(bounded))
        assert interval_width(unbounded) <= interval_width(bounded)
    assert 0.9 < widths[1] / widths[0] <= 1.0


@pytest.mark.parametrize(
    ("mean", "deviation", "max_value", "students"), [(0.6, 0.25, 1.0, 60), (1.8, 1.6, 11.8, 150), (0.4, 0.3, 1.0, 60)]
)
def test_intervals_of_ordinary_values_are_at_most_half_as_wide_again(
    mean: float, deviation: float, max_value: float, students: int
) -> None:
    """nDCG, DCG and rated shares as usual, with few students in each variant; with 2000 nothing is added."""
    for units, limit in ((students, 1.5), (2000, 1.0)):
        estimate = Estimate(units, mean, deviation**2 / units)
        corrected, uncorrected = (
            compare_variants(estimate, estimate, alpha=ALPHA, mde=max_value / 100, max_value=bound)
            for bound in (max_value, None)
        )
        assert interval_width(corrected) <= limit * interval_width(uncorrected)


def test_far_values_of_few_students_do_not_make_equal_means_differ() -> None:
    """One of 200 treated students has 44, the others a little less than the control: old intervals erred in 45 %."""
    ordinary_mean = (3.0 - 0.005 * 44.0) / 0.995
    control_values = np.array([2.5, 3.5])
    treatment_values = np.array([ordinary_mean - 0.5, ordinary_mean + 0.5, 44.0])
    runs, errors = 60, 0
    for run in range(runs):
        chance = np.random.default_rng([2, run])
        control_counts, treatment_counts = np.zeros(2), np.zeros(3)
        for _ in range(28):
            control_counts += chance.multinomial(chance.poisson(36), [0.5, 0.5])
            treatment_counts += chance.multinomial(chance.poisson(36), [0.4975, 0.4975, 0.005])
            control, treatment = (
                SampleMeanStatistic(int(counts.sum()), float(counts @ values), float(counts @ values**2)).estimate()
                for counts, values in ((control_counts, control_values), (treatment_counts, treatment_values))
            )
            comparison = compare_variants(control, treatment, alpha=ALPHA, mde=0.44, max_value=44.0)
            bounds = comparison.lower, comparison.upper
            if bounds[0] is not None and bounds[1] is not None and not bounds[0] <= 0 <= bounds[1]:
                errors += 1
                break
    assert errors <= 0.05 * runs + 3 * (0.05 * 0.95 * runs) ** 0.5


def test_a_constant_variant_gets_the_unit_variance_of_the_other_variant() -> None:
    """The correction applies to any constant value and without a largest value."""
    control = SampleMeanStatistic(400, 600.0, 1300.0).estimate()
    constant = SampleMeanStatistic(100, 200.0, 400.0).estimate()
    comparison = compare_variants(control, constant, alpha=ALPHA, mde=MDE)
    varying = Estimate(constant.units, constant.mean, (control.unit_variance or 0.0) / constant.units)
    expected = compare_variants(control, varying, alpha=ALPHA, mde=MDE)
    assert comparison.lower == pytest.approx(expected.lower)


def test_a_guardrail_is_open_while_few_students_had_the_event() -> None:
    """A single escalation among 250 students is not enough evidence against a rate of 2 %."""
    rail = Guardrail("share:escalated", "up", 0.01, 1.0)
    control, treatment = proportion(5000, 100), proportion(250, 1)
    assert evaluate_guardrail(rail, control, treatment, alpha=ALPHA).state == "open"
    assert (
        evaluate_guardrail(msgspec.structs.replace(rail, max_value=None), control, treatment, alpha=ALPHA).state
        == "held"
    )
    assert evaluate_guardrail(rail, proportion(20_000, 400), proportion(20_000, 300), alpha=ALPHA).state == "held"


def test_a_latency_guardrail_is_not_held_before_time_outs_would_have_occurred() -> None:
    """Every 200th treatment student has a time-out: 146 ms more on average, of which 100 ms are tolerable."""
    false_hold_counts = {None: 0, 30_000.0: 0}
    for run in range(200):
        chance = np.random.default_rng([3, run])
        sums = np.zeros((2, 3))
        held_timeout_values = set()
        for _ in range(28):
            for arm, rate in enumerate((0.0, 1 / 200)):
                values = np.where(chance.random(36) < rate, 30_000.0, chance.lognormal(6.6, 0.4, 36))
                sums[arm] += 36, values.sum(), values @ values
            arms = [SampleMeanStatistic(int(n), total, squares).estimate() for n, total, squares in sums]
            for timeout_value in false_hold_counts:
                rail = Guardrail("latency_ms", "up", 100.0, None, timeout_value)
                if evaluate_guardrail(rail, *arms, alpha=ALPHA).state == "held":
                    held_timeout_values.add(timeout_value)
        for timeout_value in held_timeout_values:
            false_hold_counts[timeout_value] += 1
    assert false_hold_counts[30_000.0] <= 200 * ALPHA < false_hold_counts[None]


def test_possible_time_outs_of_the_treatment_do_not_hide_its_harm() -> None:
    """Time-outs missing from a small treatment sample widen only the bound on the harmful side."""
    rail = Guardrail("latency_ms", "up", 100.0, None, 30_000.0)
    control, slow, fast = (
        Estimate(n, mean, 400.0**2 / n) for n, mean in ((9000, 2000.0), (200, 2500.0), (200, 1500.0))
    )
    assert evaluate_guardrail(rail, control, slow, alpha=ALPHA).state == "crossed"
    assert evaluate_guardrail(rail, control, fast, alpha=ALPHA).state == "open"
    assert (
        evaluate_guardrail(msgspec.structs.replace(rail, harmful_direction="down"), control, fast, alpha=ALPHA).state
        == "open"
    )


def test_time_outs_are_counted_over_all_phases_together() -> None:
    """Twelve phases of 250 students have the same bound of harm as a single phase of 3000 students."""
    rail = Guardrail("latency_ms", "up", 100.0, None, 30_000.0)
    phase = SampleMeanStatistic(250, 800.0 * 250, (800.0**2 + 300.0**2) * 250)
    pooled = SampleMeanStatistic(3000, 800.0 * 3000, (800.0**2 + 300.0**2) * 3000).estimate()
    stratified_result = evaluate_guardrail(rail, *estimate_stratified([(phase, phase)] * 12), alpha=ALPHA)
    pooled_result = evaluate_guardrail(rail, pooled, pooled, alpha=ALPHA)
    assert stratified_result.most_harm == pytest.approx(pooled_result.most_harm, rel=1e-3)


@pytest.mark.parametrize(("treated", "is_defined"), [(10_500, True), (60, False)])
def test_days_to_resolve_are_none_while_rare_events_matter(treated: int, *, is_defined: bool) -> None:
    """After a day with 15 of 1500 students treated and no success, later days decide whether the sample suffices."""
    canary = SampleMeanStatistic(1485, 30.0, 30.0), SampleMeanStatistic(15, 0.0, 0.0)
    later = [SampleMeanStatistic(students, 0.02 * students, 0.02 * students) for students in (10_500, treated)]
    arms = EstimatePair(*estimate_stratified([canary, (later[0], later[1])]))
    phase = PhaseCounts({"a": 0.5, "b": 0.5}, {"a": 500, "b": 500})
    evidence = VerdictEvidence(
        "a",
        "b",
        "success@5",
        DecisionCriteria(0.01, 0.0),
        arms,
        20,
        (100.0, 100.0),
        (phase,),
        students=30_000,
        max_value=1.0,
    )
    assert (decide_verdict(evidence).days_to_resolve is not None) is is_defined


def test_frequent_or_impossible_time_outs_do_not_change_a_guardrail_result() -> None:
    """With many students a guardrail is held; a time-out value below the mean, or enough time-outs, add no variance."""
    rail = Guardrail("latency_ms", "up", 50.0, None, 30_000.0)
    without_timeout = msgspec.structs.replace(rail, timeout_value=None)
    timeout_below_mean = msgspec.structs.replace(rail, timeout_value=700.0)

    ordinary = Estimate(20_000, 800.0, 400.0**2 / 20_000)
    assert evaluate_guardrail(rail, ordinary, ordinary, alpha=ALPHA).state == "held"
    uncorrected = evaluate_guardrail(without_timeout, ordinary, ordinary, alpha=ALPHA)
    result = evaluate_guardrail(timeout_below_mean, ordinary, ordinary, alpha=ALPHA)
    assert replace(result, guardrail=without_timeout) == uncorrected

    with_timeouts = Estimate(20_000, 800.0, 30_000.0**2 / 1000 / 20_000)
    uncorrected = evaluate_guardrail(without_timeout, with_timeouts, with_timeouts, alpha=ALPHA)
    result = evaluate_guardrail(rail, with_timeouts, with_timeouts, alpha=ALPHA)
    assert replace(result, guardrail=without_timeout) == uncorrected


@pytest.mark.parametrize("successes", range(8))
def test_a_segment_is_discovered_exactly_if_the_corrected_interval_excludes_zero(successes: int) -> None:
    """The rare-event correction is the same at the level of the test and at the level of the interval."""
    estimates = {name: (proportion(500, 50), proportion(500, 50)) for name in "abcd"} | {
        "e": (proportion(500, 20), proportion(500, successes))
    }
    for segment in compare_segments(estimates, alpha=ALPHA, mde=0.02, max_value=1.0):
        assert excludes_effect(segment.comparison, 0.0) is segment.discovered


@pytest.mark.parametrize(
    ("small", "large", "expected_unit_variance"),
    [((400, 1.0), (4000, 1.9), 1.0), ((400, 1.0), (4000, 9.0), 4.5), ((400, 9.0), (4000, 1.0), 9.0),
     ((400, 1.0), (400, 9.0), 1.0), ((40_000, 1.0), (400_000, 9.0), 4.5)],
)  # fmt: skip
def test_the_variance_is_at_least_half_of_that_with_the_larger_unit_variance(
    small: tuple[int, float], large: tuple[int, float], expected_unit_variance: float
) -> None:
    """The floor has no effect with similar variances, with the larger variance in the small variant, or even shares."""
    control, treatment = (Estimate(units, 5.0, variance / units) for units, variance in (large, small))
    comparison = compare_variants(control, treatment, alpha=ALPHA, mde=MDE)
    mixture = NormalMixture.tune(mde_information(MDE), ALPHA)
    large_unit_variance = large[1] if expected_unit_variance == small[1] else expected_unit_variance
    variance = large_unit_variance / large[0] + expected_unit_variance / small[0]
    assert interval_width(comparison) == pytest.approx(2 * mixture.half_width(1 / variance, ALPHA), rel=1e-12)
    swapped = compare_variants(treatment, control, alpha=ALPHA, mde=MDE)
    assert interval_width(swapped) == pytest.approx(interval_width(comparison), rel=1e-12)


def test_phases_with_different_shares_are_not_uneven_variances() -> None:
    """Strata with equal unit variances get no floor, although stratum weights make the pooled variances uneven."""
    strata = [
        tuple(SampleMeanStatistic(units, 2.0 * units, 5.0 * units) for units in shares)
        for shares in ((9900, 100), (500, 500))
    ]
    control, treatment = estimate_stratified([(first, second) for first, second in strata])
    assert (control.units, treatment.units) == (10_400, 600)
    comparison = compare_variants(control, treatment, alpha=ALPHA, mde=MDE)
    mixture = NormalMixture.tune(mde_information(MDE), ALPHA)
    information = comparison.difference.information or math.nan
    assert interval_width(comparison) == 2 * mixture.half_width(information, ALPHA)


def test_the_variance_floor_of_a_phase_does_not_depend_on_later_phases() -> None:
    """A phase in which 100 of 10 000 students lack the far values keeps the floor after phases without far values."""
    far = SampleMeanStatistic(9900, 0.2 * 9801 + 99.0, 0.04 * 9801 + 99.0), SampleMeanStatistic(100, 20.1, 4.0402)
    flat = SampleMeanStatistic(300, 60.0, 12.02)
    control, treatment = estimate_stratified([far, (flat, flat)])
    comparison = compare_variants(control, treatment, alpha=ALPHA, mde=0.01, max_value=1.0)
    assert not excludes_effect(comparison, 0.0)
    information = comparison.difference.information or 0
    half_width = NormalMixture.tune(mde_information(0.01), ALPHA).half_width(information, ALPHA)
    assert abs(comparison.difference.effect or 0.0) > half_width
    assert round_trip_json(control) == control


@pytest.mark.parametrize(
    ("treatment_share", "students", "rates"),
    [
        (0.05, 6000, {0.0: 0.98, 1.0: 0.02}),
        (0.01, 20_000, {0.0: 0.03, 1.0: 0.97}),
        (0.05, 8000, {1.0: 0.33, 3.0: 0.33, 7.0: 0.33, 44.0: 0.01}),
        (0.1, 8000, {0.2: 0.99, 1.0: 0.01}),
    ],
)
def test_the_error_rate_with_rare_values_over_daily_looks_is_at_most_alpha(
    treatment_share: float, students: int, rates: dict[float, float]
) -> None:
    """In at most 5 % of 300 experiments without an effect, any of 28 daily intervals excludes 0."""
    false_alarms = 0
    values = np.array(list(rates))
    for run in range(300):
        chance = np.random.default_rng([2, run])
        counts = np.zeros((2, len(values)), dtype=np.int64)
        has_excluded_zero = False
        for _ in range(28):
            new_students = chance.poisson(students / 28 * np.array([1 - treatment_share, treatment_share]))
            counts += chance.multinomial(new_students, list(rates.values()))
            arms = [
                SampleMeanStatistic(int(n.sum()), float(n @ values), float(n @ values**2)).estimate() for n in counts
            ]
            comparison = compare_variants(*arms, alpha=ALPHA, mde=max(rates) / 100, max_value=max(rates))
            has_excluded_zero = has_excluded_zero or (comparison.decides and excludes_effect(comparison, 0.0))
        false_alarms += has_excluded_zero
    assert false_alarms <= 300 * ALPHA


def test_a_shifted_scale_shifts_no_interval() -> None:
    """Scores from 1 to 5 have the interval of the same scores minus 1, on the scale from 0 to 4."""
    control, treatment = Estimate(60, 0.0, 0.0), Estimate(60, 0.2, 0.01)
    shifted = [Estimate(arm.units, (arm.mean or 0.0) + 1, arm.variance) for arm in (control, treatment)]
    plain = compare_variants(control, treatment, alpha=0.05, mde=0.1, max_value=4.0)
    comparison = compare_variants(*shifted, alpha=0.05, mde=0.1, max_value=5.0, min_value=1.0)
    assert (comparison.lower, comparison.upper) == pytest.approx((plain.lower, plain.upper))
