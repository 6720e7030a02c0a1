"""Offline evaluation: means per query and variant, pools, a real survey."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from monitor.config import Discount, ExperimentSettings, Gain, MetricSpec
from monitor.evaluation import Evaluation, JudgedResponse, PoolIdeal, evaluate
from monitor.ranking import GainTable

DCG = MetricSpec("dcg@2", "dcg", 2)
NDCG = MetricSpec("ndcg@2", "ndcg", 2)


def settings(*metrics: MetricSpec) -> ExperimentSettings:
    """Return an experiment with two variants, grades up to 4 and 1/r discounts."""
    return ExperimentSettings(
        name="e", control="a", variants={"a": 0.5, "b": 0.5}, metrics=metrics, discount="reciprocal"
    )


def judged(variant: str, *grades: float | None, query: str | None = "q", user: str | None = "u") -> JudgedResponse:
    """Return a response that shows i1, i2 and so on, in this order."""
    items = tuple(f"i{index + 1}" for index in range(len(grades)))
    return JudgedResponse(query, user, variant, items, tuple(range(1, len(grades) + 1)), grades)


def means(evaluation: Evaluation, variant: str) -> dict[str, float | None]:
    """Return the variant's means over responses by column."""
    (found,) = [each for each in evaluation.variants if each.variant == variant]
    return {column.name: mean.mean for column, mean in zip(evaluation.columns, found.over_responses, strict=True)}


class TestMeans:
    """What is averaged over what."""

    def test_over_responses_and_over_queries(self) -> None:
        """A query with many responses weighs more over responses and the same over queries."""
        responses = [judged("a", 4, query="q1"), judged("a", 2, query="q1"), judged("a", 1, query="q2")]
        (variant, _) = evaluate(responses, settings(DCG)).variants
        assert variant.over_responses[0].mean == pytest.approx(7 / 3)
        assert variant.over_queries[0].mean == pytest.approx((3 + 1) / 2)
        assert (variant.over_responses[0].count, variant.over_queries[0].count) == (3, 2)

    def test_unrated_responses_are_counted_only(self) -> None:
        """A response without a grade enters no mean and no query."""
        (variant, _) = evaluate([judged("a", 4), judged("a", None, None, query="q2")], settings(DCG)).variants
        assert (variant.responses, variant.rated_responses, variant.queries) == (2, 1, 1)
        assert variant.over_responses[0].mean == 4

    def test_undefined_is_counted_and_left_out(self) -> None:
        """An all-zero response has no nDCG of its own; the mean is over the others."""
        evaluation = evaluate([judged("a", 0, 0, query="q1"), judged("a", 2, 4, query="q2")], settings(NDCG), ["shown"])
        (mean,) = evaluation.variants[0].over_responses
        assert (mean.count, mean.undefined) == (1, 1)
        assert mean.mean == pytest.approx((2 + 4 / 2) / (4 + 2 / 2))
        assert [each.means[0].mean for each in evaluation.queries] == [None, mean.mean]
        assert evaluation.variants[0].over_queries[0] == mean

    def test_variant_without_responses(self) -> None:
        """A variant that answered nothing has counts of 0 and no mean."""
        evaluation = evaluate([judged("a", 4)], settings(DCG))
        assert evaluation.variants[1].responses == 0
        assert means(evaluation, "b") == {"dcg@2": None}

    def test_every_metric_at_positions(self) -> None:
        """Metrics count an item at its position."""
        specs = [MetricSpec(f"{name}@3", name, 3) for name in ("cg", "dcg", "ndcg", "success", "rr", "p")]
        response = JudgedResponse("q", "u", "a", ("x", "y", "z"), (2, 3, 7), (1, 3, 4))
        found = means(evaluate([response], settings(*specs), ["shown"]), "a")
        ideal = 4 + 3 / 2 + 1 / 3
        assert found == pytest.approx(
            {"cg@3": 4, "dcg@3": 1 / 2 + 1, "ndcg@3:shown": 1.5 / ideal, "success@3": 1, "rr@3": 1 / 3, "p@3": 1 / 3}
        )

    def test_order_is_irrelevant(self) -> None:
        """The same responses in another order give the same evaluation."""
        responses = [
            judged(variant, 0.1 * index, 4 - index / 7, query=f"q{index % 3}", user=f"u{index % 2}")
            for index in range(12)
            for variant in "ab"
        ]
        assert evaluate(responses[::-1], settings(DCG, NDCG)) == evaluate(responses, settings(DCG, NDCG))


