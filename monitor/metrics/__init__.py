"""How good is a ranked list: the metrics as plain functions, and `Scorer`, their exact integer form.

`cg`, `dcg`, `ideal_dcg`, `ndcg`, `average_ndcg`, `success`, `rr` and `p` take the grades of one list and return a
float; they are the reference. `Scorer` is built once from an experiment and returns what is stored: fixed-point
integers, one response at a time or whole batches, bit for bit the same. Definitions, sources and differences from other
implementations: docs/metrics.md.
"""

from __future__ import annotations

from monitor.metrics.decay import (
    Chunks,
    Groups,
    Moments,
    bucket_middles_ms,
    chunk_moments,
    decayed,
    merge_moments,
    relevant_chunks,
    weights,
)
from monitor.metrics.fixed_point import SCALE, SCALE_BITS, Scorer, from_fixed
from monitor.metrics.gains import DISCOUNTS, GAINS, GainTable, discount_function, gain_function
from monitor.metrics.item_layout import (
    BAD,
    BAD_DAYS,
    GOOD,
    RATINGS,
    SHOWN,
    SQUARES,
    TOTAL,
    ItemLayout,
    bad_answer_count,
)
from monitor.metrics.measures import average_ndcg, cg, dcg, ideal_dcg, ndcg, p, rr, success
from monitor.metrics.ranked_lists import BoolArray, FloatArray, IntArray
from monitor.metrics.record_layout import (
    AGES,
    BUCKETS_PER_CHUNK,
    LIMB_BITS,
    OFFSET_BITS,
    PAIR_WIDTH,
    Floats,
    Ints,
    Layout,
    bucket_span_ms,
    responses_of,
)
from monitor.metrics.traffic import (
    FIRST_BUCKET,
    FIRST_CATEGORY,
    FIRST_CELL,
    ITEM_CELLS,
    LATENCY_BOUNDS_MS,
    TRAFFIC_WIDTH,
    TrafficCounts,
    cell_of,
    day_width,
)

__all__ = [
    "AGES",
    "BAD",
    "BAD_DAYS",
    "BUCKETS_PER_CHUNK",
    "DISCOUNTS",
    "FIRST_BUCKET",
    "FIRST_CATEGORY",
    "FIRST_CELL",
    "GAINS",
    "GOOD",
    "ITEM_CELLS",
    "LATENCY_BOUNDS_MS",
    "LIMB_BITS",
    "OFFSET_BITS",
    "PAIR_WIDTH",
    "RATINGS",
    "SCALE",
    "SCALE_BITS",
    "SHOWN",
    "SQUARES",
    "TOTAL",
    "TRAFFIC_WIDTH",
    "BoolArray",
    "Chunks",
    "FloatArray",
    "Floats",
    "GainTable",
    "Groups",
    "IntArray",
    "Ints",
    "ItemLayout",
    "Layout",
    "Moments",
    "Scorer",
    "TrafficCounts",
    "average_ndcg",
    "bad_answer_count",
    "bucket_middles_ms",
    "bucket_span_ms",
    "cell_of",
    "cg",
    "chunk_moments",
    "day_width",
    "dcg",
    "decayed",
    "discount_function",
    "from_fixed",
    "gain_function",
    "ideal_dcg",
    "merge_moments",
    "ndcg",
    "p",
    "relevant_chunks",
    "responses_of",
    "rr",
    "success",
    "weights",
]
