"""Simulated traffic as a source: one partition, at a pace."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from monitor.simulation.simulator import SimulatedEvent
from monitor.sources import PlainRecord, Refused, Slice, UnsharedSource
from monitor.state import Position

_AT_ONCE: Final = 1000
_REST_S: Final = 0.02
_PARTITION: Final = "simulated:0"


class SimulatedSource(UnsharedSource):
    """Hands out events when their arrival is due: `speed` simulated seconds pass in one real second."""

    def __init__(self, events: Iterator[SimulatedEvent], start_ms: int, speed: float) -> None:
        self._events = events
        self._next = next(events, None)
        self._offset = 0
        self._start_ms = start_ms
        self._speed = speed
        self._began: float | None = None

    def now_ms(self) -> int:
        if self._began is None:
            return self._start_ms
        return self._start_ms + int((time.monotonic() - self._began) * self._speed * 1000)

    def unplaced(self) -> Sequence[str]:
        return [_PARTITION] if self._began is None else []

    def starts(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        return {} if positions else {_PARTITION: Position(0)}

    def place(self, positions: Mapping[str, Position]) -> None:
        """Begin the clock: a simulation has a store of its own."""
        if positions[_PARTITION].next_offset:
            raise RuntimeError(f"a simulation's store holds positions already: {positions}")
        self._began = time.monotonic()

    def rewind(self) -> None:
        raise RuntimeError("somebody else writes to the simulation's store")

    def own(self) -> Collection[str]:
        return (_PARTITION,)

    def poll(self, *, wait: bool = True) -> Sequence[Slice]:
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
        time.sleep(_REST_S)

    def ends(self) -> Mapping[str, int | None]:
        return {_PARTITION: self._offset if self._next is None else None}

    ask_ends = ends

    def finished(self) -> bool:
        return self._next is None

    def keep_refused(self, refused: Sequence[Refused]) -> None:
        """Fail: a simulation makes no unacceptable events."""
        raise RuntimeError(f"the simulator wrote a refused event: {refused[0].reason}: {refused[0].detail}")

    def close(self) -> None:
        """Release nothing."""
