"""The parts of the service put together: store, engine, worker, reader, for whichever source the events come from."""

from __future__ import annotations

import gc
import signal
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast

from monitor.clock import Clock
from monitor.config import ExperimentSettings, Settings, integer, one_of
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.export import attention_json, items_json, scale
from monitor.pipeline import Historian, Progress, ShardedWriter, SkipsSaid, Sweeper, Telemetry, Worker
from monitor.sources import Source
from monitor.state import Opened, Reader, Shards, live_store, open_store, served, view_store
from monitor.web import Endpoints, HttpServer

GC_THRESHOLD: Final = 400_000
"""New objects between two runs of Python's cyclic garbage collector, which visits every cached row and finds next to
nothing: events and rows form no cycles."""
_LEAST_LEEWAY_MS: Final = 60_000
_MOST_ENTRIES: Final = 1000
_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class Opening:
    """A store taken possession of."""

    store: Shards
    reader: Reader
    held: Opened


@contextmanager
def stopped_by_signals(
    stop: Callable[[], object], numbers: Collection[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> Iterator[Sequence[int]]:
    """Let signals end the block's work in order, and yield which have come; a second one ends it at once."""
    come: list[int] = []

    def handle(number: int, _frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)
        come.append(number)
        stop()

    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield come
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def opened(settings: Settings, clock: Clock) -> Iterator[Opening]:
    """Yield the store of the settings, reachable and registered; see `open_store` for what is refused."""
    gc.set_threshold(GC_THRESHOLD)
    with served(settings.store) as reached, closing(live_store(reached)) as store:
        held = open_store(store, settings)
        with closing(store.again()) as reading:
            yield Opening(store, Reader(reading, settings, held.numbers, clock), held)


def worker_for(
    settings: Settings, opening: Opening, source: Source, telemetry: Telemetry, topics: Mapping[str, str], clock: Clock
) -> Worker:
    """Return a worker that brings the source's events into the store."""
    experiments = [Experiment(opening.held.numbers[each.name], each) for each in settings.experiments]
    identities = IdHasher(opening.held.hash_key)
    return Worker(
        settings=settings,
        normalizer=EventNormalizer(experiments, identities),
        writer=ShardedWriter(experiments, identities, opening.store),
        progress=Progress(opening.held.horizons_ms, min(map(_leeway_ms, settings.experiments))),
        sweepers=[Sweeper(shard, experiments) for shard in opening.store],
        historian=Historian(opening.reader),
        skips=SkipsSaid(opening.reader, identities),
        source=source,
        telemetry=telemetry,
        clock=clock,
        topics=topics,
    )


def _leeway_ms(experiment: ExperimentSettings) -> int:
    """Return how far ahead of what is confirmed the watermark may be: a part of what may come late anyway."""
    return max(experiment.allowed_lateness_ms // 2, _LEAST_LEEWAY_MS)


@contextmanager
def viewed(settings: Settings, clock: Clock, *, existing: bool = True) -> Iterator[Reader]:
    """Yield a reader of the settings' store, which is left as it is; see `served` for `existing`."""
    with served(settings.store, existing=existing) as reached, closing(live_store(reached)) as store:
        yield Reader(store, settings, view_store(store, settings), clock)


@contextmanager
def http_for(
    settings: Settings, reader: Reader, telemetry: Telemetry, readiness: Callable[[], Sequence[str]], clock: Clock
) -> Iterator[HttpServer]:
    """Serve the endpoints while the block runs."""
    endpoints = Endpoints(
        summary=reader.summary,
        items=partial(asked_items, reader),
        process_registry=telemetry.registry,
        readiness=readiness,
        display=settings.display,
        clock=clock,
    )
    server = HttpServer(settings.http, endpoints)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def asked_items(reader: Reader, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the object behind `NAME/items` or `NAME/attention`, with what follows the question mark in the address.

    Raises KeyError for an unknown experiment, `UsageError` for a wrong query or where items are not counted.
    """
    name, _, what = path.rpartition("/")
    settings = {each.name: each for each in reader.experiments}[name]
    given = query.get("n", "20")
    n = integer("n", int(given) if given.isdecimal() and len(given) <= _DIGITS else given, 1, _MOST_ENTRIES)
    stored = reader.items(name)
    if what == "items":
        return items_json(name, stored.items(scale(settings)), n)
    by = one_of("by", query.get("by", "item"), ("item", "category"))
    return attention_json(name, stored.attention(cast(Any, by)), n)
