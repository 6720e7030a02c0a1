"""Sources of the events in files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from monitor.config import Settings
from monitor.decoding import RecordDecoder
from monitor.sources import EventFile, FileSource


def file_source(
    paths: Sequence[str | Path], *, report: Callable[[str], None] = print, settings: Settings | None = None
) -> FileSource:
    """Return a source of the events in files, in the native format without settings."""
    return FileSource([EventFile(str(path)) for path in paths], RecordDecoder(settings or Settings(())), report=report)
