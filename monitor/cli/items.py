"""`ab-monitor items`: ratings, triage, coverage and diversity of items, from event files or from the store."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, get_args

import msgspec

from monitor.analysis import (
    Drift,
    IntraListDiversity,
    ItemOverview,
    ReviewRanking,
    TriageKind,
    count_students_by_category,
    measure_drift,
)
from monitor.cli.event_files import EVENT_FILES_HELP, open_event_files
from monitor.clock import wall_clock
from monitor.config import Settings, parse_instant_ms, read_lines
from monitor.errors import UsageError, count_noun
from monitor.export import (
    REVIEW_NOTE,
    SCORE_NOTE,
    attention_json,
    format_count,
    format_counted,
    format_percent,
    format_significant,
    print_json,
    rating_scale,
    render_attention,
    render_diversity,
    render_worst_items,
    review_table,
    score_cells,
    short_id_text,
    simple_table,
    stdout_console,
    worst_items_json,
)
from monitor.offline import read_responses_with_feedback
from monitor.state import open_store_reader

_DIVERSITY_CUT: Final = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's flags."""
    add = parser.add_argument
    add("events", nargs="*", metavar="EVENTS", help=EVENT_FILES_HELP)
    add("--worst", type=int, metavar="N", help="print the N worst rated items in the store; EVENTS is an experiment")
    add(
        "--attention",
        type=int,
        metavar="N",
        help="print the N items or categories in the store that need review most; EVENTS is an experiment",
    )
    add("--experiment", metavar="E", help="print only this experiment")
    add("--json", action="store_true", help="print one JSON object")
    add("--by", choices=get_args(TriageKind), help="entries of the review list; default: query, with --attention item")
    add(
        "--rank-by",
        choices=get_args(ReviewRanking),
        default="share",
        help="order of the review list: share of bad responses (lower bound of the 95 %% interval), or urgency by "
        "their number; default: share",
    )
    add("--lowest-grade", type=float, default=0, metavar="G", help="smallest grade of the scale; default: 0")
    add("--catalogue", metavar="FILE", help="file with all item ids, one per line, for the coverage")
    add("--topics", metavar="FILE", help="JSON object, item → list of topics, for the diversity of responses")
    add(
        "--mmr-lambda",
        type=float,
        default=0.7,
        metavar="L",
        help="weight λ of relevance when re-ranking by maximal marginal relevance, from 0 (diversity only) to 1 "
        "(relevance only); default: 0.7",
    )
    add("--since", metavar="T", help="compare the categories since this ISO 8601 time with the time before")
    add("--top", type=int, default=20, metavar="N", help="print the first N entries of each list; default: 20")


