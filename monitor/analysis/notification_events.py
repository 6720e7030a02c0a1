"""The rules of messages: which changes of an experiment are worth a message, given the states of the last messages.

A state has to hold at two consecutive full hours of event time before a message reports it; harm is reported at once.
Nothing is reported while the data is insufficient, except for harm and a sample ratio mismatch. The conditions that are
no verdicts (sample ratio mismatch, silence) are reported once at their beginning and once at their end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from monitor.analysis.undeclared import UndeclaredExperiment
from monitor.clock import HOUR_MS
from monitor.config import NotifyEvent
from monitor.stats import Reason, Verdict, VerdictState

_SAMPLE_RATIO_CODES: Final = frozenset(
    {
        "sample_ratio", "segment_sample_ratio", "hour_sample_ratio", "excluded_sample_ratio", "empty_variant",
        "stray_traffic", "uneven_crossovers",
    }
)  # fmt: skip
_HARM_CODES: Final = frozenset({"worse", "guardrail_crossed"})
_HELD_HOURS: Final = 2
"""A new state is reported at the second full hour after its first observation."""
MIN_DISCOVERED_RESPONSES: Final = 100
"""Smallest number of responses of an undeclared experiment that is reported: fewer may be a developer's test."""
_MAX_DISCOVERED_NAMES: Final = 1_000
_MAX_EXPERIMENTS: Final = 1_000
"""With more experiments, those without an observation for the longest time are forgotten."""


class PendingState(msgspec.Struct, frozen=True):
    """A state that differs from the reported one, and has not held for long enough."""

    state: str
    since_ms: int
    """Event time of the first observation of the state, without another state since."""


class ReportedState(msgspec.Struct, frozen=True):
    """The state of the last message on a treatment or on a condition, and a state that may become the next one."""

    state: str
    pending: PendingState | None = None


class ExperimentMemory(msgspec.Struct, frozen=True):
    """The reported states of an experiment; the names of the fields are JSON keys in the store."""

    treatments: dict[str, ReportedState] = {}
    sample_ratio: ReportedState = ReportedState("ok")
    """The state is "ok" or "mismatch"."""
    is_silent: bool | None = None
    """None before silence is known for the first time."""
    definition_version: int = 1
    backfill_started_ms: int = 0
    """Start of the last backfill whose completion was reported; 0 without such a backfill."""
    ended_ms: int = 0
    """The last planned end that has passed; 0 if none has."""
    declared_at_ms: int = 0
    """When the experiment was declared; 0 if unknown."""


class NotificationMemory(msgspec.Struct, frozen=True):
    """The reported states of all experiments."""

    experiments: dict[str, ExperimentMemory] = {}
    discovered: tuple[str, ...] = ()
    """Undeclared experiments that were reported, oldest report first."""


@dataclass(frozen=True, slots=True)
class ExperimentObservation:
    """The present states of an experiment."""

    name: str
    as_of_ms: int
    """Event time of the analysis."""
    verdicts: Mapping[str, VerdictState | None]
    """Treatment → state for messages: see `message_state`."""
    has_sample_ratio_mismatch: bool
    is_silent: bool | None
    """None if unknown, for example because the service itself is behind."""
    definition_version: int = 1
    backfill_started_ms: int = 0
    """Start of the last completed backfill; 0 without one."""
    ended_ms: int = 0
    """The planned end if it has passed; 0 if it has not, and without a planned end."""
    declared_at_ms: int = 0
    """When the experiment was declared; 0 if unknown. A deleted experiment may be declared again under its name."""


@dataclass(frozen=True, slots=True)
class Change:
    """A change that is worth a message."""

    event: NotifyEvent
    experiment: str
    state: str
    previous_state: str
    treatment: str | None = None
    """None if the change is about the whole experiment."""


def message_state(verdict: Verdict) -> VerdictState | None:
    """Return the state of a verdict for messages; None if the verdict is not to be reported.

    Harm is reported even before `min_days`, because its interval is valid at any time. A sample ratio mismatch is a
    condition of its own, so that an experiment with several treatments has a single message on it.
    """
    if list_sample_ratio_mismatches(verdict):
        return None
    if verdict.state == "insufficient_data":
        return "stop_harm" if list_harms(verdict) else None
    return verdict.state


def list_sample_ratio_mismatches(verdict: Verdict) -> list[Reason]:
    """Return the findings that the students per variant do not fit the intended shares, in any test of the split."""
    return [reason for reason in (*verdict.reasons, *verdict.notes) if reason.code in _SAMPLE_RATIO_CODES]


def list_harms(verdict: Verdict) -> list[Reason]:
    """Return the findings that the treatment does more harm than is allowed."""
    return [reason for reason in (*verdict.reasons, *verdict.notes) if reason.code in _HARM_CODES]


