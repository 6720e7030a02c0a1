"""The board "AB Monitor: experiment": one experiment's variants side by side, and the health of the pipeline below.

Series of /metrics/experiments are the same from every replica, so they are reduced by `max by (variant)`. They are
gauges, because a revised reaction may lower a sum: windows over them are `delta()`, never `rate()`.
"""

from __future__ import annotations

from grafana import pipeline, variables
from grafana.panels import GREEN, JSON, RED, VARIANT_COLORS, YELLOW, dashed, graph, laid_out, stat, steps, target

UID = "abmonitor-experiment"
TITLE = "AB Monitor: experiment"

EXPERIMENT = 'experiment="$experiment"'
METRIC = f'{EXPERIMENT}, metric="$metric"'
DECAYED = f'{METRIC}, decay="$decay"'
ALL_TIME = f'{METRIC}, decay="none"'

AGE_THRESHOLDS = steps(GREEN, (900, YELLOW), (3600, RED))
READABLE_EFFECTIVE_COUNT = 30


def per_variant(name: str, selector: str = EXPERIMENT) -> str:
    """Return the gauge per variant, whichever replica it was scraped from."""
    return f"max by (variant) ({name}{{{selector}}})"


def per_response(name: str, labels: str) -> str:
    """Return the gauge as a share of the variant's responses; absent as long as there are none."""
    responses = per_variant("abmonitor_responses")
    return f"max by ({labels}) ({name}{{{EXPERIMENT}}}) / on (variant) group_left () ({responses} > 0)"


def lead(selector: str) -> str:
    """Return each variant's mean minus the mean of the experiment's control; the control itself is the line at 0."""
    control = f'label_replace(abmonitor_experiment_info{{{EXPERIMENT}}}, "variant", "$1", "control", "(.*)")'
    mean = f"abmonitor_metric_mean{{{selector}}}"
    return f"max by (variant) ({mean}) - on () group_left () max({mean} and on (experiment, variant) {control})"


def event_age() -> str:
    """Return the seconds since the newest event of each variant."""
    return f"time() - {per_variant('abmonitor_variant_last_event_timestamp_seconds')}"


def range_mean() -> JSON:
    """Return the mean of what was added in the shown time range, per variant."""
    added_sum = f"delta(abmonitor_metric_sum{{{METRIC}}}[$__range])"
    added_count = f"delta(abmonitor_metric_count{{{METRIC}}}[$__range])"
    return stat(
        "$metric in the shown time range",
        "Mean of $metric over what was added between the left and the right edge of the board. Select the time"
        " since a deployment to see what it did. Empty if nothing was added. It describes; it is not a verdict.",
        [target(f"max by (variant) ({added_sum} / ({added_count} > 0))", "{{variant}}", instant=True)],
        unit="short",
        decimals=3,
        size=(6, 4),
        overrides=VARIANT_COLORS,
    )


def students_now() -> JSON:
    """Return the students per variant as numbers."""
    return stat(
        "Students",
        "Students seen by each variant, all time. They are what the statistics count: below a few hundred per"
        " variant the differences on this board are mostly noise. If they are not in the declared proportion, see"
        " “Share of students” before you compare anything.",
        [target(per_variant("abmonitor_students"), "{{variant}}", instant=True)],
        unit="short",
        decimals=0,
        size=(5, 4),
        overrides=VARIANT_COLORS,
    )


def age_now() -> JSON:
    """Return the age of the newest event per variant as numbers."""
    return stat(
        "Time since the last event",
        "By the events' own time. If one variant is old and the other is not, its bot or its routing has stopped:"
        " ask its team. If all are old, look at the lag, then at the producers. A replayed recording is as old as it"
        " is.",
        [target(event_age(), "{{variant}}", instant=True)],
        unit="s",
        decimals=0,
        size=(5, 4),
        thresholds=AGE_THRESHOLDS,
    )


def decayed_mean() -> JSON:
    """Return the graph that shows a sudden drop."""
    return graph(
        "$metric, decayed ($decay)",
        "Mean of $metric over rated responses, where old responses weigh less: at a decay of 24h a response of"
        " yesterday counts half. This is the graph to watch for a sudden drop. If a variant falls away, see"
        " “Effective responses” first: a mean of few responses jumps by itself. Otherwise look at that variant's"
        " last deployment.",
        [target(per_variant("abmonitor_metric_mean", DECAYED), "{{variant}}")],
        unit="short",
        decimals=3,
        size=(12, 9),
        overrides=VARIANT_COLORS,
    )


def all_time_mean() -> JSON:
    """Return the graph that the product team compares."""
    return graph(
        "$metric, all time",
        "Mean of $metric over all rated responses since the experiment began, all with the same weight. This is"
        " what the product team compares; it moves slowly. Two lines apart do not say that the difference is real:"
        " that takes a test over students.",
        [target(per_variant("abmonitor_metric_mean", ALL_TIME), "{{variant}}")],
        unit="short",
        decimals=3,
        size=(12, 9),
        overrides=VARIANT_COLORS,
    )


def lead_over_control() -> JSON:
    """Return the differences to the control."""
    return graph(
        "$metric: lead over the control",
        "Mean of each variant minus the mean of the control, decayed and (dashed) all time. Below zero the variant"
        " is worse. If the decayed line leaves the dashed one and stays away, something has changed recently: find"
        " out what.",
        [
            target(lead(DECAYED), "{{variant}}, $decay"),
            target(lead(ALL_TIME), "{{variant}}, all time", ref="B"),
        ],
        unit="short",
        decimals=3,
        size=(8, 8),
        overrides=(*VARIANT_COLORS, dashed(", all time$")),
    )


