"""Simulated experiments without an effect and with awkward students: classes, uneven shares, ramp-ups, missing ratings.

A day's students enter the comparison together. Alarms are of the interval that decides, at a look after each day.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from monitor.metrics import FloatArray, IntArray
from monitor.stats import SampleMeanStatistic, VariantComparison, compare_variants, estimate_stratified

DAYS: Final = 28
STUDENTS: Final = 4000
CLASS_SIZE: Final = 20
MDE, ALPHA, MAX_VALUE = 0.1, 0.05, 12.0
MIN_UNITS: Final = 50
_FIXED_Z: Final = 1.96


@dataclass(frozen=True)
class Entries:
    """Units that enter a comparison: arrays in the same order."""

    arms: IntArray
    """0 in the control, 1 in the treatment."""
    days: IntArray
    """Day of entry, from 0."""
    values: FloatArray
    """The unit's mean of the primary metric."""


Population: TypeAlias = Callable[[np.random.Generator], tuple[Entries, Sequence[int]]]
"""Function that returns entries and the first days of the allocation phases after the first one."""


def _simulate(chance: np.random.Generator, treatment_shares: FloatArray) -> Entries:
    """Return students who enter evenly over the days; `treatment_shares` has the treatment's share by day."""
    days = np.sort(chance.integers(0, DAYS, STUDENTS))
    arms = (chance.random(STUDENTS) < treatment_shares[days]).astype(np.int64)
    return Entries(arms, days, np.clip(chance.gamma(2.0, 1.0, STUDENTS), 0.0, MAX_VALUE))


def students_of_classes(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return students whose classes are assigned as a whole, each student as a unit; ICC 0.2 within a class."""
    classes = STUDENTS // CLASS_SIZE
    days, arms = np.sort(chance.integers(0, DAYS, classes)), chance.integers(0, 2, classes)
    values = 4.0 + np.repeat(chance.normal(0, 0.2**0.5, classes), CLASS_SIZE) + chance.normal(0, 0.8**0.5, STUDENTS)
    return Entries(np.repeat(arms, CLASS_SIZE), np.repeat(days, CLASS_SIZE), values), ()


def classes_as_units(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return the same classes, each class as a unit with the mean of its students."""
    students, _ = students_of_classes(chance)
    means = students.values.reshape(-1, CLASS_SIZE).mean(axis=1)
    return Entries(students.arms[::CLASS_SIZE], students.days[::CLASS_SIZE], means), ()


def uneven_shares(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return students with skewed values, 10 % of them in the treatment."""
    return _simulate(chance, np.full(DAYS, 0.1)), ()


def ramp_up(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return students with a treatment's share of 1 %, 10 % and 50 %, and values that rise from phase to phase."""
    first_days = (7, 14)
    phases = np.searchsorted(first_days, np.arange(DAYS), side="right")
    entries = _simulate(chance, np.array([0.01, 0.1, 0.5])[phases])
    return replace(entries, values=entries.values + 0.3 * phases[entries.days]), first_days


def pooled_ramp_up(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return the same students without the allocation phases."""
    return ramp_up(chance)[0], ()


def missing_ratings(chance: np.random.Generator) -> tuple[Entries, Sequence[int]]:
    """Return the students who rate: the higher the value the likelier, in both variants; 10 % in the treatment."""
    entries = _simulate(chance, np.full(DAYS, 0.1))
    is_rated = chance.random(STUDENTS) < 0.2 + 0.6 * entries.values / (1 + entries.values)
    return Entries(entries.arms[is_rated], entries.days[is_rated], entries.values[is_rated]), ()


POPULATIONS: Final[Mapping[str, Population]] = {
    "classes of 20 assigned as a whole, the student is the unit": students_of_classes,
    "the same, the class is the unit": classes_as_units,
    "shares 90 : 10": uneven_shares,
    "ramp-up 1 %, 10 %, 50 %, by phase": ramp_up,
    "the same, pooled over phases": pooled_ramp_up,
    "happier students rate more often, shares 90 : 10": missing_ratings,
}


def population_alarms(chance: np.random.Generator, population: Population) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the interval that decides excludes 0, and whether ± 1.96 standard errors do."""
    entries, first_days = population(chance)
    phase_by_day = np.searchsorted(first_days, np.arange(DAYS), side="right") if first_days else np.zeros(DAYS, int)
    cells = entries.arms * DAYS + entries.days
    sums = [
        np.bincount(cells, weights, minlength=2 * DAYS).reshape(2, DAYS)
        for weights in (np.ones(len(cells)), entries.values, entries.values**2)
    ]
    for day in range(1, DAYS + 1):
        strata = []
        for phase in range(int(phase_by_day[day - 1]) + 1):
            days = np.flatnonzero(phase_by_day[:day] == phase)
            control, treatment = (
                SampleMeanStatistic(
                    int(sums[0][arm, days].sum()), *(float(table[arm, days].sum()) for table in sums[1:])
                )
                for arm in (0, 1)
            )
            strata.append((control, treatment))
        comparison = compare_variants(*estimate_stratified(strata), alpha=ALPHA, mde=MDE, max_value=MAX_VALUE)
        if comparison.decides:
            yield excludes_zero(comparison), exceeds_fixed_interval(comparison)


def excludes_zero(comparison: VariantComparison) -> bool:
    """Return whether the confidence sequence excludes 0."""
    lower, upper = comparison.lower, comparison.upper
    return lower is not None and upper is not None and (lower > 0 or upper < 0)


def exceeds_fixed_interval(comparison: VariantComparison) -> bool:
    """Return whether the effect is outside ± 1.96 standard errors, the interval of a single look."""
    effect, standard_error = comparison.difference.effect, comparison.difference.standard_error
    return effect is not None and standard_error is not None and abs(effect) > _FIXED_Z * standard_error
