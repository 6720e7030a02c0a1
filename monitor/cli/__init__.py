"""The command line of AB Monitor.

`command_line` parses arguments, runs a command, and maps errors to exit codes; `_build_parser` registers each
command. Each command has a module of its name with `add_arguments` and `run`. `command_io` has the settings, event
files and outputs that several commands share. `rebuild` has three more modules: `rebuild_backfill`, `rebuild_coverage`
and `rebuild_comparison`.
"""

from __future__ import annotations

from monitor.cli.command_line import main

__all__ = ["main"]
