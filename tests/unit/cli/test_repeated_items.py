"""Responses with an item more than once: every command that reads events counts the smallest position of the item."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main

CONFIG = """
[store]
url = "embedded:{name}"
[limits]
repeated_items = "{rule}"
[[experiments]]
name = "ranker"
control = "control"
variants = {{ control = 0.5, treatment = 0.5 }}
metrics = ["dcg@5"]
"""
REPEATED = [("A", 1), ("B", 2), ("A", 3), ("C", 4)]
DISTINCT = [("A", 1), ("B", 2), ("C", 4)]
Items = list[tuple[str, int]]


def _events(items: Items) -> list[dict[str, Any]]:
    """Return responses of both variants with ratings of two students; only those of control have the given items."""
    events: list[dict[str, Any]] = []
    for variant, shown_items in (("control", items), ("treatment", DISTINCT)):
        response = {
            "response_id": variant,
            "timestamp": "2026-11-20T10:00:00Z",
            "experiment": "ranker",
            "variant": variant,
            "user_id": f"student of {variant}",
            "query_id": "q",
            "items": [{"item_id": item, "position": position} for item, position in shown_items],
        }
        events.append(response)
        events += [
            {
                "feedback_id": f"{variant} {student} {item}",
                "response_id": variant,
                "timestamp": "2026-11-20T10:01:00Z",
                "user_id": f"student {student}",
                "item_id": item,
                "kind": "rating",
                "score": score,
            }
            for student in (1, 2)
            for item, score in (("A", student), ("B", 2), ("C", 3))
        ]
    return events


@pytest.fixture(autouse=True)
def _working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _run(arguments: list[str], items: Items, *, rule: str = "first") -> None:
    """Run a command on the events of the given items, with a store of its own."""
    name = f"{rule}-{len(items)}"
    Path(f"{name}.toml").write_text(CONFIG.format(name=name, rule=rule))
    Path(f"{name}.jsonl").write_text("".join(json.dumps(event) + "\n" for event in _events(items)))
    command, *options = arguments
    assert main([command, "--config", f"{name}.toml", f"{name}.jsonl", *options]) == 0


def _summary(items: Items, capsys: pytest.CaptureFixture[str], *, rule: str = "first") -> Any:
    _run(["replay"], items, rule=rule)
    capsys.readouterr()
    assert main(["status", "--config", f"{rule}-{len(items)}.toml", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["experiments"]["ranker"]


@pytest.mark.parametrize("command", ["evaluate", "items", "agreement"])
def test_a_repetition_changes_no_result_of_an_analysis_of_files(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The other items keep their positions."""
    results = []
    for items in (REPEATED, DISTINCT):
        _run([command, "--json"], items)
        results.append(json.loads(capsys.readouterr().out))
    assert results[0] == results[1]


def test_a_repetition_changes_no_aggregate_of_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    """The response and its ratings count."""
    repeated, distinct = (_summary(items, capsys)["variants"]["control"] for items in (REPEATED, DISTINCT))
    assert repeated["metrics"] == distinct["metrics"]
    assert repeated["responses"] == repeated["rated_responses"] == 1


def test_responses_with_repeated_items_are_counted_by_variant(capsys: pytest.CaptureFixture[str]) -> None:
    """They are not missing, so their share makes no verdict invalid."""
    quality = _summary(REPEATED, capsys)["data_quality"]
    assert {name: counts["repeated_items"] for name, counts in quality["variants"].items()} == {
        "control": 1,
        "treatment": 0,
    }
    assert quality["missing_share"] == 0


def test_responses_with_repeated_items_are_rejected_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """The setting limits.repeated_items is "reject"."""
    control = _summary(REPEATED, capsys, rule="reject")["data_quality"]["variants"]["control"]
    assert (control["rejected"], control["repeated_items"], control["responses"]) == ({"repeated_item": 1}, 0, 0)
