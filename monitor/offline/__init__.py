"""Offline evaluation: metrics of judged responses under every definition at once, per query, rater and variant.

In float64, from nothing but the responses themselves. A query answered by several variants and judged by the same
people can be normalised by an ideal that the stream never has: the pool of everything a person judged for it. Variants
are compared over queries, not over ratings. Pure: the result does not depend on the order of the responses.
"""

from __future__ import annotations

from monitor.offline.agreement import Agreement, agreements
from monitor.offline.evaluation_results import Evaluation, Mean
from monitor.offline.judged_files import judged_responses, ratings, shown_answers
from monitor.offline.metric_definitions import IDEALS, Definition, JudgedResponse, Pools, gains_for, grid, lowered
from monitor.offline.paired_tests import Paired
from monitor.offline.scoring import evaluate
from monitor.offline.trec import QRELS, RUN, judged_runs, read_qrels, read_run

__all__ = [
    "IDEALS",
    "QRELS",
    "RUN",
    "Agreement",
    "Definition",
    "Evaluation",
    "JudgedResponse",
    "Mean",
    "Paired",
    "Pools",
    "agreements",
    "evaluate",
    "gains_for",
    "grid",
    "judged_responses",
    "judged_runs",
    "lowered",
    "ratings",
    "read_qrels",
    "read_run",
    "shown_answers",
]
