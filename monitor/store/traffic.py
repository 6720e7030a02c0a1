"""Traffic as the store holds it, summed over the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.clock import HOUR_MS
from monitor.store.keys import Keys
from monitor.store.moments import values
from monitor.store.rows import decode_records
from monitor.store.shards import Shards
from monitor.traffic import TRAFFIC_WIDTH, Flow

Arm = tuple[int, int]
"""(experiment number, variant)."""


@dataclass(frozen=True, slots=True)
class Flows:
    """One variant's traffic: over all time, and in some hours."""

    everything: Flow
    recent: Flow


def read_traffic(store: Shards, arms: Sequence[Arm], hours: range) -> dict[Arm, Flows]:
    """Return every variant's traffic, of one moment on each shard; raises `StoreUnavailable`."""
    total = np.zeros((len(arms) * (1 + len(hours)), TRAFFIC_WIDTH), dtype=np.int64)
    for shard in store:
        names = [name for arm in arms for name in _names(shard.keys, arm, hours)]
        total += decode_records(names, values(shard, names), TRAFFIC_WIDTH)
    flows = total.reshape(len(arms), 1 + len(hours), TRAFFIC_WIDTH)
    both = zip(arms, flows[:, 0].tolist(), flows[:, 1:].sum(axis=1).tolist(), strict=True)
    return {arm: Flows(Flow.of(everything), Flow.of(recent)) for arm, everything, recent in both}


def hours_before(at_ms: int) -> range:
    """Return the hours since 1970 that count as recent before a time: the last whole one, and what has begun since.

    So they are at least an hour and less than two.
    """
    return range(at_ms // HOUR_MS - 1, -(-at_ms // HOUR_MS))


def _names(keys: Keys, arm: Arm, hours: range) -> list[bytes]:
    return [keys.traffic(*arm), *(keys.traffic_hour(*arm, hour) for hour in hours)]
