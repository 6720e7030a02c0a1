"""Events from Kafka, on kafka-python's consumer.

Positions come from the store, never from the group's committed offsets. Callbacks of a rebalance run on the client's
I/O thread, where only pausing is safe: they pause new partitions and note them, and the loop places them.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.consumer.subscription_state import ConsumerRebalanceListener
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import (
    IllegalStateError,
    KafkaError,
    NoOffsetForPartitionError,
    OffsetOutOfRangeError,
)
from kafka.structs import OffsetAndMetadata

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable, UsageError
from monitor.ingest.probing import explained
from monitor.ingest.source import Kind, Refused, Slice
from monitor.store import Position

log = logging.getLogger(__name__)
_POLL_MS: Final = 200
_BOOTSTRAP_MS: Final = 10_000
_GONE: Final = (ValueError, KeyError, AssertionError, IllegalStateError)
"""What the client raises about a partition that a rebalance has just taken away."""
_SESSION_MS: Final = 10_000
"""After so long without a heartbeat a worker's partitions go to the others: heartbeats have a thread of their own, so a
longer time (45 s by default) would only prolong the gap after a crash."""
_REQUEST_S: Final = 30.0
_ACKNOWLEDGE_EVERY_S: Final = 5.0
_PROBE_EVERY_S: Final = 3.0


def partition_name(partition: TopicPartition) -> str:
    """Return the name of a partition's position in the store."""
    return f"{partition.topic}:{partition.partition}"


def _partition(name: str) -> TopicPartition:
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))


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


def inspect_cluster(settings: KafkaSettings) -> list[tuple[str, str | None]]:
    """Return a line on each topic and what is unsafe about it; raises `DependencyUnavailable` without a cluster."""
    options = connection_options(settings)
    try:
        consumer = KafkaConsumer(**options, bootstrap_timeout_ms=_BOOTSTRAP_MS, metrics_enabled=False)
    except KafkaError as error:
        raise explained(settings, options, error) from error
    try:
        partitions = {
            topic: len(consumer.partitions_for_topic(topic) or ())
            for topic in (settings.responses_topic, settings.feedback_topic, settings.dead_letter_topic)
        }
    except KafkaError as error:
        raise DependencyUnavailable(f"Kafka at {settings.bootstrap_servers}: {error}") from error
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
    return lines


class _Rebalances(ConsumerRebalanceListener):  # type: ignore[misc]  # kafka-python carries no types
    """Pauses what is new, notes what is gone."""

    def __init__(self, consumer: KafkaConsumer) -> None:
        self._consumer = consumer
        self.unplaced: set[TopicPartition] = set()

    def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        self._consumer.pause(*assigned)
        self.unplaced |= set(assigned)
        log.info("partitions assigned count=%d", len(assigned))

    def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        self.unplaced -= set(revoked)
        log.info("partitions revoked count=%d", len(revoked))


