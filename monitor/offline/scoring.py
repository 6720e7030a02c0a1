"""Judged responses → an evaluation: raters' means, of these the queries', of these the variants', and tests."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from monitor.config import ExperimentSettings
from monitor.offline.evaluation_results import Comparison, Evaluation, Mean, QueryResult, RaterResult, VariantResult
from monitor.offline.metric_definitions import Definition, JudgedResponse, Pools, pooled
from monitor.offline.paired_tests import Paired, paired

Values: TypeAlias = Sequence[float | None]
"""One per definition."""


def evaluate(
    judged: Iterable[JudgedResponse],
    settings: ExperimentSettings,
    definitions: Sequence[Definition],
    pools: Pools | None = None,
) -> Evaluation:
    """Return the experiment's metrics per query, rater and variant under each of `definitions`.

    `settings` tells variants, control, scale and the gain table; its own metrics, gain, discount and ideal only count
    where a definition leaves them open. Unrated responses are counted and enter no mean. The judged ideal of a response
    is made of every item that its rater judged for its query in any variant, each with the largest of its grades (the
    recall base of Järvelin & Kekäläinen 2002; per rater, since people do not share a scale). Where `pools` are given,
    they are these ideals, and a response to a query that its rater judged counts as rated whatever it showed.

    Raises ValueError for a variant that is not the experiment's, a grade above `max_grade`, and whatever the metrics
    refuse.
    """
    responses = list(judged)
    _check(responses, settings, pools or {})
    known = pooled(responses) if pools is None else pools
    rated = [each for each in responses if each.is_rated or (pools and (each.query_id, each.user_id) in pools)]
    users = sorted({each.user_id for each in rated if each.user_id is not None})
    numbers = {user: number for number, user in enumerate(users, start=1)}
    scores: dict[str, list[Values]] = defaultdict(list)
    given: dict[tuple[str, int, str], list[Values]] = defaultdict(list)
    for index, response in enumerate(rated):
        values = tuple(definition.value(response, settings, known) for definition in definitions)
        scores[response.variant].append(values)
        if response.query_id is not None:
            rater = -1 - index if response.user_id is None else numbers[response.user_id]
            given[response.query_id, rater, response.variant].append(values)
    width = len(definitions)
    raters = [RaterResult(query, rater if rater > 0 else None, variant, _means(values, width))
              for (query, rater, variant), values in given.items()]  # fmt: skip
    order = {variant: place for place, variant in enumerate(settings.variants)}
    queries = _queries(raters, order, width)
    shown = Counter(response.variant for response in responses)
    return Evaluation(
        experiment=settings.name,
        control=settings.control,
        definitions=tuple(definitions),
        variants=tuple(
            _variant(variant, shown[variant], scores[variant], queries, width) for variant in settings.variants
        ),
        comparisons=tuple(
            Comparison(variant, tuple(_test(queries, settings.control, variant, at) for at in range(width)))
            for variant in settings.variants
            if variant != settings.control
        ),
        queries=queries,
        raters=tuple(sorted(raters, key=lambda each: _place(each, order))),
    )


def _place(result: RaterResult, order: Mapping[str, int]) -> tuple[object, ...]:
    means = [(mean.mean is not None, mean.mean or 0.0) for mean in result.means]
    return (result.query_id, result.rater is None, result.rater or 0, order[result.variant], means)


def _check(responses: Iterable[JudgedResponse], settings: ExperimentSettings, pools: Pools) -> None:
    for response in responses:
        if response.variant not in settings.variants:
            raise ValueError(f"variant {response.variant!r} is not one of {', '.join(settings.variants)}")
    for grades in [*(response.grades for response in responses), *(pool.values() for pool in pools.values())]:
        for grade in grades:
            if grade is not None and grade > settings.max_grade:
                raise ValueError(f"grade {grade!r} is above max_grade {settings.max_grade!r}")


def _queries(raters: Iterable[RaterResult], order: Mapping[str, int], width: int) -> tuple[QueryResult, ...]:
    by_query: dict[tuple[str, str], list[Values]] = defaultdict(list)
    for each in raters:
        by_query[each.query_id, each.variant].append([mean.mean for mean in each.means])
    found = sorted(by_query, key=lambda key: (key[0], order[key[1]]))
    return tuple(QueryResult(query, variant, _means(by_query[query, variant], width)) for query, variant in found)


def _variant(
    variant: str, responses: int, scores: Sequence[Values], queries: Iterable[QueryResult], width: int
) -> VariantResult:
    own = [[mean.mean for mean in query.means] for query in queries if query.variant == variant]
    return VariantResult(
        variant=variant,
        responses=responses,
        rated_responses=len(scores),
        queries=len(own),
        over_responses=_means(scores, width),
        over_queries=_means(own, width),
    )


def _means(table: Sequence[Values], width: int) -> tuple[Mean, ...]:
    return tuple(Mean.of([row[column] for row in table]) for column in range(width))


def _test(queries: Iterable[QueryResult], control: str, variant: str, at: int) -> Paired:
    sides: dict[str, dict[str, float]] = {control: {}, variant: {}}
    for query in queries:
        mean = query.means[at].mean
        if query.variant in sides and mean is not None:
            sides[query.variant][query.query_id] = mean
    return paired(
        [(value, sides[variant][query]) for query, value in sides[control].items() if query in sides[variant]]
    )
