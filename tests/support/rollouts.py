"""The examples for Argo Rollouts, Flagger and KEDA, and what they ask Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from deploy.kubernetes.generate import BASE
from tests.support.kustomize import documents

JSON = dict[str, Any]
FOLDER = BASE.parent / "examples"
EXAMPLES = [document for path in sorted(FOLDER.iterdir()) for document in documents(path)]
BLANKS = re.compile(r"{{ ?(?:args|variables)\.(\w+) ?}}")
FILLED = {"experiment": "ranker-v2", "variant": "treatment"}


class Asked(NamedTuple):
    """A query of an example, blanks filled in, and where it is asked."""

    example: str
    address: str
    expr: str


def asked() -> Iterator[Asked]:
    """Yield every query of the examples."""
    for example in EXAMPLES:
        name, spec = f"{example['kind']} {example['metadata']['name']}", example["spec"]
        providers = [metric["provider"]["prometheus"] for metric in spec.get("metrics", [])]
        providers += [{"address": spec["provider"]["address"], "query": spec["query"]}] if "provider" in spec else []
        providers += [
            {"address": trigger["metadata"]["serverAddress"], "query": trigger["metadata"]["query"]}
            for trigger in spec.get("triggers", [])
        ]
        values = {**FILLED, **{each["name"]: each["value"] for each in spec.get("args", []) if "value" in each}}
        for provider in providers:
            yield Asked(name, filled_in(provider["address"], values), filled_in(provider["query"], values))


def filled_in(template: str, values: Mapping[str, str]) -> str:
    """Return the text with its blanks filled in; raises `KeyError` for one without a value."""
    return BLANKS.sub(lambda blank: values[blank[1]], template)
