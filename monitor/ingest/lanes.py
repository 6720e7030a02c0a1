"""Lanes between the shards of a store: what one has sent to another on behalf of one partition, in order.

`Keys` names what is stored of them; `ShardedWriter` sends, applies and settles.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

from monitor.store import RedisStore, Sent
from monitor.store.connection import unavailable

Lane = tuple[int, int, bytes]
"""(source, target, first partition of the batches)."""
Ends = tuple[bytes, bytes]
"""(the last entry sent, the last entry applied)."""

_UNTOUCHED_S: Final = 1.0


def sent_field(target: int, lane: bytes) -> bytes:
    """Return the field of what was sent last."""
    return b">%d:%b" % (target, lane)


def applied_field(source: int, lane: bytes) -> bytes:
    """Return the field of what was applied last."""
    return b"<%d:%b" % (source, lane)


def outbox(store: RedisStore, target: int, lane: bytes) -> list[tuple[Sent, bytes]]:
    """Return the entries that are kept of what was sent to a shard, oldest first, and what each says."""
    with unavailable(store.settings):
        found = store.client.xrange(store.keys.outbox(target, lane))
    return [(Sent(fields[b"p"], entry), fields[b"c"]) for entry, fields in found]


def journal(store: RedisStore, source: int, lane: bytes) -> dict[bytes, tuple[Sent, bytes]]:
    """Return the entries that are kept of what was applied from a shard, and what each says."""
    with unavailable(store.settings):
        found = store.client.xrange(store.keys.journal(source, lane))
    return {fields[b"i"]: (Sent(fields[b"p"], fields[b"i"]), fields[b"c"]) for _, fields in found}


class Unsettled:
    """Which lanes have something on the way, and for how long it has been the same."""

    def __init__(self) -> None:
        self._since: dict[Lane, tuple[Ends, float]] = {}

    def look(self, fields: Sequence[Mapping[bytes, bytes]]) -> dict[Lane, Ends]:
        """Return where the ends differ, by what each shard says."""
        found = {}
        for source, target, lane in _all(fields):
            sent = fields[source].get(sent_field(target, lane), b"")
            applied = fields[target].get(applied_field(source, lane), b"")
            if sent != applied:
                found[source, target, lane] = sent, applied
        now = time.monotonic()
        before = self._since
        self._since = {
            lane: before[lane] if lane in before and before[lane][0] == ends else (ends, now)
            for lane, ends in found.items()
        }
        return found

    def stands(self, lane: Lane) -> bool:
        """Return whether nobody has touched a lane for a second, as far as was looked."""
        return time.monotonic() - self._since[lane][1] >= _UNTOUCHED_S

    @staticmethod
    def wait() -> None:
        """Give whoever may be at work on them the time to finish."""
        time.sleep(_UNTOUCHED_S)


def _all(fields: Sequence[Mapping[bytes, bytes]]) -> set[Lane]:
    found = set()
    for shard, own in enumerate(fields):
        for name in own:
            other, _, lane = name[1:].partition(b":")
            found.add((shard, int(other), lane) if name.startswith(b">") else (int(other), shard, lane))
    return found
