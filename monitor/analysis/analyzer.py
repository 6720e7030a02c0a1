"""The analysis of an experiment: from stored sums to comparisons, sample ratio, guardrails and verdicts.

No student is read: the input is sums. Two clocks are involved. Closed cohorts and first exposures are as of an event
time. Sums over all responses (the live estimand, crossovers) are always the current sums. docs/statistics.md explains
estimands, formulas and claims.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from monitor.analysis.analysis_plan import AnalysisPlan
from monitor.analysis.cohort_view import CohortView
from monitor.analysis.subgroups import SubgroupEffects, compute_subgroup_effects
from monitor.clock import HOUR_MS
from monitor.config import RATED_SHARE_METRIC, ExperimentSettings, Population
from monitor.days import UTC_ZONE, day_calendar
from monitor.metrics import IntArray, RecordLayout, UnitRecord
from monitor.stats import (
    CovariateStatistic,
    CupedAdjustment,
    DiagnosticMetric,
    Estimand,
    Estimate,
    EstimatePair,
    GuardrailEvidence,
    PhaseCounts,
    SampleMeanStatistic,
    SrmResult,
    StoredStudentSums,
    VariantComparison,
    Verdict,
    VerdictEvidence,
    apply_cuped,
    check_part_ratios,
    check_srm,
    closed_covariate_statistic,
    closed_undefined_as_zero_statistic,
    closed_undefined_share_statistic,
    compare_variants,
    covariate_square_scale,
    decide_verdict,
    estimate_stratified,
    late_arrival_estimate,
)


@dataclass(frozen=True, slots=True)
class Analysis:
    """The results of an experiment as of an event time."""

    as_of_ms: int
    comparisons: Mapping[str, Mapping[str, Mapping[Estimand, VariantComparison]]]
    """Treatment → metric → estimand → comparison with the control."""
    sample_ratio: SrmResult
    excluded_sample_ratio: SrmResult | None
    """The same test of the students with excluded responses; None if no rule excludes responses."""
    excluded_days: tuple[int, ...]
    """Days since 1970 within which the intended shares changed: in no phase, and in no closed comparison."""
    verdicts: Mapping[str, Verdict]
    """Treatment → verdict; treatments are the variants other than the control that have a share at any time."""
    subgroup_effects: Mapping[str, SubgroupEffects]
    """Treatment → effects within subgroups."""
    day_zone: str = UTC_ZONE
    """The time zone whose dates are the days of the experiment."""

    def to_json(self) -> dict[str, Any]:
        """Return the analysis as in `status --json`; `parse_evidence` reads the evidence of each verdict."""
        return {
            "day_zone": self.day_zone,
            "comparisons": {
                treatment: {
                    metric: {estimand: _comparison_json(comparison) for estimand, comparison in by_estimand.items()}
                    for metric, by_estimand in by_metric.items()
                }
                for treatment, by_metric in self.comparisons.items()
            },
            "sample_ratio": {
                **self.sample_ratio.to_json(),
                "days_left_out": [day_calendar(self.day_zone).date_text(day) for day in self.excluded_days],
                "excluded": None if self.excluded_sample_ratio is None else self.excluded_sample_ratio.to_json(),
            },
            "guardrails": {name: msgspec.to_builtins(verdict.guardrails) for name, verdict in self.verdicts.items()},
            "verdict": {name: _verdict_json(verdict) for name, verdict in self.verdicts.items()},
            "segments": {name: effects.segments_json() for name, effects in self.subgroup_effects.items()},
            "novelty": {name: effects.exposure_ages_json() for name, effects in self.subgroup_effects.items()},
        }


def _comparison_json(comparison: VariantComparison) -> dict[str, Any]:
    """Return a comparison as JSON, marked as approximate or exact, and as deciding or not."""
    content: dict[str, Any] = msgspec.to_builtins(comparison)
    return {**content, "approximate": comparison.estimand == "live", "decides": comparison.decides}


def _verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict with the evidence as JSON; comparisons and guardrails are separate parts of the analysis."""
    return {
        "state": verdict.state,
        "reasons": msgspec.to_builtins(verdict.reasons),
        "notes": msgspec.to_builtins(verdict.notes),
        "days_to_resolve": verdict.days_to_resolve,
        "days_to_power": verdict.days_to_power,
        "relative": {
            "effect": verdict.primary.difference.relative_effect,
            "lower": verdict.relative_bounds[0],
            "upper": verdict.relative_bounds[1],
        },
        "shrunken_effect": verdict.shrunken_effect,
        "adjustment": None
        if verdict.unadjusted is None
        else {"variance_reduction": verdict.variance_reduction, "unadjusted": _comparison_json(verdict.unadjusted)},
        "other_population": None if verdict.other_population is None else _comparison_json(verdict.other_population),
        "evidence": msgspec.to_builtins(verdict.evidence),
    }


