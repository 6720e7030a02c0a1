"""Write those manifests that follow from other files, or check that they are what it makes.

python -m deploy.kubernetes.generate            write the rules, boards and configuration of deploy/kubernetes/base
python -m deploy.kubernetes.generate --check    exit with 1 if a file differs
python -m deploy.kubernetes.generate --grafana URL --runbook URL    write them with your own addresses
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Final

from deploy.alerting import generate as alerting
from deploy.alerting.rules import JSON, Addresses
from grafana.generate import build_boards

BASE: Final = Path(__file__).parent / "base"
CONFIG: Final = Path(__file__).parents[1] / "config.toml"
HEADER: Final = "# Made by python -m deploy.kubernetes.generate: change {origin}, not this file.\n"
LABELS: Final = {"app.kubernetes.io/name": "ab-monitor"}
IN_A_CLUSTER: Final = {
    "# The configuration of the compose deployment.": "# The configuration of the example in deploy/kubernetes.",
    '"kafka:19092"': '"kafka:9092"',
    " # inside the container; compose.yaml publishes it on the loopback address only": " # inside the pod",
}
"""What the configuration says of the compose deployment → of services of these names in the monitor's namespace."""


def prometheus_rule(addresses: Addresses) -> JSON:
    """Return the rules and alerts as the Prometheus operator reads them."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "ab-monitor", "labels": LABELS},
        "spec": alerting.content(addresses),
    }


def board_map(file: str, board: JSON) -> JSON:
    """Return a ConfigMap with one board, labelled as the dashboard sidecar of Grafana's charts looks for it.

    One for each board, on one line: `kubectl apply` notes what it applied in an annotation of 256 KiB at most.
    """
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"ab-monitor-board-{Path(file).stem}", "labels": {**LABELS, "grafana_dashboard": "1"}},
        "data": {f"ab-monitor-{file}": json.dumps(board, ensure_ascii=False, separators=(",", ":"))},
    }


def config() -> str:
    """Return the compose deployment's configuration with the addresses of a cluster."""
    text = CONFIG.read_text(encoding="utf-8")
    for there, here in IN_A_CLUSTER.items():
        if text.count(there) != 1:
            raise ValueError(f"{CONFIG.name}: {there!r} stands there {text.count(there)} times, expected once")
        text = text.replace(there, here)
    return text


def rendered(addresses: Addresses) -> dict[str, str]:
    """Return the text of every generated file by its place under `base`."""
    boards = build_boards(addresses.runbook.removesuffix("/runbook"))
    maps = {f"boards/{Path(file).stem}.yaml": board_map(file, board) for file, board in boards.items()}
    return {
        "prometheusrule.yaml": HEADER.format(origin="deploy/alerting/") + alerting.dumped(prometheus_rule(addresses)),
        "config.toml": HEADER.format(origin="deploy/config.toml") + config(),
        **{name: HEADER.format(origin="grafana/*.py") + alerting.dumped(made) for name, made in maps.items()},
    }


def outdated(addresses: Addresses) -> list[str]:
    """Return the places of the files that are missing or differ from what the code makes."""

    def same(path: Path, text: str) -> bool:
        return path.exists() and path.read_text(encoding="utf-8") == text

    return [name for name, text in rendered(addresses).items() if not same(BASE / name, text)]


def main(arguments: list[str]) -> int:
    """Write or check the files; returns the exit code."""
    default = Addresses()
    parser = argparse.ArgumentParser(prog="python -m deploy.kubernetes.generate", description="Generate manifests.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    parser.add_argument("--grafana", default=default.grafana, help="address of Grafana")
    parser.add_argument("--runbook", default=default.runbook, help="address of the page /runbook of AB Monitor")
    options = parser.parse_args(arguments)
    addresses = Addresses(options.grafana.rstrip("/"), options.runbook)
    if options.check:
        stale = outdated(addresses)
        for name in stale:
            sys.stderr.write(f"{name} is not what the code makes: run python -m deploy.kubernetes.generate\n")
        return 1 if stale else 0
    for name, text in rendered(addresses).items():
        (BASE / name).parent.mkdir(exist_ok=True)
        (BASE / name).write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
