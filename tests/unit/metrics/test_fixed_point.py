"""`Scorer` by hand: rounding, one response under every metric, refusals, what an experiment turns into."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest

from monitor.config import ExperimentSettings, MetricSpec
from monitor.metrics import SCALE, Scorer


def test_terms_are_rounded_half_to_even() -> None:
    """Half a unit rounds to even, before anything is added."""
    scorer = Scorer((MetricSpec("dcg@3", "dcg", 3), MetricSpec("cg@3", "cg", 3)), discount="reciprocal")
    halves = [unit / 2 / SCALE for unit in range(8)]
    rounded = [scorer.score([1], [half])[0] for half in halves]
    assert rounded == [0, 0, 1, 2, 2, 2, 3, 4]
    assert scorer.score([1, 2, 3], [halves[1]] * 3) == (0, 0)


def test_rounding_never_lifts_a_list_above_its_ideal() -> None:
    """5/8, 7/8 and 1/8 of a unit round to a DCG of 2 units in this order and to 1 unit sorted; nDCG is 1, not 2."""
    scorer = Scorer((MetricSpec("dcg@3", "dcg", 3), MetricSpec("ndcg@3", "ndcg", 3)))
    grades = [eighths / 8 / SCALE for eighths in (5, 7, 1)]
    assert scorer.score([1, 2, 3], grades) == (2, SCALE)
    assert scorer.score([1, 2, 3], sorted(grades, reverse=True)) == (1, SCALE)
    values, _ = scorer.score_batch(np.array([[1, 2, 3]]), np.array([grades]))
    assert values.tolist() == [[2, SCALE]]


def test_hand_computed() -> None:
    """One response under every metric, by hand."""
    scorer = Scorer([MetricSpec(f"{name}@4", name, 4) for name in ("cg", "dcg", "ndcg", "success", "rr", "p")])
    # Position 5 is beyond the cut but in the ideal: DCG 1/1 + 4/2 = 3, ideal 4 + 2/log2 3 + 1/2.
    dcg_units = SCALE + 2 * SCALE
    ideal_units = 4 * SCALE + round(2 * (1 / math.log2(3)) * SCALE) + SCALE // 2
    expected = (5 * SCALE, dcg_units, round(dcg_units / ideal_units * SCALE), SCALE, round(SCALE / 3), SCALE // 4)
    assert scorer.score([1, 3, 5], [1.0, 4.0, 2.0]) == expected


def test_many_distinct_grades() -> None:
    """Continuous scores, more than are remembered, are scored the same the first and the second time."""
    scorer = Scorer((MetricSpec("ndcg@2", "ndcg", 2), MetricSpec("dcg@2", "dcg", 2)), ideal="constant")
    grades = [index / 2500 for index in range(10_000)]
    first = [scorer.score([1, 2], pair) for pair in pairwise(grades)]
    assert [scorer.score([1, 2], pair) for pair in pairwise(grades)] == first


class TestRefusals:
    """What cannot be scored."""

    @pytest.mark.parametrize("grade", [4.5, math.inf, -math.inf])
    def test_grades(self, grade: float) -> None:
        """A grade above `max_grade` would break the bounds; it is refused, by both forms."""
        scorer = Scorer((MetricSpec("dcg@5", "dcg", 5),))
        with pytest.raises(ValueError, match="up to max_grade 4"):
            scorer.score([1], [grade])
        with pytest.raises(ValueError, match="up to max_grade 4"):
            scorer.score_batch(np.array([[1]]), np.array([[grade]]))

    def test_nan(self) -> None:
        """NaN is not a grade of one response (in a batch it means unjudged)."""
        with pytest.raises(ValueError, match="grade is nan"):
            Scorer((MetricSpec("dcg@5", "dcg", 5),)).score([1], [math.nan])

    def test_sums_beyond_exactness(self) -> None:
        """Definitions whose contributions would leave the exact integers of a float64 are refused."""
        with pytest.raises(ValueError, match=r"grade 23\.1 gains 8\.99069e\+06"):
            Scorer((MetricSpec("dcg@1", "dcg", 1),), gain="exp2", max_grade=23.1)
        with pytest.raises(ValueError, match=r"cg@3 reaches"):
            Scorer((MetricSpec("cg@3", "cg", 3),), max_grade=2**22)

    @pytest.mark.parametrize("rule", [5.0, ((0.1, 1.0), (0.5, 5.0))], ids=["constant", "thresholds"])
    def test_rules_that_grade_too_high(self, rule: float | tuple[tuple[float, float], ...]) -> None:
        """A rule that maps to a grade above `max_grade` is refused before anything is scored."""
        experiment = ExperimentSettings(
            name="e",
            control="a",
            variants={"a": 1.0},
            metrics=(MetricSpec("dcg@5", "dcg", 5),),
            grades={"helpful": rule},
        )
        with pytest.raises(ValueError, match=r"grade is 5\.0"):
            Scorer.of(experiment)

    def test_table_without_the_largest_grade(self) -> None:
        """A gain table must hold `max_grade`, from which the bounds come."""
        with pytest.raises(ValueError, match="grade 4 is not in the gain table"):
            Scorer((MetricSpec("dcg@5", "dcg", 5),), gain={0: 0, 1: 1})


def test_scorer_of_an_experiment() -> None:
    """Every definition of an experiment reaches its scorer."""
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
    scorer = Scorer.of(experiment)
    assert scorer.metrics == metrics
    # 1/1 + 3/2 = 2.5 of an ideal of 3/1 + 3/2 = 4.5
    assert scorer.score([1, 2], [1, 2]) == (5 * SCALE // 2, round(2.5 / 4.5 * SCALE), SCALE)
