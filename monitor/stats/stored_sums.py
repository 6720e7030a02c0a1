"""Sufficient statistics from the stored records of `monitor.metrics.record_layout`.

*Closed* statistics are over students whose window is over, from sums of cohort records. *Live* statistics are over all
responses so far, from a variant's record over students. docs/statistics.md defines both estimands.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from monitor.config import Population
from monitor.days import DayCalendar
from monitor.metrics import (
    DELAY_BOUNDS_MS,
    CohortField,
    CohortRecord,
    IntArray,
    RecordLayout,
    StudentMeanSums,
    UnitRecord,
)
from monitor.stats.cuped import CovariateStatistic
from monitor.stats.data_quality import DataQuality
from monitor.stats.estimates import Estimate, RatioStatistic, SampleMeanStatistic
from monitor.stats.evidence import SkippedEventCounts
from monitor.stats.experiment_history import ExperimentHistory


class CohortTable(Mapping[int, IntArray]):
    """Cohort records of a variant by day of first exposure (days since 1970), as rows of a table."""

    def __init__(self, days: Sequence[int], table: IntArray) -> None:
        self._row_by_day = {day: row for row, day in enumerate(days)}
        self._table = table

    @classmethod
    def from_records(cls, records: Mapping[int, IntArray], width: int) -> CohortTable:
        """Return the table of the records (day → record), each of `width` integers; a table is returned unchanged."""
        if isinstance(records, CohortTable):
            return records
        return cls(list(records), np.array(list(records.values()), dtype=np.int64).reshape(len(records), width))

    def __getitem__(self, day: int) -> IntArray:
        record: IntArray = self._table[self._row_by_day[day]]
        return record

    def __iter__(self) -> Iterator[int]:
        return iter(self._row_by_day)

    def __len__(self) -> int:
        return len(self._row_by_day)

    def nonempty_days(self, last_day: int) -> set[int]:
        """Return the days up to and including `last_day` with a record that is not all zeros."""
        nonzero_counts = np.count_nonzero(self._table, axis=1).tolist()
        return {day for day, row in self._row_by_day.items() if nonzero_counts[row] and day <= last_day}

    def sum_column(self, days: Iterable[int], column: int = CohortField.EXPOSURES) -> int:
        """Return the sum of a column over the records of `days`; by default of the students exposed."""
        return int(self._table[self._row_indices(days), column].sum())

    def column_values(self, days: Sequence[int], column: int) -> list[int]:
        """Return the values of a column of the records of `days`; 0 for days without a record."""
        values = dict(zip(self._row_by_day, self._table[:, column].tolist(), strict=True))
        return [values.get(day, 0) for day in days]

    def sum_records(self, days: Iterable[int]) -> IntArray:
        """Return the sum of the records of `days`; days without a record count as 0."""
        total: IntArray = self._table[self._row_indices(days)].sum(axis=0)
        return total

    def _row_indices(self, days: Iterable[int]) -> NDArray[np.intp]:
        return np.array([self._row_by_day[day] for day in days if day in self._row_by_day], dtype=np.intp)


@dataclass(frozen=True, slots=True)
class StoredStudentSums:
    """The stored sums over an experiment's students, summed over the shards."""

    variant_records: Mapping[str, IntArray]
    """Variant → record over all students (`RecordLayout.unit_width` integers)."""
    cohorts: Mapping[str, Mapping[int, IntArray]]
    """Variant → day of first exposure (days since 1970) → record (`RecordLayout.cohort_width` integers)."""
    excluded_cohorts: Mapping[str, Mapping[int, IntArray]] = field(default_factory=dict)
    """As `cohorts`, of the excluded responses; empty if no rule excludes responses."""
    delay_counts: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """Variant → class of `DELAY_BOUNDS_MS` → events that arrived with such a delay."""
    lost_events: int = 0
    """Events that Kafka deleted before they were applied, over all experiments: unread events have no experiment."""
    rejected_share: float | None = None
    """Rejected fraction of the newest events of the topics, over all experiments; None without events."""
    skipped_events: SkippedEventCounts | None = None
    data_quality: DataQuality | None = None
    history: ExperimentHistory = field(default_factory=ExperimentHistory)

    def live_estimates(self, layout: RecordLayout, population: Population) -> Mapping[str, list[Estimate]]:
        """Return variant → live estimates of all metrics, in the order of the layout.

        `population` is that of ranking metrics; answer metrics are over the responses with a value.
        """
        return {
            name: [
                live_metric_statistic(record, layout, metric, population).estimate()
                for metric in range(layout.metric_count)
            ]
            for name, record in self.variant_records.items()
        }


def is_cohort_closed(day: int, calendar: DayCalendar, at_ms: int, exposure_days: int, closing_ms: int) -> bool:
    """Return whether the cohort of a day (since 1970) is closed at `at_ms`.

    A cohort closes `closing_ms` after the end of the last student's exposure window: the length of the feedback window
    and the closing delay.
    """
    return calendar.start_ms(day + exposure_days) + closing_ms <= at_ms


