"""How good is a ranked list: the metrics as plain functions, and `Scorer`, their exact integer form.

`cg`, `dcg`, `ideal_dcg`, `ndcg`, `average_ndcg`, `success`, `rr` and `p` take the grades of one list and return a
float; they are the reference. `Scorer` is built once from an experiment and returns what is stored: fixed-point
integers, one response at a time or whole batches, bit for bit the same. Definitions, sources and differences from other
implementations: docs/metrics.md.
"""

from __future__ import annotations

from monitor.ranking.batch import BoolArray, FloatArray, IntArray
from monitor.ranking.fixed_point import SCALE, SCALE_BITS, Scorer, from_fixed
from monitor.ranking.gains import DISCOUNTS, GAINS, GainTable, discount_function, gain_function
from monitor.ranking.measures import average_ndcg, cg, dcg, ideal_dcg, ndcg, p, rr, success

__all__ = [
    "DISCOUNTS",
    "GAINS",
    "SCALE",
    "SCALE_BITS",
    "BoolArray",
    "FloatArray",
    "GainTable",
    "IntArray",
    "Scorer",
    "average_ndcg",
    "cg",
    "dcg",
    "discount_function",
    "from_fixed",
    "gain_function",
    "ideal_dcg",
    "ndcg",
    "p",
    "rr",
    "success",
]
