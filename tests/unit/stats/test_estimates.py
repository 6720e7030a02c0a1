"""Estimates from sufficient statistics, against numpy and scipy on the single values, and from stored records."""

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

from monitor.config import Population
from monitor.days import day_calendar
from monitor.metrics import FIXED_POINT_SCALE, FloatArray, IntArray, StudentField
from monitor.metrics.record_layout import RecordLayout
from monitor.stats import (
    Estimate,
    SampleMeanStatistic,
    apply_cuped,
    closed_metric_statistic,
    closed_rated_share_statistic,
    comparison,
    confidence_sequences,
    cuped,
    decay_bands,
    design_effect,
    estimate_stratified,
    estimates,
    is_cohort_closed,
    live_rated_share_statistic,
    rare_events,
    segments,
    srm,
)
from monitor.stats.cuped import CovariateStatistic, variance_reduction
from monitor.stats.estimates import RatioStatistic, estimate_effect
from monitor.stats.stored_sums import live_metric_statistic
from tests.support.streams import EXPERIMENT
from tests.support.units import cohort_records, student_records

DAY = 86_400_000
LAYOUT = RecordLayout.for_experiment(EXPERIMENT)

_value = st.integers(-1000, 1000).map(float)


@pytest.mark.parametrize(
    "module",
    [comparison, confidence_sequences, cuped, decay_bands, estimates, rare_events, segments, srm],
    ids=lambda module: module.__name__,
)
def test_the_examples_in_docstrings_are_true(module: ModuleType) -> None:
    """Each module has doctests, and all doctests pass."""
    assert doctest.testmod(module).attempted > 0
    assert doctest.testmod(module).failed == 0


def _mean_statistic(values: FloatArray) -> SampleMeanStatistic:
    return SampleMeanStatistic(len(values), float(values.sum()), float((values * values).sum()))


def _ratio_statistic(sums: FloatArray, counts: FloatArray) -> RatioStatistic:
    products = (sums * sums, sums * counts, counts * counts)
    return RatioStatistic(
        len(sums), float(sums.sum()), float(counts.sum()), *(float(product.sum()) for product in products)
    )


def _standard_error(estimate: Estimate) -> float:
    assert estimate.variance is not None
    return math.sqrt(estimate.variance)


class TestSampleMeanStatistic:
    """The estimate of a mean over students."""

    @given(st.lists(_value, min_size=2, max_size=60))
    def test_mean_and_variance_equal_those_of_numpy(self, values: list[float]) -> None:
        """The mean and s²/n, with the divisor n − 1, equal numpy's results from the single values."""
        estimate = _mean_statistic(np.array(values)).estimate()
        assert estimate.mean == pytest.approx(np.mean(values), abs=1e-9)
        assert estimate.variance == pytest.approx(np.var(values, ddof=1) / len(values), abs=1e-6)

    def test_mean_needs_a_student_and_variance_two(self) -> None:
        """Without students the mean is None; with fewer than two students the variance is None."""
        assert SampleMeanStatistic().estimate() == Estimate(0, None, None)
        assert SampleMeanStatistic(1, 3.0, 9.0).estimate() == Estimate(1, 3.0, None)

    @given(st.lists(_value, max_size=12), st.randoms(use_true_random=False))
    def test_statistics_merge_in_any_order(self, values: list[float], random: object) -> None:
        """The merged statistic does not depend on the grouping or the order of the students."""
        shuffled = list(values)
        random.shuffle(shuffled)  # type: ignore[attr-defined]
        merged = SampleMeanStatistic()
        for start in range(0, len(shuffled), 3):
            merged += _mean_statistic(np.array(shuffled[start : start + 3]))
        assert merged == _mean_statistic(np.array(values))

    def test_statistics_of_different_types_cannot_be_added(self) -> None:
        """Adding statistics with different fields raises ValueError, because fields would be lost."""
        with pytest.raises(ValueError, match="shorter"):
            _ = CovariateStatistic() + SampleMeanStatistic(1, 3.0, 9.0)  # type: ignore[operator]


