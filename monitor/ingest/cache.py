"""A bounded memory of rows."""

from __future__ import annotations

from typing import Generic, TypeVar, final

Entry = TypeVar("Entry")


@final
class Cache(Generic[Entry]):
    """The entries used last, in two generations of at most `limit` each."""

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}

    def get(self, key: bytes) -> Entry | None:
        """Return the entry and keep it for another generation."""
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is not None:
                self._young[key] = entry
                del self._old[key]
        return entry

    def put(self, key: bytes, entry: Entry) -> None:
        """Remember the entry."""
        self._young[key] = entry

    def age(self) -> None:
        """Begin a new generation if the young one is full; between batches only."""
        if len(self._young) > self._limit:
            self._old, self._young = self._young, {}

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
