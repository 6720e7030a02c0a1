"""Verdicts from a real store: equal to a computation from the events, for any number of shards."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.analysis import BackfillProgress, ExperimentHistory, StoreSummary, format_timestamp
from monitor.analysis.analyzer import Analysis
from monitor.config import DecisionSettings
from monitor.events import Feedback, Response
from monitor.export import describe_headlines, experiment_footnotes, read_health
from monitor.state import (
    Position,
    PositionUpdate,
    RejectionCounts,
    StoreReader,
    WorkerRecord,
    count_start,
    write_worker,
)
from monitor.stats import Estimate
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS, ExpectedResponse, compute_expected_responses
from tests.support.store_bench import DECISION_EXPERIMENT, StoreBench, student_traffic
from tests.support.streams import EXPERIMENT, START

Events = list[Response | Feedback]


def _analyze(bench: StoreBench, as_of_ms: int | None = None) -> Analysis:
    analysis = bench.reader.read_summary(as_of_ms).experiments["ranker"].analysis
    assert analysis is not None
    return analysis


def _closed_windows(
    expected_responses: Sequence[ExpectedResponse], as_of_ms: int
) -> dict[str, list[list[ExpectedResponse]]]:
    """Return variant → students → responses in the closed exposure window; without students of several variants."""
    responses_by_student: dict[str, list[ExpectedResponse]] = defaultdict(list)
    for number, expected_response in enumerate(expected_responses):
        responses_by_student[expected_response.response.user_id or f"unnamed-{number}"].append(expected_response)
    windows: dict[str, list[list[ExpectedResponse]]] = defaultdict(list)
    for student_responses in responses_by_student.values():
        first_day = min(expected_response.response.timestamp_ms for expected_response in student_responses) // DAY_MS
        is_closed = (first_day + EXPERIMENT.exposure_days) * DAY_MS + EXPERIMENT.feedback_window_ms <= as_of_ms
        if is_closed and len({expected_response.response.variant for expected_response in student_responses}) == 1:
            window = [
                expected_response
                for expected_response in student_responses
                if expected_response.response.timestamp_ms // DAY_MS < first_day + EXPERIMENT.exposure_days
            ]
            windows[student_responses[0].response.variant].append(window)
    return windows


def _expected_estimate(
    windows: Sequence[Sequence[ExpectedResponse]], metric: str, population: str
) -> tuple[int, float, float]:
    """Return (students, mean, variance of the mean) by definition."""
    values = []
    for window in windows:
        defined = [
            value for expected_response in window if (value := expected_response.metrics.get(metric)) is not None
        ]
        size = len(window) if population == "all" else len(defined)
        if size:
            values.append(sum(defined) / size)
    return len(values), float(np.mean(values)), float(np.var(values, ddof=1)) / len(values)


def _assert_estimate(estimate: Estimate, expected: tuple[int, float, float]) -> None:
    assert estimate.units == expected[0]
    assert estimate.mean == pytest.approx(expected[1], abs=1e-8)
    assert estimate.variance == pytest.approx(expected[2], rel=1e-5)


@pytest.mark.parametrize("as_of_days", [6.0, 9.3, 30.0])
def test_closed_estimates_equal_those_computed_from_the_events(redis_server: RedisServer, as_of_days: float) -> None:
    """For every metric and both populations."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT)
    events = student_traffic()
    bench.apply([events[:300], events[300:]])
    newest_ms = max(event.timestamp_ms for event in events)
    as_of_ms = START + int(as_of_days * DAY_MS)
    windows = _closed_windows(compute_expected_responses(DECISION_EXPERIMENT, events), min(as_of_ms, newest_ms))
    analysis = _analyze(bench, as_of_ms)
    for metric, by_estimand in analysis.comparisons["treatment"].items():
        _assert_estimate(by_estimand["closed"].control, _expected_estimate(windows["control"], metric, "rated"))
        _assert_estimate(by_estimand["closed"].treatment, _expected_estimate(windows["treatment"], metric, "rated"))
    estimates = analysis.verdicts["treatment"].evidence.other_population
    assert estimates is not None
    _assert_estimate(estimates.treatment, _expected_estimate(windows["treatment"], "dcg@5", "all"))


def test_the_number_of_shards_does_not_change_an_analysis(redis_server: RedisServer) -> None:
    """A single shard and three shards give the same JSON text."""
    json_texts = []
    for shards in (1, 3):
        bench = StoreBench(redis_server, DECISION_EXPERIMENT, shards)
        bench.apply([student_traffic()])
        json_texts.append(json.dumps(_analyze(bench).to_json()))
    assert json_texts[0] == json_texts[1]


