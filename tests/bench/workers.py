"""CPU per event of workers on a real broker and a real store, in floors; bytes of their rows; their memory.

Workers are processes of their own. They first apply some events of the week before, so that starting is not measured.
Then a week of traffic becomes visible at once, with the end of a Kafka transaction, and the CPU of all processes is
read before and after. The floor reads the same topics afterwards, also in a process of its own.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from threading import Barrier
from typing import Any, Final

import msgspec
from confluent_kafka import Producer
from kafka import KafkaConsumer, TopicPartition

from monitor.config import KafkaClientName, StoreSettings
from monitor.events.schema import WireFeedback, WireResponse
from monitor.simulation.simulator import SimulatedEvent, benchmark_scenario, generate_events, render_example_config
from monitor.state import ShardedStore
from tests.bench.figures import Figure
from tests.bench.settings import cpu_s, peak_mb
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually, get, service, status

_PARTITIONS: Final = 4
_ROUNDS: Final = 3
_WEEK_MS: Final = 7 * 86_400_000
_BUDGETS: Final[dict[KafkaClientName, tuple[float, float]]] = {"kafka-python": (2.4, 3.0), "confluent": (1.5, 2.0)}
"""Floors of a worker's own CPU, and of the worker's with redis-server's."""
_MAX_RATIO: Final = 1.3
"""CPU per event of two workers, against one worker on one shard."""
_MAX_MB: Final = 250
_SLOT_BYTES: Final = 12
"""Of a key in the server's hash table, which MEMORY USAGE leaves out: 8 to 16."""
_SAMPLE: Final = 2000


