"""The panels of the decision: verdict, effects, guardrails, and the checks of validity (SRM, crossovers).

Prometheus has a series per state of a verdict. Boards show the rank of the current state in `VERDICT_STATES`.
"""

from __future__ import annotations

import math
from typing import Final

from grafana.panels import (
    CONTROL_GREY,
    GREEN,
    JSON,
    ORANGE,
    RED,
    TREATMENT_BLUE,
    YELLOW,
    color_override,
    dash_override,
    query_target,
    stat_panel,
    state_timeline_panel,
    threshold_steps,
    time_series_panel,
)

VERDICT_STATES: Final = {
    "insufficient_data": ("too early", CONTROL_GREY),
    "continue": ("continue", TREATMENT_BLUE),
    "futile": ("futile", YELLOW),
    "non_inferior": ("not inferior", "light-green"),
    "ship": ("ship", GREEN),
    "invalid": ("invalid", ORANGE),
    "stop_harm": ("stop: harm", RED),
}
"""State → (text, colour), by rising urgency."""

SAMPLE_RATIO_LOG_E_LIMIT: Final = math.log(100)
CROSSOVER_LIMIT: Final = 0.01

VERDICT_MAPPINGS: Final = [
    {
        "type": "value",
        "options": {
            str(rank): {"text": text, "color": color, "index": rank}
            for rank, (text, color) in enumerate(VERDICT_STATES.values())
        },
    }
]

_EXPERIMENT: Final = 'experiment="$experiment"'
_EFFECT: Final = f'{_EXPERIMENT}, metric="$metric"'
_BLUE: Final = color_override("^treatment(,|$)", TREATMENT_BLUE)


def verdict_rank_query(labels: str, selector: str = "") -> str:
    """Return the query of the largest rank in `VERDICT_STATES` of the current verdicts, grouped by `labels`."""
    prefix = f"{selector}, " if selector else ""
    ranks = (
        f'{rank} * (abmonitor_verdict{{{prefix}state="{state}"}} == 1)' for rank, state in enumerate(VERDICT_STATES)
    )
    return f"max by ({labels}) ({' or '.join(ranks)})"


def _with_verdict_names(panel: JSON) -> JSON:
    panel["fieldConfig"]["defaults"]["mappings"] = VERDICT_MAPPINGS
    return panel


def verdict_panel() -> JSON:
    """Return the panel with the current verdict on each variant, as a word."""
    return _with_verdict_names(
        stat_panel(
            "Verdict",
            "What may be said of each variant, from students whose time is over, valid although everybody looks at it"
            " all day. “too early” and “continue”: wait. “ship”, “stop: harm”, “futile”: decide. “invalid”: mend the"
            " assignment or the data first. `ab-monitor verdict` gives the reasons.",
            [query_target(verdict_rank_query("variant", _EXPERIMENT), "{{variant}}", instant=True)],
            unit="short",
            size=(5, 4),
            thresholds=threshold_steps(CONTROL_GREY),
        )
    )


def verdict_history_panel() -> JSON:
    """Return the timeline of the verdict on each variant."""
    return _with_verdict_names(
        state_timeline_panel(
            "Verdict over time",
            "When each variant's verdict changed. It may go from “continue” to a decision at any time. If it goes to"
            " “invalid”, see “Sample ratio” and “Crossovers”, and the board of the pipeline for refused or lost"
            " events.",
            [query_target(verdict_rank_query("variant", _EXPERIMENT), "{{variant}}")],
            size=(12, 6),
            overrides=(),
        )
    )


def reasons_panel() -> JSON:
    """Return the timeline of the reasons and notes of the verdicts."""
    value_texts = {
        "0": {"text": "note", "color": CONTROL_GREY, "index": 0},
        "1": {"text": "because", "color": "blue", "index": 1},
    }
    panel = state_timeline_panel(
        "Reasons for the verdict",
        "What each variant's verdict rests on (“because”), and what else is to be known (“note”), by the codes of"
        " docs/statistics.md. `ab-monitor verdict` says each in a sentence with its numbers: ask it before you decide.",
        [
            query_target(
                f"max by (variant, reason) (abmonitor_verdict_reason{{{_EXPERIMENT}}})", "{{variant}}: {{reason}}"
            )
        ],
        size=(12, 6),
        overrides=(),
    )
    panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": value_texts}]
    return panel


def days_to_resolve_panel() -> JSON:
    """Return the panel with the days until the smallest effect of interest is resolved."""
    return stat_panel(
        "Days to resolve",
        "Days until an effect as small as `mde` would be told from none, if students go on coming as in the last week."
        " Too many: set a larger `mde`, send more students, or end it. Empty if at this pace it never will be.",
        [query_target(f"max by (variant) (abmonitor_days_to_resolve{{{_EXPERIMENT}}})", "{{variant}}", instant=True)],
        unit="d",
        decimals=0,
        size=(8, 4),
        overrides=(_BLUE,),
        empty="–",
    )


