"""Traffic as the store holds it, summed over the shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from monitor.aggregates import Ints
from monitor.store.connection import unavailable
from monitor.store.keys import Keys
from monitor.store.rows import decode_record
from monitor.store.shards import Shards
from monitor.traffic import HOUR_MS, TRAFFIC_WIDTH, Flow

Arm = tuple[int, int]
"""(experiment number, variant)."""


@dataclass(frozen=True, slots=True)
class Flows:
    """One variant's traffic: over all time, and in some hours."""

    everything: Flow
    recent: Flow


def read_traffic(store: Shards, arms: Sequence[Arm], hours: range) -> dict[Arm, Flows]:
    """Return every variant's traffic, in one transaction on each shard; raises `StoreUnavailable`."""
    totals: dict[Arm, tuple[Ints, Ints]] = {arm: (_nothing(), _nothing()) for arm in arms}
    with unavailable(store.settings):
        for shard in store:
            pipeline = shard.client.pipeline(transaction=True)
            for arm in arms:
                # The method of this name is not for clusters, as it does not know that all are in one slot.
                pipeline.execute_command("MGET", *_names(shard.keys, arm, hours))
            for arm, stored in zip(arms, pipeline.execute(), strict=True):
                for at, (name, part) in enumerate(zip(_names(shard.keys, arm, hours), stored, strict=True)):
                    found = decode_record(name, part)
                    totals[arm][min(at, 1)][: len(found)] += found
    return {
        arm: Flows(Flow.of(everything.tolist()), Flow.of(recent.tolist()))
        for arm, (everything, recent) in totals.items()
    }


def hours_before(at_ms: int) -> range:
    """Return the hours since 1970 that count as recent before a time: the last whole one, and what has begun since.

    So they are at least an hour and less than two.
    """
    return range(at_ms // HOUR_MS - 1, -(-at_ms // HOUR_MS))


def _names(keys: Keys, arm: Arm, hours: range) -> list[bytes]:
    return [keys.traffic(*arm), *(keys.traffic_hour(*arm, hour) for hour in hours)]


def _nothing() -> Ints:
    return np.zeros(TRAFFIC_WIDTH, dtype=np.int64)
