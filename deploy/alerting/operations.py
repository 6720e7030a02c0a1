"""Alerts about the monitor itself: it is gone, waits, lags, refuses or loses events.

`job` and `instance` are given by Prometheus. The jobs that scrape the monitor have names that begin with `ab-monitor`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final, Literal

from deploy.alerting.rules import Alert, Recording
from grafana import boards

JOBS: Final = 'job=~"ab-monitor.*"'
FEW: Final = 20
"""Up to this many events in a window no share of them is worth waking anybody."""
UNMATCHED_SHARE: Final = 0.05
"""Share of a day's feedback that may be unmatched."""

_alert = partial(Alert, team="operations", board=boards.PIPELINE)

REACHABILITY: Final = (
    _alert(
        name="AbMonitorDown",
        concern="down",
        severity="critical",
        expr=f"absent(up{{{JOBS}}} == 1)",
        pending="3m",
        summary="AB Monitor is down: Prometheus reaches no replica",
        description="For 3 minutes no replica has answered a scrape, or Prometheus has no scrape job whose name begins"
        " with ab-monitor. No events are applied, and no other alert of AB Monitor can fire. Kafka keeps the events for"
        " the retention of the topics.",
    ),
    _alert(
        name="AbMonitorTargetDown",
        concern="down",
        severity="warning",
        expr=f"min by (job, instance) (up{{{JOBS}}}) == 0",
        pending="5m",
        keep="5m",
        summary="{{ $labels.instance }} ({{ $labels.job }}) does not answer scrapes",
        description="For 5 minutes Prometheus has not been able to scrape this job of this replica. Other replicas, if"
        " any, take over its partitions.",
    ),
    _alert(
        name="AbMonitorRestarting",
        concern="restarting",
        severity="critical",
        expr=f"max by (job, instance) (changes(process_start_time_seconds{{{JOBS}}}[30m])) >= 3",
        keep="15m",
        summary="{{ $labels.instance }} restarts repeatedly: {{ $value }} times in 30 minutes",
        description="The monitor stops when it could otherwise produce wrong numbers, and its supervisor restarts it."
        " The exit code and the last log line name the reason.",
    ),
    _alert(
        name="AbMonitorStoreDown",
        concern="store-down",
        severity="critical",
        # Both pages must say so: before its first position the consumer has not asked the store yet.
        expr="max by (instance) (abmonitor_store_up) == 0",
        pending="2m",
        keep="2m",
        summary="{{ $labels.instance }} cannot use its store (Redis or Valkey)",
        description="For 2 minutes the store has been unreachable or has rejected writes. The monitor waits and resumes"
        " without help. No event is lost as long as Kafka keeps the events.",
    ),
)


def _paused(name: str, severity: Literal["critical", "warning"], pending: str) -> Alert:
    return _alert(
        name=name,
        concern="paused",
        severity=severity,
        expr="max by (job, instance) (abmonitor_paused) == 1",
        pending=pending,
        keep="2m",
        summary=f"{{{{ $labels.instance }}}} has been paused for {pending.replace('m', ' minutes')}",
        description="The replica waits for the store, for Kafka or for the dead-letter topic, and resumes without help."
        " Its page /-/ready names the cause. Events are lost if the pause lasts longer than the retention of the"
        " topics.",
    )


def _lag(name: str, severity: Literal["critical", "warning"], seconds: int, pending: str) -> Alert:
    return _alert(
        name=name,
        concern="lag",
        severity=severity,
        expr=f"max by (topic) (abmonitor_consumer_lag_seconds) > {seconds}",
        pending=pending,
        keep="5m",
        summary="AB Monitor lags {{ $value | humanizeDuration }} behind on {{ $labels.topic }}",
        description=f"For {pending.replace('m', ' minutes')} the newest applied event of the slowest partition has been"
        f" more than {seconds // 60} minutes old. Boards and alerts show the past. The numbers are correct again once"
        " the backlog is applied.",
    )


