"""Headless Chromium."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from tests.servers.process import need

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)


def _chromium(*arguments: str) -> str:
    with tempfile.TemporaryDirectory(prefix="abm-chromium-") as profile:
        done = subprocess.run(
            [need("chromium", "chromium"), *_FLAGS, f"--user-data-dir={profile}", *arguments],
            capture_output=True,
            text=True,
            check=True,
            timeout=90,
        )
    return done.stdout


def screenshot(url: str, path: Path, width: int, height: int, *extra: str) -> None:
    """Write a PNG of the page in a window of that size."""
    _chromium(f"--window-size={width},{height}", f"--screenshot={path}", *extra, url)


def dom(url: str) -> str:
    """Return the page's document after its scripts have run."""
    return _chromium("--dump-dom", url)
