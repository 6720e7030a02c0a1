"""Snapshots of an experiment's results at full hours of event time, and the rule for pruning old snapshots.

Snapshots keep past results that cannot be recomputed later: decayed means beyond `retention`, sums over all responses
so far, and the state of each verdict at the time. Reports show snapshots; no verdict depends on them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from monitor.analysis.summary import DecayedMean, ExperimentSummary
from monitor.clock import HOURS_PER_DAY
from monitor.stats import VariantComparison, VerdictState

MAX_HOURLY_SNAPSHOTS: Final = 1_000
"""Limit of the newest snapshots, of which every hour is kept: about six weeks."""
MAX_DAILY_SNAPSHOTS: Final = 1_000
"""Limit of the older snapshots, of which the first one of each day is kept."""

EffectInterval: TypeAlias = tuple[float | None, float | None, float | None]
"""(effect, lower bound, upper bound); None where undefined."""


class DecayedMeanSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The primary metric's decayed mean over rated responses."""

    mean: float | None
    standard_error: float | None
    """Standard error with the design effect of several responses per student; None if unknown."""
    effective_count: float | None

    @classmethod
    def of(cls, decayed_mean: DecayedMean, design_effect: float | None) -> DecayedMeanSnapshot:
        """Return the snapshot of a decayed mean; the standard error is None without a design effect."""
        standard_error = None
        if decayed_mean.standard_error is not None and design_effect is not None:
            standard_error = decayed_mean.standard_error * design_effect**0.5
        return cls(decayed_mean.mean, standard_error, decayed_mean.effective_count)


class VariantSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The all-time counts of a variant, and the primary metric's mean under each decay."""

    responses: int
    rated_responses: int
    decayed_means: dict[str, DecayedMeanSnapshot]


class TreatmentSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The state of a treatment's verdict, and the primary metric's interval of each estimand."""

    state: VerdictState
    closed: EffectInterval
    live: EffectInterval


class ExperimentSnapshot(msgspec.Struct, array_like=True, frozen=True):
    """The results of an experiment at a full hour of event time.

    New fields are only added at the end, so that snapshots of older versions remain readable.
    """

    metric: str
    """The primary metric at that time; all means and intervals are of this metric."""
    crossovers: int
    """Students who had seen more than one variant."""
    variants: dict[str, VariantSnapshot]
    treatments: dict[str, TreatmentSnapshot]


SnapshotHistory: TypeAlias = Mapping[int, ExperimentSnapshot]
"""Hour since 1970 → snapshot of one experiment."""


def take_snapshot(summary: ExperimentSummary) -> ExperimentSnapshot | None:
    """Return the snapshot of a summary; None if the summary has no events or no analysis."""
    analysis = summary.analysis
    if analysis is None or all(variant.last_event_at_ms is None for variant in summary.variants.values()):
        return None
    primary = summary.primary
    return ExperimentSnapshot(
        metric=primary,
        crossovers=summary.crossovers,
        variants={
            name: VariantSnapshot(
                variant.responses,
                variant.rated_responses,
                {
                    decay: DecayedMeanSnapshot.of(mean, variant.metrics[primary].design_effect)
                    for decay, mean in variant.metrics[primary].decayed.items()
                },
            )
            for name, variant in summary.variants.items()
        },
        treatments={
            name: TreatmentSnapshot(
                verdict.state,
                _interval(verdict.primary),
                _interval(analysis.comparisons[name][primary]["live"]),
            )
            for name, verdict in analysis.verdicts.items()
        },
    )


def _interval(comparison: VariantComparison) -> EffectInterval:
    return comparison.difference.effect, comparison.lower, comparison.upper


def select_prunable_hours(stored_hours: Collection[int]) -> list[int]:
    """Return the hours of the snapshots to delete, ascending.

    The newest `MAX_HOURLY_SNAPSHOTS` hours are not deleted. Of the older hours, the first stored hour of each of the
    newest `MAX_DAILY_SNAPSHOTS` days is not deleted.

    >>> len(select_prunable_hours(range(1_000))), select_prunable_hours([0, 1, 23, 24, *range(100, 1_100)])
    (0, [1, 23])
    """
    older_hours = sorted(stored_hours, reverse=True)[MAX_HOURLY_SNAPSHOTS:]
    first_hour_by_day = {hour // HOURS_PER_DAY: hour for hour in older_hours}
    retained_days = sorted(first_hour_by_day, reverse=True)[:MAX_DAILY_SNAPSHOTS]
    retained_hours = {first_hour_by_day[day] for day in retained_days}
    return sorted(hour for hour in older_hours if hour not in retained_hours)
