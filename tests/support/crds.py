"""Schemas of resources that Kubernetes itself does not know (tests/schemas), closed to fields that they do not name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

JSON = dict[str, Any]
SCHEMAS = Path(__file__).parents[1] / "schemas"


def closed(node: Any) -> Any:
    """Return a schema in which objects have only the fields that it names: a server would drop others silently."""
    if isinstance(node, list):
        return [closed(each) for each in node]
    if not isinstance(node, dict):
        return node
    inside = {key: closed(value) for key, value in node.items()}
    if isinstance(node.get("properties"), dict) and not node.get("x-kubernetes-preserve-unknown-fields"):
        inside["additionalProperties"] = False
    return inside


def published() -> dict[tuple[str, str], JSON]:
    """Return the closed schemas by `apiVersion` and `kind`."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")]
    return {(each["apiVersion"], each["kind"]): closed(each["schema"]) for each in found}


def faults(resource: JSON) -> list[str]:
    """Return what is wrong with a resource, each with its place; raises `KeyError` for a kind without a schema."""
    validator = jsonschema.Draft202012Validator(published()[resource["apiVersion"], resource["kind"]])
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(resource)]
