"""Pages of the service as HTML, without a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from monitor.analysis import Analysis, SnapshotHistory, StoreSummary
from monitor.config import DisplaySettings
from monitor.export import ReportData, ServiceHealth
from monitor.stats import check_srm
from monitor.web.experiment_page import experiment_page
from monitor.web.list_page import list_page
from monitor.web.pages import PageContent, page_header, render_page
from monitor.web.service_page import service_page
from tests.support.student_groups import SENSITIVE_EXPERIMENT

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
    health: ServiceHealth = NO_RECORDS,
    now_ms: int = 0,
    snapshots: SnapshotHistory | None = None,
) -> str:
    """Return the page of the first experiment as HTML."""
    experiment = next(iter(summary.experiments.values()))
    settings = replace(
        SENSITIVE_EXPERIMENT,
        name=experiment.name,
        texts=experiment.texts,
        primary=experiment.primary,
        metrics=experiment.metric_specs or SENSITIVE_EXPERIMENT.metrics,
    )
    analysis = experiment.analysis or Analysis(summary.as_of_ms, {}, check_srm((), alpha=0.01), None, (), {}, {})
    report = ReportData(
        settings=settings,
        summary=experiment,
        as_of_ms=summary.as_of_ms,
        latest_analysis=analysis,
        interim_analyses=(analysis,),
        daily_splits=(),
        decayed_means=(),
        snapshots=snapshots or {},
        min_students=1,
    )
    return _rendered(experiment_page(report, {}, health, now_ms), health, now_ms)


def _rendered(content: PageContent, health: ServiceHealth | None, now_ms: int) -> str:
    return render_page(content, page_header(health, (), now_ms))
