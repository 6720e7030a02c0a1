"""The first and last entry day of an experiment: days on which students were first exposed, without stray days.

One event with a wrong time, or a test before the start, must not count as a day of the experiment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from monitor.metrics import CohortField
from monitor.stats import StoredStudentSums

_MIN_SHARE: Final = 0.001
"""Share of all students who must have entered on stray days and the first entry day together."""
_MIN_STUDENTS: Final = 10
_MIN_SHARE_OF_FEW: Final = 0.1
"""The share that replaces `_MIN_STUDENTS` in experiments with fewer than 100 students."""


def count_entered_students(stored_students: StoredStudentSums, last_day: int) -> dict[int, int]:
    """Return the day → students of all variants who entered, by first exposure, ascending, up to and with a day.

    Responses without a user id count, too: each is a unit without a first exposure.
    """
    students: Counter[int] = Counter()
    for cohorts in stored_students.cohorts.values():
        for day, record in cohorts.items():
            if day <= last_day and record.any():
                students[day] += max(int(record[CohortField.EXPOSURES]), int(record[CohortField.UNITS]))
    return dict(sorted(students.items()))


def find_first_entry_day(students_by_day: Mapping[int, int]) -> int | None:
    """Return the first day by whose end enough students have entered; None without students.

    `students_by_day` has the students by day of first exposure. Enough are 0.1 % of all students, and at least ten
    students, or a tenth of fewer than a hundred students.

    >>> find_first_entry_day({-3: 1, 0: 60, 1: 60})
    0
    """
    return _first_day_with_enough(sorted(students_by_day), students_by_day)


def find_last_entry_day(students_by_day: Mapping[int, int]) -> int | None:
    """Return the last day before any stray days; None without students.

    That is the last day on or after which enough students have entered, as for the first day, or the last of the days
    that follow it without a gap: fewer students may enter on the last days of an experiment.

    >>> find_last_entry_day({0: 60, 1: 60, 2: 3, 9: 1})
    2
    """
    last_day = _first_day_with_enough(sorted(students_by_day, reverse=True), students_by_day)
    while last_day is not None and students_by_day.get(last_day + 1):
        last_day += 1
    return last_day


def _first_day_with_enough(days: Iterable[int], students_by_day: Mapping[int, int]) -> int | None:
    ordered_days = list(days)
    total = sum(students_by_day.values())
    threshold = max(_MIN_SHARE * total, min(_MIN_STUDENTS, _MIN_SHARE_OF_FEW * total))
    cumulative = accumulate(students_by_day[day] for day in ordered_days)
    return next(
        (day for day, students in zip(ordered_days, cumulative, strict=True) if students >= threshold > 0), None
    )
