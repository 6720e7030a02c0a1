"""Where faults happen: a stream on a real broker, workers as processes, a real store, and what must come out."""

from __future__ import annotations

import random
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from zlib import crc32

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import ExperimentSettings, StoreSettings
from monitor.simulation.simulator import Scenario, SimulatedEvent, generate_events
from monitor.state import ShardedStore, connect_active_generation
from tests.servers.cluster import RedisCluster
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, ab_monitor, eventually, get, service
from tests.support.dump import Dump, dump

SCENARIO = Scenario(responses=8_000, students=700, days=2, seed=5)
# Of batches as small as these the next one is read while the store is at work: most faults find some on their way.
_CONFIG = """
[kafka]
bootstrap_servers = "{bootstrap}"
responses_topic = "{name}.responses"
feedback_topic = "{name}.feedback"
dead_letter_topic = "{name}.dead"
group_id = "{name}"
client = "{client}"
max_poll_records = 32
{kafka}
[store]
url = "{store}"
[http]
port = 0
[[experiments]]
name = "{experiment}"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
metrics = ["dcg@5", "ndcg@5", "share:rating>=3", "share:escalated", "latency_ms", "items_shown", "empty"]
"""


@dataclass(slots=True)
class Totals:
    """What a store amounts to, in whole things."""

    responses: int
    reactions: int

    @classmethod
    def of(cls, aggregates: Dump) -> Totals:
        """Return the totals of a dump."""
        responses = reactions = 0
        for name, found in aggregates.items():
            family = name.partition(b":")[0]
            if family == b"all_time_sums":
                responses += found.get(0, 0)
            elif family == b"feedback_kinds":
                reactions += sum(count for kind, count in found.items() if isinstance(kind, bytes) and kind[:1] != b"+")
        return cls(responses, reactions)


@dataclass(slots=True)
class Result:
    """What became of a run under a fault."""

    events: int = 0
    times: int = 1
    expected: Totals = field(default_factory=lambda: Totals(0, 0))
    got: Totals = field(default_factory=lambda: Totals(0, 0))
    equal: bool = False
    resumed_s: float | None = None
    note: str = ""


class Expectations:
    """What undisturbed replays of the same events leave, each made once."""

    def __init__(self, directory: Path, server: RedisServer) -> None:
        self._directory = directory
        self._server = server
        self._known: dict[int, Dump] = {}

    def of(self, events: Sequence[SimulatedEvent]) -> Dump:
        """Return the aggregates of the events."""
        key = hash(tuple(event.payload for event in events))
        if key not in self._known:
            self._server.client().flushall()
            config = self._directory / "calm.toml"
            config.write_text(
                _CONFIG.format(
                    bootstrap="127.0.0.1:1",
                    name="calm",
                    client="kafka-python",
                    kafka="",
                    store=self._server.url,
                    experiment=SCENARIO.experiment,
                )
            )
            lines = self._directory / "calm.jsonl"
            lines.write_bytes(b"\n".join(event.payload for event in events) + b"\n")
            done = ab_monitor("replay", "--config", config, lines, environ=HASHED)
            assert done.returncode == 0, done.stderr
            self._known[key] = dump(ShardedStore(StoreSettings(url=self._server.url)))
        return self._known[key]


_SPANS_MS = {b"traffic_hour": HOUR_MS, b"traffic_day": DAY_MS, b"1h": HOUR_MS, b"24h": DAY_MS}
"""Of hours of traffic, days of items and categories, and chunks of the simulator's decays."""


def _kept(found: Dump) -> Dump:
    """Return what retention keeps: what is older goes with a later hour of the stream, or with none."""
    newest_ms = max(
        at_ms
        for field, at_ms in found[b"newest_times"].items()
        if isinstance(field, bytes) and field.endswith(b":response")
    )
    oldest_ms = newest_ms - ExperimentSettings("", "", {}).retention_ms

    def stays(name: bytes) -> bool:
        family, *place = name.split(b":")
        span_ms = _SPANS_MS.get(place[2] if family == b"bucket_chunk" else family)
        numbered = len(place) == (4 if family == b"bucket_chunk" else 3)
        return span_ms is None or not numbered or int(place[-1]) * span_ms >= oldest_ms

    return {name: values for name, values in found.items() if stays(name)}


