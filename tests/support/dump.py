"""What a store holds, in a form in which two stores can be compared."""

from __future__ import annotations

from collections import Counter

import numpy as np

from monitor.state import RedisStore, Shards
from monitor.state.record_reader import decode_chunk, decode_record

Dump = dict[bytes, dict[int | bytes, int]]


def dump(store: RedisStore | Shards, *, skips: bool = False) -> Dump:
    """Return every aggregate of a generation, over all its shards: key → index or field → integer, zeros left out.

    With `skips` also how many events were skipped: of one that was sent twice, both.
    """
    sums: dict[bytes, Counter[int | bytes]] = {}
    for shard in [store] if isinstance(store, RedisStore) else store:
        keys = shard.keys
        for name in set(store.client.scan_iter(keys.prefix + b"*", count=10_000)):
            own = name.removeprefix(keys.prefix)
            found = sums.setdefault(own, Counter())
            if own[:2] in {b"a:", b"u:", b"c:", b"b:", b"g:", b"v:"}:
                decode = decode_chunk if own[:2] == b"b:" else decode_record
                vector = decode(name, store.client.get(name))
                found.update({int(index): int(vector[index]) for index in np.flatnonzero(vector)})
            elif own[:2] in {b"k:", b"I:", b"B:"} or (skips and name == keys.skipped):
                found.update({field: int(value) for field, value in store.client.hgetall(name).items()})
            elif name == keys.latest:
                for field, value in store.client.hgetall(name).items():
                    found[field] = max(found[field], int(value))
    known = {own: {place: value for place, value in found.items() if value} for own, found in sums.items()}
    return {own: found for own, found in known.items() if found}
