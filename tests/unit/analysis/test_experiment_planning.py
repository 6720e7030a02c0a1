"""Options and shares of a plan, and the values from assumptions."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from monitor.analysis import (
    PlanCriteria,
    PlanningValues,
    PlanOptionError,
    PlanOptions,
    ResponseAssumptions,
    assumed_planning_values,
    parse_plan_options,
    parse_response_assumptions,
    plan_experiment,
)
from monitor.export import describe_plan
from monitor.stats import Shares


def _values(criteria: PlanCriteria | None = None, mean: float | None = 2.0) -> PlanningValues:
    """Return values with a variance of 1.25 between students, and a correlation of 0.8 with the pre-period."""
    return assumed_planning_values(
        criteria or PlanCriteria(mde=0.1),
        ResponseAssumptions(sd=2.0**0.5, mean=mean, responses_per_student=4, correlation=0.5),
        students_per_day=200,
    )


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ("mde", "0"),
        ("mde", "-1"),
        ("mde", "nan"),
        ("mde", "much"),
        ("share", "0%"),
        ("share", "120%"),
        ("share", ","),
        ("share", ",".join(["10%"] * 13)),
        ("power", "1"),
        ("students_per_day", "10%"),
        ("students_per_day", "inf"),
        ("pre_period_correlation", "1"),
    ],
)
def test_a_wrong_option_is_rejected_with_its_name_the_value_and_the_expectation(option: str, text: str) -> None:
    """So that the reader can correct the option."""
    with pytest.raises(PlanOptionError, match=rf"^{option}: got .*, expected ") as error:
        parse_plan_options({option: text})
    assert error.value.option == option
    assert text.split(",", maxsplit=1)[0] in str(error.value)


def test_blank_options_are_not_set() -> None:
    """A form sends its empty fields."""
    assert parse_plan_options({"mde": " ", "share": "", "power": None}) == PlanOptions()


def test_a_relative_mde_is_a_fraction_of_the_mean() -> None:
    """3 % of 2.0."""
    plan = plan_experiment(_values(), parse_plan_options({"mde": "3%"}))
    assert plan.values.assumptions.mde == pytest.approx(0.06)


def test_a_relative_mde_needs_a_mean() -> None:
    """The message proposes the unit of the metric."""
    with pytest.raises(PlanOptionError, match=r"mde: got 3 %, expected a number in the unit of the metric"):
        plan_experiment(_values(mean=None), parse_plan_options({"mde": "3%"}))


def test_shares_of_several_treatments_leave_the_rest_to_the_control() -> None:
    """Of three treatments, none may get a third."""
    criteria = PlanCriteria(mde=0.1, treatments=3)
    plan = plan_experiment(_values(criteria), PlanOptions())
    assert [row.shares for row in plan.without_pre_period] == [Shares(0.7, 0.1), Shares(0.4, 0.2), Shares(0.25, 0.25)]
    with pytest.raises(PlanOptionError, match=r"share: got 40 %, expected more than 0 and less than 33.33 %"):
        plan_experiment(_values(criteria), PlanOptions(treatment_shares=(0.4,)))


def test_the_shares_of_the_experiment_are_planned_too() -> None:
    """Unless the reader has chosen shares."""
    values = replace(_values(), own_shares=Shares(0.75, 0.25))
    plan = plan_experiment(values, PlanOptions())
    assert plan.main_shares == Shares(0.75, 0.25)
    assert plan.main_shares in [row.shares for row in plan.without_pre_period]
    assert plan_experiment(values, PlanOptions(treatment_shares=(0.5,))).main_shares == Shares(0.5, 0.5)


def test_the_reduction_by_a_pre_period_is_measured_assumed_or_follows_from_the_correlation() -> None:
    """In this order: assumed by the reader, measured in the store, the squared reliability of four responses."""
    values = _values()
    reductions = [
        plan_experiment(values, PlanOptions()).pre_period,
        plan_experiment(replace(values, measured_reduction=0.2), PlanOptions()).pre_period,
        plan_experiment(replace(values, measured_reduction=0.2), PlanOptions(pre_period_correlation=0.5)).pre_period,
    ]
    described = [(item.source, round(item.variance_reduction, 9)) for item in reductions if item is not None]
    assert described == [("from_correlation", 0.64), ("measured", 0.2), ("assumed", 0.25)]


def test_the_plan_says_if_an_effect_cannot_be_shown_within_a_year() -> None:
    """With the days that it would take, and a table of effects that can be shown."""
    texts = describe_plan(plan_experiment(_values(PlanCriteria(mde=0.005)), PlanOptions()))
    assert "cannot be shown within a year" in texts.answers[0]
    assert "200 new students per day" in texts.answers[0]
    assert "second table" in texts.answers[1]
    assert {cell for row in texts.tables[0].rows for cell in row[2:]} == {">\u202f1 year"}
    assert texts.tables[1].columns == ("after", "students", "smallest effect", "with pre-period")


def test_the_plan_as_json_has_all_inputs_and_results() -> None:
    """It is valid JSON without special numbers."""
    plan = plan_experiment(_values(), PlanOptions())
    content = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert content["values"]["assumptions"]["mde"] == 0.1
    assert content["values"]["assumptions"]["schedule"]["students_per_day"] == 200
    requirement = content["without_pre_period"][-1]["requirements"][1]
    assert requirement["power"] == 0.8
    assert requirement["students"] == pytest.approx(plan.without_pre_period[-1].requirements[1].students)


@pytest.mark.parametrize(
    ("option", "text"),
    [("metric_sd", "0"), ("metric_mean", "many"), ("responses_per_student", "0.5"), ("correlation", "1.1")],
)
def test_a_wrong_assumption_is_rejected_with_its_name(option: str, text: str) -> None:
    """The other assumptions are right."""
    with pytest.raises(PlanOptionError, match=rf"^{option}: got '{text}', expected a number"):
        parse_response_assumptions({"metric_sd": "1", option: text})


def test_assumptions_need_a_standard_deviation_and_students_per_day() -> None:
    """None at all means the data of the store."""
    assert parse_response_assumptions({"metric_sd": " ", "correlation": None}) is None
    with pytest.raises(PlanOptionError, match="metric_sd: got no value"):
        parse_response_assumptions({"metric_mean": "2"})
    with pytest.raises(PlanOptionError, match="students_per_day: got no value"):
        assumed_planning_values(PlanCriteria(mde=0.1), ResponseAssumptions(1.0), None)
