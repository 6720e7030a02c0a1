"""What to look at first: entries (a query, an item, a category) with bad answers, the most urgent first.

An entry's urgency is x·0.7 − 4 + Σ w(age)·s: x is the number of its bad answers today, s what an earlier day's number
was worth by itself, w a weight that falls with the days since. Its priority is the logistic function of that, so a few
bad answers hardly count, about six put an entry in the middle, and from ten on more of them change little. Days are
those of UTC, numbered from 1970.

Analysts have a say. A reaction of the kind `reviewed` to a bad answer is a register like every other reaction (the
latest stands), and its score says as how many answers this one counts from then on: see `answers`. Since that is
a function of one response, an entry's numbers are sums over responses of whole numbers; no order of events matters.

Reference: Verhulst, "Recherches mathématiques sur la loi d'accroissement de la population", 1845 (the logistic
function). Scale, shift and weights are a convention for teams that look every day, no estimate of anything: they are
arguments.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Final, TypeAlias

import numpy as np

from monitor.config import DecaySpec
from monitor.metrics import bad_answer_count, weights

Daily: TypeAlias = Mapping[str, Mapping[int, int]]
"""Entry → UTC day → its bad answers on that day."""

SCALE: Final = 0.7
SHIFT: Final = 4.0
DAY_MS: Final = 86_400_000
RECIPROCAL: Final = DecaySpec("reciprocal-10d", half_life_ms=None, cutoff_ms=10 * DAY_MS)
"""1/(1 + days), 0 from day 10."""

_ABOVE_0: Final = math.nextafter(0.0, 1.0)
_BELOW_1: Final = math.nextafter(1.0, 0.0)


@dataclass(frozen=True, slots=True)
class BadAnswer:
    """One bad answer of an entry."""

    entry: str
    at_ms: int
    review: float | None = None
    """The score of the latest review; None: nobody has looked."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the list."""

    name: str
    today: int
    history: float
    """Σ w(age)·s over the days before."""
    urgency: float
    """What decides the order: it tells entries apart where their priorities no longer do."""

    @property
    def priority(self) -> float:
        return _logistic(self.urgency)

    def to_json(self) -> dict[str, object]:
        return {**asdict(self), "priority": self.priority}


def daily(given: Iterable[BadAnswer]) -> dict[str, Counter[int]]:
    """Return every entry's bad answers by UTC day, reviews taken into account; what sums to nothing is left out."""
    found: dict[str, Counter[int]] = {}
    for each in given:
        count = bad_answer_count(each.review)
        if count:
            found.setdefault(each.entry, Counter())[each.at_ms // DAY_MS] += count
    return found


def priority(count: float, before: float = 0.0, *, scale: float = SCALE, shift: float = SHIFT) -> float:
    """Return 1/(1 + e^(−scale·count + shift − before)), in (0, 1): what `count` bad answers in a day are worth.

    `before` is the history. ValueError: a count or a history that is negative or not finite, a scale that is not a
    finite number above 0, a shift that is not finite.

    By hand: no bad answer is worth 1/(1 + e⁴) = 0.018, ten are worth 1/(1 + e⁻³) = 0.9526.

    >>> round(priority(0), 3), round(priority(10), 4)
    (0.018, 0.9526)
    """
    return _logistic(_urgency(count, before, scale, shift))


def history(scores: Iterable[tuple[float, float]], decay: DecaySpec = RECIPROCAL) -> float:
    """Return Σ w(age)·score over what an entry was worth before: pairs of an age in days and a score.

    By hand: 1/2·0.8 + 1/3·0.4 = 0.5333, and nothing is left after ten days.

    >>> round(history([(1, 0.8), (2, 0.4)]), 4), history([(10, 1.0)])
    (0.5333, 0.0)
    """
    table = np.array([*scores], dtype=np.float64).reshape(-1, 2)
    return math.fsum(weights(table[:, 0] * DAY_MS, decay) * table[:, 1])


def first_to_look_at(
    bad: Daily, today: int, decay: DecaySpec = RECIPROCAL, *, scale: float = SCALE, shift: float = SHIFT
) -> tuple[Entry, ...]:
    """Return the entries by falling urgency, then by name; `today` is a UTC day, later days do not count.

    A day of the history is worth `priority` of its own count, and nothing if it had none: so an entry is a function of
    the days within the decay's reach, and does not depend on how long it has been known. An entry without anything
    that still counts is not in the list.
    """
    found = []
    for name, days in bad.items():
        counts = {day: count for day, count in days.items() if count > 0}
        now = counts.pop(today, 0)
        past = [(today - day, priority(count, scale=scale, shift=shift)) for day, count in counts.items()]
        before = history(past, decay)
        if now or before:
            found.append(Entry(name, now, before, _urgency(now, before, scale, shift)))
    return tuple(sorted(found, key=lambda entry: (-entry.urgency, entry.name)))


def _urgency(count: float, before: float, scale: float, shift: float) -> float:
    for name, value in (("count", count), ("history", before)):
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} is {value!r}, expected a finite number of at least 0")
    if not 0 < scale < math.inf:
        raise ValueError(f"scale is {scale!r}, expected a finite number above 0")
    if not math.isfinite(shift):
        raise ValueError(f"shift is {shift!r}, expected a finite number")
    return scale * count - shift + before


def _logistic(urgency: float) -> float:
    """Return 1/(1 + e^−urgency) without overflow, and never an end of the interval."""
    small = math.exp(-abs(urgency))
    value = (1 if urgency >= 0 else small) / (1 + small)
    return min(max(value, _ABOVE_0), _BELOW_1)
