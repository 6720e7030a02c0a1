"""Reading of summaries, for the status command, reports, HTTP and Prometheus."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from monitor.analysis import (
    Analyzer,
    DayReading,
    DecayedMean,
    DecayedMeanSnapshot,
    ExperimentHistory,
    ExperimentSummary,
    ItemCoverage,
    MetricSummary,
    SnapshotHistory,
    StoreSummary,
    TrafficSummary,
    TriageEntry,
    VariantSummary,
    VerdictHistory,
    find_analysis_time,
    list_verdict_history,
)
from monitor.clock import HOUR_MS, Clock
from monitor.config import DeclaredSet, ExperimentSettings, Settings
from monitor.engine import CAPPED_PREFIX, EXCLUDED_VARIANT_OFFSET, IdHasher
from monitor.errors import StoreUnavailable, UnknownExperiment, UnusableStore, UsageError, setting_text
from monitor.metrics import IntArray, RecordLayout, ResponseRecord, UnitRecord, chunk_length_ms
from monitor.state.backfills import read_backfills
from monitor.state.day_sums import DaySumsReader
from monitor.state.declared_experiments import experiment_histories
from monitor.state.embedded_redis import running_store_server
from monitor.state.generations import connect_active_generation
from monitor.state.item_coverage import CoverageReader
from monitor.state.item_reader import ItemReader
from monitor.state.keys import ACTIVE_GENERATION_KEY, UNCOUNTED_PREFIX
from monitor.state.quality_counts import data_quality_from_counts
from monitor.state.record_reader import decode_records, read_in_transaction, read_records
from monitor.state.redis_connection import hash_from_reply, translating_errors
from monitor.state.service_records import read_service_records
from monitor.state.sharded_store import ShardedStore
from monitor.state.skip_counts import SkippedEventTotals
from monitor.state.snapshot_log import SnapshotLog
from monitor.state.store_metadata import read_hash_key, read_shown_experiments
from monitor.state.store_records import decode_positions
from monitor.state.store_shard import StoreShard
from monitor.state.time_buckets import BucketCache, BucketReading, BucketSeries, SeriesKey
from monitor.state.traffic_reader import DriftReader, Drifts, VariantTraffic, read_traffic
from monitor.stats import (
    CohortTable,
    Estimate,
    SkippedEventCounts,
    StoredStudentSums,
    design_effect,
    intra_student_correlation,
    live_metric_statistic,
    live_rated_share_statistic,
)

_MAX_OTHER_KINDS = 50


@dataclass(slots=True)
class _VariantRecords:
    """Stored records of a variant, summed over the shards."""

    experiment: ExperimentSettings
    number: int
    """Number of the experiment."""
    index: int
    """Index of the variant among the sorted names of the experiment's variants."""
    name: str
    all_time_sums: IntArray
    unit_sums: IntArray
    kinds: Counter[str] = field(default_factory=Counter)
    delay_counts: Counter[int] = field(default_factory=Counter)
    """Class of `DELAY_BOUNDS_MS` → events that arrived with such a delay."""
    uncounted_reactions: Counter[str] = field(default_factory=Counter)
    """Reason → reactions that do not count."""
    capped_values: Counter[str] = field(default_factory=Counter)
    """Metric → responses whose value was above the metric's range."""
    cohort_days: set[int] = field(default_factory=set)
    """Days with a record over the students who were first exposed on that day."""
    cohorts: Mapping[int, IntArray] = field(default_factory=dict)
    """Day → record; empty before `StoreReader._read_cohorts`."""
    last_response_ms: int | None = None
    last_event_ms: int | None = None
    excluded: _VariantRecords | None = None
    """Records of the variant's excluded responses; None if no rule excludes responses."""


@dataclass(slots=True)
class _EventCounts:
    """Counts over the events of all experiments."""

    newest_ms: int = 0
    """Newest event time of all partitions and experiments."""
    newest_counted_ms: int = 0
    """Newest time of an event of any experiment in the store, also of experiments that this reader leaves out."""
    lost_events: int = 0
    recent_records: int = 0
    """Records in the rejection windows of all partitions, for each `limits.rejection_window` to twice as many."""
    rejected_records: int = 0
    """Rejected records in these windows."""
    skipped: SkippedEventTotals = field(default_factory=SkippedEventTotals)
    unmatched: Counter[str] = field(default_factory=Counter)
    """Kind of feedback → reactions that expired without a response."""
    quality: Mapping[int, Counter[bytes]] = field(default_factory=lambda: defaultdict(Counter))
    """Experiment number → counts of `StoreKeys.data_quality`."""
    skipped_by_experiment: Mapping[str, SkippedEventCounts] = field(default_factory=dict)
    """Experiment → skipped events that may belong to the experiment."""
    unnamed_responses: int = 0
    """Skipped responses of undeclared experiments that are not recorded by name."""


