"""Simulated students whose answers become worse: two replicas send one message to a webhook."""

from __future__ import annotations

from pathlib import Path

from standardwebhooks import Webhook

from monitor.cli.simulate import send_to_kafka
from monitor.clock import DAY_MS
from monitor.config import load_settings
from monitor.simulation.simulator import Scenario, generate_events
from monitor.state import Outbox, ShardedStore
from tests.servers.kafka import KafkaBroker
from tests.servers.message_receiver import MessageReceiver
from tests.servers.redis import RedisServer
from tests.support.command import EXPERIMENT_TABLE, SERVICE_SECTIONS, ab_monitor, eventually, service, write_config

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
CONFIG = (
    SERVICE_SECTIONS
    + """public_url = "https://ab.example.org"
[[notify]]
name = "hook"
webhook = "http://<receiver>/hook"
"""
    + EXPERIMENT_TABLE.replace("NAME", "ranker-v2")
)
SCENARIO = Scenario(responses=24_000, students=8_000, days=14, effects={"treatment": -0.5})


def test_two_replicas_send_one_message_about_harm(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """The first days send nothing. The message has reason, effect, interval, students and link, and is signed."""
    redis_server.client().flushall()
    environ = {"ABMONITOR_NOTIFY_0_SECRET": SECRET}
    with MessageReceiver() as receiver:
        values = [
            ("name", "notified"),
            ("bootstrap", kafka.bootstrap),
            ("store", redis_server.url),
            ("port", "0"),
            ("receiver", receiver.address),
        ]
        config = write_config(tmp_path / "config.toml", CONFIG, values)
        settings = load_settings(config, environ)
        for topic in (settings.kafka.responses_topic, settings.kafka.feedback_topic):
            kafka.create_topic(topic, 2)
        events = list(generate_events(SCENARIO))
        early = [event for event in events if event.arrival_ms < events[0].arrival_ms + 2 * DAY_MS]
        send_to_kafka(iter(early), settings.kafka)
        logs = [tmp_path / f"replica-{replica}.log" for replica in range(2)]
        module = "tests.support.quick_monitor"
        with (
            service(config, logs[0], environ=environ, module=module),
            service(config, logs[1], environ=environ, module=module),
        ):
            outbox = Outbox(ShardedStore(settings.store))
            eventually("the first states are recorded", lambda: outbox.read_memory()[0] > 0, within_s=120)
            assert receiver.requests == []
            send_to_kafka(iter(events[len(early) :]), settings.kafka)
            eventually("the message arrives", receiver.accepted, within_s=180)
            eventually("the outbox is empty", lambda: outbox.read_deliveries() == [])
        (request,) = receiver.requests
        Webhook(SECRET).verify(request.body, request.headers)
        body = request.json()
        assert body["type"] == "experiment.harm"
        assert body["data"]["link"] == "https://ab.example.org/experiments/ranker-v2"
        (result,) = body["data"]["results"]
        assert result["upper"] < 0
        assert min(result["students"].values()) > 100
        assert body["data"]["reasons"]
        tested = ab_monitor("check", "--config", config, "--notify", environ=environ)
        assert "notify         ok: hook, test message sent" in tested.stdout, tested.stderr
        assert receiver.requests[-1].json()["type"] == "experiment.test"
        for text in (*(log.read_text() for log in logs), tested.stdout, tested.stderr):
            assert SECRET not in text
            assert receiver.address not in text
