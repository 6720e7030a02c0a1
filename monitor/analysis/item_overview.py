"""Statistics of items and of item lists, computed from single responses: the overview of the command `items`."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Literal, TypeAlias

from monitor.analysis.diversity import Topics, alpha_ndcg, intra_list_similarity, jaccard_similarity, rerank_by_mmr
from monitor.analysis.item_scores import ItemScore
from monitor.analysis.shown_items import ShownItems
from monitor.analysis.triage import (
    REVIEW_DAYS,
    BadAnswer,
    ReviewRanking,
    TriageEntry,
    count_bad_answers_by_day,
    rank_for_review,
)
from monitor.days import DayCalendar

TriageKind: TypeAlias = Literal["query", "category", "item"]
"""Type of the entries of a review list."""


@dataclass(frozen=True, slots=True)
class ResponseWithFeedback:
    """A response with the students' ratings of the items and the analysts' review of the response."""

    variant: str
    timestamp_ms: int
    student_id: str
    """For a response that names no student, an id that no other response has."""
    query_id: str | None
    category: str | None
    items: tuple[str, ...]
    ratings: tuple[tuple[str, float], ...]
    """(item, grade): each student's grade of an item counts once per response."""
    review_score: float | None
    """Score of the latest reaction of the kind `reviewed`; None without a review."""

    def is_bad(self, relevant_grade: float) -> bool:
        """Return whether the response shows no item, or has ratings that are all below `relevant_grade`."""
        grades = [grade for _, grade in self.ratings]
        return not self.items or (bool(grades) and max(grades) < relevant_grade)

    def triage_names(self, kind: TriageKind) -> Sequence[str]:
        """Return the names of the entries of the review list that count the response."""
        if kind == "item":
            return self.items
        name = self.query_id if kind == "query" else self.category
        return () if name is None else (name,)


@dataclass(frozen=True, slots=True)
class ItemOverview:
    """Shown items, item scores and the review list of an experiment."""

    shown_items: Mapping[str, ShownItems]
    """Variant → counts of shown items."""
    scores: tuple[tuple[str, ItemScore], ...]
    """(item, score) of rated items, by falling lower bound of the mean grade, then by id."""
    unrated_count: int
    """Number of shown items without a rating."""
    triage_entries: tuple[TriageEntry, ...]
    """The review list of the day of the newest response, highest priority first."""

    @classmethod
    def of(
        cls,
        responses: Iterable[ResponseWithFeedback],
        variants: Iterable[str],
        *,
        relevant_grade: float,
        prior_grades: Sequence[float],
        triage_kind: TriageKind,
        calendar: DayCalendar,
        ranking: ReviewRanking = "share",
    ) -> ItemOverview:
        """Return the overview of some responses; `prior_grades` are the grades of the scores' prior."""
        responses = list(responses)
        rating_counts: dict[str, Counter[float]] = defaultdict(Counter)
        for response in responses:
            for item, grade in response.ratings:
                rating_counts[item][grade] += 1
        scores = {
            item: ItemScore.of(grade_counts, relevant_grade=relevant_grade, prior_grades=prior_grades)
            for item, grade_counts in rating_counts.items()
        }
        bad_answers = count_bad_answers_by_day(
            (
                BadAnswer(name, response.timestamp_ms, response.review_score)
                for response in responses
                if response.is_bad(relevant_grade)
                for name in response.triage_names(triage_kind)
            ),
            calendar,
        )
        today = calendar.day_number(max((response.timestamp_ms for response in responses), default=0))
        response_counts = Counter(
            name
            for response in responses
            if calendar.day_number(response.timestamp_ms) > today - REVIEW_DAYS
            for name in response.triage_names(triage_kind)
        )
        return cls(
            {
                name: ShownItems.of(response.items for response in responses if response.variant == name)
                for name in variants
            },
            tuple(sorted(scores.items(), key=lambda scored: (-(scored[1].mean_lower or 0), scored[0]))),
            len({item for response in responses for item in response.items}.difference(scores)),
            rank_for_review(bad_answers, response_counts, today, ranking=ranking),
        )

    def to_json(self, catalogue: Collection[str], n: int) -> dict[str, object]:
        """Return the overview as a JSON object, with the n items that each variant shows most often."""
        return {
            "variants": {
                name: {
                    "responses": shown_items.responses,
                    "empty_share": shown_items.empty_share,
                    "items": len(shown_items.counts),
                    "coverage": shown_items.coverage(catalogue),
                    "most_shown": shown_items.top_items(n).to_json(),
                }
                for name, shown_items in self.shown_items.items()
            },
            "items": [{"item": item, **asdict(score)} for item, score in self.scores],
            "unrated": self.unrated_count,
            "first_to_look_at": [entry.to_json() for entry in self.triage_entries],
        }


