"""Records that pass between workers and the store: positions, the writes of a batch, the state of a shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

CommitStatus = Literal[
    "applied",
    "generation_switched",
    "experiments_changed",
    "server_restarted",
    "positions_changed",
    "expired",
    "rows_changed",
]
"""Result of `StoreShard.commit`; lua/commit.lua describes the values."""


class RejectionCounts(NamedTuple):
    """Counts of a partition's rejected records."""

    consecutive: int = 0
    """Rejected records at the end of the applied records, without a valid record between them."""
    records: int = 0
    """Records of the latest window, valid or not."""
    rejected: int = 0
    """Rejected records of the latest window."""


class LogEpoch(NamedTuple):
    """The log that an offset belongs to: a topic that was recreated or truncated has another log.

    Stored as `TOPIC_ID#NUMBER@START`; `^FIRST_OFFSET` follows if the number is not 0 and the first offset is known.

    >>> LogEpoch.parse("T#1@30^5")
    LogEpoch(topic_id='T', number=1, start=30, first_offset=5)
    >>> str(LogEpoch("T", 0, 5, 5)), str(LogEpoch())
    ('T#0@5', '')
    """

    topic_id: str = ""
    """Kafka's id of the topic; empty if unknown, as for files."""
    number: int = 0
    """How often the worker has resumed behind lost records."""
    start: int | None = None
    """First offset that was to be applied since the latest loss; None if not recorded."""
    first_offset: int | None = None
    """First offset of this log that was to be applied, before any loss.

    None if not recorded, or if records of another log were applied before.
    """

    def __str__(self) -> str:
        if self.start is None:
            return self.topic_id
        first_offset = "" if self.number == 0 or self.first_offset is None else f"^{self.first_offset}"
        return f"{self.topic_id}#{self.number}@{self.start}{first_offset}"

    @classmethod
    def parse(cls, text: str) -> LogEpoch:
        """Return the epoch of a stored text."""
        topic_id, _, numbers = text.partition("#")
        if not numbers:
            return cls(topic_id)
        number, _, offsets = numbers.partition("@")
        start, _, first_offset = offsets.partition("^")
        if int(number) == 0:
            return cls(topic_id, 0, int(start), int(start))
        return cls(topic_id, int(number), int(start), int(first_offset) if first_offset else None)


_NO_REJECTIONS: Final = RejectionCounts()
_UNKNOWN_LOG: Final = LogEpoch()


@dataclass(frozen=True, slots=True)
class Position:
    """State of a partition after its applied records: next offset, newest event time, counts of rejections, log."""

    next_offset: int
    newest_ms: int = 0
    """The newest event time applied; 0 before the first event."""
    rejections: RejectionCounts = _NO_REJECTIONS
    log: LogEpoch = _UNKNOWN_LOG
    """The log of `next_offset`."""

    @property
    def sort_key(self) -> tuple[int, int]:
        """Return a key by which positions of a partition are ordered: number of the log epoch, offset."""
        return self.log.number, self.next_offset

    @classmethod
    def at_log_start(cls, topic_id: str, first_offset: int) -> Position:
        """Return the first position in a topic's partition."""
        return cls(first_offset, log=LogEpoch(topic_id, 0, first_offset, first_offset))

    def after_reset(self, topic_id: str, start: int) -> Position:
        """Return the position at which a worker resumes after lost records.

        The topic has the same id if records were deleted before they were applied, or if the log was truncated. In a
        recreated topic, offsets have another meaning.
        """
        is_same_log = bool(topic_id) and topic_id == self.log.topic_id and start >= self.next_offset
        first_offset = self.log.first_offset if is_same_log else None
        return Position(start, log=LogEpoch(topic_id, self.log.number + 1, start, first_offset))

    def log_start(self) -> Position:
        """Return the position at which the epoch of the log began."""
        return Position(self.log.start or 0, log=self.log)


@dataclass(frozen=True, slots=True)
class PositionUpdate:
    """The expected and the new position of a partition in a commit."""

    partition: str
    expected_offset: int | None
    """The stored offset that the worker expects; None for no stored position."""
    position: Position
    """The new position."""
    expected_log: LogEpoch | None = None
    """The stored log that the worker expects; None for the log of the new position."""


