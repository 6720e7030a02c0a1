"""The sequential SRM (sample ratio mismatch) test: whether students are split between variants as intended.

The null hypothesis is the intended shares p, the alternative a Dirichlet(k·p) distribution of shares. The marginal
likelihood of the counts under the alternative, divided by their likelihood under p, is an e-process. So the test is
valid at every interim analysis (Lindon & Malek, "Anytime-valid inference for multinomial count data", NeurIPS 2022).
The mean of e-values over several k is again an e-value: large k detect small deviations, small k detect large
deviations sooner.

A mismatch may begin late, after weeks without one. So the test is a mixture over the day on which the mismatch begins:
e = Σ w_s·e(days from s on), where e = 1 for days that have not begun. A mean of e-processes is an e-process. The weight
of the first day is 0.8, that of day s is 0.2/((s − 1)·s), so that the weights sum to 1. A change of the intended shares
starts a new allocation phase with separate counts; within e(days from s on), the e-values of phases multiply.

An alarm persists: the largest e at the end of any day decides. Later students can hide a mismatch, but they do not
repair it. The days are stored, so every reader computes the same largest e.

The same test applies to any group of students that the treatment cannot change: students at first exposure, and, if the
treatment has no effect on who rates or who sees two variants, also the compared students and the crossovers.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from monitor.stats.argument_checks import check_level, check_positive
from monitor.stats.confidence_sequences import anytime_p_value, find_root

CONCENTRATIONS = (10.0, 100.0, 1_000.0, 10_000.0)
"""The values k of the Dirichlet(k·p) alternatives."""
_SHARE_SUM_TOLERANCE = 1e-6
FIRST_DAY_WEIGHT = 0.8
"""Most mismatches begin with the experiment: their detection is delayed by a factor of 1.25 of e only."""
_CACHED_PATHS = 4096
"""Ranges of days, of all experiments, whose e is kept: only the newest day and hour change between two analyses."""
_PATH_STEP = 100

_DayOfPhase: TypeAlias = tuple[tuple[float, ...], tuple[int, ...]]
"""The intended shares above 0 and the students of a day, in the same order of variants."""


@dataclass(frozen=True, slots=True)
class DayCounts:
    """The numbers of students of a day (counted from 1970), by variant."""

    day: int
    students: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PhaseCounts:
    """The intended shares and the numbers of students in an allocation phase, by variant."""

    shares: Mapping[str, float]
    students: Mapping[str, int]
    days: tuple[DayCounts, ...] = ()
    """The same students by day, ascending; empty if the days are unknown: all students then count as one day."""

    @classmethod
    def from_days(cls, shares: Mapping[str, float], days: Iterable[DayCounts]) -> PhaseCounts:
        """Return the counts of a phase from the counts of the phase's days."""
        days = tuple(days)
        variants = {name: None for counts in days for name in counts.students} or dict.fromkeys(shares)
        students = {name: sum(counts.students.get(name, 0) for counts in days) for name in variants}
        return cls(shares, students, days)

    def select(self, variants: Collection[str]) -> PhaseCounts | None:
        """Return the counts of some variants, with their shares scaled to a sum of 1; None if they have no share."""
        total = math.fsum(share for name, share in self.shares.items() if name in variants)
        if not total:
            return None
        return PhaseCounts(
            {name: share / total for name, share in self.shares.items() if name in variants},
            {name: count for name, count in self.students.items() if name in variants},
            tuple(
                DayCounts(day.day, {name: count for name, count in day.students.items() if name in variants})
                for day in self.days
            ),
        )


