"""CPU-seconds per event of 1, 2 and 4 workers on stores of 1 and 3 shards, all of them processes of their own.

The workers have applied the week before W1 when W1 appears: each of both is written in one transaction, which they see
when it is over. So what starting costs is not in it, nor most of what memory costs that is used for the first time:
four workers have four times as much. A virtual machine may even have to be given it, again whenever it has left it
unused for a while, so some is used and given back just before.

Polls are as large as they are by default. The machine is now faster and now slower. So
each is measured beside one worker on one shard, which begins with the same W1 on a store of its own in the same moment,
and is compared with that; of several such ratios the median counts. Two times one worker on one shard say how much
they scatter. So one of each has a neighbour here, whom it may wait for and shares caches with, and whoever is faster
leaves the other alone in the end: that brings the ratios nearer to 1 than those of runs on idle machines would be, and
all costs are higher than those.

The servers do not rewrite their append-only files meanwhile: when they do depends on the size that these happen to
have.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, count
from mmap import PAGESIZE, mmap
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Final

from confluent_kafka import Producer

from monitor.attribution import DAY_MS
from monitor.config import StoreSettings
from monitor.ingest.simulator import SimulatedEvent, default_config, generate, w1
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
_ROUNDS: Final = 5
_MEMORY: Final = 1 << 30
"""Bytes."""


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
    before = replace(w1(), part=1, start_ms=w1().start_ms - 7 * DAY_MS)
    weeks = [list(generate(before)), list(generate(w1()))]
    config = default_config(before)
    others = [(workers, shards) for shards in _SHARDS for workers in _WORKERS]
    pairs: dict[tuple[int, int], list[tuple[_Cost, _Cost]]] = {each: [] for each in others}
    with KafkaBroker() as broker, ThreadPoolExecutor(2) as pool:
        runs = count()
        for _ in range(_ROUNDS):
            for each in others:
                ready = Barrier(2, _use_memory, timeout=300)
                one, other = (
                    pool.submit(_run, broker, config, weeks, *which, next(runs), ready) for which in ((1, 1), each)
                )
                for done in as_completed((one, other)):
                    done.result()
                pairs[each].append((one.result(), other.result()))
    yield from _figures(_named(1, 1), [one for both in pairs.values() for one, _ in both])
    for each, both in pairs.items():
        control = each == (1, 1)
        if not control:
            yield from _figures(_named(*each), [other for _, other in both])
        dearer = median(other.both / one.both for one, other in both)
        yield Figure(f"{_named(*each)}, against one of each", dearer, "×", most=None if control else 1.10)


def _named(workers: int, shards: int) -> str:
    return f"{workers} worker{'s' * (workers > 1)}, {shards} shard{'s' * (shards > 1)}"


def _use_memory() -> None:
    with mmap(-1, _MEMORY) as memory:
        for at in range(0, _MEMORY, PAGESIZE):
            memory[at] = 1


def _figures(name: str, costs: Sequence[_Cost]) -> Iterator[Figure]:
    yield Figure(f"{name}: workers", min(each.workers for each in costs), "µs per event")
    yield Figure(f"{name}: redis-server", min(each.server for each in costs), "µs per event")


def _run(
    broker: KafkaBroker,
    config: str,
    weeks: Sequence[Sequence[SimulatedEvent]],
    workers: int,
    shards: int,
    run: int,
    ready: Barrier,
) -> _Cost:
    names = {"response": f"responses-{run}", "feedback": f"feedback-{run}"}
    for topic in (*names.values(), f"dead-{run}"):
        broker.create_topic(topic, _PARTITIONS)
    with ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(redis_binary()))
        for old, new in (
            ("localhost:9092", broker.bootstrap),
            ("chatbot.responses", names["response"]),
            ("student.feedback", names["feedback"]),
            ("ab-monitor.dead-letter", f"dead-{run}"),
            ('group_id = "ab-monitor"', f'group_id = "bench-{run}"'),
            ('"redis://localhost:6379/0"', f'"{server.url}"\nshards = {shards}'),
        ):
            config = config.replace(old, new)
        processes, ports = [], [free_port() for _ in range(workers)]
        for number, port in enumerate(ports):
            path = place / f"{number}.toml"
            path.write_text(config.replace("port = 9464", f"port = {port}"))
            processes.append(stack.enter_context(service(path, place / f"{number}.log")))
        for port in ports:
            eventually("the worker is ready", lambda port=port: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
        # The last to join has the others give up some of their partitions.
        time.sleep(4.0)
        store = Shards(StoreSettings(url=server.url), count=shards)
        client = server.client()
        client.config_set("auto-aof-rewrite-percentage", 0)
        producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": f"bench-{run}",
                "linger.ms": 20,
                "log_level": 0,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 2 * max(map(len, weeks)),
            }
        )
        producer.init_transactions()
        for end, week in zip(accumulate(map(len, weeks)), weeks, strict=True):
            producer.begin_transaction()
            for event in week:
                producer.produce(names[event.kind], event.payload, event.key)
            producer.flush()
            ready.wait()
            used = client.info("cpu")
            before = [cpu_s(process.pid) for process in processes]
            producer.commit_transaction()
            eventually(
                "all events are applied",
                lambda end=end: sum(each.next_offset for each in store.positions().values()) >= end,
                within_s=120,
                every_s=0.2,
            )
        own = sum(cpu_s(process.pid) for process in processes) - sum(before)
        now = client.info("cpu")
        store.close()
    server_s = sum(now[name] - used[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return _Cost(own / len(weeks[-1]) * 1e6, server_s / len(weeks[-1]) * 1e6)
