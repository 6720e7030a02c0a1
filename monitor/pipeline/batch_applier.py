"""Application of a batch: decoded events → the commit of a shard.

The processor caches rows, up to a limit. The cache may be out of date: the commit compares offsets, row versions and
expiry boundaries with the store. After a commit that was not applied, call `clear_cache` and apply the batch again.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from monitor.config import DiscoverSettings
from monitor.engine import NO_RESPONSE, BatchProcessor, EventBatch, Experiment, IdHasher
from monitor.errors import StoreUnavailable
from monitor.pipeline.skipped_events import SkippedEventCounter
from monitor.state import PENDING_FEEDBACK, Commit, QualityCounter, StoreShard, add_batch_changes

MAX_CACHED_ROWS = 25_000
"""Largest number of response rows, and of student rows, that a worker caches."""
RECORD_ALL_NAMES: Final = DiscoverSettings()

OutcomeCounts = Counter[tuple[str, str]]
"""("response" or "feedback", outcome) → number of events."""


class BatchApplier:
    """Applies events to the rows of a shard. Every worker has an instance per shard."""

    def __init__(
        self,
        experiments: Sequence[Experiment],
        id_hasher: IdHasher,
        store: StoreShard,
        discover: DiscoverSettings = RECORD_ALL_NAMES,
        *,
        max_cached_rows: int = MAX_CACHED_ROWS,
        superseded_numbers: frozenset[int] = frozenset(),
        backfilled_number: int | None = None,
    ) -> None:
        """See `BatchProcessor` for `superseded_numbers` and `backfilled_number`."""
        self._decays = {experiment.number: experiment.settings.decay for experiment in experiments}
        self._store = store
        self._skipped_event_counter = SkippedEventCounter(store, id_hasher, discover)
        self._quality_counter = QualityCounter(store)
        self._processor = BatchProcessor(
            experiments,
            id_hasher,
            store.keys,
            self._read_responses,
            self._read_students,
            cached_rows=max_cached_rows,
            # If another worker deletes a row and creates a new row of the same name, the versions must differ.
            first_version=1 + secrets.randbits(30),
            superseded_numbers=superseded_numbers,
            backfilled_number=backfilled_number,
        )

    def clear_cache(self) -> None:
        """Drop every cached row, and forget which fields of skipped events were stored."""
        self._processor.clear_cache()
        self._skipped_event_counter.forget_fields()

    def apply(self, events: EventBatch, late_before_ms: Mapping[str, int]) -> tuple[Commit, OutcomeCounts]:
        """Return the commit that the events cause, without position updates, and the number of events by outcome.

        Events about responses before `late_before_ms` change nothing. The keys are experiment numbers, and
        `PENDING_FEEDBACK` for feedback without a response. Raises `StoreUnavailable` if rows cannot be read; the caller
        may then apply the same events again.
        """
        late_before_by_number = {number: late_before_ms[str(number)] for number in self._decays}
        late_before_by_number[NO_RESPONSE] = late_before_ms[PENDING_FEEDBACK]
        commit = Commit()
        try:
            batch = self._processor.process(events, late_before_by_number)
            if batch.skipped_responses or batch.skipped_reactions:
                self._skipped_event_counter.append_to_commit(commit, batch)
            self._quality_counter.append_to_commit(commit, events, batch)
        except StoreUnavailable:
            self.clear_cache()
            raise
        add_batch_changes(commit, self._store.keys, self._decays, batch)
        return commit, batch.count_outcomes()

    def _read_responses(self, names: list[bytes]) -> list[bytes | None]:
        prefix = self._store.keys.response_row(b"")
        return self._store.read_rows([prefix + name for name in names])

    def _read_students(self, students: list[tuple[int, bytes]]) -> list[bytes | None]:
        prefixes = {number: self._store.keys.student_row_prefix(number) for number in self._decays}
        return self._store.read_rows([prefixes[number] + name for number, name in students])
