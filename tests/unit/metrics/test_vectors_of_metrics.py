"""Worked examples of the literature and of other implementations' own tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from monitor.config import NamedDiscount
from monitor.metrics import cumulative_gain, dcg, ideal_dcg, mean_ndcg, ndcg, non_negative_grades, success_at_k

DISCOUNT_NAMES: dict[str, NamedDiscount] = {"log2p1": "log2", "log2_from2": "log2-from-2", "inv_rank": "reciprocal"}
TOLERANCE = 1e-9

Vector = dict[str, Any]


@pytest.fixture(name="literature")
def _literature(shared: Path) -> list[Vector]:
    vectors: list[Vector] = json.loads((shared / "vectors" / "seed_vectors.json").read_text("utf-8"))["vectors"]
    return vectors


@pytest.fixture(name="peers")
def _peers(shared: Path) -> list[Vector]:
    vectors: list[Vector] = json.loads((shared / "vectors" / "peer_ndcg.json").read_text("utf-8"))["vectors"]
    return vectors


def _value(vector: Vector) -> float | None:
    """Return the result of our functions for a vector of the literature."""
    inputs, options, metric = vector["inputs"], vector["options"], vector["metric"]
    k = options.get("k")
    if metric == "cg":
        return cumulative_gain(inputs["relevance"], k)
    if metric == "accuracy_at_k":
        hits = [success_at_k(grades, k, relevant_grade=options["threshold"]) for grades in inputs["lists"]]
        return sum(hits) / len(hits)
    gain, discount = options["gain"], DISCOUNT_NAMES[options["discount"]]
    if metric == "dcg_term":
        return dcg([inputs["relevance"]], gain=gain, discount=discount, ranks=[inputs["rank"]])
    if metric in {"dcg", "idcg"}:
        measure = dcg if metric == "dcg" else ideal_dcg
        return measure(inputs["relevance"], k, gain=gain, discount=discount)
    is_ideal_truncated = options["ideal"] == "truncate_then_sort"
    if metric == "avg_ndcg":
        lists = [grades[:k] if is_ideal_truncated else grades for grades in inputs["lists"]]
        return mean_ndcg(lists, k, gain=gain, discount=discount)
    grades = inputs["relevance"]
    return ndcg(grades, k, gain=gain, discount=discount, ideal=grades[:k] if is_ideal_truncated else None)


RANKING_METRICS = {"cg", "dcg", "dcg_term", "idcg", "ndcg", "avg_ndcg", "accuracy_at_k"}


def _is_erroneous(vector: Vector) -> bool:
    return str(vector["options"].get("gain", "")).startswith("WRONG")


class TestLiterature:
    """Published worked examples."""

    def test_published_examples_are_reproduced(self, literature: list[Vector]) -> None:
        """All 59 correct examples of ranking metrics agree within 1e-9."""
        examples = [
            vector for vector in literature if vector["metric"] in RANKING_METRICS and not _is_erroneous(vector)
        ]
        differing = [
            vector["id"] for vector in examples if _value(vector) != pytest.approx(vector["expected"], abs=TOLERANCE)
        ]
        assert len(examples) == 59
        assert differing == []

    def test_erroneous_published_examples_are_not_reproduced(self, literature: list[Vector]) -> None:
        """A published program computes 2g − 1 for 2^g − 1, or scores only the first item."""
        erroneous = [vector for vector in literature if _is_erroneous(vector)]
        assert {vector["metric"] for vector in erroneous} == {"dcg", "ndcg"}
        for vector in erroneous:
            grades, k = vector["inputs"]["relevance"], vector["options"]["k"]
            ours = (dcg if vector["metric"] == "dcg" else ndcg)(grades, k, gain="exp2")
            assert ours is not None
            assert abs(ours - vector["expected"]) > 1e-3, vector["id"]

    def test_ideal_is_not_truncated_before_sorting(self, literature: list[Vector]) -> None:
        """An ideal that is truncated before sorting would raise nDCG."""
        (example,) = [vector for vector in literature if vector["id"] == "s001-avgndcg"]
        ours = mean_ndcg(example["inputs"]["lists"], example["options"]["k"])
        assert ours == pytest.approx(0.9961322104432755, abs=TOLERANCE)
        assert ours is not None
        assert ours < example["expected"] - 1e-3


def _pool(vector: Vector) -> list[float]:
    if "judged" in vector:
        return list(vector["judged"])
    return [float(grade) for grade, count in vector["judged_counts"].items() for _ in range(count)]


def _order_values(vector: Vector) -> set[float]:
    """Return the nDCG of every order of items that is consistent with the scores."""
    by_score: dict[float, list[float]] = {}
    for score, grade in zip(vector["scores"], vector["rel"], strict=True):
        by_score.setdefault(score, []).append(grade)
    orders: list[tuple[float, ...]] = [()]
    for score in sorted(by_score, reverse=True):
        orders = [head + tail for head in orders for tail in permutations(by_score[score])]
    values = {ndcg(order, vector["k"]) for order in orders}
    assert None not in values
    return {value for value in values if value is not None}


class TestPeers:
    """Examples from other implementations' test suites."""

    def test_examples_with_judged_pools_are_reproduced(self, peers: list[Vector]) -> None:
        """With the judged pool as the ideal, all 82 examples without ties agree, including unjudged items."""
        example_count = 0
        for vector in peers:
            if "ranked" not in vector:
                continue
            pool, gain = _pool(vector), vector["gain"]
            cuts = vector.get("expected_at_k") or {vector["k"]: vector["expected"]}
            for k, expected in cuts.items():
                example_count += 1
                # trec_eval and ir_measures count negative judgements as 0.
                ours = ndcg(non_negative_grades(vector["ranked"]), int(k), gain=gain, ideal=non_negative_grades(pool))
                assert ours == pytest.approx(expected, abs=TOLERANCE), (vector["id"], k)
            if "expected_dcg" in vector:
                ours = dcg(vector["ranked"], vector["k"], gain=gain)
                assert ours == pytest.approx(vector["expected_dcg"], abs=TOLERANCE), vector["id"]
        assert example_count == 82

    def test_ideal_is_not_truncated_to_the_length_of_the_list(self, peers: list[Vector]) -> None:
        """One hit of five relevant items has an nDCG below 1.0; a released search engine returns 1.0."""
        for vector in peers:
            if "wrong_value_seen" in vector:
                ours = ndcg(vector["ranked"], vector["k"], gain=vector["gain"], ideal=vector["judged"])
                assert ours is not None
                assert abs(ours - vector["wrong_value_seen"]) > 0.1

    def test_averages_over_ties_are_within_the_range_of_orders(self, peers: list[Vector]) -> None:
        """Positions have no ties; another program's average over ties is a mean over orders."""
        averaged = [vector for vector in peers if vector.get("ties") == "average"]
        assert len(averaged) == 6
        for vector in averaged:
            values = _order_values(vector)
            assert min(values) - TOLERANCE <= vector["expected"] <= max(values) + TOLERANCE, vector["id"]

    def test_tie_policies_equal_the_ndcg_of_explicit_orders(self, peers: list[Vector]) -> None:
        """A policy that selects an order has the nDCG of the order."""
        (vector,) = [peer for peer in peers if peer["id"] == "ties-policies"]
        grades, k = vector["rel"], vector["k"]
        assert _rounded(_order_values(vector)) == _rounded(vector["all_orders"])
        policies = vector["expected_by_policy"]
        assert ndcg(grades, k) == pytest.approx(policies["as listed (explicit position)"], abs=TOLERANCE)
        by_id = policies["docid descending (trec_eval), ids a,b,c"]
        assert ndcg(grades[::-1], k) == pytest.approx(by_id, abs=TOLERANCE)

    def test_ties_broken_by_index_have_the_ndcg_of_an_order(self, peers: list[Vector]) -> None:
        """Another program breaks ties by a reversed argsort."""
        (vector,) = [peer for peer in peers if peer.get("ties") == "argsort-reversed order"]
        assert _rounded([vector["expected"]]) <= _rounded(_order_values(vector))

    def test_ndcg_without_a_relevant_item_is_undefined(self) -> None:
        """Other programs return 0 for a query without a relevant item."""
        assert ndcg([0, None], 10, ideal=[0, 0, 0]) is None


def _rounded(values: Iterable[float]) -> set[float]:
    return {round(value, 9) for value in values}
