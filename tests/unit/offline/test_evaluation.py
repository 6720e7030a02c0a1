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

from monitor.config import Discount, ExperimentSettings, Gain, MetricSpec
from monitor.metrics import DISCOUNTS, GAINS, GainTable, cg, dcg, ndcg
from monitor.offline import IDEALS, Definition, Evaluation, JudgedResponse, gains_for, grid
from monitor.offline import evaluate as evaluation_of
from monitor.offline.metric_definitions import PoolIdeal
from monitor.offline.paired_tests import paired

DCG = MetricSpec("dcg@2", "dcg", 2)
NDCG = MetricSpec("ndcg@2", "ndcg", 2)


def settings(*metrics: MetricSpec) -> ExperimentSettings:
    """Return an experiment with two variants, grades up to 4 and 1/r discounts."""
    return ExperimentSettings(
        name="e", control="a", variants={"a": 0.5, "b": 0.5}, metrics=metrics, discount="reciprocal"
    )


def evaluate(
    responses: Iterable[JudgedResponse], own: ExperimentSettings, ideals: Sequence[PoolIdeal] = IDEALS
) -> Evaluation:
    """Return the metrics under the experiment's own gain and discount, nDCG once for each of the ideals."""
    gain = own.gain if isinstance(own.gain, str) else "table"
    return evaluation_of(responses, own, grid(own.metrics, [gain], [own.discount], ideals))


def short(definition: Definition) -> str:
    """Return a definition's name without gain and discount."""
    return definition.metric.name + (f":{definition.ideal}" if definition.ideal else "")


def judged(variant: str, *grades: float | None, query: str | None = "q", user: str | None = "u") -> JudgedResponse:
    """Return a response that shows i1, i2 and so on, in this order."""
    items = tuple(f"i{index + 1}" for index in range(len(grades)))
    return JudgedResponse(query, user, variant, items, tuple(range(1, len(grades) + 1)), grades)


def means(evaluation: Evaluation, variant: str) -> dict[str, float | None]:
    """Return the variant's means over responses by column."""
    (found,) = [each for each in evaluation.variants if each.variant == variant]
    return {short(each): mean.mean for each, mean in zip(evaluation.definitions, found.over_responses, strict=True)}


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

    def test_undeclared_variant(self) -> None:
        """A variant that is not the experiment's is refused."""
        with pytest.raises(ValueError, match="variant 'c' is not one of a, b"):
            evaluate([judged("c", 1)], settings(DCG))

    def test_grade_above_the_largest(self) -> None:
        """A grade above `max_grade` would lift the constant ideal's nDCG above 1."""
        with pytest.raises(ValueError, match="grade 5 is above max_grade 4"):
            evaluate([judged("a", 5)], settings(DCG))


class TestRaters:
    """A query's mean is that of its raters' means."""

    def test_a_rater_with_many_responses_weighs_as_any_other(self) -> None:
        """Three responses of one and one of another."""
        many = [judged("a", grade, user="u1") for grade in (1, 1, 1)]
        evaluation = evaluate([*many, judged("a", 4, user="u2")], settings(DCG))
        assert [(each.rater, each.means[0].mean) for each in evaluation.raters] == [(1, 1.0), (2, 4.0)]
        assert evaluation.queries[0].means[0].mean == (1 + 4) / 2
        assert evaluation.variants[0].over_responses[0].mean == (3 + 4) / 4

    def test_raters_are_numbered_across_queries_and_variants(self) -> None:
        """One number for one person, none for a response without one, and no id anywhere."""
        responses = [
            judged("b", 3, query="q2", user="zoe"), judged("a", 1, query="q1", user="zoe"),
            judged("a", 2, query="q1", user="ann"), judged("a", 4, query="q1", user=None),
            judged("a", 4, query="q1", user=None),
        ]  # fmt: skip
        evaluation = evaluate(responses, settings(DCG))
        found = [(each.query_id, each.rater, each.variant, each.means[0].mean) for each in evaluation.raters]
        assert found == [("q1", 1, "a", 2), ("q1", 2, "a", 1), ("q1", None, "a", 4), ("q1", None, "a", 4),
                         ("q2", 2, "b", 3)]  # fmt: skip
        assert evaluation.queries[0].means[0].count == 4
        assert "zoe" not in json.dumps(evaluation.to_json())


class TestComparison:
    """Variants against the control, over queries."""

    def test_a_query_is_one_observation_however_many_rate_it(self) -> None:
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
            variant: [each.means[0].mean or 0 for each in evaluation.queries if each.variant == variant]
            for variant in "ab"
        }
        theirs = ttest_rel(sides["b"], sides["a"])
        (test,) = evaluation.comparisons[0].tests
        assert (test.queries, test.df) == (6, 5)
        assert (test.t, test.p) == pytest.approx((theirs.statistic, theirs.pvalue), rel=1e-12)
        assert test.interval == pytest.approx(tuple(theirs.confidence_interval(0.95)), rel=1e-9)
        assert test.difference == pytest.approx(sum(sides["b"]) / 6 - sum(sides["a"]) / 6)

    def test_only_queries_that_both_have(self) -> None:
        """Others, and those without a value, are in neither mean of the comparison."""
        responses = [judged("a", 4, query="q1"), judged("b", 3, query="q1"), judged("a", 2, query="q2"),
                     judged("b", 2, query="q3"), judged("a", 0, query="q4"), judged("b", 1, query="q4")]  # fmt: skip
        dcg_test, ndcg_test = evaluate(responses, settings(DCG, NDCG), ["shown"]).comparisons[0].tests
        assert (dcg_test.queries, dcg_test.control, dcg_test.treatment) == (2, 2.0, 2.0)
        assert (ndcg_test.queries, ndcg_test.differing, ndcg_test.p) == (1, 0, None)

    def test_every_variant_against_the_control(self) -> None:
        """Whatever the order of the variants."""
        own = replace(settings(DCG), variants={"b": 0.3, "c": 0.3, "a": 0.4})
        found = evaluate([judged("a", 4), judged("b", 3), judged("c", 1)], own)
        assert [(each.variant, each.tests[0].difference) for each in found.comparisons] == [("b", -1.0), ("c", -3.0)]

    @pytest.mark.parametrize(
        "pairs",
        [[], [(1.0, 2.0)], [(1.0, 1.0), (2.0, 2.0)], [(1.0, 2.0), (2.0, 3.0)], [(0.1, 0.3), (0.2, 0.4), (0.7, 0.9)]],
    )
    def test_nothing_to_test_against(self, pairs: list[tuple[float, float]]) -> None:
        """Fewer than two queries, or one difference throughout: no t, no p, no interval."""
        found = paired(pairs)
        assert (found.queries, found.t, found.p, found.interval) == (len(pairs), None, None, None)

    def test_rounding_is_no_difference(self) -> None:
        """(0.4 + 0.8)/2 is not quite 0.6 in float64."""
        assert paired([((0.4 + 0.8) / 2, 0.6), (1.0, 2.0)]).differing == 1


