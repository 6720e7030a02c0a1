"""Alertmanager and amtool."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.servers.process import Process, free_port, need

PACKAGE = "prometheus-alertmanager"


class Alertmanager:
    """A server with a configuration file, that knows of no others."""

    def __init__(self, config: Path) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="abm-alertmanager-"))
        self.port = free_port()
        program = shutil.which("alertmanager") or need("prometheus-alertmanager", PACKAGE)
        self.process = Process(
            [
                program,
                f"--config.file={config}",
                f"--storage.path={self._directory}",
                f"--web.listen-address=127.0.0.1:{self.port}",
                "--cluster.listen-address=",
            ],
            self._directory,
        )

    def _ask(self, path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310 - our own server
            content: bytes = answer.read()
            return content

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=2) as answer:
                return bool(answer.status == HTTPStatus.OK)
        except OSError:
            return False

    def fire(self, alerts: Sequence[Mapping[str, str]]) -> None:
        """Take over alerts by their labels, as Prometheus would send them."""
        self._ask("/api/v2/alerts", [{"labels": dict(labels)} for labels in alerts])

    def heard(self) -> list[dict[str, Any]]:
        """Return the labels of the alerts that somebody is told of: those that nothing inhibits."""
        found = json.loads(self._ask("/api/v2/alerts?inhibited=false"))
        return [alert["labels"] for alert in found]

    def __enter__(self) -> Self:
        self.process.start(self._ready)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.stop()
        shutil.rmtree(self._directory, ignore_errors=True)


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run amtool."""
    return subprocess.run(
        [need("amtool", PACKAGE), *arguments], capture_output=True, text=True, check=False, timeout=60
    )
