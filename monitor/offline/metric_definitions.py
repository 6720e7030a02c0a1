"""Ranked lists with their grades, and one number for each: a metric with its gain, discount and ideal."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from monitor.config import Discount, ExperimentSettings, Gain, MetricSpec
from monitor.metrics import GAINS, cg, dcg, ndcg, p, rr, success

Pools: TypeAlias = Mapping[tuple[str, str], Mapping[str, float]]
"""(query, rater) → item → the largest grade that this rater gave it for this query, in any variant."""


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """One response with its grades; `items`, `ranks` (positions from 1) and `grades` (None: unjudged) are parallel."""

    query_id: str | None
    """Without one, the response is in no query's row and its pool is its own list."""
    user_id: str | None
    """Who judged; without one, the response has a rater of its own and its pool is its own list."""
    variant: str
    items: tuple[str, ...]
    ranks: tuple[int, ...]
    grades: tuple[float | None, ...]

    @property
    def is_rated(self) -> bool:
        """Whether at least one item has a grade."""
        return any(grade is not None for grade in self.grades)


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


def lowered(response: JudgedResponse, by: float) -> JudgedResponse:
    """Return the response with every grade lowered by that much: on a scale from 1 to 5, a 1 is worth nothing then."""
    return replace(response, grades=tuple(None if grade is None else grade - by for grade in response.grades))


PoolIdeal: TypeAlias = Literal["shown", "constant", "judged"]
IDEALS: Final[tuple[PoolIdeal, ...]] = get_args(PoolIdeal)

GainName: TypeAlias = Gain | Literal["table"]
_STEEPEST: Final = 16
"""The largest grade that the configuration accepts with the gain exp2."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric, and what it depends on; None where it does not."""

    metric: MetricSpec
    gain: GainName | None = None
    """`table` is the experiment's own table."""
    discount: Discount | None = None
    ideal: PoolIdeal | None = None

    @property
    def name(self) -> str:
        """The metric's name and what it depends on: `success@5`, `dcg@5:exp2:log2`, `ndcg@5:exp2:log2:judged`."""
        return ":".join(part for part in (self.metric.name, self.gain, self.discount, self.ideal) if part is not None)

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "measure": self.metric.measure,
            "k": self.metric.k,
            "gain": self.gain,
            "discount": self.discount,
            "ideal": self.ideal,
        }

    def value(self, response: JudgedResponse, settings: ExperimentSettings, pools: Pools) -> float | None:
        """Return the number of one response, or None where it is undefined."""
        grades, ranks, k, measure = response.grades, response.ranks, self.metric.k, self.metric.measure
        if measure == "success":
            return success(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        if measure == "rr":
            return rr(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        if measure == "p":
            return p(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        gain = settings.gain if self.gain is None or self.gain == "table" else self.gain
        discount = settings.discount if self.discount is None else self.discount
        if measure == "cg":
            return cg(grades, k, gain=gain, ranks=ranks)
        if measure == "dcg":
            return dcg(grades, k, gain=gain, discount=discount, ranks=ranks)
        return ndcg(grades, k, gain=gain, discount=discount, ideal=self._ideal(response, settings, pools), ranks=ranks)

    def _ideal(self, response: JudgedResponse, settings: ExperimentSettings, pools: Pools) -> Sequence[float | None]:
        if self.ideal == "constant":
            return [settings.max_grade] * self.metric.k
        if self.ideal == "judged" and response.query_id is not None and response.user_id is not None:
            return list(pools[response.query_id, response.user_id].values())
        return response.grades


def gains_for(settings: ExperimentSettings) -> tuple[GainName, ...]:
    """Return every gain that an experiment's grades allow, its own table first."""
    named = [gain for gain in GAINS if gain != "exp2" or settings.max_grade <= _STEEPEST]
    return tuple(named) if isinstance(settings.gain, str) else ("table", *named)


def grid(
    metrics: Iterable[MetricSpec], gains: Sequence[GainName], discounts: Sequence[Discount], ideals: Sequence[PoolIdeal]
) -> tuple[Definition, ...]:
    """Return every combination, each once: of a cg its gains, of a dcg the discounts too, of an nDCG the ideals too.

    >>> [each.name for each in grid([MetricSpec("dcg@5", "dcg", 5)], ["exp2"], ["log2", "reciprocal"], IDEALS)]
    ['dcg@5:exp2:log2', 'dcg@5:exp2:reciprocal']
    """
    found: list[Definition] = []
    for metric in metrics:
        if metric.measure in {"success", "rr", "p"}:
            found.append(Definition(metric))
        elif metric.measure == "cg":
            found += [Definition(metric, gain) for gain in gains]
        elif metric.measure == "dcg":
            found += [Definition(metric, gain, discount) for gain in gains for discount in discounts]
        else:
            found += [
                Definition(metric, gain, discount, ideal)
                for gain in gains
                for discount in discounts
                for ideal in ideals
            ]
    return tuple(dict.fromkeys(found))
