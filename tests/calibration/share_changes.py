"""Simulated experiments whose shares change while they run, without any defect of the assignment.

Students arrive evenly over four weeks. The configuration changes at a random time. The chatbot changes up to an hour
before or after.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from monitor.clock import DAY_MS, HOURS_PER_DAY
from monitor.config import ExperimentSettings, carry_allocations
from monitor.metrics import CohortField, RecordLayout
from monitor.stats import StoredStudentSums, Verdict
from tests.support.streams import EXPERIMENT
from tests.support.units import analyze

DAYS: Final = 28
STUDENTS_PER_DAY: Final = 1000
FIRST_DAY: Final = 20_454
_HALVES: Final = {"control": 0.5, "treatment": 0.5}
_THIRDS: Final = {"control": 1 / 3, "treatment": 1 / 3, "other": 1 / 3}
CHANGES: Final[Mapping[str, tuple[Mapping[str, float], Mapping[str, float]]]] = {
    "shares 50 : 50, then 90 : 10": (_HALVES, {"control": 0.9, "treatment": 0.1}),
    "a variant is added": (_HALVES, _THIRDS),
    "a variant is dropped": (_THIRDS, _HALVES),
}
"""Name of a change → shares before and after."""
_ALARM_CODES: Final = frozenset(
    {"sample_ratio", "hour_sample_ratio", "empty_variant", "stray_traffic", "uneven_crossovers", "crossovers"}
)


def has_split_alarm(verdict: Verdict) -> bool:
    """Return whether a verdict reports that students are not split as intended."""
    return any(finding.code in _ALARM_CODES for finding in (*verdict.reasons, *verdict.notes))


def share_change_alarms(chance: np.random.Generator, change: str) -> tuple[bool, bool]:
    """Return whether the split alarms for any treatment, and whether it would with the new shares from the start."""
    before, after = CHANGES[change]
    change_days = float(chance.uniform(3, 20))
    configured = replace(EXPERIMENT, categories=(), variants=after)
    previous = replace(configured, variants=before)
    carried = carry_allocations(previous, configured, int((FIRST_DAY + change_days) * DAY_MS))
    students = _simulate_students(chance, carried, (before, after), change_days + chance.uniform(-1, 1) / HOURS_PER_DAY)
    pooled = replace(carried, variants={name: after.get(name, 0.0) for name in carried.variants})
    pooled = replace(pooled, decision=configured.decision)
    by_phase, over_all = (
        any(
            has_split_alarm(verdict)
            for verdict in analyze(experiment, students, (FIRST_DAY + DAYS) * DAY_MS).verdicts.values()
        )
        for experiment in (carried, pooled)
    )
    return by_phase, over_all


def _simulate_students(
    chance: np.random.Generator,
    experiment: ExperimentSettings,
    shares: tuple[Mapping[str, float], Mapping[str, float]],
    change_days: float,
) -> StoredStudentSums:
    """Return the stored numbers of students by hour of first exposure, without values of metrics."""
    layout = RecordLayout.for_experiment(experiment)
    first_days = chance.random(STUDENTS_PER_DAY * DAYS) * DAYS
    choice = chance.random(len(first_days))
    bounds = [np.cumsum([phase.get(name, 0.0) for name in experiment.variants])[:-1] for phase in shares]
    chosen_before, chosen_after = (np.searchsorted(bound, choice, side="right") for bound in bounds)
    chosen = np.where(first_days < change_days, chosen_before, chosen_after)
    hours = (first_days * HOURS_PER_DAY).astype(np.int64)
    cohorts: dict[str, dict[int, Any]] = {}
    for index, name in enumerate(experiment.variants):
        counts = np.bincount(hours[chosen == index], minlength=HOURS_PER_DAY * DAYS).reshape(DAYS, HOURS_PER_DAY)
        records = np.zeros((DAYS, layout.cohort_width), dtype=np.int64)
        records[:, CohortField.EXPOSURES] = records[:, CohortField.UNITS] = counts.sum(axis=1)
        records[:, CohortField.EXPOSURE_HOURS : CohortField.EXPOSURE_HOURS + HOURS_PER_DAY] = counts
        cohorts[name] = {FIRST_DAY + day: record for day, record in enumerate(records) if record.any()}
    unit_records = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in experiment.variants}
    return StoredStudentSums(unit_records, cohorts)
