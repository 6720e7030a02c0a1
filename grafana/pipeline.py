"""The board "AB Monitor: pipeline": throughput, lag, rejected events, commit times, and resources of replicas."""

from __future__ import annotations

from collections.abc import Sequence

from grafana import boards
from grafana.panels import (
    CONTROL_GREY,
    GREEN,
    JSON,
    ORANGE,
    RED,
    YELLOW,
    color_override,
    query_target,
    stat_panel,
    state_timeline_panel,
    text_override,
    threshold_steps,
    time_series_panel,
)

LAG_THRESHOLDS = threshold_steps(GREEN, (120, YELLOW), (900, RED))
"""Seconds of lag, as in the alerts."""

OUTCOME_COLORS = (
    color_override("^applied$", GREEN),
    color_override("^revised$", "blue"),
    color_override("^duplicate$", CONTROL_GREY),
    color_override("^skipped$", "purple"),
    color_override("^late$", ORANGE),
    color_override("^rejected$", RED),
)

SERVICE_STATE_NAMES = (
    text_override("store", {0: ("down", RED), 1: ("up", GREEN)}),
    *(
        text_override(f"waits for {reason}", {0: ("no", GREEN), 1: ("paused", ORANGE)})
        for reason in ("store", "kafka", "dead_letters", "schema_registry")
    ),
)


def quantile_query(q: float, histogram: str) -> str:
    """Return the query of a quantile of a histogram over all replicas."""
    return f"histogram_quantile({q:g}, sum by (le) (rate({histogram}_bucket[$__rate_interval])))"


def service_targets(*, instant: bool) -> list[JSON]:
    """Return the targets of the states: store up or down, and what the consumption of events waits for."""
    return [
        query_target("min(abmonitor_store_up)", "store", instant=instant),
        query_target("max by (reason) (abmonitor_paused)", "waits for {{reason}}", ref="B", instant=instant),
    ]


def lag_panel(*, size: tuple[int, int] = (5, 4), links: Sequence[JSON] = ()) -> JSON:
    """Return the panel with the current lag of the slowest partition."""
    return stat_panel(
        "Lag",
        "Age of the newest applied event of the slowest partition while more events wait. 0 means that no event"
        " waits. Up to a minute is normal. If the lag grows, all boards show the past: see “Lag by topic, in time” on"
        " the pipeline board.",
        [query_target("max(abmonitor_consumer_lag_seconds)", "slowest partition", instant=True)],
        unit="s",
        decimals=0,
        size=size,
        thresholds=LAG_THRESHOLDS,
        links=links,
    )


def service_panel() -> JSON:
    """Return the panel with the current states of store and consumption."""
    return stat_panel(
        "Service",
        "State of the store, and the dependency for which the consumption of events waits. “paused”: the monitor"
        " waits for that dependency and resumes by itself, so repair the dependency. “no data”: Prometheus cannot"
        " scrape the monitor, so see Status → Targets in Prometheus.",
        service_targets(instant=True),
        unit="short",
        size=(5, 4),
        thresholds=threshold_steps(GREEN),
        overrides=SERVICE_STATE_NAMES,
    )


def throughput_panel() -> JSON:
    """Return the panel with the current number of events per second."""
    return stat_panel(
        "Throughput",
        "Events of all topics per second, with any outcome. If the number is 0 and there is a lag, the monitor"
        " applies no events: see “Service”. If the number is 0 without a lag, the producers send no events: ask them.",
        [query_target("sum(rate(abmonitor_events_total[$__rate_interval]))", "events per second", instant=True)],
        unit="eps",
        decimals=1,
        size=(4, 4),
    )


def dead_letters_panel() -> JSON:
    """Return the panel with the number of dead letters by topic in the time range of the board."""
    return stat_panel(
        "Dead letters in the shown time range",
        "Rejected events by topic. Each is stored in the dead-letter topic for its retention. `ab-monitor"
        " dead-letters --config FILE list` prints the reasons with an example of each. After a correction, `ab-monitor"
        " dead-letters --config FILE retry` sends the events again.",
        [
            query_target(
                "sum by (topic) (increase(abmonitor_rejected_events_total[$__range]))", "{{topic}}", instant=True
            )
        ],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=threshold_steps(GREEN, (1, ORANGE)),
    )


def lost_events_panel() -> JSON:
    """Return the panel with the number of lost events."""
    return stat_panel(
        "Lost events",
        "Events that Kafka had deleted before the monitor applied them, since the replicas started. If the number is"
        " not “none”, the counts of the affected hours are too small. Raise the retention of the topics, and see"
        " “lost-events” in the runbook.",
        [query_target("sum(abmonitor_lost_events_total) > 0", "lost", instant=True)],
        unit="short",
        decimals=0,
        size=(4, 4),
        thresholds=threshold_steps(RED),
        empty="none",
    )


