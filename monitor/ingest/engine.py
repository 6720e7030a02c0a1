"""One batch of events → one commit, where one shard holds everything.

The rows that the batch touches are read, the events applied to that one in-memory view, and what has to be written
returned. Rows stay in a bounded cache: the commit's comparison of offsets, versions and the sweep's boundaries is what
makes them trustworthy, so after a commit that was not applied the cache is dropped (`forget`) and the batch applied
again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from monitor.engine.accumulator import Accumulator
from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreUnavailable
from monitor.ingest.differences import write_tally
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Events
from monitor.ingest.responses import Responses
from monitor.ingest.shown import Shown
from monitor.ingest.students import Students
from monitor.store import Commit, RedisStore
from monitor.store.packing import PackedRows

CACHED = 25_000
"""Rows of responses, and of students, that a worker remembers."""

Outcomes = Counter[tuple[str, str]]
"""(response or feedback, outcome) → events."""


class Engine:
    """Applies events to rows; one per worker."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        identities: IdHasher,
        store: RedisStore,
        *,
        cached: int = CACHED,
    ) -> None:
        self._experiments = {experiment.number: experiment for experiment in experiments}
        self._store = store
        self._responses = Responses(experiments, identities, [store], cached)
        self._students = Students(self._experiments, store, cached)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._responses.forget()
        self._students.forget()

    def apply(self, events: Events, late: Mapping[str, int]) -> tuple[Commit, Outcomes]:
        """Return what the events change, and how many of each kind had which outcome; see `Responses.apply`.

        Raises `StoreUnavailable` when rows cannot be read; the same events may be applied again.
        """
        commit = Commit(new_rows=PackedRows(summed=self._store.is_shared()))
        try:
            shown = Shown()
            (batch,) = self._responses.apply(events, late, [commit], [shown])
            self._students.apply(self._students.look(shown), batch.tallies, commit)
        except StoreUnavailable:
            self.forget()
            raise
        write_tallies(commit, self._store, self._experiments, batch.tallies)
        return commit, batch.outcomes()


def write_tallies(
    commit: Commit, store: RedisStore, experiments: Mapping[int, Experiment], tallies: Mapping[int, Accumulator]
) -> None:
    """Append to the commit what the tallies add to the records of their experiments."""
    for number, tally in tallies.items():
        write_tally(commit, store.keys, number, experiments[number].settings.decay, tally)
