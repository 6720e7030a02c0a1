"""Experiments that would ship a treatment without a gain, if only the interval decided."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.calibration.attacks import ATTACKS, Units, attack_decisions


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_does_not_ship(name: str) -> None:
    """Over ten runs with ten analyses each, no verdict is `ship` or `non_inferior`."""
    decisions = [
        decision for run in range(10) for decision in attack_decisions(np.random.default_rng([4, run]), ATTACKS[name])
    ]
    assert not any(shipped for _, shipped in decisions)


def test_a_gain_without_an_attack_ships() -> None:
    """The checks do not withhold a true gain of 0.3."""

    def add_gain(_chance: np.random.Generator, units: Units) -> Units:
        return replace(units, values=units.values + 0.3 * (units.arms == 1))

    runs = [list(attack_decisions(np.random.default_rng([4, run]), add_gain)) for run in range(10)]
    assert sum(any(shipped for _, shipped in run) for run in runs) >= 9
