"""Alerts about how variants answer: with nothing, late, or otherwise than they did.

The first two compare a variant with the control of the same hours and, because the control may be ill as well, with
its own day before. They are about the bot, not about what students think of it.
"""

from __future__ import annotations

from typing import Final

from deploy.alerting.product import CONTROL, ERRORS
from deploy.alerting.rules import Alert, Recording
from grafana import boards

MORE_THAN_CONTROL: Final = 0.05
MORE_THAN_PAST: Final = 0.1
"""Shares of all responses."""
FEWEST: Final = 100
"""Responses in the window from which on something is said."""
TIMES_CONTROL: Final = 1.5
TIMES_PAST: Final = 2
SLOWER_S: Final = 0.5
"""So much is nobody's imagination."""

_EMPTY: Final = "experiment_variant:abmonitor_empty_responses"
_RESPONSES: Final = "experiment_variant:abmonitor_responses"
SHARE: Final = f"{_EMPTY}:share2h"
RECENT: Final = "15m"
"""The window in which the distance must still be there, so that an alert ends soon after its cause."""
RECENT_SHARE: Final = f"{_EMPTY}:share{RECENT}"
VARIANCE: Final = f"{_EMPTY}:share2h_variance"
PAST_SHARE: Final = f"{_EMPTY}:share1d_past"
CONTROL_SHARE: Final = "experiment:abmonitor_empty_responses:share2h_control"
CONTROL_VARIANCE: Final = "experiment:abmonitor_empty_responses:share2h_variance_control"
P95: Final = "experiment_variant:abmonitor_response_latency_seconds:p95_1h"
RECENT_P95: Final = f"experiment_variant:abmonitor_response_latency_seconds:p95_{RECENT}"
CONTROL_P95: Final = "experiment:abmonitor_response_latency_seconds:p95_1h_control"


def _of_control(series: str) -> str:
    return f"""
        max by (experiment) (
          {series}
          and on (experiment, variant)
          {CONTROL}
        )
    """


def _drift_alert(name: str, concern: str, series: str, *, summary: str, description: str) -> Alert:
    """Return an alert on variants of which both distances pass their thresholds: they err differently in rare cells."""
    return Alert(
        name=name,
        concern=concern,
        severity="warning",
        team="product",
        expr=f"""
        min by (experiment, variant) (
          max by (experiment, variant, measure) (abmonitor_{series}_distance)
          > bool
          max by (experiment, variant, measure) (abmonitor_{series}_threshold)
        ) == 1
        and on (experiment)
        (time() - max by (experiment) (abmonitor_variant_last_event_timestamp_seconds) < 86400)
    """,
        pending="10m",
        keep="10m",
        summary=summary,
        description=description,
        board=boards.EXPERIMENT,
        variables=("experiment",),
        shown="7d",
    )


RECORDINGS: Final = (
    *(
        Recording(
            f"{_EMPTY}:added{window}",
            f"clamp_min(max by (experiment, variant) (delta(abmonitor_empty_responses[{window}])), 0)",
        )
        for window in (RECENT, "2h", "1d")
    ),
    Recording(SHARE, f"{_EMPTY}:added2h / ({_RESPONSES}:added2h >= {FEWEST})"),
    Recording(RECENT_SHARE, f"{_EMPTY}:added{RECENT} / ({_RESPONSES}:added{RECENT} > 0)"),
    Recording(VARIANCE, f"{SHARE} * (1 - {SHARE}) / ({_RESPONSES}:added2h > 0)"),
    Recording(PAST_SHARE, f"{_EMPTY}:added1d offset 2h / ({_RESPONSES}:added1d offset 2h >= {FEWEST})"),
    Recording(CONTROL_SHARE, _of_control(SHARE)),
    Recording(CONTROL_VARIANCE, _of_control(VARIANCE)),
    Recording(
        RECENT_P95,
        f"""
        histogram_quantile(
          0.95, max by (experiment, variant, le) (delta(abmonitor_response_latency_seconds_bucket[{RECENT}]))
        )
        """,
    ),
    Recording(
        P95,
        f"""
        histogram_quantile(
          0.95, max by (experiment, variant, le) (delta(abmonitor_response_latency_seconds_bucket[1h]))
        )
        and
        max by (experiment, variant) (delta(abmonitor_response_latency_seconds_count[1h])) >= {FEWEST}
        """,
    ),
    Recording(CONTROL_P95, _of_control(P95)),
)