class Analyzer:
    """Analyzes an experiment by the experiment's settings; any number of times, from any number of threads."""

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._plan = AnalysisPlan(experiment)

    def analyze(self, stored_students: StoredStudentSums, as_of_ms: int) -> Analysis:
        """Return the analysis as of an event time until which all events were read: see `find_analysis_time`."""
        view = CohortView(self._plan, stored_students, as_of_ms)
        sample_ratio = _check_sample_ratio(view)
        live_estimates = stored_students.live_estimates(self._plan.layout, self._plan.experiment.decision.population)
        evidence = {
            treatment: _collect_evidence(view, treatment, live_estimates) for treatment in self._plan.treatments
        }
        part_ratios = next((check_part_ratios(treatment_evidence) for treatment_evidence in evidence.values()), None)
        verdicts = {
            treatment: decide_verdict(treatment_evidence, sample_ratio, part_ratios)
            for treatment, treatment_evidence in evidence.items()
        }
        return Analysis(
            as_of_ms=as_of_ms,
            comparisons={
                treatment: _compare_metrics(
                    self._plan, treatment, verdict, live_estimates, is_bounded=len(view.phase_counts) == 1
                )
                for treatment, verdict in verdicts.items()
            },
            sample_ratio=sample_ratio,
            excluded_sample_ratio=_check_phases(view, view.excluded_phase_counts)
            if stored_students.excluded_cohorts
            else None,
            excluded_days=view.excluded_days,
            verdicts=verdicts,
            subgroup_effects={
                treatment: compute_subgroup_effects(view, treatment) for treatment in self._plan.treatments
            },
            day_zone=self._plan.experiment.day_zone,
        )

    def check_sample_ratio(self, stored_students: StoredStudentSums, as_of_ms: int) -> SrmResult:
        """Return only the sample ratio mismatch test of the analysis as of an event time."""
        return _check_sample_ratio(CohortView(self._plan, stored_students, as_of_ms))


def _check_sample_ratio(view: CohortView) -> SrmResult:
    """Return the SRM test over all phases; over none if students seem to have come later than they did."""
    return _check_phases(view, view.phase_counts)


def _check_phases(view: CohortView, phase_counts: tuple[PhaseCounts, ...]) -> SrmResult:
    phases = () if view.stored_students.history.is_incomplete else phase_counts
    return check_srm(phases, alpha=view.plan.criteria.sample_ratio_alpha)


