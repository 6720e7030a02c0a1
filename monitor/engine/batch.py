"""Records of the changes that a batch of events makes to the rows and sums of a shard."""

from __future__ import annotations

from collections import Counter
from typing import Final, TypeAlias, final

from mypy_extensions import i64

from monitor.clock import HOUR_MS
from monitor.engine.accumulator import PERIOD_BITS, MetricAccumulator, TrafficAccumulator
from monitor.engine.item_counts import FieldCounts, IndexMember
from monitor.engine.response_row import MISSING, NO_RESPONSE, Contribution, ResponseRow
from monitor.metrics import DELAY_BOUNDS_MS

EncodedRow: TypeAlias = "tuple[bytes, bytes, bool]"
"""(stored id, stored bytes, whether the row is new to the store)."""


@final
class RowState:
    """The state of a response row before the batch: response, contribution and item counts."""

    __slots__ = ("contribution", "index_members", "item_counts", "response")

    def __init__(
        self, row: ResponseRow, contribution: Contribution, item_counts: FieldCounts, index_members: list[IndexMember]
    ) -> None:
        """Copy a row without reactions."""
        self.response: Final = ResponseRow(
            row.timestamp_ms,
            row.variant_key,
            row.student_hash,
            row.item_hashes,
            row.ranks,
            row.latency_ms,
            row.category,
            session=row.session,
        )
        self.contribution: Final = contribution
        self.item_counts: Final = item_counts
        self.index_members: Final = index_members

    def has_same_response(self, row: ResponseRow) -> bool:
        """Return whether a row still has the same response, except for the ranks.

        Ranks affect only contributions.
        """
        response = self.response
        return (
            response.variant_key == row.variant_key
            and response.timestamp_ms == row.timestamp_ms
            and response.student_hash == row.student_hash
            and response.item_hashes == row.item_hashes
            and response.latency_ms == row.latency_ms
            and response.category == row.category
            and response.session == row.session
        )


@final
class VariantChanges:
    """Changes of a variant's reaction counts, and the newest event times (ms; 0 without events in the batch)."""

    __slots__ = (
        "delay_counts",
        "newest_event_ms",
        "newest_response_ms",
        "reactions_by_kind",
        "responses_by_kind",
        "uncounted_reactions",
    )

    def __init__(self) -> None:
        self.reactions_by_kind: dict[str, int] = {}
        """Feedback kind → change of the number of reactions."""
        self.responses_by_kind: dict[str, int] = {}
        """Feedback kind → change of the number of responses with a reaction of this kind."""
        self.delay_counts: dict[int, int] = {}
        """Class of `DELAY_BOUNDS_MS` → events that arrived with such a delay."""
        self.uncounted_reactions: dict[str, int] = {}
        """Reason why reactions do not count → change of their number."""
        self.newest_response_ms: i64 = 0
        self.newest_event_ms: i64 = 0
        """Time of the newest response or reaction."""

    def record_response(self, timestamp_ms: i64) -> None:
        """Raise both newest times to the time of a response, if later."""
        self.newest_response_ms = max(self.newest_response_ms, timestamp_ms)
        self.record_event(timestamp_ms)

    def record_event(self, timestamp_ms: i64) -> None:
        """Raise the newest event time to the time of an event, if later."""
        self.newest_event_ms = max(self.newest_event_ms, timestamp_ms)

    def record_delay(self, delay_ms: int) -> None:
        """Count an event by the delay of its arrival; an unknown delay is not counted."""
        if delay_ms >= 0:
            delay_class = 0
            for bound_ms in DELAY_BOUNDS_MS:
                delay_class += int(delay_ms > bound_ms)
            self.delay_counts[delay_class] = self.delay_counts.get(delay_class, 0) + 1

    def add_reaction_counts(self, sign: int, contribution: Contribution) -> None:
        """Add or subtract the numbers of reactions of a response, by kind, or by the reason why they do not count."""
        for reason, count in contribution.uncounted_reactions:
            self.uncounted_reactions[reason] = self.uncounted_reactions.get(reason, 0) + sign * count
        for kind, count in contribution.reaction_counts:
            self.reactions_by_kind[kind] = self.reactions_by_kind.get(kind, 0) + sign * count
            self.responses_by_kind[kind] = self.responses_by_kind.get(kind, 0) + sign


