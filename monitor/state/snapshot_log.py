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
    """Reads and writes the snapshots of experiments, by experiment number. All methods raise `StoreUnavailable`.

    Several threads may use the same log.
    """

    def __init__(self, store: ShardedStore) -> None:
        self._shard = store.first_shard
        self._known_snapshots: dict[int, dict[int, ExperimentSnapshot | None]] = {}
        """Experiment number → hour → snapshot, None in the format of another version. Snapshots are never changed."""

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
        """Return all snapshots by hour, oldest first, without snapshots in the format of another version.

        Snapshots that this log has read before are not read again.
        """
        stored_hours = self.read_hours(number)
        known_snapshots = self._known_snapshots.get(number, {})
        snapshots = {hour: known_snapshots[hour] for hour in stored_hours & known_snapshots.keys()}
        if new_hours := sorted(stored_hours - known_snapshots.keys()):
            with translating_errors(self._shard.settings):
                encoded = self._shard.client.hmget(self._shard.keys.hourly_snapshots(number), list(map(str, new_hours)))
            snapshots |= {
                hour: _decode_snapshot(content)
                for hour, content in zip(new_hours, encoded, strict=True)
                if content is not None
            }
        self._known_snapshots[number] = snapshots
        return {hour: snapshot for hour, snapshot in sorted(snapshots.items()) if snapshot is not None}


def _decode_snapshot(encoded: bytes | None) -> ExperimentSnapshot | None:
    try:
        return None if encoded is None else _decode(encoded)
    except msgspec.MsgspecError:
        return None
