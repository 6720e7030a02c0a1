"""The exact form of the metrics: integers in units of 2⁻³⁰, the same from one response or from a batch.

A term gain(g)·discount(r) is one float64 product; it is scaled by 2³⁰ and rounded half to even before anything is
added. From there on everything is integer arithmetic on numbers below 2⁵³, so neither order nor vectorisation matters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from monitor.config import Discount, ExperimentSettings, Gain, Ideal, MetricSpec
from monitor.metrics.gains import GainTable, discount_function, gain_function
from monitor.metrics.ranked_lists import Batch, BoolArray, FloatArray, IntArray

Terms: TypeAlias = tuple[int, ...]
"""What one grade is worth in fixed point: undiscounted, then at rank 1, 2, … up to the deepest cut."""

Judged: TypeAlias = list[tuple[int, float, Terms]]
"""(rank, grade, terms) of a response's judged items."""

SCALE_BITS: Final = 30
SCALE: Final = 1 << SCALE_BITS

_EXACT_LIMIT: Final = 1 << 53
"""Contributions stay below: up to here float64 holds every integer, so Python's and numpy's quotients are the same."""

_GRADES_REMEMBERED: Final = 4096
"""Distinct grades whose terms are kept; most scales have a handful, but a score may be any number on its scale."""


def from_fixed(value: int) -> float:
    """Return the number that `value` stands for: value / 2³⁰.

    >>> from_fixed(3 << 29)
    1.5
    """
    return value / SCALE


