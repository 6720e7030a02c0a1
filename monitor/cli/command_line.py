"""The command line: the only place that reads argv and the environment, and says how a command ended."""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from monitor import __version__
from monitor.app import http_for, opened, stopped_by_signals, viewed, worker_for
from monitor.cli import audit, check, dead_letters, demo, offline_commands, rebuild, simulate
from monitor.clock import wall_clock
from monitor.config import Settings, experiment_warnings, load_settings, parse_instant_ms
from monitor.errors import ENDED_BY, AbMonitorError, InputRefused, UsageError
from monitor.events import instant_ms
from monitor.export import (
    EXIT_CODES,
    account,
    attention_json,
    items_json,
    print_json,
    render,
    render_attention,
    render_items,
    render_verdicts,
    scale,
    to_stdout,
)
from monitor.pipeline import Telemetry
from monitor.sources import FileSource, KafkaSource
from monitor.state import warnings
from monitor.web import render_experiment_report


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; see the table in README.md."""
    arguments = argparse.Namespace(verbose=False)
    try:
        with stopped_by_signals(lambda: sys.exit(ENDED_BY + signal.SIGTERM), [signal.SIGTERM]), _streams():
            _parser().parse_args(argv, arguments)
            _log(verbose=arguments.verbose)
            command: Callable[[argparse.Namespace], int] = arguments.command
            return command(arguments)
    except AbMonitorError as error:
        if arguments.verbose:
            traceback.print_exc()
        print(f"ab-monitor: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ab-monitor: interrupted", file=sys.stderr)
        return 130


class _Stdout:
    """What commands print to: it does not matter to them that nobody reads on; what else goes wrong is one line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._guarded():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._guarded():
            self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # The rest goes nowhere; Python would complain of it when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise UsageError(f"stdout: {error.strerror}") from error


@contextmanager
def _streams() -> Iterator[None]:
    """Guard stdout while the block runs; streams that were closed (`>&-`) lead nowhere."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  until the process ends
    stdout = _Stdout(sys.stdout)
    with redirect_stdout(cast(TextIO, stdout)):
        try:
            yield
        finally:
            stdout.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ab-monitor", description="Live, exact comparison of ranking variants, from Kafka to Prometheus."
    )
    parser.add_argument("--version", action="version", version=f"ab-monitor {__version__}")
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--verbose", action="store_true", help="log more, and show the whole trace of an error")
    configured = argparse.ArgumentParser(add_help=False, parents=[common])
    configured.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file; docs/configuration.md"
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(name: str, command: Callable[..., int], text: str, *, config: bool = True) -> argparse.ArgumentParser:
        """Add a command, which is called with its arguments and, if it needs them, with the settings."""
        parent = configured if config else common
        added = commands.add_parser(name, help=text, description=text, parents=[parent])
        with_settings = lambda arguments: command(arguments, _settings(arguments))  # noqa: E731
        added.set_defaults(command=with_settings if config else command, experiment_argument="--experiment")
        return added

    demonstrate = add("demo", demo.run, "the main job on embedded parts, with simulated traffic", config=False)
    demonstrate.set_defaults(program=_program())
    demo.add_arguments(demonstrate)
    # Signals are handled before the settings are loaded, so it loads them itself.
    add("run", _run, "the service: Kafka → store → HTTP").set_defaults(command=_run)
    replay = add("replay", _replay, "the same pipeline from files of JSON lines")
    replay.add_argument(
        "events", nargs="+", metavar="EVENTS", help="files of events of either kind, .gz too; - for stdin"
    )
    status = add("status", _status, "what the store holds")
    status.add_argument("--experiment", metavar="E", help="only this one")
    status.add_argument("--as-of", metavar="T", help="decay to this ISO time, not the newest event of what is shown")
    status.add_argument("--json", action="store_true", help="print one JSON object")
    verdict = add("verdict", _verdict, "ship, stop or go on: what may be said about an experiment, and why")
    verdict.set_defaults(experiment_argument="verdict E")
    verdict.add_argument("experiment", metavar="E", help="the experiment's name")
    verdict.add_argument("--variant", metavar="V", help="only this treatment")
    verdict.add_argument("--as-of", metavar="T", help="the students whose windows were over at this ISO time")
    verdict.add_argument("--json", action="store_true", help="print one JSON object")
    verdict.add_argument(
        "--exit-code",
        action="store_true",
        help="end with 0 for ship and non_inferior, 10 for continue and insufficient_data, 20 for the others",
    )
    report = add("report", _report, "one page on an experiment: the verdict and how it came about")
    report.set_defaults(experiment_argument="report E")
    report.add_argument("experiment", metavar="E", help="the experiment's name")
    report.add_argument("--html", required=True, metavar="FILE", help="where to write the page; - for stdout")
    evaluate = "offline: metrics per query and rater, variants compared, no store needed"
    offline_commands.add_evaluate_arguments(add("evaluate", _evaluate, evaluate, config=False))
    offline_commands.add_arguments(
        add("agreement", offline_commands.agreement, "offline: how far raters agree, no store needed")
    )
    offline_commands.add_items_arguments(
        add("items", _items, "what items are worth, what to look at first: from files, or from the store")
    )
    traffic = "write traffic with a declared effect to files or to Kafka"
    simulate.add_arguments(add("simulate", simulate.run, traffic, config=False))
    audit.add_arguments(add("audit", audit.run, "compare the stored aggregates with the stored rows"))
    rebuild.add_arguments(
        add("rebuild", rebuild.rebuild, "read Kafka again into a new generation, compare, and switch to it")
    )
    reset = add("reset", rebuild.reset, "delete everything that the store holds")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    dead_letters.add_arguments(add("dead-letters", dead_letters.run, "what was refused, and its way back"))
    add("check", check.run, "validate the file, reach Kafka and the store, warn about unsafe settings")
    return parser


def _program() -> str:
    """Return what to call this program by: its path, where it is not among those that a shell finds."""
    own = Path(sys.executable).with_name("ab-monitor")
    return os.path.relpath(own) if own.exists() and not shutil.which(own.name) else own.name


def _log(*, verbose: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("kafka").setLevel(logging.INFO if verbose else logging.WARNING)
    # kafka-python repeats its warnings at each attempt to connect; `sources.kafka_connection` reports the reason.
    logging.getLogger("kafka").propagate = verbose
    logging.getLogger("redis").setLevel(logging.INFO)


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the file, with just one experiment where the command line names it."""
    settings = load_settings(arguments.config, os.environ)
    experiment = getattr(arguments, "experiment", None)
    return settings if experiment is None else settings.only(experiment, arguments.experiment_argument)


