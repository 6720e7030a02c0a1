"""`ab-monitor simulate`: traffic with a declared effect, to a file or to Kafka."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from pathlib import Path

from monitor.clock import wall_clock
from monitor.config import load_settings
from monitor.config.values import instant_ms
from monitor.errors import UsageError
from monitor.ingest.simulator import (
    Scenario,
    default_config,
    endless,
    generate,
    paced,
    send_to_kafka,
    write_jsonl,
)

_DAY_MS = 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--out", metavar="FILE", help="write JSON lines there; .gz is packed, - is stdout")
    parser.add_argument("--kafka", action="store_true", help="write to the topics of --config")
    parser.add_argument("--config", type=Path, metavar="FILE", help="the monitor's configuration, for --kafka")
    parser.add_argument(
        "--print-config", action="store_true", help="print a configuration that fits the traffic, and end"
    )
    parser.add_argument(
        "--live", action="store_true", help="--days of history up to now, then traffic as it happens, without end"
    )
    parser.add_argument("--responses", type=int, default=60_000, help="answers of the bot in --days (60000)")
    parser.add_argument("--students", type=int, default=5_000, help="students (5000)")
    parser.add_argument("--days", type=float, default=7, help="simulated days (7)")
    parser.add_argument(
        "--effect", action="append", default=[], metavar="VARIANT=X", help="shift of the grades (treatment=0.15)"
    )
    parser.add_argument(
        "--share",
        action="append",
        default=[],
        metavar="VARIANT=X",
        help="share of students (control=0.5 treatment=0.5)",
    )
    parser.add_argument("--start", metavar="T", help="ISO time of the first answers (a fixed week)")
    parser.add_argument("--seed", type=int, default=1, help="another seed is other traffic (1)")


def run(arguments: argparse.Namespace) -> int:
    """Write the traffic."""
    scenario = _scenario(arguments)
    if arguments.print_config:
        print(default_config(scenario), end="")
        return 0
    if (arguments.out is None) == (not arguments.kafka):
        raise UsageError("simulate: say where to: --out FILE or --kafka --config FILE")
    events = paced(endless(scenario)) if arguments.live else generate(scenario)
    if arguments.kafka:
        if arguments.config is None:
            raise UsageError("simulate --kafka: --config FILE says which cluster and topics")
        written = send_to_kafka(events, load_settings(arguments.config, os.environ).kafka)
    else:
        try:
            written = write_jsonl(events, arguments.out)
        except OSError as error:
            raise UsageError(f"--out {arguments.out}: {error.strerror}") from error
    print(f"{written} events written", file=sys.stderr)
    return 0


def _scenario(arguments: argparse.Namespace) -> Scenario:
    try:
        scenario = Scenario(
            responses=arguments.responses, students=arguments.students, days=arguments.days, seed=arguments.seed
        )
        if arguments.share:
            scenario = replace(scenario, shares=_pairs("--share", arguments.share), effects={})
        if arguments.effect:
            scenario = replace(scenario, effects=_pairs("--effect", arguments.effect))
    except ValueError as error:
        raise UsageError(f"simulate: {error}") from error
    if arguments.live:
        return replace(scenario, start_ms=wall_clock() - int(arguments.days * _DAY_MS))
    if arguments.start is not None:
        try:
            return replace(scenario, start_ms=instant_ms("--start", arguments.start))
        except ValueError as error:
            raise UsageError(f"simulate: {error}") from error
    return scenario


def _pairs(flag: str, given: list[str]) -> dict[str, float]:
    pairs = {}
    for text in given:
        name, _, number = text.rpartition("=")
        try:
            pairs[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{flag}: got {text!r}, expected VARIANT=NUMBER")
    return pairs
