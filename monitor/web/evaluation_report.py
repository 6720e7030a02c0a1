"""An offline evaluation as tables in a terminal, as CSV and as one HTML file."""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from monitor.export import ABSENT, count
from monitor.offline import Definition, Evaluation, Mean, Paired
from monitor.web.pages import template

CSV_HEADER: Final = (
    "experiment", "level", "query_id", "rater", "variant", "measure", "k", "gain", "discount", "ideal", "value",
    "count", "undefined",
)  # fmt: skip
NOTES: Final = (
    "Means over the n queries that both have, of their raters' means; p: paired t-test over queries, not raters.",
    "Each row is the same comparison, otherwise defined: choose one before looking; the others show what hangs on it.",
)
_MOST_QUERIES: Final = 500
_MOST_CIRCLES: Final = 20
_IN_GAINS: Final = ("cg", "dcg")
"""The measures whose unit is the gain's; others are shares."""
_BAR: Final = 24
_DIGITS: Final = 7
"""Characters of a number."""
_NARROW: Final = 110
"""Characters below which a terminal has no place for intervals."""
_LARGE: Final = 10
_SMALL: Final = 0.00005


def number(value: float | None) -> str:
    """Return four digits after the point, or two from 10 on."""
    return ABSENT if value is None else f"{value:.4f}" if abs(value) < _LARGE else f"{value:.2f}"


def probability(p: float | None) -> str:
    """Return four digits after the point; what rounds to 0 is not 0."""
    return "<0.0001" if p is not None and p < _SMALL else number(p)


def heading(evaluation: Evaluation) -> list[str]:
    """Return a line for each variant: what its numbers stand on."""
    return [
        f"{each.variant}{' (control)' if each.variant == evaluation.control else ''}: {count(each.rated_responses)} of "
        f"{count(each.responses)} responses rated, {count(each.queries)} queries"
        for each in evaluation.variants
    ]


def evaluation_tables(evaluation: Evaluation, shown: Definition, most: int, width: int) -> RenderableType:
    """Return the comparisons, and the queries under one definition: those `most` that differ most.

    With fewer than 110 characters of `width`, the comparisons lack their intervals.
    """
    parts: list[RenderableType] = [Text(evaluation.experiment, style="bold")]
    parts += [Text(line, style="dim") for line in heading(evaluation)]
    wide = width >= _NARROW
    for comparison in evaluation.comparisons:
        more = ("95 % from", "to", "p", "n", "differ") if wide else ("p", "n")
        table = _table("mean over queries", evaluation.control, comparison.variant, "difference", *more)
        for definition, test in zip(evaluation.definitions, comparison.tests, strict=True):
            table.add_row(
                Text(definition.name, style="bold" if definition == shown else ""),
                *map(number, (test.control, test.treatment, test.difference)),
                *(map(number, test.interval or (None, None)) if wide else ()),
                probability(test.p), str(test.queries), *([str(test.differing)] if wide else []),
            )  # fmt: skip
        parts.append(table)
    if not wide:
        parts.append(Text("95 % intervals: in a wider terminal, --html or --json", style="dim"))
    parts.append(_query_table(evaluation, shown, most))
    parts += [Text(note, style="dim") for note in NOTES]
    return Group(*parts)


def _query_table(evaluation: Evaluation, shown: Definition, most: int) -> RenderableType:
    variants = [each.variant for each in evaluation.variants]
    rows, left_out = _queries(evaluation, shown, most)
    largest = max((value for _, values in rows for value in values if value is not None), default=0.0) or 1.0
    table = _table(f"{shown.name}, query", *variants)
    table.add_column("")
    for query, values in rows:
        bars = Text()
        for place, value in enumerate(values):
            bar = "█" * round(_BAR * (value or 0) / largest)
            bars.append(bar or "▏" * (value is not None), style="dim" if variants[place] == evaluation.control else "")
            bars.append("\n" * (place + 1 < len(values)))
        table.add_row(Text(query), *map(number, values), bars)
    if not left_out:
        return table
    return Group(table, Text(f"{count(left_out)} queries that differ less are left out; --csv has all", style="dim"))


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column(Text(columns[0]), overflow="fold")
    for column in columns[1:]:
        table.add_column(Text(column), justify="right", overflow="fold", min_width=min(len(column), _DIGITS))
    return table


def _queries(evaluation: Evaluation, shown: Definition, most: int) -> tuple[list[tuple[str, list[float | None]]], int]:
    """Return queries with a value per variant, in their order, and how many are left out: those that differ least."""
    at = evaluation.definitions.index(shown)
    variants = [each.variant for each in evaluation.variants]
    found: dict[str, list[float | None]] = defaultdict(lambda: [None] * len(variants))
    for each in evaluation.queries:
        found[each.query_id][variants.index(each.variant)] = each.means[at].mean

    def spread(query: str) -> float:
        values = [value for value in found[query] if value is not None]
        return max(values) - min(values) if len(values) > 1 else -1.0

    kept = set(sorted(found, key=lambda query: (-spread(query), query))[:most])
    return [(query, values) for query, values in found.items() if query in kept], len(found) - len(kept)