def run(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the item statistics of event files, or with `--worst` or `--attention` the statistics in the store."""
    if arguments.worst is not None or arguments.attention is not None:
        return _print_stored_items(arguments, settings)
    if not arguments.events:
        raise UsageError("items: got no argument, expected EVENTS, or an experiment E with --worst N or --attention N")
    for path in arguments.events:
        if path in {experiment.name for experiment in settings.experiments} and not Path(path).exists():
            raise UsageError(f"items: {path} is an experiment and no file: add --worst N or --attention N")
    return _print_items_of_files(arguments, settings)


def _print_stored_items(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print the worst items, or the first triage entries, of an experiment in the store."""
    count = arguments.attention if arguments.worst is None else arguments.worst
    has_file_options = (
        arguments.catalogue is not None or arguments.since is not None or arguments.experiment is not None
    )
    has_both_lists = arguments.worst is not None and arguments.attention is not None
    if len(arguments.events) != 1 or has_file_options or has_both_lists:
        raise UsageError("items: expected one experiment E with --worst N or --attention N, nothing of files")
    if count < 1 or arguments.by == "query":
        raise UsageError(f"items: got {count} by {arguments.by or 'item'}, expected 1 or more, by item or category")
    (experiment_name,) = arguments.events
    with open_store_reader(settings, wall_clock, experiment=experiment_name, argument="items E") as reader:
        stored_items = reader.item_reader(experiment_name)
        if arguments.worst is not None:
            statistics = stored_items.read_items(rating_scale(reader.experiments[0], arguments.lowest_grade))
            json_object = worst_items_json(experiment_name, statistics, count)
            table = render_worst_items(experiment_name, statistics, count)
        else:
            entries = stored_items.read_review_ranking(arguments.by or "item", arguments.rank_by)
            json_object = attention_json(experiment_name, entries, count)
            table = render_attention(experiment_name, entries, count)
    if arguments.json:
        print_json(json_object)
    else:
        stdout_console(os.environ).print(table)
    return 0


def _print_items_of_files(arguments: argparse.Namespace, settings: Settings) -> int:
    """Print ratings, triage entries, coverage, diversity and category drift of the events in files."""
    if arguments.top < 1:
        raise UsageError(f"--top: got {arguments.top}, expected at least 1")
    since_ms = None if arguments.since is None else parse_instant_ms("--since", arguments.since)
    catalogue = frozenset() if arguments.catalogue is None else read_lines("--catalogue", arguments.catalogue)
    item_topics = _read_item_topics(arguments.topics)
    if not 0 <= arguments.mmr_lambda <= 1:
        raise UsageError(f"--mmr-lambda: got {arguments.mmr_lambda:g}, expected a number from 0 to 1")
    scales = {experiment.name: rating_scale(experiment, arguments.lowest_grade) for experiment in settings.experiments}
    with open_event_files(arguments.events, settings) as source:
        responses_by_experiment = read_responses_with_feedback(source, settings, wall_clock)
    json_object: dict[str, Any] = {}
    for experiment in settings.experiments:
        responses = responses_by_experiment[experiment.name]
        overview = ItemOverview.of(
            responses,
            experiment.variants,
            relevant_grade=experiment.relevant_grade,
            prior_grades=scales[experiment.name],
            triage_kind=arguments.by or "query",
            calendar=experiment.calendar,
            ranking=arguments.rank_by,
        )
        drift = None if since_ms is None else measure_drift(*count_students_by_category(responses, since_ms))
        experiment_json = {**overview.to_json(catalogue, arguments.top), "drift": drift and asdict(drift)}
        json_object[experiment.name] = experiment_json
        diversities = {
            variant: IntraListDiversity.of(
                (response for response in responses if response.variant == variant),
                item_topics,
                k=_DIVERSITY_CUT,
                relevance_weight=arguments.mmr_lambda,
            )
            for variant in (experiment.variants if item_topics else ())
        }
        if item_topics:
            experiment_json["variety"] = {variant: asdict(diversity) for variant, diversity in diversities.items()}
        if not arguments.json:
            _print_overview(experiment.name, overview, catalogue, arguments.top)
            if drift is not None:
                _print_drift(drift)
            if item_topics:
                stdout_console(os.environ).print(render_diversity(diversities, _DIVERSITY_CUT))
    if arguments.json:
        print_json(json_object)
    return 0


def _read_item_topics(path: str | None) -> Mapping[str, Sequence[str]]:
    """Return item → topics of a JSON file; empty without a file. Raises `UsageError` if the file cannot be read."""
    if path is None:
        return {}
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, list[str]])
    except OSError as error:
        raise UsageError(f"--topics: {path}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"--topics: {path}: expected a JSON object, item → list of topics ({error})") from error


def _print_overview(experiment_name: str, overview: ItemOverview, catalogue: frozenset[str], top: int) -> None:
    """Print tables of the coverage, the ratings and the triage entries; `top` rows of each list."""
    console = stdout_console(os.environ)
    table = simple_table(f"{experiment_name}: variant", "responses", "without items", "distinct items", "coverage")
    for variant, shown_items in overview.shown_items.items():
        empty_share, coverage = map(format_percent, (shown_items.empty_share, shown_items.coverage(catalogue)))
        response_count, item_count = map(format_count, (shown_items.responses, len(shown_items.counts)))
        table.add_row(variant, response_count, empty_share, item_count, coverage)
    console.print(table)
    table = simple_table("item", "ratings", "mean grade", "at least", "good ratings", "at least")
    for item, score in overview.scores[:top]:
        table.add_row(short_id_text(item), format_count(score.ratings), *score_cells(score))
    console.print(table)
    rated = format_counted(len(overview.scores), "item is", "items are")
    unrated = format_counted(overview.unrated_count, "was", "were")
    console.print(f"{rated} rated; {unrated} shown and not rated. {SCORE_NOTE}")
    console.print(review_table(overview.triage_entries[:top]))
    console.print(REVIEW_NOTE)


def _print_drift(drift: Drift) -> None:
    """Print the distances between the distributions of categories before and since a time."""
    console = stdout_console(os.environ)
    table = simple_table("Change of categories", "distance", "limit", "p")
    for measure, distance in (("population stability index", drift.psi), ("Jensen-Shannon distance", drift.js)):
        if distance is None:
            table.add_row(measure, "–", "–", "–")
            continue
        numbers = map(format_significant, (distance.value, distance.threshold, distance.p))
        table.add_row(measure + (" (changed)" if distance.exceeded else ""), *numbers)
    console.print(table)
    line = (
        f"{format_counted(drift.observations, 'student')} since that time, {format_count(drift.reference)} before, "
        f"{count_noun(drift.cells, 'category', 'categories')}. "
        "Up to the limit, chance explains the distance."
    )
    console.print(line)
