"""`ab-monitor simulate`: write simulated traffic with a declared effect to a file or to Kafka."""

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

from monitor.cli.command_io import load_command_settings
from monitor.clock import DAY_MS, Clock, wall_clock
from monitor.config import KafkaSettings, parse_instant_ms
from monitor.errors import DependencyUnavailable, UsageError, count_noun
from monitor.simulation import (
    QualityDrop,
    Scenario,
    SimulatedEvent,
    generate_endless_events,
    generate_events,
    render_example_config,
)
from monitor.sources import connect_kafka_client, translate_kafka_error


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    repeatable_option: dict[str, Any] = {"action": "append", "default": [], "metavar": "VARIANT=X"}
    add("--out", metavar="FILE", help="write JSON lines to this file, compressed if the name ends in .gz; - for stdout")
    add("--kafka", action="store_true", help="write to the topics of --config")
    add("--config", type=Path, metavar="FILE", help="the monitor's configuration, for --kafka")
    add("--print-config", action="store_true", help="print a configuration that fits the traffic, and exit")
    add(
        "--live",
        action="store_true",
        help="write --days of history up to now, then continue in real time until stopped",
    )
    add("--responses", type=int, default=60_000, help="number of responses in --days (60000)")
    add("--students", type=int, default=5_000, help="number of students (5000)")
    add("--days", type=float, default=7, help="number of simulated days (7)")
    add("--effect", **repeatable_option, help="shift of the grades of a variant (treatment=0.15)")
    add("--share", **repeatable_option, help="share of students of a variant (control=0.5 treatment=0.5)")
    add(
        "--drop",
        metavar="VARIANT=X",
        help="from --drop-at on, responses of the variant lose this share of their quality",
    )
    add("--effect-from", metavar="T", help="ISO time at which the effects begin; the time before is a pre-period")
    add("--fade-days", type=float, metavar="D", help="half-life in days of the effect since a student's first response")
    add("--escalated", **repeatable_option, help="share of unrated responses that are escalated to a human (0.02)")
    add("--slowness", **repeatable_option, help="factor on the usual latency (1)")
    add("--drop-at", metavar="T", help="ISO time at which --drop begins")
    add(
        "--feedback-delay",
        type=float,
        default=60.0,
        metavar="S",
        help="median time from response to rating in seconds (60)",
    )
    add("--start", metavar="T", help="ISO time of the first responses (default: a fixed week)")
    add("--seed", type=int, default=1, help="seed of the random numbers: equal seeds give equal traffic (1)")


def run(arguments: argparse.Namespace) -> int:
    """Write simulated traffic, or print a matching configuration; return the exit code."""
    scenario = _create_scenario(arguments)
    if arguments.print_config:
        print(render_example_config(scenario), end="")
        return 0
    if (arguments.out is None) == (not arguments.kafka):
        raise UsageError("simulate: expected either --out FILE, or --kafka with --config FILE")
    events = pace_events(generate_endless_events(scenario)) if arguments.live else generate_events(scenario)
    if arguments.kafka:
        if arguments.config is None:
            raise UsageError("simulate: --kafka needs --config FILE with the cluster and the topics")
        kafka = load_command_settings(arguments).kafka
        if kafka.sources:
            raise UsageError(
                "simulate: --kafka writes native events, which the sources of the configuration do not read"
            )
        written_count = send_to_kafka(events, kafka)
    else:
        try:
            written_count = _write_jsonl(events, arguments.out)
        except BrokenPipeError:
            # The reader has closed the pipe.
            return 0
        except OSError as error:
            output = "stdout" if arguments.out == "-" else f"--out: the file {arguments.out} cannot be written"
            raise UsageError(f"{output}: {error.strerror}") from error
    print(f"{count_noun(written_count, 'event')} written", file=sys.stderr)
    return 0


def pace_events(
    events: Iterator[SimulatedEvent], *, clock: Clock = wall_clock, sleep: Callable[[float], object] = time.sleep
) -> Iterator[SimulatedEvent]:
    """Yield each event at its arrival time by the clock; events with an arrival time in the past are not delayed."""
    for event in events:
        delay_ms = event.arrival_ms - clock()
        if delay_ms > 0:
            sleep(delay_ms / 1000)
        yield event


