"""Workers with configuration files of their own, streams of simulated events, and the undisturbed store."""

from __future__ import annotations

import heapq
import json
import re
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from monitor.cli.simulate import send_to_kafka
from monitor.config import KafkaSettings, StoreSettings
from monitor.simulation.simulator import Scenario, SimulatedEvent, generate_events
from monitor.state import ShardedStore, read_declared_set
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, ab_monitor, eventually, get, service
from tests.support.dump import Dump, dump

EVENTS_PER_SECOND = 1_500
PARTITIONS = 4
COMMON = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "<topic>.responses"
feedback_topic = "<topic>.feedback"
group_id = "<topic>"
[store]
url = "<store>"
[http]
port = 0
"""
FIRST = """
[[experiments]]
name = "first"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
items = { horizon = "30d", expected_items = 500 }
[experiments.grades]
rating = "score"
"""
SECOND = FIRST.replace("first", "second")


def simulated_events(*experiments: str, responses: int, days: float = 2) -> list[SimulatedEvent]:
    """Return the events of experiments with as many responses in all, in the order of their arrival."""
    streams = [
        generate_events(
            Scenario(
                experiment=name,
                responses=responses // len(experiments),
                students=1_000,
                days=days,
                seed=seed,
                shares={"control": 0.4, "treatment": 0.3, "late": 0.3}
                if name == "first"
                else {"control": 0.5, "treatment": 0.5},
            )
        )
        for seed, name in enumerate(experiments, 3)
    ]
    return list(heapq.merge(*streams, key=lambda event: event.arrival_ms))


class Replicas:
    """Two workers with files of their own, and a stream of events."""

    def __init__(self, directory: Path, kafka: KafkaBroker, server: RedisServer, name: str) -> None:
        self.module = "monitor"
        self.logs_of: dict[int, Path] = {}
        self.directory = directory
        self.server = server
        self.store = ShardedStore(StoreSettings(server.url))
        server.client().flushall()
        self.values = {"bootstrap": kafka.bootstrap, "topic": name, "store": server.url}
        self.broker = kafka
        self.kafka = KafkaSettings(
            kafka.bootstrap, responses_topic=f"{name}.responses", feedback_topic=f"{name}.feedback"
        )
        for topic in (self.kafka.responses_topic, self.kafka.feedback_topic):
            kafka.create_topic(topic, PARTITIONS)
        self.stack = ExitStack()
        self.processes: dict[int, Any] = {}
        self.starts = 0

    def config(self, replica: int) -> Path:
        return self.directory / f"replica-{replica}.toml"

    def text(self, experiments: str, **values: str) -> str:
        """Return a configuration with the experiments."""
        text = COMMON + experiments
        for name, value in (self.values | values).items():
            text = text.replace(f"<{name}>", value)
        return text

    def write(self, replica: int, experiments: str) -> None:
        """Replace a replica's file, and make a running replica read it."""
        self.write_file(replica, experiments)
        if replica in self.processes:
            self.processes[replica].send_signal(signal.SIGHUP)

    def write_file(self, replica: int, experiments: str) -> None:
        """Replace a replica's file as an editor does: the file is never half written."""
        new = self.config(replica).with_suffix(".new")
        new.write_text(self.text(experiments))
        new.replace(self.config(replica))

    def start(self, replica: int, config: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        """Start a replica, in which constants have other values if the module of the tests replaces them."""
        self.starts += 1
        log = self.directory / f"replica-{replica}-{self.starts}.log"
        self.logs_of[replica] = log
        running = service(config or self.config(replica), log, environ=HASHED | dict(environ or {}), module=self.module)
        self.processes[replica] = self.stack.enter_context(running)
        eventually("the replica serves", lambda: "serving url" in log.read_text())

    def kill(self, replica: int) -> None:
        self.processes[replica].kill()
        self.processes[replica].wait()

    def stop(self, replica: int) -> None:
        self.processes[replica].terminate()
        self.processes[replica].wait()

    def metric(self, replica: int, name: str) -> float:
        """Return the value of a metric, which may have labels; NaN without a value."""
        url = re.findall(r"serving url=(\S+?)/?\s", self.logs_of[replica].read_text())[-1]
        match = re.search(rf"^{name}(?:{{.*}})? (.*)$", get(f"{url}/metrics")[1], re.MULTILINE)
        return float("nan") if match is None else float(match[1])

    def send(self, events: Sequence[SimulatedEvent], events_per_second: float = EVENTS_PER_SECOND) -> threading.Thread:
        """Send events at a limited rate from a thread."""

        def paced() -> Iterator[SimulatedEvent]:
            started_s = time.monotonic()
            for index, event in enumerate(events):
                time.sleep(max(started_s + index / events_per_second - time.monotonic(), 0))
                yield event

        thread = threading.Thread(target=send_to_kafka, args=(paced(), self.kafka))
        thread.start()
        return thread

    def applied_count(self) -> int:
        return sum(position.next_offset for position in self.store.read_positions().values())

    def wait_until_applied(self, events: Sequence[SimulatedEvent], within_s: float = 120) -> None:
        """Wait until all events are applied, and all experiments are filled."""
        eventually("all events are applied", lambda: self.applied_count() >= len(events), within_s=within_s)
        self.wait_until_filled(within_s)

    def wait_until_filled(self, within_s: float = 120) -> None:
        eventually(
            "all experiments are filled",
            lambda: not any(experiment.is_filling for experiment in read_declared_set(self.store).experiments),
            within_s=within_s,
        )

    def declared_set(self) -> dict[str, Any]:
        """Return what `experiments list --json` prints."""
        done = ab_monitor("experiments", "list", "--config", self.config(1), "--json", environ=HASHED)
        assert done.returncode == 0, done.stderr
        declared_set: dict[str, Any] = json.loads(done.stdout)
        return declared_set

    def declared(self) -> list[dict[str, Any]]:
        """Return the declared experiments."""
        experiments: list[dict[str, Any]] = self.declared_set()["experiments"]
        return experiments

    def logs(self) -> str:
        return "".join(path.read_text() for path in sorted(self.directory.glob("*.log")))


def undisturbed(replicas: Replicas, events: Sequence[SimulatedEvent], experiments: str) -> Dump:
    """Return the aggregates of a store that has had the experiments from the beginning."""
    other = replicas.server.url.rstrip("/").removesuffix("/0") + "/1"
    config, file = replicas.directory / "calm.toml", replicas.directory / "calm.jsonl"
    config.write_text(replicas.text(experiments, store=other))
    file.write_bytes(b"\n".join(event.payload for event in events) + b"\n")
    replay = ab_monitor("replay", "--config", config, file, environ=HASHED)
    assert replay.returncode == 0, replay.stderr
    return dump(ShardedStore(StoreSettings(other)))


def aggregates_of(found: Dump, number: int) -> Dump:
    """Return the aggregates under an experiment's number, without the number."""
    selected: Dump = {}
    for key, integers in found.items():
        family, _, rest = key.partition(b":")
        if family == b"newest_times":
            prefix = b"%d:" % number
            selected[family] = {
                field: value
                for field, value in integers.items()
                if isinstance(field, bytes) and field.startswith(prefix)
            }
            selected[family] = {
                field.removeprefix(prefix): value
                for field, value in selected[family].items()
                if isinstance(field, bytes)
            }
        elif rest == b"%d" % number or rest.startswith(b"%d:" % number):
            selected[b"%b:%b" % (family, rest.partition(b":")[2])] = integers
    return selected
