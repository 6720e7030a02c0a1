"""Hourly snapshots in the store: a hash for each experiment, on the first shard, deleted with the generation."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from monitor.analysis import ExperimentSnapshot, SnapshotHistory
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(ExperimentSnapshot).decode


class SnapshotLog:
    """Reads and writes the snapshots of experiments, by experiment number. All methods raise `StoreUnavailable`."""

    def __init__(self, store: ShardedStore) -> None:
        self._shard = store.first_shard

    def read_hours(self, number: int) -> set[int]:
        """Return the hours with a snapshot."""
        with translating_errors(self._shard.settings):
            return set(map(int, self._shard.client.hkeys(self._shard.keys.hourly_snapshots(number))))

    def add(self, number: int, hour: int, snapshot: ExperimentSnapshot) -> None:
        """Store a snapshot, unless the hour has a snapshot already, or the generation is being deleted."""
        shard = self._shard
        with translating_errors(shard.settings):
            keys = [shard.keys.meta, shard.keys.hourly_snapshots(number)]
            shard.run_script(shard.scripts.append_snapshot, keys, [hour, _encode(snapshot)])

    def delete(self, number: int, hours: Collection[int]) -> None:
        """Delete the snapshots of some hours."""
        with translating_errors(self._shard.settings):
            self._shard.client.hdel(self._shard.keys.hourly_snapshots(number), *hours)

    def read_newest(self, number: int, hours: Collection[int]) -> ExperimentSnapshot | None:
        """Return the snapshot of the newest of some hours; None without hours, or for an unknown format."""
        if not hours:
            return None
        with translating_errors(self._shard.settings):
            return _decode_snapshot(self._shard.client.hget(self._shard.keys.hourly_snapshots(number), max(hours)))

    def read_all(self, number: int) -> SnapshotHistory:
        """Return all snapshots by hour, oldest first, without snapshots in the format of another version."""
        with translating_errors(self._shard.settings):
            stored = self._shard.client.hgetall(self._shard.keys.hourly_snapshots(number))
        snapshots = {int(hour): _decode_snapshot(encoded) for hour, encoded in stored.items()}
        return {hour: snapshot for hour, snapshot in sorted(snapshots.items()) if snapshot is not None}


def _decode_snapshot(encoded: bytes | None) -> ExperimentSnapshot | None:
    try:
        return None if encoded is None else _decode(encoded)
    except msgspec.MsgspecError:
        return None
