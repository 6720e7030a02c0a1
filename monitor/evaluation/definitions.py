"""One number per response: a metric with its gain, discount and ideal; and all of them at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, get_args

from monitor.config import Discount, ExperimentSettings, Gain, MetricSpec
from monitor.evaluation.judged import JudgedResponse, Pools
from monitor.ranking import GAINS, cg, dcg, ndcg, p, rr, success

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