class TestDefinitions:
    """Everything at once."""

    def test_every_combination_is_what_its_own_settings_give(self) -> None:
        """Under every gain, discount and ideal, the value is that of the metric so defined."""
        response = JudgedResponse("q", "u", "a", ("x", "y", "z"), (1, 2, 3), (1, None, 3))
        other = JudgedResponse("q", "u", "b", ("w",), (1,), (4,))
        specs = [MetricSpec("cg@3", "cg", 3), MetricSpec("dcg@3", "dcg", 3), MetricSpec("ndcg@3", "ndcg", 3)]
        found = evaluation_of([response, other], settings(), grid(specs, GAINS, DISCOUNTS, IDEALS))
        values = {each.name: mean.mean for each, mean in zip(found.definitions, found.queries[0].means, strict=True)}
        assert len(values) == 2 + 2 * 3 + 2 * 3 * 3
        ideals = {"shown": None, "constant": [4.0, 4.0, 4.0], "judged": [1.0, 3.0, 4.0]}
        for gain in GAINS:
            assert values[f"cg@3:{gain}"] == cg([1, None, 3], 3, gain=gain)
            for discount in DISCOUNTS:
                assert values[f"dcg@3:{gain}:{discount}"] == dcg([1, None, 3], 3, gain=gain, discount=discount)
                for ideal, grades in ideals.items():
                    one = ndcg([1, None, 3], 3, gain=gain, discount=discount, ideal=grades)
                    assert values[f"ndcg@3:{gain}:{discount}:{ideal}"] == one

    def test_gains_follow_the_scale(self) -> None:
        """An own table comes first; exp2 is left out where it would leave the range of numbers."""
        assert gains_for(settings()) == ("linear", "exp2")
        assert gains_for(replace(settings(), gain={0: 0, 4: 1})) == ("table", "linear", "exp2")
        assert gains_for(replace(settings(), max_grade=100)) == ("linear",)

    def test_pools_from_elsewhere(self) -> None:
        """They are the ideal, and a list in which nothing is judged is worth 0 where its rater judged the query."""
        pools = {("q", "u"): {"i9": 4.0}}
        found = evaluation_of(
            [judged("a", None)], settings(), grid([NDCG], ["linear"], ["log2"], ["judged", "shown"]), pools
        )
        assert [mean.mean for mean in found.queries[0].means] == [0.0, None]


class TestOutput:
    """JSON: the other forms are tested with the command."""

    def test_json(self) -> None:
        """One object: variants with both means, queries and raters with theirs, nothing undefined but null."""
        response = judged("a", 0, query="q7")
        found: Any = json.loads(json.dumps(evaluate([response], settings(DCG, NDCG), ["shown"]).to_json()))
        dcg_name, ndcg_name = "dcg@2:linear:reciprocal", "ndcg@2:linear:reciprocal:shown"
        nothing = {"count": 0, "undefined": 0, "mean": None}
        undefined = {"count": 0, "undefined": 1, "mean": None}
        zero = {"count": 1, "undefined": 0, "mean": 0.0}
        metrics = {dcg_name: zero, ndcg_name: undefined}
        assert (found["experiment"], found["control"]) == ("e", "a")
        assert found["definitions"][1] == {
            "name": ndcg_name, "measure": "ndcg", "k": 2, "gain": "linear", "discount": "reciprocal", "ideal": "shown",
        }  # fmt: skip
        assert found["variants"]["a"] == {
            "responses": 1, "rated_responses": 1, "queries": 1, "over_responses": metrics, "over_queries": metrics,
        }  # fmt: skip
        assert found["variants"]["b"]["over_queries"] == {dcg_name: nothing, ndcg_name: nothing}
        assert found["comparisons"]["b"][dcg_name]["p"] is None
        assert found["queries"] == [{"query_id": "q7", "variant": "a", "metrics": metrics}]
        assert found["raters"] == [{"query_id": "q7", "rater": 1, "variant": "a", "metrics": metrics}]


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
            found = evaluate(responses, definitions, [ideal])
            means = [each.over_queries[0].mean for each in found.variants]
            assert means == pytest.approx([told["text_only"], told["combined"]], abs=1e-9), told
            (test,) = found.comparisons[0].tests
            assert (test.difference, test.p) == pytest.approx((told["diff"], told["paired_t_p"]), abs=1e-9), told
            assert test.queries == 15
