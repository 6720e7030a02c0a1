"""Draw the pictures of the boards in docs/ from what a real Prometheus has scraped.

python -m tests.previews

The experiments are those of a demo: a simulated week in six minutes. The pipeline is one with a real Kafka, in five
minutes of which the store is away for half a minute and a producer sends some nonsense.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml
from kafka import KafkaProducer

from grafana.preview.rendering import render_previews
from monitor.simulation.simulator import Scenario, render_example_config
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.scraped import scraped

ROOT = Path(__file__).parents[1]
RULES = ROOT / "deploy" / "prometheus" / "rules" / "ab-monitor.yml"
WEEK_S = 360
PER_SECOND, CALM_S, AWAY_S, NONSENSE = 100, 90, 30, 40
TOPICS = ("chatbot.responses", "student.feedback", "ab-monitor.dead-letter")


def experiments(rules: list[dict[str, object]], out: Path) -> None:
    """Draw all boards at the end of a demo's week."""
    port = free_port()
    command = ["demo", "--speed", str(7 * 86_400 / WEEK_S), "--stay", "--port", str(port)]
    with tempfile.TemporaryDirectory() as directory, scraped(command, port, Path(directory), rules) as server:
        time.sleep(WEEK_S)
        sys.stdout.write(f"without data: {render_previews(server.url, time.time(), WEEK_S, 1, out)}\n")


def pipeline(rules: list[dict[str, object]], out: Path) -> None:
    """Draw all boards after an outage of the store and some refused messages."""
    port = free_port()
    with (
        tempfile.TemporaryDirectory() as name,
        KafkaBroker() as kafka,
        RedisServer(redis_binary()) as store,
        KafkaProducer(bootstrap_servers=kafka.bootstrap) as producer,
    ):
        config = Path(name) / "config.toml"
        text = (
            render_example_config(Scenario()).replace("localhost:9092", kafka.bootstrap).replace("= 9464", f"= {port}")
        )
        config.write_text(text.replace("redis://localhost:6379/0", store.url))
        for topic in TOPICS:
            kafka.create_topic(topic, 4)
        stretch_s = 60
        flags = ["--days", f"{stretch_s / 86_400:.9f}", "--responses", str(PER_SECOND * stretch_s)]
        traffic = [sys.executable, "-m", "monitor", "simulate", "--kafka", "--live", "--config", str(config), *flags]
        with (
            scraped(["run", "--config", str(config)], port, Path(name), rules) as server,
            subprocess.Popen(traffic, cwd=ROOT) as simulator,
        ):
            begun = time.time()
            time.sleep(CALM_S)
            store.process.stop()
            time.sleep(AWAY_S)
            store.start()
            time.sleep(CALM_S)
            for number in range(NONSENSE):
                producer.send(TOPICS[number % 3 > 0], b"{}" if number % 2 else b"not json")
                time.sleep(0.25)
            time.sleep(CALM_S)
            sys.stdout.write(f"without data: {render_previews(server.url, time.time(), time.time() - begun, 1, out)}\n")
            simulator.terminate()


def main() -> None:
    """Write docs/board-*.png."""
    rules = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    with tempfile.TemporaryDirectory() as name:
        experiments(rules, Path(name) / "demo")
        pipeline(rules, Path(name) / "kafka")
        for stem, source in (("experiments", "demo"), ("experiment", "demo"), ("pipeline", "kafka")):
            (ROOT / "docs" / f"board-{stem}.png").write_bytes((Path(name) / source / f"board-{stem}.png").read_bytes())


if __name__ == "__main__":
    main()
