"""Offline evaluation: means per query and variant, pools, a real survey."""

from __future__ import annotations

import csv
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import ttest_rel

from monitor.config import ExperimentSettings, MetricSpec, NamedDiscount, NamedGain
from monitor.metrics import DISCOUNT_NAMES, GAIN_NAMES, GainTable, cumulative_gain, dcg, ndcg
from monitor.offline import (
    IDEALS,
    Evaluation,
    JudgedResponse,
    MetricDefinition,
    build_definition_grid,
    list_available_gains,
)
from monitor.offline import evaluate_responses as evaluation_of
from monitor.offline.metric_definitions import PoolIdeal
from monitor.offline.paired_tests import paired_t_test

DCG = MetricSpec("dcg@2", "dcg", 2)
NDCG = MetricSpec("ndcg@2", "ndcg", 2)


def settings(*metrics: MetricSpec) -> ExperimentSettings:
    """Return an experiment with two variants, grades up to 4 and 1/r discounts."""
    return ExperimentSettings(
        name="e", control="a", variants={"a": 0.5, "b": 0.5}, metrics=metrics, discount="reciprocal"
    )


def evaluate(
    responses: Iterable[JudgedResponse], experiment: ExperimentSettings, ideals: Sequence[PoolIdeal] = IDEALS
) -> Evaluation:
    """Return the metrics under the experiment's gain and discount, and nDCG under each ideal."""
    gain = experiment.gain if isinstance(experiment.gain, str) else "table"
    return evaluation_of(
        responses, experiment, build_definition_grid(experiment.metrics, [gain], [experiment.discount], ideals)
    )


def short(definition: MetricDefinition) -> str:
    """Return a definition's name without gain and discount."""
    return definition.metric.name + (f":{definition.ideal}" if definition.ideal else "")


def judged(variant: str, *grades: float | None, query: str | None = "q", user: str | None = "u") -> JudgedResponse:
    """Return a response with the items i1, i2 and so on, in the order of the grades."""
    items = tuple(f"i{index + 1}" for index in range(len(grades)))
    return JudgedResponse(query, user, variant, items, tuple(range(1, len(grades) + 1)), grades)


def means(evaluation: Evaluation, variant: str) -> dict[str, float | None]:
    """Return the variant's means over responses by column."""
    (variant_result,) = [definition for definition in evaluation.variants if definition.variant == variant]
    return {
        short(definition): mean.mean
        for definition, mean in zip(evaluation.definitions, variant_result.response_means, strict=True)
    }


class TestEvaluationMeans:
    """Means over responses and over queries."""

    def test_means_over_responses_and_over_queries_differ(self) -> None:
        """A query with many responses weighs more over responses and the same over queries."""
        responses = [judged("a", 4, query="q1"), judged("a", 2, query="q1"), judged("a", 1, query="q2")]
        (variant, _) = evaluate(responses, settings(DCG)).variants
        assert variant.response_means[0].mean == pytest.approx(7 / 3)
        assert variant.query_means[0].mean == pytest.approx((3 + 1) / 2)
        assert (variant.response_means[0].count, variant.query_means[0].count) == (3, 2)

    def test_unrated_responses_are_counted_but_in_no_mean(self) -> None:
        """A response without a grade enters no mean and no query."""
        (variant, _) = evaluate([judged("a", 4), judged("a", None, None, query="q2")], settings(DCG)).variants
        assert (variant.responses, variant.rated_responses, variant.queries) == (2, 1, 1)
        assert variant.response_means[0].mean == 4

    def test_undefined_values_are_counted_but_in_no_mean(self) -> None:
        """A response with grades of 0 only has no nDCG."""
        evaluation = evaluate([judged("a", 0, 0, query="q1"), judged("a", 2, 4, query="q2")], settings(NDCG), ["shown"])
        (mean,) = evaluation.variants[0].response_means
        assert (mean.count, mean.undefined) == (1, 1)
        assert mean.mean == pytest.approx((2 + 4 / 2) / (4 + 2 / 2))
        assert [query_result.means[0].mean for query_result in evaluation.queries] == [None, mean.mean]
        assert evaluation.variants[0].query_means[0] == mean

    def test_a_variant_without_responses_has_no_means(self) -> None:
        """A variant that answered nothing has counts of 0 and no mean."""
        evaluation = evaluate([judged("a", 4)], settings(DCG))
        assert evaluation.variants[1].responses == 0
        assert means(evaluation, "b") == {"dcg@2": None}

    def test_every_metric_uses_the_positions_of_items(self) -> None:
        """An item counts at its position, not at its index in the list."""
        specs = [MetricSpec(f"{name}@3", name, 3) for name in ("cg", "dcg", "ndcg", "success", "rr", "p")]
        response = JudgedResponse("q", "u", "a", ("x", "y", "z"), (2, 3, 7), (1, 3, 4))
        variant_means = means(evaluate([response], settings(*specs), ["shown"]), "a")
        ideal = 4 + 3 / 2 + 1 / 3
        assert variant_means == pytest.approx(
            {"cg@3": 4, "dcg@3": 1 / 2 + 1, "ndcg@3:shown": 1.5 / ideal, "success@3": 1, "rr@3": 1 / 3, "p@3": 1 / 3}
        )

    def test_results_do_not_depend_on_the_order_of_responses(self) -> None:
        """The same responses in another order give the same evaluation."""
        responses = [
            judged(variant, 0.1 * index, 4 - index / 7, query=f"q{index % 3}", user=f"u{index % 2}")
            for index in range(12)
            for variant in "ab"
        ]
        assert evaluate(responses[::-1], settings(DCG, NDCG)) == evaluate(responses, settings(DCG, NDCG))


