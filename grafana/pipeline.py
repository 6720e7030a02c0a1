"""The board "AB Monitor: pipeline": what is read, how far behind, what is refused, how long the writes take."""

from __future__ import annotations

from collections.abc import Sequence

from grafana import boards, variables
from grafana.panels import (
    CONTROL_GREY,
    GREEN,
    JSON,
    ORANGE,
    RED,
    YELLOW,
    colored,
    graph,
    stat,
    states,
    steps,
    target,
    text_values,
)

LAG_THRESHOLDS = steps(GREEN, (120, YELLOW), (900, RED))
"""Those of the alerts."""

OUTCOME_COLORS = (
    colored("^applied$", GREEN),
    colored("^revised$", "blue"),
    colored("^duplicate$", CONTROL_GREY),
    colored("^skipped$", "purple"),
    colored("^late$", ORANGE),
    colored("^rejected$", RED),
)

SERVICE_WORDS = (
    text_values("store", {0: ("down", RED), 1: ("up", GREEN)}),
    text_values("consumption", {0: ("running", GREEN), 1: ("paused", ORANGE)}),
)


def quantile(q: float, histogram: str) -> str:
    """Return a quantile of a histogram over all replicas."""
    return f"histogram_quantile({q:g}, sum by (le) (rate({histogram}_bucket[$__rate_interval])))"


def service_targets(*, instant: bool) -> list[JSON]:
    """Return the queries of the two states that decide whether numbers move."""
    return [
        target("min(abmonitor_store_up)", "store", instant=instant),
        target("max(abmonitor_paused)", "consumption", ref="B", instant=instant),
    ]


def lag_now(*, size: tuple[int, int] = (5, 4), links: Sequence[JSON] = ()) -> JSON:
    """Return the lag of the slowest partition as a number."""
    return stat(
        "Lag",
        "Age of the newest applied event of the slowest partition while more are waiting; 0 when all are read. Up"
        " to a minute is normal. If it grows, all boards show the past: see “Lag by topic, in time” on the board of the"
        " pipeline.",
        [target("max(abmonitor_consumer_lag_seconds)", "slowest partition", instant=True)],
        unit="s",
        decimals=0,
        size=size,
        thresholds=LAG_THRESHOLDS,
        links=links,
    )


def service_now() -> JSON:
    """Return the two states as words."""
    return stat(
        "Service",
        "Whether the monitor reaches its store and consumes. “paused”: it waits for the store or for Kafka and will"
        " resume by itself; repair that dependency. “no data”: Prometheus does not reach the monitor; see its target"
        " page.",
        service_targets(instant=True),
        unit="short",
        size=(5, 4),
        thresholds=steps(GREEN),
        overrides=SERVICE_WORDS,
    )


def throughput_now() -> JSON:
    """Return the events per second as a number."""
    return stat(
        "Throughput",
        "Events of all topics per second, whatever became of them. 0 with a lag means that nothing is consumed: see"
        " “Service”. 0 without a lag means that nothing is sent: ask the producers.",
        [target("sum(rate(abmonitor_events_total[$__rate_interval]))", "events per second", instant=True)],
        unit="eps",
        decimals=1,
        size=(4, 4),
    )


def dead_letters_now() -> JSON:
    """Return the dead letters of the shown time as numbers."""
    return stat(
        "Dead letters in the shown time range",
        "Refused events, each kept in the dead-letter topic, by topic. `ab-monitor dead-letters --config FILE list`"
        " shows one of each kind; `retry` sends them round again after a fix. They are lost when that topic's"
        " retention is over.",
        [target("sum by (topic) (increase(abmonitor_rejected_events_total[$__range]))", "{{topic}}", instant=True)],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=steps(GREEN, (1, ORANGE)),
    )


def lost_now() -> JSON:
    """Return the lost events as a number."""
    return stat(
        "Lost events",
        "Events that Kafka no longer had when they were to be applied, since the start of the replicas. Anything but"
        " “none” makes the numbers of that time too small: see “lost-events” in the runbook, and raise the topics'"
        " retention.",
        [target("sum(abmonitor_lost_events_total) > 0", "lost", instant=True)],
        unit="short",
        decimals=0,
        size=(4, 4),
        thresholds=steps(RED),
        empty="none",
    )


