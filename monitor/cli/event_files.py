"""Files of events that several commands read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from monitor.events import parse_timestamp_ms
from monitor.export import DataConsole, stderr_console
from monitor.sources import FileSource


@contextmanager
def open_event_files(paths: Sequence[str], console: DataConsole | None = None) -> Iterator[FileSource]:
    """Yield a source of the events in JSON-lines files; rejected lines are reported on the console, default stderr.

    At the end, the console gets the numbers of the rejected lines that were not reported one by one.
    """
    report_console = console or stderr_console(os.environ)
    source = FileSource(paths, parse_timestamp_ms, report=lambda line: report_console.print(line, soft_wrap=True))
    try:
        yield source
    finally:
        source.report_rejected_totals()
        source.close()
