"""Simulated students with a known effect, through Kafka and the service, to the verdict."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.cli.simulate import send_to_kafka
from monitor.config import load_settings
from monitor.simulation.simulator import Scenario, compute_true_means, generate_events
from monitor.state import StoreShard
from tests.servers.kafka import KafkaBroker
from tests.servers.redis import RedisServer
from tests.support.command import ab_monitor, eventually, service, write_config
from tests.support.streams import EXPERIMENT

CONFIG = """
[kafka]
bootstrap_servers = "<kafka>"
responses_topic = "<name>.responses"
feedback_topic = "<name>.feedback"
dead_letter_topic = "<name>.dead"
group_id = "<name>"
[store]
url = "<store>"
[http]
port = 0
[[experiments]]
name = "ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
mde = <mde>
margin = 0.05
<more>
"""
PRE_DAYS = 7
SCENARIO = Scenario(responses=36_000, students=12_000, days=14, effects={"treatment": 0.5})
"""Two weeks of students with an effect."""
RAILS = """
[[experiments.guardrails]]
metric = "share:escalated"
harmful_direction = "up"
margin = 0.01
[[experiments.guardrails]]
metric = "latency_ms"
harmful_direction = "up"
margin = 100
"""


class VerdictCase(NamedTuple):
    """A simulated effect, criteria of the configuration, and the expected verdict."""

    name: str
    scenario: Scenario
    state: str
    more: str = ""


def one_mde() -> float:
    """Return the simulated effect on dcg@5."""
    means = compute_true_means(SCENARIO, EXPERIMENT)
    return means["treatment"]["dcg@5"] - means["control"]["dcg@5"]


CASES = [
    VerdictCase("better", SCENARIO, "ship", RAILS),
    VerdictCase("worse", replace(SCENARIO, effects={"treatment": -0.5}), "stop_harm"),
    VerdictCase("uneven", replace(SCENARIO, shares={"control": 0.47, "treatment": 0.53}), "invalid"),
    VerdictCase("escalating", replace(SCENARIO, escalation_shares={"treatment": 0.2}), "stop_harm", RAILS),
    VerdictCase("slow", replace(SCENARIO, latency_factors={"treatment": 2.0}), "stop_harm", RAILS),
]


def _verdict_json(case: VerdictCase, directory: Path, kafka: KafkaBroker, redis: RedisServer) -> dict[str, Any]:
    """Return the JSON of `verdict` after the service has applied all events."""
    redis.client().flushall()
    values = [
        ("name", case.name),
        ("kafka", kafka.bootstrap),
        ("store", redis.url),
        ("mde", f"{one_mde():.3f}"),
        ("more", case.more),
    ]
    config = write_config(directory / "config.toml", CONFIG, values)
    settings = load_settings(config, {})
    for topic in (settings.kafka.responses_topic, settings.kafka.feedback_topic):
        kafka.create_topic(topic, 2)
    event_count = send_to_kafka(generate_events(case.scenario), settings.kafka)
    store = StoreShard(settings.store)
    with service(config, directory / "run.log"):
        eventually(
            "everything is applied",
            lambda: sum(position.next_offset for position in store.read_state().positions.values()) == event_count,
            within_s=120,
        )
    store.close()
    process = ab_monitor("verdict", "ranker-v2", "--config", config, "--json")
    assert process.returncode == 0, process.stderr
    verdict_json: dict[str, Any] = json.loads(process.stdout)
    return verdict_json


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_verdict_is_that_of_the_simulated_truth(
    case: VerdictCase, tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """An effect of an mde, harm on the primary metric or a guardrail, and a sample ratio mismatch."""
    verdict_json = _verdict_json(case, tmp_path, kafka, redis_server)
    verdict = verdict_json["verdict"]["treatment"]
    assert verdict["state"] == case.state
    states = {
        guardrail["guardrail"]["name"]: guardrail["state"] for guardrail in verdict_json["guardrails"]["treatment"]
    }
    crossed = {"escalating": {"share:escalated"}, "slow": {"latency_ms"}, "worse": set()}
    assert {name for name, state in states.items() if state == "crossed"} == crossed.get(case.name, set())


def test_a_fading_effect_is_detected(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> None:
    """The effect is large on the first days and disappears later."""
    traffic = replace(SCENARIO, effects={"treatment": 1.2}, fade_days=1.0, students=6_000, responses=60_000)
    verdict_json = _verdict_json(VerdictCase("fading", traffic, "", "novelty = true"), tmp_path, kafka, redis_server)
    ages = {age_band["days"]: age_band for age_band in verdict_json["novelty"]["treatment"]}
    effects = [ages[days]["difference"]["effect"] for days in ("0", "1", "2–3", "4–7")]
    assert effects == sorted(effects, reverse=True)
    assert ages["0"]["discovered"]
    assert ages["4–7"]["difference"]["effect"] < ages["0"]["difference"]["effect"] / 4
    assert not ages["8+"]["discovered"]


def test_a_pre_period_makes_the_estimate_more_precise(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """A week without an effect precedes two weeks with the effect; only the two weeks are counted."""
    begins_ms = SCENARIO.start_ms - 14 * 86_400_000
    starts_ms = begins_ms + PRE_DAYS * 86_400_000
    start_time = datetime.fromtimestamp(starts_ms / 1000, UTC).isoformat()
    traffic = replace(
        SCENARIO,
        days=PRE_DAYS + 14,
        responses=60_000,
        students=1_500,
        start_ms=begins_ms,
        effects_from_ms=starts_ms,
    )
    more = f'starts_at = {start_time}\npre_period = "{PRE_DAYS}d"'
    verdict_json = _verdict_json(VerdictCase("before", traffic, "", more), tmp_path, kafka, redis_server)
    verdict = verdict_json["verdict"]["treatment"]
    closed = verdict_json["comparisons"]["treatment"]["dcg@5"]["closed"]
    raw = verdict["adjustment"]["unadjusted"]
    assert verdict["adjustment"]["variance_reduction"] > 0.03
    assert closed["upper"] - closed["lower"] < raw["upper"] - raw["lower"]
    assert closed["lower"] < one_mde() < closed["upper"]
    assert "adjusted" in {remark["code"] for remark in verdict["notes"]}
    assert sum(arm["students"] for arm in verdict_json["sample_ratio"]["phases"][0]["arms"]) <= 1_500
