"""Offline evaluation from files, without a store: metrics under several definitions, and the agreement of raters.

- `judged_files` and `trec` read responses with grades from event files, and from TREC's runs and qrels.
- `metric_definitions` defines the metrics; `scoring` computes means per query, rater and variant in float64.
- `paired_tests` compares variants over queries, `evaluation_results` contains the results.
- `rater_agreement` measures the agreement of raters.
- `undeclared_names` describes names in events that the configuration does not declare.

nDCG may use an ideal ranking that the service does not have: the pool of all judgements of a rater for a query. The
computations are pure, and the order of the responses does not change the results.
"""

from __future__ import annotations

from monitor.offline.evaluation_results import Evaluation, MeanScore
from monitor.offline.judged_files import read_judged_responses, read_ratings, read_responses_with_feedback
from monitor.offline.metric_definitions import (
    IDEALS,
    JudgedResponse,
    JudgementPools,
    MetricDefinition,
    build_definition_grid,
    list_available_gains,
    shift_grades,
)
from monitor.offline.paired_tests import PairedTest
from monitor.offline.rater_agreement import IntraclassCorrelation, RaterAgreement, measure_agreement
from monitor.offline.scoring import evaluate_responses
from monitor.offline.trec import QRELS_COLUMNS, RUN_COLUMNS, judge_runs, read_qrels, read_run
from monitor.offline.undeclared_names import describe_undeclared_names

__all__ = [
    "IDEALS",
    "QRELS_COLUMNS",
    "RUN_COLUMNS",
    "Evaluation",
    "IntraclassCorrelation",
    "JudgedResponse",
    "JudgementPools",
    "MeanScore",
    "MetricDefinition",
    "PairedTest",
    "RaterAgreement",
    "build_definition_grid",
    "describe_undeclared_names",
    "evaluate_responses",
    "judge_runs",
    "list_available_gains",
    "measure_agreement",
    "read_judged_responses",
    "read_qrels",
    "read_ratings",
    "read_responses_with_feedback",
    "read_run",
    "shift_grades",
]
