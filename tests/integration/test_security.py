"""Encrypted connections to real servers, refusals in one line, and the rights that docs/security.md gives."""

from __future__ import annotations

import datetime as dt
import json
import re
import shlex
import ssl
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.exceptions
import trustme
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.servers.kafka import KafkaBroker, Listener
from tests.servers.process import free_port
from tests.servers.redis import RedisServer, redis_binary
from tests.support.certificates import Certificate, write_authority, write_certificate
from tests.support.command import ab_monitor, eventually, service, status, write_config
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

DOCUMENT = (Path(__file__).parents[2] / "docs/security.md").read_text()
PASSWORD = "a-password-of-ours"
SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
CONFIG = """
[kafka]
bootstrap_servers = "<bootstrap>"
<kafka>
[store]
url = "<url>"
<store>
[http]
port = <port>
<http>
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""
KAFKA_SECRET = {"ABMONITOR_KAFKA_SASL_PASSWORD": PASSWORD}
STORE_SECRET = {"ABMONITOR_STORE_PASSWORD": PASSWORD}


@dataclass(frozen=True, slots=True)
class Papers:
    """Certificates of one authority, and a stranger's."""

    authority: Path
    stranger: Path
    good: Certificate
    expired: Certificate
    elsewhere: Certificate
    client: Certificate


