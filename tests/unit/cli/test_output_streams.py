"""What a command says when its output goes nowhere, when nobody answers its question, and when it is told to end."""

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

from monitor.app import http_for
from monitor.cli import audit, rebuild
from monitor.cli import command_line as cli
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
    """Return a folder with a configuration, events, and a store that holds them."""
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
def inside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in that folder."""
    monkeypatch.chdir(folder)
    return folder


@contextmanager
def _unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let stdout be a pipe that nobody reads."""
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


@pytest.mark.usefixtures("inside")
class TestNobodyReads:
    """Whoever read the output has seen enough: nothing is said of it."""

    @pytest.mark.parametrize(("code", "command"), COMMANDS)
    def test_the_exit_code_is_that_of_the_command(
        self, monkeypatch: pytest.MonkeyPatch, code: int, command: str
    ) -> None:
        """What was found does not depend on whether somebody reads it."""
        said = io.StringIO()
        monkeypatch.setattr(sys, "stderr", said)
        with _unread(monkeypatch):
            assert main(command.split()) == code
        assert "ab-monitor" not in said.getvalue()
        assert "written" not in said.getvalue()

    def test_a_difference_is_still_one(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """`audit` ends with 1 for that alone."""

        def differing(*_: object) -> int:
            Console().print("it differs")
            return 1

        monkeypatch.setattr(audit, "run", differing)
        with _unread(monkeypatch):
            assert main(["audit", "--config", "config.toml"]) == 1


class TestProcess:
    """The same, to the end of a process, where Python flushes what is left over."""

    @pytest.mark.parametrize("command", ["--help", "simulate --print-config", "status --config config.toml"])
    def test_a_pipe_that_is_closed(self, folder: Path, command: str) -> None:
        """Not a word."""
        read, write = os.pipe()
        os.close(read)
        assert _run(folder, command, write) == (0, "")

    @pytest.mark.parametrize("command", FULL)
    def test_a_full_disk_is_one_line(self, folder: Path, command: str) -> None:
        """It says what cannot be written to, and why."""
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
    def test_streams_that_are_closed_are_as_if_nobody_reads(
        self, folder: Path, code: int, command: str, closed: str
    ) -> None:
        """The command does what it does; what is for one stream does not go to another."""
        arguments = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "monitor", *command.split()]
        done = subprocess.run(arguments, cwd=folder, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (code, "")
        assert "Error" not in done.stderr


def _run(folder: Path, command: str, stdout: int) -> tuple[int, str]:
    arguments = [sys.executable, "-m", "monitor", *command.split()]
    try:
        done = subprocess.run(arguments, cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True, check=False)
    finally:
        os.close(stdout)
    return done.returncode, done.stderr


class TestReset:
    """The question before everything is deleted."""

    def test_the_end_of_input_is_no_agreement(self, inside: Path) -> None:
        """Ctrl-D is the same as "no"."""
        ours, theirs = pty.openpty()
        arguments = [sys.executable, "-m", "monitor", "reset", "--config", "config.toml"]
        os.write(ours, b"\x04")
        done = subprocess.run(arguments, cwd=inside, stdin=theirs, capture_output=True, text=True, check=False)
        os.close(ours)
        os.close(theirs)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "nothing was deleted"), done.stderr
        assert done.stderr == ""


