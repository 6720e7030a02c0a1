"""A memory of rows; whoever owns it bounds it, by having it age."""

from __future__ import annotations

from typing import Generic, TypeVar, final

Entry = TypeVar("Entry")


@final
class Cache(Generic[Entry]):
    """The entries used last, in two generations; its length is that of the young one."""

    __slots__ = ("_old", "_young")

    def __init__(self) -> None:
        self._young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}

    def __len__(self) -> int:
        return len(self._young)

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

    def drop(self, key: bytes) -> None:
        """Forget an entry that was put since the last generation began."""
        del self._young[key]

    def age(self) -> None:
        """Begin a new generation; between batches only."""
        self._old, self._young = self._young, {}

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
