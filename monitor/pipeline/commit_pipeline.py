"""Writing batches to the shards of a store: each shard applies its own partitions' events in one commit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from monitor.engine import Experiment, IdHasher
from monitor.errors import StoreUnavailable
from monitor.pipeline.batch_applier import CACHED, Engine, Outcomes
from monitor.pipeline.batch_decoding import Decoded
from monitor.sources import Slice
from monitor.state import Advance, Commit, Position, Shards, State, Status, merge_positions, shard_of_partition

CommitState = Literal["applied", "not_applied", "conflict"]


@dataclass(slots=True)
class Batch:
    """Decoded events of one shard's partitions, and where they take these partitions."""

    shard: int
    records: int
    decoded: Decoded
    advances: list[Advance]


@dataclass(slots=True)
class PendingCommit:
    """A batch that is being committed in the background."""

    batch: Batch
    outcomes: Outcomes
    """What became of the events, if the commit is applied."""
    status: Future[Status]
    seconds: float = 0.0
    """How long it took to apply the events before the commit was sent."""


class ShardedWriter:
    """Applies batches to the shards of a store, and keeps each shard's positions as they were read last.

    Commits run in a thread for each shard, so the caller can decode the next batches meanwhile. Contract: `submit` at
    most one batch for a shard, then wait for its `PendingCommit.status` before anything else is asked of the writer.
    Unless the status is "applied", read `state` and look at the batch's `commit_state`. Every method, and the status,
    may raise `StoreUnavailable`, and the method may be called again then.
    """

    def __init__(
        self, experiments: Sequence[Experiment], identities: IdHasher, store: Shards, *, cached: int = CACHED
    ) -> None:
        self._shards = list(store)
        self._engines = [
            Engine(experiments, identities, shard, cached=cached // len(self._shards)) for shard in self._shards
        ]
        self._executor = ThreadPoolExecutor(len(self._shards), thread_name_prefix="commit")
        self._positions: Mapping[str, Position] = {}

    def close(self) -> None:
        """Wait for the commits that are under way."""
        self._executor.shutdown()

    def shard_of(self, partition: str) -> int:
        """Return the shard that stores a partition."""
        return shard_of_partition(partition, len(self._shards))

    def state(self) -> State:
        """Drop all cached rows and return what the shards store; later commits are compared with it."""
        for engine in self._engines:
            engine.forget()
        states = [shard.state() for shard in self._shards]
        swept: dict[str, int] = {}
        for state in states:
            swept |= {name: max(at_ms, swept.get(name, 0)) for name, at_ms in state.swept_ms.items()}
        self._positions = merge_positions([state.positions for state in states])
        return State(
            commits=sum(state.commits for state in states),
            sweeps=sum(state.sweeps for state in states),
            swept_ms=swept,
            positions=self._positions,
        )

    def positions(self) -> Mapping[str, Position]:
        """Return how far every partition was applied, by any worker; cached rows stay."""
        return merge_positions([shard.positions() for shard in self._shards])

    def applied_offset(self, partition: str) -> int | None:
        """Return how far one partition was applied, by any worker."""
        return self._shards[self.shard_of(partition)].applied_offset(partition)

    def advance(self, steps: Sequence[Advance], lost: Mapping[str, int]) -> bool:
        """Move positions without events, counting `lost` events by partition; False if another worker moved them."""
        for number, shard in enumerate(self._shards):
            advances = [step for step in steps if self.shard_of(step.partition) == number]
            counters = Counter(
                {(shard.keys.lost, step.partition.encode()): lost.get(step.partition, 0) for step in advances}
            )
            if advances and shard.commit(Commit(advances=advances, counters=+counters)) != "applied":
                return False
        return True

    def by_shard(self, slices: Sequence[Slice]) -> Mapping[int, Sequence[Slice]]:
        """Return the slices of each shard."""
        shards: dict[int, list[Slice]] = {}
        for each in slices:
            shards.setdefault(self.shard_of(each.partition), []).append(each)
        return shards

    def submit(self, batch: Batch, late: Mapping[str, int]) -> PendingCommit:
        """Apply a batch's events to the rows of its shard, and commit what that changes in the background."""
        status: Future[Status] = Future()
        try:
            commit, outcomes = self._engines[batch.shard].apply(batch.decoded.events, late)
        except StoreUnavailable as error:
            # Without the traceback, which would keep the batch in memory.
            status.set_exception(error.with_traceback(None))
            return PendingCommit(batch, Counter(), status)
        commit.advances = batch.advances
        return PendingCommit(batch, outcomes, self._executor.submit(self._shards[batch.shard].commit, commit))

    def commit_state(self, batch: Batch) -> CommitState:
        """Return, by the positions read last, whether a batch was applied, can be applied, or was overtaken."""
        stored = [self._positions.get(step.partition) for step in batch.advances]
        if all(_is_at(at, step, step.position.next_offset) for at, step in zip(stored, batch.advances, strict=True)):
            return "applied"
        waiting = all(_is_at(at, step, step.expected) for at, step in zip(stored, batch.advances, strict=True))
        return "not_applied" if waiting else "conflict"


def _is_at(stored: Position | None, step: Advance, offset: int | None) -> bool:
    """Return whether a stored position is at an offset of the log that a step is about."""
    return stored is not None and stored.origin == step.position.origin and stored.next_offset == offset
