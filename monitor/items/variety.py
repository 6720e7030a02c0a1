"""How varied the answers of each variant are, and what re-ranking them for variety would change."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from monitor.items.diversity import Topics, alpha_ndcg, intra_list_similarity, jaccard, mmr
from monitor.items.overview import Answer


@dataclass(frozen=True, slots=True)
class Variety:
    """One variant's answers whose items carry topics; None where no answer has a value."""

    answers: int
    """Answers of which at least one item has topics."""
    alpha_ndcg: float | None
    """Mean of α-nDCG@k with α = 0.5: the ideal is the best order of the answer's own items."""
    similarity: float | None
    """Mean similarity of two items of an answer."""
    reranked_alpha_ndcg: float | None
    """The first after maximal marginal relevance."""
    moved: float | None
    """Share of these answers whose first k items would be others, or in another order."""

    @classmethod
    def of(cls, given: Iterable[Answer], topics: Mapping[str, Topics], *, k: int, weight: float) -> Variety:
        """Return the means over answers; the relevance of the item at rank r is 1/r, as the bot has ranked it.

        `weight` is that of relevance against novelty: 1 leaves every answer as it is (Carbonell & Goldstein 1998).
        """
        shown = [answer.items for answer in given if any(topics.get(item) for item in answer.items)]
        before, after, moved = list[float | None](), list[float | None](), 0
        for items in shown:
            own = {item: topics.get(item, ()) for item in items}
            again = [items[at] for at in _reranked(items, own, weight, k)]
            before.append(alpha_ndcg(items, own, k))
            after.append(alpha_ndcg(again, own, k))
            moved += again != [*items[:k]]
        similar = [intra_list_similarity([topics.get(item, ()) for item in items]) for items in shown]
        return cls(len(shown), _mean(before), _mean(similar), _mean(after), moved / len(shown) if shown else None)


def _reranked(items: Sequence[str], topics: Mapping[str, Topics], weight: float, k: int) -> list[int]:
    relevance = [1 / rank for rank in range(1, len(items) + 1)]
    return mmr(relevance, lambda i, j: jaccard(topics[items[i]], topics[items[j]]) or 0.0, weight=weight, k=k)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None
