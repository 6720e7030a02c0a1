"""One batch of events → one commit of its shard.

The processor keeps rows in a bounded cache. The cache is correct because the commit compares offsets, versions and the
sweep's boundaries. After a commit that was not applied, drop the cache (`forget`) and apply the batch again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence

from monitor.engine import NO_RESPONSE, BatchProcessor, EventBatch, Experiment, IdHasher
from monitor.errors import StoreUnavailable
from monitor.pipeline.skipped_events import Skips
from monitor.state import PENDING_CLASS, Commit, RedisStore, write_batch

CACHED = 25_000
"""Rows of responses, and of students, that a worker caches."""

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
        self._decays = {experiment.number: experiment.settings.decay for experiment in experiments}
        self._store = store
        self._skips = Skips(store, identities)
        self._processor = BatchProcessor(
            experiments,
            identities,
            store.keys,
            self._read_responses,
            self._read_students,
            cached=cached,
            # A row that another worker deleted and created again must not have a version that this worker expects.
            first_version=1 + secrets.randbits(30),
        )

    def forget(self) -> None:
        """Drop every cached row."""
        self._processor.clear_cache()

    def apply(self, events: EventBatch, late: Mapping[str, int]) -> tuple[Commit, Outcomes]:
        """Return the commit of the events' changes, and the number of events with each outcome.

        Events older than `late` (by experiment number; `PENDING_CLASS` for feedback to an unknown response) change
        nothing. Raises `StoreUnavailable` when rows cannot be read; the same events may be applied again.
        """
        late_before_ms = {number: late[str(number)] for number in self._decays}
        late_before_ms[NO_RESPONSE] = late[PENDING_CLASS]
        commit = Commit()
        try:
            batch = self._processor.process(events, late_before_ms)
            if batch.skipped_responses or batch.skipped_reactions:
                self._skips.write(commit, batch)
        except StoreUnavailable:
            self.forget()
            raise
        write_batch(commit, self._store.keys, self._decays, batch)
        return commit, batch.outcomes()

    def _read_responses(self, names: list[bytes]) -> list[bytes | None]:
        prefix = self._store.keys.row(b"")
        return self._store.rows([prefix + name for name in names])

    def _read_students(self, students: list[tuple[int, bytes]]) -> list[bytes | None]:
        prefixes = {number: self._store.keys.students(number) for number in self._decays}
        return self._store.rows([prefixes[number] + name for number, name in students])
