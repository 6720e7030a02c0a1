"""The example of a producer (docs/producer.md): its events on a real broker, and the numbers that follow from them."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.support.command import ab_monitor, eventually, get, service, status
from tests.unit.events.test_json_schemas import VALIDATORS

ROOT = Path(__file__).parents[2]
TOPICS = {"response": "chatbot.responses", "feedback": "student.feedback"}


def _read_records(kafka: KafkaBroker, topic: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return (key, event) of the first records of a topic."""
    consumer = KafkaConsumer(
        topic, bootstrap_servers=kafka.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=60_000
    )
    records = [next(consumer) for _ in range(count)]
    consumer.close()
    return [(record.key.decode(), json.loads(record.value)) for record in records]


@pytest.fixture
def kafka() -> Iterator[KafkaBroker]:
    """Yield a broker without other topics: the example writes to the default ones."""
    with KafkaBroker() as broker:
        yield broker


def test_the_events_of_the_example_lead_to_correct_numbers(tmp_path: Path, kafka: KafkaBroker) -> None:
    """The example runs unchanged. Its events fit the schemas; the rating that is sent twice counts once."""
    for topic in (*TOPICS.values(), "ab-monitor.dead-letter"):
        kafka.create_topic(topic, 4)
    subprocess.run(
        [sys.executable, ROOT / "examples/producer.py"],
        env={**os.environ, "KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap},
        check=True,
        timeout=120,
    )
    ((key, response),) = _read_records(kafka, TOPICS["response"], 1)
    VALIDATORS["response"].validate(response)
    ratings = _read_records(kafka, TOPICS["feedback"], 2)
    assert ratings[0] == ratings[1]
    VALIDATORS["feedback"].validate(ratings[0][1])
    assert key == response["user_id"] == ratings[0][0]

    config, port = tmp_path / "ab-monitor.toml", free_port()
    config.write_text(ab_monitor("simulate", "--print-config").stdout)
    environ = {
        "ABMONITOR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "ABMONITOR_STORE_URL": f"embedded:{tmp_path}/store",
        "ABMONITOR_HTTP_PORT": str(port),
    }
    with service(config, tmp_path / "log", environ=environ):
        eventually("all records are counted", lambda: _outcomes(port) == {"applied": 2, "duplicate": 1})
        variants = status(config, environ)["experiments"]["ranker-v2"]["variants"]
    treatment = variants["treatment"]
    assert (variants["control"]["responses"], treatment["responses"], treatment["rated_responses"]) == (0, 1, 1)
    assert treatment["feedback"] == {"rating": 1}
    assert treatment["metrics"]["dcg@5"]["mean"] == pytest.approx(4 / math.log2(3))


def _outcomes(port: int) -> dict[str, int]:
    """Return the number of processed events by outcome, from the metrics of the service."""
    lines = get(f"http://127.0.0.1:{port}/metrics")[1].splitlines()
    counts: dict[str, int] = {}
    for line in lines:
        if line.startswith("abmonitor_events_total{"):
            outcome = line.partition('outcome="')[2].partition('"')[0]
            counts[outcome] = counts.get(outcome, 0) + int(float(line.rpartition(" ")[2]))
    return {outcome: count for outcome, count in counts.items() if count}