def _share(record: str, counted: str, window: str) -> Recording:
    """Return the share of a topic's events in the window that `counted` selects, where there were more than a few."""
    found = f"sum by (topic) (increase({counted}[{window}]))"
    every = f"sum by (topic) (increase(abmonitor_events_total[{window}]))"
    return Recording(record, f"({found} > {FEW})\n/\n{every}")


REJECTED_SHORT: Final = "topic:abmonitor_rejected_events:share10m"
REJECTED_LONG: Final = "topic:abmonitor_rejected_events:share6h"
LATE: Final = "topic:abmonitor_late_events:share1h"
ADDED: Final = "topic:abmonitor_events:added30m"


def _events(event_type: Literal["response", "feedback"], outcomes: str) -> str:
    """Return the events of one type with these outcomes in a day; topics have names of their own everywhere."""
    return (
        f'sum(increase(abmonitor_events_total{{outcome=~"{outcomes}"}}[1d])'
        f' and on (topic) abmonitor_topic_info{{event_type="{event_type}"}})'
    )


UNMATCHED: Final = ":abmonitor_unmatched_feedback:sum"
FEEDBACK: Final = ":abmonitor_feedback_events:added1d"
SKIPPED: Final = ":abmonitor_skipped_responses:share1d"

RECORDINGS: Final = (
    # Every replica exports the same count. A kind that nobody configured appears with its first count.
    Recording(UNMATCHED, "sum(max by (kind) (abmonitor_unmatched_feedback_total))"),
    Recording(FEEDBACK, _events("feedback", "applied|revised")),
    Recording(SKIPPED, f"{_events('response', 'skipped')}\n/\n({_events('response', 'applied|revised|skipped')} > 0)"),
    _share(REJECTED_SHORT, "abmonitor_rejected_events_total", "10m"),
    _share(REJECTED_LONG, "abmonitor_rejected_events_total", "6h"),
    _share(LATE, 'abmonitor_events_total{outcome="late"}', "1h"),
    Recording(ADDED, "sum by (topic) (increase(abmonitor_events_total[30m]))"),
)

FLOW: Final = (
    _paused("AbMonitorPaused", "warning", "5m"),
    _paused("AbMonitorPausedLong", "critical", "30m"),
    _lag("AbMonitorLag", "warning", 120, "30m"),
    _lag("AbMonitorLagSevere", "critical", 900, "5m"),
    _alert(
        name="AbMonitorTopicSilent",
        concern="topic-silent",
        severity="warning",
        expr=f"""
        {ADDED} offset 1d > 100
        and
        {ADDED} offset 7d > 100
        and
        {ADDED} == 0
        """,
        pending="5m",
        keep="15m",
        summary="No events on {{ $labels.topic }} for 30 minutes",
        description='At the same time yesterday there were {{ $value | printf "%.0f" }} events in 30 minutes, and a'
        " week ago more than 100. The producer may have stopped.",
        shown="2d",
    ),
    _alert(
        name="AbMonitorCommitConflicts",
        concern="commit-conflicts",
        severity="warning",
        expr=f"""
        sum(increase(abmonitor_commit_conflicts_total[30m]))
        / (sum(increase(abmonitor_commit_conflicts_total[30m])) + sum(increase(abmonitor_commit_seconds_count[30m])))
        > 0.2
        and
        sum(increase(abmonitor_commit_conflicts_total[30m])) > {FEW}
        """,
        pending="30m",
        keep="15m",
        summary="{{ $value | humanizePercentage }} of the commits are in conflict",
        description="Over 30 minutes the store has rejected these commits, because replicas change the same positions"
        " or rows. The numbers stay correct, but replicas repeat work. Probably the events are not keyed by user_id, or"
        " two deployments share one store.",
    ),
    _alert(
        name="AbMonitorConsumerStalls",
        concern="consumer-stalls",
        severity="warning",
        expr="sum by (job, instance) (increase(abmonitor_consumer_restarts_total[1h])) > 2",
        keep="30m",
        summary="The Kafka consumer of {{ $labels.instance }} stalls repeatedly",
        description='{{ $value | printf "%.0f" }} times in one hour the consumer received nothing for 30 seconds'
        " although events were waiting, or partitions had no owner for 10 seconds. Each time it rejoined its group.",
    ),
)

