"""One server process: started on a free port, stopped or killed, started again."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import cycle, islice
from pathlib import Path
from typing import Final

import pytest

_PORTS: Final = range(12_000, 22_000)
"""Below those that kernels give to connections; what Redis Cluster adds to them (10 000) is, too."""


def _own_ports() -> list[int]:
    """Return this process's share of the ports, in random order: those that run tests side by side have one each."""
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    own = _PORTS[number :: int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))]
    return secrets.SystemRandom().sample(own, len(own))


_untried: Final = cycle(_own_ports())


def free_port() -> int:
    """Return a TCP port that nobody listens on now, that no connection is given meanwhile, and nobody else is given.

    A server may begin to listen on it a while later: the same one comes again only when all others have been tried.
    """
    for port in islice(_untried, 100):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError(f"none of a hundred ports from {_PORTS.start} to {_PORTS.stop - 1} is free")


def need(program: str, package: str) -> str:
    """Return a program's path; without it, fail in CI and skip elsewhere."""
    found = shutil.which(program)
    if found is None:
        missing(f"{program} is not installed (Debian: {package})")
    return str(found)


def missing(why: str) -> None:
    """Fail in CI, skip elsewhere."""
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


class Process:
    """A server process and its log."""

    def __init__(self, command: Sequence[str], directory: Path, environ: Mapping[str, str] | None = None) -> None:
        self._command = list(command)
        self._directory = directory
        self._environ = {**os.environ, **(environ or {})}
        self.log = directory / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: Callable[[], bool], within_s: float = 60.0) -> None:
        """Start it and wait until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=self._directory, stdout=log, stderr=log, env=self._environ, start_new_session=True
            )
        deadline = time.monotonic() + within_s
        while not ready():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"{self._command[0]} did not start:\n{self.log.read_text()[-3000:]}")
            time.sleep(0.05)

    def wrapped_in(self, *command: str) -> None:
        """Have it started by another command."""
        self._command = [*command, *self._command]

    @property
    def pid(self) -> int:
        """The process's number."""
        assert self._process is not None
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> None:
        """End it and wait for it."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._process = None

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.stop(signal.SIGKILL)


def answers(port: int) -> bool:
    """Return whether something accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(0.5)
        return probe.connect_ex(("127.0.0.1", port)) == 0
