"""`ab-monitor map`: the outcome of one message from stdin, without Kafka and the store."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from monitor.cli.command_line import main
from tests.support.schemas import ANSWER as AVRO_ANSWER
from tests.support.schemas import avro_bytes

EXPERIMENT = """
[[experiments]]
name = "ranker-v2"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""
SOURCES = """
[[kafka.sources]]
topics = ["answers"]
event = "response"
when = { "type" = "answer" }
[kafka.sources.fields]
response_id = ["id", "$headers.id"]
timestamp = { from = "at", as = "s" }
experiment = { constant = "ranker-v2" }
variant = { from = "arm", values = { A = "control" } }
user_id = "$key"
items = { each = "hits", item_id = "doc.id", position = "rank", base = 0 }

[[kafka.sources]]
topics = ["clicks"]
event = "feedback"
each = "clicks"
when = { "$element.kind" = "click" }
[kafka.sources.fields]
feedback_id = { derive = ["answer", "$element.at"] }
response_id = "answer"
timestamp = { from = "$element.at", as = "s" }
kind = "$element.kind"
"""
ANSWER: dict[str, Any] = {
    "type": "answer", "id": 17, "at": 1_700_000_000, "arm": "A", "hits": [{"doc": {"id": "v\u001b1"}, "rank": 0}],
}  # fmt: skip


@pytest.fixture
def map_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function (message, flags …) → (exit code, stdout, stderr); lines are not wrapped."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(message: object, *flags: str, config: str = SOURCES) -> tuple[int, str, str]:
        (tmp_path / "c.toml").write_text(EXPERIMENT + config, encoding="utf-8")
        content = message if isinstance(message, bytes) else json.dumps(message).encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
        code = main(["map", "--config", str(tmp_path / "c.toml"), *flags])
        output = capsys.readouterr()
        return code, output.out, output.err

    return run


def _lines(output: str) -> list[str]:
    return [" ".join(line.split()) for line in output.splitlines() if line.strip()]


def test_an_event_is_shown_in_the_native_format_with_the_path_of_each_field(map_message: Any) -> None:
    """Control characters of the message are escapes."""
    code, output, _ = map_message(ANSWER, "--key", "u1", "--topic", "answers")
    assert code == 0
    lines = _lines(output)
    event = next(line.removeprefix("event ") for line in lines if line.startswith("event "))
    assert "\\u001b" in event
    assert json.loads(event) == {
        "response_id": "17", "timestamp": "2023-11-14T22:13:20.000Z", "experiment": "ranker-v2", "variant": "control",
        "items": [{"item_id": "v\u001b1", "position": 1}], "user_id": "u1",
    }  # fmt: skip
    for line in ("response_id id", "experiment constant", "items hits[*]: doc.id, rank", "user_id $key"):
        assert line in lines


def test_the_path_is_the_one_that_has_the_value(map_message: Any) -> None:
    """The header has the id if the message lacks it."""
    message = {**ANSWER, "id": None}
    code, output, _ = map_message(message, "--header", "id=r-1")
    assert code == 0
    assert "response_id $headers.id" in _lines(output)


def test_every_element_of_a_list_of_events_is_shown(map_message: Any) -> None:
    """Elements that the filters leave out are not events."""
    clicks = [{"kind": kind, "at": 1_700_000_000 + n} for n, kind in enumerate(("click", "view", "click"))]
    code, output, _ = map_message({"answer": "17", "clicks": clicks}, "--topic", "clicks")
    assert code == 0
    assert sum(line.startswith("event ") for line in _lines(output)) == 2


@pytest.mark.parametrize(
    ("change", "path", "shape", "reason"),
    [
        ({"at": "soon"}, "at", "a string of 4 characters", "wrong_type"),
        ({"id": None}, "id or $headers.id", "no value", "missing_field"),
        ({"hits": [{"doc": {"id": "a"}, "rank": "x"}]}, "hits[*]: rank", "a string of 1 characters", "wrong_type"),
        ({"hits": [{"doc": {}}]}, "hits[*]: doc.id", "no value", "missing_field"),
        ({"hits": "none"}, "hits", "a string of 4 characters", "wrong_type"),
    ],
)
def test_a_rejected_message_is_explained_by_path_and_shape(
    map_message: Any, change: dict[str, Any], path: str, shape: str, reason: str
) -> None:
    """The exit code is 4."""
    code, output, error = map_message({**ANSWER, **change}, "--topic", "answers")
    assert code == 4
    lines = _lines(output)
    assert f"path {path}" in lines
    assert f"shape {shape}" in lines
    assert any(line.startswith(f"rejected {reason}: ") for line in lines)
    assert "rejected by kafka.sources[0]" in error


