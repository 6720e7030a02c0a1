"""A real survey, through files and through Kafka: the published means come out."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from kafka import KafkaProducer

from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, eventually, service, status, write_config

CONFIG = """
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
[[experiments]]
name = "airbnb-recommender"
control = "text_only"
variants = { text_only = 0.5, combined = 0.5 }
metrics = ["ndcg@5", "dcg@5"]
primary = "dcg@5"
gain = "exp2"
max_grade = 5
relevant_grade = 4
"""
EXPECTED = {"text_only": 0.9257449343295309, "combined": 0.9602751219840379}


def _means(config: Path) -> dict[str, float]:
    variants = status(config)["experiments"]["airbnb-recommender"]["variants"]
    return {name: variant["metrics"]["ndcg@5"]["mean"] for name, variant in variants.items()}


@pytest.fixture
def survey(shared: Path) -> list[Path]:
    """Return the two event files of the survey."""
    return [shared / "data/airbnb/responses.jsonl", shared / "data/airbnb/feedback.jsonl"]


def _config(path: Path, store: str, bootstrap: str = "localhost:1", name: str = "survey") -> Path:
    return write_config(path / "config.toml", CONFIG, [("store", store), ("bootstrap", bootstrap), ("name", name)])


def test_a_second_replay_does_not_change_the_means(
    survey: list[Path], tmp_path: Path, store_server: RedisServer
) -> None:
    """The means equal the published means to 1e-8 after both replays."""
    store_server.client().flushall()
    config = _config(tmp_path, store_server.url)
    for _ in range(2):
        process = ab_monitor("replay", "--config", config, *survey)
        assert process.returncode == 0, process.stderr
        assert _means(config) == pytest.approx(EXPECTED, abs=1e-8)


def test_a_shuffled_and_doubled_stream_gives_the_same_means(
    survey: list[Path], tmp_path: Path, redis_server: RedisServer
) -> None:
    """The order and the repetition of events within a file do not matter."""
    redis_server.client().flushall()
    lines = [line for path in survey for line in path.read_text().splitlines()] * 2
    random.Random(5).shuffle(lines)
    shuffled = tmp_path / "shuffled.jsonl"
    shuffled.write_text("\n".join(lines) + "\n")
    config = _config(tmp_path, redis_server.url)
    assert ab_monitor("replay", "--config", config, shuffled).returncode == 0
    assert _means(config) == pytest.approx(EXPECTED, abs=1e-8)


def test_two_workers_on_kafka_give_the_same_means(
    survey: list[Path], tmp_path: Path, redis_server: RedisServer, kafka: KafkaBroker
) -> None:
    """Two workers share topics with random keys."""
    redis_server.client().flushall()
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"two.{topic}", 4)
    config = _config(tmp_path, redis_server.url, kafka.bootstrap, "two")
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    chance = random.Random(7)
    with service(config, tmp_path / "a.log"), service(config, tmp_path / "b.log"):
        for path, topic in zip(survey, ("responses", "feedback"), strict=True):
            for line in path.read_bytes().splitlines():
                producer.send(f"two.{topic}", line, key=chance.randbytes(4))
        producer.flush()
        producer.close()

        def complete() -> bool:
            variants = status(config)["experiments"]["airbnb-recommender"]["variants"]
            return bool(sum(variant["feedback"].get("rating", 0) for variant in variants.values()) == 450)

        eventually("450 ratings are applied", complete)
    assert _means(config) == pytest.approx(EXPECTED, abs=1e-8)
