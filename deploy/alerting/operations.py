"""Alerts about the monitor itself: it is gone, waits, lags, refuses or loses events.

`job` and `instance` are given by Prometheus. The job that scrapes /metrics of a system has a name that begins with
`ab-monitor`; the name of the job that scrapes /metrics/experiments is the same with the ending `-experiments`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal

from deploy.alerting.rules import EXPERIMENTS_SUFFIX, Alert, Recording, queried
from grafana import boards

JOBS: Final = 'job=~"ab-monitor.*"'
EXPERIMENT_JOBS: Final = f'job=~".*{EXPERIMENTS_SUFFIX}"'
PROCESS_JOBS: Final = f'{JOBS}, job!~".*{EXPERIMENTS_SUFFIX}"'
FEW: Final = 20
"""Up to this many events in a window no share of them is worth waking anybody."""
SEVERE_SHARE: Final = 0.2
TOLERATED_SHARE: Final = 0.01
"""Of the events of a topic: rejected ones in 10 minutes and in 6 hours."""
UNMATCHED_SHARE: Final = 0.05
"""Share of a day's feedback that may be unmatched."""
UNCOUNTED_SHARE: Final = 0.1
"""Share of an experiment's feedback in 10 minutes that may not count for one reason."""

_alert = partial(Alert, team="operations", board=boards.PIPELINE)

STARTS: Final = ":abmonitor_starts:added30m"
RECENT_STARTS: Final = ":abmonitor_starts:added10m"

