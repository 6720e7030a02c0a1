"""The simulated traffic: valid, in order, and refused where it cannot be."""

from __future__ import annotations

import itertools
import json
import statistics
import tomllib

import pytest

from monitor.config.loading import settings_from
from monitor.events import Decoder
from monitor.ingest.simulator import Scenario, default_config, endless, generate, w1


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
    ],
)
def test_what_cannot_be_simulated_is_refused(change: dict[str, object], said: str) -> None:
    """Name, value, expectation."""
    with pytest.raises(ValueError, match=said):
        Scenario(**change)  # type: ignore[arg-type]
