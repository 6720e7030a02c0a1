"""The board "AB Monitor: experiment": one experiment's variants side by side.

Series of /metrics/experiments are the same from every replica, so they are reduced by `max by (variant)`. They are
gauges, because a revised reaction may lower a sum: windows over them are `delta()`, never `rate()`.

The control is asked for by queries of its own, so that it is grey whatever its name is.
"""

from __future__ import annotations

from grafana import boards, decision, pipeline, traffic, variables
from grafana.panels import (
    GREEN,
    JSON,
    RED,
    TREATMENT_BLUE,
    YELLOW,
    colored,
    dashed,
    graph,
    grey,
    stat,
    steps,
    target,
)

EXPERIMENT = 'experiment="$experiment"'
METRIC = f'{EXPERIMENT}, metric="$metric"'
DECAYED = f'{METRIC}, decay="$decay"'
ALL_TIME = f'{METRIC}, decay="none"'
CONTROL = (
    f'label_replace(max by (control) (abmonitor_experiment_info{{{EXPERIMENT}}}), "variant", "$1", "control", "(.+)")'
)
KNOWN = f"max(abmonitor_experiment_info{{{EXPERIMENT}}})"

AGE_THRESHOLDS = steps(GREEN, (900, YELLOW), (3600, RED))
READABLE_EFFECTIVE_COUNT = 100
"""As in the alerts: below it a decayed mean is not watched."""
BAND_ERRORS = 3.5
"""A steady mean of independent responses stays within this for 14 half-lives in 95 of 100 cases (simulated)."""


def per_variant(name: str, selector: str = EXPERIMENT) -> str:
    """Return the gauge per variant, whichever replica it was scraped from."""
    return f"max by (variant) ({name}{{{selector}}})"


def per_response(name: str, selector: str = EXPERIMENT) -> str:
    """Return the gauge as a share of the variant's responses; absent as long as there are none."""
    return f"{per_variant(name, selector)} / ({per_variant('abmonitor_responses')} > 0)"


def lead(selector: str) -> str:
    """Return each other variant's mean minus the mean of the experiment's control."""
    mean = per_variant("abmonitor_metric_mean", selector)
    return f"{mean} - on () group_left () max({mean} and on (variant) {CONTROL}) unless on (variant) {CONTROL}"


def arms(expr: str, ref: str = "A", *, legend: str = "{{variant}}", instant: bool = False) -> list[JSON]:
    """Return the queries of an expression per variant: `ref` for the others, and one for the control.

    Where a scrape is missing nobody says which one is the control, and a window over older values still has all.
    """
    others = f"{expr} unless on (variant) {CONTROL} and on () {KNOWN}"
    return [
        target(f"{expr} and on (variant) {CONTROL}", legend, ref=f"{ref}, control", instant=instant),
        target(others, legend, ref=ref, instant=instant),
    ]


def colors(*refs: str) -> tuple[JSON, ...]:
    """Return the overrides that give variants their colours: the control's grey, the documentation's blue.

    Others get a colour by their name, the same in every panel.
    """
    return (colored("^treatment(,|$)", TREATMENT_BLUE), *(grey(f"{ref}, control") for ref in refs or ("A",)))


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
        arms(f"max by (variant) ({added_sum} / ({added_count} > 0))", instant=True),
        unit="short",
        decimals=3,
        size=(5, 4),
        overrides=colors(),
    )


def students_now() -> JSON:
    """Return the students per variant as numbers."""
    return stat(
        "Students",
        "Students seen by each variant, all time. They are what the statistics count: below a few hundred per"
        " variant the differences on this board are mostly noise. If they are not in the declared proportion, see"
        " “Share of students” before you compare anything.",
        arms(per_variant("abmonitor_students"), instant=True),
        unit="short",
        decimals=0,
        size=(4, 4),
        overrides=colors(),
    )


def age_now() -> JSON:
    """Return the age of the newest event per variant as numbers."""
    return stat(
        "Time since the last event",
        "By the events' own time. If one variant is old and the other is not, its bot or its routing has stopped:"
        " ask its team. If all are old, look at the lag, then at the producers. A replayed recording is as old as it"
        " is.",
        arms(event_age(), instant=True),
        unit="s",
        decimals=0,
        size=(4, 4),
        thresholds=AGE_THRESHOLDS,
        links=[boards.TO_PIPELINE],
    )


