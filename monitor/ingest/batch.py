"""What the events of one batch change on one shard, while it is worked out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final, final

from librt.vecs import vec
from mypy_extensions import i64

from monitor.engine.accumulator import CELL_BITS, Accumulator
from monitor.engine.response_row import NO_RESPONSE, Contribution, ResponseRow
from monitor.engine.traffic_accumulator import TrafficAccumulator
from monitor.ingest.experiment import HOUR_MS
from monitor.ingest.items import Counts, ItemCounts

_LOW: Final = 7
_NOTHING: Final[Counts] = {}
_NOWHERE: Final[list[tuple[bytes, int]]] = []


@final
class Before:
    """What a row contributed before the batch."""

    __slots__ = ("arm", "category", "counted", "items", "latency_ms", "stamps", "student", "timestamp_ms", "value")

    def __init__(self, row: ResponseRow, value: Contribution, items: ItemCounts | None) -> None:
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

    def stands(self, row: ResponseRow) -> bool:
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
class Arm:
    """What changes of a variant besides its sums."""

    __slots__ = ("answered", "event_ms", "kinds", "response_ms")

    def __init__(self) -> None:
        """Begin with nothing."""
        self.kinds: dict[str, int] = {}
        """Kind → reactions."""
        self.answered: dict[str, int] = {}
        """Kind → responses with at least one."""
        self.response_ms: i64 = 0
        """When its newest response was, and below its newest event of any kind; 0 if there was none."""
        self.event_ms: i64 = 0

    def saw_response(self, timestamp_ms: i64) -> None:
        """Note a response's time."""
        self.response_ms = max(self.response_ms, timestamp_ms)
        self.event_ms = max(self.event_ms, timestamp_ms)

    def saw_event(self, timestamp_ms: i64) -> None:
        """Note a reaction's time."""
        self.event_ms = max(self.event_ms, timestamp_ms)

    def count(self, sign: int, kinds: tuple[tuple[str, int], ...]) -> None:
        """Add a response's reactions, or take them away."""
        for kind, reactions in kinds:
            self.kinds[kind] = self.kinds.get(kind, 0) + sign * reactions
            self.answered[kind] = self.answered.get(kind, 0) + sign


@final
class Skipped:
    """Events that a batch passes over, because the configuration does not have their experiment."""

    __slots__ = ("events", "first_ms", "last_ms")

    def __init__(self, timestamp_ms: i64) -> None:
        """Begin with none, at the time of the first one."""
        self.events: i64 = 0
        self.first_ms: i64 = timestamp_ms
        self.last_ms: i64 = timestamp_ms

    def add(self, timestamp_ms: i64) -> None:
        """Count one."""
        self.events += 1
        self.first_ms = min(self.first_ms, timestamp_ms)
        self.last_ms = max(self.last_ms, timestamp_ms)


@final
class Exposure:
    """A response that was shown to a student, with what it changes of the student's sums."""

    __slots__ = ("category", "difference", "experiment", "student", "timestamp_ms", "variant")

    def __init__(
        self,
        student: bytes,
        experiment: int,
        timestamp_ms: int,
        variant: int,
        category: int,
        difference: tuple[int, ...],
    ) -> None:
        self.student: Final = student
        self.experiment: Final = experiment
        """Its number."""
        self.timestamp_ms: Final = timestamp_ms
        self.variant: Final = variant
        self.category: Final = category
        self.difference: Final = difference
        """Of the student's sums; empty for a response that was shown but replaced by another one under its id."""