@pytest.fixture(scope="module")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Return certificates for 127.0.0.1 and for a client."""
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    yesterday = dt.datetime.now(dt.UTC) - dt.timedelta(days=1)
    before = yesterday - dt.timedelta(days=30)
    return Papers(
        authority=write_authority(folder, "authority", authority),
        stranger=write_authority(folder, "stranger", trustme.CA()),
        good=write_certificate(folder, "good", authority.issue_cert("127.0.0.1")),
        expired=write_certificate(
            folder, "expired", authority.issue_cert("127.0.0.1", not_before=before, not_after=yesterday)
        ),
        elsewhere=write_certificate(folder, "elsewhere", authority.issue_cert("elsewhere.example.org")),
        client=write_certificate(folder, "client", authority.issue_cert("monitor.example.org")),
    )


@pytest.fixture(scope="module")
def broker(papers: Papers) -> Iterator[KafkaBroker]:
    """Yield a broker with a listener for each way to come in, that allows only what it was told to allow."""

    def listener(name: str, protocol: str, certificate: Certificate, **more: str) -> Listener:
        stores = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(certificate.both_file),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(papers.authority),
        }
        return Listener(name, protocol, {**stores, **{key.replace("_", "."): value for key, value in more.items()}})

    mechanisms = {
        "sasl.enabled.mechanisms": "SCRAM-SHA-256,SCRAM-SHA-512",
        "scram-sha-256.sasl.jaas.config": SCRAM,
        "scram-sha-512.sasl.jaas.config": SCRAM,
    }
    listeners = [
        listener("SCRAM", "SASL_SSL", papers.good, **mechanisms),
        listener("MUTUAL", "SSL", papers.good, ssl_client_auth="required"),
        listener("EXPIRED", "SSL", papers.expired),
        listener("ELSEWHERE", "SSL", papers.elsewhere),
    ]
    settings = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The plain listener is the broker's own, and how tests make topics. Every client certificate is of one user.
        "ssl.principal.mapping.rules": "RULE:^.*$/certified/",
        "super.users": "User:admin;User:ANONYMOUS;User:certified",
    }
    users = dict.fromkeys(("admin", "ab-monitor", "nobody"), PASSWORD)
    with KafkaBroker(listeners, users, settings) as started:
        for topic in ("chatbot.responses", "student.feedback", "ab-monitor.dead-letter"):
            started.create_topic(topic, 1)
        for line in re.findall(r"^kafka-acls\.sh (.*)$", DOCUMENT, re.MULTILINE):
            started.run_tool(
                "org.apache.kafka.tools.AclCommand", "--bootstrap-server", started.bootstrap, *shlex.split(line)
            )
        yield started


def _store(papers: Papers, certificate: Certificate, clients: str, **more: str) -> RedisServer:
    return RedisServer(
        redis_binary(),
        tls_port=str(free_port()),
        tls_cert_file=str(certificate.cert_file),
        tls_key_file=str(certificate.key_file),
        tls_ca_cert_file=str(papers.authority),
        tls_auth_clients=clients,
        **more,
    )


def _tls_url(server: RedisServer) -> str:
    port = server.client().config_get("tls-port")["tls-port"]
    return f"rediss://127.0.0.1:{port}/0"


def _lines(**values: str | Path) -> str:
    return "\n".join(f'{name} = "{value}"' for name, value in values.items())


def _config(
    directory: Path, broker: KafkaBroker, listener: str, url: str, kafka: str = "", store: str = "", http: str = ""
) -> Path:
    values = {"bootstrap": broker.address(listener), "kafka": kafka, "url": url, "store": store, "http": http}
    return write_config(directory / "config.toml", CONFIG, [*values.items(), ("port", str(free_port()))])


def _scram(papers: Papers, user: str = "ab-monitor", mechanism: str = "SCRAM-SHA-512") -> str:
    return _lines(
        security_protocol="SASL_SSL", ssl_ca_file=papers.authority, sasl_mechanism=mechanism, sasl_username=user
    )


def _pair(certificate: Certificate) -> dict[str, Path]:
    return {"ssl_cert_file": certificate.cert_file, "ssl_key_file": certificate.key_file}


def _send(broker: KafkaBroker, topic: str, *events: object) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap)
    for event in events:
        producer.send(topic, json.dumps(event).encode()).get(20)
    producer.close()


def _refused(config: Path, environ: Mapping[str, str], code: int) -> str:
    """Return the one line that both commands end with; `check` puts the key to correct before it."""

    def end(command: str) -> str:
        done = ab_monitor(command, "--config", config, environ=environ)
        assert done.returncode == code, done.stderr
        assert done.stderr.count("\n") == 1, done.stderr
        assert PASSWORD not in done.stderr + done.stdout
        return done.stderr.strip()

    with ThreadPoolExecutor(2) as pool:
        check, run = pool.map(end, ("check", "run"))
    assert re.sub(r"(?<=ab-monitor: )(kafka|store)\.\w+: ", "", check) == run
    return run


class TestLeastPrivilege:
    """The service works with the rights that docs/security.md gives, over encrypted connections, and with no others."""

    @pytest.mark.parametrize(
        ("mechanism", "client"), [("SCRAM-SHA-256", "kafka-python"), ("SCRAM-SHA-512", "confluent")]
    )
    def test_the_service_works(
        self, tmp_path: Path, papers: Papers, broker: KafkaBroker, mechanism: str, client: str
    ) -> None:
        """SCRAM over TLS to Kafka, mutual TLS and the documented user to Redis, TLS and a token on its own pages."""
        name = mechanism.lower()
        response = {**RESPONSE, "response_id": name}
        refused = {**response, "items": 7}
        _send(broker, "chatbot.responses", response, refused)
        _send(broker, "student.feedback", {**FEEDBACK, "response_id": name, "feedback_id": name})
        token = {"ABMONITOR_HTTP_TOKEN": "a-token-of-some-length"}
        with _store(papers, papers.good, "yes") as server:
            for line in re.findall(r"^(ACL SETUSER .*)$", DOCUMENT, re.MULTILINE):
                server.client().execute_command(*line.replace("PASSWORD", PASSWORD).split())
            server.client().execute_command("ACL", "SETUSER", "default", "-@all", "+config", "+acl")
            secure = _lines(username="ab-monitor", ssl_ca_file=papers.authority, **_pair(papers.client))
            http = _lines(tls_cert_file=papers.good.cert_file, tls_key_file=papers.good.key_file)
            kafka = f'{_scram(papers, mechanism=mechanism)}\nclient = "{client}"'
            config = _config(tmp_path, broker, "SCRAM", _tls_url(server), kafka, secure, http)
            environ = {**KAFKA_SECRET, **STORE_SECRET, **token}
            checked = ab_monitor("check", "--config", config, environ=environ)
            assert (checked.returncode, "warning" in checked.stdout) == (0, False), checked.stderr + checked.stdout
            reader = {**environ, "ABMONITOR_STORE_USERNAME": "ab-monitor-reader"}
            log = tmp_path / "log"
            with service(config, log, environ=environ):
                # The log still has the events of the other client's run, which come first.
                eventually("all is applied", lambda: _rated(config, reader) == len(_values(broker, "student.feedback")))
                eventually("the refused one is kept", lambda: json.dumps(refused).encode() in _values(broker))
                url = re.search(r"serving url=(https://\S+)", log.read_text())
                assert url is not None
                context = ssl.create_default_context(cafile=str(papers.authority))
                request = urllib.request.Request(  # noqa: S310  our own server
                    f"{url[1]}metrics", headers={"Authorization": f"Bearer {token['ABMONITOR_HTTP_TOKEN']}"}
                )
                with urllib.request.urlopen(request, timeout=5, context=context) as page:  # noqa: S310  the same
                    text = page.read().decode()
            assert 'abmonitor_rejected_events_total{reason="wrong_type",topic="chatbot.responses"}' in text
            assert ab_monitor("check", "--config", config, environ=reader).returncode == 0
            assert log.read_text().count("ERROR") == 0, log.read_text()
            assert "Traceback" not in log.read_text()

    def test_readers_cannot_write_and_nobody_leaves_the_prefix(self, store_server: RedisServer) -> None:
        """Other names, other commands and the whole of the server are refused."""
        admin = store_server.client()
        for line in re.findall(r"^(ACL SETUSER .*)$", DOCUMENT, re.MULTILINE):
            admin.execute_command(*line.replace("PASSWORD", PASSWORD).split())
        everybody = [
            ("GET", "other"),
            ("MGET", "abm:{0}:m", "other"),
            ("FLUSHALL",),
            ("KEYS", "*"),
            ("CONFIG", "SET", "save", ""),
        ]
        everybody += [("CLIENT", "LIST"), ("SUBSCRIBE", "x"), ("SAVE",), ("EVAL", "redis.call('GET','x')", "0")]
        everybody += [("CONFIG", "SET", "save", ""), ("ACL", "LIST")]
        reader = [("SET", "abm:{0}:x", "1"), ("HSET", "abm:{0}:m", "x", "1"), ("UNLINK", "abm:{0}:m")]
        reader += [("EVAL", "return redis.call('SET', KEYS[1], 1)", "1", "abm:{0}:x")]
        try:
            for user, forbidden in (("ab-monitor", everybody), ("ab-monitor-reader", everybody + reader)):
                client: Any = redis.Redis(port=store_server.port, username=user, password=PASSWORD)
                assert client.ping()
                for command in forbidden:
                    with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission|NOPERM|can't access"):
                        client.execute_command(*command)
                client.close()
        finally:
            admin.acl_deluser("ab-monitor", "ab-monitor-reader")

    def test_a_user_without_rights_is_told(
        self, tmp_path: Path, papers: Papers, broker: KafkaBroker, redis_server: RedisServer
    ) -> None:
        """The broker's rules are in force: who has none of the documented rights does not see the topics."""
        redis_server.client().flushall()
        config = _config(tmp_path, broker, "SCRAM", redis_server.url, _scram(papers, "nobody"))
        done = ab_monitor("check", "--config", config, environ=KAFKA_SECRET)
        assert "chatbot.responses: missing" in done.stdout or "uthoriz" in done.stderr, done.stdout + done.stderr

    @pytest.mark.parametrize("client", ["kafka-python", "confluent"])
    def test_mutual_tls_to_kafka(
        self, tmp_path: Path, papers: Papers, broker: KafkaBroker, redis_server: RedisServer, client: str
    ) -> None:
        """A client certificate of the broker's authority is enough to connect."""
        redis_server.client().flushall()
        kafka = _lines(security_protocol="SSL", ssl_ca_file=papers.authority, client=client, **_pair(papers.client))
        done = ab_monitor("check", "--config", _config(tmp_path, broker, "MUTUAL", redis_server.url, kafka))
        assert done.returncode == 0, done.stderr
        assert f"kafka          client {client}" in done.stdout
        assert "kafka          topic chatbot.responses: 1 partition\n" in done.stdout

    def test_mutual_tls_to_a_cluster(self, tmp_path: Path, papers: Papers, broker: KafkaBroker) -> None:
        """Its nodes name each other's TLS ports; a stranger's certificate is rejected as that of one server is."""
        cluster = {"cluster_enabled": "yes", "cluster_port": str(free_port()), "tls_cluster": "yes"}
        with _store(papers, papers.good, "yes", **cluster) as server:
            server.client().execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually("the cluster is whole", lambda: "cluster_state': 'ok" in str(server.client().cluster("INFO")))
            url = _tls_url(server).replace("rediss://", "rediss+cluster://")
            kafka = _lines(security_protocol="SSL", ssl_ca_file=papers.authority, **_pair(papers.client))
            for authority, code in ((papers.authority, 0), (papers.stranger, 2)):
                store = _lines(ssl_ca_file=authority, **_pair(papers.client))
                done = ab_monitor("check", "--config", _config(tmp_path, broker, "MUTUAL", url, kafka, store))
                assert done.returncode == code, done.stderr
            assert "certificate of the server is rejected" in done.stderr
            assert len(done.stderr.splitlines()) == 1


