"""What an experiment's settings ask of its sums, and what those of its closed cohorts amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Final, get_args

import numpy as np

from monitor.aggregates import Ints, Layout
from monitor.config import LATENCY, RATED_SHARE, ExperimentSettings, is_share
from monitor.inference import (
    Adjusted,
    Adjustment,
    Arms,
    Criteria,
    Guardrail,
    Population,
    UnitSums,
    adjust,
    closed_pairs,
    closed_rated_shares,
    closed_units,
    closed_watched,
    pair_scale,
    stratified,
    units_place,
)
from monitor.ranking import SCALE, Scorer
from monitor.stretches import stretches

_DEFAULT_MDE: Final = 0.01
"""Of the largest value that the primary metric can have."""


class Terms:
    """What verdicts on an experiment need of its settings."""

    def __init__(self, experiment: ExperimentSettings) -> None:
        self.experiment = experiment
        self.layout = Layout.of(experiment)
        self.names = [metric.name for metric in experiment.metrics]
        self.stretches = stretches(experiment)
        bounds = Scorer.of(experiment).bounds()
        self.largest = {name: bound / SCALE for name, bound in zip(self.names, bounds, strict=True)}
        """Metric → the largest mean that a student can have."""
        shared = {name for stretch in self.stretches for name, share in stretch.shares.items() if share}
        self.treatments = [name for name in experiment.variants if name in shared and name != experiment.control]
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
        self.guardrails = [
            Guardrail(each.metric, each.bad, each.margin, self._largest(each.metric), each.worst_ms)
            for each in decision.guardrails
        ]

        self.units_place = units_place(self.names.index(experiment.primary), decision.population)
        """Where a record over cohorts has how many students the decision is about."""

    def mde(self, metric: str) -> float:
        """Return the mde of a metric, which has none of its own: the same part of its largest value."""
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


class Closed:
    """Estimates from the sums of closed cohorts; each is worked out once."""

    def __init__(self, terms: Terms, sums: Mapping[str, Sequence[Ints]]) -> None:
        self._terms = terms
        self._control = terms.experiment.control
        self.sums = sums
        """Variant → the sum of its closed cohorts' records in each stretch."""
        self._units: dict[tuple[str, str, Population], list[UnitSums]] = {}
        self._arms: dict[tuple[str, str, Population], Arms] = {}
        self._deciding: dict[tuple[str, Population], tuple[Arms, Adjustment | None]] = {}

    def is_of(self, sums: Mapping[str, Sequence[Ints]]) -> bool:
        """Return whether these are the sums that estimates are from."""
        return sums.keys() == self.sums.keys() and all(
            np.array_equal(own, other)
            for name, each in sums.items()
            for own, other in zip(each, self.sums[name], strict=True)
        )

    def arms(self, treatment: str, metric: str, population: Population) -> Arms:
        """Return the estimates of a metric, or of what else is watched."""
        what = treatment, metric, population
        if what not in self._arms:
            pair = (self._of(name, metric, population) for name in (self._control, treatment))
            self._arms[what] = Arms(*stratified(list(zip(*pair, strict=True))))
        return self._arms[what]

    def deciding_arms(self, treatment: str, population: Population) -> tuple[Arms, Adjustment | None]:
        """Return the estimates of the primary metric, adjusted where that is possible, and how."""
        what = treatment, population
        if what not in self._deciding:
            self._deciding[what] = self._decide(treatment, population)
        return self._deciding[what]

    def _of(self, variant: str, metric: str, population: Population) -> list[UnitSums]:
        """Return a variant's sums in each stretch; the control's are asked for by every treatment."""
        what = variant, metric, population
        if what not in self._units:
            self._units[what] = [self._terms.units(record, metric, population) for record in self.sums[variant]]
        return self._units[what]

    @cached_property
    def _adjusted(self) -> Mapping[Population, Adjusted | None]:
        """The primary metric's sums, adjusted for what students were like before the experiment; None without."""
        terms = self._terms
        primary, layout = terms.experiment.primary, terms.layout
        found: dict[Population, Adjusted | None] = {}
        for population in get_args(Population):
            strata = [
                {
                    name: (self._of(name, primary, population)[place], closed_pairs(own[place], layout, population))
                    for name, own in self.sums.items()
                }
                for place in range(len(terms.stretches))
            ]
            found[population] = adjust(strata, 1 / pair_scale(layout))
        return found

    def _decide(self, treatment: str, population: Population) -> tuple[Arms, Adjustment | None]:
        layout = self._terms.layout
        raw = self.arms(treatment, self._terms.experiment.primary, population)
        if not layout.before or (adjusted := self._adjusted[population]) is None:
            return raw, None
        strata = [(own[self._control], own[treatment]) for own in adjusted.strata]
        paired = [closed_pairs(each, layout, population).units for own in self.sums.values() for each in own]
        return Arms(*stratified(strata)), Adjustment(adjusted.theta, sum(paired), raw)
