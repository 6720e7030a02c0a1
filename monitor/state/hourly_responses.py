"""Stored numbers of responses by hour, summed over the variants of an experiment and the shards."""

from __future__ import annotations

import numpy as np

from monitor.metrics import HOUR_RECORD_WIDTH, TrafficCounts
from monitor.state.record_reader import decode_records
from monitor.state.sharded_store import ShardedStore


def read_hourly_responses(store: ShardedStore, experiment: int, variant_count: int, hours: range) -> dict[int, int]:
    """Return the hours (since 1970) with responses → number of responses. Raises `StoreUnavailable`."""
    cells = [(variant, hour) for hour in hours for variant in range(variant_count)]
    total = np.zeros((len(cells), HOUR_RECORD_WIDTH), dtype=np.int64)
    for shard in store:
        keys = [shard.keys.traffic_hour(experiment, variant, hour) for variant, hour in cells]
        total += decode_records(keys, shard.read_values(keys), HOUR_RECORD_WIDTH)
    responses: dict[int, int] = {}
    for (_, hour), record in zip(cells, total.tolist(), strict=True):
        responses[hour] = responses.get(hour, 0) + TrafficCounts.from_record(record).responses
    return {hour: count for hour, count in responses.items() if count}
