"""What was known of an experiment at a full hour of event time: snapshots, and how many of them are kept.

They are for looking back at what cannot be worked out again later: decayed means beyond `retention`, sums over all
responses so far, and what was said of a treatment at the time. Nothing is decided by them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, TypeAlias

import msgspec

from monitor.analysis.summary import DecayedMean, ExperimentSummary
from monitor.stats import Comparison, State

HOUR_MS: Final = 3_600_000
_HOURS_A_DAY: Final = 24
HOURS_KEPT: Final = 1_000
"""Newest snapshots that are kept as they are: six weeks without a gap."""
DAYS_KEPT: Final = 1_000
"""Days before those, of each of which the first snapshot is kept."""

Interval: TypeAlias = tuple[float | None, float | None, float | None]
"""Effect, lower and upper bound."""


class DecayedThen(msgspec.Struct, array_like=True, frozen=True):
    """The primary metric's decayed mean over rated responses."""

    mean: float | None
    standard_error: float | None
    """With the design effect: responses of one student resemble each other."""
    effective_count: float | None

    @classmethod
    def of(cls, found: DecayedMean, design_effect: float | None) -> DecayedThen:
        """Return what there is to be kept; no standard error where either factor is not known."""
        known = None if found.standard_error is None or design_effect is None else found.standard_error
        return cls(found.mean, known and known * (design_effect or 0.0) ** 0.5, found.effective_count)


class VariantThen(msgspec.Struct, array_like=True, frozen=True):
    """One variant: all-time counts, and by decay what was watched."""

    responses: int
    rated_responses: int
    decayed: dict[str, DecayedThen]


class TreatmentThen(msgspec.Struct, array_like=True, frozen=True):
    """One treatment: what was said of it, and the primary metric's intervals."""

    state: State
    closed: Interval
    live: Interval


class Snapshot(msgspec.Struct, array_like=True, frozen=True):
    """One experiment at one time. Fields are only ever added at the end: older versions' snapshots stay readable."""

    metric: str
    """The primary one at that time; everything is about it."""
    crossovers: int
    """Students who had seen more than one variant."""
    variants: dict[str, VariantThen]
    treatments: dict[str, TreatmentThen]


Past: TypeAlias = Mapping[int, Snapshot]
"""Hour since 1970 → what was known then."""


def snapshot(summary: ExperimentSummary) -> Snapshot | None:
    """Return what is kept of a summary; None where it has no events, or nobody asked for a judgement."""
    judgement = summary.judgement
    if judgement is None or all(variant.last_event_at_ms is None for variant in summary.variants.values()):
        return None
    primary = summary.primary
    return Snapshot(
        metric=primary,
        crossovers=summary.crossovers,
        variants={
            name: VariantThen(
                variant.responses,
                variant.rated_responses,
                {
                    decay: DecayedThen.of(mean, variant.metrics[primary].design_effect)
                    for decay, mean in variant.metrics[primary].decayed.items()
                },
            )
            for name, variant in summary.variants.items()
        },
        treatments={
            name: TreatmentThen(
                verdict.state,
                _interval(verdict.primary),
                _interval(judgement.comparisons[name][primary]["live"]),
            )
            for name, verdict in judgement.verdicts.items()
        },
    )


def _interval(comparison: Comparison) -> Interval:
    return comparison.difference.effect, comparison.lower, comparison.upper


def superfluous(hours: Collection[int]) -> list[int]:
    """Return the hours whose snapshots go: all but the newest, and of the days before them all but the first.

    >>> len(superfluous(range(1_000))), superfluous([0, 1, 23, 24, *range(100, 1_100)])
    (0, [1, 23])
    """
    newest_first = sorted(hours, reverse=True)
    first_of_day = {hour // _HOURS_A_DAY: hour for hour in newest_first[HOURS_KEPT:]}
    days_kept = sorted(first_of_day, reverse=True)[:DAYS_KEPT]
    kept = {first_of_day[day] for day in days_kept}
    return sorted(hour for hour in newest_first[HOURS_KEPT:] if hour not in kept)