class TestIdealRankings:
    """The ideal rankings of nDCG."""

    def test_pool_contains_items_that_any_variant_showed_the_rater(self) -> None:
        """The judged ideal contains the better items of the other variant; the ideal of shown items does not."""
        better_response = JudgedResponse("q", "u", "b", ("i8", "i9"), (1, 2), (4, 3))
        variant_means = means(evaluate([judged("a", 2, 1), better_response], settings(NDCG)), "a")
        assert variant_means["ndcg@2:shown"] == 1.0
        assert variant_means["ndcg@2:constant"] == pytest.approx(2.5 / 6)
        assert variant_means["ndcg@2:judged"] == pytest.approx(2.5 / 5.5)

    def test_pool_contains_the_largest_grade_of_an_item_once(self) -> None:
        """A rater has judged an item twice."""
        variant_means = means(evaluate([judged("a", 2, 1), judged("b", 4, 1)], settings(NDCG), ["judged"]), "a")
        assert variant_means["ndcg@2:judged"] == pytest.approx(2.5 / 4.5)

    @pytest.mark.parametrize(("query", "user"), [("other", "u"), ("q", "other"), (None, "u"), ("q", None)])
    def test_queries_and_raters_have_separate_pools(self, query: str | None, user: str | None) -> None:
        """Judgements of another rater, another query or an unknown rater are not in the pool."""
        separate_response = judged("b", 4, 4, query=query, user=user)
        variant_means = means(evaluate([judged("a", 2, 1), separate_response], settings(NDCG), ["judged"]), "a")
        assert variant_means["ndcg@2:judged"] == 1.0

    def test_the_pool_of_a_response_without_query_or_rater_is_its_list(self) -> None:
        """A response that names no query or rater is measured against itself, and is in no query's row."""
        responses = [judged("a", 1, 2, query=None), judged("a", 2, 4, user=None)]
        evaluation = evaluate(responses, settings(NDCG), ["judged", "shown"])
        judged_mean, shown_mean = evaluation.variants[0].response_means
        assert judged_mean == shown_mean
        assert [query_result.query_id for query_result in evaluation.queries] == ["q"]


class TestInvalidResponses:
    """Invalid responses raise ValueError."""

    def test_an_unknown_variant_is_rejected(self) -> None:
        """A variant that is not the experiment's is refused."""
        with pytest.raises(ValueError, match="variant 'c' is not one of a, b"):
            evaluate([judged("c", 1)], settings(DCG))

    def test_a_grade_above_max_grade_is_rejected(self) -> None:
        """A grade above `max_grade` would lift the constant ideal's nDCG above 1."""
        with pytest.raises(ValueError, match="grade 5 is above max_grade 4"):
            evaluate([judged("a", 5)], settings(DCG))


