"""The changes that the events of one batch make to one shard."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias, final

from mypy_extensions import i64

from monitor.clock import HOUR_MS
from monitor.engine.accumulator import CELL_BITS, Accumulator, TrafficAccumulator
from monitor.engine.item_counts import Counts, IndexMember
from monitor.engine.response_row import NO_RESPONSE, Contribution, ResponseRow

ChangedRow: TypeAlias = "tuple[bytes, bytes, bool]"
"""(stored id, stored bytes, whether the store does not have the row yet)."""


@final
class RowSnapshot:
    """A response and its contribution before the batch."""

    __slots__ = ("contribution", "index_members", "item_counts", "response")

    def __init__(
        self, row: ResponseRow, contribution: Contribution, item_counts: Counts, index_members: list[IndexMember]
    ) -> None:
        """Copy a row, except for its reactions."""
        self.response: Final = ResponseRow(
            row.timestamp_ms, row.arm, row.student, row.items, row.ranks, row.latency_ms, row.category
        )
        self.contribution: Final = contribution
        self.item_counts: Final = item_counts
        self.index_members: Final = index_members

    def has_same_response(self, row: ResponseRow) -> bool:
        """Return whether the row's response is unchanged except for the ranks, which only its contribution uses."""
        response = self.response
        return (
            response.arm == row.arm
            and response.timestamp_ms == row.timestamp_ms
            and response.student == row.student
            and response.items == row.items
            and response.latency_ms == row.latency_ms
            and response.category == row.category
        )


@final
class ArmChanges:
    """The changes of an arm's counts by feedback kind, and its newest times (ms; 0 if there was none)."""

    __slots__ = ("newest_event_ms", "newest_response_ms", "reactions", "responses")

    def __init__(self) -> None:
        self.reactions: dict[str, int] = {}
        """Kind → reactions."""
        self.responses: dict[str, int] = {}
        """Kind → responses with at least one."""
        self.newest_response_ms: i64 = 0
        self.newest_event_ms: i64 = 0
        """The time of the newest response or reaction."""

    def record_response(self, timestamp_ms: i64) -> None:
        """Raise both newest times to a response's."""
        self.newest_response_ms = max(self.newest_response_ms, timestamp_ms)
        self.record_event(timestamp_ms)

    def record_event(self, timestamp_ms: i64) -> None:
        """Raise the newest event time to an event's."""
        self.newest_event_ms = max(self.newest_event_ms, timestamp_ms)

    def add_kinds(self, sign: int, kinds: tuple[tuple[str, int], ...]) -> None:
        """Add or subtract a response's reactions."""
        for kind, reactions in kinds:
            self.reactions[kind] = self.reactions.get(kind, 0) + sign * reactions
            self.responses[kind] = self.responses.get(kind, 0) + sign


@final
class SkippedEvents:
    """The number of skipped events of one experiment, and the times of the first and the last."""

    __slots__ = ("events", "first_ms", "last_ms")

    def __init__(self, timestamp_ms: i64) -> None:
        """Count no event yet; the time is that of any of them."""
        self.events: i64 = 0
        self.first_ms: i64 = timestamp_ms
        self.last_ms: i64 = timestamp_ms

    def add(self, timestamp_ms: i64) -> None:
        """Count an event."""
        self.events += 1
        self.first_ms = min(self.first_ms, timestamp_ms)
        self.last_ms = max(self.last_ms, timestamp_ms)


@final
class Exposure:
    """A response that was shown to a student, and the change of the student's sums."""

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
        """The experiment's number."""
        self.timestamp_ms: Final = timestamp_ms
        self.variant: Final = variant
        self.category: Final = category
        self.difference: Final = difference
        """Of the student's sums vector; () for a response that was shown but is not the one in its row."""


