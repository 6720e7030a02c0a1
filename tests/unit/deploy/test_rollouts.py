"""The examples for Argo Rollouts, Flagger and KEDA are what these read, and ask only for what is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from deploy.kubernetes.generate import BASE
from monitor.stats import VerdictState
from tests.support.crds import faults
from tests.support.kustomize import built
from tests.support.promql import exported_series, selectors
from tests.support.rollouts import BLANKS, EXAMPLES, FILLED, FOLDER, JSON, Asked, asked

QUERIES = list(asked())


def test_every_kind_of_example_has_a_query() -> None:
    """None is overlooked by the tests below."""
    assert len(QUERIES) == 4
    assert {example["kind"] for example in EXAMPLES} == {"AnalysisTemplate", "MetricTemplate", "ScaledObject"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: f"{example['kind']} {example['metadata']['name']}")
def test_every_example_is_valid_under_the_published_schema(example: JSON) -> None:
    """No field is missing, misspelt or of another type."""
    assert faults(example) == []


@pytest.mark.parametrize("query", QUERIES, ids=lambda example: example.example)
class TestQueries:
    """Each query, as Prometheus gets it."""

    def test_the_query_uses_only_exported_metrics_and_labels(self, query: Asked) -> None:
        """Names, labels, and the states of a verdict."""
        metric_selectors = selectors(query.expr)
        assert metric_selectors
        for selector in metric_selectors:
            assert {matcher.name for matcher in selector.matchers.matchers} <= exported_series()[str(selector.name)]
            states = [matcher.value.split("|") for matcher in selector.matchers.matchers if matcher.name == "state"]
            assert {state for matcher in states for state in matcher} <= set(get_args(VerdictState))

    def test_the_query_selects_one_variant_or_the_whole_pipeline(self, query: Asked) -> None:
        """Another experiment's harm would take back the wrong rollout."""
        for selector in selectors(query.expr):
            chosen = {matcher.name: matcher.value for matcher in selector.matchers.matchers if matcher.name in FILLED}
            labels = exported_series()[str(selector.name)]
            assert chosen == {name: value for name, value in FILLED.items() if name in labels}

    def test_every_placeholder_is_replaced(self, query: Asked) -> None:
        """By an argument that is declared."""
        assert not re.search(r"{{|}}", query.expr + query.address)
        assert query.address == "http://prometheus-operated.monitoring.svc:9090"


def test_every_used_argument_is_declared() -> None:
    """Argo refuses a template that uses others."""
    for example in (argument for argument in EXAMPLES if argument["kind"] == "AnalysisTemplate"):
        used = {name for metric in example["spec"]["metrics"] for name in BLANKS.findall(str(metric))}
        assert used == {argument["name"] for argument in example["spec"]["args"]}


def test_the_scaled_workload_is_that_of_the_overlay() -> None:
    """By kind and name, from fewer to more replicas."""
    (example,) = [resource for resource in EXAMPLES if resource["kind"] == "ScaledObject"]
    resources = built(BASE.parent / "overlays" / "replicated")
    targets = [
        {"apiVersion": resource["apiVersion"], "kind": resource["kind"], "name": resource["metadata"]["name"]}
        for resource in resources
    ]
    assert example["spec"]["scaleTargetRef"] in targets
    assert 1 <= example["spec"]["minReplicaCount"] < example["spec"]["maxReplicaCount"]


def test_every_example_file_is_documented() -> None:
    """Each by its name."""
    text = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert all(path.name in text for path in FOLDER.iterdir())