class KafkaSource:
    """Both topics of one cluster, as one member of the group."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._kinds: dict[str, Kind] = {settings.responses_topic: "response", settings.feedback_topic: "feedback"}
        options = connection_options(settings)
        try:
            self._consumer = KafkaConsumer(
                **options,
                group_id=settings.group_id,
                group_instance_id=settings.group_instance_id,
                session_timeout_ms=_SESSION_MS,
                enable_auto_commit=False,
                auto_offset_reset="none",
                partition_assignment_strategy=(RangePartitionAssignor,),
                max_poll_records=settings.max_poll_records,
                allow_auto_create_topics=False,
                bootstrap_timeout_ms=_BOOTSTRAP_MS,
                metrics_enabled=False,
            )
            self._producer = KafkaProducer(
                **options, acks="all", max_block_ms=int(_REQUEST_S * 1000), metrics_enabled=False
            )
        except KafkaError as error:
            raise explained(settings, options, error) from error
        self._rebalances = _Rebalances(self._consumer)
        self._consumer.subscribe(topics=list(self._kinds), listener=self._rebalances)
        self._ends: dict[TopicPartition, int] = {}
        self._acknowledged_at = 0.0
        self._probe_at = 0.0
        self._trouble: str | None = None

    def unplaced(self) -> Sequence[str]:
        """See `Source`."""
        return [partition_name(each) for each in self._rebalances.unplaced.copy()]

    def place(self, positions: Mapping[str, Position]) -> Mapping[str, int]:
        """See `Source`; where the store holds no position, `kafka.start` decides."""
        waiting = sorted(self._rebalances.unplaced.copy() & set(self._consumer.assignment()))
        offsets = {
            each: positions[partition_name(each)].next_offset for each in waiting if partition_name(each) in positions
        }
        offsets |= self._first_offsets([each for each in waiting if each not in offsets])
        for partition, offset in offsets.items():
            # A partition that went to another worker meanwhile is not ours to place.
            with suppress(*_GONE):
                self._consumer.seek(partition, offset)
                self._consumer.resume(partition)
        self._rebalances.unplaced -= set(waiting)
        return {partition_name(each): offset for each, offset in offsets.items()}

    def rewind(self, positions: Mapping[str, Position]) -> Mapping[str, int]:
        """See `Source`."""
        self._rebalances.unplaced |= set(self._consumer.assignment())
        return self.place(positions)

    def _first_offsets(self, partitions: list[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        start = self._settings.start
        try:
            ends = self._consumer.end_offsets(partitions)
            self._ends.update(ends)
            if start == "latest":
                return dict(ends)
            if start == "earliest":
                return dict(self._consumer.beginning_offsets(partitions))
            since_ms = int(datetime.fromisoformat(start).timestamp() * 1000)
            found = self._consumer.offsets_for_times(dict.fromkeys(partitions, since_ms))
        except KafkaError as error:
            raise DependencyUnavailable(f"Kafka at {self._settings.bootstrap_servers}: {error}") from error
        return {each: found[each].offset if found.get(each) else ends[each] for each in partitions}

    def poll(self) -> Sequence[Slice]:
        """See `Source`; slices of responses come before those of feedback."""
        try:
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
        except NoOffsetForPartitionError:
            # Just assigned: `place` comes next.
            return []
        except OffsetOutOfRangeError as error:
            raise AbMonitorError(
                f"Kafka no longer holds the next event to apply ({error}); events are lost. "
                "Restore the topic, or delete the position from the store to accept the loss"
            ) from error
        except KafkaError as error:
            raise DependencyUnavailable(f"Kafka at {self._settings.bootstrap_servers}: {error}") from error
        slices = []
        for partition, records in polled.items():
            if partition in self._rebalances.unplaced:
                continue
            slices.append(
                Slice(
                    partition_name(partition),
                    self._kinds[partition.topic],
                    [record.offset for record in records],
                    [record.value for record in records],
                    records[-1].offset + 1,
                )
            )
        slices.sort(key=lambda each: each.kind != "response")
        return slices

    def idle(self) -> None:
        """See `Source`: poll with everything paused, so that the group keeps this member."""
        assigned = self._consumer.assignment()
        paused = [each for each in assigned if each not in self._consumer.paused()]
        self._consumer.pause(*paused)
        try:
            self._consumer.poll(timeout_ms=_POLL_MS)
        except KafkaError as error:
            log.debug("poll while waiting failed error=%s", error)
        time.sleep(_POLL_MS / 1000)
        still = [each for each in paused if each in self._consumer.assignment()]
        if still:
            self._consumer.resume(*[each for each in still if each not in self._rebalances.unplaced])

    def ends(self) -> Mapping[str, int | None]:
        """See `Source`: the newest high-water marks seen."""
        ends: dict[str, int | None] = {}
        for partition in self._consumer.assignment():
            try:
                mark = self._consumer.highwater(partition)
            except _GONE:
                continue
            ends[partition_name(partition)] = mark if mark is not None else self._ends.get(partition)
        return ends

    def trouble(self) -> str | None:
        """See `Source`: whether any bootstrap server accepts a connection. The client itself retries in silence."""
        now = time.monotonic()
        if now < self._probe_at:
            return self._trouble
        self._probe_at = now + _PROBE_EVERY_S
        self._trouble = None
        for server in self._settings.bootstrap_servers.split(","):
            host, _, port = server.strip().rpartition(":")
            try:
                socket.create_connection((host.strip("[]"), int(port)), timeout=1).close()
            except OSError as error:
                self._trouble = f"Kafka at {self._settings.bootstrap_servers}: {error}"
            else:
                self._trouble = None
                break
        return self._trouble

    def finished(self) -> bool:
        """See `Source`: never."""
        return False

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """See `Source`: commit to the group every few seconds, without waiting."""
        now = time.monotonic()
        if now - self._acknowledged_at < _ACKNOWLEDGE_EVERY_S:
            return
        self._acknowledged_at = now
        owned = self._consumer.assignment()
        commit = {
            partition: OffsetAndMetadata(offset, "", -1)
            for partition, offset in ((_partition(name), offset) for name, offset in offsets.items())
            if partition in owned
        }
        if commit:
            self._consumer.commit_async(commit)

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """See `Source`: write to the dead-letter topic and wait for every acknowledgement."""
        futures = []
        try:
            for each in refused:
                topic, _, number = each.partition.rpartition(":")
                headers = {
                    "topic": topic,
                    "partition": number,
                    "offset": str(each.offset),
                    "reason": each.reason,
                    "detail": each.detail,
                }
                futures.append(
                    self._producer.send(
                        self._settings.dead_letter_topic,
                        value=each.payload,
                        headers=[(name, value.encode()) for name, value in headers.items()],
                    )
                )
            self._producer.flush(timeout=_REQUEST_S)
            for future in futures:
                future.get(timeout=_REQUEST_S)
        except KafkaError as error:
            raise DependencyUnavailable(
                f"dead-letter topic {self._settings.dead_letter_topic} does not accept a refused event: {error}"
            ) from error

    def close(self) -> None:
        """See `Source`."""
        self._producer.close(timeout=_REQUEST_S)
        self._consumer.close(autocommit=False)
