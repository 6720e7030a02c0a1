"""The loop: poll, decode, apply, commit, until told to stop.

While the store commits a batch, the records that have arrived meanwhile are decoded; they are applied once the outcome
is known. A batch is kept until it is known to be applied. If the store is unavailable, the loop waits with the batch
and stays in its group. After a conflict or an outage all cached rows are dropped and the positions are read again: they
tell whether the batch was applied, has to be applied again, or was applied by another worker.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

from monitor.clock import Clock
from monitor.config import Settings
from monitor.engine import Decoder, EventNormalizer
from monitor.errors import AbMonitorError, DependencyUnavailable, HistoryLost, StoreUnavailable
from monitor.pipeline.batch_applier import Outcomes
from monitor.pipeline.batch_decoding import Decoded, decode
from monitor.pipeline.commit_pipeline import Batch, PendingCommit, ShardedWriter
from monitor.pipeline.lag import CatchingUp
from monitor.pipeline.retention import Sweeper
from monitor.pipeline.skipped_events import SkipsSaid
from monitor.pipeline.snapshot_writer import Historian
from monitor.pipeline.telemetry import Telemetry
from monitor.pipeline.watermark import Progress
from monitor.pipeline.watermark_alignment import Holding
from monitor.sources import Gap, Slice, Source
from monitor.state import Advance, State, Status

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_HOUSEKEEPING_S = 1.0
_OTHERS_S = 10.0
_WORTH = 16
"""Ahead of less than such a part of a full batch nothing is read: what arrives meanwhile is in the very next one."""


class Stopped(Exception):
    """The worker was told to stop while it waited."""


class Worker:
    """One consumer of events. `readiness` may be read from any thread; `topics` names each kind's topic."""

    def __init__(
        self,
        *,
        settings: Settings,
        normalizer: EventNormalizer,
        writer: ShardedWriter,
        progress: Progress,
        sweepers: Sequence[Sweeper],
        historian: Historian,
        skips: SkipsSaid,
        source: Source,
        telemetry: Telemetry,
        clock: Clock,
        topics: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._writer = writer
        self._progress = progress
        self._sweepers = sweepers
        self._historian = historian
        self._skips = skips
        self._source = source
        self._decode = partial(decode, decoder=Decoder(settings), normalizer=normalizer)
        self._telemetry = telemetry
        self._clock = clock
        self._topics = topics
        telemetry.expect(topics)
        self._catching_up = CatchingUp()
        self._stop = threading.Event()
        self._reasons: tuple[str, ...] = ("starting: no position loaded yet",)
        self._housekeeping_at = self._others_at = 0.0
        self._trouble: str | None = None
        self._restarts = 0
        self._placed = self._store_failed = False
        self._holding = Holding(source, progress, writer, settings.kafka.max_drift_ms)
        self._pending: list[PendingCommit] = []
        """At most one for each shard."""
        self.waiting: int | None = None
        """Events between the positions and the ends of all partitions, as last seen."""
        self.events = 0
        """Records committed so far, of whatever outcome."""
        self._swept_after = 0
        """How many they were when rows were last swept."""

    def readiness(self) -> Sequence[str]:
        """Return why the worker is not ready; nothing when it is."""
        return self._reasons

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped or until the source is finished.

        Raises `HistoryLost` when events are gone before they could be applied and the configuration says stop.
        """
        try:
            while not self._stop.is_set():
                if self._source.unplaced():
                    self._finish()
                    self._place()
                slices = self._insist(self._poll)
                shards = self._writer.by_shard(slices)
                decoded = {shard: self._decode(own, now_ms=self._clock()) for shard, own in shards.items()}
                if not self._finish():
                    continue
                if slices:
                    self._submit(shards, decoded)
                elif self._source.finished():
                    self._housekeep(force=True)
                    if not self._source.unplaced():  # otherwise the store has lost events, which are read again
                        return
                elif self._insist(self._holding.rest):
                    # What they wait for may be others' partitions.
                    self._see_others()
                self._housekeep()
                del slices, shards, decoded  # while the next are fetched, they would be in memory
            self._finish()
        except Stopped:
            log.info("stopped while waiting")
        finally:
            self._writer.close()

    def _poll(self) -> Sequence[Slice]:
        """Return the next records; while a batch is at the store, those that are there, or soon, if they fill one."""
        try:
            return self._source.poll(wait=not self._pending and not self._holding.all_held())
        except AbMonitorError:
            # It may last: what was read before is brought to its end first.
            self._finish()
            raise

    def _place(self) -> None:
        """Start newly assigned partitions where the store says, once it says so for all."""
        state = self._state()
        gaps = self._insist(lambda: self._source.gaps(state.positions))
        if gaps:
            self._cross(gaps)
            return
        starts = self._insist(lambda: self._source.starts(state.positions))
        if starts:
            # Decided once, by whoever is first: every worker's watermark must know of every partition.
            self._attempt([Advance(name, None, position) for name, position in starts.items()], {})
            return
        self._progress.load(state)
        self._source.place(state.positions)
        self._progress.confirm(self._source.ends())
        self._placed = True
        self._ready()
        self._holding.align()

    def _state(self) -> State:
        """Drop all cached rows and return what the store holds."""
        return self._insist(self._writer.state)

    def _attempt(self, steps: Sequence[Advance], lost: Mapping[str, int]) -> bool:
        """Return whether positions were moved that others may be moving as well; the state tells what is the case."""
        try:
            return self._writer.advance(steps, lost)
        except StoreUnavailable as error:
            self._wait(error)
            return False

    def _cross(self, gaps: Sequence[Gap]) -> None:
        """Go on behind what is lost if that was agreed on, and count it; otherwise say what is lost and stop."""
        lines = [f"{gap.partition}: {gap.reason}" for gap in gaps]
        if self._settings.kafka.on_lost_history == "stop":
            raise HistoryLost(
                f"events may be lost: {'; '.join(lines)}. Nothing was skipped. "
                'Restore the topic, or accept the loss with kafka.on_lost_history = "continue"'
            )
        steps = [Advance(gap.partition, gap.held.next_offset, gap.resume, gap.held.origin) for gap in gaps]
        if not self._attempt(steps, {gap.partition: gap.lost for gap in gaps}):
            return
        for gap, line in zip(gaps, lines, strict=True):
            topic, _, number = gap.partition.rpartition(":")
            self._telemetry.lost.labels(topic, number).inc(gap.lost)
            log.error("history lost, going on at offset %d: %s", gap.resume.next_offset, line)

    def _see_others(self) -> bool:
        """Learn how far all workers' partitions are, on which the watermark rests; False if the source goes back."""
        self._others_at = time.monotonic() + _OTHERS_S
        positions = self._insist(self._writer.positions)
        own = self._source.own()
        if self._progress.went_back(positions, own):
            self._progress.load(self._state())
            log.info("the store has gone back: what it has lost is read again")
            self._source.rewind()
            return False
        self._progress.see_others(positions, own)
        self._holding.align()
        return True

    def _submit(self, shards: Mapping[int, Sequence[Slice]], decoded: Mapping[int, Decoded]) -> None:
        """Commit a batch on each shard; wait for the outcome later if it is worth decoding the next one meanwhile."""
        batches = []
        for shard, slices in shards.items():
            advances = self._progress.steps(slices, decoded[shard], self._settings.limits)
            self._keep_refused(decoded[shard])
            batches.append(Batch(shard, sum(len(each.records) for each in slices), decoded[shard], advances))
        self._commit(batches)
        if sum(batch.records for batch in batches) < self._settings.kafka.max_poll_records // _WORTH:
            self._finish()

    def _commit(self, batches: Sequence[Batch]) -> None:
        if self._progress.is_unsure():
            self._progress.confirm(self._insist(self._source.ask_ends))
        late = self._progress.late_before()
        for batch in batches:
            started = time.perf_counter()
            pending = self._writer.submit(batch, late)
            pending.seconds = time.perf_counter() - started
            self._pending.append(pending)

    def _finish(self) -> bool:
        """Wait until the batches that were submitted are known to be applied; False if the source was rewound.

        After a conflict or an outage, the state is read again: a batch may have been applied although the reply was
        lost; or it has to be applied once more; or its positions have moved, and it is read again from there. So are
        other partitions whose positions have moved, of which more may have been read by now.
        """
        rewind = False
        while self._pending:
            failed = self._unapplied()
            if not failed:
                break
            state = self._state()
            others = set(self._source.own()) - {step.partition for batch in failed for step in batch.advances}
            rewind = rewind or self._progress.differs(state.positions, others)
            self._progress.load(state)
            again = []
            for batch in failed:
                commit_state = self._writer.commit_state(batch)
                if commit_state == "applied":
                    # The reply was lost.
                    self._applied(batch, Counter())
                elif commit_state == "conflict":
                    rewind = True
                    self._resumed()
                else:
                    again.append(batch)
            self._commit(again)
        if rewind:
            self._source.rewind()
        return not rewind

    def _unapplied(self) -> list[Batch]:
        """Wait for all pending commits; return the batches that are not known to be applied."""
        failed, error = [], None
        for pending in self._pending:
            started = time.perf_counter()
            status: Status | None = None
            try:
                status = pending.status.result()
            except StoreUnavailable as unavailable:
                error = unavailable
            if status == "applied":
                self._telemetry.commit_seconds.observe(pending.seconds + time.perf_counter() - started)
                self._applied(pending.batch, pending.outcomes)
            else:
                failed.append(pending.batch)
                if status is not None:
                    self._telemetry.commit_conflicts.inc()
                    log.info("commit refused reason=%s", status)
        self._pending = []
        if error is not None:
            self._store_failed = True
            self._wait(error)
            log.info("trying again")
        return failed

    def _keep_refused(self, decoded: Decoded) -> None:
        """Put refused records where they can be found again, before anything moves past them."""
        if not decoded.refused:
            return
        self._insist(lambda: self._source.keep_refused(decoded.refused))
        for each in decoded.refused:
            topic = each.partition.rpartition(":")[0]
            self._telemetry.rejected.labels(topic, each.reason).inc()
            self._telemetry.events.labels(topic, "rejected").inc()

    def _applied(self, batch: Batch, outcomes: Outcomes) -> None:
        self._resumed()
        self._telemetry.count(self._topics, outcomes)
        self._skips.note(outcomes)
        self._progress.advanced(batch.advances)
        self._progress.see_ends(self._source.ends())
        self.events += batch.records
        self._telemetry.see_batch(batch.records, batch.decoded.newest_ms.values(), self._clock())
        self._source.acknowledge({step.partition: step.position.next_offset for step in batch.advances})
        self._holding.align()

    def _housekeep(self, *, force: bool = False) -> None:
        """Now and then: lag, ends, sweeping, history."""
        now = time.monotonic()
        if (now < self._housekeeping_at and not force) or not self._finish():
            return
        self._housekeeping_at = now + _HOUSEKEEPING_S
        self._look_at_source()
        self._source.acknowledge({})
        ends = self._source.ends()
        self._progress.see_ends(ends)
        if force and self._progress.is_unsure():
            self._progress.confirm(self._insist(self._source.ask_ends))
        if (now >= self._others_at or self._holding.held) and not self._see_others():
            return
        self._measure_lag(ends)
        self.waiting = None if self._trouble is not None else self._progress.waiting()
        if self.waiting is not None:
            self._catching_up.report(self.waiting, self.events)
        events, self._swept_after = self.events - self._swept_after, self.events
        for sweeper in self._sweepers:
            self._insist(partial(sweeper.sweep, self._progress, events // len(self._sweepers), last=force))
        self._historian.note(self._progress)

    def _measure_lag(self, ends: Mapping[str, int | None]) -> None:
        own = self._source.own()
        self._telemetry.show_lags(own, self._progress.lags(own, ends, self._clock()))

    def _look_at_source(self) -> None:
        """Say in the readiness when the source is out of reach, and when it is back."""
        trouble = self._source.trouble()
        self._telemetry.restarts.inc(self._source.restarts - self._restarts)
        self._restarts = self._source.restarts
        if trouble is not None:
            if self._trouble is None:
                log.warning("source out of reach reason=%s", trouble)
            self._reasons = (trouble,)
            self._telemetry.paused.set(1)
        elif self._trouble is not None:
            log.info("source back")
            self._trouble = None
            self._ready()
        elif not self._placed and self._source.joined():
            # There are more workers than partitions: ready to take over.
            self._ready()
        self._trouble = trouble

    def _insist(self, action: Callable[[], Result]) -> Result:
        """Return what the action returns, waiting through outages; raise `Stopped` if told to stop meanwhile."""
        waiting = False
        while True:
            try:
                result = action()
            except DependencyUnavailable as error:
                self._wait(error)
                waiting = True
            else:
                if waiting:
                    log.info("resumed")
                    self._ready()
                return result

    def _wait(self, error: DependencyUnavailable) -> None:
        """Say why nothing can be done, and stay a member for a moment."""
        if self._reasons != (str(error),):
            log.warning("paused reason=%s", error)
        self._reasons = (str(error),)
        self._telemetry.paused.set(1)
        if isinstance(error, StoreUnavailable):
            self._telemetry.store_up.set(0)
        self._source.idle()
        if self._placed:
            # What waits meanwhile grows older.
            self._measure_lag(self._source.ends())
        if self._stop.is_set():
            raise Stopped from error

    def _resumed(self) -> None:
        """Note that what the store refused is settled."""
        if self._store_failed:
            self._store_failed = False
            log.info("resumed")
            self._ready()

    def _ready(self) -> None:
        """Be ready, if everything that is needed answers."""
        if not self._store_failed:
            self._telemetry.store_up.set(1)
        if self._store_failed or self._trouble is not None or not (self._placed or self._source.joined()):
            return
        self._telemetry.paused.set(0)
        self._reasons = ()
