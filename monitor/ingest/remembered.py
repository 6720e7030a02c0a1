"""The rows of responses that a worker remembers.

Compiled (deploy/native.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.engine.response_row import NO_RESPONSE, ResponseRow
from monitor.engine.row_codec import read_response
from monitor.ingest.cache import Cache, end_batch
from monitor.store import RedisStore
from monitor.store.keys import shard_of_response


@final
class Rows:
    """Rows of all shards, in a bounded memory."""

    def __init__(self, stores: Sequence[RedisStore], cached: int) -> None:
        self._stores = list(stores)
        self._remembered: list[Cache[ResponseRow]] = [Cache() for _ in stores]
        self.prefixes = [store.keys.row(b"") for store in stores]
        """Of the names of rows, on each shard."""
        self._limit = cached
        self._blank: list[ResponseRow] = []
        """Those that were recalled since the batch began, and were not remembered."""
        self._asked: list[list[bytes]] = []
        """The keys of those of each shard."""

    def forget(self, shard: int) -> None:
        """Drop those of one shard: the store is what counts."""
        self._remembered[shard].clear()

    def home(self, name: bytes) -> i64:
        """Return the shard of a response, by its stored id."""
        shards: i64 = len(self._stores)
        if shards == 1:
            return 0
        return shard_of_response(name, shards)

    def begin(self) -> None:
        """Begin with a batch, for which nothing was recalled yet."""
        self._blank = []
        self._asked = [[] for _ in self._stores]

    def recall(self, name: bytes, home: i64, late_ms: dict[int, int]) -> ResponseRow:
        """Return the row that is remembered, or else a blank one: `load` looks for it in the store.

        A row that can change no more may have been swept: the store knows, for all workers alike.
        """
        remembered = self._remembered[home]
        row = remembered.get(name)
        if row is None or (row.arm != NO_RESPONSE and row.timestamp_ms < late_ms.get(row.arm >> 8, 0)):
            row = ResponseRow()
            row.name = name
            row.home = home
            remembered.put(name, row)
            self._blank.append(row)
            self._asked[home].append(self.prefixes[home] + name)
        return row

    def load(self) -> None:
        """Have blank rows become those that the store has; all shards are asked before one is waited for."""
        asked = [store.ask_rows(keys) for store, keys in zip(self._stores, self._asked, strict=True)]
        stored = [each() for each in asked]
        following = vec[i64]([0] * len(stored))
        for row in self._blank:
            home = row.home
            found = stored[home][following[home]]
            following[home] += 1
            if found is not None:
                read_response(row, found)

    def end(self) -> None:
        """Forget rows that are still blank, of which nothing is stored, and what was not used for long."""
        for row in self._blank:
            if row.is_blank():
                self._remembered[row.home].drop(row.name)
        end_batch(self._remembered, self._limit)
        self.begin()
