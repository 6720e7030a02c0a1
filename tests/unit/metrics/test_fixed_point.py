"""`Scorer`: rounding, hand-computed values, invalid arguments, scorers of experiments."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from monitor.config import ExperimentSettings, MetricSpec
from monitor.metrics import FIXED_POINT_SCALE, Scorer


def test_terms_are_rounded_half_to_even() -> None:
    """Half a unit rounds to even before any addition."""
    scorer = Scorer((MetricSpec("dcg@3", "dcg", 3), MetricSpec("cg@3", "cg", 3)), discount="reciprocal")
    halves = [unit / 2 / FIXED_POINT_SCALE for unit in range(8)]
    rounded = [scorer.score([1], [half])[0] for half in halves]
    assert rounded == [0, 0, 1, 2, 2, 2, 3, 4]
    assert scorer.score([1, 2, 3], [halves[1]] * 3) == (0, 0)


def test_rounding_never_raises_ndcg_above_1() -> None:
    """Gains of 5/8, 7/8 and 1/8 of a unit round to a DCG of 2 units, and sorted to 1 unit; nDCG is 1, not 2."""
    scorer = Scorer((MetricSpec("dcg@3", "dcg", 3), MetricSpec("ndcg@3", "ndcg", 3)))
    grades = [eighths / 8 / FIXED_POINT_SCALE for eighths in (5, 7, 1)]
    assert scorer.score([1, 2, 3], grades) == (2, FIXED_POINT_SCALE)
    assert scorer.score([1, 2, 3], sorted(grades, reverse=True)) == (1, FIXED_POINT_SCALE)
    values, _ = scorer.score_batch(np.array([[1, 2, 3]]), np.array([grades]))
    assert values.tolist() == [[2, FIXED_POINT_SCALE]]


def test_all_metrics_of_a_response_equal_hand_computed_values() -> None:
    """The response has items at the positions 1, 3 and 5, and k is 4."""
    scorer = Scorer([MetricSpec(f"{name}@4", name, 4) for name in ("cg", "dcg", "ndcg", "success", "rr", "p")])
    # Position 5 is beyond the cutoff but in the ideal: DCG 1/1 + 4/2 = 3, ideal 4 + 2/log2 3 + 1/2.
    dcg_units = FIXED_POINT_SCALE + 2 * FIXED_POINT_SCALE
    ideal_units = 4 * FIXED_POINT_SCALE + round(2 * (1 / math.log2(3)) * FIXED_POINT_SCALE) + FIXED_POINT_SCALE // 2
    expected = (
        5 * FIXED_POINT_SCALE,
        dcg_units,
        round(dcg_units / ideal_units * FIXED_POINT_SCALE),
        FIXED_POINT_SCALE,
        round(FIXED_POINT_SCALE / 3),
        FIXED_POINT_SCALE // 4,
    )
    assert scorer.score([1, 3, 5], [1.0, 4.0, 2.0]) == expected


def test_scores_do_not_depend_on_the_cache_of_grades() -> None:
    """10 000 distinct grades exceed the cache and get equal scores twice."""
    scorer = Scorer((MetricSpec("ndcg@2", "ndcg", 2), MetricSpec("dcg@2", "dcg", 2)), ideal="constant")
    grades = [index / 2500 for index in range(10_000)]
    scores = [scorer.score([1, 2], pair) for pair in pairwise(grades)]
    assert [scorer.score([1, 2], pair) for pair in pairwise(grades)] == scores


class TestInvalidArguments:
    """Grades and definitions that raise ValueError."""

    @pytest.mark.parametrize("grade", [4.5, math.inf, -math.inf])
    def test_grade_above_max_grade_raises_value_error(self, grade: float) -> None:
        """The forms for a single response and for a batch both check grades."""
        scorer = Scorer((MetricSpec("dcg@5", "dcg", 5),))
        with pytest.raises(ValueError, match="up to max_grade 4"):
            scorer.score([1], [grade])
        with pytest.raises(ValueError, match="up to max_grade 4"):
            scorer.score_batch(np.array([[1]]), np.array([[grade]]))

    def test_nan_grade_of_a_single_response_raises_value_error(self) -> None:
        """In a batch, NaN stands for an unjudged item."""
        with pytest.raises(ValueError, match="grade is nan"):
            Scorer((MetricSpec("dcg@5", "dcg", 5),)).score([1], [math.nan])

    def test_definitions_with_inexact_sums_raise_value_error(self) -> None:
        """Contributions of 2⁵³ or more are not exact in float64."""
        with pytest.raises(ValueError, match=r"grade 23\.1 gains 8\.99069e\+06"):
            Scorer((MetricSpec("dcg@1", "dcg", 1),), gain="exp2", max_grade=23.1)
        with pytest.raises(ValueError, match=r"cg@3 reaches"):
            Scorer((MetricSpec("cg@3", "cg", 3),), max_grade=2**22)

    @pytest.mark.parametrize("rule", [5.0, ((0.1, 1.0), (0.5, 5.0))], ids=["constant", "thresholds"])
    def test_grading_rule_above_max_grade_raises_value_error(
        self, rule: float | tuple[tuple[float, float], ...]
    ) -> None:
        """The rules are checked when the scorer is created."""
        experiment = ExperimentSettings(
            name="e",
            control="a",
            variants={"a": 1.0},
            metrics=(MetricSpec("dcg@5", "dcg", 5),),
            grades={"helpful": rule},
        )
        with pytest.raises(ValueError, match=r"grade is 5\.0"):
            Scorer.for_experiment(experiment)

    def test_gain_table_without_max_grade_raises_value_error(self) -> None:
        """The bounds of contributions need the gain of `max_grade`."""
        with pytest.raises(ValueError, match="grade 4 is not in the gain table"):
            Scorer((MetricSpec("dcg@5", "dcg", 5),), gain={0: 0, 1: 1})


def test_scorer_uses_all_definitions_of_an_experiment() -> None:
    """Gain, discount, ideal and thresholds all differ from the defaults."""
    metrics = (MetricSpec("dcg@2", "dcg", 2), MetricSpec("ndcg@2", "ndcg", 2), MetricSpec("p@2", "p", 2))
    experiment = ExperimentSettings(
        name="e",
        control="a",
        variants={"a": 1.0},
        metrics=metrics,
        gain="exp2",
        discount="reciprocal",
        ideal="constant",
        max_grade=2,
        relevant_grade=1,
        grades={"rating": "score"},
    )
    scorer = Scorer.for_experiment(experiment)
    assert scorer.metrics == metrics
    # 1/1 + 3/2 = 2.5 of an ideal of 3/1 + 3/2 = 4.5
    assert scorer.score([1, 2], [1, 2]) == (
        5 * FIXED_POINT_SCALE // 2,
        round(2.5 / 4.5 * FIXED_POINT_SCALE),
        FIXED_POINT_SCALE,
    )
