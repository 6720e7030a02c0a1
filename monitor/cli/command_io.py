"""Input and output that several commands share: settings, confirmations, and files for results."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

from monitor.config import Settings, load_settings
from monitor.errors import UsageError

ACCEPT_REJECTED_VARIABLE: Final = "ABMONITOR_ACCEPT_REJECTED"
"""Variable of the command `run` only; the other commands, in the same container, ignore the variable."""


def load_command_settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of `--config` and the environment; only the experiment of the arguments, if present.

    Commands that read the store select among the experiments that the store has: see `open_store_reader`.
    """
    settings = load_settings(arguments.config, settings_variables())
    experiment = getattr(arguments, "experiment", None)
    if getattr(arguments, "reads_store", False):
        return settings
    return settings if experiment is None else settings.select_experiment(experiment, arguments.experiment_argument)


def settings_variables() -> dict[str, str]:
    """Return the variables of the environment without those that are no settings."""
    return {name: text for name, text in os.environ.items() if name != ACCEPT_REJECTED_VARIABLE}


def is_confirmed(command: str, content: str, expected: str) -> bool:
    """Ask at the terminal whether to delete the content; return whether the user has typed the expected text.

    Raises `UsageError` without a terminal, with the option that replaces the question.
    """
    if not sys.stdin.isatty():
        raise UsageError(
            f"{command} would delete {content}. There is no terminal for a confirmation: add --yes to delete"
        )
    try:
        return input(f"This deletes {content}. Type {expected} to continue: ").strip() == expected
    except EOFError:
        print()
        return False


def write_result(option: str, path: str, text: str) -> None:
    """Write the text to the file of an option, or to stdout if the path is "-".

    Raises `UsageError` if the file cannot be written.
    """
    if path == "-":
        # The encoding of a file that a shell redirects to must not depend on the locale.
        if reconfigure := getattr(sys.stdout, "reconfigure", None):
            reconfigure(encoding="utf-8")
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: the file {path} cannot be written: {error.strerror}") from error