def _rated(config: Path, environ: Mapping[str, str]) -> int:
    rated: int = status(config, environ)["experiments"]["ranker"]["variants"]["treatment"]["rated_responses"]
    return rated


def _values(broker: KafkaBroker, topic: str = "ab-monitor.dead-letter") -> list[bytes]:
    """Return what the topic has now."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest")
    partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
    consumer.assign(partitions)
    ends = consumer.end_offsets(partitions)
    found: list[bytes] = []
    while any(consumer.position(each) < ends[each] for each in partitions):
        for records in consumer.poll(1000).values():
            found += [record.value for record in records]
    consumer.close()
    return found


_AUTHORITY = ("SCRAM", "stranger", r"certificate of the server is rejected: (unable to get|self-signed)")
_NAME = ("ELSEWHERE", "ssl", r"is rejected: IP address mismatch, certificate is not valid for '127\.0\.0\.1'")


class TestRefusals:
    """One line with the place and the cause, and exit code 2: waiting would not help."""

    @pytest.mark.parametrize(
        ("listener", "change", "cause", "client"),
        [
            (*_AUTHORITY, "kafka-python"),
            (*_AUTHORITY, "confluent"),
            ("EXPIRED", "ssl", r"certificate of the server is rejected: certificate has expired", "kafka-python"),
            ("MUTUAL", "ssl", r"rejects the client certificate, or requires one: .*certificate", "kafka-python"),
            (*_NAME, "kafka-python"),
            (*_NAME, "confluent"),
        ],
    )
    def test_by_kafka(
        self,
        tmp_path: Path,
        papers: Papers,
        broker: KafkaBroker,
        redis_server: RedisServer,
        listener: str,
        change: str,
        cause: str,
        client: str,
    ) -> None:
        """The client itself only reports a timeout; whichever it is, the line is the same."""
        redis_server.client().flushall()
        if change == "ssl":
            kafka = _lines(security_protocol="SSL", ssl_ca_file=papers.authority)
        else:
            kafka = _scram(papers).replace(str(papers.authority), str(papers.stranger))
        environ = {**KAFKA_SECRET, "ABMONITOR_KAFKA_CLIENT": client}
        line = _refused(_config(tmp_path, broker, listener, redis_server.url, kafka), environ, 2)
        assert re.fullmatch(rf"ab-monitor: Kafka at {broker.address(listener)}:? .*{cause}.*", line), line

    @pytest.mark.parametrize("client", ["kafka-python", "confluent"])
    def test_a_wrong_kafka_password_is_named(
        self, tmp_path: Path, papers: Papers, broker: KafkaBroker, redis_server: RedisServer, client: str
    ) -> None:
        """As the broker's refusal, or as a possible reason if kafka-python lost that because the broker hung up.

        On a very busy machine it may hear nothing at all in time.
        """
        redis_server.client().flushall()
        environ = {"ABMONITOR_KAFKA_SASL_PASSWORD": "another", "ABMONITOR_KAFKA_CLIENT": client}
        config = _config(tmp_path, broker, "SCRAM", redis_server.url, _scram(papers))
        done = ab_monitor("check", "--config", config, environ=environ)
        expected = {
            2: r"rejects the user ab-monitor: .*invalid credentials.*",
            3: r": .*([Tt]imed out|disconnected\. The broker may expect .*, or kafka\.sasl_username or ).*",
        }
        pattern = rf"ab-monitor: Kafka at {broker.address('SCRAM')} ?{expected[done.returncode]}\n"
        assert re.fullmatch(pattern, done.stderr), done.stderr

    @pytest.mark.parametrize(
        ("change", "cause"),
        [
            ("stranger", r"certificate of the server is rejected: (unable to get|self-signed)"),
            ("password", r"rejects the user ab-monitor: invalid username-password pair"),
            ("expired", r"certificate of the server is rejected: certificate has expired"),
            ("missing", r"rejects the client certificate, or requires one: .*certificate required"),
            ("elsewhere", r"is rejected: IP address mismatch, certificate is not valid for '127\.0\.0\.1'"),
        ],
    )
    def test_by_the_store(self, tmp_path: Path, papers: Papers, broker: KafkaBroker, change: str, cause: str) -> None:
        """The alert of a server that wants a certificate is found even when it came too late for the client."""
        certificate = {"expired": papers.expired, "elsewhere": papers.elsewhere}.get(change, papers.good)
        authority = papers.stranger if change == "stranger" else papers.authority
        own = {} if change == "missing" else _pair(papers.client)
        environ = {"ABMONITOR_STORE_USERNAME": "ab-monitor", **STORE_SECRET} if change == "password" else {}
        with _store(papers, certificate, "yes") as server:
            url = _tls_url(server)
            config = _config(tmp_path, broker, "PLAINTEXT", url, store=_lines(ssl_ca_file=authority, **own))
            line = _refused(config, environ, 2)
        place = url.removeprefix("rediss://")
        assert re.fullmatch(rf"ab-monitor: store at {place}:? .*{cause}.*", line), line

    def test_nobody_listening_is_3(
        self, tmp_path: Path, papers: Papers, broker: KafkaBroker, redis_server: RedisServer
    ) -> None:
        """Servers may come back."""
        redis_server.client().flushall()
        gone = f"127.0.0.1:{free_port()}"
        values = {"bootstrap": gone, "kafka": _scram(papers), "url": redis_server.url, "store": "", "http": ""}
        config = write_config(tmp_path / "kafka.toml", CONFIG, [*values.items(), ("port", "0")])
        line = _refused(config, KAFKA_SECRET, 3)
        assert re.fullmatch(rf"ab-monitor: Kafka at {gone}: .*(ECONNREFUSED|refused).*", line), line
        store = _lines(ssl_ca_file=papers.authority)
        config = _config(tmp_path, broker, "SCRAM", f"rediss://{gone}/0", _scram(papers), store)
        line = _refused(config, KAFKA_SECRET, 3)
        assert re.fullmatch(rf"ab-monitor: store at {gone}/0: .*(ECONNREFUSED|refused).*", line), line
