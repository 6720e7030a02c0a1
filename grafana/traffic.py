"""The panels of traffic and responsiveness: is a variant still used, how fast does it answer, how often with nothing.

The queries of a variant are made by `grafana.experiment`, which knows how the control is told apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grafana.panels import GREEN, JSON, RED, YELLOW, column, dashed, graph, stat, steps, table, target

WINDOW: Final = "30m"
QUANTILES: Final = (0.5, 0.95, 0.99)
_SELECTOR: Final = '{experiment="$experiment"}'
_LATENCY: Final = "abmonitor_response_latency_seconds"

Arms = Callable[..., list[JSON]]
"""`grafana.experiment.arms`: the queries of an expression per variant, the control apart."""


def _added(name: str, labels: str = "variant") -> str:
    return f"max by ({labels}) (delta({name}{_SELECTOR}[{WINDOW}]))"


def panels(arms: Arms, overrides: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels; `overrides` gives variants their colours, for the refs that it is given."""
    age = f"time() - max by (variant) (abmonitor_variant_last_response_timestamp_seconds{_SELECTOR})"
    return [
        stat(
            "Still used: time since the last response",
            "By the responses' own time. A variant that has not answered for an hour while others have is not used any"
            " more: its traffic was switched off, or its bot has stopped. Nights and holidays look the same for all.",
            arms(age, instant=True),
            unit="s",
            decimals=0,
            size=(6, 8),
            thresholds=steps(GREEN, (900, YELLOW), (3600, RED)),
        ),
        graph(
            "Responses per second",
            f"Mean over {WINDOW}. Variants should keep their declared proportion to each other. If one sinks to zero"
            " and the others do not, nobody is sent there any more.",
            arms(f"{_added('abmonitor_responses')} / {30 * 60}"),
            unit="reqps",
            size=(6, 8),
            overrides=overrides(),
        ),
        graph(
            "Latency, p50, p95 and p99",
            f"How long the bot took, as responses say in `latency_ms`, over {WINDOW}; read from a histogram, so a value"
            " is right to its bucket. If a variant's p99 leaves the control's, students of that variant wait: see"
            " “slow-answers” in the runbook. Empty where responses carry no latency.",
            [
                query
                for share in QUANTILES
                for query in arms(
                    f"histogram_quantile({share}, {_added(f'{_LATENCY}_bucket', 'variant, le')})",
                    f"p{share * 100:.0f}",
                    legend=f"{{{{variant}}}}, p{share * 100:.0f}",
                )
            ],
            unit="s",
            minimum=0,
            size=(6, 8),
            overrides=overrides(*(f"p{share * 100:.0f}" for share in QUANTILES)),
        ),
        graph(
            "Empty answers",
            f"Share of the responses of {WINDOW} without any item. They cannot be rated, so no mean shows them. If it"
            " rises for one variant, its retrieval or its filter fails; if for all, look at what they share.",
            arms(f"{_added('abmonitor_empty_responses')} / ({_added('abmonitor_responses')} > 0)"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(6, 8),
            overrides=overrides(),
        ),
    ]


def _distance(
    name: str, series: str, what: str, means: str, arms: Arms, overrides: Callable[..., Sequence[JSON]]
) -> JSON:
    """Return the panel of how far something is from its reference."""
    return graph(
        f"{name}: distance from the reference",
        f"Jensen-Shannon distance between {what} and those of the reference (by default the experiment's first seven"
        " days), and dashed what chance alone exceeds about once in as many days as alpha says. The alert asks the"
        f" population stability index as well. Above its dashed line {means} A step at midnight is a new day.",
        [
            *arms(_drift(f"{series}_distance")),
            *arms(_drift(f"{series}_threshold"), "threshold", legend="{{variant}}, threshold"),
        ],
        unit="short",
        decimals=3,
        minimum=0,
        size=(12, 8),
        overrides=(*overrides("A", "threshold"), dashed("threshold"), dashed("threshold, control")),
    )


def category_panels(arms: Arms, overrides: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels of what the answers are about; they are empty where no categories are declared."""
    responses = f"max by (variant, category) (abmonitor_category_responses{_SELECTOR})"
    total = f"sum by (variant) ({responses})"
    return [
        _distance(
            "Categories",
            "drift",
            "the categories of the last whole UTC day",
            "what the variant is asked, or what it takes questions for, has changed: see “category-drift” in the"
            " runbook. Empty where no categories are declared.",
            arms,
            overrides,
        ),
        graph(
            "Categories of the last whole day",
            "Share of each category in the responses of the last whole UTC day, the control dashed. Compare the"
            " variants: the same questions reach both. If one category grows for one variant only, that variant"
            " classifies differently.",
            arms(f"{responses} / on (variant) group_left () ({total} > 0)", legend="{{category}}, {{variant}}"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(12, 8),
            overrides=(dashed("A, control"),),
        ),
    ]


def item_panels(arms: Arms, overrides: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels of what is recommended; the last two are empty where `items` are not counted."""
    return [
        _distance(
            "Recommended items",
            "item_drift",
            "the items shown on the last whole UTC day, counted in 64 groups,",
            "a variant recommends something else than it did: see “item-drift” in the runbook.",
            arms,
            overrides,
        ),
        graph(
            "Different items shown",
            "How many different items a variant has shown over the horizon of `items`, up to an hour ago. If it sinks,"
            " the variant answers everything with the same few. Empty where `items` are not counted.",
            arms(f"max by (variant) (abmonitor_shown_items{_SELECTOR})"),
            unit="short",
            decimals=0,
            minimum=0,
            size=(6, 8),
            overrides=overrides(),
        ),
        graph(
            "Coverage of the catalogue",
            "Share of the catalogue that a variant has shown over the same time. What is never shown is never rated, so"
            " no mean knows whether it is good. Empty where no `catalogue` is given.",
            arms(f"max by (variant) (abmonitor_catalogue_coverage{_SELECTOR})"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(6, 8),
            overrides=overrides(),
        ),
    ]


def attention() -> JSON:
    """Return the table of what to look at first."""
    selector = "abmonitor_attention_{}{}"
    rows = {name: f"max by (category) ({selector.format(name, _SELECTOR)})" for name in ("priority", "bad_answers")}
    return table(
        "What to look at first",
        "Categories by the priority of their bad answers (nothing found, or nothing good among what was rated), today's"
        " and, with falling weight, those of the ten days before; six a day put a category in the middle. Begin at the"
        " top. Which videos and questions are behind it, `ab-monitor items E --attention 20` says. Empty where the"
        " experiment does not count `items`.",
        [target(expr, "", ref=ref, instant=True, table=True) for ref, expr in rows.items()],
        key="category",
        columns={"category": "Category", "Value #priority": "Priority", "Value #bad_answers": "Bad answers today"},
        size=(24, 7),
        overrides=(column("Priority", ("decimals", 3)), column("Bad answers today", ("decimals", 0))),
    )


def _drift(what: str) -> str:
    return f'max by (variant) (abmonitor_{what}{{experiment="$experiment", measure="js"}})'
