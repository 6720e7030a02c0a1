"""The simulated traffic: valid, in order, and refused where it cannot be."""

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

from monitor.config.loading import settings_from
from monitor.engine.decoder import Decoder
from monitor.simulation.simulator import Drop, Scenario, default_config, endless, generate, w1


def test_an_endless_stream_never_goes_back_and_repeats_no_id() -> None:
    """Late reactions of one stretch come between the events of the next."""
    events = list(itertools.islice(endless(Scenario(responses=4_000, students=200, days=0.5)), 25_000))
    arrivals = [event.arrival_ms for event in events]
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] - arrivals[0] > 3 * 12 * 3_600_000
    responses = [json.loads(event.payload)["response_id"] for event in events if event.kind == "response"]
    assert len(responses) == len(set(responses))


def test_names_may_be_anything() -> None:
    """Quotes, backslashes and other scripts are written as JSON and TOML write them."""
    names = ('say "hi"', "back\\slash", "größe ✓ 𝄞")
    scenario = Scenario(names[2], dict(zip(names, (0.5, 0.25, 0.25), strict=True)), {}, responses=50, students=20)
    settings = settings_from(tomllib.loads(default_config(scenario)), {})
    assert tuple(settings.experiments[0].variants) == names
    decoder = Decoder(settings)
    seen = {
        decoder.response(event.payload, 1 << 45).variant for event in generate(scenario) if event.kind == "response"
    }
    assert seen == set(names)


def test_a_response_of_the_measured_workload_has_the_size_that_is_said() -> None:
    """docs/performance.md rests on it."""
    events = itertools.islice(generate(w1()), 20_000)
    size = statistics.mean(len(event.payload) for event in events if event.kind == "response")
    assert size == pytest.approx(370, abs=10)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"seed": -1}, "seed: got -1"),
        ({"shares": {"a": 1.5, "b": -0.5}, "effects": {}}, "share: got 1.5 for a"),
        ({"shares": {"a": 0.5}, "effects": {}}, "sum to 1"),
        ({"responses": 0}, "responses: got 0"),
        ({"feedback_delay_s": 0}, "feedback delay: got 0 s"),
        ({"drop": Drop("other", 0.5, 0)}, "drop: got 0.5 for 'other', expected 0 to 1 for one of control, treatment"),
        ({"fade_days": 0}, "fade days: got 0, expected more than 0"),
        ({"escalated": {"treatment": 1.5}}, "escalated: got 1.5 for treatment, expected 0 to 1"),
        ({"slowness": {"other": 2}}, "slowness: got 'other', expected one of control, treatment"),
    ],
)
def test_what_cannot_be_simulated_is_refused(change: dict[str, object], said: str) -> None:
    """Name, value, expectation."""
    with pytest.raises(ValueError, match=said):
        Scenario(**change)  # type: ignore[arg-type]


def _mean_scores(scenario: Scenario) -> dict[tuple[str, bool], float]:
    """Return the mean score of first ratings, by variant and whether the answer was given in the second half."""
    answers: dict[str, tuple[str, bool]] = {}
    scores: dict[str, list[int]] = defaultdict(list)
    for event in map(json.loads, (event.payload for event in generate(scenario))):
        if "items" in event:
            middle_ms = scenario.start_ms + scenario.days * 43_200_000
            at_ms = datetime.fromisoformat(event["timestamp"]).timestamp() * 1000
            answers[event["response_id"]] = (event["variant"], at_ms >= middle_ms)
        elif event["kind"] == "rating" and not event["feedback_id"].endswith("b"):
            scores[event["response_id"]].append(event["score"])
    by_half: dict[tuple[str, bool], list[int]] = defaultdict(list)
    for response, given in scores.items():
        by_half[answers[response]] += given
    return {half: statistics.mean(given) for half, given in by_half.items()}


def test_a_drop_takes_a_share_of_one_variants_quality_from_a_moment_on() -> None:
    """Before it and elsewhere nothing changes; half the quality is about half the score."""
    calm = Scenario(responses=8_000, students=500, days=2)
    dropped = replace(calm, drop=Drop("treatment", 0.5, calm.start_ms + 86_400_000))
    before, after = _mean_scores(calm), _mean_scores(dropped)
    assert {half for half in before if before[half] != after[half]} == {("treatment", True)}
    assert after["treatment", True] == pytest.approx(before["treatment", True] / 2, rel=0.15)


def test_ratings_come_as_fast_as_is_said() -> None:
    """The median delay, in event time."""
    events = [json.loads(event.payload) for event in generate(Scenario(responses=4_000, feedback_delay_s=2))]
    given = {each["response_id"]: each["timestamp"] for each in events if "items" in each}
    delays = [
        each["timestamp"] / 1000 - datetime.fromisoformat(given[each["response_id"]]).timestamp()
        for each in events
        if each.get("feedback_id", "").endswith("-0")
    ]
    assert statistics.median(delays) == pytest.approx(2, rel=0.1)


def _events(scenario: Scenario) -> list[dict[str, Any]]:
    return [json.loads(event.payload) for event in generate(scenario)]


def test_before_a_moment_there_are_no_effects() -> None:
    """The first half is that of a scenario without any, the second that of one with them all the time."""
    always = Scenario(responses=8_000, students=500, days=2, effects={"treatment": 1.0})
    later = _mean_scores(replace(always, effects_from_ms=always.start_ms + 86_400_000))
    assert later["treatment", False] == _mean_scores(replace(always, effects={}))["treatment", False]
    assert later["treatment", True] == _mean_scores(always)["treatment", True]


def test_an_effect_fades_with_a_students_days() -> None:
    """Most of it is left on the first day, and nearly nothing a week later."""
    scenario = Scenario(responses=20_000, students=500, days=14, effects={"treatment": 1.0})
    fading, plain = _mean_scores(replace(scenario, fade_days=1.0)), _mean_scores(replace(scenario, effects={}))
    early, late = (fading["treatment", half] - plain["treatment", half] for half in (False, True))
    assert 0.1 < early < 0.6
    assert abs(late) < 0.05


def test_variants_may_escalate_more_and_be_slower() -> None:
    """And nothing else of the traffic changes."""
    plain = Scenario(responses=8_000, students=500, days=2)
    events = _events(replace(plain, escalated={"treatment": 0.3}, slowness={"treatment": 3.0}))
    variants = {each["response_id"]: each["variant"] for each in events if "items" in each}
    more, usually = (
        Counter(variants[each["response_id"]] for each in found if each.get("kind") == "escalated")
        for found in (events, _events(plain))
    )
    assert more["control"] == usually["control"] > 0
    assert more["treatment"] > 10 * usually["treatment"]
    usual = {each["response_id"]: each for each in _events(plain) if "items" in each}
    for each in events:
        if "items" in each:
            factor = 3 if each["variant"] == "treatment" else 1
            assert each["latency_ms"] == pytest.approx(factor * usual[each["response_id"]]["latency_ms"], abs=1.5)