def test_lost_events_of_every_shard_are_evidence(redis_server: RedisServer) -> None:
    """Lost events are counted on the shard of their partition."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT, 3)
    bench.apply([student_traffic()])
    writer = bench.connect_writer()
    assert writer.reload_state()
    assert writer.update_positions([PositionUpdate("t:2", None, Position(17))], {"t:2": 17})
    assert _analyze(bench).verdicts["treatment"].evidence.lost_events == 17


def test_too_many_rejected_events_are_reported(redis_server: RedisServer) -> None:
    """The share is over the newest events of all partitions; without events the share is undefined."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT, 3)
    assert _analyze(bench).verdicts["treatment"].evidence.rejected_share is None
    bench.apply([student_traffic()])
    writer = bench.connect_writer()
    assert writer.reload_state()
    position_updates = [
        PositionUpdate("t:0", None, Position(1, START, RejectionCounts(0, 100, 3))),
        PositionUpdate("t:1", None, Position(400, START, RejectionCounts(0, 100, 1))),
    ]
    assert writer.update_positions(position_updates, {})
    verdict = _analyze(bench).verdicts["treatment"]
    assert verdict.evidence.rejected_share == 0.02
    assert "rejected_events" in {reason.code for reason in (*verdict.reasons, *verdict.notes)}


def test_criteria_can_change_without_a_new_store(redis_server: RedisServer) -> None:
    """No stored number depends on the criteria."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT)
    bench.apply([student_traffic()])
    experiment = replace(
        DECISION_EXPERIMENT, decision=DecisionSettings(mde=0.1, margin=1.0, alpha=0.01, population="all")
    )
    settings = replace(bench.settings, experiments=(experiment,))
    analysis = (
        StoreReader(bench.store, settings, bench.metadata.numbers, lambda: 0)
        .read_summary()
        .experiments["ranker"]
        .analysis
    )
    assert analysis is not None
    assert analysis.verdicts["treatment"].evidence.criteria.margin == 1.0


def test_an_analysis_is_as_of_the_newest_event_of_all_experiments(redis_server: RedisServer) -> None:
    """Windows close by events of other experiments too, also for readers with a single experiment."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT)
    bench.apply([[event for event in student_traffic() if event.timestamp_ms < START + 3 * DAY_MS]])
    writer = bench.connect_writer()
    assert writer.reload_state()
    assert writer.update_positions([PositionUpdate("t:1", None, Position(1, START + 9 * DAY_MS))], {})
    assert _analyze(bench).as_of_ms == START + 9 * DAY_MS
    assert _analyze(bench).comparisons["treatment"]["dcg@5"]["closed"].control.units > 0


def test_a_time_after_the_newest_event_closes_no_cohort(redis_server: RedisServer) -> None:
    """Unread events may still belong to an open window."""
    bench = StoreBench(redis_server, DECISION_EXPERIMENT)
    bench.apply([[event for event in student_traffic() if event.timestamp_ms < START + 3 * DAY_MS]])
    assert _analyze(bench, START + 400 * DAY_MS).comparisons["treatment"]["dcg@5"]["closed"].control.units == 0


