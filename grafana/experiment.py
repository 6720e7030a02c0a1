"""The board "AB Monitor: experiment": the variants of an experiment side by side.

All replicas export the same series on /metrics/experiments, so queries reduce them by `max by (variant)`. The series
are gauges, because a revised reaction may lower a sum: windows over gauges are `delta()`, never `rate()`.

The control has separate queries, so that panels can draw the control in grey under any name.
"""

from __future__ import annotations

from deploy.alerting.product import FAST, READABLE_COUNT, SLOW
from grafana import boards, decision, pipeline, traffic, variables
from grafana.panels import (
    CONTROL_GREY,
    GREEN,
    JSON,
    RED,
    TREATMENT_BLUE,
    YELLOW,
    color_override,
    control_color_override,
    dash_override,
    query_target,
    stat_panel,
    text_override,
    threshold_steps,
    time_series_panel,
)

EXPERIMENT_SELECTOR = 'experiment="$experiment"'
METRIC_SELECTOR = f'{EXPERIMENT_SELECTOR}, metric="$metric"'
DECAYED_SELECTOR = f'{METRIC_SELECTOR}, decay="$decay"'
ALL_TIME_SELECTOR = f'{METRIC_SELECTOR}, decay="none"'
CONTROL_QUERY = (
    f"label_replace(max by (control) (abmonitor_experiment_info{{{EXPERIMENT_SELECTOR}}}), "
    '"variant", "$1", "control", "(.+)")'
)
HAS_INFO = f"max(abmonitor_experiment_info{{{EXPERIMENT_SELECTOR}}})"

AGE_THRESHOLDS = threshold_steps(GREEN, (900, YELLOW), (3600, RED))
MIN_EFFECTIVE_COUNT = 100
"""The alerts ignore decayed means with fewer effective responses, too."""
BAND_STANDARD_ERRORS = 3.5
"""The decayed mean of a constant stream of independent responses stays within this band for 14 half-lives in 95 % of
simulations."""


def by_variant(name: str, selector: str = EXPERIMENT_SELECTOR) -> str:
    """Return the query of a gauge by variant, reduced over replicas."""
    return f"max by (variant) ({name}{{{selector}}})"


def per_response(name: str, selector: str = EXPERIMENT_SELECTOR) -> str:
    """Return the query of a gauge divided by the responses of the variant; absent before the first response."""
    return f"{by_variant(name, selector)} / ({by_variant('abmonitor_responses')} > 0)"


def difference_from_control(selector: str) -> str:
    """Return the query of the mean of each treatment minus the mean of the control."""
    mean = by_variant("abmonitor_metric_mean", selector)
    return (
        f"{mean} - on () group_left () max({mean} and on (variant) {CONTROL_QUERY}) unless on (variant) {CONTROL_QUERY}"
    )


def variant_targets(expr: str, ref: str = "A", *, legend: str = "{{variant}}", instant: bool = False) -> list[JSON]:
    """Return two targets of an expression by variant: `ref` for the treatments, `ref, control` for the control.

    After a missing scrape, `abmonitor_experiment_info` is absent while windows still have values. Without the condition
    on that metric, the control would appear among the treatments.
    """
    treatments = f"{expr} unless on (variant) {CONTROL_QUERY} and on () {HAS_INFO}"
    return [
        query_target(f"{expr} and on (variant) {CONTROL_QUERY}", legend, ref=f"{ref}, control", instant=instant),
        query_target(treatments, legend, ref=ref, instant=instant),
    ]


def variant_colors(*refs: str) -> tuple[JSON, ...]:
    """Return the overrides for the colours of variants: grey for the control, blue for a variant named `treatment`.

    Grafana derives the colours of further variants from their names, so colours are equal in all panels.
    """
    return (
        color_override("^treatment(,|$)", TREATMENT_BLUE),
        *(control_color_override(f"{ref}, control") for ref in refs or ("A",)),
    )


def event_age_by_variant() -> str:
    """Return the query of the seconds since the newest event, by variant."""
    return f"time() - {by_variant('abmonitor_variant_last_event_timestamp_seconds')}"


def range_mean_panel() -> JSON:
    """Return the panel with the mean of the responses added in the time range of the board, by variant."""
    added_sum = f"delta(abmonitor_metric_sum{{{METRIC_SELECTOR}}}[$__range])"
    added_count = f"delta(abmonitor_metric_count{{{METRIC_SELECTOR}}}[$__range])"
    return stat_panel(
        "$metric in the shown time range",
        "Mean of $metric over the values that were added in the time range of the board. To see the effect of a"
        " deployment, select the time since then. Empty without new values. This is a description, not a verdict.",
        variant_targets(f"max by (variant) ({added_sum} / ({added_count} > 0))", instant=True),
        unit="short",
        decimals=3,
        empty="no new values",
        size=(24, 4),
        overrides=variant_colors(),
    )


