"""Leases in the store: a key with the name of the process that does some work, which expires unless it is renewed."""

from __future__ import annotations

from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore


def renew_lease(store: ShardedStore, key: bytes, owner: str, duration_ms: int) -> bool:
    """Acquire or prolong a lease; return False if another owner has the lease. Raises `StoreUnavailable`."""
    shard = store.first_shard
    with translating_errors(store.settings):
        return bool(shard.run_script(shard.scripts.renew_lease, [key], [owner, duration_ms]))


def release_lease(store: ShardedStore, key: bytes, owner: str) -> None:
    """Delete a lease if the owner has the lease. Raises `StoreUnavailable`."""
    shard = store.first_shard
    with translating_errors(store.settings):
        shard.run_script(shard.scripts.renew_lease, [key], [owner, 0])
