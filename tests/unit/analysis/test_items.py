"""Item statistics: published examples, other implementations' values, undefined cases, independence of order."""

from __future__ import annotations

import doctest
import importlib
import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, dirichlet, norm

from monitor.analysis.diversity import (
    alpha_dcg,
    alpha_ndcg,
    ideal_alpha_ndcg_order,
    intra_list_similarity,
    jaccard_similarity,
    rerank_by_mmr,
)
from monitor.analysis.item_scores import ItemScore, mean_grade, mean_grade_lower_bound, wilson_lower_bound
from monitor.analysis.shown_items import ShownItems, top_k
from monitor.analysis.triage import (
    RECIPROCAL_DECAY,
    BadAnswer,
    count_bad_answers_by_day,
    decayed_history,
    priority,
    rank_for_review,
)
from monitor.clock import DAY_MS
from monitor.config import DecaySpec, ItemSettings
from monitor.days import day_calendar
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import ITEM_HASH_BYTES, IdHasher
from monitor.engine.item_counts import ItemCounter
from monitor.errors import UsageError
from monitor.export.item_tables import rating_scale, short_id_text
from monitor.metrics.item_layout import bad_answer_count
from monitor.state import StoreKeys
from tests.support.streams import EXPERIMENT

TOLERANCE = 1e-9
STARS = (1, 2, 3, 4, 5)
HALVED_DAILY = DecaySpec("24h", half_life_ms=DAY_MS)

Vector = dict[str, Any]


@pytest.mark.parametrize("module", ["item_scores", "triage", "shown_items", "diversity", "snapshots", "summary"])
def test_the_examples_in_the_docstrings_hold(module: str) -> None:
    """The examples were computed by hand."""
    results = doctest.testmod(importlib.import_module(f"monitor.analysis.{module}"))
    assert results.attempted > 0
    assert results.failed == 0


@pytest.fixture(name="literature")
def _literature(shared: Path) -> list[Vector]:
    vectors: list[Vector] = json.loads((shared / "vectors" / "seed_vectors.json").read_text("utf-8"))["vectors"]
    return vectors


def _decay_weight(vector: Vector) -> float:
    decay = HALVED_DAILY if vector["options"]["kind"] == "exponential" else RECIPROCAL_DECAY
    return decayed_history([(vector["inputs"]["age_days"], 1.0)], decay)


def _priority_with_history(vector: Vector) -> float:
    priorities = vector["inputs"]["history_scores_by_age_days_from_1"]
    return priority(vector["inputs"]["count"], decayed_history(enumerate(priorities, start=1)))


def _compare_wilson_bounds(vector: Vector) -> float:
    worse, better = (wilson_lower_bound(*vector["inputs"][side]) for side in "ab")
    assert worse is not None
    assert better is not None
    return float(worse < better)


LITERATURE: dict[str, Callable[[Vector], float | None]] = {
    "wilson_lower": lambda vector: wilson_lower_bound(
        vector["inputs"]["pos"], vector["inputs"]["n"], vector["options"]["confidence"]
    ),
    "wilson_compare": _compare_wilson_bounds,
    "bayes_star_lower": lambda vector: mean_grade_lower_bound(
        dict(enumerate(vector["inputs"]["counts"], start=1)), STARS, vector["options"]["confidence"]
    ),
    "avg_rating": lambda vector: mean_grade(dict(enumerate(vector["inputs"]["counts"], start=1))),
    "sigmoid_frequency": lambda vector: priority(vector["inputs"]["count"]),
    "sigmoid_with_history": _priority_with_history,
    "decay_weight": _decay_weight,
}
UNRATED = {"s004-wilson-0-0", "s004-bayes-0-0-0-0-0"}
"""Published programs return 0, which ranks unrated items below all rated items; here the score is None."""


