"""The exact form of the metrics: integers in units of 2⁻³⁰, equal for a single response and for a batch.

A term gain(g)·discount(r) is one float64 product, scaled by 2³⁰ and rounded half to even before any addition. All
further arithmetic is on integers below 2⁵³, so neither the order of additions nor vectorisation changes a result.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np

from monitor.config import ExperimentSettings, MetricSpec, NamedDiscount, NamedGain, NdcgIdeal
from monitor.metrics.gains import GainTable, discount_function, gain_function
from monitor.metrics.ranked_lists import BoolArray, FloatArray, IntArray, RankedListBatch

GradeTerms: TypeAlias = tuple[int, ...]
"""The gain of a grade in fixed point: undiscounted, then discounted at rank 1, 2, … up to the largest k."""

JudgedItems: TypeAlias = list[tuple[int, float, GradeTerms]]
"""(rank, grade, terms) of a response's judged items."""

FIXED_POINT_BITS: Final = 30
FIXED_POINT_SCALE: Final = 1 << FIXED_POINT_BITS

_EXACT_LIMIT: Final = 1 << 53
"""Contributions are below 2⁵³. Float64 represents all such integers, so Python's and numpy's quotients are equal."""

_MAX_CACHED_GRADES: Final = 4096
"""Distinct grades whose terms are cached; a scale may have any number of grades."""


def from_fixed_point(value: int) -> float:
    """Return the number of a fixed-point value: value / 2³⁰.

    >>> from_fixed_point(3 << 29)
    1.5
    """
    return value / FIXED_POINT_SCALE


def to_fixed_point(value: float) -> int:
    """Return a number in fixed point: value·2³⁰, rounded half to even.

    >>> to_fixed_point(1.5) == 3 << 29
    True
    """
    return round(value * FIXED_POINT_SCALE)


