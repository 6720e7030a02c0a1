"""`ab-monitor status`: the current results in the store, as tables or JSON."""

from __future__ import annotations

import argparse
import os

from monitor.clock import wall_clock
from monitor.config import Settings, parse_instant_ms
from monitor.export import print_json, read_health, render_health, render_summary, stdout_console
from monitor.state import open_store_reader


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.set_defaults(reads_store=True)
    parser.add_argument("--experiment", metavar="E", help="print only this experiment")
    parser.add_argument(
        "--as-of", metavar="T", help="weight means as of this ISO 8601 time instead of the newest event"
    )
    parser.add_argument(
        "--health", action="store_true", help="print lag, rejected and skipped events, pauses and workers instead"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the summary of the store; return the exit code."""
    as_of_ms = None if arguments.as_of is None else parse_instant_ms("--as-of", arguments.as_of)
    now_ms = wall_clock()
    selection = {"experiment": arguments.experiment, "argument": arguments.experiment_argument}
    with open_store_reader(settings, wall_clock, **selection) as reader:
        summary = reader.read_summary(as_of_ms)
        health = read_health(reader, settings, summary, now_ms)
    if arguments.health and arguments.json:
        print_json(health.to_json())
    elif arguments.health:
        stdout_console(os.environ).print(render_health(health))
    elif arguments.json:
        print_json(summary.to_json() | {"problems": [problem.to_json() for problem in health.data_problems]})
    else:
        conditions = [*(problem.text for problem in health.data_problems), *health.worker_conditions()]
        stdout_console(os.environ).print(render_summary(summary, now_ms=now_ms, conditions=conditions))
    return 0