REACHABILITY: Final = (
    _alert(
        name="AbMonitorDown",
        concern="down",
        severity="critical",
        # A system is known for a day, because in a cluster the targets go with the pods.
        expr=f"""
        (
          max by () (last_over_time(up{{{PROCESS_JOBS}}}[1d]))
          unless
          max by () (up{{{PROCESS_JOBS}}} == 1)
        )
        or
        absent(last_over_time(up{{{JOBS}}}[1d]))
        """,
        pending="3m",
        summary="{{ if $labels.job }}AB Monitor is down: no replica answers{{ else }}Prometheus has no job that scrapes"
        " AB Monitor{{ end }}",
        description="{{ if $labels.job }}For 3 minutes no replica has answered a scrape. Read the state, exit code and"
        " log of the process: it has stopped, restarts too fast for a scrape, or Prometheus cannot reach it. No events"
        " are applied. Kafka keeps them for the retention of the topics.{{ else }}No scrape job has a name that begins"
        " with ab-monitor, so no other alert of AB Monitor can fire. Add the jobs of docs/deployment.md to the"
        " configuration of Prometheus.{{ end }} The service serves the linked runbook, so without it read"
        " docs/runbook.md.",
    ),
    _alert(
        name="AbMonitorTargetDown",
        concern="down",
        severity="warning",
        # Alerts of both jobs get the same labels, and Prometheus accepts no two equal alerts of one rule.
        expr=f"""
        min by (instance) (up{{{PROCESS_JOBS}}}) == 0
        or ignoring (job)
        min by (instance) (up{{{JOBS}, {EXPERIMENT_JOBS}}}) == 0
        """,
        pending="5m",
        keep="2m",
        summary="{{ $labels.instance }} ({{ $labels.job }}) does not answer scrapes",
        description="For 5 minutes Prometheus has not been able to scrape this job of this replica. Other replicas, if"
        " any, take over its partitions.",
    ),
    _alert(
        name="AbMonitorRestarting",
        concern="restarting",
        severity="critical",
        # The store counts all starts, scrapes meet some: a loop must not fire a second time when a scrape meets it.
        # It ends ten minutes after the last restart. Back-off makes a supervisor wait for five minutes at most.
        expr=f"""
        (
          {STARTS} >= 3 * count by () (last_over_time(up{{{PROCESS_JOBS}}}[30m]))
          and
          {RECENT_STARTS} > 0
        )
        or
        (
          max by (instance) (changes(process_start_time_seconds{{{PROCESS_JOBS}}}[30m])) >= 3
          and
          max by (instance) (changes(process_start_time_seconds{{{PROCESS_JOBS}}}[10m])) > 0
          unless on ()
          {STARTS} >= 3 * count by () (last_over_time(up{{{PROCESS_JOBS}}}[30m]))
        )
        """,
        keep="2m",
        summary="{{ if $labels.instance }}{{ $labels.instance }}{{ else }}AB Monitor{{ end }} restarts repeatedly:"
        " {{ $value }} times in 30 minutes",
        description="The monitor stops when it could otherwise produce wrong numbers, and its supervisor restarts it."
        " The exit code and the last log line name the reason. 4: too many rejected events, and a restart does not help"
        " (see “rejects” in the runbook). 5: store and configuration do not match. 6: Kafka deleted events before they"
        " were applied.",
    ),
    _alert(
        name="AbMonitorStoreDown",
        concern="store-down",
        severity="critical",
        # A store that is full or read-only answers reads, so the worker's pause decides. Before its first position the
        # worker has not asked the store yet; then both pages must report an outage.
        expr=f"""
        max by (instance) (abmonitor_paused{{reason="store"}}) == 1
        or
        (
          max by (instance) (abmonitor_store_up{{{PROCESS_JOBS}}}) == 0
          unless ignoring (job)
          max by (instance) (abmonitor_store_up{{{EXPERIMENT_JOBS}}}) == 1
        )
        """,
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
        expr="max by (instance, reason) (abmonitor_paused) == 1",
        pending=pending,
        keep="2m",
        summary="{{ $labels.instance }} is paused: it has waited for"
        ' {{ with $labels.reason }}{{ reReplaceAll "_" " " . }}{{ else }}a dependency{{ end }}'
        f" for {pending.replace('m', ' minutes')}",
        description='{{ if eq $labels.reason "store" }}The store is unreachable or rejects writes.'
        '{{ else if eq $labels.reason "kafka" }}Kafka is unreachable, or rejects the requests of the monitor.'
        '{{ else if eq $labels.reason "dead_letters" }}Rejected events cannot be written to the dead-letter topic.'
        '{{ else if eq $labels.reason "schema_registry" }}The schema registry is unreachable, or rejects the requests'
        " of the monitor.{{ end }} Its page /-/ready has the error. The replica resumes without help. Events are lost "
        "if the pause lasts longer than the retention of the topics.",
    )


def _lag(name: str, severity: Literal["critical", "warning"], seconds: int, pending: str) -> Alert:
    return _alert(
        name=name,
        concern="lag",
        severity=severity,
        expr=f"max by (topic) (abmonitor_consumer_lag_seconds) > {seconds}",
        pending=pending,
        keep="2m",
        summary="AB Monitor lags {{ $value | humanizeDuration }} behind on {{ $labels.topic }}",
        description=f"For {pending.replace('m', ' minutes')} the newest applied event of the slowest partition has been"
        f" more than {seconds // 60} minutes old. Boards and alerts show the past. The numbers are correct again once"
        " the backlog is applied.",
    )


def _with_base_job(expr: str) -> str:
    """Return the expression on series of /metrics/experiments with the job of /metrics."""
    return f'label_replace({expr}, "job", "$1", "job", "(.+?)({EXPERIMENTS_SUFFIX})?")'


def _share(record: str, counted: str, window: str) -> Recording:
    """Return the share of a topic's events in the window that `counted` selects, where there were more than a few."""
    found = f"sum by (topic) (increase({counted}[{window}]))"
    every = f"sum by (topic) (increase(abmonitor_events_total[{window}]))"
    return Recording(record, f"({found} > {FEW})\n/\n{every}")


REJECTED_SHORT: Final = "topic:abmonitor_rejected_events:share10m"
REJECTED_LONG: Final = "topic:abmonitor_rejected_events:share6h"
LATE: Final = "topic:abmonitor_late_events:share1h"
SKIPPED_SHORT: Final = "topic:abmonitor_skipped_events:share10m"
SKIPPED_PAST: Final = "topic:abmonitor_skipped_events:share1d_past"
UNCOUNTED: Final = "experiment_reason:abmonitor_uncounted_feedback:share10m"
ADDED: Final = "topic:abmonitor_events:added30m"


def _events(event_type: Literal["response", "feedback"], outcomes: str) -> str:
    """Return the events of one type with these outcomes in a day; topics have names of their own everywhere."""
    return (
        f'sum by () (increase(abmonitor_events_total{{outcome=~"{outcomes}"}}[1d])'
        f' and on (topic) abmonitor_topic_info{{event_type="{event_type}"}})'
    )


UNMATCHED: Final = ":abmonitor_unmatched_feedback:sum"
FEEDBACK: Final = ":abmonitor_feedback_events:added1d"
SKIPPED: Final = ":abmonitor_skipped_responses:share1d"


def _of_either_page(aggregated: Callable[[str], str]) -> str:
    """Return an expression on a series that either page may export, with the job of /metrics."""
    return f"{aggregated(PROCESS_JOBS)}\nor\n{_with_base_job(aggregated(EXPERIMENT_JOBS))}"


_UNCOUNTED_ADDED: Final = (
    "clamp_min(max by (experiment, variant, reason) (delta(abmonitor_uncounted_feedback[10m])), 0)"
)
_STARTS: Final = "abmonitor_starts_total"
"""Counted in the store, so it has the starts of processes that no scrape reached, too. No increase(): in a loop of
restarts, scrapes are rare."""

RECORDINGS: Final = (
    Recording(
        STARTS,
        _of_either_page(
            lambda jobs: (
                f"(max by () (last_over_time({_STARTS}{{{jobs}}}[10m]))"
                f" - min by () (min_over_time({_STARTS}{{{jobs}}}[30m])))"
            )
        ),
    ),
    Recording(
        RECENT_STARTS,
        _of_either_page(
            lambda jobs: (
                f"(max by () (last_over_time({_STARTS}{{{jobs}}}[10m]))"
                f" - (max by () (last_over_time({_STARTS}{{{jobs}}}[30m] offset 10m))"
                f" or min by () (min_over_time({_STARTS}{{{jobs}}}[10m]))))"
            )
        ),
    ),
    # Every replica exports the same count. A kind that nobody configured appears with its first count. The job is that
    # of /metrics/experiments; the events are of the other job.
    Recording(
        UNMATCHED,
        _with_base_job("sum by () (max by (kind) (abmonitor_unmatched_feedback_total))"),
    ),
    Recording(FEEDBACK, _events("feedback", "applied|revised")),
    Recording(SKIPPED, f"{_events('response', 'skipped')}\n/\n({_events('response', 'applied|revised|skipped')} > 0)"),
    _share(REJECTED_SHORT, "abmonitor_rejected_events_total", "10m"),
    _share(REJECTED_LONG, "abmonitor_rejected_events_total", "6h"),
    _share(LATE, 'abmonitor_events_total{outcome="late"}', "1h"),
    _share(SKIPPED_SHORT, 'abmonitor_events_total{outcome="skipped"}', "10m"),
    Recording(
        SKIPPED_PAST,
        """
        sum by (topic) (increase(abmonitor_events_total{outcome="skipped"}[1d] offset 1h))
        /
        (sum by (topic) (increase(abmonitor_events_total[1d] offset 1h)) > 0)
        """,
    ),
    # The series of counted feedback appears with the first event that counts.
    Recording(
        UNCOUNTED,
        f"""
        (sum by (experiment, reason) ({_UNCOUNTED_ADDED}) > {FEW})
        / on (experiment) group_left ()
        (
          sum by (experiment) ({_UNCOUNTED_ADDED})
          + on (experiment)
          sum by (experiment) (clamp_min(max by (experiment, variant, kind) (delta(abmonitor_feedback[10m])), 0))
          or
          sum by (experiment) ({_UNCOUNTED_ADDED})
        )
        """,
    ),
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
        keep="2m",
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
        sum by () (increase(abmonitor_commit_conflicts_total[10m]))
        / (
          sum by () (increase(abmonitor_commit_conflicts_total[10m]))
          + sum by () (increase(abmonitor_commit_seconds_count[10m]))
        )
        > 0.2
        and
        sum by () (increase(abmonitor_commit_conflicts_total[10m])) > {FEW}
        """,
        pending="30m",
        keep="2m",
        summary="{{ $value | humanizePercentage }} of the commits are in conflict",
        description="For 30 minutes the store has rejected these commits, because replicas change the same positions"
        " or rows. The numbers stay correct, but replicas repeat work. Probably the events are not keyed by user_id, or"
        " two deployments share one store.",
    ),
    _alert(
        name="AbMonitorBackfillFailed",
        concern="backfill-failed",
        severity="warning",
        # Every replica reports the state that is in the store.
        expr="max by (experiment) (abmonitor_backfill_failed) == 1",
        pending="5m",
        keep="2m",
        summary="the backfill of {{ $labels.experiment }} has failed",
        description="The results of this experiment lack events from before its declaration, or show its earlier"
        " definition. All other results and live events are not affected. The backfill is attempted again, at first"
        " after a minute, later every hour.",
    ),
    _alert(
        name="AbMonitorMessagesWait",
        concern="messages-wait",
        severity="warning",
        # Only the replica that delivers has the series.
        expr="max by (channel) (abmonitor_notifications_waiting) > 0",
        pending="30m",
        keep="5m",
        summary='{{ $value | printf "%.0f" }} messages wait for the channel {{ $labels.channel }}',
        description="For 30 minutes this channel has not accepted a message about a change of an experiment, so its"
        " readers do not know of the change. The results are not affected. The service tries again for three days, at"
        " least every half hour.",
    ),
    _alert(
        name="AbMonitorConsumerStalls",
        concern="consumer-stalls",
        severity="warning",
        expr="""
        sum by (instance) (increase(abmonitor_consumer_restarts_total[1h])) > 2
        and
        sum by (instance) (increase(abmonitor_consumer_restarts_total[15m])) > 0
        """,
        keep="5m",
        summary="The Kafka consumer of {{ $labels.instance }} stalls repeatedly",
        description='{{ $value | printf "%.0f" }} times in one hour the consumer received nothing for 30 seconds'
        " although events were waiting, or partitions had no owner for 10 seconds. Each time it rejoined its group.",
    ),
)

CONFIGURATION: Final = (
    _alert(
        name="AbMonitorReloadFailed",
        concern="reload-failed",
        severity="warning",
        expr="min by (instance) (abmonitor_config_last_reload_successful) == 0",
        pending="5m",
        keep="2m",
        summary="{{ $labels.instance }} rejects its changed configuration",
        description="For 5 minutes the configuration of this replica has been invalid, missing, or in conflict with the"
        " one of another replica. The replica continues with the experiments that it had before. After a restart it"
        " could not start. Its log names the wrong settings.",
    ),
    _alert(
        name="AbMonitorReplicasDisagree",
        concern="replicas-disagree",
        severity="warning",
        expr="count by () (count by (digest) (abmonitor_config_info)) > 1",
        pending="5m",
        keep="2m",
        summary="The replicas have {{ $value }} different configurations of experiments",
        description="For 5 minutes replicas have had different files. The experiments of the newest file are in force"
        " on all of them. Not all have received the new configuration, or some reject it.",
    ),
)

_MAIN_REASON: Final = queried(
    "topk(1, sum by (reason) (increase(abmonitor_rejected_events_total{$system}[30m]) > 0))",
    " Most frequent reason in the last 30 minutes: {{ . | label `reason` }}.",
    labels=("topic",),
)


def _rejected(window: str) -> str:
    return f"sum by (topic) (increase(abmonitor_rejected_events_total[{window}]))"


LOSSES: Final = (
    _alert(
        name="AbMonitorRejectsSevere",
        concern="rejects",
        severity="critical",
        expr=f"{REJECTED_SHORT} > {SEVERE_SHARE}",
        pending="5m",
        keep="2m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} are rejected",
        description=f"A producer sends invalid events.{_MAIN_REASON} They are missing in the numbers; the dead-letter"
        " topic keeps them. Have the producer repaired. A restart does not help: if this continues, the monitor stops"
        " with exit code 4. Then start it once with `ab-monitor run --config FILE --accept-rejected`, to get past"
        " the rejected events.",
    ),
    _alert(
        name="AbMonitorRejects",
        concern="rejects",
        severity="warning",
        # It ends minutes after the last rejected event; if they are rare, an hour.
        expr=f"""
        {REJECTED_LONG} > {TOLERATED_SHARE}
        and
        (
          {_rejected("10m")} > 0
          or
          ({_rejected("1h")} > 0 and {_rejected("6h")} < 120)
        )
        """,
        pending="15m",
        keep="5m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} were rejected in 6 hours",
        description=f"A producer sends invalid events, or a limit is too low.{_MAIN_REASON} Rejected events are missing"
        " in the numbers; the dead-letter topic keeps them.",
        shown="12h",
    ),
    _alert(
        name="AbMonitorDeadLetters",
        concern="dead-letters",
        severity="info",
        # More of them are the business of the two alerts above: one flood, one alert.
        expr=f"""
        {_rejected("15m")} > 0
        unless
        ({REJECTED_SHORT} > {SEVERE_SHARE} or {REJECTED_LONG} > {TOLERATED_SHARE})
        """,
        pending="5m",
        summary="A few events of {{ $labels.topic }} were rejected",
        description='About {{ $value | printf "%.0f" }} in 15 minutes.'
        f"{_MAIN_REASON} After a correction they can be sent again, within the retention of the dead-letter topic.",
    ),
    _alert(
        name="AbMonitorSkipped",
        concern="skipped",
        severity="warning",
        # Some topics always have events of experiments of others.
        expr=f"""
        {SKIPPED_SHORT} > {TOLERATED_SHARE}
        unless
        {SKIPPED_SHORT} <= 2 * {SKIPPED_PAST}
        """,
        pending="5m",
        keep="2m",
        summary="{{ $value | humanizePercentage }} of the events of {{ $labels.topic }} are skipped",
        description="The configuration does not declare the experiment or variant of these events, or their time is"
        " outside the experiment's. They are missing in all numbers. `ab-monitor status --health --config FILE` lists"
        " the undeclared names and similar declared ones.",
    ),
    _alert(
        name="AbMonitorUncountedFeedback",
        concern="uncounted-feedback",
        severity="warning",
        # Some reactions to items that were not shown, or after the window, are usual.
        expr=f"""
        {UNCOUNTED} > {UNCOUNTED_SHARE}
        unless
        {UNCOUNTED} <= 2 * avg_over_time({UNCOUNTED}[1d] offset 1h)
        """,
        pending="5m",
        keep="2m",
        summary="{{ $value | humanizePercentage }} of the feedback about {{ $labels.experiment }} does not count:"
        ' {{ reReplaceAll "_" " " $labels.reason }}',
        description='{{ if eq $labels.reason "before_response" }}The feedback has earlier timestamps than the'
        ' responses: the clock of a producer is wrong.{{ else if eq $labels.reason "outside_window" }}The feedback came'
        ' more than feedback_window after the responses.{{ else if eq $labels.reason "item_not_shown" }}The item_id of'
        " the feedback is not among the items of the response.{{ else }}The score is above the scale of the experiment,"
        " or not in a gain table.{{ end }} This feedback is missing in all means.",
        board=boards.EXPERIMENT,
        variables=("experiment",),
    ),
    _alert(
        name="AbMonitorLostEvents",
        concern="lost-events",
        severity="critical",
        # The counter appears with its first loss, which an increase cannot see: a new series counts as a whole.
        expr="""
        sum by (topic, partition) (increase(abmonitor_lost_events_total[1h])) > 0
        or
        sum by (topic, partition) (
          abmonitor_lost_events_total unless last_over_time(abmonitor_lost_events_total[6h] offset 1h)
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
        expr=f"""
        {LATE} > {TOLERATED_SHARE}
        and
        sum by (topic) (increase(abmonitor_events_total{{outcome="late"}}[10m])) > 0
        """,
        pending="15m",
        keep="5m",
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
        > {UNMATCHED_SHARE} + 2 * (max_over_time({SKIPPED}[8d]) or 0 * max_over_time({FEEDBACK}[8d]))
        and
        delta({UNMATCHED}[1h]) > 0
        """,
        pending="15m",
        keep="5m",
        summary="{{ $value | humanizePercentage }} of the feedback has no response",
        description="It expired before its response arrived, and is missing in all numbers. Keys, ids or topics are"
        " wrong, or responses are missing. The percentage is of the busiest of 8 days.",
        shown="2d",
    ),
)

ALERTS: Final[Sequence[Alert]] = (*REACHABILITY, *FLOW, *CONFIGURATION, *LOSSES)
