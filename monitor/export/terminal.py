"""Output of the commands: tables of experiments and verdicts for a terminal, JSON, and exit codes of verdicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from monitor.analysis import ExperimentSummary, StoreSummary, SubgroupEffects, format_timestamp
from monitor.config import LATENCY_METRIC, is_proportion
from monitor.export.presentation import (
    ABSENT_TEXT,
    describe_decisions,
    describe_unmatched_feedback,
    describe_verdict,
    experiment_footnotes,
    experiment_table_rows,
    format_count,
    format_percent,
)
from monitor.stats import Estimand, GuardrailResult, VariantComparison, Verdict, VerdictState

_UNTITLED_GROUPS: Final = ("traffic", "feedback")
_PRIMARY_MARK: Final = " *"
_MAX_WIDTH: Final = 10_000
VERDICT_EXIT_CODES: Final[Mapping[VerdictState, int]] = {
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


def stdout_console(environ: Mapping[str, str]) -> Console:
    """Return a console for stdout, as wide as the terminal or `COLUMNS`; without both, lines are not wrapped."""
    return Console(width=None if sys.stdout.isatty() or "COLUMNS" in environ else _MAX_WIDTH)


def print_json(content: Mapping[str, Any]) -> None:
    """Print a JSON object to stdout, with indentation."""
    sys.stdout.write(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def simple_table(
    *columns: str, left_aligned: Collection[str] = (), no_wrap: bool = False, overflow: OverflowMethod = "ellipsis"
) -> Table:
    """Return a table without a frame; the first column and the columns in `left_aligned` are aligned to the left.

    `no_wrap` and `overflow` of rich's `Table.add_column` hold for every column.
    """
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for index, column in enumerate(columns):
        justify: Literal["left", "right"] = "right" if index and column not in left_aligned else "left"
        table.add_column(Text(column), justify=justify, no_wrap=no_wrap, overflow=overflow)
    return table


def render_summary(summary: StoreSummary, *, now_ms: int, events_per_second: float | None = None) -> RenderableType:
    """Return a table of each experiment, followed by decisions and footnotes."""
    parts: list[RenderableType] = []
    head = Text(f"as of {format_timestamp(summary.as_of_ms)}", style="dim")
    if events_per_second is not None:
        head.append(f"   {format_count(events_per_second)} events/s")
    parts.append(head)
    unmatched = describe_unmatched_feedback(summary)
    if unmatched is not None:
        parts.append(Text(unmatched, style="yellow"))
    for experiment in summary.experiments.values():
        parts.append(_experiment_layouts(experiment, now_ms))
        parts += [Text(decision.sentence, style="bold") for decision in describe_decisions(experiment)]
        parts += [Text(footnote, style="dim") for footnote in experiment_footnotes(experiment)]
    return Group(*parts)


@dataclass(frozen=True, slots=True)
class _FirstFittingLayout:
    """A renderable that prints the first layout that fits into the console, else the last layout."""

    layouts: Sequence[Sequence[Table]]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for tables in self.layouts:
            unlimited = options.update(max_width=_MAX_WIDTH)
            width = max(console.measure(table, options=unlimited).maximum for table in tables)
            if width <= options.max_width:
                break
        for table in tables:
            yield from console.render(table, options.update(width=width, max_width=width))


def _experiment_layouts(experiment: ExperimentSummary, now_ms: int) -> _FirstFittingLayout:
    """Return the layouts of an experiment by falling width.

    All variants side by side, with the details of all variants, of the treatments, or of none; then one table per
    treatment beside the control.
    """
    names = [name for name, _ in experiment.variants_control_first()]
    pairs = [[names[0], name] for name in names[1:]] or [names]
    return _FirstFittingLayout(
        [
            [_experiment_table(experiment, now_ms, names, detailed_variants=names)],
            [_experiment_table(experiment, now_ms, names, detailed_variants=names[1:])],
            [_experiment_table(experiment, now_ms, names, detailed_variants=())],
            [_experiment_table(experiment, now_ms, pair, detailed_variants=()) for pair in pairs],
        ]
    )


def _experiment_table(
    experiment: ExperimentSummary,
    now_ms: int,
    displayed_variants: Collection[str],
    *,
    detailed_variants: Collection[str],
) -> Table:
    table = Table(title=Text(experiment.name, style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    rows = experiment_table_rows(experiment, now_ms)
    group_width = max((len(row.group) for row in rows if row.group not in _UNTITLED_GROUPS), default=0)
    group_width += len(_PRIMARY_MARK)
    table.add_column("", no_wrap=True)
    variants = [name for name, _ in experiment.variants_control_first()]
    for name in displayed_variants:
        role = " (control)" if name == experiment.control else ""
        table.add_column(Text(name + role, style="dim" if role else "bold"), justify="right", no_wrap=True)
        if name in detailed_variants:
            table.add_column("", style="dim", no_wrap=True)
    previous_group = ""
    for row in rows:
        is_first_of_group = row.group != previous_group
        if is_first_of_group and previous_group:
            table.add_section()
        previous_group = row.group
        style = "bold" if row.primary else ""
        label = row.label
        if row.group not in _UNTITLED_GROUPS:
            title = row.group + _PRIMARY_MARK * row.primary if is_first_of_group else ""
            label = f"{title:{group_width}}  {label}"
        cells: list[RenderableType] = [Text(label, style=style)]
        for name, value, detail in zip(variants, row.values, row.details, strict=True):
            if name in displayed_variants:
                cells += [Text(value, style=style), *([Text(detail)] if name in detailed_variants else [])]
        table.add_row(*cells)
    if any(row.primary for row in rows):
        table.caption = "* primary metric"
        table.caption_justify = "left"
    return table


def render_verdicts(experiment: ExperimentSummary, *, treatment: str | None = None) -> RenderableType:
    """Return the verdicts on all treatments, or on `treatment` alone, with their reasons, notes and numbers."""
    analysis = experiment.analysis
    if analysis is None:
        return Text("")
    parts: list[RenderableType] = [Text(f"{experiment.name}, {_format_as_of(analysis.as_of_ms)}", style="dim")]
    for name, verdict in analysis.verdicts.items():
        if treatment in (None, name):
            parts.append(Text(describe_verdict(name, verdict), style="bold"))
            parts += [Text(f"  because {reason.text}") for reason in verdict.reasons]
            parts += [Text(f"  note    {note.text}") for note in verdict.notes]
            parts.append(_comparison_table(experiment.control, name, analysis.comparisons[name]))
            parts += [Text(f"  {line}") for line in _verdict_lines(verdict)]
            parts += [Text(f"  {line}") for line in _subgroup_lines(analysis.subgroup_effects[name])]
    return Group(*parts, Text(_LEGEND, style="dim"))


def _comparison_table(
    control: str, treatment: str, comparisons: Mapping[str, Mapping[Estimand, VariantComparison]]
) -> RenderableType:
    table = simple_table("", control, treatment, "effect", "between", "students", no_wrap=True)
    for name, by_estimand in comparisons.items():
        table.add_section()
        for estimand, comparison in by_estimand.items():
            arms = comparison.control, comparison.treatment
            table.add_row(
                Text(f"{name}  {_ESTIMANDS[estimand]}"),
                *[_format_mean(arm.mean) for arm in arms],
                _format_difference(comparison.difference.effect),
                ABSENT_TEXT
                if comparison.lower is None
                else f"{_format_difference(comparison.lower)} … {_format_difference(comparison.upper)}",
                " + ".join(format_count(arm.units) for arm in arms),
                style="" if estimand == "closed" else "dim",
            )
    return table


def _verdict_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a line for each guardrail, then lines on the sample ratio, the crossovers and the days to resolve."""
    for result in verdict.guardrails:
        yield _format_guardrail(result)
    ratio, evidence = verdict.sample_ratio, verdict.evidence
    max_deviation = max((phase.deviation for phase in ratio.phases), default=0.0)
    state = "an alarm" if ratio.alarm else "as intended"
    yield f"sample ratio: {state}; at most {format_percent(max_deviation)} off, anytime p = {ratio.p:.2g}"
    yield f"crossovers: {format_count(evidence.crossovers)} of {format_count(evidence.students)} students, left out"
    days = "not known" if verdict.days_to_resolve is None else _format_days(verdict.days_to_resolve)
    yield f"days until an effect of {evidence.criteria.mde:.4g} is resolved: {days}"


