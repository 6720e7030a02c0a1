"""Where an effect differs: by the segment that students belong to, and by days since their first exposure.

Looking only: nothing of it is in a verdict. Sums are those of `Layout.part_place`; what may be claimed of them is in
docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from monitor.aggregates import AGES, Ints, Layout
from monitor.attribution import DAY_MS
from monitor.config import ExperimentSettings
from monitor.inference import Comparison, Segment, closed_part, compare_segments, stratified

_OPEN: Final = AGES[-1][1]
"""The age that is never over: whoever comes again goes on adding to it."""

Strata = Sequence[tuple[Ints, Ints]]
"""Sums of cohorts' records of (control, treatment), one pair for each stretch of constant shares."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A treatment's effect on the primary metric within parts of the students."""

    segments: tuple[Segment, ...] = ()
    """By category of the first response that a student was shown."""
    ages: tuple[Segment, ...] = ()
    """By days since a student's first exposure: over the responses of those days, of the students who had any."""

    def segments_json(self) -> list[dict[str, Any]]:
        return [_json("segment", each) for each in self.segments]

    def ages_json(self) -> list[dict[str, Any]]:
        return [{**_json("days", each), "approximate": each.name == _OPEN} for each in self.ages]


def _json(key: str, part: Segment) -> dict[str, Any]:
    comparison: Comparison = part.comparison
    return {key: part.name, "discovered": part.discovered, **msgspec.to_builtins(comparison)}


def age_is_over(age: int, day: int, at_ms: int, feedback_window_ms: int) -> bool:
    """Return whether an age of the students first exposed on a UTC day is over; of the last, whether it has begun."""
    end = AGES[age + 1][0] if age + 1 < len(AGES) else AGES[age][0] + 1
    return (day + end) * DAY_MS + feedback_window_ms <= at_ms


def segments_of(
    experiment: ExperimentSettings, layout: Layout, strata: Strata, *, alpha: float, mde: float, largest: float
) -> tuple[Segment, ...]:
    """Return the comparison within each segment, closed windows only; nothing without declared categories."""
    names = experiment.segments
    return _compared(experiment, layout, {name: (part, strata) for part, name in enumerate(names)}, alpha, mde, largest)


def ages_of(
    experiment: ExperimentSettings,
    layout: Layout,
    strata: Iterable[Strata],
    *,
    alpha: float,
    mde: float,
    largest: float,
) -> tuple[Segment, ...]:
    """Return the comparison within each age, from the cohorts in which that age is over.

    The last one is never over, so its e is no e-value: it is compared on its own, and never discovered.
    """
    parts = {name: (layout.segments + age, own) for age, ((_, name), own) in enumerate(zip(AGES, strata, strict=True))}
    last = {_OPEN: parts.pop(_OPEN)}
    still = _compared(experiment, layout, last, alpha, mde, largest)
    found = _compared(experiment, layout, parts, alpha, mde, largest)
    return (*found, *(replace(each, discovered=False) for each in still))


def _compared(
    experiment: ExperimentSettings,
    layout: Layout,
    parts: Mapping[str, tuple[int, Strata]],
    alpha: float,
    mde: float,
    largest: float,
) -> tuple[Segment, ...]:
    if not parts:
        return ()
    population = experiment.decision.population
    return compare_segments(
        {
            name: stratified(
                [(closed_part(a, layout, part, population), closed_part(b, layout, part, population)) for a, b in own]
            )
            for name, (part, own) in parts.items()
        },
        alpha=alpha,
        mde=mde,
        largest=largest,
    )
