"""The choice of the Kafka client library, and the error if confluent-kafka is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monitor.config import KafkaSettings
from monitor.errors import UsageError
from monitor.sources.kafka_source import kafka_client_version
from tests.support.command import ab_monitor

SETTINGS = KafkaSettings("127.0.0.1:1", client="confluent")


def test_a_missing_confluent_kafka_is_reported_with_the_command_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`kafka.client = "confluent"` needs the optional dependency."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UsageError, match=r"^kafka\.client: got 'confluent', but .*`pip install '\.\[fast\]'`"):
        kafka_client_version(SETTINGS)


def test_the_command_line_does_not_import_confluent_kafka_unless_configured(tmp_path: Path) -> None:
    """With kafka-python, the optional dependency is not necessary."""
    (tmp_path / "confluent_kafka.py").write_text("raise SystemExit('imported')")
    completed = ab_monitor("--version", environ={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"})
    assert completed.returncode == 0, completed.stderr
