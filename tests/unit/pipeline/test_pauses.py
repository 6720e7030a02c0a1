"""Pauses of a worker by dependency."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from monitor.pipeline.pauses import DEPENDENCIES, Pauses
from monitor.pipeline.telemetry import Telemetry


def test_an_outage_is_logged_once_at_its_beginning_and_once_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    """Also if its error changes, as from refused connections to a server that is loading."""
    caplog.set_level(logging.INFO)
    pauses = Pauses(lambda _dependency, _is_paused: None)
    for reason in ("Connection refused", "Connection refused", "LOADING"):
        pauses.begin("store", reason)
    assert pauses.reasons() == {"store": "LOADING"}
    for _ in range(2):
        pauses.end("store")
    assert pauses.reasons() == {}
    assert [record.getMessage() for record in caplog.records] == [
        "paused reason=store error=Connection refused",
        "resumed reason=store",
    ]


def test_the_metric_has_a_series_for_each_dependency_from_the_start() -> None:
    """A series that begins at 1 could not be told from a scrape that failed."""
    registry = Telemetry().registry
    for dependency in DEPENDENCIES:
        assert registry.get_sample_value("abmonitor_paused", {"reason": dependency}) == 0


_ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("dependency", DEPENDENCIES)
@pytest.mark.parametrize(
    ("file", "mention"),
    [
        ("deploy/prometheus/rules/ab-monitor.yml", 'if eq $labels.reason "{}"'),
        ("grafana/dashboards/pipeline.json", '"waits for {}"'),
        ("docs/runbook.md", "\n- `{}`: "),
        ("docs/http.md", "`{}`"),
    ],
)
def test_every_dependency_is_explained_where_a_person_reads_its_name(dependency: str, file: str, mention: str) -> None:
    """The alert, the board, the runbook and the list of metrics."""
    assert mention.format(dependency) in (_ROOT / file).read_text()


def test_an_alert_about_the_store_hides_no_pause_for_another_dependency() -> None:
    """Their causes differ."""
    others = "|".join(dependency for dependency in DEPENDENCIES if dependency != "store")
    assert f'reason !~ "{others}"' in (_ROOT / "deploy/alertmanager/alertmanager.yml").read_text()
