"""A schema registry with Confluent's API: Apicurio, from its jars, with its content in memory."""

from __future__ import annotations

import http.client
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.servers.process import Process, free_port, need
from tests.support.fetched import fetched, run

_ARTIFACT = "io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all"
"""The last version that runs on Java 17."""
_PATH = "/apis/ccompat/v7"


def _jars() -> Path:
    """Return the directory of the registry's jars, fetched by Maven once."""
    maven = need("mvn", "maven")

    def fetch(folder: Path) -> None:
        goal = ("dependency:unpack", f"-Dartifact={_ARTIFACT}", f"-DoutputDirectory={folder}")
        run(maven, "-q", "-B", *goal, within=folder)

    return fetched(f"apicurio-{_ARTIFACT.split(':')[2]}", fetch)


class ApicurioRegistry:
    """One registry, empty at its start."""

    def __init__(self) -> None:
        java = need("java", "openjdk-17-jdk-headless")
        self._directory = Path(tempfile.mkdtemp(prefix="abm-apicurio-"))
        self._port = free_port()
        (runner,) = _jars().glob("*runner.jar")
        address = [f"-Dquarkus.http.port={self._port}", "-Dquarkus.http.host=127.0.0.1"]
        command = [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", *address, "-jar", str(runner)]
        self._process = Process(command, self._directory)

    @property
    def url(self) -> str:
        """The address of Confluent's API."""
        return f"http://127.0.0.1:{self._port}{_PATH}"

    def _is_ready(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=5)
        try:
            connection.request("GET", f"{_PATH}/schemas/types")
            return connection.getresponse().status == http.client.OK
        except OSError:
            return False
        finally:
            connection.close()

    def __enter__(self) -> Self:
        self._process.start(self._is_ready, within_s=180)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
