"""What passes between a worker and the store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from monitor.store.packing import PackedRows

Status = Literal["applied", "moved", "changed", "swept", "restarted", "switched"]


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
    """One batch's writes; lists are flat (see commit.lua), rows are packed."""

    advances: list[Advance] = field(default_factory=list)
    rows: PackedRows = field(default_factory=PackedRows)
    new_rows: PackedRows = field(default_factory=PackedRows)
    """Those which the store must not have yet: since the outcome of the commit before, they were read and not found."""
    differences: list[bytes] = field(default_factory=list)
    counts: list[bytes | int] = field(default_factory=list)
    stamps: list[bytes | int] = field(default_factory=list)
    latest: list[bytes | int] = field(default_factory=list)
    notes: list[bytes] = field(default_factory=list)
    sends: list[bytes] = field(default_factory=list)
    receipts: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    buckets: list[bytes] = field(default_factory=list)
    reached: dict[str, int] = field(default_factory=dict)
    """Experiment number (or "p" for rows without their response) → time (ms) of the oldest row or event that it rests
    on: if rows were swept up to a later one, it may be gone."""
    full: list[int] = field(default_factory=list)
    """Of each of the chunks of buckets, at how many bytes it is summed up: not for the script."""


class Sent(NamedTuple):
    """An entry of an outbox, and the one before it (b"" for none)."""

    before: bytes
    entry: bytes


@dataclass(frozen=True, slots=True)
class Past:
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
    furthest: Mapping[str, int] = field(default_factory=dict)
    """Next offset of the shard that is furthest, where shards are not equally far."""
    lanes: Mapping[bytes, bytes] = field(default_factory=dict)
    """See `Keys`: the last entries sent to and applied from other shards."""
    closing: frozenset[int] = frozenset()
    """Numbers of the experiments whose students' rows are gone, or going."""


def encode_progress(position: Position) -> str:
    """Return all of a position but its offset as it is stored."""
    return ":".join(map(str, (position.newest_ms, *position.refusals, position.origin)))


def _decode_position(next_offset: int, progress: bytes) -> Position:
    """Return the position that `encode_progress` wrote."""
    newest_ms, run, records, refused, origin = progress.decode().split(":", 4)
    return Position(next_offset, int(newest_ms), Refusals(int(run), int(records), int(refused)), origin)


def positions_of(offsets: Mapping[bytes, bytes], progress: Mapping[bytes, bytes]) -> dict[str, Position]:
    """Return the positions of both hashes, see `Keys`."""
    return {name.decode(): _decode_position(int(offset), progress[name]) for name, offset in offsets.items()}
