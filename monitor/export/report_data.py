"""The data of an experiment's report, read from the store: the current analysis and the history of analyses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from monitor.analysis import (
    Analysis,
    DecayedMeanSnapshot,
    ExperimentSummary,
    SnapshotHistory,
    StudentSplit,
    compute_interim_analyses,
    compute_student_splits,
    count_students_until,
    find_entry_days,
    take_snapshot,
)
from monitor.clock import HOUR_MS
from monitor.config import DecaySpec, ExperimentSettings
from monitor.export.presentation import meets_min_students
from monitor.state import StoreReader
from monitor.stats import GuardrailResult, StoredStudentSums, VariantComparison

_MAX_RECOMPUTED_TIMES: Final = 60
"""Times for which decayed means are recomputed from the time buckets; 60 take one to two seconds."""
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
    """The data of an experiment's report, up to the newest event in the store."""

    settings: ExperimentSettings
    summary: ExperimentSummary
    as_of_ms: int
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


def read_report_data(reader: StoreReader, experiment: ExperimentSettings, min_students: int = 1) -> ReportData:
    """Return the data of an experiment's report. Raises `StoreUnavailable`."""
    store_summary = reader.read_summary()
    summary = store_summary.experiments[experiment.name]
    at_ms = store_summary.as_of_ms if summary.analysis is None else summary.analysis.as_of_ms
    student_sums = reader.read_student_sums(experiment.name)
    entry_days = find_entry_days(student_sums, experiment.calendar, at_ms)
    first_ms = experiment.calendar.start_ms(entry_days[0]) if entry_days else at_ms
    snapshots = {
        hour: snapshot
        for hour, snapshot in reader.read_snapshots(experiment.name).items()
        if snapshot.metric == experiment.primary and first_ms <= hour * HOUR_MS <= at_ms
    }
    interim_analyses = compute_interim_analyses(experiment, student_sums, at_ms)
    decayed_means = _decayed_means(
        reader, experiment, student_sums, snapshots, summary, store_summary.as_of_ms, min_students
    )
    return ReportData(
        settings=experiment,
        summary=summary,
        as_of_ms=store_summary.as_of_ms,
        latest_analysis=interim_analyses[-1],
        interim_analyses=interim_analyses,
        daily_splits=compute_student_splits(experiment, student_sums, at_ms),
        decayed_means=tuple(decayed_means),
        snapshots=snapshots,
        min_students=min_students,
    )


def _decayed_means(
    reader: StoreReader,
    experiment: ExperimentSettings,
    student_sums: StoredStudentSums,
    snapshots: SnapshotHistory,
    summary: ExperimentSummary,
    as_of_ms: int,
    min_students: int,
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
    for at_ms in sorted({*snapshots_by_ms, *(hour * HOUR_MS for hour in recomputed_hours), as_of_ms}):
        snapshot = snapshots_by_ms.get(at_ms) or current_snapshot
        if at_ms not in snapshots_by_ms and at_ms != as_of_ms:
            snapshot = take_snapshot(reader.read_summary(at_ms).experiments[experiment.name]) or current_snapshot
        students = count_students_until(student_sums, experiment.calendar, at_ms)
        yield DecayedMeans(
            at_ms,
            at_ms in snapshots_by_ms,
            {
                decay.name: {
                    name: variant.decayed_means[decay.name]
                    for name, variant in snapshot.variants.items()
                    if decay.name in variant.decayed_means and students.get(name, 0) >= min_students
                }
                for decay in experiment.decay
                if at_ms in {*snapshots_by_ms, as_of_ms}
                or first_ms >= oldest_bucket_ms
                or at_ms - _max_age_ms(decay) >= oldest_bucket_ms
            },
        )


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
