"""Items: published examples, other implementations' figures, what has no value, and what no order may change."""

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

from monitor.analysis.diversity import alpha_dcg, alpha_ndcg, ideal_order, intra_list_similarity, jaccard, mmr
from monitor.analysis.item_scores import ItemScore, mean_grade, star_lower, wilson_lower
from monitor.analysis.top_items import Shown, leaders
from monitor.analysis.triage import DAY_MS, RECIPROCAL, BadAnswer, daily, first_to_look_at, history, priority
from monitor.config import DecaySpec, ItemSettings
from monitor.engine.grading import GradingRules
from monitor.engine.id_hash import ITEM_BYTES, IdHasher
from monitor.engine.item_counts import ItemCounts
from monitor.errors import UsageError
from monitor.export.item_tables import printable, scale
from monitor.metrics.item_layout import bad_answer_count
from monitor.state import Keys
from tests.support.streams import EXPERIMENT

TOLERANCE = 1e-9
STARS = (1, 2, 3, 4, 5)
HALVED_DAILY = DecaySpec("24h", half_life_ms=DAY_MS)

Vector = dict[str, Any]


@pytest.mark.parametrize("module", ["item_scores", "triage", "top_items", "diversity"])
def test_the_examples_in_the_docstrings_hold(module: str) -> None:
    """They were computed by hand."""
    found = doctest.testmod(importlib.import_module(f"monitor.analysis.{module}"))
    assert found.attempted > 0
    assert found.failed == 0


@pytest.fixture(name="literature")
def _literature(shared: Path) -> list[Vector]:
    vectors: list[Vector] = json.loads((shared / "vectors" / "seed_vectors.json").read_text("utf-8"))["vectors"]
    return vectors


def _decay_weight(vector: Vector) -> float:
    decay = HALVED_DAILY if vector["options"]["kind"] == "exponential" else RECIPROCAL
    return history([(vector["inputs"]["age_days"], 1.0)], decay)


def _with_history(vector: Vector) -> float:
    before = vector["inputs"]["history_scores_by_age_days_from_1"]
    return priority(vector["inputs"]["count"], history(enumerate(before, start=1)))


def _compared(vector: Vector) -> float:
    worse, better = (wilson_lower(*vector["inputs"][side]) for side in "ab")
    assert worse is not None
    assert better is not None
    return float(worse < better)


LITERATURE: dict[str, Callable[[Vector], float | None]] = {
    "wilson_lower": lambda vector: wilson_lower(
        vector["inputs"]["pos"], vector["inputs"]["n"], vector["options"]["confidence"]
    ),
    "wilson_compare": _compared,
    "bayes_star_lower": lambda vector: star_lower(
        dict(enumerate(vector["inputs"]["counts"], start=1)), STARS, vector["options"]["confidence"]
    ),
    "avg_rating": lambda vector: mean_grade(dict(enumerate(vector["inputs"]["counts"], start=1))),
    "sigmoid_frequency": lambda vector: priority(vector["inputs"]["count"]),
    "sigmoid_with_history": _with_history,
    "decay_weight": _decay_weight,
}
UNRATED = {"s004-wilson-0-0", "s004-bayes-0-0-0-0-0"}
"""Published programs say 0, which is below every item that was rated; here these items are unrated."""


class TestLiterature:
    """Published worked examples."""

    def test_every_one_holds(self, literature: list[Vector]) -> None:
        """To 1e-9."""
        told = [vector for vector in literature if vector["metric"] in LITERATURE and vector["id"] not in UNRATED]
        assert len(told) == 41
        for vector in told:
            ours = LITERATURE[vector["metric"]](vector)
            assert ours == pytest.approx(vector["expected"], rel=0, abs=TOLERANCE), vector["id"]

    def test_unrated_is_not_zero(self, literature: list[Vector]) -> None:
        """Where others say 0 there is no value."""
        told = [vector for vector in literature if vector["id"] in UNRATED]
        assert {vector["id"] for vector in told} == UNRATED
        assert [LITERATURE[vector["metric"]](vector) for vector in told] == [None, None]


grades = st.dictionaries(st.sampled_from([1, 2, 2.5, 3, 4, 4.75, 5]), st.integers(0, 10_000))
levels = st.floats(0.5, 0.999)


