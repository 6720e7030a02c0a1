"""The interface between the pipeline and the origin of records: Kafka, files, or simulated traffic.

A source returns records by partition, in the order of their offsets. The pipeline stores the offset of each partition
together with the effect of its records, so a source starts each partition where `Source.seek` sets it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from monitor.decoding import Headers, Record
from monitor.state import Position


class PlainRecord(NamedTuple):
    """A record without metadata, for clients without a suitable record type."""

    offset: int
    key: bytes | None
    value: bytes | None
    timestamp: int | None = None
    headers: Headers = ()


@dataclass(frozen=True, slots=True)
class PartitionRecords:
    """Consecutive records of a partition, from a single poll."""

    partition: str
    """`topic:number`, the name of the partition's position in the store."""
    topic: str
    """Topic whose sources decode the records; `ANY_TOPIC` if the topic is unknown, as for files."""
    start_offset: int
    """`next_offset` of the previous poll, or the offset of the last `seek`."""
    records: Sequence[Record]
    """May be empty: transaction markers, aborted and compacted records have offsets, but are not returned."""
    next_offset: int
    """Offset after the last record. Offsets without a record in between are transaction markers or were compacted."""


@dataclass(frozen=True, slots=True)
class RejectedRecord:
    """A record that is not a valid event, with the reason."""

    partition: str
    offset: int
    value: bytes | None
    reason: str
    """One of `monitor.events.REJECTION_REASONS`."""
    detail: str
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int | None = None


@dataclass(frozen=True, slots=True)
class OffsetGap:
    """A stored position at which the source cannot continue, because later records are gone."""

    partition: str
    stored_position: Position
    resume_position: Position
    """Oldest record that the source still has. Events that are read again change no aggregate."""
    lost_count: int
    """Number of offsets whose records were deleted before they were applied; 0 if unknown."""
    reason: str


class DeadLetterQueue(Protocol):
    """Destination of the rejected records of a source."""

    def write(self, rejected_records: Sequence[RejectedRecord]) -> None:
        """Write the records, and return when every record is stored.

        Called before the offsets of these records are committed. May block for seconds. Raises `DependencyUnavailable`
        if some records may not be stored; the caller then writes all of them again.
        """


class Source(Protocol):
    """Partitions with offsets, in Kafka's terms. Used by a single thread.

    A partition that was just assigned returns no records before `seek`. The caller therefore repeats, until
    `partitions_to_seek` is empty: `find_offset_gaps`, `initial_positions`, `seek`.

    Unless stated otherwise, methods do not block, and raise `DependencyUnavailable` if the source cannot be reached,
    and `UsageError` if the source rejects the request permanently. Every call may be repeated after
    `DependencyUnavailable`.
    """

    restarts: int
    """Number of times that the source rejoined its group because a partition had records but returned none."""

    @property
    def dead_letter_queue(self) -> DeadLetterQueue: ...

    def partitions_to_seek(self) -> Sequence[str]:
        """Return the assigned partitions that wait for `seek`: after an assignment, `rewind`, or a failed poll."""

    def find_offset_gaps(self, positions: Mapping[str, Position]) -> Sequence[OffsetGap]:
        """Return the gaps between the stored positions and the oldest records of the partitions to seek. May block."""

    def initial_positions(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """Return first positions for all partitions without a stored position, of any worker.

        Called after a rebalance, so that the first worker decides once for all workers. May block.
        """

    def seek(self, positions: Mapping[str, Position]) -> None:
        """Read every partition in `partitions_to_seek` from the stored position on."""

    def rewind(self) -> None:
        """Make all assigned partitions wait for `seek` again, because the stored positions have changed."""

    def poll(self, *, wait: bool = True) -> Sequence[PartitionRecords]:
        """Return the next records of the partitions that are not paused.

        If no record has arrived, blocks for a fraction of a second (not at all without `wait`), then returns nothing.
        """

    def poll_paused(self) -> None:
        """Remain a member of the group while a dependency is unavailable: poll with all partitions paused.

        Blocks for a fraction of a second; raises `UsageError` only. The next `poll` resumes the partitions.
        """

    def pause(self, partitions: Collection[str]) -> None:
        """Return no records of the partitions until `resume`. Paused partitions lose no records."""

    def resume(self, partitions: Collection[str]) -> None:
        """Return records of the partitions again. Partitions that are not paused are ignored."""

    def end_offsets(self) -> Mapping[str, int | None]:
        """Return the last known end offset of every partition of all workers; None if unknown."""

    def fetch_end_offsets(self) -> Mapping[str, int | None]:
        """Request and return the current end offset of every partition of all workers. May block."""

    def has_assignment(self) -> bool:
        """Return whether the group has assigned partitions to the worker, possibly none."""

    def assignment(self) -> Collection[str]:
        """Return the partitions that are assigned to the worker."""

    def connection_problem(self) -> str | None:
        """Return why no records can arrive at present, or None. May block for seconds.

        Called once a second. A Kafka source also rejoins its group here if an assigned partition has stalled.
        """

    def is_exhausted(self) -> bool:
        """Return whether all records were returned and no more can arrive."""

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        """Commit applied offsets to the consumer group, for lag dashboards only; never read back."""

    def close(self) -> None:
        """Leave the group and close connections. May block for seconds."""


class UnsharedSource:
    """Base of sources without a consumer group: a single worker reads all partitions, and no records can get lost."""

    restarts = 0

    def find_offset_gaps(self, positions: Mapping[str, Position]) -> Sequence[OffsetGap]:  # noqa: ARG002
        return ()

    def pause(self, partitions: Collection[str]) -> None:
        """Ignore the request: a single partition, or files merged by event time, need no watermark alignment."""

    def resume(self, partitions: Collection[str]) -> None:
        """Ignore the request, as `pause` does."""

    def has_assignment(self) -> bool:
        return True

    def connection_problem(self) -> str | None:
        return None

    def commit_group_offsets(self, offsets: Mapping[str, int]) -> None:
        """Ignore the offsets, for lack of a consumer group."""
