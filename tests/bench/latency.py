"""The time from an event's append to the broker until a scrape of /metrics/experiments counts the event.

A worker first reads a backlog. Another process then writes live traffic on the same cores with librdkafka, first at
nine tenths of the backlog's rate, then at lower rates until the worker no longer falls behind. Half of that load goes
on while probes are sent: responses to an experiment of their own. A probe's time begins with the broker's timestamp
(LogAppendTime). The scrape is requested as soon as the store has applied the probe's offset, which is polled every
two milliseconds: scraping all the time would measure the scrapes.
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

from monitor.cli.simulate import pace_events, send_to_kafka
from monitor.clock import wall_clock
from monitor.config import KafkaSettings, StoreSettings
from monitor.simulation.simulator import Scenario, benchmark_scenario, generate_events, render_example_config
from monitor.state import ShardedStore
from tests.bench.figures import Figure
from tests.bench.settings import peak_mb, settings_from
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import eventually, service

_PARTITIONS: Final = 4
_BACKLOG: Final = Scenario(responses=120_000, students=20_000, days=0.5, seed=2026)
_EVENTS_PER_RESPONSE: Final = 1.55
_SETTLING_S: Final = 4
_TRIAL_S: Final = 8
_MAX_TRIALS: Final = 8
_HALF_LOAD_S: Final = 90
_SPARE_S: Final = 10
"""Of traffic that is generated and not needed."""
_MIN_WRITTEN: Final = 0.85
"""Of the nominal rate, in a trial: some reactions are still to come, but the source is not behind."""
_MIN_APPLIED: Final = 0.98
"""Of what is written, for a worker that does not fall behind."""
_TOPICS: Final = ("chatbot.responses", "student.feedback", "ab-monitor.dead-letter")
_PROBES: Final = """
[[experiments]]
name = "probe"
control = "a"
variants = { a = 0.5, b = 0.5 }
"""
_COUNT: Final = re.compile(rb'abmonitor_responses\{experiment="probe",variant="a"\} (\S+)')


def measure() -> Iterator[Figure]:
    """Yield the largest load, the latencies at half of it, and the worker's memory."""
    with KafkaBroker() as broker, RedisServer(redis_binary()) as server, tempfile.TemporaryDirectory() as directory:
        for topic in _TOPICS:
            broker.create_topic(topic, _PARTITIONS, {"message.timestamp.type": "LogAppendTime"})
        port = free_port()
        text = render_example_config(_BACKLOG).replace("localhost:9092", broker.bootstrap)
        text = text.replace("redis://localhost:6379/0", server.url).replace("port = 9464", f"port = {port}") + _PROBES
        config, log = Path(directory) / "config.toml", Path(directory) / "log"
        config.write_text(text)
        kafka = settings_from(text).kafka
        events = send_to_kafka(generate_events(_BACKLOG), kafka)
        with (
            service(config, log) as worker,
            closing(ShardedStore(StoreSettings(url=server.url), shard_count=1)) as store,
        ):
            eventually("the first commit", lambda: _applied(store) > 0, every_s=0.005)
            started, before = time.perf_counter(), _applied(store)
            eventually("the backlog is applied", lambda: _applied(store) >= events, within_s=120, every_s=0.02)
            rate = (events - before) / (time.perf_counter() - started)
            source = _Source(kafka)
            load = _largest_load(source, broker, store, rate)
            yield Figure("live traffic of one worker", load, "events/s")
            traffic = source.traffic(load / 2, _SETTLING_S + _HALF_LOAD_S)
            with closing(_Prober(broker, port, store)) as prober, traffic as prober.behind_ms:
                time.sleep(_SETTLING_S)
                latencies = prober.latencies_ms(time.monotonic() + _HALF_LOAD_S)
            for share, most in ((50, 100), (99, 500)):
                latency_ms = float(np.percentile(latencies, share))
                yield Figure(f"append to scrape, p{share}", latency_ms, "ms", most)
            yield Figure("peak memory under live traffic", peak_mb(worker.pid), "MB", 250)


def _applied(store: ShardedStore) -> int:
    return sum(position.next_offset for position in store.read_positions().values())


