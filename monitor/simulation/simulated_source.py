"""A source of simulated events for a worker, in a single partition and at a constant speed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Final

from monitor.decoding import ANY_TOPIC
from monitor.simulation.simulator import SimulatedEvent
from monitor.sources import PartitionRecords, PlainRecord, RejectedRecord, UnsharedSource
from monitor.state import Position

_MAX_POLL_RECORDS: Final = 1000
_IDLE_WAIT_S: Final = 0.02
_PARTITION: Final = "simulated:0"


class _NoDeadLetterQueue:
    """Fails on the first rejected record: the simulator writes valid events only."""

    def write(self, rejected_records: Sequence[RejectedRecord]) -> None:
        record = rejected_records[0]
        raise RuntimeError(f"the simulator wrote an invalid event: {record.reason}: {record.detail}")


class SimulatedSource(UnsharedSource):
    """Returns events at their simulated arrival times; `speed` simulated seconds pass in a real second.

    The simulated clock starts with `seek`.
    """

    def __init__(self, events: Iterator[SimulatedEvent], start_ms: int, speed: float) -> None:
        self.dead_letter_queue = _NoDeadLetterQueue()
        self._events = events
        self._next_event = next(events, None)
        self._next_offset = 0
        self._start_ms = start_ms
        self._speed = speed
        self._clock_start_s: float | None = None

    def now_ms(self) -> int:
        """Return the simulated time."""
        if self._clock_start_s is None:
            return self._start_ms
        return self._start_ms + int((time.monotonic() - self._clock_start_s) * self._speed * 1000)

    def partitions_to_seek(self) -> Sequence[str]:
        return [_PARTITION] if self._clock_start_s is None else []

    def initial_positions(self, positions: Mapping[str, Position]) -> Mapping[str, Position]:
        return {} if positions else {_PARTITION: Position(0)}

    def seek(self, positions: Mapping[str, Position]) -> None:
        """Start the simulated clock; raises RuntimeError unless the store is empty."""
        if positions[_PARTITION].next_offset:
            raise RuntimeError(f"a simulation needs an empty store, but the store has positions: {positions}")
        self._clock_start_s = time.monotonic()

    def rewind(self) -> None:
        raise RuntimeError("another process writes to the simulation's store")

    def assignment(self) -> Collection[str]:
        return (_PARTITION,)

    def poll(self, *, wait: bool = True) -> Sequence[PartitionRecords]:
        due_ms = self.now_ms()
        first_offset = self._next_offset
        records: list[PlainRecord] = []
        while (
            self._next_event is not None and self._next_event.arrival_ms <= due_ms and len(records) < _MAX_POLL_RECORDS
        ):
            records.append(PlainRecord(first_offset + len(records), None, self._next_event.payload))
            self._next_event = next(self._events, None)
        if not records:
            if wait:
                time.sleep(_IDLE_WAIT_S)
            return []
        self._next_offset += len(records)
        return [PartitionRecords(_PARTITION, ANY_TOPIC, first_offset, records, self._next_offset)]

    def poll_paused(self) -> None:
        time.sleep(_IDLE_WAIT_S)

    def end_offsets(self) -> Mapping[str, int | None]:
        return {_PARTITION: self._next_offset if self._next_event is None else None}

    def fetch_end_offsets(self) -> Mapping[str, int | None]:
        return self.end_offsets()

    def is_exhausted(self) -> bool:
        return self._next_event is None

    def close(self) -> None:
        """Do nothing: a simulation has no connections."""
