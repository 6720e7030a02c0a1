"""The results of an offline evaluation: means by rater, query and variant, and paired tests."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from monitor.offline.metric_definitions import MetricDefinition
from monitor.offline.paired_tests import PairedTest


@dataclass(frozen=True, slots=True)
class MeanScore:
    """The mean of the `count` defined scores; `mean` is None if all scores are undefined."""

    count: int
    undefined: int
    """Number of undefined scores."""
    mean: float | None

    @classmethod
    def from_scores(cls, scores: Sequence[float | None]) -> MeanScore:
        defined_scores = [score for score in scores if score is not None]
        mean = math.fsum(defined_scores) / len(defined_scores) if defined_scores else None
        return cls(count=len(defined_scores), undefined=len(scores) - len(defined_scores), mean=mean)


@dataclass(frozen=True, slots=True)
class RaterResult:
    """The means of a variant on a query by a rater's judgements: over the responses, a mean per definition."""

    query_id: str
    rater: int | None
    """Raters are numbered from 1 in the order of their ids, to conceal the ids; None for a response without a rater."""
    variant: str
    means: tuple[MeanScore, ...]


@dataclass(frozen=True, slots=True)
class QueryResult:
    """The means of a variant on a query over the raters' means, a mean per definition."""

    query_id: str
    variant: str
    means: tuple[MeanScore, ...]


@dataclass(frozen=True, slots=True)
class VariantResult:
    """The means of a variant over the rated responses and over the queries' means, a mean per definition."""

    variant: str
    responses: int
    rated_responses: int
    queries: int
    """Queries with rated responses."""
    response_means: tuple[MeanScore, ...]
    query_means: tuple[MeanScore, ...]
    answer_means: Mapping[str, MeanScore]
    """Answer metric → mean over all responses with a value."""


@dataclass(frozen=True, slots=True)
class ControlComparison:
    """The tests of a variant against the control on the queries that both have, a test per definition."""

    variant: str
    tests: tuple[PairedTest, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """All results of an experiment: variants in the order of the settings, queries by id, raters by number."""

    experiment: str
    control: str
    definitions: tuple[MetricDefinition, ...]
    variants: tuple[VariantResult, ...]
    comparisons: tuple[ControlComparison, ...]
    queries: tuple[QueryResult, ...]
    raters: tuple[RaterResult, ...]

    def to_json(self) -> dict[str, object]:
        """Return all results as a JSON object; undefined means are null."""
        return {
            "experiment": self.experiment,
            "control": self.control,
            "definitions": [definition.to_json() for definition in self.definitions],
            "variants": {
                result.variant: {
                    "responses": result.responses,
                    "rated_responses": result.rated_responses,
                    "queries": result.queries,
                    "over_responses": self._by_definition_name(result.response_means),
                    "over_queries": self._by_definition_name(result.query_means),
                    "answers": {name: asdict(mean) for name, mean in result.answer_means.items()},
                }
                for result in self.variants
            },
            "comparisons": {
                comparison.variant: self._by_definition_name(comparison.tests) for comparison in self.comparisons
            },
            "queries": [
                {
                    "query_id": result.query_id,
                    "variant": result.variant,
                    "metrics": self._by_definition_name(result.means),
                }
                for result in self.queries
            ],
            "raters": [
                {
                    "query_id": result.query_id,
                    "rater": result.rater,
                    "variant": result.variant,
                    "metrics": self._by_definition_name(result.means),
                }
                for result in self.raters
            ],
        }

    def _by_definition_name(self, results: Sequence[MeanScore | PairedTest]) -> dict[str, object]:
        """Return definition name → JSON object of the result; `results` has a result per definition."""
        return {definition.name: asdict(result) for definition, result in zip(self.definitions, results, strict=True)}
