"""`ab-monitor evaluate`: offline metrics per query and rater, and paired tests, from event files or TREC files."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal

from monitor.cli.command_io import load_command_settings, write_result
from monitor.cli.event_files import EVENT_FILES_HELP, open_event_files
from monitor.clock import wall_clock
from monitor.config import MAX_GAIN, ExperimentSettings, MetricSpec, Settings, parse_ranking_metrics
from monitor.errors import InputRejected, UsageError
from monitor.export import print_json, stdout_console
from monitor.metrics import DISCOUNT_NAMES, GAIN_NAMES
from monitor.offline import (
    IDEALS,
    QRELS_COLUMNS,
    RUN_COLUMNS,
    Evaluation,
    JudgedResponse,
    JudgementPools,
    MetricDefinition,
    build_definition_grid,
    evaluate_responses,
    judge_runs,
    list_available_gains,
    read_judged_responses,
    read_qrels,
    read_run,
    shift_grades,
)
from monitor.web import evaluation_csv, evaluation_tables, render_evaluation_report

_MIN_RUNS: Final = 2
_DEFAULT_MEASURES: Final[tuple[Literal["cg", "dcg", "ndcg"], ...]] = ("cg", "dcg", "ndcg")


@dataclass(frozen=True, slots=True)
class _EvaluationInput:
    """An experiment with judged responses."""

    settings: ExperimentSettings
    responses: Sequence[JudgedResponse]
    pools: JudgementPools | None = None
    """All judgements by query and rater; None if the responses contain all judgements."""

    def with_zero_grade(self, zero_grade: float) -> _EvaluationInput:
        """Return the input with all grades reduced by `zero_grade`, so that this grade has no gain."""
        if not zero_grade:
            return self
        settings = self.settings
        if not isinstance(settings.gain, str):
            raise UsageError(
                f"--zero-grade: got {zero_grade:g}, expected no such option, because the experiment has a gain table"
            )
        if not 0 < zero_grade < settings.max_grade:
            raise UsageError(
                f"--zero-grade: got {zero_grade:g}, expected a grade above 0 and below {settings.max_grade:g}"
            )
        return _EvaluationInput(
            replace(
                settings,
                max_grade=settings.max_grade - zero_grade,
                relevant_grade=settings.relevant_grade - zero_grade,
            ),
            [shift_grades(response, zero_grade) for response in self.responses],
            self.pools
            and {
                query_and_rater: {item: grade - zero_grade for item, grade in pool.items()}
                for query_and_rater, pool in self.pools.items()
            },
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add("events", nargs="*", metavar="EVENTS", help=EVENT_FILES_HELP)
    add("--config", type=Path, metavar="FILE", help="TOML file for EVENTS; docs/configuration.md")
    add("--experiment", metavar="E", help="evaluate only this experiment")
    add = parser.add_argument_group("instead of events and a configuration").add_argument
    add("--qrels", metavar="FILE", help=f"file of judgements: {' '.join(QRELS_COLUMNS)}")
    add(
        "--run",
        action="append",
        default=[],
        metavar="NAME=FILE",
        help=f"file of a variant's results: {' '.join(RUN_COLUMNS)}; the first is the control",
    )
    add("--raters", action="store_true", help="the column iteration of the qrels is the rater")
    add("--max-grade", type=float, metavar="G", help="largest grade of the scale; default: largest grade in the qrels")
    add("--relevant-grade", type=float, metavar="G", help="smallest relevant grade; default: 1")
    add = parser.add_argument_group("what to compute").add_argument
    add(
        "--metrics",
        metavar="M,…",
        help="metrics; default: the configured ones, and cg, dcg, ndcg at the same cuts (with --run, at 10)",
    )
    add("--gain", action="append", choices=(*GAIN_NAMES, "table"), help="gain; can be repeated; default: all")
    add("--discount", action="append", choices=DISCOUNT_NAMES, help="discount; can be repeated; default: all")
    add("--ideal", action="append", choices=IDEALS, help="ideal of ndcg; can be repeated; default: all")
    add("--zero-grade", type=float, default=0, metavar="G", help="largest grade without a gain; default: 0")
    add = parser.add_argument_group("output").add_argument
    add("--by-query", metavar="D", help="row of the table to print by query; default: the primary metric")
    add("--queries", type=int, default=40, metavar="N", help="print the N queries that differ most; default: 40")
    add("--json", action="store_true", help="print one JSON object")
    add("--csv", metavar="FILE", help="write all values as CSV; - for stdout")
    add("--html", metavar="FILE", help="write a page with tables and charts; - for stdout")


def run(arguments: argparse.Namespace) -> int:
    """Print and write metrics per query, rater and variant, and tests over queries; return the exit code.

    Raises `UsageError` for contradictory arguments and `InputRejected` for files that cannot be evaluated.
    """
    settings = None if _has_runs(arguments) else load_command_settings(arguments)
    if [arguments.json, arguments.csv == "-", arguments.html == "-"].count(True) > 1:
        raise UsageError("--json, --csv -, --html -: got several, expected at most one output on stdout")
    evaluations: list[tuple[Evaluation, MetricDefinition | None]] = []
    for unshifted_input in [_read_runs(arguments)] if settings is None else _read_events(arguments, settings):
        evaluation_input = unshifted_input.with_zero_grade(arguments.zero_grade)
        responses, experiment = evaluation_input.responses, evaluation_input.settings
        definitions = _select_definitions(arguments, experiment)
        by_query_definition = _select_by_query_definition(arguments, experiment, definitions)
        try:
            evaluation = evaluate_responses(responses, experiment, definitions, evaluation_input.pools)
        except ValueError as error:
            raise InputRejected(f"{experiment.name}: {error}") from error
        evaluations.append((evaluation, by_query_definition))
    if arguments.csv is not None:
        write_result("--csv", arguments.csv, evaluation_csv([evaluation for evaluation, _ in evaluations]))
    if arguments.html is not None:
        write_result("--html", arguments.html, render_evaluation_report(evaluations))
    if arguments.json:
        print_json({evaluation.experiment: evaluation.to_json() for evaluation, _ in evaluations})
    elif "-" not in {arguments.csv, arguments.html}:
        console = stdout_console(os.environ)
        query_count = max(arguments.queries, 0)
        for evaluation, by_query_definition in evaluations:
            console.print(evaluation_tables(evaluation, by_query_definition, query_count, console.width))
    return 0


def _has_runs(arguments: argparse.Namespace) -> bool:
    """Return whether the arguments name TREC files, not events; raises `UsageError` for neither and for both."""
    if arguments.qrels is not None or arguments.run:
        has_event_arguments = arguments.events or arguments.config is not None or arguments.experiment is not None
        if has_event_arguments or arguments.qrels is None:
            raise UsageError("evaluate: got both, expected either EVENTS and --config, or --qrels and --run")
        return True
    if not arguments.events or arguments.config is None:
        raise UsageError("evaluate: expected EVENTS and --config, or --qrels and --run")
    return False


def _read_events(arguments: argparse.Namespace, settings: Settings) -> list[_EvaluationInput]:
    """Return the experiments of the settings with the judged responses of the event files."""
    if arguments.raters or arguments.max_grade is not None or arguments.relevant_grade is not None:
        raise UsageError(
            "--raters, --max-grade, --relevant-grade: expected only with --qrels; for EVENTS, --config has the scale"
        )
    with open_event_files(arguments.events, settings) as source:
        responses = read_judged_responses(source, settings, wall_clock)
    return [_EvaluationInput(experiment, responses[experiment.name]) for experiment in settings.experiments]


def _read_runs(arguments: argparse.Namespace) -> _EvaluationInput:
    """Return the runs of the arguments as the variants of an experiment, judged by the qrels."""
    paths: dict[str, str] = {}
    for run_argument in arguments.run:
        name, equals_sign, path = run_argument.partition("=")
        if not (name and equals_sign and path):
            raise UsageError(f"--run: got {run_argument!r}, expected NAME=FILE")
        if name in paths:
            raise UsageError(f"--run: got {name!r} twice, expected a different name for each variant")
        paths[name] = path
    if len(paths) < _MIN_RUNS:
        raise UsageError(f"--run: got {len(paths)}, expected at least two, the first is the control")
    if arguments.max_grade is not None and not 0 < arguments.max_grade <= MAX_GAIN:
        raise UsageError(f"--max-grade: got {arguments.max_grade:g}, expected above 0 and at most {MAX_GAIN:g}")
    pools = read_qrels(arguments.qrels, raters=arguments.raters)
    max_judged_grade = max(grade for pool in pools.values() for grade in pool.values())
    if max_judged_grade > MAX_GAIN:
        raise InputRejected(f"{arguments.qrels}: a relevance of {max_judged_grade:g}, expected at most {MAX_GAIN:g}")
    runs = {name: read_run(path) for name, path in paths.items()}
    responses = judge_runs(runs, pools)
    for retrieval_run in runs.values():
        for warning in retrieval_run.describe_mismatches(pools):
            print(f"ab-monitor: {warning}", file=sys.stderr)
    settings = ExperimentSettings(
        name=Path(arguments.qrels).name,
        control=next(iter(paths)),
        variants=dict.fromkeys(paths, 1 / len(paths)),
        metrics=(MetricSpec("ndcg@10", "ndcg", 10),),
        primary="ndcg@10",
        max_grade=max_judged_grade if arguments.max_grade is None else arguments.max_grade,
        relevant_grade=1 if arguments.relevant_grade is None else arguments.relevant_grade,
    )
    return _EvaluationInput(settings, responses, pools)


def _select_definitions(arguments: argparse.Namespace, settings: ExperimentSettings) -> tuple[MetricDefinition, ...]:
    """Return the requested metric definitions, by default all definitions that the experiment allows."""
    available_gains = list_available_gains(settings)
    for gain in arguments.gain or ():
        if gain not in available_gains:
            raise UsageError(f"--gain: got {gain!r}, expected one of {', '.join(available_gains)} for {settings.name}")
    if arguments.metrics is None:
        cuts = dict.fromkeys(metric.k for metric in settings.ranking_metrics)
        default_metrics = [MetricSpec(f"{measure}@{k}", measure, k) for k in cuts for measure in _DEFAULT_MEASURES]
        metrics = (*default_metrics, *(metric for metric in settings.ranking_metrics if metric not in default_metrics))
    else:
        metrics = parse_ranking_metrics("--metrics", arguments.metrics.split(","))
    return build_definition_grid(
        metrics, arguments.gain or available_gains, arguments.discount or DISCOUNT_NAMES, arguments.ideal or IDEALS
    )


def _select_by_query_definition(
    arguments: argparse.Namespace, settings: ExperimentSettings, definitions: Sequence[MetricDefinition]
) -> MetricDefinition | None:
    """Return the definition to show by query: as requested, or else nearest to the experiment's primary metric.

    None without definitions, because the experiment has no ranking metric.
    """
    if arguments.by_query is not None:
        for definition in definitions:
            if definition.name == arguments.by_query:
                return definition
        names = f"one of {', '.join(definition.name for definition in definitions)}"
        if not definitions:
            names = "no such option, because the experiment has no ranking metric"
        raise UsageError(f"--by-query: got {arguments.by_query!r}, expected {names}")
    gain = settings.gain if isinstance(settings.gain, str) else "table"
    ideal = settings.ideal if arguments.qrels is None else "judged"

    def similarity(definition: MetricDefinition) -> tuple[bool, ...]:
        return (
            definition.metric.name == settings.primary,
            definition.gain == gain,
            definition.discount == settings.discount,
            definition.ideal == ideal,
        )

    return max(definitions, key=similarity, default=None)