class Traffic:
    """A week of events to measure, and events of the week before that are applied first."""

    def __init__(self, responses: int) -> None:
        week = replace(benchmark_scenario(), responses=responses)
        before = replace(week, segment=1, start_ms=week.start_ms - _WEEK_MS, responses=max(responses // 5, 1))
        self.config = render_example_config(week)
        self.responses = week.responses + before.responses
        self.before: Sequence[SimulatedEvent] = list(generate_events(before))
        self.measured: Sequence[SimulatedEvent] = list(generate_events(week))


@dataclass(frozen=True, slots=True)
class Cost:
    """CPU per event, in µs."""

    worker: float
    server: float

    @property
    def total(self) -> float:
        return self.worker + self.server


class WorkerGroup:
    """Workers of one consumer group, with topics and a store of their own, until the stack is closed."""

    def __init__(
        self,
        stack: ExitStack,
        broker: KafkaBroker,
        traffic: Traffic,
        name: str,
        *,
        client: KafkaClientName = "kafka-python",
        workers: int = 1,
        shards: int = 1,
    ) -> None:
        self._traffic = traffic
        self.topics = {"response": f"responses-{name}", "feedback": f"feedback-{name}"}
        for topic in (*self.topics.values(), f"dead-{name}"):
            broker.create_topic(topic, _PARTITIONS)
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(RedisServer(redis_binary(), auto_aof_rewrite_percentage="0"))
        config = traffic.config
        for old, new in (
            ("localhost:9092", broker.bootstrap),
            ("chatbot.responses", self.topics["response"]),
            ("student.feedback", self.topics["feedback"]),
            ("ab-monitor.dead-letter", f"dead-{name}"),
            ('group_id = "ab-monitor"', f'group_id = "{name}"\nclient = "{client}"'),
            ('"redis://localhost:6379/0"', f'"{server.url}"\nshards = {shards}'),
        ):
            config = config.replace(old, new)
        ports = [free_port() for _ in range(workers)]
        self._configs = [directory / f"{port}.toml" for port in ports]
        self._processes = []
        for path, port in zip(self._configs, ports, strict=True):
            path.write_text(config.replace("port = 9464", f"port = {port}"))
            self._processes.append(stack.enter_context(service(path, path.with_suffix(".log"))))
        for port in ports:
            eventually("the worker is ready", lambda port=port: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
        self.store = ShardedStore(StoreSettings(url=server.url), shard_count=shards)
        stack.callback(self.store.close)
        self.client: Any = server.client()
        self._producer = Producer(
            {
                "bootstrap.servers": broker.bootstrap,
                "transactional.id": name,
                "linger.ms": 20,
                "log_level": 0,
                "partitioner": "murmur2_random",
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._producer.init_transactions()
        self.written = 0
        self._markers = 0
        """Records with which Kafka marks the ends of earlier transactions, one in each partition."""

    def write(self, events: Sequence[SimulatedEvent]) -> None:
        """Write events that no consumer sees yet."""
        self._producer.begin_transaction()
        for event in events:
            self._producer.produce(self.topics[event.kind], event.payload, event.key)
        self._producer.flush()
        self.written += len(events)

    def apply(self) -> None:
        """Make the written events visible, and wait until the workers have applied them."""
        self._producer.commit_transaction()
        end = self.written + self._markers
        eventually(
            "all events are applied",
            lambda: sum(position.next_offset for position in self.store.read_positions().values()) >= end,
            within_s=240,
        )
        self._markers += len(self.topics) * _PARTITIONS

    def measure(self, ready: Barrier) -> Cost:
        """Return the cost of applying the week, which begins when all groups are ready."""
        events = self._traffic.measured
        self.write(self._traffic.before)
        self.apply()
        self.write(events)
        ready.wait()
        before = self._used_s()
        self.apply()
        worker_s, server_s = (now - then for now, then in zip(self._used_s(), before, strict=True))
        return Cost(worker_s / len(events) * 1e6, server_s / len(events) * 1e6)

    def _used_s(self) -> tuple[float, float]:
        """Return the CPU-seconds of the workers and of redis-server."""
        server = self.client.info("cpu")
        workers_s = sum(cpu_s(process.pid) for process in self._processes)
        return workers_s, server["used_cpu_user"] + server["used_cpu_sys"]

    def peak_mb(self) -> float:
        """Return the largest memory that one of the workers has had."""
        return max(peak_mb(process.pid) for process in self._processes)

    def totals(self) -> object:
        """Return the totals of the experiment; SystemExit if responses are missing or doubled."""
        (experiment,) = status(self._configs[0])["experiments"].values()
        variants = experiment["variants"].values()
        responses = sum(variant["responses"] for variant in variants)
        if responses != self._traffic.responses:
            raise SystemExit(f"the store has {responses} responses, expected {self._traffic.responses}")
        return [(variant["students"], variant["feedback"], variant["metrics"]) for variant in variants]


def floor_us(bootstrap: str, topics: dict[str, str], events: int) -> float:
    """Return the CPU per event, in µs, of polling the topics with kafka-python and decoding the events with msgspec."""
    response = msgspec.json.Decoder(WireResponse).decode
    feedback = msgspec.json.Decoder(WireFeedback).decode
    decoders = {topics["response"]: response, topics["feedback"]: feedback}
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        max_poll_records=4000,
        isolation_level="read_committed",
        enable_auto_commit=False,
        metrics_enabled=False,
    )
    consumer.assign([TopicPartition(topic, number) for topic in decoders for number in range(_PARTITIONS)])
    consumer.seek_to_beginning()
    begun_s, count = time.process_time(), 0
    while count < events:
        for partition, records in consumer.poll(timeout_ms=200).items():
            count += len(records)
            decode = decoders[partition.topic]
            for record in records:
                decode(record.value)
    used_s = time.process_time() - begun_s
    consumer.close()
    return used_s / events * 1e6


def throughput(responses: int) -> Iterator[Figure]:
    """Yield the CPU of one worker with each client, the bytes of rows, and the memory of a worker."""
    traffic = Traffic(responses)
    clients: list[KafkaClientName] = ["kafka-python", "confluent"]
    floors: list[float] = []
    costs: dict[KafkaClientName, list[Cost]] = {client: [] for client in clients}
    ratios: dict[KafkaClientName, list[tuple[float, float]]] = {client: [] for client in clients}
    sizes: tuple[float, float] | None = None
    memory_mb = 0.0
    totals: list[object] = []
    with KafkaBroker() as broker, ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        for number in range(_ROUNDS):
            for client in clients:
                with ExitStack() as stack:
                    group = WorkerGroup(stack, broker, traffic, f"{client}-{number}", client=client)
                    cost = group.measure(Barrier(1))
                    floor = pool.submit(floor_us, broker.bootstrap, group.topics, group.written).result()
                    totals.append(group.totals())
                    memory_mb = max(memory_mb, group.peak_mb())
                    sizes = sizes or _row_bytes(group)
                floors.append(floor)
                costs[client].append(cost)
                ratios[client].append((cost.worker / floor, cost.total / floor))
    check_equal(totals)
    yield Figure("floor", median(floors), "µs/event")
    for client, (own, total) in _BUDGETS.items():
        yield Figure(f"{client}: worker CPU", median(each for each, _ in ratios[client]), "floors", own)
        yield Figure(f"{client}: CPU with redis-server", median(each for _, each in ratios[client]), "floors", total)
        yield Figure(f"{client}: worker", median(each.worker for each in costs[client]), "µs/event")
        yield Figure(f"{client}: redis-server", median(each.server for each in costs[client]), "µs/event")
    assert sizes is not None
    yield Figure("response row of 5 items", sizes[0], "bytes", 230)
    yield Figure("row of a student", sizes[1], "bytes", 160)
    yield Figure("peak memory, 1 worker", memory_mb, "MB", _MAX_MB)


def scaleout(responses: int) -> Iterator[Figure]:
    """Yield the CPU of two workers on one shard and on two, each beside one worker on one shard."""
    traffic = Traffic(responses)
    totals: list[object] = []
    memory_mb = 0.0
    with KafkaBroker() as broker, ThreadPoolExecutor(2) as pool:
        for shards in (1, 2):
            ratios = []
            for number in range(_ROUNDS):
                with ExitStack() as stack:
                    name = f"{shards}-{number}"
                    one = WorkerGroup(stack, broker, traffic, f"one-{name}")
                    two = WorkerGroup(stack, broker, traffic, f"two-{name}", workers=2, shards=shards)
                    ready = Barrier(2, timeout=300)
                    runs = [pool.submit(group.measure, ready) for group in (one, two)]
                    base, cost = (run.result() for run in runs)
                    totals += [one.totals(), two.totals()]
                    memory_mb = max(memory_mb, one.peak_mb(), two.peak_mb())
                ratios.append(cost.total / base.total)
            yield Figure(
                f"2 workers, {shards} shard{'s' * (shards > 1)}: CPU with redis-server",
                median(ratios),
                "× 1 worker",
                _MAX_RATIO,
            )
    check_equal(totals)
    yield Figure("peak memory, 2 workers", memory_mb, "MB", _MAX_MB)


def check_equal(totals: Sequence[object]) -> None:
    """Raise `SystemExit` unless the totals of all runs are equal."""
    if any(each != totals[0] for each in totals):
        raise SystemExit(f"the totals of runs over the same events differ: {totals}")


def _row_bytes(group: WorkerGroup) -> tuple[float, float]:
    """Return what the server takes for the row of a response, with its part of the expiry list, and for a student."""
    keys = group.store.first_shard.keys
    rows = list(group.client.scan_iter(keys.response_row(b"*"), count=10_000))
    students = list(group.client.scan_iter(keys.student_row_prefix(1) + b"*", count=10_000))
    lists = list(group.client.scan_iter(keys.prefix + b"expiry_rows:*", count=10_000))
    listed = sum(group.client.memory_usage(key, samples=0) for key in lists) / len(rows)
    return _mean_bytes(group.client, rows) + listed, _mean_bytes(group.client, students)


def _mean_bytes(client: Any, keys: Sequence[bytes]) -> float:
    sample = keys[:: max(len(keys) // _SAMPLE, 1)]
    return float(sum(client.memory_usage(key) for key in sample) / len(sample) + _SLOT_BYTES)