def student_count_panel() -> JSON:
    """Return the panel with the current number of students by variant."""
    return stat_panel(
        "Students",
        "Students who were shown each variant, all time. With fewer than a few hundred students per variant, the"
        " differences on this board are mostly chance. If the numbers do not have the intended proportion, see “Share"
        " of students” before you compare variants.",
        variant_targets(by_variant("abmonitor_students"), instant=True),
        unit="short",
        decimals=0,
        size=(3, 4),
        overrides=variant_colors(),
    )


def event_age_panel() -> JSON:
    """Return the panel with the current age of the newest event by variant."""
    return stat_panel(
        "Time since the last event",
        "Age of the newest event of each variant, by the timestamps in the events. If only one variant is old, its"
        " bot or its routing has stopped: ask its team. If all are old, look at the lag, then at the producers."
        " Replayed recordings are always old.",
        variant_targets(event_age_by_variant(), instant=True),
        unit="s",
        decimals=0,
        size=(3, 4),
        thresholds=AGE_THRESHOLDS,
        links=[boards.PIPELINE_LINK],
    )


def alert_count_panel() -> JSON:
    """Return the panel with the number of firing alerts about the experiment."""
    return stat_panel(
        "Alerts",
        "Firing alerts on this experiment, if Prometheus has loaded the rules of AB Monitor. Red lines on the graphs"
        " mark the times at which alerts began. Each alert links to its section of the runbook: follow it.",
        [
            query_target(
                f'count(ALERTS{{alertstate="firing", {EXPERIMENT_SELECTOR}}})'
                f" or 0 * max(abmonitor_experiment_info{{{EXPERIMENT_SELECTOR}}})",
                "firing",
                instant=True,
            )
        ],
        unit="short",
        decimals=0,
        size=(3, 4),
        thresholds=threshold_steps(GREEN, (1, RED)),
    )


def alert_history_panel() -> JSON:
    """Return the panel with the alerts on drops that have enough history, and what the others wait for."""
    alerts = (
        ("drop within a day", FAST, "6h", "21h", "21 hours"),
        ("behind the control", FAST, "1h", "6h", "6 hours"),
        ("drop within days", SLOW, "1d", "5d", "5 days"),
        ("behind the control for days", SLOW, "6h", "2d", "2 days"),
    )

    def is_ready(decays: str, window: str, offset: str) -> str:
        counts = f"abmonitor_metric_effective_count{{{METRIC_SELECTOR}, {decays}}}[{window}] offset {offset}"
        return f"max(max_over_time({counts})) >= bool {READABLE_COUNT} or 0 * {HAS_INFO}"

    return stat_panel(
        "Alerts on drops: enough history?",
        "Alerts on recent means compare with the past, so they cannot fire before there is one. “not yet”: so long ago,"
        f" no decayed mean of $metric had {READABLE_COUNT} effective responses. Fast alerts use half-lives of up"
        " to 3 hours, slow alerts longer ones. Until then watch “$metric: difference from the control”.",
        [
            query_target(is_ready(decays, window, offset), name, ref=chr(ord("A") + number), instant=True)
            for number, (name, decays, window, offset, _) in enumerate(alerts)
        ],
        unit="short",
        size=(24, 3),
        thresholds=threshold_steps(GREEN),
        overrides=[
            text_override(name, {0: (f"not yet: needs {history}", CONTROL_GREY), 1: ("watching", GREEN)})
            for name, *_, history in alerts
        ],
    )


def _mean_panel(title: str, description: str, selector: str) -> JSON:
    """Return the graph of a mean by variant, with a band of `BAND_STANDARD_ERRORS` standard errors."""
    mean = by_variant("abmonitor_metric_mean", selector)
    band = f"{BAND_STANDARD_ERRORS} * {by_variant('abmonitor_metric_standard_error', selector)}"
    edges = ("lower", "upper")
    return time_series_panel(
        title,
        description,
        [
            *variant_targets(mean),
            *variant_targets(f"{mean} - {band}", "lower"),
            *variant_targets(f"{mean} + {band}", "upper"),
        ],
        unit="short",
        decimals=3,
        empty="no responses with a value yet",
        size=(12, 9),
        overrides=(
            *variant_colors("A", *edges),
            *(dash_override(f"{edge}{of}", in_legend=False) for edge in edges for of in ("", ", control")),
        ),
    )


