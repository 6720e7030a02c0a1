"""The board "AB Monitor: experiments": a row for each experiment, and the way to its own board."""

from __future__ import annotations

from grafana import boards, decision, pipeline, variables
from grafana.panels import GREEN, JSON, RED, YELLOW, column, graph, stat, steps, table, target

INFO = "max by (experiment, control, primary) (abmonitor_experiment_info)"
_CONTROL = f'label_replace({INFO}, "variant", "$1", "control", "(.+)")'
_PRIMARY = f'label_replace({INFO}, "metric", "$1", "primary", "(.+)")'
PRIMARY_MEAN = (
    'max by (experiment, variant) (abmonitor_metric_mean{decay="none"} and on (experiment, metric) ' + _PRIMARY + ")"
)
CONTROL_MEAN = f"max by (experiment) ({PRIMARY_MEAN} and on (experiment, variant) {_CONTROL})"
STUDENTS = "sum by (experiment) (max by (experiment, variant) (abmonitor_students))"
AGE = "time() - max by (experiment) (abmonitor_variant_last_event_timestamp_seconds)"
FIRING = 'count by (experiment) (ALERTS{alertstate="firing", experiment!=""})'
NONE_FIRING = "0 * max by (experiment) (abmonitor_experiment_info)"

STATES = [
    {
        "type": "value",
        "options": {
            "0": {"text": "live", "color": GREEN, "index": 0},
            "1": {"text": "quiet", "color": YELLOW, "index": 1},
            "2": {"text": "over", "color": "text", "index": 2},
        },
    }
]
ALERT_STEPS = steps(GREEN, (1, RED))


def of_the_best(bound: str = "") -> str:
    """Return the largest effect on the primary metric of each experiment, or a bound of that very effect."""

    def decides(name: str) -> str:
        return f'max by (experiment, variant) ({name}{{estimand="closed"}} and on (experiment, metric) {_PRIMARY})'

    best = f"topk by (experiment) (1, {decides('abmonitor_effect')})"
    return f"max by (experiment) ({decides(f'abmonitor_effect{bound}')} and on (experiment, variant) {best})"


def overview() -> JSON:
    """Return the table of the experiments."""
    state = f"({AGE} > bool 3600) + ({AGE} > bool 86400)"
    rows = {
        "A": INFO,
        "state": state,
        "alerts": f"{FIRING} or {NONE_FIRING}",
        "verdict": decision.verdict("experiment"),
        "mean": CONTROL_MEAN,
        "effect": of_the_best(),
        "lower": of_the_best("_lower"),
        "upper": of_the_best("_upper"),
        "students": STUDENTS,
        "age": AGE,
    }
    headings = {
        "experiment": "Experiment",
        "Value #state": "State",
        "Value #alerts": "Alerts",
        "Value #verdict": "Verdict",
        "primary": "Primary metric",
        "Value #mean": "Control",
        "Value #effect": "Effect",
        "Value #lower": "at least",
        "Value #upper": "at most",
        "Value #students": "Students",
        "Value #age": "Last event",
    }
    colored_text = ("custom.cellOptions", {"type": "color-text"})
    return table(
        "Experiments",
        "Choose an experiment to compare its variants. “quiet”: no event for an hour, “over”: for a day, by the events'"
        " own time; if it should be live, look at the board of the pipeline first. “Control” is the mean of the primary"
        " metric of its control, all time; “Effect” is what the best variant adds to it (minus: takes away), over"
        " students whose first days are over, with bounds that hold at every look. If 0 is between them, wait."
        " “Verdict” is the most pressing one of all variants: open it and read its reasons.",
        [target(expr, "", ref=ref, instant=True, table=True) for ref, expr in rows.items()],
        key="experiment",
        columns=headings,
        size=(24, 9),
        overrides=(
            column("Experiment", ("links", [boards.TO_EXPERIMENT])),
            column("State", ("mappings", STATES), colored_text),
            column("Alerts", ("thresholds", {"mode": "absolute", "steps": ALERT_STEPS}), colored_text),
            column("Verdict", ("mappings", decision.MAPPINGS), colored_text),
            column("Control", ("decimals", 3)),
            column("Effect", ("decimals", 3)),
            column("at least", ("decimals", 3)),
            column("at most", ("decimals", 3)),
            column("Students", ("decimals", 0)),
            column("Last event", ("unit", "s"), ("decimals", 0)),
        ),
    )


def live_now() -> JSON:
    """Return how many experiments get events."""
    return stat(
        "Live experiments",
        "Experiments with an event in the last hour. If one that should be here is not, open it below: one variant may"
        " have stopped, or all.",
        [target(f"count({AGE} < 3600) or 0 * max(abmonitor_store_up)", "live", instant=True)],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=steps(YELLOW, (1, GREEN)),
    )


def students_now() -> JSON:
    """Return the students of all experiments."""
    return stat(
        "Students",
        "Students in all experiments; whoever takes part in two counts twice. It only grows: a smaller number means"
        " that the store was emptied or an experiment was taken out of the configuration.",
        [target(f"sum({STUDENTS})", "students", instant=True)],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=steps("text"),
    )


def alerts_now() -> JSON:
    """Return how many alerts there are, by severity."""
    return stat(
        "Alerts",
        "Alerts of AB Monitor that fire, by severity, if Prometheus has the rules of this repository. Begin with the"
        " critical ones; each leads to its section of the runbook.",
        [
            target(
                'count by (severity) (ALERTS{alertstate="firing", alertname=~"AbMonitor.+"})',
                "{{severity}}",
                instant=True,
            )
        ],
        unit="short",
        decimals=0,
        size=(6, 4),
        thresholds=ALERT_STEPS,
        empty="none",
    )


def new_responses() -> JSON:
    """Return the traffic of each experiment."""
    added = "max by (experiment, variant) (delta(abmonitor_responses[5m]))"
    return graph(
        "New responses per minute",
        "Responses of all variants, mean over five minutes. If one experiment falls to nothing, its traffic was"
        " switched off or its bots do not answer: open it. If all fall, look at the board of the pipeline.",
        [target(f"sum by (experiment) ({added}) / 5", "{{experiment}}")],
        unit="short",
        size=(12, 8),
    )


def age_over_time() -> JSON:
    """Return the freshness of each experiment."""
    return graph(
        "Time since the last event",
        "The age of each experiment's newest event, by its own time. A straight rise means that nothing arrives; nights"
        " and holidays look like this too. Ask the producers if it is neither.",
        [target(AGE, "{{experiment}}")],
        unit="s",
        minimum=0,
        size=(12, 8),
        thresholds=steps(GREEN, (3600, YELLOW)),
    )


def board() -> JSON:
    """Return the board."""
    return boards.board(
        boards.EXPERIMENTS,
        "AB Monitor: experiments",
        "All experiments: which are live, which need a look, and the way to each of them.",
        choices=[variables.datasource()],
        sections=[
            (
                "Experiments",
                [
                    live_now(),
                    students_now(),
                    alerts_now(),
                    pipeline.lag_now(size=(6, 4), links=[boards.TO_PIPELINE]),
                    overview(),
                    new_responses(),
                    age_over_time(),
                ],
            )
        ],
        marks=[boards.alerts('alertname=~"AbMonitor.+"')],
        since="now-6h",
    )
