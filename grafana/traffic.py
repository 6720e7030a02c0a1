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
            "Time since the last response",
            "Age of each variant's newest response, by the timestamps in the responses. If only one variant is older"
            " than an hour, it is no longer used: its traffic was switched off, or its bot has stopped. At night and on"
            " holidays all variants are old.",
            variant_targets(age, instant=True),
            unit="s",
            decimals=0,
            size=(6, 8),
            thresholds=threshold_steps(GREEN, (900, YELLOW), (3600, RED)),
        ),
        time_series_panel(
            "Responses per second",
            f"Mean over {WINDOW.replace('m', ' minutes')}. Variants should keep their declared proportion. If only one"
            " falls to 0, no student is routed to it.",
            variant_targets(f"{_increase('abmonitor_responses')} / {30 * 60}"),
            unit="reqps",
            size=(6, 8),
            overrides=variant_colors(),
        ),
        time_series_panel(
            "Latency: median, 95th and 99th percentile",
            f"Time the bot took for a response (field `latency_ms`), over {WINDOW.replace('m', ' minutes')}. Values"
            " come from a histogram and are as precise as its buckets. If a variant's 99th percentile (p99) rises above"
            " the control's, its students wait: see “slow-answers” in the runbook. Empty if responses have no latency.",
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
            empty="responses have no latency_ms",
            size=(6, 8),
            overrides=variant_colors(*(f"p{share * 100:.0f}" for share in QUANTILES)),
        ),
        time_series_panel(
            "Empty responses",
            f"Share of responses without any item, over {WINDOW.replace('m', ' minutes')}. They cannot be rated, so no"
            " mean shows them. If only one variant rises, its retrieval or its filter fails. If all rise, look at their"
            " common catalogue and services.",
            variant_targets(f"{_increase('abmonitor_empty_responses')} / ({_increase('abmonitor_responses')} > 0)"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            empty="no responses in the last 30 minutes",
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
        f"Jensen-Shannon distance between {distributions} and the reference (by default the experiment's first 7 days),"
        " without a unit. The dashed line is its threshold: chance alone exceeds it on a share `drift.alpha` of the"
        f" days. Above the line, {explanation} The alert requires the population stability index above its threshold,"
        " too. Values change at midnight.",
        [
            *variant_targets(_drift_query(f"{series}_distance")),
            *variant_targets(_drift_query(f"{series}_threshold"), "threshold", legend="{{variant}}, threshold"),
        ],
        unit="short",
        decimals=3,
        minimum=0,
        empty="not yet: needs a full day after the reference (by default 7 days)",
        size=(12, 8),
        overrides=(*variant_colors("A", "threshold"), dash_override("threshold"), dash_override("threshold, control")),
    )


def category_panels(variant_targets: VariantTargets, variant_colors: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels on categories; without declared categories all are empty."""
    responses = f"max by (variant, category) (abmonitor_category_responses{_SELECTOR})"
    total = f"sum by (variant) ({responses})"
    return [
        _drift_panel(
            "Category drift",
            "drift",
            "the categories of the last full day",
            "students ask about other topics, or the variant classifies questions differently: see “category-drift” in"
            " the runbook. Empty if no categories are declared.",
            variant_targets,
            variant_colors,
        ),
        time_series_panel(
            "Categories of the last full day",
            "Share of each category in the responses of the last full day; the control is dashed. All variants"
            " receive the same mix of questions. If a category grows for one variant only, that variant classifies"
            " differently.",
            variant_targets(
                f"{responses} / on (variant) group_left () ({total} > 0)", legend="{{category}}, {{variant}}"
            ),
            unit="percentunit",
            decimals=1,
            minimum=0,
            empty="not yet: needs a full day after the reference, and declared categories",
            size=(12, 8),
            overrides=(dash_override("A, control"),),
        ),
    ]


def item_panels(variant_targets: VariantTargets, variant_colors: Callable[..., Sequence[JSON]]) -> list[JSON]:
    """Return the panels on recommended items; without the configuration table `items` the last two are empty."""
    return [
        _drift_panel(
            "Item drift",
            "item_drift",
            "the items shown on the last full day (counted in 64 groups)",
            "the variant recommends other items than before: see “item-drift” in the runbook.",
            variant_targets,
            variant_colors,
        ),
        time_series_panel(
            "Distinct items shown",
            "Number of distinct items that a variant has shown within the configured `items` horizon. The value may be"
            " up to an hour old. If it falls, the variant recommends the same few items. Empty if `items` is not"
            " configured.",
            variant_targets(f"max by (variant) (abmonitor_shown_items{_SELECTOR})"),
            unit="short",
            decimals=0,
            minimum=0,
            empty="items are not configured",
            size=(6, 8),
            overrides=variant_colors(),
        ),
        time_series_panel(
            "Catalogue coverage",
            "Share of the catalogue that a variant has shown within the same horizon. Items that are never shown are"
            " never rated, so no mean covers them. Empty if no `catalogue` is configured.",
            variant_targets(f"max by (variant) (abmonitor_catalogue_coverage{_SELECTOR})"),
            unit="percentunit",
            decimals=1,
            minimum=0,
            empty="no catalogue is configured",
            size=(6, 8),
            overrides=variant_colors(),
        ),
    ]


def attention_panel() -> JSON:
    """Return the table of categories by review priority (triage)."""
    selector = "abmonitor_attention_{}{}"
    rows = {name: f"max by (category) ({selector.format(name, _SELECTOR)})" for name in ("priority", "bad_answers")}
    return table_panel(
        "Needs review",
        "Categories with bad responses: responses without any item, or rated without a relevant item. The priority (0"
        " to 1) is the lower bound of their share among the responses of the last 10 days. Begin with the highest"
        " priority. `ab-monitor items EXPERIMENT --attention 20 --config FILE` lists the items concerned. Empty if"
        " `items` is not configured.",
        [query_target(expr, "", ref=ref, instant=True, table=True) for ref, expr in rows.items()],
        key="category",
        columns={"category": "Category", "Value #priority": "Priority", "Value #bad_answers": "Bad responses today"},
        size=(24, 7),
        overrides=(
            column_override("Priority", ("decimals", 3)),
            column_override("Bad responses today", ("decimals", 0)),
        ),
    )


def _drift_query(name: str) -> str:
    return f'max by (variant) (abmonitor_{name}{{experiment="$experiment", measure="js"}})'