def decayed_mean_panel() -> JSON:
    """Return the graph of the decayed mean, which shows sudden drops."""
    return _mean_panel(
        "$metric, recent ($decay half-life)",
        "Decayed mean of $metric over the responses with a value: with a half-life of 24 h, yesterday's response has"
        f" half the weight of today's. The dashed edges are {BAND_STANDARD_ERRORS:g} standard errors from the mean; a"
        " steady mean seldom moves that far. Watch this graph for sudden drops. If a variant leaves the other's"
        " edges, look at its last deployment; while the edges overlap, wait. This is a description, not a verdict:"
        " responses of one student resemble each other, so the true edges are wider.",
        DECAYED_SELECTOR,
    )


def all_time_mean_panel() -> JSON:
    """Return the graph of the mean over all responses, which the product team compares."""
    return _mean_panel(
        "$metric, all time",
        "Mean of $metric over all responses with a value since the experiment began, with equal weights. It changes"
        f" slowly. The dashed edges are {BAND_STANDARD_ERRORS:g} standard errors from the mean, which account for"
        " several responses per student. This is a description, not a verdict: see “Effect on”.",
        ALL_TIME_SELECTOR,
    )


def difference_panel() -> JSON:
    """Return the graph of the differences from the control."""
    return time_series_panel(
        "$metric: difference from the control",
        "Mean of each variant minus the mean of the control, in the unit of $metric: recent (solid) and all time"
        " (dashed). Below 0 the variant is worse. If lower values of $metric are better, above 0 is worse. If the"
        " solid line leaves the dashed line for good, something has changed recently: look for deployments. This graph"
        " describes, the verdict decides.",
        [
            query_target(difference_from_control(DECAYED_SELECTOR), "{{variant}}, recent ($decay half-life)"),
            query_target(difference_from_control(ALL_TIME_SELECTOR), "{{variant}}, all time", ref="B"),
        ],
        unit="short",
        decimals=3,
        empty="no responses of both variants with a value yet",
        size=(8, 8),
        overrides=(*variant_colors(), dash_override("B")),
    )


def effective_count_panel() -> JSON:
    """Return the graph of the effective number of responses of the decayed mean."""
    return time_series_panel(
        "Effective number of responses in the recent mean",
        "Number of equally weighted responses that would give a mean as precise as the recent mean: (Σw)²/Σw²."
        f" Below the dashed line ({MIN_EFFECTIVE_COUNT}), ignore the recent mean and select a longer half-life at the"
        " top of the board.",
        variant_targets(by_variant("abmonitor_metric_effective_count", DECAYED_SELECTOR)),
        unit="short",
        minimum=0,
        size=(8, 8),
        thresholds=threshold_steps(RED, (MIN_EFFECTIVE_COUNT, YELLOW)),
        overrides=variant_colors(),
    )


def rated_share_panel() -> JSON:
    """Return the graph of the fraction of rated responses."""
    return time_series_panel(
        "Rated share of responses",
        "Share of responses with feedback that the metrics use (ranking metrics: with a graded item), all time. Means"
        " of ranking metrics are over these responses only. If the"
        " variants differ here, different students rate: compare the means over all responses, too (`ab-monitor status"
        " --config FILE`). If the share falls for all variants, the rating widget or its topic may be broken.",
        variant_targets(per_response("abmonitor_rated_responses")),
        unit="percentunit",
        decimals=1,
        minimum=0,
        size=(8, 8),
        overrides=variant_colors(),
    )


def reactions_panel() -> JSON:
    """Return the graph of the reactions of the selected kind per response."""
    selector = f'{EXPERIMENT_SELECTOR}, kind="$kind"'
    return time_series_panel(
        "Reactions per response: $kind",
        "Reactions of the kind that is selected at the top of the board, divided by responses, all time. Watch the"
        " kind `escalated` (handed over to a human): a variant with good ratings may still send more students to a"
        " human. If a kind falls for all variants, its producer may be broken.",
        variant_targets(per_response("abmonitor_feedback", selector)),
        unit="short",
        decimals=3,
        minimum=0,
        size=(12, 8),
        overrides=variant_colors(),
    )


def event_age_history_panel() -> JSON:
    """Return the graph of the age of the newest event by variant."""
    return time_series_panel(
        "Time since the last event, over time",
        "Age of the newest event of each variant, by the timestamps in the events. Values near 0 are healthy. A"
        " straight rise means that no event of that variant arrives. Nights and holidays cause this, too.",
        variant_targets(event_age_by_variant()),
        unit="s",
        minimum=0,
        size=(12, 8),
        thresholds=AGE_THRESHOLDS,
        overrides=variant_colors(),
    )


def student_history_panel() -> JSON:
    """Return the graph of the number of students by variant."""
    return time_series_panel(
        "Students, all time",
        "Students who were shown each variant. The line becomes flat when the same students return. Without new"
        " students, an experiment gains little precision.",
        variant_targets(by_variant("abmonitor_students")),
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=variant_colors(),
    )