class TestIdeals:
    """What nDCG is measured against."""

    def test_pool_holds_what_any_variant_showed_the_rater(self) -> None:
        """The judged ideal holds the better items that the other variant showed; the shown one cannot know them."""
        other = JudgedResponse("q", "u", "b", ("i8", "i9"), (1, 2), (4, 3))
        found = means(evaluate([judged("a", 2, 1), other], settings(NDCG)), "a")
        assert found["ndcg@2:shown"] == 1.0
        assert found["ndcg@2:constant"] == pytest.approx(2.5 / 6)
        assert found["ndcg@2:judged"] == pytest.approx(2.5 / 5.5)

    def test_pool_takes_an_items_largest_grade_once(self) -> None:
        """An item judged twice by one rater is in the pool once, with its largest grade."""
        found = means(evaluate([judged("a", 2, 1), judged("b", 4, 1)], settings(NDCG), ["judged"]), "a")
        assert found["ndcg@2:judged"] == pytest.approx(2.5 / 4.5)

    @pytest.mark.parametrize(("query", "user"), [("other", "u"), ("q", "other"), (None, "u"), ("q", None)])
    def test_pools_are_apart(self, query: str | None, user: str | None) -> None:
        """What another rater judged, or the same for another query, or nobody knows who, is not in the pool."""
        other = judged("b", 4, 4, query=query, user=user)
        found = means(evaluate([judged("a", 2, 1), other], settings(NDCG), ["judged"]), "a")
        assert found["ndcg@2:judged"] == 1.0

    def test_without_query_or_rater_the_pool_is_the_list(self) -> None:
        """A response that names no query or rater is measured against itself, and is in no query's row."""
        responses = [judged("a", 1, 2, query=None), judged("a", 2, 4, user=None)]
        evaluation = evaluate(responses, settings(NDCG), ["judged", "shown"])
        judged_mean, shown_mean = evaluation.variants[0].over_responses
        assert judged_mean == shown_mean
        assert [each.query_id for each in evaluation.queries] == ["q"]


class TestRefusals:
    """What cannot be evaluated."""

    def test_unknown_ideal(self) -> None:
        """An unknown ideal is refused by name."""
        with pytest.raises(ValueError, match="unknown ideal 'pooled', expected one of shown, constant, judged"):
            evaluate([], settings(NDCG), ["pooled"])  # type: ignore[list-item]

    def test_undeclared_variant(self) -> None:
        """A variant that is not the experiment's is refused."""
        with pytest.raises(ValueError, match="variant 'c' is not one of a, b"):
            evaluate([judged("c", 1)], settings(DCG))

    def test_grade_above_the_largest(self) -> None:
        """A grade above `max_grade` would lift the constant ideal's nDCG above 1."""
        with pytest.raises(ValueError, match="grade 5 is above max_grade 4"):
            evaluate([judged("a", 5)], settings(DCG))


class TestOutput:
    """JSON and table."""

    def test_json(self) -> None:
        """One object: variants with both means, queries with their metrics, nothing undefined but null."""
        response = judged("a", 0, query="q7")
        found: Any = json.loads(json.dumps(evaluate([response], settings(DCG, NDCG), ["shown"]).to_json()))
        nothing = {"count": 0, "undefined": 0, "mean": None}
        undefined = {"count": 0, "undefined": 1, "mean": None}
        zero = {"count": 1, "undefined": 0, "mean": 0.0}
        assert found["experiment"] == "e"
        assert found["variants"]["a"] == {
            "responses": 1,
            "rated_responses": 1,
            "queries": 1,
            "over_responses": {"dcg@2": zero, "ndcg@2:shown": undefined},
            "over_queries": {"dcg@2": zero, "ndcg@2:shown": undefined},
        }
        assert found["variants"]["b"]["over_queries"] == {"dcg@2": nothing, "ndcg@2:shown": nothing}
        assert found["queries"] == [
            {"query_id": "q7", "variant": "a", "metrics": {"dcg@2": zero, "ndcg@2:shown": undefined}}
        ]

    def test_table(self) -> None:
        """A row per query and variant, sorted, then the means of each variant."""
        responses = [judged("b", 2, query="q2"), judged("a", 4, query="q2"), judged("a", 1, query="q1")]
        evaluation = evaluate(responses, settings(DCG))
        assert evaluation.header() == ("query", "variant", "dcg@2")
        assert evaluation.rows() == [
            ("q1", "a", 1.0),
            ("q2", "a", 4.0),
            ("q2", "b", 2.0),
            ("mean over queries", "a", 2.5),
            ("mean over queries", "b", 2.0),
            ("mean over responses", "a", 2.5),
            ("mean over responses", "b", 2.0),
        ]


SURVEY_DISCOUNTS: dict[str, Discount] = {"log2(r+1)": "log2", "log2 from rank 2": "log2-from-2", "1/r": "reciprocal"}
SURVEY_GRADES = [hundredths / 100 for hundredths in range(100, 501)]
SURVEY_GAINS: dict[str, Gain | GainTable] = {
    "linear": "linear",
    "exp2": "exp2",
    "linear of v-1": {grade: grade - 1 for grade in SURVEY_GRADES},
    "exp2 of v-1": {grade: 2 ** (grade - 1) - 1 for grade in SURVEY_GRADES},
}


