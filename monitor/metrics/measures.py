"""The metrics of a ranked list, as functions of the grades of the list.

Common to all metrics:

- `relevance` has the grades in the order of the list. None is an unjudged item: gain 0, not relevant, with a rank.
- `ranks` has the items' positions, counted from 1, in the same order; default 1, 2, 3, … Positions may have gaps.
- `k` is the cutoff rank; default: no cutoff. A list with fewer than k items has no gain at the missing ranks.
- Results are dimensionless. ValueError: k below 1, a grade that is not finite, ranks that are below 1, repeated or of
  another number than the grades, an unknown gain or discount, a grade without a gain in the gain table.

References: Järvelin & Kekäläinen, "Cumulated gain-based evaluation of IR techniques", ACM TOIS 20(4), 2002. Burges et
al., "Learning to rank using gradient descent", ICML 2005. Wang et al., "A theoretical analysis of NDCG type ranking
measures", COLT 2013. Voorhees, "The TREC-8 question answering track report", 1999. Manning, Raghavan & Schütze,
"Introduction to Information Retrieval", 2008, section 8.4. Jeunen, Potapov & Ustimenko, "On (normalised) discounted
cumulative gain as an off-policy evaluation metric for top-n recommendation", KDD 2024.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TypeAlias

from monitor.config import NamedDiscount, NamedGain
from monitor.metrics.gains import GainTable, discount_function, gain_function

Grades: TypeAlias = Sequence[float | None]


def cumulative_gain(
    relevance: Grades,
    k: int | None = None,
    *,
    gain: NamedGain | GainTable = "linear",
    ranks: Sequence[int] | None = None,
) -> float:
    """Return the cumulated gain Σ_{r ≤ k} gain(g_r) of the first k items, independent of the order.

    Järvelin & Kekäläinen 2002, equation 1. Never undefined; 0 for an empty list.

    By hand: 3 + 2 = 5 at k = 2; 2³ − 1 + 2² − 1 = 10 with gain exp2.

    >>> cumulative_gain([3, 2, None, 1], k=2), cumulative_gain([3, 2, None, 1], k=2, gain="exp2")
    (5.0, 10.0)
    """
    gain_of = gain_function(gain)
    return math.fsum(gain_of(grade) for _, grade in _judged(relevance, k, ranks))


def dcg(
    relevance: Grades,
    k: int | None = None,
    *,
    gain: NamedGain | GainTable = "linear",
    discount: NamedDiscount = "log2",
    ranks: Sequence[int] | None = None,
) -> float:
    """Return the discounted cumulated gain Σ_{r ≤ k} gain(g_r)·discount(r).

    Järvelin & Kekäläinen 2002, equation 2 (discount log2-from-2); Burges et al. 2005 (discount log2, gain exp2).
    Never undefined; 0 for an empty list.

    By hand: 3/log2 2 + 2/log2 4 = 3 + 1 = 4, the second item being unjudged; at positions 1, 3 and 7 the
    sum is 3/1 + 0/2 + 2/3.

    >>> dcg([3, None, 2])
    4.0
    >>> dcg([3, None, 2], ranks=[1, 3, 7])
    3.6666666666666665
    >>> dcg([3, None, 2], k=5, ranks=[1, 3, 7])
    3.0
    """
    gain_of, discount_of = gain_function(gain), discount_function(discount)
    return math.fsum(gain_of(grade) * discount_of(rank) for rank, grade in _judged(relevance, k, ranks))


def ideal_dcg(
    relevance: Grades,
    k: int | None = None,
    *,
    gain: NamedGain | GainTable = "linear",
    discount: NamedDiscount = "log2",
    ideal: Grades | None = None,
) -> float:
    """Return the largest DCG@k that the grades of `ideal` allow: sorted, largest first, at ranks 1, 2, 3, …, then cut.

    `ideal` has the grades to sort; by default the grades of the list. With every judged grade of the query, the
    result is the ideal of the literature (Järvelin & Kekäläinen 2002, the ideal vector). With `[max_grade] * k`, the
    result is the constant ideal, under which nDCG orders lists as DCG does (Jeunen et al. 2024). Never undefined.

    By hand: [1, None, 3] sorted is 3, 1: 3/log2 2 + 1/log2 3 = 3.6309…; cut at 1 after sorting: 3.

    >>> ideal_dcg([1, None, 3], k=1), round(ideal_dcg([1, None, 3]), 4)
    (3.0, 3.6309)
    >>> ideal_dcg([1, None, 3], ideal=[4] * 3, discount="reciprocal") == 4 * (1 + 1/2 + 1/3)
    True
    """
    _check_cutoff(k)
    list_grades = _judged_grades(relevance)
    grades = list_grades if ideal is None else _judged_grades(ideal)
    gain_of, discount_of = gain_function(gain), discount_function(discount)
    gains = sorted((gain_of(grade) for grade in grades), reverse=True)[:k]
    return math.fsum(gain_value * discount_of(rank) for rank, gain_value in enumerate(gains, start=1))


def ndcg(
    relevance: Grades,
    k: int | None = None,
    *,
    gain: NamedGain | GainTable = "linear",
    discount: NamedDiscount = "log2",
    ideal: Grades | None = None,
    ranks: Sequence[int] | None = None,
) -> float | None:
    """Return DCG@k / ideal DCG@k, or None if the ideal DCG is 0: without any gain, all orders are equally good.

    Järvelin & Kekäläinen 2002 (normalised vectors); Burges et al. 2005. Between 0 and 1 if `ideal`
    includes the grades of the list. ValueError: a grade below 0 in the list or in `ideal`, as in scikit-learn.
    trec_eval counts such grades as 0: pass `non_negative_grades` for the same result.

    By hand: [0, 3, 1] has DCG 3/log2 3 + 1/log2 4 = 2.39279 and ideal 3 + 1/log2 3 = 3.63093; the quotient is 0.65900.

    >>> round(ndcg([0, 3, 1]), 5)
    0.659
    >>> ndcg([3, None], k=2, ideal=[3, 3], discount="reciprocal")  # 3 / (3 + 3/2)
    0.6666666666666666
    >>> ndcg([0, None]) is None
    True
    """
    for grade in (*_judged_grades(relevance), *_judged_grades(ideal or ())):
        if grade < 0:
            raise ValueError(
                f"nDCG: got grade {grade!r}, expected grades of at least 0; "
                "non_negative_grades counts negative grades as 0"
            )
    list_ideal_dcg = ideal_dcg(relevance, k, gain=gain, discount=discount, ideal=ideal)
    list_dcg = dcg(relevance, k, gain=gain, discount=discount, ranks=ranks)
    return list_dcg / list_ideal_dcg if list_ideal_dcg > 0 else None


def non_negative_grades(grades: Grades) -> list[float | None]:
    """Return the grades with each negative grade replaced by 0, as trec_eval reads judgements; None stays None.

    >>> non_negative_grades([2, -1, None])
    [2, 0, None]
    """
    return [None if grade is None else max(grade, 0) for grade in grades]


def mean_ndcg(
    lists: Iterable[Grades],
    k: int | None = None,
    *,
    gain: NamedGain | GainTable = "linear",
    discount: NamedDiscount = "log2",
    ideal: Grades | None = None,
) -> float | None:
    """Return the mean of `ndcg` over the lists with a defined nDCG, or None without such a list.

    `ideal` is shared by all lists (the constant ideal, or several lists for one query). Errors: see `ndcg`.
    Järvelin & Kekäläinen 2002 (averages over queries); other programs count undefined lists as 0 or 1.

    By hand: 1 for [2, 1], nothing for [0, 0], 0.5 for [0, 0, 1] (1/log2 4 of 1): mean 0.75 over two.

    >>> mean_ndcg([[2, 1], [0, 0], [0, 0, 1]])
    0.75
    >>> mean_ndcg([[0, 0]]) is None
    True
    """
    list_values = [ndcg(relevance, k, gain=gain, discount=discount, ideal=ideal) for relevance in lists]
    defined = [value for value in list_values if value is not None]
    return math.fsum(defined) / len(defined) if defined else None


def success_at_k(
    relevance: Grades, k: int | None = None, *, relevant_grade: float, ranks: Sequence[int] | None = None
) -> float:
    """Return 1 if any of the first k items is relevant (grade ≥ `relevant_grade`), else 0.

    Called Success@k by ir_measures; articles call the mean over responses accuracy@k or hit rate. Never undefined.

    >>> success_at_k([1, None, 3], k=3, relevant_grade=3), success_at_k([1, None, 3], k=2, relevant_grade=3)
    (1.0, 0.0)
    """
    return 1.0 if _relevant_ranks(relevance, k, relevant_grade, ranks) else 0.0


def reciprocal_rank(
    relevance: Grades, k: int | None = None, *, relevant_grade: float, ranks: Sequence[int] | None = None
) -> float:
    """Return 1/r for the rank r of the first relevant item, or 0 if no item up to rank k is relevant.

    Voorhees 1999 (reciprocal rank). Never undefined.

    >>> reciprocal_rank([1, None, 3, 4], relevant_grade=3), reciprocal_rank([1, None, 3, 4], k=2, relevant_grade=3)
    (0.3333333333333333, 0.0)
    """
    relevant_ranks = _relevant_ranks(relevance, k, relevant_grade, ranks)
    return 1.0 / min(relevant_ranks) if relevant_ranks else 0.0


def precision_at_k(relevance: Grades, k: int, *, relevant_grade: float, ranks: Sequence[int] | None = None) -> float:
    """Return the precision at k: the number of relevant items at ranks 1 to k, divided by k.

    Manning et al. 2008, section 8.4. The divisor is k, also for a list with fewer items. Never undefined.

    By hand: two of [3, 1, 4] are relevant; 2/5 at k = 5, 1/2 at k = 2.

    >>> precision_at_k([3, 1, 4], k=5, relevant_grade=3), precision_at_k([3, 1, 4], k=2, relevant_grade=3)
    (0.4, 0.5)
    """
    return len(_relevant_ranks(relevance, k, relevant_grade, ranks)) / k


def _relevant_ranks(relevance: Grades, k: int | None, relevant_grade: float, ranks: Sequence[int] | None) -> list[int]:
    if not math.isfinite(relevant_grade):
        raise ValueError(f"relevant_grade is {relevant_grade!r}, expected a finite number")
    return [rank for rank, grade in _judged(relevance, k, ranks) if grade >= relevant_grade]


def _judged(relevance: Grades, k: int | None, ranks: Sequence[int] | None) -> list[tuple[int, float]]:
    """Return (rank, grade) of the judged items at ranks up to k, after checks of the whole list."""
    _check_cutoff(k)
    _judged_grades(relevance)
    item_ranks = range(1, len(relevance) + 1) if ranks is None else ranks
    if len(item_ranks) != len(relevance):
        raise ValueError(f"{len(item_ranks)} ranks for {len(relevance)} grades")
    if ranks is not None and (min(ranks, default=1) < 1 or len(set(ranks)) < len(ranks)):
        raise ValueError(f"ranks are {list(ranks)}, expected distinct positions from 1")
    return [
        (rank, grade)
        for rank, grade in zip(item_ranks, relevance, strict=True)
        if grade is not None and (k is None or rank <= k)
    ]


def _judged_grades(relevance: Grades) -> list[float]:
    grades = [grade for grade in relevance if grade is not None]
    for grade in grades:
        if not math.isfinite(grade):
            raise ValueError(f"relevance has {grade!r}, expected finite grades (None for an unjudged item)")
    return grades


def _check_cutoff(k: int | None) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k is {k!r}, expected at least 1")
