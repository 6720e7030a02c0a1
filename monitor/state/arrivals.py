"""Counts of arriving events by topic and time of arrival, so that rejected and skipped events are visible.

The counts change in the same commit as the positions, so every record counts once. A hash `StoreKeys.arrivals` has the
counts of an hour, in slots of five minutes. Its fields are `SLOT:TOPIC:KIND:DETAIL`, where SLOT is the number of the
slot within the hour. The kinds are

    received                records that a worker has read
    ignored                 records without events that are not rejected; DETAIL is the reason, such as tombstone
    rejected                DETAIL is the reason and, if known, the field
    outcome                 DETAIL is an outcome of `BatchChanges`, such as skipped or late
    undeclared              responses that do not count; DETAIL is a JSON list of the names of experiment and variant;
                            the variant is "" if the experiment is undeclared; names beyond a limit are ["", ""]
    unmatched               feedback that expired without a response
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from monitor.clock import HOUR_MS
from monitor.state.keys import StoreKeys
from monitor.state.record_reader import read_in_transaction
from monitor.state.redis_connection import hash_from_reply
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_records import Commit, ExpiredRange

SLOT_MS: Final = 300_000
_KEPT_HOURS: Final = 48
ArrivalKind = Literal["received", "ignored", "rejected", "outcome", "undeclared", "unmatched"]


class ArrivalCount(NamedTuple):
    """What a count of arriving events counts."""

    topic: str
    kind: ArrivalKind
    detail: str = ""


@dataclass(slots=True)
class TopicArrivals:
    """Counts of the events of a topic that arrived in a period."""

    received: int = 0
    unmatched: int = 0
    ignored: Counter[str] = field(default_factory=Counter)
    """Reason, such as tombstone → records without events that were not rejected."""
    rejected: Counter[str] = field(default_factory=Counter)
    """Reason, followed by the field if known → rejected records."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Outcome, such as skipped or late → events."""
    undeclared: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(experiment, variant, or "" if the experiment is undeclared) → responses; ("", "") stands for further names."""

    @property
    def considered(self) -> int:
        """The received records without the ignored ones."""
        return self.received - self.ignored.total()

    def add(self, kind: str, detail: str, events: int) -> None:
        """Add a stored count; a kind of a later version is ignored."""
        if kind == "received":
            self.received += events
        elif kind == "ignored":
            self.ignored[detail] += events
        elif kind == "unmatched":
            self.unmatched += events
        elif kind == "rejected":
            self.rejected[detail] += events
        elif kind == "outcome":
            self.outcomes[detail] += events
        elif kind == "undeclared":
            experiment, variant = json.loads(detail)
            self.undeclared[experiment, variant] += events


class ArrivalLog:
    """Counts of the events that arrived in the last hours, summed over the shards."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[int, ArrivalCount]] = Counter()
        """(begin of the slot in ms, what is counted) → events."""

    def add_hour(self, hour: int, counts: Mapping[bytes, bytes]) -> None:
        """Add the hash of an hour."""
        for name, events in counts.items():
            slot, topic, kind, detail = name.decode().split(":", 3)
            count = ArrivalCount(topic, kind, detail)  # type: ignore[arg-type]
            self._counts[hour * HOUR_MS + int(slot) * SLOT_MS, count] += int(events)

    def since(self, from_ms: int) -> dict[str, TopicArrivals]:
        """Return the counts by topic of all slots that end after a time."""
        by_topic: dict[str, TopicArrivals] = {}
        for (slot_ms, count), events in self._counts.items():
            if slot_ms + SLOT_MS > from_ms:
                by_topic.setdefault(count.topic, TopicArrivals()).add(count.kind, count.detail, events)
        return dict(sorted(by_topic.items()))


def arrival_field(count: ArrivalCount, at_ms: int) -> bytes:
    """Return the field of `StoreKeys.arrivals` for events that arrive at a time.

    >>> arrival_field(ArrivalCount("chatbot.responses", "received"), at_ms=11 * 60_000)
    b'2:chatbot.responses:received:'
    """
    slot = at_ms % HOUR_MS // SLOT_MS
    return f"{slot}:{count.topic}:{count.kind}:{count.detail}".encode()


def add_arrivals(commit: Commit, keys: StoreKeys, counts: Mapping[ArrivalCount, int], at_ms: int) -> None:
    """Append the counts of events that arrived at a time to a commit."""
    hour = at_ms // HOUR_MS
    for count, events in counts.items():
        commit.counter_increments[keys.arrivals(hour), arrival_field(count, at_ms)] += events
    if counts:
        commit.index_members.add((keys.arrival_index, hour))


def expired_arrivals(keys: StoreKeys, now_ms: int) -> ExpiredRange:
    """Return the hours that are no longer kept."""
    return ExpiredRange(keys.arrival_index, lambda hour: [keys.arrivals(hour)], now_ms // HOUR_MS - _KEPT_HOURS)


def read_arrivals(store: ShardedStore, from_ms: int, until_ms: int) -> ArrivalLog:
    """Return the counts of the hours of a period. Raises `StoreUnavailable`."""
    log = ArrivalLog()
    hours = range(from_ms // HOUR_MS, until_ms // HOUR_MS + 1)
    for shard in store:
        replies = read_in_transaction(shard, [("HGETALL", shard.keys.arrivals(hour)) for hour in hours])
        for hour, counts in zip(hours, map(hash_from_reply, replies), strict=True):
            log.add_hour(hour, counts)
    return log
