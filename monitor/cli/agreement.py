"""`ab-monitor agreement`: the agreement of raters in event files, without a store."""

from __future__ import annotations

import argparse
import os
from typing import Final

from rich.table import Table

from monitor.cli.event_files import EVENT_FILES_HELP, open_event_files
from monitor.clock import wall_clock
from monitor.config import Settings
from monitor.errors import count_noun
from monitor.export import format_significant, print_json, simple_table, stdout_console
from monitor.offline import IntraclassCorrelation, RaterAgreement, measure_agreement, read_ratings

_LABEL_COLUMNS: Final = ("Cicchetti 1994", "Koo & Li 2016", "Krippendorff 2004")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    parser.add_argument("events", nargs="+", metavar="EVENTS", help=EVENT_FILES_HELP)
    parser.add_argument("--experiment", metavar="E", help="print only this experiment")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the agreement of raters within each variant of each experiment, and over all variants."""
    with open_event_files(arguments.events, settings) as source:
        ratings = read_ratings(source, settings, wall_clock)
    agreements = {
        experiment.name: measure_agreement(ratings[experiment.name], experiment.variants)
        for experiment in settings.experiments
    }
    if arguments.json:
        print_json({name: [agreement.to_json() for agreement in agreements[name]] for name in agreements})
        return 0
    for name, experiment_agreements in agreements.items():
        for agreement in experiment_agreements:
            _print_agreement(name, agreement)
    return 0


def _print_agreement(experiment_name: str, agreement: RaterAgreement) -> None:
    console = stdout_console(os.environ)
    console.print(
        f"{experiment_name}, {agreement.variant or 'all variants'}: "
        f"{count_noun(agreement.targets, 'target (rated item)', 'targets (rated items)')}, "
        f"{count_noun(agreement.raters, 'rater')}, {count_noun(agreement.grades, 'grade')}",
        soft_wrap=True,
    )
    if agreement.icc is not None:
        console.print(_build_icc_table(agreement.icc.forms))
    else:
        console.print(
            f"No intraclass correlation (ICC): {agreement.icc_undefined_reason}",
            soft_wrap=True,
        )
    table = simple_table(
        "Krippendorff's alpha", "value", "targets", "grades", "Krippendorff 2004", left_aligned=_LABEL_COLUMNS
    )
    for alpha in agreement.alphas:
        value = format_significant(alpha.value)
        table.add_row(alpha.level, value, str(alpha.units), str(alpha.grades), alpha.label or "–")
    console.print(table)


def _build_icc_table(correlations: tuple[IntraclassCorrelation, ...]) -> Table:
    """Return a table with the value, interval, F test and labels of each form."""
    table = simple_table(
        "ICC form",
        "value",
        "95 % from",
        "to",
        "F",
        "df",
        "p",
        "Cicchetti 1994",
        "Koo & Li 2016",
        left_aligned=_LABEL_COLUMNS,
    )
    for form in correlations:
        interval = form.interval or (None, None)
        interval_labels = form.koo_li_interval_labels
        interval_text = " (interval: {} to {})".format(*interval_labels) if interval_labels else ""
        table.add_row(
            form.name,
            format_significant(form.value),
            *map(format_significant, interval),
            format_significant(form.f),
            f"{form.df1}, {form.df2}",
            format_significant(form.p),
            form.cicchetti_label or "–",
            f"{form.koo_li_label or '–'}{interval_text}",
        )
    return table