def _run(arguments: argparse.Namespace) -> int:
    telemetry = Telemetry()
    with ExitStack() as stack:
        # Until there is a worker to stop, there is nothing to bring to an end: what is open is closed.
        ways: list[Callable[[], object]] = [sys.exit]
        stack.enter_context(stopped_by_signals(lambda: ways[-1]()))  # noqa: PLW0108  the last by then
        settings = _settings(arguments)
        kafka = settings.kafka
        opening = stack.enter_context(opened(settings, wall_clock))
        for warning in (*experiment_warnings(settings.experiments), *warnings(opening.store)):
            logging.getLogger(__name__).warning("%s", warning)
        source = KafkaSource(kafka)
        stack.callback(source.close)
        topics = {"response": kafka.responses_topic, "feedback": kafka.feedback_topic}
        worker = worker_for(settings, opening, source, telemetry, topics, wall_clock)
        ways.append(worker.stop)
        server = stack.enter_context(http_for(settings, opening.reader, telemetry, worker.readiness, wall_clock))
        logging.getLogger(__name__).info("serving url=%s", server.url)
        worker.run()
    return 0


def _replay(arguments: argparse.Namespace, settings: Settings) -> int:
    console = Console(stderr=True)
    telemetry = Telemetry()
    with ExitStack() as stack:
        opening = stack.enter_context(opened(settings, wall_clock))
        source = FileSource(arguments.events, instant_ms, report=lambda line: console.print(line, markup=False))
        stack.callback(source.close)
        worker = worker_for(settings, opening, source, telemetry, {"response": "file", "feedback": "file"}, wall_clock)
        signals = stack.enter_context(stopped_by_signals(worker.stop))
        with _ReplayProgress(source, console):
            worker.run()
        counts = telemetry.outcomes()
        summary = ", ".join(f"{outcome} {count}" for outcome, count in sorted(counts.items()) if count) or "nothing new"
        finished = "replayed" if source.finished() else "stopped; the same command goes on from here. So far"
        console.print(f"{finished}: {worker.events} lines: {summary}", markup=False)
        to_stdout(os.environ).print(render(opening.reader.summary(), now_ms=wall_clock()))
        if source.refused > settings.limits.max_refused_share * max(worker.events, 1):
            raise InputRefused(
                f"{source.refused} of {worker.events} lines were refused "
                f"(limits.max_refused_share = {settings.limits.max_refused_share}); they are not applied"
            )
    return 0 if source.finished() or not signals else ENDED_BY + signals[0]


