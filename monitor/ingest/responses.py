"""Rows of responses: a batch of events → changed rows, and what they change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from monitor.attribution import BEFORE, PENDING, Row, Value, latency_of, merge_reaction, merge_response, reaction_of
from monitor.events import Feedback, Response
from monitor.identity import Identities
from monitor.ingest.batch import EVENT, Batch, Before, Keyed
from monitor.ingest.cache import Cache
from monitor.ingest.differences import write_batch
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.ingest.items import ItemCounts
from monitor.store import Commit, RedisStore
from monitor.store.rows import decode_row, encode_row

_NAMES: Final = 200_000
"""Names of items that a worker remembers to have written."""


def _count(counts: dict[str, int], outcome: str, events: int = 1) -> None:
    counts[outcome] = counts.get(outcome, 0) + events


@final
class Responses:
    """The responses of one shard; `late` says, by experiment number, which times are past the horizon."""

    def __init__(
        self, experiments: Sequence[Experiment], identities: Identities, store: RedisStore, cached: int
    ) -> None:
        self._experiments = {experiment.settings.name: experiment for experiment in experiments}
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._identities = identities
        self._store = store
        self._prefix = store.keys.row(b"")
        self._limit = cached
        self._rows: Cache[Row] = Cache()
        self._items = {
            experiment.number: items
            for experiment in experiments
            if (items := experiment.items(identities, store.keys)) is not None
        }
        self._named: set[tuple[bytes, bytes]] = set()
        """(key, item) of names that the store has."""

    def forget(self) -> None:
        """Drop every cached row and name: the store is what counts."""
        self._rows.clear()
        self._named.clear()

    def apply(self, events: Keyed, late: Mapping[str, int], commit: Commit) -> Batch:
        """Append to the commit what the events change of the rows, and return what they change besides.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. When rows cannot be read (`StoreUnavailable`), the cache knows half of the batch: see `forget`.
        """
        batch = Batch()
        late_ms = {number: late[str(number)] for number in self._by_number}
        late_ms[PENDING] = late[PENDING_CLASS]
        arms = self._accept(events.responses, late_ms, batch)
        others: dict[bytes, Row | None] = {}
        rows_shown = self._recall(events.names, late_ms, others, arms)
        rows_answered = self._recall(events.answered, late_ms, others, None)
        self._load(others)
        for at, arm in enumerate(arms):
            if arm != PENDING:
                row = rows_shown[at]
                if row is None:
                    row = others[events.names[at]]
                if row is None:
                    others[events.names[at]] = self._answer(batch, arm, events.names[at], events.responses[at])
                else:
                    self._answer_again(batch, arm, row, events.responses[at])
        for at, reaction in enumerate(events.feedback):
            row = rows_answered[at]
            if row is None:
                row = others[events.answered[at]]
            new = self._apply_feedback(batch, row, events.answered[at], reaction, late_ms)
            if new is not None:
                others[events.answered[at]] = new
        self._settle_rows(batch, commit)
        write_batch(commit, self._store.keys, batch)
        if len(self._rows) > self._limit:
            self._rows.age()
        return batch

    def _accept(self, responses: list[Response], late_ms: dict[int, int], batch: Batch) -> list[int]:
        """Return the responses' arms; `PENDING` for those of no declared experiment and variant, and the late ones."""
        arms = []
        skipped = too_late = 0
        for event in responses:
            experiment = self._experiments.get(event.experiment)
            arm = PENDING if experiment is None else experiment.arm_of(event.variant, event.timestamp_ms)
            if experiment is None or arm == PENDING:
                skipped += 1
            elif event.timestamp_ms < late_ms[experiment.number]:
                too_late += 1
                arm = PENDING
            arms.append(arm)
        if skipped:
            _count(batch.responses, "skipped", skipped)
        if too_late:
            _count(batch.responses, "late", too_late)
        return arms

    def _recall(
        self, names: list[bytes], late_ms: dict[int, int], others: dict[bytes, Row | None], arms: list[int] | None
    ) -> list[Row | None]:
        """Return the rows that are remembered, and note the names of the others, unless their arm is `PENDING`.

        A row that can change no more may have been swept: the store knows, for all workers alike.
        """
        found: list[Row | None] = []
        for at, name in enumerate(names):
            row: Row | None = None
            if arms is None or arms[at] != PENDING:
                row = self._rows.get(name)
                if row is not None and row.arm != PENDING and row.timestamp_ms < late_ms.get(row.arm >> 8, 0):
                    row = None
                if row is None:
                    others[name] = None
            found.append(row)
        return found

    def _load(self, others: dict[bytes, Row | None]) -> None:
        """Read the rows of the names from the store, where there are any."""
        prefix, names = self._prefix, list(others)
        for name, stored in zip(names, self._store.rows([prefix + name for name in names]), strict=True):
            if stored is not None:
                row = decode_row(stored)
                row.name = name
                self._rows.put(name, row)
                others[name] = row

    def _begin(self, batch: Batch, name: bytes, row: Row) -> None:
        """Take in a row that nobody knows yet."""
        row.name = name
        row.touched = True
        self._rows.put(name, row)
        batch.rows.append(row)

    def _touch(self, batch: Batch, row: Row) -> bool:
        """Note what a row contributed before this batch; False if that was done."""
        if row.touched:
            return False
        row.touched = True
        batch.rows.append(row)
        if row.arm != PENDING:
            value = row.value
            if value is None:
                value = self._by_number[row.arm >> 8].rules.evaluate(row)
            batch.before[row.name] = Before(row, value, self._items_of(row.arm) if self._items else None)
        return True

    @staticmethod
    def _leave(batch: Batch, row: Row) -> None:
        """Take back what `_touch` has just noted: nothing has changed."""
        batch.rows.pop()
        batch.before.pop(row.name, None)
        row.touched = False

    def _answer(self, batch: Batch, arm: int, name: bytes, event: Response) -> Row:
        """Return the row of a response that nobody knows yet."""
        hashes = self._identities.list_of(event.items)
        row = Row(
            event.timestamp_ms,
            arm,
            self._student_of(event),
            hashes,
            event.ranks,
            latency_of(event),
            self._by_number[arm >> 8].category_of(event.category),
        )
        self._begin(batch, name, row)
        _count(batch.responses, "applied")
        if self._items:
            self._name(batch, row, event, hashes)
        if arm & 255 != BEFORE:
            batch.newest(2 * arm, event.timestamp_ms)
        return row

    def _answer_again(self, batch: Batch, arm: int, row: Row, event: Response) -> None:
        """Put a response into a row that there is: it has been seen, or feedback to it."""
        if row.arm != PENDING and row.arm >> 8 not in self._by_number:
            _count(batch.responses, "skipped")
            return
        timestamp_ms = event.timestamp_ms
        student, items = self._student_of(event), self._identities.list_of(event.items)
        category = self._by_number[arm >> 8].category_of(event.category)
        first = self._touch(batch, row)
        replaced = row.arm, row.timestamp_ms, row.student, row.category
        outcome = merge_response(row, timestamp_ms, arm, student, items, event.ranks, latency_of(event), category)
        _count(batch.responses, outcome)
        if outcome == "duplicate":
            if first:
                self._leave(batch, row)
            if (arm, timestamp_ms, student, category) != replaced:
                self._expose(batch, arm, timestamp_ms, student, category)
        else:
            if outcome == "revised":
                self._expose(batch, *replaced)
            if self._items:
                self._name(batch, row, event, items)
        if arm & 255 != BEFORE:
            batch.newest(2 * arm, timestamp_ms)

    def _student_of(self, event: Response) -> bytes:
        return b"" if event.user_id is None else self._identities.student(event.user_id)

    def _name(self, batch: Batch, row: Row, event: Response, hashes: bytes) -> None:
        """Note the ids of a response's items, those that have not been written yet."""
        counts = self._items_of(row.arm)
        if counts is None:
            return
        for place, name, index, era in counts.names(row, hashes, event.items):
            if place not in self._named:
                if len(self._named) >= _NAMES:
                    self._named.clear()
                self._named.add(place)
                batch.names[place] = name, index, era

    def _expose(self, batch: Batch, arm: int, timestamp_ms: int, student: bytes, category: int) -> None:
        """Note that a student was shown a response that does not stand: another one under its id does."""
        if student and arm & 255 != BEFORE:
            batch.shown.append((arm >> 8, student, timestamp_ms, arm & 255, category, ()))

    def _apply_feedback(
        self, batch: Batch, row: Row | None, name: bytes, event: Feedback, late_ms: dict[int, int]
    ) -> Row | None:
        """Put a reaction into its row; return the row if it is a new one."""
        if row is None or row.arm == PENDING:
            is_late = event.timestamp_ms < late_ms[PENDING]
        elif (number := row.arm >> 8) in self._by_number:
            is_late = row.timestamp_ms < late_ms[number]
        else:
            _count(batch.feedback, "skipped")
            return None
        if is_late:
            _count(batch.feedback, "late")
            return None
        new: Row | None = None
        first = True
        if row is None:
            row = new = Row()
            self._begin(batch, name, row)
        else:
            first = self._touch(batch, row)
        outcome = merge_reaction(row, reaction_of(event, self._identities))
        _count(batch.feedback, outcome)
        if outcome == "duplicate" and first:
            self._leave(batch, row)
        return new

    def _settle_rows(self, batch: Batch, commit: Commit) -> None:
        """Write the touched rows, with what they change elsewhere."""
        prefix, rows = self._prefix, commit.rows
        for row in batch.rows:
            row.touched = False
            if row.arm == PENDING:
                newest_ms = row.reactions[-1][0]
                if row.version == 0 or newest_ms // HOUR_MS > row.timestamp_ms // HOUR_MS:
                    batch.note(PENDING, newest_ms, row.name)
                row.timestamp_ms = newest_ms
            else:
                self._settle(batch, row, batch.before.get(row.name))
            row.version += 1
            rows.append(prefix + row.name)
            rows.append(encode_row(row))

    def _settle(self, batch: Batch, row: Row, before: Before | None) -> None:
        """Turn a row's old and new contributions into differences."""
        arm, timestamp_ms = row.arm, row.timestamp_ms
        if self._items:
            self._settle_items(batch, row, before, self._items_of(arm))
        after = row.value = self._by_number[arm >> 8].rules.evaluate(row)
        if before is not None and before.stands(row):
            self._recount(batch, row, before.value, after)
        else:
            if before is not None:
                was = before
                self._count(batch, -1, was.arm, was.timestamp_ms, was.student, was.category, was.value)
                self._pass(batch, -1, was.arm, was.timestamp_ms, was.items, was.latency_ms, was.category)
            self._count(batch, 1, arm, timestamp_ms, row.student, row.category, after)
            self._pass(batch, 1, arm, timestamp_ms, row.items, row.latency_ms, row.category)
            batch.note(arm >> 8, timestamp_ms, row.name)
        if arm & 255 != BEFORE and after.last_reaction_ms:
            batch.newest(2 * arm + EVENT, after.last_reaction_ms)

    @staticmethod
    def _settle_items(batch: Batch, row: Row, before: Before | None, items: ItemCounts | None) -> None:
        """Replace what a row's items counted; the row may have become another experiment's."""
        counts = batch.counts
        if before is not None and before.counted:
            for place, number in before.counted.items():
                counts[place] = counts.get(place, 0) - number
            batch.stamps.update(before.stamps)
        if items is not None:
            for place, number in items.of(row).items():
                counts[place] = counts.get(place, 0) + number
            batch.stamps.update(items.stamps(row))

    def _items_of(self, arm: int) -> ItemCounts | None:
        """Return what counts the items of an arm's responses: nothing does before the experiment."""
        return None if arm & 255 == BEFORE else self._items.get(arm >> 8)

    def _pass(
        self, batch: Batch, sign: int, arm: int, timestamp_ms: int, items: bytes, latency_ms: int, category: int
    ) -> None:
        """Add a response to the traffic, or take it away; there is none before the experiment."""
        if arm & 255 == BEFORE:
            return
        traffic = batch.traffic.get(arm >> 8)
        if traffic is None:
            traffic = batch.traffic[arm >> 8] = self._by_number[arm >> 8].traffic()
        traffic.add(sign, arm & 255, timestamp_ms, items, latency_ms, category)

    def _count(
        self, batch: Batch, sign: int, arm: int, timestamp_ms: int, student: bytes, category: int, value: Value
    ) -> None:
        """Add or take away a whole response; one from before the experiment is only its student's."""
        tally = self._by_number[arm >> 8].tally_in(batch.tallies)
        during = arm & 255 != BEFORE
        if during:
            tally.add_response(sign, arm & 255, timestamp_ms, value.rated, value.values)
            self._count_kinds(batch, sign, arm, value)
        if student:
            signed = value.sums if sign > 0 else tuple([-number for number in value.sums])
            batch.shown.append((arm >> 8, student, timestamp_ms, arm & 255, category, signed))
        elif during:
            tally.add_anonymous(sign, arm & 255, timestamp_ms, category, value.sums)

    def _recount(self, batch: Batch, row: Row, old: Value, new: Value) -> None:
        """Replace what a response contributed where only its reactions have changed."""
        variant, at_ms = row.arm & 255, row.timestamp_ms
        if variant == BEFORE:
            self._count(batch, -1, row.arm, at_ms, row.student, row.category, old)
            self._count(batch, 1, row.arm, at_ms, row.student, row.category, new)
            return
        if old.sums != new.sums:
            tally = self._by_number[row.arm >> 8].tally_in(batch.tallies)
            tally.add_response(-1, variant, at_ms, old.rated, old.values)
            tally.add_response(1, variant, at_ms, new.rated, new.values)
            if row.student:
                was, now = old.sums, new.sums
                difference = tuple([now[place] - was[place] for place in range(len(now))])
                batch.shown.append((row.arm >> 8, row.student, at_ms, variant, row.category, difference))
            else:
                tally.add_anonymous(-1, variant, at_ms, row.category, old.sums)
                tally.add_anonymous(1, variant, at_ms, row.category, new.sums)
        if old.kinds != new.kinds:
            self._count_kinds(batch, -1, row.arm, old)
            self._count_kinds(batch, 1, row.arm, new)

    @staticmethod
    def _count_kinds(batch: Batch, sign: int, arm: int, value: Value) -> None:
        kinds, answered = batch.kinds, batch.answered
        for kind, reactions in value.kinds:
            place = arm, kind
            kinds[place] = kinds.get(place, 0) + sign * reactions
            answered[place] = answered.get(place, 0) + sign