def student_share_panel() -> JSON:
    """Return the graph of the fraction of students by variant."""
    students = by_variant("abmonitor_students")
    return time_series_panel(
        "Share of students",
        "Share of all students in each variant. It must stay at the intended share. If it does not, the assignment is"
        " broken (sample ratio mismatch), and no comparison on this board is valid: correct the assignment.",
        variant_targets(f"{students} / on () group_left () (sum({students}) > 0)"),
        unit="percentunit",
        decimals=1,
        minimum=0,
        maximum=1,
        size=(6, 8),
        overrides=variant_colors(),
    )


def response_history_panel() -> JSON:
    """Return the graph of the number of responses by variant."""
    return time_series_panel(
        "Responses, all time",
        "Responses of each variant. If a line stops rising, the variant has no traffic, or its responses do not"
        " arrive.",
        variant_targets(by_variant("abmonitor_responses")),
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=variant_colors(),
    )


def response_rate_panel() -> JSON:
    """Return the graph of the new responses per minute by variant."""
    return time_series_panel(
        "New responses per minute",
        "Responses of each variant per minute, as a mean over 5 minutes. If only one variant falls, its traffic was"
        " switched off, or its bot fails before it responds.",
        variant_targets(f"max by (variant) (delta(abmonitor_responses{{{EXPERIMENT_SELECTOR}}}[5m])) / 5"),
        unit="short",
        size=(6, 8),
        overrides=variant_colors(),
    )


def board_variables() -> list[JSON]:
    """Return the variables of the board; the values of each variable depend on the variables before."""
    decays = f'abmonitor_metric_effective_count{{{METRIC_SELECTOR}, decay!="none"}}'
    return [
        variables.label_values_variable("experiment", "Experiment", "abmonitor_experiment_info", "experiment"),
        variables.label_values_variable(
            "metric", "Metric", f"abmonitor_metric_count{{{EXPERIMENT_SELECTOR}}}", "metric", default="dcg@5"
        ),
        variables.label_values_variable(
            "decay", "Half-life of the recent mean", decays, "decay", sort=variables.SORT_NUMERICAL
        ),
        variables.label_values_variable(
            "kind", "Kind of reaction", f"abmonitor_feedback{{{EXPERIMENT_SELECTOR}}}", "kind", default="escalated"
        ),
    ]


def comparison_panels() -> list[JSON]:
    """Return the panels at the top: the decision, current numbers and the comparison of variants."""
    return [
        decision.verdict_panel(),
        decision.judged_effect_panel(),
        student_count_panel(),
        event_age_panel(),
        pipeline.lag_panel(size=(3, 4), links=[boards.PIPELINE_LINK]),
        alert_count_panel(),
        decayed_mean_panel(),
        all_time_mean_panel(),
        difference_panel(),
        effective_count_panel(),
        rated_share_panel(),
        range_mean_panel(),
        alert_history_panel(),
    ]


def decision_panels() -> list[JSON]:
    """Return the panels of the decision."""
    return [
        decision.verdict_history_panel(),
        decision.reasons_panel(),
        decision.days_to_resolve_panel(),
        decision.crossovers_panel(),
        decision.sample_ratio_panel(),
        decision.closed_effect_panel(),
        decision.live_effect_panel(),
        decision.guardrails_panel(),
        decision.sample_ratio_history_panel(),
    ]


def evidence_panels() -> list[JSON]:
    """Return the panels on students, feedback and traffic."""
    return [
        reactions_panel(),
        event_age_history_panel(),
        student_history_panel(),
        student_share_panel(),
        response_history_panel(),
        response_rate_panel(),
    ]


def build_experiment_board(monitor_url: str) -> JSON:
    """Return the board "AB Monitor: experiment"."""
    return boards.build_board(
        boards.EXPERIMENT,
        "AB Monitor: experiment",
        "The variants of one experiment side by side: verdict, effects, guardrails and traffic. The control is grey.",
        monitor_url=monitor_url,
        choices=board_variables(),
        sections=[
            ("Comparison", comparison_panels()),
            ("Decision", decision_panels()),
            ("Traffic and responsiveness", traffic.traffic_panels(variant_targets, variant_colors)),
            ("Categories", [*traffic.category_panels(variant_targets, variant_colors), traffic.attention_panel()]),
            ("Items", traffic.item_panels(variant_targets, variant_colors)),
            ("Students, feedback and traffic", evidence_panels()),
        ],
        annotations=[boards.alert_annotation(EXPERIMENT_SELECTOR), *boards.milestone_annotations(EXPERIMENT_SELECTOR)],
    )