def firing() -> JSON:
    """Return how many alerts there are about the experiment."""
    return stat(
        "Alerts",
        "Alerts that fire about this experiment, if Prometheus has the rules of this repository. Red lines on the"
        " graphs show when they began. Each alert leads to its section of the runbook: do what it says.",
        [
            target(
                f'count(ALERTS{{alertstate="firing", {EXPERIMENT}}})'
                f" or 0 * max(abmonitor_experiment_info{{{EXPERIMENT}}})",
                "firing",
                instant=True,
            )
        ],
        unit="short",
        decimals=0,
        size=(3, 4),
        thresholds=steps(GREEN, (1, RED)),
    )


def _with_edges(title: str, description: str, selector: str) -> JSON:
    """Return the graph of a mean with the edges of what may be noise."""
    mean = per_variant("abmonitor_metric_mean", selector)
    band = f"{BAND_ERRORS} * {per_variant('abmonitor_metric_standard_error', selector)}"
    edges = ("lower", "upper")
    return graph(
        title,
        description,
        [
            *arms(mean),
            *arms(f"{mean} - {band}", "lower"),
            *arms(f"{mean} + {band}", "upper"),
        ],
        unit="short",
        decimals=3,
        size=(12, 9),
        overrides=(
            *colors("A", *edges),
            *(dashed(f"{edge}{of}", named=False) for edge in edges for of in ("", ", control")),
        ),
    )


def decayed_mean() -> JSON:
    """Return the graph that shows a sudden drop."""
    return _with_edges(
        "$metric, decayed ($decay)",
        "Mean of $metric over rated responses, where old responses weigh less: at a decay of 24h a response of"
        f" yesterday counts half. The dashed edges are {BAND_ERRORS:g} standard errors away: a steady mean seldom"
        " moves that far. This is the graph to watch for a sudden drop. If a variant leaves the other's edges, look"
        " at its last deployment; as long as the edges overlap, wait. Responses of one student are alike, so the true"
        " edges are wider: a look, not a verdict.",
        DECAYED,
    )


def all_time_mean() -> JSON:
    """Return the graph that the product team compares."""
    return _with_edges(
        "$metric, all time",
        "Mean of $metric over all rated responses since the experiment began, all with the same weight. It moves"
        f" slowly. The dashed edges are {BAND_ERRORS:g} standard errors away, responses of one student taken as alike."
        " This is what the product team compares, and no verdict yet: “Effect on” decides, over students.",
        ALL_TIME,
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
        overrides=(*colors(), dashed("B")),
    )


def effective_responses() -> JSON:
    """Return how much the decayed mean rests on."""
    return graph(
        "Effective responses behind the decayed mean",
        "How many equally weighted rated responses the decayed mean is worth: (Σw)²/Σw². Under the dashed line"
        f" ({READABLE_EFFECTIVE_COUNT}) do not read the decayed mean; choose a longer decay at the top.",
        arms(per_variant("abmonitor_metric_effective_count", DECAYED)),
        unit="short",
        minimum=0,
        size=(8, 8),
        thresholds=steps(RED, (READABLE_EFFECTIVE_COUNT, YELLOW)),
        overrides=colors(),
    )


def rated_share() -> JSON:
    """Return which part of the responses the means are about."""
    return graph(
        "Rated share",
        "Share of responses with at least one graded item, all time; the means are over these only. If the variants"
        " differ here, their means are about different students: compare the means over all responses (`ab-monitor"
        " status`) as well. If the share falls for all, the rating widget or its topic may be broken.",
        arms(per_response("abmonitor_rated_responses")),
        unit="percentunit",
        decimals=1,
        minimum=0,
        size=(8, 8),
        overrides=colors(),
    )


def reactions() -> JSON:
    """Return how often students react in the chosen way."""
    chosen = f'{EXPERIMENT}, kind="$kind"'
    return graph(
        "Reactions per response: $kind",
        "Current reactions of the chosen kind (at the top) divided by responses, all time. A variant may rate well and"
        " still send more students to a human: watch `escalated`. If a kind falls for all variants, its producer is"
        " broken.",
        arms(per_response("abmonitor_feedback", chosen)),
        unit="short",
        decimals=3,
        minimum=0,
        size=(12, 8),
        overrides=colors(),
    )