def evaluation_csv(evaluations: Sequence[Evaluation]) -> str:
    """Return one row per definition and value; `level` says of what: a rater, a query or a variant."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_HEADER)
    for evaluation in evaluations:
        for level, query, rater, variant, means in _levels(evaluation):
            for definition, mean in zip(evaluation.definitions, means, strict=True):
                metric = definition.metric
                writer.writerow([
                    evaluation.experiment, level, query, rater, variant, metric.measure, metric.k, definition.gain,
                    definition.discount, definition.ideal, mean.mean, mean.count, mean.undefined,
                ])  # fmt: skip
    return out.getvalue()


def _levels(evaluation: Evaluation) -> Iterator[tuple[str, str, int | None, str, Sequence[Mean]]]:
    for rater in evaluation.raters:
        yield "rater", rater.query_id, rater.rater, rater.variant, rater.means
    for query in evaluation.queries:
        yield "query", query.query_id, None, query.variant, query.means
    for variant in evaluation.variants:
        yield "over_queries", "", None, variant.variant, variant.over_queries
        yield "over_responses", "", None, variant.variant, variant.over_responses


def render_evaluation_report(evaluations: Sequence[tuple[Evaluation, Definition]]) -> str:
    """Return one file that needs no other: tables, and bars drawn by their style.

    Bars and intervals are boxes with a width in per cent: a library for plots would bring megabytes for what a few
    lines of CSS do.
    """
    views = [_view(evaluation, shown) for evaluation, shown in evaluations]
    return template("evaluation.html").render(
        evaluations=views, notes=NOTES, circles=_MOST_CIRCLES, number=number, probability=probability
    )


def _view(evaluation: Evaluation, shown: Definition) -> dict[str, object]:
    rows, left_out = _queries(evaluation, shown, _MOST_QUERIES)
    return {
        "found": evaluation,
        "heading": heading(evaluation),
        "comparisons": [
            {"variant": each.variant, "rows": _test_rows(evaluation.definitions, each.tests, shown)}
            for each in evaluation.comparisons
        ],
        "shown": shown.name,
        "queries": _query_rows(evaluation, shown, rows),
        "kept": {query for query, _ in rows},
        "left_out": left_out,
    }


def _test_rows(
    definitions: Sequence[Definition], tests: Sequence[Paired], shown: Definition
) -> list[dict[str, object]]:
    """Return a row per definition, with places in per cent on an axis; what is in the same unit shares one."""
    axes = [(each.metric.name, each.gain if each.metric.measure in _IN_GAINS else None) for each in definitions]
    ends: dict[object, list[float]] = defaultdict(lambda: [0.0])
    for axis, test in zip(axes, tests, strict=True):
        ends[axis] += test.interval or (test.difference or 0.0,)

    def place(value: float, axis: object) -> float:
        least, most = min(ends[axis]), max(ends[axis])
        return round(2 + 96 * (value - least) / (most - least), 2) if most > least else 50.0

    rows: list[dict[str, object]] = []
    for definition, axis, test in zip(definitions, axes, tests, strict=True):
        low, high = test.interval or (None, None)
        rows.append({
            "name": definition.name,
            "axis": axis,
            "zero": place(0.0, axis),
            "shown": definition == shown,
            "test": test,
            "at": None if test.difference is None else place(test.difference, axis),
            "ends": None if low is None or high is None else (place(low, axis), place(high, axis)),
        })  # fmt: skip
    return rows


def _query_rows(
    evaluation: Evaluation, shown: Definition, rows: Sequence[tuple[str, Sequence[float | None]]]
) -> list[dict[str, object]]:
    at = evaluation.definitions.index(shown)
    given: dict[tuple[str, str], list[float]] = defaultdict(list)
    for each in evaluation.raters:
        mean = each.means[at].mean
        if mean is not None:
            given[each.query_id, each.variant].append(mean)
    drawn = [values for values in given.values() if len(values) <= _MOST_CIRCLES]
    means = [[value for value in values if value is not None] for _, values in rows]
    largest = max(chain.from_iterable([*drawn, *means]), default=0.0) or 1.0
    if shown.metric.measure not in _IN_GAINS:
        largest = max(largest, 1.0)
    variants = [each.variant for each in evaluation.variants]
    return [
        {
            "query": query,
            "bars": [
                {
                    "variant": variant,
                    "value": value,
                    "width": 0 if value is None else round(100 * value / largest, 2),
                    "raters": [round(100 * one / largest, 2) for one in given[query, variant]]
                    if len(given[query, variant]) <= _MOST_CIRCLES
                    else [],
                }
                for variant, value in zip(variants, values, strict=True)
            ],
        }
        for query, values in rows
    ]
