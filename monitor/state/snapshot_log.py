"""Snapshots in the store: one hash for each experiment, on the first shard, gone with its generation."""

from __future__ import annotations

from collections.abc import Collection

import msgspec

from monitor.analysis import Past, Snapshot
from monitor.state.redis_connection import unavailable
from monitor.state.shards import Shards

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Snapshot).decode


class History:
    """Reads and writes snapshots; experiments go by their numbers. Everything raises `StoreUnavailable`."""

    def __init__(self, store: Shards) -> None:
        self._store = store.first

    def hours(self, number: int) -> set[int]:
        with unavailable(self._store.settings):
            return set(map(int, self._store.client.hkeys(self._store.keys.history(number))))

    def add(self, number: int, hour: int, taken: Snapshot) -> None:
        """Keep a snapshot, unless somebody has kept one of that hour, or the generation is being deleted."""
        store = self._store
        with unavailable(store.settings):
            names = [store.keys.meta, store.keys.history(number)]
            store.run_script(store.scripts.append_snapshot, names, [hour, _encode(taken)])

    def drop(self, number: int, hours: Collection[int]) -> None:
        with unavailable(self._store.settings):
            self._store.client.hdel(self._store.keys.history(number), *hours)

    def latest(self, number: int, hours: Collection[int]) -> Snapshot | None:
        """Return the newest of the hours' snapshots, if it can be read."""
        if not hours:
            return None
        with unavailable(self._store.settings):
            return _read(self._store.client.hget(self._store.keys.history(number), max(hours)))

    def read(self, number: int) -> Past:
        """Return all snapshots by hour, oldest first; none of those that another version has written in its own way."""
        with unavailable(self._store.settings):
            stored = self._store.client.hgetall(self._store.keys.history(number))
        found = {int(hour): _read(packed) for hour, packed in stored.items()}
        return {hour: then for hour, then in sorted(found.items()) if then is not None}


def _read(packed: bytes | None) -> Snapshot | None:
    try:
        return None if packed is None else _decode(packed)
    except msgspec.MsgspecError:
        return None
