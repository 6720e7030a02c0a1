"""Everything that a report on one experiment tells, read from the store: what is known now, and how it came about."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from monitor.analysis import (
    DecayedThen,
    ExperimentSummary,
    Judgement,
    Past,
    Split,
    exposure_days,
    looks,
    snapshot,
    splits,
    students_by,
)
from monitor.clock import DAY_MS, HOUR_MS
from monitor.config import DecaySpec, ExperimentSettings
from monitor.export.presentation import rests_on
from monitor.state import Reader
from monitor.stats import Comparison, GuardrailResult, StoredStudents

_MOST_HOLES: Final = 60
"""Times of which decayed means are worked out again: a second or two."""
_MOST_NOTED: Final = 600
"""Snapshots of which decayed means are shown: more than a plot has room for."""
_HALF_LIVES_BACK: Final = 10
"""What lies further back has less than a thousandth of the weight."""


@dataclass(frozen=True, slots=True)
class DecayedAt:
    """The decayed means of a time, either `noted` when it passed or worked out again from the time buckets."""

    at_ms: int
    noted: bool
    means: Mapping[str, Mapping[str, DecayedThen]]
    """Decay → variant → the primary metric's; without those that rest on too little."""


@dataclass(frozen=True, slots=True)
class Account:
    """What is told: `looks` and `splits` day by day, up to `judgement`, which is of the store's newest event."""

    settings: ExperimentSettings
    summary: ExperimentSummary
    as_of_ms: int
    judgement: Judgement
    looks: tuple[Judgement, ...]
    splits: tuple[Split, ...]
    watched: tuple[DecayedAt, ...]
    past: Past
    """Snapshots that are about today's primary metric."""
    least_students: int
    """Means over fewer are not shown."""

    def shows(self, compared: Comparison | GuardrailResult) -> bool:
        """Return whether a comparison rests on enough students."""
        return rests_on(compared, self.least_students)

    def showed(self, treatment: str, at_ms: int) -> bool:
        """Return whether the comparison that decides did so at the last look until then; one student always shows."""
        look = next((each for each in reversed(self.looks) if each.at_ms <= at_ms), None)
        return self.least_students <= 1 or (look is not None and self.shows(look.verdicts[treatment].primary))


def account(reader: Reader, experiment: ExperimentSettings, least_students: int = 1) -> Account:
    """Return what there is to tell about an experiment. Raises `StoreUnavailable`."""
    read = reader.summary()
    summary = read.experiments[experiment.name]
    at_ms = read.as_of_ms if summary.judgement is None else summary.judgement.at_ms
    stored = reader.students(experiment.name)
    past = {
        hour: then
        for hour, then in reader.history(experiment.name).items()
        if then.metric == experiment.primary and hour * HOUR_MS <= at_ms
    }
    steps = looks(experiment, stored, at_ms)
    return Account(
        settings=experiment,
        summary=summary,
        as_of_ms=read.as_of_ms,
        judgement=steps[-1],
        looks=steps,
        splits=splits(experiment, stored, at_ms),
        watched=tuple(_watched(reader, experiment, stored, past, summary, read.as_of_ms, least_students)),
        past=past,
        least_students=least_students,
    )


def _watched(
    reader: Reader,
    experiment: ExperimentSettings,
    stored: StoredStudents,
    past: Past,
    summary: ExperimentSummary,
    as_of_ms: int,
    least_students: int,
) -> Iterator[DecayedAt]:
    """Yield decayed means as they were noted; where nobody did, as the time buckets give them, while those are kept."""
    days = exposure_days(stored, as_of_ms)
    now = snapshot(summary)
    if not days or now is None:
        return
    first_ms = days[0] * DAY_MS
    kept_ms = as_of_ms - experiment.retention_ms
    hours = sorted(past)
    noted = {hour * HOUR_MS: past[hour] for hour in hours[:: -(-len(hours) // _MOST_NOTED) or 1]}
    holes = [hour * HOUR_MS for hour in _holes(past, max(first_ms, kept_ms), as_of_ms)]
    for at_ms in sorted({*noted, *holes, as_of_ms}):
        then = noted.get(at_ms) or now
        if at_ms not in noted and at_ms != as_of_ms:
            then = snapshot(reader.summary(at_ms).experiments[experiment.name]) or now
        students = students_by(stored, at_ms)
        yield DecayedAt(
            at_ms,
            at_ms in noted,
            {
                decay.name: {
                    name: variant.decayed[decay.name]
                    for name, variant in then.variants.items()
                    if decay.name in variant.decayed and students.get(name, 0) >= least_students
                }
                for decay in experiment.decay
                if at_ms in {*noted, as_of_ms} or first_ms >= kept_ms or at_ms - _reach_ms(decay) >= kept_ms
            },
        )


def _holes(past: Past, first_ms: int, as_of_ms: int) -> list[int]:
    """Return hours at even distances of which there is no snapshot since the one before."""
    first, last = -(-first_ms // HOUR_MS), as_of_ms // HOUR_MS
    step = max(-(-(last - first) // _MOST_HOLES), 1)
    return [hour for hour in range(first + step, last, step) if not any(hour - step < at <= hour for at in past)]


def _reach_ms(decay: DecaySpec) -> int:
    if decay.half_life_ms is None:
        return decay.cutoff_ms or 0
    return _HALF_LIVES_BACK * decay.half_life_ms
