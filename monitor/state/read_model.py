"""Summaries of the store: the only reader behind status, HTTP and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from monitor.analysis import (
    Coverage,
    DecayedMean,
    ExperimentSummary,
    Judge,
    MetricSummary,
    Past,
    Summary,
    VariantSummary,
    shares_at,
)
from monitor.clock import DAY_MS, HOUR_MS, Clock
from monitor.config import ExperimentSettings, Settings
from monitor.engine import IdHasher
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.metrics import Ints, Layout, bucket_span_ms, responses_of
from monitor.state.item_coverage import CoverageReader
from monitor.state.item_reader import ItemReader
from monitor.state.keys import LIVE
from monitor.state.record_reader import decode_records, transaction, values
from monitor.state.redis_connection import pairs, unavailable
from monitor.state.redis_store import RedisStore
from monitor.state.shards import Shards
from monitor.state.skip_counts import SkippedEvents
from monitor.state.snapshot_log import History
from monitor.state.store_metadata import stored_hash_key
from monitor.state.store_records import decode_positions
from monitor.state.time_buckets import BucketReading, Cache, Name, Series
from monitor.state.traffic_reader import DayReader, Drifts, UsedVariant, read_traffic
from monitor.stats import Cohorts, Estimate, Skipped, StoredStudents, design_effect, live_rated_shares

_OTHER_KINDS = 50


@dataclass(slots=True)
class _Arm:
    """One variant's all-time records, summed over the shards."""

    experiment: ExperimentSettings
    number: int
    variant: int
    name: str
    responses: Ints
    units: Ints
    kinds: Counter[str] = field(default_factory=Counter)
    days: set[int] = field(default_factory=set)
    """UTC days with a record over the students who were first exposed on that day."""
    cohorts: Mapping[int, Ints] = field(default_factory=dict)
    """Those records by day, once they are read."""
    last_response_ms: int | None = None
    last_event_ms: int | None = None


@dataclass(slots=True)
class _Log:
    """Counts over the events of all experiments."""

    newest_ms: int = 0
    lost: int = 0
    records: int = 0
    """Newest records of all partitions: of each, `limits.refused_window` to twice as many."""
    refused: int = 0
    """Of those."""
    skipped: SkippedEvents = field(default_factory=SkippedEvents)
    unmatched: Counter[str] = field(default_factory=Counter)
    """Reactions that expired without their response, by kind of feedback."""
    missing: Mapping[str, Skipped] = field(default_factory=dict)
    """Skipped events that may be missing, by experiment."""


