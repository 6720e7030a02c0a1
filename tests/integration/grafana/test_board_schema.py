"""The boards are valid under Grafana's published types, in the oldest and in the newest supported version."""

from __future__ import annotations

import copy
from functools import reduce
from typing import Any

import pytest

from grafana.generate import build_boards
from tests.support.grafana_schema import VERSIONS, faults

BOARDS = build_boards()

STAT = ("panels", 2)
GRAPH = ("panels", 7)
MISTAKES: dict[tuple[str | int, ...], Any] = {
    ("refreshes",): "30s",
    ("schemaVersion",): "39",
    ("templating", "list", 0, "hide"): "never",
    ("panels", 0, "collapsed"): None,
    (*STAT, "targets", 0, "format"): "tables",
    (*STAT, "options", "colorMode"): "values",
    (*STAT, "fieldConfig", "defaults", "decimal"): 2,
    (*STAT, "fieldConfig", "defaults", "thresholds", "steps", 0, "value"): "none",
    (*STAT, "fieldConfig", "overrides", 0, "properties", 0, "value", "mode"): "fix",
    (*GRAPH, "fieldConfig", "defaults", "custom", "drawStyle"): "lines",
    (*GRAPH, "fieldConfig", "overrides", 4, "properties", 0, "value", "fill"): "dashed",
}
"""Where → what must not be there, in the board of one experiment."""


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name", BOARDS)
def test_every_board_is_valid_under_the_grafana_schema(name: str, version: str) -> None:
    """Every field is known and of the right type, those of the panels' plugins included."""
    assert faults(version, BOARDS[name]) == []


@pytest.mark.parametrize("path", MISTAKES, ids=lambda path: ".".join(map(str, path)))
def test_the_schema_rejects_a_wrong_field(path: tuple[str | int, ...]) -> None:
    """The schema is closed at every depth."""
    board: Any = copy.deepcopy(BOARDS["experiment.json"])
    reduce(lambda inside, key: inside[key], path[:-1], board)[path[-1]] = MISTAKES[path]
    assert faults("10", board) != []
