"""`ab-monitor audit`: compare the stored aggregates with the stored rows; the differences as a table or as JSON."""

from __future__ import annotations

import argparse
import os
from contextlib import closing
from typing import Any, Final

from monitor.config import Settings
from monitor.errors import count_noun
from monitor.export import print_json, simple_table, stdout_console
from monitor.state import AuditFindings, audit_aggregates, connect_active_generation, running_store_server

_MAX_PRINTED_DIFFERENCES: Final = 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--experiment", metavar="E", help="only this experiment")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the findings of the audit; return 0 if all aggregates agree with the rows, otherwise 1."""
    with (
        running_store_server(settings.store, must_exist=True) as store_settings,
        closing(connect_active_generation(store_settings)) as shards,
    ):
        findings = audit_aggregates(shards, settings)
    if arguments.json:
        print_json(_findings_json(findings))
    else:
        _print_findings(findings)
    return 1 if findings.differences else 0


def _findings_json(findings: AuditFindings) -> dict[str, Any]:
    return {
        "rows": findings.responses,
        "students": findings.students,
        "checked": sum(findings.checked.values()),
        "unchecked": findings.unchecked,
        "differences": [difference.to_json() for difference in findings.differences],
    }


def _print_findings(findings: AuditFindings) -> None:
    console = stdout_console(os.environ)
    differing_variants = {(difference.experiment, difference.variant) for difference in findings.differences}
    table = simple_table("experiment", "variant", "records", "integers compared", left_aligned=("variant", "records"))
    for (experiment, variant, record_type), count in sorted(findings.checked.items()):
        table.add_row(experiment, variant, record_type, f"{count:,}")
    console.print(table)
    for difference in findings.differences[:_MAX_PRINTED_DIFFERENCES]:
        line = (
            f"{difference.experiment} / {difference.variant}: {difference.integer_name}: stored {difference.stored}, "
            f"recomputed from the rows {difference.recomputed}"
        )
        console.print(line, soft_wrap=True)
    if len(findings.differences) > _MAX_PRINTED_DIFFERENCES:
        console.print(f"… and {len(findings.differences) - _MAX_PRINTED_DIFFERENCES} more")
    for line in findings.unchecked:
        console.print(f"not compared: {line}", soft_wrap=True)
    checked_count, difference_count = sum(findings.checked.values()), len(findings.differences)
    result = (
        f"{difference_count} differ ({count_noun(len(differing_variants), 'variant')})"
        if difference_count
        else "all are equal"
    )
    console.print(
        f"audit: {count_noun(checked_count, 'integer')} recomputed from {count_noun(findings.responses, 'response')} "
        f"and {count_noun(findings.students, 'student')}: {result}",
        soft_wrap=True,
    )
