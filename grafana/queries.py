"""The queries of a board, as Grafana would send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from grafana.panels import JSON


class Query(NamedTuple):
    """One query of one panel, with the board's variables still in it."""

    panel: str
    ref: str
    expr: str
    legend: str


def queries(board: JSON) -> Iterator[Query]:
    """Yield every panel query of the board, in the order in which they are shown."""
    for panel in board["panels"]:
        for entry in panel.get("targets", []):
            yield Query(panel["title"], entry["refId"], entry["expr"], entry["legendFormat"])


def filled_in(template: str, values: Mapping[str, str]) -> str:
    """Return the text with each `$name` replaced, longest names first (`$__range` would hide `$__rate_interval`)."""
    for name in sorted(values, key=len, reverse=True):
        template = template.replace(f"${{{name}}}", values[name]).replace(f"${name}", values[name])
    return template
