"""CPU-seconds per event of 1, 2 and 4 workers on stores of 1 and 3 shards, all of them processes of their own.

The workers have applied the week before W1 when W1 appears: each of both is written in one transaction, which they see
when it is over. So what starting costs is not in it, nor are pages of memory that are used for the first time: four
workers have four times as many, and a virtual machine may first have to be given them. A poll has 4 000 records for
each shard, as docs/configuration.md advises. Since the machine is now faster and now slower, one worker on one shard is
measured before and after each of the others, which are compared with the mean of both; of several such readings the
median counts.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import accumulate, count
from pathlib import Path
from statistics import median
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
_ROUNDS: Final = 3


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
    with KafkaBroker() as broker:
        runs = count()
        others = [(workers, shards) for shards in _SHARDS for workers in _WORKERS if workers * shards > 1]
        alone = [_run(broker, config, weeks, 1, 1, next(runs))]
        costs: dict[tuple[int, int], list[_Cost]] = {each: [] for each in others}
        dearer: dict[tuple[int, int], list[float]] = {each: [] for each in others}
        for _ in range(_ROUNDS):
            for each in others:
                costs[each].append(_run(broker, config, weeks, *each, next(runs)))
                alone.append(_run(broker, config, weeks, 1, 1, next(runs)))
                dearer[each].append(2 * costs[each][-1].both / (alone[-2].both + alone[-1].both))
    yield from _figures("1 worker, 1 shard", alone)
    for workers, shards in others:
        name = f"{workers} worker{'s' * (workers > 1)}, {shards} shard{'s' * (shards > 1)}"
        yield from _figures(name, costs[workers, shards])
        yield Figure(f"{name}, against one of each", median(dearer[workers, shards]), "×", most=1.10)


def _figures(name: str, costs: Sequence[_Cost]) -> Iterator[Figure]:
    yield Figure(f"{name}: workers", min(each.workers for each in costs), "µs per event")
    yield Figure(f"{name}: redis-server", min(each.server for each in costs), "µs per event")


def _run(
    broker: KafkaBroker, config: str, weeks: Sequence[Sequence[SimulatedEvent]], workers: int, shards: int, run: int
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
            ('group_id = "ab-monitor"', f'group_id = "bench-{run}"\nmax_poll_records = {4000 * shards}'),
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
