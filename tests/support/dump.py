"""The aggregates of a store as a dictionary, so that two stores can be compared."""

from __future__ import annotations

from collections import Counter

import numpy as np

from monitor.state import ShardedStore, StoreShard
from monitor.state.record_reader import decode_chunk, decode_record

Dump = dict[bytes, dict[int | bytes, int]]
_RECORDS = {
    b"all_time_sums",
    b"unit_sums",
    b"cohort_sums",
    b"bucket_chunk",
    b"traffic",
    b"traffic_hour",
    b"traffic_day",
}
_COUNTERS = {b"feedback_kinds", b"item_counts", b"bad_answers"}


def dump(store: StoreShard | ShardedStore, *, skips: bool = False) -> Dump:
    """Return the aggregates of a generation, added up over the shards: key → index or field → integer other than 0.

    With `skips`, the result contains the counts of skipped events, in which an event that was sent twice counts twice.
    """
    sums: dict[bytes, Counter[int | bytes]] = {}
    for shard in [store] if isinstance(store, StoreShard) else store:
        keys = shard.keys
        for name in set(store.client.scan_iter(keys.prefix + b"*", count=10_000)):
            relative_key = name.removeprefix(keys.prefix)
            family = relative_key.partition(b":")[0]
            integers = sums.setdefault(relative_key, Counter())
            if family in _RECORDS:
                decode = decode_chunk if family == b"bucket_chunk" else decode_record
                vector = decode(name, store.client.get(name))
                integers.update({int(index): int(vector[index]) for index in np.flatnonzero(vector)})
            elif family in _COUNTERS or (skips and name in (keys.events_skipped, keys.variants_skipped)):
                integers.update({field: int(value) for field, value in store.client.hgetall(name).items()})
            elif name == keys.newest_times:
                for field, value in store.client.hgetall(name).items():
                    integers[field] = max(integers[field], int(value))
    nonzero = {
        relative_key: {field_or_index: value for field_or_index, value in integers.items() if value}
        for relative_key, integers in sums.items()
    }
    return {relative_key: integers for relative_key, integers in nonzero.items() if integers}
