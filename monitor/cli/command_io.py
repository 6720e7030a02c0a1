"""Input and output that several commands share: settings, event files, a console for stdout, files for results."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from monitor.config import Settings, load_settings
from monitor.errors import UsageError
from monitor.events import parse_timestamp_ms
from monitor.export import stdout_console
from monitor.sources import FileSource


def load_command_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of `--config` and the environment; only the experiment of the arguments, if present."""
    settings = load_settings(arguments.config, os.environ)
    experiment = getattr(arguments, "experiment", None)
    return settings if experiment is None else settings.select_experiment(experiment, arguments.experiment_argument)


@contextmanager
def open_event_files(paths: Sequence[str], console: Console | None = None) -> Iterator[FileSource]:
    """Yield a source of the events in JSON-lines files; rejected lines are reported on the console, default stderr."""
    report_console = console or Console(stderr=True)
    source = FileSource(paths, parse_timestamp_ms, report=lambda line: report_console.print(line, markup=False))
    try:
        yield source
    finally:
        source.close()


def create_stdout_console() -> Console:
    """Return a console on stdout: as wide as the terminal or the variable COLUMNS, otherwise without a limit."""
    return stdout_console(os.environ)


def write_result(option: str, path: str, text: str) -> None:
    """Write the text to the file of an option, or to stdout if the path is "-".

    Raises `UsageError` if the file cannot be written.
    """
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from error