class TestLiterature:
    """Published worked examples."""

    def test_published_values_are_reproduced(self, literature: list[Vector]) -> None:
        """Up to 1e-9."""
        vectors = [vector for vector in literature if vector["metric"] in LITERATURE and vector["id"] not in UNRATED]
        assert len(vectors) == 41
        for vector in vectors:
            value = LITERATURE[vector["metric"]](vector)
            assert value == pytest.approx(vector["expected"], rel=0, abs=TOLERANCE), vector["id"]

    def test_unrated_items_have_none_where_publications_have_0(self, literature: list[Vector]) -> None:
        """An item without ratings has no bound."""
        vectors = [vector for vector in literature if vector["id"] in UNRATED]
        assert {vector["id"] for vector in vectors} == UNRATED
        assert [LITERATURE[vector["metric"]](vector) for vector in vectors] == [None, None]


grade_counts = st.dictionaries(st.sampled_from([1, 2, 2.5, 3, 4, 4.75, 5]), st.integers(0, 10_000))
confidence_levels = st.floats(0.5, 0.999)


class TestItemScores:
    """Lower bounds of ratings."""

    @given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), confidence_levels)
    def test_wilson_bounds_equal_those_of_scipy(self, counts: tuple[int, int], confidence: float) -> None:
        """The lower end of the two-sided interval, without correction for continuity."""
        expected = binomtest(*counts).proportion_ci(confidence, method="wilson").low
        assert wilson_lower_bound(*counts, confidence) == pytest.approx(expected, abs=TOLERANCE)

    @given(st.lists(st.integers(0, 10**6), min_size=5, max_size=5).filter(any), confidence_levels)
    def test_the_bound_of_the_mean_grade_is_that_of_a_dirichlet_posterior(
        self, counts: list[int], confidence: float
    ) -> None:
        """Mean and variance of the mean grade are scipy's for a Dirichlet posterior."""
        posterior = [count + 1 for count in counts]
        mean = STARS @ dirichlet.mean(posterior)
        variance = STARS @ dirichlet.cov(posterior) @ STARS
        expected = mean - norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
        bound = mean_grade_lower_bound(dict(zip(STARS, counts, strict=True)), STARS, confidence)
        assert bound == pytest.approx(expected, abs=1e-8)

    @given(grade_counts.filter(lambda counts: any(counts.values())), st.integers(2, 50))
    def test_more_ratings_with_the_same_shares_bring_the_bound_nearer(
        self, counts: dict[float, int], times: int
    ) -> None:
        """A bound lies below the share, and rises with the number of ratings."""
        single_score, multiple_score = (
            ItemScore.of(
                {grade: count * factor for grade, count in counts.items()}, relevant_grade=4, prior_grades=STARS
            )
            for factor in (1, times)
        )
        assert multiple_score.ratings == times * single_score.ratings
        assert multiple_score.good_share == single_score.good_share
        for score in (single_score, multiple_score):
            assert score.good_lower is not None
            assert score.good_share is not None
            assert 0 <= score.good_lower <= score.good_share
        assert single_score.good_lower is not None
        assert multiple_score.good_lower is not None
        assert multiple_score.good_lower >= single_score.good_lower

    @given(st.lists(st.sampled_from([1, 2.5, 3.1, 4.75, 5]), min_size=1), st.randoms(use_true_random=False))
    def test_scores_do_not_depend_on_the_order_of_ratings(
        self, rated_grades: list[float], order: random.Random
    ) -> None:
        """Not in any digit, even for grades that are not binary fractions."""

        def score(sequence: Sequence[float]) -> ItemScore:
            counts: dict[float, int] = {}
            for grade in sequence:
                counts[grade] = counts.get(grade, 0) + 1
            return ItemScore.of(counts, relevant_grade=3, prior_grades=STARS)

        assert score(order.sample(rated_grades, len(rated_grades))) == score(rated_grades)

    def test_an_unrated_item_has_no_score(self) -> None:
        """Without ratings all bounds are None, so an unrated item is not the worst item."""
        score = ItemScore.of({4: 0}, relevant_grade=3, prior_grades=STARS)
        assert score == ItemScore(0, None, None, None, None)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: wilson_lower_bound(3, 2), "3 good ratings of 2, expected"),
            (lambda: wilson_lower_bound(-1, 2), "-1 good ratings of 2, expected"),
            (lambda: wilson_lower_bound(1, 2, 1.0), "confidence is 1.0, expected a level between 0 and 1"),
            (lambda: mean_grade_lower_bound({3: -1}, STARS), "-1 ratings of 3, expected at least 0"),
            (lambda: mean_grade_lower_bound({math.nan: 1}, STARS), "a grade is nan, expected a finite number"),
            (
                lambda: mean_grade_lower_bound({3: 1}, [1, 1]),
                r"grades are \[1, 1\], expected at least 2 different ones",
            ),
        ],
    )
    def test_invalid_ratings_are_rejected(self, call: Callable[[], object], message: str) -> None:
        """Each names the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


counts_by_day = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.integers(80, 101), st.integers(0, 40), max_size=8), max_size=4
)


class TestTriage:
    """The review list of entries with bad answers."""

    @given(st.floats(0, 1e6), st.floats(0, 1e6))
    def test_a_priority_is_strictly_between_0_and_1(self, count: float, history: float) -> None:
        """For any number of bad answers."""
        assert 0 < priority(count, history) < 1
        assert 0 < priority(0, shift=1e6) < 1

    @given(counts_by_day, st.sampled_from("abcd"), st.integers(80, 100))
    def test_another_bad_answer_never_lowers_the_urgency_of_an_entry(
        self, bad_answers: dict[str, dict[int, int]], name: str, day: int
    ) -> None:
        """Whether the bad answer is of today or of an earlier day."""

        def urgency(counts: dict[str, dict[int, int]]) -> float:
            entries = rank_for_review(counts, {}, 100)
            return next((entry.urgency for entry in entries if entry.name == name), -math.inf)

        counts_by_day = bad_answers.get(name, {})
        raised_counts = {**bad_answers, name: {**counts_by_day, day: counts_by_day.get(day, 0) + 1}}
        assert urgency(raised_counts) >= urgency(bad_answers)

    def test_entries_without_a_day_that_counts_are_absent(self) -> None:
        """From ten days on the reciprocal weight is 0, and days after today do not count."""
        entries = rank_for_review(
            {"old": {90: 50}, "tomorrow": {101: 50}, "nine days": {91: 50}, "none": {100: 0}}, {}, 100
        )
        assert [(entry.name, entry.bad_answers_today) for entry in entries] == [("nine days", 0)]
        assert entries[0].history == pytest.approx(priority(50) / 10)

    def test_the_published_ranking_is_by_urgency_then_by_name(self) -> None:
        """Also entries whose priorities are the same number; the number of responses has no influence."""
        counts = {"b": {100: 3}, "a": {100: 3}, "more": {100: 900}, "many": {100: 800}}
        entries = rank_for_review(counts, {"more": 10**6, "a": 10**6}, 100, ranking="urgency")
        assert [entry.name for entry in entries] == ["more", "many", "a", "b"]
        assert entries[0].priority == entries[1].priority
        assert entries[0].to_json() == {
            "name": "more", "today": 900, "bad": 900, "responses": 10**6, "bad_share": 0.0009, "history": 0.0,
            "urgency": 626.0, "priority": entries[0].priority,
        }  # fmt: skip

    def test_large_categories_with_different_shares_have_different_priorities(self) -> None:
        """Wilson's bound by hand: p = 0.03 and 0.01 of 100 000, z² = 3.8415; the published priorities are both 1.

        (0.03 + z²/2n − 1.96·√(0.03·0.97/n + z²/4n²))/(1 + z²/n) = (0.03001921 − 0.00105748)/1.00003841 = 0.028961.
        """
        counts = {"rare": {100: 1000}, "often": {99: 1000, 100: 2000}}
        responses = {"rare": 100_000, "often": 100_000}
        entries = rank_for_review(counts, responses, 100)
        assert [entry.name for entry in entries] == ["often", "rare"]
        assert [entry.priority for entry in entries] == pytest.approx([0.028961, 0.009402], abs=1e-6)
        published = rank_for_review(counts, responses, 100, ranking="urgency")
        assert [round(entry.priority, 9) for entry in published] == [1, 1]

    def test_the_share_is_of_the_last_ten_days_and_of_at_least_as_many_responses(self) -> None:
        """Day 91 counts and day 90 does not; a review that raises a count raises the number of responses, too."""
        (entry,) = rank_for_review({"a": {90: 70, 91: 5, 100: 5, 101: 9}}, {"a": 40}, 100)
        assert (entry.bad_answers, entry.responses, entry.bad_share) == (10, 40, 0.25)
        (raised,) = rank_for_review({"a": {100: 7}}, {"a": 2}, 100)
        assert (raised.bad_answers, raised.responses, raised.bad_share) == (7, 7, 1.0)

    def test_one_bad_response_of_one_is_below_many_of_many(self) -> None:
        """By hand: 1 of 1 has 1/(1 + z²) = 0.2065, 300 of 1 000 have 0.2724."""
        entries = rank_for_review({"one": {100: 1}, "many": {100: 300}}, {"one": 1, "many": 1000}, 100)
        assert [(entry.name, round(entry.priority, 4)) for entry in entries] == [("many", 0.2724), ("one", 0.2065)]

    def test_yesterday_has_half_the_weight_of_its_own_priority(self) -> None:
        """σ(0.7·3 − 4 + σ(0.7·5 − 4)/2), by hand."""
        (entry,) = rank_for_review({"a": {100: 3, 99: 5}}, {}, 100, ranking="urgency")
        assert entry.priority == pytest.approx(1 / (1 + math.exp(1.9 - 0.5 / (1 + math.exp(0.5)))))
        (halved,) = rank_for_review({"a": {100: 3, 98: 5}}, {}, 100, decay=HALVED_DAILY)
        assert halved.history == pytest.approx(priority(5) / 4)

    def test_a_review_removes_a_bad_answer_or_raises_its_count(self) -> None:
        """A score from 1 to below 2 removes the bad answer; a higher score is the new count, rounded down."""
        today_ms = 100 * DAY_MS
        counts = count_bad_answers_by_day(
            [
                BadAnswer("reviewed", today_ms, 1),
                BadAnswer("new", today_ms + 5),
                BadAnswer("raised", today_ms, 7.9),
                BadAnswer("new", today_ms - 1),
                BadAnswer("new", today_ms, 0.5),
            ],
            day_calendar("UTC"),
        )
        assert counts == {"new": {100: 2, 99: 1}, "raised": {100: 7}}
        assert [entry.name for entry in rank_for_review(counts, {}, 100)] == ["raised", "new"]

    @given(
        st.lists(st.builds(BadAnswer, st.sampled_from("ab"), st.integers(0, 10**9), st.sampled_from([None, 0, 1, 3])))
    )
    def test_the_review_list_does_not_depend_on_the_order_of_bad_answers(self, bad_answers: list[BadAnswer]) -> None:
        """Counts are sums over responses."""
        entries, entries_of_reversed = (
            rank_for_review(count_bad_answers_by_day(ordered_answers, day_calendar("UTC")), {"a": 20, "b": 30}, 11)
            for ordered_answers in (bad_answers, bad_answers[::-1])
        )
        assert entries == entries_of_reversed

    @pytest.mark.parametrize("score", [-1, math.inf, math.nan])
    def test_an_invalid_review_score_is_rejected(self, score: float) -> None:
        """Negative, infinite and undefined scores."""
        with pytest.raises(ValueError, match="the score of a review is"):
            bad_answer_count(score)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: priority(-1), "count is -1, expected a finite number of at least 0"),
            (lambda: priority(1, math.inf), "history is inf, expected"),
            (lambda: priority(1, scale=0), "scale is 0, expected a finite number above 0"),
            (lambda: priority(1, shift=math.nan), "shift is nan, expected a finite number"),
        ],
    )
    def test_invalid_priority_arguments_are_rejected(self, call: Callable[[], object], message: str) -> None:
        """Each names the argument, the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


