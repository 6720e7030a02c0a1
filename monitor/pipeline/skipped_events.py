"""Skipped events, of experiments that the configuration does not declare: counted in the store, and logged.

A worker never reads skipped events again, although a later configuration, or that of another worker, may declare the
experiment. The counts show that the results of such an experiment are incomplete.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monitor.engine import BatchChanges, IdHasher, SkippedEventCount
from monitor.errors import AbMonitorError
from monitor.state import (
    OTHER_EXPERIMENTS_FIELD,
    Commit,
    StoreShard,
    add_skipped_events,
    add_skipped_name,
    read_skipped_events,
    read_skipped_fields,
    read_stored_experiments,
    skipped_feedback_field,
    skipped_responses_field,
)

if TYPE_CHECKING:
    from monitor.pipeline.batch_applier import OutcomeCounts
    from monitor.state import StoreReader

log = logging.getLogger(__name__)
_MAX_COUNTED_EXPERIMENTS: Final = 1000
"""Largest number of experiments with a count of their own: anybody may write events with a new experiment name."""
_CHECK_INTERVAL_S: Final = 10.0


class SkippedEventCounter:
    """Counts the skipped events of a shard, as part of the commit of each batch."""

    def __init__(self, store: StoreShard, id_hasher: IdHasher) -> None:
        self._store = store
        self._id_hasher = id_hasher
        self._stored_fields: set[bytes] | None = None
        """Fields of the stored counts; None before the first skipped event."""
        self._named_fields: set[bytes] = set()
        """Fields whose experiment's name was part of a commit since the last call of `forget_names`."""

    def forget_names(self) -> None:
        """Make the next commits contain the names of experiments again, after a commit that was not applied."""
        self._named_fields.clear()

    def append_to_commit(self, commit: Commit, batch: BatchChanges) -> None:
        """Add the skipped events of the batch to the commit. Raises `StoreUnavailable`."""
        if self._stored_fields is None:
            self._stored_fields = read_skipped_fields(self._store)
        for name, skipped in batch.skipped_responses.items():
            field = skipped_responses_field(name, self._id_hasher)
            if field not in self._stored_fields and len(self._stored_fields) >= _MAX_COUNTED_EXPERIMENTS:
                field = OTHER_EXPERIMENTS_FIELD
            elif field not in self._named_fields:
                # A field that another worker or an earlier run has added gets the same name again.
                self._named_fields.add(field)
                add_skipped_name(commit, self._store.keys, field, name)
            self._stored_fields.add(field)
            self._count(commit, field, skipped)
        for number, skipped in batch.skipped_reactions.items():
            self._count(commit, skipped_feedback_field(number), skipped)

    def _count(self, commit: Commit, field: bytes, skipped: SkippedEventCount) -> None:
        add_skipped_events(
            commit, self._store.keys, field, skipped.events, first_ms=skipped.first_ms, last_ms=skipped.last_ms
        )


class SkippedEventLogger:
    """Logs experiments with skipped events: at the start, and when the worker skips events of a stored experiment.

    Experiments that the store does not have are reported by `monitor.pipeline.data_problems`. A stored experiment that
    the configuration lacks at the start was probably removed on purpose, so it is logged once, and not as a warning.
    """

    def __init__(
        self, reader: StoreReader, id_hasher: IdHasher, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = reader.store
        self._id_hasher = id_hasher
        self._monotonic_s = monotonic_s
        self._ignored_names = {experiment.name for experiment in reader.experiments}
        """Experiments of the configuration, and experiments that were logged."""
        self._next_check_s = 0.0
        for name in sorted(read_stored_experiments(self._store).keys() - self._ignored_names):
            self._ignored_names.add(name)
            log.info(
                "experiment is not in the configuration experiment=%s: its results remain in the store, its new events "
                "are skipped. Nothing to do if the experiment was removed on purpose. Otherwise add the experiment to "
                "the configuration of all workers, then run `ab-monitor rebuild`",
                name,
            )
        initial_totals = read_skipped_events(self._store)
        self._initial_counts = initial_totals.events
        skipped_by_experiment = initial_totals.by_experiment(reader.experiments, reader.numbers, id_hasher)
        for name, skipped in skipped_by_experiment.items():
            log.warning("experiment is incomplete experiment=%s reason=%s", name, skipped)

    def log_skipped(self, outcomes: OutcomeCounts) -> None:
        """Log the stored experiments with new skipped events, once per experiment.

        Reads the store at most every 10 seconds, and only if `outcomes` contains skipped events.
        """
        if not (outcomes["response", "skipped"] or outcomes["feedback", "skipped"]):
            return
        now_s = self._monotonic_s()
        if now_s < self._next_check_s:
            return
        self._next_check_s = now_s + _CHECK_INTERVAL_S
        try:
            stored_experiments = read_stored_experiments(self._store)
            counts = read_skipped_events(self._store).events
        except AbMonitorError as error:
            # The next read or write of the worker fails with the same error, which the worker handles.
            log.debug("check of skipped events failed reason=%s", error)
            return
        for name, stored in stored_experiments.items():
            fields = skipped_responses_field(name, self._id_hasher), skipped_feedback_field(stored["number"])
            if name not in self._ignored_names and any(counts[field] > self._initial_counts[field] for field in fields):
                self._ignored_names.add(name)
                log.warning(
                    "skipping events experiment=%s reason=another worker has added the experiment to the store, but "
                    "this worker's configuration lacks it. Add the experiment to the configuration of all workers, "
                    "then run `ab-monitor rebuild`",
                    name,
                )