@final
@dataclass(slots=True)
class Batch:
    """What the events of one batch change on one shard."""

    items: dict[int, ItemCounts]
    """What counts the items of experiments, by their numbers."""
    exposures: list[Exposure] = field(default_factory=list)
    rows: list[ResponseRow] = field(default_factory=list)
    """Those that are touched."""
    before: dict[bytes, Before] = field(default_factory=dict)
    """Name of a row that it touches → what that contributed, if it had its response already."""
    tallies: dict[int, Accumulator] = field(default_factory=dict)
    traffic: dict[int, TrafficAccumulator] = field(default_factory=dict)
    """Both by experiment number."""
    tallied: i64 = NO_RESPONSE
    tally: Accumulator = field(init=False)
    """The tally that was used last, and whose it is."""
    arms: dict[int, Arm] = field(default_factory=dict)
    arms_at: vec[i64] = field(init=False)
    arms_used: list[Arm] = field(init=False)
    """Those that were used last, by their last bits, and which they are."""
    counts: Counts = field(default_factory=dict)
    """What changes of the counts of items."""
    stamps: set[tuple[bytes, int]] = field(default_factory=set)
    """The indexes that name them, and their places there."""
    names: dict[tuple[bytes, bytes], tuple[str, bytes, int]] = field(default_factory=dict)
    """(key, item) → its id, the index that names the key, its place there."""
    notes: dict[int, list[bytes]] = field(default_factory=dict)
    """Cell of an experiment's number (`NO_RESPONSE` for none) and an hour → new rows."""
    moved: dict[int, list[bytes]] = field(default_factory=dict)
    """The same → rows that are noted there and belong elsewhere now."""
    cell: i64 = -1
    """That of the row noted last, and what was noted there; -1 would be of no time."""
    noted: list[bytes] = field(default_factory=list)
    reached: dict[int, int] = field(default_factory=dict)
    """Number of an experiment, or `NO_RESPONSE` → time of the oldest row or event of it that outcomes rest on."""
    reaching: i64 = -2
    reaches_ms: i64 = 0
    """Of those the one that was looked at last; -2 would be of none."""
    responses: list[str] = field(default_factory=list)
    """Their outcomes."""
    feedback: list[str] = field(default_factory=list)
    skipped_responses: dict[str, Skipped] = field(default_factory=dict)
    """By the name of their experiment, which the configuration does not have."""
    skipped_reactions: dict[int, Skipped] = field(default_factory=dict)
    """By the number of the experiment of their response."""

    def __post_init__(self) -> None:
        """Begin without an arm."""
        self.arms_at = vec[i64]([-1] * (_LOW + 1))
        self.arms_used = [Arm()] * (_LOW + 1)

    def expose(
        self, student: bytes, arm: i64, timestamp_ms: i64, category: i64, now: tuple[int, ...], was: tuple[int, ...]
    ) -> None:
        """Record that a response contributes the sums `now` instead of `was` to its student; () is nothing."""
        if not was:
            difference = now
        elif not now:
            difference = tuple([-number for number in was])
        else:
            difference = tuple([new - old for new, old in zip(now, was, strict=True)])
        self.exposures.append(Exposure(student, arm >> 8, timestamp_ms, arm & 255, category, difference))

    def skip_response(self, experiment: str, timestamp_ms: i64) -> None:
        """Note a response of an experiment that the configuration does not have."""
        known = self.skipped_responses.get(experiment)
        if known is None:
            known = self.skipped_responses[experiment] = Skipped(timestamp_ms)
        known.add(timestamp_ms)

    def skip_reaction(self, number: int, timestamp_ms: i64) -> None:
        """Note a reaction to a response of an experiment that the configuration does not have."""
        known = self.skipped_reactions.get(number)
        if known is None:
            known = self.skipped_reactions[number] = Skipped(timestamp_ms)
        known.add(timestamp_ms)

    def reach(self, number: i64, timestamp_ms: i64) -> None:
        """Note that what becomes of an event rests on a row, or on there being none, of that time."""
        if number == self.reaching and timestamp_ms >= self.reaches_ms:
            return
        oldest = self.reached.get(number)
        if oldest is None or timestamp_ms < oldest:
            oldest = self.reached[number] = timestamp_ms
        self.reaching = number
        self.reaches_ms = oldest

    def reach_row(self, row: ResponseRow) -> None:
        """Note the same of a row that the store has."""
        if row.version:
            self.reach(NO_RESPONSE if row.arm == NO_RESPONSE else row.arm >> 8, row.timestamp_ms)

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Return (response or feedback, outcome) → events."""
        kinds = (("response", self.responses), ("feedback", self.feedback))
        return Counter({(kind, each): seen.count(each) for kind, seen in kinds for each in set(seen)})

    def of(self, arm: int) -> Arm:
        """Return what changes of an arm."""
        place: i64 = arm & _LOW
        if self.arms_at[place] == arm:
            return self.arms_used[place]
        found = self.arms.get(arm)
        if found is None:
            found = self.arms[arm] = Arm()
        self.arms_at[place] = arm
        self.arms_used[place] = found
        return found

    def move(self, row: ResponseRow, before: Before) -> None:
        """Note a row that was noted for the sweep elsewhere, and that it is no longer there, if it is another hour."""
        was = _cell(before.arm >> 8, before.timestamp_ms)
        if was != _cell(row.arm >> 8, row.timestamp_ms):
            self.moved.setdefault(was, []).append(row.name)
            self.note(row.arm >> 8, row.timestamp_ms, row.name)

    def note(self, number: i64, timestamp_ms: i64, key: bytes) -> None:
        """Note a row for the sweep, under its experiment's number or `NO_RESPONSE`."""
        cell = _cell(number, timestamp_ms)
        if cell != self.cell:
            self.cell = cell
            known = self.notes.get(cell)
            if known is None:
                known = self.notes[cell] = []
            self.noted = known
        self.noted.append(key)


def _cell(number: i64, timestamp_ms: i64) -> i64:
    return number << CELL_BITS | timestamp_ms // HOUR_MS
