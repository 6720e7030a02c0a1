"""Groups of equal students, the sums that the store would have of them, and experiments to analyze these sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from monitor.clock import DAY_MS
from monitor.config import DecisionSettings, ExperimentSettings, GuardrailSettings
from monitor.metrics import FIXED_POINT_SCALE, CohortField, IntArray, RecordLayout, UnitField
from monitor.stats import StoredStudentSums
from tests.support.streams import EXPERIMENT
from tests.support.units import cohort_records, student_records

FIRST_DAY = 20_454
"""UTC day since 1970 on which the first students are exposed."""


class StudentGroup(NamedTuple):
    """Students of one variant who are first exposed on the same day, with equal responses and metric values."""

    variant: str
    first_day: int
    metric_value: float
    """The value of every metric, for every rated response."""
    responses: int = 2
    """Responses of each student."""
    rated_responses: int = 1
    student_count: int = 1
    category: int = -1
    """Index of the category of the first response; -1 for none."""


def sum_students(experiment: ExperimentSettings, groups: Sequence[StudentGroup], **overrides: Any) -> StoredStudentSums:
    """Return the stored sums of the students; `overrides` replace fields of `StoredStudentSums`."""
    layout, metric_count = RecordLayout.for_experiment(experiment), len(experiment.metrics)
    variant_records = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in experiment.variants}
    cohorts: dict[str, dict[int, IntArray]] = {name: {} for name in experiment.variants}
    for group in groups:
        totals = [
            round(group.metric_value / metric.stored_unit * FIXED_POINT_SCALE) * group.rated_responses
            for metric in experiment.metrics
        ]
        sums = np.array([[group.responses, group.rated_responses, *totals, *[0] * metric_count]])
        variant_records[group.variant] += student_records(layout, sums)[0] * group.student_count
        variant_records[group.variant][UnitField.STUDENTS] += group.student_count
        empty_record = np.zeros(layout.cohort_width, dtype=np.int64)
        cohort = cohorts[group.variant].setdefault(group.first_day, empty_record)
        cohort += cohort_records(layout, sums, group.category)[0] * group.student_count
        cohort[CohortField.EXPOSURES] += group.student_count
    return replace(StoredStudentSums(variant_records, cohorts), **overrides)


def make_students(
    variant: str, mean: float, count: int = 400, days: int = 10, seed: int = 1, first_day: int = FIRST_DAY
) -> list[StudentGroup]:
    """Return students spread evenly over the days, with values around a mean; every second student rates everything."""
    values = np.clip(np.random.default_rng(seed).normal(mean, 0.5, count), 0, 4)
    return [
        StudentGroup(variant, first_day + number % days, round(float(value), 3), rated_responses=1 + number // days % 2)
        for number, value in enumerate(values)
    ]


def time_after_days(days: float) -> int:
    """Return the time in milliseconds, a number of days after the midnight that begins `FIRST_DAY`."""
    return int((FIRST_DAY + days) * DAY_MS)


def with_decision_settings(**settings: Any) -> ExperimentSettings:
    """Return the experiment with other decision settings, and without segments."""
    return replace(EXPERIMENT, categories=(), decision=DecisionSettings(**settings))


STUDENTS_WITH_EFFECT = [*make_students("control", 1.5, seed=1), *make_students("treatment", 2.0, seed=2)]
SENSITIVE_EXPERIMENT = with_decision_settings(mde=0.3, guardrails=(GuardrailSettings("rated_share", "down", 0.05),))
SUBGROUP_EXPERIMENT = replace(SENSITIVE_EXPERIMENT, categories=("geometry", "fractions"), novelty=True)
"""With effects by category, in the order fractions, geometry, other; and by days since first exposure."""
STUDENTS_WITH_SEGMENT_EFFECT = [
    student._replace(category=category)
    for category, variant, mean, seed in (
        (0, "control", 1.5, 1),
        (0, "treatment", 2.3, 2),
        (1, "control", 1.5, 3),
        (1, "treatment", 1.5, 4),
    )
    for student in make_students(variant, mean, 300, seed=seed)
]
"""An effect in fractions and no effect in geometry."""
