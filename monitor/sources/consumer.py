"""The seam to a Kafka client: one member of the consumer group, in Kafka's own words.

Two clients implement it: `kafka_python` and `confluent`. Partitions are named `topic:number`, as their positions in the
store. Everything that does not depend on the client, such as initial offsets and lost records, is in `KafkaSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, Protocol

from kafka import TopicPartition

from monitor.sources.source import Record

SESSION_MS: Final = 10_000
"""A worker without a heartbeat for this time loses its partitions. Heartbeats have a thread of their own, so a longer
time (45 s by default) would only prolong the pause after a crash."""
METADATA_MS: Final = 15_000
"""Age at which metadata is refreshed, so the time until added partitions are noticed (five minutes by default)."""
RECONNECT_MS: Final = 500
"""Longest pause between two attempts to connect. kafka-python often loses the reason for a refused login, because
the broker closes the connection right after it: the more attempts, the likelier is one with the reason."""
FETCH_MS: Final = 50
"""Time that the broker waits for a record (500 ms by default). A client has one fetch per broker under way, so this is
also the delay of partitions that have records while the others are at their end."""


class OffsetOutOfRange(Exception):
    """A partition has no record at its position: the log was deleted up to there, truncated, or is another one."""


class Consumer(Protocol):
    """One member of a consumer group. Used by one thread.

    Every method may raise `UsageError` for a request that the cluster does not permit, and `DependencyUnavailable` for
    any other that it refuses.
    """

    def subscribe(self, topics: Sequence[str], on_assign: Callable[[Collection[str]], None]) -> None:
        """Join the group. `on_assign` is called with all assigned partitions after each rebalance, by any thread."""

    def assignment(self) -> Collection[str]:
        """Return the partitions that are assigned to this member."""

    def seek(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions from the offsets on. Until then, a partition that was just assigned is not read.

        A partition that is paused stays paused; one that is no longer assigned is ignored.
        """

    def pause(self, partitions: Collection[str]) -> None:
        """Return no records of these partitions until they are resumed; nothing of them is skipped."""

    def resume(self, partitions: Collection[str]) -> None:
        """Return records of these partitions again; partitions that are no longer assigned are ignored."""

    def poll(self, timeout_s: float, max_records: int) -> Mapping[str, Sequence[Record]]:
        """Return the next records by partition, none if nothing arrives within the timeout.

        Raises `OffsetOutOfRange` too. After any error records may have been skipped: seek all partitions again.
        """

    def position(self, partition: str) -> int | None:
        """Return the offset after the last record that was returned, and after transaction markers and aborted records.

        None if it is unknown.
        """

    def end_offsets(self) -> Mapping[str, int]:
        """Return the ends of assigned partitions as the last fetch reported them; unknown ones are absent."""

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        """Send offsets to the group's coordinator, for lag dashboards, without waiting for the answer."""

    def close(self, offsets: Mapping[str, int]) -> None:
        """Commit these offsets to the group, if there are any, and leave it; takes seconds at most."""


def partition_name(topic: str, number: int) -> str:
    """Return the name of a partition's position in the store."""
    return f"{topic}:{number}"


def partition_of(name: str) -> TopicPartition:
    """Return the partition of a position's name."""
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))
