"""The commands: each has a module with flags, and a command imports only its own module."""

from __future__ import annotations

import subprocess
import sys

import pytest

from monitor.cli.command_line import main


def test_the_help_of_all_commands_imports_no_command() -> None:
    """`ab-monitor --help` starts fast: no module of a command, of Kafka or of Redis is imported."""
    script = (
        "import sys\n"
        "from monitor.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "print(sorted({'numpy', 'kafka', 'redis', 'monitor.cli.run'} & sys.modules.keys()))\n"
    )
    output = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert "dead-letters" in output
    assert output.splitlines()[-1] == "[]"


def test_an_unknown_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the word and the commands that exist."""
    with pytest.raises(SystemExit) as exit_status:
        main(["statsu"])
    assert exit_status.value.code == 2
    message = capsys.readouterr().err
    assert "invalid choice: 'statsu'" in message
    assert "status" in message
