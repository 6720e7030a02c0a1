"""Drift of a distribution: the distance of counts from reference counts, and a threshold for chance differences.

Two distances between the shares of cells, each with the threshold that chance exceeds in a share α of all cases:

- the population stability index (PSI), Σ (p − q)·ln(p/q), with half an observation added to every cell that has
  observations on either side (Krichevsky & Trofimov), because the logarithm of a share of 0 is infinite;
- the Jensen-Shannon distance, the root of the divergence in bits: from 0 (equal) to 1 (nothing in common), a metric.

The threshold is a permutation threshold. The observations of both sides are pooled and split at random, without
replacement, into two samples of the original sizes, which are smoothed in the same way. So about α of all comparisons
without a change raise an alarm, however few the observations and however many the cells. The draws start from a fixed
seed and the cells are sorted by name: the result is a pure function of the counts under one version of numpy.

Observations have to be independent. If observations come in clusters of g equal ones, only one of g is drawn
(`cluster_size`). The items of one response are g different items, so groups of g cells are drawn as a whole
(`cells_per_cluster`). Why this is the most conservative assumption, and all references: docs/items.md.
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

CellCounts: TypeAlias = Mapping[str, int]
"""Cell (a category, or a group of items) → observations."""
_SortedCounts: TypeAlias = tuple[tuple[str, int], ...]
"""(cell, observations), sorted by cell: hashable, for the cache."""
_Table: TypeAlias = NDArray[np.float64]

MIN_DRIFT_ALPHA: Final = 1 / 2000
"""The smallest p-value that `DEFAULT_DRAWS` draws can have."""
DEFAULT_DRAWS: Final = 1999

_PSEUDO_COUNT: Final = 0.5
"""Added to each cell before the population stability index is computed."""
_DECIMALS: Final = 12
"""Distances are rounded to so many decimals, so that equal distances are equal in every digit."""
_CELLS_AT_ONCE: Final = 1 << 20
"""Draws × cells that are in memory at the same time."""
_MAX_OBSERVATIONS: Final = 10**9
"""numpy draws only from fewer observations than this."""


@dataclass(frozen=True, slots=True)
class DriftDistance:
    """An observed distance with permutation threshold and p-value; the names of the fields are JSON keys."""

    value: float
    threshold: float
    """Chance alone exceeds the threshold in a share α of all cases."""
    p: float
    """Share of the draws, the observed split included, with at least the observed distance."""
    exceeded: bool
    """Whether the value is above the threshold; the same as p ≤ α."""


@dataclass(frozen=True, slots=True)
class Drift:
    """Both distances of some counts from reference counts; the names of the fields are JSON keys.

    A distance is None if a side has no observations. A distance is also None if only one of several groups of cells has
    independent observations: all random splits are then equal.
    """

    observations: int
    """Independent observations of the counts."""
    reference: int
    """Independent observations of the reference."""
    cells: int
    """Cells with observations on at least one side."""
    alpha: float
    draws: int
    psi: DriftDistance | None
    js: DriftDistance | None


def psi(counts: CellCounts, reference: CellCounts) -> float | None:
    """Return the population stability index, at least 0; None if a side has no observations.

    By hand: 3, 1 against 1, 3 is 3.5/5 and 1.5/5 against the reverse: 2·0.4·ln(3.5/1.5) = 0.6778.

    >>> round(psi({"a": 3, "b": 1}, {"a": 1, "b": 3}), 4), psi({}, {"a": 1})
    (0.6778, None)
    """
    return _distance(_psi, counts, reference)


def js_distance(counts: CellCounts, reference: CellCounts) -> float | None:
    """Return the Jensen-Shannon distance to base 2, from 0 to 1; None if a side has no observations.

    By hand: the middle of (1, 0) and (½, ½) is (¾, ¼), the divergence ½·log2 4/3 + ½·(½·log2 2/3 + ½·log2 2) = 0.3113.

    >>> round(js_distance({"a": 2}, {"a": 1, "b": 1}) ** 2, 4), js_distance({"a": 1}, {"b": 1})
    (0.3113, 1.0)
    """
    return _distance(_js, counts, reference)


def measure_drift(
    counts: CellCounts,
    reference: CellCounts,
    *,
    alpha: float = 0.01,
    draws: int = DEFAULT_DRAWS,
    seed: int = 0,
    cluster_size: float = 1.0,
    cells_per_cluster: int = 1,
) -> Drift:
    """Return both distances of the counts from the reference, with thresholds and p-values from random splits.

    The pooled observations are split at random `draws` times, starting from `seed`. Of every `cluster_size`
    observations only one is drawn, and groups of `cells_per_cluster` cells are drawn as a whole (see the module's
    docstring). p = (1 + number of draws at least as far)/(draws + 1): never 0, and exact in finite samples (Davison &
    Hinkley 1997, chapter 4). The cost is draws × cells, so rare items are best counted together. ValueError: a negative
    count, 10⁹ observations or more, an alpha outside (0, 1), too few draws for a p-value as small as alpha, a cluster
    of less than one observation or cell.
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha is {alpha!r}, expected a level between 0 and 1")
    if cluster_size < 1 or cells_per_cluster < 1:
        raise ValueError(
            f"cluster_size is {cluster_size!r}, cells_per_cluster is {cells_per_cluster!r}, expected at least 1"
        )
    draws_above_threshold = math.floor(alpha * (draws + 1) * (1 + 1e-12))
    if draws_above_threshold < 1:
        raise ValueError(f"draws is {draws!r}, expected at least {math.ceil(1 / alpha) - 1} for alpha {alpha:g}")
    table = _count_table(counts, reference) / cluster_size
    # With a single group of cells all splits are equal.
    cells_per_cluster = max(1, min(cells_per_cluster, table.shape[1] // 2))
    group_counts = np.add.reduceat(table, np.arange(0, table.shape[1], cells_per_cluster), axis=1)
    clusters = np.array([_round_to_sum(side) for side in group_counts])
    n, m = (int(total) for total in clusters.sum(axis=1))
    if n + m >= _MAX_OBSERVATIONS:
        raise ValueError(f"{n} and {m} observations, expected fewer than 10⁹ together")
    distances: list[DriftDistance | None] = [None, None]
    pooled = clusters.sum(axis=0)
    if n and m and int(np.count_nonzero(pooled)) >= min(2, table.shape[1]):
        null_distances = _draw_null_distances(pooled, n, draws, seed)
        values = _psi(table[:1], table[1:], _PSEUDO_COUNT / cells_per_cluster), _js(table[:1], table[1:])
        for index, (value, drawn_distances) in enumerate(
            zip((float(rows[0]) for rows in values), null_distances, strict=True)
        ):
            p = (1 + int(np.count_nonzero(drawn_distances >= value))) / (draws + 1)
            rank = draws - draws_above_threshold
            threshold = float(np.partition(drawn_distances, rank)[rank])
            distances[index] = DriftDistance(value, threshold, p, value > threshold)
    return Drift(n, m, table.shape[1], alpha, draws, psi=distances[0], js=distances[1])


def _round_to_sum(values: _Table) -> _Table:
    """Return integers that add up to the rounded sum of the values, by the method of largest remainders."""
    integers = np.floor(values)
    missing = round(float(values.sum())) - int(integers.sum())
    integers[np.argsort(integers - values, kind="stable")[:missing]] += 1
    return integers


def _draw_null_distances(pooled: _Table, n: int, draws: int, seed: int) -> _Table:
    """Return both distances (2 × draws) between n random observations of the pooled counts and the rest."""
    generator, blocks = np.random.default_rng(seed), []
    step = max(1, _CELLS_AT_ONCE // len(pooled))
    for start in range(0, draws, step):
        size = min(step, draws - start)
        samples = generator.multivariate_hypergeometric(pooled.astype(np.int64), n, size).astype(np.float64)
        blocks.append(np.stack([_psi(samples, pooled - samples), _js(samples, pooled - samples)]))
    return np.concatenate(blocks, axis=1)


def _psi(samples: _Table, references: _Table, pseudo_count: float = _PSEUDO_COUNT) -> _Table:
    """Return the population stability index of each pair of rows (arguments: pairs × cells)."""
    p, q = (_shares(side + pseudo_count) for side in (samples, references))
    indexes: _Table = np.sum((p - q) * np.log(p / q), axis=1)
    return indexes.round(_DECIMALS)


def _js(samples: _Table, references: _Table) -> _Table:
    """Return the Jensen-Shannon distance of each pair of rows (arguments: pairs × cells)."""
    p, q = _shares(samples), _shares(references)
    sums = p + q
    # With d = (p − q)/(p + q) a cell adds (p + q)·((1 + d)·ln(1 + d) + (1 − d)·ln(1 − d))/4 nats, never below 0:
    # nothing cancels between cells, as it does in a difference of entropies.
    d = np.divide(p - q, sums, out=np.zeros_like(sums), where=sums > 0)
    terms: _Table = sums * sum((1 + side) * np.log1p(np.where(side > -1, side, 0)) for side in (d, -d))
    divergences: _Table = terms.sum(axis=1).clip(0) / (4 * math.log(2))
    return np.sqrt(divergences).round(_DECIMALS)


def _shares(counts: _Table) -> _Table:
    """Return each row of counts divided by the sum of the row."""
    totals: _Table = counts.sum(axis=1, keepdims=True)
    return counts / totals


def _distance(measure: Callable[[_Table, _Table], _Table], counts: CellCounts, reference: CellCounts) -> float | None:
    """Return a distance of counts from reference counts; None if a side has no observations."""
    table = _count_table(counts, reference)
    return float(measure(table[:1], table[1:])[0]) if table.sum(axis=1).all() else None


def _count_table(counts: CellCounts, reference: CellCounts) -> _Table:
    """Return counts and reference (2 × cells) over the cells with observations on either side, sorted by name."""
    for side in (counts, reference):
        for cell, count in side.items():
            if count < 0:
                raise ValueError(f"the count of {cell!r} is {count!r}, expected at least 0")
    cells = sorted(cell for cell in {*counts, *reference} if counts.get(cell) or reference.get(cell))
    return np.array([[side.get(cell, 0) for cell in cells] for side in (counts, reference)], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class DayDrift:
    """The drift of a variant's newest whole day from a reference."""

    day: int
    """Day since 1970."""
    counts: CellCounts
    """Responses of the day by category, or shown items by cell."""
    reference: CellCounts
    cluster_size: float
    """Dependent observations that count as one: divisor of the counts before the comparison."""
    drift: Drift


def measure_day_drift(
    counts_by_day: Mapping[int, CellCounts],
    today: int,
    reference: int | CellCounts,
    *,
    alpha: float,
    cluster_size: float,
    cells_per_cluster: int = 1,
) -> DayDrift | None:
    """Return the drift of the last whole day before `today`; None if the day or the reference has no observations.

    `reference` is a number of days, counted from the first day, or the reference counts. Only whole days are compared,
    because repeated tests of an unfinished day would multiply false alarms.

    Responses of one student depend on each other, and so do the items of one response. Counts are therefore divided by
    `cluster_size`: this leaves as many independent observations as if each student always asked, and got, the same.
    That is the most conservative assumption. For clusters of different sizes m, `cluster_size` is Σm²/Σm and not the
    mean (Kish, "Survey sampling", 1965, section 8.2: the design effect 1 + (m − 1)ρ at ρ = 1). For clusters of
    clusters, `cluster_size` is the product of both sizes. ValueError: see `measure_drift`.

    >>> day_drift = measure_day_drift(
    ...     {1: {"a": 80, "b": 20}, 8: {"a": 20, "b": 80}}, 9, 7, cluster_size=2.0, alpha=0.01
    ... )
    >>> day_drift.drift.observations, day_drift.drift.psi.exceeded
    (50, True)
    """
    day = today - 1
    counts = counts_by_day.get(day, {})
    if isinstance(reference, int):
        first_day = min(counts_by_day, default=today)
        if day < first_day + reference:
            return None
        total = Counter[str]()
        for reference_day in range(first_day, first_day + reference):
            total.update(counts_by_day.get(reference_day, {}))
        reference = total
    if not any(counts.values()) or not any(reference.values()):
        return None
    observations = sum(counts.values()) + sum(reference.values())
    divisor = max(cluster_size, observations / (_MAX_OBSERVATIONS // 2))
    sorted_counts, sorted_reference = (tuple(sorted(side.items())) for side in (counts, reference))
    drift = _measure_drift_cached(sorted_counts, sorted_reference, alpha, divisor, cells_per_cluster)
    return DayDrift(day, counts, reference, cluster_size, drift)


@lru_cache(maxsize=1024)
def _measure_drift_cached(
    counts: _SortedCounts, reference: _SortedCounts, alpha: float, cluster_size: float, cells_per_cluster: int
) -> Drift:
    """Return `measure_drift` of sorted counts; cached, because every scrape needs the drift of the same day."""
    return measure_drift(
        dict(counts), dict(reference), alpha=alpha, cluster_size=cluster_size, cells_per_cluster=cells_per_cluster
    )
