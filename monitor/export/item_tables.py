"""Item statistics as tables for a terminal and as objects for `--json` and HTTP; also the review order (triage)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from monitor.analysis import IntraListDiversity, ItemScore, StoredItems, TriageEntry, format_timestamp
from monitor.config import ExperimentSettings
from monitor.errors import UsageError
from monitor.export.presentation import format_count, format_counted, format_percent, format_significant, format_time
from monitor.export.terminal import id_text, simple_table

_MAX_CHARACTERS: Final = 60
SCORE_NOTE: Final = "at least: lower bound of the 95 % interval, which allows for few ratings."
REVIEW_NOTE: Final = (
    "bad: responses without items, or rated responses without a relevant item, of the last 10 days of the experiment. "
    "priority: from 0 to 1, by default the lower bound of the 95 % interval of the share of bad responses."
)


def rating_scale(experiment: ExperimentSettings, lowest_grade: float = 0) -> list[float]:
    """Return the grades of the Bayesian prior; each grade counts as a single rating.

    The grades are those of the gain table; without a table, from `lowest_grade` to `max_grade` in steps of 1. Raises
    `UsageError` for a gain table with one grade, and for a lowest grade outside of 0 to `max_grade`.
    """
    if not isinstance(experiment.gain, str):
        if len(experiment.gain) == 1:
            raise UsageError(
                f"experiments.{experiment.name}.gain: got one grade, expected two at least: bounds need a scale"
            )
        return sorted(experiment.gain)
    if not 0 <= lowest_grade < experiment.max_grade:
        raise UsageError(
            f"--lowest-grade: got {lowest_grade:g}, "
            f"expected 0 or more and below {experiment.max_grade:g}, {experiment.name}"
        )
    steps = math.ceil(round(experiment.max_grade - lowest_grade, 9))
    return [*(lowest_grade + step for step in range(steps)), experiment.max_grade]


def worst_items_json(experiment: str, stored_items: StoredItems, limit: int) -> dict[str, Any]:
    """Return the JSON object of `items E --worst N --json`, with at most `limit` items."""
    return {
        "experiment": experiment,
        "since": None if stored_items.since_ms is None else format_timestamp(stored_items.since_ms),
        **stored_items.to_json(limit),
    }


def attention_json(experiment: str, entries: Sequence[TriageEntry], limit: int) -> dict[str, Any]:
    """Return the JSON object of `items E --attention N --json`, with at most `limit` entries."""
    return {"experiment": experiment, "entries": len(entries), "first": [entry.to_json() for entry in entries[:limit]]}


def render_worst_items(experiment: str, stored_items: StoredItems, limit: int) -> RenderableType:
    """Return a table of the `limit` items with the worst ratings, the worst first."""
    if stored_items.since_ms is None:
        return Text(f"{experiment}: no responses yet")
    table = simple_table(
        "item", "shown", "ratings", "mean grade", "at least", "good ratings", "at least", overflow="fold"
    )
    for item, sums, score in stored_items.worst_items(limit):
        table.add_row(
            short_id_text(item), format_count(sums.shown_count), format_count(score.ratings), *score_cells(score)
        )
    unrated = format_counted(stored_items.count_unrated(), "item was", "items were")
    head = f"{experiment}: the worst rated items since {format_time(stored_items.since_ms)}"
    return Group(
        Text(head, style="bold"),
        table,
        Text(f"{unrated} shown and not rated. {SCORE_NOTE}", style="dim"),
    )


def score_cells(score: ItemScore) -> tuple[str, str, str, str]:
    """Return mean grade and share of good ratings of an item, each followed by the lower bound."""
    return (
        format_significant(score.mean),
        format_significant(score.mean_lower),
        format_percent(score.good_share),
        format_percent(score.good_lower),
    )


def render_attention(experiment: str, entries: Sequence[TriageEntry], limit: int) -> RenderableType:
    """Return a table of the first `limit` entries of the review order."""
    return Group(id_text(experiment, "bold"), review_table(entries[:limit]), Text(REVIEW_NOTE, style="dim"))


def review_table(entries: Sequence[TriageEntry]) -> RenderableType:
    """Return a table of the entries of a review list."""
    table = simple_table(
        "Needs review", "bad today", "bad", "responses", "share bad", "urgency", "priority", overflow="fold"
    )
    for entry in entries:
        table.add_row(
            short_id_text(entry.name),
            format_count(entry.bad_answers_today),
            format_count(entry.bad_answers),
            format_count(entry.responses),
            format_percent(entry.bad_share),
            f"{entry.urgency:.2f}",
            f"{entry.priority:.4f}",
        )
    return table


def render_diversity(diversity_by_variant: Mapping[str, IntraListDiversity], cutoff: int) -> RenderableType:
    """Return a table of the diversity of each variant's answers, computed on their first `cutoff` items."""
    table = simple_table(
        "Diversity", "responses", f"alpha-nDCG@{cutoff}", "similarity", "re-ranked", "changed", overflow="fold"
    )
    for variant, diversity in diversity_by_variant.items():
        statistics = diversity.alpha_ndcg, diversity.similarity, diversity.reranked_alpha_ndcg
        cells = *map(format_significant, statistics), format_percent(diversity.moved)
        table.add_row(id_text(variant), format_count(diversity.answers), *cells)
    note = (
        f"re-ranked: alpha-nDCG@{cutoff} after re-ranking for diversity; changed: responses whose first {cutoff} items "
        "the re-ranking changes."
    )
    return Group(table, Text(note, style="dim"))


def short_id_text(item: str) -> Text:
    """Return the text of an id, cut to 60 characters."""
    text = id_text(item)
    text.truncate(_MAX_CHARACTERS, overflow="ellipsis")
    return text
