"""A worker at full speed for a long time, to see whether anything grows.

Usage: python -m tests.bench.soak [--minutes N]

Traffic is written as fast as one worker applies it, with event time running much faster than the clock and a horizon of
two hours, so that rows come and go all the time. Every half minute: events applied, the worker's resident memory, the
store's memory and keys. At the end the last quarter is compared with the second.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from monitor.config import StoreSettings
from monitor.ingest.simulator import Scenario, endless
from monitor.store import RedisStore
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import service

_EVERY_S = 30.0
_AHEAD = 100_000
_PARTITIONS = 4
_CONFIG = """
[kafka]
bootstrap_servers = "{bootstrap}"
responses_topic = "soak.responses"
feedback_topic = "soak.feedback"
dead_letter_topic = "soak.dead"
group_id = "soak"
[store]
url = "{store}"
[http]
port = 0
[[experiments]]
name = "{experiment}"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
feedback_window = "1h"
allowed_lateness = "1h"
retention = "24h"
"""


@dataclass(frozen=True, slots=True)
class Sample:
    """One look."""

    at_s: float
    events: int
    worker_mb: float
    store_mb: float
    keys: int


class Traffic(threading.Thread):
    """Writes events, never far ahead of what is applied, and has Kafka forget what was."""

    def __init__(self, broker: KafkaBroker, store: RedisStore) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._store = store
        self.done = threading.Event()

    def run(self) -> None:
        """Write until told to stop."""
        producer = KafkaProducer(bootstrap_servers=self._broker.bootstrap, linger_ms=20, batch_size=1 << 17)
        # Long ago, so that no event lies in the future however fast time runs.
        scenario = replace(Scenario(responses=60_000, students=5_000, days=1.0), start_ms=1_000_000_000_000)
        topics = {"response": "soak.responses", "feedback": "soak.feedback"}
        for number, event in enumerate(endless(scenario)):
            producer.send(topics[event.kind], event.payload, partition=hash(event.key) % _PARTITIONS)
            if number % 10_000 == 0:
                self._keep_step(number)
                if self.done.is_set():
                    break
        producer.close()

    def _keep_step(self, written: int) -> None:
        while not self.done.is_set():
            positions = self._store.positions()
            if written - sum(each.next_offset for each in positions.values()) < _AHEAD:
                break
            time.sleep(0.1)
        if written % 500_000 == 0:
            applied = {name: each.next_offset for name, each in self._store.positions().items()}
            with KafkaAdminClient(bootstrap_servers=self._broker.bootstrap) as admin:
                parts = ((name.rpartition(":"), offset) for name, offset in applied.items())
                admin.delete_records({TopicPartition(part[0], int(part[2])): offset for part, offset in parts})


def main() -> int:
    """Run, print a line every half minute, and say how much the memory has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak", description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--minutes", type=float, default=20.0)
    minutes = parser.parse_args().minutes
    samples: list[Sample] = []
    with tempfile.TemporaryDirectory() as place, KafkaBroker() as broker, RedisServer(redis_binary()) as server:
        for topic in ("responses", "feedback", "dead"):
            broker.create_topic(f"soak.{topic}", _PARTITIONS, {"segment.bytes": "67108864"})
        config = Path(place) / "config.toml"
        experiment = Scenario().experiment
        config.write_text(_CONFIG.format(bootstrap=broker.bootstrap, store=server.url, experiment=experiment))
        store = RedisStore(StoreSettings(url=server.url))
        traffic = Traffic(broker, RedisStore(StoreSettings(url=server.url)))
        log = Path(place) / "log"
        with service(config, log) as worker:
            time.sleep(5)
            traffic.start()
            began = time.monotonic()
            while time.monotonic() - began < minutes * 60 and worker.poll() is None:
                time.sleep(_EVERY_S)
                samples.append(_look(store, worker.pid, time.monotonic() - began))
                each = samples[-1]
                line = f"{each.at_s / 60:5.1f} min {each.events:>10} events  worker {each.worker_mb:6.1f} MB  "
                print(f"{line}store {each.store_mb:6.1f} MB in {each.keys} keys", flush=True)
            if worker.poll() is not None:
                print(log.read_text()[-2000:])
                return 1
            traffic.done.set()
            traffic.join()
    quarter = len(samples) // 4
    for what in ("worker_mb", "store_mb"):
        early, late = (
            statistics.median(getattr(each, what) for each in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        print(f"{what}: {early:.1f} in the second quarter, {late:.1f} in the last: {late / early - 1:+.1%}")
    return 0


def _look(store: RedisStore, pid: int, at_s: float) -> Sample:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    events = sum(each.next_offset for each in store.positions().values())
    memory = store.client.info("memory")["used_memory"] / 1e6
    return Sample(at_s, events, int(found[1]) / 1024 if found else 0.0, memory, store.client.dbsize())


if __name__ == "__main__":
    sys.exit(main())
