"""Simulates experiments without an effect, looked at every hour, and prints how often each rule says there is one.

`python -m tests.calibration --runs 2000`. Students arrive over 28 days, answer several times, and resemble themselves
(intra-student correlation 0.3). Closed sums change once a day, so looking hourly is looking daily.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monitor.config import AllocationSettings, DecisionSettings
from monitor.engine.accumulator import CELL_BITS, Accumulator
from monitor.engine.response_row import MISSING, PRE_PERIOD
from monitor.engine.student import Student
from monitor.metrics import SCALE
from monitor.metrics.record_layout import Layout
from monitor.stats import Comparison, StoredStudents, UnitSums, compare
from monitor.stats.comparison import mixture_for
from monitor.stats.estimates import RatioSums
from monitor.stats.srm import log_e_value
from tests.support.streams import EXPERIMENT
from tests.support.units import cohort_terms, judge

DAYS, STUDENTS, CORRELATION, MDE, ALPHA = 28, 2000, 0.3, 0.1, 0.05
FIRST = 20_454
"""A UTC day."""
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
NAMES = ("control", "treatment")
SHARES = {"control": 0.5, "treatment": 0.5}
SINGLE = replace(
    EXPERIMENT,
    metrics=EXPERIMENT.metrics[:1],
    decision=DecisionSettings(mde=MDE, alpha=ALPHA, min_days=0, guardrails=()),
)
LOOKED_INTO = replace(
    SINGLE,
    categories=("fractions", "geometry", "grammar"),
    novelty=True,
    starts_at_ms=FIRST * DAY_MS,
    pre_period_ms=7 * DAY_MS,
)
"""With segments, ages and what students were like before."""
EARLIER = 5
"""Responses of each student before the experiment."""
RAMP_DAY = 14
RAMPED = replace(
    SINGLE,
    variants={"control": 0.9, "treatment": 0.1},
    decision=replace(SINGLE.decision, allocations=(AllocationSettings((FIRST + RAMP_DAY) * DAY_MS, SHARES),)),
)

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """One simulated experiment: students in the order of their numbers, responses in the order of time."""

    arms: Ints
    """0 or 1 by student."""
    days: Ints
    """Of first exposure, by student."""
    students: Ints
    """By response."""
    hours: Floats
    """Since the beginning, by response."""
    values: Floats
    before: Floats
    """Mean of a student's responses before the experiment."""
    categories: Ints
    """Of the first response, by student."""


def traffic(chance: np.random.Generator, *, ramp: bool = False) -> Traffic:
    """Return an experiment without an effect; in a ramp-up one student in ten is treated at first, on worse days."""
    first = np.sort(chance.uniform(0, DAYS * 24, STUDENTS))
    days = (first // 24).astype(np.int64)
    treated = np.where(days < RAMP_DAY, 0.1, 0.5) if ramp else np.full(STUDENTS, 0.5)
    arms = (chance.random(STUDENTS) < treated).astype(np.int64)
    more = chance.poisson(5, STUDENTS)
    students = np.repeat(np.arange(STUDENTS), 1 + more)
    begins = np.concatenate(([0], np.cumsum(1 + more)[:-1]))
    hours = first[students] + chance.exponential(72, len(students))
    hours[begins] = first
    inside = hours < DAYS * 24
    students, hours = students[inside], hours[inside]
    ability = chance.normal(0, math.sqrt(CORRELATION), STUDENTS)
    values = 10 + ability[students] + chance.normal(0, math.sqrt(1 - CORRELATION), len(students))
    values += 0.5 * (days[students] >= RAMP_DAY) * ramp
    order = np.argsort(hours, kind="stable")
    before = 10 + ability + chance.normal(0, math.sqrt((1 - CORRELATION) / EARLIER), STUDENTS)
    categories = chance.integers(-1, len(LOOKED_INTO.categories) + 1, STUDENTS)
    return Traffic(arms, days, students[order], hours[order], values[order], before, categories)


def stored(seen: Traffic) -> StoredStudents:
    """Return the sums that the store would hold, with whole windows; readers take those that are over."""
    layout = Layout.of(SINGLE)
    inside = seen.hours // 24 < seen.days[seen.students] + SINGLE.exposure_days
    count = np.bincount(seen.students[inside], minlength=STUDENTS)
    total = np.bincount(seen.students[inside], np.rint(seen.values[inside] * SCALE), minlength=STUDENTS)
    sums = np.stack([count, count, total.astype(np.int64), np.zeros_like(count)], axis=1)
    terms = cohort_terms(layout, sums)
    terms[:, 0] = 1
    cohorts: dict[str, dict[int, Ints]] = {name: {} for name in NAMES}
    for arm, name in enumerate(NAMES):
        for day in range(DAYS):
            cohorts[name][FIRST + day] = terms[(seen.arms == arm) & (seen.days == day)].sum(axis=0)
    units = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in NAMES}
    return StoredStudents(units, cohorts, (FIRST + DAYS) * DAY_MS)


