"""The page of an experiment: the verdicts, the variants side by side, and the categories that need review."""

from __future__ import annotations

from typing import Final

from monitor.analysis import ExperimentSummary, VerdictHistory
from monitor.config import DisplaySettings
from monitor.export import (
    COUNT_EXPLANATION,
    REVIEW_NOTE,
    ServiceHealth,
    describe_archiving,
    describe_decisions,
    experiment_footnotes,
    experiment_table_rows,
)
from monitor.web.pages import PageContent

_MAX_ATTENTION_ENTRIES: Final = 10


def experiment_details(
    experiment: ExperimentSummary,
    health: ServiceHealth | None,
    display: DisplaySettings,
    now_ms: int,
    history: VerdictHistory | None = None,
) -> PageContent:
    """Return the content of the page; without `history`, no history of the verdicts is shown."""
    min_students = display.min_display_students
    values = {
        "name": experiment.name,
        "control": experiment.control,
        "variants": [name for name, _ in experiment.variants_control_first()],
        "rows": experiment_table_rows(experiment, now_ms, min_students),
        "decisions": describe_decisions(experiment, min_students, history),
        "footnotes": experiment_footnotes(experiment, now_ms, min_students),
        "attention": None
        if experiment.categories_for_review is None
        else experiment.categories_for_review[:_MAX_ATTENTION_ENTRIES],
        "staleness": _describe_staleness(health, experiment.name),
        "archiving": describe_archiving(experiment),
        "has_no_events": experiment.last_event_at_ms is None
        and not (experiment.data_quality is not None and experiment.data_quality.missing),
        "has_data_problems": health is not None and bool(health.data_problems),
        "count_explanation": COUNT_EXPLANATION,
        "review_note": REVIEW_NOTE,
    }
    return PageContent("experiment_details.html", values)


def _describe_staleness(health: ServiceHealth | None, experiment: str) -> str | None:
    """Return a sentence if the experiment's newest event is older than usual; None if not."""
    freshness = None if health is None else health.freshness.get(experiment)
    if freshness is None or not freshness.is_stale:
        return None
    sentence = freshness.describe()
    return f"{sentence[0].upper()}{sentence[1:]}."
