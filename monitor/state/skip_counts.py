"""Counts of skipped events: events of experiments that the configuration of a worker does not contain.

The counts change in the same commit as the positions. So the counts of an experiment that is added to a configuration
later include all events that were skipped before. If only some workers have an experiment in their configuration, the
events that the other workers skip are counted. Fields of `StoreKeys.events_skipped`:

    responses:HASH      responses of an experiment; HASH is the hash of its name, as it may have no number yet
    responses:other     responses of further experiments, if there are too many to count separately
    feedback:NUMBER     feedback about responses of an experiment that were applied earlier

`StoreKeys.experiments_skipped` has the names of the experiments that are recorded by name, at most `discover.limit`.
`StoreKeys.variants_skipped` has the responses of their variants; HASH is that of the experiment:

    HASH:VARIANT        responses of a variant, of at most 20 variants of an experiment
    HASH:               responses of further variants

Two fields of `StoreKeys.newest_times` belong to each field: `newest:FIELD` is the newest time (ms), `oldest:FIELD` the
oldest time, negated because a commit stores the larger of two numbers.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from monitor.analysis import UndeclaredExperiment, find_meant_name, spelling, stored_name
from monitor.config import DiscoverSettings, ExperimentSettings
from monitor.engine import IdHasher
from monitor.state.keys import StoreKeys
from monitor.state.record_reader import read_in_transaction
from monitor.state.redis_connection import hash_from_reply, translating_errors
from monitor.state.sharded_store import ShardedStore
from monitor.state.store_records import Commit
from monitor.state.store_shard import StoreShard
from monitor.stats import SkippedEventCounts

_MAX_SIMILAR_NAMES: Final = 20
"""Largest number of undeclared experiments for which a similar name is searched: each search takes a while."""
_RESPONSES_PREFIX: Final = b"responses:"
OTHER_EXPERIMENTS_FIELD: Final = b"responses:other"
"""Counts the responses of experiments beyond the limit of separately counted experiments."""


def skipped_responses_field(experiment: str, id_hasher: IdHasher) -> bytes:
    """Return the field that counts the responses of an experiment."""
    return _RESPONSES_PREFIX + id_hasher.hash_experiment(experiment).hex().encode()


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


def skipped_variant_field(field: bytes, variant: str | None) -> bytes:
    """Return the field of `variants_skipped` for a variant of an experiment, whose responses `field` counts.

    None stands for the further variants, which are counted together.
    """
    return field.removeprefix(_RESPONSES_PREFIX) + b":" + _encode_name(variant or "")


def add_skipped_name(commit: Commit, keys: StoreKeys, field: bytes, experiment: str) -> None:
    """Append the name of an undeclared experiment to a commit, cut to 100 characters."""
    commit.hash_texts[keys.experiments_skipped, field] = _encode_name(experiment)


def _encode_name(name: str) -> bytes:
    return stored_name(name).encode(errors="replace")


@dataclass(frozen=True, slots=True)
class SkippedFields:
    """The fields of a shard's counts of skipped events."""

    counts: set[bytes]
    """Fields of `StoreKeys.events_skipped`."""
    names: set[bytes]
    """Fields of the experiments that are recorded by name."""
    variants: defaultdict[bytes, set[bytes]]
    """Field of an experiment → fields of `StoreKeys.variants_skipped`, without that of further variants."""


def read_skipped_fields(store: StoreShard) -> SkippedFields:
    """Return the fields of a shard's counts. Raises `StoreUnavailable`."""
    keys = store.keys
    counts, names, variants = read_in_transaction(
        store, [("HKEYS", key) for key in (keys.events_skipped, keys.experiments_skipped, keys.variants_skipped)]
    )
    variant_fields: defaultdict[bytes, set[bytes]] = defaultdict(set)
    for field in variants:
        hash_text, _, variant = field.partition(b":")
        if variant:
            variant_fields[_RESPONSES_PREFIX + hash_text].add(field)
    return SkippedFields(set(counts), set(names), variant_fields)


def forget_skipped_experiment(
    store: ShardedStore, name: str, id_hasher: IdHasher, numbers: Collection[int] = ()
) -> None:
    """Delete the counts of an experiment's skipped events, its name and its variants, on all shards.

    Call this after a backfill has counted the skipped events, and no worker skips events of the experiment any more.
    `numbers` are the experiment's numbers whose counts of feedback are deleted. Responses in
    `OTHER_EXPERIMENTS_FIELD` may be of any experiment, so they remain. Raises `StoreUnavailable`.
    """
    responses_field = skipped_responses_field(name, id_hasher)
    fields = [responses_field, *map(skipped_feedback_field, numbers)]
    for shard in store:
        keys = shard.keys
        variant_fields = read_skipped_fields(shard).variants[responses_field]
        with translating_errors(shard.settings), shard.client.pipeline(transaction=True) as pipeline:
            pipeline.hdel(keys.events_skipped, *fields)
            pipeline.hdel(keys.newest_times, *map(_newest_time_field, fields), *map(_oldest_time_field, fields))
            pipeline.hdel(keys.experiments_skipped, responses_field)
            pipeline.hdel(keys.variants_skipped, skipped_variant_field(responses_field, None), *variant_fields)
            pipeline.execute()


