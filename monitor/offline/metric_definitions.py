"""Judged responses, and definitions that score a response: a metric with gain, discount and ideal ranking."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeAlias, get_args

from monitor.config import ExperimentSettings, MetricSpec, NamedDiscount, NamedGain
from monitor.metrics import (
    GAIN_NAMES,
    cumulative_gain,
    dcg,
    ndcg,
    non_negative_grades,
    precision_at_k,
    reciprocal_rank,
    success_at_k,
)

JudgementPools: TypeAlias = Mapping[tuple[str, str], Mapping[str, float]]
"""(query, rater) → item → the largest grade of the item by this rater for this query, in any variant."""


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """A response with grades; `items`, `ranks` (positions from 1) and `grades` (None: unjudged) are parallel."""

    query_id: str | None
    """None if the response belongs to no query; the pool is then the response's own list."""
    user_id: str | None
    """The rater; None for an unnamed rater, distinct from all others. The pool is then the response's own list."""
    variant: str
    items: tuple[str, ...]
    ranks: tuple[int, ...]
    grades: tuple[float | None, ...]
    answer_values: Mapping[str, float | None] = field(default_factory=dict)
    """Answer metric of the experiment → value; None if it is undefined."""

    @property
    def is_rated(self) -> bool:
        """Whether any item has a grade."""
        return any(grade is not None for grade in self.grades)


def build_pools(responses: Iterable[JudgedResponse]) -> JudgementPools:
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


def shift_grades(response: JudgedResponse, reduction: float) -> JudgedResponse:
    """Return the response with all grades reduced, so that the grade `reduction` has no gain."""
    return replace(response, grades=tuple(None if grade is None else grade - reduction for grade in response.grades))


PoolIdeal: TypeAlias = Literal["shown", "constant", "judged"]
IDEALS: Final[tuple[PoolIdeal, ...]] = get_args(PoolIdeal)

GainName: TypeAlias = NamedGain | Literal["table"]
_MAX_EXP2_GRADE: Final = 16
"""The largest grade that the configuration accepts with the gain exp2."""


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """A metric with gain, discount and ideal ranking; None for parameters that the metric does not use."""

    metric: MetricSpec
    gain: GainName | None = None
    """`table` is the gain table of the experiment's settings."""
    discount: NamedDiscount | None = None
    ideal: PoolIdeal | None = None

    @property
    def name(self) -> str:
        """The metric's name and parameters, as in `success@5`, `dcg@5:exp2:log2` or `ndcg@5:exp2:log2:judged`."""
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

    def score(self, response: JudgedResponse, settings: ExperimentSettings, pools: JudgementPools) -> float | None:
        """Return the metric of a response; None if the metric is undefined."""
        grades, ranks, k, measure = response.grades, response.ranks, self.metric.k, self.metric.measure
        if measure == "success":
            return success_at_k(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        if measure == "rr":
            return reciprocal_rank(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        if measure == "p":
            return precision_at_k(grades, k, relevant_grade=settings.relevant_grade, ranks=ranks)
        gain = settings.gain if self.gain is None or self.gain == "table" else self.gain
        discount = settings.discount if self.discount is None else self.discount
        if measure == "cg":
            return cumulative_gain(grades, k, gain=gain, ranks=ranks)
        if measure == "dcg":
            return dcg(grades, k, gain=gain, discount=discount, ranks=ranks)
        ideal_grades = self._ideal_grades(response, settings, pools)
        # Judgements of TREC, and grades below `--zero-grade`, may be negative; they gain 0.
        return ndcg(
            non_negative_grades(grades),
            k,
            gain=gain,
            discount=discount,
            ideal=non_negative_grades(ideal_grades),
            ranks=ranks,
        )

    def _ideal_grades(
        self, response: JudgedResponse, settings: ExperimentSettings, pools: JudgementPools
    ) -> Sequence[float | None]:
        """Return the grades from which the ideal ranking of nDCG is built, in any order."""
        if self.ideal == "constant":
            return [settings.max_grade] * self.metric.k
        if self.ideal == "judged" and response.query_id is not None and response.user_id is not None:
            return list(pools[response.query_id, response.user_id].values())
        return response.grades


def list_available_gains(settings: ExperimentSettings) -> tuple[GainName, ...]:
    """Return the gains that the experiment's grades allow; the experiment's gain table is the first."""
    named_gains = [gain for gain in GAIN_NAMES if gain != "exp2" or settings.max_grade <= _MAX_EXP2_GRADE]
    return tuple(named_gains) if isinstance(settings.gain, str) else ("table", *named_gains)


def build_definition_grid(
    metrics: Iterable[MetricSpec],
    gains: Sequence[GainName],
    discounts: Sequence[NamedDiscount],
    ideals: Sequence[PoolIdeal],
) -> tuple[MetricDefinition, ...]:
    """Return all different combinations of the metrics with the parameters that each metric uses.

    cg uses a gain, dcg a gain and a discount, nDCG a gain, a discount and an ideal. The other metrics use none.

    >>> metrics = [MetricSpec("dcg@5", "dcg", 5)]
    >>> definitions = build_definition_grid(metrics, ["exp2"], ["log2", "reciprocal"], IDEALS)
    >>> [definition.name for definition in definitions]
    ['dcg@5:exp2:log2', 'dcg@5:exp2:reciprocal']
    """
    definitions: list[MetricDefinition] = []
    for metric in metrics:
        if metric.measure in {"success", "rr", "p"}:
            definitions.append(MetricDefinition(metric))
        elif metric.measure == "cg":
            definitions += [MetricDefinition(metric, gain) for gain in gains]
        elif metric.measure == "dcg":
            definitions += [MetricDefinition(metric, gain, discount) for gain in gains for discount in discounts]
        else:
            definitions += [
                MetricDefinition(metric, gain, discount, ideal)
                for gain in gains
                for discount in discounts
                for ideal in ideals
            ]
    return tuple(dict.fromkeys(definitions))
