"""Everything about an experiment's items at once, and how varied its answers are: pure functions of its responses."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from monitor.analysis.diversity import Topics, alpha_ndcg, intra_list_similarity, jaccard, mmr
from monitor.analysis.item_scores import ItemScore
from monitor.analysis.top_items import Shown
from monitor.analysis.triage import DAY_MS, BadAnswer, Entry, daily, first_to_look_at

EntryKind: TypeAlias = Literal["query", "category", "item"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One response, and what students made of it."""

    variant: str
    at_ms: int
    student: str
    """Of a response without a student, something that no other response has."""
    query_id: str | None
    category: str | None
    items: tuple[str, ...]
    ratings: tuple[tuple[str, float], ...]
    """(item of these, grade): every student's grade of an item counts once per response."""
    review: float | None
    """The score of the latest reaction of the kind `reviewed`."""

    def is_bad(self, relevant_grade: float) -> bool:
        """Return whether there is no item in it, or graded ones of which none is relevant."""
        grades = [grade for _, grade in self.ratings]
        return not self.items or (bool(grades) and max(grades) < relevant_grade)

    def entries(self, kind: EntryKind) -> Sequence[str]:
        """Return which entries it would be a bad answer of."""
        if kind == "item":
            return self.items
        name = self.query_id if kind == "query" else self.category
        return () if name is None else (name,)


@dataclass(frozen=True, slots=True)
class Overview:
    """An experiment's items."""

    shown: Mapping[str, Shown]
    """By variant."""
    scores: tuple[tuple[str, ItemScore], ...]
    """Rated items, by falling bound of the mean grade, then by name."""
    unrated: int
    """Items that were shown, and that nobody rated."""
    entries: tuple[Entry, ...]
    """What to look at first, on the day of the newest response."""

    @classmethod
    def of(
        cls,
        given: Iterable[Answer],
        variants: Iterable[str],
        *,
        relevant_grade: float,
        grades: Sequence[float],
        kind: EntryKind,
    ) -> Overview:
        """Return the overview; `grades` are those of the prior, `kind` says what the entries are."""
        answers = list(given)
        counts: dict[str, Counter[float]] = defaultdict(Counter)
        for answer in answers:
            for item, grade in answer.ratings:
                counts[item][grade] += 1
        scored = {
            item: ItemScore.of(each, relevant_grade=relevant_grade, grades=grades) for item, each in counts.items()
        }
        bad = daily(
            BadAnswer(entry, answer.at_ms, answer.review)
            for answer in answers
            if answer.is_bad(relevant_grade)
            for entry in answer.entries(kind)
        )
        today = max((answer.at_ms for answer in answers), default=0) // DAY_MS
        return cls(
            {name: Shown.of(answer.items for answer in answers if answer.variant == name) for name in variants},
            tuple(sorted(scored.items(), key=lambda each: (-(each[1].mean_lower or 0), each[0]))),
            len({item for answer in answers for item in answer.items}.difference(scored)),
            first_to_look_at(bad, today),
        )

    def to_json(self, catalogue: Collection[str], n: int) -> dict[str, object]:
        """Return everything as one JSON object, with the n items that each variant shows most often."""
        return {
            "variants": {
                name: {
                    "responses": shown.responses,
                    "empty_share": shown.empty_share,
                    "items": len(shown.counts),
                    "coverage": shown.coverage(catalogue),
                    "most_shown": asdict(shown.leaders(n)),
                }
                for name, shown in self.shown.items()
            },
            "items": [{"item": item, **asdict(score)} for item, score in self.scores],
            "unrated": self.unrated,
            "first_to_look_at": [entry.to_json() for entry in self.entries],
        }


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


def categories(given: Iterable[Answer], since_ms: int) -> tuple[Counter[str], Counter[str]]:
    """Return the students by category since then, and before: each once per side, with the first question there."""
    first: tuple[dict[str, tuple[int, str]], dict[str, tuple[int, str]]] = ({}, {})
    for answer in given:
        if answer.category is not None:
            side = first[answer.at_ms < since_ms]
            new = answer.at_ms, answer.category
            side[answer.student] = min(new, side.get(answer.student, new))
    now, before = (Counter(category for _, category in side.values()) for side in first)
    return now, before
