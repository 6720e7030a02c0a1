"""The rows of responses that a worker remembers.

Compiled (deploy/native.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

from mypy_extensions import i64

from monitor.attribution import PENDING, Row
from monitor.ingest.cache import Cache
from monitor.store import RedisStore
from monitor.store.keys import shard_of_response
from monitor.store.rows import read_row


@final
class Rows:
    """Rows of all shards, in a bounded memory for each."""

    def __init__(self, stores: Sequence[RedisStore], cached: int) -> None:
        self._stores = list(stores)
        self._remembered: list[Cache[Row]] = [Cache() for _ in stores]
        self.prefixes = [store.keys.row(b"") for store in stores]
        """Of the names of rows, on each shard."""
        self._limit = cached // len(stores)
        self._blank: list[list[Row]] = []
        """Those of each shard that were recalled since the batch began, and were not remembered."""

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
        self._blank = [[] for _ in self._stores]

    def recall(self, name: bytes, home: i64, late_ms: dict[int, int]) -> Row:
        """Return the row that is remembered, or else a blank one: `load` looks for it in the store.

        A row that can change no more may have been swept: the store knows, for all workers alike.
        """
        remembered = self._remembered[home]
        row = remembered.get(name)
        if row is None or (row.arm != PENDING and row.timestamp_ms < late_ms.get(row.arm >> 8, 0)):
            row = Row()
            row.name = name
            row.home = home
            remembered.put(name, row)
            self._blank[home].append(row)
        return row

    def load(self) -> None:
        """Have blank rows become those that the store has; all shards are asked before one is waited for."""
        asked = []
        for store, prefix, blank in zip(self._stores, self.prefixes, self._blank, strict=True):
            asked.append(store.ask_rows([prefix + row.name for row in blank]))
        for stored, blank in zip(asked, self._blank, strict=True):
            for row, found in zip(blank, stored(), strict=True):
                if found is not None:
                    read_row(row, found)

    def end(self) -> None:
        """Forget rows that are still blank, of which nothing is stored, and what was not used for long."""
        for remembered, blank in zip(self._remembered, self._blank, strict=True):
            for row in blank:
                if row.is_blank():
                    remembered.drop(row.name)
            if len(remembered) > self._limit:
                remembered.age()
        self.begin()
