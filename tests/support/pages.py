"""Pages of the service as HTML, without a server."""

from __future__ import annotations

from collections.abc import Mapping

from monitor.analysis import StoreSummary, VerdictHistory
from monitor.config import DisplaySettings
from monitor.export import ServiceHealth
from monitor.web.experiment_details import experiment_details
from monitor.web.list_page import list_page
from monitor.web.pages import PageContent, page_header, render_page
from monitor.web.service_page import service_page

NO_RECORDS = ServiceHealth(0, "redis://store:6379/0", "abc")
"""The health of a service that no worker has ever reported to."""


def render_list(
    summary: StoreSummary,
    health: ServiceHealth = NO_RECORDS,
    now_ms: int = 0,
    query: Mapping[str, str] | None = None,
) -> str:
    """Return the page / as HTML."""
    return _rendered(list_page(summary, health, DisplaySettings(), now_ms, query or {}), health, now_ms)


def render_service(summary: StoreSummary, health: ServiceHealth = NO_RECORDS, now_ms: int = 0) -> str:
    """Return the page /service as HTML."""
    return _rendered(service_page(summary, health), health, now_ms)


def render_experiment(
    summary: StoreSummary,
    health: ServiceHealth | None = None,
    now_ms: int = 0,
    history: VerdictHistory | None = None,
) -> str:
    """Return the page of the first experiment as HTML."""
    experiment = next(iter(summary.experiments.values()))
    return _rendered(experiment_details(experiment, health, DisplaySettings(), now_ms, history), health, now_ms)


def _rendered(content: PageContent, health: ServiceHealth | None, now_ms: int) -> str:
    return render_page(content, page_header(health, (), now_ms))
