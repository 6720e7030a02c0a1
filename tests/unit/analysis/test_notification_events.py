"""The rules of messages: which changes are reported, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from monitor.analysis import Change, ExperimentObservation, NotificationMemory, UndeclaredExperiment, find_changes
from monitor.analysis.notification_events import ExperimentMemory
from monitor.clock import HOUR_MS
from monitor.stats import VerdictState

FIRST = ExperimentObservation(
    "ranker", 100 * HOUR_MS + 1, {"treatment": "continue"}, has_sample_ratio_mismatch=False, is_silent=False
)


def at_hours(hours: float) -> int:
    """Return the event time after the first observation."""
    return FIRST.as_of_ms + int(hours * HOUR_MS)


def observe(*observations: ExperimentObservation) -> list[Change]:
    """Return the changes that are reported by a process which has seen `FIRST` and then the observations."""
    memory, _ = find_changes(None, [FIRST], [])
    reported: list[Change] = []
    for observation in observations:
        memory, changes = find_changes(memory, [observation], [])
        reported += changes
    return reported


def states(*hours_and_states: tuple[float, VerdictState | None]) -> list[ExperimentObservation]:
    """Return observations of the treatment's state, each at some hours after the first one."""
    return [
        replace(FIRST, as_of_ms=at_hours(hours), verdicts={"treatment": state}) for hours, state in hours_and_states
    ]


class TestVerdicts:
    """A verdict is reported once it has held at two full hours."""

    def test_a_state_is_reported_at_its_second_full_hour(self) -> None:
        """The first full hour is not enough."""
        ship = Change("verdict", "ranker", "ship", "continue", "treatment")
        assert observe(*states((0.5, "ship"), (1, "ship"), (1.9, "ship"))) == []
        assert observe(*states((0.5, "ship"), (1, "ship"), (2, "ship"))) == [ship]

    def test_a_state_is_reported_once(self) -> None:
        """Later observations of the same state are silent."""
        assert len(observe(*states((0.5, "ship"), (2, "ship"), (3, "ship"), (30, "ship")))) == 1

    def test_a_flapping_state_is_not_reported(self) -> None:
        """A state that returns to the reported one begins anew."""
        flapping: Sequence[tuple[float, VerdictState]] = [
            (0.5, "ship"),
            (1.5, "continue"),
            (2.9, "ship"),
            (3.9, "ship"),
        ]
        assert observe(*states(*flapping)) == []

    def test_harm_is_reported_at_once(self) -> None:
        """No snapshot is waited for."""
        assert observe(*states((0.1, "stop_harm"))) == [Change("harm", "ranker", "stop_harm", "continue", "treatment")]

    def test_flapping_harm_is_reported_once(self) -> None:
        """The end of the harm has to hold, and a return before that is no change."""
        assert len(observe(*states((0.1, "stop_harm"), (1, "continue"), (1.5, "stop_harm"), (9, "stop_harm")))) == 1

    def test_the_end_of_harm_is_reported_when_it_has_held(self) -> None:
        """A withdrawn verdict is as important as a new one."""
        (_, end) = observe(*states((0.1, "stop_harm"), (1, "continue"), (4, "continue")))
        assert end == Change("verdict", "ranker", "continue", "stop_harm", "treatment")

    def test_insufficient_data_is_never_reported(self) -> None:
        """The reported state stays, so that the same verdict afterwards is no change."""
        assert observe(*states((0.5, None), (9, None), (10, "continue"), (20, "continue"))) == []
        assert len(observe(*states((0.5, "ship"), (3, "ship"), (4, None), (9, "ship"), (20, "ship")))) == 1

    def test_treatments_are_independent(self) -> None:
        """A message is about one treatment."""
        held_states: Sequence[tuple[float, VerdictState]] = [(0.5, "ship"), (3, "ship")]
        both = [
            replace(FIRST, as_of_ms=at_hours(hours), verdicts={"a": state, "b": "continue"})
            for hours, state in held_states
        ]
        assert [change.treatment for change in observe(*both)] == ["a"]

    def test_a_new_definition_begins_without_a_verdict(self) -> None:
        """The same verdict under the new definition is news."""
        observations = [
            *states((0.5, "ship"), (3, "ship")),
            *(replace(each, definition_version=2) for each in states((4, None), (5, "ship"), (8, "ship"))),
        ]
        assert [change.state for change in observe(*observations)] == ["ship", "ship"]


class TestFirstObservation:
    """The first observation of a store only records the states."""

    def test_nothing_is_reported(self) -> None:
        """An upgrade, or a rebuild of a store that reported nothing yet, sends nothing about the past."""
        observation = replace(
            FIRST,
            verdicts={"treatment": "stop_harm"},
            has_sample_ratio_mismatch=True,
            is_silent=True,
            backfill_started_ms=5,
            ended_ms=7,
        )
        undeclared = [UndeclaredExperiment("other", 1_000, 0, 1, {})]
        memory, changes = find_changes(None, [observation], undeclared)
        assert changes == ()
        assert find_changes(memory, [observation], undeclared) == (memory, ())

    def test_an_experiment_that_is_declared_later_is_reported(self) -> None:
        """It begins without a verdict."""
        _, changes = find_changes(NotificationMemory(), [replace(FIRST, verdicts={"t": "stop_harm"})], [])
        assert [change.event for change in changes] == ["harm"]


