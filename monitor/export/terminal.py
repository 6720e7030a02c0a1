"""Tables in a terminal: experiments, and verdicts with their reasons and numbers."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from monitor.analysis import ExperimentSummary, Parts, Summary, iso
from monitor.config import LATENCY, is_share
from monitor.export.presentation import (
    ABSENT,
    count,
    decisions,
    notes,
    rows,
    sentence,
    share,
    unmatched_feedback,
)
from monitor.stats import Comparison, Estimand, GuardrailResult, State, Verdict

_PLAIN: Final = ("traffic", "feedback")
_MARK: Final = " *"
_WIDEST: Final = 10_000
EXIT_CODES: Final[Mapping[State, int]] = {
    "ship": 0,
    "non_inferior": 0,
    "continue": 10,
    "insufficient_data": 10,
    "stop_harm": 20,
    "invalid": 20,
    "futile": 20,
}
_ESTIMANDS: Final[Mapping[Estimand, str]] = {"closed": "closed", "live": "live ≈"}
_LEGEND: Final = "closed: students whose window is over, they decide; live ≈: all responses so far, approximate"


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


def render_verdicts(experiment: ExperimentSummary, *, only: str | None = None) -> RenderableType:
    """Return an experiment's verdicts, or only that of one treatment, with reasons and numbers."""
    judgement = experiment.judgement
    if judgement is None:
        return Text("")
    parts: list[RenderableType] = [Text(f"{experiment.name}, {_when(judgement.at_ms)}", style="dim")]
    for name, verdict in judgement.verdicts.items():
        if only in (None, name):
            parts.append(Text(sentence(name, verdict), style="bold"))
            parts += [Text(f"  because {reason.text}") for reason in verdict.reasons]
            parts += [Text(f"  note    {note.text}") for note in verdict.notes]
            parts.append(_comparisons(experiment.control, name, judgement.comparisons[name]))
            parts += [Text(f"  {line}") for line in _facts(verdict)]
            parts += [Text(f"  {line}") for line in _within(judgement.parts[name])]
    return Group(*parts, Text(_LEGEND, style="dim"))


def _comparisons(
    control: str, treatment: str, comparisons: Mapping[str, Mapping[Estimand, Comparison]]
) -> RenderableType:
    table = simple_table("", control, treatment, "effect", "between", "students", no_wrap=True)
    for name, both in comparisons.items():
        table.add_section()
        for estimand, each in both.items():
            arms = each.control, each.treatment
            table.add_row(
                Text(f"{name}  {_ESTIMANDS[estimand]}"),
                *[_number(arm.mean) for arm in arms],
                _signed(each.difference.effect),
                ABSENT if each.lower is None else f"{_signed(each.lower)} … {_signed(each.upper)}",
                " + ".join(count(arm.units) for arm in arms),
                style="" if estimand == "closed" else "dim",
            )
    return table


def _facts(verdict: Verdict) -> Iterator[str]:
    """Yield guardrails, sample ratio, crossovers and what is left to wait for, a line each."""
    for result in verdict.guardrails:
        yield _guardrail(result)
    ratio, evidence = verdict.sample_ratio, verdict.evidence
    off = max((phase.deviation for phase in ratio.phases), default=0.0)
    state = "an alarm" if ratio.alarm else "as intended"
    yield f"sample ratio: {state}; at most {share(off)} off, anytime p = {ratio.p:.2g}"
    yield f"crossovers: {count(evidence.crossovers)} of {count(evidence.students)} students, left out"
    if verdict.days_to_resolve is None:
        yield f"days until an effect of {evidence.criteria.mde:.4g} is resolved: not known"
    else:
        yield f"days until an effect of {evidence.criteria.mde:.4g} is resolved: {_whole(verdict.days_to_resolve)}"


def _when(at_ms: int) -> str:
    return f"as of {iso(at_ms)}" if at_ms else "before the first event"


def _whole(days: float) -> str:
    return f"{max(days, 1):.0f}" if days else "0"


def _within(parts: Parts) -> Iterator[str]:
    """Yield the effect within each part of the students that has an interval, a line each."""
    for title, found in (("first question in", parts.segments), ("days since first answer", parts.ages)):
        for each in found:
            if each.comparison.lower is not None:
                bounds = f"{_signed(each.comparison.lower)} … {_signed(each.comparison.upper)}"
                said = "shown" if each.discovered else "not shown"
                yield f"{title} {each.name}: {_signed(each.comparison.difference.effect)}, between {bounds}; {said}"


def _guardrail(result: GuardrailResult) -> str:
    rail = result.guardrail
    bounds = ABSENT
    if result.most_harm is not None:
        least = ABSENT if result.least_harm is None else _harm(rail.name, result.least_harm)
        bounds = f"{least} … {_harm(rail.name, result.most_harm)}"
    return f"guardrail {rail.name}: {result.state}; worse by {bounds}, tolerable is {_harm(rail.name, rail.margin)}"


def _harm(watched: str, value: float) -> str:
    """Return a difference in the unit of what is watched."""
    if is_share(watched):
        return f"{100 * value:+.2f} % of responses"
    return f"{value:+.0f} ms" if watched == LATENCY else _signed(value)


def _number(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.4f}"


def _signed(value: float | None) -> str:
    return ABSENT if value is None else f"{value:+.4f}"
