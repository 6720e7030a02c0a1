"""The plan of an experiment: from the store's estimates, or from assumptions before any data.

`stored_planning_values` and `assumed_planning_values` give the values; `plan_experiment` computes the plan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final, Literal

import msgspec

from monitor.analysis.analysis_plan import AnalysisPlan
from monitor.analysis.summary import ExperimentSummary
from monitor.clock import DAY_MS
from monitor.config import NO_TEXTS, DisplayTexts, ExperimentSettings
from monitor.errors import UsageError
from monitor.stats import (
    MIN_UNITS_FOR_DECISION,
    EstimatePair,
    GuardrailEvidence,
    PlanAssumptions,
    PlannedGuardrail,
    ResolvableEffect,
    Schedule,
    SharePlan,
    Shares,
    StudentValues,
    Verdict,
    fixed_horizon_students,
    plan_shares,
    pre_period_correlation,
    resolvable_effects,
    student_variance,
)

DEFAULT_POWERS: Final = (0.5, 0.8, 0.9)
DEFAULT_TREATMENT_SHARES: Final = (0.1, 0.2, 0.3, 0.5)
PLAN_OPTIONS: Final = ("mde", "share", "power", "students_per_day", "pre_period_correlation")
"""Names of the options that `parse_plan_options` reads."""
ASSUMPTION_OPTIONS: Final = ("metric_sd", "metric_mean", "responses_per_student", "correlation")
"""Names of the options that `parse_response_assumptions` reads."""
MAX_LISTED: Final = 12
"""Largest number of shares or powers of a plan."""
_MAIN_POWER: Final = 0.8
_WEEKS: Final = (2, 4, 8, 26, 52)

ReductionSource = Literal["measured", "assumed", "from_correlation"]


class PlanOptionError(UsageError):
    """A wrong value of an option of a plan; `option` is the option's name with underscores."""

    def __init__(self, option: str, value: str, expected: str) -> None:
        super().__init__(f"{option}: got {value}, expected {expected}")
        self.option = option
        self.reason = f"got {value}, expected {expected}"


@dataclass(frozen=True, slots=True)
class PrePeriod:
    """By how much CUPED reduces the variance of the primary metric, and how that is known."""

    variance_reduction: float
    """Fraction of the variance, below 1; r² for the correlation r."""
    source: ReductionSource
    """From the store's pre-period, from an assumed r, or from the intra-student correlation: an upper bound."""


@dataclass(frozen=True, slots=True)
class PlanningValues:
    """The values of an experiment on which a plan depends."""

    metric: str
    """Name of the primary metric; empty without an experiment."""
    assumptions: PlanAssumptions
    """Without the reduction of the variance by the pre-period."""
    is_stored: bool
    """Whether the variance is the store's, not assumed."""
    experiment: str = ""
    treatment: str = ""
    unit_noun: str = "student"
    texts: DisplayTexts = NO_TEXTS
    """Labels and units of the experiment; not in the JSON."""
    mean: float | None = None
    """The control's mean; None if unknown."""
    responses_per_student: float | None = None
    correlation: float | None = None
    """Correlation of the primary metric between two responses of a student; None if unknown."""
    own_shares: Shares | None = None
    """The present shares of the experiment; None without an experiment."""
    measured_reduction: float | None = None
    """Fraction by which CUPED lowered the variance; None without a pre-period in the store."""
    students: tuple[int, int] | None = None
    """Closed students of control and treatment so far."""
    days_to_power: float | None = None
    """`Verdict.days_to_power`: days from now to 80 % power at the present shares, guardrails included."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a reader may choose."""

    mde: float | None = None
    """None: the mde of the experiment."""
    is_relative_mde: bool = False
    """Whether `mde` is a fraction of the control's mean."""
    treatment_shares: Sequence[float] = ()
    """Share of each treatment; empty: usual shares and those of the experiment."""
    powers: Sequence[float] = DEFAULT_POWERS
    students_per_day: float | None = None
    pre_period_correlation: float | None = None


