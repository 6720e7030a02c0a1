"""Experiments change while two workers run with files of their own: every event is counted exactly once."""

from __future__ import annotations

import heapq
import json
import random
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.simulate import send_to_kafka
from monitor.config import KafkaSettings, StoreSettings
from monitor.simulation.simulator import Scenario, SimulatedEvent, generate_events
from monitor.state import ShardedStore
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, ab_monitor, eventually, service
from tests.support.dump import Dump, dump

RESPONSES = 12_000
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
EXPONENTIAL = FIRST.replace("[experiments.grades]", 'gain = "exp2"\n[experiments.grades]')
THREE_VARIANTS = FIRST.replace(
    "variants = { control = 0.5, treatment = 0.5 }", "variants = { control = 0.4, treatment = 0.3, late = 0.3 }"
)
OTHER_SHARES = FIRST.replace("control = 0.5, treatment = 0.5", "control = 0.9, treatment = 0.1")


def _events(*experiments: str) -> list[SimulatedEvent]:
    """Return the events of simulated experiments, in the order of their arrival."""
    streams = [
        generate_events(
            Scenario(
                experiment=name,
                responses=RESPONSES // len(experiments),
                students=1_000,
                days=2,
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
        self.directory = directory
        self.server = server
        server.client().flushall()
        self.values = {"bootstrap": kafka.bootstrap, "topic": name, "store": server.url}
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

    def write(self, replica: int, experiments: str) -> None:
        """Replace a replica's file as an editor does: the file is never half written."""
        text = COMMON + experiments
        for name, value in self.values.items():
            text = text.replace(f"<{name}>", value)
        new = self.config(replica).with_suffix(".new")
        new.write_text(text)
        new.replace(self.config(replica))
        if replica in self.processes:
            self.processes[replica].send_signal(signal.SIGHUP)

    def start(self, replica: int) -> None:
        self.starts += 1
        log = self.directory / f"replica-{replica}-{self.starts}.log"
        self.processes[replica] = self.stack.enter_context(service(self.config(replica), log, environ=HASHED))

    def kill(self, replica: int) -> None:
        self.processes[replica].kill()
        self.processes[replica].wait()

    def send(self, events: Sequence[SimulatedEvent]) -> threading.Thread:
        """Send events at a limited rate from a thread."""

        def paced() -> Iterator[SimulatedEvent]:
            started_s = time.monotonic()
            for index, event in enumerate(events):
                time.sleep(max(started_s + index / EVENTS_PER_SECOND - time.monotonic(), 0))
                yield event

        thread = threading.Thread(target=send_to_kafka, args=(paced(), self.kafka))
        thread.start()
        return thread

    def wait_until_applied(self, events: Sequence[SimulatedEvent]) -> None:
        """Wait until all events are applied, and all experiments are filled."""

        def is_applied() -> bool:
            positions = ShardedStore(StoreSettings(self.server.url)).read_positions().values()
            return sum(position.next_offset for position in positions) >= len(events)

        eventually("all events are applied", is_applied, within_s=120)
        eventually(
            "all experiments are filled", lambda: not any(each["is_filling"] for each in self.declared()), within_s=120
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


@pytest.fixture
def replicas(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer, request: pytest.FixtureRequest
) -> Iterator[Replicas]:
    """Yield two replicas that are not started, with topics of their own."""
    name = f"changing-{random.Random(request.node.name).randrange(10**9)}"
    opened = Replicas(tmp_path, kafka, redis_server, name)
    with opened.stack:
        yield opened


def _undisturbed(replicas: Replicas, events: Sequence[SimulatedEvent], experiments: str) -> Dump:
    """Return the aggregates of a store that has had the experiments from the beginning."""
    other = replicas.server.url.rstrip("/").removesuffix("/0") + "/1"
    config, file = replicas.directory / "calm.toml", replicas.directory / "calm.jsonl"
    text = COMMON + experiments
    for name, value in (replicas.values | {"store": other}).items():
        text = text.replace(f"<{name}>", value)
    config.write_text(text)
    file.write_bytes(b"\n".join(event.payload for event in events) + b"\n")
    replay = ab_monitor("replay", "--config", config, file, environ=HASHED)
    assert replay.returncode == 0, replay.stderr
    return dump(ShardedStore(StoreSettings(other)))


def _of_experiment(found: Dump, number: int) -> Dump:
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


CHANGES = {
    "added": (FIRST, FIRST + SECOND),
    "removed": (SECOND + FIRST, FIRST),
    "redefined": (FIRST, EXPONENTIAL),
    "variant added": (FIRST, THREE_VARIANTS),
    "shares changed": (FIRST, OTHER_SHARES),
}


@pytest.mark.timeout(400)
@pytest.mark.parametrize("kills", [False, True], ids=["", "kills"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_one_file_after_the_other_loses_and_repeats_no_event(
    replicas: Replicas,
    change: str,
    kills: bool,  # noqa: FBT001  a parameter of the test
) -> None:
    """The change arrives five seconds later in the second file, under load."""
    before, after = CHANGES[change]
    events = _events("first", "second")
    third = len(events) // 4
    for replica in (1, 2):
        replicas.write(replica, before)
        replicas.start(replica)
    sender = replicas.send(events[:third])
    sender.join()
    sender = replicas.send(events[third:])
    replicas.write(1, after)
    time.sleep(5)
    replicas.write(2, after)
    eventually("the change is in force", lambda: replicas.declared_set()["version"] > 1)
    if kills:
        chance = random.Random(change)
        for _ in range(4):
            time.sleep(chance.uniform(1, 2.5))
            replica = chance.choice((1, 2))
            replicas.kill(replica)
            replicas.start(replica)
    sender.join()
    replicas.wait_until_applied(events)
    found = dump(ShardedStore(StoreSettings(replicas.server.url)))
    expected = _undisturbed(replicas, events, after)
    for number, name in enumerate((each for each in ("first", "second") if f'"{each}"' in after), 1):
        declared = next(each for each in replicas.declared() if each["name"] == name)
        assert _of_experiment(found, declared["number"]) == _of_experiment(expected, number), name
    assert "Traceback" not in replicas.logs()
