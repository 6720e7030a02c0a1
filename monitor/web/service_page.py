"""The page /service: events that do not count, arrivals by topic, workers, and what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from monitor.analysis import StoreSummary
from monitor.export import ServiceHealth, arrival_rows, describe_unmatched_feedback, health_facts
from monitor.pipeline import ProblemKind
from monitor.web.pages import PageContent

_RUNBOOK_SECTIONS: Final[Mapping[ProblemKind, str]] = {
    "rejected": "rejects",
    "filtered": "skipped",
    "undeclared_experiment": "skipped",
    "undeclared_variant": "skipped",
    "unmatched": "unmatched-feedback",
}


def data_problem_rows(health: ServiceHealth) -> list[tuple[str, str]]:
    """Return (sentence, section of the runbook) for each reason why events do not count."""
    return [(problem.text, _RUNBOOK_SECTIONS[problem.kind]) for problem in health.data_problems]


def service_page(summary: StoreSummary, health: ServiceHealth) -> PageContent:
    """Return the content of the page."""
    values: dict[str, Any] = {
        "data_problems": data_problem_rows(health),
        "unmatched_feedback": describe_unmatched_feedback(summary),
        "conditions": health.service_conditions(),
        "periods": [
            (title, list(arrivals), arrival_rows(arrivals))
            for title, arrivals in (("Last hour", health.last_hour), ("Last 24 hours", health.last_day))
        ],
        "facts": health_facts(health),
    }
    return PageContent("service.html", values)
