"""Worked examples of the literature and of other implementations' own tests."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from monitor.config import Discount
from monitor.metrics import average_ndcg, cg, dcg, ideal_dcg, ndcg, success

DISCOUNT_NAMES: dict[str, Discount] = {"log2p1": "log2", "log2_from2": "log2-from-2", "inv_rank": "reciprocal"}
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
    """Return what our functions say to a vector of the literature."""
    inputs, options, metric = vector["inputs"], vector["options"], vector["metric"]
    k = options.get("k")
    if metric == "cg":
        return cg(inputs["relevance"], k)
    if metric == "accuracy_at_k":
        hits = [success(grades, k, relevant_grade=options["threshold"]) for grades in inputs["lists"]]
        return sum(hits) / len(hits)
    gain, discount = options["gain"], DISCOUNT_NAMES[options["discount"]]
    if metric == "dcg_term":
        return dcg([inputs["relevance"]], gain=gain, discount=discount, ranks=[inputs["rank"]])
    if metric in {"dcg", "idcg"}:
        measure = {"dcg": dcg, "idcg": ideal_dcg}[metric]
        return measure(inputs["relevance"], k, gain=gain, discount=discount)
    hides = options["ideal"] == "truncate_then_sort"
    if metric == "avg_ndcg":
        lists = [grades[:k] if hides else grades for grades in inputs["lists"]]
        return average_ndcg(lists, k, gain=gain, discount=discount)
    grades = inputs["relevance"]
    return ndcg(grades, k, gain=gain, discount=discount, ideal=grades[:k] if hides else None)


RANKING_METRICS = {"cg", "dcg", "dcg_term", "idcg", "ndcg", "avg_ndcg", "accuracy_at_k"}


def _wrong(vector: Vector) -> bool:
    return str(vector["options"].get("gain", "")).startswith("WRONG")


class TestLiterature:
    """Published worked examples."""

    def test_right_ones_hold(self, literature: list[Vector]) -> None:
        """Every published example of a ranking metric that is right comes out to 1e-9."""
        told = [vector for vector in literature if vector["metric"] in RANKING_METRICS and not _wrong(vector)]
        differing = [
            vector["id"] for vector in told if _value(vector) != pytest.approx(vector["expected"], abs=TOLERANCE)
        ]
        assert len(told) == 59
        assert differing == []

    def test_wrong_ones_do_not(self, literature: list[Vector]) -> None:
        """What a published program returns by mistake (2g − 1, first item only) does not come out."""
        wrong = [vector for vector in literature if _wrong(vector)]
        assert {vector["metric"] for vector in wrong} == {"dcg", "ndcg"}
        for vector in wrong:
            grades, k = vector["inputs"]["relevance"], vector["options"]["k"]
            ours = (dcg if vector["metric"] == "dcg" else ndcg)(grades, k, gain="exp2")
            assert ours is not None
            assert abs(ours - vector["expected"]) > 1e-3, vector["id"]

    def test_hiding_better_items_is_not_the_default(self, literature: list[Vector]) -> None:
        """An ideal cut before sorting flatters: by default a better item below the cut is not hidden."""
        (vector,) = [each for each in literature if each["id"] == "s001-avgndcg"]
        ours = average_ndcg(vector["inputs"]["lists"], vector["options"]["k"])
        assert ours == pytest.approx(0.9961322104432755, abs=TOLERANCE)
        assert ours is not None
        assert ours < vector["expected"] - 1e-3


def _pool(vector: Vector) -> list[float]:
    if "judged" in vector:
        return list(vector["judged"])
    return [float(grade) for grade, count in vector["judged_counts"].items() for _ in range(count)]


def _order_values(vector: Vector) -> set[float]:
    """Return nDCG of every order that the scores allow."""
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

    def test_judged_pools(self, peers: list[Vector]) -> None:
        """With the judged pool as the ideal every untied example comes out, unjudged items and all."""
        told = 0
        for vector in peers:
            if "ranked" not in vector:
                continue
            pool, gain = _pool(vector), vector["gain"]
            cuts = vector.get("expected_at_k") or {vector["k"]: vector["expected"]}
            for k, expected in cuts.items():
                told += 1
                ours = ndcg(vector["ranked"], int(k), gain=gain, ideal=pool)
                assert ours == pytest.approx(expected, abs=TOLERANCE), (vector["id"], k)
            if "expected_dcg" in vector:
                ours = dcg(vector["ranked"], vector["k"], gain=gain)
                assert ours == pytest.approx(vector["expected_dcg"], abs=TOLERANCE), vector["id"]
        assert told == 82

    def test_ideal_is_never_cut_at_the_number_returned(self, peers: list[Vector]) -> None:
        """One hit of five relevant items is not 1.0, though a released search engine says so."""
        for vector in peers:
            if "wrong_value_seen" in vector:
                ours = ndcg(vector["ranked"], vector["k"], gain=vector["gain"], ideal=vector["judged"])
                assert ours is not None
                assert abs(ours - vector["wrong_value_seen"]) > 0.1

    def test_averaged_ties_lie_within_our_orders(self, peers: list[Vector]) -> None:
        """We rank by position, so there are no ties; a peer's average over ties is the mean of our orders."""
        averaged = [vector for vector in peers if vector.get("ties") == "average"]
        assert len(averaged) == 6
        for vector in averaged:
            values = _order_values(vector)
            assert min(values) - TOLERANCE <= vector["expected"] <= max(values) + TOLERANCE, vector["id"]

    def test_tie_policies(self, peers: list[Vector]) -> None:
        """Our value of an explicit order is one of all orders' values, and that of the policy that picks this order."""
        (vector,) = [each for each in peers if each["id"] == "ties-policies"]
        grades, k = vector["rel"], vector["k"]
        assert _rounded(_order_values(vector)) == _rounded(vector["all_orders"])
        policies = vector["expected_by_policy"]
        assert ndcg(grades, k) == pytest.approx(policies["as listed (explicit position)"], abs=TOLERANCE)
        by_id = policies["docid descending (trec_eval), ids a,b,c"]
        assert ndcg(grades[::-1], k) == pytest.approx(by_id, abs=TOLERANCE)

    def test_tie_broken_by_an_order(self, peers: list[Vector]) -> None:
        """Where a peer breaks ties by an order, its value is that of the order."""
        (vector,) = [each for each in peers if each.get("ties") == "argsort-reversed order"]
        assert _rounded([vector["expected"]]) <= _rounded(_order_values(vector))

    def test_ideal_of_zero_is_undefined(self) -> None:
        """Where peers say 0 for a query without a relevant item, we say that there is no value."""
        assert ndcg([0, None], 10, ideal=[0, 0, -1]) is None


def _rounded(values: Iterable[float]) -> set[float]:
    return {round(value, 9) for value in values}
