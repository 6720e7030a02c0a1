"""From simulated students with a known truth, through Kafka and the service, to what is said about the variants."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from monitor.cli.simulate import send_to_kafka
from monitor.config import load_settings
from monitor.simulation.simulator import Scenario, generate, truth
from monitor.state import RedisStore
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
metric = "feedback:escalated"
bad = "up"
margin = 0.01
[[experiments.guardrails]]
metric = "latency_ms"
bad = "up"
margin = 100
"""


class Case(NamedTuple):
    """A truth, what the configuration asks for, and the verdict that is due."""

    name: str
    scenario: Mapping[str, Any]
    state: str
    more: str = ""


def one_mde() -> float:
    """Return what the simulated effect is on dcg@5."""
    means = truth(SCENARIO, EXPERIMENT)
    return means["treatment"]["dcg@5"] - means["control"]["dcg@5"]


CASES = [
    Case("better", {}, "ship", RAILS),
    Case("worse", {"effects": {"treatment": -0.5}}, "stop_harm"),
    Case("uneven", {"shares": {"control": 0.47, "treatment": 0.53}}, "invalid"),
    Case("escalating", {"escalated": {"treatment": 0.2}}, "stop_harm", RAILS),
    Case("slow", {"slowness": {"treatment": 2.0}}, "stop_harm", RAILS),
]


def _told(case: Case, directory: Path, kafka: KafkaBroker, redis: RedisServer) -> dict[str, Any]:
    """Return what is said once the service has applied everything."""
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
    scenario = Scenario(
        **{"responses": 36_000, "students": 12_000, "days": 14, "effects": {"treatment": 0.5}, **case.scenario}
    )
    sent = send_to_kafka(generate(scenario), settings.kafka)
    store = RedisStore(settings.store)
    with service(config, directory / "run.log"):
        eventually(
            "everything is applied",
            lambda: sum(each.next_offset for each in store.state().positions.values()) == sent,
            within_s=120,
        )
    store.close()
    done = ab_monitor("verdict", "ranker-v2", "--config", config, "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_truth_is_found(case: Case, tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> None:
    """An effect of one mde, harm on the primary metric or a guardrail, and another split than intended."""
    told = _told(case, tmp_path, kafka, redis_server)
    verdict = told["verdict"]["treatment"]
    assert verdict["state"] == case.state
    states = {each["guardrail"]["name"]: each["state"] for each in told["guardrails"]["treatment"]}
    crossed = {"escalating": {"feedback:escalated"}, "slow": {"latency_ms"}, "worse": set()}
    assert {name for name, state in states.items() if state == "crossed"} == crossed.get(case.name, set())


def test_an_effect_that_fades_is_seen_to_fade(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> None:
    """Large on the first days, and nothing is left of it later."""
    traffic = {"effects": {"treatment": 1.2}, "fade_days": 1.0, "students": 6_000, "responses": 60_000}
    told = _told(Case("fading", traffic, "", "novelty = true"), tmp_path, kafka, redis_server)
    ages = {each["days"]: each for each in told["novelty"]["treatment"]}
    effects = [ages[days]["difference"]["effect"] for days in ("0", "1", "2–3", "4–7")]
    assert effects == sorted(effects, reverse=True)
    assert ages["0"]["discovered"]
    assert ages["4–7"]["difference"]["effect"] < ages["0"]["difference"]["effect"] / 4
    assert not ages["8+"]["discovered"]


def test_what_students_were_like_before_makes_it_more_precise(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """A week without any effect, then two with it; those of the week are in no count."""
    begins_ms = SCENARIO.start_ms - 14 * 86_400_000
    starts_ms = begins_ms + PRE_DAYS * 86_400_000
    starts_at = datetime.fromtimestamp(starts_ms / 1000, UTC).isoformat()
    traffic = {"days": PRE_DAYS + 14, "responses": 60_000, "students": 1_500}
    traffic |= {"start_ms": begins_ms, "effects_from_ms": starts_ms}
    more = f'starts_at = {starts_at}\npre_period = "{PRE_DAYS}d"'
    told = _told(Case("before", traffic, "", more), tmp_path, kafka, redis_server)
    verdict = told["verdict"]["treatment"]
    closed = told["comparisons"]["treatment"]["dcg@5"]["closed"]
    raw = verdict["adjustment"]["unadjusted"]
    assert verdict["adjustment"]["variance_reduction"] > 0.03
    assert closed["upper"] - closed["lower"] < raw["upper"] - raw["lower"]
    assert closed["lower"] < one_mde() < closed["upper"]
    assert "adjusted" in {note["code"] for note in verdict["notes"]}
    assert sum(arm["students"] for arm in told["sample_ratio"]["phases"][0]["arms"]) <= 1_500