def _collect_evidence(
    view: CohortView, treatment: str, live_estimates: Mapping[str, Sequence[Estimate]]
) -> VerdictEvidence:
    """Return the evidence from which the verdict on a treatment is decided."""
    plan, stored_students = view.plan, view.stored_students
    experiment = plan.experiment
    population, other_population = experiment.population_of(experiment.primary), experiment.other_population
    primary_estimates, theta = _estimate_primary(view, treatment, population)
    undefined_share, undefined_as_zero = _estimate_undefined(view, treatment, population)
    variant_records = stored_students.variant_records.values()
    relevant_variants = view.relevant_variants(treatment)
    index = plan.metric_names.index(experiment.primary)
    return VerdictEvidence(
        control=experiment.control,
        treatment=treatment,
        metric=experiment.primary,
        criteria=plan.criteria,
        arms=primary_estimates,
        adjustment=None if theta is None else _describe_adjustment(view, treatment, theta),
        closed_days=view.closed_day_count(treatment),
        day_zone=experiment.day_zone,
        students_per_day=(view.closed_students_per_day(experiment.control), view.closed_students_per_day(treatment)),
        phases=view.phase_counts,
        excluded_phases=view.excluded_phase_counts,
        compared_phases=view.compared_phase_counts,
        left_out_phases=view.left_out_phase_counts(relevant_variants),
        segments=view.segment_counts,
        exposure_hours=view.exposure_hour_counts,
        has_new_students=view.has_new_students,
        unit=experiment.unit,
        anonymous_units=sum(UnitRecord(record).anonymous_responses for record in variant_records),
        units=sum(UnitRecord(record).units for record in variant_records),
        crossovers=sum(UnitRecord(stored_students.variant_records[name]).crossovers for name in relevant_variants),
        students=view.count_students(relevant_variants),
        lost_events=stored_students.lost_events,
        rejected_share=stored_students.rejected_share,
        skipped_events=stored_students.skipped_events,
        data_quality=stored_students.data_quality,
        lower_is_better=experiment.is_lower_better(experiment.primary),
        other_population=None if other_population is None else _estimate_primary(view, treatment, other_population)[0],
        rated_share=None
        if experiment.other_population is None
        else _estimate_closed(view, treatment, RATED_SHARE_METRIC),
        undefined_share=undefined_share,
        undefined_as_zero=undefined_as_zero,
        late_arrivals=_estimate_late_arrivals(view, treatment),
        live=None
        if len(view.phase_counts) > 1
        else EstimatePair(live_estimates[experiment.control][index], live_estimates[treatment][index]),
        guardrails=tuple(
            GuardrailEvidence(guardrail, _estimate_closed(view, treatment, guardrail.name))
            for guardrail in plan.guardrails
        ),
        diagnostics=tuple(
            DiagnosticMetric(
                metric.name,
                plan.metric_mde(metric.name),
                _estimate_closed(view, treatment, metric.name),
                plan.max_means[metric.name],
                plan.min_means[metric.name],
                experiment.is_lower_better(metric.name),
            )
            for metric in experiment.metrics
            if metric.name != experiment.primary
        )
        + tuple(
            DiagnosticMetric(
                name,
                plan.metric_mde(name),
                _estimate_closed(view, treatment, name),
                plan.max_mean(name),
                0.0,
                experiment.is_lower_better(name),
            )
            for name in experiment.student_metrics
        ),
        max_value=plan.max_means[experiment.primary],
        min_value=plan.min_means[experiment.primary],
        history=stored_students.history,
        first_response_ms=view.first_response_ms,
        texts=experiment.texts,
    )


def _estimate_closed(
    view: CohortView, treatment: str, metric: str, population: Population | None = None
) -> EstimatePair:
    """Return the estimates of control and treatment over closed cohorts, for a metric or a guardrail metric.

    `population` is by default the one over which the metric is judged.
    """
    statistics = (
        view.closed_statistics(variant, metric, population) for variant in (view.plan.experiment.control, treatment)
    )
    return EstimatePair(*estimate_stratified(list(zip(*statistics, strict=True))))


def _estimate_late_arrivals(view: CohortView, treatment: str) -> EstimatePair | None:
    """Return the shares of late events; None before any event with a known delay."""
    students, experiment = view.stored_students, view.plan.experiment
    arms = [
        late_arrival_estimate(
            students.variant_records[variant],
            students.delay_counts.get(variant, {}),
            max(experiment.closing_delay_ms, HOUR_MS),
        )
        for variant in (experiment.control, treatment)
    ]
    return EstimatePair(*arms) if all(arm.units for arm in arms) else None


def _estimate_undefined(
    view: CohortView, treatment: str, population: Population
) -> tuple[EstimatePair | None, EstimatePair | None]:
    """Return students' shares of undefined values of the primary metric, and the metric with undefined values as 0.

    Both are None if all values are defined, and over all responses, where undefined values count as 0 already.
    """
    plan = view.plan
    if population == "all" or not plan.layout.has_undefined:
        return None, None

    def estimate(statistic_of: Callable[[IntArray, RecordLayout], SampleMeanStatistic]) -> EstimatePair:
        statistics = (
            [statistic_of(record, plan.layout) for record in view.closed_records[variant]]
            for variant in (plan.experiment.control, treatment)
        )
        return EstimatePair(*estimate_stratified(list(zip(*statistics, strict=True))))

    undefined_share = estimate(closed_undefined_share_statistic)
    if not any(arm.mean for arm in (undefined_share.control, undefined_share.treatment)):
        return None, None
    return undefined_share, estimate(closed_undefined_as_zero_statistic)


