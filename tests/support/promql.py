"""PromQL taken apart, and what the exporter's catalogue lets it name."""

from __future__ import annotations

import promql_parser

from monitor.export import METRIC_CATALOGUE

SERIES_OF = {
    "counter": ["_total"],
    "histogram": ["_bucket", "_sum", "_count"],
    "info": ["_info"],
    "gauge": [""],
    "unknown": [""],
}


def exported_series() -> dict[str, set[str]]:
    """Return the labels of every series that the exporter's catalogue declares, by the series' name."""
    found: dict[str, set[str]] = {}
    for metric in METRIC_CATALOGUE:
        for suffix in SERIES_OF[metric.metric_type]:
            name = metric.name.removesuffix(suffix) + suffix
            labels = {*metric.label_names, *(["le"] if suffix == "_bucket" else [])}
            found[name] = labels
    return found


def nodes(expr: str) -> list[promql_parser.Expr]:
    """Return every node of the parsed expression."""
    found: list[promql_parser.Expr] = []
    promql_parser.walk(promql_parser.parse(expr), pre_visit=found.append)
    return found


def selectors(expr: str) -> list[promql_parser.VectorSelector]:
    """Return every selector of the expression, also those inside of windows."""
    return [node for node in nodes(expr) if isinstance(node, promql_parser.VectorSelector)]
