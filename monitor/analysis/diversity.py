"""Diversity of a list of items: re-ranking by maximal marginal relevance, α-nDCG and intra-list similarity.

An item has topics (any names: subtopics, intents, chapters). In `alpha_ndcg` the gain of a topic falls with each item
above that has the same topic. To count relevant items only, leave out the topics of all other items.

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
"""The topics of one item."""


def rerank_by_mmr(
    relevance: Sequence[float],
    similarity: Callable[[int, int], float],
    *,
    relevance_weight: float,
    k: int | None = None,
) -> list[int]:
    """Return the indices of the first k items (all if k is None) in the order of maximal marginal relevance.

    The next item maximizes w·relevance(i) − (1 − w)·max over the items above of similarity(i, j), with w =
    `relevance_weight`; the maximum over no items is 0 (Carbonell & Goldstein 1998). Items with equal values keep their
    order. w = 1 sorts by relevance, w = 0 by novelty alone. n items cost at most n·k calls of `similarity`.
    ValueError: a weight outside [0, 1], a relevance or a similarity that is not finite, k below 1.

    By hand, with two near copies on top: 0.5·0.8 − 0.5·0.9 = −0.05 for the copy, 0.5·0.5 − 0 = 0.25 for the last item.

    >>> similarities = {(0, 1): 0.9, (0, 2): 0.0, (1, 2): 0.0}
    >>> rerank_by_mmr([0.9, 0.8, 0.5], lambda i, j: similarities[min(i, j), max(i, j)], relevance_weight=0.5)
    [0, 2, 1]
    """
    if not 0 <= relevance_weight <= 1:
        raise ValueError(f"weight is {relevance_weight!r}, expected a number from 0 to 1")
    _check_cut(k)
    for item_relevance in relevance:
        _check_finite("relevance", item_relevance)
    max_similarity = [0.0] * len(relevance)
    candidates, order = list(range(len(relevance))), list[int]()
    while candidates and (k is None or len(order) < k):
        best = max(
            candidates, key=lambda i: relevance_weight * relevance[i] - (1 - relevance_weight) * max_similarity[i]
        )
        candidates.remove(best)
        for i in candidates:
            pair_similarity = _check_finite("similarity", similarity(i, best))
            # The first similarity replaces the 0 of an empty list above, also where it is negative.
            max_similarity[i] = max(max_similarity[i], pair_similarity) if order else pair_similarity
        order.append(best)
    return order


def alpha_dcg(ranked_topics: Sequence[Topics], k: int | None = None, *, alpha: float = 0.5) -> float:
    """Return Σ_{r ≤ k} Σ_{topics of item r} (1 − alpha)^(items above that have the topic) / log2(r + 1).

    Clarke et al. 2008. `ranked_topics` are the topics of each item in shown order; an item without topics has gain 0
    and keeps its rank. alpha 0 is DCG with the number of topics as the gain; alpha 1 counts each topic once.
    ValueError: an alpha outside [0, 1], k below 1.

    By hand: the second item repeats a: 1/log2 2 + 0.5/log2 3 + 1/log2 4 = 1.8155.

    >>> round(alpha_dcg(["a", "a", "b"]), 4)
    1.8155
    """
    _check_arguments(alpha, k)
    discount, topic_counts, discounted_gains = discount_function("log2"), Counter[str](), []
    for rank, topics in enumerate(ranked_topics[:k], start=1):
        discounted_gains.append(_gain(topics, topic_counts, alpha) * discount(rank))
        topic_counts.update(set(topics))
    return math.fsum(discounted_gains)


def alpha_ndcg(
    ranked_items: Sequence[str], topics: Mapping[str, Topics], k: int | None = None, *, alpha: float = 0.5
) -> float | None:
    """Return α-DCG@k of the items in shown order, divided by the α-DCG@k of an ideal order; None if the latter is 0.

    `topics` are the topics of every item judged for this query, and the ideal order is over all these items. The ideal
    order is built greedily: the item with the largest gain is next, of equals the last by name, as in TREC's ndeval
    (Clarke et al. 2008: the best order is too expensive to find). A list that is better than the greedy order has a
    value above 1.

    By hand: the ideal x, z, y has 2 + 1/log2 3 + 0.5/log2 4 = 2.8809; the list y, x has 1 + 1.5/log2 3 = 1.9464.

    >>> round(alpha_ndcg(["y", "x"], {"x": ["a", "b"], "y": ["a"], "z": ["c"]}, k=3), 4)
    0.6756
    """
    ideal_topics = [topics[item] for item in ideal_alpha_ndcg_order(topics, k, alpha=alpha)]
    ideal_dcg = alpha_dcg(ideal_topics, k, alpha=alpha)
    list_dcg = alpha_dcg([topics.get(item, ()) for item in ranked_items], k, alpha=alpha)
    return list_dcg / ideal_dcg if ideal_dcg > 0 else None


def ideal_alpha_ndcg_order(topics: Mapping[str, Topics], k: int | None = None, *, alpha: float = 0.5) -> list[str]:
    """Return the first k items of the greedy ideal order of `alpha_ndcg`."""
    _check_arguments(alpha, k)
    candidates, topic_counts, order = sorted(topics, reverse=True), Counter[str](), list[str]()
    while candidates and (k is None or len(order) < k):
        best = max(candidates, key=lambda item: _gain(topics[item], topic_counts, alpha))
        candidates.remove(best)
        order.append(best)
        topic_counts.update(set(topics[best]))
    return order


def jaccard_similarity(first_topics: Topics, second_topics: Topics) -> float | None:
    """Return the number of common topics divided by the number of all topics (Jaccard 1901); None without topics.

    >>> jaccard_similarity(["a", "b"], ["b", "c"])
    0.3333333333333333
    """
    union = {*first_topics, *second_topics}
    return len({*first_topics} & {*second_topics}) / len(union) if union else None


def intra_list_similarity(topics_by_item: Sequence[Topics]) -> float | None:
    """Return the mean `jaccard_similarity` over pairs of items; None with fewer than two items that have topics.

    Ziegler et al. 2005 define the sum over all pairs; the mean does not depend on the length of the list. Items without
    topics are left out, because their similarity is undefined. The result does not depend on the order of the items.

    By hand: of three pairs one has similarity 1, two have similarity 0.

    >>> intra_list_similarity(["a", "a", "b"])
    0.3333333333333333
    """
    pairs = combinations([topics for topics in topics_by_item if topics], 2)
    similarities = [similarity for pair in pairs if (similarity := jaccard_similarity(*pair)) is not None]
    return math.fsum(similarities) / len(similarities) if similarities else None


def _gain(topics: Topics, topic_counts: Counter[str], alpha: float) -> float:
    """Return the gain of an item below items that have each topic `topic_counts` times."""
    return math.fsum((1 - alpha) ** topic_counts[topic] for topic in set(topics))


def _check_arguments(alpha: float, k: int | None) -> None:
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha is {alpha!r}, expected a number from 0 to 1")
    _check_cut(k)


def _check_cut(k: int | None) -> None:
    if k is not None and k < 1:
        raise ValueError(f"k is {k!r}, expected at least 1")


def _check_finite(name: str, value: float) -> float:
    """Return the value; ValueError: a value that is not finite."""
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value!r}, expected a finite number")
    return value
