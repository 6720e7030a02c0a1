"""Compares the stored aggregates with the stored rows.

Every integer that can be recomputed from rows that are still held is recomputed and compared:

- students' rows are kept, so the sums over students and cohorts are compared whole, and all-time sums over responses
  with what the students' totals add up to;
- responses' rows are held from the sweep's boundary on, so time buckets after it are compared, unless they are so old
  that no row can change them; as long as nothing was swept, all-time sums, feedback kinds and what responses without a
  student contribute are compared as well.

The rows are read with SCAN, a few thousand at a time, so the store has to stand still meanwhile: if a commit came in
between, the audit starts over a few times and then says so.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from monitor.analysis import iso
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import NONE, OTHER, Settings
from monitor.engine import (
    NO_RESPONSE,
    PRE_PERIOD,
    Accumulator,
    Experiment,
    IdHasher,
    ItemCounts,
    ResponseRow,
    TrafficAccumulator,
    decode_response,
    decode_student,
    unpack_runs,
)
from monitor.errors import DependencyUnavailable
from monitor.metrics import BAD_DAYS, BUCKETS_PER_CHUNK, ITEM_CELLS, LATENCY_BOUNDS_MS, LIMB_BITS, Ints, bucket_span_ms
from monitor.state.expiry import closed_experiments
from monitor.state.record_deltas import write_tally, write_traffic
from monitor.state.record_reader import decode_chunk, decode_record
from monitor.state.redis_connection import unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards, newest_response_ms
from monitor.state.store_metadata import stored_hash_key, view_store
from monitor.state.store_records import Commit, State

_AT_ONCE: Final = 5_000
_ATTEMPTS: Final = 3
_ROW: Final = ord("r")
_EVERYBODY: Final = "all variants"
_RESPONSES: Final = ("responses", "their offsets", "rated responses", "their offsets")
_PER_METRIC: Final = (
    "undefined {}", "their offsets", "Σ {}, low", "Σ {}, high", "Σ {}·offset, low", "Σ {}·offset, high",
    "Σ {}², low", "Σ {}², high",
)  # fmt: skip
_TRAFFIC: Final = (
    "responses", "empty ones", "Σ latency (ms)", *(f"up to {bound} ms" for bound in LATENCY_BOUNDS_MS), "slower",
)  # fmt: skip
_DAY: Final = ("responses", "Σ items²", *(f"items in cell {cell}" for cell in range(ITEM_CELLS)))


@dataclass(frozen=True, slots=True)
class Difference:
    """One integer that is not what the rows say."""

    experiment: str
    variant: str
    what: str
    stored: int
    recomputed: int


@dataclass(slots=True)
class Findings:
    """What was compared, and what differs."""

    checked: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(experiment, variant, kind of record) → integers compared"""
    differences: list[Difference] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)
    rows: int = 0
    students: int = 0


def audit(store: Shards, settings: Settings) -> Findings:
    """Recompute and compare; raises `DependencyUnavailable` when commits keep coming in between."""
    numbers = view_store(store, settings)
    experiments = [Experiment(numbers[each.name], each) for each in settings.experiments if numbers[each.name] > 0]
    for _ in range(_ATTEMPTS):
        before = [shard.state() for shard in store]
        findings = _Pass(store, experiments, before, stored_hash_key(store, settings)).compare()
        after = [shard.state() for shard in store]
        meanwhile = sum(late.commits - early.commits for early, late in zip(before, after, strict=True))
        if not meanwhile and [each.sweeps for each in before] == [each.sweeps for each in after]:
            return findings
    raise DependencyUnavailable(
        f"the store is being written: {meanwhile} commits came in during the last of {_ATTEMPTS} "
        "attempts. Stop the workers for the time of the audit (they go on exactly where they were), or audit a copy"
    )


