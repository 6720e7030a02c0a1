"""Has a distribution changed? Counts of now against those of a reference, and how far apart chance alone puts them.

Two distances of the shares, and for each the threshold that chance passes in a share α of all cases:

- the population stability index (PSI), Σ (p − q)·ln(p/q), with half an observation more in every cell that either side
  has (Krichevsky & Trofimov), as the logarithm of an empty cell is infinite;
- the Jensen-Shannon distance, the root of the divergence in bits: from 0 (the same) to 1 (nothing in common), a metric.

The threshold is found by resampling: the observations of both sides are put together, dealt out again without
replacement into two samples as large as the two, and go through the same smoothing. So about α of all comparisons alarm
for nothing, however few the observations and however many the cells. The draws start from a fixed seed and the cells
are sorted by name: the result is a pure function of the counts under one version of numpy.

Observations have to be independent. If g of them are always the same, only one of g is dealt out (`alike`); the items
of one answer are g different ones, so groups of g cells are dealt out as a whole (`together`). Why that is the most
careful assumption, and all references: docs/items.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Counts: TypeAlias = Mapping[str, int]
"""Cell (a category, an item) → observations."""
_Cells: TypeAlias = tuple[tuple[str, int], ...]
_Table: TypeAlias = NDArray[np.float64]

SMALLEST_ALPHA: Final = 1 / 2000
"""What can be told from `DRAWS` deals."""
DRAWS: Final = 1999

_PSEUDO: Final = 0.5
_DIGITS: Final = 12
"""Decimals kept of a distance, so that samples that are equally far are so to the last digit."""
_CELLS_AT_ONCE: Final = 1 << 20
_MOST: Final = 10**9
"""Observations that numpy can deal out."""


@dataclass(frozen=True, slots=True)
class Distance:
    """A distance, what chance alone passes in a share α of all cases, and how often it reaches the distance."""

    value: float
    threshold: float
    p: float
    exceeded: bool
    """Whether the value is above the threshold; the same as p ≤ α."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Both distances of two sets of counts; None where one holds nothing, or there is no chance to compare with.

    That is so where all but less than one independent observation is in one group of cells.
    """

    observations: int
    reference: int
    cells: int
    """Cells that at least one side has."""
    alpha: float
    draws: int
    psi: Distance | None
    js: Distance | None


def psi(counts: Counts, reference: Counts) -> float | None:
    """Return the population stability index, from 0 up; None without observations on either side.

    By hand: 3, 1 against 1, 3 is 3.5/5 and 1.5/5 against the reverse: 2·0.4·ln(3.5/1.5) = 0.6778.

    >>> round(psi({"a": 3, "b": 1}, {"a": 1, "b": 3}), 4), psi({}, {"a": 1})
    (0.6778, None)
    """
    return _distance(_psi, counts, reference)


def js_distance(counts: Counts, reference: Counts) -> float | None:
    """Return the Jensen-Shannon distance to base 2, from 0 to 1; None without observations on either side.

    By hand: the middle of (1, 0) and (½, ½) is (¾, ¼), the divergence ½·log2 4/3 + ½·(½·log2 2/3 + ½·log2 2) = 0.3113.

    >>> round(js_distance({"a": 2}, {"a": 1, "b": 1}) ** 2, 4), js_distance({"a": 1}, {"b": 1})
    (0.3113, 1.0)
    """
    return _distance(_js, counts, reference)


def measure_drift(
    counts: Counts,
    reference: Counts,
    *,
    alpha: float = 0.01,
    draws: int = DRAWS,
    seed: int = 0,
    alike: float = 1.0,
    together: int = 1,
) -> Drift:
    """Return both distances with their thresholds; the observations are dealt out `draws` times, starting from `seed`.

    So many observations are `alike`, and only one of them is dealt; so many cells go `together` (see above). p = (1 +
    number of draws at least as far)/(draws + 1): never 0, and right in finite samples (Davison & Hinkley 1997,
    chapter 4). Takes draws × cells steps, so rare items are best counted together first. ValueError: a count that is
    negative, 10⁹ observations or more, an alpha outside (0, 1), so few draws that no p could be as small as alpha,
    fewer than one that is alike or together.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha!r}, expected a level between 0 and 1")
    if alike < 1 or together < 1:
        raise ValueError(f"{alike!r} observations alike, {together!r} cells together, expected at least 1")
    above = math.floor(alpha * (draws + 1) * (1 + 1e-12))
    if above < 1:
        raise ValueError(f"draws is {draws!r}, expected at least {math.ceil(1 / alpha) - 1} for alpha {alpha:g}")
    table = _table(counts, reference) / alike
    # At least two groups, or there is nothing to deal.
    together = max(1, min(together, table.shape[1] // 2))
    dealt = np.array([_whole(side) for side in np.add.reduceat(table, np.arange(0, table.shape[1], together), axis=1)])
    n, m = (int(total) for total in dealt.sum(axis=1))
    found: list[Distance | None] = [None, None]
    if n + m >= _MOST:
        raise ValueError(f"{n} and {m} observations, expected fewer than 10⁹ together")
    filled = int(np.count_nonzero(dealt.sum(axis=0)))
    if n and m and filled >= min(2, table.shape[1]):
        null = _null(dealt.sum(axis=0), n, draws, seed)
        values = _psi(table[:1], table[1:], _PSEUDO / together), _js(table[:1], table[1:])
        for at, (value, drawn) in enumerate(zip(map(float, (each[0] for each in values)), null, strict=True)):
            p = (1 + int(np.count_nonzero(drawn >= value))) / (draws + 1)
            threshold = float(np.partition(drawn, draws - above)[draws - above])
            found[at] = Distance(value, threshold, p, value > threshold)
    return Drift(n, m, table.shape[1], alpha, draws, psi=found[0], js=found[1])


def _whole(parts: _Table) -> _Table:
    """Return whole numbers that add up to the rounded sum: by largest remainders, then by place."""
    whole = np.floor(parts)
    more = np.argsort(whole - parts, kind="stable")[: round(float(parts.sum())) - int(whole.sum())]
    whole[more] += 1
    return whole


def _null(both: _Table, n: int, draws: int, seed: int) -> _Table:
    """Return both distances (2 × draws) of n of all observations from the others; `both` counts all, by cell."""
    generator, parts = np.random.default_rng(seed), []
    step = max(1, _CELLS_AT_ONCE // len(both))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        dealt = generator.multivariate_hypergeometric(both.astype(np.int64), n, size).astype(np.float64)
        parts.append(np.stack([_psi(dealt, both - dealt), _js(dealt, both - dealt)]))
    return np.concatenate(parts, axis=1)


def _psi(one: _Table, other: _Table, pseudo: float = _PSEUDO) -> _Table:
    """Return the distances of pairs of rows (both: pairs × cells), with so many observations more in every cell."""
    p, q = (_shares(side + pseudo) for side in (one, other))
    distances: _Table = np.sum((p - q) * np.log(p / q), axis=1)
    return distances.round(_DIGITS)


def _js(one: _Table, other: _Table) -> _Table:
    """Return the distances of pairs of rows (both: pairs × cells)."""
    p, q = _shares(one), _shares(other)
    both = p + q
    # With d = (p − q)/(p + q) a cell adds (p + q)·((1 + d)·ln(1 + d) + (1 − d)·ln(1 − d))/4 nats, never below 0:
    # nothing cancels between cells, as it does in a difference of entropies.
    d = np.divide(p - q, both, out=np.zeros_like(both), where=both > 0)
    cells: _Table = both * sum((1 + side) * np.log1p(np.where(side > -1, side, 0)) for side in (d, -d))
    divergences: _Table = cells.sum(axis=1).clip(0) / (4 * math.log(2))
    return np.sqrt(divergences).round(_DIGITS)


def _shares(counts: _Table) -> _Table:
    totals: _Table = counts.sum(axis=1, keepdims=True)
    return counts / totals


def _distance(measure: Callable[[_Table, _Table], _Table], counts: Counts, reference: Counts) -> float | None:
    table = _table(counts, reference)
    return float(measure(table[:1], table[1:])[0]) if table.sum(axis=1).all() else None


def _table(counts: Counts, reference: Counts) -> _Table:
    """Return both sides (2 × cells) over the cells that at least one has, sorted by name."""
    for side in (counts, reference):
        for cell, count in side.items():
            if count < 0:
                raise ValueError(f"the count of {cell!r} is {count!r}, expected at least 0")
    cells = sorted(cell for cell in {*counts, *reference} if counts.get(cell) or reference.get(cell))
    return np.array([[side.get(cell, 0) for cell in cells] for side in (counts, reference)], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class DayDrift:
    """The newest whole UTC day of a variant against its reference; days are counted from 1970."""

    day: int
    counts: Counts
    """Responses of that day by category, or items shown by cell."""
    reference: Counts
    alike: float
    """Observations taken as one: by how many both were divided before they were compared."""
    drift: Drift


def day_drift(
    days: Mapping[int, Counts],
    today: int,
    reference: int | Counts,
    *,
    alpha: float,
    alike: float,
    together: int = 1,
) -> DayDrift | None:
    """Return the drift of the last whole day before `today`; None where it, or what it is compared with, is missing.

    `reference` is a number of days, the first ones that there are, or counts. A day is looked at once it is over:
    whoever looks at every minute of it looks many times.

    Responses of one student are alike, and so are the items of one response, so counts are divided by how many
    observations are `alike` before they are dealt out: as many independent ones are left as there would be if students
    always asked, and got, the same. That is the most careful assumption. For clusters of different size m it is Σm²/Σm
    and not the mean (Kish, "Survey sampling", 1965, section 8.2: the design effect 1 + (m − 1)ρ at ρ = 1), for clusters
    of clusters the product. ValueError as `drift`.

    >>> found = day_drift({1: {"a": 80, "b": 20}, 8: {"a": 20, "b": 80}}, 9, 7, alike=2.0, alpha=0.01)
    >>> found.drift.observations, found.drift.psi.exceeded
    (50, True)
    """
    day = today - 1
    counts = days.get(day, {})
    if isinstance(reference, int):
        first = min(days, default=today)
        if day < first + reference:
            return None
        total = Counter[str]()
        for each in range(first, first + reference):
            total.update(days.get(each, {}))
        reference = total
    if not any(counts.values()) or not any(reference.values()):
        return None
    everything = sum(counts.values()) + sum(reference.values())
    divisor = max(alike, everything / (_MOST // 2))
    sides = [tuple(sorted(side.items())) for side in (counts, reference)]
    return DayDrift(day, counts, reference, alike, _remembered(sides[0], sides[1], alpha, divisor, together))


@lru_cache(maxsize=1024)
def _remembered(counts: _Cells, reference: _Cells, alpha: float, alike: float, together: int) -> Drift:
    """Return the drift of sorted counts; every scrape asks for those of the same day."""
    return measure_drift(dict(counts), dict(reference), alpha=alpha, alike=alike, together=together)
