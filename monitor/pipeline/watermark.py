"""How far each partition has been read, and the watermark that follows from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from monitor.config import LimitSettings
from monitor.pipeline.batch_decoding import Decoded, counted
from monitor.sources import Slice
from monitor.state import PENDING_CLASS, Advance, Position, State

_UNREAD = Position(0)


class Progress:
    """Position and end of every partition of the source, this worker's and the others'.

    `horizons_ms` says, by experiment number, how long a response may change; `leeway_ms`, how far the watermark may go
    beyond what it was when the source was last asked for all ends: a backlog may have come since, for other partitions.
    """

    def __init__(self, horizons_ms: Mapping[str, int], leeway_ms: float = math.inf) -> None:
        self._leeway_ms = leeway_ms
        self._confirmed_ms = 0
        self._horizons = {**horizons_ms, PENDING_CLASS: max(horizons_ms.values())}
        self._swept: Mapping[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._ends: dict[str, int | None] = {}

    def load(self, state: State) -> None:
        """Take over what the store says."""
        self._positions = dict(state.positions)
        self._swept = state.swept_ms

    def position(self, partition: str) -> Position:
        """Return how far the partition was applied."""
        return self._positions[partition]

    def steps(self, slices: Sequence[Slice], decoded: Decoded, limits: LimitSettings) -> list[Advance]:
        """Return where the slices take their partitions; raises `InputRefused` when too much was refused."""
        advances = []
        for each in slices:
            before = self.position(each.partition)
            refused = [record for record in decoded.refused if record.partition == each.partition]
            position = Position(
                each.next_offset,
                max(decoded.newest_ms.get(each.partition, 0), before.newest_ms),
                counted(before.refusals, each.records, refused, limits),
                before.origin,
            )
            advances.append(Advance(each.partition, each.begin, position))
        return advances

    def advanced(self, steps: list[Advance]) -> None:
        """Note what a commit has applied."""
        for step in steps:
            self._positions[step.partition] = step.position

    def see_ends(self, ends: Mapping[str, int | None]) -> None:
        """Note where the partitions of the source end; partitions of other sources do not concern this one."""
        self._ends = dict(ends)

    def confirm(self, ends: Mapping[str, int | None]) -> None:
        """Note where the partitions end, of which the source was asked just now."""
        self.see_ends(ends)
        self._confirmed_ms = self._newest_of_all_ms()

    def is_unsure(self) -> bool:
        """Return whether the watermark cannot move on before the source is asked for all ends."""
        return self._newest_of_all_ms() > self._confirmed_ms + self._leeway_ms

    def see_others(self, positions: Mapping[str, Position], own: Collection[str]) -> None:
        """Take over what other workers have applied since."""
        for partition, position in positions.items():
            if partition not in own:
                self._positions[partition] = position

    def went_back(self, positions: Mapping[str, Position], own: Collection[str]) -> bool:
        """Return whether the store is behind what was applied to it: a server has come back without its last writes."""
        return any(
            name not in positions or positions[name].reached < self._positions[name].reached
            for name in own
            if name in self._positions
        )

    def differs(self, positions: Mapping[str, Position], partitions: Collection[str]) -> bool:
        """Return whether the store says something else of some partitions than what is believed."""
        return any(positions.get(name) != self._positions.get(name) for name in partitions)

    def swept(self, experiment: str, before_ms: int) -> None:
        """Note that this worker has swept rows."""
        self._swept = {**self._swept, experiment: max(before_ms, self._swept.get(experiment, 0))}

    def _behind(self) -> dict[str, int]:
        """Return the newest event time of each partition that is not read to its end."""
        behind = {}
        for partition, end in self._ends.items():
            position = self._positions.get(partition, _UNREAD)
            if end is None or position.next_offset < end:
                behind[partition] = position.newest_ms
        return behind

    def waiting(self) -> int | None:
        """Return the number of events between the positions and the ends, of all workers; None if it is not known."""
        ends = {partition: end for partition, end in self._ends.items() if end is not None}
        if not ends or len(ends) < len(self._ends):
            return None
        return sum(max(end - self._positions.get(partition, _UNREAD).next_offset, 0) for partition, end in ends.items())

    def lags(
        self, own: Collection[str], ends: Mapping[str, int | None], now_ms: int
    ) -> Iterator[tuple[str, int, float]]:
        """Yield how many events each own partition is behind its end, where that is known, and the newest one's age."""
        for partition, end in ends.items():
            if end is None or partition not in own or partition not in self._positions:
                continue
            position = self._positions[partition]
            behind = max(end - position.next_offset, 0)
            yield partition, behind, max(now_ms - position.newest_ms, 0) / 1000 if behind and position.newest_ms else 0

    def watermark_ms(self) -> int:
        """Return the smallest newest event time of the partitions not read to their end; of all, the largest.

        No more than the leeway beyond what was confirmed.
        """
        return int(min(self._newest_of_all_ms(), self._confirmed_ms + self._leeway_ms))

    def _newest_of_all_ms(self) -> int:
        """Return the watermark by the ends as they were last seen."""
        behind = self._behind()
        if behind:
            return min(behind.values())
        return max((self._positions[name].newest_ms for name in self._ends if name in self._positions), default=0)

    def slowest(self) -> tuple[str, int | None] | None:
        """Return the partition that the watermark waits for, and how far it is; None if all are read to their ends."""
        behind = self._behind()
        if not behind:
            return None
        partition = min(behind, key=lambda name: behind[name])
        position = self._positions.get(partition)
        return partition, None if position is None else position.next_offset

    def ahead(self, partitions: Collection[str], by_ms: int) -> set[str]:
        """Return those of the partitions whose newest event is more than `by_ms` ahead of the watermark."""
        behind = self._behind()
        if not behind:
            return set()
        limit = min(behind.values()) + by_ms
        return {name for name in partitions if name in self._positions and self._positions[name].newest_ms > limit}

    def late_before(self) -> dict[str, int]:
        """Return, by experiment number, the response time before which an event is late."""
        watermark = self.watermark_ms()
        return {
            number: max(watermark - horizon, self._swept.get(number, 0)) for number, horizon in self._horizons.items()
        }