def effective_responses() -> JSON:
    """Return how much the decayed mean rests on."""
    return graph(
        "Effective responses behind the decayed mean",
        "How many equally weighted rated responses the decayed mean is worth: (Σw)²/Σw². Under the dashed line"
        f" ({READABLE_EFFECTIVE_COUNT}) do not read the decayed mean; choose a longer decay at the top.",
        [target(per_variant("abmonitor_metric_effective_count", DECAYED), "{{variant}}")],
        unit="short",
        minimum=0,
        size=(8, 8),
        thresholds=steps(RED, (READABLE_EFFECTIVE_COUNT, YELLOW)),
        overrides=VARIANT_COLORS,
    )


def rated_share() -> JSON:
    """Return which part of the responses the means are about."""
    return graph(
        "Rated share",
        "Share of responses with at least one graded item, all time; the means are over these only. If the variants"
        " differ here, their means are about different students: compare the means over all responses (`ab-monitor"
        " status`) as well. If the share falls for all, the rating widget or its topic may be broken.",
        [target(per_response("abmonitor_rated_responses", "variant"), "{{variant}}")],
        unit="percentunit",
        decimals=1,
        minimum=0,
        size=(8, 8),
        overrides=VARIANT_COLORS,
    )


def feedback_by_kind() -> JSON:
    """Return how often students react, by kind."""
    return graph(
        "Reactions per response, by kind",
        "Current reactions of each kind divided by responses, all time; the control is dashed. A variant may rate well"
        " and still send more students to a human: watch `escalated`. If a kind falls for all variants, its producer is"
        " broken.",
        [target(per_response("abmonitor_feedback", "variant, kind"), "{{kind}}, {{variant}}")],
        unit="short",
        decimals=2,
        minimum=0,
        size=(12, 8),
        overrides=(dashed(", control$"),),
    )


def age_over_time() -> JSON:
    """Return the age of the newest event per variant as a graph."""
    return graph(
        "Time since the last event, over time",
        "The age of each variant's newest event. A saw tooth near zero is healthy. A straight rise means that no"
        " event of that variant arrives; nights and holidays look like this too.",
        [target(event_age(), "{{variant}}")],
        unit="s",
        minimum=0,
        size=(12, 8),
        thresholds=AGE_THRESHOLDS,
        overrides=VARIANT_COLORS,
    )


def students() -> JSON:
    """Return the students per variant as a graph."""
    return graph(
        "Students, all time",
        "Students seen by each variant. It flattens when the same students come back: an experiment that gains no"
        " students gains little certainty.",
        [target(per_variant("abmonitor_students"), "{{variant}}")],
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=VARIANT_COLORS,
    )


def share_of_students() -> JSON:
    """Return how the students are divided among the variants."""
    each = per_variant("abmonitor_students")
    return graph(
        "Share of students",
        "Each variant's share of all students. It must stay at the declared share. If it drifts, the assignment is"
        " broken (sample ratio mismatch) and no comparison on this board is fair: stop and repair the assignment.",
        [target(f"{each} / on () group_left () (sum({each}) > 0)", "{{variant}}")],
        unit="percentunit",
        decimals=1,
        minimum=0,
        maximum=1,
        size=(6, 8),
        overrides=VARIANT_COLORS,
    )


def responses() -> JSON:
    """Return the responses per variant."""
    return graph(
        "Responses, all time",
        "Responses counted for each variant. A variant that stops growing gets no traffic, or its answers do not"
        " arrive.",
        [target(per_variant("abmonitor_responses"), "{{variant}}")],
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=VARIANT_COLORS,
    )


def new_responses() -> JSON:
    """Return the traffic of each variant."""
    return graph(
        "New responses per minute",
        "Mean over the last five minutes. If one variant drops alone, its traffic was switched off or its bot fails"
        " before it answers.",
        [target(f"max by (variant) (delta(abmonitor_responses{{{EXPERIMENT}}}[5m])) / 5", "{{variant}}")],
        unit="short",
        size=(6, 8),
        overrides=VARIANT_COLORS,
    )


def choices() -> list[JSON]:
    """Return the variables; each one offers only what exists under the ones before it."""
    decays = f'abmonitor_metric_effective_count{{{METRIC}, decay!="none"}}'
    return [
        variables.datasource(),
        variables.label_values("experiment", "Experiment", "abmonitor_experiment_info", "experiment"),
        variables.label_values(
            "metric", "Metric", f"abmonitor_metric_count{{{EXPERIMENT}}}", "metric", default="dcg@5"
        ),
        variables.label_values("decay", "Decay", decays, "decay", sort=variables.SORT_NUMERICAL),
    ]


def panels() -> list[JSON]:
    """Return the row's panels: the newest numbers, the comparison, then the evidence behind it."""
    return [
        range_mean(),
        students_now(),
        age_now(),
        pipeline.lag_now(),
        pipeline.service_now(),
        decayed_mean(),
        all_time_mean(),
        lead_over_control(),
        effective_responses(),
        rated_share(),
        feedback_by_kind(),
        age_over_time(),
        students(),
        share_of_students(),
        responses(),
        new_responses(),
    ]


def board() -> JSON:
    """Return the board."""
    return {
        "uid": UID,
        "title": TITLE,
        "description": "The variants of one experiment side by side, and the health of the pipeline that counts them.",
        "tags": ["ab-monitor"],
        "schemaVersion": 39,
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [],
        "annotations": {"list": []},
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timepicker": {},
        "timezone": "browser",
        "weekStart": "",
        "templating": {"list": choices()},
        "panels": laid_out([("Experiment", panels()), ("Pipeline", pipeline.panels())]),
    }
