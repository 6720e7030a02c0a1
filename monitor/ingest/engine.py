"""One batch of events → one commit of its shard.

The rows that the batch touches are read, the events applied to that one in-memory view, and what has to be written
returned. Rows stay in a bounded cache: the commit's comparison of offsets, versions and the sweep's boundaries is what
makes them trustworthy, so after a commit that was not applied the cache is dropped (`forget`) and the batch applied
again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreUnavailable
from monitor.ingest.differences import write_tally
from monitor.ingest.experiment import Experiment
from monitor.ingest.intake import Events
from monitor.ingest.responses import Responses
from monitor.ingest.students import Students
from monitor.store import Commit, RedisStore

CACHED = 25_000
"""Rows of responses, and of students, that a worker remembers."""

Outcomes = Counter[tuple[str, str]]
"""(response or feedback, outcome) → events."""


class Engine:
    """Applies events to the rows of one shard; one per worker and shard."""

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
        # A row that was deleted and made anew by another worker must not have a version that this worker expects.
        first_version = 1 + secrets.randbits(30)
        self._responses = Responses(experiments, identities, store, cached, first_version)
        self._students = Students(self._experiments, store, cached, first_version)

    def forget(self) -> None:
        """Drop every cached row: the store is what counts."""
        self._responses.forget()
        self._students.forget()

    def apply(self, events: Events, late: Mapping[str, int]) -> tuple[Commit, Outcomes]:
        """Return what the events change, and how many of each kind had which outcome; see `Responses.apply`.

        Raises `StoreUnavailable` when rows cannot be read; the same events may be applied again.
        """
        commit = Commit()
        try:
            batch = self._responses.apply(events, late, commit)
            self._students.apply(batch.exposures, batch.tallies, commit)
        except StoreUnavailable:
            self.forget()
            raise
        for number, tally in batch.tallies.items():
            write_tally(commit, self._store.keys, number, self._experiments[number].settings.decay, tally)
        return commit, batch.outcomes()
