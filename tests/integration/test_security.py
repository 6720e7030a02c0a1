"""TLS, passwords and permissions, on real servers that insist on them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ResourcePattern, ResourceType

from tests.servers.certificates import Authority
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.command import ab_monitor, eventually, service, status

PASSWORD = "correct-horse"
DOCUMENT = (Path(__file__).parents[2] / "docs/security.md").read_text()
RESPONSE = {
    "response_id": "r-1",
    "timestamp": "2026-11-10T10:00:00Z",
    "experiment": "ranker",
    "variant": "treatment",
    "user_id": "student-1",
    "items": [{"item_id": "a", "position": 1}],
}


@dataclass(frozen=True, slots=True)
class Place:
    """Secured servers and what is needed to use them."""

    directory: Path
    authority: Authority
    broker: KafkaBroker
    scram: str
    mutual: str
    redis: RedisServer
    redis_tls: str


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """Yield a broker with SCRAM over TLS, one with client certificates, and a Redis with both."""
    directory = tmp_path_factory.mktemp("security")
    authority = Authority(directory)
    server = authority.issue("server")
    scram, mutual, redis_tls = free_port(), free_port(), free_port()
    broker = _broker(server.both, authority.file, scram, mutual)
    redis = RedisServer(
        redis_binary(),
        tls_port=str(redis_tls),
        tls_cert_file=str(server.certificate),
        tls_key_file=str(server.key),
        tls_ca_cert_file=str(authority.file),
        tls_auth_clients="yes",
    )
    with broker, redis:
        yield Place(
            directory, authority, broker, f"127.0.0.1:{scram}", f"127.0.0.1:{mutual}", redis, f"127.0.0.1:{redis_tls}"
        )


def _broker(keystore: Path, authority: Path, scram: int, mutual: int) -> KafkaBroker:
    """Return a broker with two secured listeners; who comes by the plain one is a super user."""
    settings = {
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(keystore),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority),
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.scram.scram-sha-256.sasl.jaas.config": _JAAS,
        "listener.name.scram.scram-sha-512.sasl.jaas.config": _JAAS,
        "listener.name.mutual.ssl.client.auth": "required",
        "listener.name.mutual.ssl.principal.mapping.rules": "RULE:.*CN=([^,]+).*/$1/",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    listeners = {"SCRAM": ("SASL_SSL", scram), "MUTUAL": ("SSL", mutual)}
    return KafkaBroker(listeners=listeners, settings=settings, scram={"monitor": PASSWORD})


_JAAS = "org.apache.kafka.common.security.scram.ScramLoginModule required;"


def _config(place: Place, name: str, *, kafka: Mapping[str, str], store: Mapping[str, str]) -> Path:
    sections = {
        "kafka": {
            "responses_topic": f"{name}.responses",
            "feedback_topic": f"{name}.feedback",
            "dead_letter_topic": f"{name}.dead",
            "group_id": name,
            **kafka,
        },
        "store": dict(store),
    }
    lines = []
    for section, values in sections.items():
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    lines += ["[http]", "port = 0", "[[experiments]]", 'name = "ranker"', 'control = "control"']
    lines += ["variants = { control = 0.5, treatment = 0.5 }", ""]
    path = place.directory / f"{name}.toml"
    path.write_text("\n".join(lines))
    return path


def _scram(place: Place, **changes: str) -> dict[str, str]:
    return {
        "bootstrap_servers": place.scram,
        "security_protocol": "SASL_SSL",
        "ssl_ca_file": str(place.authority.file),
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_username": "monitor",
        **changes,
    }


def _rediss(place: Place, **changes: str) -> dict[str, str]:
    client = place.authority.issue("client", host="monitor")
    return {
        "url": f"rediss://{place.redis_tls}/0",
        "ssl_ca_file": str(place.authority.file),
        "ssl_cert_file": str(client.certificate),
        "ssl_key_file": str(client.key),
        **changes,
    }


_ACL_ROW = re.compile(r"^\| (topic|group) \| `([^`]+)` \| ([A-Za-z, ]+) \|$", re.MULTILINE)


def _permit(place: Place, name: str, principal: str) -> None:
    """Give a principal what docs/security.md lists, and nothing else."""
    names = {
        "chatbot.responses": f"{name}.responses",
        "student.feedback": f"{name}.feedback",
        "ab-monitor.dead-letter": f"{name}.dead",
        "ab-monitor": name,
    }
    acls = [
        ACL(
            principal,
            "*",
            ACLOperation[operation.strip().upper()],
            ACLPermissionType.ALLOW,
            ResourcePattern(ResourceType[kind.upper()], names[resource]),
        )
        for kind, resource, operations in _ACL_ROW.findall(DOCUMENT)
        for operation in operations.split(",")
    ]
    assert len(acls) == 8
    with KafkaAdminClient(bootstrap_servers=place.broker.bootstrap) as admin:
        admin.create_acls(acls)


def _topics(place: Place, name: str) -> None:
    for topic in ("responses", "feedback", "dead"):
        place.broker.create_topic(f"{name}.{topic}", 1)


def _works(place: Place, config: Path, name: str) -> None:
    """Start the service and see an event and a dead letter through."""
    producer = KafkaProducer(bootstrap_servers=place.broker.bootstrap)
    producer.send(f"{name}.responses", b"nonsense")
    producer.send(f"{name}.responses", json.dumps(RESPONSE).encode()).get(30)
    producer.close()
    with service(config, place.directory / f"{name}.log"):
        found = eventually(
            "the event is applied",
            lambda: status(config)["experiments"]["ranker"]["variants"]["treatment"]["responses"],
        )
    assert found == 1


@pytest.fixture(autouse=True)
def passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the passwords where the service looks for them."""
    monkeypatch.setenv("ABMONITOR_KAFKA_SASL_PASSWORD", PASSWORD)


