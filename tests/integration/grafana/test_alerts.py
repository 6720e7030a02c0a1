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
from deploy.alerting.rules import JSON, SYSTEM, Addresses
from grafana.generate import build_boards
from grafana.queries import board_queries, substitute_variables
from tests.servers.prometheus import promtool
from tests.support.alerts import DAY, SCENARIOS, STEP_MIN, Scenario, arm, labelled, lasting, of_process, traffic
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


def firing_question(scenario: Scenario, *, among: str = "", **system: str) -> JSON:
    """Return the promtool assertion that exactly the expected alerts fire, on Prometheus' series ALERTS.

    The alerts have the labels of `system`, too; `among` selects those that matter.
    """
    alert = ALERTS[scenario.alert]
    alert_labels = {"alertname": alert.name, "alertstate": "firing", **alert.fixed_labels}
    expected = [
        "ALERTS{"
        + ",".join(
            f'{name}="{value}"' for name, value in {**alert_labels, "job": "ab-monitor", **labels, **system}.items()
        )
        + "}"
        for labels in scenario.firing
    ]
    return {
        "expr": f'ALERTS{{alertname="{alert.name}", alertstate="firing"{among}}}',
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
    """The same rules are applied in Kubernetes; their alerts have the namespace there, and none of the other labels."""
    in_cluster = replace(scenario, world=labelled(scenario.world, OF_A_CLUSTER))
    labels = {"namespace": "ab-monitor"} if scenario.story != NO_JOB else {}
    assert evaluate_rules(tmp_path, in_cluster, promql_expr_test=[firing_question(scenario, **labels)]) == ""


NO_JOB = "no job scrapes it"
"""There is no series that could have a label of a system."""
FIRST_FIRING, FIRST_SILENT = (
    {scenario.alert: scenario for scenario in reversed(SCENARIOS) if bool(scenario.firing) is fires}
    for fires in (True, False)
)


@pytest.mark.parametrize("alert", ALERTS)
def test_another_environment_hides_no_alert(alert: str, tmp_path: Path) -> None:
    """One Prometheus scrapes production and staging, which have the same experiments and topics."""
    firing, calm = FIRST_FIRING[alert], FIRST_SILENT[alert]
    production = labelled(firing.world, 'environment="production"')
    both = replace(firing, world={**production, **labelled(calm.world, 'environment="staging"')})
    question = firing_question(firing, among=', environment="production"', environment="production")
    assert evaluate_rules(tmp_path, both, promql_expr_test=[question]) == ""


@pytest.mark.parametrize("alert", ["AbMonitorDropFast", "AbMonitorBehindControlFast", "AbMonitorVariantSilent"])
def test_systems_that_differ_in_the_job_hide_no_alert(alert: str, tmp_path: Path) -> None:
    """An alert has the job of /metrics, so that Alertmanager can match it with alerts on the process."""
    firing, calm = FIRST_FIRING[alert], FIRST_SILENT[alert]
    both = labelled(firing.world, 'job="ab-monitor-live-experiments"') | labelled(
        calm.world, 'job="ab-monitor-staging-experiments"'
    )
    question = firing_question(firing, among=', job=~".*live"', job="ab-monitor-live")
    assert evaluate_rules(tmp_path, replace(firing, world=both), promql_expr_test=[question]) == ""


def alert_texts(scenario: Scenario, directory: Path) -> str:
    """Return what promtool prints of the alerts that fire, with their annotations."""
    question = {"eval_time": f"{scenario.at * STEP_MIN}m", "alertname": scenario.alert, "exp_alerts": []}
    return evaluate_rules(directory, scenario, alert_rule_test=[question])


def scenario_of(alert: str, story: str) -> Scenario:
    """Return a scenario by its name."""
    return next(scenario for scenario in SCENARIOS if (scenario.alert, scenario.story) == (alert, story))


class TestTexts:
    """Texts with the facts of the moment."""

    def test_the_alert_on_a_silent_variant_counts_skipped_and_rejected_responses(self, tmp_path: Path) -> None:
        """A variant may be silent because its name is misspelt, or because its responses are invalid."""
        scenario = scenario_of("AbMonitorVariantSilent", "one of two stops")
        experiments = 'job="ab-monitor-experiments",environment="production"'
        process = 'environment="production"'
        skipped = of_process("abmonitor_events_total", lasting(3 * DAY, 0, 10), topic="answers", outcome="skipped")
        info = of_process("abmonitor_topic_info", lasting(3 * DAY, 1), topic="answers", event_type="response")
        world = labelled(scenario.world, experiments) | labelled(skipped | info, process)
        text = alert_texts(replace(scenario, world=world), tmp_path)
        assert "In the last 30 minutes 60 responses were skipped: " in text
        assert "responses were rejected" not in text
        assert "[ab-monitor, production]" in text
        assert "var-job=ab-monitor&var-environment=production&var-experiment=e&" in text

    def test_alerts_on_rejected_events_name_the_main_reason(self, tmp_path: Path) -> None:
        """The reason leads to the producer's mistake."""
        scenario = scenario_of("AbMonitorRejectsSevere", "half of them")
        rare = of_process("abmonitor_rejected_events_total", lasting(DAY, 0, 1), topic="feedback", reason="too_large")
        text = alert_texts(replace(scenario, world=scenario.world | rare), tmp_path)
        assert "Most frequent reason in the last 30 minutes: json." in text
        assert "A restart does not help" in text
        assert "ab-monitor run --config FILE --accept-rejected" in text

    @pytest.mark.parametrize(
        ("story", "summary"),
        [
            ("no replica answers", "AB Monitor is down: no replica answers [ab-monitor]"),
            (NO_JOB, "Prometheus has no job that scrapes AB Monitor"),
        ],
    )
    def test_the_down_alert_names_what_is_missing(self, story: str, summary: str, tmp_path: Path) -> None:
        """Without a scrape job there may well be replicas."""
        text = alert_texts(scenario_of("AbMonitorDown", story), tmp_path)
        assert summary in text
        assert ("replica" in text) is (story != NO_JOB)

    def test_a_paused_alert_names_the_dependency(self, tmp_path: Path) -> None:
        """The person on call repairs the dependency, not the monitor."""
        text = alert_texts(scenario_of("AbMonitorPaused", "for Kafka, and not for the store"), tmp_path)
        assert "m:1 is paused: it has waited for kafka for 5 minutes" in text
        assert "Kafka is unreachable" in text

    def test_a_silent_variant_without_events_that_do_not_count_has_no_other_explanation(self, tmp_path: Path) -> None:
        """The text names skipped or rejected responses only if there are any."""
        text = alert_texts(scenario_of("AbMonitorVariantSilent", "one of two stops"), tmp_path)
        assert "responses were due since its last one. Its bot or its routing may have stopped" in text
        assert "skipped" not in text

    def test_an_alert_on_uncounted_feedback_names_the_cause(self, tmp_path: Path) -> None:
        """The cause decides who has to act."""
        text = alert_texts(scenario_of("AbMonitorUncountedFeedback", "a clock goes wrong"), tmp_path)
        assert "does not count: before response [ab-monitor]" in text
        assert "the clock of a producer is wrong. This feedback is missing" in text

    def test_the_evidence_against_the_split_is_a_number_of_experiments(self, tmp_path: Path) -> None:
        """The logarithm of an e-value means nothing to most readers."""
        text = alert_texts(scenario_of("AbMonitorSampleRatio", "split otherwise"), tmp_path)
        assert "in at most 1 of 1097 experiments" in text
        assert "logarithm" not in text


@pytest.mark.parametrize(
    ("per_second", "minutes"), [(10.0, 6), (0.5, 6), (0.04, 16)], ids=["10/s", "0.5/s", "one in 25 s"]
)
def test_a_silent_variant_is_detected_when_thirty_responses_were_due(
    per_second: float, minutes: int, tmp_path: Path
) -> None:
    """After five minutes with much traffic, evaluated and scraped every minute; not a minute before."""
    calm, step = 60, 60 * per_second
    flowing, silent = lasting(calm + 60, 0, step), f"{lasting(calm, 0, step)} {lasting(60, step * (calm - 1))}"
    shares = traffic("abmonitor_intended_share", control=lasting(calm + 60, 0.5), treatment=lasting(calm + 60, 0.5))
    world = traffic("abmonitor_responses", control=flowing, treatment=silent) | shares
    scenario = Scenario("AbMonitorVariantSilent", "of two", world, calm)
    questions = [
        {
            "expr": 'count(ALERTS{alertname="AbMonitorVariantSilent", alertstate="firing"}) or vector(0)',
            "eval_time": f"{calm - 1 + minute}m",
            "exp_samples": [{"labels": "{}", "value": fires}],
        }
        for minute, fires in ((minutes - 2, 0), (minutes, 1))
    ]
    assert evaluate_rules(tmp_path, scenario, step_min=1, promql_expr_test=questions) == ""


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
        "expr": substitute_variables(query.expr, {"job": "ab-monitor", **dict.fromkeys(SYSTEM[1:], "")}),
        "eval_time": f"{scenario.at * STEP_MIN}m",
        "exp_samples": [{"labels": "{}", "value": 1000}],
    }
    assert evaluate_rules(tmp_path, scenario, promql_expr_test=[question]) == ""


@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario.firing], ids=str)
def test_alert_texts_use_only_labels_of_the_alert(scenario: Scenario) -> None:
    """A missing label would leave a gap in a sentence or a link."""
    alert = ALERTS[scenario.alert]
    texts = " ".join(alert.rendered(Addresses())["annotations"].values())
    tested_labels = {"job", "cluster", "namespace", "environment", "instance", "reason"}
    """Texts ask for them before they use them, or compare them."""
    assert set(re.findall(r"\$labels\.(\w+)", texts)) - tested_labels <= set(scenario.firing[0])


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
