"""Writing to several shards: responses on the shard of their id, students on the shard of theirs.

A batch is one commit on each shard for the responses there, with that shard's own positions. What it means for
students goes, in the same commit, into an outbox: a stream for each shard that has some of them and each *lane* (the
first partition of the batch). That shard applies an entry in one commit with its receipt, in the lane's order, once.

- A batch that reached only some shards is finished by whoever has its partitions next: shards that have it skip it,
  entries that were sent and not applied are applied.
- A shard that comes back without its last commits (a crash, a promoted replica) is caught up: what it has to apply
  again is still in the outboxes of the others, and what others have applied of commits that it has lost is taken back,
  since the events will come again. Both are kept for half a minute (commit.lua); a shard that has lost more than that
  cannot be made whole, and `state` says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from monitor.engine.accumulator import Accumulator
from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreOwned
from monitor.ingest.batch import Batch
from monitor.ingest.engine import CACHED, Outcomes, write_tallies
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Events
from monitor.ingest.lanes import Lane, Unsettled, applied_field, journal, outbox, sent_field
from monitor.ingest.responses import Responses
from monitor.ingest.shown import Shown
from monitor.ingest.source import Slice
from monitor.ingest.steps import Steps, step_of_each, together
from monitor.ingest.students import Students
from monitor.ingest.writer import Outcome, Standing, is_at, lost_counts
from monitor.store import Advance, Commit, Position, RedisStore, Sent, Shards, State, Status
from monitor.store.packing import PackedRows
from monitor.store.shards import slowest


class UnknownExperiment(StoreOwned):
    """Something in the store is about an experiment that is not configured."""


_Receipts = list[list[bytes]]
"""For each shard those of the entries that say what was shown to its students."""


class _Shard:
    """One shard as the writer believes it to be."""

    def __init__(self, experiments: Sequence[Experiment], store: RedisStore, cached: int) -> None:
        self.store = store
        self.students = Students({experiment.number: experiment for experiment in experiments}, store, cached)
        self.positions: Mapping[str, Position] = {}
        self.swept_ms: Mapping[str, int] = {}
        self.closing: frozenset[int] = frozenset()

    def offset(self, partition: str) -> int | None:
        """Return how far a partition was applied here."""
        position = self.positions.get(partition)
        return None if position is None else position.next_offset

    def advanced(self, steps: Iterable[Advance]) -> None:
        """Note what was committed."""
        self.positions = {**self.positions, **{step.partition: step.position for step in steps}}


class ShardedWriter:
    """Writes to a store of several shards."""

    def __init__(
        self, experiments: Sequence[Experiment], identities: IdHasher, store: Shards, *, cached: int = CACHED
    ) -> None:
        self._experiments = {experiment.number: experiment for experiment in experiments}
        self._shards = [_Shard(experiments, shard, cached // len(store)) for shard in store]
        self._responses = Responses(experiments, identities, list(store), cached)
        self._lanes = Unsettled()
        self._outcomes: Outcomes = Counter()
        """Of what shards have applied, and no outcome has told yet."""
        self._left: set[Lane] = set()
        """Unsettled lanes that are for workers with another configuration."""
        self._looked = False

    def _forget(self) -> None:
        self._responses.forget()
        for shard in self._shards:
            shard.students.forget()

    def look(self) -> tuple[Mapping[str, Position], bool]:
        """See `Writer`: the slowest shard's positions, and whether a shard is not what it is believed to be.

        What one with another server by now has lost must be noticed before the others forget what it was (commit.lua).
        """
        shards = [shard.store.look() for shard in self._shards]
        unsettled = self._lanes.look([lanes for _, lanes, _ in shards])
        standing = any(self._lanes.stands(lane) for lane in unsettled.keys() - self._left)
        outdated = any(shard.store.outdated() for shard in self._shards)
        changed = standing or outdated or not all(same for _, _, same in shards)
        return slowest([positions for positions, _, _ in shards]), changed

    def reached(self, partition: str) -> int | None:
        """See `Writer`."""
        return self._shards[-1].store.reached(partition)

    def state(self, own: Collection[str]) -> State:
        """See `Writer`: lanes of other partitions are for their owners, if they have any and do it within a second.

        Raises `StoreOwned` when a shard has lost more than the others can make up for.
        """
        while True:
            self._forget()
            states = [shard.store.state() for shard in self._shards]
            for shard, state in zip(self._shards, states, strict=True):
                shard.positions, shard.swept_ms, shard.closing = state.positions, state.swept_ms, state.closing
            if self._same_logs() and self._settled([state.lanes for state in states], own):
                break
        swept: dict[str, int] = {}
        furthest: dict[str, int] = {}
        for state in states:
            swept |= {name: max(at_ms, swept.get(name, 0)) for name, at_ms in state.swept_ms.items()}
            for name, position in state.positions.items():
                furthest[name] = max(position.next_offset, furthest.get(name, 0))
        return State(
            commits=sum(state.commits for state in states),
            sweeps=sum(state.sweeps for state in states),
            swept_ms=swept,
            positions=slowest([state.positions for state in states]),
            furthest=furthest,
        )

    def advance(self, steps: Sequence[Advance], lost: Mapping[str, int]) -> bool:
        """See `Writer`: shard by shard, the loss counted on the first; `state` takes the others along (`_same_logs`).

        A partition that some shards know already begins where they stand, unless it can begin before that.
        """
        steps = [step if step.expected is not None else self._begun(step) for step in steps]
        for shard in self._shards:
            counts = lost_counts(shard.store, lost) if shard is self._shards[0] else []
            if not self._moved(shard, steps, counts):
                return False
        return True

    def _begun(self, step: Advance) -> Advance:
        known = [shard.positions[step.partition] for shard in self._shards if step.partition in shard.positions]
        if any(position.origin != step.position.origin for position in known):
            return replace(step, position=known[0].entry())
        return replace(step, position=min([step.position, *known], key=lambda position: position.next_offset))

    def _same_logs(self) -> bool:
        """Take shards that were left behind, or went back, to the log that others have entered; True if none was."""
        entered: dict[str, Position] = {}
        for shard in self._shards:
            for name, position in shard.positions.items():
                entered[name] = max(entered.get(name, position), position, key=lambda each: each.reached)
        same = True
        for shard in self._shards:
            steps = [
                Advance(name, None, entered[name].entry())
                for name, position in shard.positions.items()
                if position.reached[0] < entered[name].reached[0]
            ]
            same = same and not steps
            self._moved(shard, steps, [])
        return same

    @staticmethod
    def _moved(shard: _Shard, steps: Sequence[Advance], counts: list[bytes | int]) -> bool:
        """Take one shard's partitions where the steps lead, from wherever it stands; False if somebody else has."""
        own = []
        for step in steps:
            held = shard.positions.get(step.partition)
            if held is None:
                own.append(replace(step, expected=None))
            elif held.reached < step.position.reached:
                own.append(replace(step, expected=held.next_offset, left=held.origin))
        if own and shard.store.commit(Commit(advances=own, counts=counts)) != "applied":
            return False
        shard.advanced(own)
        return True

    def parts(self, slices: Sequence[Slice]) -> Sequence[Sequence[Slice]]:
        """See `Writer`: where shards are not equally far, each slice alone, cut where one of them stands."""
        if all(shard.offset(each.partition) == each.begin for shard in self._shards for each in slices):
            return [slices]
        return [[part] for each in slices for part in self._cut(each)]

    def _cut(self, whole: Slice) -> list[Slice]:
        held = {shard.offset(whole.partition) for shard in self._shards}
        inside = sorted(at for at in held if at is not None and whole.begin < at < whole.next_offset)
        parts = []
        for begin, end in zip([whole.begin, *inside], [*inside, whole.next_offset], strict=True):
            records = whole.records.part(whole.records.place_of(begin), whole.records.place_of(end))
            parts.append(replace(whole, begin=begin, records=records, next_offset=end))
        return parts

    def standing(self, advances: Sequence[Advance]) -> Standing:
        """See `Writer`."""
        done = [self._done(shard, advances) for shard in self._shards]
        if all(done):
            return "applied"
        waiting = [shard for shard, applied in zip(self._shards, done, strict=True) if not applied]
        if all(
            is_at(shard.positions.get(step.partition), step, step.expected) for shard in waiting for step in advances
        ):
            return "to apply"
        return "moved"

    @staticmethod
    def _done(shard: _Shard, advances: Sequence[Advance]) -> bool:
        return all(
            (held := shard.positions.get(step.partition)) is not None
            and held.origin == step.position.origin
            and held.next_offset >= step.position.next_offset
            for step in advances
        )

    def begin(self, events: Events, late: Mapping[str, int], advances: list[Advance]) -> Outcome:
        """See `Writer`: all shards are at work on their responses at once, and then on their students."""
        lane = min(step.partition for step in advances).encode()
        commits = [
            Commit(advances=advances, new_rows=PackedRows(summed=shard.store.is_shared())) for shard in self._shards
        ]
        receipts: _Receipts = [[] for _ in self._shards]
        shown = [Shown() for _ in self._shards]
        waiting = [not self._done(shard, advances) for shard in self._shards]
        if not all(waiting):
            events = events.about(waiting)
        with self._abandoned():
            batches = self._responses.apply(events, late, commits, shown)
            responses = [
                self._send(source, batches[source], commits[source], lane, receipts)
                for source, waits in enumerate(waiting)
                if waits
            ]
            for _ in ("asked", "sent"):
                step_of_each(responses)
        return lambda: self._finish(responses, shown, receipts)

    @contextmanager
    def _abandoned(self) -> Iterator[None]:
        """Wait for no shard any more if one of them fails: a server that does not answer may be all of them."""
        try:
            yield
        except BaseException:  # also an interruption: an unread reply would answer the next command
            for shard in self._shards:
                shard.store.abandon()
            raise

    def _send(self, source: int, batch: Batch, commit: Commit, lane: bytes, receipts: _Receipts) -> Steps:
        """Send a shard its responses; receipts of the entries that say what they mean for students are added.

        Asks whether it may, sends it, and waits for what becomes of it.
        """
        shard = self._shards[source]
        write_tallies(commit, shard.store, self._experiments, batch.tallies)
        packed = [(target, said) for target, each in enumerate(batch.said) if (said := each.getvalue())]
        for target, said in packed:
            commit.sends += (shard.store.keys.outbox(target, lane), sent_field(target, lane), said)
        outcomes = batch.outcomes()
        del batch  # while the store is at work, it would be in memory
        send = shard.store.ask(commit)
        yield None
        reply = send()
        yield None
        status, entries = reply()
        if status == "applied":
            shard.advanced(commit.advances)
            self._outcomes += outcomes
            for (target, said), sent in zip(packed, entries, strict=True):
                receipts[target] += self._receipt(source, target, lane, sent, said)
        yield status

    def _finish(
        self, responses: Sequence[Steps], shown: Sequence[Shown], receipts: _Receipts
    ) -> tuple[Status, Outcomes]:
        """Wait for the responses of all shards, then have all apply what that means for their students."""
        with self._abandoned():
            status = together(responses)
            if status == "applied":
                status = together(
                    [self._send_students(target, shown[target], each) for target, each in enumerate(receipts) if each]
                )
        if status != "applied":
            return status, Counter()
        outcomes, self._outcomes = self._outcomes, Counter()
        return status, outcomes

    def _receipt(self, source: int, target: int, lane: bytes, sent: Sent, said: bytes) -> list[bytes]:
        """Return what notes that a shard has applied an entry of another one's."""
        return [self._shards[target].store.keys.journal(source, lane), applied_field(source, lane), *sent, said]

    def _deliver(self, source: int, target: int, lane: bytes, sent: Sent, said: bytes) -> Status:
        """Apply one entry."""
        receipt = self._receipt(source, target, lane, sent, said)
        return together([self._send_students(target, Shown.unpack(said), receipt)])

    def _take_back(self, source: int, target: int, lane: bytes, sent: Sent, said: bytes) -> None:
        """Undo an entry; that students were shown something stays: the events will say so again."""
        receipt = self._receipt(source, target, lane, Sent(sent.entry, sent.before), b"")
        together([self._send_students(target, Shown.unpack(said).undone(), receipt)])

    def _send_students(self, target: int, shown: Shown, receipts: list[bytes]) -> Steps:
        """Send students what was shown to them, with the receipts that say so.

        Asks for their rows, asks whether what becomes of them may be written, sends it, and waits.
        """
        self._check_known(shown)
        shard = self._shards[target]
        known = shown.without(shard.closing)
        while True:
            commit = Commit(receipts=receipts, new_rows=PackedRows(summed=shard.store.is_shared()))
            tallies: dict[int, Accumulator] = {}
            looked = shard.students.look(known)
            yield None
            shard.students.apply(looked, tallies, commit)
            write_tallies(commit, shard.store, self._experiments, tallies)
            send = shard.store.ask(commit)
            yield None
            reply = send()
            yield None
            status, _ = reply()
            if status != "applied":
                # They have been changed as if it had been.
                shard.students.forget()
            if status != "changed":
                yield status
                return
            # Another worker has changed one of the students: nothing is wrong but what is remembered of this shard.
            self._responses.forget_shard(target)
            state = shard.store.state()
            if (state.swept_ms, state.closing) != (shard.swept_ms, shard.closing):
                yield "swept"
                return

    def _check_known(self, shown: Shown) -> None:
        for number in shown.experiments() - self._experiments.keys():
            raise UnknownExperiment(
                f"the store holds unfinished work of the experiment with the number {number}, which is not configured; "
                "start once more with it"
            )

    def _settled(self, lanes: Sequence[Mapping[bytes, bytes]], own: Collection[str]) -> bool:
        """Apply what was sent and not applied, take back what its sender has lost; True if there was nothing."""
        unsettled = self._lanes.look(lanes)
        foreign = [lane for lane in unsettled if lane[2].decode() not in own]
        todo = [lane for lane in sorted(unsettled) if lane not in foreign or self._lanes.stands(lane)]
        for lane in list(todo):
            try:
                self._settle(*lane, *unsettled[lane])
            except UnknownExperiment:
                if lane not in foreign:
                    raise
                self._left.add(lane)
                todo.remove(lane)
        if foreign and not self._looked:
            # Lanes of files that nobody reads any more are nobody's: at the start is the time to see to them.
            self._lanes.wait()
        first, self._looked = not self._looked, True
        return not todo and not (first and foreign)

    def _settle(self, source: int, target: int, lane: bytes, last: bytes, applied: bytes) -> None:
        """Bring one lane between two shards in line; whatever somebody else does meanwhile is seen the next time."""
        kept = outbox(self._shards[source].store, target, lane)
        known = [kept[0][0].before if kept else last, *(sent.entry for sent, _ in kept)]
        if {applied, last} <= {*known}:
            for sent, said in kept[known.index(applied) :]:
                if self._deliver(source, target, lane, sent, said) != "applied":
                    return
            return
        done = journal(self._shards[target].store, source, lane)
        lost = last, applied
        undone: list[tuple[Sent, bytes]] = []
        while not {applied, last} <= {*known}:
            if applied not in done or last not in known:
                now = [shard.store.look()[1] for shard in self._shards]
                if self._lanes.look(now).get((source, target, lane)) == lost:
                    raise StoreOwned(
                        f"shard {source} of {len(self._shards)} has lost more than what shard {target} can make up for "
                        "(a stale replica promoted, or an old file loaded): its aggregates cannot be trusted. "
                        "`ab-monitor rebuild` makes new ones from Kafka"
                    )
                return
            undone.append(done[applied])
            applied = done[applied][0].before
        for sent, said in undone:
            self._take_back(source, target, lane, sent, said)
