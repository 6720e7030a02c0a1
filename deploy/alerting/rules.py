"""What rules and alerts are made of, and how they are written in Prometheus' format.

An alert's `concern` names what is wrong. It is a label, by which a severe alert silences the milder ones of the same
concern, and the anchor of the section in docs/runbook.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Literal

JSON = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where links lead: a Grafana with this repository's boards, and docs/runbook.md as people can read it."""

    grafana: str = "http://localhost:3000"
    runbook: str = "http://localhost:9090/user/runbook.md"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded series; its name begins with the labels it has, if any, joined by underscores, and a colon."""

    record: str
    expr: str

    @property
    def labels(self) -> frozenset[str]:
        """The labels of its series."""
        return frozenset(filter(None, self.record.split(":")[0].split("_")))

    def rendered(self) -> JSON:
        """Return the rule in Prometheus' format."""
        return {"record": self.record, "expr": _text(self.expr)}


@dataclass(frozen=True, slots=True)
class Alert:
    """An alert; `variables` are the board's variables that are filled in from labels of the same name.

    `pending` is how long the expression must hold, `keep` how long it goes on firing afterwards; both in Prometheus'
    durations.
    """

    name: str
    concern: str
    severity: Literal["critical", "warning", "info"]
    team: Literal["operations", "product"]
    expr: str
    summary: str
    description: str
    board: str
    variables: Sequence[str] = ()
    pending: str = "0m"
    keep: str = "0m"
    shown: str = "6h"
    """How far back the linked board shows."""

    def rendered(self, addresses: Addresses) -> JSON:
        """Return the rule in Prometheus' format."""
        times: Mapping[str, str] = {"for": self.pending, "keep_firing_for": self.keep}
        return {
            "alert": self.name,
            "expr": _text(self.expr),
            **{key: value for key, value in times.items() if value != "0m"},
            "labels": {"severity": self.severity, "team": self.team, "concern": self.concern},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "dashboard_url": self._dashboard_url(addresses.grafana),
                "runbook_url": f"{addresses.runbook}#{self.concern}",
            },
        }

    def _dashboard_url(self, grafana: str) -> str:
        chosen = "".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}&" for name in self.variables)
        return f"{grafana}/d/{self.board}?{chosen}from=now-{self.shown}&to=now"


@dataclass(frozen=True, slots=True)
class Group:
    """Rules that are evaluated one after the other, at the same moment."""

    name: str
    recordings: Sequence[Recording] = ()
    alerts: Sequence[Alert] = field(default=())

    def rendered(self, addresses: Addresses) -> JSON:
        """Return the group in Prometheus' format."""
        rules = [each.rendered() for each in self.recordings] + [each.rendered(addresses) for each in self.alerts]
        return {"name": self.name, "interval": "1m", "rules": rules}


def _text(expr: str) -> str:
    return dedent(expr).strip()
