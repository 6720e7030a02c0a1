"""Distances of distributions: other implementations' figures, the law they follow by chance, and what has none."""

from __future__ import annotations

import doctest
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.distance import jensenshannon
from scipy.stats import chi2, entropy

from monitor.analysis import drift as module
from monitor.analysis.drift import day_drift, js_distance, measure_drift, psi

counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000))


def _shares(one: dict[str, int], other: dict[str, int], more: float) -> tuple[list[float], list[float]]:
    cells = [cell for cell in "abcdef" if one.get(cell) or other.get(cell)]
    p, q = ([side.get(cell, 0) + more for cell in cells] for side in (one, other))
    return [each / sum(p) for each in p], [each / sum(q) for each in q]


def _multinomial(seed: int, observations: int, shares: list[float]) -> dict[str, int]:
    drawn = np.random.default_rng(seed).multinomial(observations, shares)
    return {f"cell {number}": int(count) for number, count in enumerate(drawn)}


class TestDistances:
    """How far apart two distributions are."""

    def test_the_examples_in_the_docstrings_hold(self) -> None:
        """They were computed by hand."""
        found = doctest.testmod(module)
        assert found.attempted > 0
        assert found.failed == 0

    @given(counts, counts)
    def test_scipy_says_the_same(self, one: dict[str, int], other: dict[str, int]) -> None:
        """PSI is the sum of both divergences of the smoothed shares; undefined is where scipy has no shares."""
        if not (any(one.values()) and any(other.values())):
            assert (psi(one, other), js_distance(one, other)) == (None, None)
            return
        p, q = _shares(one, other, 0.5)
        assert psi(one, other) == pytest.approx(entropy(p, q) + entropy(q, p), abs=1e-11)
        assert js_distance(one, other) == pytest.approx(jensenshannon(*_shares(one, other, 0), base=2), abs=1e-7)

    @given(counts, counts)
    def test_they_are_distances(self, one: dict[str, int], other: dict[str, int]) -> None:
        """Symmetric, 0 for the same shares; cells that nobody has change nothing."""
        for measure in (psi, js_distance):
            assert measure(one, other) == measure(other, one)
            assert measure({**one, "nobody": 0}, other) == measure(one, other)
            assert measure(one, one) in {None, 0}
        assert js_distance({cell: 3 * count for cell, count in one.items()}, one) in {None, 0}

    def test_an_empty_cell_is_not_infinitely_far(self) -> None:
        """Half an observation on each side, and a distance of 1 where nothing is in common."""
        expected = 2 * (4.5 / 5 - 0.5 / 5) * math.log(4.5 / 0.5)
        assert psi({"a": 4}, {"b": 4}) == pytest.approx(expected)
        assert js_distance({"a": 4}, {"b": 4}) == 1

    def test_small_differences_are_not_lost_in_rounding(self) -> None:
        """(1 + d)ln(1 + d) + (1 − d)ln(1 − d) is d² for small d: here 2·10⁻⁶, in both cells."""
        one, other = {"a": 500_001, "b": 499_999}, {"a": 499_999, "b": 500_001}
        expected = math.sqrt(2 * 2e-6**2 / 4 / math.log(2))
        assert js_distance(one, other) == pytest.approx(expected, rel=1e-5)


