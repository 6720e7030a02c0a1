"""What passes between a worker and the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

Status = Literal["applied", "moved", "changed", "swept", "restarted", "switched"]
"""See commit.lua."""


class Refusals(NamedTuple):
    """How many of a partition's events were refused: in a row up to now, and of the latest ones."""

    run: int = 0
    records: int = 0
    refused: int = 0


_NONE_REFUSED: Final = Refusals()


@dataclass(frozen=True, slots=True)
class Position:
    """How far a partition was applied."""

    next_offset: int
    newest_ms: int = 0
    """The newest event time applied; 0 before the first."""
    refusals: Refusals = _NONE_REFUSED
    origin: str = ""
    """The log that the offset is of: `T#N@B` is the topic's identity, how often it was `entered`, and where last.

    `T#N@B^F` went on behind a gap in the same log, of which F was the `first`.
    """

    @property
    def topic(self) -> str:
        """The topic's identity: one of the same name that was created anew is another; empty if it is not known."""
        return self.origin.partition("#")[0]

    @property
    def reached(self) -> tuple[int, int]:
        """What says which of two positions of a partition is further: the number of logs entered, the offset."""
        return self._entries()[0], self.next_offset

    @property
    def first(self) -> int | None:
        """The first offset of this log that was to be applied; None if it was not noted, or others came before it."""
        number, begin = self._entries()
        first = self.origin.partition("^")[2]
        return int(first) if first else None if number or "@" not in self.origin else begin

    @classmethod
    def start(cls, topic: str, begin: int) -> Position:
        """Return the first position in a topic's partition."""
        return cls(begin, origin=f"{topic}#0@{begin}")

    def entered(self, topic: str, begin: int) -> Position:
        """Return the position in what follows after a loss: behind a gap in the same log, or in another one.

        Offsets of another one mean nothing here.
        """
        origin = f"{topic}#{self._entries()[0] + 1}@{begin}"
        if topic and topic == self.topic and self.first is not None and begin >= self.next_offset:
            origin += f"^{self.first}"
        return Position(begin, origin=origin)

    def entry(self) -> Position:
        """Return the position at which this log was entered."""
        return Position(self._entries()[1], origin=self.origin)

    def _entries(self) -> tuple[int, int]:
        number, _, begin = self.origin.partition("#")[2].partition("@")
        return int(number or 0), int(begin.partition("^")[0] or 0)


@dataclass(frozen=True, slots=True)
class Advance:
    """One partition's step: from the offset the worker expects (None: no position yet) to its next position."""

    partition: str
    expected: int | None
    position: Position
    left: str | None = None
    """Origin of the position that is expected, if it is another log's."""


@dataclass(slots=True)
class Commit:
    """The writes of one batch on one shard; commit.lua applies all of them or none."""

    advances: list[Advance] = field(default_factory=list)
    new_row_keys: list[bytes] = field(default_factory=list)
    new_row_values: list[bytes] = field(default_factory=list)
    """Rows that the store must not have yet."""
    row_keys: list[bytes] = field(default_factory=list)
    row_values: list[bytes] = field(default_factory=list)
    """Rows begin with their new version: the stored row must have the version before it."""
    sums: dict[bytes, bytes] = field(default_factory=dict)
    """Key of a record → what is added to its integers, in the format of `monitor.engine.row_codec`."""
    chunks: dict[bytes, bytes] = field(default_factory=dict)
    """Key of a chunk of time buckets → runs that are appended to it."""
    chunk_limits: list[int] = field(default_factory=list)
    """Length in bytes from which on each chunk is compacted; not part of the script's arguments."""
    counters: Counter[tuple[bytes, bytes]] = field(default_factory=Counter)
    """(key of a hash, field) → difference."""
    members: set[tuple[bytes, int]] = field(default_factory=set)
    """(key of an index, member): the index records the number of this commit as the member's score."""
    hours: list[tuple[bytes, str, bytes]] = field(default_factory=list)
    """(key of an hour's list, its field among the hours, names of new rows with their lengths), for the sweep."""
    texts: dict[tuple[bytes, bytes], bytes] = field(default_factory=dict)
    """(key of a hash, field) → text."""
    latest: dict[str, int] = field(default_factory=dict)
    """Field of `Keys.latest` → time (ms); the larger one is kept."""
    oldest_dependencies: dict[str, int] = field(default_factory=dict)
    """Experiment number (or "p" for rows without a response) → time (ms) of the oldest row or event that the outcome
    depends on: if rows were swept up to a later time, it may be gone."""

    def add_row(self, key: bytes, row: bytes, *, is_new: bool) -> None:
        """Append a row."""
        if is_new:
            self.new_row_keys.append(key)
            self.new_row_values.append(row)
        else:
            self.row_keys.append(key)
            self.row_values.append(row)

    def see_latest(self, name: str, timestamp_ms: int) -> None:
        """Raise a field of `latest` to this time."""
        self.latest[name] = max(timestamp_ms, self.latest.get(name, timestamp_ms))


@dataclass(frozen=True, slots=True)
class ExpiredRange:
    """Records of times that an index names, and which of those are past."""

    index: bytes
    records: Callable[[int], Iterable[bytes]]
    """The keys of one time."""
    before: int
    kept: int = 0
    """So many times from the earliest one on stay."""


@dataclass(frozen=True, slots=True)
class State:
    """What the store says of itself."""

    commits: int
    sweeps: int
    swept_ms: Mapping[str, int]
    """Experiment number (or "p" for rows without their response) → responses before this time are gone."""
    positions: Mapping[str, Position]
    closing: frozenset[int] = frozenset()
    """Numbers of the experiments whose students' rows are gone, or going."""


def encode_position(position: Position) -> str:
    """Return a position as it is stored: offset, newest event time, three counts of rejections and origin."""
    return ":".join(map(str, (position.next_offset, position.newest_ms, *position.refusals, position.origin)))


def decode_positions(stored: Mapping[bytes, bytes]) -> dict[str, Position]:
    """Return the positions of `Keys.positions` by partition."""
    positions = {}
    for partition, text in stored.items():
        next_offset, newest_ms, run, records, refused, origin = text.decode().split(":", 5)
        refusals = Refusals(int(run), int(records), int(refused))
        positions[partition.decode()] = Position(int(next_offset), int(newest_ms), refusals, origin)
    return positions
