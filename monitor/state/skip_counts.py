"""Events that workers skipped because their configuration did not have the experiment, as the store counts them.

They are counted in the commit that moves the positions past them: responses by the experiment's name, as it may have no
number yet. An experiment that is added to the configuration later thus knows what was read before, and one that some
workers have and others do not knows what those have skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from monitor.config import ExperimentSettings
from monitor.engine import IdHasher
from monitor.state.record_reader import transaction
from monitor.state.redis_connection import pairs, unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards
from monitor.stats import Skipped

OTHERS: Final = b"r"
"""Field of the responses of experiments that are too many to be counted one by one."""


def responses_field(experiment: str, identities: IdHasher) -> bytes:
    """Return the field of an experiment's responses."""
    return b"r" + identities.experiment(experiment).hex().encode()


def reactions_field(number: int) -> bytes:
    """Return the field of the reactions to an experiment's responses."""
    return b"f%d" % number


def newest_field(field: bytes) -> bytes:
    """Return the field of the newest time among what a field counts."""
    return b"+" + field


def oldest_field(field: bytes) -> bytes:
    """Return the field of the oldest time, which is kept below zero: of two the larger one stays."""
    return b"-" + field


def counted(store: RedisStore) -> set[bytes]:
    """Return the fields of a shard."""
    with unavailable(store.settings):
        return set(store.client.hkeys(store.keys.skipped))


class SkippedEvents:
    """What was skipped, summed over the shards."""

    def __init__(self) -> None:
        self.events: Counter[bytes] = Counter()
        """By field."""
        self._newest_ms: dict[bytes, int] = {}
        self._oldest_ms: dict[bytes, int] = {}

    def add(self, counts: Mapping[bytes, bytes], times: Mapping[bytes, bytes]) -> None:
        """Add what a shard has counted; `times` is its hash of newest times."""
        for field, events in counts.items():
            self.events[field] += int(events)
            newest_ms, oldest_ms = int(times[newest_field(field)]), -int(times[oldest_field(field)])
            self._newest_ms[field] = max(newest_ms, self._newest_ms.get(field, newest_ms))
            self._oldest_ms[field] = min(oldest_ms, self._oldest_ms.get(field, oldest_ms))

    def missing(
        self, experiments: Iterable[ExperimentSettings], numbers: Mapping[str, int], identities: IdHasher
    ) -> dict[str, Skipped]:
        """Return by experiment what may be missing of it, where something may."""
        found = {each.name: self._of(each, numbers[each.name], identities) for each in experiments}
        return {name: skipped for name, skipped in found.items() if skipped is not None}

    def _of(self, experiment: ExperimentSettings, number: int, identities: IdHasher) -> Skipped | None:
        named, reactions = responses_field(experiment.name, identities), reactions_field(number)
        fields = [each for each in (named, OTHERS) if self._concerns(each, experiment)]
        if self.events[reactions]:
            fields.append(reactions)
        if not fields:
            return None
        return Skipped(
            responses=self.events[named] if named in fields else 0,
            reactions=self.events[reactions],
            unnamed=self.events[OTHERS] if OTHERS in fields else 0,
            first_ms=min(self._oldest_ms[each] for each in fields),
            last_ms=max(self._newest_ms[each] for each in fields),
        )

    def _concerns(self, field: bytes, experiment: ExperimentSettings) -> bool:
        """Return whether an experiment may have counted responses of a field: some are of its time."""
        if not self.events[field]:
            return False
        begins_ms = (experiment.starts_at_ms or 0) - (experiment.pre_period_ms or 0)
        ends_ms = experiment.ends_at_ms
        return self._newest_ms[field] >= begins_ms and (ends_ms is None or self._oldest_ms[field] < ends_ms)


def skipped_events(store: Shards) -> SkippedEvents:
    """Return what was skipped. Raises `StoreUnavailable`."""
    found = SkippedEvents()
    for shard in store:
        skipped, latest = transaction(shard, [("HGETALL", shard.keys.skipped), ("HGETALL", shard.keys.latest)])
        found.add(pairs(skipped), pairs(latest))
    return found