class TestThreshold:
    """What chance alone passes."""

    def test_with_many_observations_it_is_that_of_the_chi_square_law(self) -> None:
        """Yurdakul & Naranjo 2020; PSI in nats is eight times the divergence where two samples are of one size."""
        n, m, cells = 20_000, 60_000, 6
        shares = [0.3, 0.25, 0.2, 0.15, 0.07, 0.03]
        found = measure_drift(_multinomial(1, n, shares), _multinomial(2, m, shares), alpha=0.05)
        assert found.psi is not None
        assert found.psi.threshold == pytest.approx(chi2.isf(0.05, cells - 1) * (1 / n + 1 / m), rel=0.08)
        same = measure_drift(_multinomial(1, n, shares), _multinomial(2, n, shares), alpha=0.05)
        assert same.js is not None
        law = math.sqrt(chi2.isf(0.05, cells - 1) * (2 / n) / 8 / math.log(2))
        assert same.js.threshold == pytest.approx(law, rel=0.04)

    def test_it_is_passed_by_chance_as_often_as_it_says(self) -> None:
        """400 pairs without any change, also with cells that are mostly empty."""
        shares = [0.5, 0.3, 0.1, 0.05, 0.03, 0.02]
        passed = {"psi": 0, "js": 0}
        for number in range(400):
            pair = _multinomial(2 * number, 60, shares), _multinomial(2 * number + 1, 90, shares)
            found = measure_drift(*pair, alpha=0.1, draws=199)
            assert found.psi is not None
            assert found.js is not None
            passed["psi"] += found.psi.exceeded
            passed["js"] += found.js.exceeded
        # 40 expected; 400 coins with 0.1 stay within 21 and 61 in 99.9 % of all cases.
        assert all(21 <= count <= 61 for count in passed.values()), passed

    def test_nor_where_most_cells_were_hardly_ever_seen(self) -> None:
        """200 cells, 100 observations a side: samples drawn with replacement would alarm in most of 100 pairs."""
        ranks = 1 / np.arange(1, 201)
        shares = list(ranks / ranks.sum())
        passed = 0
        for number in range(100):
            pair = _multinomial(2 * number, 100, shares), _multinomial(2 * number + 1, 100, shares)
            found = measure_drift(*pair, alpha=0.1, draws=99)
            assert found.js is not None
            passed += found.js.exceeded
        assert passed <= 21

    def test_the_usual_limits_call_for_nothing(self) -> None:
        """Ten cells of three observations pass 0.25 by chance; thousands that really changed do not reach 0.1."""
        flat = [0.1] * 10
        few = measure_drift(_multinomial(1, 30, flat), _multinomial(2, 30, flat), alpha=0.05).psi
        many = measure_drift(_multinomial(3, 20_000, [0.12, 0.08, *flat[2:]]), _multinomial(4, 20_000, flat)).psi
        assert few is not None
        assert few.threshold > 0.25
        assert many is not None
        assert many.value < 0.1
        assert many.exceeded

    @given(counts, counts, st.sampled_from([0.05, 0.1, 0.5]))
    def test_it_is_a_function_of_the_counts(self, one: dict[str, int], other: dict[str, int], alpha: float) -> None:
        """No order of cells changes a digit, and being above the threshold is p ≤ α."""
        found = measure_drift(one, other, alpha=alpha, draws=39)
        turned = [dict(reversed(side.items())) for side in (one, other)]
        assert measure_drift(*turned, alpha=alpha, draws=39) == found
        for distance in (found.psi, found.js):
            assert (distance is None) == (not (any(one.values()) and any(other.values())))
            if distance is not None:
                assert distance.exceeded == (distance.p <= alpha)
                assert 0 < distance.p <= 1

    @given(counts, counts)
    def test_names_decide_nothing_but_their_order(self, one: dict[str, int], other: dict[str, int]) -> None:
        """Other names in the same order draw the same samples: no hash of a name has a say."""
        renamed = [{f"cell {cell}": count for cell, count in side.items()} for side in (one, other)]
        assert measure_drift(*renamed, alpha=0.1, draws=19) == measure_drift(one, other, alpha=0.1, draws=19)

    def test_the_share_of_draws_above_it(self) -> None:
        """One draw fewer than α of them and of the observed value together: at α = 0.1 nine of 99."""
        one, other = {"a": 5_000, "b": 3_000, "c": 1_000}, {"a": 5_100, "b": 2_900, "c": 1_000}
        found = measure_drift(one, other, alpha=0.1, draws=99)
        drawn = module._null(np.array([10_100.0, 5_900.0, 2_000.0]), 9_000, 99, 0)
        for distance, null in zip((found.psi, found.js), drawn, strict=True):
            assert distance is not None
            assert np.count_nonzero(null > distance.threshold) == 9

    def test_draws_in_several_pieces_are_the_same_draws(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """How much memory is used decides nothing."""
        whole = measure_drift({"a": 9, "b": 4}, {"a": 3, "b": 7, "c": 1})
        monkeypatch.setattr(module, "_CELLS_AT_ONCE", 100)
        assert measure_drift({"a": 9, "b": 4}, {"a": 3, "b": 7, "c": 1}) == whole

    def test_where_all_is_in_one_cell_there_is_no_chance_to_compare_with(self) -> None:
        """One stray observation among thousands that are alike is no drift; nor is it where lists fill all cells."""
        for counts, reference, alike, together in (
            ({"a": 10_000, "b": 1}, {"a": 70_000}, 20.0, 1),
            ({f"v{n}": 1_000 for n in range(5)} | {"z": 1}, {f"v{n}": 7_000 for n in range(5)}, 100.0, 5),
            ({f"v{n}": 1_000 for n in range(4)} | {"v4": 999}, {f"v{n}": 7_000 for n in range(5)}, 100.0, 5),
            ({f"v{n}": 1_000 for n in range(9)} | {"v9": 999}, {f"v{n}": 7_000 for n in range(10)}, 100.0, 64),
        ):
            found = measure_drift(counts, reference, alike=alike, together=together)
            assert not any(each is not None and each.exceeded for each in (found.psi, found.js)), found

    def test_nothing_to_compare(self) -> None:
        """An empty side has no distance, a single cell none but 0."""
        found = measure_drift({}, {"a": 1})
        assert (found.observations, found.reference, found.psi, found.js) == (0, 1, None, None)
        single = measure_drift({"a": 7}, {"a": 2, "b": 0})
        assert single.cells == 1
        assert asdict(single)["psi"] == {"value": 0, "threshold": 0, "p": 1, "exceeded": False}

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda: psi({"a": -1}, {"a": 1}), "the count of 'a' is -1, expected at least 0"),
            (lambda: measure_drift({"a": 1}, {"a": 1}, alpha=0), "alpha is 0, expected a level between 0 and 1"),
            (
                lambda: measure_drift({"a": 10**9}, {}),
                "1000000000 and 0 observations, expected fewer than 10⁹ together",
            ),
            (lambda: measure_drift({"a": 1}, {"a": 1}, draws=98), "draws is 98, expected at least 99 for alpha 0.01"),
        ],
    )
    def test_refusals(self, call: Callable[[], object], message: str) -> None:
        """Each names the argument, the value and what was expected."""
        with pytest.raises(ValueError, match=message):
            call()