class _ReplayProgress(Progress):
    """Shows on a terminal how much of the files is read, as of each refresh."""

    def __init__(self, source: FileSource, console: Console) -> None:
        self._source = source
        columns = (TextColumn("replay"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        shown = console.is_terminal and source.total_bytes > 0
        super().__init__(*columns, console=console, transient=True, disable=not shown)
        self.add_task("replay", total=source.total_bytes)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.task_ids:
            self.update(task, completed=self._source.bytes_read())
        return super().get_renderables()


def _status(arguments: argparse.Namespace, settings: Settings) -> int:
    as_of_ms = None if arguments.as_of is None else parse_instant_ms("--as-of", arguments.as_of)
    with viewed(settings, wall_clock) as reader:
        summary = reader.summary(as_of_ms)
    if arguments.json:
        print_json(summary.to_json())
    else:
        to_stdout(os.environ).print(render(summary, now_ms=wall_clock()))
    return 0


def _verdict(arguments: argparse.Namespace, settings: Settings) -> int:
    as_of_ms = None if arguments.as_of is None else parse_instant_ms("--as-of", arguments.as_of)
    with viewed(settings, wall_clock) as reader:
        summary = reader.summary(as_of_ms)
    experiment = summary.experiments[arguments.experiment]
    verdicts = {} if experiment.judgement is None else experiment.judgement.verdicts
    if arguments.variant is not None and arguments.variant not in verdicts:
        raise UsageError(f"--variant: got {arguments.variant!r}, expected one of {', '.join(verdicts) or 'none'}")
    if arguments.json:
        print_json(summary.verdict_json(arguments.experiment, arguments.variant))
    else:
        to_stdout(os.environ).print(render_verdicts(experiment, only=arguments.variant))
    if not arguments.exit_code:
        return 0
    return max(
        (EXIT_CODES[each.state] for name, each in verdicts.items() if arguments.variant in {None, name}), default=10
    )


def _report(arguments: argparse.Namespace, settings: Settings) -> int:
    with viewed(settings, wall_clock) as reader:
        told = account(reader, settings.experiments[0], settings.display.min_display_students)
    offline_commands.write("--html", arguments.html, render_experiment_report(told))
    return 0


def _items(arguments: argparse.Namespace, settings: Settings) -> int:
    if arguments.worst is not None or arguments.attention is not None:
        return _stored_items(arguments, settings)
    if not arguments.events:
        raise UsageError("items: expected EVENTS, or an experiment E with --worst N or --attention N")
    for name in arguments.events:
        if name in {each.name for each in settings.experiments} and not Path(name).exists():
            raise UsageError(f"items: {name} is an experiment and no file: add --worst N or --attention N")
    return offline_commands.items(arguments, settings)


def _stored_items(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print items, or what to look at first, from the store."""
    n = arguments.attention if arguments.worst is None else arguments.worst
    files = arguments.catalogue is not None or arguments.since is not None or arguments.experiment is not None
    if len(arguments.events) != 1 or files or (arguments.worst is not None and arguments.attention is not None):
        raise UsageError("items: expected one experiment E with --worst N or --attention N, nothing of files")
    if n < 1 or arguments.by == "query":
        raise UsageError(f"items: got {n} by {arguments.by or 'item'}, expected 1 or more, by item or category")
    (name,) = arguments.events
    settings = settings.only(name, "items E")
    with viewed(settings, wall_clock) as reader:
        stored = reader.items(name)
        if arguments.worst is not None:
            found = stored.items(scale(settings.experiments[0], arguments.lowest_grade))
            told, shown = items_json(name, found, n), render_items(name, found, n)
        else:
            entries = stored.attention(arguments.by or "item")
            told, shown = attention_json(name, entries, n), render_attention(name, entries, n)
    if arguments.json:
        print_json(told)
    else:
        Console().print(shown)
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    if arguments.qrels is not None or arguments.run:
        others = arguments.events or arguments.config is not None or arguments.experiment is not None
        if others or arguments.qrels is None:
            raise UsageError("evaluate: expected events and --config, or --qrels with --run and nothing of the former")
        return offline_commands.evaluate(arguments, None)
    if not arguments.events or arguments.config is None:
        raise UsageError("evaluate: expected events and --config, or --qrels with --run")
    return offline_commands.evaluate(arguments, _settings(arguments))
