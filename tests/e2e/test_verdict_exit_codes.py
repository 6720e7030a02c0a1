"""From simulated traffic with a known truth, through replay, to the verdict that a person or a pipeline reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.stats import decide_verdict
from monitor.stats.decision import parse_evidence
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


class VerdictScenario(NamedTuple):
    """A simulated effect, and the expected verdict after two weeks."""

    name: str
    control: float
    """Share of students; the intended share is one half."""
    effect: float
    state: str
    code: int


SCENARIOS = [
    VerdictScenario("better", 0.5, 0.6, "ship", 0),
    VerdictScenario("worse", 0.5, -0.6, "stop_harm", 20),
    VerdictScenario("uneven", 0.47, 0.6, "invalid", 20),
]


class ReplayedStore(NamedTuple):
    """A store with two weeks of traffic."""

    config: Path

    def verdict(self, *options: str) -> tuple[int, str]:
        """Return exit code and output of the command."""
        process = ab_monitor("verdict", "ranker-v2", "--config", self.config, *options)
        assert process.stderr == ""
        return process.returncode, process.stdout

    def printed(self, *options: str) -> dict[str, Any]:
        """Return the JSON that `verdict --json` prints."""
        verdict_json: dict[str, Any] = json.loads(self.verdict("--json", *options)[1])
        return verdict_json


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda scenario: scenario.name)
def scenario(request: pytest.FixtureRequest) -> VerdictScenario:
    """Return a real gain, a real loss, or a gain under another split than intended."""
    chosen: VerdictScenario = request.param
    return chosen


@pytest.fixture(scope="module")
def replayed(
    scenario: VerdictScenario, tmp_path_factory: pytest.TempPathFactory, redis_server: RedisServer
) -> ReplayedStore:
    """Return the store of the scenario."""
    redis_server.client().flushall()
    directory = tmp_path_factory.mktemp(scenario.name)
    shares = [f"--share=control={scenario.control}", f"--share=treatment={1 - scenario.control}"]
    traffic = ["--responses", "30000", "--students", "10000", "--days", "14", f"--effect=treatment={scenario.effect}"]
    events = directory / "events.jsonl"
    process = ab_monitor("simulate", *traffic, *shares, "--out", events)
    assert process.returncode == 0, process.stderr
    config = write_config(directory / "config.toml", CONFIG, [("store", redis_server.url)])
    process = ab_monitor("replay", "--config", config, events)
    assert process.returncode == 0, process.stderr
    return ReplayedStore(config)


def test_the_verdict_and_exit_code_are_those_of_the_simulated_truth(
    scenario: VerdictScenario, replayed: ReplayedStore
) -> None:
    """State, exit code and a sentence; without `--exit-code` the command exits with 0."""
    exit_code, text = replayed.verdict("--exit-code")
    assert (exit_code, f"State in JSON and metrics: {scenario.state}" in text) == (scenario.code, True)
    assert replayed.verdict()[0] == 0
    assert replayed.printed()["verdict"]["treatment"]["state"] == scenario.state


def test_there_is_no_verdict_on_the_fifth_day(replayed: ReplayedStore) -> None:
    """The same store, read as of the fifth day."""
    exit_code, text = replayed.verdict("--exit-code", "--as-of", "2026-11-07T00:00:00Z")
    assert (exit_code, "State in JSON and metrics: insufficient_data" in text) == (10, True)


def test_the_verdict_follows_from_the_printed_evidence(replayed: ReplayedStore) -> None:
    """The evidence in the JSON leads to the printed state, reasons and bounds."""
    printed = replayed.printed()
    treatment_verdict = printed["verdict"]["treatment"]
    recomputed_verdict = json.loads(json.dumps(decide_verdict(parse_evidence(treatment_verdict["evidence"])).to_json()))
    assert (recomputed_verdict["state"], recomputed_verdict["reasons"]) == (
        treatment_verdict["state"],
        treatment_verdict["reasons"],
    )
    closed = printed["comparisons"]["treatment"]["dcg@5"]["closed"]
    assert (recomputed_verdict["primary"]["lower"], recomputed_verdict["primary"]["upper"]) == (
        closed["lower"],
        closed["upper"],
    )


def test_criteria_may_change_without_a_rebuild(replayed: ReplayedStore, tmp_path: Path) -> None:
    """With a very large margin, harm is tolerable; the store accepts the new margin."""
    text = replayed.config.read_text().replace("margin = 0.05", "margin = 3\nmin_days = 30")
    store_with_other_criteria = ReplayedStore(write_config(tmp_path / "config.toml", text))
    treatment_verdict = store_with_other_criteria.printed()["verdict"]["treatment"]
    assert (treatment_verdict["state"], treatment_verdict["reasons"][0]["code"]) == ("insufficient_data", "young")
    assert treatment_verdict["evidence"]["criteria"]["margin"] == 3


def test_an_unknown_name_is_reported_in_one_line(replayed: ReplayedStore) -> None:
    """An unknown experiment, and an unknown treatment."""
    process = ab_monitor("verdict", "ranker", "--config", replayed.config)
    assert (process.returncode, process.stderr) == (
        2,
        'ab-monitor: verdict E: got "ranker", expected one of ranker-v2; did you mean ranker-v2?\n',
    )
    process = ab_monitor("verdict", "ranker-v2", "--config", replayed.config, "--variant", "control")
    assert (process.returncode, process.stderr) == (
        2,
        "ab-monitor: --variant: got 'control', expected one of treatment\n",
    )