def outcomes_panel() -> JSON:
    """Return the graph of events per second by outcome.

    Outcomes without events in the time range are left out, because empty areas would hide the topmost area.
    """
    return time_series_panel(
        "Events by outcome",
        "Events per second by outcome. `late` events arrived after `feedback_window + allowed_lateness` and are missing"
        " in the numbers: find the producer that holds events back. `skipped` events belong to no declared experiment"
        " or variant: compare their names with the configuration. `rejected` events are invalid. `duplicate` events are"
        " harmless.",
        [
            query_target(
                "sum by (outcome) (rate(abmonitor_events_total[$__rate_interval]))"
                " and sum by (outcome) (increase(abmonitor_events_total[$__range])) > 0",
                "{{outcome}}",
            )
        ],
        unit="eps",
        minimum=0,
        size=(12, 9),
        stacked=True,
        overrides=OUTCOME_COLORS,
    )


def lag_seconds_panel() -> JSON:
    """Return the graph of the lag in seconds by topic."""
    return time_series_panel(
        "Lag by topic, in time",
        "Age of the newest applied event of the slowest partition while more events wait. 0 means that no event"
        " waits. If the lag grows while events are applied, the monitor is too slow: see “Commit time”, then add a"
        " replica. If no events are applied, see “State”.",
        [query_target("max by (topic) (abmonitor_consumer_lag_seconds)", "{{topic}}")],
        unit="s",
        minimum=0,
        size=(12, 9),
        thresholds=LAG_THRESHOLDS,
    )


def lag_events_panel() -> JSON:
    """Return the graph of the lag in events by topic."""
    return time_series_panel(
        "Lag by topic, in events",
        "Events in Kafka that are not applied yet, over all partitions. After a restart the number falls quickly. A"
        " steady rise means that the monitor is too slow or paused. Events that arrive while the store is unavailable"
        " are counted only afterwards. Until then, see “Lag by topic, in time”.",
        [query_target("sum by (topic) (abmonitor_consumer_lag_events)", "{{topic}}")],
        unit="short",
        decimals=0,
        minimum=0,
        size=(8, 8),
    )


def rejected_events_panel() -> JSON:
    """Return the graph of rejected events by reason, without reasons that did not occur in the time range."""

    def increase(window: str) -> str:
        return f"sum by (reason) (increase(abmonitor_rejected_events_total[{window}]))"

    return time_series_panel(
        "Rejected events by reason",
        "Rejected events per step of the graph, by reason. Each is stored in the dead-letter topic. A steady small"
        " number points to one broken producer: read a dead letter and inform the team. Above"
        " `limits.max_rejected_share` the monitor stops. An empty graph is good.",
        [query_target(f"{increase('$__rate_interval')} and {increase('$__range')} > 0", "{{reason}}")],
        unit="short",
        minimum=0,
        empty="none",
        size=(8, 8),
        stacked=True,
    )


def commit_time_panel() -> JSON:
    """Return the graph of quantiles of the commit time."""
    return time_series_panel(
        "Commit time",
        "Time to apply one batch of events and write it to the store. Above 1 s (dashed), the store or its network is"
        " slow: look at the store's CPU, persistence and network before you add replicas.",
        [
            query_target(quantile_query(0.5, "abmonitor_commit_seconds"), "median"),
            query_target(quantile_query(0.95, "abmonitor_commit_seconds"), "95th percentile", ref="B"),
            query_target(quantile_query(0.99, "abmonitor_commit_seconds"), "99th percentile", ref="C"),
        ],
        unit="s",
        minimum=0,
        size=(8, 8),
        thresholds=threshold_steps(GREEN, (1, ORANGE)),
    )


