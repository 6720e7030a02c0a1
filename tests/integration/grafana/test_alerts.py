"""Every alert fires when it should and is silent when it should be, as promtool evaluates the rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from deploy.alerting.generate import GROUPS, RULES
from deploy.alerting.rules import JSON, Addresses
from grafana.generate import build_boards
from grafana.queries import board_queries
from tests.servers.prometheus import promtool
from tests.support.alerts import SCENARIOS, STEP_MIN, Scenario, arm, lasting
from tests.support.promql import selectors

DEPLOYMENT = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
DOCUMENTED_TIMES = [
    (int(cells[0]), int(cells[1]))
    for cells in re.findall(r"^\| half, decay (\d+) min \| (\d+) min \|", DEPLOYMENT, re.MULTILINE)
]
"""Half-life, and after how many minutes a drop by half fires, as it is documented."""
ALERTS = {alert.name: alert for group in GROUPS for alert in group.alerts}


def required_rules(alert: str) -> Iterator[JSON]:
    """Yield the rules that an alert needs, in order, because evaluating all rules each time would take minutes."""
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    names = {alert}
    for rule in reversed(rules):
        if rule.get("alert", rule.get("record")) in names:
            names |= {str(selector.name) for selector in selectors(rule["expr"])}
    return (rule for rule in rules if rule.get("alert", rule.get("record")) in names)


def evaluate_rules(directory: Path, scenario: Scenario, *, step_min: int = STEP_MIN, **assertion: object) -> str:
    """Return promtool's findings on an assertion about a scenario; empty if the assertion holds."""
    series = [{"series": name, "values": values} for name, values in scenario.world.items()]
    test = {"interval": f"{step_min}m", "input_series": series, **assertion}
    rules, file = directory / "rules.yml", directory / "test.yml"
    # JSON is YAML.
    groups = {"groups": [{"name": "needed", "rules": list(required_rules(scenario.alert))}]}
    rules.write_text(json.dumps(groups), encoding="utf-8")
    content = {"rule_files": [str(rules)], "evaluation_interval": f"{step_min}m", "tests": [test]}
    file.write_text(json.dumps(content), encoding="utf-8")
    result = promtool("test", "rules", str(file))
    return "" if result.returncode == 0 else result.stdout + result.stderr


def firing_question(scenario: Scenario) -> JSON:
    """Return the promtool assertion that exactly the expected alerts fire, on Prometheus' series ALERTS."""
    alert = ALERTS[scenario.alert]
    alert_labels = {"alertname": alert.name, "alertstate": "firing", **alert.rendered(Addresses())["labels"]}
    expected = [
        "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in {**alert_labels, **labels}.items()) + "}"
        for labels in scenario.firing
    ]
    return {
        "expr": f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}',
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_exactly_the_expected_alerts_fire(scenario: Scenario, tmp_path: Path) -> None:
    """Each scenario is a set of series at one time."""
    assert evaluate_rules(tmp_path, scenario, promql_expr_test=[firing_question(scenario)]) == ""


OF_A_CLUSTER = 'namespace="ab-monitor",pod="ab-monitor-0",service="ab-monitor",container="ab-monitor",endpoint="http"'
"""What the Prometheus operator adds to every series that is scraped."""


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.firing], ids=str)
def test_alerts_fire_with_the_labels_of_a_kubernetes_cluster(scenario: Scenario, tmp_path: Path) -> None:
    """The same rules are applied in Kubernetes; their alerts have the same labels there."""
    world = {name.replace("{", "{" + OF_A_CLUSTER + ",", 1): values for name, values in scenario.world.items()}
    assert evaluate_rules(tmp_path, replace(scenario, world=world), promql_expr_test=[firing_question(scenario)]) == ""


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_firing_and_a_silent_scenario(name: str) -> None:
    """Both kinds are needed to test an alert."""
    fires = {bool(scenario.firing) for scenario in SCENARIOS if scenario.alert == name}
    assert fires == {True, False}


