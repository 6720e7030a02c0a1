"""Simulated alarm rates of the drift of recommended items, without and with a change: the figures of docs/items.md.

python -m tests.calibration.recommended

Answers have five items, in random cells. Answers are drawn from constant lists, or begin at any item of a catalogue and
continue with the following items.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.analysis.drift import Drift, measure_drift
from monitor.metrics.traffic import ITEM_CELL_COUNT

RUNS, DAYS = 400, 10
ITEMS = 5
SIZES = ((40, 120), (300, 2000))
"""(answers of the day, answers of the reference)"""
LARGE, RESPONSES_PER_STUDENT = (21_000, 150_000), 40
CATALOGUE = 500

Floats = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """Item lists, with each list's share of all answers and the cells of the items."""

    shares: Floats
    cells: IntArray
    """lists × items."""

    def simulate_cell_counts(self, chance: np.random.Generator, answers: int) -> dict[str, int]:
        """Return cell name → number of items shown in `answers` random answers."""
        counts = np.zeros(ITEM_CELL_COUNT, dtype=np.int64)
        np.add.at(counts, self.cells, chance.multinomial(answers, self.shares)[:, None])
        return {f"cell {cell:02}": int(count) for cell, count in enumerate(counts)}


def power_law_shares(number: int, exponent: float) -> Floats:
    """Return shares proportional to 1/rank to the power of `exponent`, summing to 1."""
    raw = 1 / np.arange(1, number + 1) ** exponent
    return np.asarray(raw / raw.sum())


def disjoint_lists(chance: np.random.Generator, number: int, exponent: float) -> Lists:
    """Return lists without common items."""
    return Lists(power_law_shares(number, exponent), chance.integers(0, ITEM_CELL_COUNT, (number, ITEMS)))


def overlapping_lists(first_item_shares: Floats, cells: IntArray) -> Lists:
    """Return the lists of a catalogue, which begin at each item with the given share."""
    items = (np.arange(len(first_item_shares))[:, None] + np.arange(ITEMS)) % len(first_item_shares)
    return Lists(first_item_shares, cells[items])


def simulate_drift(
    chance: np.random.Generator, day: Lists, reference: Lists, sizes: tuple[int, int], alpha: float, per_student: float
) -> Drift:
    """Return the drift of a day's random answers from random answers of the reference."""
    distributions = day.simulate_cell_counts(chance, sizes[0]), reference.simulate_cell_counts(chance, sizes[1])
    return measure_drift(*distributions, alpha=alpha, cluster_size=per_student * ITEMS, cells_per_cluster=ITEMS)


def main() -> None:
    """Print the alarm rates without a change, then with a changed part of the catalogue."""
    chance = np.random.default_rng(3)
    cells = chance.integers(0, ITEM_CELL_COUNT, CATALOGUE)
    models = {
        "12 lists": disjoint_lists(chance, 12, 0),
        "20 lists": disjoint_lists(chance, 20, 0),
        "200 lists like 1/rank": disjoint_lists(chance, 200, 1),
        f"{CATALOGUE} items": overlapping_lists(power_law_shares(CATALOGUE, 0), cells),
    }
    for name, lists in models.items():
        for sizes in SIZES:
            alarms = np.zeros(2)
            for _ in range(RUNS):
                drift = simulate_drift(chance, lists, lists, sizes, 0.05, 1)
                alarms += [statistic is not None and statistic.exceeded for statistic in (drift.psi, drift.js)]
            sys.stdout.write(f"{name}, {sizes}: PSI {alarms[0] / RUNS:.1%}, JS {alarms[1] / RUNS:.1%}\n")
    for exponent in (0, 1):
        for replaced in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7):
            alarm_days = 0
            for _ in range(DAYS):
                popular = chance.permutation(power_law_shares(CATALOGUE, exponent))
                fresh = chance.permutation(popular)
                cells = chance.integers(0, ITEM_CELL_COUNT, 2 * CATALOGUE)
                reference = overlapping_lists(np.concatenate([popular, np.zeros(CATALOGUE)]), cells)
                day = overlapping_lists(np.concatenate([(1 - replaced) * popular, replaced * fresh]), cells)
                drift = simulate_drift(chance, day, reference, LARGE, 0.005, RESPONSES_PER_STUDENT)
                alarm_days += all(statistic is not None and statistic.exceeded for statistic in (drift.psi, drift.js))
            sys.stdout.write(
                f"shares like 1/rank^{exponent}, {replaced:.0%} replaced: {alarm_days} of {DAYS} days alarm\n"
            )


if __name__ == "__main__":
    main()
