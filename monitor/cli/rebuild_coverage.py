"""Offset coverage of a rebuild: the offsets that the active generation has read and the new generation cannot read.

The numbers of responses cannot show missing events: new events and wider definitions hide a loss, and narrower
definitions resemble a loss. So both generations are compared by the offsets at which they began in each partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, NamedTuple

from monitor.config import KafkaSettings
from monitor.sources import EARLIEST_OFFSET, ClusterAdmin
from monitor.state import (
    REBUILD_LOSS_PREFIX,
    Position,
    ShardedStore,
    read_first_response_ms,
    read_lost_events,
    read_stored_experiments,
)

_MAX_CLOCK_SKEW_MS: Final = 3_600_000
"""How far the time of a Kafka record may be behind the time of its event: producers' clocks differ."""
_EPOCH_MS: Final = 0


@dataclass(frozen=True, slots=True)
class OffsetCoverage:
    """The difference between the offsets of the active generation and of the rebuilt generation."""

    missing_offsets: list[str]
    """A sentence for each partition with offsets that the new generation lacks, or may lack."""
    lost_counts: Mapping[str, int]
    """Lost events that the new generation inherits, by the fields of the store's key of lost events (see `StoreKeys`).

    The events that the new generation has lost itself are not included.
    """
    is_incomplete: bool
    """Whether the active generation has read events that offsets do not cover: another log, files, an older store."""


class _FirstOffsets(NamedTuple):
    """The offsets at which both generations began to read the same log of a partition."""

    active: int
    rebuilt: int


def compare_offset_coverage(
    settings: KafkaSettings, active_store: ShardedStore, next_store: ShardedStore
) -> OffsetCoverage:
    """Return the offsets and lost events by which the next generation differs; raises `DependencyUnavailable`."""
    active_positions, next_positions = active_store.read_positions(), next_store.read_positions()
    first_offsets = _first_offsets_in_same_log(active_positions, next_positions)
    active_losses, next_losses = read_lost_events(active_store), read_lost_events(next_store)
    # Retention has deleted no record of these partitions that counts.
    intact_partitions = _partitions_with_older_records(
        settings, first_offsets, _first_relevant_time_ms(active_store, next_store)
    )
    missing_offsets: list[str] = []
    lost_counts = Counter[str]()
    for partition, (active_first, next_first) in first_offsets.items():
        inherited_loss = active_losses.get(REBUILD_LOSS_PREFIX + partition, 0)
        skipped_count = next_first - active_first + inherited_loss
        known_loss = active_losses.get(partition, 0) + inherited_loss
        # In an intact partition the skipped offsets do not count, except those that were lost before: whether lost
        # events would have counted is unknown.
        is_intact = partition in intact_partitions
        lost_counts[REBUILD_LOSS_PREFIX + partition] = min(skipped_count, known_loss) if is_intact else skipped_count
        missing_count = (
            min(next_first, active_positions[partition].next_offset) - active_first - active_losses.get(partition, 0)
        )
        if missing_count > 0 and not is_intact:
            missing_offsets.append(
                f"{partition}: {missing_count} offsets that the active generation has read are missing in the new "
                f"generation, which begins at offset {next_first} instead of {active_first}"
            )
        if partition in next_losses:
            missing_offsets.append(
                f"{partition}: Kafka has deleted {next_losses[partition]} offsets before the rebuild has read them"
            )
    is_incomplete = bool(next_positions.keys() - active_positions.keys()) or any(
        partition not in first_offsets
        and (position.next_offset != position.log.first_offset or partition in active_losses)
        for partition, position in active_positions.items()
    )
    next_experiments = read_stored_experiments(next_store)
    for field, count in active_losses.items():
        name, is_variant = field.removeprefix(REBUILD_LOSS_PREFIX), "/" in field
        if is_variant:
            # Responses that were once missing by their number are not missing if offsets cover everything.
            is_inherited = is_incomplete and name.rpartition("/")[0] in next_experiments
        else:
            is_inherited = name not in first_offsets
        if is_inherited:
            lost_counts[REBUILD_LOSS_PREFIX + name if name in active_positions else field] += count
    return OffsetCoverage(
        missing_offsets, {field: count for field, count in lost_counts.items() if count > 0}, is_incomplete
    )


def _first_offsets_in_same_log(
    active_positions: Mapping[str, Position], next_positions: Mapping[str, Position]
) -> dict[str, _FirstOffsets]:
    """Return the first offsets of each partition of which both generations have read the same log."""
    first_offsets = {}
    for partition, active_position in active_positions.items():
        next_position = next_positions.get(partition)
        if (
            next_position is None
            or not active_position.log.topic_id
            or active_position.log.topic_id != next_position.log.topic_id
        ):
            continue
        if active_position.log.first_offset is not None and next_position.log.first_offset is not None:
            first_offsets[partition] = _FirstOffsets(active_position.log.first_offset, next_position.log.first_offset)
    return first_offsets


def _first_relevant_time_ms(active_store: ShardedStore, next_store: ShardedStore) -> int | None:
    """Return a time before the first event that counts in the active generation; None if no event counts.

    Only experiments of both generations are considered.
    """
    active_experiments, next_experiments = read_stored_experiments(active_store), read_stored_experiments(next_store)
    definitions = [stored["definitions"] for name, stored in active_experiments.items() if name in next_experiments]
    times_ms = [
        definition["starts_at_ms"] - definition["pre_period_ms"]
        for definition in definitions
        if definition.get("pre_period_ms")
    ]
    first_response_ms = read_first_response_ms(active_store, next_experiments.keys())
    if first_response_ms is not None:
        times_ms.append(first_response_ms)
    return max(min(times_ms) - _MAX_CLOCK_SKEW_MS, _EPOCH_MS) if times_ms else None


def _partitions_with_older_records(
    settings: KafkaSettings, partitions: Collection[str], since_ms: int | None
) -> Collection[str]:
    """Return the partitions that still have a record from before a time; all partitions if the time is None.

    Retention deletes the oldest records first, so it has deleted no later record of these partitions.
    """
    if since_ms is None:
        return partitions
    with closing(ClusterAdmin(settings)) as admin:
        log_starts, oldest_records, first_records = (
            admin.list_offsets(partitions, time) for time in (EARLIEST_OFFSET, _EPOCH_MS, since_ms)
        )
    return {
        partition
        for partition in partitions
        if has_older_record(log_starts[partition], oldest_records[partition], first_records[partition])
    }


def has_older_record(log_start: int, oldest_record: int, first_record: int) -> bool:
    """Return whether a partition has a record before the first record since a time.

    `log_start` is the partition's earliest offset. `oldest_record` is the offset of the first record since the epoch,
    `first_record` that of the first record since the time. Brokers return -1 if no such record exists, and also
    if the record would be in the deleted part of a segment; then `oldest_record` is -1, too.
    """
    return first_record > max(log_start, oldest_record) or (first_record < 0 <= oldest_record)
