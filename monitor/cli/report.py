"""`ab-monitor report`: an HTML page on an experiment."""

from __future__ import annotations

import argparse

from monitor.cli.command_io import write_result
from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.export import read_report_data
from monitor.state import open_store_reader
from monitor.web import render_experiment_report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.set_defaults(reads_store=True, experiment_argument="report E")
    parser.add_argument("experiment", metavar="E", help="the experiment's name")
    parser.add_argument("--html", required=True, metavar="FILE", help="file for the page; - for stdout")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Write the experiment's report; return the exit code."""
    selection = {"experiment": arguments.experiment, "argument": arguments.experiment_argument}
    with open_store_reader(settings, wall_clock, **selection) as reader:
        report_data = read_report_data(reader, reader.experiments[0], settings.display.min_display_students)
    write_result("--html", arguments.html, render_experiment_report(report_data, wall_clock()))
    return 0
