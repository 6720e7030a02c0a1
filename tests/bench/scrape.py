"""The time of a scrape of 10 experiments × 3 variants × 6 metrics × 3 decays after 30 days in which no bucket is empty.

Measured over HTTP, as Prometheus scrapes, against the CPU that the client library needs to write the same samples: the
clock would also count what other processes do. Events are applied between two scrapes.
"""

from __future__ import annotations

import statistics
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import numpy as np
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from monitor.app import WritableStore, open_writable_store, serve_http
from monitor.clock import wall_clock
from monitor.config import Settings, StoreSettings
from monitor.engine import EventNormalizer, Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.row_codec import pack_vector_changes
from monitor.engine.student import Student
from monitor.metrics.record_layout import BUCKETS_PER_CHUNK, chunk_length_ms
from monitor.pipeline.commit_pipeline import ShardBatch, ShardedWriter
from monitor.pipeline.telemetry import Telemetry
from monitor.state import Commit, Position, PositionUpdate, StoreShard, compact_time_buckets
from monitor.state.keys import PENDING_FEEDBACK
from monitor.state.record_deltas import add_metric_sums
from monitor.state.record_reader import encode_chunk
from tests.bench import growth
from tests.bench.figures import Figure
from tests.bench.loader import END_MS, Loader
from tests.bench.settings import settings_from
from tests.servers.redis import RedisServer, redis_binary

_EXPERIMENTS: Final = 10
_DAY_MS: Final = 86_400_000
_DAYS: Final = 30
_SCRAPES: Final = 15
_HEADERS: Final = {
    "Accept": "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,application/openmetrics-text;"
    "version=0.0.1;q=0.5,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
}
"""Of Prometheus 3."""
_EXPERIMENT: Final = """
[[experiments]]
name = "experiment-{number}"
control = "a"
variants = {{ a = 0.4, b = 0.3, c = 0.3 }}
metrics = ["dcg@5", "ndcg@5", "cg@5", "success@5", "rr@5", "p@5"]
decay = ["1h", "24h", "7d"]
"""


def measure() -> Iterator[Figure]:
    """Yield the milliseconds of a scrape, and how many times as long it takes as the client library alone."""
    with _scraped(growth.RECENT) as scraped:
        scraped.scrape()
        for _ in range(_SCRAPES):
            scraped.take()
    yield Figure("scrape of 10 experiments", statistics.median(scraped.walls), "ms")
    costs = zip(scraped.own, scraped.server, scraped.written, strict=True)
    ratio = statistics.median((own + server) / written for own, server, written in costs)
    yield Figure("scrape / prometheus_client alone", ratio, "×", 3)


