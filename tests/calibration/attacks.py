"""Simulated experiments in which the compared students differ between the variants, or are no independent students.

Each attack makes a treatment without any gain seem better. A run counts twice: whether the interval alone would have
shipped the treatment on any day, and whether the verdict did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import numpy as np

from monitor.clock import DAY_MS
from monitor.config import DecisionSettings, MetricSpec
from monitor.metrics import FIXED_POINT_SCALE, CohortField, FloatArray, IntArray, RecordLayout, UnitField
from monitor.stats import StoredStudentSums, Verdict
from monitor.stats.data_quality import DataQuality, ResponseQuality
from tests.support.streams import EXPERIMENT
from tests.support.units import analyze, cohort_records

DAYS: Final = 21
STUDENTS: Final = 4000
FIRST_DAY: Final = 20_454
VARIANTS: Final = ("control", "treatment")
MAX_VALUE: Final = 8.0
"""The value that counts as an nDCG of 1."""
ATTACKED: Final = replace(
    EXPERIMENT,
    metrics=(MetricSpec("ndcg@5", "ndcg", 5),),
    primary="ndcg@5",
    categories=(),
    decision=DecisionSettings(mde=0.1 / MAX_VALUE),
)
"""All criteria but the primary metric, which can be undefined, and the mde are defaults."""
RESPONSES: Final = 5
"""Responses of each student; a student rates all of them or none."""


@dataclass
class Units:
    """Simulated units: arrays in the same order."""

    arms: IntArray
    """0 in the control, 1 in the treatment."""
    days: IntArray
    """Day of first exposure, from 0."""
    values: FloatArray
    """The mean of the unit's rated responses."""
    are_rated: IntArray
    undefined: IntArray
    """1 if the metric of the unit's responses is undefined."""
    are_exposed: IntArray
    """1 for students at first exposure, 0 for responses without a user id."""
    are_compared: IntArray
    """0 for students who saw both variants."""
    hours: IntArray
    """UTC hour of first exposure."""
    are_rejected: IntArray
    """1 if all responses of the unit were rejected."""


Attack: TypeAlias = Callable[[np.random.Generator, Units], Units]


def simulate_units(chance: np.random.Generator) -> Units:
    """Return students without any effect, who rate with a probability of 60 %."""
    ones = np.ones(STUDENTS, dtype=np.int64)
    return Units(
        arms=chance.integers(0, 2, STUDENTS),
        days=np.sort(chance.integers(0, DAYS, STUDENTS)),
        values=np.clip(chance.normal(2.0, 1.0, STUDENTS), 0.0, MAX_VALUE),
        are_rated=(chance.random(STUDENTS) < 0.6).astype(np.int64),
        undefined=0 * ones,
        are_exposed=ones,
        are_compared=ones,
        hours=chance.integers(0, 24, STUDENTS),
        are_rejected=0 * ones,
    )


def unhappy_students_stop_rating(_chance: np.random.Generator, units: Units) -> Units:
    """Lower every value of the treatment by 0.1; its students below 1.0 do not rate any more."""
    is_treated = units.arms == 1
    values = np.clip(units.values - 0.1 * is_treated, 0.0, None)
    return replace(units, values=values, are_rated=units.are_rated * ~(is_treated & (values < 1.0)))


def bad_responses_become_undefined(_chance: np.random.Generator, units: Units) -> Units:
    """Leave the treatment's students below 1.0 without any gain: their nDCG is undefined, and not 0."""
    return replace(units, undefined=((units.arms == 1) & (units.values < 1.0)).astype(np.int64))


def responses_without_user_id(chance: np.random.Generator, units: Units) -> Units:
    """Remove the user id of a fifth of the students: each of their responses counts as a unit."""
    is_anonymous = chance.random(STUDENTS) < 0.2
    repeats = np.where(is_anonymous, RESPONSES, 1)
    indices = np.repeat(np.arange(STUDENTS), repeats)
    return Units(
        units.arms[indices],
        units.days[indices],
        units.values[indices],
        units.are_rated[indices],
        units.undefined[indices],
        (~is_anonymous[indices]).astype(np.int64),
        units.are_compared[indices],
        units.hours[indices],
        units.are_rejected[indices],
    )


def bad_students_lost_for_three_days(chance: np.random.Generator, units: Units) -> Units:
    """Lose most of the treatment's students below the mean on the first three days; then repair it."""
    is_lost = (units.arms == 1) & (units.days < 3) & (units.values < 2.0) & (chance.random(STUDENTS) < 0.9)
    return _select(units, ~is_lost)


