"""Simulated traffic as a source: one partition, at a pace."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from monitor.ingest.simulator import SimulatedEvent
from monitor.ingest.source import Gap, PlainRecord, Refused, Slice
from monitor.store import Position

_AT_ONCE: Final = 1000
_REST_S: Final = 0.02
_PARTITION: Final = "simulated:0"


class SimulatedSource:
    """Hands out events when their arrival is due: `speed` simulated seconds pass in one real second."""

    restarts = 0

    def __init__(self, events: Iterator[SimulatedEvent], start_ms: int, speed: float) -> None:
        self._events = events
        self._next = next(events, None)
        self._offset = 0
        self._start_ms = start_ms
        self._speed = speed
        self._began: float | None = None

    def now_ms(self) -> int:
        """Return the simulated time."""
        if self._began is None:
            return self._start_ms
        return self._start_ms + int((time.monotonic() - self._began) * self._speed * 1000)

    def unplaced(self) -> Sequence[str]:
        """See `Source`."""
        return [_PARTITION] if self._began is None else []

    def gaps(self, positions: Mapping[str, Position]) -> Sequence[Gap]:
        """See `Source`: none."""
        del positions
        return []

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        """See `Source`."""
        return {} if positions else {_PARTITION: Position(0)}

    def place(self, positions: Mapping[str, Position]) -> None:
        """See `Source`: from the beginning, in a store of its own."""
        if positions[_PARTITION].next_offset:
            raise RuntimeError(f"a simulation's store holds positions already: {positions}")
        self._began = time.monotonic()

    def rewind(self) -> None:
        """See `Source`."""
        raise RuntimeError("somebody else writes to the simulation's store")

    def hold(self, partitions: Collection[str]) -> None:
        """See `Source`: there is only one partition."""

    def joined(self) -> bool:
        """See `Source`."""
        return True

    def own(self) -> Collection[str]:
        """See `Source`."""
        return (_PARTITION,)

    def poll(self, *, wait: bool = True) -> Sequence[Slice]:
        """See `Source`: the events that are due."""
        due_ms = self.now_ms()
        first = self._offset
        records: list[PlainRecord] = []
        while self._next is not None and self._next.arrival_ms <= due_ms and len(records) < _AT_ONCE:
            records.append(PlainRecord(first + len(records), None, self._next.payload))
            self._next = next(self._events, None)
        if not records:
            if wait:
                time.sleep(_REST_S)
            return []
        self._offset += len(records)
        return [Slice(_PARTITION, "event", first, records, self._offset)]

    def idle(self) -> None:
        """See `Source`."""
        time.sleep(_REST_S)

    def ends(self) -> Mapping[str, int | None]:
        """See `Source`."""
        return {_PARTITION: self._offset if self._next is None else None}

    def ask_ends(self) -> Mapping[str, int | None]:
        """See `Source`."""
        return self.ends()

    def trouble(self) -> str | None:
        """See `Source`: never."""
        return None

    def finished(self) -> bool:
        """See `Source`."""
        return self._next is None

    def acknowledge(self, offsets: Mapping[str, int]) -> None:
        """See `Source`."""

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """See `Source`: a simulation refuses nothing of its own."""
        raise RuntimeError(f"the simulator wrote a refused event: {refused[0].reason}: {refused[0].detail}")

    def close(self) -> None:
        """See `Source`."""
