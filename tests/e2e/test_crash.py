"""A service that is killed at random times under load has the same aggregates as an undisturbed service."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path

import pytest

from monitor.cli.simulate import send_to_kafka
from monitor.config import StoreSettings, load_settings
from monitor.simulation.simulator import Scenario, generate_events, render_example_config
from monitor.state import StoreShard
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import HASHED, ab_monitor, eventually, service
from tests.support.dump import dump

KILLS = 10
PARTITIONS = 4


def _config(directory: Path, scenario: Scenario, bootstrap: str, store: str, name: str) -> Path:
    text = render_example_config(scenario).replace("localhost:9092", bootstrap)
    path = directory / f"{name}.toml"
    path.write_text(text)
    settings = load_settings(path, {})
    text = text.replace(settings.store.url, store).replace(settings.kafka.group_id, name)
    text = text.replace(
        "[experiments.grades]", 'items = { horizon = "30d", expected_items = 500 }\n\n[experiments.grades]'
    )
    text = text.replace("[store]", 'group_instance_id = "worker-1"\n[store]')
    path.write_text(text.replace("port = 9464", "port = 0"))
    return path


def _applied(store: StoreShard) -> int:
    return sum(position.next_offset for position in store.read_state().positions.values())


@pytest.mark.timeout(400)
def test_after_ten_kills_under_load_every_event_is_counted_once(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """All stored integers equal those of an undisturbed replay of the same events."""
    scenario = Scenario(responses=60_000, students=4_000, days=3, seed=11)
    redis_server.client().flushall()
    other_database = redis_server.url.rstrip("/").removesuffix("/0") + "/1"
    live = _config(tmp_path, scenario, kafka.bootstrap, redis_server.url, "crash")
    calm = _config(tmp_path, scenario, kafka.bootstrap, other_database, "calm")
    settings = load_settings(live, {})
    for topic in (settings.kafka.responses_topic, settings.kafka.feedback_topic):
        kafka.create_topic(topic, PARTITIONS)
    events = list(generate_events(scenario))
    writer = threading.Thread(target=send_to_kafka, args=(iter(events), settings.kafka))
    writer.start()
    store = StoreShard(settings.store)
    chance = random.Random(3)
    for kill in range(KILLS):
        before = _applied(store)
        with service(live, tmp_path / f"run-{kill}.log", environ=HASHED) as process:
            eventually("the service applies events", lambda: _applied(store) > before or _applied(store) >= len(events))  # noqa: B023
            time.sleep(chance.uniform(0, 0.4))
            process.kill()
            process.wait()
    writer.join()
    with service(live, tmp_path / "last.log", environ=HASHED):
        eventually("everything is applied", lambda: _applied(store) == len(events), within_s=120)
    calm_file = tmp_path / "events.jsonl"
    calm_file.write_bytes(b"\n".join(event.payload for event in events) + b"\n")
    replay = ab_monitor("replay", "--config", calm, calm_file, environ=HASHED)
    assert replay.returncode == 0, replay.stderr
    undisturbed = StoreShard(StoreSettings(url=other_database))
    assert dump(store) == dump(undisturbed)
