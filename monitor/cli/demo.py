"""`ab-monitor demo`: the main job with nothing else installed."""

from __future__ import annotations

import argparse
import logging
import math
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from monitor.app import Opening, http_for, opened, stopped_by_signals, worker_for
from monitor.clock import wall_clock
from monitor.config import ItemSettings, Settings, integer, load_settings
from monitor.errors import UsageError
from monitor.export import render
from monitor.pipeline import Telemetry, Worker
from monitor.simulation import Scenario, SimulatedSource, default_config, generate, truth
from monitor.web import HttpServer

_DAY_S: Final = 86_400
_ITEM_DAYS: Final = 30
_REFRESH_S: Final = 0.5
_PLAIN_EVERY_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--speed", type=float, metavar="X", help="simulated seconds per second (default: all in a minute)"
    )
    parser.add_argument("--days", type=float, default=7, help="simulated days (7)")
    parser.add_argument("--responses", type=int, default=60_000, help="answers of the bot (60000)")
    parser.add_argument("--students", type=int, default=5_000, help="students (5000)")
    parser.add_argument("--seed", type=int, default=1, help="another seed is another week (1)")
    parser.add_argument("--port", type=int, default=9464, help="HTTP port; 0 for any free one (9464)")
    parser.add_argument("--stay", action="store_true", help="keep serving when the week is over, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Run the demonstration until the simulated time is over or it is interrupted."""
    logging.getLogger("monitor").setLevel(logging.DEBUG if arguments.verbose else logging.WARNING)
    speed = arguments.days * _DAY_S / 60 if arguments.speed is None else arguments.speed
    if not 0 < speed < math.inf or not 0 < arguments.days < math.inf:
        raise UsageError("--speed and --days: expected positive numbers")
    port = integer("--port", arguments.port, 0, 65_535)
    scenario = _scenario(arguments)
    console = Console()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ab-monitor-demo-")))
        settings = _settings(scenario, directory, port)
        telemetry = Telemetry()
        opening = stack.enter_context(opened(settings, wall_clock))
        source = SimulatedSource(generate(scenario), scenario.start_ms, speed)
        topics = {"response": "simulated", "feedback": "simulated"}
        worker = worker_for(settings, opening, source, telemetry, topics, source.now_ms)
        interrupted = threading.Event()

        def stop() -> None:
            interrupted.set()
            worker.stop()

        stack.enter_context(stopped_by_signals(stop))
        server = stack.enter_context(http_for(settings, opening.reader, telemetry, worker.readiness, wall_clock))
        _watch(console, worker, opening, source, server)
        _explain(console, scenario, opening, arguments.program)
        if arguments.stay and not interrupted.is_set():
            console.print("The week is over; still serving until Ctrl-C.")
            interrupted.wait()
    return 0


def _scenario(arguments: argparse.Namespace) -> Scenario:
    try:
        return Scenario(
            responses=arguments.responses,
            students=arguments.students,
            days=arguments.days,
            seed=arguments.seed,
            start_ms=wall_clock() - int(arguments.days * _DAY_S * 1000),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error


def _settings(scenario: Scenario, directory: Path, port: int) -> Settings:
    path = directory / "config.toml"
    path.write_text(default_config(scenario))
    settings = load_settings(path, {})
    store = replace(settings.store, url=f"embedded:{directory / 'store'}")
    items = ItemSettings(_ITEM_DAYS, catalogue=frozenset(f"v-{video}" for video in range(scenario.catalogue)))
    experiments = tuple(replace(each, items=items) for each in settings.experiments)
    return replace(settings, experiments=experiments, store=store, http=replace(settings.http, port=port))


def _watch(console: Console, worker: Worker, opening: Opening, source: SimulatedSource, server: HttpServer) -> None:
    """Show the table while the worker works: live on a terminal, every ten seconds otherwise."""
    last_events, last_at = 0, time.monotonic()
    rate = 0.0

    def picture() -> RenderableType:
        nonlocal last_events, last_at, rate
        now = time.monotonic()
        if now > last_at:
            rate = (worker.events - last_events) / (now - last_at)
        last_events, last_at = worker.events, now
        header = Text(f"simulated {time.strftime('%a %d %b %H:%M', time.gmtime(source.now_ms() / 1000))} UTC")
        header.append(f"   page: http://127.0.0.1:{server.port}/   Ctrl-C ends", style="dim")
        table = render(opening.reader.summary(), now_ms=source.now_ms(), events_per_second=rate)
        return Group(header, table)

    with ThreadPoolExecutor(1, thread_name_prefix="worker") as executor:
        work = executor.submit(worker.run)
        if console.is_terminal:
            with Live(picture(), console=console, auto_refresh=False) as live:
                while not work.done():
                    wait([work], _REFRESH_S)
                    live.update(picture(), refresh=True)
        else:
            console.print(f"page: http://127.0.0.1:{server.port}/")
            sys.stdout.flush()
            while not work.done():
                wait([work], _PLAIN_EVERY_S)
                console.print(picture())
        work.result()


def _explain(console: Console, scenario: Scenario, opening: Opening, program: str) -> None:
    """Say what the simulation was made with, what was measured, and what to try next by the program of that name."""
    (experiment,) = opening.reader.summary().experiments.values()
    declared = truth(scenario, opening.reader.experiments[0])
    for name, variant in experiment.variants.items():
        metric = variant.metrics[experiment.primary]
        if metric.mean is not None:
            console.print(
                f"{name}: {experiment.primary} declared {declared[name][experiment.primary]:.3f}, "
                f"measured {metric.mean:.3f} over {metric.count} rated responses"
            )
    console.print(
        "\nNext:\n"
        f"  {program} demo --stay                                   the same, and the page stays\n"
        f"  {program} simulate --print-config > ab-monitor.toml     a configuration to start from\n"
        f"  {program} check --config ab-monitor.toml                does it reach your Kafka and your Redis?\n"
        f"  {program} run --config ab-monitor.toml                  the service, on your Kafka and your Redis",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