def _largest_load(source: _Source, broker: KafkaBroker, store: ShardedStore, rate: float) -> float:
    """Return the events written per second when the worker keeps up; a trial begins at nine tenths of a rate."""
    partitions = [TopicPartition(topic, number) for topic in _TOPICS[:2] for number in range(_PARTITIONS)]
    load = 0.9 * rate
    with closing(KafkaConsumer(bootstrap_servers=broker.bootstrap, metrics_enabled=False)) as consumer:

        def counts() -> tuple[int, int, float]:
            return sum(consumer.end_offsets(partitions).values()), _applied(store), time.perf_counter()

        for _ in range(_MAX_TRIALS):
            with source.traffic(load, _SETTLING_S + _TRIAL_S):
                time.sleep(_SETTLING_S)
                before = counts()
                time.sleep(_TRIAL_S)
                written, applied, seconds = (now - then for now, then in zip(counts(), before, strict=True))
            _wait_until_idle(store)
            if written >= _MIN_WRITTEN * load * seconds and applied >= _MIN_APPLIED * written:
                return written / seconds
            load = min(0.9 * load, applied / seconds)
    raise SystemExit(f"the worker fell behind at {load:.0f} events/s")


def _wait_until_idle(store: ShardedStore) -> None:
    before = -1
    while (now := _applied(store)) != before:
        before = now
        time.sleep(1)


class _Source:
    """Writes live traffic from a process of its own, with event time that goes on from one call to the next."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._calls = 0
        self._start_ms = _BACKLOG.start_ms + round(_BACKLOG.days * 86_400_000)

    @contextmanager
    def traffic(self, rate: float, seconds: float) -> Iterator[int]:
        """Write traffic while the block runs, and yield by how many ms event time is behind the clock."""
        seconds += _SPARE_S
        self._calls += 1
        scenario = replace(
            benchmark_scenario(),
            responses=round(rate * seconds / _EVENTS_PER_RESPONSE),
            days=seconds / 86_400,
            start_ms=self._start_ms,
            feedback_delay_s=2.0,
            segment=self._calls,
        )
        self._start_ms += round(seconds * 1000)
        context = multiprocessing.get_context("spawn")
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_write, args=(self._kafka, scenario, sender))
        process.start()
        sender.close()
        try:
            yield receiver.recv()
            alive = process.is_alive()
        finally:
            process.terminate()
            process.join()
        if not alive:
            raise SystemExit("the traffic ended before the measurement")


def _write(kafka: KafkaSettings, scenario: Scenario, sender: Connection) -> None:
    """Write a scenario's events at the pace of their arrival; first send by how many ms event time is behind."""
    events = generate_events(scenario)
    first = next(events)
    behind_ms = wall_clock() - scenario.start_ms
    sender.send(behind_ms)
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
    for event in pace_events(chain([first], events), clock=lambda: wall_clock() - behind_ms):
        producer.produce(topics[event.kind], event.payload, event.key)
        producer.poll(0)
    producer.flush(60)


class _Prober:
    """Sends one probe after the other and waits for each."""

    def __init__(self, broker: KafkaBroker, port: int, store: ShardedStore) -> None:
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap, linger_ms=0, metrics_enabled=False)
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        self._store = store
        self._sent = 0
        self.behind_ms = 0
        """By how much event time is behind the clock."""

    def close(self) -> None:
        """Close the connections."""
        self._producer.close()
        self._http.close()

    def latencies_ms(self, until_s: float) -> list[float]:
        """Return the time of each probe, in ms, with a random pause before the next."""
        chance = random.Random(1)
        latencies = []
        while time.monotonic() < until_s:
            partition, offset, appended_ms = self._send()
            while (position := self._store.read_positions().get(partition)) is None or position.next_offset <= offset:
                time.sleep(0.002)
            if self._count() < self._sent:
                raise SystemExit("the store has applied the probe, but the scrape does not count it")
            latencies.append(time.time() * 1000 - appended_ms)
            time.sleep(chance.uniform(0.4, 0.8))
        return latencies

    def _send(self) -> tuple[str, int, float]:
        """Send the next probe; return its partition, its offset, and the time of its append in ms since 1970."""
        self._sent += 1
        content = {
            "response_id": f"probe-{self._sent}",
            "timestamp": wall_clock() - self.behind_ms,
            "experiment": "probe",
            "variant": "a",
            "user_id": f"prober-{self._sent}",
            "items": [{"item_id": "v-1", "position": 1}],
        }
        future = self._producer.send(_TOPICS[0], json.dumps(content).encode(), partition=self._sent % _PARTITIONS)
        sent = future.get(timeout=30)
        return f"{_TOPICS[0]}:{sent.partition}", sent.offset, float(sent.timestamp)

    def _count(self) -> int:
        self._http.request("GET", "/metrics/experiments")
        match = _COUNT.search(self._http.getresponse().read())
        return int(float(match[1])) if match else 0
