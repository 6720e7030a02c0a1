"""Experiments change while two workers run with files of their own: every event is counted exactly once."""

from __future__ import annotations

import os
import random
import time

import pytest

from tests.support.command import eventually
from tests.support.dump import dump
from tests.support.replicas import FIRST, SECOND, Replicas, aggregates_of, simulated_events, undisturbed

RESPONSES = 12_000
EXPONENTIAL = FIRST.replace("[experiments.grades]", 'gain = "exp2"\n[experiments.grades]')
THREE_VARIANTS = FIRST.replace(
    "variants = { control = 0.5, treatment = 0.5 }", "variants = { control = 0.4, treatment = 0.3, late = 0.3 }"
)
OTHER_SHARES = FIRST.replace("control = 0.5, treatment = 0.5", "control = 0.9, treatment = 0.1")


CHANGES = {
    "added": (FIRST, FIRST + SECOND),
    "removed": (SECOND + FIRST, FIRST),
    "redefined": (FIRST, EXPONENTIAL),
    "variant added": (FIRST, THREE_VARIANTS),
    "shares changed": (FIRST, OTHER_SHARES),
}


_ALL_RUNS = [(change, kills) for change in CHANGES for kills in ("", "kills")]
_RUNS = (
    _ALL_RUNS
    if "CHANGE_TEST_EVENTS" in os.environ
    else [("added", "kills"), ("removed", ""), ("redefined", "kills"), ("variant added", ""), ("shares changed", "")]
)
"""Each change once, to save time; all of them, with and without kills, if the number of events is set."""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("change", "kills"), _RUNS)
def test_a_change_in_one_file_after_the_other_loses_and_repeats_no_event(
    replicas: Replicas, change: str, kills: str
) -> None:
    """The change arrives five seconds later in the second file, under load."""
    before, after = CHANGES[change]
    events = simulated_events("first", "second", responses=RESPONSES)
    quarter = len(events) // 4
    for replica in (1, 2):
        replicas.write(replica, before)
        replicas.start(replica)
    sender = replicas.send(events[:quarter])
    sender.join()
    sender = replicas.send(events[quarter:])
    replicas.write(1, after)
    time.sleep(5)
    replicas.write(2, after)
    eventually("the change is in force", lambda: replicas.declared_set()["version"] > 1)
    if kills:
        chance = random.Random(change)
        for _ in range(4):
            time.sleep(chance.uniform(1, 2.5))
            replica = chance.choice((1, 2))
            replicas.kill(replica)
            replicas.start(replica)
    sender.join()
    replicas.wait_until_applied(events)
    found = dump(replicas.store)
    expected = undisturbed(replicas, events, after)
    for number, name in enumerate((each for each in ("first", "second") if f'"{each}"' in after), 1):
        declared = next(each for each in replicas.declared() if each["name"] == name)
        assert aggregates_of(found, declared["number"]) == aggregates_of(expected, number), name
    assert "Traceback" not in replicas.logs()
