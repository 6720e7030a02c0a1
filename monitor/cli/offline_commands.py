"""`ab-monitor evaluate`, `agreement` and `items`: what files say, worked out in memory without a store."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec
from rich.console import Console

from monitor.analysis import Drift, EntryKind, Overview, Variety, categories, measure_drift
from monitor.clock import wall_clock
from monitor.config import (
    LARGEST_GAIN,
    ExperimentSettings,
    MetricSpec,
    Settings,
    lines_of,
    metric_specs,
    parse_instant_ms,
)
from monitor.errors import InputRefused, UsageError
from monitor.events import instant_ms
from monitor.export import print_json, printable, render_variety, scale, short, simple_table
from monitor.metrics import DISCOUNTS, GAINS
from monitor.offline import (
    IDEALS,
    QRELS,
    RUN,
    Agreement,
    Definition,
    JudgedResponse,
    Pools,
    agreements,
    gains_for,
    grid,
    judged_responses,
    judged_runs,
    lowered,
    ratings,
    read_qrels,
    read_run,
    shown_answers,
)
from monitor.offline import evaluate as score
from monitor.sources import FileSource
from monitor.web import evaluation_csv, evaluation_tables, render_evaluation_report

_SCALES: Final = ("Cicchetti 1994", "Koo & Li 2016", "Krippendorff 2004")
_FEWEST_RUNS: Final = 2
_VARIETY_CUT: Final = 10
_MEASURES: Final[tuple[Literal["cg", "dcg", "ndcg"], ...]] = ("cg", "dcg", "ndcg")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `agreement`."""
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
        print_json({name: [each.to_json() for each in agreed] for name, agreed in found.items()})
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
        table = simple_table(
            "form", "value", "95 % from", "to", "F", "df", "p", "Cicchetti 1994", "Koo & Li 2016", left=_SCALES
        )
        for form in found.icc.forms:
            interval = form.interval or (None, None)
            of_interval = " (interval: {} to {})".format(*form.koo_li_interval) if form.koo_li_interval else ""
            table.add_row(
                form.name, short(form.value), *map(short, interval), short(form.f), f"{form.df1}, {form.df2}",
                short(form.p), form.cicchetti or "–", f"{form.koo_li or '–'}{of_interval}",
            )  # fmt: skip
        console.print(table)
    else:
        console.print(f"no ICC: {found.refusal}", markup=False, highlight=False, soft_wrap=True)
    table = simple_table("Krippendorff's alpha", "value", "targets", "grades", "Krippendorff 2004", left=_SCALES)
    for alpha in found.alphas:
        table.add_row(alpha.level, short(alpha.value), str(alpha.units), str(alpha.grades), alpha.label or "–")
    console.print(table)


