"""The panels of traffic and responsiveness (usage, latency, empty responses), categories and items.

The functions take `variant_targets` and `variant_colors` of `grafana.experiment` as arguments, because an import would
be circular.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from grafana.panels import (
    GREEN,
    JSON,
    RED,
    YELLOW,
    column_override,
    dash_override,
    query_target,
    stat_panel,
    table_panel,
    threshold_steps,
    time_series_panel,
)

WINDOW: Final = "30m"
QUANTILES: Final = (0.5, 0.95, 0.99)
_SELECTOR: Final = '{experiment="$experiment"}'
_LATENCY: Final = "abmonitor_response_latency_seconds"

VariantTargets = Callable[..., list[JSON]]
"""The type of `grafana.experiment.variant_targets`."""


def _increase(name: str, labels: str = "variant") -> str:
    return f"max by ({labels}) (delta({name}{_SELECTOR}[{WINDOW}]))"


def traffic_panels(variant_targets: VariantTargets, variant_colors: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels of traffic and responsiveness."""
    age = f"time() - max by (variant) (abmonitor_variant_last_response_timestamp_seconds{_SELECTOR})"
    return [
        stat_panel(
            "Still used: time since the last response",
            "By the responses' own time. A variant that has not answered for an hour while others have is not used any"
            " more: its traffic was switched off, or its bot has stopped. Nights and holidays look the same for all.",
            variant_targets(age, instant=True),
            unit="s",
            decimals=0,
            size=(6, 8),
            thresholds=threshold_steps(GREEN, (900, YELLOW), (3600, RED)),
        ),
        time_series_panel(
            "Responses per second",
            f"Mean over {WINDOW}. Variants should keep their declared proportion to each other. If one sinks to zero"
            " and the others do not, nobody is sent there any more.",
            variant_targets(f"{_increase('abmonitor_responses')} / {30 * 60}"),
            unit="reqps",
            size=(6, 8),
            overrides=variant_colors(),
        ),
        time_series_panel(
            "Latency, p50, p95 and p99",
            f"How long the bot took, as responses say in `latency_ms`, over {WINDOW}; read from a histogram, so a value"
            " is right to its bucket. If a variant's p99 leaves the control's, students of that variant wait: see"
            " “slow-answers” in the runbook. Empty where responses carry no latency.",
            [
                query
                for share in QUANTILES
                for query in variant_targets(
                    f"histogram_quantile({share}, {_increase(f'{_LATENCY}_bucket', 'variant, le')})",
                    f"p{share * 100:.0f}",
                    legend=f"{{{{variant}}}}, p{share * 100:.0f}",
                )
            ],
            unit="s",
            minimum=0,
            size=(6, 8),
            overrides=variant_colors(*(f"p{share * 100:.0f}" for share in QUANTILES)),
        ),
        time_series_panel(
            "Empty answers",
            f"Share of the responses of {WINDOW} without any item. They cannot be rated, so no mean shows them. If it"
            " rises for one variant, its retrieval or its filter fails; if for all, look at what they share.",
            variant_targets(f"{_increase('abmonitor_empty_responses')} / ({_increase('abmonitor_responses')} > 0)"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(6, 8),
            overrides=variant_colors(),
        ),
    ]


def _drift_panel(
    name: str,
    series: str,
    distributions: str,
    explanation: str,
    variant_targets: VariantTargets,
    variant_colors: Callable[..., Sequence[JSON]],
) -> JSON:
    """Return the graph of the distance of a distribution from the reference, with the threshold."""
    return time_series_panel(
        f"{name}: distance from the reference",
        f"Jensen-Shannon distance between {distributions} and those of the reference (by default the experiment's first"
        " seven days), and dashed what chance alone exceeds about once in as many days as alpha says. The alert asks"
        f" the population stability index as well. Above its dashed line {explanation} A step at midnight is a new"
        " day.",
        [
            *variant_targets(_drift_query(f"{series}_distance")),
            *variant_targets(_drift_query(f"{series}_threshold"), "threshold", legend="{{variant}}, threshold"),
        ],
        unit="short",
        decimals=3,
        minimum=0,
        size=(12, 8),
        overrides=(*variant_colors("A", "threshold"), dash_override("threshold"), dash_override("threshold, control")),
    )


def category_panels(variant_targets: VariantTargets, variant_colors: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels on categories; without declared categories all are empty."""
    responses = f"max by (variant, category) (abmonitor_category_responses{_SELECTOR})"
    total = f"sum by (variant) ({responses})"
    return [
        _drift_panel(
            "Categories",
            "drift",
            "the categories of the last whole UTC day",
            "what the variant is asked, or what it takes questions for, has changed: see “category-drift” in the"
            " runbook. Empty where no categories are declared.",
            variant_targets,
            variant_colors,
        ),
        time_series_panel(
            "Categories of the last whole day",
            "Share of each category in the responses of the last whole UTC day, the control dashed. Compare the"
            " variants: the same questions reach both. If one category grows for one variant only, that variant"
            " classifies differently.",
            variant_targets(
                f"{responses} / on (variant) group_left () ({total} > 0)", legend="{{category}}, {{variant}}"
            ),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(12, 8),
            overrides=(dash_override("A, control"),),
        ),
    ]


def item_panels(variant_targets: VariantTargets, variant_colors: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels on recommended items; without the configuration table `items` the last two are empty."""
    return [
        _drift_panel(
            "Recommended items",
            "item_drift",
            "the items shown on the last whole UTC day, counted in 64 groups,",
            "a variant recommends something else than it did: see “item-drift” in the runbook.",
            variant_targets,
            variant_colors,
        ),
        time_series_panel(
            "Different items shown",
            "How many different items a variant has shown over the horizon of `items`, up to an hour ago. If it sinks,"
            " the variant answers everything with the same few. Empty where `items` are not counted.",
            variant_targets(f"max by (variant) (abmonitor_shown_items{_SELECTOR})"),
            unit="short",
            decimals=0,
            minimum=0,
            size=(6, 8),
            overrides=variant_colors(),
        ),
        time_series_panel(
            "Coverage of the catalogue",
            "Share of the catalogue that a variant has shown over the same time. What is never shown is never rated, so"
            " no mean knows whether it is good. Empty where no `catalogue` is given.",
            variant_targets(f"max by (variant) (abmonitor_catalogue_coverage{_SELECTOR})"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            size=(6, 8),
            overrides=variant_colors(),
        ),
    ]


def attention_panel() -> JSON:
    """Return the table of categories by review priority (triage)."""
    selector = "abmonitor_attention_{}{}"
    rows = {name: f"max by (category) ({selector.format(name, _SELECTOR)})" for name in ("priority", "bad_answers")}
    return table_panel(
        "What to look at first",
        "Categories by the priority of their bad answers (nothing found, or nothing good among what was rated), today's"
        " and, with falling weight, those of the ten days before; six a day put a category in the middle. Begin at the"
        " top. Which videos and questions are behind it, `ab-monitor items E --attention 20` says. Empty where the"
        " experiment does not count `items`.",
        [query_target(expr, "", ref=ref, instant=True, table=True) for ref, expr in rows.items()],
        key="category",
        columns={"category": "Category", "Value #priority": "Priority", "Value #bad_answers": "Bad answers today"},
        size=(24, 7),
        overrides=(column_override("Priority", ("decimals", 3)), column_override("Bad answers today", ("decimals", 0))),
    )


def _drift_query(name: str) -> str:
    return f'max by (variant) (abmonitor_{name}{{experiment="$experiment", measure="js"}})'
