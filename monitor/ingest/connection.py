"""What every client of the Kafka cluster needs: options to connect, and a look at topics."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import AuthorizationError, FencedInstanceIdError, KafkaError, SaslAuthenticationFailedError
from kafka.protocol.consumer import IsolationLevel
from kafka.structs import TopicPartition

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable, UsageError
from monitor.ingest.membership import partition_name, partition_of
from monitor.ingest.probing import check_admission, explained

BOOTSTRAP_MS: Final = 10_000
BEGINNING: Final = OffsetSpec.EARLIEST
END: Final = OffsetSpec.LATEST
"""Of what is committed: a transaction under way is beyond it."""
_REQUEST_MS: Final = 5_000
_PROBE_S: Final = 2.0
_LARGEST: Final = "max.message.bytes"


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Return what every client of this cluster needs to connect."""
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
            raise UsageError(f"kafka.ssl_*: the certificates cannot be used: {error}") from error
        context.check_hostname = settings.ssl_check_hostname
        options |= {"ssl_context": context, "ssl_check_hostname": settings.ssl_check_hostname}
    if settings.sasl_mechanism:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password,
        }
    return options


def admission(settings: KafkaSettings) -> dict[str, Any]:
    """Return the same; raises `UsageError` if a server refuses it."""
    options = connection_options(settings)
    check_admission(settings, options)
    return options


def inspect_cluster(settings: KafkaSettings) -> list[tuple[str, str | None]]:
    """Return a line on each topic and what is unsafe about it; raises `DependencyUnavailable` without a cluster."""
    options = admission(settings)
    try:
        consumer = KafkaConsumer(**options, bootstrap_timeout_ms=BOOTSTRAP_MS, metrics_enabled=False)
    except KafkaError as error:
        raise explained(settings, options, error) from error
    try:
        partitions = {
            topic: len(consumer.partitions_for_topic(topic) or ())
            for topic in (settings.responses_topic, settings.feedback_topic, settings.dead_letter_topic)
        }
    except KafkaError as error:
        raise refused(settings, error) from error
    finally:
        consumer.close(autocommit=False)
    lines: list[tuple[str, str | None]] = []
    for topic, count in partitions.items():
        problem = None if count else f"topic {topic} does not exist; create it before `ab-monitor run`"
        lines.append((f"topic {topic}: {count} partitions" if count else f"topic {topic}: missing", problem))
    if partitions[settings.responses_topic] != partitions[settings.feedback_topic]:
        lines.append(
            (
                "partition counts differ",
                "topics with the same number of partitions, both keyed by user_id, let each worker own its students",
            )
        )
    return lines + _narrow_dead_letters(settings)


def _narrow_dead_letters(settings: KafkaSettings) -> list[tuple[str, str | None]]:
    """Return a line if a message of a source topic may be too large for the dead-letter topic."""
    names = [settings.responses_topic, settings.feedback_topic, settings.dead_letter_topic]
    try:
        with KafkaAdminClient(**connection_options(settings), request_timeout_ms=_REQUEST_MS) as admin:
            found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    except KafkaError:
        # Not everybody may look at configurations, and a topic may be missing.
        return []
    *sources, letters = (int(found["topic"][name].get(_LARGEST, {}).get("value", 0)) for name in names)
    if max(sources) <= letters:
        return []
    topic = settings.dead_letter_topic
    problem = f"{_LARGEST} of {topic} is less than {max(sources)}: a large refused message would stop the service"
    return [(f"topic {settings.dead_letter_topic}: messages limited", problem)]


def unreachable(settings: KafkaSettings) -> str | None:
    """Return why no bootstrap server accepts a connection, None if one does: clients retry in silence."""
    trouble = None
    for server in settings.bootstrap_servers.split(","):
        host, _, port = server.strip().rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_PROBE_S).close()
        except OSError as error:
            trouble = f"Kafka at {settings.bootstrap_servers}: {error}"
        else:
            return None
    return trouble


def refused(settings: KafkaSettings, error: KafkaError) -> AbMonitorError:
    """Return what it means that the cluster does not do what a client wants: a mistake, or an outage."""
    place = f"Kafka at {settings.bootstrap_servers}"
    if isinstance(error, SaslAuthenticationFailedError) or "SaslAuthenticationFailed" in str(error):
        return UsageError(f"{place} refuses kafka.sasl_username {settings.sasl_username!r} or its password")
    if isinstance(error, AuthorizationError):
        return UsageError(f"{place} does not permit this: {error}; docs/security.md lists what is needed")
    if isinstance(error, FencedInstanceIdError):
        # The client never reads again after that.
        name = settings.group_instance_id
        return UsageError(f"{place}: another worker has come with kafka.group_instance_id {name!r}: give each its own")
    return DependencyUnavailable(f"{place}: {error}")


@dataclass(frozen=True, slots=True)
class Topic:
    """What the cluster says of a topic."""

    identity: str
    """Another topic that is created under the same name has another one."""
    partitions: Sequence[str]


class Topics:
    """Asks the cluster about topics, their offsets and who reads them, over a connection of its own."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._admin: KafkaAdminClient | None = None

    def describe(self, names: Collection[str]) -> Mapping[str, Topic]:
        """Return those of the topics that exist; raises `DependencyUnavailable`."""
        found = self._ask(lambda admin: admin.describe_topics(list(names)))
        return {
            each["name"]: Topic(
                str(each["topic_id"]),
                [partition_name(TopicPartition(each["name"], number)) for number in range(len(each["partitions"]))],
            )
            for each in found
            if not each["error_code"]
        }

    def offsets(self, partitions: Collection[str], at: int) -> dict[str, int]:
        """Return where each partition has its `BEGINNING`, its `END`, or its first record since a time in milliseconds.

        -1 where nothing is as late as that. Raises `DependencyUnavailable`, also of partitions just created.
        """
        if not partitions:
            return {}
        wanted = {partition_of(name): at for name in partitions}
        found = self._ask(lambda admin: admin.list_partition_offsets(wanted, IsolationLevel.READ_COMMITTED))
        return {partition_name(each): place.offset for each, place in found.items()}

    def owned(self, group: str) -> set[str] | None:
        """Return the partitions that members of a group have been given; None while nobody can tell."""
        try:
            found = self._ask(lambda admin: admin.describe_groups([group]))[group]
        except DependencyUnavailable:
            return None
        if found["group_state"] != "Stable":
            return None
        return {
            partition_name(TopicPartition(topic["topic"], number))
            for member in found["members"]
            for topic in member["member_assignment"]["assigned_partitions"]
            for number in topic["partitions"]
        }

    def _ask(self, question: Callable[[KafkaAdminClient], Any]) -> Any:
        try:
            if self._admin is None:
                self._admin = KafkaAdminClient(**connection_options(self._settings), request_timeout_ms=_REQUEST_MS)
            return question(self._admin)
        except KafkaError as error:
            self.close()
            raise refused(self._settings, error) from error

    def close(self) -> None:
        """Disconnect."""
        if self._admin is not None:
            self._admin.close()
            self._admin = None
