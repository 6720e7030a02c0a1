"""What rules and alerts are made of, and how they are written in Prometheus' format.

An alert's `concern` names what is wrong. It is a label, by which a severe alert silences the milder ones of the same
concern, and the anchor of the section in docs/runbook.md.

One Prometheus may scrape several systems (production, staging) with the same experiments. Expressions are written as if
there was one: `by (…)` and `on (…)` get the labels of a system, `SYSTEM`, when they are rendered. An aggregation
without `by` would mix the systems, so it is written `by ()`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import dedent
from typing import Any, Final, Literal

JSON = dict[str, Any]

SYSTEM: Final = ("job", "cluster", "namespace", "environment")
"""Labels of a scraped target that tell systems apart. A label that nobody sets is absent everywhere."""
EXPERIMENTS_SUFFIX: Final = "-experiments"
"""The job that scrapes /metrics/experiments has the name of the job that scrapes /metrics, and this suffix."""
_BASE_JOB: Final = f'reReplaceAll "{EXPERIMENTS_SUFFIX}$" "" $labels.job'
_GROUPING: Final = re.compile(r"\b(by|on) \(([^)]*)\)")
_SYSTEM_NAME: Final = (
    "{{ if $labels.job }} [{{ " + _BASE_JOB + " }}"
    "{{ with $labels.environment }}, {{ . }}{{ end }}"
    "{{ with $labels.namespace }}, {{ . }}{{ end }}"
    "{{ with $labels.cluster }}, {{ . }}{{ end }}]{{ end }}"
)
"""The end of each summary."""


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where links lead: a Grafana with this repository's boards, and the runbook, which every replica serves."""

    grafana: str = "http://localhost:3000"
    runbook: str = "http://localhost:9464/runbook"


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded series; its name begins with its labels besides `SYSTEM`, joined by underscores, and a colon."""

    record: str
    expr: str

    @property
    def labels(self) -> frozenset[str]:
        """The labels of its series."""
        return frozenset(SYSTEM) | frozenset(filter(None, self.record.split(":")[0].split("_")))

    def rendered(self) -> JSON:
        """Return the rule in Prometheus' format."""
        return {"record": self.record, "expr": rendered_expr(self.expr)}


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

    @property
    def fixed_labels(self) -> dict[str, str]:
        """The labels that are equal in all alerts of this rule."""
        return {"severity": self.severity, "team": self.team, "concern": self.concern}

    def rendered(self, addresses: Addresses) -> JSON:
        """Return the rule in Prometheus' format."""
        times: Mapping[str, str] = {"for": self.pending, "keep_firing_for": self.keep}
        return {
            "alert": self.name,
            "expr": rendered_expr(self.expr),
            **{key: value for key, value in times.items() if value != "0m"},
            # Both jobs of a system have one name in alerts, so that Alertmanager can match them.
            "labels": {
                **self.fixed_labels,
                "job": f"{{{{ if $labels.job }}}}{{{{ {_BASE_JOB} }}}}{{{{ else }}}}ab-monitor{{{{ end }}}}",
            },
            "annotations": {
                "summary": self.summary + _SYSTEM_NAME,
                "description": self.description,
                "dashboard_url": self._dashboard_url(addresses.grafana),
                "runbook_url": f"{addresses.runbook}#{self.concern}",
            },
        }

    def _dashboard_url(self, grafana: str) -> str:
        chosen = f"{{{{ if $labels.job }}}}var-job={{{{ {_BASE_JOB} | urlquery }}}}&{{{{ end }}}}"
        for name in SYSTEM[1:]:
            chosen += f"{{{{ with $labels.{name} }}}}var-{name}={{{{ . | urlquery }}}}&{{{{ end }}}}"
        chosen += "".join(f"var-{name}={{{{ $labels.{name} | urlquery }}}}&" for name in self.variables)
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


def rendered_expr(expr: str) -> str:
    """Return the expression without indentation, in which every `by` and `on` has the labels of a system, too.

    >>> rendered_expr("sum by (topic) (x)")
    'sum by (job, cluster, namespace, environment, topic) (x)'
    """
    return _GROUPING.sub(
        lambda found: f"{found[1]} ({', '.join(filter(None, (*SYSTEM, found[2])))})", dedent(expr).strip()
    )


def queried(query: str, text: str, *, otherwise: str = "", labels: Sequence[str] = ()) -> str:
    """Return a part of an annotation that a query decides: `text`, where `.` is its result, or `otherwise` without one.

    In the query, `$system` stands for the matchers that select series of /metrics of the alert's system, and of the
    values that the named labels have in the alert.
    """
    matchers = ",".join(f"{name}=%q" for name in (*SYSTEM, *labels))
    values = " ".join([f"({_BASE_JOB})", *(f"$labels.{name}" for name in (*SYSTEM[1:], *labels))])
    result = f"{{{{ with query (printf `{query.replace('$system', matchers)}` {values}) }}}}"
    alternative = f"{{{{ else }}}}{otherwise}" if otherwise else ""
    return f"{result}{{{{ with first . }}}}{text}{{{{ end }}}}{alternative}{{{{ end }}}}"
