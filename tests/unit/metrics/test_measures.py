"""The metrics as plain functions: hand-computed values, positions, undefined cases, refusals."""

from __future__ import annotations

import doctest
import math
from types import ModuleType

import pytest

from monitor.config import Discount, Gain
from monitor.metrics import average_ndcg, cg, dcg, fixed_point, gains, ideal_dcg, measures, ndcg, p, rr, success
from monitor.metrics import ranked_lists as batch

METRICS = (cg, dcg, ideal_dcg, ndcg)


@pytest.mark.parametrize("module", [gains, measures, fixed_point, batch], ids=lambda module: module.__name__)
def test_examples(module: ModuleType) -> None:
    """The examples in the docstrings are true."""
    assert doctest.testmod(module).failed == 0


class TestGain:
    """What a grade is worth."""

    def test_names(self) -> None:
        """Gain linear is the grade, exp2 is 2^g − 1."""
        assert cg([3, 0.5]) == 3.5
        assert cg([3, 0.5], gain="exp2") == pytest.approx(7 + math.sqrt(2) - 1, abs=1e-15)

    @pytest.mark.parametrize("gain", ["linear", "exp2"])
    def test_negative_grade_gains_nothing(self, gain: Gain) -> None:
        """A negative grade neither gains nor costs, shown or in the ideal."""
        assert dcg([-2, 1], gain=gain) == dcg([0, 1], gain=gain)
        assert ndcg([1, -2], gain=gain) == 1.0

    def test_table(self) -> None:
        """A table gives each grade its gain, whatever number type names it."""
        assert dcg([2.0, None, 1], gain={0: 0, 1: 1, 2: 10}) == 10.5

    def test_grade_missing_from_table_is_named(self) -> None:
        """A grade that the table lacks is refused by name."""
        with pytest.raises(ValueError, match=r"grade 3 is not in the gain table \(it holds \[0.0, 1.0\]\)"):
            cg([1, 3], gain={0: 0, 1: 1})

    @pytest.mark.parametrize(
        "table",
        [{}, {0: -1}, {0: math.nan}, {math.inf: 1}, {1: 2, 2: 1}],
        ids=["empty", "negative", "nan", "inf", "falls"],
    )
    def test_refused_tables(self, table: dict[float, float]) -> None:
        """A table without a meaning is refused, though no grade is looked up."""
        with pytest.raises(ValueError, match="gain table"):
            cg([], gain=table)

    def test_grade_beyond_floats(self) -> None:
        """A grade whose exponential gain no float can hold is refused."""
        with pytest.raises(ValueError, match="grade 5000 is too large"):
            dcg([5000], gain="exp2")


class TestDiscount:
    """What is left of a gain at a rank."""

    @pytest.mark.parametrize(
        ("discount", "expected"),
        [
            ("log2", 4 + 4 / math.log2(3) + 4 / 2 + 4 / math.log2(5)),
            ("log2-from-2", 4 + 4 + 4 / math.log2(3) + 4 / 2),
            ("reciprocal", 4 + 2 + 4 / 3 + 1),
        ],
    )
    def test_names(self, discount: Discount, expected: float) -> None:
        """Each discount weighs the first four ranks as its formula says."""
        assert dcg([4, 4, 4, 4], discount=discount) == pytest.approx(expected, abs=1e-14)


class TestCut:
    """What k means."""

    def test_after_sorting(self) -> None:
        """The ideal is cut after sorting: a better item below the cut counts against the list."""
        assert ndcg([1, 2, 4], k=1) == 0.25

    def test_never_the_length(self) -> None:
        """One good item of five judged ones is not a perfect answer."""
        assert ndcg([3], k=5, ideal=[3] * 5, discount="reciprocal") == pytest.approx(
            1 / (1 + 1 / 2 + 1 / 3 + 1 / 4 + 1 / 5)
        )
        assert p([3], k=5, relevant_grade=3) == 0.2

    def test_beyond_the_list(self) -> None:
        """A cut below the end of the list changes nothing but precision."""
        assert dcg([3, 1], k=100) == dcg([3, 1])


class TestPositions:
    """Ranks given explicitly."""

    def test_holes(self) -> None:
        """An item counts at its position, not at its index."""
        assert dcg([1, 1, 1], ranks=[1, 3, 7]) == pytest.approx(1 + 1 / 2 + 1 / 3)
        assert rr([0, 3], ranks=[2, 4], relevant_grade=3) == 0.25

    def test_cut_is_a_rank(self) -> None:
        """The cut is at rank k, so an item at position 7 is out at k = 5 though it is the third."""
        assert cg([1, 1, 1], k=5, ranks=[1, 3, 7]) == 2
        assert success([0, 0, 3], k=5, ranks=[1, 3, 7], relevant_grade=3) == 0
        assert p([3, 3, 3], k=4, ranks=[1, 3, 7], relevant_grade=3) == 0.5

    def test_ideal_fills_every_slot(self) -> None:
        """The ideal list has no holes: the best grades stand at the ranks from 1 on."""
        assert ndcg([2, 2], ranks=[1, 3]) == pytest.approx((2 + 1) / (2 + 2 / math.log2(3)))

    def test_order_of_mention_is_irrelevant(self) -> None:
        """With ranks given, the sequence in which items are listed does not matter."""
        assert dcg([1, 3, 2], ranks=[3, 1, 2]) == dcg([3, 2, 1])

    def test_unjudged_keeps_its_rank(self) -> None:
        """An unjudged item is a hole."""
        assert dcg([3, None, 2]) == dcg([3, 2], ranks=[1, 3])

    @pytest.mark.parametrize("ranks", [[0, 1], [1, 1], [1], [1, 2, 3], [-1, 2]])
    def test_refused(self, ranks: list[int]) -> None:
        """Ranks must be distinct positions from 1, one per grade."""
        for metric in (cg, dcg, ndcg):
            with pytest.raises(ValueError, match="rank"):
                metric([1, 2], ranks=ranks)


