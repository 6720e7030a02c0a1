"""Skipped events, of experiments that the configuration does not declare: counted in the store, and logged.

A worker never reads skipped events again. When the experiment is declared, a service counts the events by a backfill.
In a store that is filled from files, the counts show that the results of such an experiment are incomplete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from monitor.config import DiscoverSettings
from monitor.engine import BatchChanges, IdHasher, SkippedEventCount
from monitor.state import (
    OTHER_EXPERIMENTS_FIELD,
    Commit,
    SkippedFields,
    StoreShard,
    add_skipped_events,
    add_skipped_name,
    read_skipped_events,
    read_skipped_fields,
    read_stored_experiments,
    skipped_feedback_field,
    skipped_responses_field,
    skipped_variant_field,
)

if TYPE_CHECKING:
    from monitor.state import StoreReader

log = logging.getLogger(__name__)
_MAX_COUNTED_EXPERIMENTS: Final = 1000
"""Largest number of experiments with a count of their own: anybody may write events with a new experiment name."""
_MAX_RECORDED_VARIANTS: Final = 20
"""Largest number of variants of an undeclared experiment with a count of their own."""
_CHECK_INTERVAL_S: Final = 10.0


class SkippedEventCounter:
    """Counts the skipped events of a shard, as part of the commit of each batch."""

    def __init__(self, store: StoreShard, id_hasher: IdHasher, discover: DiscoverSettings) -> None:
        self._store = store
        self._id_hasher = id_hasher
        self._discover = discover
        self._fields: SkippedFields | None = None
        """Fields that are stored or part of the last commit; None if unknown."""

    def forget_fields(self) -> None:
        """Read the stored fields again before the next commit, after a commit that was not applied."""
        self._fields = None

    def append_to_commit(self, commit: Commit, batch: BatchChanges) -> None:
        """Add the skipped events of the batch to the commit. Raises `StoreUnavailable`."""
        fields = self._read_fields({experiment for experiment, _ in batch.skipped_responses})
        for (experiment, variant), skipped in batch.skipped_responses.items():
            field = skipped_responses_field(experiment, self._id_hasher)
            if field not in fields.counts and len(fields.counts) >= _MAX_COUNTED_EXPERIMENTS:
                self._count(commit, OTHER_EXPERIMENTS_FIELD, skipped)
                continue
            fields.counts.add(field)
            self._count(commit, field, skipped)
            if self._discover.records(experiment):
                self._record(commit, fields, field, experiment, variant, skipped.events)
        for number, skipped in batch.skipped_reactions.items():
            self._count(commit, skipped_feedback_field(number), skipped)

    def _read_fields(self, experiments: Iterable[str]) -> SkippedFields:
        """Return the known fields, or the stored ones if an experiment is new and may still be counted separately.

        Another worker may have added experiments up to the limits in the meantime.
        """
        fields = self._fields
        if fields is None or (
            len(fields.counts) < _MAX_COUNTED_EXPERIMENTS
            and any(skipped_responses_field(name, self._id_hasher) not in fields.counts for name in experiments)
        ):
            fields = self._fields = read_skipped_fields(self._store)
        return fields

    def _record(
        self, commit: Commit, fields: SkippedFields, field: bytes, experiment: str, variant: str, responses: int
    ) -> None:
        """Append the name of an experiment, unless stored, and the responses of its variant, within the limits."""
        if field not in fields.names:
            if len(fields.names) >= self._discover.limit:
                return
            fields.names.add(field)
            add_skipped_name(commit, self._store.keys, field, experiment)
        if not variant:
            return
        variant_fields = fields.variants[field]
        variant_field = skipped_variant_field(field, variant)
        if variant_field not in variant_fields and len(variant_fields) >= _MAX_RECORDED_VARIANTS:
            variant_field = skipped_variant_field(field, None)
        else:
            variant_fields.add(variant_field)
        commit.counter_increments[self._store.keys.variants_skipped, variant_field] += responses

    def _count(self, commit: Commit, field: bytes, skipped: SkippedEventCount) -> None:
        add_skipped_events(
            commit, self._store.keys, field, skipped.events, first_ms=skipped.first_ms, last_ms=skipped.last_ms
        )


def log_skipped_experiments(reader: StoreReader, id_hasher: IdHasher) -> None:
    """Log the stored experiments that the configuration lacks, and those of which events were skipped.

    For stores that are filled from files: in the store of a service, the declared experiments are in force, and
    backfills count events that were skipped before. Raises `StoreUnavailable`.
    """
    for name in sorted(read_stored_experiments(reader.store).keys() - {each.name for each in reader.experiments}):
        log.info(
            "experiment is not in the configuration experiment=%s: its results remain in the store, its new events are "
            "skipped",
            name,
        )
    skipped_events = read_skipped_events(reader.store).by_experiment(reader.experiments, reader.numbers, id_hasher)
    for name, skipped in skipped_events.items():
        log.warning("experiment is incomplete experiment=%s reason=%s", name, skipped)