ALERTS: Final = (
    Alert(
        name="AbMonitorEmptyAnswers",
        concern="empty-answers",
        severity="warning",
        team="operations",
        expr=f"""
        (
          {SHARE}
          and
          {SHARE} - on (experiment) group_left () {CONTROL_SHARE} > {MORE_THAN_CONTROL}
          and
          {RECENT_SHARE} - on (experiment) group_left () {CONTROL_SHARE} > {MORE_THAN_CONTROL}
          and
          ({SHARE} - on (experiment) group_left () {CONTROL_SHARE})
          / sqrt({VARIANCE} + on (experiment) group_left () {CONTROL_VARIANCE}) > {ERRORS}
        )
        or
        (
          {SHARE}
          and
          {SHARE} - {PAST_SHARE} > {MORE_THAN_PAST}
          and
          {RECENT_SHARE} - {PAST_SHARE} > {MORE_THAN_PAST}
          and
          ({SHARE} - {PAST_SHARE}) / sqrt({VARIANCE}) > {ERRORS}
        )
        """,
        pending="10m",
        keep="5m",
        summary="{{ $value | humanizePercentage }} of the responses of {{ $labels.variant }} ({{ $labels.experiment }})"
        " have no item",
        description=f"The share of empty responses in the last 2 hours is more than {MORE_THAN_CONTROL * 100:.0f}"
        f" percentage points above the control's, or more than {MORE_THAN_PAST * 100:.0f} above this variant's own of"
        " the day before. Empty responses cannot be rated, so no mean shows them.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
    ),
    Alert(
        name="AbMonitorSlowAnswers",
        concern="slow-answers",
        severity="warning",
        team="operations",
        expr=f"""
        (
          {P95} > on (experiment) group_left () {TIMES_CONTROL} * {CONTROL_P95}
          and
          {RECENT_P95} - on (experiment) group_left () {CONTROL_P95} > {SLOWER_S}
        )
        or
        (
          {P95} > {TIMES_PAST} * avg_over_time({P95}[1d] offset 2h)
          and
          {RECENT_P95} - avg_over_time({P95}[1d] offset 2h) > {SLOWER_S}
        )
        """,
        pending="15m",
        keep="5m",
        summary="{{ $labels.variant }} ({{ $labels.experiment }}) is slow: 95th percentile"
        " {{ $value | humanizeDuration }}",
        description="95 % of its responses of the last hour took at most this time. It is more than"
        f" {TIMES_CONTROL} times the control's, or more than {TIMES_PAST} times its own of the day before, and at least"
        f" {SLOWER_S} s longer. Students who wait leave and do not rate.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
    ),
    _drift_alert(
        "AbMonitorCategoryDrift",
        "category-drift",
        "drift",
        summary="The categories of {{ $labels.variant }} ({{ $labels.experiment }}) have changed",
        description="The categories of the last full day differ from the reference more than chance explains, by"
        " both distances (population stability index and Jensen-Shannon). Either students ask about other topics, or"
        " the variant classifies their questions differently.",
    ),
    _drift_alert(
        "AbMonitorItemDrift",
        "item-drift",
        "item_drift",
        summary="The items that {{ $labels.variant }} ({{ $labels.experiment }}) recommends have changed",
        description="The items shown on the last full day differ from the reference more than chance explains, by"
        " both distances (population stability index and Jensen-Shannon). Either students ask about other topics, or"
        " the variant recommends other items for the same topics.",
    ),
)
