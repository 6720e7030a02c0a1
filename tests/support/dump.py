"""What a store holds, in a form in which two stores can be compared."""

from __future__ import annotations

import numpy as np

from monitor.store import RedisStore


def dump(store: RedisStore) -> dict[bytes, dict[int | bytes, int]]:
    """Return every aggregate of the store: key → index or field → integer, zeros left out."""
    keys = store.keys
    aggregates: dict[bytes, dict[int | bytes, int]] = {}
    for name in store.client.scan_iter(keys.prefix + b"*", count=10_000):
        family = name[len(keys.prefix) : len(keys.prefix) + 2]
        found: dict[int | bytes, int] = {}
        if family in {b"a:", b"u:", b"c:", b"b:"}:
            vector = np.frombuffer(store.client.get(name) or b"", dtype=">i8")
            found = {int(index): int(vector[index]) for index in np.flatnonzero(vector)}
        elif family == b"k:" or name == keys.latest:
            found = {field: int(value) for field, value in store.client.hgetall(name).items() if int(value)}
        if found:
            aggregates[name] = found
    return aggregates
