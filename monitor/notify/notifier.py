"""The threads of a process that observe the experiments, and deliver messages about their changes.

1. The process that has the lease observes the experiments every half minute. It writes new states and messages to the
   outbox in one write, which fails if another process has written meanwhile.
2. Each channel has a thread of its own, so that a slow channel delays no other one and not the worker.
3. A delivery is removed from the outbox after the receiver has accepted the message. If the process ends in between,
   the message is sent again under the same ID.
"""

from __future__ import annotations

import hashlib
import logging
import random
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import msgspec

from monitor.analysis import Change, UndeclaredExperiment, find_changes
from monitor.clock import DAY_MS, HOUR_MS, Clock
from monitor.errors import AbMonitorError
from monitor.notify.channels import Channel, DeliveryFailed
from monitor.notify.messages import Message, write_discovery, write_message, write_short_message
from monitor.notify.observation import StoreObservation
from monitor.pipeline import Telemetry
from monitor.state import Delivery, Outbox, outbox_channel

log = logging.getLogger(__name__)
_LEASE_MS: Final = 30_000
"""After a crash, no process observes and delivers for this time."""
_STEP_S: Final = 5.0
_OBSERVATION_INTERVAL_S: Final = 30.0
_FIRST_RETRY_MS: Final = 30_000
_MAX_RETRY_MS: Final = 1_800_000
_JITTER: Final = 0.2
_MAX_AGE_MS: Final = 3 * DAY_MS
"""An older message is dropped: by then, the page has newer results."""
_MIN_ATTEMPTS: Final = 10
"""No message is dropped by its age before so many attempts: the clock of a process may be days ahead."""
_MAX_DELIVERIES: Final = 1_000
"""With more waiting deliveries, the oldest ones are dropped."""
_STOP_TIMEOUT_S: Final = 3.0


def retry_pause_ms(attempts: int) -> int:
    """Return the time between a failed attempt and the next one, before jitter, given the number of failed attempts.

    >>> retry_pause_ms(1), retry_pause_ms(3), retry_pause_ms(100)
    (30000, 120000, 1800000)
    """
    return int(min(_FIRST_RETRY_MS * 2 ** min(attempts - 1, 16), _MAX_RETRY_MS))


