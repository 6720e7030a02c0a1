"""What is summed over students besides the metrics, from a real store: what the events themselves say."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.analysis.verdicts import Judgement
from monitor.config import Population
from monitor.errors import StoreOwned
from monitor.events import Feedback, Response
from monitor.metrics.record_layout import AGES
from monitor.state import open_store
from monitor.stats import Estimate, decide
from monitor.stats.decision import evidence_from
from tests.integration.pipeline.test_exactness import Bench
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY, Judged, judge
from tests.support.streams import EXPERIMENT, HOUR, RICH, START, changed

Events = list[Response | Feedback]
PLAIN = replace(EXPERIMENT, categories=())
"""With nothing that has to be asked for."""
WHOLE = replace(RICH, starts_at_ms=None, pre_period_ms=None)
"""With everything but a time before the experiment."""
BEFORE_MS = 4 * DAY
PAIRED = replace(RICH, starts_at_ms=START + 5 * DAY, pre_period_ms=BEFORE_MS)
"""With a time before the experiment: the first day of the traffic is not even in that."""


def traffic(students: int = 200, days: int = 12, lasting: int = 6) -> Events:
    """Return events of students who ask for some days; some are rated or escalated, some say how long they took."""
    chance = np.random.default_rng(11)
    events: Events = []
    for student in range(students):
        variant = ("control", "treatment")[student % 2]
        first = START + int(chance.integers(0, days * DAY))
        for number in range(int(chance.integers(1, 9))):
            at_ms = first + int(chance.integers(0, lasting * DAY))
            identity = f"r-{student}-{number}"
            shown = "treatment" if student % 50 == 0 and number else variant
            user = None if student % 40 == 3 else f"student-{student}"
            latency = None if chance.random() < 0.1 else float(chance.integers(50, 900))
            items = ("video-1", "video-2")
            category = (None, "fractions", "geometry", "history")[int(chance.integers(0, 4))]
            events.append(
                Response(identity, at_ms, "ranker", shown, items, None, user, category=category, latency_ms=latency)
            )
            if chance.random() < 0.7:
                score = float(chance.integers(0, 5))
                events.append(Feedback(f"f-{identity}", identity, at_ms + HOUR, "rating", user, "video-2", score))
            if chance.random() < 0.2:
                events.append(Feedback(f"e-{identity}", identity, at_ms + HOUR, "escalated", user))
    return events


def units(events: Events) -> dict[str, list[list[Judged]]]:
    """Return variant → students → responses, of students who saw one variant; unnamed responses are students."""
    by_student: dict[str, list[Judged]] = defaultdict(list)
    for number, each in enumerate(judge(WHOLE, events)):
        by_student[each.response.user_id or f"unnamed-{number}"].append(each)
    found: dict[str, list[list[Judged]]] = defaultdict(list)
    for own in by_student.values():
        if len({each.response.variant for each in own}) == 1:
            found[own[0].response.variant].append(own)
    return found


def days_since_first(own: Sequence[Judged]) -> Mapping[int, list[Judged]]:
    """Return a student's responses by whole UTC days since the first."""
    first = min(each.response.timestamp_ms // DAY for each in own)
    by_day: dict[int, list[Judged]] = defaultdict(list)
    for each in own:
        by_day[each.response.timestamp_ms // DAY - first].append(each)
    return by_day


def windows(students: Sequence[Sequence[Judged]], at_ms: int) -> list[list[Judged]]:
    """Return the responses in the closed windows that are over."""
    found = []
    for own in students:
        first = min(each.response.timestamp_ms for each in own) // DAY
        if (first + RICH.exposure_days) * DAY + RICH.feedback_window_ms <= at_ms:
            found.append([each for day in range(RICH.exposure_days) for each in days_since_first(own).get(day, ())])
    return found


def estimate(values: Sequence[float]) -> tuple[int, float, float]:
    """Return number, mean and the variance of the mean."""
    return len(values), float(np.mean(values)), float(np.var(values, ddof=1)) / len(values)


def same(found: Estimate, expected: tuple[int, float, float]) -> None:
    """Compare an estimate with one of the definitions."""
    assert found.units == expected[0]
    assert found.mean == pytest.approx(expected[1], abs=1e-8)
    assert found.variance == pytest.approx(expected[2], rel=1e-5)


def judged(bench: Bench, at_ms: int | None = None) -> Judgement:
    """Return what is said of the variants."""
    found = bench.reader.summary(at_ms).experiments["ranker"].judgement
    assert found is not None
    return found


def _escalated(window: Sequence[Judged]) -> float:
    return float(np.mean([each.kinds.get("escalated", 0) > 0 for each in window]))


def _latency(window: Sequence[Judged]) -> float | None:
    known = [each.response.latency_ms for each in window if each.response.latency_ms is not None]
    return float(np.mean(known)) if known else None


@pytest.mark.parametrize("shards", [1, 3])
def test_guardrails_are_means_over_all_responses_of_a_student(redis_server: RedisServer, shards: int) -> None:
    """Rated or not; a response that does not say how long it took is in no latency."""
    bench = Bench(redis_server, WHOLE, shards)
    events = traffic()
    bench.feed([events[:300], events[300:]])
    at_ms = max(event.timestamp_ms for event in events)
    results = {each.guardrail.name: each for each in judged(bench).verdicts["treatment"].guardrails}
    expected: Mapping[str, Callable[[Sequence[Judged]], float | None]] = {
        "feedback:escalated": _escalated,
        "latency_ms": _latency,
    }
    for name, value_of in expected.items():
        for variant, found in (("control", results[name].control), ("treatment", results[name].treatment)):
            values = [value_of(window) for window in windows(units(events)[variant], at_ms)]
            same(found, estimate([value for value in values if value is not None]))


def test_what_is_watched_is_a_definition(redis_server: RedisServer) -> None:
    """Its sums are not there; criteria about it may change all the same."""
    bench = Bench(redis_server, PLAIN)
    watching = replace(bench.settings, experiments=(WHOLE,))
    with pytest.raises(StoreOwned, match=r"ranker\.watched: .* None, .*'feedback:escalated', 'latency_ms'.* rebuild"):
        open_store(bench.shards, watching)
    bench = Bench(redis_server, WHOLE)
    rails = tuple(replace(each, margin=0.5) for each in RICH.decision.guardrails)
    looser = replace(WHOLE, decision=replace(RICH.decision, guardrails=rails))
    open_store(bench.shards, replace(bench.settings, experiments=(looser,)))


def test_without_any_of_it_nothing_more_is_stored(redis_server: RedisServer) -> None:
    """The records of a plain experiment are as wide as its metrics need."""
    bench = Bench(redis_server, PLAIN)
    bench.feed([traffic(50)])
    longest = max(
        bench.store.client.strlen(name) for name in bench.store.client.scan_iter(bench.store.keys.prefix + b"c:*")
    )
    assert longest <= 8 * (7 + 9 * len(PLAIN.metrics))


def _means(students: Sequence[Sequence[Judged]], population: str) -> list[float]:
    """Return the students' means of the primary metric, of those who have one."""
    found = []
    for own in students:
        values = [value for each in own if (value := each.metrics.get(RICH.primary)) is not None]
        size = len(own) if population == "all" else len(values)
        if size:
            found.append(sum(values) / size)
    return found


def _segment(own: Sequence[Judged]) -> str:
    first = min(own, key=lambda each: each.response.timestamp_ms).response.category
    return "none" if first is None else first if first in RICH.categories else "other"


@pytest.mark.parametrize("population", ["rated", "all"])
@pytest.mark.parametrize("shards", [1, 3])
def test_a_student_belongs_to_the_category_of_the_first_response(
    redis_server: RedisServer, shards: int, population: Population
) -> None:
    """And to no other; categories that are not declared are one, and none is another."""
    experiment = replace(WHOLE, decision=replace(RICH.decision, population=population))
    bench = Bench(redis_server, experiment, shards)
    events = traffic()
    bench.feed([events[300:], events[:300]])
    at_ms = max(event.timestamp_ms for event in events)
    students = units(events)
    segments = judged(bench).parts["treatment"].segments
    assert [each.name for each in segments] == ["none", "fractions", "geometry", "other"]
    for segment in segments:
        for variant, found in (("control", segment.comparison.control), ("treatment", segment.comparison.treatment)):
            own = [each for each in students[variant] if _segment(each) == segment.name]
            same(found, estimate(_means(windows(own, at_ms), population)))


@pytest.mark.parametrize("population", ["rated", "all"])
@pytest.mark.parametrize("shards", [1, 3])
def test_ages_are_days_since_the_first_response(redis_server: RedisServer, shards: int, population: Population) -> None:
    """Of the students who have any response then, once that time is over for everybody of their day."""
    experiment = replace(WHOLE, decision=replace(RICH.decision, population=population))
    bench = Bench(redis_server, experiment, shards)
    events = traffic(lasting=12)
    bench.feed([events[300:], events[:300]])
    newest_ms = max(event.timestamp_ms for event in events)
    students = units(events)
    ends = {"0": 1, "1": 2, "2–3": 4, "4–7": 8, "8+": 9}
    for at_ms in (START + 11 * DAY, newest_ms):
        ages = judged(bench, at_ms).parts["treatment"].ages
        assert [each.name for each in ages] == list(ends)
        for (first, name), age in zip(AGES, ages, strict=True):
            for variant, found in (("control", age.comparison.control), ("treatment", age.comparison.treatment)):
                inside = []
                for own in students[variant]:
                    by_day = days_since_first(own)
                    day = min(each.response.timestamp_ms // DAY for each in own)
                    if (day + ends[name]) * DAY + RICH.feedback_window_ms <= at_ms:
                        last = ends[name] if name != "8+" else 1000
                        inside.append([each for at in range(first, last) for each in by_day.get(at, ())])
                same(found, estimate(_means(inside, population)))


def test_the_primary_metric_of_parts_is_a_definition(redis_server: RedisServer) -> None:
    """There are sums of only that one; without parts it may change."""
    bench = Bench(redis_server, WHOLE)
    other = replace(WHOLE, primary="rr@5")
    with pytest.raises(StoreOwned, match=r"ranker\.primary: .* 'dcg@5', .*'rr@5'"):
        open_store(bench.shards, replace(bench.settings, experiments=(other,)))
    bench = Bench(redis_server, PLAIN)
    open_store(bench.shards, replace(bench.settings, experiments=(replace(PLAIN, primary="rr@5"),)))


def _pair(own: Sequence[Judged], population: str) -> tuple[float, float] | None:
    """Return a student's means of the time before the experiment and of the closed window, if there are both."""
    starts_ms = PAIRED.starts_at_ms or 0
    before = [each for each in own if starts_ms - BEFORE_MS <= each.response.timestamp_ms < starts_ms]
    during = [each for each in own if each.response.timestamp_ms >= starts_ms]
    if not before or not during:
        return None
    means = [_means([each], population) for each in (before, windows([during], 1 << 60)[0])]
    return (means[0][0], means[1][0]) if all(means) else None


def _mixed(events: Events) -> Events:
    """Return the events with every other response from before the experiment moved to the other variant."""
    starts_ms = PAIRED.starts_at_ms or 0
    return [
        changed(event, variant="control" if number % 2 else "treatment")
        if isinstance(event, Response) and event.timestamp_ms < starts_ms
        else event
        for number, event in enumerate(events)
    ]


@pytest.mark.parametrize("population", ["rated", "all"])
@pytest.mark.parametrize("shards", [1, 3])
def test_the_primary_metric_is_adjusted_by_what_students_were_like_before(
    redis_server: RedisServer, shards: int, population: Population
) -> None:
    """By the regression over all students who have both, of whichever variant they were shown before."""
    experiment = replace(PAIRED, decision=replace(PAIRED.decision, population=population))
    bench = Bench(redis_server, experiment, shards)
    events = _mixed(traffic(400))
    bench.feed([events[700:], events[:700]])
    at_ms = max(event.timestamp_ms for event in events)
    starts_ms = PAIRED.starts_at_ms or 0
    by_student: dict[str, list[Judged]] = defaultdict(list)
    for number, each in enumerate(judge(PAIRED, events)):
        by_student[each.response.user_id or f"unnamed-{number}"].append(each)
    values: dict[str, list[float]] = {"control": [], "treatment": []}
    pairs: dict[str, list[tuple[float, float, int]]] = {"control": [], "treatment": []}
    for name, own in by_student.items():
        during = [each for each in own if each.response.timestamp_ms >= starts_ms]
        if len({each.response.variant for each in during}) != 1 or not windows([during], at_ms):
            continue
        variant = during[0].response.variant
        if means := _means(windows([during], at_ms), population):
            pair = None if name.startswith("unnamed") else _pair(own, population)
            if pair is not None:
                pairs[variant].append((*pair, len(values[variant])))
            values[variant].append(means[0])
    before, now, _ = np.array(pairs["control"] + pairs["treatment"]).T
    theta = float(np.cov(before, now)[0, 1] / np.var(before, ddof=1))
    verdict = judged(bench).verdicts["treatment"]
    adjustment = verdict.evidence.adjustment
    assert adjustment is not None
    assert adjustment.students == len(before) > 50
    assert adjustment.theta == pytest.approx(theta, rel=1e-6)
    for variant, raw, found in (
        ("control", adjustment.unadjusted.control, verdict.evidence.arms.control),
        ("treatment", adjustment.unadjusted.treatment, verdict.evidence.arms.treatment),
    ):
        same(raw, estimate(values[variant]))
        for x, _, at in pairs[variant]:
            values[variant][int(at)] -= theta * (x - float(np.mean(before)))
        same(found, estimate(values[variant]))
    unadjusted = verdict.unadjusted
    assert unadjusted is not None
    assert unadjusted.difference.effect != verdict.primary.difference.effect
    assert unadjusted.lower is not None
    assert "adjusted" in {note.code for note in verdict.notes}
    printed = json.loads(json.dumps(judged(bench).to_json()))["verdict"]["treatment"]
    assert printed["adjustment"]["unadjusted"]["lower"] == unadjusted.lower
    assert decide(evidence_from(printed["evidence"])).primary == verdict.primary


def test_the_time_before_counts_to_nothing_else(redis_server: RedisServer) -> None:
    """Not to responses, feedback, exposure, crossovers, the sample ratio or the newest response."""
    events = _mixed(traffic(400))
    starts_ms = PAIRED.starts_at_ms or 0
    told = []
    for pre_period_ms in (None, BEFORE_MS):
        bench = Bench(redis_server, replace(PAIRED, pre_period_ms=pre_period_ms))
        bench.feed([events])
        found = bench.reader.summary().experiments["ranker"]
        assert found.judgement is not None
        printed = found.to_json()
        for key in ("verdict", "comparisons", "guardrails"):
            del printed[key]
        told.append((printed, found.judgement.verdicts["treatment"].guardrails))
        assert not (found.variants["control"].last_response_at_ms or 0) < starts_ms
    assert told[0] == told[1]


def test_without_anything_from_before_nothing_is_adjusted(redis_server: RedisServer) -> None:
    """The stream may begin with the experiment."""
    bench = Bench(redis_server, PAIRED)
    starts_ms = PAIRED.starts_at_ms or 0
    bench.feed([[event for event in traffic() if event.timestamp_ms >= starts_ms]])
    verdict = judged(bench).verdicts["treatment"]
    assert verdict.evidence.adjustment is None
    assert verdict.unadjusted is None
    assert "adjusted" not in {note.code for note in verdict.notes}
