"""Folders of files from package registries, which the tests keep in .cache."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

_CACHE = Path(__file__).parents[2] / ".cache"
_SECONDS_BEFORE_RETRIES = (5, 30)


def fetched(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder .cache/NAME, which `fetch` fills once, however many test processes ask for it at a time.

    A fetch that fails is tried again twice, because registries are sometimes out of reach for a moment. Raises the
    `CalledProcessError` of the last one.
    """
    folder = _CACHE / name
    _CACHE.mkdir(exist_ok=True)
    with (_CACHE / "fetched.lock").open("wb") as lock:  # one for all: Maven's own repository has none
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "complete").exists():
            for seconds in (*_SECONDS_BEFORE_RETRIES, None):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                try:
                    fetch(folder)
                    break
                except subprocess.CalledProcessError:
                    if seconds is None:
                        raise
                    time.sleep(seconds)
            (folder / "complete").touch()
    return folder


def run(*command: str, within: Path) -> None:
    """Run a program in a folder; raises `CalledProcessError` if it fails."""
    subprocess.run(command, cwd=within, stdin=subprocess.DEVNULL, check=True, timeout=600)
