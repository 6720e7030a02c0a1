"""What the store holds, as a `Summary`: the only reader behind status, HTTP and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, islice

import numpy as np

from monitor.aggregates import (
    Ints,
    Layout,
    bucket_span_ms,
    responses_of,
)
from monitor.clock import DAY_MS, HOUR_MS, Clock
from monitor.config import ExperimentSettings, Settings
from monitor.engine.id_hash import IdHasher
from monitor.errors import StoreOwned, StoreUnavailable, UsageError
from monitor.history import Past
from monitor.inference import Cohorts, Estimate, Skipped, StoredStudents, design_effect, live_rated_shares
from monitor.items.stored import Coverage
from monitor.store.buckets import Buckets, Memory
from monitor.store.chunks import Place
from monitor.store.connection import pairs, unavailable
from monitor.store.coverage import CoverageReader
from monitor.store.days import DayReader, Drifts, Used
from monitor.store.history import History
from monitor.store.items import ItemReader
from monitor.store.keys import LIVE
from monitor.store.moments import at_once, values
from monitor.store.opening import stored_hash_key
from monitor.store.records import positions_of
from monitor.store.redis import RedisStore
from monitor.store.rows import decode_records
from monitor.store.shards import Shards
from monitor.store.skips import SkippedEvents
from monitor.store.traffic import hours_before, read_traffic
from monitor.stretches import shares_at
from monitor.summary import DecayedMean, ExperimentSummary, MetricSummary, Summary, TrafficSummary, VariantSummary
from monitor.verdicts import Judge

_MOST_KINDS = 50


@dataclass(slots=True)
class _Arm:
    """One variant's all-time records, summed over the shards."""

    experiment: ExperimentSettings
    number: int
    variant: int
    name: str
    responses: Ints
    units: Ints
    kinds: Counter[str]
    days: set[int] = field(default_factory=set)
    """UTC days of which there is a record over the students first exposed there."""
    cohorts: Mapping[int, Ints] = field(default_factory=dict)
    """Those records by day, once they are read."""
    latest: dict[str, int | None] = field(default_factory=lambda: {"r": None, "e": None})

    @property
    def last_response_ms(self) -> int | None:
        return self.latest["r"]

    @property
    def last_event_ms(self) -> int | None:
        return self.latest["e"]