@dataclass(frozen=True, slots=True)
class _Details:
    """What a summary has beside counts and verdicts; the keys are (experiment number, variant)."""

    traffic: Mapping[tuple[int, int], TrafficSummary] = field(default_factory=dict)
    drifts: Mapping[tuple[int, int], Drifts] = field(default_factory=dict)
    coverage: Mapping[tuple[int, int], ItemCoverage] = field(default_factory=dict)
    categories_for_review: Mapping[str, tuple[TriageEntry, ...]] = field(default_factory=dict)

    def of_variant(self, number: int, index: int) -> dict[str, Any]:
        """Return the fields of the variant's summary."""
        category_drift, item_drift = self.drifts.get((number, index), (None, None))
        return {
            "traffic": self.traffic.get((number, index)),
            "category_drift": category_drift,
            "item_drift": item_drift,
            "coverage": self.coverage.get((number, index)),
        }


class StoreReader:
    """Reads a store. Several threads may use the same reader."""

    def __init__(
        self,
        store: ShardedStore,
        settings: Settings,
        numbers: Mapping[str, int],
        clock: Clock,
        declared_set: DeclaredSet | None = None,
    ) -> None:
        """`declared_set` is the set of declared experiments; None for a store that was filled from files."""
        self.store = store
        self._declared_set = declared_set or DeclaredSet()
        self.histories: Mapping[str, ExperimentHistory] = experiment_histories(self._declared_set, {})
        """History of each declared experiment, as of the last summary."""
        self._settings = settings
        self.numbers = numbers
        self._clock = clock
        self._declared_names = settings.deselected_experiments | numbers.keys()
        self._layouts = {
            experiment.name: RecordLayout.for_experiment(experiment) for experiment in settings.experiments
        }
        self._analyzers = {experiment.name: Analyzer(experiment) for experiment in settings.experiments}
        self._snapshot_log = SnapshotLog(store)
        self._drift_reader = DriftReader(store, settings)
        self._coverage_readers = {
            experiment.name: CoverageReader(store, experiment, numbers[experiment.name])
            for experiment in settings.experiments
            if experiment.items is not None
        }
        self._caches: dict[tuple[bool, frozenset[str] | None], BucketCache] = {}
        """(Whether a reading is of the past, read experiments or None for all) → cache of the chunks that it needs."""

    @property
    def experiments(self) -> Sequence[ExperimentSettings]:
        """Return the configured experiments."""
        return self._settings.experiments

    def find_experiment(self, name: str) -> ExperimentSettings:
        """Return the settings of an experiment.

        Raises `UnknownExperiment`, also for a name from a summary: the configuration may have changed since then.
        """
        settings = next((experiment for experiment in self.experiments if experiment.name == name), None)
        if settings is None:
            # The text goes to readers who may not see the names of all other experiments.
            raise UnknownExperiment(f"unknown experiment {setting_text(name)}: the configuration does not declare it")
        return settings

    def select_experiment(self, name: str) -> StoreReader:
        """Return a reader of one experiment of the same store, with equal results; KeyError for an unknown name.

        The reader starts with the cached time buckets of this reader, and shares the cached coverage of items.
        """
        numbers = {name: self.numbers[name]}
        settings = self._settings.select_experiment(name)
        reader = StoreReader(self.store, settings, numbers, self._clock, self._declared_set)
        reader._caches |= self._caches
        reader._coverage_readers |= {each: self._coverage_readers[each] for each in reader._coverage_readers}
        return reader

    def read_student_sums(self, experiment: str) -> StoredStudentSums:
        """Return the sums over an experiment's students, for verdicts as of any time. Raises `StoreUnavailable`."""
        variants, counts = self._read_variants()
        experiment_variants = [variant for variant in variants if variant.experiment.name == experiment]
        self._read_cohorts(experiment_variants)
        self._check_active_generation()
        return self._student_sums(experiment_variants, counts)

    def item_reader(self, experiment: str) -> ItemReader:
        """Return a reader of an experiment's items. Raises `UsageError` if the experiment counts no items."""
        experiment_settings = self.find_experiment(experiment)
        if experiment_settings.items is None:
            raise UsageError(
                f"experiment {experiment}: items are not counted. Set experiments.{experiment}.items, such as '30d': a "
                "running service then counts the items of all responses that Kafka still has"
            )
        return ItemReader(self.store, experiment_settings, self.numbers[experiment])

    def read_snapshots(self, experiment: str) -> SnapshotHistory:
        """Return an experiment's snapshots, oldest first. Raises `UnknownExperiment` and `StoreUnavailable`."""
        return self._snapshot_log.read_all(self.numbers[self.find_experiment(experiment).name])

    def read_verdict_history(self, experiment: ExperimentSummary) -> VerdictHistory:
        """Return the history of an experiment's verdicts from the snapshots.

        Raises `UnknownExperiment` and `StoreUnavailable`.
        """
        return list_verdict_history(experiment, self.read_snapshots(experiment.name))

    def read_past_means(
        self, experiment: str, times_ms: Sequence[int]
    ) -> dict[int, dict[str, dict[str, DecayedMeanSnapshot]]]:
        """Return time → variant → decay → mean of the primary metric, from the time buckets, as in a snapshot.

        A mean is that of `read_summary` as of the same time, in a fraction of the time of `read_summary`. Raises
        `StoreUnavailable`.
        """
        if not times_ms:
            return {}
        variants, _ = self._read_variants()
        variants = [variant for variant in variants if variant.experiment.name == experiment]
        settings, layout = variants[0].experiment, self._layouts[experiment]
        index = [metric.name for metric in settings.metrics].index(settings.primary)
        design_effects = {}
        for variant in variants:
            sums = ResponseRecord(variant.all_time_sums).metric_sums(layout)[index]
            estimate = live_metric_statistic(variant.unit_sums, layout, index, "rated").estimate()
            design_effects[variant.name] = _design_effect(sums.responses, sums.total, sums.squares, estimate.variance)
        cache, series = BucketCache(self._read_run_ids()), self._bucket_series(variants)
        means_by_time = {}
        for at_ms in times_ms:
            means, cache = BucketReading(self.store, cache, at_ms, past=True).read_means(series)
            means_by_time[at_ms] = {
                variant.name: {
                    decay.name: DecayedMeanSnapshot.of(
                        means[variant.number, variant.index, decay.name][index], design_effects[variant.name]
                    )
                    for decay in settings.decay
                }
                for variant in variants
            }
        self._check_active_generation()
        return means_by_time

    def read_days(self, experiment: ExperimentSummary, as_of_ms: int | None = None) -> DayReading:
        """Return the sums of an experiment's last days; with `as_of_ms`, of the days up to then.

        `experiment` is of a summary of the same time. Raises `UnknownExperiment`, `StoreUnavailable` and
        `UnusableStore`.
        """
        settings = self.find_experiment(experiment.name)
        newest_ms = max(variant.last_response_at_ms or 0 for variant in experiment.variants.values())
        now_ms, analysis = max(newest_ms, experiment.newest_event_ms), experiment.analysis
        first_response_ms = None
        if analysis is not None:
            now_ms = max(now_ms, analysis.as_of_ms) if as_of_ms is None else now_ms
            first_response_ms = next(
                (verdict.evidence.first_response_ms for verdict in analysis.verdicts.values()), None
            )
        ends_ms = [end_ms for end_ms in (settings.ends_at_ms, experiment.history.frozen_at_ms) if end_ms is not None]
        end_ms = max(min(ends_ms), newest_ms) if ends_ms else now_ms
        until_ms = min(now_ms, end_ms) if as_of_ms is None else min(now_ms, end_ms, as_of_ms)
        return DaySumsReader(self.store, settings, self.numbers[experiment.name]).read_days(
            newest_ms,
            until_ms,
            first_response_ms,
            is_past=as_of_ms is not None and as_of_ms < now_ms,
            is_ended=bool(ends_ms) and until_ms == end_ms,
        )

    def read_summary(self, as_of_ms: int | None = None, names: Collection[str] | None = None) -> StoreSummary:
        """Return a summary of all experiments; decayed means are as of `as_of_ms` (default: the newest event).

        With `names`, the summary has only these experiments, with the same numbers, which is faster.

        All-time numbers are current numbers for any `as_of_ms`. Verdicts are as of the newest event of any experiment,
        or of `as_of_ms` if that is earlier: a student's window is complete only when later events were read. After its
        end, an experiment needs no later events: see `find_analysis_time`. Verdicts of an archived experiment, and of a
        previous definition, are as of their own newest event. Raises `StoreUnavailable`.
        """
        return self._read_summary(as_of_ms, names, "all")

    def read_verdicts(self) -> StoreSummary:
        """Return the summary of all experiments without decayed means, traffic, drift, coverage and review order.

        A list of many experiments needs none of these, and reads in a fraction of the time. Raises `StoreUnavailable`.
        """
        return self._read_summary(None, None, "verdicts")

    def read_counts(self) -> StoreSummary:
        """Return the summary of `read_verdicts` without analyses, which take most of its time.

        Raises `StoreUnavailable`.
        """
        return self._read_summary(None, None, "counts")

    def _read_summary(
        self, as_of_ms: int | None, names: Collection[str] | None, content: Literal["counts", "verdicts", "all"]
    ) -> StoreSummary:
        is_past, with_details = as_of_ms is not None, content == "all"
        if any(experiment.is_filling for experiment in self._declared_set.experiments):
            self.histories = experiment_histories(self._declared_set, read_backfills(self.store))
        cache_key = is_past, None if names is None else frozenset(names)
        cache = (self._caches.get(cache_key) if with_details else None) or BucketCache(self._read_run_ids())
        means: Mapping[SeriesKey, Sequence[DecayedMean]] | None = None
        while True:
            all_variants, counts = self._read_variants()
            at_ms = (counts.newest_counted_ms or self._clock()) if as_of_ms is None else as_of_ms
            variants = [variant for variant in all_variants if names is None or variant.experiment.name in names]
            if content != "counts":
                self._read_cohorts(variants)
            if with_details:
                reading = BucketReading(self.store, cache, at_ms, past=is_past)
                means, self._caches[cache_key] = reading.read_means(self._bucket_series(variants))
            run_ids = self._read_run_ids()
            if run_ids == cache.run_ids:
                break
            # A server that was restarted may have lost commits, so all chunks are read again.
            cache = BucketCache(run_ids)
        until_ms = (counts.newest_ms or at_ms) + 1
        if as_of_ms is not None and as_of_ms < counts.newest_ms:
            # The hour of that time also contains later responses.
            until_ms = as_of_ms // HOUR_MS * HOUR_MS
        details = self._read_details(variants, until_ms, run_ids, is_past=is_past) if with_details else _Details()
        consumed_at_ms = read_service_records(self.store).consumed_at_ms(self._clock())
        newest_event_ms = min(at_ms, counts.newest_ms) if as_of_ms is not None else counts.newest_ms
        self._check_active_generation()
        experiments = {}
        for experiment in self._settings.experiments:
            experiment_variants = [variant for variant in variants if variant.experiment is experiment]
            if not experiment_variants:
                continue
            students = self._student_sums(experiment_variants, counts)
            live_estimates = students.live_estimates(self._layouts[experiment.name], "rated")
            read_until_ms = consumed_at_ms - experiment.allowed_lateness_ms if as_of_ms is None else as_of_ms
            newest_read_ms = newest_event_ms
            if students.history.frozen_at_ms is not None:
                # Later events of the experiment are not counted, so events of others do not complete its windows.
                last_event_ms = max((variant.last_event_ms or 0 for variant in experiment_variants), default=0)
                newest_read_ms = min(newest_event_ms, last_event_ms)
                read_until_ms = min(read_until_ms, students.history.frozen_at_ms)
            analyzed_ms = find_analysis_time(experiment, newest_read_ms, read_until_ms)
            summaries = {
                variant.name: replace(
                    self._summarize_variant(variant, means, live_estimates[variant.name]),
                    **details.of_variant(variant.number, variant.index),
                )
                for variant in experiment_variants
            }
            experiments[experiment.name] = ExperimentSummary(
                name=experiment.name,
                control=experiment.control,
                primary=experiment.primary,
                crossovers=sum(UnitRecord(variant.unit_sums).crossovers for variant in experiment_variants),
                variants={name: summaries[name] for name in experiment.variants},
                analysis=None
                if content == "counts"
                else self._analyzers[experiment.name].analyze(students, analyzed_ms),
                metric_specs=experiment.metrics,
                starts_at_ms=experiment.starts_at_ms,
                ends_at_ms=experiment.ends_at_ms,
                intended_shares=experiment.intended_shares(analyzed_ms),
                categories_for_review=details.categories_for_review.get(experiment.name),
                newest_event_ms=counts.newest_ms,
                data_quality=students.data_quality,
                history=students.history,
                unit_noun="student" if experiment.unit == "user" else "group",
                unit_id_name="user id" if experiment.unit == "user" else experiment.unit_field,
                owner=experiment.owner,
                hypothesis=experiment.hypothesis,
                link=experiment.link,
                texts=experiment.texts,
            )
        configured = frozenset[str]().union(*(experiment.feedback_kinds for experiment in self._settings.experiments))
        unmatched = dict.fromkeys(configured, 0) | _limit_kinds(counts.unmatched, configured)
        return StoreSummary(
            as_of_ms=at_ms,
            experiments=experiments,
            unmatched_feedback=dict(sorted(unmatched.items())),
            totals_as_of_ms=counts.newest_ms or at_ms,
            undeclared=counts.skipped.undeclared_experiments(self._declared_names, self._settings.discover),
            unnamed_undeclared_responses=counts.unnamed_responses,
        )

    def _read_details(
        self, variants: Sequence[_VariantRecords], until_ms: int, run_ids: tuple[str, ...], *, is_past: bool
    ) -> _Details:
        """Return what a summary has beside counts and verdicts, as of before `until_ms`."""
        return _Details(
            traffic=read_traffic(self.store, [(variant.number, variant.index) for variant in variants], until_ms),
            drifts=self._read_drifts(variants, until_ms),
            categories_for_review={
                name: self.item_reader(name).read_review_ranking("category")
                for name in dict.fromkeys(variant.experiment.name for variant in variants)
                if name in self._coverage_readers and not is_past
            },
            coverage={} if is_past else self._read_coverage(variants, run_ids),
        )

    def _student_sums(self, variants: Sequence[_VariantRecords], counts: _EventCounts) -> StoredStudentSums:
        """Return the sums over the students of an experiment's variants."""
        experiment = variants[0].experiment.name
        history = self.histories.get(experiment, ExperimentHistory())
        return StoredStudentSums(
            variant_records={variant.name: variant.unit_sums for variant in variants},
            cohorts={variant.name: variant.cohorts for variant in variants},
            excluded_cohorts={variant.name: variant.excluded.cohorts for variant in variants if variant.excluded},
            delay_counts={variant.name: variant.delay_counts for variant in variants},
            lost_events=counts.lost_events,
            rejected_share=counts.rejected_records / counts.recent_records if counts.recent_records else None,
            # A declared set is in force: skipped events are counted by a backfill, or the experiment is archived.
            skipped_events=None if experiment in self.histories else counts.skipped_by_experiment.get(experiment),
            data_quality=data_quality_from_counts(
                counts.quality[variants[0].number],
                {variant.name: int(ResponseRecord(variant.all_time_sums).responses) for variant in variants},
                {variant.name: +variant.uncounted_reactions for variant in variants},
                _responses_per_student(variants),
                counts.skipped.other_spellings(experiment, self.numbers.keys()),
            ),
            history=history,
        )

    def _read_variants(self) -> tuple[list[_VariantRecords], _EventCounts]:
        """Return all-time records of all variants, and counts of events, each read in a transaction on a shard."""
        variants = []
        for experiment in self.experiments:
            layout, number = self._layouts[experiment.name], self.numbers[experiment.name]
            for index, name in enumerate(sorted(experiment.variants)):
                responses, units = (np.zeros(width, np.int64) for width in (layout.response_width, layout.unit_width))
                variant = _VariantRecords(experiment, number, index, name, responses, units)
                if self._settings.excludes_responses(experiment):
                    variant.excluded = _VariantRecords(
                        experiment, number, EXCLUDED_VARIANT_OFFSET + index, name, responses.copy(), units.copy()
                    )
                variants.append(variant)
        counts = _EventCounts()
        for shard in self.store:
            self._add_shard(variants, counts, shard)
        if counts.skipped.events:
            id_hasher = IdHasher(read_hash_key(self.store, self._settings))
            counts.skipped_by_experiment = counts.skipped.by_experiment(self.experiments, self.numbers, id_hasher)
            counts.unnamed_responses = counts.skipped.unnamed_responses(
                self._declared_names, self._settings.discover, id_hasher
            )
        return variants, counts

    def _add_shard(self, variants: Sequence[_VariantRecords], counts: _EventCounts, shard: StoreShard) -> None:
        """Add the records and counts of a shard."""
        keys = shard.keys
        commands: list[Sequence[str | bytes | int]]
        hash_keys = (
            keys.newest_times,
            keys.events_lost,
            keys.events_skipped,
            keys.experiments_skipped,
            keys.variants_skipped,
            keys.feedback_unmatched,
            keys.positions,
        )
        experiment_numbers = list(dict.fromkeys(variant.number for variant in variants))
        commands = [("HGETALL", key) for key in hash_keys]
        commands += [("HGETALL", keys.data_quality(number)) for number in experiment_numbers]
        variants = _with_excluded(variants)
        for variant in variants:
            numbers = variant.number, variant.index
            commands += (
                ("GET", keys.all_time_sums(*numbers)),
                ("GET", keys.unit_sums(*numbers)),
                ("HGETALL", keys.feedback_kinds(*numbers)),
                ("HGETALL", keys.event_delays(*numbers)),
                ("ZRANGE", keys.cohort_index(*numbers), 0, -1),
            )
        replies = iter(read_in_transaction(shard, commands))
        times, lost, skipped, skipped_names, skipped_variants, unmatched, positions = map(
            hash_from_reply, islice(replies, len(hash_keys))
        )
        for number in experiment_numbers:
            counts.quality[number].update(
                {name: int(events) for name, events in hash_from_reply(next(replies)).items()}
            )
        newest_times = {name.decode(): int(ms) for name, ms in times.items() if name[:1].isdigit()}
        counts.newest_ms = max(counts.newest_ms, *newest_times.values(), 0)
        counts.newest_counted_ms = max(
            [counts.newest_counted_ms, *(at_ms for name, at_ms in newest_times.items() if name.endswith(":event"))]
        )
        counts.lost_events += sum(map(int, lost.values()))
        counts.skipped.add(skipped, times, skipped_names, skipped_variants)
        counts.unmatched.update({kind.decode(): int(reactions) for kind, reactions in unmatched.items()})
        for position in decode_positions(positions).values():
            counts.newest_ms = max(counts.newest_ms, position.newest_ms)
            counts.recent_records += position.rejections.records
            counts.rejected_records += position.rejections.rejected
        for variant in variants:
            for total, key_of in ((variant.all_time_sums, keys.all_time_sums), (variant.unit_sums, keys.unit_sums)):
                (record,) = decode_records([key_of(variant.number, variant.index)], [next(replies)], len(total))
                np.add(total, record, out=total)
            for kind, count in hash_from_reply(next(replies)).items():
                name = kind.decode()
                if name.startswith(UNCOUNTED_PREFIX + CAPPED_PREFIX):
                    variant.capped_values[name.removeprefix(UNCOUNTED_PREFIX + CAPPED_PREFIX)] += int(count)
                elif name.startswith(UNCOUNTED_PREFIX):
                    variant.uncounted_reactions[name.removeprefix(UNCOUNTED_PREFIX)] += int(count)
                else:
                    variant.kinds[name] += int(count)
            for delay_class, count in hash_from_reply(next(replies)).items():
                variant.delay_counts[int(delay_class)] += int(count)
            variant.cohort_days.update(map(int, next(replies)))
            response_ms, event_ms = (
                newest_times.get(f"{variant.number}:{variant.index}:{event}", 0) for event in ("response", "event")
            )
            variant.last_response_ms = max(variant.last_response_ms or 0, response_ms) or None
            variant.last_event_ms = max(variant.last_event_ms or 0, event_ms) or None

    def _read_cohorts(self, variants: Sequence[_VariantRecords]) -> None:
        """Read the records of all cohort days, on each shard at the same moment, into `cohorts` of the variants."""
        variant_days = [
            (variant, sorted(variant.cohort_days)) for variant in _with_excluded(variants) if variant.cohort_days
        ]
        tables = [
            np.zeros((len(days), self._layouts[variant.experiment.name].cohort_width), dtype=np.int64)
            for variant, days in variant_days
        ]
        for shard in self.store:
            keys_by_variant = [
                [shard.keys.cohort_sums(variant.number, variant.index, day) for day in days]
                for variant, days in variant_days
            ]
            stored = iter(read_records(shard, list(chain(*keys_by_variant))))
            for keys, total in zip(keys_by_variant, tables, strict=True):
                np.add(total, decode_records(keys, list(islice(stored, len(keys))), total.shape[1]), out=total)
        for (variant, days), table in zip(variant_days, tables, strict=True):
            variant.cohorts = CohortTable(days, table)

    def _read_drifts(self, variants: Sequence[_VariantRecords], until_ms: int) -> Mapping[tuple[int, int], Drifts]:
        """Return the drift of each variant's last complete day from reference days."""
        variant_traffic = []
        for variant in variants:
            sums = live_rated_share_statistic(variant.unit_sums)
            per_student = sums.denominator_sum_of_squares / sums.denominator_total if sums.denominator_total else 1.0
            variant_traffic.append(
                VariantTraffic(variant.experiment, variant.number, variant.index, max(per_student, 1.0))
            )
        return self._drift_reader.read_drifts(variant_traffic, until_ms)

    def _read_coverage(
        self, variants: Sequence[_VariantRecords], run_ids: tuple[str, ...]
    ) -> Mapping[tuple[int, int], ItemCoverage]:
        """Return (experiment number, variant) → coverage, for experiments that count items."""
        newest = _newest_responses_ms(variants)
        coverage: dict[tuple[int, int], ItemCoverage] = {}
        for name, reader in self._coverage_readers.items():
            if newest.get(name):
                coverage |= reader.read_coverage(newest[name], run_ids)
        return coverage

    def _check_active_generation(self) -> None:
        """Raise `StoreUnavailable` if another generation is active, because the records may have been deleted."""
        with translating_errors(self._settings.store):
            active_generation = self.store.client.get(ACTIVE_GENERATION_KEY)
        try:
            self.store.first_shard.check_active_generation(active_generation)
        except UnusableStore as error:
            raise StoreUnavailable(str(error)) from error

    def _read_run_ids(self) -> tuple[str, ...]:
        """Return the run id of each shard's server, which changes with each start."""
        with translating_errors(self._settings.store):
            servers = [shard.execute_on_node(shard.client.info, "server") for shard in self.store]
        return tuple([str(server["run_id"]) for server in servers])

    def _bucket_series(self, variants: Sequence[_VariantRecords]) -> list[BucketSeries]:
        """Return the series of time buckets of each variant and decay."""
        newest = _newest_responses_ms(variants)
        return [
            BucketSeries(
                key=(variant.number, variant.index, decay.name),
                decay=decay,
                layout=self._layouts[variant.experiment.name],
                observed_metrics=ResponseRecord(variant.all_time_sums).counts(self._layouts[variant.experiment.name])
                > 0,
                oldest_chunk=(newest[variant.experiment.name] - variant.experiment.retention_ms)
                // chunk_length_ms(decay),
            )
            for variant in variants
            for decay in variant.experiment.decay
        ]

    def _summarize_variant(
        self,
        variant: _VariantRecords,
        means: Mapping[SeriesKey, Sequence[DecayedMean]] | None,
        live_estimates: Sequence[Estimate],
    ) -> VariantSummary:
        response_record, unit_record = ResponseRecord(variant.all_time_sums), UnitRecord(variant.unit_sums)
        responses, rated = int(response_record.responses), int(response_record.rated)
        layout, excluded = self._layouts[variant.experiment.name], variant.excluded
        metrics = {}
        for index, (count, undefined, total, square) in enumerate(response_record.metric_sums(layout)):
            metric = variant.experiment.metrics[index]
            all_count = responses if metric.is_ranking else count
            metrics[metric.name] = MetricSummary(
                count=count,
                undefined=undefined,
                sum=total,
                mean=total / count if count else None,
                mean_over_all=total / all_count if all_count else None,
                variance=_sample_variance(count, total, square),
                decayed={}
                if means is None
                else {
                    decay.name: means[variant.number, variant.index, decay.name][index]
                    for decay in variant.experiment.decay
                },
                capped=variant.capped_values[metric.name] if metric.is_capped else None,
                design_effect=_design_effect(count, total, square, live_estimates[index].variance),
            )
        return VariantSummary(
            responses=responses,
            rated_responses=rated,
            students=unit_record.students,
            responses_without_user=unit_record.anonymous_responses,
            feedback=_limit_kinds(
                {kind: count for kind, count in variant.kinds.items() if kind[0] != "+"},
                variant.experiment.feedback_kinds,
            ),
            responses_with_feedback=_limit_kinds(
                {kind[1:]: count for kind, count in variant.kinds.items() if kind[0] == "+"},
                variant.experiment.feedback_kinds,
            ),
            last_response_at_ms=variant.last_response_ms,
            last_event_at_ms=variant.last_event_ms,
            metrics=metrics,
            excluded_responses=0 if excluded is None else int(ResponseRecord(excluded.all_time_sums).responses),
            excluded_students=0 if excluded is None else UnitRecord(excluded.unit_sums).students,
            primary_correlation=_primary_correlation(variant, layout, metrics[variant.experiment.primary]),
        )


