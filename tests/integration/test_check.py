"""What `ab-monitor check` says of a cluster."""

from __future__ import annotations

import random

from monitor.config import KafkaSettings
from monitor.ingest.connection import inspect_cluster
from tests.servers.kafka import KafkaBroker


def test_what_is_unsafe_about_topics_is_said(kafka: KafkaBroker) -> None:
    """Missing ones, unequal ones, and dead letters that could not be kept."""
    name = f"check-{random.randrange(1 << 40):x}"
    settings = KafkaSettings(kafka.bootstrap, f"{name}.r", f"{name}.f", f"{name}.d")
    said = " ".join(problem or "" for _, problem in inspect_cluster(settings))
    assert said.count("does not exist") == 3
    kafka.create_topic(settings.responses_topic, 2, {"max.message.bytes": "20000000"})
    kafka.create_topic(settings.feedback_topic, 3)
    kafka.create_topic(settings.dead_letter_topic, 1)
    said = " ".join(problem or "" for _, problem in inspect_cluster(settings))
    assert "the same number of partitions" in said
    assert f"max.message.bytes of {settings.dead_letter_topic} is less than 20000000" in said