@dataclass(frozen=True, slots=True)
class ExperimentPlan:
    """The plan, with all values from which it was computed."""

    values: PlanningValues
    """With the chosen mde and students per day."""
    pre_period: PrePeriod | None
    main_power: float
    """The power of the numbers of students and of the resolvable effects: 80 %, or the last chosen one."""
    main_shares: Shares
    """The shares of the resolvable effects: those of the experiment, or the most even ones."""
    without_pre_period: tuple[SharePlan, ...]
    with_pre_period: tuple[SharePlan, ...]
    """Empty if the reduction is unknown."""
    effects: tuple[ResolvableEffect, ...]
    effects_with_pre_period: tuple[ResolvableEffect, ...]
    fixed_horizon_students: float
    """Students at the main shares for a z-test that is looked at only once: for comparison."""

    def to_json(self) -> dict[str, Any]:
        """Return all inputs and results as JSON."""
        content: dict[str, Any] = msgspec.to_builtins(
            asdict(replace(self, values=replace(self.values, texts=NO_TEXTS)))
        )
        del content["values"]["texts"]
        guardrails = content["values"]["assumptions"]["guardrails"]
        for item, planned in zip(guardrails, self.values.assumptions.guardrails, strict=True):
            item["guardrail"] = msgspec.to_builtins(planned.guardrail)
        return content


def plan_experiment(values: PlanningValues, options: PlanOptions) -> ExperimentPlan:
    """Return the plan; raises `UsageError` for an mde relative to an unknown mean, and for shares that leave none."""
    values = _apply_options(values, options)
    assumptions, treatments = values.assumptions, values.assumptions.treatments
    pairs = [Shares.of_treatment(share, treatments) for share in _treatment_shares(options, treatments)]
    own_shares = values.own_shares
    if own_shares is not None and not options.treatment_shares and own_shares not in pairs:
        pairs = sorted([*pairs, own_shares], key=lambda pair: pair.treatment)
    even_shares = max(pairs, key=lambda pair: min(pair.control, pair.treatment))
    main_shares = own_shares if own_shares is not None and own_shares in pairs else even_shares
    main_power = _MAIN_POWER if _MAIN_POWER in options.powers else options.powers[-1]
    pre_period = _find_reduction(values, options)
    reduced = None if pre_period is None else assumptions.reduce_variance(pre_period.variance_reduction)
    days = [7.0 * weeks for weeks in _WEEKS]
    return ExperimentPlan(
        values=values,
        pre_period=pre_period,
        main_power=main_power,
        main_shares=main_shares,
        without_pre_period=plan_shares(assumptions, pairs, options.powers),
        with_pre_period=() if reduced is None else plan_shares(reduced, pairs, options.powers),
        effects=resolvable_effects(assumptions, main_shares, main_power, days),
        effects_with_pre_period=() if reduced is None else resolvable_effects(reduced, main_shares, main_power, days),
        fixed_horizon_students=fixed_horizon_students(assumptions, main_shares, main_power),
    )


def _apply_options(values: PlanningValues, options: PlanOptions) -> PlanningValues:
    assumptions = values.assumptions
    if options.mde is not None:
        mde = options.mde
        if options.is_relative_mde:
            if not values.mean or values.mean < 0:
                raise PlanOptionError(
                    "mde",
                    f"{100 * options.mde:g} %",
                    "a number in the unit of the metric, because the mean is not known or not above 0",
                )
            mde *= values.mean
        if mde != assumptions.mde:
            # Days from now are those of the experiment's own mde.
            values = replace(values, days_to_power=None)
        assumptions = replace(assumptions, mde=mde)
    if options.students_per_day is not None:
        schedule = replace(assumptions.schedule, students_per_day=options.students_per_day)
        assumptions = replace(assumptions, schedule=schedule)
        values = replace(values, days_to_power=None)
    return replace(values, assumptions=assumptions)


def _treatment_shares(options: PlanOptions, treatments: int) -> list[float]:
    limit = 1 / treatments
    if options.treatment_shares:
        for share in options.treatment_shares:
            if not 0 < share < limit:
                treatment_phrase = "the treatment" if treatments == 1 else f"each of the {treatments} treatments"
                raise PlanOptionError(
                    "share",
                    f"{100 * share:g} %",
                    f"more than 0 and less than {100 * limit:.4g} % for {treatment_phrase}: the control gets the rest",
                )
        return sorted(set(options.treatment_shares))
    even = 1 / (treatments + 1)
    return sorted({*(share for share in DEFAULT_TREATMENT_SHARES if share * treatments < 1 - share), even})


