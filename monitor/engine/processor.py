"""A batch of events → changed rows of responses and students, and the changes of the sums over them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeAlias, TypeVar, final

from mypy_extensions import i64

from monitor.clock import HOUR_MS
from monitor.engine.accumulator import Accumulator, TrafficAccumulator
from monitor.engine.batch import Batch, Exposure, RowSnapshot
from monitor.engine.experiment import Experiment
from monitor.engine.id_hash import IdHasher
from monitor.engine.item_counts import ItemCounts, ItemKeys
from monitor.engine.normalizer import EventBatch, NormalizedResponse
from monitor.engine.response_row import (
    NO_RESPONSE,
    PRE_PERIOD,
    Contribution,
    Reaction,
    ResponseRow,
    merge_reaction,
    merge_response,
)
from monitor.engine.row_codec import encode_response, encode_student, read_response, read_student
from monitor.engine.student import Student

ReadResponses: TypeAlias = "Callable[[list[bytes]], list[bytes | None]]"
"""Stored ids of responses → stored rows, None where there is none."""
ReadStudents: TypeAlias = "Callable[[list[tuple[int, bytes]]], list[bytes | None]]"
"""(experiment number, stored id) of students → stored rows, None where there is none."""

Row = TypeVar("Row")

_NO_SUMS: Final[tuple[int, ...]] = ()
_MAX_CACHED_NAMES: Final = 200_000
"""Names of items that are remembered as written."""


@final
class RowCache(Generic[Row]):
    """The rows used last, in two generations; a new one begins when the young one is full."""

    __slots__ = ("_added", "_limit", "_old", "_young")

    def __init__(self, limit: int) -> None:
        """Create a cache whose generations have `limit` rows each, or the rows of one batch if that has more."""
        self._limit: i64 = limit
        self._young: dict[bytes, Row] = {}
        self._old: dict[bytes, Row] = {}
        self._added: i64 = 0
        """Rows added by the current batch."""

    def __len__(self) -> int:
        """Return the number of rows in the young generation."""
        return len(self._young)

    def get(self, key: bytes) -> Row | None:
        """Return a row and move it to the young generation; None if it is not cached."""
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
        self._added += 1

    def remove(self, key: bytes) -> None:
        """Drop a row that the current batch added."""
        del self._young[key]
        self._added -= 1

    def end_batch(self) -> None:
        """Begin a new generation if another batch like this one would exceed the limit."""
        if len(self._young) + self._added > self._limit:
            self._old, self._young = self._young, {}
        self._added = 0

    def clear(self) -> None:
        """Drop all rows."""
        self._young, self._old = {}, {}
        self._added = 0


@final
class BatchProcessor:
    """Applies batches of events to the rows of one shard, which it caches."""

    __slots__ = (
        "_experiments", "_first_version", "_item_counts", "_missing_rows", "_read_responses", "_read_students",
        "_responses", "_students", "_written_names",
    )  # fmt: skip

    def __init__(
        self,
        experiments: Sequence[Experiment],
        ids: IdHasher,
        keys: ItemKeys,
        read_responses: ReadResponses,
        read_students: ReadStudents,
        *,
        cached: int,
        first_version: int,
    ) -> None:
        """Create a processor that caches `cached` rows of responses, and of students."""
        self._experiments = {experiment.number: experiment for experiment in experiments}
        self._item_counts: dict[int, ItemCounts] = {}
        for experiment in experiments:
            item_counts = experiment.item_counts(ids, keys)
            if item_counts is not None:
                self._item_counts[experiment.number] = item_counts
        self._read_responses = read_responses
        self._read_students = read_students
        self._first_version: i64 = first_version
        self._responses: RowCache[ResponseRow] = RowCache(cached)
        self._students: RowCache[Student] = RowCache(cached)
        self._missing_rows: list[ResponseRow] = []
        """Rows of the current batch that were not cached."""
        self._written_names: set[tuple[bytes, bytes]] = set()
        """(key, item's hash) of names that are stored."""

    def clear_cache(self) -> None:
        """Drop every cached row and name, so that the next batch reads them from the store."""
        self._responses.clear()
        self._students.clear()
        self._missing_rows = []
        self._written_names.clear()

    def process(self, events: EventBatch, late_before_ms: dict[int, int]) -> Batch:
        """Return the changes that the events make. Cached rows then include them: see `clear_cache`.

        Responses before `late_before_ms` of their experiment's number change nothing, nor do reactions to them;
        reactions without a response are late before the time of `NO_RESPONSE`. If reading rows fails, call
        `clear_cache` before the same events are processed again.
        """
        batch = Batch()
        accepted = self._accept_responses(batch, events.responses, late_before_ms)
        response_rows = [self._row(response.name, late_before_ms) for response in accepted]
        reaction_rows = [self._row(name, late_before_ms) for name in events.reaction_targets]
        self._load_missing_rows()
        for row, response in zip(response_rows, accepted, strict=True):
            self._apply_response(batch, row, response)
        for row, reaction in zip(reaction_rows, events.reactions, strict=True):
            self._apply_reaction(batch, row, reaction, late_before_ms)
        self._finish_rows(batch)
        self._apply_exposures(batch)
        return batch

    def _accept_responses(
        self, batch: Batch, responses: list[NormalizedResponse], late_before_ms: dict[int, int]
    ) -> list[NormalizedResponse]:
        """Return the responses that count and are not late."""
        accepted = []
        for response in responses:
            if response.arm == NO_RESPONSE:
                batch.response_outcomes.append("skipped")
                if response.undeclared_experiment:
                    batch.skip_response(response.undeclared_experiment, response.timestamp_ms)
            elif response.timestamp_ms < late_before_ms[response.arm >> 8]:
                batch.response_outcomes.append("late")
            else:
                batch.track_dependency_time(response.arm >> 8, response.timestamp_ms)
                accepted.append(response)
        return accepted

    def _row(self, name: bytes, late_before_ms: dict[int, int]) -> ResponseRow:
        """Return the cached row of a response's stored id, or a blank one that `_load_missing_rows` fills.

        A late row may have been swept by any worker, so it is read again.
        """
        row = self._responses.get(name)
        if row is None or (row.arm != NO_RESPONSE and row.timestamp_ms < late_before_ms.get(row.arm >> 8, 0)):
            row = ResponseRow()
            row.name = name
            self._responses.add(name, row)
            self._missing_rows.append(row)
        return row

    def _load_missing_rows(self) -> None:
        stored_rows = self._read_responses([row.name for row in self._missing_rows])
        for row, stored in zip(self._missing_rows, stored_rows, strict=True):
            if stored is not None:
                read_response(row, stored)

    def _touch(self, batch: Batch, row: ResponseRow) -> bool:
        """Return whether the batch has not touched the row yet, and take a snapshot of it if so."""
        if row.touched:
            return False
        row.touched = True
        batch.touched_rows.append(row)
        if row.arm != NO_RESPONSE:
            contribution = row.contribution
            if contribution is None:
                contribution = self._experiments[row.arm >> 8].rules.evaluate(row)
            items = self._counts_of(row.arm)
            batch.snapshots[row.name] = RowSnapshot(
                row,
                contribution,
                {} if items is None else items.counts(row),
                [] if items is None else items.index_members(row),
            )
        return True

    @staticmethod
    def _untouch(batch: Batch, row: ResponseRow) -> None:
        """Undo the last `_touch`, because the event did not change the row."""
        batch.touched_rows.pop()
        batch.snapshots.pop(row.name, None)
        row.touched = False

    def _apply_response(self, batch: Batch, row: ResponseRow, response: NormalizedResponse) -> None:
        batch.track_row_dependency(row)
        arm, timestamp_ms = response.arm, response.timestamp_ms
        if row.arm != NO_RESPONSE and row.arm >> 8 not in self._experiments:
            batch.response_outcomes.append("skipped")
            batch.skip_response(self._experiments[arm >> 8].settings.name, timestamp_ms)
            return
        is_first = self._touch(batch, row)
        old_arm, old_ms, old_student, old_category = row.arm, row.timestamp_ms, row.student, row.category
        outcome = merge_response(
            row,
            timestamp_ms,
            arm,
            response.student,
            response.items,
            response.ranks,
            response.latency_ms,
            response.category,
        )
        batch.response_outcomes.append(outcome)
        if outcome == "duplicate":
            if is_first:
                self._untouch(batch, row)
            if (arm, timestamp_ms, response.student, response.category) != (old_arm, old_ms, old_student, old_category):
                _expose_replaced(batch, arm, timestamp_ms, response.student, response.category)
        else:
            if outcome == "revised":
                _expose_replaced(batch, old_arm, old_ms, old_student, old_category)
            self._name_items(batch, row, response)
        if arm & 255 != PRE_PERIOD:
            batch.arm(arm).record_response(timestamp_ms)

    def _name_items(self, batch: Batch, row: ResponseRow, response: NormalizedResponse) -> None:
        """Add the ids of a response's items that are not stored yet."""
        items = self._counts_of(row.arm)
        if items is None:
            return
        for place, item_id, index_member in items.names(row, response.items, response.item_ids):
            if place not in self._written_names:
                if len(self._written_names) >= _MAX_CACHED_NAMES:
                    self._written_names.clear()
                self._written_names.add(place)
                batch.item_names[place] = item_id
                batch.index_members.add(index_member)

    def _apply_reaction(
        self, batch: Batch, row: ResponseRow, reaction: Reaction, late_before_ms: dict[int, int]
    ) -> None:
        if row.arm == NO_RESPONSE:
            is_late = reaction[0] < late_before_ms[NO_RESPONSE]
        elif row.arm >> 8 in self._experiments:
            is_late = row.timestamp_ms < late_before_ms[row.arm >> 8]
        else:
            batch.track_row_dependency(row)
            batch.feedback_outcomes.append("skipped")
            batch.skip_reaction(row.arm >> 8, reaction[0])
            return
        if is_late:
            batch.feedback_outcomes.append("late")
            return
        batch.track_row_dependency(row)
        if row.arm == NO_RESPONSE:
            batch.track_dependency_time(NO_RESPONSE, reaction[0])
        is_first = self._touch(batch, row)
        outcome = merge_reaction(row, reaction)
        batch.feedback_outcomes.append(outcome)
        if outcome == "duplicate" and is_first:
            self._untouch(batch, row)

    def _finish_rows(self, batch: Batch) -> None:
        """Add the touched rows with their new versions, and the changes of their contributions."""
        for row in batch.touched_rows:
            row.touched = False
            if row.arm == NO_RESPONSE:
                newest_ms = row.reactions[-1][0]
                if not row.version or newest_ms // HOUR_MS > row.timestamp_ms // HOUR_MS:
                    batch.add_to_hour(NO_RESPONSE, newest_ms, row.name)
                row.timestamp_ms = newest_ms
            else:
                self._change_sums(batch, row, batch.snapshots.get(row.name))
            is_new = row.version == 0
            row.version = self._first_version if is_new else row.version + 1
            batch.response_rows.append((row.name, encode_response(row), is_new))
        for row in self._missing_rows:
            if row.is_blank():
                self._responses.remove(row.name)
        self._missing_rows = []
        self._responses.end_batch()

    def _change_sums(self, batch: Batch, row: ResponseRow, snapshot: RowSnapshot | None) -> None:
        """Subtract what a row contributed before the batch, and add what it contributes now."""
        new = row.contribution = self._experiments[row.arm >> 8].rules.evaluate(row)
        if self._item_counts:
            self._change_item_counts(batch, row, snapshot)
        if snapshot is not None and snapshot.has_same_response(row):
            self._replace_contribution(batch, row, snapshot.contribution, new)
        else:
            if snapshot is None:
                batch.add_to_hour(row.arm >> 8, row.timestamp_ms, row.name)
            else:
                self._add_response(batch, -1, snapshot.response, snapshot.contribution)
                batch.move_to_hour(snapshot.response, row)
            self._add_response(batch, 1, row, new)
        if row.arm & 255 != PRE_PERIOD and new.last_reaction_ms:
            batch.arm(row.arm).record_event(new.last_reaction_ms)

    def _change_item_counts(self, batch: Batch, row: ResponseRow, snapshot: RowSnapshot | None) -> None:
        counts = batch.item_counts
        if snapshot is not None:
            for place, number in snapshot.item_counts.items():
                counts[place] = counts.get(place, 0) - number
            batch.index_members.update(snapshot.index_members)
        items = self._counts_of(row.arm)
        if items is not None:
            for place, number in items.counts(row).items():
                counts[place] = counts.get(place, 0) + number
            batch.index_members.update(items.index_members(row))

    def _add_response(self, batch: Batch, sign: int, row: ResponseRow, contribution: Contribution) -> None:
        """Add or subtract a response; of one from before the experiment only its student keeps the sums."""
        number, variant, timestamp_ms = row.arm >> 8, row.arm & 255, row.timestamp_ms
        if variant != PRE_PERIOD:
            accumulator = self._accumulator(batch, number)
            accumulator.add_response(sign, variant, timestamp_ms, contribution.rated, contribution.values)
            if not row.student:
                accumulator.add_anonymous(sign, variant, timestamp_ms, row.category, contribution.sums)
            if contribution.kinds:
                batch.arm(row.arm).add_kinds(sign, contribution.kinds)
            traffic = self._traffic(batch, number)
            traffic.add(sign, variant, timestamp_ms, row.items, row.latency_ms, row.category)
        if row.student:
            new, old = (contribution.sums, _NO_SUMS) if sign > 0 else (_NO_SUMS, contribution.sums)
            batch.record_exposure(row.student, row.arm, timestamp_ms, row.category, new, old)

    def _replace_contribution(self, batch: Batch, row: ResponseRow, old: Contribution, new: Contribution) -> None:
        """Replace the contribution of a response of which only the reactions have changed."""
        variant, timestamp_ms = row.arm & 255, row.timestamp_ms
        if old.sums != new.sums:
            if variant != PRE_PERIOD:
                accumulator = self._accumulator(batch, row.arm >> 8)
                accumulator.add_response(-1, variant, timestamp_ms, old.rated, old.values)
                accumulator.add_response(1, variant, timestamp_ms, new.rated, new.values)
                if not row.student:
                    accumulator.add_anonymous(-1, variant, timestamp_ms, row.category, old.sums)
                    accumulator.add_anonymous(1, variant, timestamp_ms, row.category, new.sums)
            if row.student:
                batch.record_exposure(row.student, row.arm, timestamp_ms, row.category, new.sums, old.sums)
        if variant != PRE_PERIOD and old.kinds != new.kinds:
            arm = batch.arm(row.arm)
            arm.add_kinds(-1, old.kinds)
            arm.add_kinds(1, new.kinds)

    def _apply_exposures(self, batch: Batch) -> None:
        """Add the exposures to their students' rows, and the changes of the sums over students."""
        for student, exposures in self._exposed_students(batch.exposures):
            number = exposures[0].experiment
            experiment, accumulator = self._experiments[number], self._accumulator(batch, number)
            old = student.state if student.state is not None else accumulator.state_of(student)
            kept_days = experiment.kept_days
            for exposure in exposures:
                segment = experiment.segment_of(exposure.category)
                if exposure.difference:
                    student.add(exposure.timestamp_ms, exposure.variant, segment, exposure.difference, kept_days)
                else:
                    student.expose(exposure.timestamp_ms, exposure.variant, segment, kept_days)
            new = student.state = accumulator.state_of(student)
            accumulator.replace_student(old, new)
            is_new = student.version == 0
            student.version = self._first_version if is_new else student.version + 1
            rows = batch.student_rows.get(number)
            if rows is None:
                rows = batch.student_rows[number] = []
            rows.append((student.name, encode_student(student), is_new))
        self._students.end_batch()

    def _exposed_students(self, exposures: list[Exposure]) -> list[tuple[Student, list[Exposure]]]:
        """Return each student with its exposures in the batch."""
        exposed: dict[bytes, tuple[Student, list[Exposure]]] = {}
        missing: list[Student] = []
        missing_ids: list[tuple[int, bytes]] = []
        for exposure in exposures:
            number, name = exposure.experiment, exposure.student
            key = number.to_bytes(2) + name
            entry = exposed.get(key)
            if entry is not None:
                entry[1].append(exposure)
                continue
            student = self._students.get(key)
            if student is None:
                student = Student(self._experiments[number].sums_width)
                student.name = name
                self._students.add(key, student)
                missing.append(student)
                missing_ids.append((number, name))
            exposed[key] = student, [exposure]
        for student, stored in zip(missing, self._read_students(missing_ids), strict=True):
            if stored is not None:
                read_student(student, stored)
        return list(exposed.values())

    def _accumulator(self, batch: Batch, number: int) -> Accumulator:
        accumulator = batch.accumulators.get(number)
        if accumulator is None:
            accumulator = batch.accumulators[number] = self._experiments[number].accumulator()
        return accumulator

    def _traffic(self, batch: Batch, number: int) -> TrafficAccumulator:
        traffic = batch.traffic.get(number)
        if traffic is None:
            traffic = batch.traffic[number] = self._experiments[number].traffic_accumulator()
        return traffic

    def _counts_of(self, arm: int) -> ItemCounts | None:
        """Return the item counts of an arm's experiment; None before the experiment or if it counts no items."""
        return None if arm & 255 == PRE_PERIOD else self._item_counts.get(arm >> 8)


def _expose_replaced(batch: Batch, arm: int, timestamp_ms: int, student: bytes, category: int) -> None:
    """Record that a student was shown a response which is not the one in its row: another has the same id."""
    if student and arm & 255 != PRE_PERIOD:
        batch.record_exposure(student, arm, timestamp_ms, category, _NO_SUMS, _NO_SUMS)