@dataclass(frozen=True, slots=True)
class VariantShare:
    """A variant's observed and intended share of a phase's students."""

    variant: str
    students: int
    other_students: int
    """The phase's students in the other variants."""
    intended: float
    alpha: float

    @property
    def observed(self) -> float | None:
        """The variant's share of the phase's students; None without students."""
        total = self.students + self.other_students
        return self.students / total if total else None

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of the true share, from a confidence sequence at level 1 − alpha."""
        if self.intended == 1:
            return 0.0, 1.0
        return share_confidence_sequence(self.students, self.other_students, self.intended, self.alpha)

    def to_json(self) -> dict[str, Any]:
        lower, upper = self.bounds()
        shares = {"intended": self.intended, "observed": self.observed, "lower": lower, "upper": upper}
        return {"variant": self.variant, "students": self.students, **shares}


@dataclass(frozen=True, slots=True)
class PhaseSrmResult:
    """The evidence of SRM in an allocation phase, with the observed shares."""

    log_e: float
    students: int
    arms: tuple[VariantShare, ...]
    """Variants with an intended share above 0."""

    @property
    def deviation(self) -> float:
        """The largest absolute difference between an observed and an intended share; 0 without students."""
        return max((abs(arm.observed - arm.intended) for arm in self.arms if arm.observed is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class SrmResult:
    """The result of the SRM test over all allocation phases."""

    alpha: float
    log_e: float
    """ln of the current e, the mixture over the days on which a mismatch may begin."""
    max_log_e: float
    """The largest ln e at the end of any day so far."""
    p: float
    """Anytime-valid p-value, from the largest e so far."""
    mismatch: bool
    """Whether e has reached 1/alpha at the end of any day so far."""
    mismatch_day: int | None
    """The day (counted from 1970) at whose end e first reached 1/alpha; None without a mismatch or without days."""
    empty_variants: tuple[str, ...]
    """Variants with a share that have no students in a phase, too improbably for chance: see `check_srm`."""
    stray_variants: tuple[str, ...]
    """Variants without a share that students were exposed to."""
    phases: tuple[PhaseSrmResult, ...]

    @property
    def alarm(self) -> bool:
        """Whether the split differs from the intended shares: a mismatch, an empty variant or a stray variant."""
        return self.mismatch or bool(self.empty_variants or self.stray_variants)

    def to_json(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "log_e": self.log_e,
            "max_log_e": self.max_log_e,
            "p": self.p,
            "mismatch": self.mismatch,
            "mismatch_day": self.mismatch_day,
            "empty": list(self.empty_variants),
            "stray": list(self.stray_variants),
            "phases": [
                {"log_e": phase.log_e, "students": phase.students, "arms": [arm.to_json() for arm in phase.arms]}
                for phase in self.phases
            ],
            "alarm": self.alarm,
        }


def log_bayes_factor(counts: Sequence[int], shares: Sequence[float], prior: Sequence[float]) -> float:
    """Return ln e = ln B(a + n) − ln B(a) − Σ n·ln p, for counts n, shares p and a Dirichlet prior a.

    Lindon & Malek 2022; B is the multivariate beta function. By hand: one student in each of two equal arms
    under a = (1, 1): B(2, 2)/B(1, 1) = 1/6 against 1/4.

    >>> round(math.exp(log_bayes_factor([1, 1], [0.5, 0.5], [1, 1])), 12)
    0.666666666667
    """
    posterior = [a + n for a, n in zip(prior, counts, strict=True)]
    null_log_likelihood = math.fsum(n * math.log(p) for n, p in zip(counts, shares, strict=True))
    return _log_beta(posterior) - _log_beta(prior) - null_log_likelihood


def srm_log_e_value(
    counts: Sequence[int], shares: Sequence[float], concentrations: Sequence[float] = CONCENTRATIONS
) -> float:
    """Return the ln of the mean of e over the concentrations k, with the prior k·p; all shares must be above 0."""
    log_e_values = [log_bayes_factor(counts, shares, [k * p for p in shares]) for k in concentrations]
    return _log_sum(log_e_values) - math.log(len(log_e_values))


def share_confidence_sequence(
    students: int, other_students: int, share: float, alpha: float, concentrations: Sequence[float] = CONCENTRATIONS
) -> tuple[float, float]:
    """Return the bounds of a variant's true share, at level 1 − `alpha` and valid at every interim analysis.

    `share` is the intended share. The interval contains the shares q that the test does not reject now, which
    satisfy students·ln q + other_students·ln(1 − q) ≥ ln(marginal likelihood) + ln α.
    """
    check_level("alpha", alpha)
    check_level("share", share)
    marginal_log_likelihood = srm_log_e_value(
        (students, other_students), (share, 1 - share), concentrations
    ) + _log_likelihood(students, other_students, share)
    threshold = marginal_log_likelihood + math.log(alpha)

    total = students + other_students
    peak = students / total if total else share
    lower = (
        find_root(lambda q: _log_likelihood(students, other_students, q) - threshold, 0.0, peak) if students else 0.0
    )
    # The upper bound is computed as its distance from 1, which may be too small to change a float near 1.
    distance_from_one = (
        find_root(lambda q: _log_likelihood(other_students, students, q) - threshold, 0.0, 1 - peak)
        if other_students
        else 0.0
    )
    return lower, 1 - distance_from_one


def check_srm(phases: Sequence[PhaseCounts], *, alpha: float = 0.01) -> SrmResult:
    """Return the result of the SRM test at level `alpha` over all allocation phases.

    A variant with share p has no student among n with probability (1 − p)ⁿ. The variant counts as empty if this
    probability is at most `alpha` divided by the number of such variants and phases. An empty variant can only stop
    being empty, so this check, too, is valid at every interim analysis.
    """
    check_level("alpha", alpha)
    empty_alpha = alpha / max(1, sum(len(_intended_shares(phase)) for phase in phases))
    phase_results, empty_variants, stray_variants = [], set(), set()
    days: list[_DayOfPhase] = []
    day_numbers: list[int | None] = []
    for phase in phases:
        shares = _intended_shares(phase)
        counts = {variant: phase.students.get(variant, 0) for variant in shares}
        total = sum(counts.values())
        has_choice = total and len(shares) > 1
        log_e = _cached_log_e_value(tuple(counts.values()), tuple(shares.values())) if has_choice else 0.0
        if has_choice:
            share_values = tuple(shares.values())
            for day in phase.days or (None,):
                students = phase.students if day is None else day.students
                days.append((share_values, tuple(students.get(variant, 0) for variant in shares)))
                day_numbers.append(None if day is None else day.day)
        arms = tuple(
            VariantShare(variant, counts[variant], total - counts[variant], share, alpha)
            for variant, share in shares.items()
        )
        phase_results.append(PhaseSrmResult(log_e, total, arms))
        empty_variants |= {
            arm.variant for arm in arms if not arm.students and (1 - arm.intended) ** total <= empty_alpha
        }
        stray_variants |= {
            variant for variant, students in phase.students.items() if students and variant not in shares
        }
    log_e_path = _log_e_path(tuple(days)) if days else ()
    max_log_e = max(log_e_path, default=0.0)
    threshold = -math.log(alpha)
    alarm_days = [day for day, log_e in zip(day_numbers, log_e_path, strict=True) if log_e >= threshold]
    return SrmResult(
        alpha=alpha,
        log_e=log_e_path[-1] if log_e_path else 0.0,
        max_log_e=max_log_e,
        p=anytime_p_value(max_log_e),
        mismatch=bool(alarm_days),
        mismatch_day=alarm_days[0] if alarm_days else None,
        empty_variants=tuple(sorted(empty_variants)),
        stray_variants=tuple(sorted(stray_variants)),
        phases=tuple(phase_results),
    )


@lru_cache(maxsize=_CACHED_PATHS)
def _cached_log_e_value(counts: tuple[int, ...], shares: tuple[float, ...]) -> float:
    return srm_log_e_value(counts, shares)


def _start_weight(day: int) -> float:
    """Return the weight of a mismatch that begins on day number `day` ≥ 1; the weights of all days sum to 1."""
    return FIRST_DAY_WEIGHT if day == 1 else (1 - FIRST_DAY_WEIGHT) / ((day - 1) * day)


def _log_e_path(days: tuple[_DayOfPhase, ...]) -> tuple[float, ...]:
    """Return ln of the mixture at the end of each day."""
    for length in range(_PATH_STEP, len(days), _PATH_STEP):
        _cached_log_e_path(days[:length])  # limits the depth of the recursion
    return _cached_log_e_path(days)


@lru_cache(maxsize=_CACHED_PATHS)
def _cached_log_e_path(days: tuple[_DayOfPhase, ...]) -> tuple[float, ...]:
    earlier_path = _cached_log_e_path(days[:-1]) if len(days) > 1 else ()
    return (*earlier_path, _mixture_log_e(days))


def _mixture_log_e(days: tuple[_DayOfPhase, ...]) -> float:
    """Return ln Σ w_s·e_s at the end of the last day; e_s is over the days from s on, and 1 if s is in the future."""
    log_terms = []
    finished_phases_log_e = 0.0
    shares = days[-1][0]
    counts = [0] * len(shares)
    remaining_weight = 1.0
    for start in range(len(days), 0, -1):
        day_shares, day_counts = days[start - 1]
        if day_shares != shares:
            finished_phases_log_e += _cached_log_e_value(tuple(counts), shares)
            shares, counts = day_shares, [0] * len(day_shares)
        counts = [total + count for total, count in zip(counts, day_counts, strict=True)]
        weight = _start_weight(start)
        remaining_weight -= weight
        log_terms.append(math.log(weight) + finished_phases_log_e + _cached_log_e_value(tuple(counts), shares))
    if remaining_weight > 0:
        log_terms.append(math.log(remaining_weight))
    return _log_sum(log_terms)


def _log_sum(log_terms: Sequence[float]) -> float:
    """Return ln Σ exp(term), without overflow."""
    max_term = max(log_terms)
    return max_term + math.log(math.fsum(math.exp(term - max_term) for term in log_terms))


def _intended_shares(phase: PhaseCounts) -> dict[str, float]:
    """Return the phase's shares above 0, scaled to a sum of exactly 1; raise ValueError for invalid shares."""
    for variant, share in phase.shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {variant} is {share!r}, expected 0 to 1")
    total = check_positive("the sum of shares", math.fsum(phase.shares.values()))
    if abs(total - 1) > _SHARE_SUM_TOLERANCE:
        raise ValueError(f"the sum of shares is {total!r}, expected 1")
    return {variant: share / total for variant, share in phase.shares.items() if share > 0}


def _log_beta(parameters: Sequence[float]) -> float:
    return math.fsum(map(math.lgamma, parameters)) - math.lgamma(math.fsum(parameters))


def _log_likelihood(students: int, other_students: int, share: float) -> float:
    """Return students·ln(share) + other_students·ln(1 − share), where 0·ln 0 is 0."""
    other_term = other_students * math.log1p(-share) if other_students else 0.0
    return (students * math.log(share) if students else 0.0) + other_term