def add_items_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `items`."""
    add = parser.add_argument
    add("events", nargs="*", metavar="EVENTS", help="files of events of either kind, .gz too; - for stdin")
    add(
        "--worst",
        type=int,
        metavar="N",
        help="of the store, with an experiment E for EVENTS: the N worst items",
    )
    add("--attention", type=int, metavar="N", help="of the store: the N entries to look at first, by item or category")
    add("--experiment", metavar="E", help="only this one")
    add("--json", action="store_true", help="print one JSON object")
    add("--by", choices=get_args(EntryKind), help="what to look at; default: query, of the store item")
    add("--lowest-grade", type=float, default=0, metavar="G", help="the scale's smallest grade; default: 0")
    add("--catalogue", metavar="FILE", help="all items there are, one id per line: for the coverage")
    add("--topics", metavar="FILE", help="a JSON object, item → list of topics: for the variety of answers")
    add("--novelty", type=float, default=0.3, metavar="W", help="weight of novelty in the re-ranking; default: 0.3")
    add("--since", metavar="T", help="compare the categories from this ISO time on with those before")
    add("--top", type=int, default=20, metavar="N", help="show the first N of each list; default: 20")


def items(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print what items are worth, what to look at first, what is shown, and whether categories have changed."""
    if arguments.top < 1:
        raise UsageError(f"--top: got {arguments.top}, expected at least 1")
    since_ms = None if arguments.since is None else parse_instant_ms("--since", arguments.since)
    catalogue = frozenset() if arguments.catalogue is None else lines_of("--catalogue", arguments.catalogue)
    topics = _topics(arguments.topics)
    if not 0 <= arguments.novelty <= 1:
        raise UsageError(f"--novelty: got {arguments.novelty:g}, expected a number from 0 to 1")
    scales = {own.name: scale(own, arguments.lowest_grade) for own in settings.experiments}
    with _source(arguments) as source:
        given = shown_answers(source, settings, wall_clock)
    told = {}
    for own in settings.experiments:
        found = Overview.of(
            given[own.name],
            own.variants,
            relevant_grade=own.relevant_grade,
            grades=scales[own.name],
            kind=arguments.by or "query",
        )
        changed = None if since_ms is None else measure_drift(*categories(given[own.name], since_ms))
        told[own.name] = {**found.to_json(catalogue, arguments.top), "drift": changed and asdict(changed)}
        varied = {
            name: Variety.of(
                (each for each in given[own.name] if each.variant == name),
                topics,
                k=_VARIETY_CUT,
                weight=1 - arguments.novelty,
            )
            for name in (own.variants if topics else ())
        }
        if topics:
            told[own.name]["variety"] = {name: asdict(each) for name, each in varied.items()}
        if not arguments.json:
            _show_items(own.name, found, changed, catalogue, arguments.top)
            if topics:
                Console().print(render_variety(varied, _VARIETY_CUT))
    if arguments.json:
        print_json(told)
    return 0


