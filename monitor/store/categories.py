"""Responses by category and UTC day, as the store holds them, summed over the shards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.config.records import NONE, OTHER
from monitor.store.connection import unavailable
from monitor.store.rows import decode_record
from monitor.store.shards import Shards


@dataclass(frozen=True, slots=True)
class Categorized:
    """One variant's counts; `names` are the declared categories, sorted."""

    number: int
    variant: int
    names: tuple[str, ...]
    days: dict[int, Counter[str]] = field(default_factory=dict)
    """UTC day → category, "other" or "none" → responses."""


def read_categories(store: Shards, arms: Sequence[Categorized], last: int) -> Mapping[tuple[int, int], Categorized]:
    """Fill in each variant's days up to `last`, in two transactions on each shard; raises `StoreUnavailable`."""
    if not arms:
        return {}
    with unavailable(store.settings):
        for shard in store:
            keys = shard.keys
            pipeline = shard.client.pipeline(transaction=True)
            for arm in arms:
                pipeline.hkeys(keys.category_days(arm.number, arm.variant))
            known = [sorted(day for day in map(int, days) if day <= last) for days in pipeline.execute()]
            reading = [(arm, days) for arm, days in zip(arms, known, strict=True) if days]
            pipeline = shard.client.pipeline(transaction=True)
            for arm, days in reading:
                # The method of this name is not for clusters, as it does not know that all are in one slot.
                pipeline.execute_command("MGET", *[keys.categories(arm.number, arm.variant, day) for day in days])
            for (arm, days), stored in zip(reading, pipeline.execute(), strict=True):
                for day, part in zip(days, stored, strict=True):
                    counts = decode_record(keys.categories(arm.number, arm.variant, day), part).tolist()
                    total = arm.days.setdefault(day, Counter())
                    for name, count in zip((*arm.names, OTHER, NONE), counts, strict=False):
                        total[name] += count
    return {(arm.number, arm.variant): arm for arm in arms}