def _find_reduction(values: PlanningValues, options: PlanOptions) -> PrePeriod | None:
    if options.pre_period_correlation is not None:
        return PrePeriod(options.pre_period_correlation**2, "assumed")
    if values.measured_reduction is not None:
        return PrePeriod(values.measured_reduction, "measured")
    if values.correlation and values.responses_per_student:
        correlation = pre_period_correlation(max(values.responses_per_student, 1.0), values.correlation)
        if correlation < 1:
            return PrePeriod(correlation**2, "from_correlation")
    return None


def parse_plan_options(texts: Mapping[str, str | None]) -> PlanOptions:
    """Return the options of a reader from the texts of `PLAN_OPTIONS`.

    Absent and blank texts are not set. Shares and powers are lists with commas, of fractions or percentages; an mde
    with % is relative. Raises `PlanOptionError`.

    >>> options = parse_plan_options({"mde": "3%", "share": "10%, 0.5", "power": "80%"})
    >>> options.mde, options.is_relative_mde, options.treatment_shares, options.powers
    (0.03, True, (0.1, 0.5), (0.8,))
    """
    stripped = {name: text.strip() for name, text in texts.items() if text is not None and text.strip()}
    mde, correlation = stripped.get("mde"), stripped.get("pre_period_correlation")
    return PlanOptions(
        mde=None if mde is None else _parse_positive("mde", mde),
        is_relative_mde=mde is not None and mde.endswith("%"),
        treatment_shares=_parse_fractions("share", stripped.get("share")),
        powers=_parse_fractions("power", stripped.get("power")) or DEFAULT_POWERS,
        students_per_day=None
        if "students_per_day" not in stripped
        else _parse_positive("students_per_day", stripped["students_per_day"], allows_percent=False),
        pre_period_correlation=None
        if correlation is None
        else parse_plan_number("pre_period_correlation", correlation, "a number from 0 to less than 1", 0.0, 0.999999),
    )


@dataclass(frozen=True, slots=True)
class ResponseAssumptions:
    """What is assumed about responses instead of data of the store."""

    sd: float
    """Standard deviation of the metric between responses."""
    mean: float | None = None
    responses_per_student: float = 1.0
    """Responses of a student in the exposure window."""
    correlation: float = 0.3
    """Correlation of the metric between two responses of a student."""


def parse_response_assumptions(texts: Mapping[str, str | None]) -> ResponseAssumptions | None:
    """Return the assumptions from the texts of `ASSUMPTION_OPTIONS`; None if all are absent or blank.

    Raises `PlanOptionError`, also if only the standard deviation is absent.

    >>> parse_response_assumptions({"metric_sd": "1.5", "responses_per_student": "4"})
    ResponseAssumptions(sd=1.5, mean=None, responses_per_student=4.0, correlation=0.3)
    """
    stripped = {
        name: text.strip() for name in ASSUMPTION_OPTIONS if (text := texts.get(name)) is not None and text.strip()
    }
    if not stripped:
        return None
    if "metric_sd" not in stripped:
        raise PlanOptionError("metric_sd", "no value", "the standard deviation that belongs to the other assumptions")
    mean = stripped.get("metric_mean")
    return ResponseAssumptions(
        sd=parse_plan_number("metric_sd", stripped["metric_sd"], "a number above 0", 1e-12, 1e12),
        mean=None if mean is None else parse_plan_number("metric_mean", mean, "a number", -1e12, 1e12),
        responses_per_student=parse_plan_number(
            "responses_per_student", stripped.get("responses_per_student", "1"), "a number of at least 1", 1.0, 1e6
        ),
        correlation=parse_plan_number(
            "correlation", stripped.get("correlation", "0.3"), "a number from 0 to 1", 0.0, 1.0
        ),
    )