class TestScores:
    """What ratings are worth."""

    @given(st.integers(1, 10**6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))), levels)
    def test_wilson_is_that_of_scipy(self, counts: tuple[int, int], confidence: float) -> None:
        """The lower end of the two-sided interval, without correction for continuity."""
        theirs = binomtest(*counts).proportion_ci(confidence, method="wilson").low
        assert wilson_lower(*counts, confidence) == pytest.approx(theirs, abs=TOLERANCE)

    @given(st.lists(st.integers(0, 10**6), min_size=5, max_size=5).filter(any), levels)
    def test_the_bound_of_the_mean_is_that_of_a_posterior(self, counts: list[int], confidence: float) -> None:
        """Mean and variance of the mean grade are scipy's for a Dirichlet posterior."""
        posterior = [count + 1 for count in counts]
        mean = STARS @ dirichlet.mean(posterior)
        variance = STARS @ dirichlet.cov(posterior) @ STARS
        theirs = mean - norm.ppf((1 + confidence) / 2) * math.sqrt(variance)
        ours = star_lower(dict(zip(STARS, counts, strict=True)), STARS, confidence)
        assert ours == pytest.approx(theirs, abs=1e-8)

    @given(grades.filter(lambda counts: any(counts.values())), st.integers(2, 50))
    def test_more_of_the_same_brings_the_bounds_nearer(self, counts: dict[float, int], times: int) -> None:
        """A bound lies below the share, and rises with the number of ratings."""
        one, many = (
            ItemScore.of({grade: count * by for grade, count in counts.items()}, relevant_grade=4, grades=STARS)
            for by in (1, times)
        )
        assert many.ratings == times * one.ratings
        assert many.good_share == one.good_share
        for score in (one, many):
            assert score.good_lower is not None
            assert score.good_share is not None
            assert 0 <= score.good_lower <= score.good_share
        assert one.good_lower is not None
        assert many.good_lower is not None
        assert many.good_lower >= one.good_lower

    @given(st.lists(st.sampled_from([1, 2.5, 3.1, 4.75, 5]), min_size=1), st.randoms(use_true_random=False))
    def test_the_order_of_ratings_changes_no_digit(self, given_grades: list[float], order: random.Random) -> None:
        """Grades that are no binary fractions, too."""

        def score(sequence: Sequence[float]) -> ItemScore:
            counts: dict[float, int] = {}
            for grade in sequence:
                counts[grade] = counts.get(grade, 0) + 1
            return ItemScore.of(counts, relevant_grade=3, grades=STARS)

        assert score(order.sample(given_grades, len(given_grades))) == score(given_grades)

    def test_an_unrated_item_has_no_score(self) -> None:
        """Nothing is known of it: it is not the worst item."""
        score = ItemScore.of({4: 0}, relevant_grade=3, grades=STARS)
        assert score == ItemScore(0, None, None, None, None)

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: wilson_lower(3, 2), "3 good ratings of 2, expected"),
            (lambda: wilson_lower(-1, 2), "-1 good ratings of 2, expected"),
            (lambda: wilson_lower(1, 2, 1.0), "confidence is 1.0, expected a level between 0 and 1"),
            (lambda: star_lower({3: -1}, STARS), "-1 ratings of 3, expected at least 0"),
            (lambda: star_lower({math.nan: 1}, STARS), "a grade is nan, expected a finite number"),
            (lambda: star_lower({3: 1}, [1, 1]), r"grades are \[1, 1\], expected at least 2 different ones"),
        ],
    )
    def test_refusals(self, call: Callable[[], object], message: str) -> None:
        """Each names the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


counts_by_day = st.dictionaries(
    st.sampled_from("abcd"), st.dictionaries(st.integers(80, 101), st.integers(0, 40), max_size=8), max_size=4
)


class TestAttention:
    """What to look at first."""

    @given(st.floats(0, 1e6), st.floats(0, 1e6))
    def test_a_priority_is_never_an_end_of_its_interval(self, count: float, before: float) -> None:
        """Strictly between 0 and 1, however many there are."""
        assert 0 < priority(count, before) < 1
        assert 0 < priority(0, shift=1e6) < 1

    @given(counts_by_day, st.sampled_from("abcd"), st.integers(80, 100))
    def test_one_more_bad_answer_never_lowers_an_entry(
        self, bad: dict[str, dict[int, int]], name: str, day: int
    ) -> None:
        """Today's or one of the days before."""

        def urgency(counts: dict[str, dict[int, int]]) -> float:
            return next((each.urgency for each in first_to_look_at(counts, 100) if each.name == name), -math.inf)

        days = bad.get(name, {})
        assert urgency({**bad, name: {**days, day: days.get(day, 0) + 1}}) >= urgency(bad)

    def test_days_that_no_longer_count(self) -> None:
        """From ten days on the reciprocal weight is 0, tomorrow is not known yet, and such entries are gone."""
        found = first_to_look_at({"old": {90: 50}, "tomorrow": {101: 50}, "nine days": {91: 50}, "none": {100: 0}}, 100)
        assert [(each.name, each.today) for each in found] == [("nine days", 0)]
        assert found[0].history == pytest.approx(priority(50) / 10)

    def test_by_urgency_then_by_name(self) -> None:
        """Also where the priorities are the same number."""
        found = first_to_look_at({"b": {100: 3}, "a": {100: 3}, "more": {100: 900}, "many": {100: 800}}, 100)
        assert [each.name for each in found] == ["more", "many", "a", "b"]
        assert found[0].priority == found[1].priority
        assert found[0].to_json() == {
            "name": "more", "today": 900, "history": 0.0, "urgency": 626.0, "priority": found[0].priority,
        }  # fmt: skip

    def test_yesterday_counts_half_of_what_it_was_worth(self) -> None:
        """σ(0.7·3 − 4 + σ(0.7·5 − 4)/2), by hand."""
        (found,) = first_to_look_at({"a": {100: 3, 99: 5}}, 100)
        assert found.priority == pytest.approx(1 / (1 + math.exp(1.9 - 0.5 / (1 + math.exp(0.5)))))
        (halved,) = first_to_look_at({"a": {100: 3, 98: 5}}, 100, HALVED_DAILY)
        assert halved.history == pytest.approx(priority(5) / 4)

    def test_a_review_removes_or_raises(self) -> None:
        """A reviewed answer no longer counts, a raised one counts as many."""
        at_ms = 100 * DAY_MS
        bad = [BadAnswer("seen", at_ms, 1), BadAnswer("new", at_ms + 5), BadAnswer("raised", at_ms, 7.9)]
        counts = daily([*bad, BadAnswer("new", at_ms - 1), BadAnswer("new", at_ms, 0.5)])
        assert counts == {"new": {100: 2, 99: 1}, "raised": {100: 7}}
        assert [each.name for each in first_to_look_at(counts, 100)] == ["raised", "new"]

    @given(
        st.lists(st.builds(BadAnswer, st.sampled_from("ab"), st.integers(0, 10**9), st.sampled_from([None, 0, 1, 3])))
    )
    def test_the_order_of_answers_changes_nothing(self, bad: list[BadAnswer]) -> None:
        """Sums over responses."""
        assert first_to_look_at(daily(bad), 11) == first_to_look_at(daily(bad[::-1]), 11)

    @pytest.mark.parametrize("score", [-1, math.inf, math.nan])
    def test_a_review_without_meaning(self, score: float) -> None:
        """The score is named."""
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
    def test_refusals(self, call: Callable[[], object], message: str) -> None:
        """Each names the argument, the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


item_lists = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=4))


class TestCatalogue:
    """What is shown."""

    @given(item_lists, st.integers(1, 9), st.randoms(use_true_random=False))
    def test_leaders_and_their_bound(self, shown: list[list[str]], n: int, order: random.Random) -> None:
        """Whatever the order: the leaders are the largest, and the largest of the others is the bound."""
        found = Shown.of(shown)
        first = found.leaders(n)
        assert Shown.of(order.sample(shown, len(shown))).leaders(n) == first
        told = dict(first.leaders)
        others = [count for item, count in found.counts.items() if item not in told]
        assert (first.others, first.rest, first.at_most) == (len(others), sum(others), max(others, default=0))
        assert all(count >= first.at_most for count in told.values())
        assert len(told) == min(n, len(found.counts))

    def test_an_item_counts_once_per_response(self) -> None:
        """And a response without items is an empty answer."""
        found = Shown.of([["a", "a"], [], ["a", "b"], []])
        assert (found.responses, found.empty, found.empty_share) == (4, 2, 0.5)
        assert found.counts == {"a": 2, "b": 1}

    def test_nothing_shown_and_nothing_to_show(self) -> None:
        """No responses have no share of empty ones; an empty catalogue has no coverage; an item taken back is gone."""
        assert Shown.of([]).empty_share is None
        assert Shown.of([["a"]]).coverage([]) is None
        assert Shown.of([]).coverage(["a"]) == 0
        assert Shown(1, 1, {"a": 0}).coverage(["a"]) == 0
        assert leaders({"a": 0}, 3).leaders == ()

    def test_refusals(self) -> None:
        """A list of nothing, and a count that a sum over responses cannot be."""
        with pytest.raises(ValueError, match="n is 0, expected at least 1"):
            leaders({}, 0)
        with pytest.raises(ValueError, match="the count of 'a' is -1, expected at least 0"):
            leaders({"a": -1}, 1)


eighths = st.integers(-8, 8).map(lambda each: each / 8)
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
"""What TREC's ndeval says (pyndeval 0.0.8): alpha, k, topics, shown, value; in the last two equals decide the ideal."""

