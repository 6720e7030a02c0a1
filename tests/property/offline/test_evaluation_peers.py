"""trec_eval and scipy agree with `evaluate` on random runs: values per query, means, and the test over queries."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import pytrec_eval
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import ttest_rel

from monitor.config import ExperimentSettings, MetricSpec
from monitor.offline import build_definition_grid, evaluate_responses
from monitor.offline.trec import judge_runs, read_qrels, read_run

QUERIES = [f"q{number}" for number in range(6)]
DOCUMENTS = [f"d{number}" for number in range(8)]
CUT = MetricSpec("ndcg@4", "ndcg", 4)

Qrels = dict[str, dict[str, int]]
Scores = dict[str, dict[str, float]]
grades = st.dictionaries(st.sampled_from(DOCUMENTS), st.integers(0, 4))
ranking = st.dictionaries(st.sampled_from([*DOCUMENTS, "x"]), st.integers(-3, 3).map(float))
# Every query has something to gain: where there is nothing, trec_eval says 0 and we say undefined.
qrels: st.SearchStrategy[Qrels] = st.fixed_dictionaries(
    {query: grades.map(lambda judged: {**judged, "d0": judged.get("d0") or 1}) for query in QUERIES}
)
scores: st.SearchStrategy[Scores] = st.fixed_dictionaries(
    {query: ranking.map(lambda scored: {"d0": 0.0, **scored}) for query in QUERIES}
)


def _trec(judged: Qrels, run: Scores) -> dict[str, float]:
    evaluator = pytrec_eval.RelevanceEvaluator(judged, {"ndcg_cut.4"})
    return {query: values["ndcg_cut_4"] for query, values in evaluator.evaluate(run).items()}


@settings(max_examples=60)
@given(qrels, scores, scores)
def test_means_and_tests_equal_those_of_trec_eval_and_scipy(judged: Qrels, old: Scores, new: Scores) -> None:
    """Ties, unjudged documents, short lists and pools that no list shows are all the same thing to both."""
    theirs = {"old": _trec(judged, old), "new": _trec(judged, new)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "qrels").write_text("".join(f"{q} 0 {d} {g}\n" for q, row in judged.items() for d, g in row.items()))
        for name, run in (("old", old), ("new", new)):
            (path / name).write_text("".join(f"{q} Q0 {d} 0 {s} x\n" for q, row in run.items() for d, s in row.items()))
        pools = read_qrels(str(path / "qrels"), raters=False)
        runs = {name: read_run(str(path / name)) for name in ("old", "new")}
    experiment = ExperimentSettings("e", "old", {"old": 0.5, "new": 0.5})
    evaluation = evaluate_responses(
        judge_runs(runs, pools), experiment, build_definition_grid([CUT], ["linear"], ["log2"], ["judged"]), pools
    )
    for query in evaluation.queries:
        assert query.means[0].mean == pytest.approx(theirs[query.variant][query.query_id], abs=1e-12)
    (test,) = evaluation.comparisons[0].tests
    pairs = [(theirs["old"][query], theirs["new"][query]) for query in QUERIES]
    assert test.queries == len(QUERIES)
    assert test.difference == pytest.approx(sum(new - old for old, new in pairs) / len(pairs), abs=1e-12)
    differences = [new - old for old, new in pairs]
    if max(differences) - min(differences) > 1e-6:
        peer_test = ttest_rel([new for _, new in pairs], [old for old, _ in pairs])
        assert test.p == pytest.approx(peer_test.pvalue, rel=1e-6)
