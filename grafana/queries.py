"""The queries of a board, and the substitution of variables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from grafana.panels import JSON


class Query(NamedTuple):
    """A query of a panel, with unsubstituted variables."""

    panel: str
    ref: str
    expr: str
    legend: str


def board_queries(board: JSON) -> Iterator[Query]:
    """Yield the queries of all panels of a board, in the order of the panels."""
    for panel in board["panels"]:
        for entry in panel.get("targets", []):
            yield Query(panel["title"], entry["refId"], entry["expr"], entry["legendFormat"])


def substitute_variables(template: str, values: Mapping[str, str]) -> str:
    """Return the text with each `$name` replaced, longest names first (`$__range` would hide `$__rate_interval`)."""
    for name in sorted(values, key=len, reverse=True):
        template = template.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    return template