@dataclass(slots=True)
class Commit:
    """The writes of a batch on a shard; lua/commit.lua applies all writes or none."""

    position_updates: list[PositionUpdate] = field(default_factory=list)
    new_row_keys: list[bytes] = field(default_factory=list)
    new_row_values: list[bytes] = field(default_factory=list)
    """Rows that must not be stored yet, in the order of `new_row_keys`."""
    changed_row_keys: list[bytes] = field(default_factory=list)
    changed_row_values: list[bytes] = field(default_factory=list)
    """Rows in the order of `changed_row_keys`; a row begins with its version, one more than the stored version."""
    record_increments: dict[bytes, bytes] = field(default_factory=dict)
    """Key of a record → runs that are added to its integers, in the format of `monitor.engine.row_codec`."""
    bucket_appends: dict[bytes, bytes] = field(default_factory=dict)
    """Key of a chunk of time buckets → runs that are appended to the chunk."""
    compaction_limits: list[int] = field(default_factory=list)
    """Length (bytes) from which on a chunk is compacted, in the order of `bucket_appends`; not sent to the server."""
    counter_increments: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    """(key of a hash, field) → difference."""
    index_members: set[tuple[bytes, int]] = field(default_factory=set)
    """(key of an index, member): the number of this commit becomes the member's score."""
    expiry_entries: list[tuple[bytes, str, bytes]] = field(default_factory=list)
    """(key of `expiry_rows`, its field of `expiry_hours`, names of new rows, each behind a byte with its length)."""
    hash_texts: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    """(key of a hash, field) → text."""
    newest_times: dict[str, int] = field(default_factory=dict)
    """Field of `StoreKeys.newest_times` → time (ms); a larger stored time is not changed."""
    oldest_dependencies_ms: dict[str, int] = field(default_factory=dict)
    """Experiment number or `PENDING_FEEDBACK` → time (ms) of the oldest row or event on which the commit depends.

    If rows up to a later time have expired, the row or event may be deleted, and the commit is not applied.
    """

    def add_row(self, key: bytes, row: bytes, *, is_new: bool) -> None:
        """Append a row to the new rows or to the changed rows."""
        if is_new:
            self.new_row_keys.append(key)
            self.new_row_values.append(row)
        else:
            self.changed_row_keys.append(key)
            self.changed_row_values.append(row)

    def raise_newest_time(self, field_name: str, time_ms: int) -> None:
        """Raise a field of `newest_times` to a time, unless the field is later already."""
        self.newest_times[field_name] = max(time_ms, self.newest_times.get(field_name, time_ms))


@dataclass(frozen=True, slots=True)
class ExpiredRange:
    """Records of consecutive hours, days or chunks that are listed in an index and have expired."""

    index_key: bytes
    record_keys: Callable[[int], Iterable[bytes]]
    """Member of the index → keys of its records."""
    end: int
    """The first member that is not deleted."""
    kept_count: int = 0
    """Number of smallest members that are not deleted either."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """State of a shard, which a worker reads before the worker can commit."""

    commits: int
    """Number of commits applied."""
    expirations: int
    """Number of expiry calls that have deleted rows or moved a boundary."""
    expired_before_ms: Mapping[str, int]
    """Experiment number or `PENDING_FEEDBACK` → rows of earlier responses are deleted."""
    positions: Mapping[str, Position]
    """Position by partition."""
    experiments_deleting_students: frozenset[int] = frozenset()
    """Numbers of the experiments whose students' rows are deleted, or are being deleted."""


def encode_position(position: Position) -> str:
    """Return a position as text: offset, newest event time, three counts of rejections, log, separated by colons."""
    return ":".join(map(str, (position.next_offset, position.newest_ms, *position.rejections, position.log)))


def decode_positions(stored: Mapping[bytes, bytes]) -> dict[str, Position]:
    """Return the positions of a hash `StoreKeys.positions` by partition."""
    positions = {}
    for partition, text in stored.items():
        next_offset, newest_ms, consecutive, records, rejected, log = text.decode().split(":", 5)
        rejections = RejectionCounts(int(consecutive), int(records), int(rejected))
        positions[partition.decode()] = Position(int(next_offset), int(newest_ms), rejections, LogEpoch.parse(log))
    return positions
