"""Rows of responses: a batch of events → changed rows, and what they change elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, final

from mypy_extensions import i64

from monitor.engine.accumulator import Accumulator
from monitor.engine.id_hash import IdHasher
from monitor.engine.response_row import (
    NO_RESPONSE,
    PRE_PERIOD,
    Contribution,
    Reaction,
    ResponseRow,
    merge_reaction,
    merge_response,
)
from monitor.engine.row_codec import encode_response
from monitor.ingest.batch import Batch, Before
from monitor.ingest.differences import write_batch
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.ingest.intake import Answer, Events
from monitor.ingest.items import ItemCounts
from monitor.ingest.remembered import Rows
from monitor.ingest.skips import Skips
from monitor.store import Commit, RedisStore

_NOTHING: Final[tuple[int, ...]] = ()
_NAMES: Final = 200_000
"""Names of items that a worker remembers to have written to a shard."""


@final
class Responses:
    """The responses of one shard; `late` says, by experiment number, which times are past the horizon."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        identities: IdHasher,
        store: RedisStore,
        cached: int,
        first_version: int,
    ) -> None:
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._last: i64 = NO_RESPONSE
        self._last_experiment: Experiment
        """What was asked for last: nearly always what is asked for next."""
        self._keys = store.keys
        self._first_version: i64 = first_version
        self._rows = Rows(store, cached)
        self._prefix = store.keys.row(b"")
        self._skips = Skips(store, identities)
        self._items: dict[int, ItemCounts] = {
            experiment.number: items
            for experiment in experiments
            if (items := experiment.items(identities, store.keys)) is not None
        }
        self._named: set[tuple[bytes, bytes]] = set()
        """(key, item) of names that the shard has."""

    def forget(self) -> None:
        """Drop every cached row and name: the store is what counts."""
        self._rows.forget()
        self._named.clear()

    def apply(self, events: Events, late: Mapping[str, int], commit: Commit) -> Batch:
        """Append to the commit what the events change of rows, and return what they change besides.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. When rows cannot be read (`StoreUnavailable`), the cache knows half of the batch: see `forget`.
        """
        batch = Batch(self._items)
        late_ms = {number: late[str(number)] for number in self._by_number}
        late_ms[NO_RESPONSE] = late[PENDING_CLASS]
        cache = self._rows
        accepted: list[Answer] = []
        rows = self._accept(events.answers, late_ms, batch, accepted)
        answered = [cache.get_or_create(name, late_ms) for name in events.answered]
        cache.load()
        for at, answer in enumerate(accepted):
            row = rows[at]
            if row.is_blank():
                self._answer(batch, row, answer)
            else:
                self._answer_again(batch, row, answer)
        for at, reaction in enumerate(events.reactions):
            self._apply_feedback(batch, answered[at], reaction, late_ms)
        self._settle_rows(batch, commit)
        write_batch(commit, self._keys, batch)
        if batch.skipped_responses or batch.skipped_reactions:
            self._skips.write(commit, batch)
        cache.end_batch()
        return batch

    def _accept(
        self,
        answers: list[Answer],
        late_ms: dict[int, int],
        batch: Batch,
        accepted: list[Answer],
    ) -> list[ResponseRow]:
        """Take responses of declared experiments and variants that are not late as accepted; return their rows."""
        rows = []
        known: i64 = NO_RESPONSE
        boundary_ms: i64 = 0
        for answer in answers:
            timestamp_ms, number = i64(answer.timestamp_ms), i64(answer.arm >> 8)
            if number == NO_RESPONSE:
                batch.responses.append("skipped")
                if answer.undeclared:
                    batch.skip_response(answer.undeclared, timestamp_ms)
                continue
            if number != known:
                known = number
                boundary_ms = late_ms[number]
            if timestamp_ms < boundary_ms:
                batch.responses.append("late")
            else:
                batch.reach(number, timestamp_ms)
                accepted.append(answer)
                rows.append(self._rows.get_or_create(answer.name, late_ms))
        return rows

    @staticmethod
    def _begin(batch: Batch, row: ResponseRow) -> None:
        """Take in a row that nobody knows yet."""
        row.touched = True
        batch.rows.append(row)

    def _touch(self, batch: Batch, row: ResponseRow) -> bool:
        """Note what a row contributed before this batch; False if that was done."""
        if row.touched:
            return False
        row.touched = True
        batch.rows.append(row)
        if row.arm != NO_RESPONSE:
            value = row.contribution
            if value is None:
                value = self._by_number[row.arm >> 8].rules.evaluate(row)
            batch.before[row.name] = Before(row, value, _items_of(batch, row.arm) if batch.items else None)
        return True

    @staticmethod
    def _leave(batch: Batch, row: ResponseRow) -> None:
        """Take back what `_touch` has just noted: nothing has changed."""
        batch.rows.pop()
        batch.before.pop(row.name, None)
        row.touched = False

    def _answer(self, batch: Batch, row: ResponseRow, answer: Answer) -> None:
        """Put a response that nobody knows yet into a blank row."""
        row.timestamp_ms = answer.timestamp_ms
        row.arm = answer.arm
        row.student = answer.student
        row.items = answer.items
        row.ranks = answer.ranks
        row.latency_ms = answer.latency_ms
        row.category = answer.category
        self._begin(batch, row)
        batch.responses.append("applied")
        if batch.items:
            self._name(batch, row, answer)
        if answer.arm & 255 != PRE_PERIOD:
            batch.of(answer.arm).saw_response(answer.timestamp_ms)

    def _answer_again(self, batch: Batch, row: ResponseRow, answer: Answer) -> None:
        """Put a response into a row that there is: it has been seen, or feedback to it."""
        batch.reach_row(row)
        if row.arm != NO_RESPONSE and row.arm >> 8 not in self._by_number:
            batch.responses.append("skipped")
            batch.skip_response(self._by_number[answer.arm >> 8].settings.name, answer.timestamp_ms)
            return
        arm, timestamp_ms, student, category = answer.arm, answer.timestamp_ms, answer.student, answer.category
        first = self._touch(batch, row)
        replaced = row.arm, row.timestamp_ms, row.student, row.category
        outcome = merge_response(
            row, timestamp_ms, arm, student, answer.items, answer.ranks, answer.latency_ms, category
        )
        batch.responses.append(outcome)
        if outcome == "duplicate":
            if first:
                self._leave(batch, row)
            if (arm, timestamp_ms, student, category) != replaced:
                self._expose(batch, arm, timestamp_ms, student, category)
        else:
            if outcome == "revised":
                self._expose(batch, *replaced)
            if batch.items:
                self._name(batch, row, answer)
        if arm & 255 != PRE_PERIOD:
            batch.of(arm).saw_response(timestamp_ms)

    def _name(self, batch: Batch, row: ResponseRow, answer: Answer) -> None:
        """Note the ids of a response's items, those that have not been written yet."""
        counts = _items_of(batch, row.arm)
        if counts is None:
            return
        named = self._named
        for place, name, index, era in counts.names(row, answer.items, answer.ids):
            if place not in named:
                if len(named) >= _NAMES:
                    named.clear()
                named.add(place)
                batch.names[place] = name, index, era

    @staticmethod
    def _expose(batch: Batch, arm: int, timestamp_ms: int, student: bytes, category: int) -> None:
        """Note that a student was shown a response that does not stand: another one under its id does, in the row."""
        if student and arm & 255 != PRE_PERIOD:
            batch.expose(student, arm, timestamp_ms, category, _NOTHING, _NOTHING)

    def _apply_feedback(self, batch: Batch, row: ResponseRow, reaction: Reaction, late_ms: dict[int, int]) -> None:
        """Put a reaction into its row."""
        if row.arm == NO_RESPONSE:
            is_late = reaction[0] < late_ms[NO_RESPONSE]
        elif (number := row.arm >> 8) in self._by_number:
            is_late = row.timestamp_ms < late_ms[number]
        else:
            batch.reach_row(row)
            batch.feedback.append("skipped")
            batch.skip_reaction(number, reaction[0])
            return
        if is_late:
            batch.feedback.append("late")
            return
        batch.reach_row(row)
        if row.arm == NO_RESPONSE:
            batch.reach(NO_RESPONSE, reaction[0])
        first = True
        if row.is_blank():
            self._begin(batch, row)
        else:
            first = self._touch(batch, row)
        outcome = merge_reaction(row, reaction)
        batch.feedback.append(outcome)
        if outcome == "duplicate" and first:
            self._leave(batch, row)

    def _settle_rows(self, batch: Batch, commit: Commit) -> None:
        """Write the touched rows, with what they change elsewhere."""
        for row in batch.rows:
            row.touched = False
            if row.arm == NO_RESPONSE:
                newest_ms = row.reactions[-1][0]
                if not row.version or newest_ms // HOUR_MS > row.timestamp_ms // HOUR_MS:
                    batch.note(NO_RESPONSE, newest_ms, row.name)
                row.timestamp_ms = newest_ms
            else:
                self._settle(batch, row, batch.before.get(row.name) if row.version else None)
            is_new = row.version == 0
            row.version = self._first_version if is_new else row.version + 1
            commit.add_row(self._prefix + row.name, encode_response(row), is_new=is_new)

    def _settle(self, batch: Batch, row: ResponseRow, before: Before | None) -> None:
        """Turn a row's old and new contributions into differences."""
        arm, timestamp_ms = row.arm, row.timestamp_ms
        if batch.items:
            self._settle_items(batch, row, before, _items_of(batch, arm))
        after = row.contribution = self._experiment(arm >> 8).rules.evaluate(row)
        if before is not None and before.stands(row):
            self._recount(batch, row, before.value, after)
        else:
            if before is not None:
                was = before
                self._count(batch, -1, was.arm, was.timestamp_ms, was.student, was.category, was.value)
                self._pass(batch, -1, was.arm, was.timestamp_ms, was.items, was.latency_ms, was.category)
                batch.move(row, was)
            self._count(batch, 1, arm, timestamp_ms, row.student, row.category, after)
            self._pass(batch, 1, arm, timestamp_ms, row.items, row.latency_ms, row.category)
            if before is None:
                batch.note(arm >> 8, timestamp_ms, row.name)
        if arm & 255 != PRE_PERIOD and after.last_reaction_ms:
            batch.of(arm).saw_event(after.last_reaction_ms)

    def _experiment(self, number: i64) -> Experiment:
        if number != self._last:
            self._last = number
            self._last_experiment = self._by_number[number]
        return self._last_experiment

    def _tally(self, batch: Batch, number: i64) -> Accumulator:
        if number != batch.tallied:
            batch.tallied = number
            batch.tally = self._experiment(number).tally_in(batch.tallies)
        return batch.tally

    @staticmethod
    def _settle_items(batch: Batch, row: ResponseRow, before: Before | None, items: ItemCounts | None) -> None:
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

    def _pass(
        self, batch: Batch, sign: int, arm: int, timestamp_ms: int, items: bytes, latency_ms: int, category: int
    ) -> None:
        """Add a response to the traffic, or take it away; there is none before the experiment."""
        if arm & 255 == PRE_PERIOD:
            return
        traffic = batch.traffic.get(arm >> 8)
        if traffic is None:
            traffic = batch.traffic[arm >> 8] = self._by_number[arm >> 8].traffic()
        traffic.add(sign, arm & 255, timestamp_ms, items, latency_ms, category)

    def _count(
        self,
        batch: Batch,
        sign: int,
        arm: int,
        timestamp_ms: int,
        student: bytes,
        category: int,
        value: Contribution,
    ) -> None:
        """Add or take away a whole response; one from before the experiment is only its student's."""
        tally = self._tally(batch, arm >> 8)
        during = arm & 255 != PRE_PERIOD
        if during:
            tally.add_response(sign, arm & 255, timestamp_ms, value.rated, value.values)
            if value.kinds:
                batch.of(arm).count(sign, value.kinds)
        if student:
            now, was = (value.sums, _NOTHING) if sign > 0 else (_NOTHING, value.sums)
            batch.expose(student, arm, timestamp_ms, category, now, was)
        elif during:
            tally.add_anonymous(sign, arm & 255, timestamp_ms, category, value.sums)

    def _recount(self, batch: Batch, row: ResponseRow, old: Contribution, new: Contribution) -> None:
        """Replace what a response contributed where only its reactions have changed."""
        variant, at_ms = row.arm & 255, row.timestamp_ms
        if variant == PRE_PERIOD:
            self._count(batch, -1, row.arm, at_ms, row.student, row.category, old)
            self._count(batch, 1, row.arm, at_ms, row.student, row.category, new)
            return
        if old.sums != new.sums:
            tally = self._tally(batch, row.arm >> 8)
            tally.add_response(-1, variant, at_ms, old.rated, old.values)
            tally.add_response(1, variant, at_ms, new.rated, new.values)
            if row.student:
                batch.expose(row.student, row.arm, at_ms, row.category, new.sums, old.sums)
            else:
                tally.add_anonymous(-1, variant, at_ms, row.category, old.sums)
                tally.add_anonymous(1, variant, at_ms, row.category, new.sums)
        if old.kinds != new.kinds:
            batch.of(row.arm).count(-1, old.kinds)
            batch.of(row.arm).count(1, new.kinds)


def _items_of(batch: Batch, arm: int) -> ItemCounts | None:
    """Return what counts the items of an arm's responses: nothing does before the experiment."""
    return None if arm & 255 == PRE_PERIOD else batch.items.get(arm >> 8)