FEW_RESPONSES, YOUNG, GAP, ENDED, MISSED = "too few", "young", "a gap in scrapes", "ended", "one missed scrape"
OF_A_VARIANT, OF_STUDENTS, OF_A_SHARE = (
    (FEW_RESPONSES, YOUNG, GAP, ENDED),
    (FEW_RESPONSES, GAP, ENDED),
    (FEW_RESPONSES, GAP),
)
UNMOVED_BY = {
    "AbMonitorDropFast": OF_A_VARIANT,
    "AbMonitorDropSlow": OF_A_VARIANT,
    "AbMonitorBehindControlFast": (*OF_A_VARIANT, "control ended"),
    "AbMonitorBehindControlSlow": (*OF_A_VARIANT, "control ended"),
    "AbMonitorVariantSilent": OF_A_VARIANT,
    "AbMonitorFeedbackSilent": OF_A_VARIANT,
    "AbMonitorTopicSilent": OF_A_VARIANT,
    "AbMonitorHarm": (FEW_RESPONSES, "too young", GAP, ENDED),
    # Evidence counts from the first student on, so youth is no excuse.
    "AbMonitorSampleRatio": OF_STUDENTS,
    "AbMonitorCrossovers": OF_STUDENTS,
    "AbMonitorCommitConflicts": OF_A_SHARE,
    "AbMonitorRejects": OF_A_SHARE,
    "AbMonitorRejectsSevere": OF_A_SHARE,
    "AbMonitorLateEvents": OF_A_SHARE,
    "AbMonitorUnmatchedFeedback": OF_A_SHARE,
    # To be without scrapes is what these are about; one is not enough.
    "AbMonitorDown": (MISSED,),
    "AbMonitorTargetDown": (MISSED,),
}
"""What must not make an alert fire; of those that are not named, a gap in scrapes."""


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_has_a_silent_scenario_for_each_false_cause(name: str) -> None:
    """The causes are in `UNMOVED_BY`."""
    stories = [scenario.story for scenario in SCENARIOS if scenario.alert == name and not scenario.firing]
    false_causes = UNMOVED_BY.get(name, (GAP,))
    assert [cause for cause in false_causes if not any(cause in story for story in stories)] == []


RECORDED = {recording.record for group in GROUPS for recording in group.recordings}


@pytest.mark.parametrize("record", sorted(RECORDED))
def test_every_recording_has_values_in_a_firing_scenario(record: str, tmp_path: Path) -> None:
    """Also recordings that are empty in a demo."""
    scenario = next(
        candidate
        for candidate in SCENARIOS
        if candidate.firing and record in {rule.get("record") for rule in required_rules(candidate.alert)}
    )
    question = {
        "expr": f"count({record}) > bool 0",
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    assert evaluate_rules(tmp_path, scenario, promql_expr_test=[question]) == ""


def test_the_pipeline_board_shows_lost_events(tmp_path: Path) -> None:
    """A demo loses no events, so the panel's query runs on the scenario of the alert."""
    (scenario, *_) = (
        candidate for candidate in SCENARIOS if candidate.alert == "AbMonitorLostEvents" and candidate.firing
    )
    (query,) = (
        candidate for candidate in board_queries(build_boards()["pipeline.json"]) if candidate.panel == "Lost events"
    )
    question = {
        "expr": query.expr,
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": "{}", "value": 1000}],
    }
    assert evaluate_rules(tmp_path, scenario, promql_expr_test=[question]) == ""


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.firing], ids=str)
def test_alert_texts_use_only_labels_of_the_alert(scenario: Scenario) -> None:
    """A missing label would leave a gap in a sentence or a link."""
    alert = ALERTS[scenario.alert]
    texts = " ".join(alert.rendered(Addresses())["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= set(scenario.firing[0])


def test_the_documentation_lists_times_for_two_decays() -> None:
    """Two decays."""
    assert [half_life_min for half_life_min, _ in DOCUMENTED_TIMES] == [15, 60]


@pytest.mark.parametrize(("half_life_min", "minutes"), DOCUMENTED_TIMES)
def test_a_drop_by_half_fires_at_the_documented_time(half_life_min: int, minutes: int, tmp_path: Path) -> None:
    """The real rules, evaluated every minute, on a mean that decays to half of its value."""
    calm, steps = 28 * 60, 28 * 60 + minutes + 1
    falling = " ".join(f"{1 + 2 ** (-minute / half_life_min):.6f}" for minute in range(minutes + 1))
    newest = lasting(steps, 0, 60)
    world = arm("treatment", f"{lasting(calm, 2)} {falling}", decay="1h", newest=newest, steps=steps)
    scenario = Scenario("AbMonitorDropFast", "by half", world, steps)
    questions = [
        {
            "expr": 'count(ALERTS{alertname="AbMonitorDropFast", alertstate="firing"}) or vector(0)',
            "eval_time": f"{calm + minute}m",
            "exp_samples": [{"labels": "{}", "value": fires}],
        }
        for minute, fires in ((minutes - 1, 0), (minutes, 1))
    ]
    assert evaluate_rules(tmp_path, scenario, step_min=1, promql_expr_test=questions) == ""