class Scorer:
    """Computes an experiment's metrics for rated responses, exactly; immutable except for a cache of grades.

    Ranks are positions counted from 1, distinct within a response; a response has at least one judged item. Neither is
    checked here: the decoder rejects events with repeated positions, and only rated responses are scored.

    Contributions are multiples of 2⁻³⁰. `cg`, `dcg`: the sum of rounded terms over the judged items at ranks up to k.
    `ndcg`: the same sum divided by the ideal sum, rounded; None for an ideal sum of 0; at most 1, because rounding term
    by term may raise a list with nearly equal gains above the ideal. `success`: 0 or 1. `rr`: 1/rank of the first
    relevant item, rounded. `p`: the number of relevant items over k, rounded.

    >>> scorer = Scorer((MetricSpec("dcg@5", "dcg", 5), MetricSpec("rr@5", "rr", 5)), relevant_grade=2)
    >>> [from_fixed_point(value) for value in scorer.score([1, 3], [1.0, 2.0])]  # 1/log2 2 + 2/log2 4, and 1/3
    [2.0, 0.3333333330228925]
    """

    __slots__ = (
        "_constant_ideal",
        "_discounts",
        "_gain_of",
        "_max_grade",
        "_max_k",
        "_plan",
        "_relevant_grade",
        "_terms",
        "metrics",
    )

    def __init__(
        self,
        metrics: Sequence[MetricSpec],
        *,
        gain: NamedGain | GainTable = "linear",
        discount: NamedDiscount = "log2",
        ideal: NdcgIdeal = "shown",
        max_grade: float = 4,
        relevant_grade: float = 3,
    ) -> None:
        """Create a scorer; ValueError for unknown definitions, or definitions with contributions that are not exact."""
        if ideal not in ("shown", "constant"):
            raise ValueError(f"unknown ideal {ideal!r}, expected one of shown, constant")
        if not math.isfinite(relevant_grade):
            raise ValueError(f"relevant_grade is {relevant_grade!r}, expected a finite number")
        for metric in metrics:
            if metric.k < 1:
                raise ValueError(f"{metric.name}: k is {metric.k!r}, expected at least 1")
        self.metrics = tuple(metrics)
        self._max_grade, self._relevant_grade = max_grade, relevant_grade
        self._gain_of = gain_function(gain)
        self._max_k = max((metric.k for metric in self.metrics), default=1)
        discount_of = discount_function(discount)
        self._discounts = (1.0, *(discount_of(rank) for rank in range(1, self._max_k + 1)))
        self._terms: dict[float, GradeTerms] = {}
        self._plan = [(self._measure(metric.measure), metric.k) for metric in self.metrics]
        for metric, bound in zip(self.metrics, self.bounds(), strict=True):
            if bound >= _EXACT_LIMIT:
                bound_text = f"{from_fixed_point(bound):g} with max_grade {max_grade!r}"
                raise ValueError(
                    f"{metric.name} reaches {bound_text}, expected less than {_EXACT_LIMIT // FIXED_POINT_SCALE}"
                )
        max_grade_terms = self._terms_of(max_grade)
        constant_ideal_ks = [metric.k for metric in self.metrics] if ideal == "constant" else []
        self._constant_ideal = {k: sum(max_grade_terms[1 : k + 1]) for k in constant_ideal_ks}

    @classmethod
    def for_experiment(cls, experiment: ExperimentSettings) -> Scorer:
        """Return the scorer of an experiment; ValueError also for a grade of a grading rule that cannot be scored."""
        scorer = cls(
            experiment.ranking_metrics,
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
        """Return the largest contribution to each metric, in fixed point: all items have `max_grade`."""
        max_grade_terms = self._terms_of(self._max_grade)
        bounds = []
        for metric in self.metrics:
            if metric.measure == "cg":
                bounds.append(metric.k * max_grade_terms[0])
            elif metric.measure == "dcg":
                bounds.append(sum(max_grade_terms[1 : metric.k + 1]))
            else:
                bounds.append(FIXED_POINT_SCALE)
        return tuple(bounds)

    def score(self, ranks: Sequence[int], grades: Sequence[float | None]) -> tuple[int | None, ...]:
        """Return a response's contribution to each metric; None for an undefined metric.

        `ranks` and `grades` are parallel, in any order; None is an unjudged item, which may be left out.
        Raises ValueError for a grade that is not finite, above `max_grade`, or not in the gain table.
        """
        cached_terms = self._terms.get
        judged = []
        for rank, grade in zip(ranks, grades, strict=True):
            if grade is not None:
                judged.append((rank, grade, cached_terms(grade) or self._terms_of(grade)))
        return tuple([measure(judged, k) for measure, k in self._plan])

    def _terms_of(self, grade: float) -> GradeTerms:
        cached_terms = self._terms.get(grade)
        if cached_terms is not None:
            return cached_terms
        if not (math.isfinite(grade) and grade <= self._max_grade):
            raise ValueError(f"grade is {grade!r}, expected a finite number up to max_grade {self._max_grade!r}")
        gain = self._gain_of(grade)
        if gain * FIXED_POINT_SCALE >= _EXACT_LIMIT:
            raise ValueError(f"grade {grade!r} gains {gain:g}, expected less than {_EXACT_LIMIT // FIXED_POINT_SCALE}")
        if len(self._terms) >= _MAX_CACHED_GRADES:
            self._terms.clear()
        terms = tuple([round(gain * discount * FIXED_POINT_SCALE) for discount in self._discounts])
        self._terms[grade] = terms
        return terms

    def _measure(self, name: str) -> Callable[[JudgedItems, int], int | None]:
        measures: dict[str, Callable[[JudgedItems, int], int | None]] = {
            "cg": _cumulative_gain,
            "dcg": _dcg,
            "ndcg": self._ndcg,
            "success": self._success,
            "rr": self._reciprocal_rank,
            "p": self._precision,
        }
        if name not in measures:
            raise ValueError(f"unknown measure {name!r}, expected one of {', '.join(measures)}")
        return measures[name]

    def _ndcg(self, judged: JudgedItems, k: int) -> int | None:
        ideal = self._constant_ideal.get(k, 0)
        if not self._constant_ideal:
            ordered = [terms for _, _, terms in judged]
            ordered.sort(reverse=True)
            for rank, terms in enumerate(ordered[:k], 1):
                ideal += terms[rank]
        return min(round(_dcg(judged, k) / ideal * FIXED_POINT_SCALE), FIXED_POINT_SCALE) if ideal else None

    def _success(self, judged: JudgedItems, k: int) -> int:
        threshold = self._relevant_grade
        for rank, grade, _ in judged:
            if grade >= threshold and rank <= k:
                return FIXED_POINT_SCALE
        return 0

    def _reciprocal_rank(self, judged: JudgedItems, k: int) -> int:
        threshold = self._relevant_grade
        first = min((rank for rank, grade, _ in judged if grade >= threshold), default=k + 1)
        return round(FIXED_POINT_SCALE / first) if first <= k else 0

    def _precision(self, judged: JudgedItems, k: int) -> int:
        threshold = self._relevant_grade
        return round(FIXED_POINT_SCALE * sum(grade >= threshold and rank <= k for rank, grade, _ in judged) / k)

    def score_batch(self, ranks: IntArray, grades: FloatArray) -> tuple[IntArray, BoolArray]:
        """Return (contributions, defined), each n × metrics, of n responses: each row equals the result of `score`.

        `ranks` and `grades` are n × m; NaN is an unjudged item or padding, whose rank is not read. An undefined
        contribution is 0. Raises ValueError as `score` does.
        """
        judged = ~np.isnan(grades)
        distinct_grades, grade_index = np.unique(grades[judged], return_inverse=True)
        unjudged_terms = (0,) * (self._max_k + 1)
        row = np.zeros(grades.shape, dtype=np.int64)
        row[judged] = grade_index + 1
        batch = RankedListBatch(
            terms=np.array([unjudged_terms, *map(self._terms_of, distinct_grades.tolist())], dtype=np.int64),
            row=row,
            depth=np.where(judged, ranks, self._max_k + 1),
            relevant=judged & (np.where(judged, grades, -np.inf) >= self._relevant_grade),
        )
        sums = {"cg": batch.cumulative_gain, "dcg": batch.dcg}
        proportions = {"success": batch.success, "rr": batch.reciprocal_rank, "p": batch.precision}
        values = np.zeros((len(grades), len(self.metrics)), dtype=np.int64)
        defined = np.ones(values.shape, dtype=np.bool_)
        for column, metric in enumerate(self.metrics):
            if metric.measure == "ndcg":
                constant = self._constant_ideal.get(metric.k)
                ideal = batch.ideal_dcg(metric.k) if constant is None else np.full(len(grades), constant)
                values[:, column] = batch.ndcg(metric.k, FIXED_POINT_SCALE, ideal)
                defined[:, column] = ideal > 0
            elif metric.measure in sums:
                values[:, column] = sums[metric.measure](metric.k)
            else:
                values[:, column] = proportions[metric.measure](metric.k, FIXED_POINT_SCALE)
        return values, defined


def _cumulative_gain(judged: JudgedItems, k: int) -> int:
    total = 0
    for rank, _, terms in judged:
        if rank <= k:
            total += terms[0]
    return total


def _dcg(judged: JudgedItems, k: int) -> int:
    total = 0
    for rank, _, terms in judged:
        if rank <= k:
            total += terms[rank]
    return total
