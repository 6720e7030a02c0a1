"""The board "AB Monitor: experiments": a table row for each experiment, with a link to the board of the experiment."""

from __future__ import annotations

from grafana import boards, decision, pipeline
from grafana.panels import (
    GREEN,
    JSON,
    ORANGE,
    RED,
    YELLOW,
    color_override,
    column_override,
    query_target,
    stat_panel,
    table_panel,
    threshold_steps,
    time_series_panel,
)

INFO_QUERY = "max by (experiment, control, primary) (abmonitor_experiment_info)"
_CONTROL_QUERY = f'label_replace({INFO_QUERY}, "variant", "$1", "control", "(.+)")'
_PRIMARY_QUERY = f'label_replace({INFO_QUERY}, "metric", "$1", "primary", "(.+)")'
PRIMARY_MEAN_QUERY = (
    'max by (experiment, variant) (abmonitor_metric_mean{decay="none"} and on (experiment, metric) '
    + _PRIMARY_QUERY
    + ")"
)
CONTROL_MEAN_QUERY = f"max by (experiment) ({PRIMARY_MEAN_QUERY} and on (experiment, variant) {_CONTROL_QUERY})"
STUDENTS_QUERY = "sum by (experiment) (max by (experiment, variant) (abmonitor_students))"
EVENT_AGE_QUERY = "time() - max by (experiment) (abmonitor_variant_last_event_timestamp_seconds)"
ALERT_COUNT_QUERY = 'count by (experiment) (ALERTS{alertstate="firing", experiment!=""})'
ZERO_ALERTS_QUERY = "0 * max by (experiment) (abmonitor_experiment_info)"

ACTIVITY_MAPPINGS = [
    {
        "type": "value",
        "options": {
            "0": {"text": "active", "color": GREEN, "index": 0},
            "1": {"text": "quiet", "color": YELLOW, "index": 1},
            "2": {"text": "ended", "color": "text", "index": 2},
        },
    }
]
ALERT_STEPS = threshold_steps(GREEN, (1, RED))


def largest_effect_query(bound: str = "") -> str:
    """Return the query of the largest judged effect by experiment, or of the bound of that effect."""

    def judged_effect(suffix: str) -> str:
        return f"max by (experiment, variant) (abmonitor_relative_effect{suffix})"

    best = f"topk by (experiment) (1, {judged_effect('')})"
    return f"max by (experiment) ({judged_effect(bound)} and on (experiment, variant) {best})"


def overview_panel() -> JSON:
    """Return the table of the experiments."""
    state = f"({EVENT_AGE_QUERY} > bool 3600) + ({EVENT_AGE_QUERY} > bool 86400)"
    rows = {
        "A": INFO_QUERY,
        "state": state,
        "alerts": f"{ALERT_COUNT_QUERY} or {ZERO_ALERTS_QUERY}",
        "verdict": decision.verdict_rank_query("experiment"),
        "mean": CONTROL_MEAN_QUERY,
        "effect": largest_effect_query(),
        "lower": largest_effect_query("_lower"),
        "upper": largest_effect_query("_upper"),
        "students": STUDENTS_QUERY,
        "age": EVENT_AGE_QUERY,
    }
    headings = {
        "experiment": "Experiment",
        "Value #state": "State",
        "Value #alerts": "Alerts",
        "Value #verdict": "Verdict",
        "primary": "Primary metric",
        "Value #mean": "Control mean",
        "Value #effect": "Largest effect",
        "Value #lower": "Lower bound",
        "Value #upper": "Upper bound",
        "Value #students": "Students",
        "Value #age": "Time since last event",
    }
    colored_text = ("custom.cellOptions", {"type": "color-text"})
    return table_panel(
        "Experiments",
        "Select an experiment to compare its variants, or to read its verdict in words. State: “quiet” is an"
        " experiment without an event for an hour, “ended” one without an event for a day. If such an experiment"
        " should be “active”, look at the pipeline board first. “Verdict” is the most urgent verdict of all variants."
        " “Control mean” is the mean of the primary metric in the control, all time. “Largest effect” is that of"
        " the variant with the highest effect, as a percentage of the control's mean, over closed students, with the"
        " bounds of its confidence sequence. If 0 is between the bounds, wait.",
        [query_target(expr, "", ref=ref, instant=True, table=True) for ref, expr in rows.items()],
        key="experiment",
        columns=headings,
        size=(24, 9),
        overrides=(
            column_override("Experiment", ("links", [boards.EXPERIMENT_LINK, boards.MONITOR_ROW_LINK])),
            column_override("State", ("mappings", ACTIVITY_MAPPINGS), colored_text),
            column_override("Alerts", ("thresholds", {"mode": "absolute", "steps": ALERT_STEPS}), colored_text),
            column_override("Verdict", ("mappings", decision.VERDICT_MAPPINGS), colored_text),
            column_override("Control mean", ("decimals", 3)),
            *(
                column_override(column, ("unit", "percentunit"), ("decimals", 1))
                for column in ("Largest effect", "Lower bound", "Upper bound")
            ),
            column_override("Students", ("decimals", 0)),
            column_override("Time since last event", ("unit", "s"), ("decimals", 0)),
        ),
    )


