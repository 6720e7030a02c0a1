"""Results of the monitor in the formats of other programs and of people.

- `prometheus`: the metrics of the experiments, and the catalogue of all metrics
- `presentation`: texts that terminal and web page share: tables, footnotes, verdicts, formatted numbers
- `terminal`: tables for a terminal, JSON output, exit codes of verdicts
- `item_tables`: item statistics and the review order
- `health`, `freshness`: workers, arriving events by topic, the age of the newest events, and what is wrong
- `report_data`: the data of an experiment's report
"""

from __future__ import annotations

from monitor.export.health import RecentHealth, ServiceHealth, arrival_rows, health_facts, read_health
from monitor.export.item_tables import (
    REVIEW_NOTE,
    SCORE_NOTE,
    attention_json,
    rating_scale,
    render_attention,
    render_diversity,
    render_worst_items,
    review_table,
    score_cells,
    short_id_text,
    worst_items_json,
)
from monitor.export.presentation import (
    ABSENT_TEXT,
    COUNT_EXPLANATION,
    GUARDRAIL_STATES,
    STATE_DESCRIPTIONS,
    STATE_TITLES,
    decay_label,
    describe_as_of,
    describe_closing,
    describe_decisions,
    describe_effect,
    describe_first_decision,
    describe_skipped_experiments,
    describe_state,
    describe_time_to_decide,
    describe_unmatched_feedback,
    describe_verdict,
    experiment_footnotes,
    experiment_table_rows,
    format_age,
    format_count,
    format_percent,
    format_significant,
    format_time,
    meets_min_students,
)
from monitor.export.prometheus import METRIC_CATALOGUE, ExperimentsCollector
from monitor.export.report_data import ReportData, read_report_data
from monitor.export.terminal import (
    VERDICT_EXIT_CODES,
    DataConsole,
    id_text,
    print_json,
    render_health,
    render_summary,
    render_verdicts,
    simple_table,
    stderr_console,
    stdout_console,
)

__all__ = [
    "ABSENT_TEXT",
    "COUNT_EXPLANATION",
    "GUARDRAIL_STATES",
    "METRIC_CATALOGUE",
    "REVIEW_NOTE",
    "SCORE_NOTE",
    "STATE_DESCRIPTIONS",
    "STATE_TITLES",
    "VERDICT_EXIT_CODES",
    "DataConsole",
    "ExperimentsCollector",
    "RecentHealth",
    "ReportData",
    "ServiceHealth",
    "arrival_rows",
    "attention_json",
    "decay_label",
    "describe_as_of",
    "describe_closing",
    "describe_decisions",
    "describe_effect",
    "describe_first_decision",
    "describe_skipped_experiments",
    "describe_state",
    "describe_time_to_decide",
    "describe_unmatched_feedback",
    "describe_verdict",
    "experiment_footnotes",
    "experiment_table_rows",
    "format_age",
    "format_count",
    "format_percent",
    "format_significant",
    "format_time",
    "health_facts",
    "id_text",
    "meets_min_students",
    "print_json",
    "rating_scale",
    "read_health",
    "read_report_data",
    "render_attention",
    "render_diversity",
    "render_health",
    "render_summary",
    "render_verdicts",
    "render_worst_items",
    "review_table",
    "score_cells",
    "short_id_text",
    "simple_table",
    "stderr_console",
    "stdout_console",
    "worst_items_json",
]