LOSSES: Final = (
    _alert(
        name="AbMonitorRejectsSevere",
        concern="rejects",
        severity="critical",
        expr=f"{REJECTED_SHORT} > 0.2",
        pending="5m",
        keep="15m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} were rejected in 10 minutes",
        description="A producer sends invalid events. Each is kept in the dead-letter topic and is missing in the"
        " numbers. If this continues, the monitor stops with exit code 4.",
    ),
    _alert(
        name="AbMonitorRejects",
        concern="rejects",
        severity="warning",
        expr=f"""
        {REJECTED_LONG} > 0.01
        and
        sum by (topic) (increase(abmonitor_rejected_events_total[30m])) > 0
        """,
        pending="15m",
        keep="30m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} were rejected in 6 hours",
        description="Some were rejected in the last 30 minutes or shortly before. A producer sends invalid events, or a"
        " limit is too low. Rejected events are kept in the dead-letter topic and are missing in the numbers.",
        shown="12h",
    ),
    _alert(
        name="AbMonitorDeadLetters",
        concern="dead-letters",
        severity="info",
        expr="sum by (topic, reason) (increase(abmonitor_rejected_events_total[1h])) > 0",
        keep="1h",
        summary="New dead letters: {{ $labels.reason }} in {{ $labels.topic }}",
        description='About {{ $value | printf "%.0f" }} events were rejected in the last hour. After a correction they'
        " can be sent again, within the retention of the dead-letter topic.",
    ),
    _alert(
        name="AbMonitorLostEvents",
        concern="lost-events",
        severity="critical",
        # The counter appears with its first loss, which an increase cannot see: a new series counts as a whole.
        expr="""
        sum by (topic, partition) (increase(abmonitor_lost_events_total[6h])) > 0
        or
        sum by (topic, partition) (
          abmonitor_lost_events_total unless last_over_time(abmonitor_lost_events_total[6h] offset 6h)
        ) > 0
        """,
        summary='{{ $value | printf "%.0f" }} events of {{ $labels.topic }}, partition {{ $labels.partition }}, are'
        " lost",
        description="Kafka had deleted these events before the monitor applied them. The monitor continued without"
        ' them, because kafka.on_lost_history is "continue". The counts of the affected hours are too small.',
        shown="12h",
    ),
    _alert(
        name="AbMonitorLateEvents",
        concern="late-events",
        severity="warning",
        expr=f"{LATE} > 0.01",
        pending="15m",
        keep="30m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} arrived too late in one hour",
        description="Late events are about responses older than feedback_window + allowed_lateness. They are missing in"
        " the numbers. A producer holds events back, or old events are sent again.",
        shown="12h",
    ),
    _alert(
        name="AbMonitorUnmatchedFeedback",
        concern="unmatched-feedback",
        severity="warning",
        # Feedback expires days after it was applied, so it is compared with the busiest day since. No increase(): after
        # a rebuild the count may be lower, which is no restart. Feedback on skipped responses is always unmatched, and
        # they may get twice as much of it as others.
        expr=f"""
        (delta({UNMATCHED}[1d]) > {FEW})
        / (max_over_time({FEEDBACK}[8d]) > 0)
        > {UNMATCHED_SHARE} + 2 * (max_over_time({SKIPPED}[8d]) or vector(0))
        """,
        pending="15m",
        keep="30m",
        summary="{{ $value | humanizePercentage }} of the feedback has no response",
        description="Feedback expired because its response had not arrived within feedback_window + allowed_lateness."
        " Unmatched feedback is missing in all numbers. Keys, ids or topics are wrong, or responses are missing. The"
        " percentage is the unmatched feedback of the last 24 hours, divided by all feedback of the busiest 24 hours of"
        " the last 8 days.",
        shown="2d",
    ),
)

ALERTS: Final[Sequence[Alert]] = (*REACHABILITY, *FLOW, *LOSSES)
