"""The batch processor: events of a batch → changed rows of responses and students, and changes of stored sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, final

from mypy_extensions import i64

from monitor.clock import HOUR_MS
from monitor.engine.accumulator import MetricAccumulator, TrafficAccumulator
from monitor.engine.batch import BatchChanges, RowState, StudentChange
from monitor.engine.experiment import Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.item_counts import ItemCounter, ItemKeys
from monitor.engine.normalizer import EventBatch, NormalizedResponse
from monitor.engine.response_row import (
    NO_RESPONSE,
    PRE_PERIOD_VARIANT,
    Contribution,
    Reaction,
    ResponseRow,
    merge_reaction,
    merge_response,
)
from monitor.engine.row_codec import encode_response_row, encode_student_row, load_response_row, load_student_row
from monitor.engine.student import Student

ReadResponses: TypeAlias = "Callable[[list[bytes]], list[bytes | None]]"
"""Stored ids of responses → stored rows; None for a missing row."""
ReadStudents: TypeAlias = "Callable[[list[tuple[int, bytes]]], list[bytes | None]]"
"""(experiment number, stored id) of students → stored rows; None for a missing row."""

Row = TypeVar("Row")

_NO_SUMS: Final[tuple[int, ...]] = ()
_NO_NUMBERS: Final[frozenset[int]] = frozenset()
_MAX_CACHED_ITEM_IDS: Final = 200_000
"""Bound of the cache of item ids that are stored already."""


@final
class RowCache(Generic[Row]):
    """A cache of recently used rows, bounded by two generations.

    When the young generation is full, the old generation is dropped.
    """

    __slots__ = ("_batch_additions", "_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        """Create a cache with at most `limit` rows per generation; the rows of a single larger batch also fit."""
        self._limit: i64 = limit
        self._young: dict[bytes, Row] = {}
        self._old: dict[bytes, Row] = {}
        self._batch_additions: i64 = 0
        """Rows added by the current batch."""

    def __len__(self) -> int:
        """Return the number of rows in the young generation."""
        return len(self._young)

    def get(self, key: bytes) -> Row | None:
        """Return a cached row, moved to the young generation, or None."""
        row = self._young.get(key)
        if row is None:
            row = self._old.get(key)
            if row is not None:
                self._young[key] = row
                del self._old[key]
        return row

    def add(self, key: bytes, row: Row) -> None:
        """Cache a row."""
        self._young[key] = row
        self._batch_additions += 1

    def remove(self, key: bytes) -> None:
        """Drop a row that the current batch added."""
        del self._young[key]
        self._batch_additions -= 1

    def end_batch(self) -> None:
        """Begin a new generation if another batch with as many new rows would exceed the limit."""
        if len(self._young) + self._batch_additions > self._limit:
            self._old, self._young = self._young, {}
        self._batch_additions = 0

    def clear(self) -> None:
        """Drop all rows."""
        self._young, self._old = {}, {}
        self._batch_additions = 0


@final
class BatchProcessor:
    """Applies batches of events to the cached rows of a shard."""

    __slots__ = (
        "_backfilled_number",
        "_experiments",
        "_first_version",
        "_item_counters",
        "_read_responses",
        "_read_students",
        "_response_cache",
        "_stored_item_ids",
        "_student_cache",
        "_superseded_numbers",
    )

    def __init__(
        self,
        experiments: Sequence[Experiment],
        ids: IdHasher,
        keys: ItemKeys,
        read_responses: ReadResponses,
        read_students: ReadStudents,
        *,
        cached_rows: int,
        first_version: int,
        superseded_numbers: frozenset[int] = _NO_NUMBERS,
        backfilled_number: int | None = None,
    ) -> None:
        """Create a processor with a cache of `cached_rows` rows of responses, and as many of students.

        `first_version` is the version of new rows. A stored response whose experiment number is in
        `superseded_numbers` counts as missing, and so do its reactions. With a `backfilled_number`, the processor
        applies the responses of that experiment and the reactions to these responses. Other events are ignored: the
        workers have applied or skipped them already.
        """
        self._experiments = {experiment.number: experiment for experiment in experiments}
        self._item_counters: dict[int, ItemCounter] = {}
        for experiment in experiments:
            item_counter = experiment.create_item_counter(ids, keys)
            if item_counter is not None:
                self._item_counters[experiment.number] = item_counter
        self._superseded_numbers = superseded_numbers
        self._backfilled_number = backfilled_number
        self._read_responses = read_responses
        self._read_students = read_students
        self._first_version: i64 = first_version
        self._response_cache: RowCache[ResponseRow] = RowCache(cached_rows)
        self._student_cache: RowCache[Student] = RowCache(cached_rows)
        self._stored_item_ids: set[tuple[bytes, bytes]] = set()
        """(key, hash of an item) of ids that are stored."""

    def clear_cache(self) -> None:
        """Drop the cached rows and item ids, so that the next batch reads all rows from the store."""
        self._response_cache.clear()
        self._student_cache.clear()
        self._stored_item_ids.clear()

    def process(self, events: EventBatch, late_before_ms: dict[int, int]) -> BatchChanges:
        """Return the changes that a batch of events makes, and apply the changes to the cached rows.

        `late_before_ms` is a time for each experiment number, and for `NO_RESPONSE`. Responses before the time of their
        experiment are late, and so are reactions to these responses. Reactions without a response are late before the
        time of `NO_RESPONSE`. Late events change nothing.

        Call `clear_cache` if the changes are not committed, or if a function that reads rows raises: rows of the batch
        may then be cached without their stored content. Afterwards the same events can be processed again.
        """
        batch = BatchChanges()
        missing_rows: list[ResponseRow] = []
        accepted = self._accept_responses(batch, events.responses, late_before_ms)
        response_rows = [
            self._get_or_create_row(response.stored_id, late_before_ms, missing_rows) for response in accepted
        ]
        reaction_rows = [
            self._get_or_create_row(stored_id, late_before_ms, missing_rows) for stored_id in events.target_response_ids
        ]
        self._load_rows(missing_rows)
        for row, response in zip(response_rows, accepted, strict=True):
            self._apply_response(batch, row, response)
        for row, reaction, delay_ms in zip(reaction_rows, events.reactions, events.reaction_delays_ms, strict=True):
            self._apply_reaction(batch, row, reaction, delay_ms, late_before_ms)
        self._finish_changed_rows(batch)
        self._drop_blank_rows(missing_rows)
        self._response_cache.end_batch()
        self._apply_student_changes(batch)
        return batch

    def _accept_responses(
        self, batch: BatchChanges, responses: list[NormalizedResponse], late_before_ms: dict[int, int]
    ) -> list[NormalizedResponse]:
        """Return the responses that count and are not late."""
        accepted = []
        for response in responses:
            if response.variant_key == NO_RESPONSE and self._backfilled_number is not None:
                batch.response_outcomes.append("ignored")
            elif response.variant_key == NO_RESPONSE:
                batch.response_outcomes.append("skipped")
                if response.undeclared_experiment:
                    batch.count_skipped_response(
                        response.undeclared_experiment, response.undeclared_variant, response.timestamp_ms
                    )
            elif response.timestamp_ms < late_before_ms[response.variant_key >> 8]:
                batch.response_outcomes.append("late")
                if not response.is_excluded:
                    batch.late_responses[response.variant_key] = batch.late_responses.get(response.variant_key, 0) + 1
            else:
                batch.track_dependency_time(response.variant_key >> 8, response.timestamp_ms)
                accepted.append(response)
        return accepted

    def _get_or_create_row(
        self, stored_id: bytes, late_before_ms: dict[int, int], missing_rows: list[ResponseRow]
    ) -> ResponseRow:
        """Return the cached row of a response, or a new blank row, which is appended to `missing_rows`.

        A late row is read again, because any worker may have deleted the expired row from the store.
        """
        row = self._response_cache.get(stored_id)
        if row is None or (
            row.variant_key != NO_RESPONSE and row.timestamp_ms < late_before_ms.get(row.variant_key >> 8, 0)
        ):
            row = ResponseRow()
            row.stored_id = stored_id
            self._response_cache.add(stored_id, row)
            missing_rows.append(row)
        return row

    def _load_rows(self, rows: list[ResponseRow]) -> None:
        """Fill blank rows with their stored content; rows that are not stored, or are superseded, stay blank."""
        stored_rows = self._read_responses([row.stored_id for row in rows])
        for row, stored in zip(rows, stored_rows, strict=True):
            if stored is not None:
                load_response_row(row, stored)
                if row.variant_key >> 8 in self._superseded_numbers:
                    row.clear_superseded()

    def _mark_changed(self, batch: BatchChanges, row: ResponseRow) -> bool:
        """Mark a row as changed by the batch and record the previous state; return False if already marked."""
        if row.is_changed:
            return False
        row.is_changed = True
        batch.changed_rows.append(row)
        if row.variant_key != NO_RESPONSE:
            contribution = row.contribution
            if contribution is None:
                contribution = self._experiments[row.variant_key >> 8].rules.evaluate(row)
            item_counter = self._item_counter_of(row.variant_key)
            batch.previous_states[row.stored_id] = RowState(
                row,
                contribution,
                {} if item_counter is None else item_counter.count_row(row),
                [] if item_counter is None else item_counter.index_members(row),
            )
        return True

    @staticmethod
    def _unmark_changed(batch: BatchChanges, row: ResponseRow) -> None:
        """Undo the last `_mark_changed`, because the event did not change the row."""
        batch.changed_rows.pop()
        batch.previous_states.pop(row.stored_id, None)
        row.is_changed = False

    def _apply_response(self, batch: BatchChanges, row: ResponseRow, response: NormalizedResponse) -> None:
        batch.track_row_dependency(row)
        variant_key, timestamp_ms = response.variant_key, response.timestamp_ms
        if row.variant_key != NO_RESPONSE and row.variant_key >> 8 not in self._experiments:
            if self._backfilled_number is not None:
                batch.response_outcomes.append("ignored")
                return
            batch.response_outcomes.append("skipped")
            batch.count_skipped_response(self._experiments[variant_key >> 8].settings.name, "", timestamp_ms)
            return
        is_newly_marked = self._mark_changed(batch, row)
        old_variant_key, old_ms = row.variant_key, row.timestamp_ms
        old_student_hash, old_category = row.student_hash, row.category
        outcome = merge_response(
            row,
            timestamp_ms,
            variant_key,
            response.student_hash,
            response.item_hashes,
            response.ranks,
            response.latency_ms,
            response.category,
            response.session,
        )
        batch.response_outcomes.append(outcome)
        if outcome == "duplicate":
            if is_newly_marked:
                self._unmark_changed(batch, row)
            old_exposure = old_variant_key, old_ms, old_student_hash, old_category
            if (variant_key, timestamp_ms, response.student_hash, response.category) != old_exposure:
                _record_superseded_response(batch, variant_key, timestamp_ms, response.student_hash, response.category)
        else:
            if outcome == "revised":
                _record_superseded_response(batch, old_variant_key, old_ms, old_student_hash, old_category)
            self._add_item_ids(batch, row, response)
        if variant_key & 255 != PRE_PERIOD_VARIANT:
            changes = batch.changes_of_variant(variant_key)
            changes.record_response(timestamp_ms)
            if outcome != "duplicate":
                changes.record_delay(response.delay_ms)

    def _add_item_ids(self, batch: BatchChanges, row: ResponseRow, response: NormalizedResponse) -> None:
        """Add the ids of a response's items to the batch, except for ids that are stored already."""
        item_counter = self._item_counter_of(row.variant_key)
        if item_counter is None:
            return
        for id_key, item_id, index_member in item_counter.ids_to_store(row, response.item_hashes, response.item_ids):
            if id_key not in self._stored_item_ids:
                if len(self._stored_item_ids) >= _MAX_CACHED_ITEM_IDS:
                    self._stored_item_ids.clear()
                self._stored_item_ids.add(id_key)
                batch.item_ids[id_key] = item_id
                batch.index_members.add(index_member)

    def _apply_reaction(
        self, batch: BatchChanges, row: ResponseRow, reaction: Reaction, delay_ms: int, late_before_ms: dict[int, int]
    ) -> None:
        if self._backfilled_number is not None and row.variant_key >> 8 != self._backfilled_number:
            batch.feedback_outcomes.append("ignored")
            return
        if row.variant_key == NO_RESPONSE:
            is_late = reaction[0] < late_before_ms[NO_RESPONSE]
        elif row.variant_key >> 8 in self._experiments:
            is_late = row.timestamp_ms < late_before_ms[row.variant_key >> 8]
        else:
            batch.track_row_dependency(row)
            batch.feedback_outcomes.append("skipped")
            batch.count_skipped_reaction(row.variant_key >> 8, reaction[0])
            return
        if is_late:
            batch.feedback_outcomes.append("late")
            return
        batch.track_row_dependency(row)
        if row.variant_key == NO_RESPONSE:
            batch.track_dependency_time(NO_RESPONSE, reaction[0])
        is_newly_marked = self._mark_changed(batch, row)
        outcome = merge_reaction(row, reaction)
        batch.feedback_outcomes.append(outcome)
        if outcome == "duplicate":
            if is_newly_marked:
                self._unmark_changed(batch, row)
        elif row.variant_key != NO_RESPONSE and row.variant_key & 255 != PRE_PERIOD_VARIANT:
            batch.changes_of_variant(row.variant_key).record_delay(delay_ms)

    def _finish_changed_rows(self, batch: BatchChanges) -> None:
        """Add the changed rows with their new versions, and the changes of their contributions."""
        for row in batch.changed_rows:
            row.is_changed = False
            is_new = row.version == 0
            is_unlisted = is_new
            if row.superseded_response is not None:
                number, old_ms = row.superseded_response
                batch.remove_from_expiry_hour(number, old_ms, row.stored_id)
                row.superseded_response, is_unlisted = None, True
            if row.variant_key == NO_RESPONSE:
                newest_ms = row.reactions[-1][0]
                if is_unlisted or newest_ms // HOUR_MS > row.timestamp_ms // HOUR_MS:
                    batch.add_to_expiry_hour(NO_RESPONSE, newest_ms, row.stored_id)
                row.timestamp_ms = newest_ms
            else:
                self._replace_row_sums(batch, row, batch.previous_states.get(row.stored_id))
            row.version = self._first_version if is_new else row.version + 1
            batch.response_rows.append((row.stored_id, encode_response_row(row), is_new))

    def _drop_blank_rows(self, rows: list[ResponseRow]) -> None:
        """Remove blank rows from the cache, for example of late feedback to an unknown response."""
        for row in rows:
            if row.is_blank():
                self._response_cache.remove(row.stored_id)

    def _replace_row_sums(self, batch: BatchChanges, row: ResponseRow, previous: RowState | None) -> None:
        """Subtract the contribution of a row before the batch, and add the current contribution."""
        rules = self._experiments[row.variant_key >> 8].rules
        new = row.contribution = rules.evaluate(row)
        if self._item_counters:
            self._replace_item_counts(batch, row, previous)
        if previous is not None and previous.has_same_response(row):
            self._replace_contribution(batch, row, previous.contribution, new)
        else:
            if previous is None:
                batch.add_to_expiry_hour(row.variant_key >> 8, row.timestamp_ms, row.stored_id)
            else:
                self._add_response(batch, -1, previous.response, previous.contribution)
                batch.move_to_expiry_hour(previous.response, row)
            self._add_response(batch, 1, row, new)
        last_reaction_ms = rules.last_reaction_ms(row)
        if row.variant_key & 255 != PRE_PERIOD_VARIANT and last_reaction_ms:
            batch.changes_of_variant(row.variant_key).record_event(last_reaction_ms)

    def _replace_item_counts(self, batch: BatchChanges, row: ResponseRow, previous: RowState | None) -> None:
        """Subtract the item counts of a row before the batch, and add the current item counts."""
        counts = batch.item_count_changes
        if previous is not None:
            for count_key, count in previous.item_counts.items():
                counts[count_key] = counts.get(count_key, 0) - count
            batch.index_members.update(previous.index_members)
        item_counter = self._item_counter_of(row.variant_key)
        if item_counter is not None:
            for count_key, count in item_counter.count_row(row).items():
                counts[count_key] = counts.get(count_key, 0) + count
            batch.index_members.update(item_counter.index_members(row))

    def _add_response(self, batch: BatchChanges, sign: int, row: ResponseRow, contribution: Contribution) -> None:
        """Add or subtract a response; a response in the pre-period changes only the sums of the student."""
        experiment_number, variant, timestamp_ms = row.variant_key >> 8, row.variant_key & 255, row.timestamp_ms
        if variant != PRE_PERIOD_VARIANT:
            accumulator = self._get_metric_accumulator(batch, experiment_number)
            accumulator.add_response(sign, variant, timestamp_ms, contribution.is_rated, contribution.metric_values)
            if not row.student_hash:
                accumulator.add_anonymous_response(
                    sign, variant, timestamp_ms, row.category, contribution.sums, row.session
                )
            if contribution.reaction_counts or contribution.uncounted_reactions:
                batch.changes_of_variant(row.variant_key).add_reaction_counts(sign, contribution)
            traffic = self._get_traffic_accumulator(batch, experiment_number)
            traffic.add_response(sign, variant, timestamp_ms, row.item_hashes, row.latency_ms, row.category)
        if row.student_hash:
            new, old = (contribution.sums, _NO_SUMS) if sign > 0 else (_NO_SUMS, contribution.sums)
            batch.record_student_change(
                row.student_hash, row.variant_key, timestamp_ms, row.category, new, old, row.session
            )

    def _replace_contribution(
        self, batch: BatchChanges, row: ResponseRow, old: Contribution, new: Contribution
    ) -> None:
        """Replace the contribution of a response after a change of reactions."""
        variant, timestamp_ms = row.variant_key & 255, row.timestamp_ms
        if old.sums != new.sums:
            if variant != PRE_PERIOD_VARIANT:
                accumulator = self._get_metric_accumulator(batch, row.variant_key >> 8)
                accumulator.add_response(-1, variant, timestamp_ms, old.is_rated, old.metric_values)
                accumulator.add_response(1, variant, timestamp_ms, new.is_rated, new.metric_values)
                if not row.student_hash:
                    accumulator.add_anonymous_response(-1, variant, timestamp_ms, row.category, old.sums, row.session)
                    accumulator.add_anonymous_response(1, variant, timestamp_ms, row.category, new.sums, row.session)
            if row.student_hash:
                batch.record_student_change(
                    row.student_hash, row.variant_key, timestamp_ms, row.category, new.sums, old.sums, row.session
                )
        if variant != PRE_PERIOD_VARIANT and (
            old.reaction_counts != new.reaction_counts or old.uncounted_reactions != new.uncounted_reactions
        ):
            variant_changes = batch.changes_of_variant(row.variant_key)
            variant_changes.add_reaction_counts(-1, old)
            variant_changes.add_reaction_counts(1, new)

    def _apply_student_changes(self, batch: BatchChanges) -> None:
        """Apply the changes to the rows of their students, and add the changes of the sums over students."""
        for student, changes in self._group_by_student(batch.student_changes):
            experiment_number = changes[0].experiment_number
            experiment = self._experiments[experiment_number]
            accumulator = self._get_metric_accumulator(batch, experiment_number)
            old = student.counted_state if student.counted_state is not None else accumulator.capture_state(student)
            tracked_days = experiment.tracked_days
            for change in changes:
                category = experiment.stored_category(change.category)
                if change.difference:
                    student.add_difference(
                        change.timestamp_ms, change.variant, category, change.difference, tracked_days, change.session
                    )
                else:
                    student.record_exposure(change.timestamp_ms, change.variant, category, tracked_days)
            new = student.counted_state = accumulator.capture_state(student)
            accumulator.replace_student(old, new)
            is_new = student.version == 0
            student.version = self._first_version if is_new else student.version + 1
            rows = batch.student_rows.get(experiment_number)
            if rows is None:
                rows = batch.student_rows[experiment_number] = []
            rows.append((student.stored_id, encode_student_row(student), is_new))
        self._student_cache.end_batch()

    def _group_by_student(self, changes: list[StudentChange]) -> list[tuple[Student, list[StudentChange]]]:
        """Return (student, changes of the student) for all students; rows that are not cached are read."""
        changes_by_student: dict[bytes, tuple[Student, list[StudentChange]]] = {}
        missing_students: list[Student] = []
        missing_keys: list[tuple[int, bytes]] = []
        for change in changes:
            experiment_number, student_hash = change.experiment_number, change.student_hash
            key = experiment_number.to_bytes(2) + student_hash
            entry = changes_by_student.get(key)
            if entry is not None:
                entry[1].append(change)
                continue
            student = self._student_cache.get(key)
            if student is None:
                experiment = self._experiments[experiment_number]
                student = Student(experiment.sums_width, experiment.days)
                student.stored_id = student_hash
                self._student_cache.add(key, student)
                missing_students.append(student)
                missing_keys.append((experiment_number, student_hash))
            changes_by_student[key] = student, [change]
        for student, stored in zip(missing_students, self._read_students(missing_keys), strict=True):
            if stored is not None:
                load_student_row(student, stored)
        return list(changes_by_student.values())

    def _get_metric_accumulator(self, batch: BatchChanges, experiment_number: int) -> MetricAccumulator:
        accumulator = batch.metric_accumulators.get(experiment_number)
        if accumulator is None:
            accumulator = self._experiments[experiment_number].create_metric_accumulator()
            batch.metric_accumulators[experiment_number] = accumulator
        return accumulator

    def _get_traffic_accumulator(self, batch: BatchChanges, experiment_number: int) -> TrafficAccumulator:
        traffic = batch.traffic_accumulators.get(experiment_number)
        if traffic is None:
            traffic = self._experiments[experiment_number].create_traffic_accumulator()
            batch.traffic_accumulators[experiment_number] = traffic
        return traffic

    def _item_counter_of(self, variant_key: int) -> ItemCounter | None:
        """Return the item counter of an experiment; None if the items of the response are not counted.

        Items are counted neither in the pre-period nor for excluded responses, nor if the settings do not ask for it.
        """
        number, variant = variant_key >> 8, variant_key & 255
        item_counter = self._item_counters.get(number)
        if item_counter is None or variant == PRE_PERIOD_VARIANT:
            return None
        return None if variant in self._experiments[number].excluded_variants else item_counter


def _record_superseded_response(
    batch: BatchChanges, variant_key: int, timestamp_ms: int, student_hash: bytes, category: int
) -> None:
    """Record a student's exposure to a response that is not stored, because an earlier response has the same id."""
    if student_hash and variant_key & 255 != PRE_PERIOD_VARIANT:
        batch.record_student_change(student_hash, variant_key, timestamp_ms, category, _NO_SUMS, _NO_SUMS)
