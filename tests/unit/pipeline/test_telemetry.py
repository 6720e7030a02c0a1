"""Metrics of the worker process."""

from __future__ import annotations

import logging
import re

import pytest

from monitor.pipeline.telemetry import OUTCOMES, LagReporter, Telemetry


def lags(telemetry: Telemetry) -> dict[str, float]:
    """Return the lag in seconds by partition."""
    (family,) = telemetry.lag_seconds.collect()
    return {sample.labels["partition"]: sample.value for sample in family.samples}


def test_topics_export_their_event_type_and_all_outcomes_from_the_start() -> None:
    """Alerting rules do not contain names of topics. Prometheus sees no increase in a series that begins above 0."""
    telemetry = Telemetry()
    telemetry.initialize_topics({"response": "answers", "feedback": "ratings"})
    for event_type, topic in (("response", "answers"), ("feedback", "ratings")):
        labels = {"topic": topic, "event_type": event_type}
        assert telemetry.registry.get_sample_value("abmonitor_topic_info", labels) == 1
        for outcome in OUTCOMES:
            labels = {"topic": topic, "outcome": outcome}
            assert telemetry.registry.get_sample_value("abmonitor_events_total", labels) == 0


def test_the_lag_of_a_revoked_partition_is_removed() -> None:
    """The last lag would remain, and raise alerts, for ever. The partition may be assigned again."""
    telemetry = Telemetry()
    partitions = ["feedback:0", "feedback:1"]
    telemetry.set_lags(partitions, [("feedback:0", 10, 4.0), ("feedback:1", 90, 600.0)])
    telemetry.set_lags(partitions[:1], [("feedback:0", 10, 4.0)])
    assert lags(telemetry) == {"0": 4.0}
    telemetry.set_lags(partitions[1:], [("feedback:1", 3, 1.0)])
    assert lags(telemetry) == {"1": 1.0}


def test_after_an_outage_the_expected_end_is_unknown_until_a_rate_is_measured(caplog: pytest.LogCaptureFixture) -> None:
    """The lag grew while the worker waited, which says nothing of its speed."""
    times_s = iter([0.0, 10.0, 300.0, 310.0])
    reporter = LagReporter(lambda: next(times_s))
    caplog.set_level(logging.INFO)
    for lag_events in (0, 40_000, 20_000):
        reporter.report(lag_events, 100)
    ends = re.findall("expected_end=(.*)", caplog.text)
    assert ends[0] == "unknown"
    assert re.fullmatch(r"\d{4}-.*Z", ends[1])