@dataclass(slots=True)
class _Log:
    """What is known of all events together, of whichever experiment."""

    newest_ms: int = 0
    lost: int = 0
    records: int = 0
    """Newest records of all partitions: of each, `limits.refused_window` to twice as many."""
    refused: int = 0
    """Of those."""
    skipped: SkippedEvents = field(default_factory=SkippedEvents)
    missing: Mapping[str, Skipped] = field(default_factory=dict)
    """By experiment, what that means for it."""


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
        self._memories: dict[bool, Memory] = {}
        """Of readings of now, and of readings of the past, which would drive out what those need."""

    @property
    def experiments(self) -> Sequence[ExperimentSettings]:
        """The experiments that are read."""
        return self._settings.experiments

    def students(self, experiment: str) -> StoredStudents:
        """Return what verdicts on an experiment follow from, whatever their time. Raises `StoreUnavailable`."""
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
        """Return what the store holds, decayed to `as_of_ms` (default: its newest event). Raises `StoreUnavailable`.

        All-time numbers are those of now, whatever `as_of_ms` says. Verdicts are of the store's newest event, of
        whichever experiment, or of `as_of_ms` if that is earlier: no window is over before its time has been read.
        """
        memory = self._memories.get(as_of_ms is None) or Memory(self._runs())
        while True:
            arms, log = self._arms()
            newest = [arm.last_event_ms for arm in arms if arm.last_event_ms is not None]
            at_ms = (max(newest, default=None) or self._clock()) if as_of_ms is None else as_of_ms
            self._read_cohorts(arms)
            means, found = self._means(arms, memory, at_ms)
            runs = self._runs()
            if runs == memory.runs:
                break
            # A server that was started again may have lost commits: what came of them must not be believed.
            memory = Memory(runs)
        self._memories[as_of_ms is None] = found
        until_ms = (log.newest_ms or at_ms) + 1
        if as_of_ms is not None and as_of_ms < log.newest_ms:
            # The hour that the time cuts through holds what came after it as well.
            until_ms = as_of_ms // HOUR_MS * HOUR_MS
        traffic = self._traffic(arms, until_ms)
        drifts = self._drifts(arms, until_ms)
        judged_ms = min(at_ms, log.newest_ms) if as_of_ms is not None else log.newest_ms
        attention = {
            each.name: self.items(each.name).attention("category")
            for each in self._settings.experiments
            if each.items is not None and as_of_ms is None
        }
        coverage = self._coverages(arms, runs) if as_of_ms is None else {}
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
                    categories=drifts[arm.number, arm.variant].categories,
                    recommended=drifts[arm.number, arm.variant].items,
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
        return Summary(as_of_ms=at_ms, experiments=experiments)

    def _places(self) -> Iterator[tuple[ExperimentSettings, int, int, str]]:
        for experiment in self._settings.experiments:
            for index, name in enumerate(sorted(experiment.variants)):
                yield experiment, self.numbers[experiment.name], index, name

    def _arms(self) -> tuple[list[_Arm], _Log]:
        """Read every variant's all-time records and the log, in one transaction on each shard."""
        places = list(self._places())
        arms = [
            _Arm(
                experiment,
                number,
                variant,
                name,
                np.zeros(self._layouts[experiment.name].response_width, dtype=np.int64),
                np.zeros(self._layouts[experiment.name].unit_width, dtype=np.int64),
                Counter(),
            )
            for experiment, number, variant, name in places
        ]
        log = _Log()
        for shard in self.store:
            self._add(arms, log, shard)
        if log.skipped.events:
            identities = IdHasher(stored_hash_key(self.store, self._settings))
            log.missing = log.skipped.missing(self.experiments, self.numbers, identities)
        return arms, log

    def _add(self, arms: Sequence[_Arm], log: _Log, shard: RedisStore) -> None:
        """Add what one shard holds."""
        keys = shard.keys
        commands: list[Sequence[str | bytes | int]]
        commands = [("HGETALL", each) for each in (keys.latest, keys.lost, keys.skipped, keys.offsets, keys.progress)]
        for arm in arms:
            place = arm.number, arm.variant
            commands += (
                ("GET", keys.responses(*place)),
                ("GET", keys.units(*place)),
                ("HGETALL", keys.kinds(*place)),
                ("ZRANGE", keys.cohorts(*place), 0, -1),
            )
        replies = iter(at_once(shard, commands))
        times, lost, skipped, offsets, progress = map(pairs, islice(replies, 5))
        latest = {name.decode(): int(ms) for name, ms in times.items() if name[:1].isdigit()}
        log.newest_ms = max(log.newest_ms, *latest.values(), 0)
        log.lost += sum(map(int, lost.values()))
        log.skipped.add(skipped, times)
        positions = positions_of(offsets, progress)
        if shard is self.store.first:
            # Every shard knows of all partitions.
            for position in positions.values():
                log.newest_ms = max(log.newest_ms, position.newest_ms)
                log.records += position.refusals.records
                log.refused += position.refusals.refused
        for arm in arms:
            for total, name in ((arm.responses, keys.responses), (arm.units, keys.units)):
                own = decode_records([name(arm.number, arm.variant)], [next(replies)], len(total))
                np.add(total, own[0], out=total)
            arm.kinds.update({kind.decode(): int(count) for kind, count in pairs(next(replies)).items()})
            arm.days.update(map(int, next(replies)))
            for what, at_ms in arm.latest.items():
                arm.latest[what] = max(at_ms or 0, latest.get(f"{arm.number}:{arm.variant}:{what}", 0)) or None

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

    def _traffic(self, arms: Sequence[_Arm], until_ms: int) -> Mapping[tuple[int, int], TrafficSummary]:
        """Return every variant's traffic, over all time and in the hours before `until_ms`."""
        hours = hours_before(until_ms)
        flows = read_traffic(self.store, [(arm.number, arm.variant) for arm in arms], hours)
        since_ms = hours.start * HOUR_MS
        return {
            place: TrafficSummary(each.everything, each.recent, since_ms, until_ms) for place, each in flows.items()
        }

    def _drifts(self, arms: Sequence[_Arm], until_ms: int) -> Mapping[tuple[int, int], Drifts]:
        """Return how each variant's last whole day differs from its references."""
        used = []
        for arm in arms:
            sums = live_rated_shares(arm.units)
            per_student = sums.count_squares / sums.count if sums.count else 1.0
            used.append(Used(arm.experiment, arm.number, arm.variant, max(per_student, 1.0)))
        return self._days.drifts(used, until_ms // DAY_MS)

    def _coverages(self, arms: Sequence[_Arm], runs: tuple[str, ...]) -> Mapping[tuple[int, int], Coverage]:
        """Return how much each variant has shown, where items are counted."""
        newest: dict[str, int] = {}
        for arm in arms:
            newest[arm.experiment.name] = max(newest.get(arm.experiment.name, 0), arm.last_response_ms or 0)
        found: dict[tuple[int, int], Coverage] = {}
        for name, each in self._coverage.items():
            if newest[name]:
                found |= each.coverage(newest[name], runs)
        return found

    def _check_live(self) -> None:
        """Raise `StoreUnavailable` if another generation is live: this one may be gone, and zeros would be wrong."""
        with unavailable(self._settings.store):
            live = self.store.client.get(LIVE)
        try:
            self.store.first.check_live(live)
        except StoreOwned as error:
            raise StoreUnavailable(str(error)) from error

    def _runs(self) -> tuple[str, ...]:
        """Return which start of its server each shard is on."""
        with unavailable(self._settings.store):
            said = [shard.on_own_node(shard.client.info, "server") for shard in self.store]
        return tuple([str(server["run_id"]) for server in said])

    def _means(
        self, arms: Sequence[_Arm], memory: Memory, as_of_ms: int
    ) -> tuple[Mapping[tuple[int, int, str], list[DecayedMean]], Memory]:
        """Return the decayed means of every variant and decay, by metric, and what to remember."""
        newest: dict[int, int] = {}
        for arm in arms:
            newest[arm.number] = max(newest.get(arm.number, 0), arm.last_response_ms or 0)
        places = []
        for arm in arms:
            layout = self._layouts[arm.experiment.name]
            seen = arm.responses[4::8] < arm.responses[2]
            for decay in arm.experiment.decay:
                oldest = (newest[arm.number] - arm.experiment.retention_ms) // bucket_span_ms(decay)
                places.append(Place((arm.number, arm.variant, decay.name), decay, layout, seen, oldest))
        means, found = Buckets(self.store, memory, as_of_ms).means(places)
        return {place.name: own for place, own in zip(places, means, strict=True)}, found

    def _variant(
        self, arm: _Arm, means: Mapping[tuple[int, int, str], list[DecayedMean]], live: Sequence[Estimate]
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
            feedback=_bounded({kind: count for kind, count in arm.kinds.items() if kind[0] != "+"}, arm.experiment),
            responses_with_feedback=_bounded(
                {kind[1:]: count for kind, count in arm.kinds.items() if kind[0] == "+"}, arm.experiment
            ),
            last_response_at_ms=arm.last_response_ms,
            last_event_at_ms=arm.last_event_ms,
            metrics=metrics,
        )


def _students(arms: Sequence[_Arm], log: _Log) -> StoredStudents:
    """Return what is known of the students of an experiment's variants."""
    return StoredStudents(
        units={arm.name: arm.units for arm in arms},
        cohorts={arm.name: arm.cohorts for arm in arms},
        newest_ms=max((arm.last_event_ms for arm in arms if arm.last_event_ms is not None), default=None),
        lost_events=log.lost,
        refused_share=log.refused / log.records if log.records else None,
        skipped=log.missing.get(arms[0].experiment.name),
    )


def _bounded(kinds: Mapping[str, int], experiment: ExperimentSettings) -> dict[str, int]:
    """Return the kinds that have any, sorted: the graded ones and the most frequent of the others, at most 50 of those.

    Kinds become labels, and anybody may write a new one.
    """
    known = {kind: count for kind, count in kinds.items() if count}
    others = sorted((kind for kind in known if kind not in experiment.grades), key=lambda kind: (-known[kind], kind))
    shown = {kind for kind in known if kind in experiment.grades} | set(others[:_MOST_KINDS])
    return {kind: known[kind] for kind in sorted(shown)}
