"""A Kafka broker in KRaft mode, from its jars."""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.servers.process import Process, answers, free_port, need
from tests.support.command import eventually
from tests.support.fetched import fetched, run

_POM = Path(__file__).with_name("kafka.xml")
_SETTINGS = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners={listeners},CONTROLLER://127.0.0.1:{controller}
advertised.listeners={advertised}
controller.listener.names=CONTROLLER
listener.security.protocol.map={protocols},CONTROLLER:PLAINTEXT
log.dirs={directory}/logs
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
auto.create.topics.enable=false
log.retention.ms=-1
"""


def jars() -> Path:
    """Return the directory of Kafka's jars, fetched by Maven when the pom has changed."""
    java, maven = need("java", "openjdk-17-jdk-headless"), need("mvn", "maven")
    assert java
    digest = hashlib.sha256(_POM.read_bytes()).hexdigest()[:12]

    def fetch(folder: Path) -> None:
        goal = ("dependency:copy-dependencies", f"-DoutputDirectory={folder}", "-DincludeScope=runtime")
        run(maven, "-q", "-B", "-f", str(_POM), *goal, within=folder)

    return fetched(f"kafka-{digest}", fetch)


@dataclass(frozen=True, slots=True)
class Listener:
    """Another door of a broker, with its own protocol, certificate and mechanisms."""

    name: str
    """In capitals."""
    protocol: str
    settings: Mapping[str, str] = field(default_factory=dict)
    """Of this listener alone, such as `ssl.client.auth`."""
    advertised: str = ""
    """HOST:PORT that clients are told; by default the listener's own address."""


class KafkaBroker:
    """One broker with its own directory.

    Its first listener is plain; `listeners` are more of them, `users` are known to SCRAM by their passwords, `settings`
    are lines of server.properties; `advertised` is the port that clients of the plain one are told, of a proxy.
    """

    def __init__(
        self,
        listeners: Sequence[Listener] = (),
        users: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
        *,
        advertised: int | None = None,
    ) -> None:
        self._advertised = advertised
        self._jars = jars()
        self._directory = Path(tempfile.mkdtemp(prefix="abm-kafka-"))
        self.port = free_port()
        self._settings = self._directory / "server.properties"
        self._ports = {"PLAINTEXT": self.port, **{each.name: free_port() for each in listeners}}
        self._users = users or {}
        addresses = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        addresses |= {each.name: each.advertised for each in listeners if each.advertised}
        addresses["PLAINTEXT"] = f"127.0.0.1:{advertised or self.port}"
        text = _SETTINGS.format(
            listeners=",".join(f"{name}://127.0.0.1:{port}" for name, port in self._ports.items()),
            advertised=",".join(f"{name}://{addresses[name]}" for name in self._ports),
            protocols=",".join(["PLAINTEXT:PLAINTEXT", *[f"{each.name}:{each.protocol}" for each in listeners]]),
            controller=free_port(),
            directory=self._directory,
        )
        more = dict(settings or {})
        for each in listeners:
            more |= {f"listener.name.{each.name.lower()}.{name}": value for name, value in each.settings.items()}
        self._settings.write_text(text + "".join(f"{name}={value}\n" for name, value in more.items()))
        self.process = Process(
            self._java("-Xmx512m", "kafka.Kafka", str(self._settings)),
            self._directory,
            {"LOG_DIR": str(self._directory)},
        )

    @property
    def bootstrap(self) -> str:
        """Its address."""
        return f"127.0.0.1:{self._advertised or self.port}"

    def address(self, listener: str) -> str:
        """Return the address of one of its listeners."""
        return f"127.0.0.1:{self._ports[listener]}"

    def _java(self, *arguments: str) -> list[str]:
        heap = [argument for argument in arguments if argument.startswith("-X")]
        rest = [argument for argument in arguments if not argument.startswith("-X")]
        return [need("java", "openjdk-17-jdk-headless"), *heap, "-cp", f"{self._jars}/*", *rest]

    def start(self) -> None:
        """Start it, on the same port and files as before."""
        self.process.start(self._ready)

    def _ready(self) -> bool:
        if not answers(self.port):
            return False
        try:
            with KafkaAdminClient(bootstrap_servers=self.bootstrap, request_timeout_ms=5000) as admin:
                admin.list_topics()
        except KafkaError:
            return False
        return True

    def create_topic(self, name: str, partitions: int, settings: Mapping[str, str] | None = None) -> None:
        """Create a topic."""
        with KafkaAdminClient(bootstrap_servers=self.bootstrap) as admin:
            admin.create_topics(
                {name: {"num_partitions": partitions, "replication_factor": 1, "configs": dict(settings or {})}}
            )
            # The controller has it; whoever asks the broker may still be told that there is none.
            eventually("the broker knows the topic", lambda: not admin.describe_topics([name])[0]["error_code"])

    def run_tool(self, *arguments: str) -> None:
        """Run one of Kafka's command line tools, a class and its arguments, to its end."""
        subprocess.run(self._java("-Xmx128m", *arguments), check=True, stdout=subprocess.DEVNULL)

    def __enter__(self) -> Self:
        identity = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        scram = [
            f"--add-scram={mechanism}=[name={user},password={password}]"
            for user, password in self._users.items()
            for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
        ]
        subprocess.run(
            self._java(
                "kafka.tools.StorageTool", "format", f"--cluster-id={identity}", "-c", str(self._settings), *scram
            ),
            check=True,
            stdout=subprocess.DEVNULL,
            env={**os.environ, "LOG_DIR": str(self._directory)},
        )
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        shutil.rmtree(self._directory, ignore_errors=True)
