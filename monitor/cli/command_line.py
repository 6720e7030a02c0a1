"""The entry point `ab-monitor`: parses arguments, runs a command, and maps errors and signals to exit codes."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any, TextIO, cast

from monitor import __version__
from monitor.app import stop_on_signals
from monitor.cli import (
    agreement,
    audit,
    check,
    dead_letters,
    demo,
    evaluate,
    items,
    rebuild,
    replay,
    report,
    reset,
    run,
    simulate,
    status,
    verdict,
)
from monitor.cli.command_io import load_command_settings
from monitor.errors import SIGNAL_EXIT_CODE_BASE, AbMonitorError, UsageError

_INTERRUPTED_EXIT_CODE = SIGNAL_EXIT_CODE_BASE + signal.SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit code; README.md has a table of all exit codes."""
    arguments = argparse.Namespace(verbose=False)
    # SIGTERM exits at once, unless the command handles the signal itself. As PID 1 of a container, a process without a
    # handler would ignore SIGTERM.
    exit_on_sigterm = stop_on_signals(lambda: sys.exit(SIGNAL_EXIT_CODE_BASE + signal.SIGTERM), [signal.SIGTERM])
    try:
        with exit_on_sigterm, _guarded_standard_streams():
            _build_parser().parse_args(argv, arguments)
            _configure_logging(verbose=arguments.verbose)
            run_command: Callable[[argparse.Namespace], int] = arguments.run_command
            return run_command(arguments)
    except AbMonitorError as error:
        if arguments.verbose:
            traceback.print_exc()
        print(f"ab-monitor: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ab-monitor: interrupted", file=sys.stderr)
        return _INTERRUPTED_EXIT_CODE


def _build_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands; parsed arguments have a function `run_command` that takes the arguments."""
    parser = argparse.ArgumentParser(
        prog="ab-monitor", description="Live, exact comparison of ranking variants, from Kafka to Prometheus."
    )
    parser.add_argument("--version", action="version", version=f"ab-monitor {__version__}")
    verbose_parser = argparse.ArgumentParser(add_help=False)
    verbose_parser.add_argument("--verbose", action="store_true", help="log more, and show the whole trace of an error")
    config_parser = argparse.ArgumentParser(add_help=False, parents=[verbose_parser])
    config_parser.add_argument(
        "--config", type=Path, required=True, metavar="FILE", help="TOML file; docs/configuration.md"
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")

    def add_command(
        name: str,
        run_command: Callable[[argparse.Namespace], int],
        summary: str,
        *,
        requires_config: bool = False,
    ) -> argparse.ArgumentParser:
        """Add a command that takes the arguments only; return the parser of the command."""
        parents = [config_parser if requires_config else verbose_parser]
        command_parser = subparsers.add_parser(name, help=summary, description=summary, parents=parents)
        command_parser.set_defaults(run_command=run_command, experiment_argument="--experiment")
        return command_parser

    def add_configured_command(name: str, run_command: Callable[..., int], summary: str) -> argparse.ArgumentParser:
        """Add a command that takes the arguments and the settings of `--config`; return the parser of the command."""
        return add_command(
            name,
            lambda arguments: run_command(arguments, load_command_settings(arguments)),
            summary,
            requires_config=True,
        )

    demo.add_arguments(add_command("demo", demo.run, "the main job on embedded parts, with simulated traffic"))
    add_command("run", run.run, "the service: Kafka → store → HTTP", requires_config=True)
    replay.add_arguments(add_configured_command("replay", replay.run, "the same pipeline from files of JSON lines"))
    status.add_arguments(add_configured_command("status", status.run, "the current results in the store"))
    verdict.add_arguments(
        add_configured_command("verdict", verdict.run, "the decision on an experiment: ship, stop or continue, and why")
    )
    report.add_arguments(
        add_configured_command("report", report.run, "one page on an experiment: the verdict and how it came about")
    )
    evaluate.add_arguments(
        add_command(
            "evaluate",
            evaluate.run,
            "offline: metrics per query and rater, variants compared, no store needed",
        )
    )
    agreement.add_arguments(
        add_configured_command("agreement", agreement.run, "offline: how far raters agree, no store needed")
    )
    items.add_arguments(
        add_configured_command(
            "items",
            items.run,
            "ratings of items, and items to review first: from files, or from the store",
        )
    )
    simulate.add_arguments(
        add_command("simulate", simulate.run, "write traffic with a declared effect to files or to Kafka")
    )
    audit.add_arguments(
        add_configured_command("audit", audit.run, "compare the stored aggregates with the stored rows")
    )
    rebuild.add_arguments(
        add_configured_command(
            "rebuild", rebuild.run, "read Kafka again into a new generation, compare, and switch to it"
        )
    )
    reset.add_arguments(add_configured_command("reset", reset.run, "delete all data of AB Monitor from the store"))
    dead_letters.add_arguments(
        add_configured_command("dead-letters", dead_letters.run, "list rejected records, and send them again")
    )
    add_configured_command(
        "check", check.run, "validate the file, reach Kafka and the store, warn about unsafe settings"
    )
    return parser


def _configure_logging(*, verbose: bool) -> None:
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.DEBUG if verbose else logging.INFO,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    logging.getLogger("kafka").setLevel(logging.INFO if verbose else logging.WARNING)
    # kafka-python repeats its warnings at each attempt to connect; `sources.kafka_connection` reports the reason.
    logging.getLogger("kafka").propagate = verbose
    logging.getLogger("redis").setLevel(logging.INFO)


class _GuardedStdout:
    """Standard output that discards all further output after a write error.

    A command whose output pipe was closed runs to its end. Any other write error raises `UsageError`.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._handle_write_error():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with self._handle_write_error():
            self._stream.flush()

    @contextmanager
    def _handle_write_error(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            # Discard further output: Python would report the error again when it flushes stdout at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())
            if not isinstance(error, BrokenPipeError):
                raise UsageError(f"stdout: {error.strerror}") from error


@contextmanager
def _guarded_standard_streams() -> Iterator[None]:
    """Guard stdout while the block runs; closed standard streams (`>&-`) are replaced by the null device."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  until the process ends
    stdout = _GuardedStdout(sys.stdout)
    with redirect_stdout(cast(TextIO, stdout)):
        try:
            yield
        finally:
            stdout.flush()
