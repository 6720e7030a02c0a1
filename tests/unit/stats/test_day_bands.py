"""The band of a day's mean, compared with scipy and with single responses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import stdtrit

from monitor.stats import DayBand, SampleMeanStatistic, predict_day_mean
from monitor.stats.day_bands import t_quantile


def _statistic(values: np.ndarray) -> SampleMeanStatistic:
    return SampleMeanStatistic(len(values), float(values.sum()), float((values**2).sum()))


@pytest.mark.parametrize("degrees_of_freedom", [1, 2, 3, 6, 13, 27])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 56, 1e-5])
def test_quantiles_of_students_t_equal_those_of_scipy(degrees_of_freedom: int, alpha: float) -> None:
    """Two-sided."""
    assert t_quantile(degrees_of_freedom, alpha) == pytest.approx(-stdtrit(degrees_of_freedom, alpha / 2), rel=1e-9)


def test_the_band_of_days_of_equal_size_is_the_prediction_interval_of_their_means() -> None:
    """If the means differ by more than the responses explain."""
    chance = np.random.default_rng(1)
    days = [chance.normal(chance.normal(2, 0.5), 1.3, 400) for _ in range(10)]
    band = predict_day_mean([_statistic(day) for day in days], _statistic(days[0]), 0.01)
    means = np.array([day.mean() for day in days])
    assert band is not None
    assert band.usual == pytest.approx(means.mean())
    exact = -stdtrit(9, 0.005) * means.std(ddof=1) * (1 + 1 / 10) ** 0.5
    assert band.upper - band.usual == pytest.approx(exact, rel=0.001)


@pytest.mark.parametrize(("responses", "wider"), [(100, True), (10_000, False)])
def test_a_day_with_few_responses_has_a_wider_band(responses: int, *, wider: bool) -> None:
    """Compared with a day of the usual size."""
    chance = np.random.default_rng(2)
    days = [_statistic(chance.normal(2, 1.3, 1000)) for _ in range(14)]
    usual, other = (
        predict_day_mean(days, _statistic(chance.normal(2, 1.3, size)), 0.001) for size in (1000, responses)
    )
    assert usual is not None
    assert other is not None
    assert (other.upper - other.usual > 2 * (usual.upper - usual.usual)) == wider


def test_variance_that_students_add_grows_as_the_responses_become_fewer() -> None:
    """The means vary four times as much as independent responses would, so do those of a smaller day."""
    within, responses = 1.0, 1000
    offsets = 2 * (within / responses) ** 0.5 * np.array([-1, 1] * 7) * (13 / 14) ** 0.5
    days = [_day(responses, 2 + float(offset), within) for offset in offsets]
    band = predict_day_mean(days, _day(100, 2.0, within), 0.01)
    assert band is not None
    variance = 4 * within / 100 + 4 * within / responses / 14
    assert band.upper - band.usual == pytest.approx(-stdtrit(13, 0.005) * variance**0.5, rel=1e-3)


def _day(responses: int, mean: float, variance: float) -> SampleMeanStatistic:
    return SampleMeanStatistic(responses, responses * mean, responses * mean**2 + (responses - 1) * variance)


def test_six_days_are_too_few_for_a_band() -> None:
    """They lack a day of the week."""
    day = SampleMeanStatistic(100, 200.0, 500.0)
    assert predict_day_mean([day] * 6, day, 0.01) is None
    assert predict_day_mean([day] * 7, day, 0.01) is not None


def test_a_constant_metric_is_in_its_band_of_no_width() -> None:
    """Rounding of sums is no deviation."""
    day = SampleMeanStatistic(3, 0.3, 0.03)
    band = predict_day_mean([day] * 7, day, 0.01)
    assert band is not None
    assert band.contains(0.1 + 1e-12)
    assert not band.contains(0.2)
    assert DayBand(2.0, 1.5, 2.5).contains(2.5)


def test_first_events_of_a_rare_kind_are_in_the_band() -> None:
    """After days without any, a few events may be chance; many are not."""
    none = SampleMeanStatistic(1000, 0.0, 0.0)
    few, many = (SampleMeanStatistic(1000, events, events) for events in (5.0, 100.0))
    for day, is_contained in ((few, True), (many, False)):
        band = predict_day_mean([none] * 14, day, 0.001)
        assert band is not None
        assert band.contains(day.total / day.units) == is_contained
