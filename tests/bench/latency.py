"""How long an event takes from its append to the broker to its effect on /metrics/experiments, and a start.

The store holds a million rows. The worker, a process of its own, first reads a backlog. The maximal load is the
largest tenth of that rate at which it does not fall behind live traffic, which another process writes on the same
cores (with librdkafka: kafka-python's producer would take most of one of them). Then traffic at half of that goes on,
while probes (responses to an experiment of their own) are sent and looked for; then there are only probes, one a
second. A probe's time begins with what the broker stamps on it (LogAppendTime) and ends when a scrape that counts it
has been received. That scrape is asked for as soon as the store has the probe, which is looked for every two
milliseconds: scraping all the time would measure itself. One or two a second are many more than Prometheus asks for,
and take a tenth of the interpreter that the worker needs as well.
"""

from __future__ import annotations

import http.client
import json
import multiprocessing
import random
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

import numpy as np
from confluent_kafka import Producer
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from monitor.aggregates import Ints
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, StoreSettings
from monitor.ingest.experiment import Experiment
from monitor.ingest.sending import paced, send_to_kafka
from monitor.ingest.simulator import Scenario, default_config, generate, w1
from monitor.service import opened
from monitor.store import RedisStore
from tests.bench.figures import Figure
from tests.bench.loader import Loader
from tests.bench.settings import peak_mb, settings_from
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually, service

_ROWS: Final = 1_000_000
_STUDENTS: Final = 200_000
_PARTITIONS: Final = 4
_BACKLOG: Final = Scenario(responses=120_000, students=20_000, days=0.5, seed=2026)
_HALF_LOAD_S: Final = 90
_SETTLING_S: Final = 4
_TRIAL_S: Final = 8
_WRITTEN: Final = 0.85
"""Of the nominal rate, in a trial: some of the reactions are still to come, but its source is not behind."""
_KEPT_UP: Final = 0.98
_TO_SPARE_S: Final = 10
"""Of traffic that is not needed."""
_TRICKLE_S: Final = 40
_TOPICS: Final = ("chatbot.responses", "student.feedback", "ab-monitor.dead-letter")
_PATIENCE: Final = 'allowed_lateness = "40d"\nretention = "60d"\n'
"""So that no sweep of the loaded rows is measured."""
_PROBE: Final = f"""
[[experiments]]
name = "probe"
control = "a"
variants = {{ a = 0.5, b = 0.5 }}
{_PATIENCE}"""
_COUNT: Final = re.compile(rb'abmonitor_responses\{experiment="probe",variant="a"\} (\S+)')


def measure() -> Iterator[Figure]:
    """Yield the time of a start, loads, latencies at half of the maximal one and at a trickle, the worker's memory."""
    with KafkaBroker() as broker, RedisServer(redis_binary()) as server, tempfile.TemporaryDirectory() as place:
        for topic in _TOPICS:
            broker.create_topic(topic, _PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        port = free_port()
        text = default_config(_BACKLOG).replace("localhost:9092", broker.bootstrap)
        text = text.replace("redis://localhost:6379/0", server.url).replace("port = 9464", f"port = {port}")
        text = text.replace("decay =", f"{_PATIENCE}decay =") + _PROBE
        config, log = Path(place) / "config.toml", Path(place) / "log"
        config.write_text(text)
        settings = settings_from(text)
        with opened(settings, wall_clock) as opening:
            first = settings.experiments[0]
            experiment = Experiment(opening.held.numbers[first.name], first)
            number = opening.held.numbers["probe"]
            keys, held = opening.store.first.keys, opening.held.hash_key
            loader = Loader(server.client(), keys, experiment, held, _ROWS, _STUDENTS)
            loader.load_responses()
            loader.load_students()
        events = send_to_kafka(generate(_BACKLOG), settings.kafka)
        store = RedisStore(StoreSettings(url=server.url))
        began = time.perf_counter()
        with service(config, log) as worker:
            eventually("the first commit", lambda: _applied(store) > 0, every_s=0.005)
            started = time.perf_counter()
            yield Figure("start to first commit with a million rows", started - began, "s", most=3.0)
            already = _applied(store)
            eventually("the backlog is applied", lambda: _applied(store) >= events, within_s=120, every_s=0.02)
            load = (events - already) / (time.perf_counter() - started)
            yield Figure("rate of a backlog, with broker and store on the same two cores", load, "events/s")
            source = _Source(settings.kafka)
            load = _maximal(source, broker, store, load)
            yield Figure("maximal load, with the source of the traffic on them as well", load, "events/s")
            with closing(_Prober(broker, port, store, number)) as prober:
                yield from _latencies(prober, source, load / 2)
            yield Figure("worker, most memory resident", peak_mb(worker.pid), "MB", most=200)


def _probes(store: RedisStore, number: int) -> int:
    """Return how many probes the store has."""
    record: bytes = store.client.get(store.keys.responses(number, 0)) or bytes(8)
    return int.from_bytes(record[:8])


def _applied(store: RedisStore) -> int:
    return sum(each.next_offset for each in store.positions().values())


def _maximal(source: _Source, broker: KafkaBroker, store: RedisStore, rate: float) -> float:
    """Return what is written each second at the largest tenth of a rate at which the worker keeps up with that."""
    partitions = [TopicPartition(topic, number) for topic in _TOPICS[:2] for number in range(_PARTITIONS)]
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, metrics_enabled=False)) as consumer:

        def written_and_applied() -> Ints:
            return np.array([sum(consumer.end_offsets(partitions).values()), _applied(store)])

        for tenths in range(10, 1, -1):
            load = rate * tenths / 10
            with source.traffic(load, _SETTLING_S + _TRIAL_S):
                time.sleep(_SETTLING_S)
                before, began = written_and_applied(), time.perf_counter()
                time.sleep(_TRIAL_S)
                written, applied = (written_and_applied() - before) / (time.perf_counter() - began)
            _drained(store)
            if written >= _WRITTEN * load and applied >= _KEPT_UP * written:
                return float(written)
    raise SystemExit(f"the worker fell behind at {load:.0f} events/s")


