"""What passes between a worker and the store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

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
    """The log that the offset is of: the topic's identity, and after `entered` how often and where it went on anew."""

    @property
    def topic(self) -> str:
        """The topic's identity: one of the same name that was created anew is another; empty if it is not known."""
        return self.origin.partition("#")[0]

    @property
    def reached(self) -> tuple[int, int]:
        """What says which of two positions of a partition is further: the number of logs entered, the offset."""
        return self._entries()[0], self.next_offset

    @classmethod
    def start(cls, topic: str, begin: int) -> Position:
        """Return the first position in a topic's partition."""
        return cls(begin, origin=f"{topic}#0@{begin}")

    def entered(self, topic: str, begin: int) -> Position:
        """Return the position in what follows after a loss: offsets of before mean nothing there."""
        return Position(begin, origin=f"{topic}#{self._entries()[0] + 1}@{begin}")

    def entry(self) -> Position:
        """Return the position at which this log was entered."""
        return Position(self._entries()[1], origin=self.origin)

    def _entries(self) -> tuple[int, int]:
        number, _, begin = self.origin.partition("#")[2].partition("@")
        return int(number or 0), int(begin or 0)


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
    """One batch's writes; lists are flat (see commit.lua)."""

    advances: list[Advance] = field(default_factory=list)
    rows: list[bytes] = field(default_factory=list)
    new_rows: list[bytes] = field(default_factory=list)
    """Those which the store must not have yet."""
    differences: list[bytes] = field(default_factory=list)
    counts: list[bytes | int] = field(default_factory=list)
    stamps: list[bytes | int] = field(default_factory=list)
    latest: list[bytes | int] = field(default_factory=list)
    notes: list[bytes | int] = field(default_factory=list)
    sends: list[bytes] = field(default_factory=list)
    receipts: list[bytes] = field(default_factory=list)
    names: list[bytes] = field(default_factory=list)
    buckets: list[bytes] = field(default_factory=list)
    full: list[int] = field(default_factory=list)
    """Of each of the chunks of buckets, at how many bytes it is summed up: not for the script."""


class Sent(NamedTuple):
    """An entry of an outbox, and the one before it (b"" for none)."""

    before: bytes
    entry: bytes


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
