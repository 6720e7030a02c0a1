"""The analysis plan of an experiment according to the settings, and phases of constant allocation of students."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.clock import HOUR_MS
from monitor.config import (
    LATENCY_METRIC,
    PER_STUDENT_PREFIX,
    RATED_SHARE_METRIC,
    RETURN_DAYS_METRIC,
    ExperimentSettings,
    Population,
    is_proportion,
)
from monitor.metrics import FIXED_POINT_SCALE, IntArray, RecordLayout, Scorer
from monitor.stats import (
    DecisionCriteria,
    Guardrail,
    SampleMeanStatistic,
    closed_metric_statistic,
    closed_rated_share_statistic,
    closed_student_metric_statistic,
    split_alpha,
)

_DEFAULT_MDE_SHARE: Final = 0.01
"""Minimum detectable effect without a setting, as a share of the largest value of the primary metric."""

_TYPICAL_RESPONSES: Final = 2.0
"""Responses of a student in the exposure window, for the MDE of student metrics without a largest value."""

_CHANGE_TOLERANCE_MS: Final = HOUR_MS
"""How far a change of shares within a day may be from the change of the traffic: configuration and chatbot are changed
one after the other."""

_CLOSED_EXPOSURE_AGE_DAYS: Final = 8
"""Days after which the last exposure age that can end is over."""


@dataclass(frozen=True, slots=True)
class AllocationPhase:
    """A range of whole days, counted from 1970, on which the intended shares of the variants are constant."""

    first_day: int | None
    """None: from the beginning of the experiment."""
    end_day: int | None
    """The first day after the phase; None: until the end of the experiment."""
    intended_shares: Mapping[str, float]
    """Variant → share of the students."""

    def __contains__(self, day: int) -> bool:
        return (self.first_day is None or day >= self.first_day) and (self.end_day is None or day < self.end_day)

    def select_days(self, days: range) -> range:
        """Return the days of a range that are in the phase."""
        first_day = days.start if self.first_day is None else max(days.start, self.first_day)
        return range(first_day, days.stop if self.end_day is None else min(days.stop, self.end_day))


def list_allocation_phases(experiment: ExperimentSettings) -> tuple[AllocationPhase, ...]:
    """Return the allocation phases in the order of time; a day within which the shares change is in no phase.

    Shares that change at midnight change exactly then. Any other change may be up to an hour earlier or later in the
    traffic, so near midnight two days are in no phase.
    """
    phases = []
    calendar, first_day, shares = experiment.calendar, None, experiment.variants
    for allocation in experiment.decision.allocations:
        tolerance_ms = 0 if calendar.is_start(allocation.from_ms) else _CHANGE_TOLERANCE_MS
        end_day = calendar.day_number(allocation.from_ms - tolerance_ms)
        if first_day is None or end_day > first_day:
            phases.append(AllocationPhase(first_day, end_day, shares))
        first_day = max(first_day or 0, calendar.day_number(allocation.from_ms + tolerance_ms - 1) + 1)
        shares = allocation.shares
    return (*phases, AllocationPhase(first_day, None, shares))


def find_analysis_time(experiment: ExperimentSettings, newest_event_ms: int, read_until_ms: int) -> int:
    """Return the event time as of which the experiment is analyzed: usually that of the newest event.

    `read_until_ms` is a time until which all events are assumed to have been read. No event after `ends_at` +
    `feedback_window` can change the results. So if `read_until_ms` is later than that, it closes windows, up to the
    time at which all windows are closed.
    """
    if experiment.ends_at_ms is None or read_until_ms < experiment.ends_at_ms + experiment.feedback_window_ms:
        return newest_event_ms
    last_day = experiment.calendar.day_number(experiment.ends_at_ms - 1)
    window_days = max(experiment.exposure_days, _CLOSED_EXPOSURE_AGE_DAYS if experiment.novelty else 0)
    all_closed_ms = experiment.calendar.start_ms(last_day + window_days) + experiment.feedback_window_ms
    return max(newest_event_ms, min(read_until_ms, all_closed_ms))


class AnalysisPlan:
    """The settings that determine an experiment's verdicts, in the form that the statistics need."""

    def __init__(self, experiment: ExperimentSettings) -> None:
        self.experiment = experiment
        self.layout = RecordLayout.for_experiment(experiment)
        self.metric_names = [metric.name for metric in experiment.metrics]
        self._ranking_names = {metric.name for metric in experiment.ranking_metrics}
        self.phases = list_allocation_phases(experiment)
        ranking_bounds = [bound / FIXED_POINT_SCALE for bound in Scorer.for_experiment(experiment).bounds()]
        bounds = [*ranking_bounds, *(metric.most for metric in experiment.answer_metrics)]
        self.max_means = dict(zip(self.metric_names, bounds, strict=True))
        """Metric → the largest possible mean of a student."""
        self.min_means = {metric.name: metric.least for metric in experiment.metrics}
        """Metric → the smallest possible mean of a student."""
        allocated_variants = {name for phase in self.phases for name, share in phase.intended_shares.items() if share}
        self.treatments = [
            name for name in experiment.variants if name in allocated_variants and name != experiment.control
        ]
        """Variants other than the control that have a share in any phase."""
        decision = experiment.decision
        self.criteria = DecisionCriteria(
            mde=decision.mde or _DEFAULT_MDE_SHARE * self.max_means[experiment.primary],
            margin=decision.margin,
            alpha=decision.alpha,
            treatments=max(len(self.treatments), 1),
            min_days=decision.min_days,
        )
        self.treatment_alpha = split_alpha(self.criteria.alpha, self.criteria.treatments)
        """The error level of each treatment."""
        self.guardrails = [
            Guardrail(
                guardrail.metric,
                guardrail.harmful_direction,
                guardrail.margin,
                self.max_mean(guardrail.metric),
                guardrail.timeout_ms,
                guardrail.is_relative,
                self.min_means.get(guardrail.metric, 0.0),
            )
            for guardrail in decision.guardrails
        ]
        primary_index = self.metric_names.index(experiment.primary)
        self.unit_count_index = self.layout.cohort_units_index(
            primary_index, experiment.population_of(experiment.primary)
        )
        """Index in a cohort's record of the number of students with a mean of the primary metric."""

    def common_phases(self, treatment: str) -> list[AllocationPhase]:
        """Return the phases in which both the control and the treatment have a share."""
        variants = self.experiment.control, treatment
        return [phase for phase in self.phases if all(phase.intended_shares.get(name) for name in variants)]

    def metric_mde(self, metric: str) -> float:
        """Return the MDE of a metric: the MDE of the primary metric, scaled by the ratio of the largest means.

        Between a ranking metric and another kind of metric, or two other kinds, that ratio means little, so it is at
        least a hundredth of the largest mean. A student metric without one counts as having that of two responses.
        """
        largest = self.max_means.get(metric) or self.max_mean(metric)
        if largest is None:
            largest = _TYPICAL_RESPONSES * self.max_means.get(metric.removeprefix(PER_STUDENT_PREFIX), 1.0)
        share = self.criteria.mde / self.max_means[self.experiment.primary]
        if metric not in self._ranking_names or self.experiment.primary not in self._ranking_names:
            share = max(share, _DEFAULT_MDE_SHARE)
        return share * largest

    def closed_statistic(
        self, record: IntArray, metric: str, population: Population | None = None
    ) -> SampleMeanStatistic:
        """Return the sums over students of a metric or of a guardrail metric, from the sum of closed cohorts' records.

        `population` is by default the one over which the metric is judged.
        """
        student_metrics = self.experiment.student_metrics
        if metric == RATED_SHARE_METRIC:
            return closed_rated_share_statistic(record, self.layout)
        if metric in student_metrics:
            return closed_student_metric_statistic(record, self.layout, student_metrics.index(metric))
        index = self.metric_names.index(metric)
        return closed_metric_statistic(record, self.layout, index, population or self.experiment.population_of(metric))

    def max_mean(self, metric: str) -> float | None:
        """Return the largest possible value of a student for a guardrail or student metric; None without a bound."""
        if metric == RETURN_DAYS_METRIC:
            return float(self.experiment.exposure_days - 1)
        if metric == LATENCY_METRIC or (metric in self.experiment.student_metrics and not is_proportion(metric)):
            return None
        return 1.0 if is_proportion(metric) else self.max_means[metric]
