"""Metrics of random lists equal the results of scikit-learn and trec_eval, with documented exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import pytrec_eval
from hypothesis import assume, given
from hypothesis import strategies as st
from sklearn.metrics import dcg_score, ndcg_score

from monitor.metrics import (
    cumulative_gain,
    dcg,
    ndcg,
    non_negative_grades,
    precision_at_k,
    reciprocal_rank,
    success_at_k,
)

integer_grades = st.lists(st.integers(0, 4), min_size=2, max_size=15)
real_grades = st.lists(st.floats(0, 10, allow_subnormal=False), min_size=2, max_size=15)
cuts = st.integers(1, 20)


def _descending(count: int) -> list[float]:
    return [float(count - index) for index in range(count)]


def _trec_eval(
    list_grades: Sequence[int | None], other_grades: Sequence[int], measures: set[str], level: int = 1
) -> dict[str, float]:
    """Return trec_eval's values; `other_grades` are the judged grades of items that are not in the list."""
    judged = {f"shown-{rank:03}": grade for rank, grade in enumerate(list_grades) if grade is not None}
    judged |= {f"other-{index:03}": grade for index, grade in enumerate(other_grades)}
    scores = dict(
        zip((f"shown-{rank:03}" for rank in range(len(list_grades))), _descending(len(list_grades)), strict=True)
    )
    evaluator = pytrec_eval.RelevanceEvaluator({"q": judged}, measures, relevance_level=level)
    values: dict[str, float] = evaluator.evaluate({"q": scores})["q"]
    return values


@given(real_grades, cuts)
def test_dcg_and_ndcg_equal_scikit_learn(grades: list[float], k: int) -> None:
    """The ranking has no ties, and the list has a positive gain."""
    assume(sum(grades) > 1e-6)
    truth, scores = np.array([grades]), np.array([_descending(len(grades))])
    assert dcg(grades, k) == pytest.approx(dcg_score(truth, scores, k=k), rel=1e-12, abs=1e-12)
    assert ndcg(grades, k) == pytest.approx(ndcg_score(truth, scores, k=k), rel=1e-12, abs=1e-12)


def test_scikit_learn_returns_0_for_lists_without_gain() -> None:
    """Our nDCG of such lists is undefined."""
    assert ndcg_score([[0, 0]], [[2, 1]]) == 0.0
    assert ndcg([0, 0]) is None


def test_scikit_learn_averages_over_ties() -> None:
    """Our nDCG has no ties, because each item has a position."""
    averaged = ndcg_score([[3, 0, 1]], [[1, 1, 1]])
    assert averaged == pytest.approx(0.7825102285809599)
    assert ndcg([3, 0, 1]) != pytest.approx(averaged, abs=0.1)


@given(
    st.lists(st.none() | st.integers(-2, 4), min_size=1, max_size=15), st.lists(st.integers(-2, 4), max_size=8), cuts
)
def test_ndcg_with_a_judged_pool_equals_trec_eval(
    list_grades: list[int | None], other_grades: list[int], k: int
) -> None:
    """Grades are integers; lists have unjudged items and negative grades; the ideal is the judged pool."""
    pool = [grade for grade in list_grades if grade is not None] + other_grades
    assume(any(grade > 0 for grade in pool))
    expected = _trec_eval(list_grades, other_grades, {f"ndcg_cut.{k}"})[f"ndcg_cut_{k}"]
    ours = ndcg(non_negative_grades(list_grades), k, ideal=non_negative_grades(pool))
    assert ours == pytest.approx(expected, abs=1e-12)


@given(integer_grades, st.integers(1, 4), cuts)
def test_binary_metrics_equal_trec_eval(grades: list[int], relevant_grade: int, k: int) -> None:
    """The metrics are success@k, p@k and rr without a cutoff, at the same relevance level."""
    assume(max(grades) >= relevant_grade)
    trec_values = _trec_eval(grades, [], {f"success.{k}", f"P.{k}", "recip_rank"}, relevant_grade)
    assert success_at_k(grades, k, relevant_grade=relevant_grade) == trec_values[f"success_{k}"]
    assert precision_at_k(grades, k, relevant_grade=relevant_grade) == pytest.approx(trec_values[f"P_{k}"], abs=1e-12)
    assert reciprocal_rank(grades, relevant_grade=relevant_grade) == pytest.approx(trec_values["recip_rank"], abs=1e-12)


def test_trec_eval_rejects_fractional_grades() -> None:
    """Our metrics accept fractional grades."""
    judged: dict[str, Any] = {"q": {"d": 0.5}}
    with pytest.raises(TypeError):
        pytrec_eval.RelevanceEvaluator(judged, {"ndcg"}).evaluate({"q": {"d": 1.0}})
    assert cumulative_gain([0.5]) == 0.5


def test_trec_eval_returns_0_for_lists_without_gain() -> None:
    """Our nDCG of such lists is undefined."""
    assert _trec_eval([0, None], [], {"ndcg_cut.5"})["ndcg_cut_5"] == 0.0
    assert ndcg([0, None], 5) is None