class TestSignals:
    """SIGTERM at any time: as PID 1 there is no default action that would end a process."""

    def test_a_command_that_has_no_order_to_stop_in_ends_at_once(
        self, monkeypatch: pytest.MonkeyPatch, inside: Path
    ) -> None:
        """The code is the one that a shell gives to what SIGTERM has ended; the handler is that of before again."""
        before = signal.getsignal(signal.SIGTERM)
        monkeypatch.setattr(rebuild, "reset", lambda *_: signal.raise_signal(signal.SIGTERM))
        with pytest.raises(SystemExit) as caught:
            main(["reset", "--config", str(inside / "config.toml")])
        assert caught.value.code == 143
        assert signal.getsignal(signal.SIGTERM) == before

    @pytest.mark.parametrize(
        ("place", "number"),
        [
            ("load_settings", signal.SIGTERM),
            ("opened", signal.SIGTERM),
            ("opened", signal.SIGINT),
            ("KafkaSource", signal.SIGTERM),
            ("http_for", signal.SIGTERM),
        ],
    )
    def test_the_service_ends_well_however_early_it_is_told_to(
        self, monkeypatch: pytest.MonkeyPatch, inside: Path, place: str, number: signal.Signals
    ) -> None:
        """Before the configuration is read, the store open, Kafka reached, the port open; what is open is closed."""
        original = getattr(cli, place)

        def interrupted(*arguments: object) -> object:
            signal.raise_signal(number)
            return original(*arguments)

        monkeypatch.setattr(KafkaSource, "__init__", lambda *_: None)
        monkeypatch.setattr(KafkaSource, "close", lambda *_: None)
        monkeypatch.setattr(cli, place, interrupted)
        code: object
        try:
            code = main(["run", "--config", str(inside / "config.toml")])
        except SystemExit as ended:
            code = ended.code
        assert not code

    def test_one_that_comes_while_all_is_closed_ends_it(self, monkeypatch: pytest.MonkeyPatch, inside: Path) -> None:
        """Were it an error in the midst of that, the threads that still serve would keep the process for ever."""
        seen = []

        def told_to_stop(*arguments: Any) -> object:
            signal.raise_signal(signal.SIGTERM)
            return http_for(*arguments)

        monkeypatch.setattr(KafkaSource, "__init__", lambda *_: None)
        monkeypatch.setattr(KafkaSource, "close", lambda *_: seen.append(signal.getsignal(signal.SIGTERM)))
        monkeypatch.setattr(cli, "http_for", told_to_stop)
        assert main(["run", "--config", str(inside / "config.toml")]) == 0
        assert seen == [signal.SIG_DFL]

    def test_a_second_one_ends_it_in_any_order(self, monkeypatch: pytest.MonkeyPatch, inside: Path) -> None:
        """Whatever the first one waits for."""
        seen = []

        def opened(*_: object) -> None:
            handler = signal.getsignal(signal.SIGTERM)
            assert callable(handler)
            try:
                handler(signal.SIGTERM, None)
            finally:
                seen.append(signal.getsignal(signal.SIGTERM))

        monkeypatch.setattr(cli, "opened", opened)
        with pytest.raises(SystemExit):
            main(["run", "--config", str(inside / "config.toml")])
        assert seen == [signal.SIG_DFL]


def test_a_pipe_is_as_wide_as_it_takes(
    inside: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left out of what nobody reads on a terminal."""
    del inside
    monkeypatch.delenv("COLUMNS", raising=False)
    assert main(["status", "--config", "config.toml"]) == 0
    wide = capsys.readouterr().out
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["status", "--config", "config.toml"]) == 0
    assert max(map(len, wide.splitlines())) > 80
    assert "n 1" in wide
    assert "n 1" not in capsys.readouterr().out


def test_interrupted_while_it_is_loaded() -> None:
    """Exit code 130 and not a word, as later."""
    program = (
        "import runpy, sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'monitor.cli.command_line': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "runpy.run_module('monitor', run_name='__main__')\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, b"", b"")


def test_check_warns_of_what_it_has_seen_before_kafka_fails(tmp_path: Path) -> None:
    """Below the line that it belongs to."""
    config = CONFIG.replace("embedded:", f"embedded:{tmp_path}/") + 'decay = ["60d"]\n'
    (tmp_path / "config.toml").write_text(f'[kafka]\nbootstrap_servers = "127.0.0.1:1"\n{config}')
    command = [sys.executable, "-m", "monitor", "check", "--config", str(tmp_path / "config.toml")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 3
    configuration, warning, store, *_ = ended.stdout.splitlines()
    assert configuration == "configuration  ok: ranker"
    assert warning.startswith("warning        experiments.ranker.decay: 60d leaves out")
    assert store.startswith("store          ok")
