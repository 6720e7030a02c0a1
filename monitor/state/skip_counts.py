"""Counts of skipped events: events of experiments that the configuration of a worker does not contain.

The counts change in the same commit as the positions. So the counts of an experiment that is added to a configuration
later include all events that were skipped before. If only some workers have an experiment in their configuration, the
events that the other workers skip are counted. Fields of `StoreKeys.events_skipped`:

    responses:HASH      responses of an experiment; HASH is the hash of its name, as it may have no number yet
    responses:other     responses of further experiments, if there are too many to count separately
    feedback:NUMBER     feedback about responses of an experiment that were applied earlier

`StoreKeys.experiments_skipped` has the names of the experiments whose responses are counted.

Two fields of `StoreKeys.newest_times` belong to each field: `newest:FIELD` is the newest time (ms), `oldest:FIELD` the
oldest time, negated because a commit stores the larger of two numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from monitor.analysis import SkippedExperiment
from monitor.config import MAX_NAME_LENGTH, ExperimentSettings, similar_name
from monitor.engine import IdHasher
from monitor.state.keys import StoreKeys
from monitor.state.record_reader import read_in_transaction
from monitor.state.redis_connection import hash_from_reply, translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_records import Commit
from monitor.state.store_shard import StoreShard
from monitor.stats import SkippedEventCounts

_MAX_LISTED_EXPERIMENTS: Final = 20
OTHER_EXPERIMENTS_FIELD: Final = b"responses:other"
"""Counts the responses of experiments beyond the limit of separately counted experiments."""


def skipped_responses_field(experiment: str, id_hasher: IdHasher) -> bytes:
    """Return the field that counts the responses of an experiment."""
    return b"responses:" + id_hasher.hash_experiment(experiment).hex().encode()


def skipped_feedback_field(number: int) -> bytes:
    """Return the field that counts feedback about the responses of an experiment."""
    return b"feedback:%d" % number


def _newest_time_field(field: bytes) -> bytes:
    return b"newest:" + field


def _oldest_time_field(field: bytes) -> bytes:
    return b"oldest:" + field


def add_skipped_events(
    commit: Commit, keys: StoreKeys, field: bytes, count: int, *, first_ms: int, last_ms: int
) -> None:
    """Append skipped events to a commit; `first_ms` and `last_ms` are their oldest and newest event times."""
    commit.counter_increments[keys.events_skipped, field] += count
    commit.raise_newest_time(_newest_time_field(field).decode(), last_ms)
    commit.raise_newest_time(_oldest_time_field(field).decode(), -first_ms)


def _spelling(name: str) -> str:
    """Return a name without case, blanks and punctuation.

    >>> _spelling("Ranker V2") == _spelling("ranker-v2"), _spelling("ranker-v1") == _spelling("ranker-v2")
    (True, False)
    """
    return re.sub(r"[\W_]+", "", name).casefold()


def add_skipped_name(commit: Commit, keys: StoreKeys, field: bytes, experiment: str) -> None:
    """Append the name of an undeclared experiment to a commit, cut to 100 characters."""
    commit.hash_texts[keys.experiments_skipped, field] = experiment[:MAX_NAME_LENGTH].encode(errors="replace")


def read_skipped_fields(store: StoreShard) -> set[bytes]:
    """Return the fields of a shard's counts."""
    with translating_errors(store.settings):
        return set(store.client.hkeys(store.keys.events_skipped))


def delete_skipped_responses(store: ShardedStore, experiment: str, id_hasher: IdHasher) -> None:
    """Delete the count of the responses of an experiment, because a backfill has applied them."""
    field = skipped_responses_field(experiment, id_hasher)
    with translating_errors(store.settings):
        for shard in store:
            deletion = store.client.pipeline(transaction=True)
            deletion.hdel(shard.keys.events_skipped, field).hdel(shard.keys.experiments_skipped, field)
            deletion.hdel(shard.keys.newest_times, _newest_time_field(field), _oldest_time_field(field)).execute()