def _topics(path: str | None) -> dict[str, list[str]]:
    if path is None:
        return {}
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[str]])
    except OSError as error:
        raise UsageError(f"--topics: {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"--topics: {path}: expected a JSON object, item → list of topics ({error})") from error


def _show_items(name: str, found: Overview, changed: Drift | None, catalogue: frozenset[str], top: int) -> None:
    console = Console()
    table = simple_table(f"{name}: variant", "responses", "empty", "items", "coverage")
    for variant, shown in found.shown.items():
        empty, coverage = short(shown.empty_share), short(shown.coverage(catalogue))
        table.add_row(variant, str(shown.responses), empty, str(len(shown.counts)), coverage)
    console.print(table)
    table = simple_table("item", "ratings", "mean", "95 % from", "good", "95 % from")
    for item, worth in found.scores[:top]:
        numbers = map(short, (worth.mean, worth.mean_lower, worth.good_share, worth.good_lower))
        table.add_row(printable(item), str(worth.ratings), *numbers)
    console.print(table)
    console.print(f"{len(found.scores)} items are rated, {found.unrated} are shown and unrated", highlight=False)
    table = simple_table("look at first", "bad that day", "history", "urgency", "priority")
    for entry in found.entries[:top]:
        numbers = map(short, (entry.history, entry.urgency, entry.priority))
        table.add_row(printable(entry.name), str(entry.today), *numbers)
    console.print(table)
    if changed is not None:
        table = simple_table("categories", "value", "threshold", "p")
        for measure, distance in (("population stability index", changed.psi), ("Jensen-Shannon", changed.js)):
            if distance is None:
                table.add_row(measure, "–", "–", "–")
                continue
            numbers = map(short, (distance.value, distance.threshold, distance.p))
            table.add_row(measure + (" (changed)" if distance.exceeded else ""), *numbers)
        console.print(table)
        line = f"{changed.observations} students since then, {changed.reference} before, {changed.cells} categories"
        console.print(line, highlight=False)


@dataclass(frozen=True, slots=True)
class _Judged:
    """One experiment with its responses; `pools` are what was judged, where that is known from elsewhere."""

    settings: ExperimentSettings
    responses: Sequence[JudgedResponse]
    pools: Pools | None = None

    def lowered(self, by: float) -> _Judged:
        """Return the same on a scale that begins `by` lower."""
        if not by:
            return self
        own = self.settings
        if not isinstance(own.gain, str):
            raise UsageError(f"--zero-grade: got {by:g}, expected none where a gain table says what grades are worth")
        if not 0 < by < own.max_grade:
            raise UsageError(f"--zero-grade: got {by:g}, expected a grade above 0 and below {own.max_grade:g}")
        return _Judged(
            replace(own, max_grade=own.max_grade - by, relevant_grade=own.relevant_grade - by),
            [lowered(response, by) for response in self.responses],
            self.pools
            and {key: {item: grade - by for item, grade in pool.items()} for key, pool in self.pools.items()},
        )


def add_evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `evaluate`."""
    add = parser.add_argument
    add("events", nargs="*", metavar="EVENTS", help="files of events of either kind, .gz too; - for stdin")
    add("--config", type=Path, metavar="FILE", help="TOML file, for events; docs/configuration.md")
    add("--experiment", metavar="E", help="only this one")
    add = parser.add_argument_group("instead of events and a configuration").add_argument
    add("--qrels", metavar="FILE", help=f"what was judged: {' '.join(QRELS)}")
    add("--run", action="append", default=[], metavar="NAME=FILE", help=f"a variant: {' '.join(RUN)}; control first")
    add("--raters", action="store_true", help="the iteration of the qrels names who judged")
    add("--max-grade", type=float, metavar="G", help="the scale's largest grade; default: the largest in the qrels")
    add("--relevant-grade", type=float, metavar="G", help="from here on relevant; default: 1")
    add = parser.add_argument_group("what to compute").add_argument
    add("--metrics", metavar="M,…", help="default: those configured and cg, dcg, ndcg at their cuts; of runs, at 10")
    add("--gain", action="append", choices=(*GAINS, "table"), help="default: all; may be given several times")
    add("--discount", action="append", choices=DISCOUNTS, help="the same")
    add("--ideal", action="append", choices=IDEALS, help="the same")
    add("--zero-grade", type=float, default=0, metavar="G", help="the grade that is worth nothing; default: 0")
    add = parser.add_argument_group("output").add_argument
    add("--by-query", metavar="D", help="what to show by query, named as in the table; default: the primary metric")
    add("--queries", type=int, default=40, metavar="N", help="show the N queries that differ most; default: 40")
    add("--json", action="store_true", help="print one JSON object")
    add("--csv", metavar="FILE", help="write every value, one per line; - for stdout")
    add("--html", metavar="FILE", help="write one page with tables and plots; - for stdout")


def evaluate(arguments: argparse.Namespace, settings: Settings | None) -> int:
    """Print and write metrics per query, rater and variant, and tests over queries; without settings, of runs.

    Raises `UsageError` and `InputRefused` for what cannot be evaluated.
    """
    if [arguments.json, arguments.csv == "-", arguments.html == "-"].count(True) > 1:
        raise UsageError("--json, --csv -, --html -: got several, expected one thing on stdout")
    found = []
    for judged in [_runs(arguments)] if settings is None else _events(arguments, settings):
        own = judged.lowered(arguments.zero_grade)
        definitions = _definitions(arguments, own.settings)
        shown = _shown(arguments, own.settings, definitions)
        try:
            found.append((score(own.responses, own.settings, definitions, own.pools), shown))
        except ValueError as error:
            raise InputRefused(f"{judged.settings.name}: {error}") from error
    evaluations = [evaluation for evaluation, _ in found]
    if arguments.csv is not None:
        write("--csv", arguments.csv, evaluation_csv(evaluations))
    if arguments.html is not None:
        write("--html", arguments.html, render_evaluation_report(found))
    if arguments.json:
        print_json({each.experiment: each.to_json() for each in evaluations})
    elif "-" not in {arguments.csv, arguments.html}:
        console = Console()
        for evaluation, shown in found:
            console.print(evaluation_tables(evaluation, shown, max(arguments.queries, 0), console.width))
    return 0


def _events(arguments: argparse.Namespace, settings: Settings) -> list[_Judged]:
    if arguments.raters or arguments.max_grade is not None or arguments.relevant_grade is not None:
        raise UsageError("--raters, --max-grade, --relevant-grade: expected only with --qrels; events have --config")
    with _source(arguments) as source:
        judged = judged_responses(source, settings, wall_clock)
    return [_Judged(each, judged[each.name]) for each in settings.experiments]


def _runs(arguments: argparse.Namespace) -> _Judged:
    paths: dict[str, str] = {}
    for given in arguments.run:
        name, equals, path = given.partition("=")
        if not (name and equals and path):
            raise UsageError(f"--run: got {given!r}, expected NAME=FILE")
        if name in paths:
            raise UsageError(f"--run: got {name!r} twice, expected a name of its own for every variant")
        paths[name] = path
    if len(paths) < _FEWEST_RUNS:
        raise UsageError(f"--run: got {len(paths)}, expected at least two, the control first")
    if arguments.max_grade is not None and not 0 < arguments.max_grade <= LARGEST_GAIN:
        raise UsageError(f"--max-grade: got {arguments.max_grade:g}, expected above 0 and at most {LARGEST_GAIN:g}")
    pools = read_qrels(arguments.qrels, raters=arguments.raters)
    largest = max(grade for pool in pools.values() for grade in pool.values())
    if largest > LARGEST_GAIN:
        raise InputRefused(f"{arguments.qrels}: a relevance of {largest:g}, expected at most {LARGEST_GAIN:g}")
    runs = {name: read_run(path) for name, path in paths.items()}
    responses = judged_runs(runs, pools)
    for run in runs.values():
        for line in run.remarks(pools):
            print(f"ab-monitor: {line}", file=sys.stderr)
    settings = ExperimentSettings(
        name=Path(arguments.qrels).name,
        control=next(iter(paths)),
        variants=dict.fromkeys(paths, 1 / len(paths)),
        metrics=(MetricSpec("ndcg@10", "ndcg", 10),),
        primary="ndcg@10",
        max_grade=largest if arguments.max_grade is None else arguments.max_grade,
        relevant_grade=1 if arguments.relevant_grade is None else arguments.relevant_grade,
    )
    return _Judged(settings, responses, pools)


def _definitions(arguments: argparse.Namespace, settings: ExperimentSettings) -> tuple[Definition, ...]:
    gains = gains_for(settings)
    for gain in arguments.gain or ():
        if gain not in gains:
            raise UsageError(f"--gain: got {gain!r}, expected one of {', '.join(gains)} for {settings.name}")
    if arguments.metrics is None:
        cuts = dict.fromkeys(metric.k for metric in settings.metrics)
        own = [MetricSpec(f"{measure}@{k}", measure, k) for k in cuts for measure in _MEASURES]
        metrics = (*own, *(metric for metric in settings.metrics if metric not in own))
    else:
        metrics = metric_specs("--metrics", arguments.metrics.split(","))
    return grid(metrics, arguments.gain or gains, arguments.discount or DISCOUNTS, arguments.ideal or IDEALS)


def _shown(
    arguments: argparse.Namespace, settings: ExperimentSettings, definitions: Sequence[Definition]
) -> Definition:
    """Return what to show by query: what was asked for, or what is nearest to the experiment's own primary metric."""
    if arguments.by_query is not None:
        for each in definitions:
            if each.name == arguments.by_query:
                return each
        names = ", ".join(each.name for each in definitions)
        raise UsageError(f"--by-query: got {arguments.by_query!r}, expected one of {names}")
    gain = settings.gain if isinstance(settings.gain, str) else "table"
    ideal = settings.ideal if arguments.qrels is None else "judged"

    def nearness(each: Definition) -> tuple[bool, ...]:
        named = each.metric.name == settings.primary
        return named, each.gain == gain, each.discount == settings.discount, each.ideal == ideal

    return max(definitions, key=nearness)


def write(option: str, path: str, text: str) -> None:
    """Write what an option asks for to its file, or to stdout for "-"; raises `UsageError` where that cannot be."""
    if path == "-":
        sys.stdout.write(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{option}: {path}: {error.strerror}") from error
