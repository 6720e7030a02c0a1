"""What a scrape of 10 experiments × 3 variants × 6 metrics × 3 decays costs after 30 days in which no bucket is empty.

Measured by HTTP, as Prometheus does it. Before and after a million rows are in the store, because nothing of them may
be read; and with somebody scraping every second while events are applied in the same process.
"""

from __future__ import annotations

import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import numpy as np

from monitor.aggregates import BUCKETS_PER_CHUNK, bucket_span_ms
from monitor.clock import wall_clock
from monitor.config import Settings, StoreSettings
from monitor.identity import Identities
from monitor.ingest.engine import write_tallies
from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.ingest.telemetry import Telemetry
from monitor.service import Opening, http_for, opened, writer_for
from monitor.store import Advance, Commit, Position, RedisStore
from monitor.students import Student
from tests.bench import growth
from tests.bench.figures import Figure
from tests.bench.loader import END_MS, Loader
from tests.bench.settings import settings_from
from tests.servers.redis import RedisServer, redis_binary

_EXPERIMENTS: Final = 10
_DAY_MS: Final = 86_400_000
_DAYS: Final = 30
_ROWS: Final = 1_000_000
_STUDENTS: Final = 200_000
_SCRAPES: Final = 15
_POLLS: Final = 60
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
    """Yield milliseconds per scrape, by whom they are spent, and what they do to the events."""
    settings = settings_from("".join(_EXPERIMENT.format(number=number) for number in range(_EXPERIMENTS)))
    with RedisServer(redis_binary(), appendonly="no") as server:
        settings = replace(settings, store=StoreSettings(url=server.url))
        settings = replace(settings, http=replace(settings.http, port=0))
        with opened(settings, wall_clock) as opening:
            experiments = [Experiment(opening.held.numbers[each.name], each) for each in settings.experiments]
            for experiment in experiments:
                _fill(opening.store.first, experiment)
            with http_for(settings, opening.reader, Telemetry(), tuple, wall_clock) as http:
                yield from _figures(settings, opening, experiments, server.client(), f"{http.url}metrics/experiments")


def _figures(
    settings: Settings, opening: Opening, experiments: list[Experiment], client: Any, url: str
) -> Iterator[Figure]:
    live = _Live(settings, opening, experiments)
    first_ms = _timed(lambda: _get(url))
    few_ms, cpu_ms, server_ms = _scrapes(url, client, live)
    yield Figure("first scrape", first_ms, "ms")
    yield Figure("scrape", few_ms, "ms", most=50)
    yield Figure("scrape: CPU of this process", cpu_ms, "ms")
    yield Figure("scrape: CPU of redis-server", server_ms, "ms")
    keys, held = opening.store.first.keys, opening.held.hash_key
    loader = Loader(client, keys, experiments[0], held, _ROWS, _STUDENTS)
    loader.load_responses()
    loader.load_students()
    many_ms, _, _ = _scrapes(url, client, live)
    yield Figure("scrape with a million rows in the store", many_ms, "ms", most=50)
    yield Figure("scrape with a million rows against without", many_ms / few_ms, "×", most=1.15)
    alone, scraped = live.rate(None), live.rate(url)
    yield Figure("events per second while nobody scrapes", alone, "/s")
    yield Figure("events per second while somebody scrapes every second", scraped / alone, "× of that")


def _timed(action: Callable[[], object]) -> float:
    """Return how many milliseconds an action takes."""
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def _get(url: str) -> None:
    request = urllib.request.Request(url, headers=_HEADERS)  # noqa: S310  our own server
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        body = answer.read()
    if body.count(b"abmonitor_metric_mean{") != _EXPERIMENTS * 3 * 6 * 4:
        raise SystemExit("wrong: a scrape without all means")


