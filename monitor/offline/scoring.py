"""Judged responses → an evaluation: means by rater, query and variant, and paired tests of the variants.

A query's mean is the mean over its raters, and a variant's mean over queries is the mean of the queries' means.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from monitor.config import ExperimentSettings
from monitor.offline.evaluation_results import (
    ControlComparison,
    Evaluation,
    MeanScore,
    QueryResult,
    RaterResult,
    VariantResult,
)
from monitor.offline.metric_definitions import JudgedResponse, JudgementPools, MetricDefinition, build_pools
from monitor.offline.paired_tests import PairedTest, paired_t_test

QueryScores: TypeAlias = Sequence[float | None]
"""A score per definition; None if the metric is undefined."""


def evaluate_responses(
    judged_responses: Iterable[JudgedResponse],
    settings: ExperimentSettings,
    definitions: Sequence[MetricDefinition],
    pools: JudgementPools | None = None,
) -> Evaluation:
    """Return the experiment's metrics per query, rater and variant under each of the definitions.

    `settings` defines variants, control, scale and the gain table. Gain and discount of the settings are used if a
    definition has none. Unrated responses are counted, but they are not part of any mean.

    The judged ideal ranking of a response contains every item that the rater judged for the query, in any variant. An
    item with several grades has the largest of them. This is the recall base of Järvelin & Kekäläinen 2002, per rater
    because people use a scale differently. `pools`, if present, replaces these recall bases. A response to a query that
    the rater judged is then rated even if none of its items has a grade.

    Raises ValueError for a variant that the experiment does not have, for a grade above `max_grade`, and for values
    that a metric does not accept.
    """
    responses = list(judged_responses)
    _check_responses(responses, settings, pools or {})
    recall_bases = build_pools(responses) if pools is None else pools
    rated_responses = [
        response
        for response in responses
        if response.is_rated or (pools and (response.query_id, response.user_id) in pools)
    ]
    users = sorted({response.user_id for response in rated_responses if response.user_id is not None})
    rater_numbers = {user: number for number, user in enumerate(users, start=1)}
    scores_by_variant: dict[str, list[QueryScores]] = defaultdict(list)
    scores_by_rater: dict[tuple[str, int, str], list[QueryScores]] = defaultdict(list)
    for index, response in enumerate(rated_responses):
        scores = tuple(definition.score(response, settings, recall_bases) for definition in definitions)
        scores_by_variant[response.variant].append(scores)
        if response.query_id is not None:
            # A response without a user has a rater of its own, with a negative number.
            rater = -1 - index if response.user_id is None else rater_numbers[response.user_id]
            scores_by_rater[response.query_id, rater, response.variant].append(scores)
    width = len(definitions)
    rater_results = [
        RaterResult(query, rater if rater > 0 else None, variant, _column_means(scores, width))
        for (query, rater, variant), scores in scores_by_rater.items()
    ]
    variant_order = {variant: index for index, variant in enumerate(settings.variants)}
    query_results = _average_raters(rater_results, variant_order, width)
    response_counts = Counter(response.variant for response in responses)
    return Evaluation(
        experiment=settings.name,
        control=settings.control,
        definitions=tuple(definitions),
        variants=tuple(
            _average_variant(
                variant,
                response_counts[variant],
                scores_by_variant[variant],
                query_results,
                width,
                _average_answers(settings, [response for response in responses if response.variant == variant]),
            )
            for variant in settings.variants
        ),
        comparisons=tuple(
            ControlComparison(
                variant,
                tuple(_compare_with_control(query_results, settings.control, variant, index) for index in range(width)),
            )
            for variant in settings.variants
            if variant != settings.control
        ),
        queries=query_results,
        raters=tuple(sorted(rater_results, key=lambda result: _rater_sort_key(result, variant_order))),
    )


def _rater_sort_key(result: RaterResult, variant_order: Mapping[str, int]) -> tuple[object, ...]:
    """Return a key that sorts by query, rater and variant, and results without a rater by their means."""
    means = [(mean.mean is not None, mean.mean or 0.0) for mean in result.means]
    return (result.query_id, result.rater is None, result.rater or 0, variant_order[result.variant], means)


def _check_responses(responses: Iterable[JudgedResponse], settings: ExperimentSettings, pools: JudgementPools) -> None:
    for response in responses:
        if response.variant not in settings.variants:
            raise ValueError(f"variant {response.variant!r} is not one of {', '.join(settings.variants)}")
    for grades in [*(response.grades for response in responses), *(pool.values() for pool in pools.values())]:
        for grade in grades:
            if grade is not None and grade > settings.max_grade:
                raise ValueError(f"grade {grade!r} is above max_grade {settings.max_grade!r}")


def _average_raters(
    rater_results: Iterable[RaterResult], variant_order: Mapping[str, int], width: int
) -> tuple[QueryResult, ...]:
    """Return the means over raters of each query and variant, sorted by query and variant."""
    scores_by_query: dict[tuple[str, str], list[QueryScores]] = defaultdict(list)
    for result in rater_results:
        scores_by_query[result.query_id, result.variant].append([mean.mean for mean in result.means])
    sorted_keys = sorted(scores_by_query, key=lambda key: (key[0], variant_order[key[1]]))
    return tuple(
        QueryResult(query, variant, _column_means(scores_by_query[query, variant], width))
        for query, variant in sorted_keys
    )


def _average_variant(
    variant: str,
    response_count: int,
    response_scores: Sequence[QueryScores],
    query_results: Iterable[QueryResult],
    width: int,
    answer_means: Mapping[str, MeanScore],
) -> VariantResult:
    """Return the means of a variant over rated responses, and over the queries' means."""
    query_scores = [[mean.mean for mean in result.means] for result in query_results if result.variant == variant]
    return VariantResult(
        variant=variant,
        responses=response_count,
        rated_responses=len(response_scores),
        queries=len(query_scores),
        response_means=_column_means(response_scores, width),
        query_means=_column_means(query_scores, width),
        answer_means=answer_means,
    )


def _average_answers(settings: ExperimentSettings, responses: Sequence[JudgedResponse]) -> dict[str, MeanScore]:
    """Return answer metric → mean over the responses."""
    return {
        metric.name: MeanScore.from_scores([response.answer_values[metric.name] for response in responses])
        for metric in settings.answer_metrics
    }


def _column_means(rows: Sequence[QueryScores], width: int) -> tuple[MeanScore, ...]:
    """Return the mean per definition over rows of `width` scores."""
    return tuple(MeanScore.from_scores([row[column] for row in rows]) for column in range(width))


def _compare_with_control(
    query_results: Iterable[QueryResult], control: str, variant: str, definition_index: int
) -> PairedTest:
    """Return the paired test over the queries that have a mean under both variants."""
    query_means: dict[str, dict[str, float]] = {control: {}, variant: {}}
    for result in query_results:
        mean = result.means[definition_index].mean
        if result.variant in query_means and mean is not None:
            query_means[result.variant][result.query_id] = mean
    return paired_t_test(
        [
            (control_mean, query_means[variant][query])
            for query, control_mean in query_means[control].items()
            if query in query_means[variant]
        ]
    )