def parse_plan_number(option: str, text: str, expected: str, minimum: float, maximum: float) -> float:
    """Return the number of a text with a decimal point, or a percentage as a fraction; raises `PlanOptionError`."""
    is_percentage = text.rstrip().endswith("%")
    try:
        number = float(text.rstrip().removesuffix("%"))
    except ValueError:
        number = math.nan
    number = round(number / 100, 12) if is_percentage else number
    if not minimum <= number <= maximum:
        raise PlanOptionError(option, repr(text), expected)
    return number


def _parse_positive(option: str, text: str, *, allows_percent: bool = True) -> float:
    expected = "a number above 0" + (", or a percentage of the control's mean such as 3%" if allows_percent else "")
    if not allows_percent and "%" in text:
        raise PlanOptionError(option, repr(text), expected)
    return parse_plan_number(option, text, expected, 1e-12, 1e12)


def _parse_fractions(option: str, text: str | None) -> tuple[float, ...]:
    """Return the fractions of a list in rising order, each once; empty for None."""
    if text is None:
        return ()
    expected = f"1 to {MAX_LISTED} fractions or percentages between 0 and 1, such as 10%, 50%"
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not 1 <= len(parts) <= MAX_LISTED:
        raise PlanOptionError(option, repr(text), expected)
    return tuple(sorted({parse_plan_number(option, part, expected, 0.001, 0.999) for part in parts}))


@dataclass(frozen=True, slots=True)
class PlanCriteria:
    """The decision criteria and windows that a plan from assumptions needs."""

    mde: float
    alpha: float = 0.05
    treatments: int = 1
    min_days: float = 7
    exposure_days: int = 3
    closing_days: float = 1.0
    """Feedback window and closing delay."""

    @classmethod
    def of_experiment(cls, settings: ExperimentSettings) -> PlanCriteria:
        """Return those of an experiment."""
        criteria = AnalysisPlan(settings).criteria
        return cls(
            criteria.mde,
            criteria.alpha,
            criteria.treatments,
            criteria.min_days,
            settings.exposure_days,
            (settings.feedback_window_ms + settings.closing_delay_ms) / DAY_MS,
        )


def assumed_planning_values(
    criteria: PlanCriteria,
    responses: ResponseAssumptions,
    students_per_day: float | None,
    settings: ExperimentSettings | None = None,
) -> PlanningValues:
    """Return the values from assumptions about responses, for both variants; wrong values raise ValueError.

    `settings` are those of the experiment, if one is planned. Raises `PlanOptionError` without students per day.
    """
    if students_per_day is None:
        raise PlanOptionError("students_per_day", "no value", "the number of new students per day in all variants")
    variance = student_variance(responses.sd**2, responses.responses_per_student, responses.correlation)
    students = StudentValues(responses.mean or 0.0, variance)
    schedule = Schedule(students_per_day, criteria.exposure_days, criteria.closing_days, criteria.min_days)
    return PlanningValues(
        metric="" if settings is None else settings.primary,
        assumptions=PlanAssumptions(criteria.mde, students, students, schedule, criteria.alpha, criteria.treatments),
        is_stored=False,
        experiment="" if settings is None else settings.name,
        texts=NO_TEXTS if settings is None else settings.texts,
        mean=responses.mean,
        responses_per_student=responses.responses_per_student,
        correlation=responses.correlation,
    )