class TestRatioStatistic:
    """The estimate of a ratio over responses."""

    @given(st.lists(st.tuples(_value, st.integers(1, 50)), min_size=2, max_size=40))
    def test_variance_equals_that_of_the_residuals(self, students: list[tuple[float, int]]) -> None:
        """C/(C − 1)·Σ(S − mN)²/(ΣN)² is the same from five sums as from the single students."""
        sums, counts = np.array(students, dtype=np.float64).T
        mean = sums.sum() / counts.sum()
        residuals = sums - mean * counts
        expected = len(students) / (len(students) - 1) * (residuals**2).sum() / counts.sum() ** 2
        estimate = _ratio_statistic(sums, counts).estimate()
        assert estimate.mean == pytest.approx(mean, abs=1e-9)
        assert estimate.variance == pytest.approx(expected, rel=1e-6, abs=1e-9)

    @given(st.lists(_value, min_size=2, max_size=40))
    def test_ratio_equals_the_mean_with_one_response_per_student(self, values: list[float]) -> None:
        """With a single response per student the live and the closed estimand have the same estimate."""
        live = _ratio_statistic(np.array(values), np.ones(len(values))).estimate()
        closed = _mean_statistic(np.array(values)).estimate()
        assert live.mean == closed.mean
        assert live.variance == pytest.approx(closed.variance, rel=1e-9, abs=1e-6)

    def test_the_clustered_error_is_right_for_correlated_responses(self) -> None:
        """With 40 similar responses per student the clustered error is right, the independent error far too small."""
        random = np.random.default_rng(5)
        means, clustered, independent = [], [], []
        for _ in range(400):
            level = random.normal(0, 1, 60)
            counts = random.integers(30, 51, 60).astype(np.float64)
            within = random.normal(0, 1, 60) / np.sqrt(counts)
            estimate = _ratio_statistic(counts * (level + within), counts).estimate()
            assert estimate.mean is not None
            means.append(estimate.mean)
            clustered.append(_standard_error(estimate))
            independent.append(math.sqrt(2 / counts.sum()))
        assert np.mean(clustered) == pytest.approx(np.std(means), rel=0.1)
        assert np.mean(independent) < np.std(means) / 3
        assert design_effect(float(np.mean(clustered)) ** 2, float(np.mean(independent)) ** 2) == pytest.approx(
            20, rel=0.2
        )

    def test_mean_needs_a_response_and_variance_two_students(self) -> None:
        """Without responses the mean is None; with fewer than two students the variance is None."""
        assert RatioStatistic().estimate() == Estimate(0, None, None)
        assert RatioStatistic(1, 3.0, 2.0, 9.0, 6.0, 4.0).estimate() == Estimate(1, 1.5, None)
        assert RatioStatistic(1, 1.0, 2.0) + RatioStatistic(2, 1.0, 2.0, 1.0, 1.0, 1.0) == RatioStatistic(
            3, 2.0, 4.0, 1.0, 1.0, 1.0
        )


class TestEstimateEffect:
    """The effect, treatment minus control."""

    def test_effect_and_error_equal_those_of_welchs_test(self) -> None:
        """Effect, standard error and information agree with scipy's t-test for unequal variances."""
        random = np.random.default_rng(1)
        control, treatment = random.normal(1, 2, 80), random.normal(1.5, 3, 50)
        effect = estimate_effect(_mean_statistic(control).estimate(), _mean_statistic(treatment).estimate())
        t, _ = stats.ttest_ind(treatment, control, equal_var=False)
        assert effect.effect == pytest.approx(treatment.mean() - control.mean())
        assert effect.effect is not None
        assert effect.standard_error == pytest.approx(effect.effect / t)
        assert effect.information == pytest.approx((t / effect.effect) ** 2)

    def test_the_relative_error_equals_the_spread_of_simulated_quotients(self) -> None:
        """The standard error of the delta method agrees with a simulation."""
        random = np.random.default_rng(2)
        control, treatment = random.normal(10, 0.3, 200_000), random.normal(12, 0.2, 200_000)
        effect = estimate_effect(Estimate(9, 10.0, 0.09), Estimate(9, 12.0, 0.04))
        assert effect.relative_effect == pytest.approx(0.2)
        assert effect.relative_standard_error == pytest.approx(np.std(treatment / control - 1), rel=0.02)

    @given(_value, _value, st.floats(0.01, 10), st.floats(0.01, 10))
    def test_exchanging_variants_changes_the_sign(self, first: float, second: float, a: float, b: float) -> None:
        """The absolute effect changes sign and keeps the standard error."""
        control, treatment = Estimate(30, first, a), Estimate(30, second, b)
        effect, mirrored = estimate_effect(control, treatment), estimate_effect(treatment, control)
        assert effect.effect == -(mirrored.effect or 0.0)
        assert effect.standard_error == mirrored.standard_error

    def test_fields_that_need_an_undefined_number_are_none(self) -> None:
        """Without a mean, a variance, a control mean above 0 or any variation the dependent fields are None."""
        many, empty, single = Estimate(9, 2.0, 0.5), Estimate(0, None, None), Estimate(1, 3.0, None)
        assert estimate_effect(empty, many).effect is None
        assert (estimate_effect(many, single).effect, estimate_effect(many, single).standard_error) == (1.0, None)
        assert estimate_effect(Estimate(9, 0.0, 0.5), many).relative_effect is None
        assert estimate_effect(Estimate(9, 1.0, 0.0), Estimate(9, 2.0, 0.0)).information is None


