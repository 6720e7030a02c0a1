"""Draw the pictures of the boards in docs/ from a demo that a real Prometheus scrapes: a simulated week in six minutes.

python -m tests.previews
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import yaml

from grafana.preview.rendering import preview
from tests.servers.process import free_port
from tests.support.scraped import scraped

ROOT = Path(__file__).parents[1]
LASTS_S = 360


def main() -> None:
    """Write docs/board-*.png at the end of the week."""
    port = free_port()
    command = ["demo", "--speed", str(7 * 86_400 / LASTS_S), "--stay", "--port", str(port)]
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "rules" / "ab-monitor.yml").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as directory, scraped(command, port, Path(directory), rules["groups"]) as server:
        time.sleep(LASTS_S)
        empty = preview(server.url, time.time(), LASTS_S, 1, ROOT / "docs")
    sys.stdout.write(f"without data: {empty}\n")


if __name__ == "__main__":
    main()
