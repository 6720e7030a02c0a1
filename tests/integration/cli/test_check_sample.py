"""`ab-monitor check --sample` on a real broker: the newest records of each partition, without a group."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient, KafkaProducer

from tests.servers.kafka import KafkaBroker
from tests.support.command import ab_monitor
from tests.support.schema_registry import SchemaRegistryServer

NOW_S = 1_760_000_000
CONFIG = """
[store]
url = "embedded:{folder}/store"
[kafka]
bootstrap_servers = "{bootstrap}"
dead_letter_topic = "{name}.d"
group_id = "{name}.group"
[[experiments]]
name = "ranker-v2"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
[[kafka.sources]]
topics = ["{name}.answers"]
event = "response"
when = {{ type = "answer" }}
[kafka.sources.fields]
response_id = "id"
timestamp = {{ from = "at", as = "s" }}
experiment = {{ constant = "ranker-v2" }}
variant = "{variant}"
user_id = "$key"
items = "hits"
[[kafka.sources]]
topics = ["{name}.clicks"]
event = "feedback"
[kafka.sources.fields]
feedback_id = "id"
response_id = "answer"
timestamp = {{ from = "at", as = "s" }}
kind = {{ constant = "rating" }}
user_id = "$key"
"""


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> str:
    """Return the prefix of topics with 40 users' answers, clicks, records of another type, and a tombstone."""
    name = f"sample-{random.randrange(1 << 40):x}"
    for topic, partitions in (("answers", 2), ("clicks", 2), ("d", 1)):
        kafka.create_topic(f"{name}.{topic}", partitions)
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap)
    for number in range(1, 41):
        answer: dict[str, Any] = {"type": "answer", "id": number, "at": NOW_S + number, "arm": "control", "hits": ["v"]}
        click = {"id": f"f{number}", "answer": number, "at": NOW_S + number + 60}
        other = {"type": "ping", "text": "secret words"}
        user = f"u{number}".encode()
        for topic, message in (("answers", other), ("answers", answer), ("clicks", click)):
            producer.send(f"{name}.{topic}", json.dumps(message).encode(), user)
    producer.send(f"{name}.clicks", None, b"u1")
    producer.close()
    return name


def _check(folder: Path, kafka: KafkaBroker, topics: str, variant: str, more: str = "") -> tuple[int, list[str], str]:
    config = CONFIG.format(folder=folder, bootstrap=kafka.bootstrap, name=topics, variant=variant) + more
    (folder / "c.toml").write_text(config)
    result = ab_monitor("check", "--config", folder / "c.toml", "--sample", "1000", environ={"COLUMNS": "200"})
    return result.returncode, [" ".join(line.split()) for line in result.stdout.splitlines()], result.stderr


def test_a_mapping_that_works_is_proven_by_matched_feedback(kafka: KafkaBroker, topics: str, tmp_path: Path) -> None:
    """The group does not exist afterwards: nothing was joined or committed."""
    code, lines, _ = _check(tmp_path, kafka, topics, "arm")
    assert code == 0
    counts = "80: 40 with events, 40 ignored, 0 rejected (0.0 % of those not ignored; the limit is 50.0 %)"
    assert f"records {counts}" in lines
    assert "ignored 40 × filter on type" in lines
    assert "ignored 1 × no value (tombstone)" in lines
    assert "join 40 of 40 feedback events (100.0 %) find their response in the sample" in lines
    assert any(line.startswith("partitions co-partitioned: 40 of 40 matched feedback events") for line in lines)
    assert "ranker-v2 control 40 100.0 % declared" in lines
    assert not any("secret" in line for line in lines)
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap) as admin:
        assert f"{topics}.group" not in {group["group_id"] for group in admin.list_groups()}


def test_a_wrong_path_ends_with_code_4_and_a_suggestion(kafka: KafkaBroker, topics: str, tmp_path: Path) -> None:
    """The rejected records are described by path and shape."""
    code, lines, error = _check(tmp_path, kafka, topics, "variant")
    assert code == 4
    assert "missing_field 40 variant no value variant: no value at variant" in lines
    assert 'variant = "arm"' in lines
    assert "100.0 % of kafka.sources[0], more than limits.max_rejected_share = 0.5" in error.replace("\u202f", " ")


def test_a_registry_that_does_not_answer_is_reported_without_a_sample(
    kafka: KafkaBroker, topics: str, tmp_path: Path
) -> None:
    """A check without a sample connects to the registry, too."""
    code, lines, error = _check(tmp_path, kafka, topics, "arm", '[schema_registry]\nurl = "http://127.0.0.1:1"\n')
    assert code == 3
    assert "the schema registry at http://127.0.0.1:1 cannot be used" in error
    assert not any(line.startswith("records") for line in lines)
    with SchemaRegistryServer() as registry:
        code, lines, _ = _check(tmp_path, kafka, topics, "arm", f'[schema_registry]\nurl = "{registry.url}"\n')
    assert code == 0
    assert "registry ok: reachable" in lines