class SkippedEventTotals:
    """Counts of skipped events, summed over the shards."""

    def __init__(self) -> None:
        self.events: Counter[bytes] = Counter()
        """Field → events."""
        self._names: dict[bytes, str] = {}
        """Field → name of the experiment."""
        self._variants: dict[bytes, Counter[str]] = {}
        """Field of an experiment → variant → responses; "" stands for further variants."""
        self._newest_ms: dict[bytes, int] = {}
        self._oldest_ms: dict[bytes, int] = {}

    def add(
        self,
        counts: Mapping[bytes, bytes],
        times: Mapping[bytes, bytes],
        names: Mapping[bytes, bytes],
        variants: Mapping[bytes, bytes],
    ) -> None:
        """Add the hashes `events_skipped`, `newest_times`, `experiments_skipped` and `variants_skipped` of a shard."""
        self._names |= {field: name.decode(errors="replace") for field, name in names.items()}
        for field, events in counts.items():
            self.events[field] += int(events)
            newest_ms, oldest_ms = int(times[_newest_time_field(field)]), -int(times[_oldest_time_field(field)])
            self._newest_ms[field] = max(newest_ms, self._newest_ms.get(field, newest_ms))
            self._oldest_ms[field] = min(oldest_ms, self._oldest_ms.get(field, oldest_ms))
        for variant_field, responses in variants.items():
            hash_text, _, variant = variant_field.partition(b":")
            variant_counts = self._variants.setdefault(_RESPONSES_PREFIX + hash_text, Counter())
            variant_counts[variant.decode(errors="replace")] += int(responses)

    def undeclared_experiments(
        self, declared_names: Collection[str], discover: DiscoverSettings
    ) -> tuple[UndeclaredExperiment, ...]:
        """Return the undeclared experiments that are recorded by name, those with the most responses first.

        Each shard stores at most `discover.limit` names, and at most as many experiments are returned.
        """
        fields_by_name: dict[str, list[bytes]] = {}
        for field, name in self._names.items():
            if self.events[field] and name not in declared_names and discover.records(name):
                fields_by_name.setdefault(name, []).append(field)
        experiments = [self._undeclared_experiment(name, fields) for name, fields in fields_by_name.items()]
        experiments.sort(key=lambda experiment: (-experiment.responses, experiment.name))
        return tuple(
            replace(experiment, similar_name=find_meant_name(experiment.name, declared_names))
            if index < _MAX_SIMILAR_NAMES
            else experiment
            for index, experiment in enumerate(experiments[: discover.limit])
        )

    def _undeclared_experiment(self, name: str, fields: Collection[bytes]) -> UndeclaredExperiment:
        """Return an experiment; several fields have the same name if longer names were cut."""
        variants = sum((self._variants.get(field, Counter[str]()) for field in fields), Counter[str]())
        other_variant_responses = variants.pop("", 0)
        return UndeclaredExperiment(
            name,
            responses=sum(self.events[field] for field in fields),
            first_ms=min(self._oldest_ms[field] for field in fields),
            last_ms=max(self._newest_ms[field] for field in fields),
            variants=dict(sorted(variants.items(), key=lambda count: (-count[1], count[0]))),
            other_variant_responses=other_variant_responses,
        )

    def unnamed_responses(
        self, declared_names: Collection[str], discover: DiscoverSettings, id_hasher: IdHasher
    ) -> int:
        """Return the skipped responses of undeclared experiments that are not recorded by name."""
        declared_fields = {skipped_responses_field(name, id_hasher) for name in declared_names}
        return sum(
            responses
            for field, responses in self.events.items()
            if field.startswith(_RESPONSES_PREFIX)
            and field not in declared_fields
            and not (field in self._names and discover.records(self._names[field]))
        )

    def responses_by_name(self) -> Counter[str]:
        """Return the skipped responses by name of their experiment, of all experiments that are recorded by name."""
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
            if name not in declared_names and spelling(name) == spelling(experiment)
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
        keys = shard.keys
        hash_keys = (keys.events_skipped, keys.newest_times, keys.experiments_skipped, keys.variants_skipped)
        totals.add(*map(hash_from_reply, read_in_transaction(shard, [("HGETALL", key) for key in hash_keys])))
    return totals


def read_undeclared_experiments(
    store: ShardedStore, declared_names: Collection[str], discover: DiscoverSettings
) -> tuple[UndeclaredExperiment, ...]:
    """Return the undeclared experiments that are recorded by name, those with the most responses first.

    `declared_names` are those of all declared experiments, also of archived ones. Raises `StoreUnavailable`.
    """
    return read_skipped_events(store).undeclared_experiments(declared_names, discover)