class Arena:
    """One run. With one shard, records go to random partitions; with several, to that of their student."""

    def __init__(
        self,
        directory: Path,
        broker: KafkaBroker,
        store: RedisServer | RedisCluster,
        expectations: Expectations,
        *,
        client: str = "kafka-python",
        partitions: int = 4,
        kafka: str = "",
        store_url: str | None = None,
        bootstrap: str | None = None,
        create_topics: bool = True,
        days: float = SCENARIO.days,
        topic_settings: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self.broker = broker
        self._server = store
        self.name = f"fault-{random.randrange(1 << 40):x}"
        self.topics = {kind: f"{self.name}.{kind}" for kind in ("responses", "feedback", "dead")}
        self.events = list(
            generate_events(replace(SCENARIO, days=days, start_ms=SCENARIO.start_ms - int(days * DAY_MS)))
        )
        self.result = Result(events=len(self.events))
        self._expectations = expectations
        self._partitions = partitions
        self._topic_settings = topic_settings
        self._stack = ExitStack()
        self._chance = random.Random(7)
        self._bootstrap = bootstrap or broker.bootstrap
        self._client = client
        self.config = directory / "config.toml"
        self.write_config(kafka=kafka, store_url=store_url or store.url)
        if create_topics:
            self.create_topics()
        self.store = connect_active_generation(StoreSettings(url=store.url))
        self.half = len(self.events) // 2
        self._writer: threading.Thread | None = None
        self._hurry = threading.Event()
        self._workers = 0

    @property
    def server(self) -> RedisServer:
        """The store's server, where it has one."""
        assert isinstance(self._server, RedisServer)
        return self._server

    @property
    def cluster(self) -> RedisCluster:
        """The store's cluster, where it is one."""
        assert isinstance(self._server, RedisCluster)
        return self._server

    def write_config(self, path: Path | None = None, *, kafka: str = "", store_url: str | None = None) -> Path:
        """Write a worker's configuration."""
        place = path or self.config
        place.write_text(
            _CONFIG.format(
                bootstrap=self._bootstrap,
                name=self.name,
                client=self._client,
                kafka=kafka,
                store=store_url or self._server.url,
                experiment=SCENARIO.experiment,
            )
        )
        return place

    def create_topics(self, *kinds: str) -> None:
        """Create the topics, or some of them."""
        for kind in kinds or self.topics:
            self.broker.create_topic(self.topics[kind], self._partitions, self._topic_settings)

    # ------------------------------------------------------------------ the stream

    def producer(self, **options: Any) -> KafkaProducer:
        """Return a producer that survives the faults."""
        patient = {"acks": "all", "delivery_timeout_ms": 600_000}
        return KafkaProducer(bootstrap_servers=self.broker.bootstrap, **patient, **options)

    def write(self, events: Sequence[SimulatedEvent] | None = None, per_second: float = 3_000) -> None:
        """Begin to write the stream in the background; `finish` and `written` want the rest of it at once."""
        self._hurry.clear()
        todo = self.events if events is None else events
        producer = self.producer()

        def work() -> None:
            began = time.monotonic()
            for number, event in enumerate(todo):
                topic = self.topics["responses" if event.kind == "response" else "feedback"]
                producer.send(topic, event.payload, partition=self._partition_of(event))
                ahead_s = number / per_second - (time.monotonic() - began)
                if ahead_s > 0.05:
                    self._hurry.wait(ahead_s)
            producer.flush()
            producer.close()

        self._writer = threading.Thread(target=work, daemon=True)
        self._writer.start()

    def _partition_of(self, event: SimulatedEvent) -> int:
        if len(self.store) == 1:
            return self._chance.randrange(self._partitions)
        return crc32(event.key) % self._partitions

    def written(self) -> None:
        """Wait until the stream is in Kafka."""
        assert self._writer is not None
        self._hurry.set()
        self._writer.join(300)
        assert not self._writer.is_alive()

    def ends(self) -> dict[str, int]:
        """Return where the partitions end."""
        consumer = KafkaConsumer(bootstrap_servers=self.broker.bootstrap)
        try:
            partitions = [
                TopicPartition(self.topics[kind], number)
                for kind in ("responses", "feedback")
                for number in consumer.partitions_for_topic(self.topics[kind]) or ()
            ]
            return {f"{each.topic}:{each.partition}": end for each, end in consumer.end_offsets(partitions).items()}
        finally:
            consumer.close()

    # ------------------------------------------------------------------ the workers

    @contextmanager
    def worker(self, config: Path | None = None) -> Iterator[Worker]:
        """Run a worker while the block runs."""
        self._workers += 1
        log = self.directory / f"worker-{self._workers}.log"
        with service(config or self.config, log, environ=HASHED) as process:
            yield Worker(process, log)

    def applied(self) -> int:
        """Return how many offsets are behind all positions."""
        return sum(each.next_offset for each in self.store.read_positions().values())

    def progresses(self, by: int = 1_000, within_s: float = 90) -> None:
        """Wait until that many more events are applied."""
        start = self.applied()
        eventually(f"{by} more events are applied", lambda: self.applied() >= start + by, within_s=within_s)

    def resumes(self, since: float, within_s: float = 180) -> None:
        """Measure how long it takes from `since` until anything more is applied."""
        start = eventually("the store answers", self._applied_or_none, within_s=within_s)
        eventually(
            "the work is resumed", lambda: (self._applied_or_none() or 0) > start, within_s=within_s, every_s=0.05
        )
        self.result.resumed_s = max(self.result.resumed_s or 0.0, time.monotonic() - since)

    def _applied_or_none(self) -> int | None:
        with suppress(Exception):
            return self.applied() + 1
        return None

    def finish(self, within_s: float = 180) -> None:
        """Wait until everything is written and applied."""
        if self._writer is not None:
            self.written()
        ends = self.ends()

        def all_applied() -> bool:
            with suppress(Exception):
                positions = self.store.read_positions()
                return all(name in positions and positions[name].next_offset == end for name, end in ends.items())
            return False

        eventually("everything is applied", all_applied, within_s=within_s)

    def compare(self, events: Sequence[SimulatedEvent] | None = None) -> Result:
        """Compare what the store holds with an undisturbed replay."""
        expected = self._expectations.of(self.events if events is None else events)
        got = dump(self.store)
        self.result.expected, self.result.got = Totals.of(expected), Totals.of(got)
        one, other = _kept(got), _kept(expected)
        unlike = sorted(name.decode() for name in {*one, *other} if one.get(name) != other.get(name))
        self.result.equal = not unlike
        if unlike:
            self.result.note += f" unlike: {unlike}"
        return self.result

    def dead_letters(self) -> list[Any]:
        """Return what is in the dead-letter topic."""
        consumer = KafkaConsumer(
            self.topics["dead"],
            bootstrap_servers=self.broker.bootstrap,
            auto_offset_reset="earliest",
            consumer_timeout_ms=3_000,
        )
        try:
            return list(consumer)
        finally:
            consumer.close()

    def turn_to(self, server: RedisServer) -> None:
        """Take another server's content for the result."""
        self.store.close()
        self.store = ShardedStore(StoreSettings(url=server.url))

    def close(self) -> None:
        """Disconnect."""
        self.store.close()


class Worker:
    """One `ab-monitor run`."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    def said(self) -> str:
        """Return its log so far."""
        return self._log.read_text()

    def says(self, what: str, within_s: float = 60) -> None:
        """Wait for a text in its log."""
        eventually(f"the log says {what!r}", lambda: what in self.said(), within_s=within_s)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def ends_with(self, code: int, within_s: float = 60) -> None:
        """Wait for its end and compare the exit code."""
        assert self.process.wait(within_s) == code, self.said()[-2000:]

    def readiness(self) -> tuple[int, str]:
        """Return what /-/ready says."""
        port = re.search(r"127\.0\.0\.1:(\d+)/", self.said())
        return (0, "") if port is None else get(f"http://127.0.0.1:{port[1]}/-/ready")

    def unready(self, because: str, within_s: float = 60) -> None:
        """Wait until /-/ready says 503 and why."""

        def waits() -> bool:
            code, why = self.readiness()
            return code == 503 and because in why

        eventually(f"not ready because of {because!r}", waits, within_s=within_s)

    def ready(self, within_s: float = 60) -> None:
        """Wait until it is ready."""
        eventually("ready", lambda: self.readiness()[0] == 200, within_s=within_s)