class TestRaterResults:
    """The mean of a query is the mean of the raters' means."""

    def test_a_rater_with_many_responses_has_the_same_weight(self) -> None:
        """A rater has three responses, another rater has a single response."""
        many = [judged("a", grade, user="u1") for grade in (1, 1, 1)]
        evaluation = evaluate([*many, judged("a", 4, user="u2")], settings(DCG))
        assert [(result.rater, result.means[0].mean) for result in evaluation.raters] == [(1, 1.0), (2, 4.0)]
        assert evaluation.queries[0].means[0].mean == (1 + 4) / 2
        assert evaluation.variants[0].response_means[0].mean == (3 + 4) / 4

    def test_raters_are_numbered_across_queries_and_variants(self) -> None:
        """A person has a single number, a response without a user has none, and the results do not contain ids."""
        responses = [
            judged("b", 3, query="q2", user="zoe"), judged("a", 1, query="q1", user="zoe"),
            judged("a", 2, query="q1", user="ann"), judged("a", 4, query="q1", user=None),
            judged("a", 4, query="q1", user=None),
        ]  # fmt: skip
        evaluation = evaluate(responses, settings(DCG))
        rater_rows = [
            (result.query_id, result.rater, result.variant, result.means[0].mean) for result in evaluation.raters
        ]
        assert rater_rows == [("q1", 1, "a", 2), ("q1", 2, "a", 1), ("q1", None, "a", 4), ("q1", None, "a", 4),
                         ("q2", 2, "b", 3)]  # fmt: skip
        assert evaluation.queries[0].means[0].count == 4
        assert "zoe" not in json.dumps(evaluation.to_json())


class TestControlComparison:
    """Variants against the control, over queries."""

    def test_a_query_with_several_raters_is_one_observation(self) -> None:
        """n, t and p are scipy's of the queries' means, not of the ratings."""
        chance = random.Random(3)
        responses = [
            judged(variant, chance.choice([1, 2, 3, 4]), query=f"q{query}", user=f"u{user}")
            for query in range(6)
            for variant in "ab"
            for user in range(10)
        ]
        evaluation = evaluate(responses, settings(DCG))
        sides = {
            variant: [
                query_result.means[0].mean or 0
                for query_result in evaluation.queries
                if query_result.variant == variant
            ]
            for variant in "ab"
        }
        theirs = ttest_rel(sides["b"], sides["a"])
        (test,) = evaluation.comparisons[0].tests
        assert (test.queries, test.df) == (6, 5)
        assert (test.t, test.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-12)
        assert test.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-9)
        assert test.difference == pytest.approx(sum(sides["b"]) / 6 - sum(sides["a"]) / 6)

    def test_only_queries_of_both_variants_are_compared(self) -> None:
        """Other queries, and queries without a value, are in neither mean of the comparison."""
        responses = [judged("a", 4, query="q1"), judged("b", 3, query="q1"), judged("a", 2, query="q2"),
                     judged("b", 2, query="q3"), judged("a", 0, query="q4"), judged("b", 1, query="q4")]  # fmt: skip
        dcg_test, ndcg_test = evaluate(responses, settings(DCG, NDCG), ["shown"]).comparisons[0].tests
        assert (dcg_test.queries, dcg_test.control, dcg_test.treatment) == (2, 2.0, 2.0)
        assert (ndcg_test.queries, ndcg_test.differing, ndcg_test.p) == (1, 0, None)

    def test_every_variant_is_compared_with_the_control(self) -> None:
        """The control need not be the first variant."""
        experiment = replace(settings(DCG), variants={"b": 0.3, "c": 0.3, "a": 0.4})
        evaluation = evaluate([judged("a", 4), judged("b", 3), judged("c", 1)], experiment)
        assert [(comparison.variant, comparison.tests[0].difference) for comparison in evaluation.comparisons] == [
            ("b", -1.0),
            ("c", -3.0),
        ]

    @pytest.mark.parametrize(
        "pairs",
        [[], [(1.0, 2.0)], [(1.0, 1.0), (2.0, 2.0)], [(1.0, 2.0), (2.0, 3.0)], [(0.1, 0.3), (0.2, 0.4), (0.7, 0.9)]],
    )
    def test_without_variance_there_is_no_test(self, pairs: list[tuple[float, float]]) -> None:
        """Fewer than two queries, or equal differences: t, p and interval are None."""
        test = paired_t_test(pairs)
        assert (test.queries, test.t, test.p, test.interval) == (len(pairs), None, None, None)

    def test_rounding_errors_are_not_differences(self) -> None:
        """(0.4 + 0.8)/2 is not quite 0.6 in float64."""
        assert paired_t_test([((0.4 + 0.8) / 2, 0.6), (1.0, 2.0)]).differing == 1


