"""From an experiment's stored sums to its verdicts: comparisons, sample ratio, guardrails; never a pass over students.

Two clocks are at work. What is closed, and who was first exposed when, is read at a time of events; sums over all
responses (the live estimand, crossovers) are those of now. Estimands, formulas and claims: docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final

import msgspec
import numpy as np

from monitor.analysis.plan import Terms
from monitor.clock import DAY_MS
from monitor.config import RATED_SHARE, ExperimentSettings
from monitor.metrics import AGES, Ints
from monitor.stats import (
    Adjusted,
    Adjustment,
    Arms,
    Cohorts,
    Comparison,
    Diagnostic,
    Estimand,
    Estimate,
    Evidence,
    PairedSums,
    Phase,
    Population,
    SampleRatio,
    Segment,
    StoredStudents,
    UnitSums,
    Verdict,
    Watched,
    adjust,
    closed_pairs,
    closed_part,
    compare,
    compare_segments,
    decide,
    is_closed,
    pair_scale,
    sample_ratio_test,
    stratified,
)

_OPEN_AGE: Final = AGES[-1][1]
"""The age that is never over: whoever comes again goes on adding to it."""
_RATE_DAYS: Final = 7
"""Closed days that students per day are counted over: a whole week of them."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A treatment's effect on the primary metric within parts of the students, for looking: no verdict needs it."""

    segments: tuple[Segment, ...] = ()
    """By category of the first response that a student was shown."""
    ages: tuple[Segment, ...] = ()
    """By days since a student's first exposure: over the responses of those days, of the students who had any."""

    def segments_json(self) -> list[dict[str, Any]]:
        return [_part_json("segment", each) for each in self.segments]

    def ages_json(self) -> list[dict[str, Any]]:
        return [{**_part_json("days", each), "approximate": each.name == _OPEN_AGE} for each in self.ages]


def _part_json(key: str, part: Segment) -> dict[str, Any]:
    comparison: Comparison = part.comparison
    return {key: part.name, "discovered": part.discovered, **msgspec.to_builtins(comparison)}


def _is_over(age: int, day: int, at_ms: int, feedback_window_ms: int) -> bool:
    """Return whether an age of the students first exposed on a UTC day is over; of the last, whether it has begun."""
    end = AGES[age + 1][0] if age + 1 < len(AGES) else AGES[age][0] + 1
    return (day + end) * DAY_MS + feedback_window_ms <= at_ms


@dataclass(frozen=True, slots=True)
class Judgement:
    """Everything that may be said about an experiment's variants at one time."""

    at_ms: int
    comparisons: Mapping[str, Mapping[str, Mapping[Estimand, Comparison]]]
    """Treatment → metric → estimand."""
    sample_ratio: SampleRatio
    days_left_out: tuple[int, ...]
    """UTC days within which shares changed: in no phase, and in no closed comparison."""
    verdicts: Mapping[str, Verdict]
    """By treatment: variants other than the control that have a share at any time."""
    parts: Mapping[str, Parts]
    """By treatment."""

    def to_json(self) -> dict[str, Any]:
        """Return what `status --json` says besides counts and means; `evidence_from` reads each verdict's evidence."""
        return {
            "comparisons": {
                treatment: {
                    metric: {estimand: comparison_json(each) for estimand, each in both.items()}
                    for metric, both in metrics.items()
                }
                for treatment, metrics in self.comparisons.items()
            },
            "sample_ratio": {
                **self.sample_ratio.to_json(),
                "days_left_out": [_date(day) for day in self.days_left_out],
            },
            "guardrails": {name: msgspec.to_builtins(each.guardrails) for name, each in self.verdicts.items()},
            "verdict": {name: verdict_json(each) for name, each in self.verdicts.items()},
            "segments": {name: each.segments_json() for name, each in self.parts.items()},
            "novelty": {name: each.ages_json() for name, each in self.parts.items()},
        }


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as JSON, saying whether its interval is only approximate."""
    found: dict[str, Any] = msgspec.to_builtins(comparison)
    return {**found, "approximate": comparison.estimand == "live", "decides": comparison.decides}


def verdict_json(verdict: Verdict) -> dict[str, Any]:
    """Return a verdict as JSON with the evidence that it follows from; comparisons stand beside it."""
    return {
        "state": verdict.state,
        "reasons": msgspec.to_builtins(verdict.reasons),
        "notes": msgspec.to_builtins(verdict.notes),
        "days_to_resolve": verdict.days_to_resolve,
        "adjustment": None
        if verdict.unadjusted is None
        else {"variance_reduction": verdict.variance_reduction, "unadjusted": comparison_json(verdict.unadjusted)},
        "other_population": None if verdict.other_population is None else comparison_json(verdict.other_population),
        "evidence": msgspec.to_builtins(verdict.evidence),
    }


class Judge:
    """Judges one experiment again and again; safe for several threads."""

    def __init__(self, experiment: ExperimentSettings) -> None:
        self._terms = Terms(experiment)

    def judge(self, stored: StoredStudents, at_ms: int) -> Judgement:
        """Return what the stored sums say at an event time, which is not to be later than the store's newest event."""
        view = _View(self._terms, stored, at_ms)
        sample_ratio = view.sample_ratio()
        treatments = self._terms.treatments
        verdicts = {name: decide(view.evidence(name), sample_ratio) for name in treatments}
        return Judgement(
            at_ms=at_ms,
            comparisons={name: view.comparisons(name, verdict) for name, verdict in verdicts.items()},
            sample_ratio=sample_ratio,
            days_left_out=view.days_left_out,
            verdicts=verdicts,
            parts={name: view.parts(name) for name in treatments},
        )

    def sample_ratio(self, stored: StoredStudents, at_ms: int) -> SampleRatio:
        """Return only how students were split at an event time."""
        return _View(self._terms, stored, at_ms).sample_ratio()


