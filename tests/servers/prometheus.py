"""Prometheus and promtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.process import Process, free_port, need


def scraping(targets: Sequence[str]) -> dict[str, Any]:
    """Return a configuration that scrapes targets (host:port/path) every second, with the jobs of a deployment."""
    addresses_by_path: dict[str, list[str]] = {}
    for target in targets:
        address, _, path = target.partition("/")
        addresses_by_path.setdefault(path, []).append(address)
    jobs = [
        {
            "job_name": f"ab-monitor{path.removeprefix('metrics').replace('/', '-')}",
            "metrics_path": f"/{path}",
            "static_configs": [{"targets": addresses}],
        }
        for path, addresses in addresses_by_path.items()
    ]
    return {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}


class PrometheusServer:
    """A server with a configuration (see `scraping`), on `port` or any other, with further `flags`."""

    def __init__(self, config: Mapping[str, Any], *flags: str, port: int | None = None) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="abm-prometheus-"))
        self.port = port or free_port()
        path = self._directory / "prometheus.yml"
        # JSON is YAML.
        path.write_text(json.dumps(config))
        self.process = Process(
            [
                need("prometheus", "prometheus"),
                f"--config.file={path}",
                f"--storage.tsdb.path={self.storage}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                *flags,
            ],
            self._directory,
        )

    @property
    def storage(self) -> Path:
        """Where its series are; blocks that are put there before it starts are its past."""
        return self._directory / "series"

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def _get(self, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self.port}{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the result of an instant query."""
        found: list[dict[str, Any]] = self._get("/api/v1/query", query=expression)["result"]
        return found

    def targets(self) -> list[dict[str, Any]]:
        """Return the active targets with their health."""
        found: list[dict[str, Any]] = self._get("/api/v1/targets")["activeTargets"]
        return found

    def __enter__(self) -> Self:
        self.process.start(self._ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def promtool(*arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(
        [need("promtool", "prometheus"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