class TestMetricDefinitions:
    """All combinations of metrics and parameters."""

    def test_every_combination_equals_the_metric_with_these_settings(self) -> None:
        """Under every gain, discount and ideal, the value is that of the metric so defined."""
        response = JudgedResponse("q", "u", "a", ("x", "y", "z"), (1, 2, 3), (1, None, 3))
        better_response = JudgedResponse("q", "u", "b", ("w",), (1,), (4,))
        specs = [MetricSpec("cg@3", "cg", 3), MetricSpec("dcg@3", "dcg", 3), MetricSpec("ndcg@3", "ndcg", 3)]
        evaluation = evaluation_of(
            [response, better_response], settings(), build_definition_grid(specs, GAIN_NAMES, DISCOUNT_NAMES, IDEALS)
        )
        values = {
            definition.name: mean.mean
            for definition, mean in zip(evaluation.definitions, evaluation.queries[0].means, strict=True)
        }
        assert len(values) == 2 + 2 * 3 + 2 * 3 * 3
        ideals = {"shown": None, "constant": [4.0, 4.0, 4.0], "judged": [1.0, 3.0, 4.0]}
        for gain in GAIN_NAMES:
            assert values[f"cg@3:{gain}"] == cumulative_gain([1, None, 3], 3, gain=gain)
            for discount in DISCOUNT_NAMES:
                assert values[f"dcg@3:{gain}:{discount}"] == dcg([1, None, 3], 3, gain=gain, discount=discount)
                for ideal, grades in ideals.items():
                    one = ndcg([1, None, 3], 3, gain=gain, discount=discount, ideal=grades)
                    assert values[f"ndcg@3:{gain}:{discount}:{ideal}"] == one

    def test_available_gains_depend_on_the_scale(self) -> None:
        """A gain table comes first; exp2 is not available if gains would be too large."""
        assert list_available_gains(settings()) == ("linear", "exp2")
        assert list_available_gains(replace(settings(), gain={0: 0, 4: 1})) == ("table", "linear", "exp2")
        assert list_available_gains(replace(settings(), max_grade=100)) == ("linear",)

    def test_given_pools_replace_the_recall_bases(self) -> None:
        """A list without judged items has nDCG 0 if the rater has judged the query."""
        pools = {("q", "u"): {"i9": 4.0}}
        evaluation = evaluation_of(
            [judged("a", None)],
            settings(),
            build_definition_grid([NDCG], ["linear"], ["log2"], ["judged", "shown"]),
            pools,
        )
        assert [mean.mean for mean in evaluation.queries[0].means] == [0.0, None]


class TestEvaluationJson:
    """The JSON object; CSV, HTML and tables are tested with the command."""

    def test_json_contains_all_results(self) -> None:
        """Variants with both kinds of means, queries and raters with their means; undefined values are null."""
        response = judged("a", 0, query="q7")
        evaluation_json: Any = json.loads(json.dumps(evaluate([response], settings(DCG, NDCG), ["shown"]).to_json()))
        dcg_name, ndcg_name = "dcg@2:linear:reciprocal", "ndcg@2:linear:reciprocal:shown"
        no_scores = {"count": 0, "undefined": 0, "mean": None}
        undefined = {"count": 0, "undefined": 1, "mean": None}
        zero = {"count": 1, "undefined": 0, "mean": 0.0}
        metrics = {dcg_name: zero, ndcg_name: undefined}
        assert (evaluation_json["experiment"], evaluation_json["control"]) == ("e", "a")
        assert evaluation_json["definitions"][1] == {
            "name": ndcg_name, "measure": "ndcg", "k": 2, "gain": "linear", "discount": "reciprocal", "ideal": "shown",
        }  # fmt: skip
        assert evaluation_json["variants"]["a"] == {
            "responses": 1, "rated_responses": 1, "queries": 1, "over_responses": metrics, "over_queries": metrics,
            "answers": {},
        }  # fmt: skip
        assert evaluation_json["variants"]["b"]["over_queries"] == {dcg_name: no_scores, ndcg_name: no_scores}
        assert evaluation_json["comparisons"]["b"][dcg_name]["p"] is None
        assert evaluation_json["queries"] == [{"query_id": "q7", "variant": "a", "metrics": metrics}]
        assert evaluation_json["raters"] == [{"query_id": "q7", "rater": 1, "variant": "a", "metrics": metrics}]


