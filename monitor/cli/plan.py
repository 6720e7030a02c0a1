"""`ab-monitor plan`: how many students and days an experiment needs, from the store or from assumptions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from monitor.analysis import (
    ASSUMPTION_OPTIONS,
    PLAN_OPTIONS,
    PlanCriteria,
    PlanningValues,
    PlanOptionError,
    PlanOptions,
    assumed_planning_values,
    parse_plan_number,
    parse_plan_options,
    parse_response_assumptions,
    plan_experiment,
    stored_planning_values,
)
from monitor.cli.command_io import settings_variables
from monitor.clock import wall_clock
from monitor.config import load_settings
from monitor.errors import UsageError
from monitor.export import describe_plan, print_json, render_plan, stdout_console
from monitor.state import open_store_reader

_CRITERIA: Final = {
    "alpha": ("0.05", "a number above 0 and up to 0.25", 1e-9, 0.25),
    "treatments": ("1", "an integer from 1 to 50", 1.0, 50.0),
    "min_days": ("7", "a number from 0 to 365", 0.0, 365.0),
    "exposure_days": ("3", "an integer from 1 to 90", 1.0, 90.0),
    "feedback_days": ("1", "a number from 0 to 365", 0.0, 365.0),
}
"""Option → default, expectation, smallest and largest value. The configuration of an experiment has its criteria."""
_INTEGERS: Final = ("treatments", "exposure_days")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("experiment", metavar="E", nargs="?", help="the experiment's name; none: only assumptions")
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file or directory; needed with E")
    parser.add_argument("--variant", metavar="V", help="the treatment to plan for; default: the first one")
    parser.add_argument("--json", action="store_true", help="print one JSON object with all inputs and results")
    choices = parser.add_argument_group("what to plan")
    choices.add_argument(
        "--mde", metavar="X", help="effect to show, in the metric's unit or as 3%% of its mean; default: that of E"
    )
    choices.add_argument("--share", metavar="LIST", help="shares of the treatment, such as 10%%,50%%")
    choices.add_argument("--power", metavar="LIST", help="probabilities of showing it; default: 50%%,80%%,90%%")
    choices.add_argument("--students-per-day", metavar="N", help="new students per day in all variants")
    choices.add_argument(
        "--pre-period-correlation", metavar="R", help="correlation of a student's means before and in the experiment"
    )
    assumptions = parser.add_argument_group("assumptions about responses, instead of data of the store")
    assumptions.add_argument("--metric-sd", metavar="SD", help="standard deviation of the metric between responses")
    assumptions.add_argument("--metric-mean", metavar="MEAN", help="mean of the metric, for effects in per cent")
    assumptions.add_argument(
        "--responses-per-student", metavar="N", help="responses of a student in the first days; default: 1"
    )
    assumptions.add_argument("--correlation", metavar="R", help="correlation of a student's responses; default: 0.3")
    criteria = parser.add_argument_group("criteria, without an experiment")
    for option, (default, expected, _, _) in _CRITERIA.items():
        criteria.add_argument(f"--{option.replace('_', '-')}", metavar="N", help=f"{expected}; default: {default}")


def run(arguments: argparse.Namespace) -> int:
    """Print the plan; return the exit code."""
    try:
        options = parse_plan_options({name: getattr(arguments, name) for name in PLAN_OPTIONS})
        plan = plan_experiment(_planning_values(arguments, options), options)
    except PlanOptionError as error:
        raise UsageError(f"--{error.option.replace('_', '-')}: {error.reason}") from error
    if arguments.json:
        print_json(plan.to_json())
    else:
        stdout_console(os.environ).print(render_plan(describe_plan(plan)))
    return 0


def _planning_values(arguments: argparse.Namespace, options: PlanOptions) -> PlanningValues:
    """Return the values from the store, or from assumptions if there is an assumed standard deviation."""
    responses = parse_response_assumptions({name: getattr(arguments, name) for name in ASSUMPTION_OPTIONS})
    if arguments.experiment is None:
        if arguments.config is not None or arguments.variant is not None:
            raise UsageError("E: missing, expected the name of an experiment with --config or --variant")
        if responses is None:
            expected = "the standard deviation of the metric between responses, or an experiment with --config"
            raise PlanOptionError("metric_sd", "no value", expected)
        return assumed_planning_values(_criteria(arguments, options), responses, options.students_per_day)
    if arguments.config is None:
        raise UsageError("--config: missing, expected the configuration file of the experiment")
    settings = load_settings(arguments.config, settings_variables())
    for option in _CRITERIA:
        text = getattr(arguments, option)
        if text is not None:
            raise PlanOptionError(option, repr(text), "no value, because the configuration has the criteria of E")
    if responses is not None:
        experiment = settings.select_experiment(arguments.experiment, "plan E").experiments[0]
        criteria = PlanCriteria.of_experiment(experiment)
        return assumed_planning_values(criteria, responses, options.students_per_day, experiment)
    with open_store_reader(settings, wall_clock, experiment=arguments.experiment, argument="plan E") as reader:
        summary = reader.read_summary(None).experiments[arguments.experiment]
        return stored_planning_values(reader.experiments[0], summary, arguments.variant, options.students_per_day)


def _criteria(arguments: argparse.Namespace, options: PlanOptions) -> PlanCriteria:
    if options.mde is None:
        raise PlanOptionError("mde", "no value", "the smallest effect of interest, such as 0.1 or 3%")
    return PlanCriteria(
        # A relative mde is computed from the mean later; this one is never used.
        mde=options.mde,
        alpha=_number(arguments, "alpha"),
        treatments=int(_number(arguments, "treatments")),
        min_days=_number(arguments, "min_days"),
        exposure_days=int(_number(arguments, "exposure_days")),
        closing_days=_number(arguments, "feedback_days"),
    )


def _number(arguments: argparse.Namespace, option: str) -> float:
    """Return the number of an option, or its default."""
    default, expected, minimum, maximum = _CRITERIA[option]
    text = getattr(arguments, option) or default
    number = parse_plan_number(option, text, expected, minimum, maximum)
    if option in _INTEGERS and number != int(number):
        raise PlanOptionError(option, repr(text), expected)
    return number
