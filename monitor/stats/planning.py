"""Planning: how many students and days an experiment needs until an effect of `mde` is resolved.

The plan applies the product's own tests to the numbers of students that it plans: the confidence sequence of
`compare_variants` for the primary metric, and that of `evaluate_guardrail` for each guardrail. It is no fixed-horizon
calculation, so a plan and the later verdict agree.

**Variance.** With N students in all variants and shares a and b of control and treatment, the variance of the effect is
se² = V_c/(a·N) + V_t/(b·N). V is the variance of a student's mean. From assumptions about responses it is
V = σ²·(1 + (m − 1)·ρ)/m, with the variance σ² of a response, m responses per student and the intra-student correlation
ρ (Kish 1965, section 5.4: the variance of the mean of a cluster).

**Students.** The primary metric needs the N at which mde − z·se equals half of the interval's width, where z is the
quantile of the power. A guardrail without harm needs the N at which margin − z·se equals the upper bound of the harm.
With G guardrails, each of the 1 + G tests may fail with an equal part of 1 − power, as for `Verdict.days_to_power`.

**Days.** The cohort of day d is closed `exposure_days` after the start of d, plus the feedback window and the closing
delay. So D days of first responses lead to a decision after D + `exposure_days` − 1 days plus these windows.

**Pre-period.** CUPED multiplies V by 1 − r², where r is the correlation of a student's means before and within the
experiment (Deng, Xu, Kohavi & Walker, WSDM 2013). If students are as they were and gave m responses in both periods, r
is the reliability of a mean of m responses, m·ρ/(1 + (m − 1)·ρ) (Spearman 1910; Brown 1910).

References: Kish, "Survey sampling", 1965. Howard et al. 2021 (see `monitor.stats.confidence_sequences`). Spearman,
"Correlation calculated from faulty data", and Brown, "Some experimental results in the correlation of mental
abilities", both Brit. J. Psychol. 3, 1910.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Final

from monitor.stats.argument_checks import check_level, check_non_negative, check_positive
from monitor.stats.comparison import (
    MIN_UNITS_FOR_DECISION,
    compare_variants,
    information_to_hold,
    information_to_resolve,
    split_alpha,
)
from monitor.stats.estimates import Estimate
from monitor.stats.guardrails import Guardrail, evaluate_guardrail, tuning_margin

MAX_PLANNED_DAYS: Final = 365.0
"""A requirement of more days cannot be reached in practice."""
_MAX_STUDENTS: Final = 1e12
_BISECTIONS: Final = 30
"""Halvings of an interval between N and 2·N: the result is exact to 10⁻⁹."""
_FIRST_BRACKET_FACTOR: Final = 1 + 1e-9
"""Absorbs rounding where the formula without corrections gives the answer."""


def student_variance(response_variance: float, responses_per_student: float, correlation: float) -> float:
    """Return the variance σ²·(1 + (m − 1)·ρ)/m of the mean of a student's m responses.

    Raises `ValueError` for a negative variance, m < 1 or ρ outside 0 to 1.

    By hand: four responses of variance 2 with ρ = 0.5: 2·(1 + 1.5)/4. With ρ = 1 the responses are copies.

    >>> student_variance(2.0, 4.0, 0.5), student_variance(2.0, 4.0, 1.0), student_variance(2.0, 4.0, 0.0)
    (1.25, 2.0, 0.5)
    """
    check_non_negative("response_variance", response_variance)
    _check_cluster(responses_per_student, correlation)
    return response_variance * (1 + (responses_per_student - 1) * correlation) / responses_per_student


def intra_student_correlation(design_effect: float, weighted_responses: float) -> float | None:
    """Return the correlation ρ of the responses of a student, from 0 to 1, that explains a design effect.

    The design effect is 1 + (m − 1)·ρ with m = Σn²/Σn over the responses n of each student (Kish 1965, section 8.2).
    None if no student has two responses.

    >>> intra_student_correlation(2.5, 4.0), intra_student_correlation(1.0, 1.0)
    (0.5, None)
    """
    if weighted_responses <= 1:
        return None
    return min(max((design_effect - 1) / (weighted_responses - 1), 0.0), 1.0)


def pre_period_correlation(responses_per_student: float, correlation: float) -> float:
    """Return the correlation m·ρ/(1 + (m − 1)·ρ) of a student's means of m responses before and in the experiment.

    This is an upper bound: students change, and new students have no responses from before.

    By hand: four responses with ρ = 0.5: 2/2.5.

    >>> pre_period_correlation(4.0, 0.5), pre_period_correlation(1.0, 0.3)
    (0.8, 0.3)
    """
    _check_cluster(responses_per_student, correlation)
    return responses_per_student * correlation / (1 + (responses_per_student - 1) * correlation)


def _check_cluster(responses_per_student: float, correlation: float) -> None:
    if not 1 <= responses_per_student < math.inf:
        raise ValueError(f"responses_per_student is {responses_per_student!r}, expected a number of at least 1")
    if not 0 <= correlation <= 1:
        raise ValueError(f"correlation is {correlation!r}, expected a number from 0 to 1")


@dataclass(frozen=True, slots=True)
class StudentValues:
    """The distribution of a student's value of a metric in one variant."""

    mean: float
    variance: float
    """Variance between students."""


