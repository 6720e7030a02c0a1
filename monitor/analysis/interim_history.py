"""Interim analyses and student splits of past times, recomputed from the records of each day's students.

Past results are recomputed with today's data: late events are included, and students who later saw another variant are
excluded. Only results from the daily records are valid for past times: closed estimates, guardrails and the sample
ratio. Crossovers, lost and rejected events and live sums are current values, so past verdict states are not valid.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.analysis.analyzer import Analysis, Analyzer
from monitor.analysis.entry_days import count_entered_students, find_first_entry_day
from monitor.config import ExperimentSettings
from monitor.days import DayCalendar
from monitor.metrics import CohortField
from monitor.stats import SrmResult, StoredStudentSums

MAX_INTERIM_ANALYSES: Final = 400
"""Limit of the recomputed past times: more than one per day for a year."""


@dataclass(frozen=True, slots=True)
class StudentSplit:
    """The split of the students over the variants as of an event time."""

    as_of_ms: int
    """End of a day; for an unfinished day the time of the newest event."""
    students: Mapping[str, int]
    """Variant → students first exposed in the variant until then; students who saw more than one variant included."""
    sample_ratio: SrmResult


def find_closing_times(
    experiment: ExperimentSettings,
    stored_students: StoredStudentSums,
    before_ms: int,
    max_times: int = MAX_INTERIM_ANALYSES,
) -> Sequence[int]:
    """Return the times before `before_ms` at which a day's cohorts closed, ascending; at most `max_times`.

    These are the earlier steps of the experiment's confidence sequences.
    """
    calendar = experiment.calendar
    closing_times = [
        calendar.start_ms(day + experiment.exposure_days) + experiment.closing_ms
        for day in find_entry_days(stored_students, calendar, before_ms)
    ]
    return _thin_out([time_ms for time_ms in closing_times if time_ms < before_ms], max_times)


def compute_interim_analyses(
    experiment: ExperimentSettings, stored_students: StoredStudentSums, as_of_ms: int
) -> tuple[Analysis, ...]:
    """Return an analysis as of each closing time before `as_of_ms`, and as of `as_of_ms`, ascending."""
    analyzer = Analyzer(experiment)
    times = (*find_closing_times(experiment, stored_students, as_of_ms), as_of_ms)
    return tuple(analyzer.analyze(stored_students, time_ms) for time_ms in times)


def compute_student_splits(
    experiment: ExperimentSettings, stored_students: StoredStudentSums, as_of_ms: int
) -> tuple[StudentSplit, ...]:
    """Return the student split at the end of each entry day, and not later than `as_of_ms`."""
    calendar = experiment.calendar
    day_ends = [min(calendar.end_ms(day) - 1, as_of_ms) for day in find_entry_days(stored_students, calendar, as_of_ms)]
    analyzer = Analyzer(experiment)
    return tuple(
        StudentSplit(
            as_of_ms=day_end_ms,
            students=count_students_until(stored_students, calendar, day_end_ms),
            sample_ratio=analyzer.check_sample_ratio(stored_students, day_end_ms),
        )
        for day_end_ms in _thin_out(day_ends)
    )


def find_entry_days(stored_students: StoredStudentSums, calendar: DayCalendar, as_of_ms: int) -> list[int]:
    """Return the days since 1970, up to a time, on which students entered, ascending, without stray early days."""
    students = count_entered_students(stored_students, calendar.day_number(as_of_ms))
    first_day = find_first_entry_day(students)
    return [day for day in students if first_day is not None and day >= first_day]


def count_students_until(stored_students: StoredStudentSums, calendar: DayCalendar, as_of_ms: int) -> dict[str, int]:
    """Return variant → students first exposed on the day of a time or earlier."""
    last_day = calendar.day_number(as_of_ms)
    return {
        name: sum(int(record[CohortField.EXPOSURES]) for day, record in cohorts.items() if day <= last_day)
        for name, cohorts in stored_students.cohorts.items()
    }


def _thin_out(times: Sequence[int], max_times: int = MAX_INTERIM_ANALYSES) -> Sequence[int]:
    """Return every n-th time including the last, with the smallest n for at most `max_times` times."""
    step = -(-len(times) // max_times) or 1
    return times[::-step][::-1]