lists_of_items = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4))


class TestShownItems:
    """Counts of shown items, and coverage of the catalogue."""

    @given(lists_of_items, st.integers(1, 9), st.randoms(use_true_random=False))
    def test_top_items_have_the_largest_counts_and_a_bound_of_all_other_counts(
        self, item_lists: list[list[str]], n: int, order: random.Random
    ) -> None:
        """For any order of the responses."""
        shown_items = ShownItems.of(item_lists)
        top_items = shown_items.top_items(n)
        assert ShownItems.of(order.sample(item_lists, len(item_lists))).top_items(n) == top_items
        top_counts = dict(top_items.top_counts)
        other_counts = [count for item, count in shown_items.counts.items() if item not in top_counts]
        assert (top_items.other_name_count, top_items.other_count_sum, top_items.other_count_max) == (
            len(other_counts),
            sum(other_counts),
            max(other_counts, default=0),
        )
        assert all(count >= top_items.other_count_max for count in top_counts.values())
        assert len(top_counts) == min(n, len(shown_items.counts))

    def test_an_item_counts_once_per_response(self) -> None:
        """A response without items counts as empty."""
        shown_items = ShownItems.of([["a", "a"], [], ["a", "b"], []])
        assert (shown_items.responses, shown_items.empty_responses, shown_items.empty_share) == (4, 2, 0.5)
        assert shown_items.counts == {"a": 2, "b": 1}

    def test_shares_without_responses_or_without_a_catalogue_are_undefined(self) -> None:
        """Items whose count has returned to 0 are neither covered nor among the top items."""
        assert ShownItems.of([]).empty_share is None
        assert ShownItems.of([["a"]]).coverage([]) is None
        assert ShownItems.of([]).coverage(["a"]) == 0
        assert ShownItems(1, 1, {"a": 0}).coverage(["a"]) == 0
        assert top_k({"a": 0}, 3).top_counts == ()

    def test_invalid_counts_are_rejected(self) -> None:
        """A top list of length 0, and a negative count."""
        with pytest.raises(ValueError, match="n is 0, expected at least 1"):
            top_k({}, 0)
        with pytest.raises(ValueError, match="the count of 'a' is -1, expected at least 0"):
            top_k({"a": -1}, 1)