class TestIdeal:
    """What nDCG divides by."""

    def test_shown(self) -> None:
        """By default the list's own judged grades, sorted, unjudged ones left out."""
        assert ideal_dcg([None, 1, 3]) == dcg([3, 1])

    def test_given(self) -> None:
        """Other grades may be given, in any order, unjudged ones ignored."""
        assert ideal_dcg([1], k=2, ideal=[None, 1, 4, 3]) == dcg([4, 3])

    def test_empty_ideal_is_not_the_default(self) -> None:
        """A pool without grades leaves nDCG undefined instead of falling back to those shown."""
        assert ndcg([3], ideal=[]) is None

    def test_constant_ideal_orders_as_dcg_does(self) -> None:
        """[3, 0, 0] is worse than [2, 3, 3] under a constant ideal, better under the ideal of the list itself."""
        worse, better = [3, 0, 0], [2, 3, 3]
        under_own = [ndcg(grades, 3, gain="exp2") for grades in (worse, better)]
        under_constant = [ndcg(grades, 3, gain="exp2", ideal=[4] * 3) for grades in (worse, better)]
        assert dcg(worse, 3, gain="exp2") == 7.0
        assert dcg(better, 3, gain="exp2") == pytest.approx(10.9165, abs=1e-4)
        assert under_own == [1.0, pytest.approx(0.845, abs=5e-4)]
        assert under_constant == sorted(under_constant, key=lambda value: value or 0)


class TestUndefined:
    """Where there is no value."""

    @pytest.mark.parametrize("relevance", [[], [None, None], [0, 0], [-1, 0]])
    def test_ideal_of_zero(self, relevance: list[float | None]) -> None:
        """The quotient is undefined where nothing was worth anything; the other metrics are 0."""
        assert ndcg(relevance, 5) is None
        assert cg(relevance, 5) == dcg(relevance, 5) == ideal_dcg(relevance, 5) == 0.0
        assert success(relevance, 5, relevant_grade=3) == rr(relevance, 5, relevant_grade=3) == 0.0
        assert p(relevance, 5, relevant_grade=3) == 0.0

    def test_average_leaves_undefined_lists_out(self) -> None:
        """An undefined list is neither 0 nor 1 in the mean."""
        assert average_ndcg([[1, 0], [0, 0], [0, 0, 1]], 3) == 0.75
        assert average_ndcg([[0], []]) is None
        assert average_ndcg([]) is None


class TestRefusals:
    """Arguments without a meaning."""

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
    def test_unknown_names(self, metric: object) -> None:
        """An unknown gain or discount is refused by every metric, also by those that do not use it."""
        assert callable(metric)
        with pytest.raises(ValueError, match="unknown gain 'industry', expected one of linear, exp2"):
            metric([1], gain="industry")
        with pytest.raises(ValueError, match="unknown discount 'ln', expected one of log2, log2-from-2, reciprocal"):
            metric([1], discount="ln")

    @pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
    @pytest.mark.parametrize("grade", [math.nan, math.inf, -math.inf])
    def test_non_finite_grades(self, metric: object, grade: float) -> None:
        """A grade that is not finite is refused, also below the cut and in the ideal."""
        assert callable(metric)
        with pytest.raises(ValueError, match="expected finite grades"):
            metric([1, grade], 1)
        with pytest.raises(ValueError, match="expected finite grades"):
            metric([1], ideal=[grade])

    @pytest.mark.parametrize("k", [0, -1])
    def test_cut_below_one(self, k: int) -> None:
        """A cut below 1 is refused."""
        for metric in METRICS:
            with pytest.raises(ValueError, match="expected at least 1"):
                metric([1], k)
        for measure in (success, rr, p):
            with pytest.raises(ValueError, match="expected at least 1"):
                measure([1], k, relevant_grade=1)

    def test_relevant_grade(self) -> None:
        """A threshold that is not finite is refused."""
        for measure in (success, rr, p):
            with pytest.raises(ValueError, match="relevant_grade is nan"):
                measure([1], 1, relevant_grade=math.nan)


class TestBinaryMetrics:
    """success, rr and p."""

    def test_threshold_is_inclusive(self) -> None:
        """A grade equal to the threshold is relevant."""
        assert success([2.9, 3], 2, relevant_grade=3) == 1.0
        assert rr([2.9, 3], 2, relevant_grade=3) == 0.5
        assert p([2.9, 3], 2, relevant_grade=3) == 0.5

    def test_unjudged_is_not_relevant(self) -> None:
        """An unjudged item is not relevant, whatever the threshold."""
        assert success([None], 1, relevant_grade=-5) == 0.0
