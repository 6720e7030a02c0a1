"""The verdict promotes a rollout, aborts a rollout, or leaves the decision to a person."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from monitor.stats import VerdictState
from tests.servers.prometheus import promtool
from tests.support.rollouts import EXAMPLES, asked

QUERIES = list(asked())
GO, BACK, WAIT = "Successful", "Failed", "Inconclusive"
VALUES = {
    "AnalysisTemplate ab-monitor-verdict": {"ship": 1.0, "non_inferior": 1.0, "stop_harm": -1.0},
    "AnalysisTemplate ab-monitor-harm": {"stop_harm": 1.0},
    "MetricTemplate ab-monitor-harm": {"stop_harm": 1.0},
}
"""What the query of an example says to a verdict, if not 0."""
PHASES = {
    "ab-monitor-verdict": {"ship": GO, "non_inferior": GO, "stop_harm": BACK},
    "ab-monitor-harm": {"stop_harm": BACK},
}
OTHERWISE = {"ab-monitor-verdict": WAIT, "ab-monitor-harm": GO}
"""What Argo Rollouts makes of a verdict: of the named ones, and of all others."""


def query_findings(expr: str, state: str | None, expected: list[float], directory: Path) -> str:
    """Return promtool's findings on the value of a query under a verdict; empty if the value is as expected."""
    verdicts = {"other": "stop_harm", **({} if state is None else {"treatment": state})}
    series = [
        {
            "series": "abmonitor_verdict{"
            f'experiment="ranker-v2",variant="{variant}",instance="{instance}",state="{candidate_state}"'
            "}",
            "values": str(int(candidate_state == verdict)),
        }
        for variant, verdict in verdicts.items()
        for instance in ("m:1", "m:2")
        for candidate_state in get_args(VerdictState)
    ]
    samples = [{"labels": "{}", "value": value} for value in expected]
    question = {"expr": expr, "eval_time": "0m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [question]}
    file = directory / "test.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}), encoding="utf-8")
    result = promtool("test", "rules", str(file))
    return "" if result.returncode == 0 else result.stdout + result.stderr


def phase(name: str, result: list[float]) -> str:
    """Return Argo Rollouts' phase for a query result under the template's conditions."""
    (template,) = [
        example for example in EXAMPLES if example["metadata"]["name"] == name and example["kind"] == "AnalysisTemplate"
    ]
    (metric,) = template["spec"]["metrics"]

    def is_satisfied(condition: str) -> bool:
        parsed_condition = re.fullmatch(r"len\(result\) == 1 && result\[0\] == (-?\d+)", condition)
        assert parsed_condition is not None, condition
        return result == [float(parsed_condition[1])]

    if is_satisfied(metric["failureCondition"]):
        return BACK
    return GO if is_satisfied(metric["successCondition"]) else WAIT


@pytest.mark.parametrize("state", get_args(VerdictState))
@pytest.mark.parametrize("example", VALUES)
def test_each_verdict_state_maps_to_a_rollout_phase(example: str, state: str, tmp_path: Path) -> None:
    """With two replicas, and another variant that does harm."""
    (query,) = [candidate for candidate in QUERIES if candidate.example == example]
    value = VALUES[example].get(state, 0.0)
    assert query_findings(query.expr, state, [value], tmp_path) == ""
    kind, name = example.split()
    if kind == "AnalysisTemplate":
        assert phase(name, [value]) == PHASES[name].get(state, OTHERWISE[name])


@pytest.mark.parametrize("example", VALUES)
def test_without_a_verdict_the_rollout_is_inconclusive(example: str, tmp_path: Path) -> None:
    """A missing series is neither success nor failure."""
    (query,) = [candidate for candidate in QUERIES if candidate.example == example]
    assert query_findings(query.expr, None, [], tmp_path) == ""
    kind, name = example.split()
    if kind == "AnalysisTemplate":
        assert phase(name, []) == WAIT
