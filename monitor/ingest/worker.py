"""The loop: poll, decode, apply, commit, until told to stop.

A batch is held until it is known to be applied. If the store is away, the loop waits with the batch in hand and stays
in its group; if the positions have moved, somebody else owns the partitions: everything held is dropped and read again
from the stored positions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from monitor.clock import Clock
from monitor.config import LimitSettings
from monitor.errors import DependencyUnavailable, InputRefused, Refusal, StoreUnavailable
from monitor.events import Decoder, Feedback, Response
from monitor.ingest.engine import Engine
from monitor.ingest.progress import Progress
from monitor.ingest.source import Refused, Slice, Source
from monitor.ingest.sweeper import Sweeper
from monitor.ingest.telemetry import Telemetry
from monitor.store import Advance, Commit, RedisStore

log = logging.getLogger(__name__)
Result = TypeVar("Result")
_HOUSEKEEPING_S = 1.0
_OTHERS_S = 10.0


class Stopped(Exception):
    """The worker was told to stop while it waited."""


@dataclass(slots=True)
class Decoded:
    """One poll's records as events."""

    responses: list[Response] = field(default_factory=list)
    feedback: list[Feedback] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    newest_ms: dict[str, int] = field(default_factory=dict)


class RefusalLimits:
    """Counts refused records and stops the service before it drains a topic into the dead letters."""

    def __init__(self, limits: LimitSettings) -> None:
        self._limits = limits
        self._run = 0
        self._recent: deque[tuple[int, int]] = deque()
        self._records = self._refused = 0

    def count(self, records: int, refused: Sequence[Refused]) -> None:
        """Note one poll; raise `InputRefused` beyond the configured run length or share."""
        self._run = self._run + len(refused) if len(refused) == records else 0
        self._recent.append((records, len(refused)))
        self._records += records
        self._refused += len(refused)
        while self._recent and self._records - self._recent[0][0] >= self._limits.refused_window:
            old = self._recent.popleft()
            self._records -= old[0]
            self._refused -= old[1]
        if not refused:
            return
        last = refused[-1]
        where = f"last at {last.partition} offset {last.offset}: {last.reason}, {last.detail}"
        if self._run > self._limits.max_refused_run:
            raise InputRefused(
                f"{self._run} events in a row were refused (limits.max_refused_run = "
                f"{self._limits.max_refused_run}); {where}"
            )
        if (
            self._records >= self._limits.refused_window
            and self._refused > self._limits.max_refused_share * self._records
        ):
            raise InputRefused(
                f"{self._refused} of the last {self._records} events were refused "
                f"(limits.max_refused_share = {self._limits.max_refused_share}); {where}"
            )