def batch_size_panel() -> JSON:
    """Return the graph of the mean number of events per batch."""
    events = "sum(rate(abmonitor_batch_events_sum[$__rate_interval]))"
    batches = "sum(rate(abmonitor_batch_events_count[$__rate_interval]))"
    return time_series_panel(
        "Events per batch",
        "Mean number of events in one commit. Small batches at low traffic are normal. Batches of"
        " `kafka.max_poll_records` events mean that the monitor applies a backlog, or is at its capacity.",
        [query_target(f"{events} / ({batches} > 0)", "mean")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def event_delay_panel() -> JSON:
    """Return the graph of quantiles of the delay from an event to the commit."""
    return time_series_panel(
        "Delay from event to store",
        "Time from the timestamp in an event to its commit in the store. If there is a delay without a lag, the"
        " producers send late, or their clocks are wrong: ask them.",
        [
            query_target(quantile_query(0.5, "abmonitor_event_delay_seconds"), "median"),
            query_target(quantile_query(0.95, "abmonitor_event_delay_seconds"), "95th percentile", ref="B"),
        ],
        unit="s",
        minimum=0,
        empty="no events in the shown time range",
        size=(8, 8),
    )


def unmatched_feedback_panel() -> JSON:
    """Return the graph of unmatched feedback per hour by kind."""
    return time_series_panel(
        "Unmatched feedback by kind, per hour",
        "Feedback events whose response had not arrived when they expired. They are missing in all numbers. Feedback"
        " expires after `feedback_window + allowed_lateness` (8 days by default), so a mistake of today appears only"
        " then. A few are normal. A steady number means wrong keys, ids or topics, or missing responses: see"
        " “unmatched-feedback” in the runbook.",
        [query_target("max by (kind) (increase(abmonitor_unmatched_feedback_total[1h]))", "{{kind}}")],
        unit="short",
        minimum=0,
        empty="none yet: feedback expires after feedback_window + allowed_lateness",
        size=(8, 8),
    )


def commit_conflicts_panel() -> JSON:
    """Return the graph of commit conflicts."""
    return time_series_panel(
        "Commit conflicts",
        "Commits that the store rejected because another replica had changed a position or a row. The monitor retries"
        " them, so they cost only time. A few during a rebalance are normal. A steady number means that producers do"
        " not use `user_id` as the key, or that two deployments use one store: see “commit-conflicts” in the runbook.",
        [query_target("sum(increase(abmonitor_commit_conflicts_total[$__rate_interval]))", "conflicts")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def service_history_panel() -> JSON:
    """Return the timeline of the states of store and consumption."""
    return state_timeline_panel(
        "State",
        "Times at which the store was unavailable or consumption was paused. The monitor waits and resumes by itself."
        " No event is lost as long as Kafka stores the events: compare the length of an outage with the retention of"
        " the topics.",
        service_targets(instant=False),
        size=(8, 8),
        overrides=SERVICE_STATE_NAMES,
    )


def consumer_restarts_panel() -> JSON:
    """Return the graph of replaced stalled consumers by replica."""
    return time_series_panel(
        "Stalled consumers",
        "How often a Kafka consumer rejoined its group because it had received nothing for 30 seconds although events"
        " were waiting. One is harmless. Repeated stalls point to the brokers, the network or the leader of a"
        " partition: see “consumer-stalls” in the runbook.",
        [
            query_target(
                "sum by (instance) (increase(abmonitor_consumer_restarts_total[$__rate_interval]))", "{{instance}}"
            )
        ],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def memory_panel() -> JSON:
    """Return the graph of resident memory by replica."""
    return time_series_panel(
        "Memory",
        "Resident memory of each replica. It is level after the first hour. If it rises further, save the log and"
        " report a defect. The memory of the store is not included.",
        [query_target("max by (instance) (process_resident_memory_bytes)", "{{instance}}")],
        unit="bytes",
        minimum=0,
        size=(8, 8),
    )


def cpu_panel() -> JSON:
    """Return the graph of CPU usage by replica."""
    return time_series_panel(
        "CPU, as a share of one core",
        "CPU time of each replica, as a share of one core. A replica uses about one core at most. If the lag grows at"
        " nearly 100 %, add a replica. If the lag grows at nearly 0 %, the replica waits: see “State”.",
        [
            query_target(
                "max by (instance) (rate(process_cpu_seconds_total[$__rate_interval]))",
                "{{instance}}",
            )
        ],
        unit="percentunit",
        minimum=0,
        size=(8, 8),
    )


def flow_panels() -> list[JSON]:
    """Return the panels at the top: current numbers, lag, outcomes, rejected events, commit times, states."""
    return [
        lag_panel(),
        service_panel(),
        throughput_panel(),
        dead_letters_panel(),
        lost_events_panel(),
        lag_seconds_panel(),
        outcomes_panel(),
        rejected_events_panel(),
        commit_time_panel(),
        service_history_panel(),
    ]


def replica_panels() -> list[JSON]:
    """Return the panels on batches, delays, conflicts and resources of replicas."""
    return [
        lag_events_panel(),
        batch_size_panel(),
        event_delay_panel(),
        unmatched_feedback_panel(),
        commit_conflicts_panel(),
        consumer_restarts_panel(),
        memory_panel(),
        cpu_panel(),
    ]


def build_pipeline_board(monitor_url: str) -> JSON:
    """Return the board "AB Monitor: pipeline"."""
    return boards.build_board(
        boards.PIPELINE,
        "AB Monitor: pipeline",
        "Operation of the monitor: lag, throughput, rejected events, commits, store and replicas.",
        monitor_url=monitor_url,
        choices=[],
        sections=[("Flow", flow_panels()), ("Work and replicas", replica_panels())],
        annotations=[boards.alert_annotation('team="operations"')],
    )
