"""What the events of one batch change, while it is worked out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, final

from monitor.attribution import Row, Value
from monitor.events import Feedback, Response
from monitor.identity import Identities
from monitor.ingest.experiment import HOUR_MS
from monitor.ingest.items import Counts, ItemCounts
from monitor.ingest.students import Shown
from monitor.store.keys import shard_of
from monitor.tally import CELL_BITS, Tally
from monitor.traffic import Traffic

EVENT: Final = 1
"""Besides twice the arm, in the place of the newest event of any kind instead of the newest response."""
_NOTHING: Final[Counts] = {}
_NOWHERE: Final[list[tuple[bytes, int]]] = []


@final
class Keyed:
    """Events, each list beside one of the stored ids of their responses."""

    __slots__ = ("answered", "feedback", "names", "responses")

    def __init__(self) -> None:
        """Begin with none."""
        self.names: list[bytes] = []
        """Of the responses."""
        self.responses: list[Response] = []
        self.answered: list[bytes] = []
        """Of the responses that feedback is about."""
        self.feedback: list[Feedback] = []

    @classmethod
    def of(cls, identities: Identities, responses: Sequence[Response], feedback: Sequence[Feedback]) -> Keyed:
        """Return the events with the ids."""
        events = cls()
        events.responses = list(responses)
        events.feedback = list(feedback)
        events.names = [identities.response(event.response_id) for event in events.responses]
        events.answered = [identities.response(event.response_id) for event in events.feedback]
        return events

    def by_shard(self, count: int) -> list[Keyed]:
        """Return the events of each of so many shards."""
        parts = [Keyed() for _ in range(count)]
        for at, name in enumerate(self.names):
            part = parts[shard_of(name, count)]
            part.names.append(name)
            part.responses.append(self.responses[at])
        for at, name in enumerate(self.answered):
            part = parts[shard_of(name, count)]
            part.answered.append(name)
            part.feedback.append(self.feedback[at])
        return parts


@final
class Before:
    """What a row contributed before the batch."""

    __slots__ = ("arm", "category", "counted", "items", "latency_ms", "stamps", "student", "timestamp_ms", "value")

    def __init__(self, row: Row, value: Value, items: ItemCounts | None) -> None:
        """Take it from the row."""
        self.arm = row.arm
        self.timestamp_ms = row.timestamp_ms
        self.student = row.student
        self.items = row.items
        self.latency_ms = row.latency_ms
        self.category = row.category
        self.value = value
        self.counted = _NOTHING
        self.stamps = _NOWHERE
        if items is not None:
            self.counted = items.of(row)
            self.stamps = list(items.stamps(row))

    def stands(self, row: Row) -> bool:
        """Return whether the row still has the same response: only its reactions may be others."""
        return (
            self.arm == row.arm
            and self.timestamp_ms == row.timestamp_ms
            and self.student == row.student
            and self.items == row.items
            and self.latency_ms == row.latency_ms
            and self.category == row.category
        )


@final
@dataclass(slots=True)
class Batch:
    """What the events of one batch change."""

    rows: list[Row] = field(default_factory=list)
    """Those it touches."""
    before: dict[bytes, Before] = field(default_factory=dict)
    """Name of a row that it touches → what that contributed, if it had its response already."""
    shown: list[Shown] = field(default_factory=list)
    """What it means for students."""
    tallies: dict[int, Tally] = field(default_factory=dict)
    traffic: dict[int, Traffic] = field(default_factory=dict)
    """Both by experiment number."""
    kinds: dict[tuple[int, str], int] = field(default_factory=dict)
    """(arm, kind) → reactions."""
    answered: dict[tuple[int, str], int] = field(default_factory=dict)
    """(arm, kind) → responses with at least one."""
    counts: Counts = field(default_factory=dict)
    """What changes of the counts of items."""
    stamps: set[tuple[bytes, int]] = field(default_factory=set)
    """The indexes that name them, and their places there."""
    names: dict[tuple[bytes, bytes], tuple[str, bytes, int]] = field(default_factory=dict)
    """(key, item) → its id, the index that names the key, its place there."""
    latest: dict[int, int] = field(default_factory=dict)
    """2 · arm, or 2 · arm + `EVENT` → newest time."""
    notes: dict[int, list[bytes]] = field(default_factory=dict)
    """Cell of an experiment's number (`PENDING` for none) and an hour → new rows."""
    responses: dict[str, int] = field(default_factory=dict)
    """Outcome → responses."""
    feedback: dict[str, int] = field(default_factory=dict)

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Return (response or feedback, outcome) → events."""
        found = Counter({("response", outcome): events for outcome, events in self.responses.items()})
        found.update({("feedback", outcome): events for outcome, events in self.feedback.items()})
        return found

    def newest(self, place: int, timestamp_ms: int) -> None:
        """Note an event's time."""
        if timestamp_ms > self.latest.get(place, 0):
            self.latest[place] = timestamp_ms

    def note(self, number: int, timestamp_ms: int, key: bytes) -> None:
        """Note a row for the sweep, under its experiment's number or `PENDING`."""
        cell = number << CELL_BITS | timestamp_ms // HOUR_MS
        noted = self.notes.get(cell)
        if noted is None:
            self.notes[cell] = [key]
        else:
            noted.append(key)
