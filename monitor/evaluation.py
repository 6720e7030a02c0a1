"""Offline evaluation: per-query metrics of judged responses, in float64, from nothing but the responses themselves.

A query answered by several variants and judged by the same people can be normalised by an ideal that the stream never
has: the pool of everything a person judged for it. Pure: the result does not depend on the order of the responses.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from monitor.config import ExperimentSettings, MetricSpec
from monitor.ranking import cg, dcg, ndcg, p, rr, success

PoolIdeal: TypeAlias = Literal["shown", "constant", "judged"]
IDEALS: tuple[PoolIdeal, ...] = get_args(PoolIdeal)

Pools: TypeAlias = Mapping[tuple[str, str], Mapping[str, float]]
"""(query, rater) → item → the largest grade that this rater gave it for this query, in any variant."""


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """One response with its grades; `items`, `ranks` (positions from 1) and `grades` (None: unjudged) are parallel."""

    query_id: str | None
    """Without one, the response is in no query's row and its pool is its own list."""
    user_id: str | None
    """Who judged; without one, the response's pool is its own list."""
    variant: str
    items: tuple[str, ...]
    ranks: tuple[int, ...]
    grades: tuple[float | None, ...]

    @property
    def is_rated(self) -> bool:
        """Whether at least one item has a grade."""
        return any(grade is not None for grade in self.grades)


