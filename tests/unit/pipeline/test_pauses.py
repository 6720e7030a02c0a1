"""Pauses of a worker by dependency."""

from __future__ import annotations

import logging

import pytest

from monitor.pipeline.pauses import Pauses
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
    for dependency in ("store", "kafka", "dead_letters"):
        assert registry.get_sample_value("abmonitor_paused", {"reason": dependency}) == 0
