"""The commands of `ab-monitor`, one module each; `command_line` parses arguments and maps errors to exit codes."""

from __future__ import annotations

from monitor.cli.command_line import main

__all__ = ["main"]
