"""The systemd unit is one that systemd understands, and shuts the service in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from monitor.errors import ConfigError
from tests.servers.process import need

UNIT = Path(__file__).parents[3] / "deploy" / "systemd" / "ab-monitor.service"
TEXT = UNIT.read_text(encoding="utf-8")
PROGRAM = "/opt/ab-monitor/bin/ab-monitor"
MOST_EXPOSED = 15
"""In tenths, of systemd's own scale from 0 to 10; 20 is where “OK” ends."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that exists on this machine."""
    path = tmp_path / UNIT.name
    path.write_text(TEXT.replace(PROGRAM, sys.executable), encoding="utf-8")
    return path


def analysed(*arguments: str) -> str:
    """Return what systemd-analyze has to say against the unit: nothing if all is well.

    It also reads units of the machine, and complains of those.
    """
    command = [need("systemd-analyze", "systemd"), "--no-pager", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stderr if done.returncode == 0 else done.stdout + done.stderr
    return "\n".join(line for line in said.splitlines() if UNIT.name in line)


def test_every_line_is_understood(unit: Path) -> None:
    """Unknown directives and values would be ignored with a line in the journal."""
    assert analysed("verify", str(unit)) == ""
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectHome=yes", "ProtectHomes=yes"), encoding="utf-8")
    assert "ProtectHomes" in analysed("verify", str(unit))


def test_little_is_exposed(unit: Path) -> None:
    """By systemd's own judgement."""
    assert analysed("security", "--offline=true", f"--threshold={MOST_EXPOSED}", str(unit)) == ""


def test_what_waiting_does_not_mend_is_not_restarted() -> None:
    """The exit code of a wrong configuration."""
    assert f"RestartPreventExitStatus={ConfigError.exit_code}\n" in TEXT
    assert "Restart=on-failure\n" in TEXT


def test_it_starts_the_service_with_the_documented_file() -> None:
    """The same place as in the image."""
    assert f"ExecStart={PROGRAM} run --config /etc/ab-monitor/config.toml\n" in TEXT
