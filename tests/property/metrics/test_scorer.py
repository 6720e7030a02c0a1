"""`Scorer`: scores of batches equal scores of single responses, and the float metrics within rounding."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, get_args

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from monitor.config import MetricSpec, NamedDiscount, NamedGain, NdcgIdeal
from monitor.metrics import (
    FIXED_POINT_SCALE,
    GainTable,
    Scorer,
    cumulative_gain,
    dcg,
    from_fixed_point,
    ndcg,
    non_negative_grades,
    precision_at_k,
    reciprocal_rank,
    success_at_k,
)

MEASURES: Final = ("cg", "dcg", "ndcg", "success", "rr", "p")

MAX_GRADE = 5.0
TABLE = {0.0: 0.0, 1.0: 0.1, 2.0: 1 / 3, 2.5: 1 / 3, 5.0: 1234.567}
HALF_UNIT = 0.5 / FIXED_POINT_SCALE


@dataclass(frozen=True)
class Definition:
    """The arguments of a scorer."""

    metrics: tuple[MetricSpec, ...]
    gain: NamedGain | GainTable
    discount: NamedDiscount
    ideal: NdcgIdeal
    relevant_grade: float

    def scorer(self) -> Scorer:
        """Return a new scorer with an empty cache of grades."""
        return Scorer(
            self.metrics,
            gain=self.gain,
            discount=self.discount,
            ideal=self.ideal,
            max_grade=MAX_GRADE,
            relevant_grade=self.relevant_grade,
        )


Ranked = tuple[list[int], list[float | None]]

cuts = st.sets(st.integers(1, 6) | st.just(12), min_size=1, max_size=2)
definitions = st.builds(
    Definition,
    metrics=cuts.map(lambda cuts: tuple(MetricSpec(f"{name}@{k}", name, k) for name in MEASURES for k in cuts)),
    gain=st.sampled_from(["linear", "exp2", TABLE]),
    discount=st.sampled_from(get_args(NamedDiscount)),
    ideal=st.sampled_from(get_args(NdcgIdeal)),
    relevant_grade=st.sampled_from([0.0, 1.0, 2.5, 3.0]),
)
ordinary = st.floats(-1, MAX_GRADE) | st.integers(0, 5).map(float) | st.floats(0, 1e-8)


@st.composite
def ranked(draw: st.DrawFn, grades: st.SearchStrategy[float]) -> Ranked:
    """Draw a list with gaps in the positions, in any order, with at least one judged item."""
    ranks = draw(st.lists(st.integers(1, 20), min_size=1, max_size=10, unique=True))
    marks = draw(st.lists(st.none() | grades, min_size=len(ranks), max_size=len(ranks)))
    assume(any(mark is not None for mark in marks))
    return ranks, marks


def grades_of(definition: Definition) -> st.SearchStrategy[float]:
    """Return the grades that the definition can score."""
    return ordinary if isinstance(definition.gain, str) else st.sampled_from(sorted(TABLE))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Definition, list[Ranked]]:
    """Draw a definition and responses with grades of the definition."""
    definition = draw(definitions)
    return definition, draw(st.lists(ranked(grades_of(definition)), min_size=1, max_size=6))


@given(cases(), st.integers(0, 3), st.integers(-3, 30))
def test_scores_of_a_batch_equal_scores_of_single_responses(
    case: tuple[Definition, list[Ranked]], padding: int, rank_of_padding: int
) -> None:
    """All integers are equal, with any padding."""
    definition, responses = case
    width = padding + max(len(ranks) for ranks, _ in responses)
    ranks = np.full((len(responses), width), rank_of_padding, dtype=np.int64)
    grades = np.full((len(responses), width), np.nan)
    for index, (item_ranks, marks) in enumerate(responses):
        ranks[index, : len(item_ranks)] = item_ranks
        grades[index, : len(marks)] = [math.nan if mark is None else mark for mark in marks]
    values, defined = definition.scorer().score_batch(ranks, grades)
    scorer = definition.scorer()
    expected = [scorer.score(item_ranks, marks) for item_ranks, marks in responses]
    assert defined.tolist() == [[value is not None for value in row] for row in expected]
    assert values.tolist() == [[value or 0 for value in row] for row in expected]
    assert values.dtype == np.int64


@given(cases())
def test_the_order_of_items_is_irrelevant(case: tuple[Definition, list[Ranked]]) -> None:
    """Items may be in any order, and unjudged items may be left out."""
    definition, responses = case
    scorer = definition.scorer()
    for ranks, grades in responses:
        judged = [(rank, grade) for rank, grade in zip(ranks, grades, strict=True) if grade is not None]
        shuffled = sorted(judged, key=lambda pair: -pair[0])
        assert scorer.score(*zip(*shuffled, strict=True)) == scorer.score(ranks, grades)


@given(cases())
def test_contributions_are_between_0_and_the_bound(case: tuple[Definition, list[Ranked]]) -> None:
    """A full list of the largest grade equals the bound."""
    definition, responses = case
    scorer = definition.scorer()
    bounds = scorer.bounds()
    for response in responses:
        for value, bound in zip(scorer.score(*response), bounds, strict=True):
            assert value is None or 0 <= value <= bound
    full = scorer.score(range(1, 13), [MAX_GRADE] * 12)
    assert full == bounds


def reference(definition: Definition, metric: MetricSpec, response: Ranked) -> float | None:
    """Return a metric as a float."""
    ranks, grades = response
    if metric.measure in {"success", "rr", "p"}:
        measure = {"success": success_at_k, "rr": reciprocal_rank, "p": precision_at_k}[metric.measure]
        return measure(grades, metric.k, relevant_grade=definition.relevant_grade, ranks=ranks)
    gain, discount = definition.gain, definition.discount
    if metric.measure == "cg":
        return cumulative_gain(grades, metric.k, gain=gain, ranks=ranks)
    if metric.measure == "dcg":
        return dcg(grades, metric.k, gain=gain, discount=discount, ranks=ranks)
    ideal = [MAX_GRADE] * metric.k if definition.ideal == "constant" else None
    return ndcg(non_negative_grades(grades), metric.k, gain=gain, discount=discount, ideal=ideal, ranks=ranks)


@given(cases())
def test_fixed_point_scores_equal_the_float_metrics_within_rounding(case: tuple[Definition, list[Ranked]]) -> None:
    """The tolerance is half a unit per term (k·2⁻³¹) for sums, the same over the ideal for nDCG, else half a unit."""
    definition, responses = case
    scorer = definition.scorer()
    for response in responses:
        for metric, value in zip(definition.metrics, scorer.score(*response), strict=True):
            expected = reference(definition, metric, response)
            tolerance = metric.k * HALF_UNIT if metric.measure in {"cg", "dcg"} else HALF_UNIT
            if metric.measure == "ndcg":
                ideal = _ideal(definition, metric, response)
                if ideal < 2 * metric.k * HALF_UNIT:
                    continue
                tolerance += 2 * metric.k * HALF_UNIT / (ideal - metric.k * HALF_UNIT)
            assert expected is not None
            assert value is not None
            assert from_fixed_point(value) == pytest.approx(expected, rel=1e-13, abs=tolerance * (1 + 1e-9)), (
                metric.name
            )


def _ideal(definition: Definition, metric: MetricSpec, response: Ranked) -> float:
    grades = [MAX_GRADE] * metric.k if definition.ideal == "constant" else response[1]
    best = sorted((grade for grade in grades if grade is not None), reverse=True)
    return dcg(best, metric.k, gain=definition.gain, discount=definition.discount)


@given(st.lists(st.floats(0, 2**-20), min_size=2, max_size=8), st.sampled_from(get_args(NamedDiscount)))
def test_ndcg_is_at_most_one(grades: list[float], discount: NamedDiscount) -> None:
    """Rounding term by term never raises nDCG above 1, even for gains of a few units; a sorted list has exactly 1."""
    scorer = Scorer((MetricSpec("ndcg@8", "ndcg", 8),), discount=discount)
    (value,) = scorer.score(range(1, len(grades) + 1), grades)
    (best,) = scorer.score(range(1, len(grades) + 1), sorted(grades, reverse=True))
    assert value is None or value <= FIXED_POINT_SCALE
    assert best in {None, FIXED_POINT_SCALE}
    assert (value is None) == (best is None)
