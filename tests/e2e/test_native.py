"""The compiled modules and their sources write the same bytes, and read the same from them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.native import MODULES
from monitor.engine import accumulator
from monitor.simulation.simulator import default_config, generate, w1
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]


_EVERYTHING = """
novelty = true
items = "30d"
starts_at = 2026-11-04T00:00:00Z
pre_period = "2d"
guardrails = [
    { metric = "latency_ms", bad = "up", margin = 100 },
    { metric = "feedback:escalated", bad = "up", margin = 0.01 },
]

"""


@pytest.mark.parametrize("more", ["", _EVERYTHING], ids=["little", "everything"])
@pytest.mark.skipif(accumulator.__file__.endswith(".py"), reason="nothing is compiled here: no C compiler")
def test_compiled_or_not(tmp_path: Path, redis_server: RedisServer, more: str) -> None:
    """Every row and every record from the same events, and all that is said of them, to the last digit."""
    plain = tmp_path / "plain"
    shutil.copytree(ROOT / "monitor", plain / "monitor", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    scenario = replace(w1(), responses=3_000, students=200)
    config, events = tmp_path / "config.toml", tmp_path / "events.jsonl"
    head, grades = default_config(scenario).split("[experiments.grades]")
    config.write_text(f"{head}{more}[experiments.grades]{grades}")
    events.write_bytes(b"\n".join(event.payload for event in generate(scenario)) + b"\n")
    stores, said = [], []
    for place in (ROOT, plain):
        redis_server.client().flushall()
        for command in (
            ["replay", "--config", str(config), str(events)],
            ["status", "--config", str(config), "--json"],
        ):
            done = subprocess.run(
                [sys.executable, "-P", "-m", "monitor", *command],
                env={
                    **os.environ,
                    "PYTHONPATH": str(place),
                    "ABMONITOR_STORE_URL": redis_server.url,
                    "ABMONITOR_STORE_USER_HASH_KEY": "a key for tests",
                },
                cwd=tmp_path,
                capture_output=True,
                check=False,
            )
            assert done.returncode == 0, done.stderr.decode()
        said.append(json.loads(done.stdout))
        client = redis_server.client()
        names = sorted(client.scan_iter(b"abm:{0}:0:[rsaucbt]*"))
        values = {name: client.get(name) for name in names if client.type(name) == b"string"}
        # Rows begin with their version, which counts from a random number.
        stores.append(
            {
                name: value[4:] if name.startswith((b"abm:{0}:0:r", b"abm:{0}:0:s")) else value
                for name, value in values.items()
            }
        )
    assert len(stores[0]) > 3_000
    assert stores[0] == stores[1]
    assert said[0] == said[1]


def test_what_is_to_be_compiled_is() -> None:
    """All of it or nothing."""
    compiled = [bool(list((ROOT / "monitor" / module).parent.glob(f"{Path(module).stem}.*.so"))) for module in MODULES]
    assert all(compiled) or not any(compiled)
