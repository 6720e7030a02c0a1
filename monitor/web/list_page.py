"""The page /: all experiments with state, effect, students and age."""

from __future__ import annotations

from typing import Any

from monitor.analysis import ExperimentSummary, StoreSummary
from monitor.config import DisplaySettings
from monitor.export import (
    UNDECLARED_COLUMNS,
    ServiceHealth,
    describe_archiving,
    describe_as_of,
    describe_decisions,
    undeclared_notes,
    undeclared_rows,
)
from monitor.web.pages import PageContent
from monitor.web.service_page import data_problem_rows


def list_page(summary: StoreSummary, health: ServiceHealth, display: DisplaySettings, now_ms: int) -> PageContent:
    """Return the content of the page: a row per experiment."""

    def row(experiment: ExperimentSummary) -> dict[str, Any]:
        freshness = health.freshness.get(experiment.name)
        return {
            "name": experiment.name,
            "decisions": describe_decisions(experiment, display.min_display_students),
            "students": sum(variant.students for variant in experiment.variants.values()),
            "last_event_at_ms": experiment.last_event_at_ms,
            "is_stale": freshness is not None and freshness.is_stale,
            "archiving": describe_archiving(experiment),
        }

    values = {
        "experiments": list(map(row, summary.running_experiments)),
        "archived_experiments": list(map(row, summary.archived_experiments)),
        "undeclared_columns": UNDECLARED_COLUMNS,
        "undeclared_rows": undeclared_rows(summary),
        "undeclared_notes": undeclared_notes(summary),
        "data_problems": data_problem_rows(health),
        "service_conditions": health.service_conditions(),
        "as_of": describe_as_of(summary, now_ms),
    }
    return PageContent("list.html", values)