@contextmanager
def open_store_reader(
    settings: Settings, clock: Clock, *, must_exist: bool = True, experiment: str | None = None, argument: str = ""
) -> Iterator[StoreReader]:
    """Yield a reader of the settings' store, without writing to the store; only of one experiment, if given.

    Raises `UsageError` with `argument` for an unknown experiment. If `must_exist` is true, an embedded store that does
    not exist yet raises an error; see `running_store_server`.
    """
    with (
        running_store_server(settings.store, must_exist=must_exist) as store_settings,
        closing(connect_active_generation(store_settings)) as shards,
    ):
        shown_settings, numbers, declared_set = read_shown_experiments(shards, settings)
        if experiment is not None:
            shown_settings = shown_settings.select_experiment(experiment, argument)
            numbers = {experiment: numbers[experiment]}
        yield StoreReader(shards, shown_settings, numbers, clock, declared_set)


def _with_excluded(variants: Iterable[_VariantRecords]) -> list[_VariantRecords]:
    """Return the records of the variants, each followed by those of the variant's excluded responses."""
    return [
        records
        for variant in variants
        for records in ((variant,) if variant.excluded is None else (variant, variant.excluded))
    ]


def _newest_responses_ms(variants: Sequence[_VariantRecords]) -> dict[str, int]:
    """Return experiment → time of the newest response, 0 before the first response."""
    newest: dict[str, int] = {}
    for variant in variants:
        newest[variant.experiment.name] = max(newest.get(variant.experiment.name, 0), variant.last_response_ms or 0)
    return newest