eighths = st.integers(-8, 8).map(lambda number: number / 8)
similarities = st.integers(1, 7).flatmap(
    lambda n: st.tuples(
        st.lists(eighths, min_size=n, max_size=n),
        st.lists(st.lists(eighths, min_size=n, max_size=n), min_size=n, max_size=n),
    )
)
NDEVAL: list[tuple[float, int, dict[str, str], list[str], float]] = [
    (
        0.5,
        5,
        {"d1": "ac", "d2": "b", "d3": "ab", "d4": "", "d5": "c"},
        ["d2", "x", "d1", "d4", "d3"],
        0.6996013083739846,
    ),
    (
        0.2,
        10,
        {"d0": "abf", "d1": "aef", "d2": "abd", "d3": "e", "d4": "b", "d5": "a", "d6": "af", "d7": "ad", "d8": "ce"},
        ["d5", "d3", "d2", "d6", "x2", "d1", "x1", "d0"],
        0.6296335522289933,
    ),
    (
        0.8,
        5,
        {"d0": "ce", "d1": "be", "d2": "ace", "d3": "cd", "d4": "abe", "d5": "b"},
        ["x1", "d2", "d5", "d3", "d4", "d1", "d0", "x2"],
        0.6707628368300476,
    ),
]
"""(alpha, k, topics, shown items, value) of TREC's ndeval (pyndeval 0.0.8); in the last two the ideal has ties."""

