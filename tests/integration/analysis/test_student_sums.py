"""Sums over students in a real store: guardrails, segments, exposure ages and CUPED, compared with the events."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from monitor.analysis.analyzer import Analysis
from monitor.config import Population
from monitor.engine import EventBatch
from monitor.errors import IncompatibleStore
from monitor.events import Feedback, Response
from monitor.metrics import RecordLayout
from monitor.metrics.record_layout import EXPOSURE_AGES
from monitor.state import Position, PositionUpdate, initialize_store
from monitor.stats import Estimate, decide_verdict
from monitor.stats.decision import parse_evidence
from tests.servers.redis import RedisServer
from tests.support.oracle import DAY_MS, ExpectedResponse, compute_expected_responses
from tests.support.store_bench import StoreBench
from tests.support.streams import EXPERIMENT, HOUR, RICH, START, changed

Events = list[Response | Feedback]
PLAIN_EXPERIMENT = replace(EXPERIMENT, categories=())
"""Without any optional sums."""
FULL_EXPERIMENT = replace(RICH, starts_at_ms=None, pre_period_ms=None)
"""With all optional sums but those of a pre-period."""
PRE_PERIOD_MS = 4 * DAY_MS
PRE_PERIOD_EXPERIMENT = replace(RICH, starts_at_ms=START + 5 * DAY_MS, pre_period_ms=PRE_PERIOD_MS)
"""With a pre-period; the first day of the traffic is earlier than the pre-period."""


def rich_traffic(students: int = 200, days: int = 12, lasting: int = 6) -> Events:
    """Return responses of students on several days, most with a latency, some with a rating or an escalation."""
    chance = np.random.default_rng(11)
    events: Events = []
    for student in range(students):
        variant = ("control", "treatment")[student % 2]
        first_ms = START + int(chance.integers(0, days * DAY_MS))
        for number in range(int(chance.integers(1, 9))):
            timestamp_ms = first_ms + int(chance.integers(0, lasting * DAY_MS))
            response_id = f"r-{student}-{number}"
            response_variant = "treatment" if student % 50 == 0 and number else variant
            user = None if student % 40 == 3 else f"student-{student}"
            latency = None if chance.random() < 0.1 else float(chance.integers(50, 900))
            items = ("video-1", "video-2")
            category = (None, "fractions", "geometry", "history")[int(chance.integers(0, 4))]
            events.append(
                Response(
                    response_id,
                    timestamp_ms,
                    "ranker",
                    response_variant,
                    items,
                    None,
                    user,
                    category=category,
                    latency_ms=latency,
                )
            )
            if chance.random() < 0.7:
                score = float(chance.integers(0, 5))
                events.append(
                    Feedback(f"f-{response_id}", response_id, timestamp_ms + HOUR, "rating", user, "video-2", score)
                )
            if chance.random() < 0.2:
                events.append(Feedback(f"e-{response_id}", response_id, timestamp_ms + HOUR, "escalated", user))
            if (student + number) % 3:
                score = float(1 + (student * 7 + number) % 5)
                events.append(
                    Feedback(f"s-{response_id}", response_id, timestamp_ms + HOUR, "reviewed", user, score=score)
                )
    return events


def students_by_variant(events: Events) -> dict[str, list[list[ExpectedResponse]]]:
    """Return variant → students → responses, without students of several variants; unnamed responses are students."""
    responses_by_student: dict[str, list[ExpectedResponse]] = defaultdict(list)
    for number, expected_response in enumerate(compute_expected_responses(FULL_EXPERIMENT, events)):
        responses_by_student[expected_response.response.user_id or f"unnamed-{number}"].append(expected_response)
    students: dict[str, list[list[ExpectedResponse]]] = defaultdict(list)
    for student_responses in responses_by_student.values():
        if len({expected_response.response.variant for expected_response in student_responses}) == 1:
            students[student_responses[0].response.variant].append(student_responses)
    return students


def days_since_first(student_responses: Sequence[ExpectedResponse]) -> Mapping[int, list[ExpectedResponse]]:
    """Return whole UTC days since a student's first response → the student's responses."""
    first_day = min(expected_response.response.timestamp_ms // DAY_MS for expected_response in student_responses)
    by_day: dict[int, list[ExpectedResponse]] = defaultdict(list)
    for expected_response in student_responses:
        by_day[expected_response.response.timestamp_ms // DAY_MS - first_day].append(expected_response)
    return by_day


def closed_windows(students: Sequence[Sequence[ExpectedResponse]], as_of_ms: int) -> list[list[ExpectedResponse]]:
    """Return each student's responses in the exposure window, of students whose windows are over."""
    student_windows = []
    for student_responses in students:
        first_day = min(expected_response.response.timestamp_ms for expected_response in student_responses) // DAY_MS
        if (first_day + RICH.exposure_days) * DAY_MS + RICH.feedback_window_ms <= as_of_ms:
            by_day = days_since_first(student_responses)
            student_windows.append(
                [expected_response for day in range(RICH.exposure_days) for expected_response in by_day.get(day, ())]
            )
    return student_windows


