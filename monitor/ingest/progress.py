"""How far each partition has been read, and the watermark that follows from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from monitor.ingest.experiment import PENDING_CLASS, Experiment
from monitor.store import Advance, Position, State


class Progress:
    """Next offset, newest event time and end of every partition that is known, this worker's and others'."""

    def __init__(self, experiments: list[Experiment]) -> None:
        self._horizons = {str(each.number): each.settings.horizon_ms for each in experiments}
        self._horizons[PENDING_CLASS] = max(self._horizons.values())
        self._swept: Mapping[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._stored: set[str] = set()

    def load(self, state: State) -> None:
        """Take over what the store says."""
        placed = {name: each for name, each in self._positions.items() if name not in self._stored}
        self._positions = {**placed, **state.positions}
        self._stored = set(state.positions)
        self._swept = state.swept_ms

    def start(self, offsets: Mapping[str, int]) -> None:
        """Note where partitions without a stored position begin."""
        for partition, offset in offsets.items():
            if partition not in self._positions:
                self._positions[partition] = Position(offset, 0, at_end=False)

    def knows(self, partition: str) -> bool:
        """Return whether the partition has a position, stored or not."""
        return partition in self._positions

    def expected(self, partition: str) -> int | None:
        """Return the offset that the store should hold; None where it should hold none."""
        return self._positions[partition].next_offset if partition in self._stored else None

    def next_offset(self, partition: str) -> int:
        """Return the partition's next offset to apply."""
        return self._positions[partition].next_offset

    def newest_ms(self, partition: str) -> int:
        """Return the newest event time applied from the partition; 0 before the first."""
        return self._positions[partition].newest_ms

    def advanced(self, steps: list[Advance]) -> None:
        """Note what a commit has applied."""
        for step in steps:
            self._positions[step.partition] = Position(step.next_offset, step.newest_ms, step.at_end)
            self._stored.add(step.partition)

    def see_ends(self, ends: Mapping[str, int | None]) -> None:
        """Note which partitions are read to their end."""
        for partition, end in ends.items():
            known = self._positions.get(partition)
            if known is not None and end is not None and known.at_end != (known.next_offset >= end):
                self._positions[partition] = Position(known.next_offset, known.newest_ms, known.next_offset >= end)

    def see_others(self, positions: Mapping[str, Position], own: Collection[str]) -> None:
        """Take over what other workers have applied since."""
        for partition, position in positions.items():
            if partition not in own:
                self._positions[partition] = position
                self._stored.add(partition)

    def swept(self, experiment: str, before_ms: int) -> None:
        """Note that this worker has swept rows."""
        self._swept = {**self._swept, experiment: max(before_ms, self._swept.get(experiment, 0))}

    def watermark_ms(self) -> int:
        """Return the smallest newest event time of the partitions not read to their end; of all, the largest."""
        behind = [each.newest_ms for each in self._positions.values() if not each.at_end]
        if behind:
            return min(behind)
        return max((each.newest_ms for each in self._positions.values()), default=0)

    def late_before(self) -> dict[str, int]:
        """Return, by experiment number, the response time before which an event is late."""
        watermark = self.watermark_ms()
        return {
            number: max(watermark - horizon, self._swept.get(number, 0)) for number, horizon in self._horizons.items()
        }