SURVEY_DISCOUNTS: dict[str, NamedDiscount] = {
    "log2(r+1)": "log2",
    "log2 from rank 2": "log2-from-2",
    "1/r": "reciprocal",
}
SURVEY_GRADES = [hundredths / 100 for hundredths in range(100, 501)]
SURVEY_GAINS: dict[str, NamedGain | GainTable] = {
    "linear": "linear",
    "exp2": "exp2",
    "linear of v-1": {grade: grade - 1 for grade in SURVEY_GRADES},
    "exp2 of v-1": {grade: 2 ** (grade - 1) - 1 for grade in SURVEY_GRADES},
}


class TestEvaluationOfTheSurvey:
    """A real survey: 15 queries, 5 results, 3 raters, 2 variants."""

    @pytest.fixture
    def survey(self, shared: Path) -> Path:
        """Return the survey's folder; skip the test if the folder does not exist."""
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
        judged_responses = []
        for key, ranked_items in lists.items():
            ranks, items, grades = zip(*ranked_items, strict=True)
            judged_responses.append(JudgedResponse(*key, items, ranks, grades))
        return judged_responses

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

    def test_published_means_are_reproduced(
        self, responses: list[JudgedResponse], experiment: ExperimentSettings
    ) -> None:
        """The means over queries: against the lists' own ideals as published, against the pools far apart."""
        text_only, combined = evaluate(responses, experiment, ["shown", "judged"]).variants
        assert [mean.mean for mean in text_only.query_means[:2]] == pytest.approx(
            [0.9257449343295309, 0.8316938544573385], abs=1e-12
        )
        assert [mean.mean for mean in combined.query_means[:2]] == pytest.approx(
            [0.9602751219840379, 0.9294671427514206], abs=1e-12
        )
        assert (text_only.rated_responses, text_only.queries) == (45, 15)

    @pytest.mark.parametrize("gain", ["linear", "exp2"])
    def test_published_summary_is_reproduced(
        self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings, gain: NamedGain
    ) -> None:
        """Every mean of the survey's summary comes out."""
        summary = json.loads((survey / "expected.json").read_text("utf-8"))["summary"]
        name = {"linear": "lin", "exp2": "exp"}[gain]
        evaluation = evaluate(responses, replace(experiment, gain=gain), ["shown", "judged"])
        for variant in evaluation.variants:
            query_means = [mean.mean for mean in variant.query_means]
            keys = [f"ndcg5_{name}_shown", f"ndcg5_{name}_pooled", f"dcg5_{name}"]
            assert query_means == pytest.approx([summary[key][variant.variant] for key in keys], abs=1e-9)

    def test_published_values_by_query_are_reproduced(
        self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings
    ) -> None:
        """The values of every query are averaged over the raters."""
        published_queries = json.loads((survey / "expected.json").read_text("utf-8"))["per_query"]
        expected = {str(query["query_id"]): query for query in published_queries}
        keys = ("ndcg5_exp_shown", "ndcg5_exp_pooled", "dcg5_exp")
        queries = evaluate(responses, experiment, ["shown", "judged"]).queries
        assert len(queries) == 30
        for query in queries:
            of_query = expected[query.query_id]
            raters = [[of_query[f"{query.variant}|rater_{rater}|{key}"] for rater in (1, 2, 3)] for key in keys]
            assert [mean.mean for mean in query.means] == pytest.approx(
                [sum(rater_values) / 3 for rater_values in raters], abs=1e-9
            )

    def test_published_sensitivity_analysis_is_reproduced(
        self, survey: Path, responses: list[JudgedResponse], experiment: ExperimentSettings
    ) -> None:
        """All 24 combinations of gain, discount and ideal come out."""
        combinations = json.loads((survey / "sensitivity.json").read_text("utf-8"))
        assert len(combinations) == 24
        for published_row in combinations:
            gain, discount = (SURVEY_GAINS[published_row["gain"]], SURVEY_DISCOUNTS[published_row["discount"]])
            definitions = replace(experiment, gain=gain, discount=discount, metrics=experiment.metrics[:1])
            ideal: PoolIdeal = "judged" if published_row["ideal"] == "pooled" else "shown"
            evaluation = evaluate(responses, definitions, [ideal])
            means = [result.query_means[0].mean for result in evaluation.variants]
            assert means == pytest.approx([published_row["text_only"], published_row["combined"]], abs=1e-9), (
                published_row
            )
            (test,) = evaluation.comparisons[0].tests
            assert (test.difference, test.p) == pytest.approx(
                (published_row["diff"], published_row["paired_t_p"]), abs=1e-9
            ), published_row
            assert test.queries == 15
