"""What an experiment's settings ask of its sums, and the stretches of time with constant intended shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from monitor.clock import DAY_MS
from monitor.config import LATENCY, RATED_SHARE, ExperimentSettings, is_share
from monitor.metrics import SCALE, Ints, Layout, Scorer
from monitor.stats import (
    Criteria,
    Guardrail,
    Population,
    UnitSums,
    closed_rated_shares,
    closed_units,
    closed_watched,
    split_alpha,
    units_place,
)

_DEFAULT_MDE: Final = 0.01
"""Of the largest value that the primary metric can have."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Whole UTC days of constant intended shares: from `first` until before `end`; None is without end."""

    first: int | None
    end: int | None
    shares: Mapping[str, float]

    def __contains__(self, day: int) -> bool:
        return (self.first is None or day >= self.first) and (self.end is None or day < self.end)


def stretches(experiment: ExperimentSettings) -> tuple[Stretch, ...]:
    """Return the stretches of constant shares; the day within which shares change is in none."""
    found = []
    first, shares = None, experiment.variants
    for allocation in experiment.decision.allocations:
        day, inside = divmod(allocation.from_ms, DAY_MS)
        if first is None or day > first:
            found.append(Stretch(first, day, shares))
        first, shares = day + (1 if inside else 0), allocation.shares
    return (*found, Stretch(first, None, shares))


def shares_at(experiment: ExperimentSettings, at_ms: int) -> Mapping[str, float]:
    """Return the intended shares of students at a time."""
    begun = [each.shares for each in experiment.decision.allocations if each.from_ms <= at_ms]
    return begun[-1] if begun else experiment.variants


class Terms:
    """What verdicts on an experiment need of its settings."""

    def __init__(self, experiment: ExperimentSettings) -> None:
        self.experiment = experiment
        self.layout = Layout.of(experiment)
        self.names = [metric.name for metric in experiment.metrics]
        self.stretches = stretches(experiment)
        """Of constant intended shares."""
        bounds = Scorer.of(experiment).bounds()
        self.largest = {name: bound / SCALE for name, bound in zip(self.names, bounds, strict=True)}
        """Metric → the largest mean that a student can have."""
        shared = {name for stretch in self.stretches for name, share in stretch.shares.items() if share}
        self.treatments = [name for name in experiment.variants if name in shared and name != experiment.control]
        """Variants other than the control that have a share at any time."""
        decision = experiment.decision
        rated = [each.margin for each in decision.guardrails if each.metric == RATED_SHARE]
        self.criteria = Criteria(
            mde=decision.mde or _DEFAULT_MDE * self.largest[experiment.primary],
            margin=decision.margin,
            alpha=decision.alpha,
            treatments=max(len(self.treatments), 1),
            min_days=decision.min_days,
            **({"rated_share_margin": rated[0]} if rated else {}),
        )
        self.treatment_alpha = split_alpha(self.criteria.alpha, self.criteria.treatments)
        self.guardrails = [
            Guardrail(each.metric, each.bad, each.margin, self._largest(each.metric), each.worst_ms)
            for each in decision.guardrails
        ]
        self.units_place = units_place(self.names.index(experiment.primary), decision.population)
        """Where a record over cohorts has how many students the decision is about."""

    def mde(self, metric: str) -> float:
        """Return the mde of a metric: that of the primary one, as the same part of its own largest value."""
        return self.criteria.mde * self.largest[metric] / self.largest[self.experiment.primary]

    def units(self, record: Ints, metric: str, population: Population) -> UnitSums:
        """Return the sums over students of a metric, or of what else is watched, from the sum of cohorts' records."""
        watched = self.experiment.watched
        if metric == RATED_SHARE:
            return closed_rated_shares(record)
        if metric in watched:
            return closed_watched(record, self.layout, watched.index(metric))
        return closed_units(record, self.layout, self.names.index(metric), population)

    def _largest(self, metric: str) -> float | None:
        """Return the largest mean that a student can have; None if there is no bound."""
        if metric == LATENCY:
            return None
        return 1.0 if is_share(metric) else self.largest[metric]
