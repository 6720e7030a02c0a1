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
MAX_EXPOSURE = 15
"""In tenths, of systemd's own scale from 0 to 10; 20 is where “OK” ends."""


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """Return the unit with a program that exists on this machine."""
    path = tmp_path / UNIT.name
    path.write_text(TEXT.replace(PROGRAM, sys.executable), encoding="utf-8")
    return path


def analyze(*arguments: str) -> str:
    """Return the findings of systemd-analyze about the unit; empty if there are none.

    It also reads units of the machine, and complains of those.
    """
    command = [need("systemd-analyze", "systemd"), "--no-pager", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    output = result.stderr if result.returncode == 0 else result.stdout + result.stderr
    return "\n".join(line for line in output.splitlines() if UNIT.name in line)


def test_systemd_accepts_every_line_of_the_unit(unit: Path) -> None:
    """Unknown directives and values would be ignored with a line in the journal."""
    assert analyze("verify", str(unit)) == ""
    unit.write_text(unit.read_text(encoding="utf-8").replace("ProtectHome=yes", "ProtectHomes=yes"), encoding="utf-8")
    assert "ProtectHomes" in analyze("verify", str(unit))


def test_the_exposure_of_the_unit_is_low(unit: Path) -> None:
    """By systemd's own judgement."""
    assert analyze("security", "--offline=true", f"--threshold={MAX_EXPOSURE}", str(unit)) == ""


def test_a_wrong_configuration_is_not_restarted() -> None:
    """The exit code of a wrong configuration."""
    assert f"RestartPreventExitStatus={ConfigError.exit_code}\n" in TEXT
    assert "Restart=on-failure\n" in TEXT


def test_the_unit_uses_the_documented_configuration_file() -> None:
    """The same place as in the image."""
    assert f"ExecStart={PROGRAM} run --config /etc/ab-monitor/config.toml\n" in TEXT
