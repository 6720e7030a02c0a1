"""The seam to a client of Kafka: one membership in the consumer group, and the partitions that come with it.

Partitions go by the names of their positions in the store. Two clients are members: `kafka_python` and `confluent`.
What does not depend on the client, such as where to begin and what is lost, is `KafkaSource`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kafka import TopicPartition

from monitor.ingest.records import Records

SESSION_MS: Final = 10_000
"""After so long without a heartbeat a worker's partitions go to the others: heartbeats have a thread of their own, so a
longer time (45 s by default) would only prolong the gap after a crash."""
METADATA_MS: Final = 15_000
"""So soon new partitions are noticed (the default is five minutes)."""
RECONNECT_MS: Final = 2_000
FETCH_MS: Final = 50
"""So long the broker waits for a record (500 ms by default). Nothing else is fetched from it meanwhile: when some
partitions have come to their end, those that have more would wait as long."""
POLL_MS: Final = 200
CLOSE_MS: Final = 5_000


def partition_name(partition: TopicPartition) -> str:
    """Return the name of a partition's position in the store."""
    return f"{partition.topic}:{partition.partition}"


def partition_of(name: str) -> TopicPartition:
    """Return the partition of a position's name."""
    topic, _, number = name.rpartition(":")
    return TopicPartition(topic, int(number))


class Displaced(Exception):
    """Some partitions are not where they can be read: they have to be placed again."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Consecutive records of one partition, at least one."""

    partition: str
    records: Records


class Member(Protocol):
    """One member of the group. Nothing is read of a partition before it is placed.

    A cluster that does not permit something raises `UsageError`, for all else that it refuses `DependencyUnavailable`.
    """

    def joined(self) -> bool:
        """Return whether the group has said which partitions are this member's, be it none."""

    def assigned(self) -> Collection[str]:
        """Return the partitions that the group has given to this member."""

    def unplaced(self) -> Sequence[str]:
        """Return those of them that wait for `place`, sorted."""

    def place(self, offsets: Mapping[str, int]) -> None:
        """Read these partitions from their offsets on, the held ones later; those that are gone by now are ignored."""

    def rewind(self) -> None:
        """Have all assigned partitions placed again."""

    def hold(self, partitions: Collection[str]) -> None:
        """Read nothing from these partitions, and from all others that are placed."""

    def poll(self, *, wait: bool) -> Sequence[Fetched]:
        """Return the next records of placed partitions, none after a short wait (or at once); raises `Displaced`."""

    def stay(self) -> None:
        """Stay a member for a short while without reading; the next `poll` goes on where the last one ended."""

    def position(self, partition: str) -> int | None:
        """Return the offset of what comes next, past what transactions leave in the log; None where it is not known."""

    def highwater(self, partition: str) -> int | None:
        """Return the end of a partition as the last records that were fetched told it, None before any were."""

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """Commit to the group without waiting."""

    def close(self, offsets: Mapping[str, int]) -> None:
        """Commit these offsets, if there are any, and leave; takes seconds at most."""
