"""The HTML page at /, and the environment of all HTML templates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from starlette.requests import Request
from starlette.responses import Response
from starlette.templating import Jinja2Templates

from monitor.analysis import ExperimentSummary, StoreSummary, VerdictHistory
from monitor.config import DisplaySettings
from monitor.export import (
    COUNT_EXPLANATION,
    REVIEW_NOTE,
    UNDECLARED_COLUMNS,
    ServiceHealth,
    arrival_rows,
    describe_archiving,
    describe_as_of,
    describe_decisions,
    describe_unmatched_feedback,
    experiment_footnotes,
    experiment_table_rows,
    format_count,
    format_percent,
    format_time,
    health_facts,
    undeclared_notes,
    undeclared_rows,
)
from monitor.pipeline import ProblemKind
from monitor.web.reader import reader_context

_MAX_ATTENTION_ENTRIES: Final = 10
_RUNBOOK_SECTIONS: Final[Mapping[ProblemKind, str]] = {
    "rejected": "rejects",
    "filtered": "skipped",
    "undeclared_experiment": "skipped",
    "undeclared_variant": "skipped",
    "unmatched": "unmatched-feedback",
}
_CONTENT_SECURITY_POLICY: Final = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
TEMPLATE_ENVIRONMENT: Final = Environment(
    loader=PackageLoader("monitor.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
"""Templates escape their values; an undefined value is an error."""
TEMPLATE_ENVIRONMENT.filters |= {"share": format_percent, "thousands": format_count}
PAGE_TEMPLATES: Final = Jinja2Templates(env=TEMPLATE_ENVIRONMENT, context_processors=[reader_context])


def load_template(name: str) -> Template:
    """Return a template of the folder `templates`."""
    return TEMPLATE_ENVIRONMENT.get_template(name)


def page_response(request: Request, context: dict[str, Any], status: int = 200) -> Response:
    """Return the rendered page with a Content-Security-Policy; `context` is a result of `page_context`."""
    headers = {"Content-Security-Policy": _CONTENT_SECURITY_POLICY}
    return PAGE_TEMPLATES.TemplateResponse(request, "page.html", context, status, headers)


def page_context(
    summary: StoreSummary | None,
    health: ServiceHealth | None,
    readiness_problems: Sequence[str],
    display: DisplaySettings,
    now_ms: int,
    histories: Mapping[str, VerdictHistory] | None = None,
) -> dict[str, Any]:
    """Return the values for `page.html`: a dict per experiment, the reasons why the process is not ready, the health.

    Without `health`, the page has no health section. `histories` has the history of the verdicts by experiment; None:
    no history is shown.
    """
    min_students = display.min_display_students

    def experiment_context(experiment: ExperimentSummary) -> dict[str, Any]:
        return {
            "name": experiment.name,
            "control": experiment.control,
            "variants": [name for name, _ in experiment.variants_control_first()],
            "rows": experiment_table_rows(experiment, now_ms, min_students),
            "decisions": describe_decisions(experiment, min_students, (histories or {}).get(experiment.name)),
            "footnotes": experiment_footnotes(experiment, now_ms, min_students),
            "attention": None
            if experiment.categories_for_review is None
            else experiment.categories_for_review[:_MAX_ATTENTION_ENTRIES],
            "staleness": _describe_staleness(health, experiment.name),
            "archiving": describe_archiving(experiment),
            "has_no_events": experiment.last_event_at_ms is None
            and not (experiment.data_quality is not None and experiment.data_quality.missing),
        }

    return {
        "experiments": [] if summary is None else list(map(experiment_context, summary.running_experiments)),
        "archived_experiments": [] if summary is None else list(map(experiment_context, summary.archived_experiments)),
        "undeclared_columns": UNDECLARED_COLUMNS,
        "undeclared_rows": [] if summary is None else undeclared_rows(summary),
        "undeclared_notes": [] if summary is None else undeclared_notes(summary),
        "unmatched_feedback": None if summary is None else describe_unmatched_feedback(summary),
        "readiness_problems": readiness_problems,
        "data_problems": []
        if health is None
        else [(problem.text, _RUNBOOK_SECTIONS[problem.kind]) for problem in health.data_problems],
        "needs_attention": health is not None and bool(health.conditions()),
        "health": None
        if health is None
        else {
            "conditions": health.service_conditions(),
            "periods": [
                (title, list(arrivals), arrival_rows(arrivals))
                for title, arrivals in (("Last hour", health.last_hour), ("Last 24 hours", health.last_day))
            ],
            "facts": health_facts(health),
        },
        "as_of": None if summary is None else describe_as_of(summary, now_ms),
        "now": format_time(now_ms),
        "count_explanation": COUNT_EXPLANATION,
        "review_note": REVIEW_NOTE,
    }


def _describe_staleness(health: ServiceHealth | None, experiment: str) -> str | None:
    """Return a sentence if the experiment's newest event is older than usual; None if not."""
    freshness = None if health is None else health.freshness.get(experiment)
    if freshness is None or not freshness.is_stale:
        return None
    sentence = freshness.describe()
    return f"{sentence[0].upper()}{sentence[1:]}."
