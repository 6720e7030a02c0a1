"""How often drift of recommended items alarms without a change, and with how much of one: the figures of docs/items.md.

python -m tests.calibration.recommended

Answers have five items, in cells at random. Either there are some lists that never change, or every answer begins
anywhere in a catalogue, and its items are the next five.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from monitor.analysis.drift import Drift, measure_drift
from monitor.metrics.traffic import ITEM_CELLS

RUNS, DAYS = 400, 10
ITEMS = 5
SIZES = ((40, 120), (300, 2000))
"""Answers of the day, and of the reference."""
LARGE, RESPONSES_PER_STUDENT = (21_000, 150_000), 40
CATALOGUE = 500

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Lists:
    """Lists, each with its share of all answers and the cells of its items."""

    shares: Floats
    cells: Ints
    """lists × items."""

    def shown(self, chance: np.random.Generator, answers: int) -> dict[str, int]:
        """Return how often the items of each cell were shown."""
        counts = np.zeros(ITEM_CELLS, dtype=np.int64)
        np.add.at(counts, self.cells, chance.multinomial(answers, self.shares)[:, None])
        return {f"cell {cell:02}": int(count) for cell, count in enumerate(counts)}


def shares(number: int, exponent: float) -> Floats:
    """Return shares like 1/rank to the exponent."""
    raw = 1 / np.arange(1, number + 1) ** exponent
    return np.asarray(raw / raw.sum())


def apart(chance: np.random.Generator, number: int, exponent: float) -> Lists:
    """Return lists that have no item in common."""
    return Lists(shares(number, exponent), chance.integers(0, ITEM_CELLS, (number, ITEMS)))


def overlapping(begins: Floats, cells: Ints) -> Lists:
    """Return the lists of a catalogue, by the shares with which they begin at each item."""
    places = (np.arange(len(begins))[:, None] + np.arange(ITEMS)) % len(begins)
    return Lists(begins, cells[places])


def compared(
    chance: np.random.Generator, day: Lists, before: Lists, sizes: tuple[int, int], alpha: float, per_student: float
) -> Drift:
    """Return how far a day's answers are from those before."""
    sides = day.shown(chance, sizes[0]), before.shown(chance, sizes[1])
    return measure_drift(*sides, alpha=alpha, alike=per_student * ITEMS, together=ITEMS)


def main() -> None:
    """Print both."""
    chance = np.random.default_rng(3)
    cells = chance.integers(0, ITEM_CELLS, CATALOGUE)
    models = {
        "12 lists": apart(chance, 12, 0),
        "20 lists": apart(chance, 20, 0),
        "200 lists like 1/rank": apart(chance, 200, 1),
        f"{CATALOGUE} items": overlapping(shares(CATALOGUE, 0), cells),
    }
    for name, lists in models.items():
        for sizes in SIZES:
            alarms = np.zeros(2)
            for _ in range(RUNS):
                found = compared(chance, lists, lists, sizes, 0.05, 1)
                alarms += [each is not None and each.exceeded for each in (found.psi, found.js)]
            sys.stdout.write(f"{name}, {sizes}: PSI {alarms[0] / RUNS:.1%}, JS {alarms[1] / RUNS:.1%}\n")
    for exponent in (0, 1):
        for replaced in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.7):
            seen = 0
            for _ in range(DAYS):
                popular = chance.permutation(shares(CATALOGUE, exponent))
                fresh = chance.permutation(popular)
                cells = chance.integers(0, ITEM_CELLS, 2 * CATALOGUE)
                before = overlapping(np.concatenate([popular, np.zeros(CATALOGUE)]), cells)
                day = overlapping(np.concatenate([(1 - replaced) * popular, replaced * fresh]), cells)
                found = compared(chance, day, before, LARGE, 0.005, RESPONSES_PER_STUDENT)
                seen += all(each is not None and each.exceeded for each in (found.psi, found.js))
            sys.stdout.write(f"shares like 1/rank^{exponent}, {replaced:.0%} replaced: {seen} of {DAYS} days alarm\n")


if __name__ == "__main__":
    main()
