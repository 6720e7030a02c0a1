"""Names of experiments and variants that the configuration does not declare, in files of events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

CONFIG = """
[[experiments]]
name = "ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
ends_at = 2027-01-01T00:00:00Z
[[experiments]]
name = "other"
control = "a"
variants = { a = 0.5, b = 0.5 }
"""
COUNTED = {**RESPONSE, "response_id": "counted", "experiment": "ranker-v2", "variant": "control"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the working directory, with a configuration."""
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write(folder: Path, *events: dict[str, Any]) -> None:
    (folder / "events").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", ["evaluate", "agreement", "items"])
class TestSkippedResponses:
    """Responses that a command on files does not count."""

    def test_are_reported_by_name_with_the_nearest_declared_name(
        self, folder: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """An undeclared experiment, and an undeclared variant."""
        misspelt = {**COUNTED, "experiment": "Ranker V2"}
        _write(
            folder,
            COUNTED,
            *({**misspelt, "response_id": f"m{number}"} for number in range(3)),
            {**COUNTED, "variant": "T"},
            {**COUNTED, "variant": "Treat\x1bment", "response_id": "e"},
        )
        assert main([command, "--config", "config.toml", "events"]) == 0
        assert capsys.readouterr().err.splitlines() == [
            '3 responses skipped: experiment "Ranker V2" is not in the configuration, did you mean "ranker-v2"?',
            '1 response skipped: experiment "ranker-v2" has no variant "T", did you mean "treatment"?',
            '1 response skipped: experiment "ranker-v2" has no variant "Treat\\u001bment", did you mean "treatment"?',
        ]

    def test_are_not_reported_if_another_experiment_was_chosen(
        self, folder: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`--experiment` leaves out the others on purpose."""
        _write(folder, COUNTED)
        assert main([command, "--config", "config.toml", "--experiment", "other", "events"]) == 0
        assert capsys.readouterr().err == ""

    def test_are_an_error_if_no_response_counts(
        self, folder: Path, command: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Tables without any value would hide the reason."""
        _write(folder, {**COUNTED, "experiment": "x"}, {**COUNTED, "timestamp": "2027-02-01T00:00:00Z"})
        assert main([command, "--config", "config.toml", "events"]) == 4
        assert "no response counts:" in capsys.readouterr().err


def test_a_replay_reports_undeclared_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The outcome "skipped" alone does not name them."""
    (folder / "config.toml").write_text('[store]\nurl = "embedded:store"\n' + CONFIG, encoding="utf-8")
    _write(folder, COUNTED, {**COUNTED, "experiment": "Ranker V2", "response_id": "m"})
    assert main(["replay", "--config", "config.toml", "events"]) == 0
    assert (
        '1 response skipped: experiment "Ranker V2" is not in the configuration, did you mean "ranker-v2"?\n'
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([{**COUNTED, "query_id": None}], "No response is rated"),
        ([{**COUNTED, "query_id": None}, {**FEEDBACK, "response_id": "counted"}], "No rated response has a query_id"),
        (
            [{**COUNTED, "query_id": "q"}, {**FEEDBACK, "response_id": "counted"}],
            "No query has rated responses of both",
        ),
    ],
)
def test_an_evaluation_without_values_gives_the_reason(
    folder: Path, capsys: pytest.CaptureFixture[str], events: list[dict[str, Any]], reason: str
) -> None:
    """Instead of tables of dashes."""
    _write(folder, *events)
    assert main(["evaluate", "--config", "config.toml", "--experiment", "ranker-v2", "events"]) == 0
    output = capsys.readouterr().out
    assert reason in output
    assert "mean over queries" not in output


def test_feedback_without_a_feedback_id_is_no_response(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the missing field of feedback."""
    _write(folder, {name: value for name, value in FEEDBACK.items() if name != "feedback_id"})
    assert main(["evaluate", "--config", "config.toml", "events"]) == 4
    assert "missing_field: feedback_id: expected in every feedback" in capsys.readouterr().err


def test_each_kind_of_fault_is_reported_with_its_own_first_lines(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A reason may have several faults; numbers in a detail are no faults of their own."""
    items = [{"item_id": f"i{position}", "position": position} for position in range(1, 9)]
    _write(
        folder,
        *({**COUNTED, "items": [*items[:number], {"item_id": 1, "position": 9}]} for number in range(8)),
        *({**COUNTED, "variant": 1} for _ in range(5)),
    )
    assert main(["evaluate", "--config", "config.toml", "events"]) == 4
    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if "more lines" in line] == [
        "5 more lines rejected: wrong_type: items[0].item_id: expected a string (in all 8)",
        "2 more lines rejected: wrong_type: variant: expected a string, got an integer (in all 5)",
    ]
    assert sum("events:" in line for line in lines) == 6
