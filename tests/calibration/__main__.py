"""Simulated experiments whose truth is known: tables of error rates, power and detection times.

`python -m tests.calibration --runs 2000`. In the first table, students arrive over 28 days and get several responses
each, with a correlation of 0.3 within a student. Closed sums change once a day, so hourly looks equal daily looks.
Numbers in parentheses are 95 % intervals of the simulation (Wilson's for shares, of order statistics for quantiles).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from monitor.config import AllocationSettings, DecisionSettings
from monitor.engine.accumulator import PERIOD_BITS, MetricAccumulator
from monitor.engine.response_row import MISSING, PRE_PERIOD_VARIANT
from monitor.engine.student import Student
from monitor.metrics import FIXED_POINT_SCALE, CohortField
from monitor.metrics.record_layout import RecordLayout
from monitor.stats import SampleMeanStatistic, StoredStudentSums, VariantComparison, compare_variants
from monitor.stats.comparison import tuned_mixture
from monitor.stats.estimates import RatioStatistic
from monitor.stats.srm import FIRST_DAY_WEIGHT, srm_log_e_value
from tests.calibration.answers import ANSWERS, answer_decisions
from tests.calibration.attacks import ATTACKS, Attack, attack_verdicts, is_better, is_shipped
from tests.calibration.days import BROKEN_DAY, TRAFFIC, remarked_days
from tests.calibration.drops import RESPONSES_PER_HOUR, RULES, month_alarms
from tests.calibration.plans import PLANS, planned_students, shows_effect
from tests.calibration.populations import POPULATIONS, population_alarms
from tests.calibration.power import EFFECTS, relative_sample
from tests.calibration.share_changes import CHANGES, share_change_alarms
from tests.support.streams import EXPERIMENT
from tests.support.units import analyze, cohort_records

DAYS, STUDENTS, CORRELATION, MDE, ALPHA = 28, 2000, 0.3, 0.1, 0.05
FIRST_DAY = 20_454
"""The UTC day (since 1970) on which the experiment begins."""
DAY_MS = 86_400_000
HOUR_MS = 3_600_000
VARIANTS = ("control", "treatment")
SHARES = {"control": 0.5, "treatment": 0.5}
SINGLE_METRIC = replace(
    EXPERIMENT,
    metrics=EXPERIMENT.metrics[:1],
    decision=DecisionSettings(mde=MDE, alpha=ALPHA, min_days=0, guardrails=()),
)
DETAILED = replace(
    SINGLE_METRIC,
    categories=("fractions", "geometry", "grammar"),
    novelty=True,
    starts_at_ms=FIRST_DAY * DAY_MS,
    pre_period_ms=7 * DAY_MS,
)
"""An experiment with segments, exposure ages and CUPED."""
PRE_PERIOD_RESPONSES = 5
"""Number of responses of each student before the experiment."""
SRM_LOG_E = math.log(100 / FIRST_DAY_WEIGHT)
"""The ln e of all students at which the mixture over start days reaches 100, at the latest."""
RAMP_DAY = 14
RAMP_UP = replace(
    SINGLE_METRIC,
    variants={"control": 0.9, "treatment": 0.1},
    decision=replace(
        SINGLE_METRIC.decision, allocations=(AllocationSettings((FIRST_DAY + RAMP_DAY) * DAY_MS, SHARES),)
    ),
)

Floats = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Traffic:
    """A simulated experiment: arrays over students in the order of numbers, and over responses in the order of time."""

    arms: IntArray
    """By student: 0 in the control, 1 in the treatment."""
    days: IntArray
    """By student: day of first exposure, from 0."""
    students: IntArray
    """By response: the number of the student."""
    hours: Floats
    """By response: hours since the beginning."""
    values: Floats
    """By response: the value of the metric."""
    covariates: Floats
    """By student: mean of the responses before the experiment."""
    categories: IntArray
    """By student: category of the first response."""


def simulate_traffic(chance: np.random.Generator, *, ramp: bool = False) -> Traffic:
    """Return an experiment without an effect; a ramp-up begins with 10 % treated students and lower values."""
    first_hours = np.sort(chance.uniform(0, DAYS * 24, STUDENTS))
    days = (first_hours // 24).astype(np.int64)
    treatment_shares = np.where(days < RAMP_DAY, 0.1, 0.5) if ramp else np.full(STUDENTS, 0.5)
    arms = (chance.random(STUDENTS) < treatment_shares).astype(np.int64)
    further_responses = chance.poisson(5, STUDENTS)
    students = np.repeat(np.arange(STUDENTS), 1 + further_responses)
    first_indices = np.concatenate(([0], np.cumsum(1 + further_responses)[:-1]))
    hours = first_hours[students] + chance.exponential(72, len(students))
    hours[first_indices] = first_hours
    is_within_experiment = hours < DAYS * 24
    students, hours = students[is_within_experiment], hours[is_within_experiment]
    ability = chance.normal(0, math.sqrt(CORRELATION), STUDENTS)
    values = 10 + ability[students] + chance.normal(0, math.sqrt(1 - CORRELATION), len(students))
    values += 0.5 * (days[students] >= RAMP_DAY) * ramp
    order = np.argsort(hours, kind="stable")
    covariates = 10 + ability + chance.normal(0, math.sqrt((1 - CORRELATION) / PRE_PERIOD_RESPONSES), STUDENTS)
    categories = chance.integers(-1, len(DETAILED.categories) + 1, STUDENTS)
    return Traffic(arms, days, students[order], hours[order], values[order], covariates, categories)


def window_sums(traffic: Traffic) -> StoredStudentSums:
    """Return the stored sums with complete windows of all students; the analysis selects the closed cohorts."""
    layout = RecordLayout.for_experiment(SINGLE_METRIC)
    is_in_window = traffic.hours // 24 < traffic.days[traffic.students] + SINGLE_METRIC.exposure_days
    counts = np.bincount(traffic.students[is_in_window], minlength=STUDENTS)
    totals = np.bincount(
        traffic.students[is_in_window], np.rint(traffic.values[is_in_window] * FIXED_POINT_SCALE), minlength=STUDENTS
    )
    sums = np.stack([counts, counts, totals.astype(np.int64), np.zeros_like(counts)], axis=1)
    records = cohort_records(layout, sums)
    records[:, CohortField.EXPOSURES] = 1
    cohorts: dict[str, dict[int, IntArray]] = {name: {} for name in VARIANTS}
    for arm, name in enumerate(VARIANTS):
        for day in range(DAYS):
            cohorts[name][FIRST_DAY + day] = records[(traffic.arms == arm) & (traffic.days == day)].sum(axis=0)
    variant_records = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in VARIANTS}
    return StoredStudentSums(variant_records, cohorts)


def service_sums(traffic: Traffic) -> StoredStudentSums:
    """Return the stored sums as computed by the service, from student rows to which responses are added."""
    layout = RecordLayout.for_experiment(DETAILED)
    students: dict[int, Student] = {}
    arms, categories = traffic.arms.tolist(), traffic.categories.tolist()
    fixed_point_values = np.rint(traffic.values * FIXED_POINT_SCALE).astype(np.int64).tolist()
    times_ms = (FIRST_DAY * DAY_MS + traffic.hours * HOUR_MS).astype(np.int64).tolist()
    for number, time_ms, value in zip(traffic.students.tolist(), times_ms, fixed_point_values, strict=True):
        if number not in students:
            students[number] = Student(layout.sums_width)
        students[number].add_difference(
            time_ms, arms[number], categories[number], (1, 1, value, 0), layout.tracked_days
        )
    accumulator = MetricAccumulator(layout, [])
    for number, student in students.items():
        pre_period_total = round(traffic.covariates[number] * PRE_PERIOD_RESPONSES * FIXED_POINT_SCALE)
        student.add_difference(
            0,
            PRE_PERIOD_VARIANT,
            MISSING,
            (PRE_PERIOD_RESPONSES, PRE_PERIOD_RESPONSES, pre_period_total, 0),
            layout.tracked_days,
        )
        accumulator.add_student(1, student)
    cohorts: dict[str, dict[int, IntArray]] = {name: {} for name in VARIANTS}
    for variant_and_day, record in accumulator.cohort_sums.items():
        cohorts[VARIANTS[variant_and_day >> PERIOD_BITS]][variant_and_day & (1 << PERIOD_BITS) - 1] = np.array(
            record.integers()
        )
    variant_records = {name: np.zeros(layout.unit_width, dtype=np.int64) for name in VARIANTS}
    return StoredStudentSums(variant_records, cohorts)


def cuped_alarms(traffic: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the CUPED interval excludes 0, and whether the unadjusted interval does."""
    sums = service_sums(traffic)
    for day in range(4, DAYS + 1):
        verdict = analyze(DETAILED, sums, (FIRST_DAY + day) * DAY_MS).verdicts["treatment"]
        yield _excludes_zero(verdict.primary), verdict.unadjusted is not None and _excludes_zero(verdict.unadjusted)


