"""Decoding of a batch: polled records → events and rejected records; the limits on rejected records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from monitor.config import LimitSettings
from monitor.decoding import IgnoredReason, Record, RecordDecoder
from monitor.engine import EventBatch, EventNormalizer
from monitor.errors import InputRejected, InvalidEvent
from monitor.events import Response
from monitor.sources import PartitionRecords, RejectedRecord
from monitor.state import RejectionCounts


class IgnoredRecord(NamedTuple):
    """A record without events that is not rejected, such as a tombstone."""

    partition: str
    offset: int
    reason: IgnoredReason


@dataclass(slots=True)
class DecodedBatch:
    """Polled records as events and rejected records."""

    events: EventBatch
    rejected_records: list[RejectedRecord] = field(default_factory=list)
    newest_event_ms: dict[str, int] = field(default_factory=dict)
    """Newest event time by partition; a partition without events is absent."""
    ignored_records: list[IgnoredRecord] = field(default_factory=list)
    undeclared_names: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(experiment, variant, or "" if the experiment is undeclared) → responses that do not count."""


def decode_records(
    polled: Sequence[PartitionRecords],
    decoder: RecordDecoder,
    normalizer: EventNormalizer,
    now_ms: int,
    declared_variants: Mapping[str, Collection[str]] | None = None,
) -> DecodedBatch:
    """Return the events and the rejected records of a poll.

    `declared_variants` are the variants by experiment; without them, undeclared names are not counted.
    """
    decoded = DecodedBatch(EventBatch())
    events = decoded.events
    for partition_records in polled:
        partition, topic = partition_records.partition, partition_records.topic
        decode = decoder.partition_decoder(topic, partition)
        newest_ms = -1
        for record in partition_records.records:
            try:
                record_events = decode(record, now_ms)
            except InvalidEvent as error:
                decoded.rejected_records.append(_rejected_record(partition, record, error))
                for arm in decoder.read_response_arms(topic, record, now_ms):
                    normalizer.count_rejected_response(events, *arm, error.reason)
                continue
            if isinstance(record_events, str):
                decoded.ignored_records.append(IgnoredRecord(partition, record.offset, record_events))
                continue
            for event in record_events:
                newest_ms = max(newest_ms, event.timestamp_ms)
                normalizer.append_event(events, event, record.timestamp)
                if declared_variants is None or not isinstance(event, Response):
                    continue
                if event.variant not in declared_variants.get(event.experiment, ()):
                    is_declared = event.experiment in declared_variants
                    decoded.undeclared_names[event.experiment, event.variant if is_declared else ""] += 1
        if newest_ms >= 0:
            decoded.newest_event_ms[partition] = newest_ms
    return decoded


def _rejected_record(partition: str, record: Record, error: InvalidEvent) -> RejectedRecord:
    return RejectedRecord(
        partition, record.offset, record.value, error.reason, error.detail, record.key, record.headers, record.timestamp
    )


def update_rejection_counts(
    counts: RejectionCounts,
    records: Sequence[Record],
    rejected_records: Sequence[RejectedRecord],
    limits: LimitSettings,
    ignored_offsets: AbstractSet[int] = frozenset(),
) -> RejectionCounts:
    """Return a partition's rejection counts after the records; raises `InputRejected` beyond the limits.

    `rejected_records` are the rejected ones of `records`. Those at `ignored_offsets` count neither as rejected nor
    as valid. The counts are stored with the position, so a service that
    stops at a limit stops again after a restart. Otherwise restarts would move a whole topic to the dead-letter queue.
    The command adds the next step to the message.
    """
    consecutive_count, record_count, rejected_count = counts
    record_count += len(records) - len(ignored_offsets)
    rejected_count += len(rejected_records)
    max_consecutive = consecutive_count
    if rejected_records:
        rejected_offsets = {record.offset for record in rejected_records}
        for record in records:
            if record.offset not in ignored_offsets:
                consecutive_count = consecutive_count + 1 if record.offset in rejected_offsets else 0
                max_consecutive = max(max_consecutive, consecutive_count)
        last = rejected_records[-1]
        example = f"the last at {last.partition} offset {last.offset}: {last.reason}, {last.detail}"
        if max_consecutive > limits.max_consecutive_rejected:
            raise InputRejected(
                f"{max_consecutive} consecutive events were rejected "
                f"(limits.max_consecutive_rejected = {limits.max_consecutive_rejected}), {example}"
            )
        if record_count >= limits.rejection_window and rejected_count > limits.max_rejected_share * record_count:
            raise InputRejected(
                f"{rejected_count} of the last {record_count} events were rejected "
                f"(limits.max_rejected_share = {limits.max_rejected_share}), {example}"
            )
    elif len(records) > len(ignored_offsets):
        consecutive_count = 0
    if record_count >= 2 * limits.rejection_window:
        record_count, rejected_count = record_count // 2, rejected_count // 2
    return RejectionCounts(consecutive_count, record_count, rejected_count)