class TestEndedExperiment:
    """An experiment of three days without any event after its end."""

    EXPERIMENT = replace(
        DECISION_EXPERIMENT, starts_at_ms=START, ends_at_ms=START + 3 * DAY_MS, allowed_lateness_ms=2 * DAY_MS
    )

    def _summary(self, redis_server: RedisServer, now_ms: int, as_of_ms: int | None = None) -> StoreSummary:
        bench = StoreBench(redis_server, self.EXPERIMENT)
        bench.apply([[event for event in student_traffic() if event.timestamp_ms < START + 3 * DAY_MS]])
        reader = StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: now_ms)
        return reader.read_summary(as_of_ms)

    def test_the_clock_closes_windows_after_the_end(self, redis_server: RedisServer) -> None:
        """All entry days are complete, and the texts name the assumption."""
        experiment = self._summary(redis_server, START + 400 * DAY_MS).experiments["ranker"]
        assert experiment.analysis is not None
        assert experiment.analysis.verdicts["treatment"].evidence.closed_days == 3
        assert experiment.is_closed_by_clock
        assert experiment.analysis_json()["closed_by"] == "clock"
        (headline,) = describe_headlines(experiment)
        assert headline.title == "Ended without a decision"
        assert "topics were read to their end" in " ".join(experiment_footnotes(experiment, START + 400 * DAY_MS))

    def test_the_clock_waits_for_late_events(self, redis_server: RedisServer) -> None:
        """Events may arrive by `allowed_lateness` after the last feedback window."""
        now_ms = START + 3 * DAY_MS + self.EXPERIMENT.horizon_ms - 1
        experiment = self._summary(redis_server, now_ms).experiments["ranker"]
        assert not experiment.is_closed_by_clock
        assert experiment.analysis_json()["closed_by"] == "events"

    @pytest.mark.parametrize(("lag_events", "is_closed"), [(None, False), (1, False), (0, True)])
    def test_the_clock_closes_no_window_while_events_are_unread(
        self, redis_server: RedisServer, lag_events: int | None, *, is_closed: bool
    ) -> None:
        """A worker that is days behind, or was stopped with a lag, has not read the last events of the experiment."""
        now_ms = START + 400 * DAY_MS
        bench = StoreBench(redis_server, self.EXPERIMENT)
        bench.apply([[event for event in student_traffic() if event.timestamp_ms < START + 3 * DAY_MS]])
        count_start(bench.store)
        reader = StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: now_ms)
        assert not reader.read_summary().experiments["ranker"].is_closed_by_clock
        write_worker(bench.store, "host:1", WorkerRecord("1.0", "digest", 0, now_ms, {}, lag_events))
        assert reader.read_summary().experiments["ranker"].is_closed_by_clock == is_closed

    def test_a_given_time_closes_windows_after_the_end(self, redis_server: RedisServer) -> None:
        """`--as-of` is a time until which all events are assumed to have been read."""
        summary = self._summary(redis_server, 0, START + 400 * DAY_MS)
        analysis = summary.experiments["ranker"].analysis
        assert analysis is not None
        assert analysis.verdicts["treatment"].evidence.closed_days == 3
        before_end = self._summary(redis_server, 0, START + 3 * DAY_MS + DAY_MS // 2).experiments["ranker"]
        assert not before_end.is_closed_by_clock

    def test_totals_have_the_time_of_the_newest_event(self, redis_server: RedisServer) -> None:
        """Means as of a past time and counts of today are not under the same time."""
        past_ms = START + 2 * DAY_MS
        summary = self._summary(redis_server, 0, past_ms)
        assert summary.to_json()["as_of"] == format_timestamp(past_ms)
        newest_ms = summary.experiments["ranker"].newest_event_ms
        for content in (summary.to_json(), summary.verdict_json("ranker")):
            assert content["totals_as_of"] == format_timestamp(newest_ms)


class TestFrozenNumbers:
    """Numbers that no event changes any more are judged as of their own newest event."""

    NOW_MS = START + 400 * DAY_MS
    ARCHIVED = ExperimentHistory(archived_at_ms=START + 3 * DAY_MS)
    PREVIOUS = ExperimentHistory(
        definition_since_ms=START + 3 * DAY_MS, backfill=BackfillProgress("running"), is_previous_definition=True
    )

    def _reader(self, redis_server: RedisServer, history: ExperimentHistory, ends_at_ms: int | None) -> StoreReader:
        """Return a reader of three days of events, followed by an event of another experiment a month later."""
        bench = StoreBench(redis_server, replace(DECISION_EXPERIMENT, ends_at_ms=ends_at_ms))
        bench.apply([[event for event in student_traffic() if event.timestamp_ms < START + 3 * DAY_MS]])
        writer = bench.connect_writer()
        assert writer.reload_state()
        later = PositionUpdate("other:0", None, Position(1, newest_ms=START + 33 * DAY_MS))
        assert writer.update_positions([later], {})
        reader = StoreReader(bench.store, bench.settings, bench.metadata.numbers, lambda: self.NOW_MS)
        reader.histories = {"ranker": history}
        return reader

    @pytest.mark.parametrize("history", [ARCHIVED, PREVIOUS], ids=["archived", "previous"])
    def test_events_of_other_experiments_complete_no_window(
        self, redis_server: RedisServer, history: ExperimentHistory
    ) -> None:
        """The feedback of the last days is missing, so these days must not count as complete."""
        experiment = self._reader(redis_server, history, None).read_summary().experiments["ranker"]
        assert experiment.analysis is not None
        assert experiment.analysis.as_of_ms == experiment.last_event_at_ms
        assert experiment.analysis.verdicts["treatment"].evidence.closed_days == 0
        running = self._reader(redis_server, ExperimentHistory(), None).read_summary().experiments["ranker"]
        assert running.analysis is not None
        assert running.analysis.as_of_ms == START + 33 * DAY_MS
        assert running.analysis.verdicts["treatment"].evidence.closed_days == 3

    def test_an_experiment_that_ended_before_it_was_archived_keeps_its_complete_windows(
        self, redis_server: RedisServer
    ) -> None:
        """All its events had been read by then."""
        archived = ExperimentHistory(archived_at_ms=START + 60 * DAY_MS)
        reader = self._reader(redis_server, archived, START + 3 * DAY_MS)
        analysis = reader.read_summary(self.NOW_MS).experiments["ranker"].analysis
        assert analysis is not None
        assert analysis.verdicts["treatment"].evidence.closed_days == 3

    @pytest.mark.parametrize("history", [ARCHIVED, PREVIOUS], ids=["archived", "previous"])
    def test_they_are_never_stale(self, redis_server: RedisServer, history: ExperimentHistory) -> None:
        """No newer event is expected."""
        stale = []
        for each in (ExperimentHistory(), history):
            reader = self._reader(redis_server, each, None)
            health = read_health(reader, reader._settings, reader.read_summary(), self.NOW_MS)
            stale.append([name for name, freshness in health.freshness.items() if freshness.is_stale])
        assert stale == [["ranker"], []]
