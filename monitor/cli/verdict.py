"""`ab-monitor verdict`: the decision on an experiment's treatments, with reasons."""

from __future__ import annotations

import argparse
import os
from typing import Final

from monitor.analysis import history_json
from monitor.clock import wall_clock
from monitor.config import Settings, parse_instant_ms
from monitor.errors import UsageError
from monitor.export import (
    VERDICT_EXIT_CODES,
    describe_unusual_days,
    headlines_json,
    print_json,
    read_day_log,
    render_verdicts,
    stdout_console,
)
from monitor.state import open_store_reader

_NO_VERDICT_EXIT_CODE: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.set_defaults(reads_store=True, experiment_argument="verdict E")
    parser.add_argument("experiment", metavar="E", help="the experiment's name")
    parser.add_argument("--variant", metavar="V", help="print only this treatment")
    parser.add_argument(
        "--as-of",
        metavar="T",
        help="use only students whose first days and feedback window were over at this ISO 8601 time; after `ends_at`, "
        "it may be later than the newest event",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument(
        "--exit-code",
        action="store_true",
        help="exit with 0 for ship and non_inferior, 10 for continue and insufficient_data, 20 for all other states",
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the verdicts; return 0, or with `--exit-code` the highest exit code of the printed verdicts."""
    as_of_ms = None if arguments.as_of is None else parse_instant_ms("--as-of", arguments.as_of)
    selection = {"experiment": arguments.experiment, "argument": arguments.experiment_argument}
    with open_store_reader(settings, wall_clock, **selection) as reader:
        summary = reader.read_summary(as_of_ms)
        experiment = summary.experiments[arguments.experiment]
        complete_history = reader.read_verdict_history(experiment)
        day_log = read_day_log(reader, experiment, complete_history, as_of_ms)
    verdicts = {} if experiment.analysis is None else experiment.analysis.verdicts
    if arguments.variant is not None and arguments.variant not in verdicts:
        raise UsageError(f"--variant: got {arguments.variant!r}, expected one of {', '.join(verdicts) or 'none'}")
    history = {name: periods for name, periods in complete_history.items() if arguments.variant in {None, name}}
    if arguments.json:
        content = summary.verdict_json(arguments.experiment, arguments.variant)
        headlines = {name: headline for name, headline in headlines_json(experiment).items() if name in history}
        print_json({**content, "headline": headlines, "history": history_json(history)})
    else:
        unusual_days = describe_unusual_days(day_log, experiment, settings.display.min_display_students)
        stdout_console(os.environ).print(render_verdicts(experiment, history, unusual_days))
    if not arguments.exit_code:
        return 0
    exit_codes = [
        VERDICT_EXIT_CODES[verdict.state]
        for variant, verdict in verdicts.items()
        if arguments.variant in {None, variant}
    ]
    return max(exit_codes, default=_NO_VERDICT_EXIT_CODE)
