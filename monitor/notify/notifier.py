"""The threads of a process that observe the experiments, and deliver messages about their changes.

1. The process that has the lease observes the experiments every half minute. It writes new states and messages to the
   outbox in one write, which fails if another process has written meanwhile.
2. Each channel has a thread of its own, so that a slow channel delays no other one and not the worker.
3. A delivery is removed from the outbox after the receiver has accepted the message. If the process ends in between,
   the message is sent again under the same ID.
"""

from __future__ import annotations

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

from monitor.analysis import Change, find_changes
from monitor.clock import DAY_MS, Clock
from monitor.errors import AbMonitorError
from monitor.notify.channels import Channel, DeliveryFailed
from monitor.notify.messages import Message, write_discovery, write_message
from monitor.notify.observation import StoreObservation
from monitor.pipeline import Telemetry
from monitor.state import Delivery, Outbox

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
_MAX_DELIVERIES: Final = 1_000
"""With more waiting deliveries, the oldest ones are dropped."""
_STOP_TIMEOUT_S: Final = 2.0


def retry_pause_ms(attempts: int) -> int:
    """Return the time between a failed attempt and the next one, before jitter, given the number of failed attempts.

    >>> retry_pause_ms(1), retry_pause_ms(3), retry_pause_ms(100)
    (30000, 120000, 1800000)
    """
    return int(min(_FIRST_RETRY_MS * 2 ** min(attempts - 1, 16), _MAX_RETRY_MS))


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
        telemetry.initialize_channels(channel.settings.name for channel in channels)

    def start(self) -> None:
        """Start the threads."""
        self._thread.start()

    def stop(self) -> None:
        """End the threads, and wait at most 2 s for each; the rest is delivered after the next start."""
        self._stop.set()
        for thread in (self._thread, *self._channel_threads.values()):
            if thread.is_alive():
                thread.join(_STOP_TIMEOUT_S)
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
                message = msgspec.to_builtins(self._write_message(change, observation))
                message_id = f"msg_{secrets.token_hex(12)}"
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

    def _write_message(self, change: Change, observation: StoreObservation) -> Message:
        if change.event == "discovered":
            (undeclared,) = (each for each in observation.summary.undeclared if each.name == change.experiment)
            return write_discovery(undeclared, self._public_url)
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
        deliveries = self._outbox.read_deliveries()
        excess = len(deliveries) - _MAX_DELIVERIES
        dropped = [
            delivery
            for index, delivery in enumerate(deliveries)
            if index < excess or delivery.created_ms < now_ms - _MAX_AGE_MS
        ]
        for delivery in dropped:
            self._outbox.remove(delivery)
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
            {each.settings.name: counts[each.settings.name] for each in self._channels}
        )
        return [delivery for delivery in waiting if delivery.next_attempt_ms <= now_ms]

    def _count(self, channel: str, outcome: str) -> None:
        if any(channel == each.settings.name for each in self._channels):
            self._telemetry.notifications.labels(channel, outcome).inc()

    def _deliver_in_thread(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        try:
            self.deliver(channel, deliveries)
        except AbMonitorError as error:
            log.debug("messages wait channel=%s reason=%s", channel.settings.name, error)
        except Exception:  # A defect of a channel's library must not end the process.
            log.exception("messages wait because of a defect channel=%s", channel.settings.name)

    def deliver(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        """Send messages to their channel while this process has the lease. Raises `StoreUnavailable`.

        1. Send the message.
        2. Remove the delivery, or after a failure postpone the next attempt.
        """
        for delivery in deliveries:
            if self._stop.is_set() or self._monotonic_s() >= self._lease_until_s:
                return
            if delivery.outbox_field not in self._accepted_fields and not self._try_to_send(channel, delivery):
                continue
            self._accepted_fields.add(delivery.outbox_field)
            self._outbox.remove(delivery)
            self._accepted_fields.discard(delivery.outbox_field)

    def _try_to_send(self, channel: Channel, delivery: Delivery) -> bool:
        """Send a message; after a failure, postpone the next attempt and return False."""
        name, message = channel.settings.name, msgspec.convert(delivery.message, Message)
        try:
            channel.send(message, delivery.message_id, self._clock())
        except DeliveryFailed as error:
            pause_ms = retry_pause_ms(delivery.attempts + 1)
            jitter_ms = int(pause_ms * random.uniform(-_JITTER, _JITTER))  # noqa: S311  no secret depends on it
            self._outbox.postpone(delivery, self._clock() + pause_ms + jitter_ms, str(error))
            self._count(name, "failed")
            log.warning(
                "message not sent channel=%s id=%s attempt=%d error=%s",
                name,
                delivery.message_id,
                delivery.attempts + 1,
                error,
            )
            return False
        self._count(name, "sent")
        log.info("message sent channel=%s id=%s event=%s", name, delivery.message_id, message.event)
        return True
