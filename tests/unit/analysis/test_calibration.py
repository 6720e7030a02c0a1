"""Small calibrations: error rates and power of the statistics in experiments whose truth is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from monitor.stats import decay_band_multiplier
from tests.calibration.answers import ANSWERS, Answers, answer_decisions
from tests.calibration.days import BROKEN_DAY, TRAFFIC, remarked_days
from tests.calibration.drops import RESPONSES_PER_HOUR, RULES, month_alarms
from tests.calibration.plans import PLANS, PlannedRun, shows_effect
from tests.calibration.populations import POPULATIONS, population_alarms
from tests.calibration.power import LARGEST_RATIO, relative_sample

ALERTS = Path(__file__).parents[3] / "deploy" / "prometheus" / "rules" / "ab-monitor.yml"
RUNS = 40
DEPENDENT_STUDENTS = "classes of 20 assigned as a whole, the student is the unit"
POOLED_PHASES = "the same, pooled over phases"


def _alarm_share(name: str) -> float:
    alarms = [
        any(first for first, _ in population_alarms(np.random.default_rng([2, run]), POPULATIONS[name]))
        for run in range(RUNS)
    ]
    return sum(alarms) / RUNS


@pytest.mark.parametrize("name", [name for name in POPULATIONS if name not in {DEPENDENT_STUDENTS, POOLED_PHASES}])
def test_an_experiment_without_an_effect_seldom_shows_one(name: str) -> None:
    """At most one of 40 runs with 28 looks each."""
    assert _alarm_share(name) <= 1 / RUNS


@pytest.mark.parametrize("name", [DEPENDENT_STUDENTS, POOLED_PHASES])
def test_a_wrong_unit_or_pooled_phases_show_effects_that_do_not_exist(name: str) -> None:
    """So the simulations can find such faults."""
    assert _alarm_share(name) > 0.25


def _decision_shares(answers: Answers, effect: float, runs: int) -> list[float]:
    """Return the shares of runs in which any day has each decision of `answer_decisions`."""
    decisions = [
        np.any(list(answer_decisions(np.random.default_rng([4, run]), answers, effect)), axis=0) for run in range(runs)
    ]
    shares: list[float] = np.mean(decisions, axis=0).tolist()
    return shares


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_metric_without_an_effect_seldom_decides(name: str) -> None:
    """In at most one of 20 runs with 25 looks each; intervals for a single look would in more."""
    interval, fixed_interval, decided, _ = _decision_shares(ANSWERS[name], 0.0, 20)
    assert interval <= 1 / 20
    assert decided <= 1 / 20
    assert fixed_interval > 1 / 20


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_metric_with_an_effect_is_usually_shipped(name: str) -> None:
    """4000 students with four responses each."""
    assert _decision_shares(ANSWERS[name], ANSWERS[name].mde, 10)[3] >= 0.5


def test_the_sample_for_80_percent_power_is_at_most_2_4_fixed_horizons() -> None:
    """The price of looking at any time."""
    samples = [relative_sample(np.random.default_rng([3, run]), 0.1) for run in range(RUNS)]
    assert np.quantile(samples, 0.8) <= LARGEST_RATIO


@pytest.mark.parametrize("plan", PLANS, ids=str)
def test_planned_students_show_the_planned_effect_about_as_often_as_the_power_says(plan: PlannedRun) -> None:
    """Within three standard errors of 200 runs at the planned end; by then, any reading has shown it more often."""
    at_end, by_then = np.mean([shows_effect(np.random.default_rng([7, run]), plan) for run in range(200)], axis=0)
    assert abs(at_end - plan.power) <= 3 * (plan.power * (1 - plan.power) / 200) ** 0.5
    assert plan.power - 0.05 <= by_then <= plan.power + 0.2


def test_a_month_without_a_change_seldom_fires_an_alert() -> None:
    """With the design effect, the bands of the alerts suffice even without the least share of a drop."""
    months = np.array([list(month_alarms(np.random.default_rng([5, run]), RESPONSES_PER_HOUR[0])) for run in range(20)])
    share, share_without_least_share, share_without_design_effect = np.any(months, axis=1).mean(axis=0).tolist()
    assert share <= 0.05
    assert share_without_least_share <= 0.1
    assert share_without_design_effect > 0.3


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_the_simulated_rules_are_the_deployed_rules(rule: object) -> None:
    """Least share and number of standard errors; the number covers a month."""
    simulated = next(candidate for candidate in RULES if candidate is rule)
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    (expression,) = (
        entry["expr"] for group in groups for entry in group["rules"] if entry.get("alert") == simulated.name
    )
    assert f"> {simulated.least_share:g}\n" in expression
    assert f"> {simulated.errors:g}" in expression
    assert decay_band_multiplier(28 * 24 / simulated.half_life_hours) == pytest.approx(simulated.errors, abs=0.01)


@pytest.mark.parametrize("name", TRAFFIC)
def test_a_month_without_a_change_seldom_has_a_day_out_of_its_band(name: str) -> None:
    """5 % of the months are allowed; here 6 of 60, which has a probability of 1 in 30 at 5 %."""
    months = [remarked_days(np.random.default_rng([9, run]), TRAFFIC[name]) for run in range(60)]
    assert sum(map(bool, months)) <= 6


@pytest.mark.parametrize("name", [name for name, traffic in TRAFFIC.items() if traffic.rare_share is None])
def test_a_day_on_which_the_mean_is_40_per_cent_lower_is_found(name: str) -> None:
    """In every month, and no other day in most of them."""
    months = [remarked_days(np.random.default_rng([10, run]), TRAFFIC[name], drop=0.4) for run in range(10)]
    assert all((BROKEN_DAY, "treatment") in remarks for remarks in months)
    assert sum(len(remarks) > 1 for remarks in months) <= 2