def _sample_variance(count: int, total: float, square: float) -> float | None:
    """Return the sample variance from a number of values, their sum, and their sum of squares; None below two."""
    return max(square - total * total / count, 0.0) / (count - 1) if count > 1 else None


def _design_effect(count: int, total: float, square: float, clustered_variance: float | None) -> float | None:
    """Return the design effect of a mean from its variance with several responses per student; None if undefined."""
    variance = _sample_variance(count, total, square)
    return (
        None if clustered_variance is None or variance is None else design_effect(clustered_variance, variance / count)
    )


def _primary_correlation(variant: _VariantRecords, layout: RecordLayout, metric: MetricSummary) -> float | None:
    """Return the correlation of the primary metric between two responses of a student; None if unknown."""
    statistic = live_metric_statistic(variant.unit_sums, layout, layout.primary_index, "rated")
    clustered_variance = statistic.estimate().variance
    if clustered_variance is None or not metric.variance:
        return None
    effect = design_effect(clustered_variance, metric.variance / metric.count)
    weighted_responses = statistic.denominator_sum_of_squares / statistic.denominator_total
    return None if effect is None else intra_student_correlation(effect, weighted_responses)


def _responses_per_student(variants: Sequence[_VariantRecords]) -> float:
    """Return Σm²/Σm over the students of all variants, where m is the number of responses of each; at least 1."""
    records = [UnitRecord(variant.unit_sums) for variant in variants]
    responses = sum(record.responses for record in records)
    return max(sum(record.response_squares for record in records) / responses, 1.0) if responses else 1.0


def _limit_kinds(kinds: Mapping[str, int], configured: Collection[str]) -> dict[str, int]:
    """Return kind → count above 0, sorted by kind, of all configured kinds and of the 50 most frequent further kinds.

    Kinds become labels of metrics, and any producer may send new kinds.
    """
    counts = {kind: count for kind, count in kinds.items() if count}
    further_kinds = sorted(counts.keys() - set(configured), key=lambda kind: (-counts[kind], kind))
    return {
        kind: counts[kind] for kind in sorted([*(counts.keys() & set(configured)), *further_kinds[:_MAX_OTHER_KINDS]])
    }