class TestGaps:
    """An archived experiment has no observation, and one that an older configuration lacks."""

    def test_nothing_is_repeated_after_a_gap(self) -> None:
        """Harm, the backfill and the end were reported before the gap."""
        observation = replace(FIRST, verdicts={"treatment": "stop_harm"}, backfill_started_ms=3, ended_ms=5)
        memory, changes = find_changes(NotificationMemory(), [replace(observation, backfill_started_ms=0)], [])
        assert {change.event for change in changes} == {"harm", "end"}
        memory, changes = find_changes(memory, [observation], [])
        assert [change.event for change in changes] == ["backfill"]
        memory, changes = find_changes(memory, [], [])
        assert changes == ()
        assert find_changes(memory, [observation], []) == (memory, ())

    def test_an_experiment_that_is_deleted_and_declared_again_begins_anew(self) -> None:
        """The name is the same, but the time of the declaration differs."""
        observation = replace(FIRST, verdicts={"treatment": "stop_harm"}, declared_at_ms=7)
        memory, _ = find_changes(NotificationMemory(), [observation], [])
        memory, _ = find_changes(memory, [], [])
        _, changes = find_changes(memory, [replace(observation, declared_at_ms=8)], [])
        assert [change.event for change in changes] == ["harm"]

    def test_a_memory_without_the_time_of_the_declaration_is_kept(self) -> None:
        """States that an earlier version has stored are not reported again."""
        observation = replace(FIRST, verdicts={"treatment": "stop_harm"})
        memory, _ = find_changes(NotificationMemory(), [observation], [])
        assert find_changes(memory, [replace(observation, declared_at_ms=8)], [])[1] == ()

    def test_the_memories_without_an_observation_are_limited(self) -> None:
        """The names that were observed last stay, and all names of the present observations."""
        names = [f"experiment-{number}" for number in range(1_500)]
        observations = [replace(FIRST, name=name) for name in names]
        memory, _ = find_changes(NotificationMemory(), observations, [])
        assert list(memory.experiments) == names
        memory, _ = find_changes(memory, observations[:100], [])
        assert list(memory.experiments) == [*names[600:], *names[:100]]


class TestConditions:
    """Conditions are reported once at their beginning and once at their end."""

    def test_a_mismatch_is_reported_when_it_has_held(self) -> None:
        """As a verdict: at the second full hour."""
        observations = [
            replace(FIRST, as_of_ms=at_hours(hours), has_sample_ratio_mismatch=has_mismatch)
            for hours, has_mismatch in ((0.5, True), (1, True), (2, True), (9, True), (10, False), (12.5, False))
        ]
        assert [change.state for change in observe(*observations)] == ["mismatch", "ok"]
        assert observe(*observations[:2]) == []

    def test_silence_is_reported_once_and_so_is_its_end(self) -> None:
        """Unknown silence changes nothing."""
        observations = [replace(FIRST, is_silent=silent) for silent in (None, True, True, None, False, False)]
        assert [change.state for change in observe(*observations)] == ["silent", "receiving"]

    def test_silence_is_reported_only_after_responses_have_arrived(self) -> None:
        """A new experiment whose events are old has not become silent."""
        memory, _ = find_changes(NotificationMemory(), [replace(FIRST, is_silent=None)], [])
        assert find_changes(memory, [replace(FIRST, is_silent=True)], [])[1] == ()

    def test_a_completed_backfill_is_reported_with_its_verdicts(self) -> None:
        """The verdicts are in the message on the backfill, so there is no message on them."""
        filled = replace(FIRST, backfill_started_ms=3, verdicts={"treatment": "ship"})
        later = replace(filled, as_of_ms=at_hours(9))
        assert [change.event for change in observe(filled, later)] == ["backfill"]

    def test_harm_that_a_backfill_reveals_is_reported_as_harm(self) -> None:
        """A channel may receive harm alone; harm that was reported before is not news."""
        filled = replace(FIRST, backfill_started_ms=3, verdicts={"treatment": "stop_harm"})
        assert [change.event for change in observe(filled)] == ["harm", "backfill"]
        refilled = replace(filled, backfill_started_ms=4)
        assert [change.event for change in observe(filled, refilled)] == ["harm", "backfill", "backfill"]

    def test_a_planned_end_is_reported_once(self) -> None:
        """A later end is another one."""
        ends = [replace(FIRST, ended_ms=ended_ms) for ended_ms in (0, 5, 5, 0, 9)]
        assert [change.event for change in observe(*ends)] == ["end", "end"]


@pytest.mark.parametrize(("responses", "events"), [(99, []), (100, ["discovered"])])
def test_an_undeclared_experiment_is_reported_once_from_100_responses_on(responses: int, events: list[str]) -> None:
    """Fewer responses may be a developer's test."""
    undeclared = [UndeclaredExperiment("other", responses, 0, 1, {})]
    memory, changes = find_changes(NotificationMemory({"ranker": ExperimentMemory()}), [FIRST], undeclared)
    assert [change.event for change in changes] == events
    assert find_changes(memory, [FIRST], undeclared)[1] == ()
