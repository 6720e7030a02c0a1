"""The results of an offline evaluation as tables in a terminal, as CSV, and as a self-contained HTML file."""

from __future__ import annotations

import csv
import io
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.errors import escape_controls
from monitor.export import ABSENT_TEXT, format_count, format_counted, format_optional_mean, id_text
from monitor.offline import Evaluation, MeanScore, MetricDefinition, PairedTest
from monitor.web.chart_specs import ChartSpec, ForestRow, ValueRow, forest_plot_spec, value_bars_spec
from monitor.web.pages import load_template
from monitor.web.standalone import standalone_context

CSV_HEADER: Final = (
    "experiment", "level", "query_id", "rater", "variant", "measure", "k", "gain", "discount", "ideal", "value",
    "count", "undefined",
)  # fmt: skip
COMPARISON_FOOTNOTES: Final = (
    "Means over the queries of both variants; a query's value is the mean over its raters. p: paired t-test.",
    "Rows differ in metric, gain, discount and ideal. Choose one before you look; the others are sensitivity checks.",
)
_MAX_QUERIES: Final = 500
_MAX_DRAWN_QUERIES: Final = 40
_MAX_RATER_CIRCLES: Final = 20
_GAIN_MEASURES: Final = ("cg", "dcg")
"""Measures in the unit of the gain; all other measures are between 0 and 1."""
_BAR_CHARACTERS: Final = 24
_NUMBER_CHARACTERS: Final = 7
"""Width of a number in a terminal."""
_MIN_WIDTH_FOR_INTERVALS: Final = 110
"""In a terminal with fewer characters per line, the comparisons are printed without intervals."""
_TWO_DIGITS_FROM: Final = 10
_FORMULA_CHARACTERS: Final = ("=", "+", "-", "@")
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_SMALLEST_DISPLAYED_P: Final = 0.00005


def format_value(value: float | None) -> str:
    """Return a number with four decimals, or with two decimals from an absolute value of 10; None gives a dash."""
    return ABSENT_TEXT if value is None else f"{value:.4f}" if abs(value) < _TWO_DIGITS_FROM else f"{value:.2f}"


def format_p_value(p: float | None) -> str:
    """Return a p-value with four decimals, or "<0.0001" instead of a rounded 0."""
    return "<0.0001" if p is not None and p < _SMALLEST_DISPLAYED_P else format_value(p)


def variant_summaries(evaluation: Evaluation) -> list[str]:
    """Return a line for each variant with its number of responses and, with ranking metrics, of ratings and queries."""
    lines = []
    for variant in evaluation.variants:
        role = " (control)" if variant.variant == evaluation.control else ""
        counts = format_counted(variant.responses, "response")
        if evaluation.definitions:
            queries = format_counted(variant.queries, "query", "queries")
            counts = f"{format_count(variant.rated_responses)} of {counts} rated, {queries}"
        lines.append(f"{variant.variant}{role}: {counts}")
    return lines


def answer_mean_rows(evaluation: Evaluation) -> list[list[str]]:
    """Return (answer metric, mean of each variant over its responses) of each answer metric."""
    names = evaluation.variants[0].answer_means
    return [
        [name, *(format_optional_mean(name, variant.answer_means[name].mean) for variant in evaluation.variants)]
        for name in names
    ]


def undefined_reason(evaluation: Evaluation) -> str | None:
    """Return why the variants of an evaluation cannot be compared, and the next step; None if they can."""
    if not any(variant.responses for variant in evaluation.variants):
        return "The files have no response of this experiment: compare its name, variants and period with the events."
    if not evaluation.definitions:
        return (
            "The experiment has no ranking metric, so there is no comparison by query. Name one with --metrics, or "
            "use `ab-monitor verdict` for a test of the answer metrics."
        )
    if not any(variant.rated_responses for variant in evaluation.variants):
        return "No response is rated: the files have no feedback with a grade about an item of these responses."
    if not evaluation.queries:
        return (
            "No rated response has a query_id, and variants are compared query by query: add query_id to the "
            "responses. --json and --csv have the means over responses."
        )
    if not any(test.queries for comparison in evaluation.comparisons for test in comparison.tests):
        return (
            "No query has rated responses of both variants, and variants are compared query by query: give responses "
            "to the same question the same query_id. --json and --csv have the means over responses."
        )
    return None