@final
class Batch:
    """The changes that the events of one batch make to one shard."""

    __slots__ = (
        "accumulators", "arms", "exposures", "feedback_outcomes", "index_members", "item_counts", "item_names",
        "moved_rows", "new_rows", "oldest_dependencies_ms", "response_outcomes", "response_rows", "skipped_reactions",
        "skipped_responses", "snapshots", "student_rows", "touched_rows", "traffic",
    )  # fmt: skip

    def __init__(self) -> None:
        self.response_outcomes: list[str] = []
        """One per response event: "applied", "revised", "duplicate", "late" or "skipped"."""
        self.feedback_outcomes: list[str] = []
        """One per feedback event, in the same words."""
        self.skipped_responses: dict[str, SkippedEvents] = {}
        """Name of an experiment that is not declared → its responses."""
        self.skipped_reactions: dict[int, SkippedEvents] = {}
        """Number of an experiment that is not declared → reactions to its responses."""
        self.oldest_dependencies_ms: dict[int, int] = {}
        """Experiment number, or `NO_RESPONSE` → time of the oldest row or event that outcomes depend on."""
        self.touched_rows: list[ResponseRow] = []
        self.snapshots: dict[bytes, RowSnapshot] = {}
        """Stored id of a touched row → its state before the batch, if its response had arrived."""
        self.response_rows: list[ChangedRow] = []
        self.student_rows: dict[int, list[ChangedRow]] = {}
        """Experiment number → changed rows of students."""
        self.exposures: list[Exposure] = []
        self.accumulators: dict[int, Accumulator] = {}
        """Experiment number → changes of sums over responses and students."""
        self.traffic: dict[int, TrafficAccumulator] = {}
        """Experiment number → changes of the traffic."""
        self.arms: dict[int, ArmChanges] = {}
        self.item_counts: Counts = {}
        """Changes of items' counts."""
        self.item_names: dict[tuple[bytes, bytes], str] = {}
        """(key, item's hash) → item's id, to be stored there."""
        self.index_members: set[IndexMember] = set()
        """Members of the indexes that list the counts and names of items."""
        self.new_rows: dict[int, list[bytes]] = {}
        """Cell of an experiment number (or `NO_RESPONSE`) and an hour → ids of rows to be swept with that hour."""
        self.moved_rows: dict[int, list[bytes]] = {}
        """The same → ids of rows that no longer belong to that hour."""

    def outcomes(self) -> Counter[tuple[str, str]]:
        """Return (response or feedback, outcome) → events."""
        outcomes: Counter[tuple[str, str]] = Counter()
        for kind, kind_outcomes in (("response", self.response_outcomes), ("feedback", self.feedback_outcomes)):
            for outcome, events in Counter(kind_outcomes).items():
                outcomes[kind, outcome] = events
        return outcomes

    def arm(self, arm: int) -> ArmChanges:
        """Return the changes of an arm."""
        changes = self.arms.get(arm)
        if changes is None:
            changes = self.arms[arm] = ArmChanges()
        return changes

    def record_exposure(
        self, student: bytes, arm: i64, timestamp_ms: i64, category: i64, new: tuple[int, ...], old: tuple[int, ...]
    ) -> None:
        """Record that a response contributes the sums `new` instead of `old` to its student; () is no sums."""
        if not old:
            difference = new
        elif not new:
            difference = tuple([-number for number in old])
        else:
            difference = tuple([after - before for after, before in zip(new, old, strict=True)])
        self.exposures.append(Exposure(student, arm >> 8, timestamp_ms, arm & 255, category, difference))

    def skip_response(self, experiment: str, timestamp_ms: i64) -> None:
        """Count a response of an experiment that is not declared."""
        skipped = self.skipped_responses.get(experiment)
        if skipped is None:
            skipped = self.skipped_responses[experiment] = SkippedEvents(timestamp_ms)
        skipped.add(timestamp_ms)

    def skip_reaction(self, number: int, timestamp_ms: i64) -> None:
        """Count a reaction to a response of an experiment that is not declared."""
        skipped = self.skipped_reactions.get(number)
        if skipped is None:
            skipped = self.skipped_reactions[number] = SkippedEvents(timestamp_ms)
        skipped.add(timestamp_ms)

    def track_dependency_time(self, number: i64, timestamp_ms: i64) -> None:
        """Record that an outcome depends on a row, or on the absence of a row, of that time."""
        oldest_ms = self.oldest_dependencies_ms.get(number)
        if oldest_ms is None or timestamp_ms < oldest_ms:
            self.oldest_dependencies_ms[number] = timestamp_ms

    def track_row_dependency(self, row: ResponseRow) -> None:
        """Record that an outcome depends on a row, if it is stored."""
        if row.version:
            self.track_dependency_time(NO_RESPONSE if row.arm == NO_RESPONSE else row.arm >> 8, row.timestamp_ms)

    def add_to_hour(self, number: i64, timestamp_ms: i64, name: bytes) -> None:
        """Record that a row is swept with the hour of a time, of an experiment number or `NO_RESPONSE`."""
        _append(self.new_rows, _hour_cell(number, timestamp_ms), name)

    def move_to_hour(self, old: ResponseRow, row: ResponseRow) -> None:
        """Record that a row is swept with another hour than before, if it is another one."""
        old_cell = _hour_cell(old.arm >> 8, old.timestamp_ms)
        if old_cell != _hour_cell(row.arm >> 8, row.timestamp_ms):
            _append(self.moved_rows, old_cell, row.name)
            self.add_to_hour(row.arm >> 8, row.timestamp_ms, row.name)


def _hour_cell(number: i64, timestamp_ms: i64) -> i64:
    return number << CELL_BITS | timestamp_ms // HOUR_MS


def _append(rows: dict[int, list[bytes]], cell: i64, name: bytes) -> None:
    names = rows.get(cell)
    if names is None:
        names = rows[cell] = []
    names.append(name)
