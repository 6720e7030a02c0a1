"""Simulated traffic: events are valid and sorted, parameters are checked, and effects are as declared."""

from __future__ import annotations

import itertools
import json
import statistics
import tomllib
from collections import Counter, defaultdict
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest

from monitor.config.loading import parse_settings
from monitor.engine.decoder import EventDecoder
from monitor.simulation.simulator import (
    QualityDrop,
    Scenario,
    benchmark_scenario,
    generate_endless_events,
    generate_events,
    render_example_config,
)


def test_endless_events_are_sorted_by_arrival_and_repeat_no_id() -> None:
    """Late reactions of a segment come between the events of the next segment."""
    events = list(itertools.islice(generate_endless_events(Scenario(responses=4_000, students=200, days=0.5)), 25_000))
    arrivals = [event.arrival_ms for event in events]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] - arrivals[0] > 3 * 12 * 3_600_000
    responses = [json.loads(event.payload)["response_id"] for event in events if event.kind == "response"]
    assert len(responses) == len(set(responses))


def test_variant_names_may_contain_any_characters() -> None:
    """Quotes, backslashes and other scripts are escaped as in JSON and TOML."""
    names = ('say "hi"', "back\\slash", "größe ✓ 𝄞")
    scenario = Scenario(names[2], dict(zip(names, (0.5, 0.25, 0.25), strict=True)), {}, responses=50, students=20)
    settings = parse_settings(tomllib.loads(render_example_config(scenario)), {})
    assert tuple(settings.experiments[0].variants) == names
    decoder = EventDecoder(settings)
    decoded_variants = {
        decoder.decode_response(event.payload, 1 << 45).variant
        for event in generate_events(scenario)
        if event.kind == "response"
    }
    assert decoded_variants == set(names)


def test_a_response_of_the_benchmark_has_370_bytes_on_average() -> None:
    """docs/performance.md refers to the size."""
    events = itertools.islice(generate_events(benchmark_scenario()), 20_000)
    size = statistics.mean(len(event.payload) for event in events if event.kind == "response")
    assert size == pytest.approx(370, abs=10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": -1}, "seed: got -1"),
        ({"shares": {"a": 1.5, "b": -0.5}, "effects": {}}, "share: got 1.5 for a"),
        ({"shares": {"a": 0.5}, "effects": {}}, "sum to 1"),
        ({"responses": 0}, "responses: got 0"),
        ({"feedback_delay_s": 0}, "feedback delay: got 0 s"),
        (
            {"drop": QualityDrop("other", 0.5, 0)},
            "drop: got 0.5 for 'other', expected 0 to 1 for one of control, treatment",
        ),
        ({"fade_days": 0}, "fade days: got 0, expected more than 0"),
        ({"escalation_shares": {"treatment": 1.5}}, "escalated: got 1.5 for treatment, expected 0 to 1"),
        ({"latency_factors": {"other": 2}}, 'slowness: got "other", expected one of control, treatment'),
    ],
)
def test_invalid_parameters_are_rejected(change: dict[str, object], message: str) -> None:
    """The message has the name, the value and the expectation."""
    with pytest.raises(ValueError, match=message):
        Scenario(**change)  # type: ignore[arg-type]


def _mean_scores(scenario: Scenario) -> dict[tuple[str, bool], float]:
    """Return the mean score of first ratings, by variant and whether the answer was given in the second half."""
    answers: dict[str, tuple[str, bool]] = {}
    scores: dict[str, list[int]] = defaultdict(list)
    for event in map(json.loads, (event.payload for event in generate_events(scenario))):
        if "items" in event:
            middle_ms = scenario.start_ms + scenario.days * 43_200_000
            at_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
            answers[event["response_id"]] = (event["variant"], at_ms >= middle_ms)
        elif event["kind"] == "rating" and not event["feedback_id"].endswith("b"):
            scores[event["response_id"]].append(event["score"])
    by_half: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for response, response_scores in scores.items():
        by_half[answers[response]] += response_scores
    return {half: statistics.mean(response_scores) for half, response_scores in by_half.items()}


def test_a_quality_drop_lowers_the_scores_of_one_variant_from_its_time_on() -> None:
    """Scores before the drop and of the control do not change; half the quality is about half the score."""
    calm = Scenario(responses=8_000, students=500, days=2)
    dropped = replace(calm, drop=QualityDrop("treatment", 0.5, calm.start_ms + 86_400_000))
    before, after = _mean_scores(calm), _mean_scores(dropped)
    assert {half for half in before if before[half] != after[half]} == {("treatment", True)}
    assert after["treatment", True] == pytest.approx(before["treatment", True] / 2, rel=0.15)


def test_the_median_delay_of_ratings_is_the_declared_delay() -> None:
    """The median delay, in event time."""
    events = [json.loads(event.payload) for event in generate_events(Scenario(responses=4_000, feedback_delay_s=2))]
    answer_times = {event["response_id"]: event["timestamp"] for event in events if "items" in event}
    delays = [
        event["timestamp"] / 1000 - datetime.fromisoformat(answer_times[event["response_id"]]).timestamp()
        for event in events
        if event.get("feedback_id", "").endswith("-0")
    ]
    assert statistics.median(delays) == pytest.approx(2, rel=0.1)


def _events(scenario: Scenario) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in generate_events(scenario)]


def test_effects_begin_at_the_declared_time() -> None:
    """Before the time, scores equal those without effects; after the time, those with permanent effects."""
    always = Scenario(responses=8_000, students=500, days=2, effects={"treatment": 1.0})
    later = _mean_scores(replace(always, effects_from_ms=always.start_ms + 86_400_000))
    assert later["treatment", False] == _mean_scores(replace(always, effects={}))["treatment", False]
    assert later["treatment", True] == _mean_scores(always)["treatment", True]


def test_an_effect_fades_with_the_days_of_a_student() -> None:
    """Most of the effect remains on the first day, and nearly none of the effect a week later."""
    scenario = Scenario(responses=20_000, students=500, days=14, effects={"treatment": 1.0})
    fading, plain = _mean_scores(replace(scenario, fade_days=1.0)), _mean_scores(replace(scenario, effects={}))
    early, late = (fading["treatment", half] - plain["treatment", half] for half in (False, True))
    assert 0.1 < early < 0.6
    assert abs(late) < 0.05


def test_variants_may_differ_in_escalations_and_latency_only() -> None:
    """The rest of the traffic does not change."""
    plain = Scenario(responses=8_000, students=500, days=2)
    events = _events(replace(plain, escalation_shares={"treatment": 0.3}, latency_factors={"treatment": 3.0}))
    variants = {event["response_id"]: event["variant"] for event in events if "items" in event}
    escalations, usual_escalations = (
        Counter(variants[event["response_id"]] for event in event_list if event.get("kind") == "escalated")
        for event_list in (events, _events(plain))
    )
    assert escalations["control"] == usual_escalations["control"] > 0
    assert escalations["treatment"] > 10 * usual_escalations["treatment"]
    usual_events = {event["response_id"]: event for event in _events(plain) if "items" in event}
    for event in events:
        if "items" in event:
            factor = 3 if event["variant"] == "treatment" else 1
            assert event["latency_ms"] == pytest.approx(
                factor * usual_events[event["response_id"]]["latency_ms"], abs=1.5
            )