def expected_estimate(values: Sequence[float]) -> tuple[int, float, float]:
    """Return (number, mean, variance of the mean) by definition."""
    return len(values), float(np.mean(values)), float(np.var(values, ddof=1)) / len(values)


def assert_estimate(actual: Estimate, expected: tuple[int, float, float]) -> None:
    """Assert that an estimate is equal to (number, mean, variance of the mean)."""
    assert actual.units == expected[0]
    assert actual.mean == pytest.approx(expected[1], abs=1e-8, rel=1e-9)
    assert actual.variance == pytest.approx(expected[2], rel=1e-5)


def analyze_store(bench: StoreBench, as_of_ms: int | None = None) -> Analysis:
    """Return the experiment's analysis as of a time; by default, of the newest event."""
    analysis = bench.reader.read_summary(as_of_ms).experiments["ranker"].analysis
    assert analysis is not None
    return analysis


def _escalated(window: Sequence[ExpectedResponse]) -> float:
    return float(np.mean([expected_response.kinds.get("escalated", 0) > 0 for expected_response in window]))


def _latency(window: Sequence[ExpectedResponse]) -> float | None:
    latencies = [
        expected_response.response.latency_ms
        for expected_response in window
        if expected_response.response.latency_ms is not None
    ]
    return float(np.mean(np.minimum(latencies, 60_000))) if latencies else None


def _slow_share(window: Sequence[ExpectedResponse]) -> float | None:
    latencies = [response.latency_ms for item in window if (response := item.response).latency_ms is not None]
    return float(np.mean([latency > 500 for latency in latencies])) if latencies else None


