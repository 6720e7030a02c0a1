"""`ab-monitor simulate`: traffic with a declared effect, to a file or to Kafka."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from monitor.clock import wall_clock
from monitor.config import load_settings
from monitor.config.values import instant_ms
from monitor.errors import UsageError
from monitor.ingest.sending import paced, send_to_kafka
from monitor.ingest.simulator import (
    Drop,
    Scenario,
    SimulatedEvent,
    default_config,
    endless,
    generate,
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
    parser.add_argument(
        "--drop", metavar="VARIANT=X", help="from --drop-at on, answers of the variant lose that share of their quality"
    )
    parser.add_argument(
        "--effect-from", metavar="T", help="ISO time from which there are effects: what lies before is a pre-period"
    )
    parser.add_argument(
        "--fade-days", type=float, metavar="D", help="half of a student's effect is gone D days after the first answer"
    )
    parser.add_argument(
        "--escalated",
        action="append",
        default=[],
        metavar="VARIANT=X",
        help="share of unrated answers that end with a person (0.02)",
    )
    parser.add_argument(
        "--slowness", action="append", default=[], metavar="VARIANT=X", help="times the usual latency (1)"
    )
    parser.add_argument("--drop-at", metavar="T", help="ISO time of the drop")
    parser.add_argument(
        "--feedback-delay", type=float, default=60.0, metavar="S", help="median seconds until a rating (60)"
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
            written = _write_jsonl(events, arguments.out)
        except BrokenPipeError:
            # Whoever read has seen enough.
            return 0
        except OSError as error:
            place = "stdout" if arguments.out == "-" else f"--out {arguments.out}"
            raise UsageError(f"{place}: {error.strerror}") from error
    print(f"{written} events written", file=sys.stderr)
    return 0


def _write_jsonl(events: Iterator[SimulatedEvent], path: str) -> int:
    """Write one event per line to a file (`.gz` is packed, `-` is stdout); return how many."""
    with ExitStack() as stack:
        stream: BinaryIO
        if path.endswith(".gz"):
            stream = cast(BinaryIO, stack.enter_context(gzip.open(path, "wb", compresslevel=5)))
        elif path == "-":
            stream = stack.enter_context(os.fdopen(sys.stdout.fileno(), "wb", closefd=False))
        else:
            stream = stack.enter_context(Path(path).open("wb"))
        written = 0
        for event in events:
            stream.write(event.payload)
            stream.write(b"\n")
            written += 1
        stream.flush()
    return written


def _scenario(arguments: argparse.Namespace) -> Scenario:
    try:
        scenario = Scenario(
            responses=arguments.responses,
            students=arguments.students,
            days=arguments.days,
            feedback_delay_s=arguments.feedback_delay,
            fade_days=arguments.fade_days,
            seed=arguments.seed,
        )
        if arguments.share:
            scenario = replace(scenario, shares=_pairs("--share", arguments.share), effects={})
        if arguments.effect:
            scenario = replace(scenario, effects=_pairs("--effect", arguments.effect))
        if arguments.escalated or arguments.slowness:
            scenario = replace(
                scenario,
                escalated=_pairs("--escalated", arguments.escalated),
                slowness=_pairs("--slowness", arguments.slowness),
            )
        if arguments.effect_from is not None:
            scenario = replace(scenario, effects_from_ms=instant_ms("--effect-from", arguments.effect_from))
        if arguments.drop is not None or arguments.drop_at is not None:
            scenario = replace(scenario, drop=_drop(arguments.drop, arguments.drop_at))
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


def _drop(given: str | None, at: str | None) -> Drop:
    if given is None or at is None:
        raise UsageError("simulate: --drop VARIANT=X and --drop-at T belong together")
    ((variant, share),) = _pairs("--drop", [given]).items()
    return Drop(variant, share, instant_ms("--drop-at", at))


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
