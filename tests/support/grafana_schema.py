"""Grafana's own types (npm `@grafana/schema`) as strict JSON schemas, generated from them on the first run.

`tests/schemas/grafana/package-lock.json` pins every package with the hash that npm verifies; it holds no addresses
(`npm install --omit-lockfile-registry-resolved`), so packages come from wherever this machine gets them.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

from tests.servers.process import need
from tests.support.fetched import fetched, run

JSON = dict[str, Any]
VERSIONS = ("10", "13")
"""Of Grafana: the oldest that the boards are for, and the newest when they were checked."""

_ROOT = Path(__file__).parents[2]
_SOURCES = _ROOT / "tests" / "schemas" / "grafana"
_GENERATOR = "node_modules/ts-json-schema-generator/bin/ts-json-schema-generator.js"
_OF_PROMETHEUS = {"target", "expr", "step", "titleFormat", "textFormat", "tagKeys", "useValueForTime"}
"""What its data source adds to an annotation; the types know the annotations of Grafana's own one only."""
_LATER = {"10": {"stat": {"percentChangeColorMode"}}, "13": {}}
"""Options that newer versions require and older ones ignore, by version and panel."""


@cache
def model(version: str) -> JSON:
    """Return the schema of `Model` in grafana-VERSION.ts, closed to what the types do not name."""
    node, npm = need("node", "nodejs"), need("npm", "npm")
    files = sorted(_SOURCES.iterdir())
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()[:12]

    def fetch(folder: Path) -> None:
        shutil.copytree(_SOURCES, folder, dirs_exist_ok=True)
        run(npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", within=folder)
        for each in VERSIONS:
            project = ("--path", f"grafana-{each}.ts", "--tsconfig", f"tsconfig-{each}.json")
            run(node, _GENERATOR, *project, "--type", "Model", "--expose", "none", "-o", f"{each}.json", within=folder)

    place = fetched(f"grafana-schema-{digest}", fetch)
    schema: JSON = json.loads((place / f"{version}.json").read_text(encoding="utf-8"))
    return schema


def _part(version: str, *path: str) -> JSON:
    """Return the schema of a part of the model; raises KeyError if the types have none."""
    schema = model(version)
    part = schema["definitions"]["Model"]
    for name in path:
        part = part["properties"][name]
    return {**part, "definitions": schema["definitions"]}


def _wrong(schema: JSON, value: Any, where: str) -> Iterator[str]:
    for error in jsonschema.Draft7Validator(schema).iter_errors(value):
        reasons = {reason.message for reason in error.context or ()} or {error.message}
        yield from (f"{where}{error.json_path.removeprefix('$')}: {reason}" for reason in sorted(reasons))


def _configured(defaults: JSON, properties: list[JSON]) -> JSON:
    """Return the field configuration that an override leaves."""
    config = {**defaults, "custom": dict(defaults.get("custom", {}))}
    for each in properties:
        name = each["id"]
        inside, key = (config["custom"], name.removeprefix("custom.")) if name.startswith("custom.") else (config, name)
        inside[key] = each["value"]
    return config


def _panel_faults(version: str, panel: JSON) -> Iterator[str]:
    kind, title = panel["type"], panel["title"]
    options = {key: value for key, value in panel["options"].items() if key not in _LATER[version].get(kind, ())}
    yield from _wrong(_part(version, "options", kind), options, f"{title}.options")
    for target in panel["targets"] if version == "10" else ():
        yield from _wrong(_part(version, "target"), target, f"{title}.targets.{target['refId']}")
    source = panel["fieldConfig"]
    for properties in ([], *(override["properties"] for override in source["overrides"])):
        config = _configured(source["defaults"], properties)
        custom = config.pop("custom")
        yield from _wrong(_part(version, "field"), config, f"{title}.fieldConfig")
        if custom:
            yield from _wrong(_part(version, "custom", kind), custom, f"{title}.fieldConfig.custom")


def faults(version: str, board: JSON) -> list[str]:
    """Return what Grafana's types do not allow in a board, each with its place: queries, options and overrides too.

    Types of a Prometheus query are in the packages of version 10 only.
    """
    marks = [
        {key: value for key, value in mark.items() if key not in _OF_PROMETHEUS}
        for mark in board["annotations"]["list"]
    ]
    found = list(_wrong(_part(version, "board"), {**board, "annotations": {"list": marks}}, board["title"]))
    for panel in board["panels"]:
        if panel["type"] != "row":
            found += _panel_faults(version, panel)
    return found
