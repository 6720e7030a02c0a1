"""Estimates from sums: against numpy and scipy on the units themselves, and from the stored records."""

from __future__ import annotations

import doctest
import itertools
import math
from types import ModuleType

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy import stats

from monitor.metrics import SCALE
from monitor.metrics.record_layout import Floats, Ints, Layout
from monitor.stats import (
    Estimate,
    Population,
    UnitSums,
    adjust,
    closed_rated_shares,
    closed_units,
    comparison,
    cuped,
    decayed_means,
    design_effect,
    estimates,
    is_closed,
    live_rated_shares,
    segments,
    sequences,
    srm,
    stratified,
)
from monitor.stats.cuped import PairedSums, variance_reduction
from monitor.stats.estimates import RatioSums, effect_of
from monitor.stats.stored_sums import live_sums
from tests.support.streams import EXPERIMENT
from tests.support.units import cohort_terms, unit_terms

DAY = 86_400_000
LAYOUT = Layout.of(EXPERIMENT)

_value = st.integers(-1000, 1000).map(float)


@pytest.mark.parametrize(
    "module",
    [comparison, cuped, decayed_means, estimates, srm, segments, sequences],
    ids=lambda module: module.__name__,
)
def test_examples(module: ModuleType) -> None:
    """The examples in the docstrings are true."""
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


def _units(values: Floats) -> UnitSums:
    return UnitSums(len(values), float(values.sum()), float((values * values).sum()))


def _ratios(sums: Floats, counts: Floats) -> RatioSums:
    products = (sums * sums, sums * counts, counts * counts)
    return RatioSums(len(sums), float(sums.sum()), float(counts.sum()), *(float(each.sum()) for each in products))


def _standard_error(estimate: Estimate) -> float:
    assert estimate.variance is not None
    return math.sqrt(estimate.variance)


class TestClosedUnits:
    """The mean over students."""

    @given(st.lists(_value, min_size=2, max_size=60))
    def test_mean_and_its_variance(self, values: list[float]) -> None:
        """As numpy has them from the values, with n − 1."""
        estimate = _units(np.array(values)).estimate()
        assert estimate.mean == pytest.approx(np.mean(values), abs=1e-9)
        assert estimate.variance == pytest.approx(np.var(values, ddof=1) / len(values), abs=1e-6)

    def test_what_is_undefined(self) -> None:
        """No students have no mean, and one student no spread."""
        assert UnitSums().estimate() == Estimate(0, None, None)
        assert UnitSums(1, 3.0, 9.0).estimate() == Estimate(1, 3.0, None)

    @given(st.lists(_value, max_size=12), st.randoms(use_true_random=False))
    def test_sums_merge_in_any_order(self, values: list[float], random: object) -> None:
        """However students are grouped and in whichever order groups come, the sums are those of all."""
        shuffled = list(values)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        merged = UnitSums()
        for start in range(0, len(shuffled), 3):
            merged += _units(np.array(shuffled[start : start + 3]))
        assert merged == _units(np.array(values))

    def test_sums_of_something_else_are_refused(self) -> None:
        """What is not in both would be lost."""
        with pytest.raises(ValueError, match="shorter"):
            _ = PairedSums() + UnitSums(1, 3.0, 9.0)  # type: ignore[operator]


