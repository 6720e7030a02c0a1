"""Events of experiments that the configuration does not have: counted in the store, and said in the log.

They are skipped for good, while the experiment may be in the next configuration, or in that of another worker.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from monitor.engine import Batch, IdHasher, SkippedEvents
from monitor.errors import AbMonitorError
from monitor.state import (
    OTHERS,
    Commit,
    RedisStore,
    counted,
    newest_field,
    oldest_field,
    reactions_field,
    responses_field,
    skipped_events,
    stored_experiments,
)

if TYPE_CHECKING:
    from monitor.pipeline.batch_applier import Outcomes
    from monitor.state import Reader

log = logging.getLogger(__name__)
_MOST: Final = 1000
"""Experiments whose skipped responses are counted one by one: anybody may write a new name."""
_LOOK_S: Final = 10.0


class Skips:
    """Counts what the batches of one shard skip."""

    def __init__(self, store: RedisStore, identities: IdHasher) -> None:
        self._store = store
        self._identities = identities
        self._counted: set[bytes] | None = None
        """Fields that the store has; None until there is something to count."""

    def write(self, commit: Commit, batch: Batch) -> None:
        """Append to the commit what its batch skips. Raises `StoreUnavailable`."""
        if self._counted is None:
            self._counted = counted(self._store)
        for name, skipped in batch.skipped_responses.items():
            field = responses_field(name, self._identities)
            if field not in self._counted and len(self._counted) >= _MOST:
                field = OTHERS
            self._counted.add(field)
            self._count(commit, field, skipped)
        for number, skipped in batch.skipped_reactions.items():
            self._count(commit, reactions_field(number), skipped)

    def _count(self, commit: Commit, field: bytes, skipped: SkippedEvents) -> None:
        commit.counters[self._store.keys.skipped, field] += skipped.events
        commit.see_latest(newest_field(field).decode(), skipped.last_ms)
        commit.see_latest(oldest_field(field).decode(), -skipped.first_ms)


class SkipsSaid:
    """Says what was skipped before the worker began, and which experiments of the store it skips itself."""

    def __init__(self, reader: Reader, identities: IdHasher, seconds: Callable[[], float] = time.monotonic) -> None:
        self._store = reader.store
        self._identities = identities
        self._seconds = seconds
        self._said = {each.name for each in reader.experiments}
        """Those of the configuration, and those of which it has been said."""
        self._not_before = 0.0
        before = skipped_events(self._store)
        self._before = before.events
        for name, skipped in before.missing(reader.experiments, reader.numbers, identities).items():
            log.warning("incomplete experiment=%s reason=%s", name, skipped)

    def note(self, outcomes: Outcomes) -> None:
        """Look now and then, while something is skipped, whether the store has the experiment: that may come later."""
        if not (outcomes["response", "skipped"] or outcomes["feedback", "skipped"]):
            return
        now = self._seconds()
        if now < self._not_before:
            return
        self._not_before = now + _LOOK_S
        try:
            known, events = stored_experiments(self._store), skipped_events(self._store).events
        except AbMonitorError as error:
            # Whatever it is, the worker's own reading and writing says so, and knows what to do.
            log.info("skipped events were not looked at reason=%s", error)
            return
        for name, stored in known.items():
            fields = responses_field(name, self._identities), reactions_field(stored["number"])
            if name not in self._said and any(events[each] > self._before[each] for each in fields):
                self._said.add(name)
                log.warning(
                    "events are skipped for good experiment=%s reason=the store has it, this worker's configuration "
                    "does not. Give all workers one that has it; then `ab-monitor rebuild` counts what was skipped",
                    name,
                )
