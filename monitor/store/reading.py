"""What the store holds, as a `Summary`: the only reader behind status, HTTP and Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from monitor.aggregates import (
    BUCKETS_PER_CHUNK,
    Ints,
    Layout,
    Series,
    bucket_span_ms,
    chunks_in_reach,
    decayed,
    oldest_chunk,
    responses_of,
)
from monitor.clock import Clock
from monitor.config import DecaySpec, ExperimentSettings, Settings
from monitor.errors import StoreOwned, StoreUnavailable
from monitor.history import Past
from monitor.inference import design_effect, live_sums
from monitor.store.connection import unavailable
from monitor.store.history import History
from monitor.store.keys import LIVE
from monitor.store.records import positions_of
from monitor.store.redis import RedisStore
from monitor.store.rows import decode_record
from monitor.store.shards import Shards
from monitor.summary import DecayedMean, ExperimentSummary, MetricSummary, Summary, VariantSummary
from monitor.verdicts import StoredStudents, judge, shares_at

_MOST_KINDS = 50
_ABSENT = DecayedMean(None, None, None, None, None)


@dataclass(frozen=True, slots=True)
class _Arm:
    """One variant's all-time records, summed over the shards."""

    experiment: ExperimentSettings
    number: int
    variant: int
    name: str
    responses: Ints
    units: Ints
    kinds: Counter[str]
    chunks: Mapping[str, set[int]]
    cohorts: dict[int, Ints] = field(default_factory=dict)
    """UTC day → record over the students first exposed there."""
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