class TestLive:
    """The ratio over responses."""

    @given(st.lists(st.tuples(_value, st.integers(1, 50)), min_size=2, max_size=40))
    def test_variance_is_that_of_residuals(self, students: list[tuple[float, int]]) -> None:
        """C/(C − 1)·Σ(S − mN)²/(ΣN)², from five sums as from the students."""
        sums, counts = np.array(students, dtype=np.float64).T
        mean = sums.sum() / counts.sum()
        residuals = sums - mean * counts
        expected = len(students) / (len(students) - 1) * (residuals**2).sum() / counts.sum() ** 2
        estimate = _ratios(sums, counts).estimate()
        assert estimate.mean == pytest.approx(mean, abs=1e-9)
        assert estimate.variance == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @given(st.lists(_value, min_size=2, max_size=40))
    def test_one_response_each(self, values: list[float]) -> None:
        """With one response per student both estimands are the same."""
        live = _ratios(np.array(values), np.ones(len(values))).estimate()
        closed = _units(np.array(values)).estimate()
        assert live.mean == closed.mean
        assert live.variance == pytest.approx(closed.variance, rel=1e-9, abs=1e-6)

    def test_covers_where_the_response_level_does_not(self) -> None:
        """With 40 alike responses per student the clustered error is right, the independent one far too small."""
        random = np.random.default_rng(5)
        means, clustered, independent = [], [], []
        for _ in range(400):
            level = random.normal(0, 1, 60)
            counts = random.integers(30, 51, 60).astype(np.float64)
            within = random.normal(0, 1, 60) / np.sqrt(counts)
            estimate = _ratios(counts * (level + within), counts).estimate()
            assert estimate.mean is not None
            means.append(estimate.mean)
            clustered.append(_standard_error(estimate))
            independent.append(math.sqrt(2 / counts.sum()))
        assert np.mean(clustered) == pytest.approx(np.std(means), rel=0.1)
        assert np.mean(independent) < np.std(means) / 3
        assert design_effect(float(np.mean(clustered)) ** 2, float(np.mean(independent)) ** 2) == pytest.approx(
            20, rel=0.2
        )

    def test_what_is_undefined(self) -> None:
        """No responses have no mean, and one student no spread."""
        assert RatioSums().estimate() == Estimate(0, None, None)
        assert RatioSums(1, 3.0, 2.0, 9.0, 6.0, 4.0).estimate() == Estimate(1, 1.5, None)
        assert RatioSums(1, 1.0, 2.0) + RatioSums(2, 1.0, 2.0, 1.0, 1.0, 1.0) == RatioSums(3, 2.0, 4.0, 1.0, 1.0, 1.0)


class TestEffect:
    """Treatment minus control."""

    def test_is_welchs(self) -> None:
        """Effect and standard error are those of Welch's test."""
        random = np.random.default_rng(1)
        control, treatment = random.normal(1, 2, 80), random.normal(1.5, 3, 50)
        found = effect_of(_units(control).estimate(), _units(treatment).estimate())
        t, _ = stats.ttest_ind(treatment, control, equal_var=False)
        assert found.effect == pytest.approx(treatment.mean() - control.mean())
        assert found.effect is not None
        assert found.standard_error == pytest.approx(found.effect / t)
        assert found.information == pytest.approx((t / found.effect) ** 2)

    def test_relative_error_is_that_of_the_quotient(self) -> None:
        """The delta method's standard error agrees with the spread of simulated quotients."""
        random = np.random.default_rng(2)
        control, treatment = random.normal(10, 0.3, 200_000), random.normal(12, 0.2, 200_000)
        found = effect_of(Estimate(9, 10.0, 0.09), Estimate(9, 12.0, 0.04))
        assert found.relative_effect == pytest.approx(0.2)
        assert found.relative_standard_error == pytest.approx(np.std(treatment / control - 1), rel=0.02)

    @given(_value, _value, st.floats(0.01, 10), st.floats(0.01, 10))
    def test_exchanging_variants_changes_the_sign(self, first: float, second: float, a: float, b: float) -> None:
        """And nothing else about the absolute effect."""
        one, other = Estimate(30, first, a), Estimate(30, second, b)
        there, back = effect_of(one, other), effect_of(other, one)
        assert there.effect == -(back.effect or 0.0)
        assert there.standard_error == back.standard_error

    def test_what_is_undefined(self) -> None:
        """Each number is absent exactly where one that it needs is."""
        known, nobody, single = Estimate(9, 2.0, 0.5), Estimate(0, None, None), Estimate(1, 3.0, None)
        assert effect_of(nobody, known).effect is None
        assert (effect_of(known, single).effect, effect_of(known, single).standard_error) == (1.0, None)
        assert effect_of(Estimate(9, 0.0, 0.5), known).relative_effect is None
        assert effect_of(Estimate(9, 1.0, 0.0), Estimate(9, 2.0, 0.0)).information is None


def _students(random: np.random.Generator, number: int) -> Ints:
    """Return students' sums vectors: responses, rated ones, Σ metrics, undefined ones."""
    m = LAYOUT.metrics
    rows = np.zeros((number, LAYOUT.sums_width), dtype=np.int64)
    rows[:, 0] = random.integers(1, 30, number)
    rows[:, 1] = random.binomial(rows[:, 0], 0.6)
    rows[:, 2 + m :] = random.binomial(rows[:, 1, None], 0.2, (number, m))
    defined = rows[:, 1, None] - rows[:, 2 + m :]
    rows[:, 2 : 2 + m] = np.rint(defined * random.uniform(0, 5, (number, m)) * SCALE)
    return rows


