"""Connections to the Kafka cluster: client options, translated errors, requests about topics, offsets and groups."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from kafka import IsolationLevel, KafkaAdminClient, OffsetSpec
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import (
    AuthorizationError,
    FencedInstanceIdError,
    KafkaError,
    KafkaTimeoutError,
    RequestTimedOutError,
    SaslAuthenticationFailedError,
    UnsupportedSaslMechanismError,
)
from kafka.net.compat import KafkaNetClient

from monitor.config import KafkaSettings
from monitor.errors import (
    AbMonitorError,
    DependencyUnavailable,
    UsageError,
    count_noun,
    join_reasons,
    tls_failure_reason,
)
from monitor.sources.consumer import RECONNECT_BACKOFF_MAX_MS, parse_partition_name, partition_name

Client = TypeVar("Client")

BOOTSTRAP_TIMEOUT_MS: Final = 10_000
EARLIEST_OFFSET: Final = OffsetSpec.EARLIEST
LATEST_OFFSET: Final = OffsetSpec.LATEST
"""With isolation level `read_committed`: the offset after the last record that no open transaction precedes."""
_REQUEST_TIMEOUT_MS: Final = 5_000
_PROBE_TIMEOUT_S: Final = 2.0
_MAX_MESSAGE: Final = "max.message.bytes"
_MAX_SIMILAR_TOPICS: Final = 3
_MIN_TOPIC_SIMILARITY: Final = 0.5
"""On the scale of `difflib`, from 0 to 1."""
_TIMEOUTS: Final = (KafkaTimeoutError, RequestTimedOutError)
"""Errors that do not contain the cause of the timeout."""


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return the connection options of every kafka-python client; raises `UsageError` for bad certificates."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap_servers.split(","),
        "security_protocol": settings.security_protocol,
    }
    if settings.security_protocol.endswith("SSL"):
        try:
            context = ssl.create_default_context(cafile=settings.ssl_ca_file)
            if settings.ssl_cert_file:
                context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file, settings.ssl_key_password)
        except (OSError, ssl.SSLError) as error:
            raise UsageError(
                f"kafka.ssl_ca_file, ssl_cert_file, ssl_key_file: the certificates cannot be used: {error}. Expected "
                "PEM files, and the password of an encrypted key in ABMONITOR_KAFKA_SSL_KEY_PASSWORD"
            ) from error
        context.check_hostname = settings.ssl_check_hostname
        options |= {"ssl_context": context, "ssl_check_hostname": settings.ssl_check_hostname}
    if settings.sasl_mechanism:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return options


class _LoggedErrors(logging.Handler):
    """Collects the errors that kafka-python logs: only the log contains the reason of a failed connection."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[KafkaError] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            self.errors += [argument for argument in record.args if isinstance(argument, KafkaError)]


def connect_kafka_client(client: Callable[..., Client], settings: KafkaSettings, **options: Any) -> Client:
    """Return a new kafka-python client that is connected to the cluster.

    Raises `UsageError` if a server rejects the login, or if either side rejects the other's certificate; waiting would
    not help. Raises `DependencyUnavailable` for any other failure.
    """
    kafka_log, logged_errors = logging.getLogger("kafka"), _LoggedErrors()
    kafka_log.addHandler(logged_errors)
    try:
        return client(
            **{
                **connection_options(settings),
                "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS,
                "reconnect_backoff_max_ms": RECONNECT_BACKOFF_MAX_MS,
                **options,
            }
        )
    except KafkaError as error:
        reasons = [reason for reason in logged_errors.errors if not isinstance(reason, _TIMEOUTS)] or [error]
        translated = [translate_kafka_error(settings, reason) for reason in reasons]
        raise next((reason for reason in translated if isinstance(reason, UsageError)), translated[-1]) from error
    finally:
        kafka_log.removeHandler(logged_errors)


@dataclass(frozen=True, slots=True)
class TopicInspection:
    """The state of the configured topics."""

    lines: Sequence[str]
    """A phrase for each topic."""
    warnings: Sequence[str]
    """A sentence for each unsafe setting of the topics."""
    missing_topics: Sequence[str]
    """A sentence for each topic that does not exist, with the most similar topics of the cluster."""


