"""`ab-monitor simulate`: traffic with a declared effect, to a file or to Kafka."""

from __future__ import annotations

import argparse
import gzip
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from kafka import KafkaProducer
from kafka.errors import KafkaError

from monitor.clock import Clock, wall_clock
from monitor.config import KafkaSettings, load_settings, parse_instant_ms
from monitor.errors import DependencyUnavailable, UsageError
from monitor.simulation import Drop, Scenario, SimulatedEvent, default_config, endless, generate
from monitor.sources import connect, translate_error

_DAY_MS = 86_400_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    many: dict[str, Any] = {"action": "append", "default": [], "metavar": "VARIANT=X"}
    add("--out", metavar="FILE", help="write JSON lines there; .gz is packed, - is stdout")
    add("--kafka", action="store_true", help="write to the topics of --config")
    add("--config", type=Path, metavar="FILE", help="the monitor's configuration, for --kafka")
    add("--print-config", action="store_true", help="print a configuration that fits the traffic, and end")
    add("--live", action="store_true", help="--days of history up to now, then traffic as it happens, without end")
    add("--responses", type=int, default=60_000, help="answers of the bot in --days (60000)")
    add("--students", type=int, default=5_000, help="students (5000)")
    add("--days", type=float, default=7, help="simulated days (7)")
    add("--effect", **many, help="shift of the grades (treatment=0.15)")
    add("--share", **many, help="share of students (control=0.5 treatment=0.5)")
    add(
        "--drop", metavar="VARIANT=X", help="from --drop-at on, answers of the variant lose that share of their quality"
    )
    add("--effect-from", metavar="T", help="ISO time from which there are effects: what lies before is a pre-period")
    add("--fade-days", type=float, metavar="D", help="half of a student's effect is gone D days after the first answer")
    add("--escalated", **many, help="share of unrated answers that end with a person (0.02)")
    add("--slowness", **many, help="times the usual latency (1)")
    add("--drop-at", metavar="T", help="ISO time of the drop")
    add("--feedback-delay", type=float, default=60.0, metavar="S", help="median seconds until a rating (60)")
    add("--start", metavar="T", help="ISO time of the first answers (a fixed week)")
    add("--seed", type=int, default=1, help="another seed is other traffic (1)")


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


def paced(
    events: Iterator[SimulatedEvent], *, clock: Clock = wall_clock, sleep: Callable[[float], object] = time.sleep
) -> Iterator[SimulatedEvent]:
    """Yield events no earlier than they arrive; what lies in the past comes at once."""
    for event in events:
        ahead_ms = event.arrival_ms - clock()
        if ahead_ms > 0:
            sleep(ahead_ms / 1000)
        yield event


def send_to_kafka(events: Iterator[SimulatedEvent], settings: KafkaSettings) -> int:
    """Write events to their topics, keyed by student, and wait for every acknowledgement; return how many."""
    topics = {"response": settings.responses_topic, "feedback": settings.feedback_topic}
    failures: list[BaseException] = []
    producer = connect(KafkaProducer, settings, acks="all", linger_ms=20, batch_size=1 << 17, metrics_enabled=False)
    try:
        written = 0
        for event in events:
            producer.send(topics[event.kind], value=event.payload, key=event.key).add_errback(failures.append)
            written += 1
            if failures:
                break
        producer.flush(timeout=60)
        producer.close(timeout=60)
    except KafkaError as error:
        raise translate_error(settings, error) from error
    if failures:
        raise DependencyUnavailable(f"Kafka at {settings.bootstrap_servers} refused an event: {failures[0]}")
    return written


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
    chosen: dict[str, Any] = {}
    if arguments.share:
        chosen |= {"shares": _pairs("--share", arguments.share), "effects": {}}
    if arguments.effect:
        chosen["effects"] = _pairs("--effect", arguments.effect)
    if arguments.effect_from is not None:
        chosen["effects_from_ms"] = parse_instant_ms("--effect-from", arguments.effect_from)
    if arguments.drop is not None or arguments.drop_at is not None:
        chosen["drop"] = _drop(arguments.drop, arguments.drop_at)
    if arguments.start is not None and not arguments.live:
        chosen["start_ms"] = parse_instant_ms("--start", arguments.start)
    try:
        scenario = Scenario(
            responses=arguments.responses,
            students=arguments.students,
            days=arguments.days,
            feedback_delay_s=arguments.feedback_delay,
            fade_days=arguments.fade_days,
            escalated=_pairs("--escalated", arguments.escalated),
            slowness=_pairs("--slowness", arguments.slowness),
            seed=arguments.seed,
            **chosen,
        )
    except ValueError as error:
        raise UsageError(f"simulate: {error}") from error
    return replace(scenario, start_ms=wall_clock() - int(arguments.days * _DAY_MS)) if arguments.live else scenario


def _drop(given: str | None, at: str | None) -> Drop:
    if given is None or at is None:
        raise UsageError("simulate: --drop VARIANT=X and --drop-at T belong together")
    ((variant, share),) = _pairs("--drop", [given]).items()
    return Drop(variant, share, parse_instant_ms("--drop-at", at))


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
