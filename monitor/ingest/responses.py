"""Rows of responses: a batch of events → changed rows, and what they change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from monitor.attribution import BEFORE, PENDING, Row, Value, latency_of, merge_reaction, merge_response, reaction_of
from monitor.events import Feedback, Response
from monitor.identity import Identities
from monitor.ingest.batch import Batch, Before
from monitor.ingest.cache import Cache
from monitor.ingest.differences import write_traffic
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.ingest.items import ItemCounts
from monitor.store import Commit, RedisStore
from monitor.store.rows import VERSION_BYTES, decode_row, encode_row
from monitor.tally import CELL_BITS, Tally

Keyed = tuple[list[tuple[bytes, Response]], list[tuple[bytes, Feedback]]]
"""Responses and feedback, each with the stored id of its response."""


_RESPONSE: Final = 0
_EVENT: Final = 1
_PLACE: Final = (1 << CELL_BITS) - 1
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
        self._rows: Cache[Row] = Cache(cached)
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
        responses, feedback = events
        late_ms = {number: late[str(number)] for number in self._by_number}
        late_ms[PENDING] = late[PENDING_CLASS]
        accepted = self._accept(responses, late_ms, batch)
        wanted = {key for _, key, _ in accepted}
        for key, _ in feedback:
            wanted.add(key)
        self._load_rows(batch, wanted, late_ms)
        for arm, key, event in accepted:
            self._apply_response(batch, arm, key, event)
        for key, reaction_event in feedback:
            self._apply_feedback(batch, key, reaction_event, late_ms)
        self._settle_rows(batch)
        self._write_rows(batch, commit)
        self._write_rest(batch, commit)
        self._rows.age()
        return batch

    def _accept(
        self, responses: list[tuple[bytes, Response]], late_ms: dict[int, int], batch: Batch
    ) -> list[tuple[int, bytes, Response]]:
        """Return the responses that belong to a declared experiment and variant and are not late."""
        accepted = []
        skipped = too_late = 0
        for key, event in responses:
            experiment = self._experiments.get(event.experiment)
            arm = PENDING if experiment is None else experiment.arm_of(event.variant, event.timestamp_ms)
            if experiment is None or arm == PENDING:
                skipped += 1
            elif event.timestamp_ms < late_ms[experiment.number]:
                too_late += 1
            else:
                accepted.append((arm, key, event))
        if skipped:
            _count(batch.responses, "skipped", skipped)
        if too_late:
            _count(batch.responses, "late", too_late)
        return accepted

    def _load_rows(self, batch: Batch, wanted: set[bytes], late_ms: dict[int, int]) -> None:
        """Fill the batch's view from the cache and, for the rest, from the store.

        A row that can change no more may have been swept: the store knows, for all workers alike.
        """
        view = batch.view
        missing = []
        for key in wanted:
            row = self._rows.get(key)
            if row is None or (row.arm != PENDING and row.timestamp_ms < late_ms.get(row.arm >> 8, 0)):
                missing.append(key)
            else:
                view[key] = row
        prefix = self._prefix
        for key, stored in zip(missing, self._store.rows([prefix + key for key in missing]), strict=True):
            if stored is not None:
                view[key] = decode_row(stored)
                self._rows.put(key, view[key])

    def _new(self, batch: Batch, key: bytes, row: Row) -> None:
        """Take in a row that nobody knows yet."""
        self._rows.put(key, row)
        batch.view[key] = row
        batch.rows[key] = row, None

    def _touch(self, batch: Batch, key: bytes, row: Row) -> bool:
        """Note what a row contributed before this batch; False if that was done."""
        if key in batch.rows:
            return False
        before = None
        if row.arm != PENDING:
            value = row.value
            if value is None:
                value = self._by_number[row.arm >> 8].rules.evaluate(row)
            before = Before(row, value, self._items_of(row.arm) if self._items else None)
        batch.rows[key] = row, before
        return True

    def _apply_response(self, batch: Batch, arm: int, key: bytes, event: Response) -> None:
        identities = self._identities
        timestamp_ms = event.timestamp_ms
        student = identities.student(event.user_id) if event.user_id is not None else b""
        hashes = identities.list_of(event.items)
        category = self._by_number[arm >> 8].category_of(event.category)
        row = batch.view.get(key)
        if row is None:
            row = Row(timestamp_ms, arm, student, hashes, event.ranks, latency_of(event), category)
            self._new(batch, key, row)
            _count(batch.responses, "applied")
            if self._items:
                self._name(batch, row, event, hashes)
        elif row.arm != PENDING and row.arm >> 8 not in self._by_number:
            _count(batch.responses, "skipped")
            return
        else:
            self._merge_response(batch, arm, key, row, event, student, hashes, category)
        if arm & 255 != BEFORE:
            batch.newest(2 * arm + _RESPONSE, timestamp_ms)

    def _merge_response(
        self,
        batch: Batch,
        arm: int,
        key: bytes,
        row: Row,
        event: Response,
        student: bytes,
        items: bytes,
        category: int,
    ) -> None:
        timestamp_ms = event.timestamp_ms
        first = self._touch(batch, key, row)
        replaced = row.arm, row.timestamp_ms, row.student, row.category
        outcome = merge_response(row, timestamp_ms, arm, student, items, event.ranks, latency_of(event), category)
        _count(batch.responses, outcome)
        if outcome == "duplicate":
            if first:
                del batch.rows[key]
            if (arm, timestamp_ms, student, category) != replaced:
                self._expose(batch, arm, timestamp_ms, student, category)
        else:
            if outcome == "revised":
                self._expose(batch, *replaced)
            if self._items:
                self._name(batch, row, event, items)

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

    def _apply_feedback(self, batch: Batch, key: bytes, event: Feedback, late_ms: dict[int, int]) -> None:
        row = batch.view.get(key)
        if row is None or row.arm == PENDING:
            is_late = event.timestamp_ms < late_ms[PENDING]
        elif (number := row.arm >> 8) in self._by_number:
            is_late = row.timestamp_ms < late_ms[number]
        else:
            _count(batch.feedback, "skipped")
            return
        if is_late:
            _count(batch.feedback, "late")
            return
        first = True
        if row is None:
            row = Row()
            self._new(batch, key, row)
        else:
            first = self._touch(batch, key, row)
        outcome = merge_reaction(row, reaction_of(event, self._identities))
        _count(batch.feedback, outcome)
        if outcome == "duplicate" and first:
            del batch.rows[key]

    def _settle_rows(self, batch: Batch) -> None:
        """Turn the touched rows' old and new contributions into differences, and note new rows for the sweep."""
        for key, (row, before) in batch.rows.items():
            arm, timestamp_ms = row.arm, row.timestamp_ms
            if arm == PENDING:
                newest_ms = row.reactions[-1][0]
                if row.version == 0 or newest_ms // HOUR_MS > timestamp_ms // HOUR_MS:
                    batch.note(PENDING, newest_ms, key)
                row.timestamp_ms = newest_ms
                continue
            if self._items:
                self._settle_items(batch, row, before, self._items_of(arm))
            rules = self._by_number[arm >> 8].rules
            after = row.value = rules.evaluate(row)
            if before is not None and before.stands(row):
                self._recount(batch, row, before.value, after)
            else:
                if before is not None:
                    was = before
                    self._count(batch, -1, was.arm, was.timestamp_ms, was.student, was.category, was.value)
                    self._pass(batch, -1, was.arm, was.timestamp_ms, was.items, was.latency_ms, was.category)
                self._count(batch, 1, arm, timestamp_ms, row.student, row.category, after)
                self._pass(batch, 1, arm, timestamp_ms, row.items, row.latency_ms, row.category)
                batch.note(arm >> 8, timestamp_ms, key)
            if arm & 255 != BEFORE and after.last_reaction_ms:
                batch.newest(2 * arm + _EVENT, after.last_reaction_ms)

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

    def _tally(self, batch: Batch, number: int) -> Tally:
        known = batch.tallies.get(number)
        if known is None:
            known = batch.tallies[number] = self._by_number[number].tally()
        return known

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
        tally = self._tally(batch, arm >> 8)
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
            tally = self._tally(batch, row.arm >> 8)
            tally.add_response(-1, variant, at_ms, old.rated, old.values)
            tally.add_response(1, variant, at_ms, new.rated, new.values)
            if row.student:
                difference = tuple([b - a for a, b in zip(old.sums, new.sums, strict=True)])
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

    def _write_rows(self, batch: Batch, commit: Commit) -> None:
        prefix, rows, versions = self._prefix, commit.rows, commit.versions
        for key, (row, _) in batch.rows.items():
            versions += row.version.to_bytes(VERSION_BYTES, "big")
            row.version += 1
            rows.append(prefix + key)
            rows.append(encode_row(row))

    def _write_rest(self, batch: Batch, commit: Commit) -> None:
        keys = self._store.keys
        for number, traffic in batch.traffic.items():
            write_traffic(commit, keys, number, traffic)
        self._write_kinds(commit, batch.kinds, b"")
        self._write_kinds(commit, batch.answered, b"+")
        for (key, counted), change in batch.counts.items():
            if change:
                commit.counts += (key, counted, change)
        for (key, item), (name, index, era) in batch.names.items():
            commit.names += (key, item, name.encode())
            batch.stamps.add((index, era))
        for index, at in batch.stamps:
            commit.stamps += (index, at)
        for place, newest_ms in list(batch.latest.items()):
            batch.newest(place | _EVENT, newest_ms)
        for place, newest_ms in batch.latest.items():
            arm = place >> 1
            commit.latest += (b"%d:%d:%b" % (arm >> 8, arm & 255, b"e" if place & 1 else b"r"), newest_ms)
        for cell, noted in batch.notes.items():
            number, hour = cell >> CELL_BITS, cell & _PLACE
            experiment = PENDING_CLASS if number == PENDING else str(number)
            blob = b"".join([bytes((len(key),)) + key for key in noted])
            commit.notes += (keys.hour(experiment, hour), f"{experiment}:{hour}".encode(), blob, len(noted))

    def _write_kinds(self, commit: Commit, kinds: Mapping[tuple[int, str], int], mark: bytes) -> None:
        for (arm, kind), change in kinds.items():
            if change:
                commit.counts += (self._store.keys.kinds(arm >> 8, arm & 255), mark + kind.encode(), change)
