"""Generations of the store: workers commit to the active generation, and a rebuild fills the next generation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from monitor.config import LATENCY_METRIC, StoreSettings
from monitor.days import UTC_ZONE, day_calendar
from monitor.errors import CorruptStore, IncompatibleStore, UsageError, count_noun
from monitor.metrics import RecordLayout, ResponseRecord
from monitor.state.keys import (
    ACTIVE_GENERATION_KEY,
    FIRST_SHARD_PREFIX,
    NOTIFIED_KEY,
    OUTBOX_KEY,
    OUTBOX_LEASE_KEY,
    SERVICE_KEY,
    StoreKeys,
    parse_active_generation,
)
from monitor.state.record_reader import decode_record
from monitor.state.redis_connection import connect, translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_metadata import read_stored_experiments
from monitor.state.store_shard import SCHEMA

_KEYS_PER_COMMAND: Final = 5_000
_GENERATION_KEY: Final = re.compile(rb"abm:\{\d+\}:(\d+):")
_META_KEY: Final = re.compile(rb"abm:\{\d+\}:\d+:m(?:eta)?")
"""Key of the hash meta; up to schema 13 its name was m."""


@dataclass(frozen=True, slots=True)
class VariantTotals:
    """Counts and means of a variant over all time."""

    responses: int
    rated: int
    """Rated responses."""
    means: Mapping[str, float | None]
    """Metric → mean over the rated responses; None without a defined value."""


def connect_active_generation(settings: StoreSettings, *, any_shard_count: bool = False) -> ShardedStore:
    """Return a connection to the active generation.

    A new store has `store.shards` shards, or if the setting is absent one for each master of a cluster. Raises
    `StoreUnavailable`, and `UnusableStore` if the store is damaged or has another number of shards than the settings
    demand. `any_shard_count` accepts both.
    """
    client: Any = connect(settings)
    with translating_errors(settings):
        stored_generation = client.get(ACTIVE_GENERATION_KEY)
        generation = parse_active_generation(stored_generation)
        keys = StoreKeys(generation)
        stored_count, schema = client.hmget(keys.meta, ["shards", "schema"])
        if schema is None:
            stored_count, schema = client.hmget(keys.meta_of_old_schema, ["shards", "schema"])
        # The first schemas had one shard, and no field for the number of shards.
        stored_count = stored_count or (1 if schema else None)
    if not any_shard_count and stored_generation is None and schema is None:
        later_generations = _find_later_generations(ShardedStore(settings, client=client))
        if later_generations:
            raise CorruptStore(
                f"the store key {ACTIVE_GENERATION_KEY.decode()} is missing, but generation {max(later_generations)} "
                "exists. Set the key to the number of the active generation, or delete all data with `ab-monitor reset`"
            )
    masters = len(client.get_primaries()) if stored_count is None and hasattr(client, "get_primaries") else 1
    shard_count = settings.shards or masters if stored_count is None else int(stored_count)
    if settings.shards not in {None, shard_count} and not any_shard_count:
        raise IncompatibleStore(
            f"store.shards: got {settings.shards}, but the store has {shard_count}. Set store.shards to {shard_count}, "
            f"or run `ab-monitor rebuild`, which fills {count_noun(settings.shards or 0, 'shard')} from Kafka"
        )
    return ShardedStore(settings, generation, shard_count=shard_count, client=client)


def _find_later_generations(store: ShardedStore) -> set[int]:
    """Return the numbers of the generations after the first; none if the user has no right to list keys.

    The first generation is left out, because another worker may have begun to create it.
    """
    with suppress(UsageError):
        return read_generation_numbers(store) - {0}
    return set()


def connect_next_generation(active: ShardedStore) -> ShardedStore:
    """Return a connection to the generation after the active generation, which a rebuild may fill."""
    shard_count = active.settings.shards or len(active)
    generation = active.active_generation
    return ShardedStore(active.settings, generation + 1, generation, shard_count=shard_count)


def read_generation_numbers(store: ShardedStore) -> set[int]:
    """Return the numbers of the generations with stored keys."""
    return {int(key.split(b":")[2]) for key in _meta_keys(store) if key.startswith(FIRST_SHARD_PREFIX)}


def activate_generation(store: ShardedStore, new_generation: ShardedStore, lost_events: Mapping[str, int]) -> bool:
    """Activate a new generation, and add to the generation's lost events, in the same write.

    Return False, and write nothing, if the generation that was active when `store` was opened is no longer active.
    """
    shard = store.first_shard
    keys = [ACTIVE_GENERATION_KEY, new_generation.first_shard.keys.events_lost]
    counts = [argument for field_and_count in lost_events.items() for argument in field_and_count]
    arguments = [store.active_generation, new_generation.generation, *counts]
    with translating_errors(store.settings):
        return bool(shard.run_script(shard.scripts.activate_generation, keys, arguments))


def read_lost_events(store: ShardedStore) -> dict[str, int]:
    """Return the lost events of a generation, by field of `StoreKeys.events_lost`."""
    lost_events = Counter[str]()
    for shard in store:
        with translating_errors(store.settings):
            stored = store.client.hgetall(shard.keys.events_lost)
        lost_events.update({field.decode(): int(count) for field, count in stored.items()})
    return dict(lost_events)


def read_first_response_ms(store: ShardedStore, experiments: Collection[str]) -> int | None:
    """Return the beginning of the first day with a response of some experiments; None without a response.

    Return 0 for a generation of another schema, because its first day is unknown.
    """
    starts_ms: list[int] = []
    with translating_errors(store.settings):
        if int(store.client.hget(store.first_shard.keys.meta, "schema") or 0) != SCHEMA:
            return 0
    for name, stored in read_stored_experiments(store).items():
        calendar = day_calendar(stored["definitions"].get("day", UTC_ZONE))
        for variant in range(len(stored["definitions"]["variants"]) if name in experiments else 0):
            for shard in store:
                index_key = shard.keys.cohort_index(stored["number"], variant)
                with translating_errors(store.settings):
                    starts_ms += [calendar.start_ms(int(day)) for day in store.client.zrange(index_key, 0, -1)]
    return min(starts_ms, default=None)


def delete_all_generations(store: ShardedStore) -> int:
    """Delete all generations and the keys that belong to no generation; return the number of deleted keys."""
    other_keys = [ACTIVE_GENERATION_KEY, SERVICE_KEY, NOTIFIED_KEY, OUTBOX_KEY, OUTBOX_LEASE_KEY]
    return delete_generation(store, None) + _unlink(store, other_keys)


def delete_generation(store: ShardedStore, generation: int | None) -> int:
    """Delete a generation, or all generations if `generation` is None; return the number of deleted keys.

    First, the generation loses its schema, so that no worker commits to it. The hashes meta are deleted last, so that
    `read_generation_numbers` returns the number of a generation whose deletion was interrupted.
    """
    meta_keys = _meta_keys(store, generation)
    with translating_errors(store.settings):
        for key in meta_keys:
            store.client.hdel(key, "schema")
    deleted_keys = 0
    batch: list[bytes] = []
    for key in _keys_of_generation(store, b"abm:{*}:*", generation):
        if key not in meta_keys:
            batch.append(key)
        if len(batch) >= _KEYS_PER_COMMAND:
            deleted_keys += _unlink(store, batch)
            batch = []
    return deleted_keys + _unlink(store, batch) + _unlink(store, meta_keys)


def _keys_of_generation(store: ShardedStore, pattern: bytes, generation: int | None) -> Iterator[bytes]:
    """Yield the keys of a generation that match a pattern; None stands for all generations."""
    with translating_errors(store.settings):
        for key in store.client.scan_iter(pattern, count=_KEYS_PER_COMMAND):
            match = _GENERATION_KEY.match(key)
            if match is not None and generation in {None, int(match[1])}:
                yield key


def _meta_keys(store: ShardedStore, generation: int | None = None) -> list[bytes]:
    keys = _keys_of_generation(store, b"abm:{*}:*:m*", generation)
    return [key for key in keys if _META_KEY.fullmatch(key)]


def _unlink(store: ShardedStore, keys: Sequence[bytes]) -> int:
    with translating_errors(store.settings):
        return int(store.client.unlink(*keys)) if keys else 0


def read_variant_totals(store: ShardedStore) -> dict[str, dict[str, VariantTotals]]:
    """Return experiment → variant → totals of a generation, under the definitions that the generation stores."""
    totals: dict[str, dict[str, VariantTotals]] = {}
    for name, stored in read_stored_experiments(store).items():
        definitions = stored["definitions"]
        metrics = definitions["metrics"]
        is_over_responses = tuple("@" not in metric for metric in metrics)
        units = tuple(1024.0 if metric == LATENCY_METRIC else 1.0 for metric in metrics)
        layout = RecordLayout(len(metrics), (0,) * len(metrics), is_over_responses, stored_units=units)
        totals[name] = {}
        for index, variant in enumerate(definitions["variants"]):
            record = np.zeros(layout.response_width, dtype=np.int64)
            for shard in store:
                with translating_errors(store.settings):
                    key = shard.keys.all_time_sums(stored["number"], index)
                    shard_record = decode_record(key, store.client.get(key))
                record[: len(shard_record)] += shard_record
            sums = ResponseRecord(record)
            means = {
                metric: sums_of_metric.total / sums_of_metric.responses if sums_of_metric.responses else None
                for metric, sums_of_metric in zip(metrics, sums.metric_sums(layout), strict=True)
            }
            totals[name][variant] = VariantTotals(int(sums.responses), int(sums.rated), means)
    return totals
