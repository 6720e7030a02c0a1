"""`ab-monitor demo`: the service with simulated traffic and an embedded store, without any other installation."""

from __future__ import annotations

import argparse
import logging
import math
import os
import shlex
import shutil
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from monitor.app import WritableStore, create_worker, open_writable_store, serve_http
from monitor.cli.signals import stop_on_signals
from monitor.clock import wall_clock
from monitor.config import load_settings, parse_integer
from monitor.errors import UsageError
from monitor.export import DataConsole, format_count, render_summary
from monitor.pipeline import Telemetry, Worker
from monitor.simulation import Scenario, SimulatedSource, compute_true_means, generate_events, render_example_config
from monitor.web import HttpServer

_DAY_S: Final = 86_400
_ITEM_DAYS: Final = 30
_REFRESH_INTERVAL_S: Final = 0.5
_PRINT_INTERVAL_S: Final = 10.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "--speed", type=float, metavar="X", help="simulated seconds per second (default: all days in one minute)"
    )
    parser.add_argument("--days", type=float, default=7, help="number of simulated days (7)")
    parser.add_argument("--responses", type=int, default=60_000, help="number of responses of the bot (60000)")
    parser.add_argument("--students", type=int, default=5_000, help="number of students (5000)")
    parser.add_argument(
        "--seed", type=int, default=1, help="seed of the random numbers: equal seeds give equal traffic (1)"
    )
    parser.add_argument("--port", type=int, default=9464, help="HTTP port; 0 for any free port (9464)")
    parser.add_argument("--stay", action="store_true", help="keep the page after the simulated time, until Ctrl-C")


def run(arguments: argparse.Namespace) -> int:
    """Run the service on simulated traffic until the simulated time is over or a signal comes; return the exit code."""
    logging.getLogger("monitor").setLevel(logging.DEBUG if arguments.verbose else logging.WARNING)
    speed = arguments.days * _DAY_S / 60 if arguments.speed is None else arguments.speed
    if not 0 < speed < math.inf or not 0 < arguments.days < math.inf:
        raise UsageError(f"--speed, --days: got {speed:g} and {arguments.days:g}, expected finite numbers above 0")
    port = parse_integer("--port", arguments.port, 0, 65_535)
    scenario = _create_scenario(arguments)
    console = DataConsole()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ab-monitor-demo-")))
        config_path = _write_config(scenario, directory, port)
        settings = load_settings(config_path, {})
        telemetry = Telemetry()
        store = stack.enter_context(open_writable_store(settings, wall_clock))
        source = SimulatedSource(generate_events(scenario), scenario.start_ms, speed)
        topics = {"response": "simulated", "feedback": "simulated"}
        worker = create_worker(settings, store, source, telemetry, topics, source.now_ms)
        is_interrupted = threading.Event()

        def stop() -> None:
            is_interrupted.set()
            worker.stop()

        stack.enter_context(stop_on_signals(stop))
        # The simulated time passes the present if the page stays.
        server = stack.enter_context(
            serve_http(
                settings,
                lambda: store.reader,
                telemetry,
                worker.readiness,
                lambda: min(source.now_ms(), wall_clock()),
            )
        )
        _show_progress(console, worker, store, source, server)
        _print_results(console, scenario, store)
        if arguments.stay and not is_interrupted.is_set():
            command = f"{_find_program_name()} verdict {shlex.quote(scenario.experiment)}"
            console.print(
                "The simulated time is over. The page stays until Ctrl-C. Until then, other commands can read the "
                f"store:\n  {command} --config {shlex.quote(str(config_path))}",
                soft_wrap=True,
            )
            is_interrupted.wait()
    return 0


def _create_scenario(arguments: argparse.Namespace) -> Scenario:
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


def _write_config(scenario: Scenario, directory: Path, port: int) -> Path:
    """Write the configuration and the catalogue to the directory, and return the path of the configuration."""
    path, catalogue = directory / "config.toml", directory / "catalogue.txt"
    catalogue.write_text("".join(f"v-{video}\n" for video in range(scenario.catalogue)), encoding="utf-8")
    text = render_example_config(
        scenario,
        store_url=f"embedded:{directory / 'store'}",
        http_port=port,
        items={"horizon": f"{_ITEM_DAYS}d", "catalogue": str(catalogue)},
    )
    path.write_text(text, encoding="utf-8")
    return path


def _show_progress(
    console: Console, worker: Worker, store: WritableStore, source: SimulatedSource, server: HttpServer
) -> None:
    """Run the worker and show the current results: live on a terminal, otherwise every ten seconds."""
    previous_count, previous_time_s = 0, time.monotonic()
    events_per_second = 0.0

    def render_progress() -> RenderableType:
        nonlocal previous_count, previous_time_s, events_per_second
        time_s = time.monotonic()
        if time_s > previous_time_s:
            events_per_second = (worker.processed_records - previous_count) / (time_s - previous_time_s)
        previous_count, previous_time_s = worker.processed_records, time_s
        header = Text(f"Simulated time: {time.strftime('%a %d %b %H:%M', time.gmtime(source.now_ms() / 1000))} UTC")
        header.append(f"   Page: http://127.0.0.1:{server.port}/   Stop: Ctrl-C", style="dim")
        table = render_summary(store.reader.read_summary(), now_ms=source.now_ms(), events_per_second=events_per_second)
        return Group(header, table)

    with ThreadPoolExecutor(1, thread_name_prefix="worker") as executor:
        worker_run = executor.submit(worker.run)
        if console.is_terminal:
            with Live(render_progress(), console=console, auto_refresh=False) as live:
                while not worker_run.done():
                    wait([worker_run], _REFRESH_INTERVAL_S)
                    live.update(render_progress(), refresh=True)
        else:
            console.print(f"Page: http://127.0.0.1:{server.port}/")
            sys.stdout.flush()
            while not worker_run.done():
                wait([worker_run], _PRINT_INTERVAL_S)
                console.print(render_progress())
        worker_run.result()


def _print_results(console: Console, scenario: Scenario, store: WritableStore) -> None:
    """Print the declared and the measured means of the primary metric, and commands to try next."""
    program = _find_program_name()
    (experiment,) = store.reader.read_summary().experiments.values()
    true_means = compute_true_means(scenario, store.reader.experiments[0])
    for name, variant in experiment.variants.items():
        metric = variant.metrics[experiment.primary]
        if metric.mean is not None:
            console.print(
                f"{name}: mean {experiment.primary} {metric.mean:.3f} measured over {format_count(metric.count)} rated "
                f"responses, {true_means[name][experiment.primary]:.3f} simulated"
            )
    console.print(
        "\nNext:\n"
        f"  {program} demo --stay                                   repeat the demo and keep the page\n"
        f"  {program} simulate --print-config > ab-monitor.toml     write a first configuration\n"
        f"  {program} check --config ab-monitor.toml                test the connection to your Kafka and Redis\n"
        f"  {program} run --config ab-monitor.toml                  start the service on your Kafka and Redis",
        soft_wrap=True,
    )


def _find_program_name() -> str:
    """Return the name of this program for a shell: a relative path if the program is not on the search path."""
    program_path = Path(sys.executable).with_name("ab-monitor")
    if program_path.exists() and not shutil.which(program_path.name):
        return os.path.relpath(program_path)
    return program_path.name
