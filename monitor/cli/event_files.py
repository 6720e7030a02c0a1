"""Files of events that several commands read."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from monitor.config import Settings
from monitor.decoding import RecordDecoder
from monitor.errors import UsageError
from monitor.export import DataConsole, stderr_console
from monitor.sources import EventFile, FileSource

EVENT_FILES_HELP: Final = (
    "files of JSON lines, may be compressed as .gz; - for stdin. TOPIC=FILE names the topic of a file's records, for "
    "configurations with [[kafka.sources]]"
)


@contextmanager
def open_event_files(
    arguments: Sequence[str], settings: Settings, console: DataConsole | None = None
) -> Iterator[FileSource]:
    """Yield a source of the events in JSON-lines files; rejected lines are reported on the console, default stderr.

    An argument is a path or `TOPIC=PATH`. At the end, the console gets the numbers of the rejected lines that were not
    reported one by one.
    """
    report_console = console or stderr_console(os.environ)
    source = FileSource(
        [_parse_argument(argument, settings) for argument in arguments],
        RecordDecoder(settings, reads_files=True),
        report=lambda line: report_console.print(line, soft_wrap=True),
    )
    try:
        yield source
    finally:
        source.report_rejected_totals()
        source.close()


def _parse_argument(argument: str, settings: Settings) -> EventFile:
    topic, separator, path = argument.partition("=")
    if separator and topic in settings.kafka.topics:
        return EventFile(path, topic)
    if separator and not Path(argument).exists():
        topics = ", ".join(settings.kafka.topics)
        raise UsageError(f"{argument}: neither a file, nor a file after one of the topics {topics}")
    return EventFile(argument)