def _return_days(window: Sequence[ExpectedResponse]) -> float:
    return len({expected_response.response.timestamp_ms // DAY_MS for expected_response in window}) - 1.0


@pytest.mark.parametrize("shards", [1, 3])
def test_guardrails_are_means_over_all_responses_of_a_student(redis_server: RedisServer, shards: int) -> None:
    """Rated or not; a response without a latency does not count for the mean latency."""
    bench = StoreBench(redis_server, FULL_EXPERIMENT, shards)
    events = rich_traffic()
    bench.apply([events[:300], events[300:]])
    as_of_ms = max(event.timestamp_ms for event in events)
    results = {result.guardrail.name: result for result in analyze_store(bench).verdicts["treatment"].guardrails}
    expected: Mapping[str, Callable[[Sequence[ExpectedResponse]], float | None]] = {
        "share:escalated": _escalated,
        "latency_ms": _latency,
        "latency_above_ms:500": _slow_share,
        "responses_per_student": lambda window: float(len(window)),
        "return_days": _return_days,
    }
    for name, value_of in expected.items():
        for variant, estimate in (("control", results[name].control), ("treatment", results[name].treatment)):
            values = [value_of(window) for window in closed_windows(students_by_variant(events)[variant], as_of_ms)]
            assert_estimate(estimate, expected_estimate([value for value in values if value is not None]))


def _with_sessions(events: Events) -> Events:
    """Return the events with a session for nine of ten responses: some responses of a student share one."""
    sessions = ("morning", "evening", "night")
    return [
        changed(event, session_id=None if number % 10 == 0 else sessions[number % 3])
        if isinstance(event, Response)
        else event
        for number, event in enumerate(events)
    ]


def _sessions(window: Sequence[ExpectedResponse]) -> dict[str, list[ExpectedResponse]]:
    by_session: dict[str, list[ExpectedResponse]] = defaultdict(list)
    for expected_response in window:
        if expected_response.response.session_id is not None:
            by_session[expected_response.response.session_id].append(expected_response)
    return by_session


def _successful_share(window: Sequence[ExpectedResponse]) -> float | None:
    outcomes = [
        any(response.metrics.get("success@2") for response in responses) for responses in _sessions(window).values()
    ]
    return float(np.mean(outcomes)) if outcomes else None


@pytest.mark.parametrize("shards", [1, 3])
def test_student_metrics_are_values_of_a_student_in_the_exposure_window(redis_server: RedisServer, shards: int) -> None:
    """A session that goes on after midnight is counted once; students without a session have no value per session."""
    bench = StoreBench(redis_server, FULL_EXPERIMENT, shards)
    events = _with_sessions(rich_traffic())
    bench.apply([events[500:], events[:200], events[200:500]])
    as_of_ms = max(event.timestamp_ms for event in events)
    comparisons = analyze_store(bench).comparisons["treatment"]
    expected: Mapping[str, Callable[[Sequence[ExpectedResponse]], float | None]] = {
        "per_student:share:escalated": lambda window: sum(each.metrics["share:escalated"] or 0.0 for each in window),
        "sessions_per_student": lambda window: float(len(_sessions(window))) or None,
        "responses_per_session": lambda window: (
            float(np.mean([*map(len, _sessions(window).values())])) if _sessions(window) else None
        ),
        "sessions_with:success@2": _successful_share,
    }
    for name, value_of in expected.items():
        comparison = comparisons[name]["closed"]
        for variant, estimate in (("control", comparison.control), ("treatment", comparison.treatment)):
            values = [value_of(window) for window in closed_windows(students_by_variant(events)[variant], as_of_ms)]
            assert_estimate(estimate, expected_estimate([value for value in values if value is not None]))


def test_students_are_counted_by_hour_of_first_exposure(redis_server: RedisServer) -> None:
    """The hours add up to the students of the day."""
    bench = StoreBench(redis_server, FULL_EXPERIMENT)
    events = rich_traffic()
    bench.apply([events[300:], events[:300]])
    first_ms: dict[str, tuple[int, str]] = {}
    for event in events:
        if isinstance(event, Response) and event.user_id is not None:
            first_ms[event.user_id] = min(
                first_ms.get(event.user_id, (event.timestamp_ms, event.variant)), (event.timestamp_ms, event.variant)
            )
    expected: dict[int, dict[str, int]] = defaultdict(lambda: {"control": 0, "treatment": 0})
    for timestamp_ms, variant in first_ms.values():
        expected[timestamp_ms % DAY_MS // HOUR][variant] += 1
    hours = analyze_store(bench).verdicts["treatment"].evidence.exposure_hours
    assert {int(part.name[:2]): dict(part.phases[0].students) for part in hours} == expected


def test_undefined_values_are_compared_per_response(redis_server: RedisServer) -> None:
    """A student with one defined and one undefined nDCG has an undefined share of a half."""
    experiment = replace(FULL_EXPERIMENT, primary="ndcg@3")
    bench = StoreBench(redis_server, experiment)
    events = rich_traffic()
    bench.apply([events[300:], events[:300]])
    as_of_ms = max(event.timestamp_ms for event in events)
    evidence = analyze_store(bench).verdicts["treatment"].evidence
    assert evidence.undefined_share is not None
    assert evidence.undefined_as_zero is not None
    for variant in ("control", "treatment"):
        shares, means = [], []
        for window in closed_windows(students_by_variant(events)[variant], as_of_ms):
            values = [response.metrics["ndcg@3"] for response in window if response.is_rated]
            if values:
                shares.append(float(np.mean([value is None for value in values])))
                means.append(float(np.mean([value or 0.0 for value in values])))
        assert_estimate(getattr(evidence.undefined_share, variant), expected_estimate(shares))
        assert_estimate(getattr(evidence.undefined_as_zero, variant), expected_estimate(means))


def test_groups_replace_students_as_units(redis_server: RedisServer) -> None:
    """With `unit = "group"`, all responses of a class are one unit; a response without a group is anonymous."""
    bench = StoreBench(redis_server, replace(PLAIN_EXPERIMENT, unit="group"))
    responses = [
        changed(event, group_id=f"class-{event.user_id[-1]}-{event.variant}" if event.user_id else None)
        for event in rich_traffic()
        if isinstance(event, Response)
    ]
    bench.apply([list(responses)])
    evidence = analyze_store(bench).verdicts["treatment"].evidence
    assert evidence.students == len({response.group_id for response in responses} - {None})
    assert evidence.anonymous_units == sum(response.group_id is None for response in responses)
    assert bench.reader.read_summary().experiments[PLAIN_EXPERIMENT.name].unit_noun == "group"


def test_late_arrivals_are_counted_by_variant_beyond_the_closing_delay(redis_server: RedisServer) -> None:
    """An arrival three hours late is late without a closing delay, and not with one of six hours."""
    for closing_delay_ms, expected_share in ((0, 0.5), (6 * HOUR, 0.0)):
        bench = StoreBench(redis_server, replace(PLAIN_EXPERIMENT, closing_delay_ms=closing_delay_ms))
        batch = EventBatch()
        for number in range(100):
            variant = ("control", "treatment")[number % 2]
            response = Response(f"r-{number}", START + number, "ranker", variant, ("a",), None, f"u-{number}")
            is_late = variant == "treatment" and number % 4 == 1
            bench.normalizer.append_event(batch, response, START + number + (3 * HOUR if is_late else 0))
        writer = bench.connect_writer()
        assert writer.reload_state()
        assert bench.submit(writer, batch, PositionUpdate("t:0", None, Position(100))).result() == "applied"
        late_arrivals = analyze_store(bench).verdicts["treatment"].evidence.late_arrivals
        assert late_arrivals is not None
        assert (late_arrivals.control.mean, late_arrivals.treatment.mean) == (0.0, expected_share)


def test_a_store_of_files_rejects_a_new_guardrail_metric(redis_server: RedisServer) -> None:
    """The store has no sums of the metric; the margin of an existing guardrail can change at any time."""
    bench = StoreBench(redis_server, PLAIN_EXPERIMENT)
    settings = replace(bench.settings, experiments=(FULL_EXPERIMENT,))
    with pytest.raises(
        IncompatibleStore,
        match=r"ranker\.metrics: .*share:escalated.* replay all files",
    ):
        initialize_store(bench.store, settings)
    bench = StoreBench(redis_server, FULL_EXPERIMENT)
    guardrails = tuple(replace(guardrail, margin=0.5) for guardrail in RICH.decision.guardrails)
    experiment = replace(FULL_EXPERIMENT, decision=replace(RICH.decision, guardrails=guardrails))
    initialize_store(bench.store, replace(bench.settings, experiments=(experiment,)))


def test_a_plain_experiment_stores_no_optional_sums(redis_server: RedisServer) -> None:
    """Cohort records are not wider than the metrics need."""
    bench = StoreBench(redis_server, PLAIN_EXPERIMENT)
    bench.apply([rich_traffic(50)])
    max_bytes = max(
        bench.first_shard.client.strlen(name)
        for name in bench.first_shard.client.scan_iter(bench.first_shard.keys.prefix + b"cohort_sums:*")
    )
    assert max_bytes <= 8 * RecordLayout.for_experiment(PLAIN_EXPERIMENT).student_metric_index(0)


_PRIMARY_METRICS = [
    ("dcg@5", "rated"),
    ("dcg@5", "all"),
    ("latency_ms", "rated"),
    ("share:escalated", "rated"),
    ("score:reviewed", "rated"),
]
"""(primary metric, population); an answer metric is over the responses with a value."""


def _means(students: Sequence[Sequence[ExpectedResponse]], primary: str, population: str) -> list[float]:
    """Return the means of the primary metric of the students who have a mean."""
    means = []
    for student_responses in students:
        values = [
            value
            for expected_response in student_responses
            if (value := expected_response.metrics.get(primary)) is not None
        ]
        size = len(student_responses) if population == "all" else len(values)
        if size:
            means.append(sum(values) / size)
    return means


def _segment(student_responses: Sequence[ExpectedResponse]) -> str:
    category = min(
        student_responses, key=lambda expected_response: expected_response.response.timestamp_ms
    ).response.category
    return "none" if category is None else category if category in RICH.categories else "other"


@pytest.mark.parametrize(("primary", "population"), _PRIMARY_METRICS)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_segment_of_a_student_is_the_category_of_the_first_response(
    redis_server: RedisServer, shards: int, primary: str, population: Population
) -> None:
    """Undeclared categories are a segment, and responses without a category are another segment."""
    experiment = replace(FULL_EXPERIMENT, primary=primary, decision=replace(RICH.decision, population=population))
    bench = StoreBench(redis_server, experiment, shards)
    events = rich_traffic()
    bench.apply([events[300:], events[:300]])
    as_of_ms = max(event.timestamp_ms for event in events)
    students = students_by_variant(events)
    segments = analyze_store(bench).subgroup_effects["treatment"].segments
    assert [segment.name for segment in segments] == ["none", "fractions", "geometry", "other"]
    for segment in segments:
        for variant, estimate in (("control", segment.comparison.control), ("treatment", segment.comparison.treatment)):
            members = [student for student in students[variant] if _segment(student) == segment.name]
            assert_estimate(estimate, expected_estimate(_means(closed_windows(members, as_of_ms), primary, population)))


@pytest.mark.parametrize(("primary", "population"), _PRIMARY_METRICS)
@pytest.mark.parametrize("shards", [1, 3])
def test_exposure_ages_are_days_since_the_first_response(
    redis_server: RedisServer, shards: int, primary: str, population: Population
) -> None:
    """Students with responses at that age count, once the age and the feedback window are over for their cohort."""
    experiment = replace(FULL_EXPERIMENT, primary=primary, decision=replace(RICH.decision, population=population))
    bench = StoreBench(redis_server, experiment, shards)
    events = rich_traffic(lasting=12)
    bench.apply([events[300:], events[:300]])
    newest_ms = max(event.timestamp_ms for event in events)
    students = students_by_variant(events)
    end_ages_days = {"0": 1, "1": 2, "2–3": 4, "4–7": 8, "8+": 9}
    for as_of_ms in (START + 11 * DAY_MS, newest_ms):
        ages = analyze_store(bench, as_of_ms).subgroup_effects["treatment"].exposure_ages
        assert [age.name for age in ages] == list(end_ages_days)
        for (first_age_days, name), age in zip(EXPOSURE_AGES, ages, strict=True):
            for variant, estimate in (("control", age.comparison.control), ("treatment", age.comparison.treatment)):
                responses_at_age = []
                for student_responses in students[variant]:
                    by_day = days_since_first(student_responses)
                    first_day = min(
                        expected_response.response.timestamp_ms // DAY_MS for expected_response in student_responses
                    )
                    if (first_day + end_ages_days[name]) * DAY_MS + RICH.feedback_window_ms <= as_of_ms:
                        end_age_days = end_ages_days[name] if name != "8+" else 1000
                        responses_at_age.append(
                            [
                                expected_response
                                for day in range(first_age_days, end_age_days)
                                for expected_response in by_day.get(day, ())
                            ]
                        )
                assert_estimate(estimate, expected_estimate(_means(responses_at_age, primary, population)))


def test_a_store_of_files_rejects_another_primary_metric_of_subgroups(redis_server: RedisServer) -> None:
    """The store has subgroup sums of the primary metric only; without subgroups the primary metric can change."""
    bench = StoreBench(redis_server, FULL_EXPERIMENT)
    experiment = replace(FULL_EXPERIMENT, primary="rr@5")
    with pytest.raises(IncompatibleStore, match=r"ranker\.primary: dcg@5 in the store, rr@5 in the file"):
        initialize_store(bench.store, replace(bench.settings, experiments=(experiment,)))
    bench = StoreBench(redis_server, PLAIN_EXPERIMENT)
    initialize_store(bench.store, replace(bench.settings, experiments=(replace(PLAIN_EXPERIMENT, primary="rr@5"),)))


def _pre_period_and_closed_means(
    student_responses: Sequence[ExpectedResponse], primary: str, population: str
) -> tuple[float, float] | None:
    """Return a student's means of the pre-period and of the closed window; None if either mean is missing."""
    starts_ms = PRE_PERIOD_EXPERIMENT.starts_at_ms or 0
    pre_period = [
        expected_response
        for expected_response in student_responses
        if starts_ms - PRE_PERIOD_MS <= expected_response.response.timestamp_ms < starts_ms
    ]
    during = [
        expected_response
        for expected_response in student_responses
        if expected_response.response.timestamp_ms >= starts_ms
    ]
    if not pre_period or not during:
        return None
    means = [
        _means([responses], primary, population) for responses in (pre_period, closed_windows([during], 1 << 60)[0])
    ]
    return (means[0][0], means[1][0]) if all(means) else None


def _alternate_variants_before_start(events: Events) -> Events:
    """Return the events with alternating variants for responses from before the experiment."""
    starts_ms = PRE_PERIOD_EXPERIMENT.starts_at_ms or 0
    return [
        changed(event, variant="control" if number % 2 else "treatment")
        if isinstance(event, Response) and event.timestamp_ms < starts_ms
        else event
        for number, event in enumerate(events)
    ]


@pytest.mark.parametrize(("primary", "population"), _PRIMARY_METRICS)
@pytest.mark.parametrize("shards", [1, 3])
def test_the_primary_metric_is_adjusted_by_the_pre_period_means(
    redis_server: RedisServer, shards: int, primary: str, population: Population
) -> None:
    """By the regression over all students with both means, whatever their variants before the experiment."""
    decision = replace(PRE_PERIOD_EXPERIMENT.decision, population=population)
    experiment = replace(PRE_PERIOD_EXPERIMENT, primary=primary, decision=decision)
    bench = StoreBench(redis_server, experiment, shards)
    events = _alternate_variants_before_start(rich_traffic(400))
    bench.apply([events[700:], events[:700]])
    as_of_ms = max(event.timestamp_ms for event in events)
    starts_ms = PRE_PERIOD_EXPERIMENT.starts_at_ms or 0
    responses_by_student: dict[str, list[ExpectedResponse]] = defaultdict(list)
    for number, expected_response in enumerate(compute_expected_responses(PRE_PERIOD_EXPERIMENT, events)):
        responses_by_student[expected_response.response.user_id or f"unnamed-{number}"].append(expected_response)
    values: dict[str, list[float]] = {"control": [], "treatment": []}
    pairs: dict[str, list[tuple[float, float, int]]] = {"control": [], "treatment": []}
    for name, student_responses in responses_by_student.items():
        during = [
            expected_response
            for expected_response in student_responses
            if expected_response.response.timestamp_ms >= starts_ms
        ]
        if len({expected_response.response.variant for expected_response in during}) != 1 or not closed_windows(
            [during], as_of_ms
        ):
            continue
        variant = during[0].response.variant
        if means := _means(closed_windows([during], as_of_ms), primary, population):
            is_named = not name.startswith("unnamed")
            pair = _pre_period_and_closed_means(student_responses, primary, population) if is_named else None
            if pair is not None:
                pairs[variant].append((*pair, len(values[variant])))
            values[variant].append(means[0])
    x_values, y_values, _ = np.array(pairs["control"] + pairs["treatment"]).T
    theta = float(np.cov(x_values, y_values)[0, 1] / np.var(x_values, ddof=1))
    verdict = analyze_store(bench).verdicts["treatment"]
    adjustment = verdict.evidence.adjustment
    assert adjustment is not None
    assert adjustment.students == len(x_values) > 50
    assert adjustment.theta == pytest.approx(theta, rel=1e-6)
    strata: list[dict[str, list[float]]] = [{}, {}]
    for variant, unadjusted_estimate in (
        ("control", adjustment.unadjusted.control),
        ("treatment", adjustment.unadjusted.treatment),
    ):
        assert_estimate(unadjusted_estimate, expected_estimate(values[variant]))
        covered = {int(index): x for x, _, index in pairs[variant]}
        mean_x = float(np.mean(x_values))
        strata[0][variant] = [values[variant][index] - theta * (x - mean_x) for index, x in covered.items()]
        strata[1][variant] = [value for index, value in enumerate(values[variant]) if index not in covered]
    # Students without results from before the experiment are a stratum of their own, with Cochran's weights.
    sizes = [(len(stratum["control"]), len(stratum["treatment"])) for stratum in strata]
    weights = [a * b / (a + b) if min(a, b) > 1 else 0.0 for a, b in sizes]
    for variant, estimate in (
        ("control", verdict.evidence.arms.control),
        ("treatment", verdict.evidence.arms.treatment),
    ):
        parts = [expected_estimate(stratum[variant]) for stratum, weight in zip(strata, weights, strict=True) if weight]
        shares = [weight / sum(weights) for weight in weights if weight]
        mean = sum(share * part[1] for share, part in zip(shares, parts, strict=True))
        variance = sum(share**2 * part[2] for share, part in zip(shares, parts, strict=True))
        assert_estimate(estimate, (sum(part[0] for part in parts), mean, variance))
    unadjusted = verdict.unadjusted
    assert unadjusted is not None
    assert unadjusted.difference.effect != verdict.primary.difference.effect
    assert unadjusted.lower is not None
    assert "adjusted" in {remark.code for remark in verdict.notes}
    content = json.loads(json.dumps(analyze_store(bench).to_json()))["verdict"]["treatment"]
    assert content["adjustment"]["unadjusted"]["lower"] == unadjusted.lower
    assert decide_verdict(parse_evidence(content["evidence"])).primary == verdict.primary


def test_the_other_population_of_a_score_has_the_least_score_for_silence(redis_server: RedisServer) -> None:
    """With and without the adjustment by the pre-period, as if the value of silence were declared."""
    metric = PRE_PERIOD_EXPERIMENT.find_metric("score:reviewed")
    events = _alternate_variants_before_start(rich_traffic(400))
    evidence = []
    for silence in (None, metric.least):
        metrics = tuple(
            replace(metric, silence=silence) if other == metric else other for other in PRE_PERIOD_EXPERIMENT.metrics
        )
        bench = StoreBench(redis_server, replace(PRE_PERIOD_EXPERIMENT, metrics=metrics, primary=metric.name))
        bench.apply([events])
        evidence.append(analyze_store(bench).verdicts["treatment"].evidence)
    with_gaps, with_silence = evidence
    assert with_gaps.adjustment is not None
    assert with_silence.adjustment is not None
    assert with_silence.other_population is None
    for other_population, declared in (
        (with_gaps.other_population, with_silence.arms),
        (with_gaps.adjustment.unadjusted_other_population, with_silence.adjustment.unadjusted),
    ):
        assert other_population is not None
        for estimate, expected in zip(
            (other_population.control, other_population.treatment), (declared.control, declared.treatment), strict=True
        ):
            assert expected.mean is not None
            assert expected.variance is not None
            assert_estimate(estimate, (expected.units, expected.mean, expected.variance))


def test_the_pre_period_counts_only_for_the_adjustment(redis_server: RedisServer) -> None:
    """Not for responses, feedback, exposure, crossovers, the sample ratio or the newest response."""
    events = _alternate_variants_before_start(rich_traffic(400))
    starts_ms = PRE_PERIOD_EXPERIMENT.starts_at_ms or 0
    results = []
    for pre_period_ms in (None, PRE_PERIOD_MS):
        bench = StoreBench(redis_server, replace(PRE_PERIOD_EXPERIMENT, pre_period_ms=pre_period_ms))
        bench.apply([events])
        summary = bench.reader.read_summary().experiments["ranker"]
        assert summary.analysis is not None
        content = summary.to_json()
        for key in ("verdict", "comparisons", "guardrails"):
            del content[key]
        results.append((content, summary.analysis.verdicts["treatment"].guardrails))
        assert not (summary.variants["control"].last_response_at_ms or 0) < starts_ms
    assert results[0] == results[1]


def test_without_events_of_the_pre_period_nothing_is_adjusted(redis_server: RedisServer) -> None:
    """The first event is of the experiment's start."""
    bench = StoreBench(redis_server, PRE_PERIOD_EXPERIMENT)
    starts_ms = PRE_PERIOD_EXPERIMENT.starts_at_ms or 0
    bench.apply([[event for event in rich_traffic() if event.timestamp_ms >= starts_ms]])
    verdict = analyze_store(bench).verdicts["treatment"]
    assert verdict.evidence.adjustment is None
    assert verdict.unadjusted is None
    assert "adjusted" not in {remark.code for remark in verdict.notes}