def age_over_time() -> JSON:
    """Return the age of the newest event per variant as a graph."""
    return graph(
        "Time since the last event, over time",
        "The age of each variant's newest event. A saw tooth near zero is healthy. A straight rise means that no"
        " event of that variant arrives; nights and holidays look like this too.",
        arms(event_age()),
        unit="s",
        minimum=0,
        size=(12, 8),
        thresholds=AGE_THRESHOLDS,
        overrides=colors(),
    )


def students() -> JSON:
    """Return the students per variant as a graph."""
    return graph(
        "Students, all time",
        "Students seen by each variant. It flattens when the same students come back: an experiment that gains no"
        " students gains little certainty.",
        arms(per_variant("abmonitor_students")),
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=colors(),
    )


def share_of_students() -> JSON:
    """Return how the students are divided among the variants."""
    each = per_variant("abmonitor_students")
    return graph(
        "Share of students",
        "Each variant's share of all students. It must stay at the declared share. If it drifts, the assignment is"
        " broken (sample ratio mismatch) and no comparison on this board is fair: stop and repair the assignment.",
        arms(f"{each} / on () group_left () (sum({each}) > 0)"),
        unit="percentunit",
        decimals=1,
        minimum=0,
        maximum=1,
        size=(6, 8),
        overrides=colors(),
    )


def responses() -> JSON:
    """Return the responses per variant."""
    return graph(
        "Responses, all time",
        "Responses counted for each variant. A variant that stops growing gets no traffic, or its answers do not"
        " arrive.",
        arms(per_variant("abmonitor_responses")),
        unit="short",
        minimum=0,
        size=(6, 8),
        overrides=colors(),
    )


def new_responses() -> JSON:
    """Return the traffic of each variant."""
    return graph(
        "New responses per minute",
        "Mean over the last five minutes. If one variant drops alone, its traffic was switched off or its bot fails"
        " before it answers.",
        arms(f"max by (variant) (delta(abmonitor_responses{{{EXPERIMENT}}}[5m])) / 5"),
        unit="short",
        size=(6, 8),
        overrides=colors(),
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
        variables.label_values("kind", "Reaction", f"abmonitor_feedback{{{EXPERIMENT}}}", "kind", default="escalated"),
    ]


def panels() -> list[JSON]:
    """Return the panels that are seen first: the newest numbers and the comparison."""
    return [
        range_mean(),
        students_now(),
        age_now(),
        decision.verdict_now(),
        pipeline.lag_now(size=(3, 4), links=[boards.TO_PIPELINE]),
        firing(),
        decayed_mean(),
        all_time_mean(),
        lead_over_control(),
        effective_responses(),
        rated_share(),
    ]


def decision_panels() -> list[JSON]:
    """Return the panels of the decision."""
    return [
        decision.verdict_over_time(),
        decision.reasons(),
        decision.days_to_resolve(),
        decision.crossovers(),
        decision.sample_ratio_now(),
        decision.closed_effect(),
        decision.live_effect(),
        decision.guardrails(),
        decision.sample_ratio(),
    ]


def evidence() -> list[JSON]:
    """Return the panels behind the comparison."""
    return [
        reactions(),
        age_over_time(),
        students(),
        share_of_students(),
        responses(),
        new_responses(),
    ]


def board() -> JSON:
    """Return the board."""
    return boards.board(
        boards.EXPERIMENT,
        "AB Monitor: experiment",
        "The variants of one experiment side by side. The control is grey.",
        choices=choices(),
        sections=[
            ("Comparison", panels()),
            ("Decision", decision_panels()),
            ("Traffic and responsiveness", traffic.panels(arms, colors)),
            ("Categories", [*traffic.category_panels(arms, colors), traffic.attention()]),
            ("Items", traffic.item_panels(arms, colors)),
            ("Students, feedback and traffic", evidence()),
        ],
        marks=[boards.alerts(EXPERIMENT), *boards.milestones(EXPERIMENT)],
    )
