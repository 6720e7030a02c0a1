"""Changes of a batch → the writes of a `Commit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from monitor.config import DecaySpec
from monitor.engine import (
    NO_RESPONSE,
    PERIOD_BITS,
    BatchChanges,
    MetricAccumulator,
    ResponseSums,
    TrafficAccumulator,
    VariantChanges,
    pack_vector_changes,
)
from monitor.metrics import BUCKETS_PER_CHUNK
from monitor.state.keys import PENDING_FEEDBACK, UNCOUNTED_PREFIX, StoreKeys
from monitor.state.store_records import Commit

_PERIOD_MASK: Final = (1 << PERIOD_BITS) - 1
"""Selects the hour, day or bucket of a cell; the bits above it are a variant, or the number of an experiment."""
_COMPACTION_BYTES_PER_INTEGER: Final = 16
"""A chunk of time buckets is compacted when its runs are twice as long as its integers."""


def add_metric_sums(
    commit: Commit, keys: StoreKeys, number: int, decays: tuple[DecaySpec, ...], accumulator: MetricAccumulator
) -> None:
    """Append the changes of metric sums to a commit, as runs of integers (`monitor.engine.row_codec`)."""
    for variant, responses in accumulator.response_sums.items():
        _add_record(commit, keys.all_time_sums(number, variant), responses.integers())
    for variant, units in accumulator.unit_sums.items():
        _add_record(commit, keys.unit_sums(number, variant), units.integers())
    for cell, cohort in accumulator.cohort_sums.items():
        variant, day = cell >> PERIOD_BITS, cell & _PERIOD_MASK
        if _add_record(commit, keys.cohort_sums(number, variant, day), cohort.integers()):
            commit.index_members.add((keys.cohort_index(number, variant), day))
    for decay, buckets in zip(decays, accumulator.bucket_sums, strict=True):
        _add_buckets(commit, keys, number, decay.name, buckets)


def add_traffic_counts(commit: Commit, keys: StoreKeys, number: int, traffic: TrafficAccumulator) -> None:
    """Append the changes of traffic counts to a commit, as runs of integers."""
    for variant, record in traffic.variant_totals().items():
        _add_record(commit, keys.traffic(number, variant), record)
    for cell, record in traffic.hour_records.items():
        variant, hour = cell >> PERIOD_BITS, cell & _PERIOD_MASK
        if _add_record(commit, keys.traffic_hour(number, variant, hour), record):
            commit.index_members.add((keys.traffic_hour_index(number, variant), hour))
    for cell, record in traffic.day_records.items():
        variant, day = cell >> PERIOD_BITS, cell & _PERIOD_MASK
        if _add_record(commit, keys.traffic_day(number, variant, day), record):
            commit.index_members.add((keys.traffic_day_index(number, variant), day))


def add_batch_changes(
    commit: Commit, keys: StoreKeys, decays: Mapping[int, tuple[DecaySpec, ...]], batch: BatchChanges
) -> None:
    """Append the changes of a batch to a commit; `decays` are the decays by experiment number."""
    _add_rows(commit, keys, batch)
    for number, accumulator in batch.metric_accumulators.items():
        add_metric_sums(commit, keys, number, decays[number], accumulator)
    for number, traffic in batch.traffic_accumulators.items():
        add_traffic_counts(commit, keys, number, traffic)
    for number, oldest_ms in batch.oldest_dependencies_ms.items():
        commit.oldest_dependencies_ms[_expiry_class(number)] = oldest_ms
    for variant_key, changes in batch.variant_changes.items():
        _add_variant_changes(commit, keys, variant_key, changes)
    for key_and_field, change in batch.item_count_changes.items():
        if change:
            commit.counter_increments[key_and_field] += change
    for key_and_field, item_id in batch.item_ids.items():
        commit.hash_texts[key_and_field] = item_id.encode()
    commit.index_members |= batch.index_members
    _add_expiry_entries(commit, keys, batch)


def _add_rows(commit: Commit, keys: StoreKeys, batch: BatchChanges) -> None:
    tables = [(keys.response_row(b""), batch.response_rows)]
    tables += [(keys.student_row_prefix(number), rows) for number, rows in batch.student_rows.items()]
    for prefix, rows in tables:
        commit.new_row_keys += [prefix + name for name, _, is_new in rows if is_new]
        commit.new_row_values += [row for _, row, is_new in rows if is_new]
        commit.changed_row_keys += [prefix + name for name, _, is_new in rows if not is_new]
        commit.changed_row_values += [row for _, row, is_new in rows if not is_new]


def _add_expiry_entries(commit: Commit, keys: StoreKeys, batch: BatchChanges) -> None:
    """Append the names of rows to the lists of the hours with which the rows expire."""
    for cell, names in batch.expiry_removals.items():
        key = keys.expiry_moved_rows(_expiry_class(cell >> PERIOD_BITS), cell & _PERIOD_MASK)
        for name in names:
            commit.hash_texts[key, name] = b""
    for cell, names in batch.expiry_additions.items():
        experiment, hour = _expiry_class(cell >> PERIOD_BITS), cell & _PERIOD_MASK
        entry = b"".join([bytes((len(name),)) + name for name in names])
        commit.expiry_entries.append((keys.expiry_rows(experiment, hour), f"{experiment}:{hour}", entry))


def _expiry_class(number: int) -> str:
    """Return the number of an experiment as text, or `PENDING_FEEDBACK` for rows without a response."""
    return PENDING_FEEDBACK if number == NO_RESPONSE else str(number)


def _add_variant_changes(commit: Commit, keys: StoreKeys, variant_key: int, changes: VariantChanges) -> None:
    number, variant = variant_key >> 8, variant_key & 255
    key = keys.feedback_kinds(number, variant)
    for field_prefix, counts in (
        (b"", changes.reactions_by_kind),
        (b"+", changes.responses_by_kind),
        (UNCOUNTED_PREFIX.encode(), changes.uncounted_reactions),
    ):
        for kind, count in counts.items():
            if count:
                commit.counter_increments[key, field_prefix + kind.encode()] += count
    delay_key = keys.event_delays(number, variant)
    for delay_class, count in changes.delay_counts.items():
        commit.counter_increments[delay_key, b"%d" % delay_class] += count
    if changes.newest_response_ms:
        commit.raise_newest_time(f"{number}:{variant}:response", changes.newest_response_ms)
    if changes.newest_event_ms:
        commit.raise_newest_time(f"{number}:{variant}:event", changes.newest_event_ms)


def _add_buckets(commit: Commit, keys: StoreKeys, number: int, decay: str, buckets: dict[int, ResponseSums]) -> None:
    chunks: dict[int, list[tuple[int, list[int]]]] = {}
    width = 0
    for cell in sorted(buckets):
        bucket = cell & _PERIOD_MASK
        chunk = cell >> PERIOD_BITS << PERIOD_BITS | bucket // BUCKETS_PER_CHUNK
        integers = buckets[cell].integers()
        width = len(integers)
        chunks.setdefault(chunk, []).append((bucket % BUCKETS_PER_CHUNK * width, integers))
    compaction_limit = _COMPACTION_BYTES_PER_INTEGER * BUCKETS_PER_CHUNK * width
    for chunk, vectors in chunks.items():
        runs = pack_vector_changes(vectors)
        if runs:
            variant, chunk_number = chunk >> PERIOD_BITS, chunk & _PERIOD_MASK
            commit.bucket_appends[keys.bucket_chunk(number, variant, decay, chunk_number)] = runs
            commit.compaction_limits.append(compaction_limit)
            commit.index_members.add((keys.bucket_index(number, variant, decay), chunk_number))


def _add_record(commit: Commit, key: bytes, record: list[int]) -> bool:
    """Append the changes of a record; return False for a record without changes."""
    runs = pack_vector_changes([(0, record)])
    if not runs:
        return False
    commit.record_increments[key] = runs
    return True
