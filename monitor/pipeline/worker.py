"""The worker: a loop that polls, decodes, dead-letters, applies and commits batches until the process stops.

While the store commits a batch, the worker polls and decodes the next batch. A batch remains in memory until its commit
is known to be applied. If the store is unavailable, the worker waits with the batch and remains a member of its group.
After a conflict or an outage, the worker drops all cached rows and reads the stored positions. The positions show
whether the batch was applied, must be applied again, or was overtaken by another worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from monitor.clock import Clock
from monitor.config import Settings
from monitor.decoding import RecordDecoder
from monitor.engine import EventNormalizer
from monitor.errors import (
    AbMonitorError,
    DataLoss,
    DependencyUnavailable,
    ExperimentsChanged,
    StoreUnavailable,
    join_reasons,
)
from monitor.pipeline.arrival_counter import ArrivalCounter
from monitor.pipeline.batch_applier import OutcomeCounts
from monitor.pipeline.batch_decoding import DecodedBatch, decode_records
from monitor.pipeline.commit_pipeline import PendingCommit, ShardBatch, ShardedWriter
from monitor.pipeline.pauses import Dependency, Pauses
from monitor.pipeline.retention import RetentionCleaner
from monitor.pipeline.snapshot_writer import SnapshotWriter
from monitor.pipeline.status_reporter import StatusReporter
from monitor.pipeline.telemetry import LagReporter, Telemetry
from monitor.pipeline.watermark import WatermarkTracker
from monitor.pipeline.watermark_alignment import WatermarkAligner
from monitor.sources import OffsetGap, PartitionRecords, Source
from monitor.state import CommitStatus, PositionUpdate, StoreState

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_STARTING: Final = ("starting: no position loaded yet",)
_HOUSEKEEPING_INTERVAL_S: Final = 1.0
_POSITIONS_INTERVAL_S: Final = 10.0
_PIPELINING_DIVISOR: Final = 16
"""The next batch is decoded during a commit if the batch has at least `kafka.max_poll_records` / 16 records. After a
smaller batch the worker first waits for the commit, so that all records that arrive meanwhile form one batch."""


class ShutdownRequested(Exception):
    """`Worker.stop` was called while the worker waited for a dependency."""


class Worker:
    """Applies the events of a source to the store. `readiness` and `stop` may be called by any thread."""

    def __init__(
        self,
        *,
        settings: Settings,
        normalizer: EventNormalizer,
        writer: ShardedWriter,
        watermark_tracker: WatermarkTracker,
        retention_cleaners: Sequence[RetentionCleaner],
        snapshot_writer: SnapshotWriter,
        source: Source,
        telemetry: Telemetry,
        clock: Clock,
        topics: Mapping[str, str],
        arrival_counter: ArrivalCounter | None = None,
        status_reporter: StatusReporter | None = None,
        accepts_rejected_backlog: bool = False,
        is_restart: bool = False,
        held_numbers: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """Connect the parts; `topics` is the topic by event type, for the labels of metrics.

        `arrival_counter` and `status_reporter` are those of the service; other commands have none. If
        `accepts_rejected_backlog` is true, the limits on rejected records apply only to records that arrive after the
        start. With `is_restart`, the worker replaces one in the same process, and so is ready already.
        `held_numbers` returns what `WatermarkTracker.hold` needs.
        """
        self._settings = settings
        self._writer = writer
        self._watermark_tracker = watermark_tracker
        self._retention_cleaners = retention_cleaners
        self._snapshot_writer = snapshot_writer
        self._source = source
        self._decoder = RecordDecoder(settings)
        self._decode = partial(
            decode_records,
            decoder=self._decoder,
            normalizer=normalizer,
            declared_variants={experiment.name: experiment.variants for experiment in settings.experiments},
        )
        self._arrival_counter = arrival_counter
        self._status_reporter = status_reporter
        self._accepts_rejected_backlog = accepts_rejected_backlog
        self._held_numbers = held_numbers
        self._accepted_until: Mapping[str, int] = {}
        """End offsets at the start, by partition: before these, any number of records may be rejected."""
        self._telemetry = telemetry
        self._clock = clock
        self._topics = topics
        self._topic_labels = {topic: settings.kafka.topic_label(topic) for topic in settings.kafka.topics}
        telemetry.initialize_topics(topics)
        self._lag_reporter = LagReporter()
        self._stop = threading.Event()
        self._is_starting = not is_restart
        self.have_experiments_changed = False
        """Whether `run` has returned because the set of declared experiments was changed."""
        self._pauses = Pauses(lambda dependency, is_paused: telemetry.paused.labels(dependency).set(is_paused))
        self._next_housekeeping_s = self._next_positions_s = 0.0
        self._source_problem: str | None = None
        self._counted_restarts = source.restarts if is_restart else 0
        self._has_positions = False
        self._store_failed = False
        self._aligner = WatermarkAligner(source, watermark_tracker, writer, settings.kafka.max_watermark_skew_ms)
        self._pending_commits: list[PendingCommit] = []
        """At most one commit per shard."""
        self.total_lag_events: int | None = None
        """Records in all partitions that are not yet applied, as of the last housekeeping; None if unknown."""
        self.processed_records = 0
        """Number of records committed so far, of any outcome."""
        self._cleaned_records = 0
        """Value of `processed_records` at the last cleaning."""

    def readiness(self) -> Sequence[str]:
        """Return the reasons why the worker is not ready; empty if ready."""
        return tuple(self._pauses.reasons().values()) or (_STARTING if self._is_starting else ())

    def data_problems(self) -> Sequence[str]:
        """Return sentences about events that do not count, at most ten seconds old; does not read the store."""
        return () if self._status_reporter is None else self._status_reporter.data_problems

    @property
    def accepts_rejected_backlog(self) -> bool:
        """Whether the limits on rejected records are still suspended."""
        return self._accepts_rejected_backlog

    def stop(self) -> None:
        """Make `run` return after the current batch."""
        self._stop.set()

    def run(self) -> None:
        """Process batches until `stop` is called, the source is exhausted, or the declared experiments were changed.

        In the last case the source is rewound, so that another worker decodes the records that are not applied.
        Raises `DataLoss` if events were deleted before they were applied, and `kafka.on_lost_history` is "stop"; raises
        `InputRejected` if too many records are rejected.
        """
        try:
            while not self._stop.is_set() and self._process_batch():
                pass
            self._await_commits()
        except ShutdownRequested:
            log.info("stopped while paused")
        except ExperimentsChanged:
            self.have_experiments_changed = True
            self._source.rewind()
            self._aligner.resume_all()
            # The next worker finds out by itself what is out of reach.
            self._pauses.end_all()
        finally:
            self._writer.close()
            self._decoder.close()
            if self._status_reporter is not None:
                self._status_reporter.close()

    def _process_batch(self) -> bool:
        """Process the next batch; return False if the source is exhausted.

        1. Poll the source, while the previous batch is being committed.
        2. Decode the records.
        3. Wait for the previous commit. If the source was rewound after a conflict, drop the records.
        4. Write rejected records to the dead-letter queue.
        5. Apply the events, and start the commit.
        """
        if self._source.partitions_to_seek():
            self._await_commits()
            self._seek_partitions()
        polled = self._retry_until_available(self._poll)  # 1
        polled_by_shard = self._writer.group_by_shard(polled)
        decoded_by_shard = {  # 2
            shard: self._retry_until_available(
                partial(self._decode, shard_records, now_ms=self._clock()), "schema_registry"
            )
            for shard, shard_records in polled_by_shard.items()
        }
        if not self._await_commits():  # 3
            return True
        if polled:
            batches = []
            for shard, shard_records in polled_by_shard.items():
                batch = self._create_batch(shard, shard_records, decoded_by_shard[shard])
                self._write_dead_letters(batch.decoded_batch)  # 4
                batches.append(batch)
            self._apply_and_commit(batches)  # 5
            record_count = sum(batch.record_count for batch in batches)
            if record_count < self._settings.kafka.max_poll_records // _PIPELINING_DIVISOR:
                self._await_commits()
        elif self._source.is_exhausted():
            self._run_housekeeping(last=True)
            # If the store has lost commits, the source was rewound, and its records are read again.
            if not self._source.partitions_to_seek():
                return False
        elif self._retry_until_available(self._aligner.wait_for_slowest):
            self._refresh_positions()
        self._run_housekeeping()
        return True

    def _poll(self) -> Sequence[PartitionRecords]:
        """Return the next records; does not wait for records while a commit is pending."""
        try:
            return self._source.poll(wait=not self._pending_commits and not self._aligner.all_partitions_paused())
        except AbMonitorError:
            # The outage may last, so the pending commits are completed first.
            self._await_commits()
            raise

    def _create_batch(
        self, shard: int, shard_records: Sequence[PartitionRecords], decoded_batch: DecodedBatch
    ) -> ShardBatch:
        """Return the batch of a shard; raises `InputRejected` if too many records were rejected."""
        position_updates = self._watermark_tracker.next_position_updates(
            shard_records, decoded_batch, self._settings.limits, self._accepted_until
        )
        record_count = sum(len(partition_records.records) for partition_records in shard_records)
        batch = ShardBatch(shard, record_count, decoded_batch, position_updates)
        if self._arrival_counter is not None:
            batch.arrived_ms = self._clock()
            batch.arrivals = self._arrival_counter.count_records(shard_records, decoded_batch, batch.arrived_ms)
        return batch

    def _write_dead_letters(self, decoded_batch: DecodedBatch) -> None:
        """Write the rejected records to the dead-letter queue, before their offsets are committed."""
        rejected_records = decoded_batch.rejected_records
        if not rejected_records:
            return
        self._retry_until_available(lambda: self._source.dead_letter_queue.write(rejected_records), "dead_letters")
        for record in rejected_records:
            topic = self._topic_label(record.partition)
            self._telemetry.rejected_events.labels(topic, record.reason).inc()
            self._telemetry.events.labels(topic, "rejected").inc()

    def _topic_label(self, partition: str) -> str:
        topic = partition.rpartition(":")[0]
        return self._topic_labels.get(topic, topic)

    def _apply_and_commit(self, batches: Sequence[ShardBatch]) -> None:
        """Apply the batches to the rows of their shards, and start their commits."""
        if self._watermark_tracker.needs_confirmation():
            end_offsets = self._retry_until_available(self._source.fetch_end_offsets)
            self._watermark_tracker.confirm_end_offsets(end_offsets)
        late_before_ms = self._watermark_tracker.late_before_ms()
        for batch in batches:
            self._pending_commits.append(self._writer.submit(batch, late_before_ms))

    def _await_commits(self) -> bool:
        """Wait until all pending commits are applied; return False if the source was rewound.

        After a conflict or an outage, the stored positions decide on each batch. Either the batch was applied and the
        reply was lost, or the batch is applied again, or another worker has changed the positions. In the last case the
        source is rewound, so that the records are read again from the stored positions. The source is also rewound if
        the stored positions of other assigned partitions have changed, since their next records may be polled already.
        """
        must_rewind = False
        while self._pending_commits:
            failed_batches = self._await_results()
            if not failed_batches:
                break
            state = self._reload_state()
            failed_partitions = {update.partition for batch in failed_batches for update in batch.position_updates}
            other_partitions = set(self._source.assignment()) - failed_partitions
            must_rewind = must_rewind or self._watermark_tracker.have_positions_changed(
                state.positions, other_partitions
            )
            self._watermark_tracker.load_state(state)
            batches_to_retry = []
            for batch in failed_batches:
                outcome = batch.outcome_by_positions(state.positions)
                if outcome == "applied":
                    # The reply was lost. Without a reply, the outcomes are not counted.
                    self._record_applied(batch, Counter())
                elif outcome == "conflict":
                    must_rewind = True
                    self._mark_store_available()
                else:
                    batches_to_retry.append(batch)
            self._apply_and_commit(batches_to_retry)
        if must_rewind:
            self._source.rewind()
        return not must_rewind

    def _await_results(self) -> list[ShardBatch]:
        """Wait for the results of all pending commits; return the batches that are not known to be applied."""
        failed_batches, error = [], None
        for pending_commit in self._pending_commits:
            started_s = time.perf_counter()
            status: CommitStatus | None = None
            try:
                status = pending_commit.result()
            except StoreUnavailable as unavailable:
                error = unavailable
            if status == "applied":
                self._telemetry.commit_seconds.observe(pending_commit.apply_s + time.perf_counter() - started_s)
                self._record_applied(pending_commit.batch, pending_commit.outcomes)
            else:
                failed_batches.append(pending_commit.batch)
                if status is not None:
                    self._telemetry.commit_conflicts.inc()
                    log.debug("commit conflict status=%s", status)
        self._pending_commits = []
        if error is not None:
            self._store_failed = True
            self._wait_for_dependency(error)
            log.debug("retrying commits")
        return failed_batches

    def _record_applied(self, batch: ShardBatch, outcomes: OutcomeCounts) -> None:
        """Update positions, metrics and watermark alignment after a commit was applied."""
        self._mark_store_available()
        self._telemetry.count_outcomes(self._topics, outcomes)
        for record in batch.decoded_batch.ignored_records:
            self._telemetry.ignored_records.labels(self._topic_label(record.partition), record.reason).inc()
        self._watermark_tracker.apply_position_updates(batch.position_updates)
        self._watermark_tracker.update_end_offsets(self._source.end_offsets())
        self.processed_records += batch.record_count
        self._telemetry.observe_batch(batch.record_count, batch.decoded_batch.newest_event_ms.values(), self._clock())
        self._source.commit_group_offsets(
            {update.partition: update.position.next_offset for update in batch.position_updates}
        )
        self._aligner.align()

    def _seek_partitions(self) -> None:
        """Start newly assigned partitions at their stored positions.

        If a partition has an offset gap, or no stored position yet, only updates the stored positions; the next call
        then starts the partitions.
        """
        state = self._reload_state()
        gaps = self._retry_until_available(lambda: self._source.find_offset_gaps(state.positions))
        if gaps:
            self._skip_lost_offsets(gaps)
            return
        initial_positions = self._retry_until_available(lambda: self._source.initial_positions(state.positions))
        if initial_positions:
            # The first worker stores the positions of all partitions, since the watermark of every worker needs them.
            self._try_update_positions(
                [PositionUpdate(partition, None, position) for partition, position in initial_positions.items()], {}
            )
            return
        self._watermark_tracker.load_state(state)
        self._source.seek(state.positions)
        self._watermark_tracker.confirm_end_offsets(self._source.end_offsets())
        self._has_positions = True
        self._update_readiness()
        self._aligner.align()
        if self._accepts_rejected_backlog and not self._accepted_until:
            self._accept_rejected_backlog()

    def _accept_rejected_backlog(self) -> None:
        """Suspend the limits on rejected records up to the present end of each partition."""
        end_offsets = self._retry_until_available(self._source.fetch_end_offsets)
        self._accepted_until = {name: offset for name, offset in end_offsets.items() if offset is not None}
        self._watermark_tracker.update_end_offsets(end_offsets)
        log.info(
            "accepting rejected records until the backlog is consumed waiting=%s",
            self._watermark_tracker.total_lag_events(),
        )

    def _end_acceptance_if_consumed(self) -> None:
        """Apply the limits on rejected records again, once all workers have consumed the backlog."""
        if self._accepted_until and self._watermark_tracker.have_reached(self._accepted_until):
            self._accepts_rejected_backlog, self._accepted_until = False, {}
            log.info(
                "backlog consumed: the limits on rejected records apply again. Start without --accept-rejected and "
                "ABMONITOR_ACCEPT_REJECTED from now on"
            )

    def _skip_lost_offsets(self, gaps: Sequence[OffsetGap]) -> None:
        """Set the positions behind the gaps, and count the lost events.

        Raises `DataLoss` if `kafka.on_lost_history` is "stop".
        """
        reasons = [f"{gap.partition}: {gap.reason}" for gap in gaps]
        if self._settings.kafka.on_lost_history == "stop":
            raise DataLoss(
                f"events may be lost: {join_reasons(reasons)}. Nothing was skipped. "
                'Restore the topic, or accept the loss with kafka.on_lost_history = "continue"'
            )
        position_updates = [
            PositionUpdate(gap.partition, gap.stored_position.next_offset, gap.resume_position, gap.stored_position.log)
            for gap in gaps
        ]
        if not self._try_update_positions(position_updates, {gap.partition: gap.lost_count for gap in gaps}):
            return
        for gap in gaps:
            topic, _, number = gap.partition.rpartition(":")
            self._telemetry.lost_events.labels(topic, number).inc(gap.lost_count)
            log.error(
                "history lost partition=%s lost_offsets=%d resume_offset=%d reason=%s",
                gap.partition,
                gap.lost_count,
                gap.resume_position.next_offset,
                gap.reason,
            )

    def _try_update_positions(self, position_updates: Sequence[PositionUpdate], lost_counts: Mapping[str, int]) -> bool:
        """Update stored positions without events; return False after a conflict or an outage.

        After False, the stored positions must be read again: another worker, or this call, may have updated them.
        """
        try:
            return self._writer.update_positions(position_updates, lost_counts)
        except StoreUnavailable as error:
            self._wait_for_dependency(error)
            return False

    def _reload_state(self) -> StoreState:
        """Drop all cached rows, and return the state of the store."""
        return self._retry_until_available(self._writer.reload_state)

    def _refresh_positions(self) -> bool:
        """Read the positions of all workers, for the watermark; return False if the source was rewound.

        The source is rewound if the store has lost commits.
        """
        self._next_positions_s = time.monotonic() + _POSITIONS_INTERVAL_S
        stored_positions = self._retry_until_available(self._writer.read_positions)
        assignment = self._source.assignment()
        if self._watermark_tracker.is_store_behind(stored_positions, assignment):
            self._watermark_tracker.load_state(self._reload_state())
            log.warning("store has lost commits, reading again from the stored positions")
            self._source.rewind()
            return False
        self._watermark_tracker.update_other_workers(stored_positions, assignment)
        self._aligner.align()
        return True

    def _run_housekeeping(self, *, last: bool = False) -> None:
        """Check the source, measure lags, clean the store and write snapshots: once a second, and as `last` step."""
        now_s = time.monotonic()
        if (now_s < self._next_housekeeping_s and not last) or not self._await_commits():
            return
        self._next_housekeeping_s = now_s + _HOUSEKEEPING_INTERVAL_S
        self._check_source()
        self._watermark_tracker.hold(self._held_numbers())
        self._source.commit_group_offsets({})
        end_offsets = self._source.end_offsets()
        self._watermark_tracker.update_end_offsets(end_offsets)
        if last and self._watermark_tracker.needs_confirmation():
            self._watermark_tracker.confirm_end_offsets(self._retry_until_available(self._source.fetch_end_offsets))
        is_refresh_due = now_s >= self._next_positions_s or self._aligner.paused_partitions
        if is_refresh_due and not self._refresh_positions():
            return
        self._measure_lags(end_offsets)
        self._end_acceptance_if_consumed()
        self.total_lag_events = None if self._source_problem is not None else self._watermark_tracker.total_lag_events()
        if self.total_lag_events is not None:
            self._lag_reporter.report(self.total_lag_events, self.processed_records)
        self._report_status()
        event_count = (self.processed_records - self._cleaned_records) // len(self._retention_cleaners)
        self._cleaned_records = self.processed_records
        for cleaner in self._retention_cleaners:
            self._retry_until_available(partial(cleaner.clean, self._watermark_tracker, event_count, last=last))
        self._snapshot_writer.write_if_due(self._watermark_tracker)

    def _measure_lags(self, end_offsets: Mapping[str, int | None]) -> None:
        """Set the lag metrics of assigned partitions."""
        assignment = self._source.assignment()
        lags = self._watermark_tracker.partition_lags(assignment, end_offsets, self._clock())
        self._telemetry.set_lags(assignment, lags)

    def _check_source(self) -> None:
        """Update readiness and metrics by the source's connection problem, if any."""
        problem = self._source.connection_problem()
        self._telemetry.consumer_restarts.inc(self._source.restarts - self._counted_restarts)
        self._counted_restarts = self._source.restarts
        self._source_problem = problem
        if problem is not None:
            self._pauses.begin("kafka", problem)
        elif "kafka" in self._pauses.reasons() or (not self._has_positions and self._source.has_assignment()):
            # With more workers than partitions, a worker without partitions is ready to take over.
            self._update_readiness()

    def _retry_until_available(self, action: Callable[[], Result], dependency: Dependency = "kafka") -> Result:
        """Return the result of the action, repeated while the store, or else the `dependency`, is unavailable.

        Raises `ShutdownRequested` if `stop` is called meanwhile.
        """
        has_waited = False
        while True:
            try:
                result = action()
            except DependencyUnavailable as error:
                self._wait_for_dependency(error, dependency)
                has_waited = True
            else:
                if has_waited:
                    self._update_readiness()
                return result

    def _wait_for_dependency(self, error: DependencyUnavailable, dependency: Dependency = "kafka") -> None:
        """Report the outage, and wait a moment as a member of the group.

        Raises `ShutdownRequested` if `stop` was called.
        """
        is_store = isinstance(error, StoreUnavailable)
        self._pauses.begin("store" if is_store else dependency, str(error))
        if is_store:
            self._telemetry.store_up.set(0)
        else:
            self._report_status()
        self._source.poll_paused()
        if self._has_positions:
            self._measure_lags(self._source.end_offsets())
        if self._stop.is_set():
            raise ShutdownRequested from error

    def _mark_store_available(self) -> None:
        """Become ready again after a commit, if an earlier commit has failed because of an outage of the store."""
        if self._store_failed:
            self._store_failed = False
            self._update_readiness()

    def _update_readiness(self) -> None:
        """End the pauses that are over, and become ready once the group has an assignment."""
        if not self._store_failed:
            self._telemetry.store_up.set(1)
            self._pauses.end("store")
        if self._source_problem is None:
            self._pauses.end("kafka")
        self._pauses.end("dead_letters")
        self._pauses.end("schema_registry")
        if self._has_positions or self._source.has_assignment():
            self._is_starting = False

    def _report_status(self) -> None:
        """Report lag and pauses, if the worker belongs to the service."""
        if self._status_reporter is not None:
            self._status_reporter.report(self._pauses.reasons(), self.total_lag_events)
