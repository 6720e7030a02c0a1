"""The data of an experiment's report, read from the store: the current analysis and the history of analyses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from monitor.analysis import (
    Analysis,
    Analyzer,
    DayLog,
    DecayedMeanSnapshot,
    ExperimentSnapshot,
    ExperimentSummary,
    SnapshotHistory,
    StudentSplit,
    TriageEntry,
    compute_student_splits,
    count_students_until,
    find_closing_times,
    find_entry_days,
    format_timestamp,
    list_verdict_history,
    take_snapshot,
)
from monitor.clock import HOUR_MS
from monitor.config import DecaySpec, ExperimentSettings
from monitor.days import DayCalendar
from monitor.errors import UsageError
from monitor.export.day_table import read_day_log
from monitor.export.presentation import meets_min_students
from monitor.state import StoreReader
from monitor.stats import GuardrailResult, StoredStudentSums, VariantComparison

_MAX_STEPS: Final = 60
"""Earlier steps of the confidence sequences; 60 take 0.2 s per treatment. Longer experiments have fewer steps."""
_MAX_RECOMPUTED_TIMES: Final = 30
"""Times for which decayed means are recomputed from the time buckets; 30 take 0.05 s."""
_MAX_PAST_RESULTS_AGE_S: Final = 600.0
"""Past results change only by late events, so a result of ten minutes ago may be used again."""
_MAX_SNAPSHOT_TIMES: Final = 600
"""Snapshots whose decayed means are drawn; a chart has fewer pixels than that for its points."""
_MAX_AGE_HALF_LIVES: Final = 10
"""Responses older than this have less than a thousandth of the weight of a new one."""


@dataclass(frozen=True, slots=True)
class DecayedMeans:
    """The decayed means of the primary metric at a time."""

    at_ms: int
    from_snapshot: bool
    """Whether a worker stored the means at that time. Otherwise they are recomputed from the time buckets."""
    means: Mapping[str, Mapping[str, DecayedMeanSnapshot]]
    """Decay → variant → mean. Variants with too few students are left out."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """The data of an experiment's report, up to the newest event in the store, or as of a past time."""

    settings: ExperimentSettings
    summary: ExperimentSummary
    as_of_ms: int
    """Time of the newest event, or the past time."""
    latest_analysis: Analysis
    interim_analyses: tuple[Analysis, ...]
    """One per day on which exposure windows ended, recomputed from the current data; the last is `latest_analysis`."""
    daily_splits: tuple[StudentSplit, ...]
    """Students per variant and the test of their split (SRM), by day."""
    decayed_means: tuple[DecayedMeans, ...]
    snapshots: SnapshotHistory
    """Snapshots from the first entry day on whose primary metric is the current one."""
    min_students: int
    """Means over fewer students than this are not displayed."""
    day_log: DayLog | None = None
    """The days with remarks; None if they were not read."""
    is_past: bool = False
    """Whether the report is as of a past time. Counts over all time in `summary` are then later than `as_of_ms`."""

    def is_displayed(self, comparison: VariantComparison | GuardrailResult) -> bool:
        """Return whether both variants of a comparison have enough students to display the comparison."""
        return meets_min_students(comparison, self.min_students)

    def was_displayed(self, treatment: str, at_ms: int) -> bool:
        """Return whether the primary comparison was displayed at the last interim analysis until `at_ms`.

        With `min_students` of at most 1 every comparison is displayed.
        """
        last_analysis = next(
            (analysis for analysis in reversed(self.interim_analyses) if analysis.as_of_ms <= at_ms), None
        )
        return self.min_students <= 1 or (
            last_analysis is not None and self.is_displayed(last_analysis.verdicts[treatment].primary)
        )


MeansByVariant = Mapping[str, Mapping[str, DecayedMeanSnapshot]]
"""Variant → decay → mean."""


@dataclass(frozen=True, slots=True)
class PastResults:
    """Results of an experiment as of past times, which only late events change."""

    analyses: dict[int, Analysis] = field(default_factory=dict)
    """Time of an interim analysis → analysis."""
    means: dict[int, MeansByVariant] = field(default_factory=dict)
    """Time → means that were recomputed from the time buckets."""


