"""What can be worked out again about an experiment's past, from the records of the students of each day.

They hold what is known now, so a look back is exact: it is what one would have said then, had one known which events
would still come late, and who would see another variant. Only what is made of those records may be shown for the past:
estimates of closed students, guardrails, the sample ratio. Crossovers, lost and refused events and the live sums are
those of now, and states hang on them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from monitor.analysis.verdicts import Judge, Judgement
from monitor.clock import DAY_MS
from monitor.config import ExperimentSettings
from monitor.stats import SampleRatio, StoredStudents

MOST_LOOKS: Final = 400
"""Times that are looked back at: a year day by day."""


@dataclass(frozen=True, slots=True)
class Split:
    """How students were split at the end of a UTC day, or at `at_ms` where that day is not over."""

    at_ms: int
    students: Mapping[str, int]
    """Variant → students so far, where and when they were first exposed; crossovers included."""
    sample_ratio: SampleRatio


def looks(experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> tuple[Judgement, ...]:
    """Return what followed each time the windows of a day's students were over, and at `at_ms`: a sequence's steps."""
    window_ms = experiment.exposure_days * DAY_MS + experiment.feedback_window_ms
    closed = [day * DAY_MS + window_ms for day in exposure_days(stored, at_ms)]
    times = _thinned([each for each in closed if each < at_ms])
    judge = Judge(experiment)
    return tuple(judge.judge(stored, each) for each in (*times, at_ms))


def splits(experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> tuple[Split, ...]:
    """Return how students were split at the end of each day that brought some, the last one at `at_ms`."""
    ends = [min((day + 1) * DAY_MS - 1, at_ms) for day in exposure_days(stored, at_ms)]
    judge = Judge(experiment)
    return tuple(Split(end, students_by(stored, end), judge.sample_ratio(stored, end)) for end in _thinned(ends))


def exposure_days(stored: StoredStudents, at_ms: int) -> list[int]:
    """Return the UTC days until a time on which students were exposed first, in whichever variant, rising."""
    held = (item for cohorts in stored.cohorts.values() for item in cohorts.items())
    return sorted({day for day, record in held if day <= at_ms // DAY_MS and record.any()})


def students_by(stored: StoredStudents, at_ms: int) -> dict[str, int]:
    """Return the students of each variant who were first exposed on the day of that time or before."""
    return {
        name: sum(int(record[0]) for day, record in cohorts.items() if day <= at_ms // DAY_MS)
        for name, cohorts in stored.cohorts.items()
    }


def _thinned(times: Sequence[int]) -> Sequence[int]:
    """Return every n-th time, the last one included, so that there are no more than `MOST_LOOKS`."""
    step = -(-len(times) // MOST_LOOKS) or 1
    return times[::-step][::-1]