def inspect_kafka_topics(settings: KafkaSettings) -> TopicInspection:
    """Return the state of the configured topics.

    Raises `DependencyUnavailable` without a cluster, or if an address that a broker advertises cannot be reached.
    """
    names = [*settings.topics, settings.dead_letter_topic]
    with closing(ClusterAdmin(settings)) as admin:
        topics = admin.describe_topics(names)
        existing_topics = admin.list_topics() if len(topics) < len(names) else []
    if (problem := advertised_address_problem(settings)) is not None:
        raise DependencyUnavailable(problem)
    partition_counts = {topic: len(description.partitions) for topic, description in topics.items()}
    missing_topics = [
        describe_missing_topic(settings, topic, existing_topics) for topic in names if topic not in topics
    ]
    warnings = _dead_letter_size_warnings(settings)
    event_counts = {topic: partition_counts[topic] for topic in settings.topics if topic in partition_counts}
    if len(set(event_counts.values())) > 1 and not missing_topics:
        phrases = " and ".join(
            f"topic {topic} has {count_noun(count, 'partition')}" for topic, count in event_counts.items()
        )
        warnings.insert(
            0,
            f"{phrases}: give all topics the same number of partitions, keyed by user_id, so that one worker applies "
            "all events of a student",
        )
    lines = [
        f"topic {topic}: {count_noun(partition_counts[topic], 'partition')}"
        if topic in topics
        else f"topic {topic}: missing"
        for topic in names
    ]
    return TopicInspection(lines, warnings, missing_topics)


def describe_missing_topic(settings: KafkaSettings, topic: str, existing_topics: Collection[str]) -> str:
    """Return a sentence about a topic that does not exist, with its key in `[kafka]` and the most similar topics."""
    # Kafka does not distinguish absent topics from topics that the user may not see.
    permission = (
        ", or the user lacks the permission to describe it" if settings.security_protocol != "PLAINTEXT" else ""
    )
    similar_topics = get_close_matches(topic, existing_topics, _MAX_SIMILAR_TOPICS, _MIN_TOPIC_SIMILARITY)
    hint = f"; the most similar topics are {', '.join(similar_topics)}" if similar_topics else ""
    return f"topic {topic} does not exist{permission}{hint}. Create the topic, or correct {settings.topic_key(topic)}"


def _dead_letter_size_warnings(settings: KafkaSettings) -> list[str]:
    """Return a sentence if a message of a source topic may be too large for the dead-letter topic."""
    names = [*settings.topics, settings.dead_letter_topic]
    try:
        with connect_kafka_client(KafkaAdminClient, settings, request_timeout_ms=_REQUEST_TIMEOUT_MS) as admin:
            configs = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    except KafkaError:
        # The user may lack the permission to read configurations, or a topic may not exist.
        return []
    *source_limits, dead_letter_limit = (
        int(configs["topic"][name].get(_MAX_MESSAGE, {}).get("value", 0)) for name in names
    )
    if max(source_limits) <= dead_letter_limit:
        return []
    topic = settings.dead_letter_topic
    warning = (
        f"{_MAX_MESSAGE} of {topic} is less than {max(source_limits)}, the limit of an event topic: the service would "
        f"pause at a rejected message that is too large. Set {_MAX_MESSAGE} of {topic} to {max(source_limits)}"
    )
    return [warning]


def kafka_connection_problem(settings: KafkaSettings) -> str | None:
    """Return the error if no bootstrap server accepts a connection, else None; clients retry without any report."""
    problem = None
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_TIMEOUT_S).close()
        except OSError as error:
            problem = f"Kafka at {settings.bootstrap_servers}: {error}"
        else:
            return None
    return problem


def advertised_address_problem(settings: KafkaSettings) -> str | None:
    """Return which addresses the brokers advertise but this machine cannot reach, and the next step.

    None if this machine reaches all advertised addresses, or if no bootstrap server answers. Clients connect to the
    bootstrap servers only to read the advertised addresses.
    """
    if kafka_connection_problem(settings) is not None:
        return None
    network_clients: list[Any] = []

    def create_network_client(**options: Any) -> Any:
        # A factory like this one is the documented option `kafka_client`. No other public interface returns the
        # advertised addresses if none of them can be reached.
        network_clients.append(KafkaNetClient(**options))
        return network_clients[0]

    try:
        with connect_kafka_client(
            KafkaAdminClient,
            settings,
            kafka_client=create_network_client,
            bootstrap_timeout_ms=int(_PROBE_TIMEOUT_S * 1000),
        ):
            addresses = sorted((broker.host, broker.port) for broker in network_clients[0].cluster.brokers())
    except (AbMonitorError, KafkaError):
        return None
    failures = []
    for host, port in addresses:
        try:
            socket.create_connection((host, port), timeout=_PROBE_TIMEOUT_S).close()
        except OSError as error:
            failures.append(f"{host}:{port} ({error.strerror or error})")
    if not failures:
        return None
    return (
        f"Kafka at {settings.bootstrap_servers} answers, but its brokers advertise addresses that this machine cannot "
        f"reach: {join_reasons(failures)}. Set advertised.listeners of the brokers to addresses that this machine can "
        "reach, or make the addresses reachable (DNS, firewall), or set kafka.bootstrap_servers to another listener"
    )


