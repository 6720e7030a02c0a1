"""The report on an experiment: an HTML file with the content of the experiment's page, to keep, print or send."""

from __future__ import annotations

from typing import Any, Final

from monitor.export import ReportData
from monitor.web.experiment_view import describe_experiment
from monitor.web.glossary import TermLinks
from monitor.web.pages import load_template
from monitor.web.standalone import standalone_context, static_text

REPORT_TEMPLATE: Final = "experiment_report.html"


def render_experiment_report(report: ReportData, now_ms: int | None = None) -> str:
    """Return the report as a self-contained HTML file; with `now_ms`, with the newest event's age."""
    return load_template(REPORT_TEMPLATE).render(report_values(report, now_ms))


def report_values(report: ReportData, now_ms: int | None = None) -> dict[str, Any]:
    """Return the values of `experiment_report.html`."""
    return {
        **describe_experiment(report, TermLinks(""), now_ms=now_ms),
        **standalone_context(),
        "page_styles": static_text("page.css") + static_text("experiment.css"),
    }