def stored_whole(seen: Traffic) -> StoredStudents:
    """Return the sums that come of the students' rows, response by response, as the service makes them."""
    layout = Layout.of(LOOKED_INTO)
    students: dict[int, Student] = {}
    arms, categories = seen.arms.tolist(), seen.categories.tolist()
    fixed = np.rint(seen.values * SCALE).astype(np.int64).tolist()
    times = (FIRST * DAY_MS + seen.hours * HOUR_MS).astype(np.int64).tolist()
    for number, at_ms, value in zip(seen.students.tolist(), times, fixed, strict=True):
        if number not in students:
            students[number] = Student(layout.sums_width)
        students[number].add(at_ms, arms[number], categories[number], (1, 1, value, 0), layout.kept_days)
    tally = Accumulator(layout, [])
    for number, student in students.items():
        earlier = round(seen.before[number] * EARLIER * SCALE)
        student.add(0, PRE_PERIOD, MISSING, (EARLIER, EARLIER, earlier, 0), layout.kept_days)
        tally.add_student(1, student)
    cohorts: dict[str, dict[int, Ints]] = {name: {} for name in NAMES}
    for cell, record in tally.cohorts.items():
        cohorts[NAMES[cell >> CELL_BITS]][cell & (1 << CELL_BITS) - 1] = np.array(record.integers())
    units = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in NAMES}
    return StoredStudents(units, cohorts, (FIRST + DAYS) * DAY_MS)


