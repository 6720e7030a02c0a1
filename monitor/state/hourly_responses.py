"""Stored numbers of responses by hour, summed over the shards."""

from __future__ import annotations

from collections import Counter

import numpy as np

from monitor.metrics import HOUR_RECORD_WIDTH, HourField
from monitor.state.record_reader import decode_records
from monitor.state.sharded_store import ShardedStore


def read_hourly_responses(store: ShardedStore, experiment: int, variant_count: int, hours: range) -> dict[int, int]:
    """Return the hours (since 1970) with responses → number of responses. Raises `StoreUnavailable`."""
    return dict(sum(read_variants_by_hour(store, experiment, variant_count, hours), Counter[int]()))


def read_variants_by_hour(store: ShardedStore, experiment: int, variant_count: int, hours: range) -> list[Counter[int]]:
    """Return, for each variant, the hours (since 1970) with responses → number. Raises `StoreUnavailable`."""
    cells = [(variant, hour) for variant in range(variant_count) for hour in hours]
    total = np.zeros((len(cells), HOUR_RECORD_WIDTH), dtype=np.int64)
    for shard in store:
        keys = [shard.keys.traffic_hour(experiment, variant, hour) for variant, hour in cells]
        total += decode_records(keys, shard.read_values(keys), HOUR_RECORD_WIDTH)
    responses = [Counter[int]() for _ in range(variant_count)]
    for (variant, hour), count in zip(cells, total[:, HourField.RESPONSES].tolist(), strict=True):
        if count:
            responses[variant][hour] = count
    return responses
