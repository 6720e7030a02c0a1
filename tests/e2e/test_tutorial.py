"""The tutorial: its commands, in order, on a real broker."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually, run_commands, service, status

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/tutorial.md").read_text()
RUN = "ab-monitor run --config ab-monitor.toml"


def _stored_responses(config: Path, environ: Mapping[str, str]) -> int:
    variants = status(config, environ)["experiments"]["ranker-v2"]["variants"]
    return sum(variant["responses"] for variant in variants.values())


def test_the_commands_of_the_tutorial_lead_to_a_verdict(tmp_path: Path, kafka: KafkaBroker) -> None:
    """From the configuration to `ship`, then to events of the reader's own; the environment replaces addresses only."""
    environ = {
        "ABMONITOR_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap,
        "ABMONITOR_KAFKA_RESPONSES_TOPIC": "tutorial.responses",
        "ABMONITOR_KAFKA_FEEDBACK_TOPIC": "tutorial.feedback",
        "ABMONITOR_KAFKA_DEAD_LETTER_TOPIC": "tutorial.dead",
        "ABMONITOR_STORE_URL": f"embedded:{tmp_path}/store",
        "ABMONITOR_HTTP_PORT": "0",
    }
    for topic in ("tutorial.responses", "tutorial.feedback", "tutorial.dead"):
        kafka.create_topic(topic, 4)
    messages = re.findall(r"```json\n(.*?)```", TEXT, re.DOTALL)
    assert len(messages) == 2
    (tmp_path / "my-events.jsonl").write_text("".join(message.replace("\n", " ") + "\n" for message in messages))
    blocks = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL)
    index = blocks.index(RUN + "\n")
    for block in blocks[:index]:
        run_commands(block, tmp_path, environ)
    config = tmp_path / "ab-monitor.toml"
    with service(config, tmp_path / "log", environ=environ):
        eventually(
            "all responses are stored",
            lambda: _stored_responses(config, environ) == 60_000,
            every_s=1,
        )
        output = run_commands(blocks[index + 1], tmp_path, environ)
    assert "treatment – Ship: +" in output
    assert "<html" in (tmp_path / "report.html").read_text()
    outputs = [run_commands(block, tmp_path, environ) for block in blocks[index + 2 :]]
    assert "treatment: 1 of 1 response rated" in outputs[0]
    assert len(outputs) == 3
