"""The metrics as float functions: hand-computed values, positions, undefined cases, rejected arguments."""

from __future__ import annotations

import doctest
import math
from types import ModuleType

import pytest

from monitor.config import NamedDiscount, NamedGain
from monitor.metrics import (
    cumulative_gain,
    dcg,
    fixed_point,
    gains,
    ideal_dcg,
    mean_ndcg,
    measures,
    ndcg,
    non_negative_grades,
    precision_at_k,
    ranked_lists,
    reciprocal_rank,
    success_at_k,
)

METRICS = (cumulative_gain, dcg, ideal_dcg, ndcg)


@pytest.mark.parametrize("module", [gains, measures, fixed_point, ranked_lists], ids=lambda module: module.__name__)
def test_docstring_examples_are_correct(module: ModuleType) -> None:
    """All doctests of the module pass."""
    assert doctest.testmod(module).failed == 0


class TestGain:
    """Gain functions, by name or as a table."""

    def test_linear_gain_is_the_grade_and_exp2_gain_is_a_power_of_2_minus_1(self) -> None:
        """The exp2 gain of 0.5 is √2 − 1."""
        assert cumulative_gain([3, 0.5]) == 3.5
        assert cumulative_gain([3, 0.5], gain="exp2") == pytest.approx(7 + math.sqrt(2) - 1, abs=1e-15)

    @pytest.mark.parametrize("gain", ["linear", "exp2"])
    def test_negative_grade_has_gain_0(self, gain: NamedGain) -> None:
        """A negative grade changes neither DCG nor the ideal DCG."""
        assert dcg([-2, 1], gain=gain) == dcg([0, 1], gain=gain)
        assert ideal_dcg([-2, 1], gain=gain) == ideal_dcg([0, 1], gain=gain)
        assert ndcg(non_negative_grades([1, -2]), gain=gain) == 1.0

    @pytest.mark.parametrize(("relevance", "ideal"), [([1, -2], None), ([1, 2], [3, None, -1])])
    def test_ndcg_of_a_negative_grade_is_rejected(
        self, relevance: list[float], ideal: list[float | None] | None
    ) -> None:
        """As in scikit-learn, in the list and in the ideal, also with a gain table that has the grade."""
        tested_gains: list[NamedGain | dict[float, float]] = ["linear", "exp2", {-2: 0, -1: 0, 1: 1, 2: 2, 3: 3}]
        for gain in tested_gains:
            with pytest.raises(ValueError, match=r"nDCG: got grade -[12], expected grades of at least 0"):
                ndcg(relevance, gain=gain, ideal=ideal)
        with pytest.raises(ValueError, match=r"nDCG: got grade -[12]"):
            mean_ndcg([[1], relevance], ideal=ideal)

    def test_gain_table_maps_grades_to_gains(self) -> None:
        """Grades may be int or float, in the table and in the list."""
        assert dcg([2.0, None, 1], gain={0: 0, 1: 1, 2: 10}) == 10.5

    def test_grade_missing_from_table_is_named(self) -> None:
        """The message has the grade and the grades of the table."""
        with pytest.raises(ValueError, match=r"grade 3 is not in the gain table \(grades: \[0.0, 1.0\]\)"):
            cumulative_gain([1, 3], gain={0: 0, 1: 1})

    @pytest.mark.parametrize(
        "table",
        [{}, {0: -1}, {0: math.nan}, {math.inf: 1}, {1: 2, 2: 1}],
        ids=["empty", "negative", "nan", "inf", "falls"],
    )
    def test_invalid_gain_table_raises_value_error(self, table: dict[float, float]) -> None:
        """The table is checked even for an empty list."""
        with pytest.raises(ValueError, match="gain table"):
            cumulative_gain([], gain=table)

    def test_grade_with_too_large_exp2_gain_raises_value_error(self) -> None:
        """2^5000 exceeds the largest float."""
        with pytest.raises(ValueError, match="grade 5000 is too large"):
            dcg([5000], gain="exp2")


class TestDiscount:
    """Discount functions, by name."""

    @pytest.mark.parametrize(
        ("discount", "expected"),
        [
            ("log2", 4 + 4 / math.log2(3) + 4 / 2 + 4 / math.log2(5)),
            ("log2-from-2", 4 + 4 + 4 / math.log2(3) + 4 / 2),
            ("reciprocal", 4 + 2 + 4 / 3 + 1),
        ],
    )
    def test_discounts_follow_their_formulas(self, discount: NamedDiscount, expected: float) -> None:
        """The DCG of four equal grades sums the discounts of the first four ranks."""
        assert dcg([4, 4, 4, 4], discount=discount) == pytest.approx(expected, abs=1e-14)


