"""A drill: a variant loses half of the quality, and the responsible team is alerted, with working links.

Everything is real but time: an hour of the rules and of Alertmanager takes two seconds, and so does the half-life that
stands for one hour. Names, expressions and thresholds are those of the deployment.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
import yaml

from deploy.alerting.compression import compressed
from grafana.generate import DASHBOARDS
from grafana.queries import board_queries, substitute_variables
from monitor.simulation.simulator import Scenario, render_example_config
from tests.servers.alertmanager import Alertmanager
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer
from tests.servers.redis import RedisServer
from tests.servers.webhook import WebhookReceiver
from tests.support.command import eventually, get, service

ROOT = Path(__file__).parents[2]
COMPRESSION = 1800
DECAY = "2s"
PAST_S = 46
"""The fast rule compares with the day before: 21 hours of it must have passed, the first seconds not counted."""
PER_SECOND = 400
"""Responses: with four tenths rated, 100 effective ones per variant are there after two seconds."""
NOT_IN_LINKS = {"ab_monitor_url", "datasource", "kind", "cluster", "namespace", "environment"}
"""Variables of the board that the links of these alerts do not set: the series have no such label."""
STRETCH_S = 30.0
"""Length of the traffic that the simulator generates at a time."""


def _monitor_config(directory: Path, kafka: KafkaBroker, store: RedisServer, port: int) -> Path:
    text = render_example_config(Scenario())
    for old, new in {
        "localhost:9092": kafka.bootstrap,
        "redis://localhost:6379/0": store.url,
        "port = 9464": f"port = {port}",
        "chatbot.responses": "drill.responses",
        "student.feedback": "drill.feedback",
        '"ab-monitor.dead-letter"': '"drill.dead"',
        '"ab-monitor"': '"drill"',
        'decay = ["1h", "24h"]': f'decay = ["{DECAY}"]',
    }.items():
        assert old in text, old
        text = text.replace(old, new)
    path = directory / "monitor.toml"
    path.write_text(text)
    for topic in ("responses", "feedback", "dead"):
        kafka.create_topic(f"drill.{topic}", 2)
    return path


def _alertmanager_config(directory: Path, receiver: WebhookReceiver) -> Path:
    """Return the deployment's configuration with local receivers and shorter intervals."""

    def hurry(route: dict[str, Any]) -> None:
        for key in ("group_wait", "group_interval", "repeat_interval"):
            if key in route:
                route[key] = compressed(route[key], COMPRESSION)
        for inner in route.get("routes", []):
            hurry(inner)

    config = yaml.safe_load((ROOT / "deploy" / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    hurry(config["route"])
    for receiver_config in config["receivers"]:
        receiver_config["webhook_configs"] = [
            {"url": receiver.address(receiver_config["name"]), "send_resolved": False}
        ]
    path = directory / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def _prometheus(directory: Path, monitor: int, alertmanager: int) -> PrometheusServer:
    """Return a server with the deployment's configuration, local addresses and rules with shorter windows."""
    port = free_port()
    rules = directory / "rules.yml"
    runbook = f"http://127.0.0.1:{monitor}/runbook"
    flags = ["--out", str(rules), "--compress", str(COMPRESSION), "--runbook", runbook]
    subprocess.run([sys.executable, "-m", "deploy.alerting.generate", *flags], cwd=ROOT, check=True)
    text = (ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    config = yaml.safe_load(
        text.replace("monitor:9464", f"127.0.0.1:{monitor}").replace("alertmanager:9093", f"127.0.0.1:{alertmanager}")
    )
    config |= {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "rule_files": [str(rules)]}
    return PrometheusServer(config, f"--web.external-url=http://127.0.0.1:{port}", port=port)


@contextmanager
def _traffic(config: Path, drop_at_s: float, log: Path) -> Iterator[None]:
    """Send live traffic in which the treatment loses half of its quality."""
    drop_time = datetime.fromtimestamp(drop_at_s, UTC).isoformat()
    days = STRETCH_S / 86_400
    command = [
        *(sys.executable, "-m", "monitor", "simulate", "--kafka", "--config", str(config), "--live"),
        *("--days", f"{days:.9f}", "--responses", f"{PER_SECOND * STRETCH_S:.0f}", "--feedback-delay", "0.3"),
        *("--effect", "treatment=0", "--drop", "treatment=0.5", "--drop-at", drop_time),
    ]
    with log.open("wb") as stream, subprocess.Popen(command, stdout=stream, stderr=stream) as process:
        try:
            yield
        finally:
            process.terminate()


@pytest.mark.timeout(200)
def test_a_quality_drop_of_a_variant_alerts_the_product_team(
    tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer
) -> None:
    """Before the drop there are no alerts; then both fast alerts on the treatment go to the urgent receiver only."""
    redis_server.client().flushall()
    port = free_port()
    config = _monitor_config(tmp_path, kafka, redis_server, port)
    with WebhookReceiver() as receiver, service(config, tmp_path / "monitor.log"):
        eventually("the monitor answers", lambda: get(f"http://127.0.0.1:{port}/-/healthy")[0] == 200)
        drop_at_s = time.time() + PAST_S
        with (
            _traffic(config, drop_at_s, tmp_path / "simulate.log"),
            Alertmanager(_alertmanager_config(tmp_path, receiver)) as alertmanager,
            _prometheus(tmp_path, port, alertmanager.port) as prometheus,
        ):
            time.sleep(max(drop_at_s - time.time(), 0))
            assert receiver.told.get("product-urgent", []) + receiver.told.get("product", []) == []
            expected = {"AbMonitorDropFast", "AbMonitorBehindControlFast"}
            eventually(
                "both alerts arrive",
                lambda: {alert["labels"]["alertname"] for alert in receiver.told["product-urgent"]} >= expected,
                within_s=45,
            )
            for alert in receiver.told["product-urgent"]:
                assert alert["status"] == "firing"
                assert alert["labels"]["alertname"] in expected
                arm = {name: alert["labels"][name] for name in ("experiment", "variant", "metric", "decay")}
                assert arm == {"experiment": "ranker-v2", "variant": "treatment", "metric": "dcg@5", "decay": DECAY}
                _check_links(alert, prometheus)
            assert "product" not in receiver.told
            for path, alerts in receiver.told.items():
                assert all(path.startswith(alert["labels"]["team"]) for alert in alerts)


def _check_links(alert: dict[str, Any], prometheus: PrometheusServer) -> None:
    """Open the section of the runbook, the expression in Prometheus, and a board that shows the drop."""
    runbook, _, section = alert["annotations"]["runbook_url"].partition("#")
    status, text = get(runbook)
    assert (status, f'<section id="{section}">' in text) == (200, True)
    assert get(alert["generatorURL"])[0] == 200

    address = urlsplit(alert["annotations"]["dashboard_url"])
    boards = [json.loads(path.read_text(encoding="utf-8")) for path in DASHBOARDS.glob("*.json")]
    (board,) = [board for board in boards if address.path == f"/d/{board['uid']}"]
    chosen = {name.removeprefix("var-"): value for name, value in parse_qsl(address.query) if name.startswith("var-")}
    assert set(chosen) == {choice["name"] for choice in board["templating"]["list"]} - NOT_IN_LINKS
    values = {**dict.fromkeys(NOT_IN_LINKS, ""), **chosen, "__rate_interval": "5s", "__range": "30s"}
    exprs = {
        query.ref: query.expr for query in board_queries(board) if query.panel == "$metric, recent ($decay half-life)"
    }
    control, treatment = (prometheus.query(substitute_variables(exprs[ref], values)) for ref in ("A, control", "A"))
    assert float(treatment[0]["value"][1]) < 0.85 * float(control[0]["value"][1])
    (alert_marks,) = [annotation for annotation in board["annotations"]["list"] if annotation["name"] == "Alerts"]
    assert alert["labels"]["alertname"] in {
        series["metric"]["alertname"] for series in prometheus.query(substitute_variables(alert_marks["expr"], values))
    }
