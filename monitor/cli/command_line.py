"""The entry point `ab-monitor`: parses arguments, runs a command, and maps errors and signals to exit codes."""

from __future__ import annotations

import argparse
import codecs
import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Final, Literal, TextIO, TypeAlias, cast

from monitor import __version__
from monitor.cli.command_io import load_command_settings
from monitor.cli.signals import stop_on_signals
from monitor.errors import SIGNAL_EXIT_CODE_BASE, AbMonitorError, UsageError, escape_controls, escape_lines

_SUBSTITUTION: Final = "ab-monitor-ascii"
_ASCII_SUBSTITUTES: Final = {
    "\u2013": "-", "\u2212": "-", "\u2026": "...", "\u00a0": " ", "\u202f": " ", "\u2588": "#", "\u258f": "|",
    "\u00b1": "+/-", "\u2192": "->", "\u00d7": "x", "\u2265": ">=", "\u2264": "<=", "\u03bb": "lambda",
}  # fmt: skip
"""Character of the commands' own texts → ASCII text."""
_INTERRUPTED_EXIT_CODE = SIGNAL_EXIT_CODE_BASE + signal.SIGINT


_Configuration: TypeAlias = Literal["own", "path", "settings"]
"""How a command gets its configuration: by flags of its own, as the path of `--config`, or as loaded settings."""

_COMMANDS: Final[Mapping[str, tuple[_Configuration, str]]] = {
    "demo": ("own", "run the service on an embedded store, with simulated traffic"),
    "run": ("path", "run the service: apply events from Kafka, serve results over HTTP"),
    "experiments": ("settings", "list, declare, archive and delete experiments while the service runs"),
    "replay": ("settings", "apply events from files of JSON lines to the store"),
    "status": ("settings", "print the current results"),
    "verdict": ("settings", "print the decision on an experiment (ship, stop or keep running) and its reasons"),
    "report": ("settings", "write a page with the decision on an experiment and the evidence"),
    "plan": ("own", "print how many students and days an experiment needs, from the store or from assumptions"),
    "share": ("settings", "print a link that opens an experiment's page without a login for some days"),
    "evaluate": ("own", "compute metrics of files per query and rater, and compare variants; needs no store"),
    "agreement": ("settings", "measure the agreement of raters in files; needs no store"),
    "items": ("settings", "print ratings of items, and items that need review: from files, or from the store"),
    "simulate": ("own", "write traffic with a declared effect to files or to Kafka"),
    "audit": ("settings", "compare the stored aggregates with the stored rows"),
    "rebuild": ("settings", "read Kafka again into a new generation, compare, and switch to it"),
    "reset": ("settings", "delete all data of AB Monitor from the store"),
    "dead-letters": ("settings", "list rejected records, and send them again"),
    "init": ("own", "write a starting configuration from a sample of existing topics"),
    "map": ("settings", "show the events that one message from stdin becomes; needs neither Kafka nor the store"),
    "check": ("settings", "validate the configuration, connect to Kafka and the store, warn about unsafe settings"),
}
"""Commands and their summaries. The module of a command has its name and the functions `add_arguments` and `run`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that the arguments name, and return the exit code; README.md has a table of all exit codes."""
    arguments = argparse.Namespace(verbose=False)
    # SIGTERM exits at once, unless the command handles the signal itself. As PID 1 of a container, a process without a
    # handler would ignore SIGTERM.
    exit_on_sigterm = stop_on_signals(lambda: sys.exit(SIGNAL_EXIT_CODE_BASE + signal.SIGTERM), [signal.SIGTERM])
    try:
        with exit_on_sigterm, _guarded_standard_streams():
            words = sys.argv[1:] if argv is None else argv
            _build_parser(words).parse_args(words, arguments)
            _configure_logging(verbose=arguments.verbose)
            run_command: Callable[[argparse.Namespace], int] = arguments.run_command
            return run_command(arguments)
    except AbMonitorError as error:
        if arguments.verbose:
            traceback.print_exc()
        print(f"ab-monitor: {escape_lines(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("ab-monitor: interrupted", file=sys.stderr)
        return _INTERRUPTED_EXIT_CODE


def _build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of all commands; parsed arguments have a function `run_command` that takes the arguments.

    Only modules of commands whose names are among the words are imported, so that each command starts fast.
    """
    parser = argparse.ArgumentParser(
        prog="ab-monitor", description="Live, exact comparison of ranking variants, from Kafka to Prometheus."
    )
    parser.add_argument("--version", action="version", version=f"ab-monitor {__version__}")
    verbose_parser = argparse.ArgumentParser(add_help=False)
    verbose_parser.add_argument(
        "--verbose", action="store_true", help="log debugging messages, and print the traceback of an error"
    )
    config_parser = argparse.ArgumentParser(add_help=False, parents=[verbose_parser])
    config_parser.add_argument(
        "--config",
        type=Path,
        required=True,
        metavar="FILE",
        help="configuration file in TOML, or directory of such files; docs/configuration.md lists the keys",
    )
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (configuration, summary) in _COMMANDS.items():
        parents = [verbose_parser if configuration == "own" else config_parser]
        command_parser = subparsers.add_parser(name, help=summary, description=summary, parents=parents)
        if name in words:
            command = import_module(f"monitor.cli.{name.replace('-', '_')}")
            run_command = _with_settings(command.run) if configuration == "settings" else command.run
            command_parser.set_defaults(run_command=run_command, experiment_argument="--experiment")
            command.add_arguments(command_parser)
    return parser


def _with_settings(run_command: Callable[..., int]) -> Callable[[argparse.Namespace], int]:
    """Return a function that loads the settings of `--config` and runs the command with arguments and settings."""
    return lambda arguments: run_command(arguments, load_command_settings(arguments))


def _configure_logging(*, verbose: bool) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.DEBUG if verbose else logging.INFO)
    for client in ("kafka", "httpx2", "httpcore2"):  # The last two are of the schema registry's client.
        logging.getLogger(client).setLevel(logging.INFO if verbose else logging.WARNING)
    # kafka-python repeats its warnings at each attempt to connect; `sources.kafka_connection` reports the reason.
    logging.getLogger("kafka").propagate = verbose
    logging.getLogger("redis").setLevel(logging.INFO)


class _LineFormatter(logging.Formatter):
    """Formats each message as one line, without control characters; a traceback has its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  the method of the base class
        return escape_controls(super().formatMessage(record))


def _substitute_characters(error: UnicodeError) -> tuple[str, int]:
    """Return ASCII text instead of the characters that a stream cannot encode, and the end of these characters.

    An error handler for `codecs.register_error`.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    characters = error.object[error.start : error.end]
    return "".join(_ASCII_SUBSTITUTES.get(char) or json.dumps(char)[1:-1] for char in characters), error.end


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
    """Guard stdout while the block runs; closed standard streams (`>&-`) are replaced by the null device.

    Characters that stdout or stderr cannot encode are replaced by ASCII text.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  until the process ends
    codecs.register_error(_SUBSTITUTION, _substitute_characters)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=_SUBSTITUTION)
    stdout = _GuardedStdout(sys.stdout)
    with redirect_stdout(cast(TextIO, stdout)):
        try:
            yield
        finally:
            stdout.flush()