def events_by_outcome() -> JSON:
    """Return the throughput, by the outcomes that there were: areas of nothing would hide the topmost one."""
    return graph(
        "Events by outcome",
        "Events per second by what became of them. `late` came after the horizon and is not in the numbers: find"
        " the producer that holds events back. `skipped` belongs to no declared experiment: if you expected it,"
        " compare the names with the configuration. `duplicate` is harmless.",
        [
            target(
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


def lag_seconds() -> JSON:
    """Return the lag in time."""
    return graph(
        "Lag by topic, in time",
        "Age of the newest applied event of the slowest partition while more are waiting; 0 when all are read. If"
        " it grows while events flow, the monitor is too slow: see “Commit time”, then add a replica. If nothing"
        " flows, see “State”.",
        [target("max by (topic) (abmonitor_consumer_lag_seconds)", "{{topic}}")],
        unit="s",
        minimum=0,
        size=(12, 9),
        thresholds=LAG_THRESHOLDS,
    )


def lag_events() -> JSON:
    """Return the lag in events."""
    return graph(
        "Lag by topic, in events",
        "Events in Kafka that are not yet applied, over all partitions. After a restart it falls quickly; a steady"
        " rise is the same alarm as the lag in time. What arrives while the monitor waits for its store is counted when"
        " it is back: until then see “Lag by topic, in time”.",
        [target("sum by (topic) (abmonitor_consumer_lag_events)", "{{topic}}")],
        unit="short",
        decimals=0,
        minimum=0,
        size=(8, 8),
    )


def refused_events() -> JSON:
    """Return the refusals by reason, of those reasons that there were."""

    def added(window: str) -> str:
        return f"sum by (reason) (increase(abmonitor_rejected_events_total[{window}]))"

    return graph(
        "Refused events by reason",
        "Events refused per step of the graph, by reason. Each of them is in the dead-letter topic. A steady"
        " trickle is one broken producer: read a dead letter and tell its team. Above the configured share the"
        " service stops by itself. Empty is good.",
        [target(f"{added('$__rate_interval')} and {added('$__range')} > 0", "{{reason}}")],
        unit="short",
        minimum=0,
        size=(8, 8),
        stacked=True,
    )


def commit_time() -> JSON:
    """Return the quantiles of the time of one write."""
    return graph(
        "Commit time",
        "Time that a batch takes to be applied and written to the store, in one write. Above a second (dashed) the"
        " store or the way to it is slow: look at its CPU, its persistence and its network before you add replicas.",
        [
            target(quantile(0.5, "abmonitor_commit_seconds"), "median"),
            target(quantile(0.95, "abmonitor_commit_seconds"), "95 %", ref="B"),
            target(quantile(0.99, "abmonitor_commit_seconds"), "99 %", ref="C"),
        ],
        unit="s",
        minimum=0,
        size=(8, 8),
        thresholds=steps(GREEN, (1, ORANGE)),
    )


def batch_size() -> JSON:
    """Return the mean number of events in one write."""
    events = "sum(rate(abmonitor_batch_events_sum[$__rate_interval]))"
    batches = "sum(rate(abmonitor_batch_events_count[$__rate_interval]))"
    return graph(
        "Events per batch",
        "Mean number of events in one write. Small batches at low traffic are normal. Batches at the poll limit"
        " mean that the monitor is catching up or is at its capacity.",
        [target(f"{events} / ({batches} > 0)", "mean")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def event_delay() -> JSON:
    """Return the quantiles of the time from an event to its write."""
    return graph(
        "Delay from event to store",
        "Time from the event's own timestamp to its write: the age of what this board shows. A delay without lag"
        " comes from the producers: they send late or their clocks are wrong.",
        [
            target(quantile(0.5, "abmonitor_event_delay_seconds"), "median"),
            target(quantile(0.95, "abmonitor_event_delay_seconds"), "95 %", ref="B"),
        ],
        unit="s",
        minimum=0,
        size=(8, 8),
    )


def unmatched_feedback() -> JSON:
    """Return the unmatched feedback of each hour by kind."""
    return graph(
        "Unmatched feedback by kind, per hour",
        "Feedback for which no response was stored when it expired: it is in no number. It expires after"
        " feedback_window + allowed_lateness, so a mistake of today is visible here only then. A few are normal. A"
        " steady share means wrong keys, ids or topics, or missing responses: see “unmatched-feedback” in the runbook.",
        [target("max by (kind) (increase(abmonitor_unmatched_feedback_total[1h]))", "{{kind}}")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def commit_conflicts() -> JSON:
    """Return the refused writes."""
    return graph(
        "Commit conflicts",
        "Writes that the store refused because another replica had moved the positions or changed a row. They are"
        " repeated and cost only time; a few during a rebalance are how it should work. A steady rate means that"
        " producers do not key by user, or that two deployments share one store: find out which.",
        [target("sum(increase(abmonitor_commit_conflicts_total[$__rate_interval]))", "conflicts")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def state() -> JSON:
    """Return the two states over time."""
    return states(
        "State",
        "When the store was out of reach and when consumption was paused. The monitor waits and resumes by itself;"
        " nothing is lost as long as Kafka keeps the events, so compare the length of an outage with the topics'"
        " retention.",
        service_targets(instant=False),
        size=(8, 8),
        overrides=SERVICE_WORDS,
    )


def stalls() -> JSON:
    """Return the stalled consumers of each replica."""
    return graph(
        "Stalled consumers",
        "Consumers that got nothing for 30 seconds although there was something, and joined their group anew. One is"
        " no trouble. Again and again means that the brokers, the network or a partition's leader are in trouble: see"
        " “consumer-stalls” in the runbook.",
        [target("sum by (instance) (increase(abmonitor_consumer_restarts_total[$__rate_interval]))", "{{instance}}")],
        unit="short",
        minimum=0,
        size=(8, 8),
    )


def memory() -> JSON:
    """Return the memory of each replica."""
    return graph(
        "Memory",
        "Resident memory of each replica. It is level after the first hour; if it only rises, keep the log and report"
        " it. The store's memory is its own affair: `ab-monitor check` shows it.",
        [target('max by (instance) (process_resident_memory_bytes{job=~"ab-monitor.*"})', "{{instance}}")],
        unit="bytes",
        minimum=0,
        size=(8, 8),
    )


def processor() -> JSON:
    """Return the processor time of each replica."""
    return graph(
        "Processor",
        "Share of one processor that each replica uses. A replica uses one at most: near 100 % with a growing lag, add"
        " a replica. Near 0 with a growing lag, it waits: see “State”.",
        [
            target(
                'max by (instance) (rate(process_cpu_seconds_total{job=~"ab-monitor.*"}[$__rate_interval]))',
                "{{instance}}",
            )
        ],
        unit="percentunit",
        minimum=0,
        size=(8, 8),
    )


def panels() -> list[JSON]:
    """Return the panels that are seen first: the newest numbers, the flow, the refusals, the pauses."""
    return [
        lag_now(),
        service_now(),
        throughput_now(),
        dead_letters_now(),
        lost_now(),
        lag_seconds(),
        events_by_outcome(),
        refused_events(),
        commit_time(),
        state(),
    ]


def work() -> list[JSON]:
    """Return the panels of the work behind the flow."""
    return [
        lag_events(),
        batch_size(),
        event_delay(),
        unmatched_feedback(),
        commit_conflicts(),
        stalls(),
        memory(),
        processor(),
    ]


def board() -> JSON:
    """Return the board."""
    return boards.board(
        boards.PIPELINE,
        "AB Monitor: pipeline",
        "Whether events are read, applied and kept: lag, throughput, refusals, the store.",
        choices=[variables.datasource()],
        sections=[("Flow", panels()), ("Work and replicas", work())],
        marks=[boards.alerts('team="operations"')],
    )
