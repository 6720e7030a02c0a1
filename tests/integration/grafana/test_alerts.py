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
from grafana.generate import boards
from grafana.queries import queries
from tests.servers.prometheus import promtool
from tests.support.alerts import SCENARIOS, STEP_MIN, Scenario, arm, lasting
from tests.support.promql import selectors

DEPLOYMENT = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
SAID = [
    (int(cells[0]), int(cells[1]))
    for cells in re.findall(r"^\| half, decay (\d+) min \| (\d+) min \|", DEPLOYMENT, re.MULTILINE)
]
"""Half-life, and after how many minutes a drop by half fires, as it is documented."""
ALERTS = {alert.name: alert for group in GROUPS for alert in group.alerts}


def needed(alert: str) -> Iterator[JSON]:
    """Yield the rules that an alert needs, in their order; evaluating all of them every time would take minutes."""
    rules = [rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]]
    names = {alert}
    for rule in reversed(rules):
        if rule.get("alert", rule.get("record")) in names:
            names |= {str(selector.name) for selector in selectors(rule["expr"])}
    return (rule for rule in rules if rule.get("alert", rule.get("record")) in names)


def evaluated(directory: Path, scenario: Scenario, *, step_min: int = STEP_MIN, **assertion: object) -> str:
    """Return what promtool has to say against the assertion about a scenario's world: nothing if it holds."""
    series = [{"series": name, "values": values} for name, values in scenario.world.items()]
    test = {"interval": f"{step_min}m", "input_series": series, **assertion}
    rules, file = directory / "rules.yml", directory / "test.yml"
    # JSON is YAML.
    groups = {"groups": [{"name": "needed", "rules": list(needed(scenario.alert))}]}
    rules.write_text(json.dumps(groups), encoding="utf-8")
    content = {"rule_files": [str(rules)], "evaluation_interval": f"{step_min}m", "tests": [test]}
    file.write_text(json.dumps(content), encoding="utf-8")
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def firing(scenario: Scenario) -> JSON:
    """Return promtool's question whether exactly the right alerts fire; ALERTS is Prometheus' own series of them."""
    alert = ALERTS[scenario.alert]
    own = {"alertname": alert.name, "alertstate": "firing", **alert.rendered(Addresses())["labels"]}
    expected = [
        "ALERTS{" + ",".join(f'{name}="{value}"' for name, value in {**own, **labels}.items()) + "}"
        for labels in scenario.firing
    ]
    return {
        "expr": f'ALERTS{{alertname="{alert.name}", alertstate="firing"}}',
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": labels, "value": 1} for labels in expected],
    }


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
def test_exactly_the_right_ones_fire(scenario: Scenario, tmp_path: Path) -> None:
    """Each scenario is one world at one moment."""
    assert evaluated(tmp_path, scenario, promql_expr_test=[firing(scenario)]) == ""


OF_A_CLUSTER = 'namespace="ab-monitor",pod="ab-monitor-0",service="ab-monitor",container="ab-monitor",endpoint="http"'
"""What the Prometheus operator adds to every series that is scraped."""


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.firing], ids=str)
def test_fires_with_the_labels_of_a_cluster(scenario: Scenario, tmp_path: Path) -> None:
    """The same rules are applied in Kubernetes; their alerts have the same labels there."""
    world = {name.replace("{", "{" + OF_A_CLUSTER + ",", 1): values for name, values in scenario.world.items()}
    assert evaluated(tmp_path, replace(scenario, world=world), promql_expr_test=[firing(scenario)]) == ""


@pytest.mark.parametrize("name", ALERTS)
def test_has_scenarios_of_both_kinds(name: str) -> None:
    """An alert that was never seen to fire, or never seen to be silent, is not known to work."""
    fires = {bool(scenario.firing) for scenario in SCENARIOS if scenario.alert == name}
    assert fires == {True, False}


FEW, YOUNG, GAP, ENDED, MISSED = "too few", "young", "a gap in scrapes", "ended", "one missed scrape"
OF_A_VARIANT, OF_STUDENTS, OF_A_SHARE = (FEW, YOUNG, GAP, ENDED), (FEW, GAP, ENDED), (FEW, GAP)
UNMOVED_BY = {
    "AbMonitorDropFast": OF_A_VARIANT,
    "AbMonitorDropSlow": OF_A_VARIANT,
    "AbMonitorBehindControlFast": (*OF_A_VARIANT, "control ended"),
    "AbMonitorBehindControlSlow": (*OF_A_VARIANT, "control ended"),
    "AbMonitorVariantSilent": OF_A_VARIANT,
    "AbMonitorFeedbackSilent": OF_A_VARIANT,
    "AbMonitorTopicSilent": OF_A_VARIANT,
    "AbMonitorHarm": (FEW, "too young", GAP, ENDED),
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
def test_was_seen_to_be_silent_for_every_wrong_reason(name: str) -> None:
    """Each of them is a scenario of its own."""
    stories = [scenario.story for scenario in SCENARIOS if scenario.alert == name and not scenario.firing]
    wanted = UNMOVED_BY.get(name, (GAP,))
    assert [each for each in wanted if not any(each in story for story in stories)] == []


RECORDED = {recording.record for group in GROUPS for recording in group.recordings}


@pytest.mark.parametrize("record", sorted(RECORDED))
def test_what_is_recorded_has_values_where_an_alert_needs_it(record: str, tmp_path: Path) -> None:
    """Also where a demo leaves it empty; a recording that no alert needs would have no scenario."""
    scenario = next(
        each for each in SCENARIOS if each.firing and record in {rule.get("record") for rule in needed(each.alert)}
    )
    question = {
        "expr": f"count({record}) > bool 0",
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": "{}", "value": 1}],
    }
    assert evaluated(tmp_path, scenario, promql_expr_test=[question]) == ""


def test_lost_events_are_on_the_board_of_the_pipeline(tmp_path: Path) -> None:
    """No demo loses any, so the panel is shown what the alert is shown."""
    (scenario, *_) = (each for each in SCENARIOS if each.alert == "AbMonitorLostEvents" and each.firing)
    (query,) = (each for each in queries(boards()["pipeline.json"]) if each.panel == "Lost events")
    question = {
        "expr": query.expr,
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": "{}", "value": 1000}],
    }
    assert evaluated(tmp_path, scenario, promql_expr_test=[question]) == ""


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if each.firing], ids=str)
def test_texts_name_only_labels_that_the_alert_has(scenario: Scenario) -> None:
    """A missing label would leave a hole in a sentence or a link."""
    alert = ALERTS[scenario.alert]
    texts = " ".join(alert.rendered(Addresses())["annotations"].values())
    assert set(re.findall(r"\$labels\.(\w+)", texts)) <= set(scenario.firing[0])


def test_the_documentation_says_how_soon() -> None:
    """Two decays."""
    assert [half_life_min for half_life_min, _ in SAID] == [15, 60]


@pytest.mark.parametrize(("half_life_min", "minutes"), SAID)
def test_half_the_quality_fires_as_soon_as_is_documented(half_life_min: int, minutes: int, tmp_path: Path) -> None:
    """The real rules, evaluated every minute, on a mean that decays to half of what it was."""
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
    assert evaluated(tmp_path, scenario, step_min=1, promql_expr_test=questions) == ""
