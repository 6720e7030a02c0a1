"""The cohorts of an experiment as of an event time, by allocation phase: input of every estimate and verdict."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Final

from monitor.analysis.analysis_plan import AnalysisPlan
from monitor.analysis.entry_days import count_entered_students, find_first_entry_day, find_last_entry_day
from monitor.clock import HOURS_PER_DAY
from monitor.config import Population
from monitor.metrics import CohortField, IntArray, UnitRecord
from monitor.stats import (
    CohortTable,
    DayCounts,
    PhaseCounts,
    SampleMeanStatistic,
    SegmentCounts,
    StoredStudentSums,
    is_cohort_closed,
)

_RATE_WINDOW_DAYS: Final = 7
"""Days of the mean number of students per day: a whole week, because weekdays differ."""


class CohortView:
    """The stored sums of an experiment as of an event time.

    A cohort contains the students who were first exposed on the same day; its sums are stored by variant. A
    cohort is closed once the exposure and feedback windows of all its students, and the closing delay, are over. All
    days are days of the experiment's time zone since 1970.
    """

    def __init__(self, plan: AnalysisPlan, stored_students: StoredStudentSums, as_of_ms: int) -> None:
        self.plan = plan
        self.stored_students = stored_students
        self.as_of_ms = as_of_ms
        self._calendar = plan.experiment.calendar
        self._today = self._calendar.day_number(as_of_ms)
        self._cohorts = {
            variant: CohortTable.from_records(cohorts, plan.layout.cohort_width)
            for variant, cohorts in stored_students.cohorts.items()
        }
        self.days = sorted(
            set[int]().union(*(cohorts.nonempty_days(self._today) for cohorts in self._cohorts.values()))
        )
        """Days until now on which students of any variant were first exposed, ascending."""

    def relevant_variants(self, treatment: str) -> list[str]:
        """Return the variants whose crossovers matter to a treatment: all but those that have lost their share.

        Students of a dropped variant may get another one. They are first exposed to neither of the compared variants,
        so they are left out of both, and change no comparison but that of the dropped variant.
        """
        shares = self.plan.experiment.intended_shares(self.as_of_ms)
        past_phases = [phase for phase in self.plan.phases if phase.first_day is None or phase.first_day <= self._today]
        dropped = {
            name
            for name in self.plan.experiment.variants
            if not shares.get(name) and any(phase.intended_shares.get(name) for phase in past_phases)
        }
        return [
            name
            for name in self.plan.experiment.variants
            if name not in dropped or name in (self.plan.experiment.control, treatment)
        ]

    def count_students(self, variants: Iterable[str]) -> int:
        """Return the students first exposed to any of the variants, including those after the view's time."""
        return sum(self._cohorts[name].sum_column(self._cohorts[name]) for name in variants)

    def group_by_phase(self, days: Iterable[int]) -> list[list[int]]:
        """Return the days of each allocation phase; days within which the shares change are left out."""
        days = list(days)
        return [[day for day in days if day in phase] for phase in self.plan.phases]

    @cached_property
    def _days_by_phase(self) -> list[list[int]]:
        return self.group_by_phase(self.days)

    @property
    def excluded_days(self) -> tuple[int, ...]:
        """Days within which the intended shares changed, ascending: in no phase."""
        return tuple(sorted(set(self.days).difference(*self._days_by_phase)))

    @cached_property
    def phase_counts(self) -> tuple[PhaseCounts, ...]:
        """Intended shares and students at first exposure of each phase that has students.

        If no phase has students, only the last phase is returned. Students who later saw another variant are included.
        """
        return self._count_by_phase(self._days_by_phase, CohortField.EXPOSURES)

    @cached_property
    def excluded_phase_counts(self) -> tuple[PhaseCounts, ...]:
        """Intended shares and excluded students at their first excluded response, by phase; () without any rule."""
        cohorts = {
            variant: CohortTable.from_records(records, self.plan.layout.cohort_width)
            for variant, records in self.stored_students.excluded_cohorts.items()
        }
        if not cohorts:
            return ()
        days = sorted(set[int]().union(*(table.nonempty_days(self._today) for table in cohorts.values())))
        return self._count_by_phase(self.group_by_phase(days), CohortField.EXPOSURES, cohorts=cohorts)

    @cached_property
    def compared_phase_counts(self) -> tuple[PhaseCounts, ...]:
        """Intended shares and compared students of each phase: those with a value of the primary metric."""
        return self._count_by_phase(self.closed_days, self.plan.unit_count_index)

    def left_out_phase_counts(self, variants: Collection[str]) -> tuple[PhaseCounts, ...]:
        """Return intended shares and crossovers of closed cohorts by first variant, by phase, of some of the variants.

        Empty if there are responses without a user id, because these are units without a first exposure.
        """
        if any(UnitRecord(record).anonymous_responses for record in self.stored_students.variant_records.values()):
            return ()
        phases = self._count_by_phase(self.closed_days, CohortField.EXPOSURES, CohortField.UNITS)
        return tuple(selected for phase in phases if (selected := phase.select(variants)) is not None)

    @cached_property
    def segment_counts(self) -> tuple[SegmentCounts, ...]:
        """Intended shares and students of closed cohorts, by segment and phase; not by day, to keep evidence small."""
        columns = map(self.plan.layout.segment_units_index, range(len(self.plan.experiment.segments)))
        return tuple(
            SegmentCounts(
                segment,
                tuple(
                    PhaseCounts(counts.shares, counts.students)
                    for counts in self._count_by_phase(self.closed_days, column)
                ),
            )
            for segment, column in zip(self.plan.experiment.segments, columns, strict=True)
        )

    @cached_property
    def exposure_hour_counts(self) -> tuple[SegmentCounts, ...]:
        """Intended shares and students at first exposure, by hour of the day and phase; hours with students."""
        records = self.sum_records(self._days_by_phase)
        hour_counts = []
        for hour in range(HOURS_PER_DAY):
            column = CohortField.EXPOSURE_HOURS + hour
            phases = tuple(
                PhaseCounts(dict(phase.intended_shares), students)
                for index, phase in enumerate(self.plan.phases)
                if any((students := {name: int(sums[index][column]) for name, sums in records.items()}).values())
            )
            if phases:
                hour_counts.append(SegmentCounts(f"{hour:02}:00–{hour + 1:02}:00 {self._calendar.zone}", phases))
        return tuple(hour_counts)

    def _count_by_phase(
        self,
        days_by_phase: Sequence[Sequence[int]],
        column: int,
        subtracted_column: int | None = None,
        *,
        cohorts: Mapping[str, CohortTable] | None = None,
    ) -> tuple[PhaseCounts, ...]:
        """Return a column, or the difference of two, by day, in the phases that have any, or else the last phase.

        `cohorts` are the cohorts by variant; None: those of the compared students.
        """
        cohorts, phase_counts = self._cohorts if cohorts is None else cohorts, []
        for phase, days in zip(self.plan.phases, days_by_phase, strict=True):
            counts = {name: cohorts[name].column_values(days, column) for name in self.plan.experiment.variants}
            if subtracted_column is not None:
                for name, numbers in counts.items():
                    subtracted = cohorts[name].column_values(days, subtracted_column)
                    counts[name] = [number - less for number, less in zip(numbers, subtracted, strict=True)]
            day_counts = (
                DayCounts(day, {name: numbers[row] for name, numbers in counts.items()}) for row, day in enumerate(days)
            )
            phase_counts.append(PhaseCounts.from_days(dict(phase.intended_shares), day_counts))
        return tuple(counts for counts in phase_counts if any(counts.students.values())) or (phase_counts[-1],)

    @cached_property
    def _entered_students(self) -> dict[int, int]:
        return count_entered_students(self.stored_students, self._today)

    @cached_property
    def first_response_ms(self) -> int | None:
        """The beginning of the hour of the first response; None without responses.

        Responses without a user id are stored by day, so their hour is the first of the day.
        """
        if not self.days:
            return None
        day = self.days[0]
        hours = [CohortField.EXPOSURE_HOURS + hour for hour in range(HOURS_PER_DAY)]
        hour = next((hour for hour, column in enumerate(hours) if self._sum_over_variants(day, column)), 0)
        has_anonymous = self._sum_over_variants(day, CohortField.UNITS) > self._sum_over_variants(
            day, CohortField.EXPOSURES
        )
        return self._calendar.hour_start_ms(day, 0 if has_anonymous else hour)

    def _sum_over_variants(self, day: int, column: int) -> int:
        return sum(cohorts.sum_column([day], column) for cohorts in self._cohorts.values())

    def closed_day_count(self, treatment: str) -> int:
        """Return the number of entry days with complete windows, from the first entry day or `starts_at` to the last.

        Only days of phases in which both the control and the treatment have a share count. Stray days before and after
        the entry days do not.
        """
        first_day, last_day = find_first_entry_day(self._entered_students), find_last_entry_day(self._entered_students)
        if first_day is None or last_day is None:
            return 0
        experiment = self.plan.experiment
        first_day = max(first_day, self._calendar.day_number(experiment.starts_at_ms or 0))
        days = range(first_day, min(self._last_closed_day, last_day) + 1)
        return sum(len(phase.select_days(days)) for phase in self.plan.common_phases(treatment))

    @property
    def has_new_students(self) -> bool:
        """Whether the last entry day is within the last week, or no student has entered yet."""
        last_day = find_last_entry_day(self._entered_students)
        return last_day is None or self._today - last_day <= _RATE_WINDOW_DAYS

    @property
    def _last_closed_day(self) -> int:
        """The last day whose cohort is closed."""
        experiment = self.plan.experiment
        return self._calendar.day_number(self.as_of_ms - experiment.closing_ms) - experiment.exposure_days

    @cached_property
    def closed_days(self) -> list[list[int]]:
        """The days of closed cohorts in each phase."""
        experiment = self.plan.experiment
        return [
            [
                day
                for day in days
                if is_cohort_closed(day, self._calendar, self.as_of_ms, experiment.exposure_days, experiment.closing_ms)
            ]
            for days in self._days_by_phase
        ]

    def sum_records(self, days_by_phase: Sequence[Sequence[int]]) -> dict[str, list[IntArray]]:
        """Return variant → the sum of the variant's cohort records over the given days of each phase."""
        return {
            name: [self._cohorts[name].sum_records(days) for days in days_by_phase]
            for name in self.plan.experiment.variants
        }

    @cached_property
    def closed_records(self) -> dict[str, list[IntArray]]:
        """Variant → the sum of the variant's closed cohort records in each phase."""
        return self.sum_records(self.closed_days)

    def closed_statistics(
        self, variant: str, metric: str, population: Population | None = None
    ) -> list[SampleMeanStatistic]:
        """Return a variant's sums over closed students of a metric or guardrail metric in each phase.

        `population` is by default the one over which the metric is judged.
        """
        return [self.plan.closed_statistic(record, metric, population) for record in self.closed_records[variant]]

    def closed_students_per_day(self, variant: str) -> float:
        """Return the number of the variant's students who become closed per day, in the last week with closed cohorts.

        The week is the last one of the newest phase that has closed cohorts; 0 without closed cohorts.
        """
        days = next((days for days in reversed(self.closed_days) if days), [])
        if not days:
            return 0.0
        last_day = self._last_closed_day
        phase = next(phase for phase in self.plan.phases if days[-1] in phase)
        if phase.end_day is not None:
            last_day = min(last_day, phase.end_day - 1)
        first_day = max(last_day - _RATE_WINDOW_DAYS + 1, days[0])
        recent_days = [day for day in days if day >= first_day]
        students = self._cohorts[variant].sum_column(recent_days, self.plan.unit_count_index)
        return students / (last_day - first_day + 1)