def bad_students_switch_variants(chance: np.random.Generator, units: Units) -> Units:
    """Show the control, too, to a quarter of the treatment's worst students, who are then left out."""
    is_crossover = (units.arms == 1) & (units.values < 0.6) & (chance.random(STUDENTS) < 0.25)
    return replace(units, are_compared=(~is_crossover).astype(np.int64))


def the_split_changes_within_the_day(chance: np.random.Generator, units: Units) -> Units:
    """Assign 70 % to the treatment in the morning, when students are happier, and 30 % in the afternoon."""
    is_morning = units.hours < 12
    arms = (chance.random(STUDENTS) < np.where(is_morning, 0.7, 0.3)).astype(np.int64)
    return replace(units, arms=arms, values=units.values + 0.6 * is_morning)


def worst_responses_are_rejected(chance: np.random.Generator, units: Units) -> Units:
    """Reject a tenth of the treatment's responses: those of its worst students, whose lists repeat an item."""
    is_rejected = (units.arms == 1) & (units.values < 0.9) & (chance.random(STUDENTS) < 0.8)
    return replace(units, are_rejected=is_rejected.astype(np.int64))


def _select(units: Units, is_kept: np.ndarray) -> Units:
    return Units(*(getattr(units, name)[is_kept] for name in Units.__dataclass_fields__))


def stored_sums(units: Units) -> StoredStudentSums:
    """Return the sums that the store has of the units."""
    layout = RecordLayout.for_experiment(ATTACKED)
    rejected = [int(RESPONSES * ((units.arms == arm) & (units.are_rejected == 1)).sum()) for arm in (0, 1)]
    units = _select(units, units.are_rejected == 0)
    anonymous = units.are_exposed == 0
    responses = np.where(anonymous, 1, RESPONSES)
    rated = responses * units.are_rated
    defined = rated * (1 - units.undefined)
    totals = np.rint(units.values / MAX_VALUE * FIXED_POINT_SCALE).astype(np.int64) * defined
    records = cohort_records(layout, np.stack([responses, rated, totals, rated - defined], axis=1))
    records *= units.are_compared[:, None]
    records[:, CohortField.EXPOSURES] = units.are_exposed
    records[np.arange(len(records)), CohortField.EXPOSURE_HOURS + units.hours] = units.are_exposed
    cohorts: dict[str, dict[int, IntArray]] = {}
    variant_records = {}
    for arm, name in enumerate(VARIANTS):
        is_arm = units.arms == arm
        cohorts[name] = {FIRST_DAY + day: records[is_arm & (units.days == day)].sum(axis=0) for day in range(DAYS)}
        record = np.zeros(layout.unit_width, dtype=np.int64)
        record[UnitField.STUDENTS] = (is_arm & ~anonymous).sum()
        record[UnitField.ANONYMOUS_RESPONSES] = (is_arm & anonymous).sum()
        record[UnitField.CROSSOVERS] = (is_arm & (units.are_compared == 0)).sum()
        record[UnitField.UNITS] = (is_arm & (units.are_compared == 1)).sum()
        variant_records[name] = record
    quality = {
        name: ResponseQuality(int(responses[units.arms == arm].sum()), {"repeated_item": rejected[arm]})
        for arm, name in enumerate(VARIANTS)
    }
    data_quality = DataQuality(quality, responses_per_student=RESPONSES)
    return StoredStudentSums(variant_records, cohorts, data_quality=data_quality)


ATTACKS: Final[Mapping[str, Attack]] = {
    "unhappy students stop rating": unhappy_students_stop_rating,
    "bad responses become undefined": bad_responses_become_undefined,
    "20 % of the students send no user id": responses_without_user_id,
    "bad students lost on three days, then repaired": bad_students_lost_for_three_days,
    "bad students switch variants": bad_students_switch_variants,
    "the split changes within the day": the_split_changes_within_the_day,
    "worst responses are rejected": worst_responses_are_rejected,
}


def attack_verdicts(chance: np.random.Generator, attack: Attack) -> Iterator[Verdict]:
    """Yield the verdict on the treatment of each day."""
    sums = stored_sums(attack(chance, simulate_units(chance)))
    for day in range(11, DAYS + 1):
        yield analyze(ATTACKED, sums, (FIRST_DAY + day) * DAY_MS).verdicts["treatment"]


def is_better(verdict: Verdict) -> bool:
    """Return whether the interval alone shows a gain."""
    return verdict.primary.lower is not None and verdict.primary.lower > 0


def is_shipped(verdict: Verdict) -> bool:
    """Return whether the verdict lets the treatment pass."""
    return verdict.state in {"ship", "non_inferior"}
