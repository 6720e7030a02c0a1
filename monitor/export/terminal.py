"""Output of the commands: tables of experiments and verdicts for a terminal, JSON, and exit codes of verdicts."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich import box
from rich.console import Console, ConsoleOptions, Group, OverflowMethod, RenderableType, RenderResult
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from monitor.analysis import ExperimentSummary, StoreSummary, SubgroupEffects, VerdictHistory
from monitor.config import NO_TEXTS, DisplayTexts
from monitor.errors import escape_controls, escape_lines
from monitor.export.headline import Headline, describe_headlines
from monitor.export.health import ServiceHealth, arrival_rows, health_facts
from monitor.export.plan_tables import PlanTexts
from monitor.export.presentation import (
    ABSENT_TEXT,
    UNDECLARED_COLUMNS,
    describe_archiving,
    describe_as_of,
    describe_changes,
    describe_closing,
    describe_effect,
    describe_first_decision,
    describe_history,
    describe_unmatched_feedback,
    experiment_footnotes,
    experiment_table_rows,
    format_count,
    format_optional_difference,
    format_optional_mean,
    format_percent,
    format_time,
    undeclared_notes,
    undeclared_rows,
)
from monitor.stats import Estimand, VariantComparison, Verdict, VerdictState, describe_guardrail

_INDENT: Final = "  "
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
_ESTIMANDS: Final[Mapping[Estimand, str]] = {"closed": "complete students", "live": "all, approximate"}
_LEGEND: Final = (
    "complete students: students whose first days and feedback window are over; the verdict uses only them. "
    "Their means are means of students. all, approximate: means over all responses so far, with an approximate "
    "interval. The interval is the confidence sequence of the effect."
)


class DataConsole(Console):
    """A console that prints strings as data: brackets are no markup, and control characters become escapes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            # A line feed separates the lines of the layout. The text of a control segment is rich's own.
            yield segment if segment.control else segment._replace(text=escape_lines(segment.text))


def stdout_console(environ: Mapping[str, str]) -> DataConsole:
    """Return a console for stdout, as wide as the terminal or `COLUMNS`; without both, lines are not wrapped."""
    return DataConsole(width=None if sys.stdout.isatty() or "COLUMNS" in environ else _MAX_WIDTH)


def stderr_console(environ: Mapping[str, str]) -> DataConsole:
    """Return a console for stderr, as wide as the terminal or `COLUMNS`; without both, lines are not wrapped."""
    width = None if sys.stderr.isatty() or "COLUMNS" in environ else _MAX_WIDTH
    return DataConsole(stderr=True, width=width)


def id_text(text: str, style: str = "") -> Text:
    """Return an id or a name on one line, with control characters as escapes; producers choose ids freely."""
    return Text(escape_controls(text), style)