class Reader:
    """Reads summaries; safe for several threads."""

    def __init__(self, store: Shards, settings: Settings, numbers: Mapping[str, int], clock: Clock) -> None:
        self.store = store
        self._settings = settings
        self.numbers = numbers
        self._clock = clock
        self._layouts = {each.name: Layout.of(each) for each in settings.experiments}

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

    def history(self, experiment: str) -> Past:
        """Return an experiment's snapshots, oldest first. Raises `StoreUnavailable`."""
        return History(self.store).read(self.numbers[experiment])

    def summary(self, as_of_ms: int | None = None) -> Summary:
        """Return what the store holds, decayed to `as_of_ms` (default: its newest event). Raises `StoreUnavailable`.

        All-time numbers are those of now, whatever `as_of_ms` says. Verdicts are of the store's newest event, of
        whichever experiment, or of `as_of_ms` if that is earlier: no window is over before its time has been read.
        """
        arms, log = self._arms()
        judged_ms = log.newest_ms if as_of_ms is None else min(as_of_ms, log.newest_ms)
        if as_of_ms is None:
            newest = [arm.last_event_ms for arm in arms if arm.last_event_ms is not None]
            as_of_ms = max(newest, default=None) or self._clock()
        self._read_cohorts(arms)
        series = self._series(arms, as_of_ms)
        self._check_live()
        experiments = {}
        for experiment in self._settings.experiments:
            own = [arm for arm in arms if arm.experiment is experiment]
            by_name = {arm.name: self._variant(arm, series, as_of_ms) for arm in own}
            experiments[experiment.name] = ExperimentSummary(
                name=experiment.name,
                control=experiment.control,
                primary=experiment.primary,
                crossovers=sum(int(arm.units[1]) for arm in own),
                variants={name: by_name[name] for name in experiment.variants},
                judgement=judge(experiment, _students(own, log), judged_ms),
                starts_at_ms=experiment.starts_at_ms,
                intended_shares=shares_at(experiment, judged_ms),
            )
        return Summary(as_of_ms=as_of_ms, experiments=experiments)

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
                {decay.name: set() for decay in experiment.decay},
            )
            for experiment, number, variant, name in places
        ]
        with unavailable(self._settings.store):
            log = _Log()
            for shard in self.store:
                self._add(arms, log, shard)
        return arms, log

    def _add(self, arms: Sequence[_Arm], log: _Log, shard: RedisStore) -> None:
        """Add what one shard holds."""
        keys = shard.keys
        pipeline = shard.client.pipeline(transaction=True)
        pipeline.hgetall(keys.latest)
        pipeline.hgetall(keys.lost)
        pipeline.hgetall(keys.offsets)
        pipeline.hgetall(keys.progress)
        for arm in arms:
            pipeline.get(keys.responses(arm.number, arm.variant))
            pipeline.get(keys.units(arm.number, arm.variant))
            pipeline.hgetall(keys.kinds(arm.number, arm.variant))
            pipeline.hkeys(keys.cohorts(arm.number, arm.variant))
            for decay in arm.experiment.decay:
                pipeline.hkeys(keys.chunks(arm.number, arm.variant, decay.name))
        replies = iter(pipeline.execute())
        latest = {name.decode(): int(ms) for name, ms in next(replies).items()}
        log.newest_ms = max(log.newest_ms, *latest.values(), 0)
        log.lost += sum(map(int, next(replies).values()))
        positions = positions_of(next(replies), next(replies))
        if shard is self.store.first:
            # Every shard knows of all partitions.
            for position in positions.values():
                log.newest_ms = max(log.newest_ms, position.newest_ms)
                log.records += position.refusals.records
                log.refused += position.refusals.refused
        for arm in arms:
            _add_record(arm.responses, keys.responses(arm.number, arm.variant), next(replies))
            _add_record(arm.units, keys.units(arm.number, arm.variant), next(replies))
            arm.kinds.update({kind.decode(): int(count) for kind, count in next(replies).items()})
            for day in map(int, next(replies)):
                arm.cohorts.setdefault(day, np.zeros(self._layouts[arm.experiment.name].cohort_width, dtype=np.int64))
            for decay in arm.experiment.decay:
                arm.chunks[decay.name].update(map(int, next(replies)))
            for what, at_ms in arm.latest.items():
                arm.latest[what] = max(at_ms or 0, latest.get(f"{arm.number}:{arm.variant}:{what}", 0)) or None

    def _read_cohorts(self, arms: Sequence[_Arm]) -> None:
        """Read the records of all cohort days, in one transaction on each shard."""
        wanted = [arm for arm in arms if arm.cohorts]
        with unavailable(self._settings.store):
            for shard in self.store:
                pipeline = shard.client.pipeline(transaction=True)
                for arm in wanted:
                    # The method of this name is not for clusters, as it does not know that all are in one slot.
                    names = [shard.keys.cohort(arm.number, arm.variant, day) for day in arm.cohorts]
                    pipeline.execute_command("MGET", *names)
                for arm, stored in zip(wanted, pipeline.execute(), strict=True):
                    for day, part in zip(arm.cohorts, stored, strict=True):
                        _add_record(arm.cohorts[day], shard.keys.cohort(arm.number, arm.variant, day), part)

    def _check_live(self) -> None:
        """Raise `StoreUnavailable` if another generation is live: this one may be gone, and zeros would be wrong."""
        with unavailable(self._settings.store):
            live = self.store.client.get(LIVE)
        try:
            self.store.first.check_live(live)
        except StoreOwned as error:
            raise StoreUnavailable(str(error)) from error

    def _series(self, arms: Sequence[_Arm], as_of_ms: int) -> Mapping[tuple[int, int, str], Series | None]:
        """Read the time buckets that matter at `as_of_ms`, of all variants."""
        wanted: list[tuple[_Arm, DecaySpec, list[int]]] = []
        for arm in arms:
            newest = max(
                (each.last_response_ms for each in arms if each.number == arm.number and each.last_response_ms),
                default=0,
            )
            for decay in arm.experiment.decay:
                oldest = oldest_chunk(newest, arm.experiment.retention_ms, bucket_span_ms(decay))
                wanted.append((arm, decay, chunks_in_reach(sorted(arm.chunks[decay.name]), as_of_ms, decay, oldest)))
        tables = self._tables(wanted)
        series: dict[tuple[int, int, str], Series | None] = {}
        for (arm, decay, chunks), table in zip(wanted, tables, strict=True):
            read = self._read(arm, decay, chunks, table)
            if decay.half_life_ms is not None:
                read = self._reach_back(arm, decay, chunks, read, as_of_ms)
            series[arm.number, arm.variant, decay.name] = read
        return series

    def _tables(self, wanted: Sequence[tuple[_Arm, DecaySpec, list[int]]]) -> list[Ints]:
        """Return the records of the chunks' buckets, summed over the shards; each is read in one transaction."""
        widths = [self._layouts[arm.experiment.name].response_width for arm, _, _ in wanted]
        tables = [
            np.zeros((len(chunks) * BUCKETS_PER_CHUNK, width), dtype=np.int64)
            for (_, _, chunks), width in zip(wanted, widths, strict=True)
        ]
        with unavailable(self._settings.store):
            for shard in self.store:
                pipeline = shard.client.pipeline(transaction=True)
                for arm, decay, chunks in wanted:
                    if chunks:
                        # The method of this name is not for clusters, as it does not know that all are in one slot.
                        names = [shard.keys.chunk(arm.number, arm.variant, decay.name, chunk) for chunk in chunks]
                        pipeline.execute_command("MGET", *names)
                replies = iter(pipeline.execute())
                for (arm, decay, chunks), table in zip(wanted, tables, strict=True):
                    for place, stored in enumerate(next(replies) if chunks else ()):
                        part = table[place * BUCKETS_PER_CHUNK : (place + 1) * BUCKETS_PER_CHUNK].reshape(-1)
                        _add_record(part, shard.keys.chunk(arm.number, arm.variant, decay.name, chunks[place]), stored)
        return tables

    def _read(self, arm: _Arm, decay: DecaySpec, chunks: Sequence[int], table: Ints) -> Series | None:
        if not chunks:
            return None
        numbers = np.concatenate([np.arange(BUCKETS_PER_CHUNK) + chunk * BUCKETS_PER_CHUNK for chunk in chunks])
        filled = table[:, 0] > 0
        if not filled.any():
            return None
        return Series.read(table[filled], numbers[filled], bucket_span_ms(decay), self._layouts[arm.experiment.name])

    def _reach_back(
        self, arm: _Arm, decay: DecaySpec, chunks: list[int], read: Series | None, as_of_ms: int
    ) -> Series | None:
        """Read further back where a metric's newest observation lies far behind the newest response."""
        stored = sorted(arm.chunks[decay.name])
        span_ms = bucket_span_ms(decay)
        ever = [bool(arm.responses[2] - undefined) for undefined in arm.responses[4::8]]
        while any(ever) and chunks and chunks[0] > stored[0]:
            anchors = [None if read is None else read.newest_defined_ms(metric) for metric in range(len(ever))]
            missing = any(seen and at_ms is None for seen, at_ms in zip(ever, anchors, strict=True))
            anchor = stored[stored.index(chunks[0]) - 1]
            if not missing:
                anchor = min(int(at_ms) // span_ms for at_ms in anchors if at_ms is not None)
            wanted = chunks_in_reach(stored, as_of_ms, decay, stored[0], anchor)
            if len(wanted) <= len(chunks):
                break
            chunks = wanted
            (table,) = self._tables([(arm, decay, chunks)])
            read = self._read(arm, decay, chunks, table)
        return read

    def _variant(
        self, arm: _Arm, series: Mapping[tuple[int, int, str], Series | None], as_of_ms: int
    ) -> VariantSummary:
        responses, rated = int(arm.responses[0]), int(arm.responses[2])
        layout = self._layouts[arm.experiment.name]
        metrics = {}
        for index, (undefined, total, square) in enumerate(responses_of(arm.responses, layout)):
            count = rated - undefined
            variance = max(square - total * total / count, 0.0) / (count - 1) if count > 1 else None
            clustered = live_sums(arm.units, layout, index, "rated").estimate().variance
            metrics[arm.experiment.metrics[index].name] = MetricSummary(
                count=count,
                undefined=undefined,
                sum=total,
                mean=total / count if count else None,
                mean_over_all=total / responses if responses else None,
                variance=variance,
                decayed={
                    decay.name: _decayed(series[arm.number, arm.variant, decay.name], index, as_of_ms, decay)
                    for decay in arm.experiment.decay
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
    )


def _bounded(kinds: Mapping[str, int], experiment: ExperimentSettings) -> dict[str, int]:
    """Return the kinds that have any, sorted: the graded ones and the most frequent of the others, at most 50 of those.

    Kinds become labels, and anybody may write a new one.
    """
    known = {kind: count for kind, count in kinds.items() if count}
    others = sorted((kind for kind in known if kind not in experiment.grades), key=lambda kind: (-known[kind], kind))
    shown = {kind for kind in known if kind in experiment.grades} | set(others[:_MOST_KINDS])
    return {kind: known[kind] for kind in sorted(shown)}


def _add_record(total: Ints, key: bytes, stored: bytes | None) -> None:
    """Add what a record holds; its end was never written if that is zero."""
    found = decode_record(key, stored)
    total[: len(found)] += found


def _decayed(series: Series | None, metric: int, as_of_ms: int, decay: DecaySpec) -> DecayedMean:
    """Return one metric's decayed mean over rated and over all responses."""
    if series is None:
        return _ABSENT
    rated = decayed(series.rated(metric), as_of_ms, decay)
    everything = decayed(series.everything(metric), as_of_ms, decay)
    return DecayedMean(
        mean=rated.mean,
        effective_count=rated.effective_count if rated.weight else None,
        mean_over_all=everything.mean,
        effective_count_over_all=everything.effective_count if everything.weight else None,
        standard_error=rated.standard_error,
    )
