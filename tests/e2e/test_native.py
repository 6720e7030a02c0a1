"""End-to-end tests of the compiled package: compiled and interpreted modules have the same results."""

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
from monitor.simulation.simulator import benchmark_scenario, generate_events, render_example_config
from tests.servers.redis import RedisServer

ROOT = Path(__file__).parents[2]

_ALL_FEATURES = """
novelty = true
items = "30d"
starts_at = 2026-11-04T00:00:00Z
pre_period = "2d"
guardrails = [
    { metric = "latency_ms", harmful_direction = "up", margin = 100 },
    { metric = "feedback:escalated", harmful_direction = "up", margin = 0.01 },
]

"""


@pytest.mark.parametrize("more_settings", ["", _ALL_FEATURES], ids=["few features", "all features"])
@pytest.mark.skipif(accumulator.__file__.endswith(".py"), reason="monitor/engine is not compiled: no C compiler")
def test_compiled_and_interpreted_modules_store_and_report_the_same(
    tmp_path: Path, redis_server: RedisServer, more_settings: str
) -> None:
    """From the same events, every stored row, every record and the whole status are equal, to the last digit."""
    interpreted_root = tmp_path / "interpreted"
    shutil.copytree(
        ROOT / "monitor", interpreted_root / "monitor", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )
    scenario = replace(benchmark_scenario(), responses=3_000, students=200)
    config, events = tmp_path / "config.toml", tmp_path / "events.jsonl"
    head, grades = render_example_config(scenario).split("[experiments.grades]")
    config.write_text(f"{head}{more_settings}[experiments.grades]{grades}")
    events.write_bytes(b"\n".join(event.payload for event in generate_events(scenario)) + b"\n")
    stores, statuses = [], []
    for root in (ROOT, interpreted_root):
        redis_server.client().flushall()
        for command in (
            ["replay", "--config", str(config), str(events)],
            ["status", "--config", str(config), "--json"],
        ):
            process = subprocess.run(
                [sys.executable, "-P", "-m", "monitor", *command],
                env={
                    **os.environ,
                    "PYTHONPATH": str(root),
                    "ABMONITOR_STORE_URL": redis_server.url,
                    "ABMONITOR_STORE_USER_HASH_KEY": "a key for tests",
                },
                cwd=tmp_path,
                capture_output=True,
                check=False,
            )
            assert process.returncode == 0, process.stderr.decode()
        statuses.append(json.loads(process.stdout))
        client = redis_server.client()
        keys = sorted(client.scan_iter(b"abm:{0}:0:[rsaucbt]*"))
        values = {key: client.get(key) for key in keys if client.type(key) == b"string"}
        # A row begins with its version, and the first version is random.
        stores.append(
            {
                key: value[4:] if key.startswith((b"abm:{0}:0:r", b"abm:{0}:0:s")) else value
                for key, value in values.items()
            }
        )
    assert len(stores[0]) > 3_000
    assert stores[0] == stores[1]
    assert statuses[0] == statuses[1]


def test_all_or_none_of_the_modules_are_compiled() -> None:
    """A mixture would use compiled modules that do not fit the interpreted modules."""
    is_compiled = [
        bool(list((ROOT / "monitor" / module).parent.glob(f"{Path(module).stem}.*.so"))) for module in MODULES
    ]
    assert all(is_compiled) or not any(is_compiled)