@dataclass(frozen=True, slots=True)
class _ExperimentReader:
    """A reader of one experiment, with its past results."""

    store_reader: StoreReader
    """The reader of all experiments from which `reader` was selected."""
    reader: StoreReader
    past: PastResults
    since_s: float
    """Monotonic time at which the past results began to be collected."""


class ReportReader:
    """Reads the data of experiments' reports; past results are used again for ten minutes.

    `current_reader` returns the reader of the experiments that are declared at the time of a request. Several threads
    may use the same report reader.
    """

    def __init__(
        self,
        current_reader: Callable[[], StoreReader],
        min_students: int,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._current_reader = current_reader
        self._min_students = min_students
        self._monotonic_s = monotonic_s
        self._readers: dict[str, _ExperimentReader] = {}

    def day_calendar(self, experiment: str) -> DayCalendar:
        """Return the days of an experiment. Raises `UnknownExperiment`."""
        return self._current_reader().find_experiment(experiment).calendar

    def read_items_for_review(self, experiment: str) -> Sequence[TriageEntry]:
        """Return an experiment's items with bad responses, most urgent first.

        Raises `UsageError` if the experiment counts no items, and `StoreUnavailable`.
        """
        return self._current_reader().item_reader(experiment).read_review_ranking("item")

    def read(self, experiment: str, as_of_ms: int | None = None) -> ReportData:
        """Return the data of an experiment's report; `as_of_ms` is that of `read_report_data`.

        Raises `UnknownExperiment`, `UsageError` and `StoreUnavailable`.
        """
        store_reader, now_s = self._current_reader(), self._monotonic_s()
        settings = store_reader.find_experiment(experiment)
        # Readers of earlier configurations are not used again.
        self._readers = {
            name: reader for name, reader in list(self._readers.items()) if reader.store_reader is store_reader
        }
        reader = self._readers.get(experiment)
        if reader is None:
            reader = _ExperimentReader(store_reader, store_reader.select_experiment(experiment), PastResults(), now_s)
        elif now_s - reader.since_s > _MAX_PAST_RESULTS_AGE_S:
            reader = _ExperimentReader(store_reader, reader.reader, PastResults(), now_s)
        self._readers[experiment] = reader
        return read_report_data(reader.reader, settings, self._min_students, as_of_ms, reader.past)


def read_report_data(
    reader: StoreReader,
    experiment: ExperimentSettings,
    min_students: int = 1,
    as_of_ms: int | None = None,
    past: PastResults | None = None,
) -> ReportData:
    """Return the data of an experiment's report, as of the newest event or as of the past time `as_of_ms`.

    Results that are in `past` are not computed again; new ones are added. Raises `StoreUnavailable`, and `UsageError`
    for a time before the first student or after the newest event.
    """
    past = PastResults() if past is None else past
    store_summary = reader.read_summary(as_of_ms)
    summary = store_summary.experiments[experiment.name]
    if summary.analysis is None:
        raise ValueError(f"experiment {experiment.name}: the summary has no analysis")
    at_ms = summary.analysis.as_of_ms
    student_sums = reader.read_student_sums(experiment.name)
    entry_days = find_entry_days(student_sums, experiment.calendar, at_ms)
    first_ms = experiment.calendar.start_ms(entry_days[0]) if entry_days else at_ms
    if as_of_ms is not None:
        _check_past_time(as_of_ms, first_ms if entry_days else None, summary.newest_event_ms)
    all_snapshots = reader.read_snapshots(experiment.name)
    snapshots = {
        hour: snapshot
        for hour, snapshot in all_snapshots.items()
        if snapshot.metric == experiment.primary and first_ms <= hour * HOUR_MS <= at_ms
    }
    closing_times = find_closing_times(experiment, student_sums, at_ms, _MAX_STEPS)
    analyzer = Analyzer(experiment)
    for time_ms in closing_times:
        if time_ms not in past.analyses:
            past.analyses[time_ms] = analyzer.analyze(student_sums, time_ms)
    decayed_means = _decayed_means(
        reader, experiment, student_sums, snapshots, summary, store_summary.as_of_ms, min_students, past
    )
    return ReportData(
        settings=experiment,
        summary=summary,
        as_of_ms=store_summary.as_of_ms,
        latest_analysis=summary.analysis,
        interim_analyses=(*(past.analyses[time_ms] for time_ms in closing_times), summary.analysis),
        daily_splits=compute_student_splits(experiment, student_sums, at_ms),
        decayed_means=tuple(decayed_means),
        snapshots=snapshots,
        min_students=min_students,
        day_log=read_day_log(reader, summary, list_verdict_history(summary, all_snapshots), as_of_ms),
        is_past=as_of_ms is not None,
    )


def _check_past_time(as_of_ms: int, first_ms: int | None, newest_ms: int) -> None:
    """Raise `UsageError` for a time before the first student, or after the newest event."""
    if first_ms is None:
        raise UsageError(f"as_of: got {format_timestamp(as_of_ms)}, and no student had seen a response by then")
    if as_of_ms > newest_ms:
        raise UsageError(
            f"as_of: got {format_timestamp(as_of_ms)}, expected a time up to the newest event, which is of "
            f"{format_timestamp(newest_ms)}"
        )


def _decayed_means(
    reader: StoreReader,
    experiment: ExperimentSettings,
    student_sums: StoredStudentSums,
    snapshots: SnapshotHistory,
    summary: ExperimentSummary,
    as_of_ms: int,
    min_students: int,
    past: PastResults,
) -> Iterator[DecayedMeans]:
    """Yield decayed means by rising time: from snapshots and, in gaps between snapshots, from time buckets."""
    days = find_entry_days(student_sums, experiment.calendar, as_of_ms)
    current_snapshot = take_snapshot(summary)
    if not days or current_snapshot is None:
        return
    first_ms = experiment.calendar.start_ms(days[0])
    oldest_bucket_ms = as_of_ms - experiment.retention_ms
    hours = sorted(snapshots)
    hour_step = -(-len(hours) // _MAX_SNAPSHOT_TIMES) or 1
    snapshots_by_ms = {hour * HOUR_MS: snapshots[hour] for hour in hours[::hour_step]}
    recomputed_hours = _hours_without_snapshot(snapshots, max(first_ms, oldest_bucket_ms), as_of_ms)
    recomputed_times = [hour * HOUR_MS for hour in recomputed_hours]
    past.means.update(
        reader.read_past_means(experiment.name, [at_ms for at_ms in recomputed_times if at_ms not in past.means])
    )
    snapshot_means = {at_ms: _means_by_variant(snapshot) for at_ms, snapshot in snapshots_by_ms.items()}
    means_by_ms = {
        **{at_ms: past.means[at_ms] for at_ms in recomputed_times},
        as_of_ms: _means_by_variant(current_snapshot),
        **snapshot_means,
    }
    for at_ms, means in sorted(means_by_ms.items()):
        students = count_students_until(student_sums, experiment.calendar, at_ms)
        yield DecayedMeans(
            at_ms,
            at_ms in snapshots_by_ms,
            {
                decay.name: {
                    name: means_by_decay[decay.name]
                    for name, means_by_decay in means.items()
                    if decay.name in means_by_decay and students.get(name, 0) >= min_students
                }
                for decay in experiment.decay
                if at_ms in {*snapshots_by_ms, as_of_ms}
                or first_ms >= oldest_bucket_ms
                or at_ms - _max_age_ms(decay) >= oldest_bucket_ms
            },
        )


def _means_by_variant(snapshot: ExperimentSnapshot) -> MeansByVariant:
    return {name: variant.decayed_means for name, variant in snapshot.variants.items()}


def _hours_without_snapshot(snapshots: SnapshotHistory, first_ms: int, as_of_ms: int) -> list[int]:
    """Return equally spaced hours since 1970, without hours that follow a snapshot within the spacing."""
    first, last = -(-first_ms // HOUR_MS), as_of_ms // HOUR_MS
    step = max(-(-(last - first) // _MAX_RECOMPUTED_TIMES), 1)
    return [
        hour
        for hour in range(first + step, last, step)
        if not any(hour - step < snapshot_hour <= hour for snapshot_hour in snapshots)
    ]


def _max_age_ms(decay: DecaySpec) -> int:
    """Return the age up to which responses have a noticeable weight under a decay."""
    if decay.half_life_ms is None:
        return decay.cutoff_ms or 0
    return _MAX_AGE_HALF_LIVES * decay.half_life_ms
