"""Excluded responses in a real store: counted beside the variants, tested for SRM, and in every output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from monitor.analysis import ExperimentSummary
from monitor.events import Feedback, Response
from monitor.export import ExperimentsCollector, experiment_table_rows
from monitor.export.report_data import read_report_data
from monitor.pipeline.retention import RetentionCleaner
from monitor.state.aggregate_audit import audit_aggregates
from monitor.web.experiment_report import render_experiment_report
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS
from tests.support.store_bench import DECISION_EXPERIMENT, StoreBench, create_tracker_at_hour, student_traffic
from tests.support.streams import HOUR, START, changed

_EXCLUDING = replace(DECISION_EXPERIMENT, exclude={"role": ("teacher",), "app_version": ("1.*",)})
Events = list[Response | Feedback]


def _with_attribute(events: Events, name: str, value: str, teachers: Sequence[int]) -> Events:
    """Return the events with an attribute of the responses of some students."""
    users = {f"student-{number}" for number in teachers}
    return [
        changed(event, attributes=((name, value),)) if isinstance(event, Response) and event.user_id in users else event
        for event in events
    ]


def _summarize(server: RedisServer, events: Events, shard_count: int = 1) -> ExperimentSummary:
    bench = StoreBench(server, _EXCLUDING, shard_count)
    bench.apply([events[:300], events[300:]])
    return bench.reader.read_summary().experiments["ranker"]


def _codes(experiment: ExperimentSummary) -> set[str]:
    assert experiment.analysis is not None
    verdict = experiment.analysis.verdicts["treatment"]
    return {reason.code for reason in (*verdict.reasons, *verdict.notes)}


@pytest.mark.parametrize("shard_count", [1, 3])
def test_an_even_exclusion_leaves_the_results_of_the_other_students(
    redis_server: RedisServer, shard_count: int
) -> None:
    """Counts and sums are those of the events without the excluded responses, and there is no finding."""
    # No crossovers (every 50th) and no students without an id (3, 43, …), as many of either variant.
    teachers = [number for number in range(1, 80) if number % 50 and number % 40 != 3]
    events = _with_attribute(student_traffic(), "role", "teacher", teachers)
    excluded = [event for event in events if isinstance(event, Response) and event.attributes]
    excluded_ids = {response.response_id for response in excluded}
    experiment = _summarize(redis_server, events, shard_count)
    others = _summarize(redis_server, [event for event in events if event.response_id not in excluded_ids])
    for name, variant in experiment.variants.items():
        other = others.variants[name]
        of_variant = [response for response in excluded if response.variant == name]
        assert variant.excluded_responses == len(of_variant) > 0
        assert variant.excluded_students == len({response.user_id for response in of_variant})
        assert (variant.responses, variant.rated_responses, variant.students, variant.feedback) == (
            other.responses,
            other.rated_responses,
            other.students,
            other.feedback,
        )
        assert variant.metrics["dcg@5"].sum == other.metrics["dcg@5"].sum
        assert (other.excluded_responses, other.excluded_students) == (0, 0)
    assert experiment.crossovers == others.crossovers
    assert "excluded_sample_ratio" not in _codes(experiment)
    content = experiment.to_json()
    assert content["variants"].keys() == {"control", "treatment"}
    assert content["sample_ratio"]["excluded"]["mismatch"] is False
    students = content["sample_ratio"]["excluded"]["phases"][0]["students"]
    assert students == len(teachers)


def test_an_exclusion_that_depends_on_the_variant_makes_the_verdict_invalid(redis_server: RedisServer) -> None:
    """Here only the clients of the treatment are old; the finding has the counts of students."""
    old_clients = [number for number in range(1, 160, 2) if number % 40 != 3][:30]
    events = _with_attribute(student_traffic(students=400), "app_version", "1.7", old_clients)
    experiment = _summarize(redis_server, events)
    assert experiment.analysis is not None
    verdict = experiment.analysis.verdicts["treatment"]
    assert verdict.state == "invalid"
    (text,) = [reason.text for reason in verdict.reasons if reason.code == "excluded_sample_ratio"]
    sentence = " ".join(text.split())
    assert sentence.startswith(
        "Excluded students are not split as intended: control has 0 students (0.00 %) instead of 50.00 %, treatment "
        "has 30 students (100.00 %) instead of 50.00 % (sample ratio mismatch, p = "
    )
    assert "Exclude only by fields that are known before the student is assigned to a variant." in sentence


def test_excluded_responses_are_in_the_tables_and_metrics_and_audited(redis_server: RedisServer) -> None:
    """No output has them as those of a variant."""
    events = _with_attribute(student_traffic(), "role", "teacher", range(30))
    bench = StoreBench(redis_server, _EXCLUDING)
    bench.apply([events])
    findings = audit_aggregates(bench.store, bench.settings)
    assert findings.differences == []
    assert ("ranker", "control, excluded", "all time") in findings.checked
    summary = bench.reader.read_summary()
    experiment = summary.experiments["ranker"]
    control = experiment.variants["control"]
    rows = {row.label: row for row in experiment_table_rows(experiment, 0)}
    assert rows["Excluded responses"].values[0] == str(control.excluded_responses)
    assert rows["Excluded students"].values[0] == str(control.excluded_students)
    page = render_experiment_report(read_report_data(bench.reader, _EXCLUDING))
    assert "Excluded students: no sample ratio mismatch is detected (p = " in page
    assert '<th scope="row">Excluded responses</th>' in page
    registry = CollectorRegistry()
    registry.register(ExperimentsCollector(lambda: summary, 1))
    lines = generate_latest(registry).decode().splitlines()
    labels = '{experiment="ranker",variant="control"}'
    assert f"abmonitor_excluded_responses{labels} {float(control.excluded_responses)}" in lines
    assert {line.partition('variant="')[2].partition('"')[0] for line in lines} == {"", "control", "treatment"}


def test_old_traffic_of_excluded_responses_is_deleted(redis_server: RedisServer) -> None:
    """As that of the variants, `retention` behind the newest response."""
    bench = StoreBench(redis_server, _EXCLUDING)
    newest_ms = START + 60 * DAY_MS
    old = Response("r1", START, "ranker", "control", ("video-1",), None, "s1", attributes=(("role", "teacher"),))
    bench.apply([[old, Response("r2", newest_ms, "ranker", "control", ("video-1",), None, "s2")]])
    keys, client = bench.first_shard.keys, bench.first_shard.client
    index = keys.traffic_hour_index(bench.experiment_number, 128)
    assert client.zcard(index) == 1
    RetentionCleaner(bench.first_shard, [bench.experiment]).clean(create_tracker_at_hour(bench, newest_ms // HOUR))
    assert client.zcard(index) == 0