def translate_kafka_error(settings: KafkaSettings, error: KafkaError) -> AbMonitorError:
    """Return `UsageError` if a kafka-python error is due to the configuration, otherwise `DependencyUnavailable`."""
    server = f"Kafka at {settings.bootstrap_servers}"
    if isinstance(error, (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)):
        return UsageError(
            f"{server} rejects the user {settings.sasl_username}: {error}. Check kafka.sasl_mechanism, "
            "kafka.sasl_username and ABMONITOR_KAFKA_SASL_PASSWORD"
        )
    if (tls_problem := tls_failure_reason(str(error))) is not None:
        return UsageError(f"{server}: {tls_problem}")
    if isinstance(error, AuthorizationError):
        return UsageError(
            f"{server} does not permit the request: {error}. docs/security.md lists the necessary permissions"
        )
    if isinstance(error, FencedInstanceIdError):
        # A fenced client never reads again.
        name = settings.group_instance_id
        return UsageError(
            f"{server}: another worker has joined with kafka.group_instance_id {name!r}. Give each worker its own id"
        )
    hint = ""
    if "disconnected" in str(error):
        login = ", or kafka.sasl_username or the password may be wrong" if settings.sasl_mechanism else ""
        hint = f". The broker may expect another kafka.security_protocol than {settings.security_protocol}{login}"
    return DependencyUnavailable(f"{server}: {error}{hint}")


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """ID and partition names of a topic."""

    topic_id: str
    """ID that Kafka gave the topic when it was created; a topic that is deleted and recreated gets a new ID."""
    partitions: Sequence[str]


class ClusterAdmin:
    """Requests about topics, offsets and group members, over a separate connection that is opened when needed.

    Raises `DependencyUnavailable` if the cluster cannot be reached, and `UsageError` if the cluster does not permit the
    request.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin: KafkaAdminClient | None = None

    def describe_topics(self, names: Collection[str]) -> Mapping[str, TopicDescription]:
        """Return the descriptions of existing topics by name."""
        topics = self._request(lambda admin: admin.describe_topics(list(names)))
        return {
            topic["name"]: TopicDescription(
                str(topic["topic_id"]),
                [partition_name(topic["name"], number) for number in range(len(topic["partitions"]))],
            )
            for topic in topics
            if not topic["error_code"]
        }

    def list_topics(self) -> list[str]:
        """Return the names of all topics that the user may see, without Kafka's internal topics."""
        names: list[str] = self._request(lambda admin: admin.list_topics())
        return sorted(name for name in names if not name.startswith("__"))

    def list_offsets(self, partitions: Collection[str], offset_spec: int) -> dict[str, int]:
        """Return the offset of each partition: `EARLIEST_OFFSET`, `LATEST_OFFSET`, or of the first record since a time.

        The time is in milliseconds; the offset is -1 if no record is as new. Also raises `DependencyUnavailable` for
        partitions that were just created.
        """
        if not partitions:
            return {}
        specs = {parse_partition_name(name): offset_spec for name in partitions}
        offsets = self._request(lambda admin: admin.list_partition_offsets(specs, IsolationLevel.READ_COMMITTED))
        return {partition_name(*partition): result.offset for partition, result in offsets.items()}

    def assigned_partitions(self, group_id: str) -> set[str] | None:
        """Return the partitions that are assigned to any member of a group; None during a rebalance or an outage."""
        try:
            group = self._request(lambda admin: admin.describe_groups([group_id]))[group_id]
        except DependencyUnavailable:
            return None
        if group["group_state"] != "Stable":
            return None
        return {
            partition_name(topic["topic"], number)
            for member in group["members"]
            for topic in member["member_assignment"]["assigned_partitions"]
            for number in topic["partitions"]
        }

    def _request(self, send: Callable[[KafkaAdminClient], Any]) -> Any:
        try:
            if self._admin is None:
                self._admin = connect_kafka_client(
                    KafkaAdminClient, self._settings, request_timeout_ms=_REQUEST_TIMEOUT_MS
                )
            return send(self._admin)
        except KafkaError as error:
            self.close()
            translation = translate_kafka_error(self._settings, error)
            if isinstance(translation, DependencyUnavailable):
                problem = advertised_address_problem(self._settings)
                translation = translation if problem is None else DependencyUnavailable(problem)
            raise translation from error

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