class TestStrata:
    """Comparisons made within strata and averaged."""

    def test_the_effect_is_that_of_a_regression_with_a_constant_for_each_stratum(self) -> None:
        """Ordinary least squares weighs strata in just this way (Angrist 1998), whatever their sizes."""
        chance = np.random.default_rng(3)
        sizes = [(90, 10), (25, 25), (4, 300), (60, 45)]
        strata, rows, outcomes = [], [], []
        for place, pair in enumerate(sizes):
            values = [chance.normal(place * 2 + arm * (place - 1), 1, size) for arm, size in enumerate(pair)]
            strata.append((_units(values[0]), _units(values[1])))
            for arm, group in enumerate(values):
                rows += [[float(arm), *(float(each == place) for each in range(len(sizes)))]] * len(group)
                outcomes += group.tolist()
        expected = np.linalg.lstsq(np.array(rows), np.array(outcomes), rcond=None)[0][0]
        control, treatment = stratified(strata)
        assert effect_of(control, treatment).effect == pytest.approx(expected, abs=1e-9)
        assert (control.units, treatment.units) == (179, 380)

    def test_a_stratum_that_cannot_be_compared_is_left_out(self) -> None:
        """One student has no spread; without any stratum nothing is known."""
        whole = _units(np.array([1.0, 2.0, 4.0])), _units(np.array([2.0, 5.0]))
        lonely = _units(np.array([100.0])), _units(np.array([1.0, 2.0]))
        found = stratified([whole, lonely])
        assert [each.mean for each in found] == [each.estimate().mean for each in whole]
        assert [each.units for each in found] == [3, 2]
        assert stratified([lonely, lonely])[0] == Estimate(0, None, None)


