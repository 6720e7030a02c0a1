"""Every kind of fault: how it is made, and what it has to end in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.arena import Arena, Expectations, Result
from tests.servers.cluster import RedisCluster
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary


@dataclass(slots=True)
class Ground:
    """What runs share: a broker, and what undisturbed runs leave."""

    directory: Path
    broker: KafkaBroker
    expectations: Expectations
    binary: str = field(default_factory=redis_binary)
    """The store's server."""
    client: str = "kafka-python"
    """What the workers read with, see `kafka.client`."""
    runs: int = 0

    def server(self) -> RedisServer:
        """Return a store that is not started yet."""
        return RedisServer(self.binary)

    @contextmanager
    def arena(self, store: RedisServer | RedisCluster | None = None, **options: Any) -> Iterator[Arena]:
        """Yield an arena with a store of its own."""
        self.runs += 1
        directory = self.directory / f"run-{self.runs}"
        directory.mkdir()
        broker = options.pop("broker", self.broker)
        with store or self.server() as server:
            arena = Arena(directory, broker, server, self.expectations, client=self.client, **options)
            try:
                yield arena
            finally:
                arena.close()


Run = Callable[[Ground], Result]


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault."""

    name: str
    how: str
    run: Run
    fast: bool
    """Whether `make test` runs it, too."""


CATALOGUE: list[Fault] = []


def fault(name: str, how: str, *, fast: bool = True) -> Callable[[Run], Run]:
    """Return a decorator that adds a function to the catalogue; `how` is the cell of the table in the documentation."""

    def enter(run: Run) -> Run:
        CATALOGUE.append(Fault(name, how, run, fast))
        return run

    return enter
