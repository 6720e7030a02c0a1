"""Verdicts from a real store: the same from any number of shards, and what the events themselves say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.analysis.verdicts import Judgement
from monitor.config import DecisionSettings
from monitor.events import Feedback, Response
from monitor.state import Advance, Position, Reader, Refusals
from monitor.stats import Estimate
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY, Judged, judge
from tests.support.streams import EXPERIMENT, HOUR, START

DECIDED = replace(EXPERIMENT, decision=DecisionSettings(mde=0.3, min_days=0))
Events = list[Response | Feedback]


def _traffic(students: int = 160, days: int = 12) -> Events:
    """Return events of students with several responses each on days of their own, some rated, a few crossovers."""
    chance = np.random.default_rng(7)
    events: Events = []
    for student in range(students):
        variant = ("control", "treatment")[student % 2]
        first = START + int(chance.integers(0, days * DAY))
        for number in range(int(chance.integers(1, 6))):
            at_ms = first + int(chance.integers(0, 5 * DAY))
            identity = f"r-{student}-{number}"
            shown = "treatment" if student % 50 == 0 and number else variant
            items = ("video-1", "video-2")
            user = None if student % 40 == 3 else f"student-{student}"
            events.append(Response(identity, at_ms, "ranker", shown, items, None, user))
            if chance.random() < 0.7:
                score = float(chance.integers(0, 5))
                events.append(Feedback(f"f-{identity}", identity, at_ms + HOUR, "rating", user, "video-2", score))
    return events


def _judged(bench: Bench, at_ms: int | None = None) -> Judgement:
    found = bench.reader.summary(at_ms).experiments["ranker"].judgement
    assert found is not None
    return found


def _windows(judged: Sequence[Judged], at_ms: int) -> dict[str, list[list[Judged]]]:
    """Return variant → students → responses in the student's closed window, of students who saw one variant."""
    by_student: dict[str, list[Judged]] = defaultdict(list)
    for number, each in enumerate(judged):
        by_student[each.response.user_id or f"unnamed-{number}"].append(each)
    windows: dict[str, list[list[Judged]]] = defaultdict(list)
    for own in by_student.values():
        first = min(each.response.timestamp_ms for each in own) // DAY
        over = (first + EXPERIMENT.exposure_days) * DAY + EXPERIMENT.feedback_window_ms <= at_ms
        if over and len({each.response.variant for each in own}) == 1:
            inside = [each for each in own if each.response.timestamp_ms // DAY < first + EXPERIMENT.exposure_days]
            windows[own[0].response.variant].append(inside)
    return windows


def _estimate(windows: Sequence[Sequence[Judged]], metric: str, population: str) -> tuple[int, float, float]:
    """Return students, mean and its variance, from the definitions."""
    values = []
    for window in windows:
        defined = [value for each in window if (value := each.metrics.get(metric)) is not None]
        size = len(window) if population == "all" else len(defined)
        if size:
            values.append(sum(defined) / size)
    return len(values), float(np.mean(values)), float(np.var(values, ddof=1)) / len(values)


def _same(found: Estimate, expected: tuple[int, float, float]) -> None:
    assert found.units == expected[0]
    assert found.mean == pytest.approx(expected[1], abs=1e-8)
    assert found.variance == pytest.approx(expected[2], rel=1e-5)


@pytest.mark.parametrize("at_days", [6.0, 9.3, 30.0])
def test_the_deciding_means_are_those_of_the_events(redis_server: RedisServer, at_days: float) -> None:
    """Recomputed from all events at once, for every metric and both populations."""
    bench = Bench(redis_server, DECIDED)
    events = _traffic()
    bench.feed([events[:300], events[300:]])
    newest = max(event.timestamp_ms for event in events)
    at_ms = START + int(at_days * DAY)
    windows = _windows(judge(DECIDED, events), min(at_ms, newest))
    judgement = _judged(bench, at_ms)
    for metric, both in judgement.comparisons["treatment"].items():
        _same(both["closed"].control, _estimate(windows["control"], metric, "rated"))
        _same(both["closed"].treatment, _estimate(windows["treatment"], metric, "rated"))
    other = judgement.verdicts["treatment"].evidence.other_population
    assert other is not None
    _same(other.treatment, _estimate(windows["treatment"], "dcg@5", "all"))


def test_shards_change_nothing(redis_server: RedisServer) -> None:
    """One or three: the same numbers in every byte of the JSON."""
    printed = []
    for shards in (1, 3):
        bench = Bench(redis_server, DECIDED, shards)
        bench.feed([_traffic()])
        printed.append(json.dumps(_judged(bench).to_json()))
    assert printed[0] == printed[1]


def test_lost_events_of_any_shard_are_seen(redis_server: RedisServer) -> None:
    """They are counted on the shard of their partition, and make the verdict invalid."""
    bench = Bench(redis_server, DECIDED, 3)
    bench.feed([_traffic()])
    writer = bench.writer()
    assert writer.state()
    assert writer.advance([Advance("t:2", None, Position(17))], {"t:2": 17})
    assert _judged(bench).verdicts["treatment"].evidence.lost_events == 17


def test_too_many_refused_events_make_it_invalid(redis_server: RedisServer) -> None:
    """Of the newest ones of all partitions together; where nothing was read, nobody knows."""
    bench = Bench(redis_server, DECIDED, 3)
    assert _judged(bench).verdicts["treatment"].evidence.refused_share is None
    bench.feed([_traffic()])
    writer = bench.writer()
    assert writer.state()
    steps = [
        Advance("t:0", None, Position(1, START, Refusals(0, 100, 3))),
        Advance("t:1", None, Position(400, START, Refusals(0, 100, 1))),
    ]
    assert writer.advance(steps, {})
    verdict = _judged(bench).verdicts["treatment"]
    assert verdict.evidence.refused_share == 0.02
    assert "refused_events" in {reason.code for reason in (*verdict.reasons, *verdict.notes)}


def test_other_criteria_read_the_same_store(redis_server: RedisServer) -> None:
    """Nothing stored depends on them."""
    bench = Bench(redis_server, DECIDED)
    bench.feed([_traffic()])
    other = replace(DECIDED, decision=DecisionSettings(mde=0.1, margin=1.0, alpha=0.01, population="all"))
    settings = replace(bench.settings, experiments=(other,))
    judgement = (
        Reader(bench.shards, settings, bench.opened.numbers, lambda: 0).summary().experiments["ranker"].judgement
    )
    assert judgement is not None
    assert judgement.verdicts["treatment"].evidence.criteria.margin == 1.0


def test_the_clock_is_that_of_the_whole_store(redis_server: RedisServer) -> None:
    """Traffic of other experiments shows that a window is over, also to a reader of just this one."""
    bench = Bench(redis_server, DECIDED)
    bench.feed([[event for event in _traffic() if event.timestamp_ms < START + 3 * DAY]])
    writer = bench.writer()
    assert writer.state()
    assert writer.advance([Advance("t:1", None, Position(1, START + 9 * DAY))], {})
    assert _judged(bench).at_ms == START + 9 * DAY
    assert _judged(bench).comparisons["treatment"]["dcg@5"]["closed"].control.units > 0


def test_a_time_after_the_newest_event_closes_no_window(redis_server: RedisServer) -> None:
    """What has not been read yet may still belong to it."""
    bench = Bench(redis_server, DECIDED)
    bench.feed([[event for event in _traffic() if event.timestamp_ms < START + 3 * DAY]])
    assert _judged(bench, START + 400 * DAY).comparisons["treatment"]["dcg@5"]["closed"].control.units == 0
