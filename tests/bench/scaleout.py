"""CPU-seconds per event of 1, 2 and 4 workers on stores of 1 and 3 shards, all of them processes of their own.

The machine is now faster and now slower, for seconds, and two processes that are started alike may differ as long as
they live. So each is measured beside one worker on one shard, which begins with the same week of traffic on a store of
its own in the same moment, and is compared with that: over some weeks, and several times with new processes. Of these
ratios the mean counts; its standard error says how certain it is, and two times one worker on one shard tell whether
the method is fair. So one of each has a neighbour here, whom it may wait for and shares caches with, and whoever is
faster leaves the other alone in the end: all costs are higher than those of runs on idle machines would be. One after
the other on a machine of two cores would be no fairer: one of each leaves half a core idle, and what runs beside others
is slower than what runs alone.

The week before those that count is applied first. So what starting costs is not in it, nor most of what memory costs
that is used for the first time: four workers have four times as much. A virtual machine may even have to be given it,
again whenever it has left it unused for a while, so some is used and given back just before each week. From then on as
many rows go as come. Each week is written in one transaction, which the workers see when it is over.

Polls are as large as they are by default. The servers do not rewrite their append-only files meanwhile: when they do
depends on the size that these happen to have.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from mmap import PAGESIZE, mmap
from pathlib import Path
from statistics import fmean, stdev
from threading import Barrier
from typing import Final

import msgspec
from confluent_kafka import Producer

from monitor.clock import DAY_MS
from monitor.config import StoreSettings
from monitor.ingest.simulator import Scenario, default_config, generate, w1
from monitor.store import Shards
from tests.bench.figures import Figure
from tests.bench.settings import cpu_s
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually, get, service

_PARTITIONS: Final = 4
_WORKERS: Final = (1, 2, 4)
_SHARDS: Final = (1, 3)
_ROUNDS: Final = 3
"""Times that processes are started."""
_WEEKS: Final = 4
"""That they are compared over; the last one is W1."""
_MEMORY: Final = 1 << 30
"""Bytes."""

_Week = list[tuple[str, bytes, bytes]]
"""(kind, key, payload) of its events."""


@dataclass(frozen=True, slots=True)
class _Cost:
    """µs of CPU per event."""

    workers: float
    server: float

    @property
    def both(self) -> float:
        return self.workers + self.server


def measure() -> Iterator[Figure]:
    """Yield the costs, and how much dearer they are than one worker's on one shard."""
    scenarios = [replace(w1(), part=back, start_ms=w1().start_ms - 7 * DAY_MS * back) for back in range(_WEEKS, -1, -1)]
    config = default_config(scenarios[0])
    others = [(workers, shards) for shards in _SHARDS for workers in _WORKERS]
    pairs: dict[tuple[int, int], list[tuple[_Cost, _Cost]]] = {each: [] for each in others}
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        weeks = [_kept(scenario, place) for scenario in scenarios]
        broker = stack.enter_context(KafkaBroker())
        pool = stack.enter_context(ThreadPoolExecutor(2))
        numbers = count()
        for each in others * _ROUNDS:
            with ExitStack() as sides:
                one, other = [_Side(sides, broker, config, *which, next(numbers)) for which in ((1, 1), each)]
                pairs[each].append(_applied_together(pool, one, other, weeks))
    yield from _figures(_named(1, 1), [one for both in pairs.values() for one, _ in both])
    for each, both in pairs.items():
        control = each == (1, 1)
        if not control:
            yield from _figures(_named(*each), [other for _, other in both])
        ratios = [other.both / one.both for one, other in both]
        yield Figure(f"{_named(*each)}, against one of each", fmean(ratios), "×", most=None if control else 1.10)
        yield Figure(f"{_named(*each)}, standard error of that", stdev(ratios) / len(ratios) ** 0.5, "×")


def _kept(scenario: Scenario, directory: Path) -> Callable[[], _Week]:
    """Generate a week of traffic, and return what reads it: all of them at once would need gigabytes of memory."""
    path = directory / str(scenario.part)
    events = [(event.kind, event.key, event.payload) for event in generate(scenario)]
    path.write_bytes(msgspec.msgpack.encode(events))
    return lambda: msgspec.msgpack.decode(path.read_bytes(), type=_Week)