def derive_message_id(version: int, as_of_ms: int, change: Change) -> str:
    """Return the ID of the message about a change.

    If the store loses a write, the version of the states is lost as well, and the same change gets the same ID again.
    """
    content = (version, as_of_ms // HOUR_MS, change.experiment, change.treatment, change.event, change.state)
    return f"msg_{hashlib.blake2b(msgspec.json.encode(content), digest_size=12).hexdigest()}"


class Notifier:
    """Observes experiments and delivers messages, in daemon threads. No error reaches the worker."""

    def __init__(
        self,
        channels: Sequence[Channel],
        outbox: Outbox,
        observe: Callable[[int], StoreObservation | None],
        telemetry: Telemetry,
        clock: Clock,
        *,
        public_url: str | None,
        min_students: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`observe` returns the states at a time in ms. Messages link to `public_url`, if given."""
        self._channels = channels
        self._channel_names = frozenset(channel.settings.name for channel in channels)
        self._outbox = outbox
        self._observe = observe
        self._telemetry = telemetry
        self._clock = clock
        self._public_url = public_url
        self._min_students = min_students
        self._monotonic_s = monotonic_s
        self._owner = secrets.token_hex(8)
        self._lease_until_s = 0.0
        self._next_observation_s = 0.0
        self._accepted_fields: set[str] = set()
        """Deliveries that a receiver has accepted, and that could not be removed from the outbox yet."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notifications", daemon=True)
        self._channel_threads: dict[str, threading.Thread] = {}
        telemetry.initialize_channels(self._channel_names)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()

    def stop(self) -> None:
        """End the threads, and wait at most 3 s for all; the rest is delivered after the next start.

        The lease is left to expire if a thread still runs, because the thread may be sending a message.
        """
        self._stop.set()
        deadline_s = time.monotonic() + _STOP_TIMEOUT_S
        if not _has_ended(self._thread, deadline_s):
            return
        # From here on, no thread renews the lease or starts another thread.
        if all(_has_ended(thread, deadline_s) for thread in self._channel_threads.values()):
            with suppress(AbMonitorError):
                self._outbox.release_lease(self._owner)

    def _run(self) -> None:
        last_problem = ""
        while not self._stop.is_set():
            try:
                self._take_step()
                last_problem = ""
            except AbMonitorError as error:
                # The worker waits for the same store, and logs the outage.
                log.debug("messages wait reason=%s", error)
            except Exception as error:  # A defect must not end the thread: no message would be sent any more.
                problem = f"{type(error).__name__}: {error}"
                if problem != last_problem:
                    log.exception("messages wait because of a defect")
                last_problem = problem
            self._stop.wait(_STEP_S)

    def _take_step(self) -> None:
        """Renew the lease, observe if due, and start the threads of channels with due deliveries."""
        if not self.renew_lease():
            self._telemetry.set_waiting_notifications({})
            return
        if self._monotonic_s() >= self._next_observation_s:
            self._next_observation_s = self._monotonic_s() + _OBSERVATION_INTERVAL_S
            self.record_changes()
        due = self.drop_old_deliveries()
        for channel in self._channels:
            name = channel.settings.name
            thread = self._channel_threads.get(name)
            deliveries = [delivery for delivery in due if delivery.channel == name]
            if deliveries and (thread is None or not thread.is_alive()):
                thread = threading.Thread(
                    target=self._deliver_in_thread, args=(channel, deliveries), name=f"notify {name}", daemon=True
                )
                self._channel_threads[name] = thread
                thread.start()

    def renew_lease(self) -> bool:
        """Acquire or prolong the lease; return False if another process has it. Raises `StoreUnavailable`."""
        now_s = self._monotonic_s()
        is_owner = self._outbox.renew_lease(self._owner, _LEASE_MS)
        self._lease_until_s = now_s + _LEASE_MS / 1000 if is_owner else 0.0
        return is_owner

    def record_changes(self) -> bool:
        """Observe the experiments, and write new states and messages to the outbox; return whether any were written.

        Raises `StoreUnavailable`.
        """
        version, memory = self._outbox.read_memory()
        now_ms = self._clock()
        observation = self._observe(now_ms)
        if observation is None:
            return False
        new_memory, changes = find_changes(memory, observation.experiments, observation.summary.undeclared)
        if new_memory == memory:
            return False
        deliveries = []
        for change in changes:
            channels = [
                channel.settings.name
                for channel in self._channels
                if channel.settings.receives(change.event, change.experiment)
            ]
            if channels:
                as_of_ms = _as_of_ms(change, observation)
                message = msgspec.to_builtins(self._write_message(change, observation, as_of_ms))
                message_id = derive_message_id(version, as_of_ms, change)
                deliveries += [Delivery(message_id, channel, now_ms, message) for channel in channels]
        if not self._outbox.record(version, new_memory, deliveries):
            return False
        if memory is None:
            log.info("first states recorded experiments=%d", len(new_memory.experiments))
        for change in changes:
            log.info(
                "change event=%s experiment=%s treatment=%s state=%s previous_state=%s",
                change.event,
                change.experiment,
                change.treatment,
                change.state,
                change.previous_state,
            )
        return True

    def _write_message(self, change: Change, observation: StoreObservation, as_of_ms: int) -> Message:
        """Return the message about a change; after an error, a short message without numbers."""
        try:
            return self._write_full_message(change, observation)
        except Exception:  # A defect of one text must not hold back the states and the messages of all experiments.
            log.exception("message shortened because of a defect event=%s", change.event)
            return write_short_message(change, as_of_ms, self._public_url)

    def _write_full_message(self, change: Change, observation: StoreObservation) -> Message:
        if change.event == "discovered":
            return write_discovery(_find_undeclared(change, observation), self._public_url)
        return write_message(
            change,
            observation.summary.experiments[change.experiment],
            freshness=observation.freshness.get(change.experiment),
            public_url=self._public_url,
            min_students=self._min_students,
        )

    def drop_old_deliveries(self) -> list[Delivery]:
        """Return the deliveries that are due, oldest first, after dropping those that are too old or too many.

        Raises `StoreUnavailable`.
        """
        now_ms = self._clock()
        deliveries, undecodable_fields = self._outbox.read_fields()
        for outbox_field in undecodable_fields:
            self._outbox.remove(outbox_field)
            self._count(outbox_channel(outbox_field), "dropped")
            log.error("message dropped field=%s error=not in the format of this version", outbox_field)
        excess = len(deliveries) - _MAX_DELIVERIES
        dropped = [
            delivery
            for index, delivery in enumerate(deliveries)
            if index < excess or self._is_too_old(delivery, now_ms)
        ]
        for delivery in dropped:
            self._outbox.remove(delivery.outbox_field)
            self._count(delivery.channel, "dropped")
            log.error(
                "message dropped channel=%s id=%s attempts=%d error=%s",
                delivery.channel,
                delivery.message_id,
                delivery.attempts,
                delivery.error,
            )
        dropped_fields = {delivery.outbox_field for delivery in dropped}
        waiting = [delivery for delivery in deliveries if delivery.outbox_field not in dropped_fields]
        counts = Counter(delivery.channel for delivery in waiting)
        self._telemetry.set_waiting_notifications(
            {channel.settings.name: counts[channel.settings.name] for channel in self._channels}
        )
        return [delivery for delivery in waiting if _is_due(delivery, now_ms)]

    def _is_too_old(self, delivery: Delivery, now_ms: int) -> bool:
        # A channel that is not configured any more has no attempts.
        has_been_tried = delivery.attempts >= _MIN_ATTEMPTS or delivery.channel not in self._channel_names
        return has_been_tried and delivery.created_ms < now_ms - _MAX_AGE_MS

    def _count(self, channel: str, outcome: str) -> None:
        if channel in self._channel_names:
            self._telemetry.notifications.labels(channel, outcome).inc()

    def _deliver_in_thread(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        try:
            self.deliver(channel, deliveries)
        except AbMonitorError as error:
            log.debug("messages wait channel=%s reason=%s", channel.settings.name, error)
        except Exception as error:  # noqa: BLE001  a defect must end neither the thread's channel nor the process
            # Without the text and the traceback, which may contain an address.
            log.error(  # noqa: TRY400
                "messages wait because of a defect channel=%s type=%s", channel.settings.name, type(error).__name__
            )

    def deliver(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        """Send messages to their channel while this process has the lease. Raises `StoreUnavailable`.

        1. Skip a delivery that another process has removed since the outbox was read.
        2. Send the message.
        3. Remove the delivery, or after a failure postpone the next attempt.
        """
        for delivery in deliveries:
            if self._stop.is_set() or self._monotonic_s() >= self._lease_until_s:
                return
            if delivery.outbox_field not in self._accepted_fields and not (
                self._outbox.contains(delivery) and self._try_to_send(channel, delivery)
            ):
                continue
            self._accepted_fields.add(delivery.outbox_field)
            self._outbox.remove(delivery.outbox_field)
            self._accepted_fields.discard(delivery.outbox_field)

    def _try_to_send(self, channel: Channel, delivery: Delivery) -> bool:
        """Send a message; after a failure, postpone the next attempt and return False."""
        name = channel.settings.name
        try:
            message = msgspec.convert(delivery.message, Message)
            channel.send(message, delivery.message_id, self._clock())
        except Exception as error:  # noqa: BLE001  a defect of one message must not hold back those after it
            # The text of any other error may contain the address.
            reason = str(error) if isinstance(error, DeliveryFailed) else f"defect: {type(error).__name__}"
            pause_ms = retry_pause_ms(delivery.attempts + 1)
            jitter_ms = int(pause_ms * random.uniform(-_JITTER, _JITTER))  # noqa: S311  no secret depends on it
            self._outbox.postpone(delivery, self._clock() + pause_ms + jitter_ms, reason)
            self._count(name, "failed")
            log.warning(
                "message not sent channel=%s id=%s attempt=%d error=%s",
                name,
                delivery.message_id,
                delivery.attempts + 1,
                reason,
            )
            return False
        self._count(name, "sent")
        log.info("message sent channel=%s id=%s event=%s", name, delivery.message_id, message.event)
        return True


def _has_ended(thread: threading.Thread, deadline_s: float) -> bool:
    """Return whether a thread has ended, after waiting until the deadline by `time.monotonic`."""
    if thread.is_alive():
        thread.join(max(deadline_s - time.monotonic(), 0.0))
    return not thread.is_alive()


def _is_due(delivery: Delivery, now_ms: int) -> bool:
    """Return whether the next attempt is due; a time beyond the longest pause is by a clock that was ahead."""
    return not now_ms < delivery.next_attempt_ms <= now_ms + _MAX_RETRY_MS * (1 + _JITTER)


def _find_undeclared(change: Change, observation: StoreObservation) -> UndeclaredExperiment:
    return next(experiment for experiment in observation.summary.undeclared if experiment.name == change.experiment)


def _as_of_ms(change: Change, observation: StoreObservation) -> int:
    """Return the event time of a change."""
    if change.event == "discovered":
        return _find_undeclared(change, observation).last_ms
    return next(experiment.as_of_ms for experiment in observation.experiments if experiment.name == change.experiment)
