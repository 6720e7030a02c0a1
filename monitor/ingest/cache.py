"""A memory of rows, bounded by having it age.

Compiled (deploy/native.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar, final

from mypy_extensions import i64

Entry = TypeVar("Entry")


@final
class Cache(Generic[Entry]):
    """The entries used last, in two generations."""

    __slots__ = ("_old", "_young", "fresh")

    def __init__(self) -> None:
        self._young: dict[bytes, Entry] = {}
        self._old: dict[bytes, Entry] = {}
        self.fresh: i64 = 0
        """How many were put since the last batch."""

    def __len__(self) -> int:
        """Return how many are young."""
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
        self.fresh += 1

    def drop(self, key: bytes) -> None:
        """Forget an entry that was put since the last batch."""
        del self._young[key]
        self.fresh -= 1

    def age(self) -> None:
        """Begin a new generation; between batches only."""
        self._old, self._young = self._young, {}

    def clear(self) -> None:
        """Forget everything."""
        self._young, self._old = {}, {}
        self.fresh = 0


def end_batch(caches: Sequence[Cache[Any]], limit: int) -> None:
    """Have all age if they had more than `limit` young entries together once as many were put as in the last batch.

    Waiting until they have more would be to have several times as many where batches are large.
    """
    if sum([len(each) + each.fresh for each in caches]) > limit:
        for each in caches:
            each.age()
    for each in caches:
        each.fresh = 0
