"""The page /: all experiments with state, effect, students and age; filtered and sorted by the query of the address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias, get_args

from monitor.analysis import ExperimentSummary, StoreSummary, find_first_entry_day
from monitor.config import DisplaySettings, parse_choice
from monitor.days import day_calendar
from monitor.export import (
    STATE_TITLES,
    UNDECLARED_COLUMNS,
    Headline,
    ServiceHealth,
    describe_archiving,
    describe_headlines,
    format_age,
    format_duration,
    undeclared_notes,
    undeclared_rows,
)
from monitor.stats import metric_label
from monitor.web.effect_bar import EffectBar, choose_scale_limit, effect_bar
from monitor.web.pages import PageContent

_MIN_EXPERIMENTS_TO_FILTER: Final = 6
"""From this number of experiments on, the page has the fields of filter and order."""
_STALE: Final = "stale"
_STATE_CHOICES: Final[Mapping[str, str]] = {**dict[str, str](STATE_TITLES.items()), _STALE: "No new events"}
"""Value of the parameter `state` → title."""
_SortOrder: TypeAlias = Literal["decision", "name", "effect", "students", "start"]
_SORT_TITLES: Final[Mapping[_SortOrder, str]] = {
    "decision": "decisions first",
    "name": "name",
    "effect": "largest effect",
    "students": "most students",
    "start": "newest start",
}
_TONE_ORDER: Final = ("bad", "good", "open")


@dataclass(frozen=True, slots=True)
class ExperimentRow:
    """An experiment of the list."""

    name: str
    primary_label: str
    owner: str
    headlines: Sequence[Headline]
    students: int
    is_split_wrong: bool | None
    """Whether there is a sample ratio mismatch; None without students."""
    since_ms: int | None
    """The first entry day or, before any student, the configured start; None before both are known."""
    last_event_at_ms: int | None
    due_text: str | None
    """A phrase on the responses that were due, if the newest event is older than usual; otherwise None."""
    archiving: str | None

    @property
    def states(self) -> Collection[str]:
        """The values of the parameter `state` that select the experiment."""
        return {*(headline.state for headline in self.headlines), *((_STALE,) if self.due_text else ())}

    @property
    def largest_effect(self) -> float:
        """The largest effect of a treatment, whatever its sign; -1 without any."""
        return max((abs(line.bounds[0]) for line in self.headlines if line.bounds[0] is not None), default=-1.0)

    @property
    def urgency(self) -> int:
        """Position in the order "decisions first": harm, decided and open experiments, then those without a verdict."""
        tones = [_TONE_ORDER.index(headline.tone) for headline in self.headlines]
        return min(tones, default=len(_TONE_ORDER))


_SORT_KEYS: Final[Mapping[_SortOrder, Callable[[ExperimentRow], Any]]] = {
    "decision": lambda row: (row.urgency, row.due_text is None),
    "name": lambda row: row.name.casefold(),
    "effect": lambda row: -row.largest_effect,
    "students": lambda row: -row.students,
    "start": lambda row: -(row.since_ms or 0),
}


def list_page(
    summary: StoreSummary,
    health: ServiceHealth,
    display: DisplaySettings,
    now_ms: int,
    query: Mapping[str, str],
) -> PageContent:
    """Return the content of the page. Raises `UsageError` for a wrong parameter of the query."""
    state = parse_choice("state", query["state"], _STATE_CHOICES) if "state" in query else None
    order = parse_choice("sort", query.get("sort", "decision"), get_args(_SortOrder))
    text = query.get("q", "").strip()

    def rows(experiments: Sequence[ExperimentSummary]) -> list[ExperimentRow]:
        all_rows = [_row(experiment, health, display.min_display_students) for experiment in experiments]
        matching = [row for row in all_rows if text.casefold() in f"{row.name}\n{row.owner}".casefold()]
        return sorted((row for row in matching if state is None or state in row.states), key=_SORT_KEYS[order])

    running, archived = rows(summary.running_experiments), rows(summary.archived_experiments)
    scale_limit = choose_scale_limit([line.bounds for row in (*running, *archived) for line in row.headlines])

    def bar(headline: Headline) -> EffectBar | None:
        return effect_bar(headline.bounds, scale_limit)

    conditions = health.conditions()
    values = {
        "running": running,
        "archived": archived,
        "running_count": len(summary.running_experiments),
        "archived_count": len(summary.archived_experiments),
        "bar": bar,
        "scale_text": f"{100 * scale_limit:g} %",
        "has_filters": len(summary.experiments) >= _MIN_EXPERIMENTS_TO_FILTER or bool(query),
        "text": text,
        "state": state,
        "order": order,
        "state_titles": _STATE_CHOICES,
        "sort_titles": _SORT_TITLES,
        "undeclared_columns": UNDECLARED_COLUMNS,
        "undeclared_rows": undeclared_rows(summary),
        "undeclared_notes": undeclared_notes(summary),
        "conditions": conditions,
        "has_workers": bool(health.service.workers),
        "lag_events": health.lag_events,
        "age_text": lambda at_ms: format_age(at_ms, now_ms),
        "duration_text": lambda at_ms: format_duration(abs(now_ms - at_ms) // 1000),
        "list_ms": now_ms,
    }
    return PageContent("list.html", values)


def _row(experiment: ExperimentSummary, health: ServiceHealth, min_students: int) -> ExperimentRow:
    freshness = health.freshness.get(experiment.name)
    students = sum(variant.students for variant in experiment.variants.values())
    ratio = None if experiment.analysis is None else experiment.analysis.sample_ratio
    return ExperimentRow(
        name=experiment.name,
        primary_label=metric_label(experiment.primary, experiment.texts),
        owner=experiment.owner,
        headlines=describe_headlines(experiment, min_students),
        students=students,
        is_split_wrong=None if ratio is None or not any(phase.students for phase in ratio.phases) else ratio.alarm,
        since_ms=_start_ms(experiment),
        last_event_at_ms=experiment.last_event_at_ms,
        due_text=freshness.describe().partition("; ")[2] if freshness is not None and freshness.is_stale else None,
        archiving=describe_archiving(experiment),
    )


def _start_ms(experiment: ExperimentSummary) -> int | None:
    """Return the start of the first entry day or, before any student, the configured start; None without either."""
    analysis = experiment.analysis
    if analysis is None:
        return experiment.starts_at_ms
    students_by_day = Counter[int]()
    for verdict in list(analysis.verdicts.values())[:1]:
        for phase in verdict.evidence.phases:
            students_by_day.update({counts.day: sum(counts.students.values()) for counts in phase.days})
    first_day = find_first_entry_day(students_by_day)
    return experiment.starts_at_ms if first_day is None else day_calendar(analysis.day_zone).start_ms(first_day)
