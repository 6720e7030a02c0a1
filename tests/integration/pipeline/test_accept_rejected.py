"""The way past rejected records that are in the topics already: `ab-monitor run --accept-rejected`."""

from __future__ import annotations

import random
from pathlib import Path

from kafka import KafkaProducer

from monitor.cli.dead_letters import read_dead_letters
from monitor.config import load_settings
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, eventually, service, status, write_config

_CONFIG = """
[kafka]
bootstrap_servers = "<bootstrap>"
responses_topic = "<name>.responses"
feedback_topic = "<name>.feedback"
dead_letter_topic = "<name>.dead"
group_id = "<name>"
[store]
url = "<store>"
[http]
port = 0
[limits]
max_consecutive_rejected = 20
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""
_RESPONSE = (
    '{"response_id": "r-%d", "timestamp": "2026-11-01T10:00:00Z", "experiment": "ranker", "variant": "control", '
    '"user_id": "s", "items": []}'
)


class _Topic:
    """Topics of a service, and a producer of responses."""

    def __init__(self, broker: KafkaBroker, store: RedisServer, directory: Path) -> None:
        store.client().flushall()
        name = f"accept-{random.randrange(1 << 40):x}"
        for topic in ("responses", "feedback", "dead"):
            broker.create_topic(f"{name}.{topic}", 1)
        values = [("bootstrap", broker.bootstrap), ("name", name), ("store", store.url)]
        self.config = write_config(directory / "config.toml", _CONFIG, values)
        self._topic = f"{name}.responses"
        self._producer = KafkaProducer(bootstrap_servers=broker.bootstrap)

    def send(self, *payloads: str) -> None:
        """Write messages into the topic of responses."""
        for payload in payloads:
            self._producer.send(self._topic, payload.encode())
        self._producer.flush()

    def response_count(self) -> int:
        """Return the number of responses that the store has."""
        count: int = status(self.config)["experiments"]["ranker"]["variants"]["control"]["responses"]
        return count

    def dead_letter_count(self) -> int:
        """Return the number of records in the dead-letter topic."""
        return sum(1 for _ in read_dead_letters(load_settings(self.config, {}).kafka))


def test_a_backlog_of_rejected_records_is_passed_once_and_the_limits_then_apply_again(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """The message that ends the service names the command. Valid records behind the rejected ones are counted."""
    topic = _Topic(kafka, redis_server, tmp_path)
    topic.send(*["nonsense"] * 50, *[_RESPONSE % number for number in range(5)])
    stopped = ab_monitor("run", "--config", topic.config)
    assert stopped.returncode == 4
    command = f"`ab-monitor run --config {topic.config} --accept-rejected`"
    assert f"start once with {command}" in stopped.stderr
    assert topic.response_count() == topic.dead_letter_count() == 0
    log = tmp_path / "log"
    with service(topic.config, log, "--accept-rejected") as process:
        eventually("the backlog is consumed", lambda: "backlog consumed" in log.read_text())
        assert topic.response_count() == 5
        assert topic.dead_letter_count() == 50
        # From zero counts: as many rejected records as the limit allows are no reason to stop.
        topic.send(*["nonsense"] * 20, _RESPONSE % 5)
        eventually("the next records are read", lambda: topic.response_count() == 6)
        topic.send(*["nonsense"] * 21)
        assert process.wait(60) == 4
    health = ab_monitor("status", "--health", "--config", topic.config).stdout
    assert "starts of workers: 2" in health
    for text in (health, ab_monitor("status", "--config", topic.config).stdout):
        assert "with exit code 4: 21 consecutive events were rejected" in " ".join(text.split())
        assert command in " ".join(text.split())


def test_a_variable_accepts_the_backlog_in_a_container_and_other_commands_ignore_the_variable(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """All commands of a container have the same environment."""
    topic = _Topic(kafka, redis_server, tmp_path)
    topic.send(*["nonsense"] * 50, _RESPONSE % 1)
    wrong = ab_monitor("run", "--config", topic.config, environ={"ABMONITOR_ACCEPT_REJECTED": "maybe"})
    assert wrong.returncode == 2
    assert 'ABMONITOR_ACCEPT_REJECTED: got "maybe", expected 1' in wrong.stderr
    environ = {"ABMONITOR_ACCEPT_REJECTED": "1"}
    log = tmp_path / "log"
    with service(topic.config, log, environ=environ):
        eventually("the backlog is consumed", lambda: "backlog consumed" in log.read_text())
        assert status(topic.config, environ)["experiments"]["ranker"]["variants"]["control"]["responses"] == 1
