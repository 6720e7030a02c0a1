"""Subgroup analysis: a treatment's effect on the primary metric by category, and by days since first exposure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from monitor.analysis.cohort_view import CohortView
from monitor.config import ExperimentSettings
from monitor.metrics import EXPOSURE_AGES, IntArray
from monitor.stats import (
    SegmentComparison,
    closed_subgroup_statistic,
    compare_segments,
    estimate_stratified,
    is_cohort_closed,
)

_OPEN_EXPOSURE_AGE: Final = EXPOSURE_AGES[-1][1]
"""Name of the last range of days since first exposure, which has no end: returning students always add responses."""


@dataclass(frozen=True, slots=True)
class SubgroupEffects:
    """A treatment's effects on the primary metric within subgroups; exploratory, not an input of verdicts."""

    segments: tuple[SegmentComparison, ...] = ()
    """By category of the student's first response; empty if the experiment declares no categories."""
    exposure_ages: tuple[SegmentComparison, ...] = ()
    """By days since the student's first exposure; empty if the experiment does not measure novelty.

    Each comparison is over the responses of those days, of the students who have any.
    """

    def segments_json(self) -> list[dict[str, Any]]:
        """Return the comparisons by category as JSON."""
        return [_comparison_json("segment", segment) for segment in self.segments]

    def exposure_ages_json(self) -> list[dict[str, Any]]:
        """Return the comparisons by days since first exposure as JSON; the comparison without an end is approximate."""
        return [
            {**_comparison_json("days", exposure_age), "approximate": exposure_age.name == _OPEN_EXPOSURE_AGE}
            for exposure_age in self.exposure_ages
        ]


def _comparison_json(name_key: str, subgroup: SegmentComparison) -> dict[str, Any]:
    comparison: dict[str, Any] = msgspec.to_builtins(subgroup.comparison)
    return {name_key: subgroup.name, "discovered": subgroup.discovered, **comparison}


def compute_subgroup_effects(view: CohortView, treatment: str) -> SubgroupEffects:
    """Return the treatment's effects within the subgroups that the experiment's settings declare.

    The last exposure age has no end, so its e is not an e-value. The age is therefore compared separately, and is never
    discovered.
    """
    experiment = view.plan.experiment
    records_by_segment = {name: (index, view.closed_records) for index, name in enumerate(experiment.segments)}
    records_by_age = {}
    for age_index, (_, name) in enumerate(EXPOSURE_AGES if experiment.novelty else ()):
        days = [day for day in view.days if _is_age_over(age_index, day, experiment, view.as_of_ms)]
        subgroup_index = len(experiment.segments) + age_index
        records_by_age[name] = subgroup_index, view.sum_records(view.group_by_phase(days))
    open_age = {_OPEN_EXPOSURE_AGE: records_by_age.pop(_OPEN_EXPOSURE_AGE)} if records_by_age else {}
    open_age_comparisons = (
        replace(comparison, discovered=False) for comparison in _compare_subgroups(view, treatment, open_age)
    )
    return SubgroupEffects(
        segments=_compare_subgroups(view, treatment, records_by_segment),
        exposure_ages=(*_compare_subgroups(view, treatment, records_by_age), *open_age_comparisons),
    )


def _is_age_over(age_index: int, day: int, experiment: ExperimentSettings, as_of_ms: int) -> bool:
    """Return whether an exposure age and the following feedback window are over for students first exposed on a day.

    The last age has no end; the result is whether its first day is over.
    """
    is_last = age_index + 1 == len(EXPOSURE_AGES)
    end_age_days = EXPOSURE_AGES[age_index][0] + 1 if is_last else EXPOSURE_AGES[age_index + 1][0]
    return is_cohort_closed(day, experiment.calendar, as_of_ms, end_age_days, experiment.closing_ms)


def _compare_subgroups(
    view: CohortView, treatment: str, subgroups: Mapping[str, tuple[int, Mapping[str, Sequence[IntArray]]]]
) -> tuple[SegmentComparison, ...]:
    """Return the comparison within each subgroup, given as (subgroup's index in records, variant → record by phase)."""
    plan = view.plan
    population = plan.experiment.population_of(plan.experiment.primary)
    estimates = {
        name: estimate_stratified(
            [
                (
                    closed_subgroup_statistic(control_record, plan.layout, subgroup_index, population),
                    closed_subgroup_statistic(treatment_record, plan.layout, subgroup_index, population),
                )
                for control_record, treatment_record in zip(
                    records[plan.experiment.control], records[treatment], strict=True
                )
            ]
        )
        for name, (subgroup_index, records) in subgroups.items()
    }
    return compare_segments(
        estimates,
        alpha=plan.treatment_alpha,
        mde=plan.criteria.mde,
        max_value=plan.max_means[plan.experiment.primary],
        min_value=plan.min_means[plan.experiment.primary],
    )
