"""Settings of a measurement, and the resources that a process has used."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Final

from monitor.config import Settings, load_settings

_TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")


def settings_from(text: str) -> Settings:
    """Return the settings of a configuration file's text."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config.toml"
        path.write_text(text)
        return load_settings(path, {})


def cpu_s(pid: int) -> float:
    """Return the CPU-seconds of a process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def peak_mb(pid: int) -> float:
    """Return the largest resident memory that a process has had, in MB."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else 0.0
