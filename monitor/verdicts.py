"""From an experiment's stored sums to its verdicts: comparisons, sample ratio, guardrails; never a pass over students.

Two clocks are at work. What is closed, and who was first exposed when, is read at a time of events; sums over all
responses (the live estimand, crossovers) are those of now. Estimands, formulas and claims: docs/statistics.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, get_args

import msgspec
import numpy as np

from monitor.aggregates import AGES, Ints, Layout
from monitor.attribution import DAY_MS
from monitor.config import LATENCY, RATED_SHARE, ExperimentSettings, is_share
from monitor.inference import (
    Adjusted,
    Adjustment,
    Arms,
    Cohorts,
    Comparison,
    Criteria,
    Diagnostic,
    Estimand,
    Evidence,
    Guardrail,
    Phase,
    Population,
    SampleRatio,
    StoredStudents,
    UnitSums,
    Verdict,
    Watched,
    adjust,
    closed_pairs,
    closed_rated_shares,
    closed_units,
    closed_watched,
    compare,
    decide,
    is_closed,
    pair_scale,
    sample_ratio_test,
    split_alpha,
    stratified,
)
from monitor.parts import Parts, Strata, age_is_over, ages_of, segments_of
from monitor.ranking import SCALE, Scorer
from monitor.stretches import stretches

_RATE_DAYS: Final = 7
"""Closed days that students per day are counted over: a whole week of them."""

_DEFAULT_MDE: Final = 0.01
"""Of the largest value that the primary metric can have."""


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


def judge(experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> Judgement:
    """Return what the stored sums say at an event time, which is not to be later than the store's newest event."""
    view = _View(experiment, stored, at_ms)
    sample_ratio = view.sample_ratio()
    verdicts = {name: decide(view.evidence(name), sample_ratio) for name in view.treatments}
    return Judgement(
        at_ms=at_ms,
        comparisons={name: view.comparisons(name, verdict) for name, verdict in verdicts.items()},
        sample_ratio=sample_ratio,
        days_left_out=view.days_left_out,
        verdicts=verdicts,
        parts={name: view.parts(name) for name in view.treatments},
    )