class TestDay:
    """The last whole day against a reference."""

    def test_the_first_days_are_the_reference_and_never_judged(self) -> None:
        """Today is not over, the reference does not differ from itself."""
        days = {3: {"a": 50, "b": 50}, 4: {"a": 50, "b": 50}, 5: {"a": 5, "b": 95}, 6: {"a": 1}}
        assert [day_drift(days, today, 2, alike=1.0, alpha=0.01) is not None for today in range(3, 9)] == [
            False,
            False,
            False,
            True,
            True,
            False,
        ]
        found = day_drift(days, 6, 2, alike=1.0, alpha=0.01)
        assert found is not None
        assert (found.day, found.reference) == (5, {"a": 100, "b": 100})
        assert found.drift.js is not None
        assert found.drift.js.exceeded

    def test_counts_may_be_given(self) -> None:
        """From another year, say; then every day is judged."""
        found = day_drift({3: {"a": 50}}, 4, {"a": 5, "b": 5}, alike=1.0, alpha=0.01)
        assert found is not None
        assert found.drift == measure_drift({"a": 50}, {"a": 5, "b": 5}, alpha=0.01)

    def test_false_alarms_stay_rare_where_students_ask_alike(self) -> None:
        """Ten responses of each student in the same category: counted as they are, most days would alarm."""
        chance = np.random.default_rng(1)
        alarms = {1.0: 0, 10.0: 0}
        for _ in range(60):
            reference, day = (
                dict(zip("abcd", (10 * chance.multinomial(40, [0.25] * 4)).tolist(), strict=True)) for _ in range(2)
            )
            for per_student in alarms:
                found = day_drift({1: reference, 2: day}, 3, 1, alike=per_student, alpha=0.05)
                assert found is not None
                assert found.drift.psi is not None
                alarms[per_student] += found.drift.psi.exceeded
        assert alarms[10.0] <= 8
        assert alarms[1.0] >= 30

    @pytest.mark.parametrize("wrong", [{"alike": 0.5}, {"alike": 1.0, "together": 0}])
    def test_fewer_than_one_observation_that_is_alike_is_refused(self, wrong: dict[str, Any]) -> None:
        """It would make observations out of nothing."""
        with pytest.raises(ValueError, match="expected at least 1"):
            day_drift({1: {"a": 1}, 2: {"a": 1}}, 3, 1, alpha=0.05, **wrong)


