"""Statistics of an experiment: from stored sums to a verdict that is valid at every interim analysis. Pure functions.

- `stored_sums`: sufficient statistics from stored records. `estimates`: means, variances and effects from statistics.
- `confidence_sequences`: sequential tests. `comparison`: one treatment against the control on one metric.
- `relative_effects`: relative effects with bounds.
- `rare_events`: variance corrections for small samples. `cuped`: regression adjustment. `segments`: subgroup effects.
- `data_quality`: missing responses by variant. `experiment_history`: changes of a running experiment.
- `srm`: the sample ratio mismatch test. `guardrails`: bounds of harm. `decision`: the rule from evidence to verdict.
- `planning`: students and days until an effect is resolved.
- `decay_bands`: bands around decayed means, for display. `wording`: phrases with numbers and units for readers.
- `decay_bands`, `day_bands`: bands of decayed means and of a day's mean, for display.
- `wording`: phrases with numbers and units for readers.

docs/statistics.md has the estimands, formulas, sources and the limits of what may be claimed.
"""

from __future__ import annotations

from monitor.stats.comparison import (
    MIN_UNITS_FOR_DECISION,
    MIN_UNITS_FOR_INTERVAL,
    VariantComparison,
    compare_variants,
    split_alpha,
)
from monitor.stats.cuped import CovariateStatistic, RegressionAdjustedStatistics, apply_cuped
from monitor.stats.data_quality import DataQuality, ResponseQuality
from monitor.stats.day_bands import BAND_ALPHA, BAND_DAYS, MAX_DAYS_BEFORE, MIN_DAYS_BEFORE, DayBand, predict_day_mean
from monitor.stats.decay_bands import decay_band_multiplier, design_effect
from monitor.stats.decision import Reason, Verdict, VerdictState, check_part_ratios, decide_verdict, parse_evidence
from monitor.stats.estimates import Estimand, Estimate, SampleMeanStatistic, estimate_stratified
from monitor.stats.evidence import (
    CupedAdjustment,
    DecisionCriteria,
    DiagnosticMetric,
    EstimatePair,
    GuardrailEvidence,
    SegmentCounts,
    SkippedEventCounts,
    VerdictEvidence,
)
from monitor.stats.experiment_history import BackfillProgress, ExperimentHistory
from monitor.stats.guardrails import (
    Guardrail,
    GuardrailResult,
    GuardrailState,
    days_until_decided,
    evaluate_guardrail,
)
from monitor.stats.planning import (
    MAX_PLANNED_DAYS,
    PlanAssumptions,
    PlannedGuardrail,
    Requirement,
    ResolvableEffect,
    Schedule,
    SharePlan,
    Shares,
    StudentValues,
    fixed_horizon_students,
    intra_student_correlation,
    plan_shares,
    pre_period_correlation,
    resolvable_effects,
    student_variance,
)
from monitor.stats.relative_effects import relative_confidence_sequence
from monitor.stats.segments import SegmentComparison, compare_segments
from monitor.stats.srm import DayCounts, PhaseCounts, SrmResult, check_srm
from monitor.stats.stored_sums import (
    CohortTable,
    StoredStudentSums,
    closed_covariate_statistic,
    closed_metric_statistic,
    closed_rated_share_statistic,
    closed_student_metric_statistic,
    closed_subgroup_statistic,
    closed_undefined_as_zero_statistic,
    closed_undefined_share_statistic,
    covariate_square_scale,
    is_cohort_closed,
    late_arrival_estimate,
    live_metric_statistic,
    live_rated_share_statistic,
)
from monitor.stats.wording import (
    capitalized_metric_label,
    describe_change,
    describe_guardrail,
    format_amount,
    format_changes,
    format_difference,
    format_level,
    format_mean,
    mean_unit,
    metric_label,
    metric_unit,
)

__all__ = [
    "BAND_ALPHA",
    "BAND_DAYS",
    "MAX_DAYS_BEFORE",
    "MAX_PLANNED_DAYS",
    "MIN_DAYS_BEFORE",
    "MIN_UNITS_FOR_DECISION",
    "MIN_UNITS_FOR_INTERVAL",
    "BackfillProgress",
    "CohortTable",
    "CovariateStatistic",
    "CupedAdjustment",
    "DataQuality",
    "DayBand",
    "DayCounts",
    "DecisionCriteria",
    "DiagnosticMetric",
    "Estimand",
    "Estimate",
    "EstimatePair",
    "ExperimentHistory",
    "Guardrail",
    "GuardrailEvidence",
    "GuardrailResult",
    "GuardrailState",
    "PhaseCounts",
    "PlanAssumptions",
    "PlannedGuardrail",
    "Reason",
    "RegressionAdjustedStatistics",
    "Requirement",
    "ResolvableEffect",
    "ResponseQuality",
    "SampleMeanStatistic",
    "Schedule",
    "SegmentComparison",
    "SegmentCounts",
    "SharePlan",
    "Shares",
    "SkippedEventCounts",
    "SrmResult",
    "StoredStudentSums",
    "StudentValues",
    "VariantComparison",
    "Verdict",
    "VerdictEvidence",
    "VerdictState",
    "apply_cuped",
    "capitalized_metric_label",
    "check_part_ratios",
    "check_srm",
    "closed_covariate_statistic",
    "closed_metric_statistic",
    "closed_rated_share_statistic",
    "closed_student_metric_statistic",
    "closed_subgroup_statistic",
    "closed_undefined_as_zero_statistic",
    "closed_undefined_share_statistic",
    "compare_segments",
    "compare_variants",
    "covariate_square_scale",
    "days_until_decided",
    "decay_band_multiplier",
    "decide_verdict",
    "describe_change",
    "describe_guardrail",
    "design_effect",
    "estimate_stratified",
    "evaluate_guardrail",
    "fixed_horizon_students",
    "format_amount",
    "format_changes",
    "format_difference",
    "format_level",
    "format_mean",
    "intra_student_correlation",
    "is_cohort_closed",
    "late_arrival_estimate",
    "live_metric_statistic",
    "live_rated_share_statistic",
    "mean_unit",
    "metric_label",
    "metric_unit",
    "parse_evidence",
    "plan_shares",
    "pre_period_correlation",
    "predict_day_mean",
    "relative_confidence_sequence",
    "resolvable_effects",
    "split_alpha",
    "student_variance",
]
