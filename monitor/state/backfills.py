"""Backfills of single experiments in the store: targets, states, and the lease of the process that works on a backfill.

A backfill applies the records that the workers had read before the experiment was declared. Its targets are the
positions at which the workers have begun to count the experiment. The positions of the backfill are written by its
commits (`StoreKeys.backfill_positions`), so every record is applied once, whatever the state and the lease are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from monitor.state.leases import release_lease, renew_lease
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore, merge_positions
from monitor.state.store_records import Position, decode_positions

_MAX_REASON_LENGTH: Final = 1000


class BackfillState(msgspec.Struct, frozen=True):
    """Progress of a backfill; the names of the fields are JSON keys."""

    state: Literal["running", "complete", "failed"]
    started_ms: int
    updated_ms: int
    records_done: int = 0
    """Offsets that are applied, or that Kafka no longer has."""
    records_total: int = 0
    """Offsets up to the targets."""
    reason: str = ""
    """Why the last attempt has failed or waits; empty otherwise."""
    attempts: int = 0
    """Number of failed attempts."""
    complete_since_ms: int | None = None
    """Time from which on the experiment has all events; None if Kafka still had all records."""

    @property
    def progress_ratio(self) -> float:
        """Return the share of the offsets that are done; 1 without offsets."""
        return self.records_done / self.records_total if self.records_total else 1.0


def read_backfill_targets(store: ShardedStore, number: int) -> dict[str, Position]:
    """Return partition → position at which the workers have begun to count the experiment. Raises `StoreUnavailable`.

    Empty for an experiment that needs no backfill.
    """
    with translating_errors(store.settings):
        hashes = [store.client.hgetall(shard.keys.backfill_targets(number)) for shard in store]
    return merge_positions([decode_positions(stored) for stored in hashes])


def read_backfills(store: ShardedStore) -> Mapping[int, BackfillState]:
    """Return number of an experiment → state of its last backfill. Raises `StoreUnavailable`."""
    with translating_errors(store.settings):
        stored = store.client.hgetall(store.first_shard.keys.backfills)
    return {int(number): msgspec.json.decode(text, type=BackfillState) for number, text in stored.items()}


def write_backfill(store: ShardedStore, number: int, state: BackfillState) -> None:
    """Store the state of a backfill. Raises `StoreUnavailable`."""
    state = msgspec.structs.replace(state, reason=state.reason[:_MAX_REASON_LENGTH])
    with translating_errors(store.settings):
        store.client.hset(store.first_shard.keys.backfills, str(number), msgspec.json.encode(state))


def renew_backfill_lease(store: ShardedStore, number: int, owner: str, duration_ms: int) -> bool:
    """Acquire or prolong the lease of a backfill; return False if another owner has it. Raises `StoreUnavailable`."""
    return renew_lease(store, store.first_shard.keys.backfill_lease(number), owner, duration_ms)


def release_backfill_lease(store: ShardedStore, number: int, owner: str) -> None:
    """Delete the lease of a backfill if the owner has it. Raises `StoreUnavailable`."""
    release_lease(store, store.first_shard.keys.backfill_lease(number), owner)