def evaluation_tables(
    evaluation: Evaluation, query_definition: MetricDefinition | None, max_queries: int, width: int
) -> RenderableType:
    """Return a table of comparisons per treatment, and the `max_queries` queries that differ most between variants.

    The queries are evaluated under `query_definition`, None without ranking metrics. In a terminal of fewer than 110
    characters, `width`, the comparisons are printed without intervals.
    """
    parts: list[RenderableType] = [id_text(evaluation.experiment, "bold")]
    parts += [Text(line, style="dim") for line in variant_summaries(evaluation)]
    if answer_rows := answer_mean_rows(evaluation):
        table = _aligned_table("mean over responses", *(variant.variant for variant in evaluation.variants))
        for row in answer_rows:
            table.add_row(*map(Text, row))
        parts.append(table)
    if (reason := undefined_reason(evaluation)) is not None:
        return Group(*parts, Text(reason, style="yellow"))
    assert query_definition is not None
    has_intervals = width >= _MIN_WIDTH_FOR_INTERVALS
    for comparison in evaluation.comparisons:
        test_columns = ("95 % from", "to", "p", "queries", "differ") if has_intervals else ("p", "queries")
        table = _aligned_table("mean over queries", evaluation.control, comparison.variant, "difference", *test_columns)
        for definition, test in zip(evaluation.definitions, comparison.tests, strict=True):
            table.add_row(
                Text(definition.name, style="bold" if definition == query_definition else ""),
                *map(format_value, (test.control, test.treatment, test.difference)),
                *(map(format_value, test.interval or (None, None)) if has_intervals else ()),
                format_p_value(test.p), str(test.queries), *([str(test.differing)] if has_intervals else []),
            )  # fmt: skip
        parts.append(table)
    if not has_intervals:
        parts.append(Text("95 % intervals: in a wider terminal, or with --html or --json", style="dim"))
    parts.append(_query_table(evaluation, query_definition, max_queries))
    parts += [Text(footnote, style="dim") for footnote in COMPARISON_FOOTNOTES]
    return Group(*parts)


def _query_table(evaluation: Evaluation, definition: MetricDefinition, max_queries: int) -> RenderableType:
    variants = [variant.variant for variant in evaluation.variants]
    rows, omitted_count = _most_different_queries(evaluation, definition, max_queries)
    max_value = max((value for _, values in rows for value in values if value is not None), default=0.0) or 1.0
    table = _aligned_table(f"{definition.name}, query", *variants)
    table.add_column("")
    for query, values in rows:
        bars = Text()
        for index, value in enumerate(values):
            bar = "█" * round(_BAR_CHARACTERS * (value or 0) / max_value)
            bars.append(bar or "▏" * (value is not None), style="dim" if variants[index] == evaluation.control else "")
            bars.append("\n" * (index + 1 < len(values)))
        table.add_row(id_text(query), *map(format_value, values), bars)
    if not omitted_count:
        return table
    omitted = format_counted(omitted_count, "query that differs less is", "queries that differ less are")
    return Group(table, Text(f"{omitted} left out; --csv writes all", style="dim"))


def _aligned_table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(Text(columns[0]), overflow="fold")
    for column in columns[1:]:
        table.add_column(Text(column), justify="right", overflow="fold", min_width=min(len(column), _NUMBER_CHARACTERS))
    return table


def _most_different_queries(
    evaluation: Evaluation, definition: MetricDefinition, max_queries: int
) -> tuple[list[tuple[str, list[float | None]]], int]:
    """Return (query, mean per variant) of the queries with the largest range, and the number of omitted queries.

    The queries keep the order of the evaluation.
    """
    definition_index = evaluation.definitions.index(definition)
    variants = [variant.variant for variant in evaluation.variants]
    means_by_query: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(variants))
    for query_scores in evaluation.queries:
        variant_index = variants.index(query_scores.variant)
        means_by_query[query_scores.query_id][variant_index] = query_scores.means[definition_index].mean

    def value_range(query: str) -> float:
        values = [value for value in means_by_query[query] if value is not None]
        return max(values) - min(values) if len(values) > 1 else -1.0

    selected = set(sorted(means_by_query, key=lambda query: (-value_range(query), query))[:max_queries])
    rows = [(query, values) for query, values in means_by_query.items() if query in selected]
    return rows, len(means_by_query) - len(selected)