judged = st.dictionaries(st.sampled_from("uvwxyz"), st.lists(st.sampled_from("abcd"), max_size=4))


class TestDiversity:
    """Whether the items of one answer say different things."""

    @given(similarities, st.sampled_from([0, 0.25, 0.5, 0.75, 1]), st.integers(1, 8))
    def test_every_step_of_the_reranking_is_the_formula(
        self, table: tuple[list[float], list[list[float]]], weight: float, k: int
    ) -> None:
        """Written down as in the article, over sets and without memory."""
        relevance, similarity = table
        order = mmr(relevance, lambda i, j: similarity[i][j], weight=weight, k=k)
        assert len(order) == len(set(order)) == min(k, len(relevance))
        for at, chosen in enumerate(order):
            rest = sorted(set(range(len(relevance))) - set(order[:at]))

            def marginal(i: int, above: Sequence[int] = tuple(order[:at])) -> float:
                return weight * relevance[i] - (1 - weight) * max((similarity[i][j] for j in above), default=0.0)

            assert chosen == max(rest, key=marginal)

    @given(similarities)
    def test_the_ends_of_the_weight(self, table: tuple[list[float], list[list[float]]]) -> None:
        """1 is the order of relevance, equals in the given order."""
        relevance, similarity = table
        by_relevance = sorted(range(len(relevance)), key=lambda i: -relevance[i])
        assert mmr(relevance, lambda i, j: similarity[i][j], weight=1) == by_relevance

    @given(judged, st.permutations("uvwxyz"), st.sampled_from([0, 0.3, 0.5, 1]), st.integers(1, 6))
    def test_the_ideal_is_worth_1_and_hardly_anything_is_worth_more(
        self, topics: dict[str, list[str]], shown: list[str], alpha: float, k: int
    ) -> None:
        """A greedy choice misses the best order by less than 1 − 1/e (Nemhauser et al. 1978)."""
        value = alpha_ndcg(shown, topics, k, alpha=alpha)
        assert (value is None) == (not any(topics.values()))
        if value is not None:
            assert 0 <= value <= 1 / (1 - 1 / math.e)
            assert alpha_ndcg(ideal_order(topics, alpha=alpha), topics, k, alpha=alpha) == pytest.approx(1)
            backwards = {item: topics[item][::-1] for item in reversed(topics)}
            assert alpha_ndcg(shown, backwards, k, alpha=alpha) == value

    @pytest.mark.parametrize(("alpha", "k", "topics", "shown", "expected"), NDEVAL)
    def test_another_implementation(
        self, alpha: float, k: int, topics: dict[str, str], shown: list[str], expected: float
    ) -> None:
        """Among equals the ideal takes the same item as TREC's program."""
        assert alpha_ndcg(shown, topics, k, alpha=alpha) == pytest.approx(expected, abs=TOLERANCE)

    def test_a_greedy_ideal_may_be_beaten(self) -> None:
        """The broad item first leaves two halves; without it they would have been whole."""
        topics = {"broad": "bcde", "left": "abc", "right": "def"}
        best = max(permutations(topics, 2), key=lambda order: alpha_dcg([topics[item] for item in order], alpha=1))
        assert set(best) == {"left", "right"}
        value = alpha_ndcg(best, topics, 2, alpha=1)
        assert value is not None
        assert value > 1

    @given(st.lists(st.lists(st.sampled_from("abcd"), max_size=4)), st.integers(1, 6))
    def test_without_memory_it_is_dcg_of_the_number_of_topics(self, shown: list[list[str]], k: int) -> None:
        """Alpha 0; a topic named twice is one topic."""
        expected = sum(len(set(topics)) / math.log2(rank + 1) for rank, topics in enumerate(shown[:k], start=1))
        assert alpha_dcg(shown, k, alpha=0) == pytest.approx(expected)

    @given(st.lists(st.lists(st.sampled_from("abc"), max_size=3), max_size=6), st.randoms(use_true_random=False))
    def test_similarity_within_a_list(self, shown: list[list[str]], order: random.Random) -> None:
        """Between 0 and 1, and no order changes it; one item has nothing to be like."""
        value = intra_list_similarity(shown)
        assert value == intra_list_similarity(order.sample(shown, len(shown)))
        assert (value is None) == (sum(map(bool, shown)) < 2)
        assert value is None or 0 <= value <= 1

    def test_nothing_in_common_with_nothing(self) -> None:
        """Two items without topics are neither alike nor different."""
        assert jaccard([], []) is None
        assert jaccard([], ["a"]) == 0

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: mmr([1], lambda _i, _j: 0, weight=1.5), "weight is 1.5, expected a number from 0 to 1"),
            (lambda: mmr([1], lambda _i, _j: 0, weight=1, k=0), "k is 0, expected at least 1"),
            (lambda: mmr([math.nan], lambda _i, _j: 0, weight=1), "relevance is nan, expected a finite number"),
            (lambda: mmr([1, 1], lambda _i, _j: math.inf, weight=1), "similarity is inf, expected a finite number"),
            (lambda: alpha_dcg([], alpha=-1), "alpha is -1, expected a number from 0 to 1"),
            (lambda: alpha_ndcg([], {}, 0), "k is 0, expected at least 1"),
        ],
    )
    def test_refusals(self, call: Callable[[], object], message: str) -> None:
        """Each names the argument, the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


def test_ids_are_fit_for_a_terminal() -> None:
    """Anybody may write them."""
    assert printable("a\x1b[31m\u202eb\n").plain == "a\ufffd[31m\ufffdb\ufffd"
    assert len(printable("x" * 250).plain) == 60


def test_the_largest_grade_of_a_scale_is_there_once() -> None:
    """0.36 + 1 is a little less than 1.36 in float64."""
    assert scale(replace(EXPERIMENT, max_grade=1.36), 0.36) == [0.36, 1.36]
    assert scale(replace(EXPERIMENT, max_grade=2.5), 1) == [1, 2, 2.5]
    assert scale(replace(EXPERIMENT, max_grade=4), 1) == [1, 2, 3, 4]


def test_one_grade_is_no_scale() -> None:
    """A bound behind a prior of one grade would be that grade, and none."""
    with pytest.raises(UsageError, match=r"experiments\.ranker\.gain: got one grade, expected two at least"):
        scale(replace(EXPERIMENT, gain={4.0: 1.0}))


def _counts(one_in: int) -> ItemCounts:
    settings = replace(EXPERIMENT, items=ItemSettings(30, one_in=one_in, expected_items=64))
    return ItemCounts(1, settings, GradingRules(settings), IdHasher(b"key"), Keys())


@pytest.mark.parametrize("one_in", [2, 8, 10, 1000])
def test_a_sample_of_items_has_its_share_of_every_bucket(one_in: int) -> None:
    """The sample and the bucket are chosen by the same hash, but what chose one says next to nothing of the other."""
    counts, total = _counts(one_in), 100_000
    kept = counts.shown(IdHasher(b"key").items(tuple(f"video-{number}" for number in range(total))))
    share = total / one_in
    assert abs(len(kept) - share) < 5 * math.sqrt(share)
    buckets = [counts.layout.bucket(item) for item in kept]
    for bucket in range(counts.layout.buckets):
        part = share / counts.layout.buckets
        assert abs(buckets.count(bucket) - part) < 5 * math.sqrt(part)


def test_one_item_in_a_million_is_that() -> None:
    """Two bytes of the hash would not tell so many apart."""
    hashes = random.Random(5).randbytes(2_000_000 * ITEM_BYTES)
    assert len(_counts(1_000_000).shown(hashes)) < 10