class _View:
    """One experiment's sums at one time, read in the ways that evidence needs."""

    def __init__(self, terms: Terms, stored: StoredStudents, at_ms: int) -> None:
        self.terms = terms
        self.experiment = terms.experiment
        self.stored = stored
        self.at_ms = at_ms
        self.cohorts = {name: Cohorts.of(own, terms.layout.cohort_width) for name, own in stored.cohorts.items()}
        last = at_ms // DAY_MS
        self.days = sorted(set[int]().union(*(own.filled(last) for own in self.cohorts.values())))
        """The days with first exposures until now, in whichever variant, rising."""

    @cached_property
    def students(self) -> int:
        """All of them so far, also those of days after this time."""
        return sum(cohorts.count(cohorts) for cohorts in self.cohorts.values())

    @cached_property
    def _split(self) -> list[list[int]]:
        return self._by_stretch(self.days)

    @property
    def days_left_out(self) -> tuple[int, ...]:
        return tuple(sorted(set(self.days).difference(*self._split)))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Students at first exposure in each stretch that has any; if there are none, in the last."""
        found = []
        for stretch, days in zip(self.terms.stretches, self._split, strict=True):
            students = {name: self.cohorts[name].count(days) for name in self.experiment.variants}
            found.append(Phase(dict(stretch.shares), students))
        return tuple(phase for phase in found if any(phase.students.values())) or (found[-1],)

    def sample_ratio(self) -> SampleRatio:
        """Return whether students are split as intended."""
        return sample_ratio_test(self.phases, alpha=self.terms.criteria.sample_ratio_alpha)

    @cached_property
    def closed_days(self) -> list[list[int]]:
        """The days of each stretch on which students' windows are over."""
        exposure_days, window_ms = self.experiment.exposure_days, self.experiment.feedback_window_ms
        return [[day for day in days if is_closed(day, self.at_ms, exposure_days, window_ms)] for days in self._split]

    def _by_stretch(self, days: Sequence[int]) -> list[list[int]]:
        return [[day for day in days if day in stretch] for stretch in self.terms.stretches]

    @cached_property
    def closed_sums(self) -> dict[str, list[Ints]]:
        """Variant → the sum of its closed cohorts' records in each stretch."""
        return self._totals(self.closed_days)

    def _totals(self, split: Sequence[Sequence[int]]) -> dict[str, list[Ints]]:
        """Return variant → the sum of its cohorts' records over the days of each stretch."""
        return {name: [self.cohorts[name].total(days) for days in split] for name in self.experiment.variants}

    def _units(self, variant: str, metric: str, population: Population) -> list[UnitSums]:
        """Return a variant's closed sums over students of a metric, or of what else is watched, in each stretch."""
        return [self.terms.units(record, metric, population) for record in self.closed_sums[variant]]

    def arms(self, treatment: str, metric: str, population: Population) -> Arms:
        """Return the closed estimates of a metric, or of what else is watched."""
        pair = (self._units(name, metric, population) for name in (self.experiment.control, treatment))
        return Arms(*stratified(list(zip(*pair, strict=True))))

    def deciding_arms(self, treatment: str, population: Population) -> tuple[Arms, Adjustment | None]:
        """Return the closed estimates of the primary metric, adjusted where that is possible, and how."""
        layout, control = self.terms.layout, self.experiment.control
        raw = self.arms(treatment, self.experiment.primary, population)
        if not layout.before or (adjusted := self._adjusted(population)) is None:
            return raw, None
        strata = [(own[control], own[treatment]) for own in adjusted.strata]
        paired = [closed_pairs(each, layout, population).units for own in self.closed_sums.values() for each in own]
        return Arms(*stratified(strata)), Adjustment(adjusted.theta, sum(paired), raw)

    def _adjusted(self, population: Population) -> Adjusted | None:
        """Return the primary metric's sums, adjusted for what students were like before the experiment."""
        layout = self.terms.layout
        strata: list[dict[str, tuple[UnitSums, PairedSums]]] = [{} for _ in self.terms.stretches]
        for name, sums in self.closed_sums.items():
            units = self._units(name, self.experiment.primary, population)
            for stratum, own, record in zip(strata, units, sums, strict=True):
                stratum[name] = own, closed_pairs(record, layout, population)
        return adjust(strata, 1 / pair_scale(layout))

    def parts(self, treatment: str) -> Parts:
        """Return the effect on the primary metric within parts of the students, as far as it is kept.

        The last age is never over, so its e is no e-value: it is compared on its own, and never discovered.
        """
        window_ms, segments = self.experiment.feedback_window_ms, len(self.experiment.segments)
        ages = {}
        for age, (_, name) in enumerate(AGES if self.experiment.novelty else ()):
            over = [day for day in self.days if _is_over(age, day, self.at_ms, window_ms)]
            ages[name] = segments + age, self._totals(self._by_stretch(over))
        open_age = {_OPEN_AGE: ages.pop(_OPEN_AGE)} if ages else {}
        by_segment = {name: (part, self.closed_sums) for part, name in enumerate(self.experiment.segments)}
        still = (replace(each, discovered=False) for each in self._compared(treatment, open_age))
        return Parts(self._compared(treatment, by_segment), (*self._compared(treatment, ages), *still))

    def _compared(
        self, treatment: str, parts: Mapping[str, tuple[int, Mapping[str, Sequence[Ints]]]]
    ) -> tuple[Segment, ...]:
        """Return the comparison within each part, which has a number and each variant's sums in each stretch."""
        terms, population = self.terms, self.experiment.decision.population
        pairs = {
            name: stratified(
                [
                    (closed_part(a, terms.layout, part, population), closed_part(b, terms.layout, part, population))
                    for a, b in zip(sums[self.experiment.control], sums[treatment], strict=True)
                ]
            )
            for name, (part, sums) in parts.items()
        }
        largest = terms.largest[self.experiment.primary]
        return compare_segments(pairs, alpha=terms.treatment_alpha, mde=terms.criteria.mde, largest=largest)

    def evidence(self, treatment: str) -> Evidence:
        """Return what a treatment's verdict follows from."""
        experiment, decision, terms = self.experiment, self.experiment.decision, self.terms
        population = decision.population
        other: Population = "all" if population == "rated" else "rated"
        units = self.stored.units
        arms, adjustment = self.deciding_arms(treatment, population)
        return Evidence(
            control=experiment.control,
            treatment=treatment,
            metric=experiment.primary,
            criteria=terms.criteria,
            arms=arms,
            adjustment=adjustment,
            age_days=self._age_days(),
            students_per_day=(self._students_per_day(experiment.control), self._students_per_day(treatment)),
            phases=self.phases,
            crossovers=sum(int(record[1]) for record in units.values()),
            students=self.students,
            lost_events=self.stored.lost_events,
            refused_share=self.stored.refused_share,
            skipped=self.stored.skipped,
            other_population=self.deciding_arms(treatment, other)[0],
            rated_share=self.arms(treatment, RATED_SHARE, population),
            guardrails=tuple(
                Watched(guardrail, self.arms(treatment, guardrail.name, population)) for guardrail in terms.guardrails
            ),
            diagnostics=tuple(
                Diagnostic(name, terms.mde(name), self.arms(treatment, name, population), terms.largest[name])
                for name in terms.names
                if name != experiment.primary
            ),
            largest=terms.largest[experiment.primary],
        )

    def _age_days(self) -> float:
        """Return the days from the first day with a student (or `starts_at`, if later) to the newest event."""
        if not self.days or self.stored.newest_ms is None:
            return 0.0
        began_ms = max(self.days[0] * DAY_MS, self.experiment.starts_at_ms or 0)
        return max(min(self.at_ms, self.stored.newest_ms) - began_ms, 0) / DAY_MS

    def _students_per_day(self, variant: str) -> float:
        """Return how many of the variant's students are closed a day, of late and under one allocation."""
        days = next((days for days in reversed(self.closed_days) if days), [])
        if not days:
            return 0.0
        settings = self.experiment
        last = (self.at_ms - settings.feedback_window_ms) // DAY_MS - settings.exposure_days
        stretch = next(each for each in self.terms.stretches if days[-1] in each)
        if stretch.end is not None:
            last = min(last, stretch.end - 1)
        first = max(last - _RATE_DAYS + 1, days[0])
        recent = [day for day in days if day >= first]
        return self.cohorts[variant].count(recent, self.terms.units_place) / (last - first + 1)

    @cached_property
    def live(self) -> Mapping[str, list[Estimate]]:
        """Variant → the estimates of all metrics over all responses."""
        return self.stored.live(self.terms.layout, self.experiment.decision.population)

    def comparisons(self, treatment: str, verdict: Verdict) -> dict[str, dict[Estimand, Comparison]]:
        """Return both estimands of every metric; the closed ones are those of the verdict."""
        experiment, terms = self.experiment, self.terms
        own = {experiment.primary: verdict.primary, **dict(verdict.diagnostics)}
        alpha = terms.treatment_alpha
        return {
            name: {
                "closed": own[name],
                "live": compare(
                    control, treated, alpha=alpha, mde=terms.mde(name), largest=terms.largest[name], estimand="live"
                ),
            }
            for name, control, treated in zip(
                terms.names, self.live[experiment.control], self.live[treatment], strict=True
            )
        }


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))