def find_changes(
    memory: NotificationMemory | None,
    observations: Sequence[ExperimentObservation],
    undeclared: Sequence[UndeclaredExperiment],
) -> tuple[NotificationMemory, tuple[Change, ...]]:
    """Return the memory after the observations, and the changes to report.

    Without a memory, nothing is reported: the first observation of a store only records the present states. The
    memories of experiments without an observation stay: an archived experiment may be restored, and a process with an
    older configuration may observe for a while.
    """
    changes: list[Change] = []
    experiments = {} if memory is None else dict(memory.experiments)
    for observation in observations:
        # The newest observations come last, so that the first ones can be forgotten.
        experiment_memory = experiments.pop(observation.name, ExperimentMemory())
        if memory is None:
            experiments[observation.name] = _initial_memory(observation)
        else:
            if experiment_memory.declared_at_ms and experiment_memory.declared_at_ms != observation.declared_at_ms:
                experiment_memory = ExperimentMemory()
            experiments[observation.name] = _observe(experiment_memory, observation, changes)
    excess = min(len(experiments) - _MAX_EXPERIMENTS, len(experiments) - len(observations))
    for name in list(experiments)[: max(excess, 0)]:
        del experiments[name]
    reported_names = () if memory is None else memory.discovered
    new_names = [
        experiment.name
        for experiment in undeclared
        if experiment.responses >= MIN_DISCOVERED_RESPONSES and experiment.name not in reported_names
    ]
    if memory is not None:
        changes += [Change("discovered", name, "discovered", "unknown") for name in new_names]
    discovered = (*reported_names, *new_names)[-_MAX_DISCOVERED_NAMES:]
    return NotificationMemory(experiments, discovered), tuple(changes)


def _initial_memory(observation: ExperimentObservation) -> ExperimentMemory:
    return ExperimentMemory(
        treatments={name: ReportedState(state or "continue") for name, state in observation.verdicts.items()},
        sample_ratio=ReportedState("mismatch" if observation.has_sample_ratio_mismatch else "ok"),
        is_silent=observation.is_silent,
        definition_version=observation.definition_version,
        backfill_started_ms=observation.backfill_started_ms,
        ended_ms=observation.ended_ms,
        declared_at_ms=observation.declared_at_ms,
    )


def _observe(memory: ExperimentMemory, observation: ExperimentObservation, changes: list[Change]) -> ExperimentMemory:
    """Return the memory of an experiment after an observation, and append the changes to report."""
    name, as_of_ms = observation.name, observation.as_of_ms
    has_new_definition = observation.definition_version != memory.definition_version
    reported_states = {} if has_new_definition else memory.treatments
    is_filled = observation.backfill_started_ms > memory.backfill_started_ms
    treatments = {}
    for treatment, state in observation.verdicts.items():
        before = reported_states.get(treatment, ReportedState("continue"))
        after = before
        if is_filled:
            # The message on the backfill has the verdicts; harm has its own one, for channels of harm alone.
            after = ReportedState(state or "continue")
            if state == "stop_harm" and before.state != "stop_harm":
                changes.append(Change("harm", name, "stop_harm", before.state, treatment))
        elif state is None:
            after = ReportedState(before.state)
        else:
            after = _next_state(before, state, as_of_ms, is_urgent=state == "stop_harm")
            if after.state != before.state:
                event: NotifyEvent = "harm" if state == "stop_harm" else "verdict"
                changes.append(Change(event, name, after.state, before.state, treatment))
        treatments[treatment] = after
    ratio_state = "mismatch" if observation.has_sample_ratio_mismatch else "ok"
    sample_ratio = _next_state(memory.sample_ratio, ratio_state, as_of_ms)
    if sample_ratio.state != memory.sample_ratio.state:
        changes.append(Change("sample_ratio", name, sample_ratio.state, memory.sample_ratio.state))
    is_silent = memory.is_silent if observation.is_silent is None else observation.is_silent
    if memory.is_silent is not None and is_silent != memory.is_silent:
        states = ("silent", "receiving") if is_silent else ("receiving", "silent")
        changes.append(Change("silent", name, *states))
    if is_filled:
        changes.append(Change("backfill", name, "complete", "running"))
    if observation.ended_ms > memory.ended_ms:
        changes.append(Change("end", name, "ended", "running"))
    return ExperimentMemory(
        treatments,
        sample_ratio,
        is_silent,
        observation.definition_version,
        max(observation.backfill_started_ms, memory.backfill_started_ms),
        max(observation.ended_ms, memory.ended_ms),
        observation.declared_at_ms,
    )


def _next_state(reported: ReportedState, state: str, as_of_ms: int, *, is_urgent: bool = False) -> ReportedState:
    """Return the reported state after an observation of `state`: the same, unless `state` has held or is urgent."""
    if state == reported.state:
        return ReportedState(state)
    pending = reported.pending
    if is_urgent or (pending is not None and pending.state == state and _has_held(pending.since_ms, as_of_ms)):
        return ReportedState(state)
    if pending is None or pending.state != state:
        pending = PendingState(state, as_of_ms)
    return ReportedState(reported.state, pending)


def _has_held(since_ms: int, as_of_ms: int) -> bool:
    """Return whether two full hours are in a period.

    >>> _has_held(9 * HOUR_MS + 1, 11 * HOUR_MS), _has_held(9 * HOUR_MS + 1, 11 * HOUR_MS - 1)
    (True, False)
    """
    return as_of_ms // HOUR_MS >= (since_ms - 1) // HOUR_MS + _HELD_HOURS
