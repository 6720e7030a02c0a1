"""Analysis of experiments: from stored sums to verdicts, subgroup effects, summaries and drift. Pure functions, no I/O.

- `analysis_plan`: the settings of an analysis, allocation phases. `cohort_view`: closed cohorts as of an event time.
- `analyzer`: comparisons, sample ratio and verdicts. `subgroups`: effects by category and by days since first exposure.
- `entry_days`: the first and last day of entry, without stray days. `interim_history`: analyses as of past times.
- `experiment_planning`: students and days until an effect is resolved, from stored estimates or assumptions.
- `snapshots`: hourly results to keep, because they cannot be recomputed.
- `day_log`: the days of an experiment with remarks on unusual ones.
- `summary`: the read model of all outputs. `drift`: changes of a distribution from day to day.
- `undeclared`: experiments that the configuration lacks, and the rule by which they are adopted automatically.
- `notification_events`: which changes are worth a message.
- `item_scores`, `item_sums`, `shown_items`: bounds of ratings, stored sums, counts. `triage`: the review list.
- `item_overview`, `diversity`: statistics from single responses, and measures of a list's diversity.
"""

from __future__ import annotations

from monitor.analysis.analysis_plan import find_analysis_time
from monitor.analysis.analyzer import Analysis, Analyzer
from monitor.analysis.day_log import (
    MIN_RESPONSES_PER_DAY,
    DayEntry,
    DayLog,
    DayReading,
    DayRemark,
    RemarkKind,
    VariantDay,
    VariantDaySums,
    build_day_log,
)
from monitor.analysis.decision_history import (
    StatePeriod,
    VerdictHistory,
    history_json,
    list_state_periods,
    list_verdict_history,
)
from monitor.analysis.drift import (
    MIN_DRIFT_ALPHA,
    CellCounts,
    DayDrift,
    Drift,
    DriftDistance,
    measure_day_drift,
    measure_drift,
)
from monitor.analysis.entry_days import find_first_entry_day
from monitor.analysis.experiment_planning import (
    ASSUMPTION_OPTIONS,
    DEFAULT_POWERS,
    MAX_LISTED,
    PLAN_OPTIONS,
    ExperimentPlan,
    PlanCriteria,
    PlanningValues,
    PlanOptionError,
    PlanOptions,
    PrePeriod,
    ResponseAssumptions,
    assumed_planning_values,
    parse_plan_number,
    parse_plan_options,
    parse_response_assumptions,
    plan_experiment,
    stored_planning_values,
)
from monitor.analysis.interim_history import (
    StudentSplit,
    compute_interim_analyses,
    compute_student_splits,
    count_students_until,
    find_closing_times,
    find_entry_days,
)
from monitor.analysis.item_overview import (
    IntraListDiversity,
    ItemOverview,
    ResponseWithFeedback,
    TriageKind,
    count_students_by_category,
)
from monitor.analysis.item_scores import ItemScore
from monitor.analysis.item_sums import ItemCoverage, ItemSums, StoredItems
from monitor.analysis.notification_events import (
    MIN_DISCOVERED_RESPONSES,
    Change,
    ExperimentMemory,
    ExperimentObservation,
    NotificationMemory,
    PendingState,
    ReportedState,
    find_changes,
    list_harms,
    list_sample_ratio_mismatches,
    message_state,
)
from monitor.analysis.snapshots import (
    DecayedMeanSnapshot,
    ExperimentSnapshot,
    SnapshotHistory,
    select_prunable_hours,
    take_snapshot,
)
from monitor.analysis.subgroups import SubgroupEffects
from monitor.analysis.summary import (
    DecayedMean,
    ExperimentSummary,
    MetricSummary,
    StoreSummary,
    TrafficSummary,
    VariantSummary,
    format_timestamp,
    undeclared_json,
)
from monitor.analysis.triage import REVIEW_DAYS, ReviewRanking, TriageEntry, rank_for_review
from monitor.analysis.undeclared import UndeclaredExperiment, auto_adoptable, find_meant_name, spelling, stored_name
from monitor.stats import BackfillProgress, ExperimentHistory

__all__ = [
    "ASSUMPTION_OPTIONS",
    "DEFAULT_POWERS",
    "MAX_LISTED",
    "MIN_DISCOVERED_RESPONSES",
    "MIN_DRIFT_ALPHA",
    "MIN_RESPONSES_PER_DAY",
    "PLAN_OPTIONS",
    "REVIEW_DAYS",
    "Analysis",
    "Analyzer",
    "BackfillProgress",
    "CellCounts",
    "Change",
    "DayDrift",
    "DayEntry",
    "DayLog",
    "DayReading",
    "DayRemark",
    "DecayedMean",
    "DecayedMeanSnapshot",
    "Drift",
    "DriftDistance",
    "ExperimentHistory",
    "ExperimentMemory",
    "ExperimentObservation",
    "ExperimentPlan",
    "ExperimentSnapshot",
    "ExperimentSummary",
    "IntraListDiversity",
    "ItemCoverage",
    "ItemOverview",
    "ItemScore",
    "ItemSums",
    "MetricSummary",
    "NotificationMemory",
    "PendingState",
    "PlanCriteria",
    "PlanOptionError",
    "PlanOptions",
    "PlanningValues",
    "PrePeriod",
    "RemarkKind",
    "ReportedState",
    "ResponseAssumptions",
    "ResponseWithFeedback",
    "ReviewRanking",
    "SnapshotHistory",
    "StatePeriod",
    "StoreSummary",
    "StoredItems",
    "StudentSplit",
    "SubgroupEffects",
    "TrafficSummary",
    "TriageEntry",
    "TriageKind",
    "UndeclaredExperiment",
    "VariantDay",
    "VariantDaySums",
    "VariantSummary",
    "VerdictHistory",
    "assumed_planning_values",
    "auto_adoptable",
    "build_day_log",
    "compute_interim_analyses",
    "compute_student_splits",
    "count_students_by_category",
    "count_students_until",
    "find_analysis_time",
    "find_changes",
    "find_closing_times",
    "find_entry_days",
    "find_first_entry_day",
    "find_meant_name",
    "format_timestamp",
    "history_json",
    "list_harms",
    "list_sample_ratio_mismatches",
    "list_state_periods",
    "list_verdict_history",
    "measure_day_drift",
    "measure_drift",
    "message_state",
    "parse_plan_number",
    "parse_plan_options",
    "parse_response_assumptions",
    "plan_experiment",
    "rank_for_review",
    "select_prunable_hours",
    "spelling",
    "stored_name",
    "stored_planning_values",
    "take_snapshot",
    "undeclared_json",
]