def print_json(content: Mapping[str, Any]) -> None:
    """Print a JSON object to stdout, with indentation; characters that stdout cannot show are JSON escapes."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(content, indent=1, ensure_ascii=not is_unicode, allow_nan=False)
    sys.stdout.write(escape_lines(text) + "\n")


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


def render_health(health: ServiceHealth) -> RenderableType:
    """Return what is wrong, a table of the arriving events by topic, and facts about the service."""
    conditions = [Text(sentence, style="yellow") for sentence in health.conditions()]
    parts: list[RenderableType] = list(conditions) or [Text("nothing is wrong", style="dim")]
    for title, arrivals in (("last hour", health.last_hour), ("last 24 hours", health.last_day)):
        table = simple_table(title, *arrivals)
        for label, texts in arrival_rows(arrivals):
            table.add_row(*map(Text, (label, *texts)))
        parts.append(table if arrivals else Text(f"{title}: no message has arrived", style="dim"))
    parts += [Text(f"{label}: {text}") for label, text in health_facts(health)]
    return Group(*parts)


def render_plan(texts: PlanTexts) -> RenderableType:
    """Return the answers, the values, the tables and the notes of a plan."""
    facts = Table(box=None, show_header=False, pad_edge=False)
    for label, text in texts.facts:
        facts.add_row(Text(label, style="dim"), Text(text))
    parts: list[RenderableType] = [Text(texts.title, style="bold"), *(Text(sentence) for sentence in texts.answers)]
    parts += [Text(), facts]
    for plan_table in texts.tables:
        table = simple_table(*plan_table.columns)
        for row in plan_table.rows:
            table.add_row(*map(Text, row))
        parts += [Text(), Text(plan_table.heading, style="bold"), table]
    parts += [Text(f"- {note}", style="dim") for note in texts.notes]
    return Group(*parts)


def render_summary(
    summary: StoreSummary, *, now_ms: int, events_per_second: float | None = None, conditions: Sequence[str] = ()
) -> RenderableType:
    """Return a table of each experiment, followed by decisions and footnotes; `conditions` are printed first."""
    parts: list[RenderableType] = []
    head = Text(describe_as_of(summary, now_ms), style="dim")
    if events_per_second is not None:
        head.append(f"   {format_count(events_per_second)} events per second")
    parts.append(head)
    parts += [Text(sentence, style="yellow") for sentence in conditions]
    unmatched_feedback = describe_unmatched_feedback(summary)
    if unmatched_feedback is not None:
        parts.append(Text(unmatched_feedback, style="yellow"))
    is_single = len(summary.experiments) == 1
    for experiment in summary.experiments.values() if is_single else summary.running_experiments:
        parts.append(Text(experiment.name, style="bold"))
        for headline in describe_headlines(experiment):
            parts += _headline_lines(headline)
        parts += [Text(sentence, style="yellow") for sentence in describe_changes(experiment)]
        parts.append(_experiment_layouts(experiment, now_ms))
        parts += [Text(footnote, style="dim") for footnote in experiment_footnotes(experiment, now_ms)]
    parts += [_archived_line(experiment) for experiment in summary.archived_experiments]
    parts += _undeclared_parts(summary)
    return Group(*parts)


def _archived_line(experiment: ExperimentSummary) -> Text:
    """Return the line of an archived experiment: its name, its verdicts and the time of archiving."""
    states = [f"{_headline_title(headline)}." for headline in describe_headlines(experiment)]
    return Text(" ".join([f"{experiment.name}:", *states, describe_archiving(experiment) or ""]), style="dim")


def _headline_title(headline: Headline) -> str:
    """Return the treatment with its state and the judged effect."""
    effect = "" if headline.effect is None else f": {headline.effect}"
    return f"{headline.label} – {headline.title}{effect}"


def _headline_lines(headline: Headline) -> Iterator[Text]:
    """Yield the title, and the lines on what is known, what blocks shipping, and what comes next."""
    yield Text(_headline_title(headline), style="bold")
    lines = ("Known", headline.finding), ("Blocking", headline.obstacle), ("Next", headline.next_step)
    yield from (Text(f"  {label}: {text}") for label, text in lines if text is not None)


def _undeclared_parts(summary: StoreSummary) -> list[RenderableType]:
    """Return a table of the undeclared experiments, and notes; nothing without such experiments."""
    parts: list[RenderableType] = [Text(note, style="yellow") for note in undeclared_notes(summary)]
    if summary.undeclared:
        table = simple_table(*UNDECLARED_COLUMNS, left_aligned=UNDECLARED_COLUMNS[2:], overflow="fold")
        for row in undeclared_rows(summary):
            table.add_row(*map(Text, row))
        parts.insert(0, table)
    return [Text("Not declared", style="bold"), *parts] if parts else []


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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    rows = experiment_table_rows(experiment, now_ms)
    table.add_column("", no_wrap=True)
    variants = [name for name, _ in experiment.variants_control_first()]
    for name in displayed_variants:
        is_control = name == experiment.control
        label = experiment.texts.variant_label(name)
        title = f"{label} (control)" if is_control and label != "control" else label
        table.add_column(Text(title, style="dim" if is_control else "bold"), justify="right", no_wrap=True)
        if name in detailed_variants:
            table.add_column("", style="dim", no_wrap=True)
    previous_group = ""
    for row in rows:
        style = "bold" if row.primary else ""
        if row.group != previous_group:
            if previous_group:
                table.add_section()
            if row.heading:
                table.add_row(Text(row.heading, style=style))
        previous_group = row.group
        label = f"{_INDENT}{row.label.removeprefix(row.heading).strip()}" if row.heading else row.label
        cells: list[RenderableType] = [Text(label, style=style)]
        for name, value, detail in zip(variants, row.values, row.details, strict=True):
            if name in displayed_variants:
                cells += [Text(value, style=style), *([Text(detail)] if name in detailed_variants else [])]
        table.add_row(*cells)
    return table


def render_verdicts(
    experiment: ExperimentSummary, verdict_history: VerdictHistory, unusual_days: Sequence[str] = ()
) -> RenderableType:
    """Return the verdicts on the treatments of `verdict_history` with reasons, notes, numbers and history.

    `unusual_days` are sentences on days whose means left their band; they are printed first.
    """
    analysis = experiment.analysis
    if analysis is None:
        return Text("")
    parts: list[RenderableType] = [Text(f"{experiment.name}, {_format_as_of(analysis.as_of_ms)}", style="dim")]
    sentences = (describe_archiving(experiment), describe_closing(experiment))
    parts += [Text(sentence, style="dim") for sentence in sentences if sentence is not None]
    parts += [Text(sentence, style="yellow") for sentence in unusual_days]
    headlines = {headline.treatment: headline for headline in describe_headlines(experiment)}
    for name, verdict in analysis.verdicts.items():
        if name in verdict_history:
            parts += _headline_lines(headlines[name])
            parts += [Text(f"  {line}") for line in _verdict_lines(experiment, name, verdict, headlines[name].obstacle)]
            periods = verdict_history[name]
            sentences = (describe_history(periods, verdict.state), describe_first_decision(periods, verdict))
            parts += [Text(f"  {sentence}") for sentence in sentences if sentence is not None]
            parts.append(_comparison_table(experiment, name, analysis.comparisons[name]))
            parts += [Text(f"  {line}") for line in _subgroup_lines(experiment, analysis.subgroup_effects[name])]
    return Group(*parts, Text(_LEGEND, style="dim"))


def _comparison_table(
    experiment: ExperimentSummary, treatment: str, comparisons: Mapping[str, Mapping[Estimand, VariantComparison]]
) -> RenderableType:
    texts = experiment.texts
    variants = [texts.variant_label(name) for name in (experiment.control, treatment)]
    table = simple_table("", *variants, "effect", "interval", "students", no_wrap=True)
    # A long label is wrapped, so that no number is cut.
    table.columns[0].no_wrap = False
    for name, by_estimand in comparisons.items():
        table.add_section()
        unit = texts.metric_text(name).unit
        title = texts.metric_title(name) + (f", {unit}" if unit else "")
        for estimand, comparison in by_estimand.items():
            arms = comparison.control, comparison.treatment
            table.add_row(
                Text(f"{title}  {_ESTIMANDS[estimand]}"),
                *[format_optional_mean(name, arm.mean) for arm in arms],
                format_optional_difference(name, comparison.difference.effect),
                _format_interval(name, comparison),
                " + ".join(format_count(arm.units) for arm in arms),
                style="" if estimand == "closed" else "dim",
            )
    return table


def _verdict_lines(
    experiment: ExperimentSummary, treatment: str, verdict: Verdict, obstacle: str | None
) -> Iterator[str]:
    """Yield lines on the effect, reasons, notes, guardrails, sample ratio, crossovers, and the state's name.

    Reasons in `obstacle` are left out, because the headline contains them.
    """
    effect = describe_effect(experiment.control, treatment, verdict)
    if effect is not None:
        yield effect
    sentences = [reason.text for reason in verdict.reasons]
    yield from (f"Reason: {sentence}" for sentence in sentences if sentence not in (obstacle or ""))
    notes = [note.text for note in verdict.notes]
    yield from (f"{'Warning' if note.is_warning else 'Note'}: {note.text}" for note in verdict.notes)
    guardrails = [describe_guardrail(result, experiment.texts) for result in verdict.guardrails]
    yield from (f"Guardrail: {sentence}" for sentence in guardrails if sentence not in {*sentences, *notes})
    ratio, evidence = verdict.sample_ratio, verdict.evidence
    max_deviation = max((phase.deviation for phase in ratio.phases), default=0.0)
    state = "not as intended" if ratio.alarm else "as intended"
    if ratio.phases:
        yield (
            f"Split of students: {state}; largest deviation {format_percent(max_deviation)}, p = {ratio.p:.2g} "
            f"(limit {ratio.alpha:g})."
        )
    yield (
        f"Students with more than one variant: {format_count(evidence.crossovers)} of "
        f"{format_count(evidence.students)}; they are not compared."
    )
    yield f"State in JSON and metrics: {verdict.state}"


def _format_as_of(at_ms: int) -> str:
    return f"as of {format_time(at_ms)}" if at_ms else "before the first event"


def _subgroup_lines(experiment: ExperimentSummary, effects: SubgroupEffects) -> Iterator[str]:
    """Yield a line with each shown effect within a subgroup, and a line with the names of the other subgroups."""
    metric, texts = experiment.primary, experiment.texts
    for title, segments in (
        ("First question in category", effects.segments),
        ("Days since the first response:", effects.exposure_ages),
    ):
        other_names = []
        for segment in segments:
            comparison = segment.comparison
            if segment.discovered:
                effect = format_optional_difference(metric, comparison.difference.effect, texts)
                bounds = _format_interval(metric, comparison, texts)
                yield f"{title} {segment.name}: effect {effect}, interval {bounds}; difference shown"
            elif comparison.lower is not None:
                other_names.append(segment.name)
        if other_names:
            yield f"{title} {', '.join(other_names)}: no difference shown, given the number of groups"


def _format_interval(metric: str, comparison: VariantComparison, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the bounds of a comparison with the metric's unit; a dash without bounds."""
    if comparison.lower is None or comparison.upper is None:
        return ABSENT_TEXT
    lower, upper = (format_optional_difference(metric, bound, texts) for bound in (comparison.lower, comparison.upper))
    return f"{lower.partition(' ')[0]} to {upper}"
