"""The parts of the service put together: store, engine, worker, reader, for whichever source the events come from."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from monitor.clock import Clock
from monitor.config import Settings
from monitor.export import HttpServer
from monitor.identity import Identities
from monitor.ingest.engine import Engine
from monitor.ingest.experiment import Experiment
from monitor.ingest.progress import Progress
from monitor.ingest.source import Source
from monitor.ingest.sweeper import Sweeper
from monitor.ingest.telemetry import Telemetry
from monitor.ingest.worker import Worker
from monitor.store import Opened, Reader, RedisStore, live_store, open_store, served, view_store

_COLLECT_AFTER: Final = 200_000
"""Allocations between two runs of Python's cyclic garbage collector, which walks every cached row."""


@dataclass(frozen=True, slots=True)
class Opening:
    """A store taken possession of."""

    store: RedisStore
    reader: Reader
    held: Opened


@contextmanager
def opened(settings: Settings, clock: Clock) -> Iterator[Opening]:
    """Yield the store of the settings, reachable and registered; see `open_store` for what is refused."""
    with served(settings.store) as reached, ExitStack() as stack:
        store = live_store(reached)
        stack.callback(store.close)
        held = open_store(store, settings)
        reading = RedisStore(reached, store.keys)
        stack.callback(reading.close)
        yield Opening(store, Reader(reading, settings, held.numbers, clock), held)


def worker_for(
    settings: Settings, opening: Opening, source: Source, telemetry: Telemetry, topics: Mapping[str, str], clock: Clock
) -> Worker:
    """Return a worker that brings the source's events into the store."""
    experiments = [Experiment(opening.held.numbers[each.name], each) for each in settings.experiments]
    gc.set_threshold(_COLLECT_AFTER)
    return Worker(
        settings=settings,
        store=opening.store,
        engine=Engine(experiments, Identities(opening.held.hash_key), opening.store),
        progress=Progress(opening.held.horizons_ms),
        sweeper=Sweeper(opening.store, experiments),
        source=source,
        telemetry=telemetry,
        clock=clock,
        topics=topics,
    )


@contextmanager
def viewed(settings: Settings, clock: Clock, *, existing: bool = True) -> Iterator[Reader]:
    """Yield a reader of the settings' store, which is left as it is; see `served` for `existing`."""
    with served(settings.store, existing=existing) as reached, ExitStack() as stack:
        store = live_store(reached)
        stack.callback(store.close)
        yield Reader(store, settings, view_store(store, settings), clock)


@contextmanager
def http_for(
    settings: Settings, reader: Reader, telemetry: Telemetry, readiness: Callable[[], Sequence[str]], clock: Clock
) -> Iterator[HttpServer]:
    """Serve the endpoints while the block runs."""
    server = HttpServer(
        settings.http,
        summary=reader.summary,
        process_registry=telemetry.registry,
        readiness=readiness,
        display=settings.display,
        clock=clock,
    )
    server.start()
    try:
        yield server
    finally:
        server.stop()