class TestCutoff:
    """The cutoff rank k."""

    def test_ideal_is_sorted_before_the_cutoff(self) -> None:
        """A better item below the cutoff lowers nDCG."""
        assert ndcg([1, 2, 4], k=1) == 0.25

    def test_k_is_not_replaced_by_the_list_length(self) -> None:
        """A list with one of five relevant items has an nDCG and a precision below 1."""
        assert ndcg([3], k=5, ideal=[3] * 5, discount="reciprocal") == pytest.approx(
            1 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
        )
        assert precision_at_k([3], k=5, relevant_grade=3) == 0.2

    def test_k_beyond_the_list_leaves_dcg_unchanged(self) -> None:
        """A cutoff behind the last item has no effect on DCG."""
        assert dcg([3, 1], k=100) == dcg([3, 1])


class TestPositions:
    """Explicit ranks."""

    def test_items_count_at_their_positions_when_positions_have_gaps(self) -> None:
        """The discount and the reciprocal rank use the position of an item, not the index."""
        assert dcg([1, 1, 1], ranks=[1, 3, 7]) == pytest.approx(1 + 1 / 2 + 1 / 3)
        assert reciprocal_rank([0, 3], ranks=[2, 4], relevant_grade=3) == 0.25

    def test_cutoff_applies_to_positions(self) -> None:
        """The third item, at position 7, is beyond a cutoff of 5."""
        assert cumulative_gain([1, 1, 1], k=5, ranks=[1, 3, 7]) == 2
        assert success_at_k([0, 0, 3], k=5, ranks=[1, 3, 7], relevant_grade=3) == 0
        assert precision_at_k([3, 3, 3], k=4, ranks=[1, 3, 7], relevant_grade=3) == 0.5

    def test_ideal_list_has_no_gaps(self) -> None:
        """In the ideal list the best grades have the first ranks, without gaps."""
        assert ndcg([2, 2], ranks=[1, 3]) == pytest.approx((2 + 1) / (2 + 2 / math.log2(3)))

    def test_order_of_items_is_irrelevant_with_explicit_ranks(self) -> None:
        """DCG depends on the ranks, not on the order of the arguments."""
        assert dcg([1, 3, 2], ranks=[3, 1, 2]) == dcg([3, 2, 1])

    def test_unjudged_item_leaves_a_gap(self) -> None:
        """An unjudged item occupies a rank and has no gain."""
        assert dcg([3, None, 2]) == dcg([3, 2], ranks=[1, 3])

    @pytest.mark.parametrize("ranks", [[0, 1], [1, 1], [1], [1, 2, 3], [-1, 2]])
    def test_invalid_ranks_raise_value_error(self, ranks: list[int]) -> None:
        """Ranks are distinct, at least 1, and as many as grades."""
        for metric in (cumulative_gain, dcg, ndcg):
            with pytest.raises(ValueError, match="rank"):
                metric([1, 2], ranks=ranks)


class TestIdeal:
    """The ideal DCG, by which nDCG divides."""

    def test_default_ideal_has_the_judged_grades_of_the_list(self) -> None:
        """Unjudged items are left out, judged grades are sorted."""
        assert ideal_dcg([None, 1, 3]) == dcg([3, 1])

    def test_explicit_ideal_replaces_the_grades_of_the_list(self) -> None:
        """The ideal may have any order; unjudged items are ignored."""
        assert ideal_dcg([1], k=2, ideal=[None, 1, 4, 3]) == dcg([4, 3])

    def test_empty_ideal_leaves_ndcg_undefined(self) -> None:
        """The grades of the list are not used in place of an empty ideal."""
        assert ndcg([3], ideal=[]) is None

    def test_constant_ideal_orders_lists_like_dcg(self) -> None:
        """[3, 0, 0] is worse than [2, 3, 3] under a constant ideal, better under the ideal of the list itself."""
        worse, better = [3, 0, 0], [2, 3, 3]
        ndcg_by_list_ideal = [ndcg(grades, 3, gain="exp2") for grades in (worse, better)]
        ndcg_by_constant_ideal = [ndcg(grades, 3, gain="exp2", ideal=[4] * 3) for grades in (worse, better)]
        assert dcg(worse, 3, gain="exp2") == 7.0
        assert dcg(better, 3, gain="exp2") == pytest.approx(10.9165, abs=1e-4)
        assert ndcg_by_list_ideal == [1.0, pytest.approx(0.845, abs=5e-4)]
        assert ndcg_by_constant_ideal == sorted(ndcg_by_constant_ideal, key=lambda value: value or 0)


