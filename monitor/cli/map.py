"""`ab-monitor map`: show the events that one message becomes, and the path of each field."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from monitor.analysis import format_timestamp
from monitor.clock import wall_clock
from monitor.config import (
    EventType,
    Settings,
    SourceSettings,
    event_fields,
    parse_choice,
)
from monitor.decoding import RecordDecoder, RecordTrace, RecordTracer, event_json, find_undeclared_name
from monitor.engine import ExclusionRules
from monitor.errors import InputRejected, UsageError, setting_text
from monitor.events import REJECTION_REASONS, Response
from monitor.export import DataConsole, id_text, simple_table, stdout_console
from monitor.sources import PlainRecord

IGNORED_EXIT_CODE: Final = 7
"""Exit code for a message that is neither an event nor rejected."""
_IGNORED_TEXTS: Final = {
    "tombstone": "a tombstone: the message is a deletion",
    "filtered": "by the filters (key when)",
    "no_elements": "the list `each` has no element that passes the filters",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("--topic", metavar="T", help="topic of the message (all sources are tried)")
    parser.add_argument(
        "--header", metavar="NAME=VALUE", action="append", default=[], help="a header of the message; repeatable"
    )
    parser.add_argument("--key", metavar="K", help="key of the message")
    parser.add_argument("--timestamp", type=int, metavar="MS", help="Kafka's time of the message in ms (now)")


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What a source makes of the message."""

    source: SourceSettings
    key: str
    """Key of the source in the configuration."""
    trace: RecordTrace


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the outcome of each source; return 0 with an event, and 7 if the message is ignored.

    Raises `InputRejected` if the message is rejected.
    """
    kafka = settings.kafka
    if arguments.topic is not None and arguments.topic not in kafka.topics:
        parse_choice("--topic", arguments.topic, kafka.topics)
    headers = [_parse_header(text) for text in arguments.header]
    decoder = RecordDecoder(settings)
    now_ms = wall_clock()
    record = PlainRecord(
        0,
        None if arguments.key is None else arguments.key.encode(),
        _read_message(),
        now_ms if arguments.timestamp is None else arguments.timestamp,
        headers,
    )
    outcomes = []
    for index, source in enumerate(decoder.sources):
        if arguments.topic in (None, *source.settings.topics):
            topic = arguments.topic or source.settings.topics[0]
            trace = RecordTracer(source, decoder).trace(record, topic, f"{topic}:0", now_ms)
            key = f"kafka.sources[{index}]" if kafka.sources else f"native {source.settings.event_type}"
            outcomes.append(_Outcome(source.settings, key, trace))
    console = stdout_console(os.environ)
    for outcome in outcomes:
        _print_outcome(console, outcome, settings)
    return _exit_code(outcomes, is_any_topic=arguments.topic is None)


def _exit_code(outcomes: Sequence[_Outcome], *, is_any_topic: bool) -> int:
    """Return the exit code; raises `InputRejected`.

    The sources of a topic all read the message, and reject it together. Without a topic, one accepting source is
    enough.
    """
    has_events = any(outcome.trace.events for outcome in outcomes)
    rejections = [outcome for outcome in outcomes if outcome.trace.rejection is not None]
    if rejections and not (has_events and is_any_topic):
        names = " and ".join(outcome.key for outcome in rejections)
        also = ", although another source of the topic accepts it" if has_events else ""
        raise InputRejected(f"the message is rejected by {names}{also}. Compare the paths above with the message")
    return 0 if has_events else IGNORED_EXIT_CODE


def _parse_header(text: str) -> tuple[str, bytes]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise UsageError(f"--header: got {setting_text(text)}, expected NAME=VALUE")
    return name, value.encode()


def _read_message() -> bytes:
    if sys.stdin.isatty():
        print("reading one message from the terminal; Ctrl-D ends it", file=sys.stderr)
    value = sys.stdin.buffer.read()
    if not value.strip():
        raise UsageError("stdin: empty, expected the value of one message, as in: ab-monitor map … < message.json")
    if value.startswith(b"{"):
        lines = value.strip().splitlines()
        if len(lines) > 1 and lines[0].rstrip().endswith(b"}") and lines[1].startswith(b"{"):
            raise UsageError(f"stdin: {len(lines)} lines with an object each, expected one message: use head -n 1")
    return value


def _print_outcome(console: DataConsole, outcome: _Outcome, settings: Settings) -> None:
    trace, source = outcome.trace, outcome.source
    console.print(Text(f"{outcome.key}: {source.event_type} of {', '.join(source.topics)}", style="bold"))
    console.print(f"framing   {trace.framing}")
    if trace.rejection is not None:
        rejection = trace.rejection
        console.print(f"rejected  {rejection.reason}: {REJECTION_REASONS[rejection.reason]}")
        console.print(f"detail    {rejection.detail}")
        console.print(f"path      {rejection.path or 'the whole message'}")
        console.print(f"shape     {rejection.shape}")
    elif trace.ignored_reason is not None:
        reason = _IGNORED_TEXTS[trace.ignored_reason]
        if trace.failed_filter is not None:
            reason = f"by the filter on {trace.failed_filter} (key when)"
        console.print(f"ignored   {reason}")
    for event in trace.events:
        if isinstance(event, Response):
            undeclared = find_undeclared_name(event.experiment, event.variant, settings.experiments)
            if undeclared is not None:
                console.print(f"warning   the service skips the event: {undeclared}")
            experiment = next((each for each in settings.experiments if each.name == event.experiment), None)
            if event.is_excluded or (experiment is not None and ExclusionRules(experiment.exclude).match(event)):
                console.print("excluded  a rule of exclude matches: the response is counted, but not compared")
        content = event_json(event, format_timestamp(event.timestamp_ms))
        console.print(f"event     {json.dumps(content, ensure_ascii=False)}")
    if trace.origins and trace.ignored_reason is None:
        # Every element of `each` has the same mapping: the paths of the first are enough.
        console.print(_build_table(trace.origins[0], source.event_type))
    console.print()


def _build_table(origins: Mapping[str, str | None], event_type: EventType) -> Table:
    """Return a table of the fields and the paths of their values."""
    required, optional = event_fields(event_type)
    table = simple_table("field", "path of the value", left_aligned=("path of the value",), overflow="fold")
    for field in (*required, *optional):
        if field in origins:
            absence = "no value, but required" if field in required else "no value"
            table.add_row(field, id_text(origins[field] or absence))
    for field, path in origins.items():
        if field not in (*required, *optional):
            table.add_row(field, id_text(path or "no value"))
    unmapped = [field for field in optional if field not in origins]
    if unmapped:
        table.add_row("not mapped", ", ".join(unmapped))
    return table
