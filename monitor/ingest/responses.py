"""Rows of responses: a batch of events → changed rows, and what they change elsewhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from monitor.attribution import (
    DAY_MS,
    PENDING,
    Row,
    Value,
    merge_reaction,
    merge_response,
    pack_unit,
    reaction_of,
    response_sums,
)
from monitor.events import Feedback, Response
from monitor.identity import Identities
from monitor.ingest.cache import Cache
from monitor.ingest.differences import Changes
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.ingest.students import Shown
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_row, encode_row

Keyed = tuple[Sequence[tuple[bytes, Response]], Sequence[tuple[bytes, Feedback]]]
"""Responses and feedback, each with the stored id of its response."""


@dataclass(slots=True)
class Before:
    """What a row contributed before the batch."""

    arm: int
    timestamp_ms: int
    student: bytes
    value: Value


@dataclass(slots=True)
class Batch:
    """What the events of one batch change."""

    view: dict[bytes, Row] = field(default_factory=dict)
    """Every known row that the batch is about."""
    rows: dict[bytes, tuple[Row, Before | None]] = field(default_factory=dict)
    """Those it touches."""
    shown: list[Shown] = field(default_factory=list)
    """What it means for students."""
    changes: dict[int, Changes] = field(default_factory=dict)
    kinds: Counter[tuple[int, str]] = field(default_factory=Counter)
    latest: dict[tuple[int, str], int] = field(default_factory=dict)
    notes: dict[tuple[str, int], list[bytes]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)


class Responses:
    """The responses of one shard; `late` says, by experiment number, which times are past the horizon."""

    def __init__(
        self, experiments: Sequence[Experiment], identities: Identities, store: RedisStore, cached: int
    ) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._identities = identities
        self._store = store
        self._rows: Cache[Row] = Cache(cached)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._rows.clear()

    def apply(self, events: Keyed, late: Mapping[str, int], commit: Commit) -> Batch:
        """Append to the commit what the events change of the rows, and return what they change besides.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. When rows cannot be read (`StoreUnavailable`), the cache knows half of the batch: see `forget`.
        """
        batch = Batch()
        responses, feedback = events
        accepted = self._accept(responses, late, batch)
        self._load_rows(batch, [key for _, key, _ in accepted] + [key for key, _ in feedback])
        for arm, key, event in accepted:
            self._apply_response(batch, arm, key, event)
        for key, reaction_event in feedback:
            self._apply_feedback(batch, key, reaction_event, late)
        self._settle_rows(batch)
        self._write_rows(batch, commit)
        self._write_rest(batch, commit)
        self._rows.age()
        return batch

    def _accept(
        self, responses: Sequence[tuple[bytes, Response]], late: Mapping[str, int], batch: Batch
    ) -> list[tuple[int, bytes, Response]]:
        """Return the responses that belong to a declared experiment and variant and are not late."""
        accepted = []
        skipped = too_late = 0
        for key, event in responses:
            experiment = self._experiments.get(event.experiment)
            arm = experiment.arms.get(event.variant) if experiment is not None else None
            if experiment is None or arm is None or not experiment.starts_ms <= event.timestamp_ms < experiment.ends_ms:
                skipped += 1
            elif event.timestamp_ms < late[str(experiment.number)]:
                too_late += 1
            else:
                accepted.append((arm, key, event))
        batch.outcomes["response", "skipped"] += skipped
        batch.outcomes["response", "late"] += too_late
        return accepted

    def _load_rows(self, batch: Batch, wanted: Sequence[bytes]) -> None:
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

    def _touch(self, batch: Batch, key: bytes) -> Row:
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

    def _apply_response(self, batch: Batch, arm: int, key: bytes, event: Response) -> None:
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

    def _expose(self, batch: Batch, arm: int, timestamp_ms: int, student: bytes) -> None:
        """Note that a student was shown a response that does not stand: another one under its id does."""
        if student:
            batch.shown.append((arm >> 8, student, timestamp_ms, arm & 255, ()))

    def _apply_feedback(self, batch: Batch, key: bytes, event: Feedback, late: Mapping[str, int]) -> None:
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

    def _settle_rows(self, batch: Batch) -> None:
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

    def _changes(self, batch: Batch, number: int) -> Changes:
        known = batch.changes.get(number)
        if known is None:
            known = batch.changes[number] = Changes()
        return known

    def _count(self, batch: Batch, sign: int, arm: int, timestamp_ms: int, student: bytes, value: Value) -> None:
        """Add or take away a whole response."""
        changes = self._changes(batch, arm >> 8)
        changes.responses += (sign, arm & 255, timestamp_ms, value.rated, *value.values)
        sums = response_sums(value)
        if student:
            signed = sums if sign > 0 else tuple([-number for number in sums])
            batch.shown.append((arm >> 8, student, timestamp_ms, arm & 255, signed))
        else:
            unit = pack_unit(arm & 255, timestamp_ms // DAY_MS, sums, sums)
            (changes.units if sign > 0 else changes.former_units).append(unit)
            changes.presence[arm & 255, 2] += sign
        for kind, reactions in value.kinds:
            batch.kinds[arm, kind] += sign * reactions
            batch.kinds[arm, "+" + kind] += sign

    def _recount(self, batch: Batch, row: Row, old: Value, new: Value) -> None:
        """Replace what a response contributed where only its reactions have changed."""
        variant = row.arm & 255
        if old.rated != new.rated or old.values != new.values:
            changes = self._changes(batch, row.arm >> 8)
            changes.responses += (-1, variant, row.timestamp_ms, old.rated, *old.values)
            changes.responses += (1, variant, row.timestamp_ms, new.rated, *new.values)
            before, after = response_sums(old), response_sums(new)
            if row.student:
                difference = tuple([b - a for a, b in zip(before, after, strict=True)])
                batch.shown.append((row.arm >> 8, row.student, row.timestamp_ms, variant, difference))
            else:
                day = row.timestamp_ms // DAY_MS
                changes.former_units.append(pack_unit(variant, day, before, before))
                changes.units.append(pack_unit(variant, day, after, after))
        if old.kinds != new.kinds:
            for sign, kinds in ((-1, old.kinds), (1, new.kinds)):
                for kind, reactions in kinds:
                    batch.kinds[row.arm, kind] += sign * reactions
                    batch.kinds[row.arm, "+" + kind] += sign

    def _write_rows(self, batch: Batch, commit: Commit) -> None:
        name = self._store.keys.row
        for key, (row, _) in batch.rows.items():
            commit.versions += row.version.to_bytes(VERSION_BYTES)
            row.version += 1
            commit.rows += (name(key), encode_row(row))

    def _write_rest(self, batch: Batch, commit: Commit) -> None:
        keys = self._store.keys
        for (arm, kind), change in batch.kinds.items():
            if change:
                commit.counts += (keys.kinds(arm >> 8, arm & 255), kind.encode(), change)
        for (arm, what), newest_ms in batch.latest.items():
            commit.latest += (b"%d:%d:%b" % (arm >> 8, arm & 255, what.encode()), newest_ms)
        for (experiment, hour), noted in batch.notes.items():
            blob = b"".join([bytes((len(key),)) + key for key in noted])
            commit.notes += (keys.hour(experiment, hour), f"{experiment}:{hour}".encode(), blob, len(noted))
