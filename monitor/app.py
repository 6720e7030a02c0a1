"""The composition root: connects a source of events, the engine, the worker, the store and the HTTP server."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, get_args

from monitor import __version__
from monitor.analysis import ReviewRanking
from monitor.clock import Clock
from monitor.config import ExperimentSettings, Settings, config_digest, parse_choice, parse_integer
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.export import RecentHealth, attention_json, rating_scale, read_health, worst_items_json
from monitor.pipeline import (
    ArrivalCounter,
    RetentionCleaner,
    ShardedWriter,
    SkippedEventLogger,
    SnapshotWriter,
    StatusReporter,
    Telemetry,
    WatermarkTracker,
    Worker,
)
from monitor.sources import Source
from monitor.state import (
    ShardedStore,
    StoreMetadata,
    StoreReader,
    connect_active_generation,
    initialize_store,
    read_service_records,
    running_store_server,
)
from monitor.web import HttpEndpoints, HttpServer

GC_THRESHOLD: Final = 400_000
"""New objects between two runs of Python's cyclic garbage collector. A run visits every cached row and frees next to
nothing, because events and rows form no cycles."""
_MIN_UNCONFIRMED_ADVANCE_MS: Final = 60_000
_MAX_LISTED_ITEMS: Final = 1000
_MAX_COUNT_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class WritableStore:
    """An open store in which the experiments of the settings are registered."""

    shards: ShardedStore
    """The connection of the worker."""
    reader: StoreReader
    """Reads through a connection of its own, so that other threads than the worker's may use it."""
    metadata: StoreMetadata


@contextmanager
def open_writable_store(settings: Settings, clock: Clock) -> Iterator[WritableStore]:
    """Yield the store of the settings after registering the experiments; raises the errors of `initialize_store`."""
    gc.set_threshold(GC_THRESHOLD)
    with (
        running_store_server(settings.store) as store_settings,
        closing(connect_active_generation(store_settings)) as shards,
    ):
        metadata = initialize_store(shards, settings)
        with closing(shards.reconnect()) as reader_shards:
            yield WritableStore(shards, StoreReader(reader_shards, settings, metadata.numbers, clock), metadata)


def create_worker(
    settings: Settings,
    store: WritableStore,
    source: Source,
    telemetry: Telemetry,
    topics: Mapping[str, str],
    clock: Clock,
    *,
    belongs_to_service: bool = False,
    accepts_rejected_backlog: bool = False,
) -> Worker:
    """Return a worker that applies the events of the source to the store.

    `topics` maps the kinds of events, `response` and `feedback`, to the names under which telemetry reports them. A
    worker of the service counts arriving events by topic, and reports its state in the store. See `Worker` for
    `accepts_rejected_backlog`.
    """
    experiments = [
        Experiment(store.metadata.numbers[experiment.name], experiment) for experiment in settings.experiments
    ]
    id_hasher = IdHasher(store.metadata.hash_key)
    arrival_counter = ArrivalCounter(settings.kafka, settings.discover) if belongs_to_service else None
    feedback_topic = topics["feedback"] if belongs_to_service else None
    digest = config_digest(settings)
    telemetry.build_info.labels(__version__, digest).info({})
    return Worker(
        settings=settings,
        normalizer=EventNormalizer(experiments, id_hasher),
        writer=ShardedWriter(
            experiments, id_hasher, store.shards, arrival_counter=arrival_counter, discover=settings.discover
        ),
        watermark_tracker=WatermarkTracker(
            store.metadata.horizons_ms, min(map(_max_unconfirmed_advance_ms, settings.experiments))
        ),
        retention_cleaners=[
            RetentionCleaner(shard, experiments, feedback_topic=feedback_topic, clock=clock) for shard in store.shards
        ],
        snapshot_writer=SnapshotWriter(store.reader),
        skipped_event_logger=SkippedEventLogger(store.reader, id_hasher),
        source=source,
        telemetry=telemetry,
        clock=clock,
        topics=topics,
        arrival_counter=arrival_counter,
        status_reporter=StatusReporter(store.reader, version=__version__, config_digest=digest, clock=clock)
        if belongs_to_service
        else None,
        accepts_rejected_backlog=accepts_rejected_backlog,
    )


def _max_unconfirmed_advance_ms(experiment: ExperimentSettings) -> int:
    """Return how far the watermark may advance before end offsets are requested: half of the allowed lateness."""
    return max(experiment.allowed_lateness_ms // 2, _MIN_UNCONFIRMED_ADVANCE_MS)


@contextmanager
def serve_http(
    settings: Settings,
    reader: StoreReader,
    telemetry: Telemetry,
    readiness: Callable[[], Sequence[str]],
    clock: Clock,
    data_problems: Callable[[], Sequence[str]] = tuple,
) -> Iterator[HttpServer]:
    """Serve the HTTP endpoints while the block runs, and yield the server.

    `readiness` and `data_problems` are those of the worker.
    """
    recent_health = RecentHealth(lambda: read_health(reader, settings, reader.read_summary(), clock()))
    endpoints = HttpEndpoints(
        read_summary=reader.read_summary,
        read_history=reader.read_verdict_history,
        read_items=partial(answer_items_request, reader),
        process_registry=telemetry.registry,
        read_health=recent_health.read,
        read_starts=lambda: read_service_records(reader.store).starts,
        readiness_problems=readiness,
        data_problems=data_problems,
        display=settings.display,
        clock=clock,
    )
    server = HttpServer(settings.http, endpoints)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def answer_items_request(reader: StoreReader, path: str, query: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON object of the address `EXPERIMENT/items` or `EXPERIMENT/attention` with query parameters.

    Raises KeyError for an unknown experiment, `UsageError` for a wrong query or if the store counts no items.
    """
    experiment_name, _, resource = path.rpartition("/")
    settings = {experiment.name: experiment for experiment in reader.experiments}[experiment_name]
    count_text = query.get("n", "20")
    is_short_number = count_text.isdecimal() and len(count_text) <= _MAX_COUNT_DIGITS
    count = parse_integer("n", int(count_text) if is_short_number else count_text, 1, _MAX_LISTED_ITEMS)
    stored_items = reader.item_reader(experiment_name)
    if resource == "items":
        return worst_items_json(experiment_name, stored_items.read_items(rating_scale(settings)), count)
    triage_kind = parse_choice("by", query.get("by", "item"), ("item", "category"))
    ranking = parse_choice("rank_by", query.get("rank_by", "share"), get_args(ReviewRanking))
    entries = stored_items.read_review_ranking(cast(Any, triage_kind), cast(Any, ranking))
    return attention_json(experiment_name, entries, count)