def sample_ratio_at(experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> SampleRatio:
    """Return only how students were split at an event time, as `judge` does."""
    return _View(experiment, stored, at_ms).sample_ratio()


class _View:
    """One experiment's sums at one time, read in the ways that evidence needs."""

    def __init__(self, experiment: ExperimentSettings, stored: StoredStudents, at_ms: int) -> None:
        self.experiment = experiment
        self.stored = stored
        self.at_ms = at_ms
        self.layout = Layout.of(experiment)
        self.names = [metric.name for metric in experiment.metrics]
        self.watched = experiment.watched
        self.stretches = stretches(experiment)
        self._known: dict[tuple[str, str, Population], list[UnitSums]] = {}
        bounds = Scorer.of(experiment).bounds()
        self.largest = {name: bound / SCALE for name, bound in zip(self.names, bounds, strict=True)}
        shared = {name for stretch in self.stretches for name, share in stretch.shares.items() if share}
        self.treatments = [name for name in experiment.variants if name in shared and name != experiment.control]
        decision = experiment.decision
        self.mde = decision.mde or _DEFAULT_MDE * self.largest[experiment.primary]
        rated = [each.margin for each in decision.guardrails if each.metric == RATED_SHARE]
        self.criteria = Criteria(
            mde=self.mde,
            margin=decision.margin,
            alpha=decision.alpha,
            treatments=max(len(self.treatments), 1),
            min_days=decision.min_days,
            **({"rated_share_margin": rated[0]} if rated else {}),
        )

    @cached_property
    def cohorts(self) -> Mapping[str, Cohorts]:
        """By variant."""
        return {name: Cohorts(records, self.layout.cohort_width) for name, records in self.stored.cohorts.items()}

    @cached_property
    def days(self) -> list[int]:
        """The days with first exposures until now, in whichever variant, rising."""
        last = self.at_ms // DAY_MS
        return sorted(set[int]().union(*(own.days(last) for own in self.cohorts.values())))

    @cached_property
    def students(self) -> int:
        """All of them so far, also those of days after this time."""
        return sum(int(day[0]) for cohorts in self.stored.cohorts.values() for day in cohorts.values())

    @cached_property
    def days_left_out(self) -> tuple[int, ...]:
        return tuple(day for day in self.days if not any(day in stretch for stretch in self.stretches))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """Students at first exposure in each stretch that has any; if there are none, in the last."""
        found = []
        for stretch in self.stretches:
            days = [day for day in self.days if day in stretch]
            students = {name: self._exposed(name, days) for name in self.experiment.variants}
            found.append(Phase(dict(stretch.shares), students))
        return tuple(phase for phase in found if any(phase.students.values())) or (found[-1],)

    def _exposed(self, variant: str, days: Sequence[int]) -> int:
        return int(self.cohorts[variant].total(days)[0])

    def sample_ratio(self) -> SampleRatio:
        """Return whether students are split as intended."""
        return sample_ratio_test(self.phases, alpha=self.criteria.sample_ratio_alpha)

    @cached_property
    def closed_days(self) -> list[list[int]]:
        """The days of each stretch on which students' windows are over."""
        experiment = self.experiment
        closed = [
            day
            for day in self.days
            if is_closed(day, self.at_ms, experiment.exposure_days, experiment.feedback_window_ms)
        ]
        return self._by_stretch(closed)

    def _by_stretch(self, days: Sequence[int]) -> list[list[int]]:
        return [[day for day in days if day in stretch] for stretch in self.stretches]

    @cached_property
    def closed(self) -> Mapping[str, list[Ints]]:
        """Variant → the sum of its closed cohorts' records in each stretch."""
        return {
            name: [self.cohorts[name].total(days) for days in self.closed_days] for name in self.experiment.variants
        }

    def _units(self, record: Ints, metric: str, population: Population) -> UnitSums:
        if metric == RATED_SHARE:
            return closed_rated_shares(record)
        if metric in self.watched:
            return closed_watched(record, self.layout, self.watched.index(metric))
        return closed_units(record, self.layout, self.names.index(metric), population)

    def arms(self, treatment: str, metric: str, population: Population) -> Arms:
        """Return the closed-unit estimates of a metric, or of what else is watched."""
        pair = (self._closed_sums(name, metric, population) for name in (self.experiment.control, treatment))
        return Arms(*stratified(list(zip(*pair, strict=True))))

    def _closed_sums(self, variant: str, metric: str, population: Population) -> list[UnitSums]:
        """Return a variant's sums in each stretch, worked out once: the control's are asked for by every treatment."""
        what = variant, metric, population
        if what not in self._known:
            self._known[what] = [self._units(record, metric, population) for record in self.closed[variant]]
        return self._known[what]

    @cached_property
    def adjusted(self) -> Mapping[Population, Adjusted | None]:
        """The primary metric's sums, adjusted for what students were like before the experiment; None without."""
        found: dict[Population, Adjusted | None] = {}
        for population in get_args(Population):
            strata = [
                {
                    name: (
                        self._units(records[place], self.experiment.primary, population),
                        closed_pairs(records[place], self.layout, population),
                    )
                    for name, records in self.closed.items()
                }
                for place in range(len(self.stretches))
            ]
            found[population] = adjust(strata, 1 / pair_scale(self.layout))
        return found

    def deciding_arms(self, treatment: str, population: Population) -> tuple[Arms, Adjustment | None]:
        """Return the closed-unit estimates of the primary metric, adjusted where that is possible, and how."""
        raw = self.arms(treatment, self.experiment.primary, population)
        if not self.layout.before or (adjusted := self.adjusted[population]) is None:
            return raw, None
        strata = [(own[self.experiment.control], own[treatment]) for own in adjusted.strata]
        paired = [closed_pairs(each, self.layout, population).units for own in self.closed.values() for each in own]
        return Arms(*stratified(strata)), Adjustment(adjusted.theta, sum(paired), raw)

    def parts(self, treatment: str) -> Parts:
        """Return the effect on the primary metric within parts of the students, as far as it is kept."""
        experiment, control = self.experiment, self.experiment.control
        told = {
            "alpha": split_alpha(self.criteria.alpha, self.criteria.treatments),
            "mde": self.mde,
            "largest": self.largest[experiment.primary],
        }
        closed = list(zip(self.closed[control], self.closed[treatment], strict=True))
        ages: list[Strata] = []
        if experiment.novelty:
            for age in range(len(AGES)):
                window_ms = experiment.feedback_window_ms
                days = [day for day in self.days if age_is_over(age, day, self.at_ms, window_ms)]
                split = self._by_stretch(days)
                ages.append([(self.cohorts[control].total(own), self.cohorts[treatment].total(own)) for own in split])
        return Parts(
            segments=segments_of(experiment, self.layout, closed, **told),
            ages=ages_of(experiment, self.layout, ages, **told) if ages else (),
        )

    def _mde(self, metric: str) -> float:
        """Return the mde of a metric that has none of its own: the same part of its largest value."""
        return self.mde * self.largest[metric] / self.largest[self.experiment.primary]

    def _largest(self, metric: str) -> float | None:
        """Return the largest mean that a student can have; None if there is no bound."""
        if metric == LATENCY:
            return None
        return 1.0 if is_share(metric) else self.largest[metric]

    def evidence(self, treatment: str) -> Evidence:
        """Return what a treatment's verdict follows from."""
        experiment, decision = self.experiment, self.experiment.decision
        population = decision.population
        other: Population = "all" if population == "rated" else "rated"
        units = self.stored.units
        arms, adjustment = self.deciding_arms(treatment, population)
        return Evidence(
            control=experiment.control,
            treatment=treatment,
            metric=experiment.primary,
            criteria=self.criteria,
            arms=arms,
            adjustment=adjustment,
            age_days=self._age_days(),
            students_per_day=(self._per_day(experiment.control), self._per_day(treatment)),
            phases=self.phases,
            crossovers=sum(int(record[1]) for record in units.values()),
            students=self.students,
            lost_events=self.stored.lost_events,
            refused_share=self.stored.refused_share,
            skipped=self.stored.skipped,
            other_population=self.deciding_arms(treatment, other)[0],
            rated_share=self.arms(treatment, RATED_SHARE, population),
            guardrails=tuple(
                Watched(
                    Guardrail(each.metric, each.bad, each.margin, self._largest(each.metric), each.worst_ms),
                    self.arms(treatment, each.metric, population),
                )
                for each in decision.guardrails
            ),
            diagnostics=tuple(
                Diagnostic(name, self._mde(name), self.arms(treatment, name, population), self.largest[name])
                for name in self.names
                if name != experiment.primary
            ),
            largest=self.largest[experiment.primary],
        )

    def _age_days(self) -> float:
        """Return the days from the first day with a student (or `starts_at`, if later) to the newest event."""
        if not self.days or self.stored.newest_ms is None:
            return 0.0
        began_ms = max(self.days[0] * DAY_MS, self.experiment.starts_at_ms or 0)
        return max(min(self.at_ms, self.stored.newest_ms) - began_ms, 0) / DAY_MS

    def _per_day(self, variant: str) -> float:
        """Return how many of the variant's students are closed a day, of late and under one allocation."""
        days = next((days for days in reversed(self.closed_days) if days), [])
        if not days:
            return 0.0
        settings = self.experiment
        last = (self.at_ms - settings.feedback_window_ms) // DAY_MS - settings.exposure_days
        stretch = next(each for each in self.stretches if days[-1] in each)
        if stretch.end is not None:
            last = min(last, stretch.end - 1)
        first = max(last - _RATE_DAYS + 1, days[0])
        recent = self.cohorts[variant].total([day for day in days if day >= first])
        units = self._units(recent, settings.primary, settings.decision.population).units
        return units / (last - first + 1)

    def comparisons(self, treatment: str, verdict: Verdict) -> dict[str, dict[Estimand, Comparison]]:
        """Return both estimands of every metric; the closed ones are those of the verdict."""
        experiment = self.experiment
        closed = {experiment.primary: verdict.primary, **dict(verdict.diagnostics)}
        alpha = split_alpha(self.criteria.alpha, self.criteria.treatments)
        live = self.stored.live(self.layout, experiment.decision.population)
        return {
            name: {
                "closed": closed[name],
                "live": compare(
                    control, treated, alpha=alpha, mde=self._mde(name), largest=self.largest[name], estimand="live"
                ),
            }
            for name, control, treated in zip(self.names, live[experiment.control], live[treatment], strict=True)
        }


def _date(day: int) -> str:
    return str(np.datetime64(day, "D"))