class TestStored:
    """Sums read from the stored records are those over the students themselves."""

    @pytest.mark.parametrize(("metric", "population"), [*itertools.product(range(LAYOUT.metrics), ("rated", "all"))])
    def test_metrics(self, metric: int, population: Population) -> None:
        """For each metric and population, closed and live."""
        rows = _students(np.random.default_rng(metric), 300)
        shown, rated = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        number = rated - rows[:, 2 + LAYOUT.metrics + metric] if population == "rated" else shown
        sums, counts = rows[number > 0, 2 + metric] / SCALE, number[number > 0]
        closed = closed_units(cohort_terms(LAYOUT, rows).sum(axis=0), LAYOUT, metric, population)
        live = live_sums(unit_terms(LAYOUT, rows).sum(axis=0), LAYOUT, metric, population)
        expected_closed, expected_live = _units(sums / counts).estimate(), _ratios(sums, counts).estimate()
        assert (closed.units, live.units) == (len(counts), len(counts))
        for found, expected in ((closed.estimate(), expected_closed), (live.estimate(), expected_live)):
            assert found.mean == pytest.approx(expected.mean, rel=1e-8)
            assert found.variance == pytest.approx(expected.variance, rel=1e-6)

    def test_rated_share(self) -> None:
        """The share of a student's responses that are rated is a metric like others."""
        rows = _students(np.random.default_rng(9), 300)
        shown, rated = rows[:, 0].astype(np.float64), rows[:, 1].astype(np.float64)
        closed = closed_rated_shares(cohort_terms(LAYOUT, rows).sum(axis=0)).estimate()
        live = live_rated_shares(unit_terms(LAYOUT, rows).sum(axis=0)).estimate()
        for found, expected in ((closed, _units(rated / shown)), (live, _ratios(rated, shown))):
            assert found.mean == pytest.approx(expected.estimate().mean, rel=1e-8)
            assert found.variance == pytest.approx(expected.estimate().variance, rel=1e-6)

    @pytest.mark.parametrize("value", [1 / 3, 0.001, 4.7])
    def test_students_alike_do_not_vary(self, value: float) -> None:
        """The rounding of stored squares is no spread: a sequence built on it would be infinitely sure of itself."""
        rows = np.zeros((5000, LAYOUT.sums_width), dtype=np.int64)
        rows[:, :2] = 1
        rows[:, 2 : 2 + LAYOUT.metrics] = round(value * SCALE)
        estimate = closed_units(cohort_terms(LAYOUT, rows).sum(axis=0), LAYOUT, 0, "rated").estimate()
        assert estimate.mean == pytest.approx(value)
        assert estimate.variance == 0.0

    def test_a_cohort_closes_when_its_last_feedback_could_have_come(self) -> None:
        """Three days from the day of first exposure, then the feedback window: not a millisecond earlier."""
        over_ms = 13 * DAY + DAY // 2
        assert is_closed(10, over_ms, 3, DAY // 2)
        assert not is_closed(10, over_ms - 1, 3, DAY // 2)
        assert not is_closed(11, over_ms, 3, DAY // 2)


def _paired(y: Floats, x: Floats) -> PairedSums:
    sums = (y.sum(), (y * y).sum(), x.sum(), (x * x).sum(), (x * y).sum())
    return PairedSums(len(y), *(float(each) for each in sums))


class TestCuped:
    """Variance reduction by what was known before."""

    def test_is_ordinary_regression_adjustment(self) -> None:
        """θ is the slope over all students of all variants; estimates are those of y − θ(x − x̄)."""
        random = np.random.default_rng(3)
        x = random.normal(5, 1, 400)
        y = 2 * x + random.normal(0, 1, 400)
        arms = {"control": slice(0, 180), "treatment": slice(180, 400)}
        found = adjust([{name: (_units(y[part]), _paired(y[part], x[part])) for name, part in arms.items()}])
        assert found is not None
        slope = stats.linregress(x, y).slope
        assert found.theta == pytest.approx(slope)
        for name, part in arms.items():
            expected = _units(y[part] - slope * (x[part] - x.mean())).estimate()
            assert found.strata[0][name].estimate().mean == pytest.approx(expected.mean)
            assert found.strata[0][name].estimate().variance == pytest.approx(expected.variance)
        pairs = [
            (found.strata[0]["control"].estimate(), found.strata[0]["treatment"].estimate()),
            (_units(y[arms["control"]]).estimate(), _units(y[arms["treatment"]]).estimate()),
        ]
        correlation = np.corrcoef(x, y)[0, 1]
        assert variance_reduction(pairs[1], pairs[0]) == pytest.approx(correlation**2, abs=0.02)

    def test_strata_are_adjusted_by_what_varies_within_them(self) -> None:
        """Between phases x and y may move apart, which says nothing of a student."""
        random = np.random.default_rng(7)
        strata, raw = [], []
        for x_mean, y_mean in ((1.0, 3.0), (3.0, 1.0)):
            x = random.normal(x_mean, 1, 2000)
            y = y_mean + 0.8 * (x - x_mean) + random.normal(0, 0.6, 2000)
            halves = {"control": slice(0, 1000), "treatment": slice(1000, None)}
            strata.append({name: (_units(y[part]), _paired(y[part], x[part])) for name, part in halves.items()})
            raw.append((strata[-1]["control"][0], strata[-1]["treatment"][0]))
        found = adjust(strata)
        assert found is not None
        assert found.theta == pytest.approx(0.8, abs=0.05)
        adjusted = stratified([(own["control"], own["treatment"]) for own in found.strata])
        assert variance_reduction(stratified(raw), adjusted) == pytest.approx(0.64, abs=0.05)

    def test_students_without_a_past_keep_their_value(self) -> None:
        """They are neither left out nor moved."""
        y, x = np.array([1.0, 2.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0])
        found = adjust([{"control": (_units(y), _paired(y[:3], x)), "treatment": (_units(y), PairedSums())}])
        assert found is not None
        slope = stats.linregress(x, y[:3]).slope
        adjusted = np.append(y[:3] - slope * (x - 2), y[3])
        assert found.strata[0]["control"].estimate().mean == pytest.approx(adjusted.mean())
        assert found.strata[0]["control"].estimate().variance == pytest.approx(adjusted.var(ddof=1) / 4)
        assert found.strata[0]["treatment"] == _units(y)

    def test_what_is_undefined(self) -> None:
        """Nobody with a past, or one and the same past for all: there is no adjustment, and no reduction to report."""
        y = np.array([1.0, 2.0])
        assert adjust([{"control": (_units(y), PairedSums())}]) is None
        assert adjust([{"control": (_units(y), _paired(y, np.ones(2)))}]) is None
        unknown, still = Estimate(1, 1.0, None), Estimate(9, 1.0, 0.0)
        assert variance_reduction((unknown, still), (still, still)) is None
        assert variance_reduction((still, still), (still, still)) is None

    @given(st.lists(st.tuples(_value, _value), min_size=3, max_size=30), st.integers(0, 30))
    def test_never_adds_variance_overall(self, pairs: list[tuple[float, float]], at: int) -> None:
        """Over all students together the adjusted values spread no more than the raw ones."""
        y, x = np.array(pairs).T
        assume(np.ptp(x) > 0)
        parts = {"control": slice(0, at), "treatment": slice(at, None)}
        found = adjust([{name: (_units(y[part]), _paired(y[part], x[part])) for name, part in parts.items()}])
        assert found is not None
        together = found.strata[0]["control"] + found.strata[0]["treatment"]
        raw, after = _units(y).estimate().variance, together.estimate().variance
        assert raw is not None
        assert after is not None
        assert after <= raw * (1 + 1e-9) + 1e-6
