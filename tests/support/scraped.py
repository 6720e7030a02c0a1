"""A running monitor and the Prometheus that scrapes it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from tests.servers.process import Process
from tests.servers.prometheus import PrometheusServer, scraping

ROOT = Path(__file__).parents[2]
ALWAYS = {
    "name": "always",
    "rules": [
        {
            "alert": "AbMonitorAlways",
            "expr": "max by (job, experiment) (abmonitor_experiment_info)",
            "labels": {"severity": "info", "team": "product"},
        }
    ],
}
"""Something for the panels that count alerts."""


@contextmanager
def scraped(
    command: list[str], port: int, directory: Path, rules: Sequence[Mapping[str, Any]] = (ALWAYS,)
) -> Iterator[PrometheusServer]:
    """Run a command of the monitor, and a Prometheus that scrapes both of its pages every second and has `rules`."""
    monitor = Process([sys.executable, "-m", "monitor", *command], directory, {"PYTHONPATH": str(ROOT)})

    def ready() -> bool:
        try:
            with urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=2):
                return True
        except (URLError, OSError):
            return False

    try:
        monitor.start(ready)
        config = scraping([f"127.0.0.1:{port}/{page}" for page in ("metrics", "metrics/experiments")])
        groups = directory / "rules.yml"
        # JSON is YAML.
        groups.write_text(json.dumps({"groups": list(rules)}))
        config["global"]["evaluation_interval"] = "1s"
        with PrometheusServer({**config, "rule_files": [str(groups)]}) as prometheus:
            yield prometheus
    finally:
        monitor.stop()
