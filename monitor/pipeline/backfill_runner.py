"""The thread that works on the unfinished backfills of a process, one after the other."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from typing import Final

import msgspec

from monitor.clock import Clock
from monitor.config import Settings
from monitor.engine import Experiment, IdHasher
from monitor.errors import AbMonitorError, DependencyUnavailable
from monitor.pipeline.backfill import BackfillInterrupted, ExperimentBackfill, RemainingRecords
from monitor.pipeline.telemetry import Telemetry
from monitor.state import (
    PENDING_FEEDBACK,
    BackfillState,
    ShardedStore,
    forget_skipped_experiment,
    read_backfills,
    release_backfill_lease,
    renew_backfill_lease,
    write_backfill,
)

log = logging.getLogger(__name__)
_LEASE_MS: Final = 15_000
"""After a crash, no process works on the backfill for this time. Batches, between which it is renewed, take less."""
_LEASE_RENEWAL_S: Final = 5.0
_PROGRESS_INTERVAL_S: Final = 1.0
_CHECK_INTERVAL_S: Final = 5.0
"""Pause before the next attempt if another process has the lease, or if Kafka or the store is unavailable."""
_FIRST_RETRY_MS: Final = 60_000
_MAX_RETRY_MS: Final = 3_600_000
_STOP_TIMEOUT_S: Final = 10.0


def held_numbers(unfinished: Sequence[int], states: Mapping[int, BackfillState]) -> frozenset[str]:
    """Return the numbers that `WatermarkTracker.hold` needs while the backfills of `unfinished` experiments last.

    Pending feedback is held unless every unfinished backfill has failed: it may be about responses to be backfilled.
    """
    held = {str(number) for number in unfinished}
    if any(number not in states or states[number].state != "failed" for number in unfinished):
        held.add(PENDING_FEEDBACK)
    return frozenset(held)


def retry_pause_ms(attempts: int) -> int:
    """Return the time between a failed attempt and the next one, given the number of failed attempts.

    >>> retry_pause_ms(1), retry_pause_ms(3), retry_pause_ms(100)
    (60000, 240000, 3600000)
    """
    return int(min(_FIRST_RETRY_MS * 2 ** min(attempts - 1, 16), _MAX_RETRY_MS))


class BackfillRunner:
    """Works on unfinished backfills in a daemon thread, so that no error of a backfill reaches the worker.

    Any thread may call the methods. A lease in the store lets one process at a time work on a backfill. The lease only
    saves work: the positions in the commits of a backfill make every record count once.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        experiments: Sequence[Experiment],
        unfinished: Sequence[int],
        superseded_numbers: frozenset[int],
        id_hasher: IdHasher,
        store: ShardedStore,
        telemetry: Telemetry,
        clock: Clock,
        on_complete: Callable[[int, int | None], None],
    ) -> None:
        """Prepare the backfills of the experiment numbers `unfinished`, which are numbers of `experiments`.

        `experiments` and `superseded_numbers` are those of the worker. `store` is only used to connect again.
        `on_complete` is called in the thread with the number of an experiment whose records are all applied, and with
        the time from which on the experiment is complete, or None. After an error in `on_complete`, it is called again.
        """
        self._settings = settings
        self._experiments = experiments
        self._unfinished = list(unfinished)
        self._names = {experiment.number: experiment.settings.name for experiment in experiments}
        self._superseded_numbers = superseded_numbers
        self._id_hasher = id_hasher
        self._base_store = store
        self._telemetry = telemetry
        self._clock = clock
        self._on_complete = on_complete
        self._owner = secrets.token_hex(8)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="backfill", daemon=True)
        self._states: Mapping[int, BackfillState] = {}
        self._next_attempts_s = dict.fromkeys(self._unfinished, 0.0)
        self._next_write_s = self._next_renewal_s = 0.0

    def start(self) -> None:
        """Start the thread. Without unfinished backfills, it only sets the metrics to the stored states, and ends."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current batch, and wait for at most ten seconds."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(_STOP_TIMEOUT_S)

    def held_numbers(self) -> frozenset[str]:
        """Return the numbers that the worker's `WatermarkTracker` has to hold now."""
        return held_numbers(self._unfinished, self._states)

    def _run(self) -> None:
        with closing(self._base_store.reconnect()) as store:
            with suppress(AbMonitorError):
                self._refresh_states(store)
            while self._unfinished and not self._stop.is_set():
                for number in list(self._unfinished):
                    if self._stop.is_set():
                        return
                    if time.monotonic() >= self._next_attempts_s[number]:
                        self._attempt(store, number)
                self._stop.wait(_PROGRESS_INTERVAL_S)

    def _attempt(self, store: ShardedStore, number: int) -> None:
        """Work on a backfill until it is complete or an error occurs; other backfills have their turn then."""
        self._next_attempts_s[number] = time.monotonic() + _CHECK_INTERVAL_S
        try:
            self._refresh_states(store)
            state = self._states.get(number)
            is_resting = (
                state is not None
                and state.state == "failed"
                and self._clock() < state.updated_ms + retry_pause_ms(state.attempts)
            )
            if is_resting or not renew_backfill_lease(store, number, self._owner, _LEASE_MS):
                return
            self._next_write_s = 0.0
            self._next_renewal_s = time.monotonic() + _LEASE_RENEWAL_S
            self._backfill(store, number)
        except BackfillInterrupted as reason:
            log.info("backfill interrupted experiment=%s reason=%s", self._names[number], reason)
        except DependencyUnavailable as error:
            # The worker waits for the same dependency, and logs the outage.
            log.debug("backfill waits experiment=%s error=%s", self._names[number], error)
        except Exception as error:  # noqa: BLE001  no error of a backfill may end the process
            self._record_failure(store, number, error)
        finally:
            with suppress(AbMonitorError):
                release_backfill_lease(store, number, self._owner)

    def _backfill(self, store: ShardedStore, number: int) -> None:
        log.info("backfill started experiment=%s", self._names[number])
        backfill = ExperimentBackfill(
            settings=self._settings,
            experiments=self._experiments,
            number=number,
            superseded_numbers=self._superseded_numbers,
            id_hasher=self._id_hasher,
            store=self._base_store,
            clock=self._clock,
            stop=self._stop,
            on_progress=lambda progress: self._record_progress(store, number, progress),
        )
        try:
            progress = backfill.run()
        finally:
            # While Kafka is unavailable, closing may fail, too.
            with suppress(Exception):
                backfill.close()
        self._write_state(store, number, self._state_of(number, "complete", progress))
        forget_skipped_experiment(store, self._names[number], self._id_hasher, [number, *self._superseded_numbers])
        self._on_complete(number, progress.complete_since_ms)
        self._unfinished = [other for other in self._unfinished if other != number]
        log.info("backfill complete experiment=%s since_ms=%s", self._names[number], progress.complete_since_ms)

    def _record_progress(self, store: ShardedStore, number: int, progress: RemainingRecords) -> None:
        """Store the progress at most once a second, and renew the lease."""
        now_s = time.monotonic()
        if now_s >= self._next_write_s:
            self._next_write_s = now_s + _PROGRESS_INTERVAL_S
            self._write_state(store, number, self._state_of(number, "running", progress))
        if now_s >= self._next_renewal_s:
            self._next_renewal_s = now_s + _LEASE_RENEWAL_S
            if not renew_backfill_lease(store, number, self._owner, _LEASE_MS):
                raise BackfillInterrupted("another process works on the backfill")

    def _state_of(self, number: int, name: str, progress: RemainingRecords) -> BackfillState:
        now_ms = self._clock()
        previous = self._states.get(number)
        records_total = max(progress.remaining_records, 0 if previous is None else previous.records_total)
        return BackfillState(
            state="complete" if name == "complete" else "running",
            started_ms=now_ms if previous is None else previous.started_ms,
            updated_ms=now_ms,
            records_done=records_total - progress.remaining_records,
            records_total=records_total,
            attempts=0 if previous is None else previous.attempts,
            complete_since_ms=progress.complete_since_ms,
        )

    def _record_failure(self, store: ShardedStore, number: int, error: Exception) -> None:
        log.error("backfill failed experiment=%s", self._names[number], exc_info=error)
        now_ms = self._clock()
        previous = self._states.get(number, BackfillState("running", now_ms, now_ms))
        failure = msgspec.structs.replace(
            previous,
            state="failed",
            updated_ms=now_ms,
            reason=str(error) or type(error).__name__,
            attempts=previous.attempts + 1,
        )
        with suppress(AbMonitorError):
            self._write_state(store, number, failure)

    def _write_state(self, store: ShardedStore, number: int, state: BackfillState) -> None:
        write_backfill(store, number, state)
        self._set_states({**self._states, number: state})

    def _refresh_states(self, store: ShardedStore) -> None:
        self._set_states(read_backfills(store))

    def _set_states(self, states: Mapping[int, BackfillState]) -> None:
        self._states = states
        self._telemetry.set_backfills(
            {self._names[number]: states[number] for number in self._names.keys() & states.keys()}
        )
