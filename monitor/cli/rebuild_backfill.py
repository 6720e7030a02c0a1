"""The backfill of a rebuild: applies both Kafka topics from their beginning to the next generation of the store."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Final

from monitor.app import WritableStore, create_worker
from monitor.cli.signals import stop_on_signals
from monitor.clock import wall_clock
from monitor.config import DeclaredSet, Settings, definition_changes
from monitor.errors import (
    SIGNAL_EXIT_CODE_BASE,
    DataLoss,
    IncompatibleStore,
    StoreUnavailable,
    UnusableStore,
    count_noun,
)
from monitor.pipeline import Telemetry, Worker
from monitor.sources import DeadLetterQueue, KafkaSource, RejectedRecord
from monitor.state import (
    Position,
    ShardedStore,
    StoreReader,
    delete_generation,
    join_store,
)

log = logging.getLogger(__name__)
_PROGRESS_CHECK_S: Final = 1.0
_UNLIMITED_RUN: Final = 1_000_000_000


class HistorySource(KafkaSource):
    """Both topics from their beginning, read by a separate consumer group."""

    def __init__(self, settings: Settings, generation: int, active_positions: Mapping[str, Position]) -> None:
        kafka = settings.kafka
        super().__init__(
            replace(
                kafka,
                group_id=f"{kafka.group_id}.rebuild-{generation}",
                group_instance_id=None,
                start="earliest" if kafka.start == "latest" else kafka.start,
            )
        )
        self.active_positions = active_positions
        """The positions of the active generation; updated while the rebuild reads."""
        self.rejection_counts: Counter[str] = Counter()
        """Reason → number of rejected records."""
        self.dead_letter_count = 0
        """Rejected records that the active generation has not read: the rebuild writes their dead letters."""
        self.dead_letter_queue = _UnreadRecordsDeadLetterQueue(self, self.dead_letter_queue)

    def offsets_read_by_active_generation(self, partition: str) -> range:
        """Return the offsets of a partition that the active generation has read."""
        active_position, topic_id = self.active_positions.get(partition), self.topic_id(partition.rpartition(":")[0])
        if active_position is None or topic_id is None or active_position.log.topic_id != topic_id:
            return range(0)
        return range(active_position.log.first_offset or 0, active_position.next_offset)


class _UnreadRecordsDeadLetterQueue:
    """Counts all rejected records, and writes dead letters of records that the active generation has not read.

    The active generation's workers have written the dead letters of all other records.
    """

    def __init__(self, source: HistorySource, dead_letter_queue: DeadLetterQueue) -> None:
        self._source = source
        self._dead_letter_queue = dead_letter_queue

    def write(self, rejected_records: Sequence[RejectedRecord]) -> None:
        unread_records = [
            record
            for record in rejected_records
            if record.offset not in self._source.offsets_read_by_active_generation(record.partition)
        ]
        if unread_records:
            self._dead_letter_queue.write(unread_records)
        self._source.rejection_counts.update(record.reason for record in rejected_records)
        self._source.dead_letter_count += len(unread_records)


def open_next_generation(
    next_store: ShardedStore, active_store: ShardedStore, settings: Settings, next_set: DeclaredSet
) -> WritableStore:
    """Return the next generation, empty or as filled by an interrupted rebuild.

    `settings` has the experiments of `next_set`. The rest of an interrupted rebuild is deleted if that rebuild had
    other definitions.
    """

    def declare(current: DeclaredSet) -> DeclaredSet:
        if current.version == 0:
            return next_set
        _check_unfinished_rebuild(current, next_set)
        return current

    try:
        metadata = join_store(next_store, settings, declare)
    except UnusableStore as error:
        log.info("unfinished rebuild deleted reason=%s", error)
        delete_generation(active_store, next_store.generation)
        metadata = join_store(next_store, settings, declare)
    return WritableStore(next_store, StoreReader(next_store, settings, metadata.numbers, wall_clock), metadata)


def _check_unfinished_rebuild(unfinished: DeclaredSet, next_set: DeclaredSet) -> None:
    """Raise `IncompatibleStore` if an interrupted rebuild has other experiments or definitions than the next set."""
    stored = {experiment.name: experiment for experiment in unfinished.experiments}
    wanted = {experiment.name: experiment for experiment in next_set.experiments}
    differences = sorted(stored.keys() ^ wanted.keys())
    for name in stored.keys() & wanted.keys():
        differences += definition_changes(stored[name].settings, wanted[name].settings)
    if differences:
        raise IncompatibleStore(f"the unfinished rebuild has other experiments: {'; '.join(differences)}")


def backfill_generation(active_store: ShardedStore, writable_store: WritableStore, settings: Settings) -> int:
    """Apply Kafka's history to the next generation, up to the positions of the active generation.

    Returns 0, or the exit code of the signal that has stopped the backfill before that.
    """
    source = HistorySource(settings, writable_store.shards.generation, active_store.read_positions())
    # Rejected records are reported at the end; they do not stop the backfill.
    limits = replace(settings.limits, max_rejected_share=1.0, max_consecutive_rejected=_UNLIMITED_RUN)
    try:
        worker = create_worker(
            replace(settings, limits=limits),
            writable_store,
            source,
            Telemetry(),
            settings.kafka.topic_labels,
            wall_clock,
        )
        # The worker's own connection is for its thread alone.
        next_store = writable_store.shards.reconnect()
        with (
            stop_on_signals(worker.stop) as signals,
            _stop_when_caught_up(worker, active_store, next_store, source, settings.kafka.topics),
        ):
            worker.run()
    except DataLoss as error:
        raise DataLoss(
            f"{error}. To start from the beginning, delete the new generation with --discard, then run the command "
            "again"
        ) from error
    finally:
        source.close()
    if source.rejection_counts:
        print(_describe_rejected_records(source.rejection_counts, source.dead_letter_count))
    return SIGNAL_EXIT_CODE_BASE + signals[0] if signals else 0


def _describe_rejected_records(rejection_counts: Counter[str], dead_letter_count: int) -> str:
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in rejection_counts.most_common())
    records = count_noun(rejection_counts.total(), "record is", "records are")
    sentences = [f"{records} rejected under this configuration ({reasons})."]
    active_count = rejection_counts.total() - dead_letter_count
    if active_count:
        sentences.append(
            f"The active generation has read {active_count:,} of these records: the records that the active generation "
            "rejected are in the dead-letter topic, and the records that the active generation counted are not counted "
            "any more."
        )
    if dead_letter_count:
        sentences.append(
            f"Of the records that the active generation has not read, {count_noun(dead_letter_count, 'is', 'are')} in "
            "the dead-letter topic now."
        )
    return " ".join(sentences)


@contextmanager
def _stop_when_caught_up(
    worker: Worker,
    active_store: ShardedStore,
    next_store: ShardedStore,
    source: HistorySource,
    topics: Collection[str],
) -> Iterator[None]:
    """Stop the worker at the positions of the active generation, or at the end of the topics.

    A thread of its own compares the positions once a second while the block runs.
    """
    block_ended = threading.Event()

    def watch_positions() -> None:
        while not block_ended.wait(_PROGRESS_CHECK_S):
            # If the store does not respond, the worker waits, and so does this loop.
            with suppress(StoreUnavailable):
                source.active_positions = active_store.read_positions()
                target_positions = {
                    partition: position
                    for partition, position in source.active_positions.items()
                    if partition.rpartition(":")[0] in topics
                }
                next_positions = next_store.read_positions()
                has_target_positions = bool(target_positions) and all(
                    partition in next_positions and next_positions[partition].next_offset >= position.next_offset
                    for partition, position in target_positions.items()
                )
                if worker.total_lag_events == 0 or has_target_positions:
                    worker.stop()
                    return

    thread = threading.Thread(target=watch_positions, name="rebuild", daemon=True)
    thread.start()
    try:
        yield
    finally:
        block_ended.set()
        thread.join()
        next_store.close()