@contextmanager
def _scraped(rows: int) -> Iterator[_Scraped]:
    """Yield a store with so many responses, whose endpoints are served."""
    settings = settings_from("".join(_EXPERIMENT.format(number=number) for number in range(_EXPERIMENTS)))
    with RedisServer(redis_binary(), appendonly="no") as server:
        settings = replace(settings, store=StoreSettings(url=server.url))
        settings = replace(settings, http=replace(settings.http, port=0))
        with open_writable_store(settings, wall_clock) as opening:
            experiments = [Experiment(opening.metadata.numbers[each.name], each) for each in settings.experiments]
            for experiment in experiments:
                _fill(opening.shards.first_shard, experiment)
            keys, held, client = opening.shards.first_shard.keys, opening.metadata.hash_key, server.client()
            loader = Loader(client, keys, experiments[0], held, rows, rows // 5)
            loader.load_responses()
            loader.load_students()
            with serve_http(settings, lambda: opening.reader, Telemetry(), tuple, wall_clock) as http:
                yield _Scraped(settings, opening, experiments, rows, client, f"{http.url}metrics/experiments")


def _timed(action: Callable[[], object]) -> float:
    """Return how many milliseconds an action takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


class _Parsed(Collector):
    """Gives what was read."""

    def __init__(self, metrics: list[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> list[Metric]:
        return self._metrics


class _Scraped:
    """A store with its endpoints; events of the first experiment go on coming."""

    def __init__(
        self,
        settings: Settings,
        opening: WritableStore,
        experiments: list[Experiment],
        rows: int,
        client: Any,
        url: str,
    ) -> None:
        identities = IdHasher(opening.metadata.hash_key)
        self._store = opening.shards.first_shard
        self._writer = ShardedWriter(experiments, identities, opening.shards)
        self._writer.reload_state()
        self._late = {str(experiment.number): 0 for experiment in experiments} | {PENDING_FEEDBACK: 0}
        self._decoded = growth.decoded(settings, EventNormalizer(experiments, identities), rows, _SCRAPES)
        self._at = 0
        self._client = client
        self._url = url
        self.walls: list[float] = []
        """Milliseconds of each scrape: by the clock, of this process and of redis-server."""
        self.own: list[float] = []
        self.server: list[float] = []
        self.written: list[float] = []
        """Milliseconds of processor time that the client library needs to write the samples of a scrape."""

    def scrape(self) -> bytes:
        """Scrape once."""
        request = urllib.request.Request(self._url, headers=_HEADERS)  # noqa: S310  our own server
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            body: bytes = answer.read()
        if body.count(b"abmonitor_metric_mean{") != _EXPERIMENTS * 3 * 6 * 4:
            raise SystemExit("wrong: a scrape without all means")
        return body

    def take(self) -> None:
        """Apply a poll, so that no scrape can answer with what the one before had; scrape, and note what it took."""
        self._apply()
        used, began = self._client.info("cpu"), time.process_time()
        self.walls.append(_timed(self.scrape))
        self.own.append((time.process_time() - began) * 1000)
        now = self._client.info("cpu")
        self.server.append(sum(now[name] - used[name] for name in ("used_cpu_user", "used_cpu_sys")) * 1000)
        self._write()

    def _write(self) -> None:
        """Have the client library write the samples of a scrape."""
        body = self.scrape()
        encode, _ = choose_encoder(_HEADERS["Accept"])
        parsed = _Parsed(list(text_string_to_metric_families(body.decode())))  # type: ignore[no-untyped-call]
        began = time.process_time()
        encode(parsed)
        self.written.append((time.process_time() - began) * 1000)
        if encode(parsed) != body:
            raise SystemExit("wrong: the client library writes something else")

    def _apply(self) -> None:
        decoded = next(self._decoded)
        step = PositionUpdate("bench:0", self._at or None, Position(self._at + 1000))
        status = self._writer.submit(ShardBatch(0, 1000, decoded, [step]), self._late).result()
        if status != "applied":
            raise SystemExit(f"a batch was not applied: {status}")
        self._at += 1000
        compact_time_buckets(self._store)


def _fill(store: StoreShard, experiment: Experiment) -> None:
    """Write records of 30 days: sums and cohorts from some responses a day, and every bucket of every decay."""
    tally, commit = experiment.create_metric_accumulator(), Commit()
    rated = (1, 1, 3 << 30, 1 << 29, 4 << 30, 1 << 30, 1 << 30, 1 << 29, 0, 0, 0, 0, 0, 0)
    values = rated[2:8]
    end_ms = END_MS // _DAY_MS * _DAY_MS
    for variant in range(len(experiment.variant_keys)):
        for day in range(_DAYS):
            at_ms = end_ms - (day + 1) * _DAY_MS
            for _ in range(200):
                student = Student(experiment.sums_width)
                student.add_difference(at_ms, variant, -1, rated, experiment.tracked_days)
                tally.add_student(1, student)
                tally.add_response(1, variant, at_ms, True, values)  # noqa: FBT003  rated
        for event in ("response", "event"):
            commit.raise_newest_time(f"{experiment.number}:{variant}:{event}", end_ms - 1)
        commit.counter_increments[store.keys.feedback_kinds(experiment.number, variant), b"rating"] += 6000
    store.read_state()
    add_metric_sums(commit, store.keys, experiment.number, experiment.settings.decay, tally)
    if store.commit(commit) != "applied":
        raise SystemExit("the records were not written")
    _fill_buckets(store, experiment, values, end_ms)


def _fill_buckets(store: StoreShard, experiment: Experiment, values: tuple[int, ...], end_ms: int) -> None:
    for place, decay in enumerate(experiment.settings.decay):
        span_ms = chunk_length_ms(decay)
        sample = experiment.create_metric_accumulator()
        for bucket in range(BUCKETS_PER_CHUNK):
            for response in range(1, 4):
                at_ms = bucket * span_ms // BUCKETS_PER_CHUNK + response * span_ms // 300
                sample.add_response(1, 0, at_ms, True, values)  # noqa: FBT003  rated
        records = [sample.bucket_sums[place][cell].integers() for cell in sorted(sample.bucket_sums[place])]
        integers = np.array(records).ravel()
        # What is appended until it is summed up again is half as much on average.
        appended = [(bucket * len(record), record) for bucket, record in enumerate(records)][::2]
        chunk = encode_chunk(integers) + pack_vector_changes(appended)
        first, last = (end_ms - _DAYS * _DAY_MS) // span_ms, (end_ms - 1) // span_ms
        for variant in range(len(experiment.variant_keys)):
            keys, number = store.keys, experiment.number
            with store.client.pipeline(transaction=False) as pipeline:
                for at in range(first, last + 1):
                    pipeline.set(keys.bucket_chunk(number, variant, decay.name, at), chunk)
                    pipeline.zadd(keys.bucket_index(number, variant, decay.name), {str(at): 1})
                pipeline.execute()