def _lists(chance: np.random.Generator, answers: int, lists: NDArray[np.int64], shares: list[float]) -> dict[str, int]:
    """Return how often the items of each cell were shown by so many answers; `lists` are lists × their cells."""
    shown = chance.multinomial(answers, shares) @ lists
    return {f"cell {number:02}": int(count) for number, count in enumerate(shown)}


class TestLists:
    """Observations that come in groups of several cells."""

    def test_false_alarms_stay_rare_where_lists_are_always_the_same(self) -> None:
        """Twelve lists of five: divided by five and dealt out cell by cell nothing would alarm, undivided most days."""
        chance = np.random.default_rng(2)
        lists: NDArray[np.int64] = np.repeat(np.eye(12), 5, axis=1).astype(np.int64)
        alarms = {(5.0, 5): 0, (5.0, 1): 0, (1.0, 1): 0}
        for _ in range(200):
            pair = [_lists(chance, answers, lists, [1 / 12] * 12) for answers in (100, 300)]
            for (alike, together), count in alarms.items():
                found = measure_drift(pair[0], pair[1], alpha=0.1, draws=99, alike=alike, together=together)
                assert found.psi is not None
                alarms[alike, together] = count + found.psi.exceeded
        # 20 expected; 200 coins with 0.1 stay within 7 and 34 in 99.9 % of all cases.
        assert 7 <= alarms[5.0, 5] <= 34
        assert alarms[5.0, 1] <= 2
        assert alarms[1.0, 1] >= 40

    def test_nor_where_they_are_all_different(self) -> None:
        """The items of independent lists vary less than that."""
        chance = np.random.default_rng(3)
        passed = 0
        for _ in range(200):
            lists = np.stack([np.bincount(chance.integers(0, 64, 5), minlength=64) for _ in range(400)])
            pair = lists[:100].sum(axis=0), lists[100:].sum(axis=0)
            sides = [{f"cell {number:02}": int(count) for number, count in enumerate(side)} for side in pair]
            found = measure_drift(sides[0], sides[1], alpha=0.1, draws=99, alike=5.0, together=5)
            assert found.js is not None
            passed += found.js.exceeded
        assert passed <= 34

    def test_the_distances_are_those_of_all_observations(self) -> None:
        """What is divided is how much they are worth, not what they say."""
        one, other = {"a": 70, "b": 30}, {"a": 40, "b": 60}
        found = measure_drift(one, other, alike=10.0)
        assert found.js is not None
        assert found.js.value == js_distance(one, other)
        assert (found.observations, found.reference) == (10, 10)

    def test_an_item_counted_with_others_is_no_further_away(self) -> None:
        """The data processing inequality, of the Jensen-Shannon distance and of PSI of many observations."""
        chance = np.random.default_rng(4)
        for _ in range(20):
            fine = [chance.multinomial(10**6, chance.dirichlet(np.ones(256))) for _ in range(2)]
            for measure in (js_distance, psi):
                found = []
                for cells in (256, 64):
                    sides = [side.reshape(cells, -1).sum(axis=1).tolist() for side in fine]
                    one, other = ({f"{at:03}": int(n) for at, n in enumerate(side)} for side in sides)
                    found.append(measure(one, other))
                assert None not in found
                assert found[1] <= found[0]  # type: ignore[operator]
