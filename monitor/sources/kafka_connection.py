"""Connections to the Kafka cluster, the meaning of its errors, and questions about topics, offsets and groups."""

from __future__ import annotations

import logging
import socket
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
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

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable, UsageError, tls_refusal
from monitor.sources.consumer import RECONNECT_MS, partition_name, partition_of

Client = TypeVar("Client")

BOOTSTRAP_MS: Final = 10_000
BEGINNING: Final = OffsetSpec.EARLIEST
END: Final = OffsetSpec.LATEST
"""Of what is committed: a transaction under way is beyond it."""
_REQUEST_MS: Final = 5_000
_PROBE_S: Final = 2.0
_LARGEST: Final = "max.message.bytes"
_TIMEOUTS: Final = (KafkaTimeoutError, RequestTimedOutError)
"""They say that time is up, not why."""


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


class _LoggedErrors(logging.Handler):
    """Collects the errors in kafka-python's log: why a connection fails is in none of its exceptions."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.errors: list[KafkaError] = []

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.args, tuple):
            self.errors += [argument for argument in record.args if isinstance(argument, KafkaError)]


def connect(client: Callable[..., Client], settings: KafkaSettings, **options: Any) -> Client:
    """Return a client of kafka-python that has reached the cluster.

    Raises `UsageError` if a server refuses the user, or either side the other's certificate, since waiting does not
    help; `DependencyUnavailable` for any other reason.
    """
    log, logged = logging.getLogger("kafka"), _LoggedErrors()
    log.addHandler(logged)
    try:
        return client(
            **connection_options(settings),
            bootstrap_timeout_ms=BOOTSTRAP_MS,
            reconnect_backoff_max_ms=RECONNECT_MS,
            **options,
        )
    except KafkaError as error:
        reasons = [each for each in logged.errors if not isinstance(each, _TIMEOUTS)] or [error]
        causes = [translate_error(settings, reason) for reason in reasons]
        raise next((cause for cause in causes if isinstance(cause, UsageError)), causes[-1]) from error
    finally:
        log.removeHandler(logged)


def inspect_cluster(settings: KafkaSettings) -> list[tuple[str, str | None]]:
    """Return a line on each topic and what is unsafe about it; raises `DependencyUnavailable` without a cluster."""
    names = (settings.responses_topic, settings.feedback_topic, settings.dead_letter_topic)
    with closing(Topics(settings)) as topics:
        described = topics.describe(names)
    partitions = {name: len(described[name].partitions) if name in described else 0 for name in names}
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
        with connect(KafkaAdminClient, settings, request_timeout_ms=_REQUEST_MS) as admin:
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


def translate_error(settings: KafkaSettings, error: KafkaError) -> AbMonitorError:
    """Return the error to raise for one of kafka-python: `UsageError` for a mistake, otherwise an outage."""
    place = f"Kafka at {settings.bootstrap_servers}"
    if isinstance(error, (SaslAuthenticationFailedError, UnsupportedSaslMechanismError)):
        return UsageError(f"{place} refuses the user {settings.sasl_username}: {error}")
    if (refusal := tls_refusal(str(error))) is not None:
        return UsageError(f"{place}: {refusal}")
    if isinstance(error, AuthorizationError):
        return UsageError(f"{place} does not permit this: {error}; docs/security.md lists what is needed")
    if isinstance(error, FencedInstanceIdError):
        # The client never reads again after that.
        name = settings.group_instance_id
        return UsageError(f"{place}: another worker has come with kafka.group_instance_id {name!r}: give each its own")
    hint = ""
    if "disconnected" in str(error):
        login = " or on a wrong kafka.sasl_username or password" if settings.sasl_mechanism else ""
        hint = f"; a broker hangs up on another kafka.security_protocol than {settings.security_protocol}{login}"
    return DependencyUnavailable(f"{place}: {error}{hint}")


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
                [partition_name(each["name"], number) for number in range(len(each["partitions"]))],
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
        return {partition_name(*each): place.offset for each, place in found.items()}

    def owned(self, group: str) -> set[str] | None:
        """Return the partitions that members of a group have been given; None while nobody can tell."""
        try:
            found = self._ask(lambda admin: admin.describe_groups([group]))[group]
        except DependencyUnavailable:
            return None
        if found["group_state"] != "Stable":
            return None
        return {
            partition_name(topic["topic"], number)
            for member in found["members"]
            for topic in member["member_assignment"]["assigned_partitions"]
            for number in topic["partitions"]
        }

    def _ask(self, question: Callable[[KafkaAdminClient], Any]) -> Any:
        try:
            if self._admin is None:
                self._admin = connect(KafkaAdminClient, self._settings, request_timeout_ms=_REQUEST_MS)
            return question(self._admin)
        except KafkaError as error:
            self.close()
            raise translate_error(self._settings, error) from error

    def close(self) -> None:
        if self._admin is not None:
            self._admin.close()
            self._admin = None