@dataclass(frozen=True, slots=True)
class Column:
    """One number per response: a metric, and for nDCG the ideal it is measured against."""

    metric: MetricSpec
    ideal: PoolIdeal | None

    @property
    def name(self) -> str:
        """The metric's name, and the ideal after a colon: `dcg@5`, `ndcg@5:judged`."""
        return self.metric.name if self.ideal is None else f"{self.metric.name}:{self.ideal}"


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over the defined ones of `count + undefined` values; `mean` is None if none is defined."""

    count: int
    undefined: int
    mean: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        """Return the mean of the values that are not None."""
        defined = [value for value in values if value is not None]
        mean = math.fsum(defined) / len(defined) if defined else None
        return cls(count=len(defined), undefined=len(values) - len(defined), mean=mean)

    def to_json(self) -> dict[str, object]:
        """Return the three fields."""
        return {"count": self.count, "undefined": self.undefined, "mean": self.mean}


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One query under one variant: the means over its rated responses, one per column."""

    query_id: str
    variant: str
    means: tuple[Mean, ...]


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One variant: means over rated responses, and means over queries of the queries' means; one per column."""

    variant: str
    responses: int
    rated_responses: int
    queries: int
    """Queries with at least one rated response."""
    over_responses: tuple[Mean, ...]
    over_queries: tuple[Mean, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found: variants in the configuration's order, queries sorted by id."""

    experiment: str
    columns: tuple[Column, ...]
    variants: tuple[VariantResult, ...]
    queries: tuple[QueryResult, ...]

    def header(self) -> tuple[str, ...]:
        """Return the names of the cells of `rows`."""
        return ("query", "variant", *(column.name for column in self.columns))

    def rows(self) -> list[tuple[str | float | None, ...]]:
        """Return a table: a row per query and variant, then per variant the mean over queries and over responses."""
        rows = [_row(each.query_id, each.variant, each.means) for each in self.queries]
        rows += [_row("mean over queries", each.variant, each.over_queries) for each in self.variants]
        rows += [_row("mean over responses", each.variant, each.over_responses) for each in self.variants]
        return rows

    def to_json(self) -> dict[str, object]:
        """Return everything as one JSON object; a mean of nothing is null."""
        return {
            "experiment": self.experiment,
            "variants": {
                each.variant: {
                    "responses": each.responses,
                    "rated_responses": each.rated_responses,
                    "queries": each.queries,
                    "over_responses": self._named(each.over_responses),
                    "over_queries": self._named(each.over_queries),
                }
                for each in self.variants
            },
            "queries": [
                {"query_id": each.query_id, "variant": each.variant, "metrics": self._named(each.means)}
                for each in self.queries
            ],
        }

    def _named(self, means: Sequence[Mean]) -> dict[str, object]:
        return {column.name: mean.to_json() for column, mean in zip(self.columns, means, strict=True)}


def _row(query: str, variant: str, means: Sequence[Mean]) -> tuple[str | float | None, ...]:
    return (query, variant, *(mean.mean for mean in means))


def evaluate(
    judged: Iterable[JudgedResponse], settings: ExperimentSettings, ideals: Sequence[PoolIdeal] = IDEALS
) -> Evaluation:
    """Return the experiment's metrics per query and per variant, nDCG once for each of `ideals`.

    `settings.ideal` is not used. Unrated responses are counted and enter no mean. The judged ideal of a response is
    made of every item that its rater judged for its query in any variant, each with the largest of its grades (the
    recall base of Järvelin & Kekäläinen 2002; per rater, since people do not share a scale).

    Raises ValueError for an unknown ideal, a variant that is not the experiment's, a grade above `max_grade`, and
    whatever the metrics refuse.
    """
    for ideal in ideals:
        if ideal not in IDEALS:
            raise ValueError(f"unknown ideal {ideal!r}, expected one of {', '.join(IDEALS)}")
    columns = _columns(settings.metrics, ideals)
    responses = list(judged)
    _check(responses, settings)
    pools = pooled(responses)
    scores: dict[str, list[tuple[float | None, ...]]] = defaultdict(list)
    by_query: dict[tuple[str, str], list[tuple[float | None, ...]]] = defaultdict(list)
    for response in responses:
        if response.is_rated:
            values = tuple(_value(response, column, settings, pools) for column in columns)
            scores[response.variant].append(values)
            if response.query_id is not None:
                by_query[response.query_id, response.variant].append(values)
    order = {variant: place for place, variant in enumerate(settings.variants)}
    found = sorted(by_query, key=lambda key: (key[0], order[key[1]]))
    queries = tuple(
        QueryResult(query, variant, _means(by_query[query, variant], len(columns))) for query, variant in found
    )
    shown = Counter(response.variant for response in responses)
    variants = tuple(
        _variant(variant, shown[variant], scores[variant], queries, len(columns)) for variant in settings.variants
    )
    return Evaluation(settings.name, columns, variants, queries)


def pooled(responses: Iterable[JudgedResponse]) -> Pools:
    """Return the pools of all queries and raters; responses without query or rater have none."""
    pools: dict[tuple[str, str], dict[str, float]] = defaultdict(dict)
    for response in responses:
        if response.query_id is None or response.user_id is None:
            continue
        pool = pools[response.query_id, response.user_id]
        for item, grade in zip(response.items, response.grades, strict=True):
            if grade is not None:
                pool[item] = max(grade, pool.get(item, grade))
    return pools


def _columns(metrics: Iterable[MetricSpec], ideals: Sequence[PoolIdeal]) -> tuple[Column, ...]:
    columns: list[Column] = []
    for metric in metrics:
        if metric.measure == "ndcg":
            columns += [Column(metric, ideal) for ideal in ideals]
        else:
            columns.append(Column(metric, None))
    return tuple(columns)


def _check(responses: Iterable[JudgedResponse], settings: ExperimentSettings) -> None:
    for response in responses:
        if response.variant not in settings.variants:
            raise ValueError(f"variant {response.variant!r} is not one of {', '.join(settings.variants)}")
        for grade in response.grades:
            if grade is not None and grade > settings.max_grade:
                raise ValueError(f"grade {grade!r} is above max_grade {settings.max_grade!r}")


def _variant(
    variant: str, responses: int, scores: Sequence[Sequence[float | None]], queries: Iterable[QueryResult], width: int
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


def _means(table: Sequence[Sequence[float | None]], width: int) -> tuple[Mean, ...]:
    return tuple(Mean.of([row[column] for row in table]) for column in range(width))


def _value(response: JudgedResponse, column: Column, settings: ExperimentSettings, pools: Pools) -> float | None:
    grades, ranks, k = response.grades, response.ranks, column.metric.k
    if column.metric.measure == "success":
        return success(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
    if column.metric.measure == "rr":
        return rr(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
    if column.metric.measure == "p":
        return p(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
    if column.metric.measure == "cg":
        return cg(grades, k, gain=settings.gain, ranks=ranks)
    if column.metric.measure == "dcg":
        return dcg(grades, k, gain=settings.gain, discount=settings.discount, ranks=ranks)
    ideal = _ideal(response, column, settings, pools)
    return ndcg(grades, k, gain=settings.gain, discount=settings.discount, ideal=ideal, ranks=ranks)


def _ideal(
    response: JudgedResponse, column: Column, settings: ExperimentSettings, pools: Pools
) -> Sequence[float | None]:
    if column.ideal == "constant":
        return [settings.max_grade] * column.metric.k
    if column.ideal == "judged" and response.query_id is not None and response.user_id is not None:
        return list(pools[response.query_id, response.user_id].values())
    return response.grades
