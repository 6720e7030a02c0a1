"""Offline evaluation: metrics of judged responses under every definition at once, per query, rater and variant.

In float64, from nothing but the responses themselves. A query answered by several variants and judged by the same
people can be normalised by an ideal that the stream never has: the pool of everything a person judged for it. Variants
are compared over queries, not over ratings. Pure: the result does not depend on the order of the responses.
"""

from __future__ import annotations

from monitor.evaluation.definitions import IDEALS, Definition, JudgedResponse, Pools, gains_for, grid, lowered
from monitor.evaluation.paired import Paired
from monitor.evaluation.results import Evaluation, Mean
from monitor.evaluation.scoring import evaluate

__all__ = [
    "IDEALS",
    "Definition",
    "Evaluation",
    "JudgedResponse",
    "Mean",
    "Paired",
    "Pools",
    "evaluate",
    "gains_for",
    "grid",
    "lowered",
]
