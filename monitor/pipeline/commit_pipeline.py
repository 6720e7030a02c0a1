"""Writes of batches to the shards of a store: a commit per shard, in the background."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

from monitor.config import DiscoverSettings
from monitor.engine import Experiment, IdHasher
from monitor.errors import StoreUnavailable
from monitor.pipeline.arrival_counter import ArrivalCounter
from monitor.pipeline.batch_applier import MAX_CACHED_ROWS, RECORD_ALL_NAMES, BatchApplier, OutcomeCounts
from monitor.pipeline.batch_decoding import DecodedBatch
from monitor.sources import PartitionRecords
from monitor.state import (
    ArrivalCount,
    Commit,
    CommitStatus,
    Position,
    PositionUpdate,
    ShardedStore,
    StoreState,
    merge_positions,
    shard_of_partition,
)

BatchOutcome = Literal["applied", "not_applied", "conflict"]
"""Whether a batch was committed, can still be committed, or was overtaken by another worker's commit."""


@dataclass(slots=True)
class ShardBatch:
    """Decoded events of a shard's partitions, and the matching position updates."""

    shard: int
    record_count: int
    decoded_batch: DecodedBatch
    position_updates: list[PositionUpdate]
    arrivals: Counter[ArrivalCount] = field(default_factory=Counter)
    """Counts of the arriving records; the outcomes of their events are added when the batch is applied."""
    arrived_ms: int = 0

    def outcome_by_positions(self, stored_positions: Mapping[str, Position]) -> BatchOutcome:
        """Return whether the batch is applied, not yet applied, or in conflict, according to the stored positions."""
        updates = [(update, stored_positions.get(update.partition)) for update in self.position_updates]
        if all(_is_at_offset(stored, update, update.position.next_offset) for update, stored in updates):
            return "applied"
        is_waiting = all(_is_at_offset(stored, update, update.expected_offset) for update, stored in updates)
        return "not_applied" if is_waiting else "conflict"


class PendingCommit:
    """A batch that is being committed in the background."""

    def __init__(
        self, batch: ShardBatch, outcomes: OutcomeCounts, status: Future[CommitStatus], apply_s: float
    ) -> None:
        self.batch = batch
        self.outcomes = outcomes
        """Number of events by outcome; valid if `result` returns "applied"."""
        self.apply_s = apply_s
        """Seconds that applying the events took, before the commit was sent."""
        self._status = status

    def result(self, timeout_s: float | None = None) -> CommitStatus:
        """Wait for the commit and return the status.

        Raises `StoreUnavailable` if rows could not be read, or if no reply arrived. In the latter case the commit may
        have been applied: see `ShardBatch.outcome_by_positions`. Raises `TimeoutError` after `timeout_s`.
        """
        return self._status.result(timeout_s)


