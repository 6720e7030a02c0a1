"""The sequential sample-ratio test."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from monitor.stats import Phase, SampleRatio, sample_ratio_test
from monitor.stats.srm import CONCENTRATIONS, log_bayes_factor, log_e_value, share_sequence

EVEN = {"control": 0.5, "treatment": 0.5}
_counts = st.integers(0, 20_000)


def _even(control: int, treatment: int) -> Phase:
    return Phase(EVEN, {"control": control, "treatment": treatment})


def _watched(*phases: Phase) -> SampleRatio:
    return sample_ratio_test(phases)


class TestEvidence:
    """The e-value."""

    @given(st.lists(_counts, min_size=2, max_size=4))
    def test_is_that_of_scipys_distributions(self, counts: list[int]) -> None:
        """Dirichlet-multinomial over multinomial probability of the same counts."""
        shares = np.arange(1, len(counts) + 1) / sum(range(1, len(counts) + 1))
        prior = 100 * shares
        marginal = stats.dirichlet_multinomial.logpmf(counts, prior, sum(counts))
        null = stats.multinomial.logpmf(counts, sum(counts), shares)
        found = log_bayes_factor(counts, shares.tolist(), prior.tolist())
        assert found == pytest.approx(marginal - null, abs=1e-6 * max(1.0, abs(found)))

    def test_has_a_mean_of_one(self) -> None:
        """Over all outcomes of 40 students, under the intended shares: this is what makes it evidence."""
        outcomes = range(41)
        weights = stats.binom.pmf(outcomes, 40, 0.3)
        evidence = [math.exp(log_e_value((n, 40 - n), (0.3, 0.7))) for n in outcomes]
        assert float(np.dot(weights, evidence)) == pytest.approx(1.0, abs=1e-12)

    def test_is_the_mean_over_concentrations(self) -> None:
        """A mean, not a product or the largest one."""
        each = [math.exp(log_e_value((560, 440), (0.5, 0.5), (k,))) for k in CONCENTRATIONS]
        assert math.exp(log_e_value((560, 440), (0.5, 0.5))) == pytest.approx(np.mean(each))

    @given(_counts, _counts)
    def test_does_not_know_names(self, first: int, second: int) -> None:
        """Exchanging two variants of equal share changes nothing."""
        assert _watched(_even(first, second)).log_e == pytest.approx(_watched(_even(second, first)).log_e)

    def test_of_no_students_is_one(self) -> None:
        """Nothing seen, nothing known."""
        found = _watched(_even(0, 0))
        assert (found.log_e, found.p, found.alarm) == (0.0, 1.0, False)
        assert _watched().log_e == 0.0


class TestAlarm:
    """When the split is called wrong."""

    @pytest.mark.parametrize(
        ("share", "students"), [(0.70, 90), (0.60, 335), (0.55, 1325), (0.52, 7840), (0.51, 31_950)]
    )
    def test_detects_deviations(self, share: float, students: int) -> None:
        """With the documented number of students, times 1.6 for luck, 80 of 100 streams have alarmed."""
        random, alarmed = np.random.default_rng(1), 0
        looks = np.unique(np.linspace(1, students * 1.6, 60).astype(int))
        for _ in range(100):
            control = np.cumsum(random.random(looks[-1]) < share)
            alarmed += any(_watched(_even(int(control[n - 1]), int(n - control[n - 1]))).mismatch for n in looks)
        assert alarmed >= 80

    def test_is_rarely_wrong_though_always_watched(self) -> None:
        """A fair split of 2000 students, looked at 60 times: at most 1 % of streams ever alarm."""
        random, alarmed, runs = np.random.default_rng(2), 0, 300
        looks = np.geomspace(5, 2000, 60).astype(int)
        for _ in range(runs):
            control = np.cumsum(random.random(looks[-1]) < 0.5)
            alarmed += any(_watched(_even(int(control[n - 1]), int(n - control[n - 1]))).alarm for n in looks)
        assert alarmed / runs <= 0.01 + 3 * math.sqrt(0.01 / runs)

    def test_stays_once_raised(self) -> None:
        """With the largest evidence of earlier looks, a split that looks better by now is still wrong."""
        now = sample_ratio_test([_even(5010, 4990)], largest_log_e=6.0)
        assert now.mismatch
        assert now.p == pytest.approx(math.exp(-6))
        assert now.log_e == _watched(_even(5010, 4990)).log_e

    def test_says_how_far_off(self) -> None:
        """53 to 47 of 20 000 is overwhelming evidence of a small deviation; both are reported."""
        found = _watched(_even(10_600, 9_400))
        (phase,) = found.phases
        assert found.mismatch
        assert found.p < 1e-12
        assert phase.deviation == pytest.approx(0.03)
        assert [arm.observed for arm in phase.arms] == [0.53, 0.47]

    @given(_counts, _counts)
    def test_interval_of_the_share_agrees(self, first: int, second: int) -> None:
        """With two variants the intended share is outside of the interval exactly if the test alarms."""
        found = _watched(_even(first, second))
        control, treatment = (arm.bounds() for arm in found.phases[0].arms)
        if abs(found.log_e + math.log(found.alpha)) > 1e-6:
            assert found.mismatch == (not control[0] <= 0.5 <= control[1])
        assert control == pytest.approx((1 - treatment[1], 1 - treatment[0]), abs=1e-9)

    @pytest.mark.parametrize("many", [30, 1086, 10**5, 10**9])
    def test_interval_of_one_student_against_many(self, many: int) -> None:
        """What is left of 1 may be smaller than any difference from 1 that a number can have."""
        assert 0.9 < share_sequence(many, 1, 0.5, 0.01)[1] <= 1.0
        assert 0.0 <= share_sequence(1, many, 0.5, 0.01)[0] < 0.1

    def test_interval_of_extremes(self) -> None:
        """No students of one kind leave that end open."""
        assert share_sequence(0, 0, 0.5, 0.01) == (0.0, 1.0)
        assert share_sequence(0, 50, 0.5, 0.01)[0] == 0.0
        assert share_sequence(50, 0, 0.5, 0.01)[1] == 1.0


class TestPhases:
    """Intended shares that change."""

    def test_evidence_multiplies(self) -> None:
        """Each phase against its own shares, with counts of its own."""
        ramp = Phase({"control": 0.9, "treatment": 0.1}, {"control": 900, "treatment": 120})
        even = _even(2000, 2100)
        assert _watched(ramp, even).log_e == pytest.approx(_watched(ramp).log_e + _watched(even).log_e)

    def test_a_ramp_is_no_mismatch(self) -> None:
        """Pooled, 90/10 followed by 50/50 would look wrong."""
        ramp = Phase({"control": 0.9, "treatment": 0.1}, {"control": 900, "treatment": 100})
        assert not _watched(ramp, _even(1000, 1000)).alarm
        assert _watched(_even(1900, 1100)).alarm

    def test_one_phase_without_a_choice(self) -> None:
        """Everybody in the control is no evidence of anything."""
        alone = Phase({"control": 1.0, "treatment": 0.0}, {"control": 5000, "treatment": 0})
        found = _watched(alone)
        assert (found.log_e, found.alarm) == (0.0, False)


class TestEmptyAndStray:
    """Variants that have what they should not, or not what they should."""

    def test_a_variant_without_students_alarms_when_it_is_no_chance(self) -> None:
        """At a half each, 8 students without one of the treatment's are under 1 % of 1/2: 7 may happen."""
        assert _watched(_even(8, 0)).empty == ("treatment",)
        assert _watched(_even(7, 0)).empty == ()

    def test_a_small_share_needs_longer(self) -> None:
        """At 1 % it takes 528 students."""
        shares = {"control": 0.99, "treatment": 0.01}
        assert not _watched(Phase(shares, {"control": 527})).empty
        assert _watched(Phase(shares, {"control": 528})).empty == ("treatment",)

    def test_traffic_without_a_share_alarms_by_itself(self) -> None:
        """One student is enough, and it is no evidence about the others."""
        shares = {"control": 0.5, "treatment": 0.5, "retired": 0.0}
        found = _watched(Phase(shares, {"control": 100, "treatment": 100, "retired": 1}))
        assert (found.stray, found.mismatch, found.alarm) == (("retired",), False, True)
        assert found.log_e == _watched(_even(100, 100)).log_e

    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ({"control": 0.5, "treatment": 0.4}, "the sum of shares is 0.9, expected 1"),
            ({"control": 1.5, "treatment": -0.5}, "the share of control is 1.5, expected 0 to 1"),
        ],
        ids=["sum", "range"],
    )
    def test_refuses_shares_that_are_none(self, shares: dict[str, float], message: str) -> None:
        """In one line that names what is wrong."""
        with pytest.raises(ValueError, match=message):
            _watched(Phase(shares, {}))