topics_by_item = st.dictionaries(st.sampled_from("uvwxyz"), st.lists(st.sampled_from("abcd"), max_size=4))


class TestDiversity:
    """Diversity of a list of items."""

    @given(similarities, st.sampled_from([0, 0.25, 0.5, 0.75, 1]), st.integers(1, 8))
    def test_every_step_of_the_reranking_maximizes_the_published_formula(
        self, table: tuple[list[float], list[list[float]]], weight: float, k: int
    ) -> None:
        """The formula is written as in the article, over sets."""
        relevance, similarity = table
        order = rerank_by_mmr(relevance, lambda i, j: similarity[i][j], relevance_weight=weight, k=k)
        assert len(order) == len(set(order)) == min(k, len(relevance))
        for rank, item in enumerate(order):
            candidates = sorted(set(range(len(relevance))) - set(order[:rank]))

            def marginal_relevance(i: int, above: Sequence[int] = tuple(order[:rank])) -> float:
                return weight * relevance[i] - (1 - weight) * max((similarity[i][j] for j in above), default=0.0)

            assert item == max(candidates, key=marginal_relevance)

    @given(similarities)
    def test_weight_1_sorts_by_relevance(self, table: tuple[list[float], list[list[float]]]) -> None:
        """Items of equal relevance keep their order."""
        relevance, similarity = table
        by_relevance = sorted(range(len(relevance)), key=lambda i: -relevance[i])
        assert rerank_by_mmr(relevance, lambda i, j: similarity[i][j], relevance_weight=1) == by_relevance

    @given(topics_by_item, st.permutations("uvwxyz"), st.sampled_from([0, 0.3, 0.5, 1]), st.integers(1, 6))
    def test_the_ideal_order_has_1_and_other_orders_at_most_little_more(
        self, topics: dict[str, list[str]], ranked_items: list[str], alpha: float, k: int
    ) -> None:
        """A greedy choice misses the best order by less than 1 − 1/e (Nemhauser et al. 1978)."""
        value = alpha_ndcg(ranked_items, topics, k, alpha=alpha)
        assert (value is None) == (not any(topics.values()))
        if value is not None:
            assert 0 <= value <= 1 / (1 - 1 / math.e)
            assert alpha_ndcg(ideal_alpha_ndcg_order(topics, alpha=alpha), topics, k, alpha=alpha) == pytest.approx(1)
            reversed_topics = {item: topics[item][::-1] for item in reversed(topics)}
            assert alpha_ndcg(ranked_items, reversed_topics, k, alpha=alpha) == value

    @pytest.mark.parametrize(("alpha", "k", "topics", "ranked_items", "expected"), NDEVAL)
    def test_alpha_ndcg_equals_the_value_of_ndeval(
        self, alpha: float, k: int, topics: dict[str, str], ranked_items: list[str], expected: float
    ) -> None:
        """Of items with equal gains the ideal order takes the same item as TREC's program."""
        assert alpha_ndcg(ranked_items, topics, k, alpha=alpha) == pytest.approx(expected, abs=TOLERANCE)

    def test_a_list_can_be_better_than_the_greedy_ideal_order(self) -> None:
        """The greedy order begins with the broad item, which halves the gains of the two items that follow."""
        topics = {"broad": "bcde", "left": "abc", "right": "def"}
        best = max(permutations(topics, 2), key=lambda order: alpha_dcg([topics[item] for item in order], alpha=1))
        assert set(best) == {"left", "right"}
        value = alpha_ndcg(best, topics, 2, alpha=1)
        assert value is not None
        assert value > 1

    @given(st.lists(st.lists(st.sampled_from("abcd"), max_size=4)), st.integers(1, 6))
    def test_with_alpha_0_it_is_the_dcg_of_the_number_of_topics(self, ranked_topics: list[list[str]], k: int) -> None:
        """A topic that an item has twice counts once."""
        expected = sum(len(set(topics)) / math.log2(rank + 1) for rank, topics in enumerate(ranked_topics[:k], start=1))
        assert alpha_dcg(ranked_topics, k, alpha=0) == pytest.approx(expected)

    @given(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=6), st.randoms(use_true_random=False))
    def test_intra_list_similarity_is_from_0_to_1_and_independent_of_order(
        self, topics: list[list[str]], order: random.Random
    ) -> None:
        """With fewer than two items that have topics the similarity is undefined."""
        value = intra_list_similarity(topics)
        assert value == intra_list_similarity(order.sample(topics, len(topics)))
        assert (value is None) == (sum(map(bool, topics)) < 2)
        assert value is None or 0 <= value <= 1

    def test_the_similarity_of_two_items_without_topics_is_undefined(self) -> None:
        """With topics on one side only the similarity is 0."""
        assert jaccard_similarity([], []) is None
        assert jaccard_similarity([], ["a"]) == 0

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (
                lambda: rerank_by_mmr([1], lambda _i, _j: 0, relevance_weight=1.5),
                "weight is 1.5, expected a number from 0 to 1",
            ),
            (lambda: rerank_by_mmr([1], lambda _i, _j: 0, relevance_weight=1, k=0), "k is 0, expected at least 1"),
            (
                lambda: rerank_by_mmr([math.nan], lambda _i, _j: 0, relevance_weight=1),
                "relevance is nan, expected a finite number",
            ),
            (
                lambda: rerank_by_mmr([1, 1], lambda _i, _j: math.inf, relevance_weight=1),
                "similarity is inf, expected a finite number",
            ),
            (lambda: alpha_dcg([], alpha=-1), "alpha is -1, expected a number from 0 to 1"),
            (lambda: alpha_ndcg([], {}, 0), "k is 0, expected at least 1"),
        ],
    )
    def test_invalid_diversity_arguments_are_rejected(self, call: Callable[[], object], message: str) -> None:
        """Each names the argument, the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


def test_ids_are_printable_and_short_in_a_terminal() -> None:
    """Producers choose ids, so ids can contain control characters and be long."""
    assert short_id_text("a\x1b[31m\u202eb\n").plain == "a\\u001b[31m\\u202eb\\n"
    assert len(short_id_text("x" * 250).plain) == 60


def test_a_rating_scale_has_its_largest_grade_once() -> None:
    """0.36 + 1 is a little less than 1.36 in float64."""
    assert rating_scale(replace(EXPERIMENT, max_grade=1.36), 0.36) == [0.36, 1.36]
    assert rating_scale(replace(EXPERIMENT, max_grade=2.5), 1) == [1, 2, 2.5]
    assert rating_scale(replace(EXPERIMENT, max_grade=4), 1) == [1, 2, 3, 4]


def test_a_gain_table_with_a_single_grade_is_rejected() -> None:
    """With a prior of a single grade every bound would be equal to that grade."""
    with pytest.raises(UsageError, match=r"experiments\.ranker\.gain: got one grade, expected two at least"):
        rating_scale(replace(EXPERIMENT, gain={4.0: 1.0}))


def _item_counter(one_in: int) -> ItemCounter:
    settings = replace(EXPERIMENT, items=ItemSettings(30, sample_one_in=one_in, expected_items=64))
    return ItemCounter(1, settings, GradingRules(settings), IdHasher(b"key"), StoreKeys())


@pytest.mark.parametrize("one_in", [2, 8, 10, 1000])
def test_a_sample_of_items_is_spread_evenly_over_the_buckets(one_in: int) -> None:
    """Sample and bucket are chosen by the same hash, but independently of each other."""
    counter, item_count = _item_counter(one_in), 100_000
    item_hashes = IdHasher(b"key").hash_items(tuple(f"video-{number}" for number in range(item_count)))
    sampled_items = counter.counted_items(item_hashes)
    expected_count = item_count / one_in
    assert abs(len(sampled_items) - expected_count) < 5 * math.sqrt(expected_count)
    buckets = [counter.layout.bucket_of(item) for item in sampled_items]
    for bucket in range(counter.layout.bucket_count):
        expected_per_bucket = expected_count / counter.layout.bucket_count
        assert abs(buckets.count(bucket) - expected_per_bucket) < 5 * math.sqrt(expected_per_bucket)


def test_a_sample_of_one_item_in_a_million_is_that_small() -> None:
    """Two bytes of the hash would not be enough for such a small sample."""
    hashes = random.Random(5).randbytes(2_000_000 * ITEM_HASH_BYTES)
    assert len(_item_counter(1_000_000).counted_items(hashes)) < 10
