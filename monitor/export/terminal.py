"""The table in a terminal."""

from __future__ import annotations

from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.export.presentation import count, decisions, notes, rows
from monitor.summary import ExperimentSummary, Summary, iso

_PLAIN: Final = ("traffic", "feedback")
_MARK: Final = " *"


def render(summary: Summary, *, now_ms: int, events_per_second: float | None = None) -> RenderableType:
    """Return every experiment as a table, variants side by side."""
    parts: list[RenderableType] = []
    head = Text(f"as of {iso(summary.as_of_ms)}", style="dim")
    if events_per_second is not None:
        head.append(f"   {count(events_per_second)} events/s")
    parts.append(head)
    for experiment in summary.experiments.values():
        parts.append(_table(experiment, now_ms))
        parts += [Text(each.sentence, style="bold") for each in decisions(experiment)]
        parts += [Text(note, style="dim") for note in notes(experiment)]
    return Group(*parts)


def _table(experiment: ExperimentSummary, now_ms: int) -> Table:
    table = Table(title=Text(experiment.name, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    found = rows(experiment, now_ms)
    longest = max((len(row.group) for row in found if row.group not in _PLAIN), default=0) + len(_MARK)
    table.add_column("", no_wrap=True)
    for name, _ in experiment.ordered():
        role = " (control)" if name == experiment.control else ""
        table.add_column(Text(name + role, style="dim" if role else "bold"), justify="right")
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
        for value, detail in zip(row.values, row.details, strict=True):
            cells += [Text(value, style=style), Text(detail)]
        table.add_row(*cells)
    if any(row.primary for row in found):
        table.caption = "* primary metric"
        table.caption_justify = "left"
    return table