class Worker:
    """One consumer of events. `readiness` may be read from any thread; `topics` names each kind's topic."""

    def __init__(
        self,
        *,
        store: RedisStore,
        engine: Engine,
        progress: Progress,
        sweeper: Sweeper,
        source: Source,
        decoder: Decoder,
        limits: LimitSettings,
        telemetry: Telemetry,
        clock: Clock,
        topics: Mapping[str, str],
    ) -> None:
        self._store = store
        self._engine = engine
        self._progress = progress
        self._sweeper = sweeper
        self._source = source
        self._decoder = decoder
        self._limits: dict[str, RefusalLimits] = defaultdict(lambda: RefusalLimits(limits))
        self._telemetry = telemetry
        self._clock = clock
        self._topics = topics
        telemetry.expect(set(topics.values()))
        self._stop = threading.Event()
        self._reasons: tuple[str, ...] = ("starting: no position loaded yet",)
        self._housekeeping_at = self._others_at = 0.0
        self._trouble: str | None = None
        self.events = 0
        """Records committed so far, of whatever outcome."""

    def readiness(self) -> Sequence[str]:
        """Return why the worker is not ready; nothing when it is."""
        return self._reasons

    def stop(self) -> None:
        """Ask `run` to return after the batch in hand."""
        self._stop.set()

    def run(self) -> None:
        """Work until stopped or until the source is finished."""
        try:
            while not self._stop.is_set():
                if self._source.unplaced():
                    self._place()
                slices = self._insist(self._source.poll)
                if slices:
                    self._process(slices)
                elif self._source.finished():
                    self._housekeep(force=True)
                    return
                self._housekeep()
        except Stopped:
            log.info("stopped while waiting")

    def _place(self) -> None:
        """Start newly assigned partitions where the store says."""
        state = self._insist(self._store.state)
        self._engine.forget()
        self._progress.load(state)
        offsets = self._insist(lambda: self._source.place(state.positions))
        self._progress.start(offsets)
        self._announce([name for name in offsets if name not in state.positions])
        self._ready()

    def _announce(self, partitions: Sequence[str]) -> None:
        """Store where new partitions begin, so that every worker's watermark knows of them."""
        if not partitions:
            return
        ends = self._source.ends()
        starts = [(name, self._progress.next_offset(name), ends.get(name)) for name in partitions]
        steps = [Advance(name, None, at, 0, end is not None and at >= end) for name, at, end in starts]
        self._insist(lambda: self._store.commit(Commit(advances=steps)))
        self._progress.load(self._insist(self._store.state))

    def _process(self, slices: Sequence[Slice]) -> None:
        """Bring one poll into the store.

        1. decode; 2. make refused records safe; 3. apply to rows; 4. commit. After a refused commit: read the store's
        state again, and either apply once more (a row had changed) or go back to its positions (they had moved).
        """
        decoded = self._decode(slices)
        self._keep_refused(slices, decoded.refused)
        while True:
            late = self._progress.late_before()
            commit, outcomes = self._insist(
                lambda: self._engine.apply(decoded.responses, decoded.feedback, late)  # noqa: B023  called at once
            )
            commit.advances = self._advances(slices, decoded)
            started = time.perf_counter()
            status = self._insist(lambda: self._store.commit(commit))  # noqa: B023  called at once
            if status == "applied":
                self._telemetry.commit_seconds.observe(time.perf_counter() - started)
                self._applied(slices, commit.advances, decoded, outcomes)
                return
            self._telemetry.commit_conflicts.inc()
            log.info("commit refused status=%s", status)
            self._engine.forget()
            state = self._insist(self._store.state)
            self._progress.load(state)
            held = [self._progress.expected(step.partition) for step in commit.advances]
            if held == [step.next_offset for step in commit.advances]:
                # It was applied, and the reply was lost.
                self._applied(slices, commit.advances, decoded, outcomes)
                return
            if held != [step.expected for step in commit.advances]:
                self._progress.start(self._insist(lambda: self._source.rewind(state.positions)))  # noqa: B023
                return

    def _decode(self, slices: Sequence[Slice]) -> Decoded:
        decoded = Decoded()
        now_ms = self._clock()
        decoders: dict[str, Callable[[bytes | None, int], Response | Feedback]] = {
            "response": self._decoder.response,
            "feedback": self._decoder.feedback,
            "event": self._decoder.event,
        }
        for each in slices:
            decode = decoders[each.kind]
            events: list[Response | Feedback] = []
            for offset, payload in zip(each.offsets, each.payloads, strict=True):
                try:
                    events.append(decode(payload, now_ms))
                except Refusal as refusal:
                    decoded.refused.append(Refused(each.partition, offset, payload, refusal.reason, refusal.detail))
            if events:
                decoded.newest_ms[each.partition] = max([event.timestamp_ms for event in events])
            if each.kind == "response":
                decoded.responses += events  # type: ignore[arg-type]  # the decoder made responses
            elif each.kind == "feedback":
                decoded.feedback += events  # type: ignore[arg-type]  # the decoder made feedback
            else:
                for event in events:
                    if isinstance(event, Response):
                        decoded.responses.append(event)
                    else:
                        decoded.feedback.append(event)
        return decoded

    def _keep_refused(self, slices: Sequence[Slice], refused: list[Refused]) -> None:
        """Put refused records where they can be found again, before anything moves past them."""
        for topic in {each.partition.rpartition(":")[0] for each in slices}:
            records = sum(len(each.payloads) for each in slices if each.partition.startswith(f"{topic}:"))
            self._limits[topic].count(records, [each for each in refused if each.partition.startswith(f"{topic}:")])
        if not refused:
            return
        self._insist(lambda: self._source.keep_refused(refused))
        for each in refused:
            topic = each.partition.rpartition(":")[0]
            self._telemetry.rejected.labels(topic, each.reason).inc()
            self._telemetry.events.labels(topic, "rejected").inc()

    def _advances(self, slices: Sequence[Slice], decoded: Decoded) -> list[Advance]:
        ends = self._source.ends()
        advances = []
        for each in slices:
            end = ends.get(each.partition)
            expected = self._progress.expected(each.partition)
            advances.append(
                Advance(
                    each.partition,
                    expected,
                    each.next_offset,
                    max(decoded.newest_ms.get(each.partition, 0), self._progress.newest_ms(each.partition)),
                    at_end=end is not None and each.next_offset >= end,
                )
            )
        return advances

    def _applied(
        self, slices: Sequence[Slice], advances: list[Advance], decoded: Decoded, outcomes: Counter[tuple[str, str]]
    ) -> None:
        for (kind, outcome), count in outcomes.items():
            self._telemetry.events.labels(self._topics[kind], outcome).inc(count)
        self._progress.advanced(advances)
        records = sum(len(each.payloads) for each in slices)
        self.events += records
        self._telemetry.batch_events.observe(records)
        now_ms = self._clock()
        for newest_ms in decoded.newest_ms.values():
            self._telemetry.event_delay_seconds.observe(max(now_ms - newest_ms, 0) / 1000)
        self._source.acknowledge({step.partition: step.next_offset for step in advances})

    def _housekeep(self, *, force: bool = False) -> None:
        """Now and then: lag, ends, sweeping."""
        now = time.monotonic()
        if now < self._housekeeping_at and not force:
            return
        self._housekeeping_at = now + _HOUSEKEEPING_S
        self._look_at_source()
        ends = self._source.ends()
        self._progress.see_ends(ends)
        if now >= self._others_at:
            # The watermark rests on the partitions of all workers.
            self._others_at = now + _OTHERS_S
            self._progress.see_others(self._insist(self._store.positions), ends.keys())
        now_ms = self._clock()
        for partition, end in ends.items():
            if end is None or not self._progress.knows(partition):
                continue
            topic, _, number = partition.rpartition(":")
            behind = max(end - self._progress.next_offset(partition), 0)
            newest_ms = self._progress.newest_ms(partition)
            self._telemetry.lag_events.labels(topic, number).set(behind)
            age_s = max(now_ms - newest_ms, 0) / 1000 if behind and newest_ms else 0
            self._telemetry.lag_seconds.labels(topic, number).set(age_s)
        self._insist(lambda: self._sweeper.sweep(self._progress))

    def _look_at_source(self) -> None:
        """Say in the readiness when the source is out of reach, and when it is back."""
        trouble = self._source.trouble()
        if trouble is not None:
            if self._trouble is None:
                log.warning("source out of reach reason=%s", trouble)
            self._reasons = (trouble,)
        elif self._trouble is not None:
            log.info("source back")
            self._reasons = ()
        self._trouble = trouble

    def _insist(self, action: Callable[[], Result]) -> Result:
        """Return what the action returns, waiting through outages; raise `Stopped` if told to stop meanwhile."""
        waiting = False
        while True:
            try:
                result = action()
            except DependencyUnavailable as error:
                self._wait(error, first=not waiting)
                waiting = True
                if self._stop.is_set():
                    raise Stopped from error
            else:
                if waiting:
                    log.info("resumed")
                    self._ready()
                return result

    def _wait(self, error: DependencyUnavailable, *, first: bool) -> None:
        if first:
            log.warning("paused reason=%s", error)
        self._reasons = (str(error),)
        self._telemetry.paused.set(1)
        if isinstance(error, StoreUnavailable):
            self._telemetry.store_up.set(0)
        self._source.idle()

    def _ready(self) -> None:
        self._telemetry.paused.set(0)
        self._telemetry.store_up.set(1)
        self._reasons = ()
