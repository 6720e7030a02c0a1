"""The rows of responses that a worker keeps in memory, for one shard.

Compiled (deploy/native.py).
"""

from __future__ import annotations

from typing import final

from monitor.engine.response_row import NO_RESPONSE, ResponseRow
from monitor.engine.row_codec import read_response
from monitor.ingest.cache import Cache, end_batch
from monitor.store import RedisStore


@final
class Rows:
    """A bounded cache of rows, filled from the store."""

    def __init__(self, store: RedisStore, cached: int) -> None:
        self._store = store
        self._cache: Cache[ResponseRow] = Cache()
        self._prefix = store.keys.row(b"")
        self._limit = cached
        self._missing: list[ResponseRow] = []
        """Rows that this batch asked for and the cache did not have; `load` reads them from the store."""

    def forget(self) -> None:
        """Drop every cached row."""
        self._cache.clear()
        self._missing = []

    def get_or_create(self, name: bytes, late_ms: dict[int, int]) -> ResponseRow:
        """Return the cached row of a response's stored id, or else a blank one that `load` fills from the store.

        A row that can change no more may have been swept: only the store knows that, for all workers alike.
        """
        row = self._cache.get(name)
        if row is None or (row.arm != NO_RESPONSE and row.timestamp_ms < late_ms.get(row.arm >> 8, 0)):
            row = ResponseRow()
            row.name = name
            self._cache.put(name, row)
            self._missing.append(row)
        return row

    def load(self) -> None:
        """Fill blank rows from the store, as far as it has them."""
        stored_rows = self._store.rows([self._prefix + row.name for row in self._missing])
        for row, stored in zip(self._missing, stored_rows, strict=True):
            if stored is not None:
                read_response(row, stored)

    def end_batch(self) -> None:
        """Drop rows that are still blank, of which nothing is stored, and rows that were not used for long."""
        for row in self._missing:
            if row.is_blank():
                self._cache.drop(row.name)
        self._missing = []
        end_batch([self._cache], self._limit)
