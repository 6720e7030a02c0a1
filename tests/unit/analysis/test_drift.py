"""Drift of distributions: reference implementations of the distances, false alarms, and undefined cases."""

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

from monitor.analysis import drift as drift_module
from monitor.analysis.drift import js_distance, measure_day_drift, measure_drift, psi

counts_by_cell = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 1000))


def _shares(
    first_counts: dict[str, int], second_counts: dict[str, int], pseudo_count: float
) -> tuple[list[float], list[float]]:
    cells = [cell for cell in "abcdef" if first_counts.get(cell) or second_counts.get(cell)]
    p, q = ([side.get(cell, 0) + pseudo_count for cell in cells] for side in (first_counts, second_counts))
    return [count / sum(p) for count in p], [count / sum(q) for count in q]


def _multinomial(seed: int, observations: int, shares: list[float]) -> dict[str, int]:
    counts = np.random.default_rng(seed).multinomial(observations, shares)
    return {f"cell {number}": int(count) for number, count in enumerate(counts)}


class TestDistances:
    """The population stability index and the Jensen-Shannon distance."""

    def test_the_examples_in_the_docstrings_hold(self) -> None:
        """The examples were computed by hand."""
        results = doctest.testmod(drift_module)
        assert results.attempted > 0
        assert results.failed == 0

    @given(counts_by_cell, counts_by_cell)
    def test_both_distances_equal_those_of_scipy(
        self, first_counts: dict[str, int], second_counts: dict[str, int]
    ) -> None:
        """PSI is the sum of both divergences of the smoothed shares; without shares both distances are undefined."""
        if not (any(first_counts.values()) and any(second_counts.values())):
            assert (psi(first_counts, second_counts), js_distance(first_counts, second_counts)) == (None, None)
            return
        p, q = _shares(first_counts, second_counts, 0.5)
        assert psi(first_counts, second_counts) == pytest.approx(entropy(p, q) + entropy(q, p), abs=1e-11)
        assert js_distance(first_counts, second_counts) == pytest.approx(
            jensenshannon(*_shares(first_counts, second_counts, 0), base=2), abs=1e-7
        )

    @given(counts_by_cell, counts_by_cell)
    def test_both_distances_are_symmetric_and_0_for_equal_shares(
        self, first_counts: dict[str, int], second_counts: dict[str, int]
    ) -> None:
        """Cells with a count of 0 on both sides change nothing."""
        for measure in (psi, js_distance):
            assert measure(first_counts, second_counts) == measure(second_counts, first_counts)
            assert measure({**first_counts, "empty": 0}, second_counts) == measure(first_counts, second_counts)
            assert measure(first_counts, first_counts) in {None, 0}
        assert js_distance({cell: 3 * count for cell, count in first_counts.items()}, first_counts) in {None, 0}

    def test_an_empty_cell_has_a_finite_distance(self) -> None:
        """Half an observation on each side, and a distance of 1 where nothing is in common."""
        expected = 2 * (4.5 / 5 - 0.5 / 5) * math.log(4.5 / 0.5)
        assert psi({"a": 4}, {"b": 4}) == pytest.approx(expected)
        assert js_distance({"a": 4}, {"b": 4}) == 1

    def test_small_differences_survive_rounding(self) -> None:
        """(1 + d)ln(1 + d) + (1 − d)ln(1 − d) is d² for small d: here 2·10⁻⁶, in both cells."""
        first_counts, second_counts = {"a": 500_001, "b": 499_999}, {"a": 499_999, "b": 500_001}
        expected = math.sqrt(2 * 2e-6**2 / 4 / math.log(2))
        assert js_distance(first_counts, second_counts) == pytest.approx(expected, rel=1e-5)


