"""Stretches of time with constant intended shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from monitor.clock import DAY_MS
from monitor.config import ExperimentSettings


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