def closed_metric_statistic(
    record: IntArray, layout: RecordLayout, metric: int, population: Population
) -> SampleMeanStatistic:
    """Return the statistic of students' means of metric number `metric`, from a sum of closed cohort records."""
    return _sample_mean_statistic(CohortRecord(record, layout).metric_means(metric, population))


def closed_rated_share_statistic(record: IntArray, layout: RecordLayout) -> SampleMeanStatistic:
    """Return the statistic of students' rated shares of responses, from a sum of closed cohort records."""
    return _sample_mean_statistic(CohortRecord(record, layout).rated_share_means())


def closed_undefined_share_statistic(record: IntArray, layout: RecordLayout) -> SampleMeanStatistic:
    """Return the statistic of students' shares of rated responses whose primary metric is undefined."""
    return _sample_mean_statistic(CohortRecord(record, layout).undefined_share_means())


def closed_undefined_as_zero_statistic(record: IntArray, layout: RecordLayout) -> SampleMeanStatistic:
    """Return the statistic of students' means of the primary metric over rated responses, undefined values as 0."""
    return _sample_mean_statistic(CohortRecord(record, layout).undefined_as_zero_means())


def closed_student_metric_statistic(record: IntArray, layout: RecordLayout, metric: int) -> SampleMeanStatistic:
    """Return the statistic of student metric number `metric`, from a sum of closed cohort records."""
    return _sample_mean_statistic(CohortRecord(record, layout).student_metric_means(metric))


def closed_subgroup_statistic(
    record: IntArray, layout: RecordLayout, subgroup: int, population: Population
) -> SampleMeanStatistic:
    """Return the statistic of the primary metric over the students of subgroup number `subgroup`."""
    return _sample_mean_statistic(CohortRecord(record, layout).subgroup_means(subgroup, population))


def closed_covariate_statistic(record: IntArray, layout: RecordLayout, population: Population) -> CovariateStatistic:
    """Return the statistic of the primary metric and the CUPED covariate, over the students with both means."""
    return CovariateStatistic(*CohortRecord(record, layout).pair_sums(population))


def covariate_square_scale(layout: RecordLayout) -> float:
    """Return the inverse of the unit of the fixed-point squares and products in covariate sums."""
    return 2.0 ** layout.square_bits[layout.primary_index] / layout.stored_unit(layout.primary_index) ** 2


def live_metric_statistic(
    record: IntArray, layout: RecordLayout, metric: int, population: Population
) -> RatioStatistic:
    """Return the ratio statistic of metric number `metric`, from a variant's record over all students.

    An answer metric is over the responses with a value, whatever the population.
    """
    unit_sums = UnitRecord(record)
    units, defined, total, squares, defined_products, defined_squares, response_products = unit_sums.metric_sums(
        layout, metric
    )
    if population == "rated" or layout.answer_metrics[metric]:
        return RatioStatistic(units, total, float(defined), squares, defined_products, defined_squares)
    return RatioStatistic(
        unit_sums.units, total, float(unit_sums.responses), squares, response_products, unit_sums.response_squares
    )


def late_arrival_estimate(record: IntArray, delay_counts: Mapping[int, int], limit_ms: int) -> Estimate:
    """Return the estimate of the share of a variant's events that arrived more than `limit_ms` after they happened.

    The limit is rounded down to a bound of `DELAY_BOUNDS_MS`. `record` is the variant's record over all students:
    events of one student may all arrive late together, so the variance is multiplied by ΣN²/ΣN of the responses N.
    """
    first_late_class = bisect_right(DELAY_BOUNDS_MS, limit_ms)
    events = sum(delay_counts.values())
    if not events:
        return Estimate(0, None, None)
    share = sum(count for delay_class, count in delay_counts.items() if delay_class >= first_late_class) / events
    sums = UnitRecord(record)
    design_effect = max(sums.response_squares / sums.responses, 1.0) if sums.responses else 1.0
    return Estimate(events, share, design_effect * share * (1 - share) / events)


def live_rated_share_statistic(record: IntArray) -> RatioStatistic:
    """Return the ratio statistic of rated responses per response, from a variant's record over all students."""
    sums = UnitRecord(record)
    return RatioStatistic(
        sums.units,
        float(sums.rated),
        float(sums.responses),
        sums.rated_squares,
        sums.rated_response_products,
        sums.response_squares,
    )


def _sample_mean_statistic(sums: StudentMeanSums) -> SampleMeanStatistic:
    """Return the statistic of students' means.

    Each stored square is rounded to a multiple of 1/`square_scale`, so equal values would seem to vary. A spread within
    this rounding error is taken as 0.
    """
    units, total, squares, square_scale = sums
    zero_spread_squares = total * (total / units) if units else 0.0
    return SampleMeanStatistic(
        units, total, zero_spread_squares if squares - zero_spread_squares <= units / square_scale else squares
    )
