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
from monitor.engine.row_codec import encode_response, is_unwritten, mark_of, next_version, unwritten
from monitor.ingest.batch import Batch, Before
from monitor.ingest.differences import write_batch
from monitor.ingest.experiment import HOUR_MS, PENDING_CLASS, Experiment
from monitor.ingest.intake import Answer, Events
from monitor.ingest.items import ItemCounts
from monitor.ingest.remembered import Rows
from monitor.ingest.shown import Shown
from monitor.ingest.skips import Skips
from monitor.store import Commit, RedisStore

_NOTHING: Final[tuple[int, ...]] = ()
_NAMES: Final = 200_000
"""Names of items that a worker remembers to have written to a shard."""


@final
class Responses:
    """The responses of all shards; `late` says, by experiment number, which times are past the horizon."""

    def __init__(
        self, experiments: Sequence[Experiment], identities: IdHasher, stores: Sequence[RedisStore], cached: int
    ) -> None:
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._last: i64 = NO_RESPONSE
        self._last_experiment: Experiment
        """What was asked for last: nearly always what is asked for next."""
        self._stores = list(stores)
        self._rows = Rows(stores, cached)
        self._skips = [Skips(store, identities) for store in stores]
        self._items: list[dict[int, ItemCounts]] = [
            {
                experiment.number: items
                for experiment in experiments
                if (items := experiment.items(identities, store.keys)) is not None
            }
            for store in stores
        ]
        self._named: list[set[tuple[bytes, bytes]]] = [set() for _ in stores]
        """(key, item) of names that each shard has."""

    def forget(self) -> None:
        """Drop every cached row and name: the store is what counts."""
        for shard in range(len(self._stores)):
            self.forget_shard(shard)

    def forget_shard(self, shard: int) -> None:
        """Drop what is cached of one shard."""
        self._rows.forget(shard)
        self._named[shard].clear()

    def apply(
        self, events: Events, late: Mapping[str, int], commits: Sequence[Commit], shown: list[Shown]
    ) -> list[Batch]:
        """Append to each shard's commit what the events change of its rows, and return what they change there besides.

        What they mean for the students of each shard is appended to what was `shown` there. All events are applied in
        the order in which they came, whatever their shard.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. When rows cannot be read (`StoreUnavailable`), the cache knows half of the batch: see `forget`.
        """
        touched: list[ResponseRow] = []
        batches = [Batch(shown, touched, items) for items in self._items]
        late_ms = {number: late[str(number)] for number in self._by_number}
        late_ms[NO_RESPONSE] = late[PENDING_CLASS]
        remembered = self._rows
        remembered.begin()
        accepted: list[Answer] = []
        rows = self._accept(events.answers, late_ms, batches, accepted)
        answered = [remembered.recall(name, remembered.home(name), late_ms) for name in events.answered]
        remembered.load()
        for at, answer in enumerate(accepted):
            row = rows[at]
            batch = batches[row.home]
            if row.is_blank():
                self._answer(batch, row, answer)
            else:
                self._answer_again(batch, row, answer)
        for at, reaction in enumerate(events.reactions):
            row = answered[at]
            self._apply_feedback(batches[row.home], row, reaction, events.marks[at], late_ms)
        self._settle_rows(touched, batches, commits)
        for shard, batch in enumerate(batches):
            commit = commits[shard]
            write_batch(commit, self._stores[shard].keys, batch)
            if batch.skipped_responses or batch.skipped_reactions:
                self._skips[shard].write(commit, batch)
        remembered.end()
        return batches

    def _accept(
        self,
        answers: list[Answer],
        late_ms: dict[int, int],
        batches: list[Batch],
        accepted: list[Answer],
    ) -> list[ResponseRow]:
        """Take responses of declared experiments and variants that are not late as accepted; return their rows."""
        rows = []
        remembered = self._rows
        known: i64 = NO_RESPONSE
        boundary_ms: i64 = 0
        for answer in answers:
            timestamp_ms, number = i64(answer.timestamp_ms), i64(answer.arm >> 8)
            home = remembered.home(answer.name)
            batch = batches[home]
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
                rows.append(remembered.recall(answer.name, home, late_ms))
        return rows

    @staticmethod
    def _begin(batch: Batch, row: ResponseRow, mark: int) -> None:
        """Take in a row that nobody knows yet."""
        row.version = unwritten(mark)
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
        self._begin(batch, row, answer.mark)
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
                self._expose(batch, row, arm, timestamp_ms, student, category)
        else:
            if outcome == "revised":
                self._expose(batch, row, *replaced)
            if batch.items:
                self._name(batch, row, answer)
        if arm & 255 != PRE_PERIOD:
            batch.of(arm).saw_response(timestamp_ms)

    def _name(self, batch: Batch, row: ResponseRow, answer: Answer) -> None:
        """Note the ids of a response's items, those that have not been written yet."""
        counts = _items_of(batch, row.arm)
        if counts is None:
            return
        named = self._named[row.home]
        for place, name, index, era in counts.names(row, answer.items, answer.ids):
            if place not in named:
                if len(named) >= _NAMES:
                    named.clear()
                named.add(place)
                batch.names[place] = name, index, era

    def _expose(
        self, batch: Batch, row: ResponseRow, arm: int, timestamp_ms: int, student: bytes, category: int
    ) -> None:
        """Note that a student was shown a response that does not stand: another one under its id does, in the row."""
        if student and arm & 255 != PRE_PERIOD:
            batch.show(student, arm, timestamp_ms, category, mark_of(row.version), (), ())

    def _apply_feedback(
        self, batch: Batch, row: ResponseRow, reaction: Reaction, mark: int, late_ms: dict[int, int]
    ) -> None:
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
            self._begin(batch, row, mark)
        else:
            first = self._touch(batch, row)
        outcome = merge_reaction(row, reaction)
        batch.feedback.append(outcome)
        if outcome == "duplicate" and first:
            self._leave(batch, row)

    def _settle_rows(self, touched: list[ResponseRow], batches: list[Batch], commits: Sequence[Commit]) -> None:
        """Write the touched rows, with what they change elsewhere."""
        known: i64 = -1
        for row in touched:
            home = row.home
            if home != known:
                known = home
                batch, prefix = batches[home], self._rows.prefixes[home]
                changed, new = commits[home].rows, commits[home].new_rows
            row.touched = False
            if row.arm == NO_RESPONSE:
                newest_ms = row.reactions[-1][0]
                if is_unwritten(row.version) or newest_ms // HOUR_MS > row.timestamp_ms // HOUR_MS:
                    batch.note(NO_RESPONSE, newest_ms, row.name)
                row.timestamp_ms = newest_ms
            else:
                self._settle(batch, row, None if is_unwritten(row.version) else batch.before.get(row.name))
            written = new if is_unwritten(row.version) else changed
            row.version = next_version(row.version)
            written.add(prefix, row.name, encode_response(row))

    def _settle(self, batch: Batch, row: ResponseRow, before: Before | None) -> None:
        """Turn a row's old and new contributions into differences."""
        arm, timestamp_ms, mark = row.arm, row.timestamp_ms, mark_of(row.version)
        if batch.items:
            self._settle_items(batch, row, before, _items_of(batch, arm))
        after = row.contribution = self._experiment(arm >> 8).rules.evaluate(row)
        if before is not None and before.stands(row):
            self._recount(batch, row, before.value, after)
        else:
            if before is not None:
                was = before
                self._count(batch, -1, mark, was.arm, was.timestamp_ms, was.student, was.category, was.value)
                self._pass(batch, -1, was.arm, was.timestamp_ms, was.items, was.latency_ms, was.category)
                batch.move(row, was)
            self._count(batch, 1, mark, arm, timestamp_ms, row.student, row.category, after)
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
        mark: int,
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
            batch.show(student, arm, timestamp_ms, category, mark, now, was)
        elif during:
            tally.add_anonymous(sign, arm & 255, timestamp_ms, category, value.sums)

    def _recount(self, batch: Batch, row: ResponseRow, old: Contribution, new: Contribution) -> None:
        """Replace what a response contributed where only its reactions have changed."""
        variant, at_ms, mark = row.arm & 255, row.timestamp_ms, mark_of(row.version)
        if variant == PRE_PERIOD:
            self._count(batch, -1, mark, row.arm, at_ms, row.student, row.category, old)
            self._count(batch, 1, mark, row.arm, at_ms, row.student, row.category, new)
            return
        if old.sums != new.sums:
            tally = self._tally(batch, row.arm >> 8)
            tally.add_response(-1, variant, at_ms, old.rated, old.values)
            tally.add_response(1, variant, at_ms, new.rated, new.values)
            if row.student:
                batch.show(row.student, row.arm, at_ms, row.category, mark, new.sums, old.sums)
            else:
                tally.add_anonymous(-1, variant, at_ms, row.category, old.sums)
                tally.add_anonymous(1, variant, at_ms, row.category, new.sums)
        if old.kinds != new.kinds:
            batch.of(row.arm).count(-1, old.kinds)
            batch.of(row.arm).count(1, new.kinds)


def _items_of(batch: Batch, arm: int) -> ItemCounts | None:
    """Return what counts the items of an arm's responses: nothing does before the experiment."""
    return None if arm & 255 == PRE_PERIOD else batch.items.get(arm >> 8)
