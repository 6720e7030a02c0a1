"""The tutorial: its commands, in order, on a real broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.servers.kafka import KafkaBroker
from tests.support.command import eventually, service, status

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/tutorial.md").read_text()
RUN = "ab-monitor run --config ab-monitor.toml"


def _run_block(block: str, directory: Path, environ: Mapping[str, str]) -> str:
    """Run the commands of a block in a shell; return their standard output."""
    script = f'set -e\nab-monitor() {{ {sys.executable} -m monitor "$@"; }}\n{block}'
    process = subprocess.run(
        ["bash", "-c", script],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "120", **environ},
    )
    assert process.returncode == 0, f"{block}\n{process.stderr}"
    return process.stdout


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
        _run_block(block, tmp_path, environ)
    config = tmp_path / "ab-monitor.toml"
    with service(config, tmp_path / "log", environ=environ):
        eventually(
            "all responses are stored",
            lambda: _stored_responses(config, environ) == 60_000,
            every_s=1,
        )
        output = _run_block(blocks[index + 1], tmp_path, environ)
    assert "treatment – Ship: dcg@5 improved by " in output
    assert "<html" in (tmp_path / "report.html").read_text()
    outputs = [_run_block(block, tmp_path, environ) for block in blocks[index + 2 :]]
    assert "dcg@5" in outputs[0]
    assert len(outputs) == 3
