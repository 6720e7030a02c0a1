"""The examples for Argo Rollouts, Flagger and KEDA are what these read, and ask only for what is exported."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from deploy.kubernetes.generate import BASE
from monitor.stats import State
from tests.support.crds import faults
from tests.support.kustomize import built
from tests.support.promql import exported_series, selectors
from tests.support.rollouts import BLANKS, EXAMPLES, FILLED, FOLDER, JSON, Asked, asked

QUERIES = list(asked())


def test_there_is_a_query_for_every_metric() -> None:
    """None is overlooked by the tests below."""
    assert len(QUERIES) == 4
    assert {each["kind"] for each in EXAMPLES} == {"AnalysisTemplate", "MetricTemplate", "ScaledObject"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda each: f"{each['kind']} {each['metadata']['name']}")
def test_has_the_published_form(example: JSON) -> None:
    """No field is missing, misspelt or of another type."""
    assert faults(example) == []


@pytest.mark.parametrize("query", QUERIES, ids=lambda each: each.example)
class TestQueries:
    """Each query, as Prometheus gets it."""

    def test_asks_only_for_what_is_exported(self, query: Asked) -> None:
        """Names, labels, and the states of a verdict."""
        found = selectors(query.expr)
        assert found
        for selector in found:
            assert {each.name for each in selector.matchers.matchers} <= exported_series()[str(selector.name)]
            states = [each.value.split("|") for each in selector.matchers.matchers if each.name == "state"]
            assert {state for each in states for state in each} <= set(get_args(State))

    def test_asks_about_one_variant_or_the_whole_pipeline(self, query: Asked) -> None:
        """Another experiment's harm would take back the wrong rollout."""
        for selector in selectors(query.expr):
            chosen = {each.name: each.value for each in selector.matchers.matchers if each.name in FILLED}
            labels = exported_series()[str(selector.name)]
            assert chosen == {name: value for name, value in FILLED.items() if name in labels}

    def test_every_blank_is_filled_in(self, query: Asked) -> None:
        """By an argument that is declared."""
        assert not re.search(r"{{|}}", query.expr + query.address)
        assert query.address == "http://prometheus-operated.monitoring.svc:9090"


def test_every_argument_is_declared() -> None:
    """Argo refuses a template that uses others."""
    for example in (each for each in EXAMPLES if each["kind"] == "AnalysisTemplate"):
        used = {name for metric in example["spec"]["metrics"] for name in BLANKS.findall(str(metric))}
        assert used == {each["name"] for each in example["spec"]["args"]}


def test_what_is_scaled_is_what_the_overlay_makes() -> None:
    """By kind and name, from fewer to more replicas."""
    (example,) = [each for each in EXAMPLES if each["kind"] == "ScaledObject"]
    made = built(BASE.parent / "overlays" / "replicated")
    targets = [
        {"apiVersion": each["apiVersion"], "kind": each["kind"], "name": each["metadata"]["name"]} for each in made
    ]
    assert example["spec"]["scaleTargetRef"] in targets
    assert 1 <= example["spec"]["minReplicaCount"] < example["spec"]["maxReplicaCount"]


def test_the_files_are_documented() -> None:
    """Each by its name."""
    text = (Path(__file__).parents[3] / "docs" / "deployment.md").read_text(encoding="utf-8")
    assert all(path.name in text for path in FOLDER.iterdir())