def _format_as_of(at_ms: int) -> str:
    return f"as of {format_timestamp(at_ms)}" if at_ms else "before the first event"


def _format_days(days: float) -> str:
    return f"{max(days, 1):.0f}" if days else "0"


def _subgroup_lines(effects: SubgroupEffects) -> Iterator[str]:
    """Yield a line with the effect within each subgroup that has an interval."""
    for title, segments in (
        ("first question in", effects.segments),
        ("days since first answer", effects.exposure_ages),
    ):
        for segment in segments:
            comparison = segment.comparison
            if comparison.lower is not None:
                effect = _format_difference(comparison.difference.effect)
                bounds = f"{_format_difference(comparison.lower)} … {_format_difference(comparison.upper)}"
                significance = "shown" if segment.discovered else "not shown"
                yield f"{title} {segment.name}: {effect}, between {bounds}; {significance}"


def _format_guardrail(result: GuardrailResult) -> str:
    name, margin = result.guardrail.name, result.guardrail.margin
    bounds = ABSENT_TEXT
    if result.most_harm is not None:
        lower = ABSENT_TEXT if result.least_harm is None else _format_harm(name, result.least_harm)
        bounds = f"{lower} … {_format_harm(name, result.most_harm)}"
    return f"guardrail {name}: {result.state}; worse by {bounds}, tolerable is {_format_harm(name, margin)}"


def _format_harm(quantity: str, value: float) -> str:
    """Return a difference in the unit of the guardrail's quantity: percentage points, ms, or the metric's own."""
    if is_proportion(quantity):
        return f"{100 * value:+.2f} % of responses"
    return f"{value:+.0f} ms" if quantity == LATENCY_METRIC else _format_difference(value)


def _format_mean(value: float | None) -> str:
    return ABSENT_TEXT if value is None else f"{value:.4f}"


def _format_difference(value: float | None) -> str:
    return ABSENT_TEXT if value is None else f"{value:+.4f}"
