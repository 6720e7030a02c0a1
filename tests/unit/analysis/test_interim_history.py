"""Looking back: what the days' records say of the past is what was so."""

from __future__ import annotations

from itertools import pairwise

import pytest

from monitor.analysis.interim_history import MOST_LOOKS, looks, splits, students_by
from tests.support.units import judge
from tests.unit.analysis.test_verdicts import BETTER, DAY, FIRST, SENSITIVE, Seen, after, crowd, stored


def _until(seen: list[Seen], day: int) -> list[Seen]:
    return [each for each in seen if each.day <= day]


@pytest.mark.parametrize("step", [0, 3, 9])
def test_a_step_back_is_what_was_said_then(step: int) -> None:
    """With only the students of that time in the store: estimates, bounds and guardrails."""
    (*before, last) = looks(SENSITIVE, stored(SENSITIVE, BETTER), after(14.5))
    assert [look.at_ms for look in (*before, last)] == [*(after(day) for day in range(4, 14)), after(14.5)]
    then = before[step]
    today = (then.at_ms - 1) // DAY
    verdict = judge(SENSITIVE, stored(SENSITIVE, _until(BETTER, today)), then.at_ms).verdicts["treatment"]
    assert then.verdicts["treatment"].primary == verdict.primary
    assert then.verdicts["treatment"].guardrails == verdict.guardrails
    assert verdict.primary.control.units == 40 * (step + 1)


def test_the_last_look_is_the_verdict() -> None:
    """Of the same records at the same time."""
    held = stored(SENSITIVE, BETTER)
    assert looks(SENSITIVE, held, after(14))[-1].verdicts == judge(SENSITIVE, held, after(14)).verdicts


def test_the_split_of_a_day_is_that_at_its_end() -> None:
    """Students of later days are not in it; the last day may not be over."""
    held = stored(SENSITIVE, BETTER)
    found = splits(SENSITIVE, held, after(9.5))
    assert [split.at_ms for split in found] == [*(after(day) - 1 for day in range(1, 10)), after(9.5)]
    for number, split in enumerate(found, 1):
        assert split.students == {"control": 40 * number, "treatment": 40 * number}
        early = judge(SENSITIVE, stored(SENSITIVE, _until(BETTER, FIRST + number - 1)), split.at_ms)
        assert split.sample_ratio == early.sample_ratio


def test_days_that_are_still_to_come_are_not_seen() -> None:
    """Neither students nor steps."""
    held = stored(SENSITIVE, BETTER)
    assert students_by(held, after(2) - 1) == {"control": 80, "treatment": 80}
    assert len(looks(SENSITIVE, held, after(3))) == 1
    assert splits(SENSITIVE, held, after(-1)) == ()


def test_years_are_looked_at_in_larger_steps() -> None:
    """Evenly, and up to the end."""
    days = 2 * MOST_LOOKS + 7
    seen = [*crowd("control", 1.5, days, days=days), *crowd("treatment", 2.0, days, days=days)]
    found = splits(SENSITIVE, stored(SENSITIVE, seen), after(days))
    assert len(found) <= MOST_LOOKS
    assert {b.at_ms - a.at_ms for a, b in pairwise(found)} == {3 * DAY}
    assert found[-1].students == {"control": days, "treatment": days}
