"""The backfill of one experiment: applies the records that the workers had read before they counted the experiment.

The workers count the events of the experiment from the positions `StoreKeys.backfill_targets` on. The backfill applies
the records before these positions to the same rows and sums, in ordinary commits. Rows are sets of events, and sums
change by differences, so the order in which the backfill and the workers apply events does not matter. Each commit also
writes the position of the backfill, so every record is applied once, even if several processes work on the backfill.

The backfill first applies the responses of all partitions, then the reactions. A reaction to a response without a row
is then not about the experiment, or the workers have stored it, so the backfill ignores the reaction.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from monitor.clock import Clock
from monitor.config import EventType, Settings
from monitor.decoding import RecordDecoder
from monitor.engine import EventBatch, EventNormalizer, Experiment, IdHasher
from monitor.pipeline.batch_decoding import DecodedBatch, decode_records
from monitor.pipeline.commit_pipeline import ShardBatch, ShardedWriter
from monitor.sources import HistoryReader, OffsetOutOfRange, PartitionRecords
from monitor.state import (
    PENDING_FEEDBACK,
    Position,
    PositionUpdate,
    ShardedStore,
    compact_time_buckets,
    read_backfill_targets,
)

_BATCH_RECORDS: Final = 1000
"""Small, so that a commit rarely changes a row that a worker has read, and never delays the commits of workers long."""
_REST_RATIO: Final = 1.0
"""After each batch, the backfill rests for this multiple of the batch's time, so live consumption is delayed little."""
_FEEDBACK_PREFIX: Final = "feedback of "
"""Begins the names of positions of feedback in topics that also have responses."""
_NO_POSITION: Final = Position(0)


class BackfillInterrupted(Exception):
    """The backfill has ended before its targets: at a request to stop, or because the store has changed."""


@dataclass(frozen=True, slots=True)
class RemainingRecords:
    """Offsets that a backfill still has to apply."""

    remaining_records: int
    complete_since_ms: int | None
    """Time from which on the experiment has all events of the partitions read so far; None if nothing is missing."""


@dataclass(frozen=True, slots=True)
class _PartitionPass:
    """The responses, or the feedback, of a partition."""

    partition: str
    event_type: EventType
    position_name: str
    """Name of the stored position."""
    target: Position

    @property
    def first_offset(self) -> int:
        """Return the first offset that the workers had to apply; 0 if unknown."""
        return self.target.log.first_offset or 0

    @property
    def after_newest_event_ms(self) -> int:
        """Return the time after all events before the target; 0 if there were none."""
        return self.target.newest_ms + 1 if self.target.newest_ms else 0