def test_a_message_that_no_filter_passes_is_ignored_with_exit_code_7(map_message: Any) -> None:
    """The filter is named."""
    code, output, _ = map_message({"type": "other"}, "--topic", "answers")
    assert code == 7
    assert "ignored by the filter on type (key when)" in _lines(output)


def test_bytes_with_a_schema_id_are_recognized_without_a_registry(map_message: Any) -> None:
    """The native format names the framing, too."""
    for config in (SOURCES, ""):
        code, output, _ = map_message(b"\0\0\0\0\7\2\4", config=config)
        assert code == 4
        assert "framing schema id 7, not readable" in _lines(output)


def test_bytes_of_avro_are_a_message(map_message: Any, tmp_path: Path) -> None:
    """With the schema of the configuration; the framing is that of the data."""
    (tmp_path / "answer.avsc").write_text(json.dumps(AVRO_ANSWER))
    source = f"""
    [[kafka.sources]]
    topics = ["answers"]
    event = "response"
    format = "avro"
    avro_schema_file = "{tmp_path}/answer.avsc"
    [kafka.sources.fields]
    response_id = "id"
    timestamp = "at"
    experiment = {{ constant = "ranker-v2" }}
    variant = "arm"
    items = {{ each = "items", item_id = "id" }}
    [[kafka.sources]]
    topics = ["clicks"]
    event = "feedback"
    """
    value = {"id": "r1", "at": datetime(2025, 1, 1, tzinfo=UTC), "arm": "A", "student": None, "items": []}
    code, output, _ = map_message(avro_bytes(AVRO_ANSWER, value), "--topic", "answers", config=source)
    assert code == 0
    assert "framing Avro, bot.Answer" in _lines(output)


def test_a_response_of_an_undeclared_variant_is_shown_with_a_warning(map_message: Any) -> None:
    """The service would skip the event."""
    code, output, _ = map_message({**ANSWER, "arm": "Treatment"}, "--topic", "answers")
    assert code == 0
    assert "the service skips the event: variant not declared; did you mean treatment?" in output


@pytest.mark.parametrize(
    ("message", "flags", "problem"),
    [
        (b"", (), "stdin: empty"),
        (b'{"a":1}\n{"a":2}\n', (), "stdin: 2 lines with an object each, expected one message"),
        (b"{}", ("--topic", "answer"), "did you mean answers?"),
        (b"{}", ("--header", "x"), '--header: got "x", expected NAME=VALUE'),
    ],
)
def test_wrong_input_is_an_error_with_the_expected_one(
    map_message: Any, message: bytes, flags: tuple[str, ...], problem: str
) -> None:
    """The exit code is 2."""
    code, _, error = map_message(message, *flags)
    assert code == 2
    assert problem in error


def test_an_excluded_response_is_shown_with_the_path_of_the_attribute(map_message: Any) -> None:
    """The rules may be those of the experiment; the value of the attribute is not shown."""
    config = SOURCES.replace('user_id = "$key"', 'user_id = "$key"\nattributes = { role = "who.role" }')
    rules = 'exclude = { role = ["teacher"] }\n'
    exit_code, out, _ = map_message({**ANSWER, "who": {"role": "teacher"}}, "--topic", "answers", config=rules + config)
    assert exit_code == 0
    lines = _lines(out)
    assert "excluded a rule of exclude matches: the response is counted, but not compared" in lines
    assert any(line.split() == ["role", "who.role"] for line in lines)
    assert "teacher" not in out
    _, out, _ = map_message({**ANSWER, "who": {"role": "pupil"}}, "--topic", "answers", config=rules + config)
    assert "excluded" not in out
