"""What the sums of an experiment's closed cohorts amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import get_args

import numpy as np

from monitor.aggregates import Ints
from monitor.inference import (
    Adjusted,
    Adjustment,
    Arms,
    Population,
    UnitSums,
    adjust,
    closed_pairs,
    pair_scale,
    stratified,
)
from monitor.terms import Terms


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
