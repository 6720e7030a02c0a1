"""`ab-monitor audit`: the findings as a table or as JSON."""

from __future__ import annotations

import argparse
from collections import Counter
from contextlib import closing
from dataclasses import asdict
from typing import Any, Final

from rich.console import Console

from monitor.config import Settings
from monitor.export import print_json, simple_table
from monitor.state import Findings, audit, live_store, served

_SHOWN: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--experiment", metavar="E", help="only this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Audit the store; return 0 if all agrees, 1 if something differs."""
    with served(settings.store, existing=True) as reached, closing(live_store(reached)) as store:
        findings = audit(store, settings)
    if arguments.json:
        print_json(_json(findings))
    else:
        _show(findings)
    return 1 if findings.differences else 0


def _json(findings: Findings) -> dict[str, Any]:
    return {
        "rows": findings.rows,
        "students": findings.students,
        "checked": sum(findings.checked.values()),
        "unchecked": findings.unchecked,
        "differences": [asdict(each) for each in findings.differences],
    }


def _show(findings: Findings) -> None:
    console = Console()
    wrong = Counter((each.experiment, each.variant) for each in findings.differences)
    table = simple_table("experiment", "variant", "records", "integers compared", left=("variant", "records"))
    for (experiment, variant, kind), count in sorted(findings.checked.items()):
        table.add_row(experiment, variant, kind, f"{count:,}")
    console.print(table)
    for each in findings.differences[:_SHOWN]:
        line = f"{each.experiment} / {each.variant}: {each.what}: stored {each.stored}, rows say {each.recomputed}"
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    if len(findings.differences) > _SHOWN:
        console.print(f"… and {len(findings.differences) - _SHOWN} more")
    for line in findings.unchecked:
        console.print(f"not compared: {line}", markup=False, highlight=False, soft_wrap=True)
    checked = sum(findings.checked.values())
    verdict = "all agree" if not findings.differences else f"{len(findings.differences)} DIFFER ({len(wrong)} variants)"
    console.print(
        f"audit: {checked:,} integers recomputed from {findings.rows:,} responses and {findings.students:,} students: "
        f"{verdict}",
        highlight=False,
        soft_wrap=True,
    )
