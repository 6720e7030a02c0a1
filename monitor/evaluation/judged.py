"""What is evaluated: ranked lists with their grades, and the pools that their ideals may come from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

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
