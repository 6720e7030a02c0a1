"""Simulated experiments with the planned number of students: how often they show the effect that was planned for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.stats import (
    PlanAssumptions,
    SampleMeanStatistic,
    Schedule,
    Shares,
    StudentValues,
    compare_variants,
    plan_shares,
    student_variance,
)

MEAN, RESPONSE_SD, CORRELATION, FURTHER_RESPONSES, MDE = 3.0, 1.2, 0.3, 3, 0.2
LOOKS: Final = 28


@dataclass(frozen=True)
class PlannedRun:
    """A plan that is simulated."""

    share: float
    power: float


PLANS: Final = tuple(PlannedRun(share, power) for share in (0.5, 0.1) for power in (0.5, 0.8))


def planned_students(plan: PlannedRun) -> tuple[int, int]:
    """Return the planned students of control and treatment, from assumptions about responses."""
    variance = student_variance(RESPONSE_SD**2, 1 + FURTHER_RESPONSES, CORRELATION)
    values = StudentValues(MEAN, variance)
    assumptions = PlanAssumptions(MDE, values, values, Schedule(students_per_day=100))
    ((requirement,),) = [
        row.requirements for row in plan_shares(assumptions, [Shares.of_treatment(plan.share)], [plan.power])
    ]
    assert requirement.control_students is not None
    assert requirement.treatment_students is not None
    return math.ceil(requirement.control_students), math.ceil(requirement.treatment_students)


def shows_effect(chance: np.random.Generator, plan: PlannedRun) -> tuple[bool, bool]:
    """Return whether an effect of the mde is shown at the planned end, and whether at any of the looks until then."""
    students = planned_students(plan)
    means = []
    for number, effect in zip(students, (0.0, MDE), strict=True):
        ability = chance.normal(MEAN + effect, RESPONSE_SD * math.sqrt(CORRELATION), (number, 1))
        noise = chance.normal(0, RESPONSE_SD * math.sqrt(1 - CORRELATION), (number, 1 + FURTHER_RESPONSES))
        means.append((ability + noise).mean(axis=1))
    shown = []
    for look in range(1, LOOKS + 1):
        parts = [values[: len(values) * look // LOOKS] for values in means]
        control, treatment = (
            SampleMeanStatistic(len(part), float(part.sum()), float((part**2).sum())).estimate() for part in parts
        )
        comparison = compare_variants(control, treatment, alpha=0.05, mde=MDE)
        shown.append(comparison.decides and comparison.lower is not None and comparison.lower > 0)
    return shown[-1], any(shown)
