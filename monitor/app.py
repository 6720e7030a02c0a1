"""The composition root: connects a source of events, the engine, the worker, the store and the HTTP server."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, cast, get_args

from monitor import __version__
from monitor.analysis import ReviewRanking
from monitor.clock import Clock
from monitor.config import (
    DeclaredSet,
    ExperimentSettings,
    ReloadResult,
    Settings,
    config_digest,
    parse_choice,
    parse_integer,
)
from monitor.engine import EventNormalizer, Experiment, IdHasher
from monitor.export import (
    RecentReading,
    ReportReader,
    ServiceHealth,
    attention_json,
    rating_scale,
    read_days_json,
    read_health,
    worst_items_json,
)
from monitor.pipeline import (
    ArrivalCounter,
    BackfillRunner,
    ExperimentDeclarations,
    RetentionCleaner,
    ShardedWriter,
    SnapshotWriter,
    StatusReporter,
    Telemetry,
    WatermarkTracker,
    Worker,
    log_skipped_experiments,
)
from monitor.sources import Source
from monitor.state import (
    ShardedStore,
    StoreMetadata,
    StoreReader,
    connect_active_generation,
    initialize_store,
    mark_initialized,
    read_service_records,
    running_store_server,
)
from monitor.web import (
    GLOSSARY_PATH,
    ExperimentPages,
    HttpEndpoints,
    HttpServer,
    PageContent,
    glossary_page,
    plan_page,
    prepare_charts,
)

GC_THRESHOLD: Final = 400_000
"""New objects between two runs of Python's cyclic garbage collector. A run visits every cached row and frees next to
nothing, because events and rows form no cycles."""
_MIN_UNCONFIRMED_ADVANCE_MS: Final = 60_000
_MAX_LISTED_ITEMS: Final = 1000
_MAX_COUNT_DIGITS: Final = 4


@dataclass(frozen=True, slots=True)
class WritableStore:
    """An open store with its declared experiments."""

    shards: ShardedStore
    """The connection of the worker."""
    reader: StoreReader
    """Reads through a connection of its own, so that other threads than the worker's may use it."""
    metadata: StoreMetadata


@contextmanager
def open_writable_store(settings: Settings, clock: Clock) -> Iterator[WritableStore]:
    """Yield the store of the settings after declaring the experiments; raises the errors of `initialize_store`."""
    with open_store_connections(settings) as (shards, reader_shards):
        metadata = initialize_store(shards, settings)
        yield WritableStore(shards, StoreReader(reader_shards, settings, metadata.numbers, clock), metadata)


@contextmanager
def open_store_connections(settings: Settings) -> Iterator[tuple[ShardedStore, ShardedStore]]:
    """Yield two connections to the active generation: for the worker's thread, and for readers in other threads."""
    gc.set_threshold(GC_THRESHOLD)
    with (
        running_store_server(settings.store) as store_settings,
        closing(connect_active_generation(store_settings)) as shards,
        closing(shards.reconnect()) as reader_shards,
    ):
        yield shards, reader_shards