class TestUndefined:
    """Undefined metrics."""

    @pytest.mark.parametrize("relevance", [[], [None, None], [0, 0], [-1, 0]])
    def test_without_any_gain_only_ndcg_is_undefined(self, relevance: list[float | None]) -> None:
        """All other metrics are 0."""
        assert ndcg(non_negative_grades(relevance), 5) is None
        assert cumulative_gain(relevance, 5) == dcg(relevance, 5) == ideal_dcg(relevance, 5) == 0.0
        assert success_at_k(relevance, 5, relevant_grade=3) == reciprocal_rank(relevance, 5, relevant_grade=3) == 0.0
        assert precision_at_k(relevance, 5, relevant_grade=3) == 0.0

    def test_mean_ndcg_leaves_undefined_lists_out(self) -> None:
        """An undefined list counts neither as 0 nor as 1; without a defined list the mean is undefined."""
        assert mean_ndcg([[1, 0], [0, 0], [0, 0, 1]], 3) == 0.75
        assert mean_ndcg([[0], []]) is None
        assert mean_ndcg([]) is None


class TestInvalidArguments:
    """Arguments that raise ValueError."""

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
    def test_unknown_gain_raises_value_error(self, metric: object) -> None:
        """The message names the known gains."""
        assert callable(metric)
        with pytest.raises(ValueError, match="unknown gain 'industry', expected one of linear, exp2"):
            metric([1], gain="industry")

    @pytest.mark.parametrize("metric", [dcg, ideal_dcg, ndcg], ids=lambda metric: metric.__name__)
    def test_unknown_discount_raises_value_error(self, metric: object) -> None:
        """The message names the known discounts."""
        assert callable(metric)
        with pytest.raises(ValueError, match="unknown discount 'ln', expected one of log2, log2-from-2, reciprocal"):
            metric([1], discount="ln")

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
    @pytest.mark.parametrize("grade", [math.nan, math.inf, -math.inf])
    def test_non_finite_grade_raises_value_error(self, metric: object, grade: float) -> None:
        """Grades below the cutoff are checked, too."""
        assert callable(metric)
        with pytest.raises(ValueError, match="expected finite grades"):
            metric([1, grade], 1)

    @pytest.mark.parametrize("metric", [ideal_dcg, ndcg], ids=lambda metric: metric.__name__)
    @pytest.mark.parametrize("grade", [math.nan, math.inf, -math.inf])
    def test_non_finite_grade_of_the_ideal_raises_value_error(self, metric: object, grade: float) -> None:
        """The grades of the ideal are checked like the grades of the list."""
        assert callable(metric)
        with pytest.raises(ValueError, match="expected finite grades"):
            metric([1], ideal=[grade])

    @pytest.mark.parametrize("k", [0, -1])
    def test_cutoff_below_1_raises_value_error(self, k: int) -> None:
        """All metrics check k."""
        for metric in METRICS:
            with pytest.raises(ValueError, match="expected at least 1"):
                metric([1], k)
        for measure in (success_at_k, reciprocal_rank, precision_at_k):
            with pytest.raises(ValueError, match="expected at least 1"):
                measure([1], k, relevant_grade=1)

    def test_non_finite_relevant_grade_raises_value_error(self) -> None:
        """All metrics with a threshold check the threshold."""
        for measure in (success_at_k, reciprocal_rank, precision_at_k):
            with pytest.raises(ValueError, match="relevant_grade is nan"):
                measure([1], 1, relevant_grade=math.nan)


class TestBinaryMetrics:
    """Success, reciprocal rank and precision."""

    def test_grade_equal_to_the_threshold_is_relevant(self) -> None:
        """A grade of 3 is relevant for `relevant_grade` 3, a grade of 2.9 is not."""
        assert success_at_k([2.9, 3], 2, relevant_grade=3) == 1.0
        assert reciprocal_rank([2.9, 3], 2, relevant_grade=3) == 0.5
        assert precision_at_k([2.9, 3], 2, relevant_grade=3) == 0.5

    def test_unjudged_item_is_not_relevant(self) -> None:
        """An unjudged item is not relevant even with a negative threshold."""
        assert success_at_k([None], 1, relevant_grade=-5) == 0.0