def adjusted_looks(seen: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield, day by day, whether 0 is outside of the adjusted interval, and of the one without adjustment."""
    held = stored_whole(seen)
    for day in range(4, DAYS + 1):
        verdict = judge(LOOKED_INTO, held, (FIRST + day) * DAY_MS).verdicts["treatment"]
        yield _outside(verdict.primary), verdict.unadjusted is not None and _outside(verdict.unadjusted)


def parted_looks(seen: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield, day by day, whether any segment, and any age that can be over, is marked as discovered."""
    held = stored_whole(seen)
    for day in range(2, DAYS + 1):
        parts = judge(LOOKED_INTO, held, (FIRST + day) * DAY_MS).parts["treatment"]
        yield any(each.discovered for each in parts.segments), any(each.discovered for each in parts.ages[:-1])


def _outside(compared: Comparison) -> bool:
    lower, upper = compared.lower, compared.upper
    return compared.decides and lower is not None and upper is not None and (lower > 0 or upper < 0)


def closed_looks(seen: Traffic, experiment: object = SINGLE) -> Iterator[tuple[bool, bool]]:
    """Yield, day by day, whether 0 is outside of the interval that decides, and whether the verdict is a decision."""
    held = stored(seen)
    for day in range(4, DAYS + 1):
        judgement = judge(experiment, held, (FIRST + day) * DAY_MS)  # type: ignore[arg-type]
        verdict = judgement.verdicts["treatment"]
        yield _outside(verdict.primary), verdict.state in {"ship", "stop_harm"}


def live_looks(seen: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield, hour by hour, whether 0 is outside of the live interval, and outside of 1.96 standard errors."""
    grouped = np.argsort(seen.students, kind="stable")
    student, value = seen.students[grouped], seen.values[grouped]
    starts = np.flatnonzero(np.concatenate(([True], student[1:] != student[:-1])))
    number = np.arange(len(student)) - np.repeat(starts, np.diff([*starts, len(student)])) + 1.0
    running = np.cumsum(value)
    before = running - value
    own = running - np.repeat(before[starts], np.diff([*starts, len(student)]))
    steps = np.stack(
        [number == 1, value, np.ones_like(value), 2 * own * value - value**2, 0 * value, 2 * number - 1], axis=1
    )
    steps[:, 4] = own * number - (own - value) * (number - 1)
    in_time = np.empty_like(steps)
    in_time[grouped] = steps
    arm = seen.arms[seen.students]
    sums = [np.cumsum(in_time * (arm == each)[:, None], axis=0) for each in (0, 1)]
    for hour in range(24, DAYS * 24 + 1):
        at = int(np.searchsorted(seen.hours, hour)) - 1
        control, treatment = (RatioSums(int(each[at, 0]), *map(float, each[at, 1:])).estimate() for each in sums)
        found = compare(control, treatment, alpha=ALPHA, mde=MDE, estimand="live")
        if found.lower is not None and found.upper is not None:
            effect, error = found.difference.effect or 0.0, found.difference.standard_error or math.inf
            yield found.lower > 0 or found.upper < 0, abs(effect) > 1.96 * error


def rare_looks(
    chance: np.random.Generator, share: float, students: int, rates: Mapping[float, float], mde: float = MDE / 2
) -> Iterator[tuple[bool, bool]]:
    """Yield, day by day, whether 0 is outside where students have these values at these rates, in both variants.

    Second: whether it is outside of an interval that takes the variances as they are seen.
    """
    mixture = mixture_for(mde, ALPHA)
    values = np.array(list(rates))
    seen = np.zeros((2, len(values)), dtype=np.int64)
    for _ in range(DAYS):
        new = chance.poisson(students / DAYS * np.array([1 - share, share]))
        seen += chance.multinomial(new, list(rates.values()))
        arms = [UnitSums(int(n.sum()), float(n @ values), float(n @ values**2)).estimate() for n in seen]
        found = compare(*arms, alpha=ALPHA, mde=mde, largest=max(rates))
        if found.decides:
            effect, seen_only = found.difference.effect or 0.0, found.difference.information or 0.0
            yield _outside(found), abs(effect) > mixture.half_width(seen_only, ALPHA)


def ever(looks: Iterator[tuple[bool, bool]]) -> tuple[bool, bool]:
    """Return whether each of two alarms was raised at any look."""
    first = second = False
    for one, other in looks:
        first, second = first or one, second or other
    return first, second


def mismatch_ever(chance: np.random.Generator) -> tuple[bool, bool]:
    """Return whether the sample-ratio test alarms at any of 672 looks at an even split of 20 000 students."""
    treated = np.cumsum(chance.multinomial(20_000, np.full(672, 1 / 672)))
    ones = np.cumsum(chance.random(20_000) < SHARES["treatment"])
    looks = [(int(n), int(ones[n - 1])) for n in treated if n]
    return any(log_e_value((n - k, k), (0.5, 0.5)) >= math.log(100) for n, k in looks), False


def students_until_alarm(chance: np.random.Generator, share: float) -> int:
    """Return how many students it takes until the sample-ratio test alarms where an even split was intended."""
    ones, n = 0, 0
    while True:
        more = max(5, n // 100)
        n, ones = n + more, ones + int(chance.binomial(more, share))
        if log_e_value((n - ones, ones), (0.5, 0.5)) >= math.log(100):
            return n


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    pooled = replace(RAMPED, decision=SINGLE.decision, variants=SHARES)
    rules: Mapping[tuple[str, str], Callable[[np.random.Generator], tuple[bool, bool]]] = {
        ("closed students, the interval that decides", "… and ship or stop_harm said"): lambda chance: ever(
            closed_looks(traffic(chance))
        ),
        ("live, all responses, every hour", "the same with 1.96 standard errors"): lambda chance: ever(
            live_looks(traffic(chance))
        ),
        ("closed, shares 90:10 then 50:50 and better days, by phase", "… and ship or stop_harm said"): lambda chance: (
            ever(closed_looks(traffic(chance, ramp=True), RAMPED))
        ),
        ("the same, pooled", ""): lambda chance: ever(closed_looks(traffic(chance, ramp=True), pooled)),
        ("closed, adjusted by what students were like before", "… and the same students without"): lambda chance: ever(
            adjusted_looks(traffic(chance))
        ),
        ("any of five segments marked", "any of the four ages that are over marked"): lambda chance: ever(
            parted_looks(traffic(chance))
        ),
        ("2 % of students have a success, shares 95:5", "… without what is added for rare events"): lambda chance: ever(
            rare_looks(chance, 0.05, 6000, {0: 0.98, 1: 0.02})
        ),
        ("97 % of students have one, shares 99:1", "… without what is added for rare events"): lambda chance: ever(
            rare_looks(chance, 0.01, 20_000, {0: 0.03, 1: 0.97})
        ),
        ("one of 100 students has 44, others 3, shares 95:5", "… without what is assumed for uneven shares"): (
            lambda chance: ever(rare_looks(chance, 0.05, 8000, {3: 0.99, 44: 0.01}, 0.44))
        ),
        ("sample ratio at 0.01, every hour", ""): mismatch_ever,
    }
    print(f"| rule, A/A over {DAYS} days, {given.runs} runs | false alarms |\n| --- | --- |")
    for (first, second), rule in rules.items():
        found = np.array([rule(np.random.default_rng([given.seed, run])) for run in range(given.runs)])
        for name, share in zip((first, second), found.mean(axis=0), strict=True):
            if name:
                print(f"| {name} | {share:.1%} |", flush=True)
    print("\n| true share where 50 % are intended | students until the alarm, median |\n| --- | --- |")
    for share in (0.7, 0.6, 0.55, 0.52, 0.51):
        took = [students_until_alarm(np.random.default_rng([given.seed, run]), share) for run in range(given.runs)]
        print(f"| {share:.0%} | {np.median(took):.0f} |", flush=True)


if __name__ == "__main__":
    main()