class TestItWorks:
    """With just the permissions of docs/security.md."""

    def test_scram_over_tls_and_a_redis_with_client_certificates(self, place: Place) -> None:
        """The default way to secure both."""
        _topics(place, "scram")
        _permit(place, "scram", "User:monitor")
        place.redis.client().flushall()
        _works(place, _config(place, "scram", kafka=_scram(place), store=_rediss(place)), "scram")

    def test_client_certificates_for_kafka_and_a_restricted_redis_user(
        self, place: Place, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The user has exactly the commands that are documented."""
        _topics(place, "mutual")
        client = place.authority.issue("kafka-client", host="monitor")
        kafka = {
            "bootstrap_servers": place.mutual,
            "security_protocol": "SSL",
            "ssl_ca_file": str(place.authority.file),
            "ssl_cert_file": str(client.certificate),
            "ssl_key_file": str(client.key),
        }
        _permit(place, "mutual", "User:kafka-client")
        admin = place.redis.client()
        admin.flushall()
        for name in ("ab-monitor", "ab-monitor-reader"):
            (rules,) = re.findall(rf"^user {name} (.+)$", DOCUMENT, re.MULTILINE)
            admin.execute_command("ACL", "SETUSER", name, *rules.replace("PASSWORD", PASSWORD).split())
        monkeypatch.setenv("ABMONITOR_STORE_PASSWORD", PASSWORD)
        store = {"url": place.redis.url, "username": "ab-monitor"}
        _works(place, _config(place, "mutual", kafka=kafka, store=store), "mutual")
        reader = _config(place, "reader", kafka=kafka, store={**store, "username": "ab-monitor-reader"})
        assert status(reader)["experiments"]["ranker"]["variants"]["treatment"]["responses"] == 1


class TestItSaysWhatIsWrong:
    """One line on stderr, and the documented exit code."""

    def _fails(self, config: Path, code: int, *said: str) -> None:
        done = ab_monitor("check", "--config", config)
        assert done.returncode == code, done.stderr
        (line,) = [line for line in done.stderr.splitlines() if " WARNING " not in line]
        for text in said:
            assert text in line

    def test_kafka_of_an_unknown_authority(self, place: Place) -> None:
        """Which server, and why."""
        (place.directory / "other").mkdir(exist_ok=True)
        other = Authority(place.directory / "other")
        config = _config(place, "wrong-ca", kafka=_scram(place, ssl_ca_file=str(other.file)), store=_rediss(place))
        self._fails(config, 3, f"Kafka at {place.scram}", "certificate is refused")

    def test_kafka_with_a_wrong_password(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """The user is named, the password is not."""
        monkeypatch.setenv("ABMONITOR_KAFKA_SASL_PASSWORD", "not-this-one")
        config = _config(place, "wrong-password", kafka=_scram(place), store=_rediss(place))
        self._fails(config, 2, f"Kafka at {place.scram} refuses", "'monitor'")
        assert "not-this-one" not in ab_monitor("check", "--config", config, "--verbose").stderr

    def test_kafka_without_a_client_certificate(self, place: Place) -> None:
        """The server's word is passed on."""
        kafka = {
            "bootstrap_servers": place.mutual,
            "security_protocol": "SSL",
            "ssl_ca_file": str(place.authority.file),
        }
        self._fails(_config(place, "no-client", kafka=kafka, store=_rediss(place)), 3, "Kafka at", "certificate")

    def test_redis_of_an_unknown_authority_and_without_a_client_certificate(self, place: Place) -> None:
        """Both name the place."""
        (place.directory / "another").mkdir(exist_ok=True)
        other = Authority(place.directory / "another")
        wrong = _config(place, "r-ca", kafka=_scram(place), store=_rediss(place, ssl_ca_file=str(other.file)))
        self._fails(wrong, 3, place.redis_tls, "certificate verify failed")
        nobody = {"url": f"rediss://{place.redis_tls}/0", "ssl_ca_file": str(place.authority.file)}
        self._fails(_config(place, "r-client", kafka=_scram(place), store=nobody), 3, place.redis_tls, "certificate")

    def test_redis_with_a_wrong_password(self, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
        """A mistake, not an outage."""
        monkeypatch.setenv("ABMONITOR_STORE_PASSWORD", "not-this-one")
        store = {"url": place.redis.url, "username": "nobody"}
        self._fails(_config(place, "r-password", kafka=_scram(place), store=store), 2, "refuses this user")

    def test_expired_certificates(self, place: Place) -> None:
        """Of either server."""
        old = place.authority.issue("old", expired=True)
        with RedisServer(
            redis_binary(),
            tls_port=str(port := free_port()),
            tls_cert_file=str(old.certificate),
            tls_key_file=str(old.key),
            tls_ca_cert_file=str(place.authority.file),
        ):
            store = _rediss(place, url=f"rediss://127.0.0.1:{port}/0")
            self._fails(_config(place, "r-old", kafka=_scram(place), store=store), 3, f"127.0.0.1:{port}", "expired")
        scram, mutual = free_port(), free_port()
        with _broker(old.both, place.authority.file, scram, mutual):
            kafka = _scram(place, bootstrap_servers=f"127.0.0.1:{scram}")
            config = _config(place, "k-old", kafka=kafka, store=_rediss(place))
            self._fails(config, 3, f"Kafka at 127.0.0.1:{scram}", "expired")

    def test_a_missing_permission(self, place: Place) -> None:
        """The topic that may not be read is named."""
        _topics(place, "forbidden")
        config = _config(place, "forbidden", kafka=_scram(place), store=_rediss(place))
        done = ab_monitor("run", "--config", config)
        assert done.returncode == 2
        assert "does not permit" in done.stderr.splitlines()[-1]
