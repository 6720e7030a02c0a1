"""One batch of events → one commit.

`Engine.apply` reads the rows that the batch touches, applies the events to that one in-memory view, and returns what
has to be written. Rows stay in a bounded cache: the commit's comparison of offsets and versions is what makes them
trustworthy, so after a commit that was not applied the cache is dropped (`forget`) and the batch applied again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.attribution import (
    DAY_MS,
    PENDING,
    Row,
    Standing,
    Student,
    Value,
    add_sums,
    expose,
    merge_reaction,
    merge_response,
    pack_unit,
    reaction_of,
    response_sums,
    standing,
)
from monitor.errors import StoreUnavailable
from monitor.events import Feedback, Response
from monitor.identity import Identities
from monitor.ingest.cache import Cache
from monitor.ingest.differences import Changes, write_responses, write_units
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_row, decode_student, encode_row, encode_student


@dataclass(slots=True)
class Before:
    """What a row contributed before the batch."""

    arm: int
    timestamp_ms: int
    student: bytes
    value: Value


@dataclass(slots=True)
class Pending:
    """What one call of `apply` collects on its way."""

    view: dict[bytes, Row] = field(default_factory=dict)
    """Every known row that the batch is about."""
    rows: dict[bytes, tuple[Row, Before | None]] = field(default_factory=dict)
    """Those it touches."""
    exposures: list[tuple[Experiment, bytes, int, int]] = field(default_factory=list)
    sums: list[tuple[Experiment, bytes, int, int, Sequence[int]]] = field(default_factory=list)
    changes: dict[int, Changes] = field(default_factory=dict)
    kinds: Counter[tuple[int, str]] = field(default_factory=Counter)
    latest: dict[tuple[int, str], int] = field(default_factory=dict)
    notes: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)


class Engine:
    """Applies events to rows; one per worker. `late` says, by experiment number, which times are past the horizon."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        identities: Identities,
        store: RedisStore,
        *,
        cached_rows: int = 50_000,
        cached_students: int = 50_000,
    ) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._identities = identities
        self._store = store
        self._rows: Cache[Row] = Cache(cached_rows)
        self._students: Cache[Student] = Cache(cached_students)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._rows.clear()
        self._students.clear()

    def apply(
        self, responses: Sequence[Response], feedback: Sequence[Feedback], late: Mapping[str, int]
    ) -> tuple[Commit, Counter[tuple[str, str]]]:
        """Return what the events change, and how many of each kind had which outcome.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. Raises `StoreUnavailable` when rows cannot be read; the cache, which may know half of the batch by
        then, is dropped, and the same events may be applied again.
        """
        batch = Pending()
        try:
            return self._apply(batch, responses, feedback, late), batch.outcomes
        except StoreUnavailable:
            self.forget()
            raise

    def _apply(
        self, batch: Pending, responses: Sequence[Response], feedback: Sequence[Feedback], late: Mapping[str, int]
    ) -> Commit:
        accepted = self._accept(responses, late, batch)
        keyed = [(self._identities.response(event.response_id), event) for event in feedback]
        self._load_rows(batch, [key for _, key, _ in accepted] + [key for key, _ in keyed])
        for arm, key, event in accepted:
            self._apply_response(batch, arm, key, event)
        for key, reaction_event in keyed:
            self._apply_feedback(batch, key, reaction_event, late)
        self._settle_rows(batch)
        commit = Commit()
        self._settle_students(batch, commit)
        self._write_rows(batch, commit)
        for number, changes in batch.changes.items():
            experiment = self._by_number[number]
            keys, layout = self._store.keys, experiment.layout
            write_responses(commit, keys, number, layout, experiment.settings.decay, changes)
            write_units(commit, keys, number, layout, changes)
        self._write_rest(batch, commit)
        self._rows.age()
        self._students.age()
        return commit

    def _accept(
        self, responses: Sequence[Response], late: Mapping[str, int], batch: Pending
    ) -> list[tuple[int, bytes, Response]]:
        """Return the responses that belong to a declared experiment and variant and are not late."""
        accepted = []
        response_key = self._identities.response
        skipped = too_late = 0
        for event in responses:
            experiment = self._experiments.get(event.experiment)
            arm = experiment.arms.get(event.variant) if experiment is not None else None
            if experiment is None or arm is None or not experiment.starts_ms <= event.timestamp_ms < experiment.ends_ms:
                skipped += 1
            elif event.timestamp_ms < late[str(experiment.number)]:
                too_late += 1
            else:
                accepted.append((arm, response_key(event.response_id), event))
        batch.outcomes["response", "skipped"] += skipped
        batch.outcomes["response", "late"] += too_late
        return accepted

    def _load_rows(self, batch: Pending, wanted: Sequence[bytes]) -> None:
        """Fill the batch's view from the cache and, for the rest, from the store."""
        view = batch.view
        missing = []
        for key in set(wanted):
            row = self._rows.get(key)
            if row is None:
                missing.append(key)
            else:
                view[key] = row
        name = self._store.keys.row
        for key, stored in zip(missing, self._store.rows([name(key) for key in missing]), strict=True):
            if stored is not None:
                view[key] = decode_row(stored)
                self._rows.put(key, view[key])

    def _touch(self, batch: Pending, key: bytes) -> Row:
        """Return the row, noting what it contributed before this batch: nothing, if its response was not known."""
        touched = batch.rows.get(key)
        if touched is not None:
            return touched[0]
        row = batch.view.get(key)
        if row is None:
            row = Row(0, PENDING, b"", b"", None, [])
            self._rows.put(key, row)
            batch.view[key] = row
        before = None
        if row.arm != PENDING:
            value = row.value
            if value is None:
                value = self._by_number[row.arm >> 8].rules.evaluate(row)
            before = Before(row.arm, row.timestamp_ms, row.student, value)
        batch.rows[key] = row, before
        return row

    def _apply_response(self, batch: Pending, arm: int, key: bytes, event: Response) -> None:
        identities = self._identities
        student = identities.student(event.user_id) if event.user_id is not None else b""
        items = event.items
        ranks: tuple[int, ...] | None = None
        for expected, item in enumerate(items, 1):
            if item.position != expected:
                ranks = tuple(each.position for each in items)
                break
        item_hash = identities.item
        hashes = b"".join([item_hash(item.item_id) for item in items])
        known = batch.view.get(key)
        if known is not None and known.arm != PENDING and known.arm >> 8 not in self._by_number:
            batch.outcomes["response", "skipped"] += 1
            return
        first = key not in batch.rows
        row = self._touch(batch, key)
        replaced = row.arm, row.timestamp_ms, row.student
        outcome = merge_response(row, event.timestamp_ms, arm, student, hashes, ranks)
        batch.outcomes["response", outcome] += 1
        if outcome == "duplicate":
            if first:
                del batch.rows[key]
            if (arm, event.timestamp_ms, student) != replaced:
                self._expose(batch, arm, event.timestamp_ms, student)
        elif outcome == "revised":
            self._expose(batch, *replaced)
        for what in ("r", "e"):
            if event.timestamp_ms > batch.latest.get((arm, what), 0):
                batch.latest[arm, what] = event.timestamp_ms

    def _expose(self, batch: Pending, arm: int, timestamp_ms: int, student: bytes) -> None:
        """Note that a student was shown a response that does not stand: another one under its id does."""
        if student:
            experiment = self._by_number[arm >> 8]
            batch.exposures.append((experiment, experiment.student_prefix + student, timestamp_ms, arm & 255))

    def _apply_feedback(self, batch: Pending, key: bytes, event: Feedback, late: Mapping[str, int]) -> None:
        row = batch.view.get(key)
        if row is None or row.arm == PENDING:
            is_late = event.timestamp_ms < late[PENDING_CLASS]
        elif (number := row.arm >> 8) in self._by_number:
            is_late = row.timestamp_ms < late[str(number)]
        else:
            batch.outcomes["feedback", "skipped"] += 1
            return
        if is_late:
            batch.outcomes["feedback", "late"] += 1
            return
        first = key not in batch.rows
        row = self._touch(batch, key)
        outcome = merge_reaction(row, reaction_of(event, self._identities))
        batch.outcomes["feedback", outcome] += 1
        if outcome == "duplicate" and first:
            del batch.rows[key]

    def _settle_rows(self, batch: Pending) -> None:
        """Turn the touched rows' old and new contributions into differences, and note new rows for the sweep."""
        latest, notes = batch.latest, batch.notes
        for key, (row, before) in batch.rows.items():
            arm, timestamp_ms = row.arm, row.timestamp_ms
            if arm == PENDING:
                newest_ms = row.reactions[-1][0]
                if row.version == 0 or newest_ms // HOUR_MS > timestamp_ms // HOUR_MS:
                    notes.setdefault((PENDING_CLASS, newest_ms // HOUR_MS), []).append(key)
                row.timestamp_ms = newest_ms
                continue
            rules = self._by_number[arm >> 8].rules
            after = row.value = rules.evaluate(row) if row.reactions else rules.unrated
            if (
                before is not None
                and before.arm == arm
                and before.timestamp_ms == timestamp_ms
                and before.student == row.student
            ):
                if before.value != after:
                    self._recount(batch, row, before.value, after)
            else:
                if before is not None:
                    self._count(batch, -1, before.arm, before.timestamp_ms, before.student, before.value)
                self._count(batch, 1, arm, timestamp_ms, row.student, after)
                notes.setdefault((str(arm >> 8), timestamp_ms // HOUR_MS), []).append(key)
            newest = max(timestamp_ms, after.last_reaction_ms)
            if newest > latest.get((arm, "e"), 0):
                latest[arm, "e"] = newest

    def _changes(self, batch: Pending, number: int) -> Changes:
        known = batch.changes.get(number)
        if known is None:
            known = batch.changes[number] = Changes()
        return known

    def _count(self, batch: Pending, sign: int, arm: int, timestamp_ms: int, student: bytes, value: Value) -> None:
        """Add or take away a whole response."""
        changes = self._changes(batch, arm >> 8)
        changes.responses += (sign, arm & 255, timestamp_ms, value.rated, *value.values)
        sums = response_sums(value)
        if student:
            signed = sums if sign > 0 else [-number for number in sums]
            experiment = self._by_number[arm >> 8]
            key = experiment.student_prefix + student
            batch.sums.append((experiment, key, timestamp_ms, arm & 255, signed))
        else:
            unit = pack_unit(arm & 255, timestamp_ms // DAY_MS, sums, sums)
            (changes.units if sign > 0 else changes.former_units).append(unit)
            changes.presence[arm & 255, 2] += sign
        for kind, reactions in value.kinds:
            batch.kinds[arm, kind] += sign * reactions
            batch.kinds[arm, "+" + kind] += sign

    def _recount(self, batch: Pending, row: Row, old: Value, new: Value) -> None:
        """Replace what a response contributed where only its reactions have changed."""
        variant = row.arm & 255
        if old.rated != new.rated or old.values != new.values:
            changes = self._changes(batch, row.arm >> 8)
            changes.responses += (-1, variant, row.timestamp_ms, old.rated, *old.values)
            changes.responses += (1, variant, row.timestamp_ms, new.rated, *new.values)
            before, after = response_sums(old), response_sums(new)
            if row.student:
                difference = [b - a for a, b in zip(before, after, strict=True)]
                experiment = self._by_number[row.arm >> 8]
                key = experiment.student_prefix + row.student
                batch.sums.append((experiment, key, row.timestamp_ms, variant, difference))
            else:
                day = row.timestamp_ms // DAY_MS
                changes.former_units.append(pack_unit(variant, day, before, before))
                changes.units.append(pack_unit(variant, day, after, after))
        if old.kinds != new.kinds:
            for sign, kinds in ((-1, old.kinds), (1, new.kinds)):
                for kind, reactions in kinds:
                    batch.kinds[row.arm, kind] += sign * reactions
                    batch.kinds[row.arm, "+" + kind] += sign

    def _settle_students(self, batch: Pending, commit: Commit) -> None:
        """Apply exposures and sums to the students' rows and turn them into differences."""
        wanted = {key: experiment for experiment, key, *_ in batch.exposures}
        wanted |= {key: experiment for experiment, key, *_ in batch.sums}
        missing = [key for key in wanted if self._students.get(key) is None]
        for key, stored in zip(missing, self._store.rows(missing), strict=True):
            if stored is not None:
                self._students.put(key, decode_student(stored, wanted[key].layout.sums_width))
        touched: dict[bytes, tuple[Student, Standing | None]] = {}
        for experiment, key, timestamp_ms, variant in batch.exposures:
            student = self._touch_student(experiment, key, timestamp_ms, variant, touched)
            expose(student, timestamp_ms, variant, experiment.settings.exposure_days)
        for experiment, key, timestamp_ms, variant, difference in batch.sums:
            student = self._touch_student(experiment, key, timestamp_ms, variant, touched)
            add_sums(student, timestamp_ms, variant, difference, experiment.settings.exposure_days)
        for key, (student, before) in touched.items():
            self._count_student(batch, wanted[key], student, before)
            commit.versions += student.version.to_bytes(VERSION_BYTES)
            student.version += 1
            commit.rows += (key, encode_student(student))

    def _touch_student(
        self,
        experiment: Experiment,
        key: bytes,
        timestamp_ms: int,
        variant: int,
        touched: dict[bytes, tuple[Student, Standing | None]],
    ) -> Student:
        known = touched.get(key)
        if known is not None:
            return known[0]
        student = self._students.get(key)
        if student is None:
            student = Student(timestamp_ms, variant, {}, {})
            self._students.put(key, student)
            touched[key] = student, None
        else:
            touched[key] = student, student.standing or standing(student, experiment.layout.sums_width)
        return student

    def _count_student(self, batch: Pending, experiment: Experiment, student: Student, before: Standing | None) -> None:
        """Replace what the student contributed before the batch by what it contributes now."""
        after = student.standing = standing(student, experiment.layout.sums_width)
        changes = self._changes(batch, experiment.number)
        if before is not None and before.unit:
            changes.former_units.append(before.unit)
        if after.unit:
            changes.units.append(after.unit)
        if before is None or before[:3] != after[:3]:
            for sign, each in ((-1, before), (1, after)):
                if each is None:
                    continue
                changes.cohorts[each.first_variant, each.first_day] += sign
                for variant in each.variants:
                    changes.presence[variant, 0] += sign
                if len(each.variants) > 1:
                    changes.presence[each.first_variant, 1] += sign

    def _write_rows(self, batch: Pending, commit: Commit) -> None:
        name = self._store.keys.row
        for key, (row, _) in batch.rows.items():
            commit.versions += row.version.to_bytes(VERSION_BYTES)
            row.version += 1
            commit.rows += (name(key), encode_row(row))

    def _write_rest(self, batch: Pending, commit: Commit) -> None:
        keys = self._store.keys
        for (arm, kind), change in batch.kinds.items():
            if change:
                commit.counts += (keys.kinds(arm >> 8, arm & 255), kind.encode(), change)
        for (arm, what), newest_ms in batch.latest.items():
            commit.latest += (b"%d:%d:%b" % (arm >> 8, arm & 255, what.encode()), newest_ms)
        for (experiment, hour), noted in batch.notes.items():
            blob = b"".join([bytes((len(key),)) + key for key in noted])
            commit.notes += (keys.hour(experiment, hour), f"{experiment}:{hour}".encode(), blob, len(noted))