@final
class SkippedEventCount:
    """The number of skipped events of an experiment, and the times of the oldest and newest event."""

    __slots__ = ("events", "first_ms", "last_ms")

    def __init__(self, timestamp_ms: i64) -> None:
        """Create a count of zero; `timestamp_ms` is the time of any skipped event."""
        self.events: i64 = 0
        self.first_ms: i64 = timestamp_ms
        self.last_ms: i64 = timestamp_ms

    def add(self, timestamp_ms: i64) -> None:
        """Count an event, given the time of the event."""
        self.events += 1
        self.first_ms = min(self.first_ms, timestamp_ms)
        self.last_ms = max(self.last_ms, timestamp_ms)


@final
class StudentChange:
    """The change of a student's row by a response: a difference of the sums, and possibly a new first exposure.

    Without a difference, the response can only change the first exposure.
    """

    __slots__ = ("category", "difference", "experiment_number", "session", "student_hash", "timestamp_ms", "variant")

    def __init__(
        self,
        student: bytes,
        experiment: int,
        timestamp_ms: int,
        variant: int,
        category: int,
        difference: tuple[int, ...],
        session: int,
    ) -> None:
        self.student_hash: Final = student
        self.experiment_number: Final = experiment
        self.timestamp_ms: Final = timestamp_ms
        self.variant: Final = variant
        self.category: Final = category
        self.difference: Final = difference
        """Change of the student's sums vector; () for a response with the id of an earlier response."""
        self.session: Final = session
        """See `ResponseRow.session`."""


