"""The loop: poll, decode, apply, commit, until told to stop.

While the store is at work on a batch, what has arrived of the next one is decoded; it is applied once the outcome
is known. A batch is held until it is known to be applied. If the store is away, the loop waits with the batch in hand
and stays in its group. Whenever the store may not be what this worker believes (a refused commit, an outage), every
belief is dropped: the positions tell whether the batch was applied, has to be applied again, or belongs to somebody
else by now.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from monitor.clock import Clock
from monitor.config import Settings
from monitor.errors import AbMonitorError, DependencyUnavailable, HistoryLost, StoreUnavailable
from monitor.events import Decoder
from monitor.ingest.catching_up import CatchingUp
from monitor.ingest.decoding import Decoded, decode
from monitor.ingest.engine import Outcomes
from monitor.ingest.history import Historian
from monitor.ingest.holding import Holding
from monitor.ingest.intake import Intake
from monitor.ingest.progress import Progress
from monitor.ingest.skips import SkipsSaid
from monitor.ingest.source import Gap, Slice, Source
from monitor.ingest.sweeper import Sweeper
from monitor.ingest.telemetry import Telemetry
from monitor.ingest.writer import Outcome, Writer, unsent
from monitor.store import Advance, State

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_HOUSEKEEPING_S = 1.0
_OTHERS_S = 10.0
_WORTH = 16
"""Ahead of less than such a part of a full batch nothing is read: what arrives meanwhile is in the very next one."""


class Stopped(Exception):
    """The worker was told to stop while it waited."""


@dataclass(slots=True)
class _Sent:
    """A batch that the writer has begun with."""

    records: int
    decoded: Decoded
    advances: list[Advance]
    outcome: Outcome
    seconds: float
    """That it took to begin."""


class Worker:
    """One consumer of events. `readiness` may be read from any thread; `topics` names each kind's topic."""

    def __init__(
        self,
        *,
        settings: Settings,
        intake: Intake,
        writer: Writer,
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
        self._decode = partial(decode, decoder=Decoder(settings), intake=intake)
        self._telemetry = telemetry
        self._clock = clock
        self._topics = topics
        telemetry.expect(set(topics.values()))
        self._catching_up = CatchingUp()
        self._stop = threading.Event()
        self._reasons: tuple[str, ...] = ("starting: no position loaded yet",)
        self._housekeeping_at = self._others_at = 0.0
        self._trouble: str | None = None
        self._restarts = 0
        self._placed = self._refused = False
        self._holding = Holding(source, progress, writer, settings.kafka.max_drift_ms)
        self._sent: _Sent | None = None
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
                decoded = self._decode(slices, now_ms=self._clock())
                if not self._finish():
                    continue
                if slices:
                    self._begin(slices, decoded)
                elif self._source.finished():
                    self._housekeep(force=True)
                    return
                elif self._insist(self._holding.rest):
                    # What they wait for may be others' partitions.
                    self._see_others()
                self._housekeep()
                del slices, decoded  # while the next are fetched, they would be in memory
            self._finish()
        except Stopped:
            log.info("stopped while waiting")

    def _poll(self) -> Sequence[Slice]:
        """Return the next records; while a batch is at the store, those that are there, or soon, if they fill one."""
        try:
            return self._source.poll(wait=self._sent is None and not self._holding.all_held())
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
        """Drop every belief and return what the store holds."""
        return self._insist(lambda: self._writer.state(self._source.own()))

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
        positions, changed = self._insist(self._writer.look)
        own = self._source.own()
        if changed or self._progress.went_back(positions, own):
            state = self._state()
            positions = state.positions
            went_back = self._progress.went_back(positions, own)
            self._progress.load(state)
            if went_back:
                log.info("the store has gone back: what it has lost is read again")
                self._source.rewind()
                return False
        self._progress.see_others(positions, own)
        self._holding.align()
        return True

    def _begin(self, slices: Sequence[Slice], decoded: Decoded) -> None:
        """Send a batch to the store; what becomes of it is only left for later if it is worth reading ahead meanwhile.

        A part that others follow is not, nor is a small batch.
        """
        parts = self._writer.parts(slices)
        for part in parts:
            if not self._finish():
                return
            known = decoded if len(parts) == 1 else self._decode(part, now_ms=self._clock())
            advances = self._progress.steps(part, known, self._settings.limits)
            self._keep_refused(known)
            self._send(sum(len(each.records) for each in part), known, advances)
        if self._sent is not None and self._sent.records < self._settings.kafka.max_poll_records // _WORTH:
            self._finish()

    def _send(self, records: int, decoded: Decoded, advances: list[Advance]) -> None:
        """Have the writer begin with a batch; if the store is away, that is the outcome."""
        if self._progress.is_unsure():
            self._progress.confirm(self._insist(self._source.ask_ends))
        started = time.perf_counter()
        try:
            late = self._progress.late_before()
            outcome = self._writer.begin(decoded.events, late, advances)
        except StoreUnavailable as error:
            outcome = unsent(error)
        self._sent = _Sent(records, decoded, advances, outcome, time.perf_counter() - started)

    def _finish(self) -> bool:
        """Wait until the batch that was sent, if any, is known to be applied; False if the source has to go back.

        Unless that is known to have worked, read the store's state again: the batch may have been applied although the
        reply was lost; or it has to be applied once more; or the positions have moved, and everything is read again
        from there. So it is, too, if those of other partitions have moved, of which more may have been read by now.
        """
        strayed = False
        while (batch := self._sent) is not None:
            started = time.perf_counter()
            outcomes: Outcomes = Counter()
            try:
                status, outcomes = batch.outcome()
            except StoreUnavailable as error:
                self._refused = True
                self._wait(error)
                log.info("trying again")
            else:
                if status == "applied":
                    self._telemetry.commit_seconds.observe(batch.seconds + time.perf_counter() - started)
                    self._applied(batch, outcomes)
                    break
                self._telemetry.commit_conflicts.inc()
                log.info("commit refused reason=%s", status)
            state = self._state()
            others = set(self._source.own()) - {step.partition for step in batch.advances}
            strayed = strayed or self._progress.differs(state.positions, others)
            self._progress.load(state)
            standing = self._writer.standing(batch.advances)
            if standing == "applied":
                # The reply was lost.
                self._applied(batch, outcomes)
            elif standing == "moved":
                self._sent, strayed = None, True
                self._resumed()
            else:
                self._send(batch.records, batch.decoded, batch.advances)
        if strayed:
            self._source.rewind()
        return not strayed

    def _keep_refused(self, decoded: Decoded) -> None:
        """Put refused records where they can be found again, before anything moves past them."""
        if not decoded.refused:
            return
        self._insist(lambda: self._source.keep_refused(decoded.refused))
        for each in decoded.refused:
            topic = each.partition.rpartition(":")[0]
            self._telemetry.rejected.labels(topic, each.reason).inc()
            self._telemetry.events.labels(topic, "rejected").inc()

    def _applied(self, batch: _Sent, outcomes: Outcomes) -> None:
        self._sent = None
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
        if self._refused:
            self._refused = False
            log.info("resumed")
            self._ready()

    def _ready(self) -> None:
        """Be ready, if everything that is needed answers."""
        if not self._refused:
            self._telemetry.store_up.set(1)
        if self._refused or self._trouble is not None or not (self._placed or self._source.joined()):
            return
        self._telemetry.paused.set(0)
        self._reasons = ()
