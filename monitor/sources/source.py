"""The seam to where events come from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from monitor.state import Position

Kind = Literal["response", "feedback", "event"]


class Record(Protocol):
    """A record of a partition, such as kafka-python's `ConsumerRecord`."""

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


class PlainRecord(NamedTuple):
    """A record of a source that has no suitable record type of its own."""

    offset: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records of one partition."""

    partition: str
    """`topic:number`, the name of its position in the store."""
    kind: Kind
    """What the records must be; "event" where either may stand."""
    begin: int
    """Position before the first of them: where the slice before ended, or where the partition was placed."""
    records: Sequence[Record]
    next_offset: int
    """Position after the last of them; gaps between offsets are nothing."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A record that is not an acceptable event."""

    partition: str
    offset: int
    payload: bytes | None
    reason: str
    detail: str
    key: bytes | None = None


@dataclass(frozen=True, slots=True)
class Gap:
    """A stored position from which the source cannot go on."""

    partition: str
    held: Position
    resume: Position
    """Where it can go on: at the oldest record that is still there. What is read again changes nothing."""
    lost: int
    """Offsets that are known to be gone without having been applied."""
    reason: str


class Source(Protocol):
    """Partitions with positions. Not for use by several threads."""

    restarts: int
    """Times it began anew because nothing arrived although there was something."""

    def unplaced(self) -> Sequence[str]:
        """Return the partitions that were assigned and wait for `place`."""

    def gaps(self, positions: Mapping[str, Position]) -> Sequence[Gap]:
        """Return where the unplaced partitions cannot go on from their positions."""

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """Return where the partitions that have no position yet begin, also of those that others read."""

    def place(self, positions: Mapping[str, Position]) -> None:
        """Start every unplaced partition at its position."""

    def rewind(self) -> None:
        """Have all assigned partitions placed again."""

    def poll(self, *, wait: bool = True) -> Sequence[Slice]:
        """Return the next records; none after a short wait (or at once), or when nothing is left."""

    def hold(self, partitions: Collection[str]) -> None:
        """Read nothing from these partitions, and from all others again."""

    def idle(self) -> None:
        """Stay a member without reading anything, for a short while."""

    def ends(self) -> Mapping[str, int | None]:
        """Return the end of every partition, also of those that others read; None where it is not known yet."""

    def ask_ends(self) -> Mapping[str, int | None]:
        """Return the same as it is now; raises `DependencyUnavailable`."""

    def joined(self) -> bool:
        """Return whether it is known which partitions are this worker's, be it none."""

    def own(self) -> Collection[str]:
        """Return the partitions that are assigned to this worker."""

    def trouble(self) -> str | None:
        """Look around and return why nothing can arrive now, if that is so; may take a second."""

    def finished(self) -> bool:
        """Return whether nothing will ever come any more."""

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """Tell the outside how far the store is, for its dashboards; never read back."""

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """Keep refused records where they can be found again; return once they are safe."""

    def close(self) -> None:
        """Leave."""


class UnsharedSource:
    """What sources have in common that one worker alone reads, without a group: nothing is lost, held back or told."""

    restarts = 0

    def gaps(self, positions: Mapping[str, Position]) -> Sequence[Gap]:  # noqa: ARG002
        return ()

    def hold(self, partitions: Collection[str]) -> None:
        """Hold nothing back: there is one partition, or all are merged by event time."""

    def joined(self) -> bool:
        return True

    def trouble(self) -> str | None:
        return None

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """Report nothing: nobody else wants to know the position."""