def _estimate_primary(view: CohortView, treatment: str, population: Population) -> tuple[EstimatePair, float | None]:
    """Return the closed estimates of the primary metric, adjusted by CUPED where possible, and the θ of the adjustment.

    θ is None if no student has responses from before the experiment, or if these do not vary.
    """
    plan, control = view.plan, view.plan.experiment.control
    if plan.layout.has_pre_period:
        adjusted = apply_cuped(_covariate_strata(view, population), 1 / covariate_square_scale(plan.layout))
        if adjusted is not None:
            strata = [(stratum[control], stratum[treatment]) for stratum in adjusted.strata]
            return EstimatePair(*estimate_stratified(strata)), adjusted.theta
    return _estimate_closed(view, treatment, plan.experiment.primary, population), None


def _covariate_strata(
    view: CohortView, population: Population
) -> list[dict[str, tuple[SampleMeanStatistic, CovariateStatistic]]]:
    """Return, for each phase, variant → the sums of the primary metric over all students and over those with pairs."""
    plan = view.plan
    strata: list[dict[str, tuple[SampleMeanStatistic, CovariateStatistic]]] = [{} for _ in plan.phases]
    for variant, records in view.closed_records.items():
        statistics = view.closed_statistics(variant, plan.experiment.primary, population)
        for stratum, statistic, record in zip(strata, statistics, records, strict=True):
            stratum[variant] = statistic, closed_covariate_statistic(record, plan.layout, population)
    return strata


def _describe_adjustment(view: CohortView, treatment: str, theta: float) -> CupedAdjustment:
    """Return the adjustment, with the unadjusted estimates and the variants' estimates from before the experiment."""
    plan = view.plan
    population, other_population = (
        plan.experiment.population_of(plan.experiment.primary),
        plan.experiment.other_population,
    )
    strata = [(stratum[plan.experiment.control], stratum[treatment]) for stratum in _covariate_strata(view, population)]

    def estimate(
        statistic_of: Callable[[SampleMeanStatistic, CovariateStatistic], SampleMeanStatistic],
    ) -> EstimatePair:
        return EstimatePair(
            *estimate_stratified([(statistic_of(*control), statistic_of(*treated)) for control, treated in strata])
        )

    return CupedAdjustment(
        theta=theta,
        students=sum(covariates.units for pair in strata for _, covariates in pair),
        unadjusted=_estimate_closed(view, treatment, plan.experiment.primary, population),
        unadjusted_other_population=None
        if other_population is None
        else _estimate_closed(view, treatment, plan.experiment.primary, other_population),
        covariate=estimate(
            lambda _, covariates: SampleMeanStatistic(
                covariates.units, covariates.covariate_total, covariates.covariate_sum_of_squares
            )
        ),
        covered_share=estimate(
            lambda statistic, covariates: SampleMeanStatistic(statistic.units, covariates.units, covariates.units)
        ),
    )


def _compare_metrics(
    plan: AnalysisPlan,
    treatment: str,
    verdict: Verdict,
    live_estimates: Mapping[str, Sequence[Estimate]],
    *,
    is_bounded: bool,
) -> dict[str, dict[Estimand, VariantComparison]]:
    """Return metric → estimand → comparison; the closed comparisons are taken from the verdict.

    Student metrics are of the exposure window, so they have no live comparison.

    Live sums are not stored by allocation phase. Once the intended shares have changed, `is_bounded` is false and live
    effects have no bounds: students of different times would be compared.
    """
    experiment = plan.experiment
    closed_comparisons = {experiment.primary: verdict.primary, **dict(verdict.diagnostics)}
    student_metrics: dict[str, dict[Estimand, VariantComparison]] = {
        name: {"closed": closed_comparisons[name]} for name in experiment.student_metrics
    }
    return student_metrics | {
        metric: {
            "closed": closed_comparisons[metric],
            "live": _compare_live(plan, metric, control_estimate, treatment_estimate, is_bounded=is_bounded),
        }
        for metric, control_estimate, treatment_estimate in zip(
            plan.metric_names, live_estimates[experiment.control], live_estimates[treatment], strict=True
        )
    }


def _compare_live(
    plan: AnalysisPlan, metric: str, control: Estimate, treatment: Estimate, *, is_bounded: bool
) -> VariantComparison:
    comparison = compare_variants(
        control,
        treatment,
        alpha=plan.treatment_alpha,
        mde=plan.metric_mde(metric),
        max_value=plan.max_means[metric],
        min_value=plan.min_means[metric],
        estimand="live",
    )
    return comparison if is_bounded else msgspec.structs.replace(comparison, lower=None, upper=None, log_e=None, p=None)