def subgroup_alarms(traffic: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether any segment is discovered, and whether any exposure age that can end is."""
    sums = service_sums(traffic)
    for day in range(2, DAYS + 1):
        effects = analyze(DETAILED, sums, (FIRST_DAY + day) * DAY_MS).subgroup_effects["treatment"]
        yield (
            any(segment.discovered for segment in effects.segments),
            any(age.discovered for age in effects.exposure_ages[:-1]),
        )


def _excludes_zero(comparison: VariantComparison) -> bool:
    lower, upper = comparison.lower, comparison.upper
    return comparison.decides and lower is not None and upper is not None and (lower > 0 or upper < 0)


def closed_alarms(traffic: Traffic, experiment: object = SINGLE_METRIC) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the deciding interval excludes 0, and whether the verdict is `ship` or `stop_harm`."""
    sums = window_sums(traffic)
    for day in range(4, DAYS + 1):
        judgement = analyze(experiment, sums, (FIRST_DAY + day) * DAY_MS)  # type: ignore[arg-type]
        verdict = judgement.verdicts["treatment"]
        yield _excludes_zero(verdict.primary), verdict.state in {"ship", "stop_harm"}


def live_alarms(traffic: Traffic) -> Iterator[tuple[bool, bool]]:
    """Yield for each hour whether the live interval excludes 0, and whether ± 1.96 standard errors do."""
    by_student = np.argsort(traffic.students, kind="stable")
    students, values = traffic.students[by_student], traffic.values[by_student]
    starts = np.flatnonzero(np.concatenate(([True], students[1:] != students[:-1])))
    response_counts = np.diff([*starts, len(students)])
    ranks = np.arange(len(students)) - np.repeat(starts, response_counts) + 1.0
    running_totals = np.cumsum(values)
    student_totals = running_totals - np.repeat((running_totals - values)[starts], response_counts)
    # The change of the six sums of RatioStatistic with each response, as differences of squares and products.
    changes = np.stack(
        [
            ranks == 1,
            values,
            np.ones_like(values),
            2 * student_totals * values - values**2,
            student_totals * ranks - (student_totals - values) * (ranks - 1),
            2 * ranks - 1,
        ],
        axis=1,
    )
    changes_by_time = np.empty_like(changes)
    changes_by_time[by_student] = changes
    response_arms = traffic.arms[traffic.students]
    sums = [np.cumsum(changes_by_time * (response_arms == arm)[:, None], axis=0) for arm in (0, 1)]
    for hour in range(24, DAYS * 24 + 1):
        row = int(np.searchsorted(traffic.hours, hour)) - 1
        control, treatment = (
            RatioStatistic(int(arm_sums[row, 0]), *map(float, arm_sums[row, 1:])).estimate() for arm_sums in sums
        )
        comparison = compare_variants(control, treatment, alpha=ALPHA, mde=MDE, estimand="live")
        if comparison.lower is not None and comparison.upper is not None:
            difference = comparison.difference
            effect, standard_error = difference.effect or 0.0, difference.standard_error or math.inf
            yield comparison.lower > 0 or comparison.upper < 0, abs(effect) > 1.96 * standard_error


def rare_event_alarms(
    chance: np.random.Generator, share: float, students: int, rates: Mapping[float, float], mde: float = MDE / 2
) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the interval excludes 0, and whether an interval without variance correction does.

    In both variants students have the values of `rates` with the given probabilities; `share` is the treatment's share.
    """
    mixture = tuned_mixture(mde, ALPHA)
    values = np.array(list(rates))
    counts = np.zeros((2, len(values)), dtype=np.int64)
    for _ in range(DAYS):
        new_students = chance.poisson(students / DAYS * np.array([1 - share, share]))
        counts += chance.multinomial(new_students, list(rates.values()))
        arms = [SampleMeanStatistic(int(n.sum()), float(n @ values), float(n @ values**2)).estimate() for n in counts]
        comparison = compare_variants(*arms, alpha=ALPHA, mde=mde, max_value=max(rates))
        if comparison.decides:
            effect, information = comparison.difference.effect or 0.0, comparison.difference.information or 0.0
            yield _excludes_zero(comparison), abs(effect) > mixture.half_width(information, ALPHA)


def far_value_alarms(chance: np.random.Generator, students: int = 2000) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the interval excludes 0, and whether an interval without variance correction does.

    Both variants have the mean 3. One of 200 treated students has 44, and the others a little less than the control.
    """
    mde, ordinary_mean = 0.44, (3.0 - 0.005 * 44.0) / 0.995
    values = np.array([2.5, 3.5]), np.array([ordinary_mean - 0.5, ordinary_mean + 0.5, 44.0])
    rates = (0.5, 0.5), (0.4975, 0.4975, 0.005)
    counts = [np.zeros(len(rate), dtype=np.int64) for rate in rates]
    for _ in range(DAYS):
        for arm, rate in enumerate(rates):
            counts[arm] += chance.multinomial(chance.poisson(students / DAYS / 2), rate)
        arms = [
            SampleMeanStatistic(int(n.sum()), float(n @ v), float(n @ v**2)).estimate()
            for n, v in zip(counts, values, strict=True)
        ]
        comparison = compare_variants(*arms, alpha=ALPHA, mde=mde, max_value=44.0)
        if comparison.decides:
            effect, information = comparison.difference.effect or 0.0, comparison.difference.information or 0.0
            half_width = tuned_mixture(mde, ALPHA).half_width(information, ALPHA)
            yield _excludes_zero(comparison), abs(effect) > half_width


def attack_decisions(chance: np.random.Generator, attack: Attack) -> Iterator[tuple[bool, bool]]:
    """Yield for each day whether the interval alone shows a gain, and whether the verdict lets the treatment pass."""
    for verdict in attack_verdicts(chance, attack):
        yield is_better(verdict), is_shipped(verdict)


def any_alarms(alarms: Iterator[tuple[bool, bool]]) -> tuple[bool, bool]:
    """Return for either of two rules whether an alarm was raised at any look."""
    first_rule = second_rule = False
    for first_alarm, second_alarm in alarms:
        first_rule, second_rule = first_rule or first_alarm, second_rule or second_alarm
    return first_rule, second_rule


def any_srm_alarm(chance: np.random.Generator) -> tuple[bool, bool]:
    """Return (alarm, False): whether the SRM test alarms at any of 672 looks at an even split of 20 000 students."""
    sample_sizes = np.cumsum(chance.multinomial(20_000, np.full(672, 1 / 672)))
    treated_counts = np.cumsum(chance.random(20_000) < SHARES["treatment"])
    counts = [(int(n), int(treated_counts[n - 1])) for n in sample_sizes if n]
    return any(srm_log_e_value((n - k, k), (0.5, 0.5)) >= SRM_LOG_E for n, k in counts), False


def students_until_alarm(chance: np.random.Generator, share: float) -> int:
    """Return the number of students at which the SRM test alarms, for the true share `share` and intended 50 %."""
    treated, total = 0, 0
    while True:
        new_students = max(5, total // 100)
        total, treated = total + new_students, treated + int(chance.binomial(new_students, share))
        if srm_log_e_value((total - treated, treated), (0.5, 0.5)) >= SRM_LOG_E:
            return total


def main() -> None:
    """Print all tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    runs: int = arguments.runs
    pooled = replace(RAMP_UP, decision=SINGLE_METRIC.decision, variants=SHARES)
    rules: Mapping[tuple[str, str], Callable[[np.random.Generator], tuple[bool, bool]]] = {
        ("closed interval, which decides", "… `ship` or `stop_harm`"): lambda chance: any_alarms(
            closed_alarms(simulate_traffic(chance))
        ),
        ("live interval, all responses", "… with 1.96 standard errors"): lambda chance: any_alarms(
            live_alarms(simulate_traffic(chance))
        ),
        ("closed, shares 90 : 10 then 50 : 50 and rising values, by phase", "… `ship` or `stop_harm`"): lambda chance: (
            any_alarms(closed_alarms(simulate_traffic(chance, ramp=True), RAMP_UP))
        ),
        ("… pooled over phases", ""): lambda chance: any_alarms(
            closed_alarms(simulate_traffic(chance, ramp=True), pooled)
        ),
        ("closed with CUPED", "… without CUPED"): lambda chance: any_alarms(cuped_alarms(simulate_traffic(chance))),
        ("any of five segments discovered", "any of four ages discovered"): lambda chance: any_alarms(
            subgroup_alarms(simulate_traffic(chance))
        ),
        ("2 % successes, shares 95 : 5", "… uncorrected"): lambda chance: any_alarms(
            rare_event_alarms(chance, 0.05, 6000, {0: 0.98, 1: 0.02})
        ),
        ("97 % successes, shares 99 : 1", "… uncorrected"): lambda chance: any_alarms(
            rare_event_alarms(chance, 0.01, 20_000, {0: 0.03, 1: 0.97})
        ),
        ("one of 100 students has 44, others 3, shares 95 : 5", "… uncorrected"): (
            lambda chance: any_alarms(rare_event_alarms(chance, 0.05, 8000, {3: 0.99, 44: 0.01}, 0.44))
        ),
        ("equal means, one of 200 treated students has 44, shares 50 : 50", "… uncorrected"): (
            lambda chance: any_alarms(far_value_alarms(chance))
        ),
        ("SRM test at 0.01", ""): any_srm_alarm,
    }
    print(f"| rule, A/A over {DAYS} days, {runs} runs | false alarms |\n| --- | --- |")
    for names, rule in rules.items():
        alarms = np.array([rule(chance) for chance in _generators(arguments)])
        for name, alarm in zip(names, alarms.T, strict=True):
            if name:
                print(f"| {name} | {format_share(alarm)} |", flush=True)
    _print_populations(arguments)
    _print_answers(arguments)
    _print_share_changes(arguments)
    _print_attacks(arguments)
    _print_power(arguments)
    _print_plans(arguments)
    _print_drops(arguments)
    _print_days(arguments)
    print("\n| true share where 50 % are intended | students until the alarm, median |\n| --- | --- |")
    for share in (0.7, 0.6, 0.55, 0.52, 0.51):
        counts = [students_until_alarm(chance, share) for chance in _generators(arguments)]
        print(f"| {share:.0%} | {format_quantile(counts, 0.5, '.0f')} |", flush=True)


def _generators(arguments: argparse.Namespace) -> Iterator[np.random.Generator]:
    """Yield a generator of random numbers for each run."""
    return (np.random.default_rng([arguments.seed, run]) for run in range(arguments.runs))


def _print_populations(arguments: argparse.Namespace) -> None:
    print("\n| students, A/A | the interval that decides | 1.96 standard errors |\n| --- | --- | --- |")
    for name, population in POPULATIONS.items():
        alarms = np.array([any_alarms(population_alarms(chance, population)) for chance in _generators(arguments)])
        print(f"| {name} | {' | '.join(map(format_share, alarms.T))} |", flush=True)


def _print_answers(arguments: argparse.Namespace) -> None:
    print(
        "\n| primary metric | the interval that decides, A/A | 1.96 standard errors, A/A | `ship` or `stop_harm`, A/A "
        "| `ship`, with the effect |\n| --- | --- | --- | --- | --- |"
    )
    for name, answers in ANSWERS.items():
        alarms, shipped = (
            np.array(
                [np.any(list(answer_decisions(chance, answers, effect)), axis=0) for chance in _generators(arguments)]
            ).T
            for effect in (0.0, answers.mde)
        )
        cells = " | ".join(map(format_share, [*alarms[:3], shipped[3]]))
        print(f"| {name}, effect {answers.mde:g} | {cells} |", flush=True)


def _print_share_changes(arguments: argparse.Namespace) -> None:
    print("\n| change within a day, A/A | the split alarms | … pooled over phases |\n| --- | --- | --- |")
    for change in CHANGES:
        alarms = np.array([share_change_alarms(chance, change) for chance in _generators(arguments)])
        print(f"| {change} | {' | '.join(map(format_share, alarms.T))} |", flush=True)


def _print_attacks(arguments: argparse.Namespace) -> None:
    print("\n| attack | the interval alone ships | the verdict ships |\n| --- | --- | --- |")
    for name, attack in ATTACKS.items():
        shipped = np.array([any_alarms(attack_decisions(chance, attack)) for chance in _generators(arguments)])
        print(f"| {name} | {' | '.join(map(format_share, shipped.T))} |", flush=True)


def _print_power(arguments: argparse.Namespace) -> None:
    print("\n| true effect | sample for 80 % power, relative to a fixed horizon | median sample |\n| --- | --- | --- |")
    for multiple in EFFECTS:
        samples = [relative_sample(chance, multiple * MDE) for chance in _generators(arguments)]
        cells = format_quantile(samples, 0.8, ".2f"), format_quantile(samples, 0.5, ".2f")
        print(f"| {multiple:g} × mde | {' | '.join(cells)} |", flush=True)


def _print_plans(arguments: argparse.Namespace) -> None:
    print("\n| plan | students | shown at the planned end | shown by then |\n| --- | --- | --- | --- |")
    for plan in PLANS:
        shown = np.array([shows_effect(chance, plan) for chance in _generators(arguments)])
        students = " + ".join(map(str, planned_students(plan)))
        name = f"treatment {plan.share:.0%}, power {plan.power:.0%}"
        print(f"| {name} | {students} | {' | '.join(map(format_share, shown.T))} |", flush=True)


def _print_drops(arguments: argparse.Namespace) -> None:
    print(
        "\n| alert, month without a change | fires | without the least share | … and without the design effect |\n"
        "| --- | --- | --- | --- |"
    )
    for rate in RESPONSES_PER_HOUR:
        months = np.array([list(month_alarms(chance, rate)) for chance in _generators(arguments)])
        for rule, alarms in zip(RULES, months.transpose(1, 2, 0), strict=True):
            name = f"{rule.name}, {rate} responses an hour and variant"
            print(f"| {name} | {' | '.join(map(format_share, alarms))} |", flush=True)


def _print_days(arguments: argparse.Namespace) -> None:
    print(
        "\n| daily means, two variants, 28 judged days | any mean out of its band | found: a day 20 % lower | 40 % |\n"
        "| --- | --- | --- | --- |"
    )
    for name, traffic in TRAFFIC.items():
        cells = []
        for drop in (0.0, *(() if traffic.rare_share else (0.2, 0.4))):
            remarks = [remarked_days(chance, traffic, drop) for chance in _generators(arguments)]
            remarked = [(BROKEN_DAY, "treatment") in means if drop else bool(means) for means in remarks]
            cells.append(format_share(np.array(remarked)))
        print(f"| {name} | {' | '.join([*cells, '', ''][:3])} |", flush=True)


def format_share(alarms: NDArray[np.bool_]) -> str:
    """Return the share of alarms with Wilson's 95 % interval.

    >>> format_share(np.array([False] * 300))
    '0.0 % (0.0–1.3)'
    """
    count, share, z = len(alarms), float(np.mean(alarms)), 1.96
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half_width = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count)) / (1 + z * z / count)
    low, high = max(centre - half_width, 0.0), min(centre + half_width, 1.0)
    return f"{100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def format_quantile(values: Sequence[float], probability: float, number_format: str) -> str:
    """Return a quantile with the 95 % interval of order statistics.

    >>> format_quantile(range(101), 0.5, ".0f")
    '50 (40–60)'
    """
    ordered, count = sorted(values), len(values)
    spread = 1.96 * math.sqrt(probability * (1 - probability) * count)
    ranks = (probability * count + shift for shift in (0.0, -spread, spread))
    quantile, low, high = (ordered[min(max(math.floor(rank), 0), count - 1)] for rank in ranks)
    return f"{quantile:{number_format}} ({low:{number_format}}–{high:{number_format}})"


if __name__ == "__main__":
    main()