class _Pass:
    """One reading of all rows."""

    def __init__(
        self, store: Shards, experiments: Sequence[Experiment], states: Sequence[State], hash_key: bytes
    ) -> None:
        self._store = store
        self._keys = store.first.keys
        """Names under which the shards' records are added up."""
        self._by_number = {each.number: each for each in experiments}
        self._swept = {
            each.number: max(state.swept_ms.get(str(each.number), 0) for state in states) for each in experiments
        }
        self._closed = frozenset[int]().union(*(closed_experiments(shard) for shard in store))
        self._expected: dict[bytes, Counter[int]] = defaultdict(Counter)
        self._kinds: Counter[tuple[int, str]] = Counter()
        self._newest_ms: Counter[int] = Counter()
        self._totals: dict[tuple[int, int], list[int]] = {}
        self._findings = Findings()
        self._items = {
            each.number: counts
            for each in experiments
            if (counts := each.item_counts(IdHasher(hash_key), self._keys)) is not None
        }
        self._item_counts: dict[bytes, Counter[bytes]] = defaultdict(Counter)
        self._item_places: dict[bytes, set[int]] = defaultdict(set)
        """Index → the slices or days that rows imply."""

    def compare(self) -> Findings:
        """Read every row, then every aggregate."""
        for shard, names in self._batches():
            rows = [name for name in names if name[len(shard.keys.prefix)] == _ROW]
            self._add_responses(shard, rows)
            for experiment in self._by_number.values():
                students = [name for name in names if name.startswith(shard.keys.students(experiment.number))]
                self._add_students(shard, experiment, students)
        for experiment in self._by_number.values():
            for index, name in enumerate(sorted(experiment.settings.variants)):
                self._compare_variant(experiment, index, name)
        for number, counts in self._items.items():
            self._compare_items(self._by_number[number], counts)
        return self._findings

    def _batches(self) -> Iterator[tuple[RedisStore, list[bytes]]]:
        """Yield the names of all rows, a few thousand at a time."""
        with unavailable(self._store.settings):
            for shard in self._store:
                batch: set[bytes] = set()
                for name in self._store.client.scan_iter(shard.keys.prefix + b"[rs]*", count=_AT_ONCE):
                    batch.add(name)
                    if len(batch) >= _AT_ONCE:
                        yield shard, list(batch)
                        batch = set()
                yield shard, list(batch)

    # ------------------------------------------------------------------ what the rows say

    def _add_responses(self, shard: RedisStore, names: list[bytes]) -> None:
        by_experiment: dict[int, list[ResponseRow]] = defaultdict(list)
        for stored in shard.rows(names):
            if stored is not None:
                row = decode_response(stored)
                if row.arm != NO_RESPONSE and row.arm >> 8 in self._by_number:
                    by_experiment[row.arm >> 8].append(row)
        for number, rows in by_experiment.items():
            experiment = self._by_number[number]
            self._findings.rows += len(rows)
            tally, traffic = experiment.accumulator(), experiment.traffic_accumulator()
            items = self._items.get(number)
            for row in rows:
                variant = row.arm & 255
                if variant == PRE_PERIOD:
                    continue
                if items is not None:
                    self._add_items(items, row)
                self._newest_ms[row.arm] = max(self._newest_ms[row.arm], row.timestamp_ms)
                value = experiment.rules.evaluate(row)
                tally.add_response(1, variant, row.timestamp_ms, value.rated, value.values)
                traffic.add(1, variant, row.timestamp_ms, row.items, row.latency_ms, row.category)
                if not row.student:
                    tally.add_anonymous(1, variant, row.timestamp_ms, row.category, value.sums)
                for kind, reactions in value.kinds:
                    self._kinds[row.arm, kind] += reactions
                    self._kinds[row.arm, "+" + kind] += 1
            self._add(experiment, tally, traffic)

    def _add_items(self, items: ItemCounts, row: ResponseRow) -> None:
        for (key, label), count in items.counts(row).items():
            self._item_counts[key][label] += count
        for index, place in items.index_members(row):
            self._item_places[index].add(place)

    def _add_students(self, shard: RedisStore, experiment: Experiment, names: list[bytes]) -> None:
        tally = experiment.accumulator()
        width = experiment.layout.sums_width
        for stored in shard.rows(names):
            if stored is None:
                continue
            student = decode_student(stored, width)
            self._findings.students += 1
            tally.add_student(1, student)
            for variant in student.variants():
                known = self._totals.setdefault((experiment.number, variant), [0] * width)
                for at, number in enumerate(student.totals(variant)):
                    known[at] += number
        self._add(experiment, tally, experiment.traffic_accumulator())

    def _add(self, experiment: Experiment, tally: Accumulator, traffic: TrafficAccumulator) -> None:
        """Sum up what the worker would have written for these rows."""
        commit = Commit()
        write_tally(commit, self._keys, experiment.number, experiment.settings.decay, tally)
        write_traffic(commit, self._keys, experiment.number, traffic)
        for key, packed in (commit.sums | commit.chunks).items():
            known = self._expected[key]
            for index, difference in unpack_runs(packed):
                known[index] += difference

    # ------------------------------------------------------------------ what the store says

    def _vector(self, key: bytes, *, chunk: bool = False) -> Ints:
        with unavailable(self._store.settings):
            found = [(name, self._store.client.get(name)) for name in self._everywhere(key)]
        decode = decode_chunk if chunk else decode_record
        parts = [decode(name, part) for name, part in found]
        total = np.zeros(max(map(len, parts)), dtype=np.int64)
        for part in parts:
            total[: len(part)] += part
        return total

    def _everywhere(self, key: bytes) -> list[bytes]:
        """Return a record's name on every shard."""
        return [shard.keys.prefix + key.removeprefix(self._keys.prefix) for shard in self._store]

    def _compare_variant(self, experiment: Experiment, index: int, name: str) -> None:
        number, keys = experiment.number, self._keys
        everything = self._vector(keys.responses(number, index))
        where = experiment.settings.name, name
        newest_ms = newest_response_ms(self._store, number, [index]) or 0
        held_ms = max(newest_ms, self._newest_ms[number << 8 | index])
        self._check(where, "all time", "newest response (ms)", newest_ms, held_ms)
        if self._swept[number]:
            self._findings.unchecked.append(
                f"{name}: feedback kinds and traffic over all time, because old responses are gone by design"
            )
        else:
            self._compare(where, "all time", keys.responses(number, index), everything, _labels(experiment))
            self._compare_kinds(where, number, index)
            key = keys.traffic(number, index)
            self._compare(where, "traffic", key, self._vector(key), _TRAFFIC)
        if number in self._closed:
            self._findings.unchecked.append(f"{name}: sums over students, because the experiment is over")
        else:
            self._compare_students(where, experiment, index, everything)
        self._compare_buckets(where, experiment, index)
        self._compare_traffic(where, experiment, index)

    def _compare_traffic(self, where: tuple[str, str], experiment: Experiment, index: int) -> None:
        """Compare the hours and days that are kept and of which all rows are held."""
        number, keys, swept_ms = experiment.number, self._keys, self._swept[experiment.number]
        categories = [f"category {name}" for name in (*sorted(experiment.settings.categories), OTHER, NONE)]
        for kind, span_ms, index_of, record_of, labels in (
            ("traffic", HOUR_MS, keys.traffic_hours, keys.traffic_hour, _TRAFFIC),
            ("days", DAY_MS, keys.days, keys.day, (*_DAY, *categories)),
        ):
            oldest = self._oldest_ms(experiment) // span_ms
            implied = self._implied(record_of(number, index, 0))
            for place in self._places(where, kind, index_of(number, index), implied, oldest):
                if place * span_ms >= swept_ms:
                    key = record_of(number, index, place)
                    begins = iso(place * span_ms)
                    labelled = [f"{kind} from {begins}: {label}" for label in labels]
                    self._compare(where, kind, key, self._vector(key), labelled)

    def _compare_students(self, where: tuple[str, str], experiment: Experiment, index: int, everything: Ints) -> None:
        number, keys, swept_ms = experiment.number, self._keys, self._swept[experiment.number]
        students = self._vector(keys.units(number, index))
        anonymous = int(students[2]) if len(students) > 2 else 0  # noqa: PLR2004  see Layout.unit_width
        if not anonymous:
            self._compare_totals(where, experiment, index, everything)
        if not swept_ms or not anonymous:
            self._compare(where, "students", keys.units(number, index), students)
        else:
            self._findings.unchecked.append(f"{where[1]}: sums over students, because {anonymous} responses name none")
        implied = self._implied(keys.cohort(number, index, 0))
        for day in self._places(where, "cohorts", keys.cohorts(number, index), implied):
            key = keys.cohort(number, index, day)
            if not swept_ms or not anonymous or day * DAY_MS >= swept_ms:
                label = iso(day * DAY_MS)[:10]
                self._compare(where, "cohorts", key, self._vector(key), prefix=f"cohort {label}")

    def _compare_buckets(self, where: tuple[str, str], experiment: Experiment, index: int) -> None:
        number, keys = experiment.number, self._keys
        for decay in experiment.settings.decay:
            span_ms = bucket_span_ms(decay)
            oldest = self._oldest_ms(experiment) // span_ms
            first = -(-self._swept[number] * BUCKETS_PER_CHUNK // span_ms)
            implied = self._implied(keys.chunk(number, index, decay.name, 0))
            for chunk in self._places(where, "time buckets", keys.chunks(number, index, decay.name), implied, oldest):
                from_bucket = max(first - chunk * BUCKETS_PER_CHUNK, 0)
                if from_bucket < BUCKETS_PER_CHUNK:
                    self._compare_chunk(where, experiment, index, decay.name, chunk, span_ms, from_bucket)

    def _oldest_ms(self, experiment: Experiment) -> int:
        """Return since when the records of a time are held, whatever `retention` was before: it keeps that at least."""
        return self._newest(experiment) - experiment.settings.horizon_ms

    def _newest(self, experiment: Experiment) -> int:
        """Return the newest response's time, of any variant."""
        variants = range(len(experiment.arms))
        return newest_response_ms(self._store, experiment.number, variants) or 0

    def _places(
        self, where: tuple[str, str], kind: str, index: bytes, implied: Iterable[int], oldest: int = 0, what: str = ""
    ) -> list[int]:
        """Return the numbers, from `oldest` on, of the records that an index names or that the rows imply.

        A record that the index does not name is never read.
        """
        with unavailable(self._store.settings):
            named = {int(place) for name in self._everywhere(index) for place in self._store.client.zrange(name, 0, -1)}
        expected = {place for place in implied if place >= oldest}
        for place in sorted(expected):
            self._check(where, kind, f"{what or kind} {place} is in the index", int(place in named), 1)
        return sorted(place for place in named | expected if place >= oldest)

    def _implied(self, zeroth: bytes) -> list[int]:
        """Return the numbers of the records that rows imply, of those that are named like the record of number 0."""
        prefix = zeroth.removesuffix(b"0")
        return [int(key[len(prefix) :]) for key in self._expected if key.startswith(prefix)]

    def _compare_items(self, experiment: Experiment, counts: ItemCounts) -> None:
        """Compare the slices and days of items that are kept and of which all rows are stored."""
        number, keys, layout = experiment.number, self._keys, counts.layout
        swept_ms, newest_ms = self._swept[number], self._newest(experiment)
        length_ms = layout.days * DAY_MS
        oldest = max(layout.oldest(newest_ms), -(-swept_ms // length_ms))
        for variant, name in enumerate(sorted(experiment.settings.variants)):
            where, index = (experiment.settings.name, name), keys.item_slices(number, variant)
            for piece in self._places(where, "items", index, self._item_places[index], oldest, "slice"):
                names = [keys.items(number, variant, piece, bucket) for bucket in range(layout.buckets)]
                self._compare_item_counts(where, f"items of slice {piece}", names)
        where, index = (experiment.settings.name, _EVERYBODY), keys.bad_days(number)
        oldest = max(newest_ms // DAY_MS - BAD_DAYS, -(-swept_ms // DAY_MS))
        for day in self._places(where, "items", index, self._item_places[index], oldest, "day"):
            names = [keys.bad(number, day, bucket) for bucket in range(layout.buckets)]
            self._compare_item_counts(where, f"bad answers of day {day}", names)

    def _compare_item_counts(self, where: tuple[str, str], kind: str, names: Sequence[bytes]) -> None:
        for name in names:
            stored, expected = self._hash(name), self._item_counts[name]
            for each in sorted({*stored, *expected}):
                label = each.decode() if each.isdigit() else f"{each[:-1].hex()} {each[-1:].decode()}"
                self._check(where, "items", f"{kind}: {label}", stored[each], expected[each])

    def _hash(self, key: bytes) -> Counter[bytes]:
        total: Counter[bytes] = Counter()
        with unavailable(self._store.settings):
            for name in self._everywhere(key):
                total.update({each: int(count) for each, count in self._store.client.hgetall(name).items()})
        return total

    def _compare_chunk(
        self,
        where: tuple[str, str],
        experiment: Experiment,
        index: int,
        decay: str,
        chunk: int,
        span_ms: int,
        from_bucket: int,
    ) -> None:
        width = experiment.layout.response_width
        labels = _labels(experiment)
        key = self._keys.chunk(experiment.number, index, decay, chunk)
        stored = self._vector(key, chunk=True)
        expected = self._expected.get(key, Counter())
        for at in sorted({*np.flatnonzero(stored).tolist(), *expected}):
            bucket, place = divmod(at, width)
            if bucket >= from_bucket:
                begins = iso((chunk * BUCKETS_PER_CHUNK + bucket) * span_ms // BUCKETS_PER_CHUNK)
                found = int(stored[at]) if at < len(stored) else 0
                self._check(
                    where, "time buckets", f"{decay} bucket from {begins}: {labels[place]}", found, expected[at]
                )

    def _compare_kinds(self, where: tuple[str, str], number: int, index: int) -> None:
        found = {kind.decode(): count for kind, count in self._hash(self._keys.kinds(number, index)).items()}
        expected = {kind: count for (arm, kind), count in self._kinds.items() if arm == number << 8 | index}
        for kind in sorted({*found, *expected}):
            label = f"responses with {kind[1:]}" if kind[:1] == "+" else f"reactions of kind {kind}"
            self._check(where, "feedback", label, found.get(kind, 0), expected.get(kind, 0))

    def _compare_totals(self, where: tuple[str, str], experiment: Experiment, index: int, everything: Ints) -> None:
        """Compare the sums over all responses with the sums over all students' totals."""
        width = experiment.layout.sums_width
        metrics = [metric.name for metric in experiment.settings.metrics]
        expected = self._totals.get((experiment.number, index), [0] * width)
        found = [*everything.tolist(), *[0] * (experiment.layout.response_width - len(everything))]
        for label, stored, recomputed in (
            ("responses, against students", found[0], expected[0]),
            ("rated responses, against students", found[2], expected[1]),
            *(
                (
                    f"Σ {metric}, against students",
                    (found[7 + 8 * m] << LIMB_BITS) + found[6 + 8 * m],
                    expected[2 + m],
                )
                for m, metric in enumerate(metrics)
            ),
            *(
                (f"undefined {metric}, against students", found[4 + 8 * m], expected[2 + len(metrics) + m])
                for m, metric in enumerate(metrics)
            ),
        ):
            self._check(where, "all time", label, stored, recomputed)

    def _compare(
        self, where: tuple[str, str], kind: str, key: bytes, stored: Ints, labels: Sequence[str] = (), prefix: str = ""
    ) -> None:
        expected = self._expected.get(key, Counter())
        for at in sorted({*np.flatnonzero(stored).tolist(), *expected}):
            label = labels[at] if labels else f"{prefix or kind}, integer {at}"
            self._check(where, kind, label, int(stored[at]) if at < len(stored) else 0, expected[at])

    def _check(self, where: tuple[str, str], kind: str, label: str, stored: int, recomputed: int) -> None:
        self._findings.checked[*where, kind] += 1
        if stored != recomputed:
            self._findings.differences.append(Difference(*where, label, stored, recomputed))


def _labels(experiment: Experiment) -> list[str]:
    """Return what each integer of a record over responses is; see `Layout.response_width`."""
    names = [metric.name for metric in experiment.settings.metrics]
    return [*_RESPONSES, *(label.format(name) for name in names for label in _PER_METRIC)]