def _named(workers: int, shards: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}, {shards} shard{'s' * (shards > 1)}"


def _figures(name: str, costs: Sequence[_Cost]) -> Iterator[Figure]:
    yield Figure(f"{name}: workers", min(each.workers for each in costs), "µs per event")
    yield Figure(f"{name}: redis-server", min(each.server for each in costs), "µs per event")


class _Side:
    """Workers with topics and a store of their own, until the stack is closed."""

    def __init__(
        self, stack: ExitStack, broker: KafkaBroker, config: str, workers: int, shards: int, number: int
    ) -> None:
        self._topics = {"response": f"responses-{number}", "feedback": f"feedback-{number}"}
        for topic in (*self._topics.values(), f"dead-{number}"):
            broker.create_topic(topic, _PARTITIONS)
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(redis_binary()))
        for old, new in (
            ("localhost:9092", broker.bootstrap),
            ("chatbot.responses", self._topics["response"]),
            ("student.feedback", self._topics["feedback"]),
            ("ab-monitor.dead-letter", f"dead-{number}"),
            ('group_id = "ab-monitor"', f'group_id = "bench-{number}"'),
            ('"redis://localhost:6379/0"', f'"{server.url}"\nshards = {shards}'),
        ):
            config = config.replace(old, new)
        self._processes, ports = [], [free_port() for _ in range(workers)]
        for worker, port in enumerate(ports):
            path = place / f"{worker}.toml"
            path.write_text(config.replace("port = 9464", f"port = {port}"))
            self._processes.append(stack.enter_context(service(path, place / f"{worker}.log")))
        for port in ports:
            eventually("the worker is ready", lambda port=port: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
        # The last to join has the others give up some of their partitions.
        time.sleep(4.0)
        self._store = Shards(StoreSettings(url=server.url), count=shards)
        stack.callback(self._store.close)
        self._client = server.client()
        self._client.config_set("auto-aof-rewrite-percentage", 0)
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": f"bench-{number}",
                "linger.ms": 20,
                "log_level": 0,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._producer.init_transactions()
        self._written = 0

    def write(self, week: _Week) -> None:
        """Write a week that nobody sees yet."""
        self._producer.begin_transaction()
        for kind, key, payload in week:
            self._producer.produce(self._topics[kind], payload, key)
        self._producer.flush()
        self._written += len(week)

    def apply(self, events: int, ready: Barrier) -> _Cost:
        """Have the workers see what was written last, so many events, and return what that costs.

        Marks at the ends of transactions count as events here: eight a week, so the last few events are not waited for.
        """
        ready.wait()
        before = self._used()
        self._producer.commit_transaction()
        eventually(
            "all events are applied",
            lambda: sum(each.next_offset for each in self._store.positions().values()) >= self._written,
            within_s=120,
            every_s=0.2,
        )
        return _Cost(*((now - then) / events * 1e6 for now, then in zip(self._used(), before, strict=True)))

    def _used(self) -> tuple[float, float]:
        """Return the CPU-seconds of the workers and of redis-server."""
        server = self._client.info("cpu")
        return sum(cpu_s(each.pid) for each in self._processes), server["used_cpu_user"] + server["used_cpu_sys"]


def _applied_together(
    pool: ThreadPoolExecutor, one: _Side, other: _Side, weeks: Sequence[Callable[[], _Week]]
) -> tuple[_Cost, _Cost]:
    """Have both apply the same weeks, each in the same moment; return what all but the first cost, as a mean."""
    costs: list[list[_Cost]] = []
    for week in weeks:
        events = week()
        for side in (one, other):
            side.write(events)
        ready = Barrier(2, _use_memory, timeout=300)
        both = [pool.submit(side.apply, len(events), ready) for side in (one, other)]
        for done in as_completed(both):
            done.result()
        costs.append([each.result() for each in both])
    first, second = zip(*costs[1:], strict=True)
    return _mean(first), _mean(second)


def _mean(costs: Sequence[_Cost]) -> _Cost:
    return _Cost(fmean(each.workers for each in costs), fmean(each.server for each in costs))


def _use_memory() -> None:
    with mmap(-1, _MEMORY) as memory:
        for at in range(0, _MEMORY, PAGESIZE):
            memory[at] = 1
