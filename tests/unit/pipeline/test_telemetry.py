"""Metrics of the worker process."""

from __future__ import annotations

import logging
import re

import pytest

from monitor.config import ReloadResult
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


def test_only_the_digest_in_force_has_a_series() -> None:
    """Otherwise replicas would seem to disagree after each reload."""
    telemetry = Telemetry()
    telemetry.set_config("old")
    telemetry.set_config("new")
    (family,) = telemetry.config_info.collect()
    assert [sample.labels for sample in family.samples] == [{"digest": "new"}]


def test_a_failed_reload_keeps_the_time_of_the_last_success() -> None:
    """A start is a success."""
    telemetry = Telemetry()

    def values() -> list[float | None]:
        names = ("successful", "success_timestamp_seconds")
        return [telemetry.registry.get_sample_value(f"abmonitor_config_last_reload_{name}") for name in names]

    started_successful, started_at = values()
    telemetry.record_reload(ReloadResult(is_successful=False, text=""))
    assert (started_successful, values()) == (1, [0, started_at])
    telemetry.record_reload(ReloadResult(is_successful=True, text=""))
    assert values()[0] == 1


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
