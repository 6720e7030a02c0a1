"""A running service reads its changed configuration again: at once when it is asked to, otherwise by itself."""

from __future__ import annotations

import json
import random
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer
from tests.support.command import (
    EXPERIMENT_TABLE,
    SERVICE_SECTIONS,
    ab_monitor,
    eventually,
    get,
    service,
    status,
    write_config,
)
from tests.support.http_client import Answer, ask

_TOKEN = "a-token-of-some-length"
_HEADERS = {"Authorization": f"Bearer {_TOKEN}"}


class _Worker:
    """The HTTP server of a service whose configuration is a directory."""

    def __init__(self, broker: KafkaBroker, store: RedisServer, directory: Path) -> None:
        store.client().flushall()
        name, self.port = f"reload-{random.randrange(1 << 40):x}", free_port()
        for topic in ("responses", "feedback", "dead"):
            broker.create_topic(f"{name}.{topic}", 1)
        values = [("bootstrap", broker.bootstrap), ("name", name), ("store", store.url), ("port", str(self.port))]
        directory.mkdir()
        write_config(directory / "service.toml", SERVICE_SECTIONS, values)
        self.directory = directory
        self.write_experiment("ranker")

    def write_experiment(self, name: str, further: str = "") -> None:
        """Write a file with one experiment."""
        (self.directory / f"{name}.toml").write_text(EXPERIMENT_TABLE.replace("NAME", name) + further)

    def is_ready(self) -> bool:
        """Return whether the service is ready."""
        return get(f"http://127.0.0.1:{self.port}/-/ready")[0] == 200

    def reload(self) -> Answer:
        """Return the response to a request to reload."""
        return ask(self.port, "/-/reload", "POST", headers=_HEADERS)

    def metric(self, name: str) -> float:
        """Return the value of a metric without labels."""
        match = re.search(rf"^{name} (.*)$", ask(self.port, "/metrics", headers=_HEADERS).body.decode(), re.MULTILINE)
        assert match is not None
        return float(match[1])

    def digests(self) -> list[str]:
        """Return the digests of `abmonitor_config_info`."""
        metrics = ask(self.port, "/metrics", headers=_HEADERS).body.decode()
        return re.findall(r'^abmonitor_config_info\{digest="(\w+)"\} 1', metrics, re.MULTILINE)


@pytest.fixture
def worker(tmp_path: Path, kafka: KafkaBroker, redis_server: RedisServer) -> _Worker:
    """Return a service that is not started yet."""
    return _Worker(kafka, redis_server, tmp_path / "config")


def test_a_running_service_reads_changed_files_and_keeps_its_experiments_if_they_are_invalid(
    worker: _Worker, tmp_path: Path
) -> None:
    """By a request, by a signal, and by itself. The process stays ready, and other commands accept the directory."""
    successful, timestamp = (
        f"abmonitor_config_last_reload_{name}" for name in ("successful", "success_timestamp_seconds")
    )
    log = tmp_path / "log"
    with service(worker.directory, log, environ={"ABMONITOR_HTTP_TOKEN": _TOKEN}) as process:
        eventually("the service is ready", worker.is_ready)
        started_at = worker.metric(timestamp)
        assert worker.metric(successful) == 1
        (digest,) = worker.digests()
        answer = worker.reload()
        assert (answer.status, answer.body.decode()) == (200, f"unchanged: configuration {digest}\n")

        worker.write_experiment("second")
        answer = worker.reload()
        assert answer.status == 200
        assert re.fullmatch(r"reloaded: configuration [0-9a-f]{12}\n", answer.body.decode())
        assert worker.metric(timestamp) > started_at

        worker.write_experiment("second", "alpha = 9\n")
        answer = worker.reload()
        message = "experiments.second.alpha: got 9, expected a number from 1e-06 to 0.25 (line 6 of second.toml)"
        assert (answer.status, answer.body.decode()) == (422, f"{message}\n")
        assert worker.metric(successful) == 0
        ready = get(f"http://127.0.0.1:{worker.port}/-/ready")
        assert ready == (200, f"ready\nthe configuration was rejected: {message}\n")

        worker.write_experiment("second", "alpha = 0.1\n")
        process.send_signal(signal.SIGHUP)
        eventually("the signal reloads", lambda: worker.metric(successful) == 1)
        (worker.directory / "second.toml").unlink()
        eventually("the removal is noticed", lambda: log.read_text().count("result=reloaded") == 3)
        assert worker.is_ready()
    assert process.returncode == 0
    assert "Traceback" not in log.read_text()
    assert ab_monitor("check", "--config", worker.directory).returncode == 0


def test_changed_texts_for_readers_take_effect_without_a_new_definition(worker: _Worker, tmp_path: Path) -> None:
    """Pages, JSON and commands show them. Nothing is filled again, and no verdict names the change."""
    texts = 'owner = "Ada"\n[experiments.texts.metrics."dcg@5"]\nlabel = "Answer quality"\n'
    experiment_path = "/api/experiments/ranker"
    with service(worker.directory, tmp_path / "log", environ={"ABMONITOR_HTTP_TOKEN": _TOKEN}):
        eventually("the service is ready", worker.is_ready)
        before = json.loads(ask(worker.port, experiment_path, headers=_HEADERS).body)
        assert (before["owner"], before["texts"]) == (None, {})

        worker.write_experiment("ranker", texts)
        assert worker.reload().status == 200

        def labeled() -> dict[str, Any] | None:
            answer = ask(worker.port, experiment_path, headers=_HEADERS)
            content: dict[str, Any] = json.loads(answer.body) if answer.status == 200 else {}
            return content if content.get("owner") == "Ada" else None

        after = eventually("the changed texts are shown", labeled)
        assert after["texts"] == {"metrics": {"dcg@5": {"label": "Answer quality"}}}
        assert after["declaration"] == before["declaration"]
        assert after["declaration"]["definition_version"] == 1
        assert after["declaration"]["changes"] == []
        assert status(worker.directory)["experiments"]["ranker"]["texts"] == after["texts"]

        worker.write_experiment("ranker", texts.replace("dcg@5", "dcg@55"))
        message = 'experiments.ranker.texts.metrics.dcg@55: got "dcg@55", expected a metric of the experiment: dcg@5, '
        assert worker.reload().body.decode().startswith(message)
