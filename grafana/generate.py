"""Write the dashboards as JSON files, or check that the files are up to date.

python -m grafana.generate            write grafana/dashboards/*.json
python -m grafana.generate --check    exit with 1 if a file differs
python -m grafana.generate --ab-monitor URL    write them with the address of your AB Monitor, for links to its pages
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana import experiment, experiments, pipeline
from grafana.panels import JSON

DASHBOARDS = Path(__file__).parent / "dashboards"
DEFAULT_MONITOR_URL = "http://localhost:9464"


def build_boards(monitor_url: str = DEFAULT_MONITOR_URL) -> dict[str, JSON]:
    """Return all boards: file name → board; `monitor_url` is the address of AB Monitor's pages."""
    return {
        "experiments.json": experiments.build_experiments_board(monitor_url),
        "experiment.json": experiment.build_experiment_board(monitor_url),
        "pipeline.json": pipeline.build_pipeline_board(monitor_url),
    }


def render_board(board: JSON) -> str:
    """Return a board as JSON text."""
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def find_outdated_files() -> list[str]:
    """Return the names of files that are missing or differ from the generated boards."""
    stale = []
    for name, board in build_boards().items():
        path = DASHBOARDS / name
        if not path.exists() or path.read_text(encoding="utf-8") != render_board(board):
            stale.append(name)
    return stale


def main(arguments: list[str]) -> int:
    """Write or check the files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grafana.generate", description="Generate the dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    parser.add_argument(
        "--ab-monitor", default=DEFAULT_MONITOR_URL, metavar="URL", help="address of AB Monitor's pages"
    )
    options = parser.parse_args(arguments)
    if options.check:
        stale = find_outdated_files()
        for name in stale:
            sys.stderr.write(f"{name} is outdated: run python -m grafana.generate\n")
        return 1 if stale else 0
    DASHBOARDS.mkdir(exist_ok=True)
    for name, board in build_boards(options.ab_monitor.rstrip("/")).items():
        (DASHBOARDS / name).write_text(render_board(board), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
