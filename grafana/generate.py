"""Write the dashboards that the code describes, or check that the files are what it makes.

python -m grafana.generate            write grafana/dashboards/*.json
python -m grafana.generate --check    exit with 1 if a file differs
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from grafana import experiment, experiments, pipeline
from grafana.panels import JSON

DASHBOARDS = Path(__file__).parent / "dashboards"


def boards() -> dict[str, JSON]:
    """Return every board by the name of its file."""
    return {
        "experiments.json": experiments.board(),
        "experiment.json": experiment.board(),
        "pipeline.json": pipeline.board(),
    }


def rendered(board: JSON) -> str:
    """Return the board as the text of its file."""
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def outdated() -> list[str]:
    """Return the names of the files that are missing or differ from what the code makes."""
    stale = []
    for name, board in boards().items():
        path = DASHBOARDS / name
        if not path.exists() or path.read_text(encoding="utf-8") != rendered(board):
            stale.append(name)
    return stale


def main(arguments: list[str]) -> int:
    """Write or check the files; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m grafana.generate", description="Generate the dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    if parser.parse_args(arguments).check:
        stale = outdated()
        for name in stale:
            sys.stderr.write(f"{name} is not what the code makes: run python -m grafana.generate\n")
        return 1 if stale else 0
    DASHBOARDS.mkdir(exist_ok=True)
    for name, board in boards().items():
        (DASHBOARDS / name).write_text(rendered(board), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