class Service:
    """The worker, the reader and the settings of a running service. All three change with the declared experiments."""

    def __init__(
        self,
        settings: Settings,
        connections: tuple[ShardedStore, ShardedStore],
        source: Source,
        telemetry: Telemetry,
        clock: Clock,
        *,
        accepts_rejected_backlog: bool = False,
        on_backfill_complete: Callable[[int, int | None], None],
    ) -> None:
        """`on_backfill_complete` receives the number of a filled experiment and the time since which it is complete."""
        self._file_settings = settings
        self._on_backfill_complete = on_backfill_complete
        self._backfills: BackfillRunner | None = None
        self._shards, self._reader_shards = connections
        self._source = source
        self._telemetry = telemetry
        self._clock = clock
        self._accepts_rejected_backlog = accepts_rejected_backlog
        self._worker: Worker | None = None
        self._is_stopping = False
        self.reader: StoreReader

    def replace_worker(self, metadata: StoreMetadata) -> Worker:
        """Return a new worker for the declared experiments, and start their backfills.

        The worker before must have ended.
        """
        self._stop_backfills()
        if self._worker is not None:
            self._accepts_rejected_backlog = self._worker.accepts_rejected_backlog
        mark_initialized(self._shards, metadata.declared_set)
        declared = metadata.declared_set
        counted = tuple(experiment.settings for experiment in declared.counted)
        served = [experiment.served for experiment in declared.experiments]
        served_settings = replace(self._file_settings, experiments=tuple(definition.settings for definition in served))
        numbers = {definition.settings.name: definition.number for definition in served}
        self.reader = StoreReader(self._reader_shards, served_settings, numbers, self._clock, declared)
        counted_settings = replace(self._file_settings, experiments=counted)
        self._backfills = BackfillRunner(
            settings=counted_settings,
            experiments=[Experiment(each.number, each.settings) for each in declared.counted],
            unfinished=[each.number for each in declared.counted if each.is_filling],
            superseded_numbers=superseded_numbers(declared),
            id_hasher=IdHasher(metadata.hash_key),
            store=self._shards,
            telemetry=self._telemetry,
            clock=self._clock,
            on_complete=self._on_backfill_complete,
        )
        self._worker = create_worker(
            counted_settings,
            WritableStore(self._shards, self.reader, metadata),
            self._source,
            self._telemetry,
            self._file_settings.kafka.topic_labels,
            self._clock,
            belongs_to_service=True,
            accepts_rejected_backlog=self._accepts_rejected_backlog,
            is_restart=self._worker is not None,
            held_numbers=self._backfills.held_numbers,
        )
        self._backfills.start()
        if self._is_stopping:
            self._worker.stop()
        return self._worker

    def close(self) -> None:
        """End the backfills after their current batch."""
        self._stop_backfills()

    def _stop_backfills(self) -> None:
        if self._backfills is not None:
            self._backfills.stop()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._is_stopping

    def stop(self) -> None:
        """Make the worker stop after its batch."""
        self._is_stopping = True
        if self._worker is not None:
            self._worker.stop()

    def readiness(self) -> Sequence[str]:
        """Return the reasons why the worker is not ready; empty if ready."""
        return self._worker.readiness() if self._worker is not None else ("starting",)

    def data_problems(self) -> Sequence[str]:
        """Return sentences about events that do not count."""
        return self._worker.data_problems() if self._worker is not None else ()


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
    is_restart: bool = False,
    held_numbers: Callable[[], Collection[str]] = frozenset,
) -> Worker:
    """Return a worker that applies the events of the source to the store.

    `topics` maps the kinds of events, `response` and `feedback`, to the names under which telemetry reports them. A
    worker of the service counts arriving events by topic, and reports its state in the store. See `Worker` for
    `accepts_rejected_backlog`.
    """
    experiments = [
        Experiment(store.metadata.numbers[experiment.name], experiment) for experiment in settings.experiments
    ]
    declared_set = store.metadata.declared_set
    archived = [experiment.number for experiment in declared_set.experiments if experiment.archived_ms is not None]
    id_hasher = IdHasher(store.metadata.hash_key)
    arrival_counter = ArrivalCounter(settings.kafka, settings.discover) if belongs_to_service else None
    feedback_topic = topics["feedback"] if belongs_to_service else None
    digest = config_digest(settings)
    telemetry.build_info.clear()
    telemetry.build_info.labels(__version__, digest).info({})
    if not belongs_to_service:
        log_skipped_experiments(store.reader, id_hasher)
    return Worker(
        settings=settings,
        normalizer=EventNormalizer(experiments, id_hasher),
        writer=ShardedWriter(
            experiments,
            id_hasher,
            store.shards,
            arrival_counter=arrival_counter,
            superseded_numbers=superseded_numbers(declared_set),
            discover=settings.discover,
        ),
        watermark_tracker=WatermarkTracker(
            store.metadata.horizons_ms,
            min(map(_max_unconfirmed_advance_ms, settings.experiments), default=_MIN_UNCONFIRMED_ADVANCE_MS),
            held_numbers(),
        ),
        retention_cleaners=[
            RetentionCleaner(shard, experiments, feedback_topic=feedback_topic, clock=clock, archived=archived)
            for shard in store.shards
        ],
        snapshot_writer=SnapshotWriter(store.reader),
        source=source,
        telemetry=telemetry,
        clock=clock,
        topics=topics,
        arrival_counter=arrival_counter,
        status_reporter=StatusReporter(store.reader, version=__version__, config_digest=digest, clock=clock)
        if belongs_to_service
        else None,
        accepts_rejected_backlog=accepts_rejected_backlog,
        is_restart=is_restart,
        held_numbers=held_numbers,
    )


