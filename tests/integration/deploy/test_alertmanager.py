"""Alertmanager routes each alert to the right team, and inhibits consequences of other alerts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from deploy.alerting.generate import GROUPS
from tests.servers.alertmanager import Alertmanager, amtool
from tests.support.alerts import SCENARIOS

CONFIG = Path(__file__).parents[3] / "deploy" / "alertmanager" / "alertmanager.yml"
PATIENCE_S, SETTLED_S = 10.0, 0.3
ALERTS = {alert.name: alert for group in GROUPS for alert in group.alerts}
FIRED = {scenario.alert: scenario.firing[0] for scenario in reversed(SCENARIOS) if scenario.firing}


def labels(name: str) -> dict[str, str]:
    """Return the labels of an alert as it fires in its scenario."""
    return {"alertname": name, **ALERTS[name].fixed_labels, **FIRED[name], "job": "ab-monitor"}


def in_staging(alert: Mapping[str, str]) -> dict[str, str]:
    """Return the alert of another system, which the same Prometheus scrapes."""
    return {**alert, "environment": "staging"}


def in_order(alerts: Iterable[Mapping[str, str]]) -> list[list[tuple[str, str]]]:
    """Return alerts by their labels, in an order that depends on nothing else."""
    return sorted(sorted(alert.items()) for alert in alerts)


def receiver(of: Mapping[str, str]) -> str:
    """Return who is told of an alert."""
    pairs = [f"{name}={value}" for name, value in of.items()]
    result = amtool("config", "routes", "test", f"--config.file={CONFIG}", *pairs)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize("name", ALERTS)
def test_every_alert_reaches_its_team(name: str) -> None:
    """What is critical goes where it wakes somebody."""
    urgent = "-urgent" if ALERTS[name].severity == "critical" else ""
    assert receiver(labels(name)) == ALERTS[name].team + urgent


def test_unknown_alerts_reach_operations() -> None:
    """The default route."""
    assert receiver({"alertname": "Unknown"}) == "operations"


DOWN, STORE_DOWN = labels("AbMonitorDown"), labels("AbMonitorStoreDown")
LAG, LAG_SEVERE = labels("AbMonitorLag"), labels("AbMonitorLagSevere")
PAUSED, PAUSED_LONG = labels("AbMonitorPaused"), labels("AbMonitorPausedLong")
REJECTS, LETTERS = labels("AbMonitorRejects"), labels("AbMonitorDeadLetters")
REJECTS_SEVERE, RESTARTING = labels("AbMonitorRejectsSevere"), labels("AbMonitorRestarting")
HARM, SAMPLE_RATIO = labels("AbMonitorHarm"), labels("AbMonitorSampleRatio")
DROP, DROP_SLOW, BEHIND = (
    labels(name) for name in ("AbMonitorDropFast", "AbMonitorDropSlow", "AbMonitorBehindControlSlow")
)
VARIANT_SILENT, TOPIC_SILENT = labels("AbMonitorVariantSilent"), labels("AbMonitorTopicSilent")
OTHER_VARIANT, OTHER_TOPIC = {**DROP_SLOW, "variant": "other"}, {**LETTERS, "topic": "other"}
FOREIGN = {"alertname": "DiskFull", "severity": "warning"}
EXPLANATIONS = ("restarting", "rejects", "store-down", "lost-events")
EXPLAINING_DOWN = [
    labels(name) for name, alert in ALERTS.items() if alert.concern in EXPLANATIONS and alert.severity == "critical"
]
NOT_EXPLAINING_DOWN = [
    labels(name) for name, alert in ALERTS.items() if alert.concern not in EXPLANATIONS and name != "AbMonitorDown"
]

Fired = Sequence[Mapping[str, str]]
CASES: Sequence[tuple[str, Fired, Fired]] = (
    ("without a monitor only its explanations matter", [DOWN, FOREIGN, *EXPLAINING_DOWN], NOT_EXPLAINING_DOWN),
    (
        "another system is no concern of a monitor that is down",
        [DOWN, in_staging(DROP), in_staging(LAG)],
        [DROP],
    ),
    ("recent means of a broken pipeline accuse nobody", [LAG_SEVERE], [DROP, BEHIND]),
    ("a broken pipeline hides neither silence nor harm", [LAG_SEVERE, VARIANT_SILENT, HARM, SAMPLE_RATIO], []),
    ("rejected events hide neither silence nor harm nor a drop", [REJECTS_SEVERE, VARIANT_SILENT, HARM, DROP], []),
    ("a restarting monitor hides no variant", [RESTARTING, VARIANT_SILENT, HARM, DROP], []),
    ("a broken pipeline in staging hides nothing in production", [in_staging(LAG_SEVERE), DROP, BEHIND], []),
    ("numbers that are a little late do", [LAG, DROP, BEHIND, VARIANT_SILENT], []),
    ("what a missing store brings", [STORE_DOWN], [PAUSED_LONG, LAG_SEVERE, TOPIC_SILENT]),
    ("a missing store explains no pause for Kafka", [STORE_DOWN, {**PAUSED, "reason": "kafka"}], []),
    ("who waits falls behind", [PAUSED], [LAG_SEVERE]),
    ("the severe one of a pair", [PAUSED_LONG], [PAUSED]),
    ("a fast drop is also a slow one of that variant", [DROP, OTHER_VARIANT], [DROP_SLOW]),
    ("another concern is another matter", [DROP, BEHIND], []),
    ("many rejected events make dead letters of that topic", [REJECTS, OTHER_TOPIC], [LETTERS]),
    ("one flood of rejected events is one alert", [REJECTS_SEVERE], [REJECTS, LETTERS]),
)
"""What fires and is heard, and what fires beside it and is not."""


@pytest.mark.parametrize(("notified", "inhibited"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_consequences_of_a_firing_alert_are_inhibited(notified: Fired, inhibited: Fired) -> None:
    """With the deployed configuration; inhibition takes effect shortly after alerts arrive."""
    with Alertmanager(CONFIG) as server:
        server.fire([*notified, *inhibited])
        deadline = time.monotonic() + PATIENCE_S
        while (received := in_order(server.heard())) != in_order(notified) and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(SETTLED_S)
        assert received == in_order(server.heard()) == in_order(notified)
