"""Items and what to look at first, from the store: tables for a terminal, objects for `--json` and HTTP."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from monitor.analysis import Entry, StoredItems, Variety, iso
from monitor.config import ExperimentSettings
from monitor.errors import UsageError
from monitor.export.presentation import short
from monitor.export.terminal import simple_table

_WIDEST: Final = 60


def scale(own: ExperimentSettings, lowest: float = 0) -> list[float]:
    """Return the grades that the prior gives once each: those of the gain table, or the whole steps of the scale."""
    if not isinstance(own.gain, str):
        if len(own.gain) == 1:
            raise UsageError(f"experiments.{own.name}.gain: got one grade, expected two at least: bounds need a scale")
        return sorted(own.gain)
    if not 0 <= lowest < own.max_grade:
        raise UsageError(f"--lowest-grade: got {lowest:g}, expected 0 or more and below {own.max_grade:g}, {own.name}")
    steps = math.ceil(round(own.max_grade - lowest, 9))
    return [*(lowest + step for step in range(steps)), own.max_grade]


def items_json(experiment: str, found: StoredItems, n: int) -> dict[str, Any]:
    """Return the object of `items E --worst N --json`."""
    return {
        "experiment": experiment,
        "since": None if found.since_ms is None else iso(found.since_ms),
        **found.to_json(n),
    }


def attention_json(experiment: str, entries: Sequence[Entry], n: int) -> dict[str, Any]:
    """Return the object of `items E --attention N --json`."""
    return {"experiment": experiment, "entries": len(entries), "first": [entry.to_json() for entry in entries[:n]]}


def render_items(experiment: str, found: StoredItems, n: int) -> RenderableType:
    """Return the n worst items as a table."""
    if found.since_ms is None:
        return Text(f"{experiment}: no responses yet")
    table = simple_table("item", "shown", "ratings", "mean", "95 % from", "good", "95 % from", overflow="fold")
    for item, sums, score in found.worst(n):
        numbers = map(short, (score.mean, score.mean_lower, score.good_share, score.good_lower))
        table.add_row(printable(item), str(sums.shown), str(score.ratings), *numbers)
    head = f"{experiment}: the worst rated items since {iso(found.since_ms)[:10]}"
    return Group(
        Text(head, style="bold"), table, Text(f"{found.unrated()} items were shown and not rated", style="dim")
    )


def render_attention(experiment: str, entries: Sequence[Entry], n: int) -> RenderableType:
    """Return the first n entries as a table."""
    table = simple_table("look at first", "bad that day", "history", "urgency", "priority", overflow="fold")
    for entry in entries[:n]:
        table.add_row(
            printable(entry.name), str(entry.today), *map(short, (entry.history, entry.urgency, entry.priority))
        )
    return Group(Text(experiment, style="bold"), table)


def render_variety(varied: Mapping[str, Variety], k: int) -> RenderableType:
    """Return how varied each variant's answers are, cut at k, as a table."""
    table = simple_table("variety", "answers", f"alpha-nDCG@{k}", "similarity", "re-ranked", "moved", overflow="fold")
    for variant, each in varied.items():
        numbers = map(short, (each.alpha_ndcg, each.similarity, each.reranked_alpha_ndcg, each.moved))
        table.add_row(Text(variant), str(each.answers), *numbers)
    return table


def printable(item: str) -> Text:
    """Return an id for a terminal: anybody may write ids, so neither control characters nor pages of one."""
    shown = "".join(each if each.isprintable() else "\ufffd" for each in item)
    return Text(shown if len(shown) <= _WIDEST else f"{shown[: _WIDEST - 1]}…")