def send_to_kafka(events: Iterator[SimulatedEvent], settings: KafkaSettings) -> int:
    """Write events to their topics, keyed by student, and wait for all acknowledgements; return the number of events.

    Raises `DependencyUnavailable` if Kafka does not accept an event.
    """
    topics = {"response": settings.responses_topic, "feedback": settings.feedback_topic}
    failures: list[BaseException] = []
    producer = connect_kafka_client(
        KafkaProducer, settings, acks="all", linger_ms=20, batch_size=1 << 17, metrics_enabled=False
    )
    try:
        written_count = 0
        for event in events:
            producer.send(topics[event.kind], value=event.payload, key=event.key).add_errback(failures.append)
            written_count += 1
            if failures:
                break
        producer.flush(timeout=60)
        producer.close(timeout=60)
    except KafkaError as error:
        raise translate_kafka_error(settings, error) from error
    if failures:
        raise DependencyUnavailable(f"Kafka at {settings.bootstrap_servers} rejected an event: {failures[0]}")
    return written_count


def _write_jsonl(events: Iterator[SimulatedEvent], path: str) -> int:
    """Write an event per line to a file (gzip for `.gz`, stdout for `-`); return the number of events."""
    with ExitStack() as stack:
        stream: BinaryIO
        if path.endswith(".gz"):
            stream = cast(BinaryIO, stack.enter_context(gzip.open(path, "wb", compresslevel=5)))
        elif path == "-":
            stream = stack.enter_context(os.fdopen(sys.stdout.fileno(), "wb", closefd=False))
        else:
            stream = stack.enter_context(Path(path).open("wb"))
        written_count = 0
        for event in events:
            stream.write(event.payload)
            stream.write(b"\n")
            written_count += 1
        stream.flush()
    return written_count


def _create_scenario(arguments: argparse.Namespace) -> Scenario:
    optional_fields: dict[str, Any] = {}
    if arguments.share:
        optional_fields |= {"shares": _parse_variant_numbers("--share", arguments.share), "effects": {}}
    if arguments.effect:
        optional_fields["effects"] = _parse_variant_numbers("--effect", arguments.effect)
    if arguments.effect_from is not None:
        optional_fields["effects_from_ms"] = parse_instant_ms("--effect-from", arguments.effect_from)
    if arguments.drop is not None or arguments.drop_at is not None:
        optional_fields["drop"] = _parse_quality_drop(arguments.drop, arguments.drop_at)
    if arguments.start is not None and not arguments.live:
        optional_fields["start_ms"] = parse_instant_ms("--start", arguments.start)
    try:
        scenario = Scenario(
            responses=arguments.responses,
            students=arguments.students,
            days=arguments.days,
            feedback_delay_s=arguments.feedback_delay,
            fade_days=arguments.fade_days,
            escalation_shares=_parse_variant_numbers("--escalated", arguments.escalated),
            latency_factors=_parse_variant_numbers("--slowness", arguments.slowness),
            seed=arguments.seed,
            **optional_fields,
        )
    except ValueError as error:
        raise UsageError(f"simulate: {error}") from error
    return replace(scenario, start_ms=wall_clock() - int(arguments.days * DAY_MS)) if arguments.live else scenario


def _parse_quality_drop(drop_argument: str | None, time_argument: str | None) -> QualityDrop:
    if drop_argument is None or time_argument is None:
        raise UsageError("simulate: --drop VARIANT=X and --drop-at T belong together")
    ((variant, share),) = _parse_variant_numbers("--drop", [drop_argument]).items()
    return QualityDrop(variant, share, parse_instant_ms("--drop-at", time_argument))


def _parse_variant_numbers(flag: str, arguments: list[str]) -> dict[str, float]:
    numbers = {}
    for text in arguments:
        name, _, number = text.rpartition("=")
        try:
            numbers[name] = float(number)
        except ValueError:
            name = ""
        if not name:
            raise UsageError(f"{flag}: got {text!r}, expected VARIANT=NUMBER")
    return numbers