def live_count_panel() -> JSON:
    """Return the panel with the number of experiments that had an event in the last hour."""
    return stat_panel(
        "Active experiments",
        "Experiments with an event in the last hour. If an experiment is missing, open it below: one of its variants"
        " may have stopped, or all.",
        [query_target(f"count({EVENT_AGE_QUERY} < 3600) or 0 * max(abmonitor_store_up)", "active", instant=True)],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=threshold_steps(YELLOW, (1, GREEN)),
    )


def student_count_panel() -> JSON:
    """Return the panel with the number of students in all experiments."""
    return stat_panel(
        "Students",
        "Students in all experiments. A student in two experiments counts twice. The number falls only if the store"
        " was emptied, or if an experiment was removed from the configuration.",
        [query_target(f"sum({STUDENTS_QUERY})", "students", instant=True)],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=threshold_steps("text"),
    )


def alert_count_panel() -> JSON:
    """Return the panel with the number of firing alerts by severity."""
    return stat_panel(
        "Alerts",
        "Firing alerts of AB Monitor by severity, if Prometheus has loaded its rules. Begin with the critical ones."
        " Each alert links to its section of the runbook.",
        [
            query_target(
                'count by (severity) (ALERTS{alertstate="firing", alertname=~"AbMonitor.+"})',
                "{{severity}}",
                instant=True,
            )
        ],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=ALERT_STEPS,
        overrides=(color_override("^info$", "blue"), color_override("^warning$", ORANGE)),
        empty="none",
    )


def response_rate_panel() -> JSON:
    """Return the graph of new responses per minute by experiment."""
    added = "max by (experiment, variant) (delta(abmonitor_responses[5m]))"
    return time_series_panel(
        "New responses per minute",
        "Responses of all variants per minute, as a mean over 5 minutes. If one experiment falls to 0, its traffic"
        " was switched off, or its bots do not respond: open it. If all fall, look at the pipeline board.",
        [query_target(f"sum by (experiment) ({added}) / 5", "{{experiment}}")],
        unit="short",
        size=(12, 8),
    )


def event_age_panel() -> JSON:
    """Return the graph of the age of the newest event by experiment."""
    return time_series_panel(
        "Time since the last event",
        "Age of the newest event of each experiment, by the timestamps in the events. A straight rise means that no"
        " event arrives. Nights and holidays cause this, too. Otherwise ask the producers.",
        [query_target(EVENT_AGE_QUERY, "{{experiment}}")],
        unit="s",
        minimum=0,
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (3600, YELLOW)),
    )


def build_experiments_board(monitor_url: str) -> JSON:
    """Return the board "AB Monitor: experiments"."""
    return boards.build_board(
        boards.EXPERIMENTS,
        "AB Monitor: experiments",
        "All experiments: activity, alerts, verdicts and effects, with a link to each experiment.",
        monitor_url=monitor_url,
        choices=[],
        sections=[
            (
                "Experiments",
                [
                    live_count_panel(),
                    student_count_panel(),
                    alert_count_panel(),
                    pipeline.lag_panel(size=(6, 4), links=[boards.PIPELINE_LINK]),
                    overview_panel(),
                    response_rate_panel(),
                    event_age_panel(),
                ],
            )
        ],
        annotations=[boards.alert_annotation('alertname=~"AbMonitor.+"')],
        time_from="now-6h",
    )