class _Live:
    """Events that go on coming, of the first experiment."""

    def __init__(self, settings: Settings, opening: Opening, experiments: list[Experiment]) -> None:
        self._writer = writer_for(opening.store, experiments, Identities(opening.held.hash_key))
        self._writer.state([])
        self._late = {str(experiment.number): 0 for experiment in experiments} | {PENDING_CLASS: 0}
        self._decoded = growth.decoded(settings, _ROWS, 2 * (_SCRAPES + _POLLS))
        self._at = 0

    def apply(self) -> None:
        """Apply a poll."""
        decoded = next(self._decoded)
        step = Advance("bench:0", self._at or None, Position(self._at + 1000))
        status, _ = self._writer.apply(decoded.responses, decoded.feedback, self._late, [step])
        if status != "applied":
            raise SystemExit(f"a batch was not applied: {status}")
        self._at += 1000

    def _apply_all(self) -> None:
        for _ in range(_POLLS):
            self.apply()

    def rate(self, url: str | None) -> float:
        """Return events per second of some polls, with somebody scraping if there is a URL."""
        done = threading.Event()

        def scrape() -> None:
            while url is not None and not done.is_set():
                _get(url)
                done.wait(1.0)

        thread = threading.Thread(target=scrape)
        thread.start()
        took_ms = _timed(self._apply_all)
        done.set()
        thread.join()
        return _POLLS * 1000 / took_ms * 1000


def _scrapes(url: str, client: Any, live: _Live) -> tuple[float, float, float]:
    """Return the median milliseconds of a scrape, and CPU-milliseconds of this process and the server per scrape.

    Events come in between, so that no scrape can answer with what the one before had.
    """
    walls, own, server = [], 0.0, 0.0
    for _ in range(_SCRAPES):
        live.apply()
        used, began = client.info("cpu"), time.process_time()
        walls.append(_timed(lambda: _get(url)))
        own += time.process_time() - began
        now = client.info("cpu")
        server += sum(now[name] - used[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return statistics.median(walls), own / _SCRAPES * 1000, server / _SCRAPES * 1000


def _fill(store: RedisStore, experiment: Experiment) -> None:
    """Write records of 30 days: sums and cohorts from some responses a day, and every bucket of every decay."""
    tally, commit = experiment.tally(), Commit()
    rated = (1, 1, 3 << 30, 1 << 29, 4 << 30, 1 << 30, 1 << 30, 1 << 29, 0, 0, 0, 0, 0, 0)
    values = rated[2:8]
    end_ms = END_MS // _DAY_MS * _DAY_MS
    for variant in range(len(experiment.arms)):
        for day in range(_DAYS):
            at_ms = end_ms - (day + 1) * _DAY_MS
            for _ in range(200):
                student = Student(at_ms, variant, experiment.sums_width)
                student.add(at_ms, variant, -1, rated, experiment.kept_days)
                tally.add_student(1, student)
                tally.add_response(1, variant, at_ms, True, values)  # noqa: FBT003  rated
        for what in (b"r", b"e"):
            commit.latest += (b"%d:%d:%b" % (experiment.number, variant, what), end_ms - 1)
        commit.counts += (store.keys.kinds(experiment.number, variant), b"rating", 6000)
    store.state()
    write_tallies(commit, store, {experiment.number: experiment}, {experiment.number: tally})
    if store.commit(commit) != "applied":
        raise SystemExit("the records were not written")
    _fill_buckets(store, experiment, values, end_ms)


def _fill_buckets(store: RedisStore, experiment: Experiment, values: tuple[int, ...], end_ms: int) -> None:
    for place, decay in enumerate(experiment.settings.decay):
        span_ms = bucket_span_ms(decay)
        sample = experiment.tally()
        for bucket in range(BUCKETS_PER_CHUNK):
            for response in range(1, 4):
                at_ms = bucket * span_ms // BUCKETS_PER_CHUNK + response * span_ms // 300
                sample.add_response(1, 0, at_ms, True, values)  # noqa: FBT003  rated
        records = sample.buckets[place]
        chunk = np.array([list(records[cell]) for cell in sorted(records)], dtype=">i8").tobytes()
        first, last = (end_ms - _DAYS * _DAY_MS) // span_ms, (end_ms - 1) // span_ms
        for variant in range(len(experiment.arms)):
            keys, number = store.keys, experiment.number
            with store.client.pipeline(transaction=False) as pipeline:
                for at in range(first, last + 1):
                    pipeline.set(keys.chunk(number, variant, decay.name, at), chunk)
                    pipeline.hset(keys.chunks(number, variant, decay.name), str(at), 1)
                pipeline.execute()
