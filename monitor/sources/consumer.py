"""The interface to a Kafka client library: a member of a consumer group, in Kafka's terms.

The modules `kafka_python` and `confluent` implement this interface. Partitions are named `topic:number`, as in the
store. Logic that does not depend on the client, such as initial offsets and offset gaps, is in `KafkaSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from kafka import TopicPartition

from monitor.decoding import Record

SESSION_TIMEOUT_MS: Final = 10_000
"""A worker that sends no heartbeat for this time loses its partitions. Both clients send heartbeats from a thread of
their own, so a longer timeout (45 s by default) would only prolong the pause after a crash."""
METADATA_MAX_AGE_MS: Final = 15_000
"""Age at which metadata is refreshed, and so the time until a worker discovers added partitions (5 minutes by
default)."""
RECONNECT_BACKOFF_MAX_MS: Final = 500
"""Longest pause between two attempts to connect. kafka-python often loses the reason for a failed login, because the
broker closes the connection right after sending it. With more attempts, one of them more likely reports the reason."""
FETCH_MAX_WAIT_MS: Final = 50
"""Longest time that a broker waits for records before it replies to a fetch (500 ms by default). A client sends one
fetch at a time to each broker. So partitions with records are delayed by up to this time while others are at their
end."""


class OffsetOutOfRange(Exception):
    """A partition has no record at the requested offset: deleted by retention, truncated, or in a recreated topic."""


class Consumer(Protocol):
    """A member of a consumer group. Used by a single thread.

    Every method may raise `UsageError` if the cluster does not permit the request, and `DependencyUnavailable` if the
    request fails for another reason.
    """

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:
        """Join the group. After each rebalance, any thread may call `on_assign` with all assigned partitions."""

    def assign(self, partitions: Collection[str]) -> None:
        """Read the partitions, each after its first `seek`, without joining the group; instead of `subscribe`."""

    def assignment(self) -> Collection[str]:
        """Return the partitions that are assigned to the member."""

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Read the partitions from the given offsets on. A newly assigned partition is not read before `seek`.

        A paused partition remains paused. A partition that is no longer assigned is ignored.
        """

    def pause(self, partitions: Collection[str]) -> None:
        """Return no records of the partitions until `resume`. No records are skipped."""

    def resume(self, partitions: Collection[str]) -> None:
        """Return records of the partitions again. Partitions that are no longer assigned are ignored."""

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        """Return the next records by partition, or none if no record arrives within the timeout.

        Also raises `OffsetOutOfRange`. After any error, records may have been skipped, so the caller must `seek` all
        partitions again.
        """

    def position(self, partition: str) -> int | None:
        """Return the offset of the next record, beyond offsets without a record; None if unknown.

        Transaction markers, aborted and compacted records are such offsets.
        """

    def end_offsets(self) -> Mapping[str, int]:
        """Return the end offsets of assigned partitions, as of the last fetch; unknown end offsets are absent."""

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        """Send offsets to the group's coordinator, for lag dashboards, without waiting for the response."""

    def close(self, offsets: Mapping[str, int]) -> None:
        """Commit the offsets to the group (none if empty), then leave the group. May block for seconds."""


def partition_name(topic: str, number: int) -> str:
    """Return the partition as `topic:number`."""
    return f"{topic}:{number}"


def parse_partition_name(name: str) -> TopicPartition:
    """Return the topic and the number of a partition that is named `topic:number`."""
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))
