"""Simulated experiments whose primary metric is an answer metric: a rare share, a frequent one, and a capped sum.

The responses of a student resemble each other. Each experiment is analysed after each day, as the service does it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from monitor.clock import DAY_MS
from monitor.config import DecisionSettings, ExperimentSettings, MetricSpec
from monitor.metrics import FIXED_POINT_SCALE, CohortField, FloatArray, IntArray, RecordLayout
from monitor.stats import StoredStudentSums
from tests.calibration.populations import exceeds_fixed_interval, excludes_zero
from tests.support.streams import EXPERIMENT
from tests.support.units import analyze, cohort_records

DAYS: Final = 28
STUDENTS: Final = 4000
FIRST_DAY: Final = 20_454
VARIANTS: Final = ("control", "treatment")
FURTHER_RESPONSES: Final = 3.0
"""Mean number of responses of a student after the first one."""
MAX_MINUTES: Final = 60.0
_STRETCH_PER_MINUTE: Final = 0.142
"""The factor on the minutes that raises the mean of the capped minutes, 8.7, by one minute, minus 1."""
_SHARE: Final = MetricSpec("share:liked", "share", kind="liked")
_SUM: Final = MetricSpec("sum:minutes", "sum", kind="minutes", most=MAX_MINUTES)


@dataclass(frozen=True)
class Answers:
    """A metric and the values of a response: a function of random numbers, the students' gains and responses."""

    metric: MetricSpec
    mde: float
    """The simulated effect, in the metric's own unit."""
    draw: Callable[[np.random.Generator, FloatArray, IntArray], FloatArray]
    """(generator, gain of each student, student of each response) → value of each response before the cap."""

    @property
    def experiment(self) -> ExperimentSettings:
        """The settings of the experiment; all criteria but the metric and the mde are defaults."""
        decision = DecisionSettings(mde=self.mde, guardrails=())
        return replace(
            EXPERIMENT,
            metrics=(self.metric,),
            primary=self.metric.name,
            grades={},
            categories=(),
            decision=decision,
        )


def _share_values(mean: float, sameness: float) -> Callable[[np.random.Generator, FloatArray, IntArray], FloatArray]:
    """Return a function that draws 0 or 1, with a rate for each student from a beta distribution around the mean."""

    def draw(chance: np.random.Generator, gains: FloatArray, students: IntArray) -> FloatArray:
        means = mean + gains
        rates = chance.beta(means * sameness, (1 - means) * sameness)
        return (chance.random(len(students)) < rates[students]).astype(np.float64)

    return draw


def _minute_values(chance: np.random.Generator, gains: FloatArray, students: IntArray) -> FloatArray:
    """Return log-normal minutes with the median 4; one of fifty is above an hour."""
    habits = chance.normal(0.0, 0.6, len(gains))
    minutes: FloatArray = 4.0 * np.exp(habits[students] + chance.normal(0.0, 1.2, len(students)))
    return minutes * (1.0 + _STRETCH_PER_MINUTE * gains[students])


ANSWERS: Final[Mapping[str, Answers]] = {
    "share of 3 %": Answers(_SHARE, 0.015, _share_values(0.03, 20.0)),
    "share of 50 %": Answers(_SHARE, 0.05, _share_values(0.5, 4.0)),
    "log-normal minutes, capped at 60": Answers(_SUM, 1.2, _minute_values),
}


def _stored_sums(chance: np.random.Generator, answers: Answers, effect: float) -> StoredStudentSums:
    """Return the sums that the store has of students who enter evenly over the days."""
    layout = RecordLayout.for_experiment(answers.experiment)
    arms, days = chance.integers(0, 2, STUDENTS), chance.integers(0, DAYS, STUDENTS)
    responses = 1 + chance.poisson(FURTHER_RESPONSES, STUDENTS)
    students = np.repeat(np.arange(STUDENTS), responses)
    gains: FloatArray = effect * arms.astype(np.float64)
    values = np.minimum(answers.draw(chance, gains, students), answers.metric.most)
    totals = np.bincount(students, np.rint(values * FIXED_POINT_SCALE), minlength=STUDENTS).astype(np.int64)
    all_sums = np.stack([responses, responses, totals, np.zeros_like(totals)], axis=1)
    # Students with equal sums have equal records.
    sums, row_of_student = np.unique(all_sums, axis=0, return_inverse=True)
    records = cohort_records(layout, sums)
    records[:, CohortField.EXPOSURES] = 1
    student_records = records[row_of_student.reshape(-1)]
    cohorts = {
        name: {FIRST_DAY + day: student_records[(arms == arm) & (days == day)].sum(axis=0) for day in range(DAYS)}
        for arm, name in enumerate(VARIANTS)
    }
    variant_records = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in VARIANTS}
    return StoredStudentSums(variant_records, cohorts)


def answer_decisions(
    chance: np.random.Generator, answers: Answers, effect: float = 0.0
) -> Iterator[tuple[bool, bool, bool, bool]]:
    """Yield for each day whether the interval excludes 0, 1.96 standard errors do, the verdict decides, and ships."""
    sums = _stored_sums(chance, answers, effect)
    for day in range(4, DAYS + 1):
        verdict = analyze(answers.experiment, sums, (FIRST_DAY + day) * DAY_MS).verdicts["treatment"]
        yield (
            verdict.primary.decides and excludes_zero(verdict.primary),
            verdict.primary.decides and exceeds_fixed_interval(verdict.primary),
            verdict.state in {"ship", "stop_harm"},
            verdict.state == "ship",
        )
