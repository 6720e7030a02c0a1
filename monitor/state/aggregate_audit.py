"""Audit: recomputes the stored aggregates from the stored rows, and compares both integer by integer.

- Students' rows are stored until the experiment ends. Sums over students and cohorts are compared in full, and all-time
  sums over responses with the totals of the students.
- Responses' rows are stored until the expiry boundary. Time buckets, hours and days after the boundary are compared,
  unless they are past retention. As long as no row has expired, all-time sums, feedback kinds, and the sums of
  responses without a student are compared as well.

Rows are read with SCAN, some thousand at a time, so workers must not commit meanwhile. After commits in between, the
audit starts again; after several attempts it fails.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np

from monitor.analysis import format_timestamp
from monitor.clock import HOUR_MS
from monitor.config import NO_CATEGORY, OTHER_CATEGORY, Settings
from monitor.engine import (
    CAPPED_PREFIX,
    NO_RESPONSE,
    PRE_PERIOD_VARIANT,
    Contribution,
    Experiment,
    IdHasher,
    ItemCounter,
    MetricAccumulator,
    ResponseRow,
    TrafficAccumulator,
    decode_response_row,
    decode_student_row,
    unpack_vector_changes,
)
from monitor.errors import DependencyUnavailable, count_noun
from monitor.metrics import (
    BAD_ANSWER_DAYS,
    BUCKETS_PER_CHUNK,
    ITEM_CELL_COUNT,
    LATENCY_BOUNDS_MS,
    LOW_WORD_BITS,
    DayField,
    HourField,
    IntArray,
    ResponseField,
    ResponseMetricField,
    StudentField,
    UnitField,
    UnitRecord,
    chunk_length_ms,
)
from monitor.state.expiry import read_experiments_without_students
from monitor.state.keys import UNCOUNTED_PREFIX
from monitor.state.record_deltas import add_metric_sums, add_traffic_counts
from monitor.state.record_reader import decode_chunk, decode_record
from monitor.state.redis_connection import translating_errors
from monitor.state.sharded_store import ShardedStore, read_newest_response_ms
from monitor.state.store_metadata import read_hash_key, read_shown_experiments
from monitor.state.store_records import Commit, StoreState
from monitor.state.store_shard import StoreShard

_ROWS_PER_BATCH: Final = 5_000
_ATTEMPTS: Final = 3
_RESPONSE_ROW_PREFIX: Final = ord("r")
_ALL_VARIANTS: Final = "all variants"
_VariantId: TypeAlias = tuple[str, str]
"""(experiment, variant)"""
_RESPONSE_LABELS: Final = {
    ResponseField.RESPONSES: "responses",
    ResponseField.OFFSETS: "their offsets",
    ResponseField.RATED: "rated responses",
    ResponseField.RATED_OFFSETS: "their offsets",
}
_METRIC_LABELS: Final = {
    ResponseMetricField.UNDEFINED: "undefined {}",
    ResponseMetricField.UNDEFINED_OFFSETS: "their offsets",
    ResponseMetricField.TOTAL: "Σ {}, low",
    ResponseMetricField.TOTAL + 1: "Σ {}, high",
    ResponseMetricField.OFFSET_TOTAL: "Σ {}·offset, low",
    ResponseMetricField.OFFSET_TOTAL + 1: "Σ {}·offset, high",
    ResponseMetricField.SQUARES: "Σ {}², low",
    ResponseMetricField.SQUARES + 1: "Σ {}², high",
}
_HOUR_LABELS: Final = {
    HourField.RESPONSES: "responses",
    HourField.EMPTY_RESPONSES: "empty responses",
    HourField.LATENCY_TOTAL: "Σ latency (ms)",
    **{HourField.LATENCY_BUCKETS + bucket: f"up to {bound} ms" for bucket, bound in enumerate(LATENCY_BOUNDS_MS)},
    HourField.LATENCY_BUCKETS + len(LATENCY_BOUNDS_MS): "slower",
}
_DAY_LABELS: Final = {
    DayField.RESPONSES: "responses",
    DayField.ITEM_COUNT_SQUARES: "Σ items²",
    **{DayField.ITEM_CELLS + cell: f"items in cell {cell}" for cell in range(ITEM_CELL_COUNT)},
}


@dataclass(frozen=True, slots=True)
class AuditDifference:
    """A stored integer that differs from the integer recomputed from the rows."""

    experiment: str
    variant: str
    integer_name: str
    stored: int
    recomputed: int

    def to_json(self) -> dict[str, Any]:
        """Return the difference as a JSON object."""
        return {
            "experiment": self.experiment,
            "variant": self.variant,
            "what": self.integer_name,
            "stored": self.stored,
            "recomputed": self.recomputed,
        }


@dataclass(slots=True)
class AuditFindings:
    """Result of an audit."""

    checked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(experiment, variant, kind of record) → number of compared integers"""
    differences: list[AuditDifference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    """A sentence for each group of integers that cannot be recomputed."""
    responses: int = 0
    """Number of responses' rows that were read."""
    students: int = 0
    """Number of students' rows that were read."""


def audit_aggregates(store: ShardedStore, settings: Settings) -> AuditFindings:
    """Return the comparison of all aggregates with the rows.

    Raises `DependencyUnavailable` if workers have committed during each attempt.
    """
    settings, numbers, declared_set = read_shown_experiments(store, settings)
    filling = {experiment.name for experiment in declared_set.experiments if experiment.is_filling}
    experiments = [
        Experiment(numbers[experiment.name], experiment)
        for experiment in settings.experiments
        if numbers[experiment.name] > 0 and experiment.name not in filling
    ]
    excluding_numbers = {each.number for each in experiments if settings.excludes_responses(each.settings)}
    for _ in range(_ATTEMPTS):
        states_before = [shard.read_state() for shard in store]
        hash_key = read_hash_key(store, settings)
        findings = _Audit(store, experiments, excluding_numbers, states_before, hash_key).compare()
        states_after = [shard.read_state() for shard in store]
        commits = sum(after.commits - before.commits for before, after in zip(states_before, states_after, strict=True))
        expirations_before, expirations_after = (
            [state.expirations for state in states] for states in (states_before, states_after)
        )
        if not commits and expirations_before == expirations_after:
            findings.unchecked += [f"{name}: its events are being filled in from Kafka" for name in sorted(filling)]
            return findings
    raise DependencyUnavailable(
        f"an audit needs a store that does not change, but workers have made {count_noun(commits, 'commit')} during "
        f"the last of {_ATTEMPTS} attempts. Stop the workers during the audit (they resume at the same offsets), or "
        "audit a copy: `valkey-cli --rdb dump.rdb` (or redis-cli) writes the store to a file; start a server with this "
        "file, and set ABMONITOR_STORE_URL to its address"
    )


class _Audit:
    """Reads all rows, recomputes the aggregates, and compares the result with the stored aggregates."""

    def __init__(
        self,
        store: ShardedStore,
        experiments: Sequence[Experiment],
        excluding_numbers: Collection[int],
        states: Sequence[StoreState],
        hash_key: bytes,
    ) -> None:
        """`excluding_numbers` are the numbers of the experiments that may have excluded responses."""
        self._store = store
        self._keys = store.first_shard.keys
        """Keys of the first shard; the records of all shards are added up under these keys."""
        self._by_number = {experiment.number: experiment for experiment in experiments}
        self._excluding_numbers = excluding_numbers
        self._expired_before_ms = {
            number: max(state.expired_before_ms.get(str(number), 0) for state in states) for number in self._by_number
        }
        self._experiments_without_students = frozenset[int]().union(
            *(read_experiments_without_students(shard) for shard in store)
        )
        self._recomputed: dict[bytes, Counter[int]] = defaultdict(Counter)
        self._kind_counts: Counter[tuple[int, str]] = Counter()
        self._newest_ms: Counter[int] = Counter()
        self._student_totals: dict[tuple[int, int], list[int]] = {}
        self._findings = AuditFindings()
        self._item_counters = {
            experiment.number: item_counter
            for experiment in experiments
            if (item_counter := experiment.create_item_counter(IdHasher(hash_key), self._keys)) is not None
        }
        self._item_counts: dict[bytes, Counter[bytes]] = defaultdict(Counter)
        self._item_index_members: dict[bytes, set[int]] = defaultdict(set)
        """Key of an index → members that follow from the rows."""

    def compare(self) -> AuditFindings:
        """Read every row, then compare every aggregate."""
        for shard, row_keys in self._batches():
            response_keys = [key for key in row_keys if key[len(shard.keys.prefix)] == _RESPONSE_ROW_PREFIX]
            self._add_responses(shard, response_keys)
            for experiment in self._by_number.values():
                prefix = shard.keys.student_row_prefix(experiment.number)
                student_keys = [key for key in row_keys if key.startswith(prefix)]
                self._add_students(shard, experiment, student_keys)
        for experiment in self._by_number.values():
            for index, name in enumerate(sorted(experiment.settings.variants)):
                self._compare_variant(experiment, index, name)
                if experiment.number in self._excluding_numbers:
                    self._compare_variant(experiment, experiment.excluded_variants[index], f"{name}, excluded")
        for number, item_counter in self._item_counters.items():
            self._compare_items(self._by_number[number], item_counter)
        return self._findings

    def _batches(self) -> Iterator[tuple[StoreShard, list[bytes]]]:
        """Yield the keys of all rows, some thousand at a time."""
        with translating_errors(self._store.settings):
            for shard in self._store:
                batch: set[bytes] = set()
                for key in self._store.client.scan_iter(shard.keys.prefix + b"[rs]*", count=_ROWS_PER_BATCH):
                    batch.add(key)
                    if len(batch) >= _ROWS_PER_BATCH:
                        yield shard, list(batch)
                        batch = set()
                yield shard, list(batch)

    # ------------------------------------------------------------------ recomputing from rows

    def _add_responses(self, shard: StoreShard, row_keys: list[bytes]) -> None:
        by_experiment: dict[int, list[ResponseRow]] = defaultdict(list)
        for stored in shard.read_rows(row_keys):
            if stored is not None:
                row = decode_response_row(stored)
                if row.variant_key != NO_RESPONSE and row.variant_key >> 8 in self._by_number:
                    by_experiment[row.variant_key >> 8].append(row)
        for number, rows in by_experiment.items():
            experiment = self._by_number[number]
            self._findings.responses += len(rows)
            accumulator, traffic = experiment.create_metric_accumulator(), experiment.create_traffic_accumulator()
            item_counter = self._item_counters.get(number)
            for row in rows:
                variant = row.variant_key & 255
                if variant == PRE_PERIOD_VARIANT:
                    continue
                if item_counter is not None and variant not in experiment.excluded_variants:
                    self._add_items(item_counter, row)
                self._newest_ms[row.variant_key] = max(self._newest_ms[row.variant_key], row.timestamp_ms)
                contribution = experiment.rules.evaluate(row)
                accumulator.add_response(
                    1, variant, row.timestamp_ms, contribution.is_rated, contribution.metric_values
                )
                traffic.add_response(1, variant, row.timestamp_ms, row.item_hashes, row.latency_ms, row.category)
                if not row.student_hash:
                    accumulator.add_anonymous_response(
                        1, variant, row.timestamp_ms, row.category, contribution.sums, row.session
                    )
                self._add_kinds(row.variant_key, contribution)
            self._add(experiment, accumulator, traffic)

    def _add_kinds(self, variant_key: int, contribution: Contribution) -> None:
        for kind, reactions in contribution.reaction_counts:
            self._kind_counts[variant_key, kind] += reactions
            self._kind_counts[variant_key, "+" + kind] += 1
        for reason, reactions in contribution.uncounted_reactions:
            self._kind_counts[variant_key, UNCOUNTED_PREFIX + reason] += reactions

    def _add_items(self, item_counter: ItemCounter, row: ResponseRow) -> None:
        for (key, label), count in item_counter.count_row(row).items():
            self._item_counts[key][label] += count
        for index_key, member in item_counter.index_members(row):
            self._item_index_members[index_key].add(member)

    def _add_students(self, shard: StoreShard, experiment: Experiment, row_keys: list[bytes]) -> None:
        accumulator = experiment.create_metric_accumulator()
        width = experiment.layout.sums_width
        for stored in shard.read_rows(row_keys):
            if stored is None:
                continue
            student = decode_student_row(stored, width, experiment.days)
            self._findings.students += 1
            accumulator.add_student(1, student)
            for variant in student.variants():
                totals = self._student_totals.setdefault((experiment.number, variant), [0] * width)
                for index, addend in enumerate(student.total_sums(variant)):
                    totals[index] += addend
        self._add(experiment, accumulator, experiment.create_traffic_accumulator())

    def _add(self, experiment: Experiment, accumulator: MetricAccumulator, traffic: TrafficAccumulator) -> None:
        """Add the increments that a worker would write for the accumulated rows."""
        commit = Commit()
        add_metric_sums(commit, self._keys, experiment.number, experiment.settings.decay, accumulator)
        add_traffic_counts(commit, self._keys, experiment.number, traffic)
        for key, packed in (commit.record_increments | commit.bucket_appends).items():
            record = self._recomputed[key]
            for index, difference in unpack_vector_changes(packed):
                record[index] += difference

    # ------------------------------------------------------------------ comparing with stored records

    def _read_record(self, key: bytes, *, is_chunk: bool = False) -> IntArray:
        """Return the integers of a record or chunk, added up over the shards."""
        with translating_errors(self._store.settings):
            stored = [(shard_key, self._store.client.get(shard_key)) for shard_key in self._keys_on_shards(key)]
        decode = decode_chunk if is_chunk else decode_record
        shard_records = [decode(shard_key, value) for shard_key, value in stored]
        total = np.zeros(max(map(len, shard_records)), dtype=np.int64)
        for record in shard_records:
            total[: len(record)] += record
        return total

    def _keys_on_shards(self, key: bytes) -> list[bytes]:
        """Return the key of a record on each shard."""
        return [shard.keys.prefix + key.removeprefix(self._keys.prefix) for shard in self._store]

    def _compare_variant(self, experiment: Experiment, index: int, name: str) -> None:
        number, keys = experiment.number, self._keys
        all_time_sums = self._read_record(keys.all_time_sums(number, index))
        variant_id = (experiment.settings.name, name)
        newest_ms = read_newest_response_ms(self._store, number, [index]) or 0
        newest_row_ms = max(newest_ms, self._newest_ms[number << 8 | index])
        self._check(variant_id, "all time", "newest response (ms)", newest_ms, newest_row_ms)
        if self._expired_before_ms[number]:
            self._findings.unchecked.append(
                f"{name}: feedback kinds and traffic over all time, because rows of old responses are deleted by design"
            )
        else:
            self._compare(variant_id, "all time", keys.all_time_sums(number, index), all_time_sums, _labels(experiment))
            self._compare_kinds(variant_id, number, index)
            key = keys.traffic(number, index)
            self._compare(variant_id, "traffic", key, self._read_record(key), _HOUR_LABELS)
        if number in self._experiments_without_students:
            self._findings.unchecked.append(f"{name}: sums over students, because the experiment is over")
        else:
            self._compare_students(variant_id, experiment, index, all_time_sums)
        self._compare_buckets(variant_id, experiment, index)
        self._compare_traffic(variant_id, experiment, index)

    def _compare_traffic(self, variant_id: _VariantId, experiment: Experiment, index: int) -> None:
        """Compare the hours and days within retention, as far as their rows have not expired."""
        number, keys, expired_before_ms = experiment.number, self._keys, self._expired_before_ms[experiment.number]
        names = (*sorted(experiment.settings.categories), OTHER_CATEGORY, NO_CATEGORY)
        categories = {DayField.CATEGORIES + category: f"category {name}" for category, name in enumerate(names)}
        calendar, oldest_ms = experiment.settings.calendar, self._oldest_retained_ms(experiment)
        oldest_hour, oldest_day = oldest_ms // HOUR_MS, calendar.day_number(oldest_ms)
        day_labels = _DAY_LABELS | categories
        for kind, oldest, start_of, index_key_of, record_key_of, labels in (
            ("traffic", oldest_hour, _hour_start_ms, keys.traffic_hour_index, keys.traffic_hour, _HOUR_LABELS),
            ("days", oldest_day, calendar.start_ms, keys.traffic_day_index, keys.traffic_day, day_labels),
        ):
            expected = self._numbers_of_recomputed(record_key_of(number, index, 0))
            for hour_or_day in self._list_members(variant_id, kind, index_key_of(number, index), expected, oldest):
                start_ms = start_of(hour_or_day)
                if start_ms >= expired_before_ms:
                    key = record_key_of(number, index, hour_or_day)
                    start = format_timestamp(start_ms)
                    period_labels = {position: f"{kind} from {start}: {label}" for position, label in labels.items()}
                    self._compare(variant_id, kind, key, self._read_record(key), period_labels)

    def _compare_students(
        self, variant_id: _VariantId, experiment: Experiment, index: int, all_time_sums: IntArray
    ) -> None:
        number, keys, expired_before_ms = experiment.number, self._keys, self._expired_before_ms[experiment.number]
        students = self._read_record(keys.unit_sums(number, index))
        anonymous = UnitRecord(students).anonymous_responses if len(students) > UnitField.ANONYMOUS_RESPONSES else 0
        if not anonymous:
            self._compare_totals(variant_id, experiment, index, all_time_sums)
        if not expired_before_ms or not anonymous:
            self._compare(variant_id, "students", keys.unit_sums(number, index), students)
        else:
            self._findings.unchecked.append(
                f"{variant_id[1]}: sums over students, because of {count_noun(anonymous, 'response')} without "
                f"{experiment.settings.unit_field}"
            )
        expected_days = self._numbers_of_recomputed(keys.cohort_sums(number, index, 0))
        for day in self._list_members(variant_id, "cohorts", keys.cohort_index(number, index), expected_days):
            key, calendar = keys.cohort_sums(number, index, day), experiment.settings.calendar
            if not expired_before_ms or not anonymous or calendar.start_ms(day) >= expired_before_ms:
                prefix = f"cohort {calendar.date_text(day)}"
                self._compare(variant_id, "cohorts", key, self._read_record(key), prefix=prefix)

    def _compare_buckets(self, variant_id: _VariantId, experiment: Experiment, index: int) -> None:
        number, keys = experiment.number, self._keys
        for decay in experiment.settings.decay:
            length_ms = chunk_length_ms(decay)
            oldest = self._oldest_retained_ms(experiment) // length_ms
            first_complete_bucket = -(-self._expired_before_ms[number] * BUCKETS_PER_CHUNK // length_ms)
            index_key = keys.bucket_index(number, index, decay.name)
            expected_chunks = self._numbers_of_recomputed(keys.bucket_chunk(number, index, decay.name, 0))
            for chunk in self._list_members(variant_id, "time buckets", index_key, expected_chunks, oldest):
                first_bucket = max(first_complete_bucket - chunk * BUCKETS_PER_CHUNK, 0)
                if first_bucket < BUCKETS_PER_CHUNK:
                    self._compare_chunk(variant_id, experiment, index, decay.name, chunk, length_ms, first_bucket)

    def _oldest_retained_ms(self, experiment: Experiment) -> int:
        """Return the time from which on records are stored under any `retention`, current or former."""
        return self._newest_response_ms(experiment) - experiment.settings.horizon_ms

    def _newest_response_ms(self, experiment: Experiment) -> int:
        """Return the time of the newest response in any variant; 0 before the first response."""
        variants = range(len(experiment.variant_keys))
        return read_newest_response_ms(self._store, experiment.number, variants) or 0

    def _list_members(
        self,
        variant_id: _VariantId,
        kind: str,
        index_key: bytes,
        recomputed_members: Iterable[int],
        oldest: int = 0,
        member_name: str = "",
    ) -> list[int]:
        """Return the members of an index and the recomputed members, from `oldest` on, in rising order.

        Each recomputed member is checked to be in the index, because readers do not read a record that the index lacks.
        """
        client = self._store.client
        with translating_errors(self._store.settings):
            stored_members = {
                int(member) for key in self._keys_on_shards(index_key) for member in client.zrange(key, 0, -1)
            }
        expected_members = {member for member in recomputed_members if member >= oldest}
        for member in sorted(expected_members):
            label = f"{member_name or kind} {member} is in the index"
            self._check(variant_id, kind, label, int(member in stored_members), 1)
        return sorted(member for member in stored_members | expected_members if member >= oldest)

    def _numbers_of_recomputed(self, key_of_number_0: bytes) -> list[int]:
        """Return the hours, days or chunks of the recomputed records, by the key of hour, day or chunk 0."""
        prefix = key_of_number_0.removesuffix(b"0")
        return [int(key[len(prefix) :]) for key in self._recomputed if key.startswith(prefix)]

    def _compare_items(self, experiment: Experiment, item_counter: ItemCounter) -> None:
        """Compare the slices and days of items within retention, as far as their rows have not expired."""
        number, keys, layout = experiment.number, self._keys, item_counter.layout
        expired_before_ms, newest_ms = self._expired_before_ms[number], self._newest_response_ms(experiment)
        day_number = layout.calendar.day_number
        first_whole_day = day_number(expired_before_ms - 1) + 1
        oldest = max(layout.oldest_slice(newest_ms), -(-first_whole_day // layout.days_per_slice))
        for variant, name in enumerate(sorted(experiment.settings.variants)):
            variant_id, index = (experiment.settings.name, name), keys.item_index(number, variant)
            members = self._item_index_members[index]
            for slice_number in self._list_members(variant_id, "items", index, members, oldest, "slice"):
                hash_keys = [
                    keys.item_counts(number, variant, slice_number, bucket) for bucket in range(layout.bucket_count)
                ]
                self._compare_item_counts(variant_id, f"items of slice {slice_number}", hash_keys)
        variant_id, index = (experiment.settings.name, _ALL_VARIANTS), keys.bad_answer_index(number)
        oldest = max(day_number(newest_ms) - BAD_ANSWER_DAYS, first_whole_day)
        for day in self._list_members(variant_id, "items", index, self._item_index_members[index], oldest, "day"):
            hash_keys = [keys.bad_answers(number, day, bucket) for bucket in range(layout.bucket_count)]
            self._compare_item_counts(variant_id, f"bad answers of day {day}", hash_keys)

    def _compare_item_counts(self, variant_id: _VariantId, kind: str, hash_keys: Sequence[bytes]) -> None:
        for key in hash_keys:
            stored, recomputed = self._read_hash(key), self._item_counts[key]
            for name in sorted({*stored, *recomputed}):
                label = name.decode() if name.isdigit() else f"{name[:-1].hex()} {name[-1:].decode()}"
                self._check(variant_id, "items", f"{kind}: {label}", stored[name], recomputed[name])

    def _read_hash(self, key: bytes) -> Counter[bytes]:
        """Return the counts of a hash by field, added up over the shards."""
        total: Counter[bytes] = Counter()
        with translating_errors(self._store.settings):
            for shard_key in self._keys_on_shards(key):
                total.update({name: int(count) for name, count in self._store.client.hgetall(shard_key).items()})
        return total

    def _compare_chunk(
        self,
        variant_id: _VariantId,
        experiment: Experiment,
        index: int,
        decay: str,
        chunk: int,
        length_ms: int,
        first_bucket: int,
    ) -> None:
        width = experiment.layout.response_width
        labels = _labels(experiment)
        key = self._keys.bucket_chunk(experiment.number, index, decay, chunk)
        stored = self._read_record(key, is_chunk=True)
        recomputed = self._recomputed.get(key, Counter())
        for position in sorted({*np.flatnonzero(stored).tolist(), *recomputed}):
            bucket, label_position = divmod(position, width)
            if bucket >= first_bucket:
                start = format_timestamp((chunk * BUCKETS_PER_CHUNK + bucket) * length_ms // BUCKETS_PER_CHUNK)
                label = f"{decay} bucket from {start}: {labels[label_position]}"
                stored_integer = int(stored[position]) if position < len(stored) else 0
                self._check(variant_id, "time buckets", label, stored_integer, recomputed[position])

    def _compare_kinds(self, variant_id: _VariantId, number: int, index: int) -> None:
        counts = self._read_hash(self._keys.feedback_kinds(number, index))
        stored = {kind.decode(): count for kind, count in counts.items()}
        variant_key = number << 8 | index
        recomputed = {kind: count for (key, kind), count in self._kind_counts.items() if key == variant_key}
        for kind in sorted({*stored, *recomputed}):
            if kind.startswith(UNCOUNTED_PREFIX + CAPPED_PREFIX):
                label = f"capped values of {kind.removeprefix(UNCOUNTED_PREFIX + CAPPED_PREFIX)}"
            elif kind.startswith(UNCOUNTED_PREFIX):
                label = f"reactions that do not count: {kind.removeprefix(UNCOUNTED_PREFIX)}"
            else:
                label = f"responses with {kind[1:]}" if kind[:1] == "+" else f"reactions of kind {kind}"
            self._check(variant_id, "feedback", label, stored.get(kind, 0), recomputed.get(kind, 0))

    def _compare_totals(
        self, variant_id: _VariantId, experiment: Experiment, index: int, all_time_sums: IntArray
    ) -> None:
        """Compare the sums over all responses with the sums over all students' totals."""
        layout = experiment.layout
        metrics = [metric.name for metric in experiment.settings.metrics]
        student_sums = self._student_totals.get((experiment.number, index), [0] * layout.sums_width)
        totals, undefined = student_sums[layout.student_totals], student_sums[layout.student_undefined]
        response_sums = [*all_time_sums.tolist(), *[0] * (layout.response_width - len(all_time_sums))]
        pairs = [
            (
                "responses, against students",
                response_sums[ResponseField.RESPONSES],
                student_sums[StudentField.RESPONSES],
            ),
            ("rated responses, against students", response_sums[ResponseField.RATED], student_sums[StudentField.RATED]),
        ]
        starts = [ResponseField.METRICS + ResponseMetricField.WIDTH * index for index in range(layout.metric_count)]
        for metric, start, recomputed in zip(metrics, starts, totals, strict=True):
            low, high = (
                response_sums[start + ResponseMetricField.TOTAL],
                response_sums[start + ResponseMetricField.TOTAL + 1],
            )
            pairs.append((f"Σ {metric}, against students", (high << LOW_WORD_BITS) + low, recomputed))
        for metric, start, recomputed in zip(metrics, starts, undefined, strict=True):
            stored = response_sums[start + ResponseMetricField.UNDEFINED]
            pairs.append((f"undefined {metric}, against students", stored, recomputed))
        for label, stored, recomputed in pairs:
            self._check(variant_id, "all time", label, stored, recomputed)

    def _compare(
        self,
        variant_id: _VariantId,
        kind: str,
        key: bytes,
        stored: IntArray,
        labels: Mapping[int, str] = MappingProxyType({}),
        prefix: str = "",
    ) -> None:
        """Compare a stored record with the recomputed record; without labels, positions are the labels."""
        recomputed = self._recomputed.get(key, Counter())
        for position in sorted({*np.flatnonzero(stored).tolist(), *recomputed}):
            label = labels[position] if labels else f"{prefix or kind}, integer {position}"
            stored_integer = int(stored[position]) if position < len(stored) else 0
            self._check(variant_id, kind, label, stored_integer, recomputed[position])

    def _check(self, variant_id: _VariantId, kind: str, label: str, stored: int, recomputed: int) -> None:
        self._findings.checked[*variant_id, kind] += 1
        if stored != recomputed:
            self._findings.differences.append(AuditDifference(*variant_id, label, stored, recomputed))


def _labels(experiment: Experiment) -> dict[int, str]:
    """Return position → label, for the integers of an experiment's record over responses."""
    labels = dict(_RESPONSE_LABELS)
    for metric, settings in enumerate(experiment.settings.metrics):
        start = ResponseField.METRICS + ResponseMetricField.WIDTH * metric
        labels |= {start + field: label.format(settings.name) for field, label in _METRIC_LABELS.items()}
    return labels


def _hour_start_ms(hour: int) -> int:
    return hour * HOUR_MS
