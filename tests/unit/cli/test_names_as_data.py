"""Names and ids are data: no markup, no control characters in an output, and any encoding of the output streams."""

from __future__ import annotations

import ast
import io
import json
import logging
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from monitor.cli.command_line import _LineFormatter, main
from monitor.config import StoreSettings
from monitor.export import DataConsole
from monitor.state import running_store_server
from monitor.state.redis_connection import connect
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

PACKAGE = Path(__file__).parents[3] / "monitor"
EXPERIMENT = "v [/a] [red]é"
CONTROL = "c [b]"
TREATMENT = "=t :smile:"
HOSTILE_ID = "\x1b[2J\nid\x9b\u202e[/x]é"
CONFIG = f"""
[store]
url = "embedded:store"
[[experiments]]
name = "{EXPERIMENT}"
control = "{CONTROL}"
variants = {{ "{CONTROL}" = 0.5, "{TREATMENT}" = 0.5 }}
[experiments.items]
horizon = "30d"
"""
CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")
COMMANDS = [
    ["status"],
    ["verdict", EXPERIMENT],
    ["audit"],
    ["items", EXPERIMENT, "--worst", "3"],
    ["items", EXPERIMENT, "--attention", "3"],
    ["items", "events"],
    ["agreement", "events"],
    ["evaluate", "events"],
    ["status", "--json"],
    ["items", "events", "--json"],
    ["evaluate", "events", "--json"],
    ["evaluate", "events", "--csv", "-"],
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a folder with a configuration, events, and a running store with these events."""
    path = tmp_path_factory.mktemp("names")
    (path / "config.toml").write_text(CONFIG, encoding="utf-8")
    events = []
    for number, variant in enumerate((CONTROL, TREATMENT) * 3):
        items = [{"item_id": HOSTILE_ID, "position": 1}]
        response = {**RESPONSE, "experiment": EXPERIMENT, "variant": variant, "query_id": HOSTILE_ID, "items": items}
        feedback = {**FEEDBACK, "item_id": HOSTILE_ID, "feedback_id": f"f{number}", "score": 1 + number % 2}
        events += [event | {"response_id": f"r{number}", "user_id": f"u{number}"} for event in (response, feedback)]
    (path / "events").write_text("".join(json.dumps(event) + "\n" for event in events), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(["replay", "--config", "config.toml", "events"]) == 0
    with running_store_server(StoreSettings(url=f"embedded:{path / 'store'}")):
        yield path


def _run(command: list[str], encoding: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the output of a successful command on a stream with an encoding."""
    output = io.BytesIO()
    stream = io.TextIOWrapper(output, encoding=encoding)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        assert main([*command, "--config", "config.toml"]) == 0
    return output.getvalue().decode("utf-8" if "--csv" in command else encoding)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
class TestOutput:
    """The names of the configuration and the ids of the events in the output of each command."""

    def test_contains_names_unchanged_and_no_control_characters(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
    ) -> None:
        """Brackets and colons are no markup; escape sequences, C1 controls and changes of direction are escaped."""
        monkeypatch.chdir(folder)
        output = _run(command, "utf-8", monkeypatch)
        assert EXPERIMENT in output
        assert TREATMENT in output or "--worst" in command or "--attention" in command
        assert "\\u202f" not in output
        assert not CONTROLS.search(output)

    def test_fits_a_stream_that_is_not_utf_8(
        self, folder: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
    ) -> None:
        """Dashes and minus signs become ASCII, and no command ends in a traceback."""
        monkeypatch.chdir(folder)
        output = _run(command, "ascii", monkeypatch)
        if "--json" in command:
            json.loads(output)
        elif "--csv" not in command:
            assert not re.findall(r"\\u(?!00e9|001b|009b|202e)[0-9a-f]{4}", output)


def test_a_spreadsheet_takes_no_name_in_the_csv_for_a_formula(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An apostrophe makes a text of the name; negative numbers are unchanged."""
    monkeypatch.chdir(folder)
    output = _run(["evaluate", "events", "--csv", "-"], "utf-8", monkeypatch)
    assert f",'{TREATMENT}," in output
    assert f",{TREATMENT}," not in output


def test_only_one_module_creates_consoles() -> None:
    """Every console of the commands is a `DataConsole`."""
    calls = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Console"
    ]
    assert calls == []


def test_every_text_file_is_read_and_written_as_utf_8() -> None:
    """The encoding does not depend on the locale."""
    calls = re.compile(r"\.(?:read_text|write_text)\((?P<arguments>[^()]*(?:\([^()]*\)[^()]*)*)\)")
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in calls.finditer(path.read_text("utf-8")):
            assert "utf-8" in call["arguments"], f"{path}: {call[0]}"


def test_a_log_message_is_one_line() -> None:
    """Reasons of other programs may contain line feeds and escape sequences."""
    record = logging.LogRecord("monitor", logging.INFO, "", 0, "reason=%s", ("a\nb\x1b[2J",), None)
    assert _LineFormatter("%(message)s").format(record) == r"reason=a\nb\u001b[2J"


def test_an_error_message_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    """The name of a file is an argument."""
    assert main(["status", "--config", "\x1b[2J\udce4"]) == 2
    assert r"\u001b[2J\udce4" in capsys.readouterr().err


def test_a_console_leaves_the_styles_of_a_terminal() -> None:
    """Only the text is escaped, not the sequences of rich."""
    output = io.StringIO()
    DataConsole(file=output, force_terminal=True, color_system="standard").print("a\x1b[2Jb", style="bold")
    assert output.getvalue() == "\x1b[1ma\\u001b[2Jb\x1b[0m\n"


@pytest.mark.parametrize(
    "name", ["a b", "a,b", "a?b", "a#b", "a%20b", "a[b]", 'ä"x', "a@b", "~nobody-of-this-name", "x" * 150]
)
def test_the_embedded_store_accepts_every_directory_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The path of the server's socket is neither a URL nor a list of addresses."""
    monkeypatch.chdir(tmp_path)
    with running_store_server(StoreSettings(url=f"embedded:{name}")) as settings:
        client = connect(settings)
        assert client.ping()
        client.close()
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_report_of_a_rejected_line_is_one_line_in_a_pipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Programs search logs line by line."""
    monkeypatch.delenv("COLUMNS", raising=False)
    events = tmp_path / ("long-name" * 12)
    events.write_text('{"x":1\n', encoding="utf-8")
    (tmp_path / "config.toml").write_text(CONFIG, encoding="utf-8")
    assert main(["agreement", "--config", str(tmp_path / "config.toml"), str(events)]) == 4
    line, _ = capsys.readouterr().err.splitlines()
    assert line == f"{events}:1: rejected: invalid_json: expected a JSON object in UTF-8"
