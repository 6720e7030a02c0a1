"""How a worker brings batches into the store: where one shard holds everything, one commit each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, NoReturn, Protocol

from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreUnavailable
from monitor.ingest.engine import CACHED, Engine, Outcomes
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Events
from monitor.ingest.source import Slice
from monitor.store import Advance, Commit, Position, RedisStore, State, Status

Standing = Literal["applied", "to apply", "moved"]
Outcome = Callable[[], tuple[Status, Outcomes]]
"""Waits for what became of a batch; to be called once. May raise `StoreUnavailable`."""


def unsent(error: StoreUnavailable) -> Outcome:
    """Return the outcome of a batch that could not be sent; without a traceback, which would keep the batch."""
    error.__traceback__ = None

    def outcome() -> NoReturn:
        raise error

    return outcome


class Writer(Protocol):
    """What the worker asks of the store. Everything may raise `StoreUnavailable`, and may be asked again then."""

    def state(self, own: Collection[str]) -> State:
        """Drop every belief, finish what was begun on the worker's own partitions, and return what the store holds.

        Positions are believed from then on.
        """

    def look(self) -> tuple[Mapping[str, Position], bool]:
        """Return how far every partition was applied, by whomever, and whether there is a reason to read the `state`.

        What is believed stays as it is.
        """

    def reached(self, partition: str) -> int | None:
        """Return how far a partition was applied, by whomever, as the last of several shards has it."""

    def advance(self, steps: Sequence[Advance], lost: Mapping[str, int]) -> bool:
        """Move positions without events, counting those that were `lost`; False if somebody else has moved them."""

    def parts(self, slices: Sequence[Slice]) -> Sequence[Sequence[Slice]]:
        """Return the slices as batches each of which can be applied as a whole."""

    def begin(self, events: Events, late: Mapping[str, int], advances: list[Advance]) -> Outcome:
        """Work a batch out and send it. Nothing else is asked of the writer before the outcome is known.

        Unless the batch was "applied", read the `state` and see how it is `standing`.
        """

    def standing(self, advances: Sequence[Advance]) -> Standing:
        """Return, by the state read last, whether a batch was applied, can be applied, or is nobody's any more."""


class DirectWriter:
    """Writes to a store of one shard."""

    def __init__(
        self, experiments: Sequence[Experiment], identities: IdHasher, store: RedisStore, *, cached: int = CACHED
    ) -> None:
        self._engine = Engine(experiments, identities, store, cached=cached)
        self._store = store
        self._positions: Mapping[str, Position] = {}

    def state(self, own: Collection[str]) -> State:
        """See `Writer`: nothing stays half done."""
        del own
        self._engine.forget()
        state = self._store.state()
        self._positions = state.positions
        return state

    def look(self) -> tuple[Mapping[str, Position], bool]:
        """See `Writer`: a commit to another server is refused early enough."""
        return self._store.positions(), self._store.outdated()

    def reached(self, partition: str) -> int | None:
        """See `Writer`."""
        return self._store.reached(partition)

    def advance(self, steps: Sequence[Advance], lost: Mapping[str, int]) -> bool:
        """See `Writer`."""
        return self._store.commit(Commit(advances=list(steps), counts=lost_counts(self._store, lost))) == "applied"

    def parts(self, slices: Sequence[Slice]) -> Sequence[Sequence[Slice]]:
        """See `Writer`: as they are."""
        return [slices]

    def begin(self, events: Events, late: Mapping[str, int], advances: list[Advance]) -> Outcome:
        """See `Writer`."""
        commit, outcomes = self._engine.apply(events, late)
        commit.advances = advances
        outcome = self._store.start(commit)
        return lambda: (outcome()[0], outcomes)

    def standing(self, advances: Sequence[Advance]) -> Standing:
        """See `Writer`."""
        held = [self._positions.get(step.partition) for step in advances]
        if all(is_at(each, step, step.position.next_offset) for each, step in zip(held, advances, strict=True)):
            return "applied"
        waiting = all(is_at(each, step, step.expected) for each, step in zip(held, advances, strict=True))
        return "to apply" if waiting else "moved"


def is_at(held: Position | None, step: Advance, offset: int | None) -> bool:
    """Return whether a stored position is at an offset of the log that a step is about."""
    return held is not None and held.origin == step.position.origin and held.next_offset == offset


def lost_counts(store: RedisStore, lost: Mapping[str, int]) -> list[bytes | int]:
    """Return what a commit has to count of lost events."""
    counts: list[bytes | int] = []
    for partition, events in Counter(lost).items():
        if events:
            counts += (store.keys.lost, partition.encode(), events)
    return counts