def _drained(store: RedisStore) -> None:
    """Wait until nothing has been applied for a second."""
    before = -1
    while (now := _applied(store)) != before:
        before = now
        time.sleep(1)


def _latencies(prober: _Prober, source: _Source, rate: float) -> Iterator[Figure]:
    with source.traffic(rate, _SETTLING_S + _HALF_LOAD_S) as prober.shift_ms:
        time.sleep(_SETTLING_S)
        waits = prober.waits(time.monotonic() + _HALF_LOAD_S, 0.4, 0.8)
    yield Figure("half of the maximal load", rate, "events/s")
    yield from _percentiles("append to scrape at half the maximal load", waits, (100, 500))
    time.sleep(3)
    waits = prober.waits(time.monotonic() + _TRICKLE_S, 0.9, 1.1)
    yield from _percentiles("append to scrape, one event a second", waits, (None, 200))


def _percentiles(name: str, waits: list[float], aims: tuple[float | None, float | None]) -> Iterator[Figure]:
    for share, aim in zip((50, 99), aims, strict=True):
        yield Figure(f"{name}, p{share}", float(np.percentile(waits, share)), "ms", most=aim)


class _Source:
    """Writes live traffic from a process of its own."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._parts = 0
        self._begin_ms = _BACKLOG.start_ms + round(_BACKLOG.days * 86_400_000)

    @contextmanager
    def traffic(self, rate: float, seconds: float) -> Iterator[int]:
        """Have it written meanwhile, and yield how far event time is behind, which goes on where it was."""
        seconds += _TO_SPARE_S
        per_response = 1.55
        self._parts += 1
        scenario = replace(
            w1(),
            responses=round(rate * seconds / per_response),
            days=seconds / 86_400,
            start_ms=self._begin_ms,
            feedback_delay_s=2.0,
            part=self._parts,
        )
        self._begin_ms += round(seconds * 1000)
        context = multiprocessing.get_context("spawn")
        said, saying = context.Pipe(duplex=False)
        writing = context.Process(target=_write, args=(self._kafka, scenario, saying))
        writing.start()
        saying.close()
        try:
            yield said.recv()
            alive = writing.is_alive()
        finally:
            writing.terminate()
            writing.join()
        if not alive:
            raise SystemExit("the traffic ended before the measurement")


def _write(kafka: KafkaSettings, scenario: Scenario, saying: Connection) -> None:
    """Write a scenario's events at the pace of their arrival; say first how far event time is behind."""
    events = generate(scenario)
    first = next(events)
    shift_ms = wall_clock() - scenario.start_ms
    saying.send(shift_ms)
    topics = {"response": kafka.responses_topic, "feedback": kafka.feedback_topic}
    producer = Producer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "acks": "all",
            "linger.ms": 20,
            "log_level": 0,
            "partitioner": "murmur2_random",
        }
    )
    for event in paced(chain([first], events), clock=lambda: wall_clock() - shift_ms):
        producer.produce(topics[event.kind], event.payload, event.key)
        producer.poll(0)
    producer.flush(60)


class _Prober:
    """Sends one probe after the other and looks for each."""

    def __init__(self, broker: KafkaBroker, port: int, store: RedisStore, number: int) -> None:
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=0, metrics_enabled=False)
        self._scrapes = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._store = store
        self._number = number
        self.shift_ms = 0
        """How far event time is behind."""
        self._sent = 0

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()
        self._scrapes.close()

    def _send(self) -> float:
        """Send the next probe and return when the broker appended it, in ms since 1970."""
        self._sent += 1
        content = {
            "response_id": f"probe-{self._sent}",
            "timestamp": wall_clock() - self.shift_ms,
            "experiment": "probe",
            "variant": "a",
            "user_id": f"prober-{self._sent}",
            "items": [{"item_id": "v-1", "position": 1}],
        }
        future = self._producer.send(_TOPICS[0], json.dumps(content).encode(), partition=self._sent % _PARTITIONS)
        return float(future.get(timeout=30).timestamp)

    def _counted(self) -> int:
        self._scrapes.request("GET", "/metrics/experiments")
        found = _COUNT.search(self._scrapes.getresponse().read())
        return int(float(found[1])) if found else 0

    def waits(self, until_s: float, least_s: float, most_s: float) -> list[float]:
        """Return the milliseconds that each probe took, with a random pause before the next."""
        chance = random.Random(1)
        found = []
        while time.monotonic() < until_s:
            appended_ms = self._send()
            while _probes(self._store, self._number) < self._sent:
                time.sleep(0.002)
            if self._counted() < self._sent:
                raise SystemExit("wrong: the store has the probe, the scrape does not")
            found.append(time.time() * 1000 - appended_ms)
            time.sleep(chance.uniform(least_s, most_s))
        return found
