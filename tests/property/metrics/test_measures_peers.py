"""scikit-learn and trec_eval agree with us wherever they define the same thing, on random lists."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import dcg_score, ndcg_score

from monitor.metrics import cg, dcg, ndcg, p, rr, success

integer_grades = st.lists(st.integers(0, 4), min_size=2, max_size=15)
real_grades = st.lists(st.floats(0, 10, allow_subnormal=False), min_size=2, max_size=15)
cuts = st.integers(1, 20)


def _descending(count: int) -> list[float]:
    return [float(count - index) for index in range(count)]


def _trec(shown: Sequence[int | None], pool: Sequence[int], measures: set[str], level: int = 1) -> dict[str, float]:
    """Return trec_eval's values; `pool` holds the judged grades of items that were not shown."""
    judged = {f"shown-{rank:03}": grade for rank, grade in enumerate(shown) if grade is not None}
    judged |= {f"other-{index:03}": grade for index, grade in enumerate(pool)}
    scores = dict(zip((f"shown-{rank:03}" for rank in range(len(shown))), _descending(len(shown)), strict=True))
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, measures, relevance_level=level)
    values: dict[str, float] = evaluator.evaluate({"q": scores})["q"]
    return values


@given(real_grades, cuts)
def test_scikit_learn(grades: list[float], k: int) -> None:
    """Without ties in the ranking and with something to gain, DCG and nDCG are scikit-learn's."""
    assume(sum(grades) > 1e-6)
    truth, scores = np.array([grades]), np.array([_descending(len(grades))])
    assert dcg(grades, k) == pytest.approx(dcg_score(truth, scores, k=k), rel=1e-12, abs=1e-12)
    assert ndcg(grades, k) == pytest.approx(ndcg_score(truth, scores, k=k), rel=1e-12, abs=1e-12)


def test_scikit_learn_counts_worthless_lists_as_zero() -> None:
    """Where we say undefined, scikit-learn says 0."""
    assert ndcg_score([[0, 0]], [[2, 1]]) == 0.0
    assert ndcg([0, 0]) is None


def test_scikit_learn_averages_ties() -> None:
    """Tied scores are averaged over there; here every item has a position, so there are no ties."""
    averaged = ndcg_score([[3, 0, 1]], [[1, 1, 1]])
    assert averaged == pytest.approx(0.7825102285809599)
    assert ndcg([3, 0, 1]) != pytest.approx(averaged, abs=0.1)


@given(
    st.lists(st.none() | st.integers(-2, 4), min_size=1, max_size=15), st.lists(st.integers(-2, 4), max_size=8), cuts
)
def test_trec_eval_ndcg(shown: list[int | None], others: list[int], k: int) -> None:
    """With whole grades, the judged pool as the ideal, unjudged and negative ones among them, nDCG@k is trec_eval's."""
    pool = [grade for grade in shown if grade is not None] + others
    assume(any(grade > 0 for grade in pool))
    expected = _trec(shown, others, {f"ndcg_cut.{k}"})[f"ndcg_cut_{k}"]
    assert ndcg(shown, k, ideal=pool) == pytest.approx(expected, abs=1e-12)


@given(integer_grades, st.integers(1, 4), cuts)
def test_trec_eval_binary_metrics(grades: list[int], relevant_grade: int, k: int) -> None:
    """success@k, p@k and the uncut rr are trec_eval's at the same relevance level."""
    assume(max(grades) >= relevant_grade)
    told = _trec(grades, [], {f"success.{k}", f"P.{k}", "recip_rank"}, relevant_grade)
    assert success(grades, k, relevant_grade=relevant_grade) == told[f"success_{k}"]
    assert p(grades, k, relevant_grade=relevant_grade) == pytest.approx(told[f"P_{k}"], abs=1e-12)
    assert rr(grades, relevant_grade=relevant_grade) == pytest.approx(told["recip_rank"], abs=1e-12)


def test_trec_eval_takes_whole_grades_only() -> None:
    """A fractional grade is not expressible over there; here it counts as it is."""
    judged: dict[str, Any] = {"q": {"d": 0.5}}
    with pytest.raises(TypeError):
        pytrec_eval.RelevanceEvaluator(judged, {"ndcg"}).evaluate({"q": {"d": 1.0}})
    assert cg([0.5]) == 0.5


def test_trec_eval_counts_worthless_lists_as_zero() -> None:
    """Where we say undefined, trec_eval says 0."""
    assert _trec([0, None], [], {"ndcg_cut.5"})["ndcg_cut_5"] == 0.0
    assert ndcg([0, None], 5) is None
