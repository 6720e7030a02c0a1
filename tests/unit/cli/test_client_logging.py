"""Logging of the clients' libraries."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(("verbose", "level"), [(False, "WARNING"), (True, "INFO")])
def test_requests_to_the_schema_registry_are_logged_only_with_verbose(*, verbose: bool, level: str) -> None:
    """The library logs a line for each request, also while a worker waits for the registry."""
    program = (
        "import logging; from monitor.cli.command_line import _configure_logging; "
        f"_configure_logging(verbose={verbose}); print(logging.getLevelName(logging.getLogger('httpx2').level))"
    )
    finished = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert finished.stdout.strip() == level
