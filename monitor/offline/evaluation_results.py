"""What an evaluation found, as frozen records."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from monitor.offline.metric_definitions import Definition
from monitor.offline.paired_tests import Paired


@dataclass(frozen=True, slots=True)
class Mean:
    """A mean over the defined ones of `count + undefined` values; `mean` is None if none is defined."""

    count: int
    undefined: int
    mean: float | None

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Mean:
        defined = [value for value in values if value is not None]
        mean = math.fsum(defined) / len(defined) if defined else None
        return cls(count=len(defined), undefined=len(values) - len(defined), mean=mean)


@dataclass(frozen=True, slots=True)
class RaterResult:
    """What one rater's judgements of one query say of one variant: means over the responses, one per definition."""

    query_id: str
    rater: int | None
    """Raters are numbered from 1 in the order of their ids, which are not told; None is a response without one."""
    variant: str
    means: tuple[Mean, ...]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """One query under one variant: the means of its raters' means, one per definition."""

    query_id: str
    variant: str
    means: tuple[Mean, ...]


@dataclass(frozen=True, slots=True)
class VariantResult:
    """One variant: means over rated responses, and means over queries of the queries' means; one per definition."""

    variant: str
    responses: int
    rated_responses: int
    queries: int
    """Queries with at least one rated response."""
    over_responses: tuple[Mean, ...]
    over_queries: tuple[Mean, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """One variant against the control on the queries that both have, one test per definition."""

    variant: str
    tests: tuple[Paired, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What `evaluate` found: variants in the configuration's order, queries sorted by id, raters by number."""

    experiment: str
    control: str
    definitions: tuple[Definition, ...]
    variants: tuple[VariantResult, ...]
    comparisons: tuple[Comparison, ...]
    queries: tuple[QueryResult, ...]
    raters: tuple[RaterResult, ...]

    def to_json(self) -> dict[str, object]:
        """Return everything as one JSON object; a mean of nothing is null."""
        return {
            "experiment": self.experiment,
            "control": self.control,
            "definitions": [each.to_json() for each in self.definitions],
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
            "comparisons": {each.variant: self._named(each.tests) for each in self.comparisons},
            "queries": [
                {"query_id": each.query_id, "variant": each.variant, "metrics": self._named(each.means)}
                for each in self.queries
            ],
            "raters": [
                {
                    "query_id": each.query_id,
                    "rater": each.rater,
                    "variant": each.variant,
                    "metrics": self._named(each.means),
                }
                for each in self.raters
            ],
        }

    def _named(self, found: Sequence[Mean | Paired]) -> dict[str, object]:
        return {each.name: asdict(one) for each, one in zip(self.definitions, found, strict=True)}
