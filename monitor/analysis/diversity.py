"""Do the items of one answer say different things? A re-ranking for it, and two measures of it.

An item carries topics (any names: subtopics, intents, chapters). In `alpha_ndcg` a topic counts for less each time
that an item above has it already; who wants only good items to count gives only those topics.

References: Carbonell & Goldstein, "The use of MMR, diversity-based reranking for reordering documents and producing
summaries", SIGIR 1998. Clarke et al., "Novelty and diversity in information retrieval evaluation", SIGIR 2008. Ziegler
et al., "Improving recommendation lists through topic diversification", WWW 2005. Jaccard, "Étude comparative de la
distribution florale dans une portion des Alpes et des Jura", 1901.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

from monitor.metrics import discount_function

Topics: TypeAlias = Collection[str]


def mmr(
    relevance: Sequence[float], similarity: Callable[[int, int], float], *, weight: float, k: int | None = None
) -> list[int]:
    """Return the order of the first k items (all, if None) by maximal marginal relevance, as indices.

    Next comes the item with the largest weight·relevance(i) − (1 − weight)·max over those above of similarity(i, j),
    where the maximum over none is 0 (Carbonell & Goldstein 1998); equals stay in the given order. weight 1 sorts by
    relevance, 0 looks at nothing but novelty. n items cost at most n·k calls of `similarity`. ValueError: a weight
    outside [0, 1], a relevance or a similarity that is not finite, k below 1.

    By hand, with two near copies in front: 0.5·0.8 − 0.5·0.9 = −0.05 for the copy, 0.5·0.5 − 0 = 0.25 for the other.

    >>> alike = {(0, 1): 0.9, (0, 2): 0.0, (1, 2): 0.0}
    >>> mmr([0.9, 0.8, 0.5], lambda i, j: alike[min(i, j), max(i, j)], weight=0.5)
    [0, 2, 1]
    """
    if not 0 <= weight <= 1:
        raise ValueError(f"weight is {weight!r}, expected a number from 0 to 1")
    _check_cut(k)
    for each in relevance:
        _finite("relevance", each)
    nearest = [0.0] * len(relevance)
    rest, order = list(range(len(relevance))), list[int]()
    while rest and (k is None or len(order) < k):
        best = max(rest, key=lambda i: weight * relevance[i] - (1 - weight) * nearest[i])
        rest.remove(best)
        for i in rest:
            near = _finite("similarity", similarity(i, best))
            nearest[i] = max(nearest[i], near) if order else near
        order.append(best)
    return order


def alpha_dcg(shown: Sequence[Topics], k: int | None = None, *, alpha: float = 0.5) -> float:
    """Return Σ_{r ≤ k} Σ_{topics of item r} (1 − alpha)^(items above that have the topic) / log2(r + 1).

    Clarke et al. 2008. `shown` holds the topics of each item in shown order; an item without any
    gains nothing and keeps its rank. alpha 0 is DCG with the number of topics as the gain; alpha 1 pays a topic once.
    ValueError: an alpha outside [0, 1], k below 1.

    By hand: the second item repeats a: 1/log2 2 + 0.5/log2 3 + 1/log2 4 = 1.8155.

    >>> round(alpha_dcg(["a", "a", "b"]), 4)
    1.8155
    """
    _check(alpha, k)
    discount, above, value = discount_function("log2"), Counter[str](), []
    for rank, topics in enumerate(shown[:k], start=1):
        value.append(_gain(topics, above, alpha) * discount(rank))
        above.update(set(topics))
    return math.fsum(value)


def alpha_ndcg(
    shown: Sequence[str], topics: Mapping[str, Topics], k: int | None = None, *, alpha: float = 0.5
) -> float | None:
    """Return α-DCG@k divided by that of an ideal order of all the items in `topics`; None where that is 0.

    `shown` are the items in shown order, `topics` the topics of every item judged for this query. The ideal takes the
    item with the largest gain next, among equals the last by name, as TREC's ndeval does (Clarke et al. 2008: the best
    order of all is too expensive to find). So it may miss the best one; an answer that does not has more than 1.

    By hand: ideal is x, z, y with 2 + 1/log2 3 + 0.5/log2 4 = 2.8809; shown is y, x with 1 + 1.5/log2 3 = 1.9464.

    >>> round(alpha_ndcg(["y", "x"], {"x": ["a", "b"], "y": ["a"], "z": ["c"]}, k=3), 4)
    0.6756
    """
    best = alpha_dcg([topics[item] for item in ideal_order(topics, k, alpha=alpha)], k, alpha=alpha)
    reached = alpha_dcg([topics.get(item, ()) for item in shown], k, alpha=alpha)
    return reached / best if best > 0 else None


def ideal_order(topics: Mapping[str, Topics], k: int | None = None, *, alpha: float = 0.5) -> list[str]:
    """Return the first k items of the ideal order of `alpha_ndcg`."""
    _check(alpha, k)
    rest, above, order = sorted(topics, reverse=True), Counter[str](), list[str]()
    while rest and (k is None or len(order) < k):
        best = max(rest, key=lambda item: _gain(topics[item], above, alpha))
        rest.remove(best)
        order.append(best)
        above.update(set(topics[best]))
    return order


def jaccard(one: Topics, other: Topics) -> float | None:
    """Return the share of all topics of both that both have (Jaccard 1901); None where neither has any.

    >>> jaccard(["a", "b"], ["b", "c"])
    0.3333333333333333
    """
    union = {*one, *other}
    return len({*one} & {*other}) / len(union) if union else None


def intra_list_similarity(shown: Sequence[Topics]) -> float | None:
    """Return the mean similarity (`jaccard`) of two items of one list; None with fewer than two items that have topics.

    Ziegler et al. 2005, where it is the sum over all pairs; the mean does not depend on the length. Items
    without topics are left out: nothing is known of them. It does not depend on the order.

    By hand: of three pairs one is the same, two have nothing in common.

    >>> intra_list_similarity(["a", "a", "b"])
    0.3333333333333333
    """
    known = [topics for topics in shown if topics]
    values = [value for one, other in combinations(known, 2) if (value := jaccard(one, other)) is not None]
    return math.fsum(values) / len(values) if values else None


def _gain(topics: Topics, above: Counter[str], alpha: float) -> float:
    return math.fsum((1 - alpha) ** above[topic] for topic in set(topics))


def _check(alpha: float, k: int | None) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha!r}, expected a number from 0 to 1")
    _check_cut(k)


def _check_cut(k: int | None) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k is {k!r}, expected at least 1")


def _finite(name: str, value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
    return value
