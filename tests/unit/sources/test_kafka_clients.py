"""What is said where the second client of Kafka is not installed, or does not take the settings."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from monitor.config import KafkaSettings
from monitor.errors import UsageError
from monitor.sources.kafka_source import client_version
from tests.support.command import ab_monitor

SETTINGS = KafkaSettings("127.0.0.1:1", client="confluent")


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that brings it."""
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(UsageError, match=r"^kafka\.client = \"confluent\" needs .*: pip install '\.\[fast\]'"):
        client_version(SETTINGS)


def test_the_other_client_needs_no_extra(tmp_path: Path) -> None:
    """Nothing imports it before it is asked for."""
    (tmp_path / "confluent_kafka.py").write_text("raise SystemExit('imported')")
    done = ab_monitor("--version", environ={"PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[3]}"})
    assert done.returncode == 0, done.stderr