def evaluation_csv(evaluations: Sequence[Evaluation]) -> str:
    """Return the evaluations as CSV, with a row per mean and metric definition.

    The column `level` is `rater`, `query`, `over_queries` or `over_responses`; the last two are means of a variant.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for evaluation in evaluations:
        for level, query, rater, variant, means in _means_by_level(evaluation):
            for definition, mean in zip(evaluation.definitions, means, strict=True):
                metric = definition.metric
                writer.writerow([
                    _csv_text(evaluation.experiment), level, _csv_text(query), rater, _csv_text(variant),
                    metric.measure, metric.k, definition.gain, definition.discount, definition.ideal, mean.mean,
                    mean.count, mean.undefined,
                ])  # fmt: skip
    return text.getvalue()


def _csv_text(text: str) -> str:
    """Return a name or an id as a CSV field that a terminal and a spreadsheet show, and do not execute.

    A spreadsheet takes a text that begins with = + - @ for a formula, unless the text begins with an apostrophe.
    """
    is_formula = text.startswith(_FORMULA_CHARACTERS) and not _NUMBER.fullmatch(text)
    return escape_controls(f"'{text}" if is_formula else text)


def _means_by_level(evaluation: Evaluation) -> Iterator[tuple[str, str, int | None, str, Sequence[MeanScore]]]:
    """Yield (level, query id, rater, variant, mean per definition)."""
    for rater in evaluation.raters:
        yield "rater", rater.query_id, rater.rater, rater.variant, rater.means
    for query in evaluation.queries:
        yield "query", query.query_id, None, query.variant, query.means
    for variant in evaluation.variants:
        yield "over_queries", "", None, variant.variant, variant.query_means
        yield "over_responses", "", None, variant.variant, variant.response_means


def render_evaluation_report(evaluations: Sequence[tuple[Evaluation, MetricDefinition | None]]) -> str:
    """Return the evaluations, each with a highlighted metric definition if it has any, as one HTML file."""
    contexts = [_evaluation_context(evaluation, highlighted) for evaluation, highlighted in evaluations]
    return load_template("evaluation.html").render(
        **standalone_context(),
        evaluations=contexts,
        footnotes=COMPARISON_FOOTNOTES,
        max_rater_circles=_MAX_RATER_CIRCLES,
        format_value=format_value,
        format_p_value=format_p_value,
    )


def _evaluation_context(evaluation: Evaluation, highlighted: MetricDefinition | None) -> dict[str, object]:
    reason = undefined_reason(evaluation)
    summaries = [*variant_summaries(evaluation), *([] if reason is None else [reason])]
    answers = {"evaluation": evaluation, "variant_summaries": summaries, "answer_rows": answer_mean_rows(evaluation)}
    if highlighted is None:
        return {**answers, "comparisons": [], "highlighted_definition": None}
    query_means, omitted_count = _most_different_queries(evaluation, highlighted, _MAX_QUERIES)
    drawn_means, _ = _most_different_queries(evaluation, highlighted, _MAX_DRAWN_QUERIES)
    return {
        **answers,
        "comparisons": [
            {
                "variant": comparison.variant,
                "rows": [
                    {"name": definition.name, "highlighted": definition == highlighted, "test": test}
                    for definition, test in zip(evaluation.definitions, comparison.tests, strict=True)
                ],
                "charts": list(_difference_charts(evaluation, comparison.variant, comparison.tests, highlighted)),
            }
            for comparison in (evaluation.comparisons if reason is None else ())
        ],
        "highlighted_definition": highlighted.name,
        "query_rows": query_means,
        "query_chart": _query_chart(evaluation, highlighted, drawn_means),
        "drawn_count": len(drawn_means),
        "selected_queries": {query for query, _ in query_means},
        "omitted_count": omitted_count,
    }


def _difference_charts(
    evaluation: Evaluation, variant: str, tests: Sequence[PairedTest], highlighted: MetricDefinition
) -> Iterator[ChartSpec]:
    """Yield a forest plot of the differences of each metric.

    Definitions of a metric share a plot if their values have the same unit.
    """
    rows: dict[tuple[str, str | None], list[ForestRow]] = defaultdict(list)
    for definition, test in zip(evaluation.definitions, tests, strict=True):
        gain = definition.gain if definition.metric.measure in _GAIN_MEASURES else None
        low, high = test.interval or (None, None)
        parameters = definition.name.removeprefix(f"{definition.metric.name}:")
        row = ForestRow(parameters, test.difference, low, high, highlighted=definition == highlighted)
        rows[definition.metric.name, gain].append(row)
    for (metric, shared_gain), plot_rows in rows.items():
        gain_note = "" if shared_gain is None else f" (gain: {shared_gain})"
        title = f"{metric}{gain_note}, {variant} against {evaluation.control}"
        spec = forest_plot_spec(
            title, plot_rows, value_title="difference, with 95 % interval", row_title="metric", missing_text="undefined"
        )
        if spec is not None:
            yield spec


def _query_chart(
    evaluation: Evaluation, definition: MetricDefinition, query_means: Sequence[tuple[str, Sequence[float | None]]]
) -> ChartSpec | None:
    """Return the chart with a bar per query and variant, and a circle per rater."""
    definition_index = evaluation.definitions.index(definition)
    rater_means: dict[tuple[str, str], list[float]] = defaultdict(list)
    for rater in evaluation.raters:
        mean = rater.means[definition_index].mean
        if mean is not None:
            rater_means[rater.query_id, rater.variant].append(mean)
    variants = [variant.variant for variant in evaluation.variants]
    control_first = sorted(range(len(variants)), key=lambda index: variants[index] != evaluation.control)

    def circles(query: str, variant: str) -> list[float]:
        means = rater_means[query, variant]
        return means if len(means) <= _MAX_RATER_CIRCLES else []

    rows = [
        ValueRow(
            query,
            [values[index] for index in control_first],
            [circles(query, variants[index]) for index in control_first],
        )
        for query, values in query_means
    ]
    title = f"{definition.name} by query, {evaluation.experiment}"
    series = [variants[index] for index in control_first]
    return value_bars_spec(title, rows, series, value_title=definition.name, row_title="query")