class TestSurvey:
    """A real survey: 15 queries, 5 results, 3 raters, 2 variants."""

    @pytest.fixture
    def survey(self, shared: Path) -> Path:
        """Return the survey's folder, or skip where it is absent."""
        folder = shared / "data" / "airbnb"
        if not folder.is_dir():
            pytest.skip(f"the survey is not at {folder}")
        return folder

    @pytest.fixture
    def responses(self, survey: Path) -> list[JudgedResponse]:
        """Return every list that a rater judged."""
        lists: dict[tuple[str, str, str], list[tuple[int, str, float]]] = defaultdict(list)
        with (survey / "ratings.csv").open(encoding="utf-8", newline="") as file:
            for line in csv.DictReader(file):
                key = (line["query_id"], line["rater"], line["variant"])
                lists[key].append((int(line["position"]), line["listing_id"], float(line["relevance"])))
        found = []
        for key, shown in lists.items():
            ranks, items, grades = zip(*shown, strict=True)
            found.append(JudgedResponse(*key, items, ranks, grades))
        return found

    @pytest.fixture
    def experiment(self) -> ExperimentSettings:
        """Return the survey's definitions: grades up to 5, exponential gain."""
        return ExperimentSettings(
            name="survey",
            control="text_only",
            variants={"text_only": 0.5, "combined": 0.5},
            metrics=(MetricSpec("ndcg@5", "ndcg", 5), MetricSpec("dcg@5", "dcg", 5)),
            gain="exp2",
            max_grade=5,
        )

    def test_published_means(self, responses: list[JudgedResponse], experiment: ExperimentSettings) -> None:
        """The means over queries: against the lists' own ideals as published, against the pools far apart."""
        text_only, combined = evaluate(responses, experiment, ["shown", "judged"]).variants
        assert [mean.mean for mean in text_only.over_queries[:2]] == pytest.approx(
            [0.9257449343295309, 0.8316938544573385], abs=1e-12
        )
        assert [mean.mean for mean in combined.over_queries[:2]] == pytest.approx(
            [0.9602751219840379, 0.9294671427514206], abs=1e-12
        )
        assert (text_only.rated_responses, text_only.queries) == (45, 15)

    @pytest.mark.parametrize("gain", ["linear", "exp2"])
    def test_summary(
        self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings, gain: Gain
    ) -> None:
        """Every mean of the survey's summary comes out."""
        summary = json.loads((survey / "expected.json").read_text("utf-8"))["summary"]
        name = {"linear": "lin", "exp2": "exp"}[gain]
        evaluation = evaluate(responses, replace(experiment, gain=gain), ["shown", "judged"])
        for variant in evaluation.variants:
            found = [mean.mean for mean in variant.over_queries]
            keys = [f"ndcg5_{name}_shown", f"ndcg5_{name}_pooled", f"dcg5_{name}"]
            assert found == pytest.approx([summary[key][variant.variant] for key in keys], abs=1e-9)

    def test_per_query_values(
        self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings
    ) -> None:
        """Every value of every query comes out, averaged over its raters."""
        told = json.loads((survey / "expected.json").read_text("utf-8"))["per_query"]
        expected = {str(query["query_id"]): query for query in told}
        keys = ("ndcg5_exp_shown", "ndcg5_exp_pooled", "dcg5_exp")
        queries = evaluate(responses, experiment, ["shown", "judged"]).queries
        assert len(queries) == 30
        for query in queries:
            of_query = expected[query.query_id]
            raters = [[of_query[f"{query.variant}|rater_{rater}|{key}"] for rater in (1, 2, 3)] for key in keys]
            assert [mean.mean for mean in query.means] == pytest.approx([sum(each) / 3 for each in raters], abs=1e-9)

    def test_sensitivity(self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings) -> None:
        """All 24 combinations of gain, discount and ideal come out."""
        combinations = json.loads((survey / "sensitivity.json").read_text("utf-8"))
        assert len(combinations) == 24
        for told in combinations:
            gain, discount = (SURVEY_GAINS[told["gain"]], SURVEY_DISCOUNTS[told["discount"]])
            definitions = replace(experiment, gain=gain, discount=discount, metrics=experiment.metrics[:1])
            ideal: PoolIdeal = "judged" if told["ideal"] == "pooled" else "shown"
            found = [each.over_queries[0].mean for each in evaluate(responses, definitions, [ideal]).variants]
            assert found == pytest.approx([told["text_only"], told["combined"]], abs=1e-9), told
