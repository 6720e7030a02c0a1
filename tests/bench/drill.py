"""After how many minutes somebody is told that a variant has lost half of its quality: real processes, in real time.

Usage: python -m tests.bench.drill

Simulated students → Kafka → monitor → Prometheus → Alertmanager → a receiver, with the deployment's configuration,
rules and routes as they are, at a decay of 15 minutes; it takes half an hour. Only the past is made up: the day before,
which the rules compare with, is written into Prometheus' storage beforehand, both variants as good as the control is.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from deploy.alerting.product import MEAN
from monitor.ingest.simulator import Scenario, default_config
from tests.servers.alertmanager import Alertmanager
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.prometheus import PrometheusServer, promtool
from tests.servers.redis import RedisServer, redis_binary
from tests.servers.webhook import WebhookReceiver
from tests.support.command import eventually, get, service

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
ALERTS: Final = ("AbMonitorDropFast", "AbMonitorBehindControlFast")
DECAY: Final = "15m"
STRETCH_DAYS, RESPONSES = 0.125, 32_400
"""Of history, and of each further stretch: three responses a second."""
CALM_S, PATIENCE_S = 180.0, 45 * 60.0
HOUR_S: Final = 3600
TOPICS: Final = ("chatbot.responses", "student.feedback", "ab-monitor.dead-letter")


def alertmanager_config(directory: Path, receiver: WebhookReceiver) -> Path:
    """Return the deployment's configuration with receivers that can be reached."""
    config = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text(encoding="utf-8"))
    for each in config["receivers"]:
        each["webhook_configs"] = [{"url": receiver.address(each["name"]), "send_resolved": False}]
    path = directory / "alertmanager.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def prometheus(directory: Path, monitor: int, alertmanager: int, mean: float) -> PrometheusServer:
    """Return a server with the deployment's configuration and rules, in whose past both variants had that mean."""
    text = (DEPLOY / "prometheus" / "prometheus.yml").read_text(encoding="utf-8")
    own = text.replace("monitor:9464", f"127.0.0.1:{monitor}").replace("alertmanager:9093", f"127.0.0.1:{alertmanager}")
    rules = [str(DEPLOY / "prometheus" / "rules" / "ab-monitor.yml")]
    server = PrometheusServer({**yaml.safe_load(own), "rule_files": rules})
    now_s = int(time.time())
    labels = 'decay="{}",experiment="ranker-v2",metric="dcg@5",variant="{}"'
    samples = [
        f"{MEAN}{{{labels.format(DECAY, variant)}}} {mean} {at_s}"
        for variant in ("control", "treatment")
        for at_s in range(now_s - 28 * HOUR_S, now_s - 4 * HOUR_S, 60)
    ]
    past = directory / "past.txt"
    past.write_text("\n".join([f"# TYPE {MEAN} gauge", *samples, "# EOF", ""]))
    done = promtool("tsdb", "create-blocks-from", "openmetrics", str(past), str(server.storage))
    if done.returncode:
        raise SystemExit(done.stderr)
    return server


@contextmanager
def traffic(config: Path, drop_at_s: float) -> Iterator[None]:
    """Send live traffic in which the treatment, as good as the control before, loses half of its quality."""
    command = [
        *(sys.executable, "-m", "monitor", "simulate", "--kafka", "--config", str(config), "--live"),
        *("--days", str(STRETCH_DAYS), "--responses", str(RESPONSES), "--effect", "treatment=0"),
        *("--drop", "treatment=0.5", "--drop-at", datetime.fromtimestamp(drop_at_s, UTC).isoformat()),
    ]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def control_now(port: int) -> dict[str, Any]:
    """Return the decayed mean of the control."""
    found: dict[str, Any] = json.loads(get(f"http://127.0.0.1:{port}/api/experiments/ranker-v2")[1])
    decayed: dict[str, Any] = found["variants"]["control"]["metrics"]["dcg@5"]["decayed"][DECAY]
    return decayed


def heard(receiver: WebhookReceiver, drop_at_s: float) -> None:
    """Print each alert when it arrives, until both have."""
    told: set[tuple[str, str, str]] = set()
    deadline = time.monotonic() + CALM_S + PATIENCE_S
    while not set(ALERTS) <= {name for _, name, _ in told} and time.monotonic() < deadline:
        time.sleep(1)
        for door, alerts in list(receiver.told.items()):
            for labels in [each["labels"] for each in list(alerts)]:
                one = (door, labels["alertname"], labels.get("variant", ""))
                if one not in told:
                    told.add(one)
                    minutes = (time.time() - drop_at_s) / 60
                    print(f"{minutes:5.1f} min  {door}: {one[1]} {one[2]}", flush=True)


def main() -> None:
    """Set everything up, drop, and wait."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaBroker() as kafka,
        RedisServer(redis_binary()) as store,
        WebhookReceiver() as receiver,
    ):
        text = default_config(Scenario()).replace("localhost:9092", kafka.bootstrap).replace("= 9464", f"= {port}")
        text = text.replace("redis://localhost:6379/0", store.url).replace('["1h", "24h"]', f'["{DECAY}"]')
        config = Path(name) / "monitor.toml"
        config.write_text(text)
        for topic in TOPICS:
            kafka.create_topic(topic, 2)
        drop_at_s = time.time() + CALM_S
        with (
            service(config, Path(name) / "monitor.log"),
            Alertmanager(alertmanager_config(Path(name), receiver)) as alertmanager,
            traffic(config, drop_at_s),
        ):
            eventually("the monitor answers", lambda: get(f"http://127.0.0.1:{port}/-/ready")[0] == 200)
            eventually("its history is there", lambda: (control_now(port)["effective_count"] or 0) > 1000)
            control = control_now(port)
            print(f"control: {control['mean']:.2f} on {control['effective_count']:.0f} effective responses", flush=True)
            with prometheus(Path(name), port, alertmanager.port, control["mean"]):
                heard(receiver, drop_at_s)


if __name__ == "__main__":
    main()
