"""`ab-monitor replay`: apply events from files of JSON lines to the store, through the pipeline of the service."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from monitor.app import create_worker, open_writable_store
from monitor.cli.event_files import EVENT_FILES_HELP, open_event_files
from monitor.cli.signals import stop_on_signals
from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.errors import SIGNAL_EXIT_CODE_BASE, InputRejected, count_noun
from monitor.export import render_summary, stderr_console, stdout_console
from monitor.offline import describe_undeclared_names
from monitor.pipeline import Telemetry
from monitor.sources import FileSource

_REMEDY: Final = "Correct the lines, then run the command again; docs/events.md has the format"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument(
        "events",
        nargs="+",
        metavar="EVENTS",
        help=EVENT_FILES_HELP,
    )


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Apply the events of the files to the store, print a summary, and return the exit code.

    Raises `InputRejected` if the share of rejected lines exceeds `limits.max_rejected_share`.
    """
    console = stderr_console(os.environ)
    telemetry = Telemetry()
    with ExitStack() as stack:
        store = stack.enter_context(open_writable_store(settings, wall_clock))
        source = stack.enter_context(open_event_files(arguments.events, settings, console))
        topics = {"response": "file", "feedback": "file"}
        worker = create_worker(settings, store, source, telemetry, topics, wall_clock)
        signals = stack.enter_context(stop_on_signals(worker.stop))
        with _FileProgress(source, console):
            try:
                worker.run()
            except InputRejected as error:
                raise InputRejected(f"{error}. {_REMEDY}") from error
        source.report_rejected_totals()
        for sentence in describe_undeclared_names(source.name_counts, settings):
            source.report(sentence)
        line_count, rejected_count = worker.processed_records, source.rejected_count
        outcome_counts = sorted(telemetry.outcome_totals().items())
        outcomes = ", ".join(f"{outcome} {count}" for outcome, count in outcome_counts if count) or "nothing new"
        end_state = "replayed" if source.is_exhausted() else "stopped; the same command continues from here. So far"
        console.print(f"{end_state}: {count_noun(line_count, 'line')}: {outcomes}")
        stdout_console(os.environ).print(render_summary(store.reader.read_summary(), now_ms=wall_clock()))
        if rejected_count > settings.limits.max_rejected_share * max(line_count, 1):
            raise InputRejected(
                f"{rejected_count} of {count_noun(line_count, 'line')} rejected "
                f"(limits.max_rejected_share = {settings.limits.max_rejected_share}), and not applied. {_REMEDY}"
            )
    return 0 if source.is_exhausted() or not signals else SIGNAL_EXIT_CODE_BASE + signals[0]


class _FileProgress(Progress):
    """A progress bar of the bytes read from the files; shown on a terminal only."""

    def __init__(self, source: FileSource, console: Console) -> None:
        self._source = source
        columns = (TextColumn("replay"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        is_visible = console.is_terminal and source.total_bytes > 0
        super().__init__(*columns, console=console, transient=True, disable=not is_visible)
        self.add_task("replay", total=source.total_bytes)

    def get_renderables(self) -> Iterable[RenderableType]:
        for task in self.task_ids:
            self.update(task, completed=self._source.bytes_read())
        return super().get_renderables()