def crossovers_panel() -> JSON:
    """Return the panel with the fraction of students who were shown several variants."""
    students = f"sum(max by (variant) (abmonitor_students{{{_EXPERIMENT}}}))"
    return stat_panel(
        "Crossovers",
        "Share of students who saw more than one variant. They are left out of the comparison. Above 1 % the verdict is"
        " “invalid”: students do not keep to their variant, so mend the assignment.",
        [
            query_target(
                f"max(abmonitor_crossover_students{{{_EXPERIMENT}}}) / ({students} > 0)", "of students", instant=True
            )
        ],
        unit="percentunit",
        decimals=2,
        size=(8, 4),
        thresholds=threshold_steps(GREEN, (CROSSOVER_LIMIT, RED)),
    )


def sample_ratio_panel() -> JSON:
    """Return the panel with the current result of the SRM test."""
    return stat_panel(
        "Sample ratio",
        "Evidence (natural logarithm of an e-value) that students are not divided as intended. From 4.6 on, a hundred"
        " to one, the verdict is “invalid”: look for the cause in the assignment, in redirects, in lost events."
        " Below, and below 0 in particular, all is well.",
        [query_target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "ln e", instant=True)],
        unit="short",
        decimals=1,
        size=(8, 4),
        thresholds=threshold_steps(GREEN, (SAMPLE_RATIO_LOG_E_LIMIT, RED)),
    )


def effect_panel(estimand: str, title: str, description: str) -> JSON:
    """Return the graph of the effects on the selected metric, with anytime-valid bounds."""
    labels = f'{_EFFECT}, estimand="{estimand}"'
    return time_series_panel(
        title,
        description,
        [
            query_target(f"max by (variant) (abmonitor_effect{{{labels}}})", "{{variant}}", ref="effect"),
            query_target(f"max by (variant) (abmonitor_effect_lower{{{labels}}})", "{{variant}}", ref="lower"),
            query_target(f"max by (variant) (abmonitor_effect_upper{{{labels}}})", "{{variant}}", ref="upper"),
        ],
        unit="short",
        decimals=3,
        size=(12, 9),
        overrides=(_BLUE, dash_override("lower", in_legend=False), dash_override("upper", in_legend=False)),
    )


def closed_effect_panel() -> JSON:
    """Return the graph of the closed effect, on which the verdict is based."""
    return effect_panel(
        "closed",
        "Effect on $metric (decides)",
        "Each variant's mean minus the control's, over students whose first days are over, with bounds (dashed) that"
        " hold at every look. Both bounds above 0: better; both below: worse. As long as 0 is between them, wait. Of"
        " the metrics only the primary one decides.",
    )


def live_effect_panel() -> JSON:
    """Return the graph of the live effect, over all responses so far."""
    return effect_panel(
        "live",
        "Effect on $metric, live (approximate)",
        "The same over everything so far, students still on their way included, so it is days ahead and its bounds"
        " are approximate. If it goes another way than the one that decides, an effect may be wearing off or just"
        " beginning. Do not decide by it.",
    )


def guardrails_panel() -> JSON:
    """Return the graph of the bounds of the harm on each guardrail, divided by the tolerable harm."""
    labels = "variant, guardrail"

    def bound(name: str) -> str:
        margin = f"max by ({labels}) (abmonitor_guardrail_margin{{{_EXPERIMENT}}})"
        return f"max by ({labels}) (abmonitor_guardrail_{name}_harm{{{_EXPERIMENT}}}) / {margin}"

    return time_series_panel(
        "Guardrails: harm as a share of the tolerable",
        "A variant may rate well and still annoy students. Upper bound of each guardrail's harm, and (dashed) its lower"
        " bound, both valid at every look. Upper bound under the line at 100 %: held, the variant may go out. Lower"
        " bound above it: crossed, stop the variant. In between, wait. Empty with fewer than 50 students per variant.",
        [
            query_target(bound("most"), "{{guardrail}}, {{variant}}", ref="most"),
            query_target(bound("least"), "{{guardrail}}, {{variant}}", ref="least"),
        ],
        unit="percentunit",
        decimals=0,
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (1, RED)),
        overrides=(dash_override("least", in_legend=False),),
    )


def sample_ratio_history_panel() -> JSON:
    """Return the graph of the result of the SRM test over time."""
    return time_series_panel(
        "Sample ratio over time",
        "The evidence of “Sample ratio” as it grew. A steady rise towards the dashed line is a wrong assignment long"
        " before it is certain: compare “Share of students” with the declared shares, and find what was deployed when"
        " it began to rise.",
        [query_target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "ln e")],
        unit="short",
        decimals=1,
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (SAMPLE_RATIO_LOG_E_LIMIT, RED)),
    )
