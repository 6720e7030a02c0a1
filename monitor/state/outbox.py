"""The outbox in the store: messages that wait for delivery, and the states that the messages have reported.

The keys belong to no generation, so a rebuild neither loses nor repeats a message; `ab-monitor reset` deletes them.

    notified        hash: version → number of changes of the states; states → JSON, see `NotificationMemory`
    outbox          hash: ID of a message and name of a channel → JSON, see `Delivery`
    outbox_lease    name of the process that observes and delivers

States and messages are written by one script, which compares the version of the states: of several processes that see
the same change, one writes the message. The lease only saves work and keeps the order of the messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from monitor.analysis import NotificationMemory
from monitor.state.keys import ACTIVE_GENERATION_KEY, NOTIFIED_KEY, OUTBOX_KEY, OUTBOX_LEASE_KEY
from monitor.state.leases import release_lease, renew_lease
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore

_SEPARATOR: Final = " "
_MAX_ERROR_LENGTH: Final = 300


def outbox_channel(outbox_field: str) -> str:
    """Return the channel in a field of the hash `outbox`."""
    return outbox_field.partition(_SEPARATOR)[2]


class Delivery(msgspec.Struct, frozen=True):
    """A message that a channel has not received yet; the names of the fields are JSON keys."""

    message_id: str
    """The same for all channels and attempts."""
    channel: str
    created_ms: int
    message: dict[str, Any]
    """The content, as it was when the change was observed: see `monitor.notify.messages`."""
    attempts: int = 0
    """Number of failed attempts."""
    next_attempt_ms: int = 0
    error: str = ""
    """Why the last attempt has failed; empty before the first one."""

    @property
    def outbox_field(self) -> str:
        """The field of the hash `outbox`."""
        return f"{self.message_id}{_SEPARATOR}{self.channel}"


_encode = msgspec.json.Encoder().encode
_delivery_decoder = msgspec.json.Decoder(Delivery)
_memory_decoder = msgspec.json.Decoder(NotificationMemory)


class Outbox:
    """Reads and writes the outbox. All methods raise `StoreUnavailable`. Several threads may use the same outbox."""

    def __init__(self, store: ShardedStore) -> None:
        self._store = store

    def read_memory(self) -> tuple[int, NotificationMemory | None]:
        """Return the version of the reported states and the states; 0 and None if there are none yet.

        States in the format of another version count as absent: the next observation then only records the states.
        """
        with translating_errors(self._store.settings):
            version, states = self._store.client.hmget(NOTIFIED_KEY, ["version", "states"])
        try:
            return int(version or 0), None if states is None else _memory_decoder.decode(states)
        except msgspec.MsgspecError:
            return int(version), None

    def record(self, version: int, memory: NotificationMemory, deliveries: Sequence[Delivery]) -> bool:
        """Store the states and the messages in one write, if the stored states have the version; return whether."""
        shard = self._store.first_shard
        keys = [ACTIVE_GENERATION_KEY, shard.keys.meta, NOTIFIED_KEY, OUTBOX_KEY]
        arguments: list[Any] = [self._store.active_generation, version, _encode(memory)]
        for delivery in deliveries:
            arguments += [delivery.outbox_field, _encode(delivery)]
        with translating_errors(self._store.settings):
            return bool(shard.run_script(shard.scripts.record_messages, keys, arguments))

    def read_deliveries(self) -> list[Delivery]:
        """Return the deliveries that wait, oldest first."""
        return self.read_fields()[0]

    def read_fields(self) -> tuple[list[Delivery], list[str]]:
        """Return the deliveries that wait, oldest first, and the fields that are not in the format of this version."""
        with translating_errors(self._store.settings):
            stored: Mapping[bytes, bytes] = self._store.client.hgetall(OUTBOX_KEY)
        deliveries, undecodable_fields = [], []
        for field, content in stored.items():
            try:
                deliveries.append(_delivery_decoder.decode(content))
            except msgspec.MsgspecError:
                undecodable_fields.append(field.decode(errors="replace"))
        return sorted(deliveries, key=lambda delivery: (delivery.created_ms, delivery.outbox_field)), undecodable_fields

    def contains(self, delivery: Delivery) -> bool:
        """Return whether no process has removed a delivery yet."""
        # Not HEXISTS: the documented rights of the store's user lack the command.
        with translating_errors(self._store.settings):
            return self._store.client.hget(OUTBOX_KEY, delivery.outbox_field) is not None

    def remove(self, outbox_field: str) -> None:
        """Delete a delivery that has succeeded or is given up."""
        with translating_errors(self._store.settings):
            self._store.client.hdel(OUTBOX_KEY, outbox_field)

    def postpone(self, delivery: Delivery, next_attempt_ms: int, error: str) -> None:
        """Store a failed attempt, unless the delivery has been removed meanwhile."""
        postponed_delivery = msgspec.structs.replace(
            delivery,
            attempts=delivery.attempts + 1,
            next_attempt_ms=next_attempt_ms,
            error=error[:_MAX_ERROR_LENGTH],
        )
        shard = self._store.first_shard
        with translating_errors(self._store.settings):
            shard.run_script(
                shard.scripts.postpone_delivery, [OUTBOX_KEY], [delivery.outbox_field, _encode(postponed_delivery)]
            )

    def renew_lease(self, owner: str, duration_ms: int) -> bool:
        """Acquire or prolong the lease; return False if another process has it."""
        return renew_lease(self._store, OUTBOX_LEASE_KEY, owner, duration_ms)

    def release_lease(self, owner: str) -> None:
        """Delete the lease if the owner has it."""
        release_lease(self._store, OUTBOX_LEASE_KEY, owner)