@final
class BatchChanges:
    """All changes that a batch of events makes to the rows and sums of a shard."""

    __slots__ = (
        "changed_rows",
        "expiry_additions",
        "expiry_removals",
        "feedback_outcomes",
        "index_members",
        "item_count_changes",
        "item_ids",
        "late_responses",
        "metric_accumulators",
        "oldest_dependencies_ms",
        "previous_states",
        "response_outcomes",
        "response_rows",
        "skipped_reactions",
        "skipped_responses",
        "student_changes",
        "student_rows",
        "traffic_accumulators",
        "variant_changes",
    )

    def __init__(self) -> None:
        self.response_outcomes: list[str] = []
        """For each response event "applied", "revised", "duplicate", "late", "skipped", or in a backfill "ignored"."""
        self.feedback_outcomes: list[str] = []
        """For each feedback event one of the same outcomes."""
        self.skipped_responses: dict[tuple[str, str], SkippedEventCount] = {}
        """Names of an undeclared experiment and a variant → count of the responses; "" for an unknown variant."""
        self.skipped_reactions: dict[int, SkippedEventCount] = {}
        """Number of an undeclared experiment → count of the reactions to its responses."""
        self.oldest_dependencies_ms: dict[int, int] = {}
        """Experiment number or `NO_RESPONSE` → time of the oldest row or event that outcomes depend on."""
        self.changed_rows: list[ResponseRow] = []
        """Cached rows of responses that the batch changes."""
        self.previous_states: dict[bytes, RowState] = {}
        """Stored id of a changed row → its state before the batch; only rows whose response had arrived."""
        self.response_rows: list[EncodedRow] = []
        """The changed rows of responses, encoded."""
        self.student_rows: dict[int, list[EncodedRow]] = {}
        """Experiment number → changed rows of students, encoded."""
        self.student_changes: list[StudentChange] = []
        self.metric_accumulators: dict[int, MetricAccumulator] = {}
        """Experiment number → changes of sums over responses and students."""
        self.traffic_accumulators: dict[int, TrafficAccumulator] = {}
        """Experiment number → changes of the counts of traffic."""
        self.variant_changes: dict[int, VariantChanges] = {}
        """Variant key → changes of the reaction counts and newest event times."""
        self.item_count_changes: FieldCounts = {}
        """Changes of the counts of items."""
        self.item_ids: dict[tuple[bytes, bytes], str] = {}
        """(key, hash of an item) → id of the item, to be stored under this key and hash."""
        self.index_members: set[IndexMember] = set()
        """Members of the indexes of item counts and item ids."""
        self.late_responses: dict[int, int] = {}
        """Variant key → late responses."""
        self.expiry_additions: dict[int, list[bytes]] = {}
        """Cell of an experiment number (or `NO_RESPONSE`) and an hour → stored ids of rows that now expire then."""
        self.expiry_removals: dict[int, list[bytes]] = {}
        """Cell of an experiment number and an hour → stored ids of rows that no longer expire with this hour."""

    def count_outcomes(self) -> Counter[tuple[str, str]]:
        """Return the number of events by ("response" or "feedback", outcome)."""
        outcomes: Counter[tuple[str, str]] = Counter()
        for kind, kind_outcomes in (("response", self.response_outcomes), ("feedback", self.feedback_outcomes)):
            for outcome, events in Counter(kind_outcomes).items():
                outcomes[kind, outcome] = events
        return outcomes

    def changes_of_variant(self, variant_key: int) -> VariantChanges:
        """Return the changes of a variant; missing changes are created."""
        changes = self.variant_changes.get(variant_key)
        if changes is None:
            changes = self.variant_changes[variant_key] = VariantChanges()
        return changes

    def record_student_change(
        self,
        student_hash: bytes,
        variant_key: i64,
        timestamp_ms: i64,
        category: i64,
        new: tuple[int, ...],
        old: tuple[int, ...],
        session: int = MISSING,
    ) -> None:
        """Record that a response contributes the sums vector `new` instead of `old` to a student.

        () means no contribution.
        """
        if not old:
            difference = new
        elif not new:
            difference = tuple([-number for number in old])
        else:
            difference = tuple([after - before for after, before in zip(new, old, strict=True)])
        number, variant = variant_key >> 8, variant_key & 255
        self.student_changes.append(
            StudentChange(student_hash, number, timestamp_ms, variant, category, difference, session)
        )

    def count_skipped_response(self, experiment_name: str, variant_name: str, timestamp_ms: i64) -> None:
        """Count a response of an undeclared experiment; `variant_name` is "" if unknown."""
        names = experiment_name, variant_name
        skipped = self.skipped_responses.get(names)
        if skipped is None:
            skipped = self.skipped_responses[names] = SkippedEventCount(timestamp_ms)
        skipped.add(timestamp_ms)

    def count_skipped_reaction(self, experiment_number: int, timestamp_ms: i64) -> None:
        """Count a reaction to a response of an undeclared experiment."""
        skipped = self.skipped_reactions.get(experiment_number)
        if skipped is None:
            skipped = self.skipped_reactions[experiment_number] = SkippedEventCount(timestamp_ms)
        skipped.add(timestamp_ms)

    def track_dependency_time(self, experiment_number: i64, timestamp_ms: i64) -> None:
        """Record that an outcome depends on the presence or absence of a row, given the row's time."""
        oldest_ms = self.oldest_dependencies_ms.get(experiment_number)
        if oldest_ms is None or timestamp_ms < oldest_ms:
            self.oldest_dependencies_ms[experiment_number] = timestamp_ms

    def track_row_dependency(self, row: ResponseRow) -> None:
        """Record that an outcome depends on a row; a row that is not stored is ignored."""
        if row.superseded_response is not None:
            number, timestamp_ms = row.superseded_response
            self.track_dependency_time(number, timestamp_ms)
        elif row.version:
            self.track_dependency_time(
                NO_RESPONSE if row.variant_key == NO_RESPONSE else row.variant_key >> 8, row.timestamp_ms
            )

    def add_to_expiry_hour(self, experiment_number: i64, timestamp_ms: i64, stored_id: bytes) -> None:
        """Record that a row expires with the hour of a time, under an experiment number or `NO_RESPONSE`."""
        _append(self.expiry_additions, _hour_cell(experiment_number, timestamp_ms), stored_id)

    def move_to_expiry_hour(self, old: ResponseRow, row: ResponseRow) -> None:
        """Record that a row expires with the hour of the new time, unless the old time is in the same hour."""
        old_number, number = old.variant_key >> 8, row.variant_key >> 8
        if _hour_cell(old_number, old.timestamp_ms) != _hour_cell(number, row.timestamp_ms):
            self.remove_from_expiry_hour(old_number, old.timestamp_ms, row.stored_id)
            self.add_to_expiry_hour(number, row.timestamp_ms, row.stored_id)

    def remove_from_expiry_hour(self, experiment_number: i64, timestamp_ms: i64, stored_id: bytes) -> None:
        """Record that a row no longer expires with the hour of a time, under an experiment number."""
        _append(self.expiry_removals, _hour_cell(experiment_number, timestamp_ms), stored_id)


def _hour_cell(experiment_number: i64, timestamp_ms: i64) -> i64:
    return experiment_number << PERIOD_BITS | timestamp_ms // HOUR_MS


def _append(rows: dict[int, list[bytes]], cell: i64, stored_id: bytes) -> None:
    stored_ids = rows.get(cell)
    if stored_ids is None:
        stored_ids = rows[cell] = []
    stored_ids.append(stored_id)
