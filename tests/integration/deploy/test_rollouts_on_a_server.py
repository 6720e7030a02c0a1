"""A rollout goes on, goes back, or waits for a person, as the verdict says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import get_args

import pytest

from monitor.stats import State
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


def said(expr: str, state: str | None, expected: list[float], directory: Path) -> str:
    """Return what promtool has to say against the value of a query when this is the verdict: nothing if it holds."""
    verdicts = {"other": "stop_harm", **({} if state is None else {"treatment": state})}
    series = [
        {
            "series": "abmonitor_verdict{"
            f'experiment="ranker-v2",variant="{variant}",instance="{instance}",state="{each}"'
            "}",
            "values": str(int(each == verdict)),
        }
        for variant, verdict in verdicts.items()
        for instance in ("m:1", "m:2")
        for each in get_args(State)
    ]
    samples = [{"labels": "{}", "value": value} for value in expected]
    question = {"expr": expr, "eval_time": "0m", "exp_samples": samples}
    test = {"interval": "1m", "input_series": series, "promql_expr_test": [question]}
    file = directory / "test.yml"
    # JSON is YAML.
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": [test]}), encoding="utf-8")
    done = promtool("test", "rules", str(file))
    return "" if done.returncode == 0 else done.stdout + done.stderr


def phase(name: str, result: list[float]) -> str:
    """Return what Argo Rollouts makes of a result by the conditions of the template; inconclusive if neither holds."""
    (template,) = [each for each in EXAMPLES if each["metadata"]["name"] == name and each["kind"] == "AnalysisTemplate"]
    (metric,) = template["spec"]["metrics"]

    def holds(condition: str) -> bool:
        wanted = re.fullmatch(r"len\(result\) == 1 && result\[0\] == (-?\d+)", condition)
        assert wanted is not None, condition
        return result == [float(wanted[1])]

    if holds(metric["failureCondition"]):
        return BACK
    return GO if holds(metric["successCondition"]) else WAIT


@pytest.mark.parametrize("state", get_args(State))
@pytest.mark.parametrize("example", VALUES)
def test_each_verdict_has_its_value(example: str, state: str, tmp_path: Path) -> None:
    """With two replicas, and another variant that does harm."""
    (query,) = [each for each in QUERIES if each.example == example]
    value = VALUES[example].get(state, 0.0)
    assert said(query.expr, state, [value], tmp_path) == ""
    kind, name = example.split()
    if kind == "AnalysisTemplate":
        assert phase(name, [value]) == PHASES[name].get(state, OTHERWISE[name])


@pytest.mark.parametrize("example", VALUES)
def test_without_an_answer_a_person_decides(example: str, tmp_path: Path) -> None:
    """Silence is neither good nor bad."""
    (query,) = [each for each in QUERIES if each.example == example]
    assert said(query.expr, None, [], tmp_path) == ""
    kind, name = example.split()
    if kind == "AnalysisTemplate":
        assert phase(name, []) == WAIT