class ExperimentBackfill:
    """Applies the records before the targets to one experiment. Used by a single thread.

    Rejected records are counted in the data quality of the experiment; the workers have written their dead letters.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        experiments: Sequence[Experiment],
        number: int,
        superseded_numbers: frozenset[int],
        id_hasher: IdHasher,
        store: ShardedStore,
        clock: Clock,
        stop: threading.Event,
        on_progress: Callable[[RemainingRecords], object] = lambda _: None,
        rest_ratio: float = _REST_RATIO,
    ) -> None:
        """Connect to Kafka and the store, for the experiment with the number, which is one of `experiments`.

        `experiments` and `superseded_numbers` are those of the workers. `on_progress` is called after each batch; its
        errors end the backfill.
        """
        kafka = replace(settings.kafka, max_poll_records=_BATCH_RECORDS)
        self._kafka = kafka
        self._number = number
        self._clock = clock
        self._stop = stop
        self._on_progress = on_progress
        self._rest_ratio = rest_ratio
        self._late_before_ms = dict.fromkeys([PENDING_FEEDBACK, *(str(each.number) for each in experiments)], 0)
        self._decoder = RecordDecoder(settings)
        self._normalizer = EventNormalizer([each for each in experiments if each.number == number], id_hasher)
        self._shards = store.reconnect(backfill=number)
        self._writer = ShardedWriter(
            experiments,
            id_hasher,
            self._shards,
            # Workers change the same rows, so cached rows would soon be out of date.
            max_cached_rows=0,
            superseded_numbers=superseded_numbers,
            backfilled_number=number,
        )
        self._reader = HistoryReader(kafka)
        self._passes: Sequence[_PartitionPass] = ()
        self._current_passes: Mapping[str, _PartitionPass] = {}
        """Partition → the pass that is being read."""
        self._positions: dict[str, Position] = {}
        """Stored positions by name. `newest_ms` is the time from which on the partition is complete; 0: always."""
        self._incomplete_partitions: set[str] = set()
        """Partitions that are complete from their next record on, because Kafka lacks records before it."""

    def close(self) -> None:
        """Close the connections."""
        self._decoder.close()
        self._writer.close()
        self._shards.close()
        self._reader.close()

    def run(self) -> RemainingRecords:
        """Apply all records up to the targets, and return the final progress.

        Raises `BackfillInterrupted` before the end. After an error, for example `DependencyUnavailable`, another
        instance continues at the stored positions.
        """
        self._passes = list(self._partition_passes(read_backfill_targets(self._shards, self._number)))
        for event_type in ("response", "feedback"):
            while self._begin_passes(event_type):
                self._apply_passes(event_type)
        return self._progress()

    def _partition_passes(self, targets: Mapping[str, Position]) -> Iterator[_PartitionPass]:
        """Yield the passes over all partitions; a topic that is not configured counts as a topic of responses."""
        response_topics, feedback_topics = self._kafka.topics_of("response"), self._kafka.topics_of("feedback")
        for partition, target in targets.items():
            topic = partition.rpartition(":")[0]
            has_feedback = topic in feedback_topics
            has_responses = topic in response_topics or not has_feedback
            if has_responses:
                yield _PartitionPass(partition, "response", partition, target)
            if has_feedback:
                name = f"{_FEEDBACK_PREFIX}{partition}" if has_responses else partition
                yield _PartitionPass(partition, "feedback", name, target)

    def _begin_passes(self, event_type: EventType) -> bool:
        """Start to read the unfinished partitions at their stored positions; return False if there are none.

        Partitions of which Kafka has no record before the target are finished at once.
        """
        self._positions = dict(self._writer.reload_state().positions)
        self._current_passes = {
            each.partition: each
            for each in self._passes
            if each.event_type == event_type and not self._is_finished(each)
        }
        ranges = self._reader.find_ranges({name: each.target for name, each in self._current_passes.items()})
        self._incomplete_partitions = set()
        for name, retained in ranges.items():
            wanted_offset = self._next_offset(self._current_passes[name])
            if self._lacks_records(self._current_passes[name], wanted_offset, retained):
                self._incomplete_partitions.add(name)
            ranges[name] = range(max(wanted_offset, retained.start), retained.stop)
        self._reader.start(ranges)
        self._report_progress()
        empty = [PartitionRecords(name, "", 0, [], 0) for name, offsets in ranges.items() if not offsets]
        for shard, shard_records in self._writer.group_by_shard(empty).items():
            if not self._commit(shard, EventBatch(), shard_records):
                return True
        return bool(self._current_passes)

    def _is_finished(self, partition_pass: _PartitionPass) -> bool:
        position = self._positions.get(partition_pass.position_name)
        return position is not None and position.next_offset >= partition_pass.target.next_offset

    def _next_offset(self, partition_pass: _PartitionPass) -> int:
        """Return the next offset that the experiment needs."""
        position = self._positions.get(partition_pass.position_name)
        return partition_pass.first_offset if position is None else position.next_offset

    def _lacks_records(self, partition_pass: _PartitionPass, wanted_offset: int, retained: range) -> bool:
        """Return whether Kafka lacks records from `wanted_offset` to the first retained offset or the target."""
        if wanted_offset < partition_pass.target.next_offset and (not retained or wanted_offset < retained.start):
            return True
        # Workers had applied another log, which was deleted.
        log = partition_pass.target.log
        return partition_pass.position_name not in self._positions and log.number > 0 and log.first_offset is None

    def _apply_passes(self, event_type: EventType) -> None:
        """Apply the events of a type, until all partitions are finished or have to be started again.

        Partitions have to be started again if another process has moved a position, or Kafka has deleted records.
        """
        while self._reader.unfinished_partitions():
            self._check_stop()
            started_s = time.monotonic()
            try:
                polled = self._reader.poll()
            except OffsetOutOfRange:
                return
            for shard, shard_records in self._writer.group_by_shard(polled).items():
                decoded = decode_records(shard_records, self._decoder, self._normalizer, self._clock())
                if not self._commit(shard, _events_of_type(decoded.events, event_type), shard_records):
                    return
            self._report_progress()
            if polled:
                self._stop.wait(self._rest_ratio * (time.monotonic() - started_s))

    def _commit(self, shard: int, events: EventBatch, shard_records: Sequence[PartitionRecords]) -> bool:
        """Commit the events of a shard and its new positions; return False if another process has moved a position."""
        updates = list(self._position_updates(shard_records))
        batch = ShardBatch(shard, 0, DecodedBatch(events), updates)
        while (status := self._writer.submit(batch, self._late_before_ms).result()) != "applied":
            self._check_stop()
            if status in ("generation_switched", "experiments_changed"):
                raise BackfillInterrupted(f"the store has changed: {status}")
            stored_positions = self._writer.reload_state().positions
            if any(stored_positions.get(each.partition) != self._positions.get(each.partition) for each in updates):
                return False
        for update in updates:
            self._positions[update.partition] = update.position
        compact_time_buckets(self._shards[shard])
        return True

    def _position_updates(self, shard_records: Sequence[PartitionRecords]) -> Iterator[PositionUpdate]:
        for partition_records in shard_records:
            name = partition_records.partition
            current_pass = self._current_passes[name]
            is_finished = name not in self._reader.unfinished_partitions()
            stored_position = self._positions.get(current_pass.position_name)
            complete_since_ms = (stored_position or _NO_POSITION).newest_ms
            if name in self._incomplete_partitions:
                if partition_records.records:
                    record_ms = partition_records.records[0].timestamp
                    first_record_ms = self._clock() if record_ms is None or record_ms < 0 else record_ms
                    complete_since_ms = max(complete_since_ms, first_record_ms)
                elif is_finished:
                    complete_since_ms = max(complete_since_ms, current_pass.after_newest_event_ms)
                else:
                    # The position is stored together with the time, once the first record has arrived.
                    continue
                self._incomplete_partitions.discard(name)
            target = current_pass.target
            next_offset = target.next_offset if is_finished else partition_records.next_offset
            yield PositionUpdate(
                current_pass.position_name,
                None if stored_position is None else stored_position.next_offset,
                Position(next_offset, complete_since_ms, log=target.log),
            )

    def _report_progress(self) -> None:
        self._on_progress(self._progress())

    def _progress(self) -> RemainingRecords:
        remaining_records, complete_since_ms = 0, 0
        for each in self._passes:
            remaining_records += max(each.target.next_offset - self._next_offset(each), 0)
            complete_since_ms = max(complete_since_ms, self._positions.get(each.position_name, _NO_POSITION).newest_ms)
        return RemainingRecords(remaining_records, complete_since_ms or None)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise BackfillInterrupted("the process stops")


def _events_of_type(events: EventBatch, event_type: EventType) -> EventBatch:
    """Return the events of a type; rejected responses and other data quality belong to the responses."""
    selected = EventBatch()
    if event_type == "response":
        selected.responses = events.responses
        selected.rejected_responses = events.rejected_responses
        selected.undeclared_variants = events.undeclared_variants
        selected.placeholder_users = events.placeholder_users
        selected.repeated_items = events.repeated_items
    else:
        selected.reactions = events.reactions
        selected.reaction_delays_ms = events.reaction_delays_ms
        selected.target_response_ids = events.target_response_ids
    return selected
