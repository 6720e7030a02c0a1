"""Experiments that would ship a treatment without a gain, or could not be trusted, if only the interval decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from monitor.stats import Verdict
from tests.calibration.attacks import ATTACKS, Attack, Units, attack_verdicts, is_better, is_shipped

RUNS = 10
FINDINGS = {
    "unhappy students stop rating": {"compared_sample_ratio", "populations_disagree", "guardrail_crossed"},
    "bad responses become undefined": {"undefined_disagree"},
    "20 % of the students send no user id": {"anonymous_units"},
    "bad students lost on three days, then repaired": {"sample_ratio"},
    "bad students switch variants": {"crossovers", "uneven_crossovers"},
    "the split changes within the day": {"hour_sample_ratio"},
    "worst responses are rejected": {"uneven_rejections"},
}
"""Attack → codes, of which the last verdict of each run has at least one."""


def _verdicts(attack: Attack) -> list[list[Verdict]]:
    return [list(attack_verdicts(np.random.default_rng([4, run]), attack)) for run in range(RUNS)]


def _codes(verdict: Verdict) -> set[str]:
    return {reason.code for reason in (*verdict.reasons, *verdict.notes)}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_not_ship_and_is_named(name: str) -> None:
    """No verdict of ten runs with eleven analyses each lets the treatment pass, and the last one names the problem."""
    for verdicts in _verdicts(ATTACKS[name]):
        assert not any(map(is_shipped, verdicts))
        assert _codes(verdicts[-1]) & FINDINGS[name]


@pytest.mark.parametrize(
    "name",
    [
        "unhappy students stop rating",
        "bad responses become undefined",
        "the split changes within the day",
    ],
)
def test_the_interval_alone_would_ship(name: str) -> None:
    """In most runs, so the checks are needed."""
    assert sum(any(map(is_better, verdicts)) for verdicts in _verdicts(ATTACKS[name])) >= RUNS - 2


def test_a_gain_without_an_attack_ships_and_has_no_finding() -> None:
    """The checks do not withhold a true gain of 0.3."""

    def add_gain(_chance: np.random.Generator, units: Units) -> Units:
        return replace(units, values=units.values + 0.3 * (units.arms == 1))

    runs = _verdicts(add_gain)
    assert sum(any(map(is_shipped, verdicts)) for verdicts in runs) >= RUNS - 1
    assert not any(_codes(verdicts[-1]) & set().union(*FINDINGS.values()) for verdicts in runs)
