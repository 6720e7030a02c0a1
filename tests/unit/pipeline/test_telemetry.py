"""What a worker says of itself."""

from __future__ import annotations

from monitor.pipeline.telemetry import OUTCOMES, Telemetry


def lags(telemetry: Telemetry) -> dict[str, float]:
    """Return the lag in seconds by partition."""
    (family,) = telemetry.lag_seconds.collect()
    return {sample.labels["partition"]: sample.value for sample in family.samples}


def test_topics_have_a_type_of_event_and_their_outcomes_from_the_start() -> None:
    """Rules do not know how topics are named; Prometheus sees no increase in a series that begins above 0."""
    telemetry = Telemetry()
    telemetry.expect({"response": "answers", "feedback": "ratings"})
    for event_type, topic in (("response", "answers"), ("feedback", "ratings")):
        labels = {"topic": topic, "event_type": event_type}
        assert telemetry.registry.get_sample_value("abmonitor_topic_info", labels) == 1
        for outcome in OUTCOMES:
            labels = {"topic": topic, "outcome": outcome}
            assert telemetry.registry.get_sample_value("abmonitor_events_total", labels) == 0


def test_a_partition_that_was_handed_over_has_no_lag_here() -> None:
    """Its last lag would stay for ever, and wake somebody for ever; it may come back."""
    telemetry = Telemetry()
    both = ["feedback:0", "feedback:1"]
    telemetry.show_lags(both, [("feedback:0", 10, 4.0), ("feedback:1", 90, 600.0)])
    telemetry.show_lags(both[:1], [("feedback:0", 10, 4.0)])
    assert lags(telemetry) == {"0": 4.0}
    telemetry.show_lags(both[1:], [("feedback:1", 3, 1.0)])
    assert lags(telemetry) == {"1": 1.0}
