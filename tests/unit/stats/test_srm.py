"""The sequential SRM (sample ratio mismatch) test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitor.stats import PhaseCounts, SrmResult, check_srm
from monitor.stats.srm import CONCENTRATIONS, DayCounts, log_bayes_factor, share_confidence_sequence, srm_log_e_value

EVEN = {"control": 0.5, "treatment": 0.5}
_student_counts = st.integers(0, 20_000)


def _even(control: int, treatment: int) -> PhaseCounts:
    return PhaseCounts(EVEN, {"control": control, "treatment": treatment})


def _day(day: int, control: int) -> DayCounts:
    return DayCounts(day, {"control": control, "treatment": 5 - control})


def _check(*phases: PhaseCounts) -> SrmResult:
    return check_srm(phases)


class TestSrmEvidence:
    """The e-value of the SRM test."""

    @given(st.lists(_student_counts, min_size=2, max_size=4))
    def test_bayes_factor_equals_that_of_scipys_distributions(self, counts: list[int]) -> None:
        """The Bayes factor is the Dirichlet-multinomial over the multinomial probability of the same counts."""
        shares = np.arange(1, len(counts) + 1) / sum(range(1, len(counts) + 1))
        prior = 100 * shares
        marginal = stats.dirichlet_multinomial.logpmf(counts, prior, sum(counts))
        null = stats.multinomial.logpmf(counts, sum(counts), shares)
        log_e = log_bayes_factor(counts, shares.tolist(), prior.tolist())
        assert log_e == pytest.approx(marginal - null, abs=1e-6 * max(1.0, abs(log_e)))

    def test_e_value_has_a_mean_of_one_under_the_intended_shares(self) -> None:
        """The mean over all outcomes of 40 students is 1, which is the definition of an e-value."""
        outcomes = range(41)
        weights = stats.binom.pmf(outcomes, 40, 0.3)
        evidence = [math.exp(srm_log_e_value((n, 40 - n), (0.3, 0.7))) for n in outcomes]
        assert float(np.dot(weights, evidence)) == pytest.approx(1.0, abs=1e-12)

    def test_e_value_is_the_mean_over_concentrations(self) -> None:
        """The e-values of the concentrations are averaged, not multiplied, and not reduced to the largest."""
        e_values = [math.exp(srm_log_e_value((560, 440), (0.5, 0.5), (k,))) for k in CONCENTRATIONS]
        assert math.exp(srm_log_e_value((560, 440), (0.5, 0.5))) == pytest.approx(np.mean(e_values))

    @given(_student_counts, _student_counts)
    def test_evidence_is_the_same_after_exchanging_variants_of_equal_share(self, first: int, second: int) -> None:
        """The evidence does not depend on the names of the variants."""
        assert _check(_even(first, second)).log_e == pytest.approx(_check(_even(second, first)).log_e)

    def test_without_students_there_is_no_evidence(self) -> None:
        """Without students e is 1, p is 1 and no alarm is raised; the same without phases."""
        result = _check(_even(0, 0))
        assert (result.log_e, result.p, result.alarm) == (0.0, 1.0, False)
        assert _check().log_e == 0.0


class TestSrmAlarm:
    """The alarm of the SRM test, and the intervals of shares."""

    @pytest.mark.parametrize(
        ("share", "students"), [(0.70, 90), (0.60, 335), (0.55, 1325), (0.52, 7840), (0.51, 31_950)]
    )
    def test_deviations_are_detected_with_the_documented_number_of_students(self, share: float, students: int) -> None:
        """After 1.6 times the documented number of students, 80 of 100 simulated streams have raised an alarm."""
        random, alarmed = np.random.default_rng(1), 0
        sample_sizes = np.unique(np.linspace(1, students * 1.6, 60).astype(int))
        for _ in range(100):
            control = np.cumsum(random.random(sample_sizes[-1]) < share)
            alarmed += any(_check(_even(int(control[n - 1]), int(n - control[n - 1]))).mismatch for n in sample_sizes)
        assert alarmed >= 80

    def test_a_fair_split_seldom_alarms_at_any_of_many_sample_sizes(self) -> None:
        """Of fair splits of 2000 students with 60 looks, at most 1 % ever raise an alarm."""
        random, alarmed, runs = np.random.default_rng(2), 0, 300
        sample_sizes = np.geomspace(5, 2000, 60).astype(int)
        for _ in range(runs):
            control = np.cumsum(random.random(sample_sizes[-1]) < 0.5)
            alarmed += any(_check(_even(int(control[n - 1]), int(n - control[n - 1]))).alarm for n in sample_sizes)
        assert alarmed / runs <= 0.01 + 3 * math.sqrt(0.01 / runs)

    def test_an_alarm_persists_after_the_split_is_repaired(self) -> None:
        """Later students hide a mismatch of the first day; the largest e decides, and the day of the alarm is kept."""
        days = [DayCounts(20_000, {"control": 700, "treatment": 500})]
        days += [DayCounts(20_000 + day, {"control": 950, "treatment": 1050}) for day in range(1, 3)]
        days += [DayCounts(20_003, {"control": 10_000, "treatment": 10_000})]
        result = _check(PhaseCounts.from_days(EVEN, days))
        assert result.log_e < -math.log(0.01) < result.max_log_e
        assert result.mismatch
        assert result.mismatch_day == 20_000
        assert result.p == pytest.approx(math.exp(-result.max_log_e))

    def test_clean_days_hardly_delay_the_detection_of_a_later_mismatch(self) -> None:
        """After four clean weeks, 60 : 40 is detected with at most three times the students as from the start."""
        clean = [DayCounts(day, {"control": 500, "treatment": 500}) for day in range(28)]
        uneven = [DayCounts(28 + day, {"control": 60, "treatment": 40}) for day in range(40)]
        late = _check(PhaseCounts.from_days(EVEN, [*clean, *uneven])).mismatch_day
        early = _check(PhaseCounts.from_days(EVEN, uneven)).mismatch_day
        pooled = [srm_log_e_value((14_000 + 60 * day, 14_000 + 40 * day), (0.5, 0.5)) for day in range(1, 31)]
        assert early is not None
        assert late is not None
        assert late - 27 <= 3 * (early - 27)
        assert max(pooled) < -math.log(0.01), "a test without start days would have missed it for 30 days"

    def test_a_mismatch_of_a_later_phase_is_not_delayed_by_a_clean_phase(self) -> None:
        """The mixture over start days includes the start of each phase."""
        clean = [DayCounts(day, {"control": 900, "treatment": 100}) for day in range(28)]
        uneven = [DayCounts(28 + day, {"control": 600, "treatment": 400}) for day in range(2)]
        phases = (
            PhaseCounts.from_days({"control": 0.9, "treatment": 0.1}, clean),
            PhaseCounts.from_days(EVEN, uneven),
        )
        assert _check(*phases).mismatch_day == 28

    def test_the_mixture_over_start_days_has_a_mean_of_one(self) -> None:
        """Over all outcomes of two days with five students each, the mean of e is 1."""
        outcomes = range(6)
        weights = np.outer(stats.binom.pmf(outcomes, 5, 0.5), stats.binom.pmf(outcomes, 5, 0.5))
        evidence = [
            [
                math.exp(_check(PhaseCounts.from_days(EVEN, [_day(0, first), _day(1, second)])).log_e)
                for second in outcomes
            ]
            for first in outcomes
        ]
        assert float((weights * np.array(evidence)).sum()) == pytest.approx(1.0, abs=1e-12)

    def test_result_contains_the_size_of_the_deviation(self) -> None:
        """A split of 53 : 47 of 20 000 students is strong evidence of a small deviation; the result contains both."""
        result = _check(_even(10_600, 9_400))
        (phase,) = result.phases
        assert result.mismatch
        assert result.p < 1e-12
        assert phase.deviation == pytest.approx(0.03)
        assert [arm.observed for arm in phase.arms] == [0.53, 0.47]

    @given(_student_counts, _student_counts)
    def test_the_interval_excludes_the_intended_share_if_the_test_alarms(self, first: int, second: int) -> None:
        """The interval is that of a mismatch from the first day; the intervals of both variants agree."""
        result = _check(_even(first, second))
        control, treatment = (arm.bounds() for arm in result.phases[0].arms)
        phase_log_e = result.phases[0].log_e
        if abs(phase_log_e + math.log(result.alpha)) > 1e-6:
            assert (phase_log_e > -math.log(result.alpha)) == (not control[0] <= 0.5 <= control[1])
        assert not result.mismatch or not control[0] <= 0.5 <= control[1]
        assert control == pytest.approx((1 - treatment[1], 1 - treatment[0]), abs=1e-9)

    @pytest.mark.parametrize("other_students", [30, 1086, 10**5, 10**9])
    def test_the_interval_of_a_share_near_0_or_1_is_finite(self, other_students: int) -> None:
        """The distance of the upper bound from 1 may be smaller than the resolution of floats near 1."""
        assert 0.9 < share_confidence_sequence(other_students, 1, 0.5, 0.01)[1] <= 1.0
        assert 0.0 <= share_confidence_sequence(1, other_students, 0.5, 0.01)[0] < 0.1

    def test_the_interval_is_open_at_an_end_without_students(self) -> None:
        """Without students in the variant the lower bound is 0; without other students the upper bound is 1."""
        assert share_confidence_sequence(0, 0, 0.5, 0.01) == (0.0, 1.0)
        assert share_confidence_sequence(0, 50, 0.5, 0.01)[0] == 0.0
        assert share_confidence_sequence(50, 0, 0.5, 0.01)[1] == 1.0


class TestSrmPhases:
    """Allocation phases with different intended shares."""

    def test_e_values_of_phases_multiply(self) -> None:
        """Each phase is tested with separate shares and counts; a mismatch may begin with either phase."""
        ramp = PhaseCounts({"control": 0.9, "treatment": 0.1}, {"control": 900, "treatment": 120})
        even = _even(2000, 2100)
        ramp_e = math.exp(srm_log_e_value((900, 120), (0.9, 0.1)))
        even_e = math.exp(srm_log_e_value((2000, 2100), (0.5, 0.5)))
        expected = 0.8 * ramp_e * even_e + 0.1 * even_e + 0.1
        assert math.exp(_check(ramp, even).log_e) == pytest.approx(expected)

    def test_a_ramp_up_in_two_phases_is_no_mismatch(self) -> None:
        """Pooled into a single phase, 90 : 10 followed by 50 : 50 would raise an alarm."""
        ramp = PhaseCounts({"control": 0.9, "treatment": 0.1}, {"control": 900, "treatment": 100})
        assert not _check(ramp, _even(1000, 1000)).alarm
        assert _check(_even(1900, 1100)).alarm

    def test_a_phase_with_a_single_variant_is_no_evidence(self) -> None:
        """A phase in which all students belong to the control adds nothing to ln e."""
        control_only = PhaseCounts({"control": 1.0, "treatment": 0.0}, {"control": 5000, "treatment": 0})
        result = _check(control_only)
        assert (result.log_e, result.alarm) == (0.0, False)


class TestEmptyAndStrayVariants:
    """Variants with a share and without students, and variants with students and without a share."""

    def test_a_variant_without_students_alarms_if_chance_is_below_the_level(self) -> None:
        """With equal shares, 8 students in the control alone have a probability below 1 %/2; 7 students do not."""
        assert _check(_even(8, 0)).empty_variants == ("treatment",)
        assert _check(_even(7, 0)).empty_variants == ()

    def test_an_empty_variant_with_a_small_share_alarms_later(self) -> None:
        """With a share of 1 % the alarm needs 528 students."""
        shares = {"control": 0.99, "treatment": 0.01}
        assert not _check(PhaseCounts(shares, {"control": 527})).empty_variants
        assert _check(PhaseCounts(shares, {"control": 528})).empty_variants == ("treatment",)

    def test_a_student_in_a_variant_without_a_share_raises_an_alarm(self) -> None:
        """A stray variant raises an alarm with a single student; the evidence about other variants stays the same."""
        shares = {"control": 0.5, "treatment": 0.5, "retired": 0.0}
        result = _check(PhaseCounts(shares, {"control": 100, "treatment": 100, "retired": 1}))
        assert (result.stray_variants, result.mismatch, result.alarm) == (("retired",), False, True)
        assert result.log_e == _check(_even(100, 100)).log_e

    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ({"control": 0.5, "treatment": 0.4}, "the sum of shares is 0.9, expected 1"),
            ({"control": 1.5, "treatment": -0.5}, "the share of control is 1.5, expected 0 to 1"),
        ],
        ids=["sum", "range"],
    )
    def test_invalid_shares_raise_an_error_with_the_value(self, shares: dict[str, float], message: str) -> None:
        """The message contains the variant or the sum, the value and the expectation."""
        with pytest.raises(ValueError, match=message):
            _check(PhaseCounts(shares, {}))
