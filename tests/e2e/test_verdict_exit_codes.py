"""From simulated traffic with a known truth, through replay, to the verdict that a person or a pipeline reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.stats import decide
from monitor.stats.decision import evidence_from
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, write_config

CONFIG = """
[store]
url = "<store>"
[[experiments]]
name = "ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
mde = 0.3
margin = 0.05
"""


class Scenario(NamedTuple):
    """A truth, and what has to be said about it after two weeks."""

    name: str
    control: float
    """Share of students, where one half is intended."""
    effect: float
    state: str
    code: int


SCENARIOS = [
    Scenario("better", 0.5, 0.6, "ship", 0),
    Scenario("worse", 0.5, -0.6, "stop_harm", 20),
    Scenario("uneven", 0.47, 0.6, "invalid", 20),
]


class Replayed(NamedTuple):
    """A store with two weeks of traffic."""

    config: Path

    def verdict(self, *options: str) -> tuple[int, str]:
        """Return exit code and output of the command."""
        done = ab_monitor("verdict", "ranker-v2", "--config", self.config, *options)
        assert done.stderr == ""
        return done.returncode, done.stdout

    def printed(self, *options: str) -> dict[str, Any]:
        """Return what `--json` prints."""
        found: dict[str, Any] = json.loads(self.verdict("--json", *options)[1])
        return found


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request: pytest.FixtureRequest) -> Scenario:
    """Return a real gain, a real loss, or a gain under another split than intended."""
    chosen: Scenario = request.param
    return chosen


@pytest.fixture(scope="module")
def replayed(scenario: Scenario, tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer) -> Replayed:
    """Return the scenario's store."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp(scenario.name)
    shares = [f"--share=control={scenario.control}", f"--share=treatment={1 - scenario.control}"]
    traffic = ["--responses", "30000", "--students", "10000", "--days", "14", f"--effect=treatment={scenario.effect}"]
    events = directory / "events.jsonl"
    done = ab_monitor("simulate", *traffic, *shares, "--out", events)
    assert done.returncode == 0, done.stderr
    config = write_config(directory / "config.toml", CONFIG, [("store", redis_server.url)])
    done = ab_monitor("replay", "--config", config, events)
    assert done.returncode == 0, done.stderr
    return Replayed(config)


def test_the_truth_is_found(scenario: Scenario, replayed: Replayed) -> None:
    """State, exit code and a sentence for people; without the flag the command just ends well."""
    exit_code, text = replayed.verdict("--exit-code")
    assert (exit_code, f"treatment: {scenario.state}" in text) == (scenario.code, True)
    assert replayed.verdict()[0] == 0
    assert replayed.printed()["verdict"]["treatment"]["state"] == scenario.state


def test_too_early_nothing_is_said(replayed: Replayed) -> None:
    """The same store, read as of its fifth day."""
    exit_code, text = replayed.verdict("--exit-code", "--as-of", "2026-11-07T00:00:00Z")
    assert (exit_code, "treatment: insufficient_data" in text) == (10, True)


def test_a_verdict_follows_from_what_is_printed(replayed: Replayed) -> None:
    """The evidence of the JSON gives the state, the reasons and the bounds beside it."""
    printed = replayed.printed()
    said = printed["verdict"]["treatment"]
    again = json.loads(json.dumps(decide(evidence_from(said["evidence"])).to_json()))
    assert (again["state"], again["reasons"]) == (said["state"], said["reasons"])
    closed = printed["comparisons"]["treatment"]["dcg@5"]["closed"]
    assert (again["primary"]["lower"], again["primary"]["upper"]) == (closed["lower"], closed["upper"])


def test_criteria_may_change_while_the_store_is_in_use(replayed: Replayed, tmp_path: Path) -> None:
    """A margin nobody could miss turns harm into something tolerable; the store does not mind."""
    text = replayed.config.read_text().replace("margin = 0.05", "margin = 3\nmin_days = 30")
    other = Replayed(write_config(tmp_path / "config.toml", text))
    said = other.printed()["verdict"]["treatment"]
    assert (said["state"], said["reasons"][0]["code"]) == ("insufficient_data", "young")
    assert said["evidence"]["criteria"]["margin"] == 3


def test_an_unknown_name_is_a_line(replayed: Replayed) -> None:
    """Of the experiment, and of the treatment."""
    done = ab_monitor("verdict", "ranker", "--config", replayed.config)
    assert (done.returncode, done.stderr) == (2, "ab-monitor: verdict E: got 'ranker', expected one of ranker-v2\n")
    done = ab_monitor("verdict", "ranker-v2", "--config", replayed.config, "--variant", "control")
    assert (done.returncode, done.stderr) == (2, "ab-monitor: --variant: got 'control', expected one of treatment\n")
