"""`ab-monitor plan`: how many students and days an experiment needs, from the store or from assumptions."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Final

from monitor.analysis import (
    PLAN_OPTIONS,
    PlanCriteria,
    PlanningValues,
    PlanOptionError,
    PlanOptions,
    assumed_planning_values,
    parse_plan_number,
    parse_plan_options,
    plan_experiment,
    stored_planning_values,
)
from monitor.cli.command_io import settings_variables
from monitor.clock import wall_clock
from monitor.config import ExperimentSettings, load_settings
from monitor.errors import UsageError
from monitor.export import describe_plan, print_json, render_plan, stdout_console
from monitor.state import open_store_reader

_ASSUMPTIONS: Final = {
    "metric_sd": (None, "a number above 0", 1e-12, 1e12),
    "metric_mean": (None, "a number", -1e12, 1e12),
    "responses_per_student": ("1", "a number of at least 1", 1.0, 1e6),
    "correlation": ("0.3", "a number from 0 to 1", 0.0, 1.0),
}
_CRITERIA: Final = {
    "alpha": ("0.05", "a number above 0 and up to 0.25", 1e-9, 0.25),
    "treatments": ("1", "an integer from 1 to 50", 1.0, 50.0),
    "min_days": ("7", "a number from 0 to 365", 0.0, 365.0),
    "exposure_days": ("3", "an integer from 1 to 30", 1.0, 30.0),
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
    if arguments.experiment is None:
        if arguments.config is not None or arguments.variant is not None:
            raise UsageError("E: missing, expected the name of an experiment with --config or --variant")
        return _assumed_values(arguments, options, None)
    if arguments.config is None:
        raise UsageError("--config: missing, expected the configuration file of the experiment")
    settings = load_settings(arguments.config, settings_variables())
    for option in _CRITERIA:
        if getattr(arguments, option) is not None:
            text = getattr(arguments, option)
            raise PlanOptionError(option, repr(text), "no value, because the configuration has the criteria of E")
    if arguments.metric_sd is not None:
        selected = settings.select_experiment(arguments.experiment, "plan E")
        return _assumed_values(arguments, options, selected.experiments[0])
    for option in _ASSUMPTIONS:
        if getattr(arguments, option) is not None:
            text = getattr(arguments, option)
            raise PlanOptionError(option, repr(text), "--metric-sd, too: assumptions replace the data of the store")
    with open_store_reader(settings, wall_clock, experiment=arguments.experiment, argument="plan E") as reader:
        summary = reader.read_summary(None).experiments[arguments.experiment]
        return stored_planning_values(reader.experiments[0], summary, arguments.variant, options.students_per_day)


def _assumed_values(
    arguments: argparse.Namespace, options: PlanOptions, experiment: ExperimentSettings | None
) -> PlanningValues:
    """Return the values from the options; an experiment has its own criteria."""
    response_sd, mean = _number(arguments, "metric_sd"), _number(arguments, "metric_mean")
    if response_sd is None:
        raise UsageError(
            "--metric-sd: missing, expected the standard deviation of the metric between responses, or the name of an "
            "experiment with --config"
        )
    if options.students_per_day is None:
        raise UsageError("--students-per-day: missing, expected the number of new students per day in all variants")
    return assumed_planning_values(
        _criteria(arguments, options) if experiment is None else PlanCriteria.of_experiment(experiment),
        response_sd=response_sd,
        mean=mean,
        students_per_day=options.students_per_day,
        responses_per_student=_number(arguments, "responses_per_student") or 1.0,
        correlation=_number(arguments, "correlation") or 0.0,
        settings=experiment,
    )


def _criteria(arguments: argparse.Namespace, options: PlanOptions) -> PlanCriteria:
    if options.mde is None:
        raise UsageError("--mde: missing, expected the smallest effect of interest, such as 0.1 or 3%")
    return PlanCriteria(
        # A relative mde is computed from the mean later; this one is never used.
        mde=options.mde,
        alpha=_number(arguments, "alpha") or 0.0,
        treatments=int(_number(arguments, "treatments") or 1),
        min_days=_number(arguments, "min_days") or 0.0,
        exposure_days=int(_number(arguments, "exposure_days") or 1),
        closing_days=_number(arguments, "feedback_days") or 0.0,
    )


def _number(arguments: argparse.Namespace, option: str) -> float | None:
    """Return the number of an option, or its default; None without either."""
    default, expected, minimum, maximum = (_ASSUMPTIONS | _CRITERIA)[option]
    text = getattr(arguments, option) or default
    if text is None:
        return None
    number = parse_plan_number(option, text, expected, minimum, maximum)
    if option in _INTEGERS and number != int(number):
        raise PlanOptionError(option, repr(text), expected)
    return number