def _students(random: np.random.Generator, number: int) -> IntArray:
    """Return random sums vectors of students: responses, rated responses, Σ metrics, numbers of undefined metrics."""
    m = LAYOUT.metric_count
    rows = np.zeros((number, LAYOUT.sums_width), dtype=np.int64)
    rows[:, StudentField.RESPONSES] = random.integers(1, 30, number)
    rows[:, StudentField.RATED] = random.binomial(rows[:, StudentField.RESPONSES], 0.6)
    rows[:, LAYOUT.student_undefined] = random.binomial(rows[:, StudentField.RATED, None], 0.2, (number, m))
    defined = rows[:, StudentField.RATED, None] - rows[:, LAYOUT.student_undefined]
    rows[:, LAYOUT.student_totals] = np.rint(defined * random.uniform(0, 5, (number, m)) * FIXED_POINT_SCALE)
    return rows


class TestEstimateStratified:
    """Comparisons within strata, averaged with Cochran's weights."""

    def test_the_effect_equals_that_of_a_regression_with_stratum_constants(self) -> None:
        """Ordinary least squares gives strata of any sizes the same weights (Angrist 1998)."""
        chance = np.random.default_rng(3)
        sizes = [(90, 10), (25, 25), (4, 300), (60, 45)]
        strata, rows, outcomes = [], [], []
        for stratum, pair in enumerate(sizes):
            values = [chance.normal(stratum * 2 + arm * (stratum - 1), 1, size) for arm, size in enumerate(pair)]
            strata.append((_mean_statistic(values[0]), _mean_statistic(values[1])))
            for arm, group in enumerate(values):
                rows += [[float(arm), *(float(index == stratum) for index in range(len(sizes)))]] * len(group)
                outcomes += group.tolist()
        expected = np.linalg.lstsq(np.array(rows), np.array(outcomes), rcond=None)[0][0]
        control, treatment = estimate_stratified(strata)
        assert estimate_effect(control, treatment).effect == pytest.approx(expected, abs=1e-9)
        assert (control.units, treatment.units) == (179, 380)

    def test_a_stratum_with_one_student_in_a_variant_is_left_out(self) -> None:
        """A single student has no variance; without any remaining stratum the mean is None."""
        comparable = _mean_statistic(np.array([1.0, 2.0, 4.0])), _mean_statistic(np.array([2.0, 5.0]))
        incomparable = _mean_statistic(np.array([100.0])), _mean_statistic(np.array([1.0, 2.0]))
        estimates = estimate_stratified([comparable, incomparable])
        assert [estimate.mean for estimate in estimates] == [statistic.estimate().mean for statistic in comparable]
        assert [estimate.units for estimate in estimates] == [3, 2]
        assert estimate_stratified([incomparable, incomparable])[0] == Estimate(0, None, None)