def superseded_numbers(declared_set: DeclaredSet) -> frozenset[int]:
    """Return the numbers of earlier definitions of the counted experiments: their rows count as blank."""
    return frozenset(number for experiment in declared_set.counted for number in experiment.superseded_numbers)


def _max_unconfirmed_advance_ms(experiment: ExperimentSettings) -> int:
    """Return how far the watermark may advance before end offsets are requested: half of the allowed lateness."""
    return max(experiment.allowed_lateness_ms // 2, _MIN_UNCONFIRMED_ADVANCE_MS)


@contextmanager
def serve_http(
    settings: Settings,
    current_reader: Callable[[], StoreReader],
    telemetry: Telemetry,
    readiness: Callable[[], Sequence[str]],
    clock: Clock,
    data_problems: Callable[[], Sequence[str]] = tuple,
    reload_configuration: Callable[[], ReloadResult] | None = None,
    declarations: ExperimentDeclarations | None = None,
) -> Iterator[HttpServer]:
    """Serve the HTTP endpoints while the block runs, and yield the server.

    `current_reader` returns the reader of the experiments that are declared at the time of a request. `readiness` and
    `data_problems` are those of the worker. Without `reload_configuration`, requests to reload fail. Without
    `declarations`, there are no paths of declared experiments.
    """
    digest = config_digest(settings)

    def read_current_health() -> ServiceHealth:
        reader = current_reader()
        return read_health(reader, settings, reader.read_counts(), clock(), digest)

    recent_verdicts = RecentReading(lambda: current_reader().read_verdicts())
    recent_health = RecentReading(read_current_health)

    reports = ReportReader(current_reader, settings.display.min_display_students)
    experiment_pages = ExperimentPages(reports, recent_health.read, clock)

    def show_plan(name: str, query: Mapping[str, str]) -> PageContent:
        reader = current_reader()
        experiment = {experiment.name: experiment for experiment in reader.experiments}[name]
        return plan_page(experiment, reader.read_summary(names=[name]).experiments[name], settings.display, query)

    endpoints = HttpEndpoints(
        read_summary=lambda as_of_ms: current_reader().read_summary(as_of_ms),
        read_verdicts=recent_verdicts.read,
        read_counts=lambda: current_reader().read_counts(),
        read_history=lambda experiment: current_reader().read_verdict_history(experiment),
        read_items=lambda path, query: answer_items_request(current_reader(), path, query),
        read_days=lambda experiment, as_of_ms: read_days_json(current_reader(), experiment, as_of_ms),
        process_registry=telemetry.registry,
        read_health=recent_health.read,
        read_starts=lambda: read_service_records(current_reader().store).starts,
        reload_configuration=reload_configuration or _reject_reload,
        readiness_problems=readiness,
        data_problems=data_problems,
        display=settings.display,
        clock=clock,
        declarations=declarations,
        pages={GLOSSARY_PATH: glossary_page},
        experiment_pages={
            "": experiment_pages.page,
            "/report": experiment_pages.report_file,
            "/items": experiment_pages.items,
            "/plan": show_plan,
        },
        experiment_names=lambda: [experiment.name for experiment in current_reader().experiments],
    )
    server = HttpServer(settings.http, endpoints)
    server.start()
    # The first page with charts would otherwise take a second longer.
    threading.Thread(target=prepare_charts, name="charts", daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


def _reject_reload() -> ReloadResult:
    return ReloadResult(is_successful=False, text="this command does not reload its configuration")


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
