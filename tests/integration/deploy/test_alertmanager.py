"""Alertmanager routes each alert to the right team, and inhibits consequences of other alerts."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest

from deploy.alerting.generate import GROUPS
from deploy.alerting.rules import Addresses
from tests.servers.alertmanager import Alertmanager, amtool
from tests.support.alerts import SCENARIOS

CONFIG = Path(__file__).parents[3] / "deploy" / "alertmanager" / "alertmanager.yml"
PATIENCE_S, SETTLED_S = 10.0, 0.3
ALERTS = {alert.name: alert for group in GROUPS for alert in group.alerts}
FIRED = {scenario.alert: scenario.firing[0] for scenario in SCENARIOS if scenario.firing}


def labels(name: str) -> dict[str, str]:
    """Return the labels of an alert as it fires in its scenario."""
    return {"alertname": name, **ALERTS[name].rendered(Addresses())["labels"], **FIRED[name]}


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
DROP, DROP_SLOW, BEHIND = (
    labels(name) for name in ("AbMonitorDropFast", "AbMonitorDropSlow", "AbMonitorBehindControlSlow")
)
VARIANT_SILENT, TOPIC_SILENT = labels("AbMonitorVariantSilent"), labels("AbMonitorTopicSilent")
OTHER_VARIANT, OTHER_TOPIC = {**DROP_SLOW, "variant": "other"}, {**LETTERS, "topic": "other"}
FOREIGN = {"alertname": "DiskFull", "severity": "warning"}
ALL_BUT_DOWN = [labels(name) for name in ALERTS if name != "AbMonitorDown"]

Fired = Sequence[Mapping[str, str]]
CASES: Sequence[tuple[str, Fired, Fired]] = (
    ("without a monitor there is nothing else", [DOWN, FOREIGN], ALL_BUT_DOWN),
    ("numbers of a broken pipeline accuse nobody", [LAG_SEVERE], [DROP, BEHIND, VARIANT_SILENT]),
    ("numbers that are a little late do", [LAG, DROP, BEHIND, VARIANT_SILENT], []),
    ("what a missing store brings", [STORE_DOWN], [PAUSED_LONG, LAG_SEVERE, TOPIC_SILENT]),
    ("who waits falls behind", [PAUSED], [LAG_SEVERE]),
    ("the severe one of a pair", [PAUSED_LONG], [PAUSED]),
    ("a fast drop is also a slow one of that variant", [DROP, OTHER_VARIANT], [DROP_SLOW]),
    ("another concern is another matter", [DROP, BEHIND], []),
    ("many refusals make dead letters of that topic", [REJECTS, OTHER_TOPIC], [LETTERS]),
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
