"""`ab-monitor agreement`: what files of events say, worked out in memory without a store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table

from monitor.agreement import Agreement, agreements
from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.events import instant_ms
from monitor.ingest.files import FileSource
from monitor.ingest.judging import ratings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what the commands have in common."""
    parser.add_argument(
        "events", nargs="+", metavar="EVENTS", help="files of events of either kind, .gz too; - for stdin"
    )
    parser.add_argument("--experiment", metavar="E", help="only this one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


@contextmanager
def _source(arguments: argparse.Namespace) -> Iterator[FileSource]:
    console = Console(stderr=True)
    source = FileSource(arguments.events, instant_ms, report=lambda line: console.print(line, markup=False))
    try:
        yield source
    finally:
        source.close()


def agreement(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print how far raters agree, for each experiment: within each variant and over all."""
    with _source(arguments) as source:
        given = ratings(source, settings, wall_clock)
    found = {each.name: agreements(given[each.name], each.variants) for each in settings.experiments}
    if arguments.json:
        told = {name: [each.to_json() for each in agreed] for name, agreed in found.items()}
        print(json.dumps(told, indent=1, ensure_ascii=False, allow_nan=False))
        return 0
    for name, agreed in found.items():
        for each in agreed:
            _show(name, each)
    return 0


def _show(experiment: str, found: Agreement) -> None:
    console = Console()
    console.print(
        f"{experiment}, {found.variant or 'all variants'}: {found.targets} targets, {found.raters} raters, "
        f"{found.grades} grades",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
    if found.icc is not None:
        table = _table("form", "value", "95 % from", "to", "F", "df", "p", "Cicchetti 1994", "Koo & Li 2016")
        for form in found.icc.forms:
            interval = form.interval or (None, None)
            of_interval = " (interval: {} to {})".format(*form.koo_li_interval) if form.koo_li_interval else ""
            table.add_row(
                form.name, _number(form.value), *map(_number, interval), _number(form.f), f"{form.df1}, {form.df2}",
                _number(form.p), form.cicchetti or "–", f"{form.koo_li or '–'}{of_interval}",
            )  # fmt: skip
        console.print(table)
    else:
        console.print(f"no ICC: {found.refusal}", markup=False, highlight=False, soft_wrap=True)
    table = _table("Krippendorff's alpha", "value", "targets", "grades", "Krippendorff 2004")
    for alpha in found.alphas:
        table.add_row(alpha.level, _number(alpha.value), str(alpha.units), str(alpha.grades), alpha.label or "–")
    console.print(table)


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        text = column in {columns[0], "Cicchetti 1994", "Koo & Li 2016", "Krippendorff 2004"}
        table.add_column(column, justify="left" if text else "right")
    return table


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