class Reader:
    """Reads summaries; safe for several threads."""

    def __init__(self, store: Shards, settings: Settings, numbers: Mapping[str, int], clock: Clock) -> None:
        self.store = store
        self._settings = settings
        self.numbers = numbers
        self._clock = clock
        self._layouts = {each.name: Layout.of(each) for each in settings.experiments}
        self._judges = {each.name: Judge(each) for each in settings.experiments}
        self._days = DayReader(store, settings)
        self._coverage = {
            each.name: CoverageReader(store, each, numbers[each.name])
            for each in settings.experiments
            if each.items is not None
        }
        self._caches: dict[bool, Cache] = {}
        """Of readings of the present, and of readings of the past (True), which need other chunks."""

    @property
    def experiments(self) -> Sequence[ExperimentSettings]:
        return self._settings.experiments

    def students(self, experiment: str) -> StoredStudents:
        """Return the sums over an experiment's students that verdicts of any time need. Raises `StoreUnavailable`."""
        arms, log = self._arms()
        own = [arm for arm in arms if arm.experiment.name == experiment]
        self._read_cohorts(own)
        self._check_live()
        return _students(own, log)

    def items(self, experiment: str) -> ItemReader:
        """Return the reader of an experiment's items; raises `UsageError` where they are not counted."""
        (own,) = (each for each in self.experiments if each.name == experiment)
        if own.items is None:
            raise UsageError(f'{experiment}: items are not counted; experiments.{experiment}.items = "30d" does so')
        return ItemReader(self.store, own, self.numbers[experiment])

    def history(self, experiment: str) -> Past:
        """Return an experiment's snapshots, oldest first. Raises `StoreUnavailable`."""
        return History(self.store).read(self.numbers[experiment])

    def summary(self, as_of_ms: int | None = None) -> Summary:
        """Return a summary, decayed to `as_of_ms` (default: the newest event). Raises `StoreUnavailable`.

        All-time numbers are those of now, whatever `as_of_ms` says. Verdicts are of the store's newest event, of
        whichever experiment, or of `as_of_ms` if that is earlier: no window is over before its time has been read.
        """
        past = as_of_ms is not None
        cache = self._caches.get(past) or Cache(self._runs())
        while True:
            arms, log = self._arms()
            newest = [arm.last_event_ms for arm in arms if arm.last_event_ms is not None]
            at_ms = (max(newest, default=None) or self._clock()) if as_of_ms is None else as_of_ms
            self._read_cohorts(arms)
            series = self._series(arms)
            means, refreshed = BucketReading(self.store, cache, at_ms, past=past).means(series)
            runs = self._runs()
            if runs == cache.runs:
                break
            # A server that was started again may have lost commits: everything is read again.
            cache = Cache(runs)
        self._caches[past] = refreshed
        until_ms = (log.newest_ms or at_ms) + 1
        if as_of_ms is not None and as_of_ms < log.newest_ms:
            # The hour that the time cuts through holds what came after it as well.
            until_ms = as_of_ms // HOUR_MS * HOUR_MS
        traffic = read_traffic(self.store, [(arm.number, arm.variant) for arm in arms], until_ms)
        drifts = self._drifts(arms, until_ms)
        judged_ms = min(at_ms, log.newest_ms) if as_of_ms is not None else log.newest_ms
        attention = {
            each.name: self.items(each.name).attention("category")
            for each in self.experiments
            if each.items is not None and not past
        }
        coverage = {} if past else self._coverages(arms, runs)
        self._check_live()
        experiments = {}
        for experiment in self._settings.experiments:
            own = [arm for arm in arms if arm.experiment is experiment]
            students = _students(own, log)
            live = students.live(self._layouts[experiment.name], "rated")
            by_name = {
                arm.name: replace(
                    self._variant(arm, means, live[arm.name]),
                    traffic=traffic[arm.number, arm.variant],
                    categories=drifts[arm.number, arm.variant][0],
                    recommended=drifts[arm.number, arm.variant][1],
                    coverage=coverage.get((arm.number, arm.variant)),
                )
                for arm in own
            }
            experiments[experiment.name] = ExperimentSummary(
                name=experiment.name,
                control=experiment.control,
                primary=experiment.primary,
                crossovers=sum(int(arm.units[1]) for arm in own),
                variants={name: by_name[name] for name in experiment.variants},
                judgement=self._judges[experiment.name].judge(students, judged_ms),
                starts_at_ms=experiment.starts_at_ms,
                intended_shares=shares_at(experiment, judged_ms),
                attention=attention.get(experiment.name),
            )
        configured = frozenset[str]().union(*(each.feedback_kinds for each in self._settings.experiments))
        unmatched = dict.fromkeys(configured, 0) | _limited(log.unmatched, configured)
        return Summary(as_of_ms=at_ms, experiments=experiments, unmatched_feedback=dict(sorted(unmatched.items())))

    def _arms(self) -> tuple[list[_Arm], _Log]:
        """Read every variant's all-time records and the log, in one transaction on each shard."""
        arms = []
        for experiment in self.experiments:
            layout, number = self._layouts[experiment.name], self.numbers[experiment.name]
            for index, name in enumerate(sorted(experiment.variants)):
                responses, units = (np.zeros(width, np.int64) for width in (layout.response_width, layout.unit_width))
                arms.append(_Arm(experiment, number, index, name, responses, units))
        log = _Log()
        for shard in self.store:
            self._add(arms, log, shard)
        if log.skipped.events:
            identities = IdHasher(stored_hash_key(self.store, self._settings))
            log.missing = log.skipped.missing(self.experiments, self.numbers, identities)
        return arms, log

    def _add(self, arms: Sequence[_Arm], log: _Log, shard: RedisStore) -> None:
        keys = shard.keys
        commands: list[Sequence[str | bytes | int]]
        commands = [
            ("HGETALL", each) for each in (keys.latest, keys.lost, keys.skipped, keys.unmatched, keys.positions)
        ]
        for arm in arms:
            place = arm.number, arm.variant
            commands += (
                ("GET", keys.responses(*place)),
                ("GET", keys.units(*place)),
                ("HGETALL", keys.kinds(*place)),
                ("ZRANGE", keys.cohorts(*place), 0, -1),
            )
        replies = iter(transaction(shard, commands))
        times, lost, skipped, unmatched, positions = map(pairs, islice(replies, 5))
        latest = {name.decode(): int(ms) for name, ms in times.items() if name[:1].isdigit()}
        log.newest_ms = max(log.newest_ms, *latest.values(), 0)
        log.lost += sum(map(int, lost.values()))
        log.skipped.add(skipped, times)
        log.unmatched.update({kind.decode(): int(reactions) for kind, reactions in unmatched.items()})
        for position in decode_positions(positions).values():
            log.newest_ms = max(log.newest_ms, position.newest_ms)
            log.records += position.refusals.records
            log.refused += position.refusals.refused
        for arm in arms:
            for total, name in ((arm.responses, keys.responses), (arm.units, keys.units)):
                own = decode_records([name(arm.number, arm.variant)], [next(replies)], len(total))
                np.add(total, own[0], out=total)
            arm.kinds.update({kind.decode(): int(count) for kind, count in pairs(next(replies)).items()})
            arm.days.update(map(int, next(replies)))
            response_ms, event_ms = (latest.get(f"{arm.number}:{arm.variant}:{what}", 0) for what in "re")
            arm.last_response_ms = max(arm.last_response_ms or 0, response_ms) or None
            arm.last_event_ms = max(arm.last_event_ms or 0, event_ms) or None

    def _read_cohorts(self, arms: Sequence[_Arm]) -> None:
        """Read the records of all cohort days, of one moment on each shard."""
        wanted = [(arm, sorted(arm.days)) for arm in arms if arm.days]
        widths = [self._layouts[arm.experiment.name].cohort_width for arm, _ in wanted]
        tables = [np.zeros((len(days), width), dtype=np.int64) for (_, days), width in zip(wanted, widths, strict=True)]
        for shard in self.store:
            names = [[shard.keys.cohort(arm.number, arm.variant, day) for day in days] for arm, days in wanted]
            stored = iter(values(shard, list(chain(*names))))
            for own, total in zip(names, tables, strict=True):
                np.add(total, decode_records(own, list(islice(stored, len(own))), total.shape[1]), out=total)
        for (arm, days), table in zip(wanted, tables, strict=True):
            arm.cohorts = Cohorts(days, table)

    def _drifts(self, arms: Sequence[_Arm], until_ms: int) -> Mapping[tuple[int, int], Drifts]:
        """Return how each variant's last whole day differs from its references."""
        variants = []
        for arm in arms:
            sums = live_rated_shares(arm.units)
            per_student = sums.count_squares / sums.count if sums.count else 1.0
            variants.append(UsedVariant(arm.experiment, arm.number, arm.variant, max(per_student, 1.0)))
        return self._days.drifts(variants, until_ms // DAY_MS)

    def _coverages(self, arms: Sequence[_Arm], runs: tuple[str, ...]) -> Mapping[tuple[int, int], Coverage]:
        """Return how much each variant has shown, where items are counted."""
        newest = _newest_responses_ms(arms)
        coverage: dict[tuple[int, int], Coverage] = {}
        for name, reader in self._coverage.items():
            if newest[name]:
                coverage |= reader.coverage(newest[name], runs)
        return coverage

    def _check_live(self) -> None:
        """Raise `StoreUnavailable` if another generation is live: this one may be gone, and zeros would be wrong."""
        with unavailable(self._settings.store):
            live = self.store.client.get(LIVE)
        try:
            self.store.first.check_live(live)
        except StoreOwned as error:
            raise StoreUnavailable(str(error)) from error

    def _runs(self) -> tuple[str, ...]:
        """Return the run id of each shard's server, which changes with each start."""
        with unavailable(self._settings.store):
            servers = [shard.on_own_node(shard.client.info, "server") for shard in self.store]
        return tuple([str(server["run_id"]) for server in servers])

    def _series(self, arms: Sequence[_Arm]) -> list[Series]:
        """Return the time buckets of every variant and decay."""
        newest = _newest_responses_ms(arms)
        return [
            Series(
                name=(arm.number, arm.variant, decay.name),
                decay=decay,
                layout=self._layouts[arm.experiment.name],
                observed=arm.responses[4::8] < arm.responses[2],
                oldest=(newest[arm.experiment.name] - arm.experiment.retention_ms) // bucket_span_ms(decay),
            )
            for arm in arms
            for decay in arm.experiment.decay
        ]

    def _variant(
        self, arm: _Arm, means: Mapping[Name, Sequence[DecayedMean]], live: Sequence[Estimate]
    ) -> VariantSummary:
        responses, rated = int(arm.responses[0]), int(arm.responses[2])
        layout = self._layouts[arm.experiment.name]
        metrics = {}
        for index, (undefined, total, square) in enumerate(responses_of(arm.responses, layout)):
            count = rated - undefined
            variance = max(square - total * total / count, 0.0) / (count - 1) if count > 1 else None
            clustered = live[index].variance
            metrics[arm.experiment.metrics[index].name] = MetricSummary(
                count=count,
                undefined=undefined,
                sum=total,
                mean=total / count if count else None,
                mean_over_all=total / responses if responses else None,
                variance=variance,
                decayed={
                    decay.name: means[arm.number, arm.variant, decay.name][index] for decay in arm.experiment.decay
                },
                design_effect=None
                if clustered is None or variance is None
                else design_effect(clustered, variance / count),
            )
        return VariantSummary(
            responses=responses,
            rated_responses=rated,
            students=int(arm.units[0] + arm.units[2]),
            responses_without_user=int(arm.units[2]),
            feedback=_limited(
                {kind: count for kind, count in arm.kinds.items() if kind[0] != "+"}, arm.experiment.grades
            ),
            responses_with_feedback=_limited(
                {kind[1:]: count for kind, count in arm.kinds.items() if kind[0] == "+"}, arm.experiment.grades
            ),
            last_response_at_ms=arm.last_response_ms,
            last_event_at_ms=arm.last_event_ms,
            metrics=metrics,
        )


def _newest_responses_ms(arms: Sequence[_Arm]) -> dict[str, int]:
    """Return experiment → the time of its newest response, 0 before the first."""
    newest: dict[str, int] = {}
    for arm in arms:
        newest[arm.experiment.name] = max(newest.get(arm.experiment.name, 0), arm.last_response_ms or 0)
    return newest


def _students(arms: Sequence[_Arm], log: _Log) -> StoredStudents:
    """Return the sums over the students of an experiment's variants."""
    return StoredStudents(
        units={arm.name: arm.units for arm in arms},
        cohorts={arm.name: arm.cohorts for arm in arms},
        newest_ms=max((arm.last_event_ms for arm in arms if arm.last_event_ms is not None), default=None),
        lost_events=log.lost,
        refused_share=log.refused / log.records if log.records else None,
        skipped=log.missing.get(arms[0].experiment.name),
    )


def _limited(kinds: Mapping[str, int], configured: Collection[str]) -> dict[str, int]:
    """Return the counts above zero by kind, sorted: of all configured kinds, and of the 50 most frequent others.

    Kinds become labels, and any producer may write a new one.
    """
    counts = {kind: count for kind, count in kinds.items() if count}
    others = sorted(counts.keys() - set(configured), key=lambda kind: (-counts[kind], kind))
    return {kind: counts[kind] for kind in sorted([*(counts.keys() & set(configured)), *others[:_OTHER_KINDS]])}
