"""The seam to where events come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from monitor.store import Position

Kind = Literal["response", "feedback", "event"]


@dataclass(frozen=True, slots=True)
class Slice:
    """Consecutive records of one partition."""

    partition: str
    """`topic:number`, the name of its position in the store."""
    kind: Kind
    """What the records must be; "event" where either may stand."""
    offsets: Sequence[int]
    payloads: Sequence[bytes | None]
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


class Source(Protocol):
    """Partitions with positions. Not for use by several threads."""

    def unplaced(self) -> Sequence[str]:
        """Return the partitions that were assigned and wait for `place`."""

    def place(self, positions: Mapping[str, Position]) -> Mapping[str, int]:
        """Start every unplaced partition at its position (or where the configuration says) and return the offsets."""

    def rewind(self, positions: Mapping[str, Position]) -> Mapping[str, int]:
        """Return to the stored positions in all assigned partitions, and say where that is."""

    def poll(self) -> Sequence[Slice]:
        """Return the next records; none after a short wait, or when nothing is left."""

    def idle(self) -> None:
        """Stay a member without reading anything, for a short while."""

    def ends(self) -> Mapping[str, int | None]:
        """Return the known end offset of every assigned partition; None where it is not known yet."""

    def trouble(self) -> str | None:
        """Return why nothing can arrive now, if that is so; may take a second, and is asked now and then."""

    def finished(self) -> bool:
        """Return whether nothing will ever come any more."""

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """Tell the outside how far the store is, for its dashboards; never read back."""

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """Keep refused records where they can be found again; return once they are safe."""

    def close(self) -> None:
        """Leave."""