class ShardedWriter:
    """Applies batches to the shards of a store, and commits the changes.

    Commits run in one thread per shard, so that the caller can decode the next batches meanwhile. At most one batch per
    shard may be pending: wait for `PendingCommit.result` before any other call. If the result is not "applied", or an
    exception, call `reload_state`, and decide by `ShardBatch.outcome_by_positions` whether to submit the batch again.

    All methods may raise `StoreUnavailable`, and may then be called again.
    """

    def __init__(
        self,
        experiments: Sequence[Experiment],
        id_hasher: IdHasher,
        store: ShardedStore,
        *,
        arrival_counter: ArrivalCounter | None = None,
        discover: DiscoverSettings = RECORD_ALL_NAMES,
        max_cached_rows: int = MAX_CACHED_ROWS,
        superseded_numbers: frozenset[int] = frozenset(),
        backfilled_number: int | None = None,
    ) -> None:
        """Without an `arrival_counter`, arriving events are not counted.

        See `BatchProcessor` for `superseded_numbers` and `backfilled_number`.
        """
        self._arrival_counter = arrival_counter
        self._shards = list(store)
        self._appliers = [
            BatchApplier(
                experiments,
                id_hasher,
                shard,
                discover,
                max_cached_rows=max_cached_rows // len(self._shards),
                superseded_numbers=superseded_numbers,
                backfilled_number=backfilled_number,
            )
            for shard in self._shards
        ]
        self._executor = ThreadPoolExecutor(len(self._shards), thread_name_prefix="commit")

    def close(self) -> None:
        """Wait for all pending commits, end the threads, and drop all cached rows."""
        self._executor.shutdown()
        for applier in self._appliers:
            applier.clear_cache()

    def shard_of(self, partition: str) -> int:
        """Return the number of the shard that stores the partition."""
        return shard_of_partition(partition, len(self._shards))

    def reload_state(self) -> StoreState:
        """Drop all cached rows, and return the combined state of all shards.

        The next commits are compared with the returned state.
        """
        for applier in self._appliers:
            applier.clear_cache()
        states = [shard.read_state() for shard in self._shards]
        expired_before_ms: dict[str, int] = {}
        for state in states:
            expired_before_ms |= {
                name: max(boundary_ms, expired_before_ms.get(name, 0))
                for name, boundary_ms in state.expired_before_ms.items()
            }
        return StoreState(
            commits=sum(state.commits for state in states),
            expirations=sum(state.expirations for state in states),
            expired_before_ms=expired_before_ms,
            positions=merge_positions([state.positions for state in states]),
        )

    def read_positions(self) -> Mapping[str, Position]:
        """Return the stored position of every partition, of all workers. The row cache remains."""
        return merge_positions([shard.read_positions() for shard in self._shards])

    def read_applied_offset(self, partition: str) -> int | None:
        """Return the stored next offset of a partition; None if the store has no position."""
        return self._shards[self.shard_of(partition)].read_applied_offset(partition)

    def update_positions(self, position_updates: Sequence[PositionUpdate], lost_counts: Mapping[str, int]) -> bool:
        """Update positions without events; return False if another worker has changed a position.

        `lost_counts` is the number of events to count as lost, by partition.
        """
        for number, shard in enumerate(self._shards):
            shard_updates = [update for update in position_updates if self.shard_of(update.partition) == number]
            lost_events = Counter(
                {
                    (shard.keys.events_lost, update.partition.encode()): lost_counts.get(update.partition, 0)
                    for update in shard_updates
                }
            )
            commit = Commit(position_updates=shard_updates, counter_increments=+lost_events)
            if shard_updates and shard.commit(commit) != "applied":
                return False
        return True

    def group_by_shard(self, polled: Sequence[PartitionRecords]) -> Mapping[int, Sequence[PartitionRecords]]:
        """Return the polled records by shard; a shard without records is absent."""
        polled_by_shard: dict[int, list[PartitionRecords]] = {}
        for partition_records in polled:
            polled_by_shard.setdefault(self.shard_of(partition_records.partition), []).append(partition_records)
        return polled_by_shard

    def submit(self, batch: ShardBatch, late_before_ms: Mapping[str, int]) -> PendingCommit:
        """Apply the events of a batch to the rows of the shard, and start the commit of the changes.

        See `BatchApplier.apply` for `late_before_ms`.
        """
        started_s = time.perf_counter()
        try:
            commit, outcomes = self._appliers[batch.shard].apply(batch.decoded_batch.events, late_before_ms)
        except StoreUnavailable as error:
            status: Future[CommitStatus] = Future()
            # Without the traceback, which would keep the batch in memory.
            status.set_exception(error.with_traceback(None))
            return PendingCommit(batch, Counter(), status, time.perf_counter() - started_s)
        commit.position_updates = batch.position_updates
        if self._arrival_counter is not None:
            keys = self._shards[batch.shard].keys
            self._arrival_counter.append_to_commit(commit, keys, batch.arrivals, outcomes, batch.arrived_ms)
        status = self._executor.submit(self._shards[batch.shard].commit, commit)
        return PendingCommit(batch, outcomes, status, time.perf_counter() - started_s)


def _is_at_offset(stored_position: Position | None, update: PositionUpdate, offset: int | None) -> bool:
    """Return whether a stored position is at the offset, in the same log as the update."""
    return (
        stored_position is not None
        and stored_position.log == update.position.log
        and stored_position.next_offset == offset
    )
