"""Sums by day in a real store, with days of a time zone, compared with the events."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from io import StringIO
from zoneinfo import ZoneInfo

import numpy as np
import pytest
from rich.console import Console

from monitor.config import ExperimentSettings
from monitor.events import Feedback, Response
from monitor.export.item_tables import render_worst_items
from monitor.export.presentation import format_time
from monitor.metrics.record_layout import EXPOSURE_AGES
from monitor.state import read_first_response_ms
from monitor.state.aggregate_audit import audit_aggregates
from monitor.stats import Estimate
from tests.servers.redis import RedisServer
from tests.support.oracle import ExpectedResponse, compute_expected_responses, local_day, local_time_ms
from tests.support.store_bench import StoreBench
from tests.support.streams import HOUR, RICH

Events = list[Response | Feedback]
DAYS = 9
"""Days on which students may enter; the clock is changed on the fifth."""
ZONES_AND_FIRST_DAYS = [
    ("Europe/Berlin", "2026-03-25"),
    ("Europe/Berlin", "2026-10-21"),
    ("America/New_York", "2026-10-28"),
    ("Australia/Lord_Howe", "2026-04-01"),
    ("Asia/Kolkata", "2026-03-25"),
    ("UTC", "2026-03-25"),
]


def _experiment(zone: str) -> ExperimentSettings:
    return replace(RICH, day_zone=zone, starts_at_ms=None, pre_period_ms=None)


def _traffic(zone: str, first_day: int, students: int = 160) -> Events:
    """Return responses of students, many of them within an hour of local midnight, with ratings."""
    chance = np.random.default_rng(3)
    events: Events = []
    for student in range(students):
        entry_day = first_day + int(chance.integers(0, DAYS))
        for number in range(int(chance.integers(1, 8))):
            day = entry_day + int(chance.integers(0, 6))
            hour, minute = ((23, 30), (0, 30), (int(chance.integers(0, 24)), int(chance.integers(0, 60))))[number % 3]
            response = Response(
                f"r-{student}-{number}",
                local_time_ms(zone, day, hour, minute) + student,
                "ranker",
                ("control", "treatment")[student % 2],
                ("video-1", "video-2"),
                None,
                f"student-{student}" if student % 40 != 3 else None,
                category=(None, "fractions", "geometry")[number % 3],
                latency_ms=100.0 * number,
            )
            events.append(response)
            if chance.random() < 0.7:
                score, at_ms = float(chance.integers(0, 5)), response.timestamp_ms + HOUR
                rating = Feedback(
                    f"f-{student}-{number}", response.response_id, at_ms, "rating", response.user_id, "video-2", score
                )
                events.append(rating)
    return events


class _Oracle:
    """The students of the events with their responses by local day."""

    def __init__(self, experiment: ExperimentSettings, events: Events) -> None:
        self.experiment = experiment
        self.students: dict[str, list[Mapping[int, list[ExpectedResponse]]]] = defaultdict(list)
        """Variant → students → day → responses; a response without a student is a student."""
        by_student: dict[str, list[ExpectedResponse]] = defaultdict(list)
        for expected in compute_expected_responses(experiment, events):
            by_student[expected.response.user_id or expected.response.response_id].append(expected)
        for responses in by_student.values():
            by_day: dict[int, list[ExpectedResponse]] = defaultdict(list)
            for expected in responses:
                by_day[local_day(experiment.day_zone, expected.response.timestamp_ms)].append(expected)
            self.students[responses[0].response.variant].append(by_day)

    def closed_windows(
        self, variant: str, as_of_ms: int, first_age: int, end_age: int, closing_age: int | None = None
    ) -> list[dict[int, list[ExpectedResponse]]]:
        """Return day → responses in an age range, of each student whose range and feedback window are over."""
        windows = []
        for by_day in self.students[variant]:
            first_day = min(by_day)
            end_ms = local_time_ms(self.experiment.day_zone, first_day + (closing_age or end_age))
            if end_ms + self.experiment.feedback_window_ms <= as_of_ms:
                ages = range(first_age, end_age)
                windows.append({age: by_day[first_day + age] for age in ages if first_day + age in by_day})
        return windows


def _primary_mean(window: Mapping[int, Sequence[ExpectedResponse]]) -> float | None:
    values = [expected.metrics["dcg@5"] for day in window.values() for expected in day if expected.is_rated]
    return float(np.mean([value or 0.0 for value in values])) if values else None


def _assert_estimate(actual: Estimate, values: Sequence[float | None]) -> None:
    defined = [value for value in values if value is not None]
    assert actual.units == len(defined) > 1
    assert actual.mean == pytest.approx(np.mean(defined), abs=1e-8)
    assert actual.variance == pytest.approx(np.var(defined, ddof=1) / len(defined), rel=1e-5)


@pytest.fixture(params=ZONES_AND_FIRST_DAYS, ids=lambda zone_and_day: f"{zone_and_day[0]}, {zone_and_day[1]}")
def store(request: pytest.FixtureRequest, redis_server: RedisServer) -> tuple[StoreBench, Events, int]:
    """Return a filled store with its events and first day."""
    zone, first_day = request.param[0], int(np.datetime64(request.param[1], "D").astype(int))
    bench, events = StoreBench(redis_server, _experiment(zone)), _traffic(zone, first_day)
    bench.apply([events[200:], events[:200]])
    return bench, events, first_day


def test_cohorts_and_windows_are_local_days(store: tuple[StoreBench, Events, int]) -> None:
    """Closed means, return days, ages since first exposure and hours of first exposure, as of several moments."""
    bench, events, first_day = store
    experiment, (settings,) = bench.experiment.settings, bench.settings.experiments
    oracle, zone = _Oracle(experiment, events), settings.day_zone
    closing_ms = local_time_ms(zone, first_day + 8) + experiment.feedback_window_ms
    for as_of_ms in (closing_ms - 1, closing_ms, max(event.timestamp_ms for event in events)):
        analysis = bench.reader.read_summary(as_of_ms).experiments["ranker"].analysis
        assert analysis is not None
        comparison = analysis.comparisons["treatment"]["dcg@5"]["closed"]
        verdict = analysis.verdicts["treatment"]
        guardrails = {result.guardrail.name: result for result in verdict.guardrails}
        for variant in ("control", "treatment"):
            windows = oracle.closed_windows(variant, as_of_ms, 0, experiment.exposure_days)
            _assert_estimate(getattr(comparison, variant), list(map(_primary_mean, windows)))
            _assert_estimate(getattr(guardrails["return_days"], variant), [len(window) - 1.0 for window in windows])
            ages = analysis.subgroup_effects["treatment"].exposure_ages
            ends = [*(first_age for first_age, _ in EXPOSURE_AGES[1:]), 1000]
            for (first_age, name), end_age, age in zip(EXPOSURE_AGES, ends, ages, strict=True):
                closing_age = first_age + 1 if name == EXPOSURE_AGES[-1][1] else None
                windows = oracle.closed_windows(variant, as_of_ms, first_age, end_age, closing_age)
                means = [mean for mean in map(_primary_mean, windows) if mean is not None]
                assert getattr(age.comparison, variant).units == len(means)


def test_hours_of_first_exposure_are_local_hours(store: tuple[StoreBench, Events, int]) -> None:
    """The first response is at the beginning of its local hour, not later than it happened."""
    bench, events, _ = store
    zone = bench.experiment.settings.day_zone
    first_ms: dict[str, int] = {}
    for event in events:
        if isinstance(event, Response) and event.user_id is not None:
            first_ms[event.user_id] = min(first_ms.get(event.user_id, event.timestamp_ms), event.timestamp_ms)
    expected = Counter(datetime.fromtimestamp(time_ms // 1000, ZoneInfo(zone)).hour for time_ms in first_ms.values())
    analysis = bench.reader.read_summary().experiments["ranker"].analysis
    assert analysis is not None
    evidence = analysis.verdicts["treatment"].evidence
    hours = Counter({int(part.name[:2]): sum(part.phases[0].students.values()) for part in evidence.exposure_hours})
    assert hours == expected
    assert all(part.name.endswith(f" {zone}") for part in evidence.exposure_hours)
    assert evidence.first_response_ms is not None
    assert 0 <= min(event.timestamp_ms for event in events) - evidence.first_response_ms < HOUR


def test_drift_compares_whole_local_days(store: tuple[StoreBench, Events, int]) -> None:
    """The newest whole day with the first day, by category and by item."""
    bench, events, first_day = store
    zone = bench.experiment.settings.day_zone
    as_of_ms = local_time_ms(zone, first_day + 6)
    summary = bench.reader.read_summary(as_of_ms).experiments["ranker"].variants["control"]
    drift = summary.category_drift
    assert drift is not None
    categories = {"fractions": 0, "geometry": 0, "other": 0, "none": 0}
    by_day: dict[int, Counter[str]] = defaultdict(Counter)
    for event in events:
        if isinstance(event, Response) and event.variant == "control":
            by_day[local_day(zone, event.timestamp_ms)][event.category or "none"] += 1
    assert drift.day == local_day(zone, as_of_ms // HOUR * HOUR) - 1
    assert dict(drift.counts) == {name: by_day[drift.day][name] for name in categories}
    assert dict(drift.reference) == {name: by_day[min(by_day)][name] for name in categories}


def test_the_audit_finds_no_difference(store: tuple[StoreBench, Events, int]) -> None:
    """It recomputes cohorts, days of traffic and items by the days of the experiment."""
    bench, _, _ = store
    findings = audit_aggregates(bench.store, bench.settings)
    assert findings.differences == []
    assert findings.unchecked == []


def test_item_counts_begin_with_a_local_day(store: tuple[StoreBench, Events, int]) -> None:
    """The period of the counts begins at local midnight; the table has the time in UTC."""
    bench, events, _ = store
    stored_items = bench.reader.item_reader("ranker").read_items([0.0, 4.0])
    zone = bench.experiment.settings.day_zone
    assert stored_items.since_ms is not None
    assert stored_items.since_ms == local_time_ms(zone, local_day(zone, stored_items.since_ms))
    responses = [event for event in events if isinstance(event, Response) and event.variant == "control"]
    assert stored_items.by_variant["control"]["video-1"].shown_count == len(responses)
    console = Console(file=StringIO(), width=200)
    with console.capture() as output:
        console.print(render_worst_items("ranker", stored_items, 5))
    assert f"the worst rated items since {format_time(stored_items.since_ms)}" in output.get()


def test_the_first_response_is_not_earlier_than_its_local_day(store: tuple[StoreBench, Events, int]) -> None:
    """A rebuild needs all records from the beginning of that day on."""
    bench, events, _ = store
    zone, first_ms = bench.experiment.settings.day_zone, min(event.timestamp_ms for event in events)
    assert read_first_response_ms(bench.store, ["ranker"]) == local_time_ms(zone, local_day(zone, first_ms))