@dataclass(frozen=True, slots=True)
class PlannedGuardrail:
    """A guardrail with the distributions of its metric; the plan assumes that the treatment does no harm."""

    guardrail: Guardrail
    control: StudentValues
    treatment: StudentValues
    students_ratio: float = 1.0
    """Students with a value of the guardrail's metric per student with a value of the primary metric."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """When students enter and when they are counted; values out of range raise ValueError."""

    students_per_day: float
    """New students of all variants per day who will be compared."""
    exposure_days: int = 3
    closing_days: float = 1.0
    """Feedback window and closing delay."""
    min_days: float = 7

    def __post_init__(self) -> None:
        check_positive("students_per_day", self.students_per_day)
        for name in ("exposure_days", "closing_days", "min_days"):
            check_non_negative(name, getattr(self, name))

    @property
    def window_days(self) -> float:
        """Days from the last day of first responses that counts to the decision."""
        return max(self.exposure_days - 1, 0) + self.closing_days

    def days_to_decide(self, students: float) -> float:
        """Return the days from the start until so many students are closed, and `min_days` are over.

        By hand: 250 students at 100 per day need 2.5 days, but at least 7; then 2 days and a feedback window of a day.

        >>> Schedule(100).days_to_decide(250), Schedule(100).days_to_decide(1000)
        (10.0, 13.0)
        """
        return max(students / self.students_per_day, self.min_days) + self.window_days

    def students_after(self, days: float) -> float:
        """Return the number of closed students so many days after the start; 0 before `min_days` are closed."""
        entry_days = days - self.window_days
        return entry_days * self.students_per_day if entry_days >= max(self.min_days, 0.0) and entry_days > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Shares:
    """The parts of all students that control and treatment get; other treatments get the rest."""

    control: float
    treatment: float

    def __post_init__(self) -> None:
        if not (self.control > 0 and self.treatment > 0 and self.control + self.treatment <= 1 + 1e-9):
            raise ValueError(
                f"shares are {self.control!r} and {self.treatment!r}, expected positive numbers that sum to at most 1"
            )

    @classmethod
    def of_treatment(cls, treatment: float, treatments: int = 1) -> Shares:
        """Return the shares if each of several treatments gets `treatment`, and the control the rest."""
        return cls(round(1 - treatments * treatment, 12), treatment)


@dataclass(frozen=True, slots=True)
class PlanAssumptions:
    """The values on which a plan depends, from a store or from assumptions; wrong values raise ValueError."""

    mde: float
    control: StudentValues
    treatment: StudentValues
    schedule: Schedule
    alpha: float = 0.05
    """The error rate of all treatments together."""
    treatments: int = 1
    max_value: float | None = None
    """The largest value of a student; None if unknown. With it, rare values widen the interval as in verdicts."""
    min_value: float = 0.0
    guardrails: tuple[PlannedGuardrail, ...] = ()

    def __post_init__(self) -> None:
        check_positive("mde", self.mde)
        check_level("alpha", self.alpha)
        split_alpha(self.alpha, self.treatments)
        for values in (self.control, self.treatment):
            check_non_negative("variance", values.variance)
        if not self.control.variance + self.treatment.variance:
            raise ValueError("variance is 0 in both variants, expected a metric that varies between students")

    @property
    def treatment_alpha(self) -> float:
        """The error rate of each treatment."""
        return split_alpha(self.alpha, self.treatments)

    def reduce_variance(self, fraction: float) -> PlanAssumptions:
        """Return the assumptions with a variance of the primary metric that is smaller by a fraction below 1."""
        if not fraction < 1:
            raise ValueError(f"fraction is {fraction!r}, expected a number below 1")
        control, treatment = (
            replace(values, variance=values.variance * (1 - fraction)) for values in (self.control, self.treatment)
        )
        return replace(self, control=control, treatment=treatment)


@dataclass(frozen=True, slots=True)
class Requirement:
    """The students and days that a decision needs with a power."""

    power: float
    students: float | None
    """Students of all variants; None if unknown, for example for a guardrail of which no event was ever counted."""
    control_students: float | None
    treatment_students: float | None
    days: float | None
    """Days from the start to the decision; None if unknown."""
    last_test: str | None
    """The guardrail that needs the most students; None: the primary metric."""

    @property
    def is_reachable(self) -> bool:
        """Whether the decision is possible within a year."""
        return self.days is not None and self.days <= MAX_PLANNED_DAYS


@dataclass(frozen=True, slots=True)
class SharePlan:
    """The requirements at one pair of shares, by power."""

    shares: Shares
    requirements: tuple[Requirement, ...]


@dataclass(frozen=True, slots=True)
class ResolvableEffect:
    """The smallest effect that is resolved after so many days, with a power."""

    days: float
    students: float
    """Closed students of all variants."""
    mde: float | None
    """None before the first decision: fewer than `min_days`, or than 50 students in a variant."""


def plan_shares(
    assumptions: PlanAssumptions, shares: Sequence[Shares], powers: Sequence[float]
) -> tuple[SharePlan, ...]:
    """Return the requirements at each pair of shares, for each power."""
    return tuple(
        SharePlan(pair, tuple(_require(assumptions, pair, check_level("power", power)) for power in powers))
        for pair in shares
    )


def _require(assumptions: PlanAssumptions, shares: Shares, power: float) -> Requirement:
    part_power = 1 - (1 - power) / (1 + len(assumptions.guardrails))
    needed: list[tuple[float | None, str | None]] = [(students_to_resolve(assumptions, shares, part_power), None)]
    needed += [
        (students_to_hold(assumptions, item, shares, part_power), item.guardrail.name)
        for item in assumptions.guardrails
    ]
    if any(students is None for students, _ in needed):
        unknown = next((name for students, name in needed if students is None), None)
        return Requirement(power, None, None, None, None, unknown)
    students, last_test = max(((students or 0.0, name) for students, name in needed), key=lambda pair: pair[0])
    return Requirement(
        power,
        students,
        students * shares.control,
        students * shares.treatment,
        assumptions.schedule.days_to_decide(students),
        last_test,
    )


def students_to_resolve(assumptions: PlanAssumptions, shares: Shares, power: float) -> float | None:
    """Return the students of all variants with whom an effect of `mde` on the primary metric is resolved.

    At most 10¹²; None if that is not enough.

    By hand: a power of 50 % needs the information 9.21/mde² (`information_to_resolve`), so with equal shares and a
    variance of 4 in both variants 9.21·(4/0.5 + 4/0.5) = 147 students for an mde of 1.

    >>> values = StudentValues(mean=0.0, variance=4.0)
    >>> assumptions = PlanAssumptions(1.0, values, values, Schedule(students_per_day=100))
    >>> round(students_to_resolve(assumptions, Shares(0.5, 0.5), 0.5))
    147
    """
    alpha, z = assumptions.treatment_alpha, NormalDist().inv_cdf(power)
    start = information_to_resolve(assumptions.mde, alpha, power) * _variance_of_one(
        assumptions.control.variance, assumptions.treatment.variance, shares
    )

    def has_enough(students: float) -> bool:
        control = _planned_estimate(assumptions.control, students * shares.control)
        treatment = _planned_estimate(assumptions.treatment, students * shares.treatment)
        comparison = compare_variants(
            control,
            treatment,
            alpha=alpha,
            mde=assumptions.mde,
            max_value=assumptions.max_value,
            min_value=assumptions.min_value,
        )
        standard_error = comparison.difference.standard_error
        if comparison.lower is None or comparison.upper is None or standard_error is None:
            return False
        half_width = (comparison.upper - comparison.lower) / 2
        return assumptions.mde - z * standard_error >= half_width

    return _smallest_number(has_enough, max(start, _least_students(shares)))


def students_to_hold(
    assumptions: PlanAssumptions, planned: PlannedGuardrail, shares: Shares, power: float
) -> float | None:
    """Return the students of all variants with whom a guardrail without harm is held; None if unknown or too many.

    The students are those with a value of the primary metric.
    """
    guardrail, alpha, z = planned.guardrail, assumptions.treatment_alpha, NormalDist().inv_cdf(power)
    harmless = replace(planned.treatment, mean=planned.control.mean)
    margin = guardrail.absolute_margin(planned.control.mean)
    if not margin or margin < 0 or not planned.control.variance + planned.treatment.variance:
        return None
    allowed_factor = 1.0
    if guardrail.is_relative:
        allowed_factor += guardrail.margin if guardrail.harmful_direction == "up" else -guardrail.margin
    start = information_to_hold(margin, alpha, power, tuning_margin(guardrail)) * _variance_of_one(
        allowed_factor**2 * planned.control.variance, planned.treatment.variance, shares
    )

    def has_enough(students: float) -> bool:
        control = _planned_estimate(planned.control, students * shares.control)
        treatment = _planned_estimate(harmless, students * shares.treatment)
        result = evaluate_guardrail(
            guardrail, control, treatment, alpha=alpha, guardrails=max(len(assumptions.guardrails), 1)
        )
        if result.most_harm is None:
            return False
        variance = allowed_factor**2 * (control.variance or 0.0) + (treatment.variance or 0.0)
        return margin - z * math.sqrt(variance) >= result.most_harm

    students = _smallest_number(has_enough, max(start, _least_students(shares)))
    return None if students is None else students / planned.students_ratio


def _variance_of_one(control_variance: float, treatment_variance: float, shares: Shares) -> float:
    """Return V_c/a + V_t/b: N times the variance of the effect with N students."""
    return control_variance / shares.control + treatment_variance / shares.treatment


def _least_students(shares: Shares) -> float:
    """Return the number of students with which each of the two variants has the 50 that a decision needs."""
    return MIN_UNITS_FOR_DECISION / min(shares.control, shares.treatment)


def _planned_estimate(values: StudentValues, students: float) -> Estimate:
    return Estimate(math.ceil(students - 1e-6), values.mean, values.variance / students)


def _smallest_number(has_enough: Callable[[float], bool], start: float) -> float | None:
    """Return the smallest number from `start` on that is enough, to 10⁻⁹; None if 10¹² is not enough."""
    if has_enough(start * _FIRST_BRACKET_FACTOR):
        return start
    low, high = start, 2 * start
    while not has_enough(high):
        low, high = high, 2 * high
        if low > _MAX_STUDENTS:
            return None
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if has_enough(middle) else (middle, high)
    return high


def resolvable_effects(
    assumptions: PlanAssumptions, shares: Shares, power: float, days: Sequence[float]
) -> tuple[ResolvableEffect, ...]:
    """Return the smallest mde that is resolved after each number of days, if the sequence is tuned for that mde.

    Guardrails are not considered: their margins do not depend on the mde. The needed information is inversely
    proportional to mde², so the mde is found from that of an mde of 1. Rare values are considered from the students.

    By hand: 8 days after the start with windows of 3 days, 5 days of 100 students: I = 500/16, mde = √(9.21/I).

    >>> values = StudentValues(mean=0.0, variance=4.0)
    >>> assumptions = PlanAssumptions(1.0, values, values, Schedule(students_per_day=100, min_days=5))
    >>> (effect,) = resolvable_effects(assumptions, Shares(0.5, 0.5), 0.5, [8])
    >>> effect.students, round(effect.mde, 3)
    (500.0, 0.543)
    """
    effects = []
    for number in days:
        students = assumptions.schedule.students_after(number)
        effects.append(ResolvableEffect(number, students, _resolvable_mde(assumptions, shares, power, students)))
    return tuple(effects)


def _resolvable_mde(assumptions: PlanAssumptions, shares: Shares, power: float, students: float) -> float | None:
    if students < _least_students(shares):
        return None
    variance_of_one = _variance_of_one(assumptions.control.variance, assumptions.treatment.variance, shares)
    unit_information = information_to_resolve(1.0, assumptions.treatment_alpha, power)
    start = math.sqrt(unit_information * variance_of_one / students)

    def is_resolved(mde: float) -> bool:
        needed = students_to_resolve(replace(assumptions, mde=mde), shares, power)
        return needed is not None and needed <= students * _FIRST_BRACKET_FACTOR

    return _smallest_number(is_resolved, start)


def fixed_horizon_students(assumptions: PlanAssumptions, shares: Shares, power: float) -> float:
    """Return the students that a z-test needs that is looked at only once, (z_{1−α/2} + z_power)²·(V_c/a + V_t/b)/mde².

    For comparison with other calculators only: readers look at this product at any time, so such a test is not valid.

    By hand: (1.96 + 0.84)² = 7.85 for 5 % and 80 %, times 16 for a variance of 4 and equal shares.

    >>> values = StudentValues(mean=0.0, variance=4.0)
    >>> assumptions = PlanAssumptions(1.0, values, values, Schedule(students_per_day=100))
    >>> round(fixed_horizon_students(assumptions, Shares(0.5, 0.5), 0.8))
    126
    """
    quantiles = NormalDist().inv_cdf(1 - assumptions.treatment_alpha / 2) + NormalDist().inv_cdf(power)
    variance_of_one = _variance_of_one(assumptions.control.variance, assumptions.treatment.variance, shares)
    return quantiles**2 * variance_of_one / assumptions.mde**2