class SkippedEventTotals:
    """Counts of skipped events, summed over the shards."""

    def __init__(self) -> None:
        self.events: Counter[bytes] = Counter()
        """Field → events."""
        self._names: dict[bytes, str] = {}
        """Field → name of the experiment."""
        self._newest_ms: dict[bytes, int] = {}
        self._oldest_ms: dict[bytes, int] = {}

    def add(self, counts: Mapping[bytes, bytes], times: Mapping[bytes, bytes], names: Mapping[bytes, bytes]) -> None:
        """Add the hashes `events_skipped`, `newest_times` and `experiments_skipped` of a shard."""
        self._names |= {field: name.decode(errors="replace") for field, name in names.items()}
        for field, events in counts.items():
            self.events[field] += int(events)
            newest_ms, oldest_ms = int(times[_newest_time_field(field)]), -int(times[_oldest_time_field(field)])
            self._newest_ms[field] = max(newest_ms, self._newest_ms.get(field, newest_ms))
            self._oldest_ms[field] = min(oldest_ms, self._oldest_ms.get(field, oldest_ms))

    def undeclared_experiments(self, declared_names: Collection[str]) -> tuple[SkippedExperiment, ...]:
        """Return the undeclared experiments with the most skipped responses, largest number first."""
        counts = [
            (-responses, name) for name, responses in self.responses_by_name().items() if name not in declared_names
        ]
        return tuple(
            SkippedExperiment(name, -negative_count, similar_name(name, declared_names))
            for negative_count, name in sorted(counts)[:_MAX_LISTED_EXPERIMENTS]
        )

    def responses_by_name(self) -> Counter[str]:
        """Return the skipped responses by name of their experiment, of all experiments with a separate count."""
        responses: Counter[str] = Counter()
        for field, name in self._names.items():
            responses[name] += self.events[field]
        return +responses

    def other_spellings(self, experiment: str, declared_names: Collection[str]) -> dict[str, int]:
        """Return undeclared name → skipped responses, of names that differ only in case, blanks and punctuation.

        Similar names, such as of another version, may be other experiments.
        """
        return {
            name: responses
            for name, responses in self.responses_by_name().items()
            if name not in declared_names and _spelling(name) == _spelling(experiment)
        }

    def by_experiment(
        self, experiments: Iterable[ExperimentSettings], numbers: Mapping[str, int], id_hasher: IdHasher
    ) -> dict[str, SkippedEventCounts]:
        """Return the counts of the experiments of which events may have been skipped."""
        counts = {
            experiment.name: self._counts_of(experiment, numbers[experiment.name], id_hasher)
            for experiment in experiments
        }
        return {name: skipped for name, skipped in counts.items() if skipped is not None}

    def _counts_of(self, experiment: ExperimentSettings, number: int, id_hasher: IdHasher) -> SkippedEventCounts | None:
        responses, feedback = skipped_responses_field(experiment.name, id_hasher), skipped_feedback_field(number)
        fields = [field for field in (responses, OTHER_EXPERIMENTS_FIELD) if self._overlaps(field, experiment)]
        if self.events[feedback]:
            fields.append(feedback)
        if not fields:
            return None
        return SkippedEventCounts(
            responses=self.events[responses] if responses in fields else 0,
            reactions=self.events[feedback],
            unnamed=self.events[OTHER_EXPERIMENTS_FIELD] if OTHER_EXPERIMENTS_FIELD in fields else 0,
            first_ms=min(self._oldest_ms[field] for field in fields),
            last_ms=max(self._newest_ms[field] for field in fields),
        )

    def _overlaps(self, field: bytes, experiment: ExperimentSettings) -> bool:
        """Return whether the times of a field's events overlap with the period of an experiment."""
        if not self.events[field]:
            return False
        starts_at_ms = (experiment.starts_at_ms or 0) - (experiment.pre_period_ms or 0)
        ends_at_ms = experiment.ends_at_ms
        return self._newest_ms[field] >= starts_at_ms and (ends_at_ms is None or self._oldest_ms[field] < ends_at_ms)


def read_skipped_events(store: ShardedStore) -> SkippedEventTotals:
    """Return the counts of skipped events of all shards. Raises `StoreUnavailable`."""
    totals = SkippedEventTotals()
    for shard in store:
        hash_keys = (shard.keys.events_skipped, shard.keys.newest_times, shard.keys.experiments_skipped)
        totals.add(*map(hash_from_reply, read_in_transaction(shard, [("HGETALL", key) for key in hash_keys])))
    return totals
