"""The Kafka source: initial offsets, offset gaps, end offsets, and recovery of consumers that stall.

Partitions start at the positions in the store, never at the group's committed offsets. The client library that
`kafka.client` names fetches the records, as a member of the consumer group.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Final

from monitor.config import KafkaSettings
from monitor.errors import AbMonitorError, DependencyUnavailable
from monitor.sources import confluent, kafka_python
from monitor.sources.consumer import Consumer, OffsetOutOfRange
from monitor.sources.dead_letter_queue import KafkaDeadLetterQueue
from monitor.sources.kafka_connection import (
    EARLIEST_OFFSET,
    LATEST_OFFSET,
    ClusterAdmin,
    TopicDescription,
    describe_missing_topic,
    kafka_connection_problem,
)
from monitor.sources.source import DeadLetterQueue, OffsetGap, PartitionRecords
from monitor.state import Position

log = logging.getLogger(__name__)
_POLL_TIMEOUT_S: Final = 0.2
_PAUSED_POLL_TIMEOUT_S: Final = 0.4
_GROUP_COMMIT_INTERVAL_S: Final = 5.0
_PROBE_INTERVAL_S: Final = 3.0
_METADATA_INTERVAL_S: Final = 10.0
_POSITIONS_INTERVAL_S: Final = 1.0
"""How often a poll with records also reads the positions of the other partitions. kafka-python's time for a position
grows with the number of partitions."""
_STALLED_AFTER_S: Final = 30.0
"""If a partition has records but returns none for this time, the consumer rejoins the group."""
_UNASSIGNED_AFTER_S: Final = 10.0
"""If a partition has no owner for this time, the consumer rejoins the group: the assignment left the partition out, or
the rebalance does not end. Rejoining also discovers new partitions sooner. While another member's session times out,
rejoining costs nothing."""
_CALLER_BLOCKED_S: Final = 2.0
"""If the caller did not poll for this time, missing records do not show that the consumer has stalled."""


def kafka_client_version(settings: KafkaSettings) -> str:
    """Return the name and version of the client library `kafka.client`; raises `UsageError` if not installed."""
    return confluent.client_version() if settings.client == "confluent" else kafka_python.client_version()


def create_consumer(settings: KafkaSettings) -> Consumer:
    """Return a consumer on the client library `kafka.client`, connected to the cluster but not yet a group member.

    Raises `UsageError` if the library is not installed, or if the library or the cluster rejects the settings. Raises
    `DependencyUnavailable` if no server responds.
    """
    if settings.client == "confluent":
        return confluent.ConfluentConsumer(settings)
    return kafka_python.KafkaPythonConsumer(settings)


class KafkaSource:
    """Records of all event topics, read as a member of the consumer group; see `Source`.

    The constructor joins the group, and raises `UsageError` or `DependencyUnavailable` as `create_consumer` does.
    """

    def __init__(self, settings: KafkaSettings) -> None:
        kafka_client_version(settings)
        self._settings = settings
        self._event_topics = settings.topics
        self._response_topics = set(settings.topics_of("response"))
        self.restarts = 0
        self._has_assignment = False
        self._unsought: set[str] = set()
        """Partitions that wait for `seek`; their records are not returned."""
        self._everything_paused = False
        """Whether `poll_paused` has paused all partitions."""
        self._paused: set[str] = set()
        """Partitions that the caller has paused."""
        self._end_offsets: dict[str, int] = {}
        self._next_offsets: dict[str, int] = {}
        """Offset after the last returned record, by partition."""
        self._progress_s: dict[str, float] = {}
        """Monotonic time at which each partition last returned records or was at its end."""
        self._committed_offsets: dict[str, int] = {}
        self._applied_offsets: dict[str, int] = {}
        self._next_group_commit_s = self._next_probe_s = self._next_metadata_s = self._next_end_offsets_s = 0.0
        self._last_poll_s = self._next_positions_s = 0.0
        self._fully_assigned_s = time.monotonic()
        """Monotonic time at which each partition last had an owner."""
        self._problem: str | None = None
        self._admin = ClusterAdmin(settings)
        # The first connection is kafka-python's with either client, so that both report a failure in the same words.
        self._topics: Mapping[str, TopicDescription] = self._admin.describe_topics(self._event_topics)
        self._consumer: Consumer = create_consumer(settings)
        self._consumer.subscribe(self._event_topics, self._on_assign)
        self._dead_letter_producer = KafkaDeadLetterQueue(settings)
        self.dead_letter_queue: DeadLetterQueue = self._dead_letter_producer

    def _on_assign(self, partitions: Collection[str]) -> None:
        """Make all assigned partitions wait for `seek`: even a retained partition may have been read too far."""
        self._has_assignment = True
        self._unsought.update(partitions)

    def partitions_to_seek(self) -> Sequence[str]:
        return sorted(self._unsought.copy() & set(self._consumer.assignment()))

    def topic_id(self, topic: str) -> str | None:
        """Return Kafka's ID of a topic; None for a topic that does not exist."""
        description = self._topics.get(topic)
        return None if description is None else description.topic_id

    def has_assignment(self) -> bool:
        return self._has_assignment

    def assignment(self) -> Collection[str]:
        return self._consumer.assignment()

    def find_offset_gaps(self, positions: Mapping[str, Position]) -> Sequence[OffsetGap]:
        """Return deleted offsets, recreated topics, and positions beyond the end of their partition; see `Source`."""
        self._refresh_metadata()
        partitions = [name for name in self.partitions_to_seek() if name in positions]
        earliest_offsets = self._admin.list_offsets(partitions, EARLIEST_OFFSET)
        gaps = []
        for name in partitions:
            position = positions[name]
            topic = self._topics.get(_topic(name))
            earliest_offset, end_offset = earliest_offsets[name], self._end_offsets.get(name, 0)
            lost_count = 0
            if topic is not None and position.log.topic_id and topic.topic_id != position.log.topic_id:
                reason = "the topic was deleted and recreated"
            elif position.next_offset < earliest_offset:
                lost_count = earliest_offset - position.next_offset
                reason = (
                    f"{lost_count} offsets from {position.next_offset} on are deleted: "
                    f"the earliest offset in Kafka is {earliest_offset}"
                )
            elif position.next_offset > end_offset:
                reason = f"the stored position {position.next_offset} is beyond the end offset in Kafka, {end_offset}"
            else:
                continue
            resume_position = position.after_reset("" if topic is None else topic.topic_id, earliest_offset)
            gaps.append(OffsetGap(name, position, resume_position, lost_count, reason))
        return gaps

    def initial_positions(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """Return positions by `kafka.start`; new partitions of a known topic start at their first record."""
        known_topics = {_topic(name) for name in positions}
        initial_positions: dict[str, Position] = {}
        for topic, description in self._topics.items():
            new_partitions = [name for name in description.partitions if name not in positions]
            start = "earliest" if topic in known_topics else self._settings.start
            offsets = self._initial_offsets(new_partitions, start)
            initial_positions |= {
                name: Position.at_log_start(description.topic_id, offset) for name, offset in offsets.items()
            }
        return initial_positions

    def seek(self, positions: Mapping[str, Position]) -> None:
        offsets = {name: positions[name].next_offset for name in self.partitions_to_seek() if name in positions}
        self._next_offsets |= offsets
        self._progress_s |= dict.fromkeys(offsets, time.monotonic())
        # Clear before seeking: a rebalance in between makes the partitions wait for `seek` again.
        self._unsought.difference_update(offsets)
        self._consumer.seek(offsets)
        if not self._everything_paused:
            self._consumer.resume(offsets.keys() - self._paused)

    def rewind(self) -> None:
        self._unsought.update(self._consumer.assignment())

    def _initial_offsets(self, partitions: Collection[str], start: str) -> Mapping[str, int]:
        if start == "earliest":
            return self._admin.list_offsets(partitions, EARLIEST_OFFSET)
        end_offsets = self._admin.list_offsets(partitions, LATEST_OFFSET)
        if start == "latest":
            return end_offsets
        offsets = self._admin.list_offsets(partitions, int(datetime.fromisoformat(start).timestamp() * 1000))
        return {name: end_offsets[name] if offset < 0 else offset for name, offset in offsets.items()}

    def poll(self, *, wait: bool = True) -> Sequence[PartitionRecords]:
        """Return the next records, responses before feedback; see `Source`."""
        now = time.monotonic()
        if now - self._last_poll_s > _CALLER_BLOCKED_S:
            self._progress_s |= dict.fromkeys(self._progress_s, now)
        self._last_poll_s = now
        if self._everything_paused:
            self._everything_paused = False
            self._consumer.resume(set(self._consumer.assignment()) - self._paused - self._unsought)
        try:
            polled = self._consumer.poll(_POLL_TIMEOUT_S if wait else 0.0, self._settings.max_poll_records)
        except OffsetOutOfRange as error:
            # The caller then finds the gap with `find_offset_gaps`.
            log.debug("offset out of range error=%s", error)
            self.rewind()
            return []
        except AbMonitorError:
            self.rewind()
            raise
        all_records = []
        for name, records in polled.items():
            if name in self._unsought or name not in self._next_offsets:
                continue
            next_offset = records[-1].offset + 1
            start_offset, self._next_offsets[name] = self._next_offsets[name], next_offset
            self._progress_s[name] = now
            all_records.append(PartitionRecords(name, _topic(name), start_offset, records, next_offset))
        all_records.sort(key=lambda partition_records: partition_records.topic not in self._response_topics)
        if not all_records or now >= self._next_positions_s:
            # Partitions whose last offsets have no record must not lag until no partition has records.
            self._next_positions_s = now + _POSITIONS_INTERVAL_S
            all_records += self._offsets_without_records(polled)
        return all_records

    def _offsets_without_records(self, polled: Collection[str]) -> list[PartitionRecords]:
        """Return empty `PartitionRecords` of partitions that were not polled, but have passed offsets without a record.

        Such offsets are those of transaction markers, aborted records and compacted records.
        """
        all_records = []
        end_offsets = self.end_offsets()
        for name in set(self._consumer.assignment()) - self._unsought - set(polled):
            start_offset = self._next_offsets.get(name)
            if start_offset is None or start_offset == end_offsets.get(name):
                continue
            position = self._consumer.position(name)
            if position is not None and position > start_offset:
                self._next_offsets[name] = position
                all_records.append(PartitionRecords(name, _topic(name), start_offset, [], position))
        return all_records

    def pause(self, partitions: Collection[str]) -> None:
        partitions_to_pause = set(partitions) - self._paused
        if partitions_to_pause:
            self._consumer.pause(partitions_to_pause)
            self._paused |= partitions_to_pause

    def resume(self, partitions: Collection[str]) -> None:
        partitions_to_resume = self._paused.intersection(partitions)
        if not partitions_to_resume:
            return
        if not self._everything_paused:
            self._consumer.resume(partitions_to_resume - self._unsought)
        self._progress_s |= dict.fromkeys(partitions_to_resume, time.monotonic())
        self._paused -= partitions_to_resume

    def poll_paused(self) -> None:
        if not self._everything_paused:
            self._everything_paused = True
            self._consumer.pause(self._consumer.assignment())
        try:
            if self._consumer.poll(_PAUSED_POLL_TIMEOUT_S, 1):
                # If a client returns a record although all partitions are paused, the record must be read again.
                self.rewind()
        except (OffsetOutOfRange, DependencyUnavailable) as error:
            log.debug("poll of paused partitions failed error=%s", error)
            self.rewind()
        now = time.monotonic()
        self._progress_s |= dict.fromkeys(self._progress_s, now)
        if now >= self._next_end_offsets_s:
            # Without fetches, the consumer reports no new end offsets.
            self._next_end_offsets_s = now + _PROBE_INTERVAL_S
            with suppress(DependencyUnavailable):
                self._refresh_end_offsets()

    def end_offsets(self) -> Mapping[str, int | None]:
        """Return the end offsets: from the last fetch for assigned partitions, otherwise up to 10 seconds old."""
        end_offsets: dict[str, int | None] = dict(self._end_offsets)
        fetched_offsets = self._consumer.end_offsets()
        for name in self._consumer.assignment():
            listed_offset = self._end_offsets.get(name)
            end_offsets[name] = (
                max(fetched_offsets[name], listed_offset or 0) if name in fetched_offsets else listed_offset
            )
        return end_offsets

    def fetch_end_offsets(self) -> Mapping[str, int | None]:
        """Request and return the current end offsets, also of newly added partitions; see `Source`."""
        self._refresh_metadata()
        return self.end_offsets()

    def connection_problem(self) -> str | None:
        """Return the error if no bootstrap server accepts a connection, or the missing topics; see `Source`.

        Rejoins the group if a partition has had no owner, or has returned none of its records, for too long.
        """
        now = time.monotonic()
        if now < self._next_probe_s:
            return self._problem
        self._next_probe_s = now + _PROBE_INTERVAL_S
        self._problem = kafka_connection_problem(self._settings)
        if self._problem is None and now >= self._next_metadata_s:
            try:
                self._refresh_metadata()
                self._rejoin_if_stalled()
            except DependencyUnavailable as error:
                self._problem = str(error)
                return self._problem
        missing_topics = [topic for topic in self._event_topics if topic not in self._topics]
        if self._problem is None and missing_topics:
            self._next_metadata_s = 0.0
            self._problem = self._describe_missing_topics(missing_topics)
        return self._problem

    def _describe_missing_topics(self, missing_topics: Sequence[str]) -> str:
        existing_topics: Sequence[str] = []
        with suppress(AbMonitorError):
            existing_topics = self._admin.list_topics()
        sentences = [describe_missing_topic(self._settings, topic, existing_topics) for topic in missing_topics]
        return f"Kafka at {self._settings.bootstrap_servers}: {'. '.join(sentences)}"

    def _refresh_metadata(self) -> None:
        """Update the topics and the end offsets of all partitions; rewind if a topic was recreated."""
        topics = self._admin.describe_topics(self._event_topics)
        for name, topic in self._topics.items():
            if name in topics and topics[name].topic_id != topic.topic_id:
                log.warning("topic was recreated topic=%s", name)
                self.rewind()
        self._topics = topics
        self._refresh_end_offsets()
        self._next_metadata_s = time.monotonic() + _METADATA_INTERVAL_S

    def _refresh_end_offsets(self) -> None:
        """Update the end offsets of all partitions."""
        partitions = [name for topic in self._topics.values() for name in topic.partitions]
        if partitions:
            self._end_offsets = self._admin.list_offsets(partitions, LATEST_OFFSET)

    def _rejoin_if_stalled(self) -> None:
        """Rejoin the group if a partition has had no owner, or has returned no records, for too long."""
        now = time.monotonic()
        all_partitions = {name for topic in self._topics.values() for name in topic.partitions}
        owned_partitions = self._admin.assigned_partitions(self._settings.group_id)
        if owned_partitions is not None and all_partitions <= owned_partitions:
            self._fully_assigned_s = now
        elif now - self._fully_assigned_s > _UNASSIGNED_AFTER_S:
            unowned = "unknown" if owned_partitions is None else ",".join(sorted(all_partitions - owned_partitions))
            log.warning("partitions have no owner, rejoining the group partitions=%s", unowned)
            self._rejoin()
            return
        for name in set(self._consumer.assignment()) - self._paused - self._unsought:
            lag = self._end_offsets.get(name, 0) - self._next_offsets.get(name, 0)
            if lag <= 0:
                self._progress_s[name] = now
            elif now - self._progress_s.get(name, now) > _STALLED_AFTER_S:
                log.warning("partition stalled, rejoining the group partition=%s lag=%d", name, lag)
                self._rejoin()
                return

    def _rejoin(self) -> None:
        # If the new consumer cannot connect, the old consumer remains.
        consumer = create_consumer(self._settings)
        self.restarts += 1
        self._consumer.close({})
        self._consumer = consumer
        self._has_assignment = self._everything_paused = False
        self._paused = set()
        self._unsought.clear()
        self._progress_s.clear()
        self._fully_assigned_s = time.monotonic()
        consumer.subscribe(self._event_topics, self._on_assign)

    def is_exhausted(self) -> bool:
        return False

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        """Collect the offsets, and commit to the group every 5 seconds, without waiting; see `Source`."""
        self._applied_offsets |= offsets
        now = time.monotonic()
        if now < self._next_group_commit_s:
            return
        self._next_group_commit_s = now + _GROUP_COMMIT_INTERVAL_S
        uncommitted_offsets = self._take_uncommitted_offsets()
        if uncommitted_offsets:
            self._consumer.commit_group_offsets(uncommitted_offsets)

    def _take_uncommitted_offsets(self) -> dict[str, int]:
        """Return the applied offsets of assigned partitions since the last call, now counted as committed."""
        assignment = self._consumer.assignment()
        uncommitted_offsets = {
            name: offset
            for name, offset in self._applied_offsets.items()
            if name in assignment and self._committed_offsets.get(name) != offset
        }
        self._committed_offsets |= self._applied_offsets
        return uncommitted_offsets

    def close(self) -> None:
        self._dead_letter_producer.close()
        self._admin.close()
        self._consumer.close(self._take_uncommitted_offsets() if self._problem is None else {})


def _topic(partition: str) -> str:
    return partition.rpartition(":")[0]
