"""Summaries for machines and terminals: Prometheus families, JSON, tables."""

from __future__ import annotations

from monitor.export.item_tables import (
    attention_json,
    items_json,
    printable,
    render_attention,
    render_items,
    render_variety,
    scale,
)
from monitor.export.presentation import (
    ABSENT,
    MEANINGS,
    count,
    decisions,
    notes,
    rests_on,
    rows,
    sentence,
    share,
    short,
    unmatched_feedback,
)
from monitor.export.prometheus import CATALOGUE, ExperimentsCollector
from monitor.export.report_data import Account, account
from monitor.export.terminal import EXIT_CODES, print_json, render, render_verdicts, simple_table, to_stdout

__all__ = [
    "ABSENT",
    "CATALOGUE",
    "EXIT_CODES",
    "MEANINGS",
    "Account",
    "ExperimentsCollector",
    "account",
    "attention_json",
    "count",
    "decisions",
    "items_json",
    "notes",
    "print_json",
    "printable",
    "render",
    "render_attention",
    "render_items",
    "render_variety",
    "render_verdicts",
    "rests_on",
    "rows",
    "scale",
    "sentence",
    "share",
    "short",
    "simple_table",
    "to_stdout",
    "unmatched_feedback",
]