class Scorer:
    """Computes an experiment's metrics for rated responses, exactly; immutable but for its memory of grades.

    Ranks are positions counted from 1, distinct within a response; a response has at least one judged item. Neither is
    checked here: an event that breaks the first is refused at the edge, and only rated responses are scored.

    Contributions are multiples of 2⁻³⁰. `cg`, `dcg`: the sum of rounded terms over the judged items at ranks up to k.
    `ndcg`: that sum over the ideal's, rounded; None where the ideal's is 0; at most 1, since rounding term by term may
    lift a list with nearly equal gains above its own ideal. `success`: 0 or 1. `rr`: 1/rank of the first relevant item,
    rounded. `p`: the number of relevant items over k, rounded.

    >>> scorer = Scorer((MetricSpec("dcg@5", "dcg", 5), MetricSpec("rr@5", "rr", 5)), relevant_grade=2)
    >>> [from_fixed(value) for value in scorer.score([1, 3], [1.0, 2.0])]  # 1/log2 2 + 2/log2 4, and 1/3
    [2.0, 0.3333333330228925]
    """

    __slots__ = (
        "_constant_ideal",
        "_deepest",
        "_discounts",
        "_max_grade",
        "_plan",
        "_relevant_grade",
        "_terms",
        "_worth",
        "metrics",
    )

    def __init__(
        self,
        metrics: Sequence[MetricSpec],
        *,
        gain: Gain | GainTable = "linear",
        discount: Discount = "log2",
        ideal: Ideal = "shown",
        max_grade: float = 4,
        relevant_grade: float = 3,
    ) -> None:
        """Compile the definitions; ValueError for one that is unknown or under which contributions are not exact."""
        if ideal not in ("shown", "constant"):
            raise ValueError(f"unknown ideal {ideal!r}, expected one of shown, constant")
        if not math.isfinite(relevant_grade):
            raise ValueError(f"relevant_grade is {relevant_grade!r}, expected a finite number")
        for metric in metrics:
            if metric.k < 1:
                raise ValueError(f"{metric.name}: k is {metric.k!r}, expected at least 1")
        self.metrics = tuple(metrics)
        self._max_grade, self._relevant_grade = max_grade, relevant_grade
        self._worth = gain_function(gain)
        self._deepest = max((metric.k for metric in self.metrics), default=1)
        weight = discount_function(discount)
        self._discounts = (1.0, *(weight(rank) for rank in range(1, self._deepest + 1)))
        self._terms: dict[float, Terms] = {}
        self._plan = [(self._measure(metric.measure), metric.k) for metric in self.metrics]
        for metric, bound in zip(self.metrics, self.bounds(), strict=True):
            if bound >= _EXACT_LIMIT:
                reached = f"{from_fixed(bound):g} with max_grade {max_grade!r}"
                raise ValueError(f"{metric.name} reaches {reached}, expected less than {_EXACT_LIMIT // SCALE}")
        best = self._terms_of(max_grade)
        cuts = [metric.k for metric in self.metrics] if ideal == "constant" else []
        self._constant_ideal = {k: sum(best[1 : k + 1]) for k in cuts}

    @classmethod
    def of(cls, experiment: ExperimentSettings) -> Scorer:
        """Return the scorer of an experiment; ValueError also for a grade in its rules that cannot be scored."""
        scorer = cls(
            experiment.metrics,
            gain=experiment.gain,
            discount=experiment.discount,
            ideal=experiment.ideal,
            max_grade=experiment.max_grade,
            relevant_grade=experiment.relevant_grade,
        )
        for rule in experiment.grades.values():
            if isinstance(rule, tuple):
                for _, grade in rule:
                    scorer._terms_of(grade)
            elif not isinstance(rule, str):
                scorer._terms_of(rule)
        return scorer

    def bounds(self) -> tuple[int, ...]:
        """Return the largest contribution each metric can make, in fixed point: every item with `max_grade`."""
        best = self._terms_of(self._max_grade)
        bounds = []
        for metric in self.metrics:
            if metric.measure == "cg":
                bounds.append(metric.k * best[0])
            elif metric.measure == "dcg":
                bounds.append(sum(best[1 : metric.k + 1]))
            else:
                bounds.append(SCALE)
        return tuple(bounds)

    def score(self, ranks: Sequence[int], grades: Sequence[float | None]) -> tuple[int | None, ...]:
        """Return one response's contribution to each metric; None where it is undefined.

        `ranks` and `grades` are parallel, in any order; None is an unjudged item, which may as well be left out.
        Raises ValueError for a grade that is not finite, above `max_grade`, or not in the gain table.
        """
        known = self._terms.get
        judged = []
        for rank, grade in zip(ranks, grades, strict=True):
            if grade is not None:
                judged.append((rank, grade, known(grade) or self._terms_of(grade)))
        return tuple([measure(judged, k) for measure, k in self._plan])

    def _terms_of(self, grade: float) -> Terms:
        known = self._terms.get(grade)
        if known is not None:
            return known
        if not (math.isfinite(grade) and grade <= self._max_grade):
            raise ValueError(f"grade is {grade!r}, expected a finite number up to max_grade {self._max_grade!r}")
        gain = self._worth(grade)
        if gain * SCALE >= _EXACT_LIMIT:
            raise ValueError(f"grade {grade!r} gains {gain:g}, expected less than {_EXACT_LIMIT // SCALE}")
        if len(self._terms) >= _GRADES_REMEMBERED:
            self._terms.clear()
        terms = tuple([round(gain * discount * SCALE) for discount in self._discounts])
        self._terms[grade] = terms
        return terms

    def _measure(self, name: str) -> Callable[[Judged, int], int | None]:
        measures: dict[str, Callable[[Judged, int], int | None]] = {
            "cg": _cg,
            "dcg": _dcg,
            "ndcg": self._ndcg,
            "success": self._success,
            "rr": self._rr,
            "p": self._p,
        }
        if name not in measures:
            raise ValueError(f"unknown measure {name!r}, expected one of {', '.join(measures)}")
        return measures[name]

    def _ndcg(self, judged: Judged, k: int) -> int | None:
        ideal = self._constant_ideal.get(k, 0)
        if not self._constant_ideal:
            ordered = [terms for _, _, terms in judged]
            ordered.sort(reverse=True)
            for rank, terms in enumerate(ordered[:k], 1):
                ideal += terms[rank]
        return min(round(_dcg(judged, k) / ideal * SCALE), SCALE) if ideal else None

    def _success(self, judged: Judged, k: int) -> int:
        threshold = self._relevant_grade
        for rank, grade, _ in judged:
            if grade >= threshold and rank <= k:
                return SCALE
        return 0

    def _rr(self, judged: Judged, k: int) -> int:
        threshold = self._relevant_grade
        first = min((rank for rank, grade, _ in judged if grade >= threshold), default=k + 1)
        return round(SCALE / first) if first <= k else 0

    def _p(self, judged: Judged, k: int) -> int:
        threshold = self._relevant_grade
        return round(SCALE * sum(grade >= threshold and rank <= k for rank, grade, _ in judged) / k)

    def score_batch(self, ranks: IntArray, grades: FloatArray) -> tuple[IntArray, BoolArray]:
        """Return (contributions, defined), each n × metrics, of n responses: row for row what `score` returns.

        `ranks` and `grades` are n × m; NaN is an unjudged item or padding, whose rank is not read. A contribution that
        is not defined is 0. Raises ValueError as `score` does.
        """
        judged = ~np.isnan(grades)
        distinct, place = np.unique(grades[judged], return_inverse=True)
        worthless = (0,) * (self._deepest + 1)
        row = np.zeros(grades.shape, dtype=np.int64)
        row[judged] = place + 1
        batch = Batch(
            terms=np.array([worthless, *map(self._terms_of, distinct.tolist())], dtype=np.int64),
            row=row,
            depth=np.where(judged, ranks, self._deepest + 1),
            relevant=judged & (np.where(judged, grades, -np.inf) >= self._relevant_grade),
        )
        simple = {"cg": batch.cg, "dcg": batch.dcg, "success": batch.success, "rr": batch.rr, "p": batch.p}
        values = np.zeros((len(grades), len(self.metrics)), dtype=np.int64)
        defined = np.ones(values.shape, dtype=np.bool_)
        for column, metric in enumerate(self.metrics):
            if metric.measure == "ndcg":
                constant = self._constant_ideal.get(metric.k)
                ideal = batch.ideal_dcg(metric.k) if constant is None else np.full(len(grades), constant)
                values[:, column] = batch.ndcg(metric.k, SCALE, ideal)
                defined[:, column] = ideal > 0
            else:
                values[:, column] = simple[metric.measure](metric.k, SCALE)
        return values, defined


def _cg(judged: Judged, k: int) -> int:
    total = 0
    for rank, _, terms in judged:
        if rank <= k:
            total += terms[0]
    return total


def _dcg(judged: Judged, k: int) -> int:
    total = 0
    for rank, _, terms in judged:
        if rank <= k:
            total += terms[rank]
    return total
