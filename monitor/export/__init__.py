"""Results of the monitor in the formats of other programs and of people.

- `prometheus`: the metrics of the experiments, and the catalogue of all metrics
- `presentation`: texts that terminal and web page share: tables, footnotes, verdicts, formatted numbers
- `terminal`: tables for a terminal, JSON output, exit codes of verdicts
- `item_tables`: item statistics and the review order
- `report_data`: the data of an experiment's report
"""

from __future__ import annotations

from monitor.export.item_tables import (
    attention_json,
    printable_text,
    rating_scale,
    render_attention,
    render_diversity,
    render_worst_items,
    worst_items_json,
)
from monitor.export.presentation import (
    ABSENT_TEXT,
    STATE_DESCRIPTIONS,
    describe_decisions,
    describe_unmatched_feedback,
    describe_verdict,
    experiment_footnotes,
    experiment_table_rows,
    format_count,
    format_percent,
    format_significant,
    meets_min_students,
)
from monitor.export.prometheus import METRIC_CATALOGUE, ExperimentsCollector
from monitor.export.report_data import ReportData, read_report_data
from monitor.export.terminal import (
    VERDICT_EXIT_CODES,
    print_json,
    render_summary,
    render_verdicts,
    simple_table,
    stdout_console,
)

__all__ = [
    "ABSENT_TEXT",
    "METRIC_CATALOGUE",
    "STATE_DESCRIPTIONS",
    "VERDICT_EXIT_CODES",
    "ExperimentsCollector",
    "ReportData",
    "attention_json",
    "describe_decisions",
    "describe_unmatched_feedback",
    "describe_verdict",
    "experiment_footnotes",
    "experiment_table_rows",
    "format_count",
    "format_percent",
    "format_significant",
    "meets_min_students",
    "print_json",
    "printable_text",
    "rating_scale",
    "read_report_data",
    "render_attention",
    "render_diversity",
    "render_summary",
    "render_verdicts",
    "render_worst_items",
    "simple_table",
    "stdout_console",
    "worst_items_json",
]
