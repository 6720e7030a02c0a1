"""The watermark: the event time up to which all partitions have been read, and when events are late."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence

from monitor.clock import DAY_MS
from monitor.config import LimitSettings
from monitor.pipeline.batch_decoding import DecodedBatch, update_rejection_counts
from monitor.sources import PartitionRecords
from monitor.state import PENDING_FEEDBACK, Position, PositionUpdate, RejectionCounts, StoreState

_NO_POSITION = Position(0)
_DEFAULT_HORIZON_MS = 8 * DAY_MS
"""How long feedback waits for its response before any experiment is declared."""


class WatermarkTracker:
    """Positions and end offsets of all partitions of the source, over all workers, and the watermark.

    The watermark is the smallest newest event time of the partitions that are not read to their end. End offsets may be
    out of date: a backlog may have arrived since. So the watermark advances by at most `max_unconfirmed_advance_ms`
    before the current end offsets must be confirmed.
    """

    def __init__(
        self,
        horizons_ms: Mapping[str, int],
        max_unconfirmed_advance_ms: float = math.inf,
        held: Collection[str] = (),
    ) -> None:
        """Start without positions; `horizons_ms` is how long a response may change, by experiment number.

        See `hold` for `held`.
        """
        self._max_unconfirmed_advance_ms = max_unconfirmed_advance_ms
        self.held: frozenset[str] = frozenset(held)
        """Experiment numbers, and `PENDING_FEEDBACK`, whose events are not late and whose rows do not expire."""
        self._confirmed_ms = 0
        """Watermark by the last confirmed end offsets."""
        self._horizons_ms = {**horizons_ms, PENDING_FEEDBACK: max(horizons_ms.values(), default=_DEFAULT_HORIZON_MS)}
        self._expired_before_ms: Mapping[str, int] = {}
        self._positions: dict[str, Position] = {}
        self._end_offsets: dict[str, int | None] = {}

    def hold(self, held: Collection[str]) -> None:
        """Replace the experiment numbers whose events are not late and whose rows do not expire.

        These are the numbers with an unfinished backfill, and `PENDING_FEEDBACK` while such a backfill may still store
        the responses that the feedback is about.
        """
        self.held = frozenset(held)

    def load_state(self, state: StoreState) -> None:
        """Replace all positions and expiry boundaries by the state of the store."""
        self._positions = dict(state.positions)
        self._expired_before_ms = state.expired_before_ms

    def position(self, partition: str) -> Position:
        """Return the position up to which a partition was applied."""
        return self._positions[partition]

    def next_position_updates(
        self,
        polled: Sequence[PartitionRecords],
        decoded: DecodedBatch,
        limits: LimitSettings,
        accepted_until: Mapping[str, int],
    ) -> list[PositionUpdate]:
        """Return the position updates of a batch; raises `InputRejected` if too many records were rejected.

        `accepted_until` is the offset by partition before which any number of records may be rejected. The records of
        a poll that begins before this offset count neither as rejected nor as valid.
        """
        position_updates = []
        for partition_records in polled:
            partition = partition_records.partition
            current = self.position(partition)
            if partition_records.start_offset < accepted_until.get(partition, 0):
                rejections = RejectionCounts()
            else:
                rejected_records = [record for record in decoded.rejected_records if record.partition == partition]
                ignored_offsets = {record.offset for record in decoded.ignored_records if record.partition == partition}
                rejections = update_rejection_counts(
                    current.rejections, partition_records.records, rejected_records, limits, ignored_offsets
                )
            position = Position(
                partition_records.next_offset,
                max(decoded.newest_event_ms.get(partition, 0), current.newest_ms),
                rejections,
                current.log,
            )
            position_updates.append(PositionUpdate(partition, partition_records.start_offset, position))
        return position_updates

    def apply_position_updates(self, position_updates: Sequence[PositionUpdate]) -> None:
        """Set the positions that a commit has stored."""
        for update in position_updates:
            self._positions[update.partition] = update.position

    def update_end_offsets(self, end_offsets: Mapping[str, int | None]) -> None:
        """Replace the end offsets; stored partitions of other sources, without an end offset, do not count."""
        self._end_offsets = dict(end_offsets)

    def confirm_end_offsets(self, end_offsets: Mapping[str, int | None]) -> None:
        """Replace the end offsets by current end offsets, so that the watermark may advance further."""
        self.update_end_offsets(end_offsets)
        self._confirmed_ms = self._unlimited_watermark_ms()

    def needs_confirmation(self) -> bool:
        """Return whether the watermark cannot advance before `confirm_end_offsets`."""
        return self._unlimited_watermark_ms() > self._confirmed_ms + self._max_unconfirmed_advance_ms

    def update_other_workers(self, stored_positions: Mapping[str, Position], assignment: Collection[str]) -> None:
        """Replace the positions of partitions outside the assignment by the stored positions."""
        for partition, position in stored_positions.items():
            if partition not in assignment:
                self._positions[partition] = position

    def is_store_behind(self, stored_positions: Mapping[str, Position], assignment: Collection[str]) -> bool:
        """Return whether a stored position is before the applied position, because the store has lost commits."""
        return any(
            partition not in stored_positions
            or stored_positions[partition].sort_key < self._positions[partition].sort_key
            for partition in assignment
            if partition in self._positions
        )

    def have_positions_changed(self, stored_positions: Mapping[str, Position], partitions: Collection[str]) -> bool:
        """Return whether any of the partitions has another stored position than the tracked position."""
        return any(stored_positions.get(partition) != self._positions.get(partition) for partition in partitions)

    def have_reached(self, offsets: Mapping[str, int]) -> bool:
        """Return whether all records before these offsets are applied, by any worker, as far as this worker knows."""
        return all(self._positions.get(name, _NO_POSITION).next_offset >= offset for name, offset in offsets.items())

    def raise_expiry_boundary(self, experiment: str, before_ms: int) -> None:
        """Count events about responses before `before_ms` as late: their rows are being deleted.

        `experiment` is an experiment number, or `PENDING_FEEDBACK`.
        """
        boundary_ms = max(before_ms, self._expired_before_ms.get(experiment, 0))
        self._expired_before_ms = {**self._expired_before_ms, experiment: boundary_ms}

    def _unfinished_partitions(self) -> dict[str, int]:
        """Return the newest event time (ms) of each partition that is not read to the end."""
        newest_event_ms = {}
        for partition, end_offset in self._end_offsets.items():
            position = self._positions.get(partition, _NO_POSITION)
            if end_offset is None or position.next_offset < end_offset:
                newest_event_ms[partition] = position.newest_ms
        return newest_event_ms

    def total_lag_events(self) -> int | None:
        """Return the number of records that are not yet applied, of all workers.

        None if an end offset or a position is unknown: without its position, all records of a partition would count.
        """
        lag_events = 0
        for partition, end_offset in self._end_offsets.items():
            position = self._positions.get(partition)
            if end_offset is None or position is None:
                return None
            lag_events += max(end_offset - position.next_offset, 0)
        return lag_events if self._end_offsets else None

    def partition_lags(
        self, assignment: Collection[str], end_offsets: Mapping[str, int | None], now_ms: int
    ) -> Iterator[tuple[str, int, float]]:
        """Yield (partition, lag in events, lag in seconds) for assigned partitions with a known end offset.

        The lag in seconds is the age of the newest applied event, or 0 at the end of the partition.
        """
        for partition, end_offset in end_offsets.items():
            if end_offset is None or partition not in assignment or partition not in self._positions:
                continue
            position = self._positions[partition]
            lag_events = max(end_offset - position.next_offset, 0)
            has_lag = bool(lag_events and position.newest_ms)
            yield partition, lag_events, max(now_ms - position.newest_ms, 0) / 1000 if has_lag else 0

    def watermark_ms(self) -> int:
        """Return the watermark: 0 before the first event, and the newest event time if all partitions are at their end.

        At most `max_unconfirmed_advance_ms` beyond the watermark of the last confirmed end offsets.
        """
        return int(min(self._unlimited_watermark_ms(), self._confirmed_ms + self._max_unconfirmed_advance_ms))

    def _unlimited_watermark_ms(self) -> int:
        """Return the watermark by the last known end offsets, confirmed or not."""
        unfinished_partitions = self._unfinished_partitions()
        if unfinished_partitions:
            return min(unfinished_partitions.values())
        partitions = self._end_offsets.keys() & self._positions.keys()
        return max((self._positions[partition].newest_ms for partition in partitions), default=0)

    def slowest_partition(self) -> tuple[str, int | None] | None:
        """Return (partition that determines the watermark, next offset or None without a position).

        None if all partitions are read to their end.
        """
        unfinished_partitions = self._unfinished_partitions()
        if not unfinished_partitions:
            return None
        partition = min(unfinished_partitions, key=lambda name: unfinished_partitions[name])
        position = self._positions.get(partition)
        return partition, None if position is None else position.next_offset

    def partitions_to_pause(self, partitions: Collection[str], max_skew_ms: int) -> set[str]:
        """Return the `partitions` whose newest event is more than `max_skew_ms` ahead of the watermark."""
        unfinished_partitions = self._unfinished_partitions()
        if not unfinished_partitions:
            return set()
        limit_ms = min(unfinished_partitions.values()) + max_skew_ms
        return {name for name in partitions if name in self._positions and self._positions[name].newest_ms > limit_ms}

    def late_before_ms(self) -> dict[str, int]:
        """Return the response time before which events are late, by experiment number or `PENDING_FEEDBACK`."""
        watermark_ms = self.watermark_ms()
        late_before_ms = {
            number: max(watermark_ms - horizon_ms, self._expired_before_ms.get(number, 0))
            for number, horizon_ms in self._horizons_ms.items()
            if number not in self.held
        }
        late_before_ms |= dict.fromkeys(self.held, 0)
        if PENDING_FEEDBACK in self.held:
            late_before_ms[PENDING_FEEDBACK] = self._expired_before_ms.get(PENDING_FEEDBACK, 0)
        return late_before_ms