class TestThreshold:
    """The threshold that chance alone exceeds in a share alpha of all cases."""

    def test_with_many_observations_the_threshold_follows_the_chi_square_law(self) -> None:
        """Yurdakul & Naranjo 2020; PSI in nats is eight times the divergence of two samples of equal size."""
        n, m, cells = 20_000, 60_000, 6
        shares = [0.3, 0.25, 0.2, 0.15, 0.07, 0.03]
        drift = measure_drift(_multinomial(1, n, shares), _multinomial(2, m, shares), alpha=0.05)
        assert drift.psi is not None
        assert drift.psi.threshold == pytest.approx(chi2.isf(0.05, cells - 1) * (1 / n + 1 / m), rel=0.08)
        same = measure_drift(_multinomial(1, n, shares), _multinomial(2, n, shares), alpha=0.05)
        assert same.js is not None
        law = math.sqrt(chi2.isf(0.05, cells - 1) * (2 / n) / 8 / math.log(2))
        assert same.js.threshold == pytest.approx(law, rel=0.04)

    def test_the_share_of_false_alarms_is_alpha(self) -> None:
        """400 pairs without any change, also with cells that are mostly empty."""
        shares = [0.5, 0.3, 0.1, 0.05, 0.03, 0.02]
        exceeded = {"psi": 0, "js": 0}
        for number in range(400):
            pair = _multinomial(2 * number, 60, shares), _multinomial(2 * number + 1, 90, shares)
            drift = measure_drift(*pair, alpha=0.1, draws=199)
            assert drift.psi is not None
            assert drift.js is not None
            exceeded["psi"] += drift.psi.exceeded
            exceeded["js"] += drift.js.exceeded
        # 40 expected; 400 coins with 0.1 stay within 21 and 61 in 99.9 % of all cases.
        assert all(21 <= count <= 61 for count in exceeded.values()), exceeded

    def test_false_alarms_stay_rare_with_many_rare_cells(self) -> None:
        """200 cells, 100 observations a side: samples drawn with replacement would alarm in most of 100 pairs."""
        ranks = 1 / np.arange(1, 201)
        shares = list(ranks / ranks.sum())
        exceeded = 0
        for number in range(100):
            pair = _multinomial(2 * number, 100, shares), _multinomial(2 * number + 1, 100, shares)
            drift = measure_drift(*pair, alpha=0.1, draws=99)
            assert drift.js is not None
            exceeded += drift.js.exceeded
        assert exceeded <= 21

    def test_the_customary_psi_limits_0_1_and_0_25_mislead(self) -> None:
        """Thirty observations in ten cells exceed 0.25 by chance; a real change of thousands stays below 0.1."""
        flat = [0.1] * 10
        few_observations = measure_drift(_multinomial(1, 30, flat), _multinomial(2, 30, flat), alpha=0.05).psi
        many_observations = measure_drift(
            _multinomial(3, 20_000, [0.12, 0.08, *flat[2:]]), _multinomial(4, 20_000, flat)
        ).psi
        assert few_observations is not None
        assert few_observations.threshold > 0.25
        assert many_observations is not None
        assert many_observations.value < 0.1
        assert many_observations.exceeded

    @given(counts_by_cell, counts_by_cell, st.sampled_from([0.05, 0.1, 0.5]))
    def test_drift_does_not_depend_on_the_order_of_cells(
        self, first_counts: dict[str, int], second_counts: dict[str, int], alpha: float
    ) -> None:
        """Not in any digit; a distance exceeds the threshold exactly if p ≤ α."""
        drift = measure_drift(first_counts, second_counts, alpha=alpha, draws=39)
        reversed_sides = [dict(reversed(side.items())) for side in (first_counts, second_counts)]
        assert measure_drift(*reversed_sides, alpha=alpha, draws=39) == drift
        for distance in (drift.psi, drift.js):
            assert (distance is None) == (not (any(first_counts.values()) and any(second_counts.values())))
            if distance is not None:
                assert distance.exceeded == (distance.p <= alpha)
                assert 0 < distance.p <= 1

    @given(counts_by_cell, counts_by_cell)
    def test_drift_depends_on_cell_names_only_through_their_order(
        self, first_counts: dict[str, int], second_counts: dict[str, int]
    ) -> None:
        """Renamed cells in the same order have the same random samples."""
        renamed = [{f"cell {cell}": count for cell, count in side.items()} for side in (first_counts, second_counts)]
        assert measure_drift(*renamed, alpha=0.1, draws=19) == measure_drift(
            first_counts, second_counts, alpha=0.1, draws=19
        )

    def test_nine_of_99_draws_are_above_the_threshold_at_alpha_0_1(self) -> None:
        """The observed value is the hundredth, so nine draws and the observed value are a tenth."""
        first_counts, second_counts = {"a": 5_000, "b": 3_000, "c": 1_000}, {"a": 5_100, "b": 2_900, "c": 1_000}
        drift = measure_drift(first_counts, second_counts, alpha=0.1, draws=99)
        null_distances = drift_module._draw_null_distances(np.array([10_100.0, 5_900.0, 2_000.0]), 9_000, 99, 0)
        for distance, draws in zip((drift.psi, drift.js), null_distances, strict=True):
            assert distance is not None
            assert np.count_nonzero(draws > distance.threshold) == 9

    def test_draws_in_several_blocks_are_the_same_draws(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The size of a block limits the memory and does not change the result."""
        expected = measure_drift({"a": 9, "b": 4}, {"a": 3, "b": 7, "c": 1})
        monkeypatch.setattr(drift_module, "_CELLS_AT_ONCE", 100)
        assert measure_drift({"a": 9, "b": 4}, {"a": 3, "b": 7, "c": 1}) == expected

    def test_a_single_stray_observation_is_not_a_drift(self) -> None:
        """Among thousands of dependent observations in a single cell, and among lists that fill all cells."""
        for counts, reference, cluster_size, cells_per_cluster in (
            ({"a": 10_000, "b": 1}, {"a": 70_000}, 20.0, 1),
            ({f"v{n}": 1_000 for n in range(5)} | {"z": 1}, {f"v{n}": 7_000 for n in range(5)}, 100.0, 5),
            ({f"v{n}": 1_000 for n in range(4)} | {"v4": 999}, {f"v{n}": 7_000 for n in range(5)}, 100.0, 5),
            ({f"v{n}": 1_000 for n in range(9)} | {"v9": 999}, {f"v{n}": 7_000 for n in range(10)}, 100.0, 64),
        ):
            drift = measure_drift(counts, reference, cluster_size=cluster_size, cells_per_cluster=cells_per_cluster)
            assert not any(distance is not None and distance.exceeded for distance in (drift.psi, drift.js)), drift

    def test_a_side_without_observations_has_no_distance(self) -> None:
        """The distance of two sides with the same single cell is 0."""
        drift = measure_drift({}, {"a": 1})
        assert (drift.observations, drift.reference, drift.psi, drift.js) == (0, 1, None, None)
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
    def test_invalid_arguments_are_rejected(self, call: Callable[[], object], message: str) -> None:
        """Errors contain the argument, the value and the expectation."""
        with pytest.raises(ValueError, match=message):
            call()


class TestDayDrift:
    """Drift of the last whole day from a reference."""

    def test_the_first_days_are_the_reference_and_never_judged(self) -> None:
        """Today is not over, the reference does not differ from itself."""
        days = {3: {"a": 50, "b": 50}, 4: {"a": 50, "b": 50}, 5: {"a": 5, "b": 95}, 6: {"a": 1}}
        assert [
            measure_day_drift(days, today, 2, cluster_size=1.0, alpha=0.01) is not None for today in range(3, 9)
        ] == [
            False,
            False,
            False,
            True,
            True,
            False,
        ]
        day_drift = measure_day_drift(days, 6, 2, cluster_size=1.0, alpha=0.01)
        assert day_drift is not None
        assert (day_drift.day, day_drift.reference) == (5, {"a": 100, "b": 100})
        assert day_drift.drift.js is not None
        assert day_drift.drift.js.exceeded

    def test_the_reference_can_be_configured_counts(self) -> None:
        """With counts as the reference every day is compared, from the first day on."""
        day_drift = measure_day_drift({3: {"a": 50}}, 4, {"a": 5, "b": 5}, cluster_size=1.0, alpha=0.01)
        assert day_drift is not None
        assert day_drift.drift == measure_drift({"a": 50}, {"a": 5, "b": 5}, alpha=0.01)

    def test_false_alarms_stay_rare_for_dependent_responses(self) -> None:
        """Each student has ten responses in a single category; without `cluster_size` most days raise an alarm."""
        chance = np.random.default_rng(1)
        alarms = {1.0: 0, 10.0: 0}
        for _ in range(60):
            reference, day = (
                dict(zip("abcd", (10 * chance.multinomial(40, [0.25] * 4)).tolist(), strict=True)) for _ in range(2)
            )
            for per_student in alarms:
                day_drift = measure_day_drift({1: reference, 2: day}, 3, 1, cluster_size=per_student, alpha=0.05)
                assert day_drift is not None
                assert day_drift.drift.psi is not None
                alarms[per_student] += day_drift.drift.psi.exceeded
        assert alarms[10.0] <= 8
        assert alarms[1.0] >= 30

    @pytest.mark.parametrize("arguments", [{"cluster_size": 0.5}, {"cluster_size": 1.0, "cells_per_cluster": 0}])
    def test_a_cluster_of_less_than_one_observation_is_rejected(self, arguments: dict[str, Any]) -> None:
        """Such a cluster would add observations."""
        with pytest.raises(ValueError, match="expected at least 1"):
            measure_day_drift({1: {"a": 1}, 2: {"a": 1}}, 3, 1, alpha=0.05, **arguments)


def _draw_cell_counts(
    chance: np.random.Generator, answers: int, lists: NDArray[np.int64], shares: list[float]
) -> dict[str, int]:
    """Return cell → shown items in `answers` random lists; `lists` has items per list and cell (lists × cells)."""
    counts = chance.multinomial(answers, shares) @ lists
    return {f"cell {number:02}": int(count) for number, count in enumerate(counts)}


class TestItemLists:
    """Observations that come as lists of items from several cells."""

    def test_false_alarms_stay_rare_for_few_fixed_lists(self) -> None:
        """Twelve lists of five items; drawn by cell nothing would raise an alarm, without division many days would."""
        chance = np.random.default_rng(2)
        lists: NDArray[np.int64] = np.repeat(np.eye(12), 5, axis=1).astype(np.int64)
        alarms = {(5.0, 5): 0, (5.0, 1): 0, (1.0, 1): 0}
        for _ in range(200):
            pair = [_draw_cell_counts(chance, answers, lists, [1 / 12] * 12) for answers in (100, 300)]
            for (cluster_size, cells_per_cluster), count in alarms.items():
                drift = measure_drift(
                    pair[0],
                    pair[1],
                    alpha=0.1,
                    draws=99,
                    cluster_size=cluster_size,
                    cells_per_cluster=cells_per_cluster,
                )
                assert drift.psi is not None
                alarms[cluster_size, cells_per_cluster] = count + drift.psi.exceeded
        # 20 expected; 200 coins with 0.1 stay within 7 and 34 in 99.9 % of all cases.
        assert 7 <= alarms[5.0, 5] <= 34
        assert alarms[5.0, 1] <= 2
        assert alarms[1.0, 1] >= 40

    def test_false_alarms_stay_rare_for_independent_lists(self) -> None:
        """The items of independent lists vary less than the items of fixed lists."""
        chance = np.random.default_rng(3)
        exceeded = 0
        for _ in range(200):
            lists = np.stack([np.bincount(chance.integers(0, 64, 5), minlength=64) for _ in range(400)])
            pair = lists[:100].sum(axis=0), lists[100:].sum(axis=0)
            sides = [{f"cell {number:02}": int(count) for number, count in enumerate(side)} for side in pair]
            drift = measure_drift(sides[0], sides[1], alpha=0.1, draws=99, cluster_size=5.0, cells_per_cluster=5)
            assert drift.js is not None
            exceeded += drift.js.exceeded
        assert exceeded <= 34

    def test_cluster_size_changes_the_threshold_and_not_the_distance(self) -> None:
        """The number of independent observations is divided, the shares are not changed."""
        first_counts, second_counts = {"a": 70, "b": 30}, {"a": 40, "b": 60}
        drift = measure_drift(first_counts, second_counts, cluster_size=10.0)
        assert drift.js is not None
        assert drift.js.value == js_distance(first_counts, second_counts)
        assert (drift.observations, drift.reference) == (10, 10)

    def test_merging_cells_never_increases_a_distance(self) -> None:
        """The data processing inequality, of the Jensen-Shannon distance and of PSI of many observations."""
        chance = np.random.default_rng(4)
        for _ in range(20):
            fine = [chance.multinomial(10**6, chance.dirichlet(np.ones(256))) for _ in range(2)]
            for measure in (js_distance, psi):
                distances = []
                for cell_count in (256, 64):
                    sides = [side.reshape(cell_count, -1).sum(axis=1).tolist() for side in fine]
                    first_counts, second_counts = (
                        {f"{number:03}": int(count) for number, count in enumerate(side)} for side in sides
                    )
                    distances.append(measure(first_counts, second_counts))
                assert None not in distances
                assert distances[1] <= distances[0]  # type: ignore[operator]
