"""The command line of AB Monitor.

`command_line` lists the commands, parses arguments, runs a command, and maps errors to exit codes. Each command has a
module of its name with `add_arguments` and `run`. `command_io`, `event_files` and `signals` serve several commands.
`sample_tables` prints the report of `check --sample`.
`rebuild` has three more modules: `rebuild_backfill`, `rebuild_coverage` and `rebuild_comparison`.
"""

from __future__ import annotations

from monitor.cli.command_line import main

__all__ = ["main"]