@dataclass(frozen=True, slots=True)
class IntraListDiversity:
    """Mean diversity of a variant's item lists, before and after re-ranking; None if no list has a value.

    The names of the fields are JSON keys.
    """

    answers: int
    """Responses with at least one item that has topics; the means are over these responses."""
    alpha_ndcg: float | None
    """Mean α-nDCG@k with α = 0.5, relative to the ideal order of the items of the same response."""
    similarity: float | None
    """Mean similarity of two items of a response."""
    reranked_alpha_ndcg: float | None
    """Mean α-nDCG@k after re-ranking by maximal marginal relevance."""
    moved: float | None
    """Share of these responses in which the re-ranking changes the first k items or their order."""

    @classmethod
    def of(
        cls, responses: Iterable[ResponseWithFeedback], topics: Mapping[str, Topics], *, k: int, relevance_weight: float
    ) -> IntraListDiversity:
        """Return the means over the responses; the re-ranking takes 1/r as the relevance of the item at rank r.

        `relevance_weight` is the weight of relevance against novelty: 1 changes no order (Carbonell & Goldstein
        1998).
        """
        lists = [response.items for response in responses if any(topics.get(item) for item in response.items)]
        values, reranked_values, changed_lists = list[float | None](), list[float | None](), 0
        for items in lists:
            topics_of_list = {item: topics.get(item, ()) for item in items}
            reranked_items = _rerank(items, topics_of_list, relevance_weight, k)
            values.append(alpha_ndcg(items, topics_of_list, k))
            reranked_values.append(alpha_ndcg(reranked_items, topics_of_list, k))
            changed_lists += reranked_items != [*items[:k]]
        similarities = [intra_list_similarity([topics.get(item, ()) for item in items]) for items in lists]
        return cls(
            answers=len(lists),
            alpha_ndcg=_mean(values),
            similarity=_mean(similarities),
            reranked_alpha_ndcg=_mean(reranked_values),
            moved=changed_lists / len(lists) if lists else None,
        )


def _rerank(items: Sequence[str], topics: Mapping[str, Topics], relevance_weight: float, k: int) -> list[str]:
    """Return the first k items by maximal marginal relevance, with Jaccard similarity of topics."""
    relevance = [1 / rank for rank in range(1, len(items) + 1)]
    order = rerank_by_mmr(
        relevance,
        lambda i, j: jaccard_similarity(topics[items[i]], topics[items[j]]) or 0.0,
        relevance_weight=relevance_weight,
        k=k,
    )
    return [items[index] for index in order]


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that are not None; None without such a value."""
    defined_values = [value for value in values if value is not None]
    return math.fsum(defined_values) / len(defined_values) if defined_values else None


def count_students_by_category(
    responses: Iterable[ResponseWithFeedback], since_ms: int
) -> tuple[Counter[str], Counter[str]]:
    """Return category → students from `since_ms` on, and category → students before.

    A student counts once per period, in the category of the student's first response in that period.
    """
    first_responses: tuple[dict[str, tuple[int, str]], dict[str, tuple[int, str]]] = ({}, {})
    for response in responses:
        if response.category is not None:
            period = first_responses[response.timestamp_ms < since_ms]
            candidate = response.timestamp_ms, response.category
            period[response.student_id] = min(candidate, period.get(response.student_id, candidate))
    recent, earlier = (Counter(category for _, category in period.values()) for period in first_responses)
    return recent, earlier