def stored_planning_values(
    settings: ExperimentSettings,
    summary: ExperimentSummary,
    treatment: str | None = None,
    students_per_day: float | None = None,
) -> PlanningValues:
    """Return the values from the store, for a treatment (default: the first one).

    Raises `UsageError` for another treatment, and if a variance or the number of students per day is unknown.
    """
    verdicts = {} if summary.analysis is None else summary.analysis.verdicts
    if treatment is None:
        treatment = next(iter(verdicts), None)
    if treatment is None or treatment not in verdicts:
        raise PlanOptionError("variant", repr(treatment), f"one of {', '.join(verdicts) or 'none'}")
    verdict = verdicts[treatment]
    evidence = verdict.evidence
    unadjusted = evidence.arms if evidence.adjustment is None else evidence.adjustment.unadjusted
    control, treated = _stored_values(summary.name, settings.control, treatment, evidence.unit_noun, unadjusted)
    if students_per_day is None:
        students_per_day = _students_per_day(summary.name, evidence.unit_noun, list(verdicts.values()))
    intended = settings.intended_shares(summary.analysis.as_of_ms) if summary.analysis is not None else {}
    return PlanningValues(
        metric=evidence.metric,
        assumptions=PlanAssumptions(
            mde=evidence.criteria.mde,
            control=control,
            treatment=treated,
            schedule=Schedule(
                students_per_day,
                settings.exposure_days,
                (settings.feedback_window_ms + settings.closing_delay_ms) / DAY_MS,
                evidence.criteria.min_days,
            ),
            alpha=evidence.criteria.alpha,
            treatments=evidence.criteria.treatments,
            max_value=evidence.max_value,
            min_value=evidence.min_value,
            guardrails=tuple(_planned_guardrail(item, unadjusted) for item in evidence.guardrails),
        ),
        is_stored=True,
        experiment=summary.name,
        treatment=treatment,
        unit_noun=evidence.unit_noun,
        texts=settings.texts,
        mean=control.mean,
        responses_per_student=_responses_per_student(summary),
        correlation=_correlation(summary),
        own_shares=Shares(intended[settings.control], intended[treatment])
        if intended.get(settings.control) and intended.get(treatment)
        else None,
        measured_reduction=verdict.variance_reduction,
        students=(unadjusted.control.units, unadjusted.treatment.units),
        days_to_power=verdict.days_to_power,
    )


def _stored_values(
    experiment: str, control_name: str, treatment_name: str, unit_noun: str, arms: EstimatePair
) -> tuple[StudentValues, StudentValues]:
    values = []
    for name, estimate in ((control_name, arms.control), (treatment_name, arms.treatment)):
        variance = estimate.unit_variance
        if estimate.units < MIN_UNITS_FOR_DECISION or estimate.mean is None or variance is None:
            raise UsageError(
                f"experiment {experiment}: variant {name} has {estimate.units} {unit_noun}s whose first days are over, "
                f"expected at least {MIN_UNITS_FOR_DECISION}: wait, or plan from assumptions"
            )
        values.append(StudentValues(estimate.mean, variance))
    if not any(value.variance for value in values):
        raise UsageError(
            f"experiment {experiment}: the primary metric is the same for all {unit_noun}s, expected a metric that "
            "varies"
        )
    control, treatment = values
    return control, treatment


def _students_per_day(experiment: str, unit_noun: str, verdicts: Sequence[Verdict]) -> float:
    control_rate = verdicts[0].evidence.students_per_day[0]
    rate = control_rate + sum(verdict.evidence.students_per_day[1] for verdict in verdicts)
    if not rate:
        raise UsageError(
            f"experiment {experiment}: no {unit_noun} has been counted in the last week, so the number of "
            f"{unit_noun}s per day is unknown: set it"
        )
    return rate


def _planned_guardrail(item: GuardrailEvidence, primary: EstimatePair) -> PlannedGuardrail:
    """Return a guardrail with its values; with a variance of 0 if it is undefined, so that the time is unknown."""
    control, treatment = (
        StudentValues(estimate.mean or 0.0, estimate.unit_variance or 0.0)
        for estimate in (item.arms.control, item.arms.treatment)
    )
    students = item.arms.control.units + item.arms.treatment.units
    ratio = students / (primary.control.units + primary.treatment.units)
    return PlannedGuardrail(item.guardrail, control, treatment, ratio or 1.0)


def _responses_per_student(summary: ExperimentSummary) -> float | None:
    """Return the responses with a value of the primary metric per student of all variants."""
    students = sum(variant.students + variant.responses_without_user for variant in summary.variants.values())
    responses = sum(variant.metrics[summary.primary].count for variant in summary.variants.values())
    return max(responses / students, 1.0) if students and responses else None


def _correlation(summary: ExperimentSummary) -> float | None:
    """Return the intra-student correlation, averaged over the variants by their numbers of responses."""
    correlations = [
        (variant.metrics[summary.primary].count, variant.primary_correlation)
        for variant in summary.variants.values()
        if variant.primary_correlation is not None and not math.isnan(variant.primary_correlation)
    ]
    responses = sum(count for count, _ in correlations)
    return sum(count * correlation for count, correlation in correlations) / responses if responses else None
