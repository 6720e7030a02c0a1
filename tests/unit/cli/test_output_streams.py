"""Commands with closed or full output streams, at the end of input, and on signals."""

from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from monitor.app import serve_http
from monitor.cli import audit, reset, run
from monitor.cli.command_line import main
from monitor.sources.kafka_source import KafkaSource
from tests.unit.events.test_decoding import FEEDBACK, RESPONSE

CONFIG = """
[store]
url = "embedded:store"
[http]
port = 0
[[experiments]]
name = "ranker"
control = "control"
variants = { control = 0.5, treatment = 0.5 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a configuration, event files, and a store with these events."""
    path = tmp_path_factory.mktemp("streams")
    (path / "config.toml").write_text(CONFIG)
    events = ({**RESPONSE, "experiment": "ranker"}, FEEDBACK)
    (path / "events").write_text("".join(json.dumps(event) + "\n" for event in events))
    (path / "qrels").write_text("q1 0 d1 1\nq2 0 d1 1\n")
    (path / "run").write_text("q1 Q0 d1 1 9 run\nq2 Q0 d1 1 9 run\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        assert main(["replay", "--config", "config.toml", "events"]) == 0
    return path


@pytest.fixture
def working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change the working directory to the folder."""
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def _closed_pipe_as_stdout(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace stdout by a pipe whose read end is closed."""
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as stream, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", stream)
        yield


COMMANDS = [
    (0, "audit --config config.toml"),
    (0, "audit --config config.toml --json"),
    (0, "status --config config.toml"),
    (0, "status --config config.toml --json"),
    (0, "verdict ranker --config config.toml"),
    (10, "verdict ranker --config config.toml --exit-code"),
    (10, "verdict ranker --config config.toml --exit-code --json"),
    (0, "report ranker --config config.toml --html -"),
    (0, "replay --config config.toml events"),
    (0, "items --config config.toml events"),
    (0, "agreement --config config.toml events"),
    (0, "evaluate --qrels qrels --run a=run --run b=run"),
    (0, "evaluate --qrels qrels --run a=run --run b=run --csv -"),
    (0, "simulate --print-config"),
    (0, "simulate --out -"),
    (0, "simulate --out - --live"),
]
FULL = [
    "status --config config.toml",
    "verdict ranker --config config.toml --exit-code --json",
    "report ranker --config config.toml --html -",
    "simulate --out -",
]


@pytest.mark.usefixtures("working_directory")
class TestClosedPipe:
    """A closed pipe on stdout is not an error."""

    @pytest.mark.parametrize(("code", "command"), COMMANDS)
    def test_does_not_change_the_exit_code_of_a_command(
        self, monkeypatch: pytest.MonkeyPatch, code: int, command: str
    ) -> None:
        """The command prints no error message."""
        errors = io.StringIO()
        monkeypatch.setattr(sys, "stderr", errors)
        with _closed_pipe_as_stdout(monkeypatch):
            assert main(command.split()) == code
        assert "ab-monitor" not in errors.getvalue()
        assert "written" not in errors.getvalue()

    def test_does_not_hide_a_difference_found_by_audit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`audit` exits with 1."""

        def differing(*_: object) -> int:
            Console().print("it differs")
            return 1

        monkeypatch.setattr(audit, "run", differing)
        with _closed_pipe_as_stdout(monkeypatch):
            assert main(["audit", "--config", "config.toml"]) == 1


class TestStreamsOfAProcess:
    """The same in a process of its own: at exit, Python flushes buffered output."""

    @pytest.mark.parametrize("command", ["--help", "simulate --print-config", "status --config config.toml"])
    def test_a_closed_pipe_is_no_error(self, folder: Path, command: str) -> None:
        """Exit code 0, and no output on stderr."""
        read, write = os.pipe()
        os.close(read)
        assert _run(folder, command, write) == (0, "")

    @pytest.mark.parametrize("command", FULL)
    def test_a_full_disk_is_reported_in_one_line(self, folder: Path, command: str) -> None:
        """The line has the stream and the reason."""
        full = os.open("/dev/full", os.O_WRONLY)
        assert _run(folder, command, full) == (2, "ab-monitor: stdout: No space left on device\n")

    @pytest.mark.parametrize(
        ("code", "command", "closed"),
        [
            (0, "report ranker --config config.toml --html -", "<&- >&-"),
            (0, "simulate --out -", ">&-"),
            (10, "verdict ranker --config config.toml --exit-code", ">&-"),
            (2, "status --config nowhere.toml", "2>&-"),
        ],
    )
    def test_closed_streams_do_not_change_the_exit_code(
        self, folder: Path, code: int, command: str, closed: str
    ) -> None:
        """Output for a closed stream does not go to another stream."""
        arguments = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "monitor", *command.split()]
        process = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        assert (process.returncode, process.stdout) == (code, "")
        assert "Error" not in process.stderr


def _run(folder: Path, command: str, stdout: int) -> tuple[int, str]:
    arguments = [sys.executable, "-m", "monitor", *command.split()]
    try:
        process = subprocess.run(arguments, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(stdout)
    return process.returncode, process.stderr


class TestResetConfirmation:
    """The question before the deletion."""

    def test_end_of_input_cancels_the_deletion(self, working_directory: Path) -> None:
        """Ctrl-D means "no"."""
        ours, theirs = pty.openpty()
        arguments = [sys.executable, "-m", "monitor", "reset", "--config", "config.toml"]
        os.write(ours, b"\x04")
        process = subprocess.run(
            arguments, cwd=working_directory, stdin=theirs, capture_output=True, text=True, check=False
        )
        os.close(ours)
        os.close(theirs)
        assert (process.returncode, process.stdout.splitlines()[-1]) == (0, "nothing was deleted"), process.stderr
        assert process.stderr == ""


class TestSignals:
    """SIGTERM and SIGINT at any time; PID 1 of a container has no default action for signals."""

    def test_sigterm_ends_a_command_without_a_handler_at_once(
        self, monkeypatch: pytest.MonkeyPatch, working_directory: Path
    ) -> None:
        """The exit code is 128 + SIGTERM, and the previous handler is restored."""
        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(reset, "run", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit) as caught:
            main(["reset", "--config", str(working_directory / "config.toml")])
        assert caught.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == before

    @pytest.mark.parametrize(
        ("function_name", "number"),
        [
            ("load_command_settings", signal.SIGTERM),
            ("open_store_connections", signal.SIGTERM),
            ("open_store_connections", signal.SIGINT),
            ("KafkaSource", signal.SIGTERM),
            ("serve_http", signal.SIGTERM),
        ],
    )
    def test_a_signal_during_start_ends_the_service_with_success(
        self, monkeypatch: pytest.MonkeyPatch, working_directory: Path, function_name: str, number: signal.Signals
    ) -> None:
        """A signal before the configuration, the store, Kafka or the port is open; open resources are closed."""
        original = getattr(run, function_name)

        def interrupted(*arguments: object) -> object:
            signal.raise_signal(number)
            return original(*arguments)

        monkeypatch.setattr(KafkaSource, "__init__", lambda *_: None)
        monkeypatch.setattr(KafkaSource, "close", lambda *_: None)
        monkeypatch.setattr(run, function_name, interrupted)
        code: object
        try:
            code = main(["run", "--config", str(working_directory / "config.toml")])
        except SystemExit as process:
            code = process.code
        assert not code

    def test_a_second_signal_during_shutdown_has_its_default_action(
        self, monkeypatch: pytest.MonkeyPatch, working_directory: Path
    ) -> None:
        """An exception during shutdown would leave the serving threads, and so the process, running."""
        handlers = []

        def signalled_serve_http(*arguments: Any) -> object:
            signal.raise_signal(signal.SIGTERM)
            return serve_http(*arguments)

        monkeypatch.setattr(KafkaSource, "__init__", lambda *_: None)
        monkeypatch.setattr(KafkaSource, "close", lambda *_: handlers.append(signal.getsignal(signal.SIGTERM)))
        monkeypatch.setattr(run, "serve_http", signalled_serve_http)
        assert main(["run", "--config", str(working_directory / "config.toml")]) == 0
        assert handlers == [signal.SIG_DFL]

    def test_a_second_signal_during_start_has_its_default_action(
        self, monkeypatch: pytest.MonkeyPatch, working_directory: Path
    ) -> None:
        """The second signal does not wait for the shutdown that the first signal has started."""
        handlers = []

        def signalled_open_store(*_: object) -> None:
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)
            try:
                handler(signal.SIGTERM, None)
            finally:
                handlers.append(signal.getsignal(signal.SIGTERM))

        monkeypatch.setattr(run, "open_store_connections", signalled_open_store)
        with pytest.raises(SystemExit):
            main(["run", "--config", str(working_directory / "config.toml")])
        assert handlers == [signal.SIG_DFL]


def test_tables_in_a_pipe_are_not_truncated(
    working_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal and without COLUMNS, tables are as wide as needed."""
    del working_directory
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["status", "--config", "config.toml"]) == 0
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["status", "--config", "config.toml"]) == 0
    assert max(map(len, wide.splitlines())) > 80
    assert "n = 1" in wide
    assert "n = 1" not in capsys.readouterr().out


def test_an_interrupt_during_import_exits_with_130() -> None:
    """The process prints nothing."""
    program = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'monitor.cli.command_line': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('monitor', run_name='__main__')\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (process.returncode, process.stdout, process.stderr) == (130, b"", b"")


def test_check_prints_warnings_before_the_error_of_kafka(tmp_path: Path) -> None:
    """A warning follows the line of the checked part."""
    config = CONFIG.replace("embedded:", f"embedded:{tmp_path}/") + 'decay = ["60d"]\n'
    (tmp_path / "config.toml").write_text(f'[kafka]\nbootstrap_servers = "127.0.0.1:1"\n{config}')
    command = [sys.executable, "-m", "monitor", "check", "--config", str(tmp_path / "config.toml")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    assert process.returncode == 3
    configuration, warning, store, *_ = process.stdout.splitlines()
    assert configuration == "configuration  ok: ranker"
    assert warning.startswith("warning        experiments.ranker.decay: 60d would give 70.7% of its weight")
    assert store.startswith("store          ok")