class TestStoredStatistics:
    """Statistics from stored records equal statistics of the single students."""

    @pytest.mark.parametrize(
        ("metric", "population"), [*itertools.product(range(LAYOUT.metric_count), ("rated", "all"))]
    )
    def test_closed_and_live_metrics_equal_those_of_the_students(self, metric: int, population: Population) -> None:
        """The estimates of a metric agree for both populations and both estimands."""
        rows = _students(np.random.default_rng(metric), 300)
        responses, rated = (
            rows[:, StudentField.RESPONSES].astype(np.float64),
            rows[:, StudentField.RATED].astype(np.float64),
        )
        number = rated - rows[:, LAYOUT.student_undefined][:, metric] if population == "rated" else responses
        sums, counts = rows[number > 0, LAYOUT.student_totals][:, metric] / FIXED_POINT_SCALE, number[number > 0]
        closed = closed_metric_statistic(cohort_records(LAYOUT, rows).sum(axis=0), LAYOUT, metric, population)
        live = live_metric_statistic(student_records(LAYOUT, rows).sum(axis=0), LAYOUT, metric, population)
        expected_closed, expected_live = (
            _mean_statistic(sums / counts).estimate(),
            _ratio_statistic(sums, counts).estimate(),
        )
        assert (closed.units, live.units) == (len(counts), len(counts))
        for estimate, expected in ((closed.estimate(), expected_closed), (live.estimate(), expected_live)):
            assert estimate.mean == pytest.approx(expected.mean, rel=1e-8)
            assert estimate.variance == pytest.approx(expected.variance, rel=1e-6)

    def test_closed_and_live_rated_shares_equal_those_of_the_students(self) -> None:
        """The rated share of a student's responses is estimated like a metric."""
        rows = _students(np.random.default_rng(9), 300)
        responses, rated = (
            rows[:, StudentField.RESPONSES].astype(np.float64),
            rows[:, StudentField.RATED].astype(np.float64),
        )
        closed = closed_rated_share_statistic(cohort_records(LAYOUT, rows).sum(axis=0), LAYOUT).estimate()
        live = live_rated_share_statistic(student_records(LAYOUT, rows).sum(axis=0)).estimate()
        for estimate, expected in (
            (closed, _mean_statistic(rated / responses)),
            (live, _ratio_statistic(rated, responses)),
        ):
            assert estimate.mean == pytest.approx(expected.estimate().mean, rel=1e-8)
            assert estimate.variance == pytest.approx(expected.estimate().variance, rel=1e-6)

    @pytest.mark.parametrize("value", [1 / 3, 0.001, 4.7])
    def test_students_with_equal_values_have_no_variance(self, value: float) -> None:
        """The rounding of stored squares is not taken as variance, which would make intervals far too narrow."""
        rows = np.zeros((5000, LAYOUT.sums_width), dtype=np.int64)
        rows[:, StudentField.RESPONSES] = rows[:, StudentField.RATED] = 1
        rows[:, LAYOUT.student_totals] = round(value * FIXED_POINT_SCALE)
        estimate = closed_metric_statistic(cohort_records(LAYOUT, rows).sum(axis=0), LAYOUT, 0, "rated").estimate()
        assert estimate.mean == pytest.approx(value)
        assert estimate.variance == 0.0

    def test_a_cohort_closes_after_the_exposure_days_and_the_feedback_window(self) -> None:
        """A cohort is closed three days and a feedback window after the start of the day, not a millisecond earlier."""
        utc, over_ms = day_calendar("UTC"), 13 * DAY + DAY // 2
        assert is_cohort_closed(10, utc, over_ms, 3, DAY // 2)
        assert not is_cohort_closed(10, utc, over_ms - 1, 3, DAY // 2)
        assert not is_cohort_closed(11, utc, over_ms, 3, DAY // 2)


def _covariate_statistic(y: FloatArray, x: FloatArray) -> CovariateStatistic:
    sums = (y.sum(), (y * y).sum(), x.sum(), (x * x).sum(), (x * y).sum())
    return CovariateStatistic(len(y), *(float(value) for value in sums))


class TestCuped:
    """Variance reduction by a covariate from before the experiment."""

    def test_adjustment_equals_ordinary_regression_adjustment(self) -> None:
        """θ is the regression slope over all students; the estimates are of y − θ(x − x̄)."""
        random = np.random.default_rng(3)
        x = random.normal(5, 1, 400)
        y = 2 * x + random.normal(0, 1, 400)
        arms = {"control": slice(0, 180), "treatment": slice(180, 400)}
        adjusted = apply_cuped(
            [{name: (_mean_statistic(y[part]), _covariate_statistic(y[part], x[part])) for name, part in arms.items()}]
        )
        assert adjusted is not None
        slope = stats.linregress(x, y).slope
        assert adjusted.theta == pytest.approx(slope)
        for name, part in arms.items():
            expected = _mean_statistic(y[part] - slope * (x[part] - x.mean())).estimate()
            assert adjusted.strata[0][name].estimate().mean == pytest.approx(expected.mean)
            assert adjusted.strata[0][name].estimate().variance == pytest.approx(expected.variance)
        pairs = [
            (adjusted.strata[0]["control"].estimate(), adjusted.strata[0]["treatment"].estimate()),
            (_mean_statistic(y[arms["control"]]).estimate(), _mean_statistic(y[arms["treatment"]]).estimate()),
        ]
        correlation = np.corrcoef(x, y)[0, 1]
        assert variance_reduction(pairs[1], pairs[0]) == pytest.approx(correlation**2, abs=0.02)

    def test_theta_follows_from_the_variation_within_strata(self) -> None:
        """Opposite changes of x and y between phases do not influence θ."""
        random = np.random.default_rng(7)
        strata, raw = [], []
        for x_mean, y_mean in ((1.0, 3.0), (3.0, 1.0)):
            x = random.normal(x_mean, 1, 2000)
            y = y_mean + 0.8 * (x - x_mean) + random.normal(0, 0.6, 2000)
            halves = {"control": slice(0, 1000), "treatment": slice(1000, None)}
            strata.append(
                {
                    name: (_mean_statistic(y[part]), _covariate_statistic(y[part], x[part]))
                    for name, part in halves.items()
                }
            )
            raw.append((strata[-1]["control"][0], strata[-1]["treatment"][0]))
        adjusted = apply_cuped(strata)
        assert adjusted is not None
        assert adjusted.theta == pytest.approx(0.8, abs=0.05)
        adjusted_pair = estimate_stratified([(stratum["control"], stratum["treatment"]) for stratum in adjusted.strata])
        assert variance_reduction(estimate_stratified(raw), adjusted_pair) == pytest.approx(0.64, abs=0.05)

    def test_students_without_a_covariate_keep_their_value(self) -> None:
        """Students without a mean from before the experiment count with y unchanged, as a stratum of their own."""
        y, x = np.array([1.0, 2.0, 4.0, 9.0]), np.array([1.0, 2.0, 3.0])
        adjusted = apply_cuped(
            [
                {
                    "control": (_mean_statistic(y), _covariate_statistic(y[:3], x)),
                    "treatment": (_mean_statistic(y), CovariateStatistic()),
                }
            ]
        )
        assert adjusted is not None
        slope = stats.linregress(x, y[:3]).slope
        adjusted_values = y[:3] - slope * (x - 2)
        covered, uncovered = adjusted.strata
        assert covered["control"].estimate().mean == pytest.approx(adjusted_values.mean())
        assert covered["control"].estimate().variance == pytest.approx(adjusted_values.var(ddof=1) / 3)
        assert covered["treatment"].units == 0
        assert uncovered["control"] == _mean_statistic(y[3:])
        assert uncovered["treatment"] == _mean_statistic(y)

    def test_rounding_does_not_decide_without_residual_variance(self) -> None:
        """Every y is a function of x; stored squares and products are rounded, so a tiny spread remains."""
        x = np.random.default_rng(9).integers(0, 4000, 400) / 1000
        y, resolution = 0.5 * x + 1, 2.0**-14
        halves = {"control": slice(0, 200), "treatment": slice(200, None)}

        def rounded(value: float) -> float:
            return round(value / resolution) * resolution

        stratum = {}
        for name, part in halves.items():
            raw, pairs = _mean_statistic(y[part]), _covariate_statistic(y[part], x[part])
            stratum[name] = (
                SampleMeanStatistic(raw.units, raw.total, rounded(raw.sum_of_squares)),
                CovariateStatistic(
                    pairs.units,
                    pairs.total,
                    rounded(pairs.sum_of_squares),
                    pairs.covariate_total,
                    rounded(pairs.covariate_sum_of_squares),
                    rounded(pairs.sum_of_products),
                ),
            )
        adjusted = apply_cuped([stratum], resolution)
        assert adjusted is not None
        estimates = [adjusted.strata[0][name].estimate() for name in halves]
        assert [estimate.variance for estimate in estimates] == [pytest.approx(0.0, abs=1e-15)] * 2
        assert estimate_effect(*estimates).information is None

    def test_without_variation_of_the_covariate_there_is_no_adjustment(self) -> None:
        """Without covariates, or with equal covariates, the adjustment is None, and so is the variance reduction."""
        y = np.array([1.0, 2.0])
        assert apply_cuped([{"control": (_mean_statistic(y), CovariateStatistic())}]) is None
        assert apply_cuped([{"control": (_mean_statistic(y), _covariate_statistic(y, np.ones(2)))}]) is None
        single, constant = Estimate(1, 1.0, None), Estimate(9, 1.0, 0.0)
        assert variance_reduction((single, constant), (constant, constant)) is None
        assert variance_reduction((constant, constant), (constant, constant)) is None

    @given(st.lists(st.tuples(_value, _value), min_size=3, max_size=30), st.integers(0, 30))
    def test_the_adjustment_never_increases_the_overall_variance(
        self, pairs: list[tuple[float, float]], split: int
    ) -> None:
        """Over all students together the adjusted values have at most the variance of the raw values."""
        y, x = np.array(pairs).T
        assume(np.ptp(x) > 0)
        arms = {"control": slice(0, split), "treatment": slice(split, None)}
        adjusted = apply_cuped(
            [{name: (_mean_statistic(y[part]), _covariate_statistic(y[part], x[part])) for name, part in arms.items()}]
        )
        assert adjusted is not None
        all_students = adjusted.strata[0]["control"] + adjusted.strata[0]["treatment"]
        raw_variance, adjusted_variance = _mean_statistic(y).estimate().variance, all_students.estimate().variance
        assert raw_variance is not None
        assert adjusted_variance is not None
        assert adjusted_variance <= raw_variance * (1 + 1e-9) + 1e-6
