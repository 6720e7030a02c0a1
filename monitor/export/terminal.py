"""The table in a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from monitor.export.presentation import count, decisions, notes, rows, unmatched_feedback
from monitor.summary import ExperimentSummary, Summary, iso

_PLAIN: Final = ("traffic", "feedback")
_MARK: Final = " *"
_WIDEST: Final = 10_000


def to_stdout(environ: Mapping[str, str]) -> Console:
    """Return what prints to stdout: as wide as a terminal or `COLUMNS`, and as wide as it takes where neither is."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in environ else _WIDEST)


def print_json(content: Mapping[str, Any]) -> None:
    """Print one JSON object to stdout."""
    sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def simple_table(*columns: str, left: Collection[str] = (), **options: Any) -> Table:
    """Return a table without a frame; the first column and those in `left` are aligned to the left.

    `options` are those of rich's `Table.add_column`, for all columns.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        table.add_column(Text(column), justify="right" if place and column not in left else "left", **options)
    return table


def render(summary: Summary, *, now_ms: int, events_per_second: float | None = None) -> RenderableType:
    """Return every experiment as a table, variants side by side."""
    parts: list[RenderableType] = []
    head = Text(f"as of {iso(summary.as_of_ms)}", style="dim")
    if events_per_second is not None:
        head.append(f"   {count(events_per_second)} events/s")
    parts.append(head)
    unmatched = unmatched_feedback(summary)
    if unmatched is not None:
        parts.append(Text(unmatched, style="yellow"))
    for experiment in summary.experiments.values():
        parts.append(_tables(experiment, now_ms))
        parts += [Text(each.sentence, style="bold") for each in decisions(experiment)]
        parts += [Text(note, style="dim") for note in notes(experiment)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _Fitting:
    """The first of several ways to show an experiment that fits, or the last."""

    ways: Sequence[Sequence[Table]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for tables in self.ways:
            width = max(console.measure(each, options=options.update(max_width=_WIDEST)).maximum for each in tables)
            if width <= options.max_width:
                break
        for table in tables:
            yield from console.render(table, options.update(width=width, max_width=width))


def _tables(experiment: ExperimentSummary, now_ms: int) -> _Fitting:
    """Return all variants side by side, with details of fewer and fewer, and each treatment beside the control."""
    names = [name for name, _ in experiment.ordered()]
    pairs = [[names[0], name] for name in names[1:]] or [names]
    return _Fitting(
        [
            [_table(experiment, now_ms, names, detailed=names)],
            [_table(experiment, now_ms, names, detailed=names[1:])],
            [_table(experiment, now_ms, names, detailed=())],
            [_table(experiment, now_ms, pair, detailed=()) for pair in pairs],
        ]
    )


def _table(experiment: ExperimentSummary, now_ms: int, names: Collection[str], *, detailed: Collection[str]) -> Table:
    table = Table(title=Text(experiment.name, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    found = rows(experiment, now_ms)
    longest = max((len(row.group) for row in found if row.group not in _PLAIN), default=0) + len(_MARK)
    table.add_column("", no_wrap=True)
    order = [name for name, _ in experiment.ordered()]
    for name in names:
        role = " (control)" if name == experiment.control else ""
        table.add_column(Text(name + role, style="dim" if role else "bold"), justify="right", no_wrap=True)
        if name in detailed:
            table.add_column("", style="dim", no_wrap=True)
    last = ""
    for row in found:
        fresh = row.group != last
        if fresh and last:
            table.add_section()
        last = row.group
        style = "bold" if row.primary else ""
        label = row.label
        if row.group not in _PLAIN:
            label = f"{row.group + _MARK * row.primary if fresh else '':{longest}}  {label}"
        cells: list[RenderableType] = [Text(label, style=style)]
        for name, value, detail in zip(order, row.values, row.details, strict=True):
            if name in names:
                cells += [Text(value, style=style), *([Text(detail)] if name in detailed else [])]
        table.add_row(*cells)
    if any(row.primary for row in found):
        table.caption = "* primary metric"
        table.caption_justify = "left"
    return table
