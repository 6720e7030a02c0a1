"""The panels of the decision: verdict, effects, guardrails, and the checks of validity (SRM, crossovers).

Prometheus has a series per state of a verdict. Boards show the rank of the current state in `VERDICT_STATES`.
"""

from __future__ import annotations

import math
from typing import Final

from grafana import boards
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
    "insufficient_data": ("Too early to decide", CONTROL_GREY),
    "continue": ("Keep running", TREATMENT_BLUE),
    "futile": ("No relevant gain", YELLOW),
    "non_inferior": ("Acceptable", "light-green"),
    "ship": ("Ship", GREEN),
    "invalid": ("Invalid", ORANGE),
    "stop_harm": ("Stop", RED),
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
            "The decision on each variant. You may look at any time. “Too early to decide” and “Keep running”: wait."
            " “Ship”: the variant is better. “Acceptable”: its loss is within the margin. “No relevant gain”: the gain"
            " is smaller than `mde`. “Stop”: the variant does harm, so stop it. “Invalid”: correct the assignment or"
            " the data first. “Open in AB Monitor” at the top leads to the reasons in words.",
            [query_target(verdict_rank_query("variant", _EXPERIMENT), "{{variant}}", instant=True)],
            links=[boards.MONITOR_EXPERIMENT_LINK],
            unit="short",
            size=(5, 4),
            thresholds=threshold_steps(CONTROL_GREY),
        )
    )


def judged_effect_panel() -> JSON:
    """Return the panel with the effect that is judged, with its bounds."""
    return stat_panel(
        "Effect on the primary metric (decides the verdict)",
        "The effect that is judged: the difference from the control as a percentage of the control's mean, over closed"
        " students, with the bounds of its confidence sequence. It is the first number on the page of the experiment,"
        " in reports and in messages. If 0 is between the bounds, wait. Empty while too few students are closed, and"
        " if the variants cannot be compared.",
        [
            query_target(
                f"max by (variant) (abmonitor_relative_effect{suffix}{{{_EXPERIMENT}}})",
                f"{{{{variant}}}}{legend}",
                ref=ref,
                instant=True,
            )
            for ref, suffix, legend in (
                ("effect", "", ""),
                ("lower", "_lower", ", lower bound"),
                ("upper", "_upper", ", upper bound"),
            )
        ],
        links=[boards.MONITOR_EXPERIMENT_LINK],
        unit="percentunit",
        decimals=1,
        size=(7, 4),
        overrides=(_BLUE,),
        empty="not known yet, or not comparable",
    )


def verdict_history_panel() -> JSON:
    """Return the timeline of the verdict on each variant."""
    return _with_verdict_names(
        state_timeline_panel(
            "Verdict over time",
            "The verdict on each variant at each time. “Keep running” may become a decision at any time. If the"
            " verdict becomes “Invalid”, see “Evidence against the intended split” and “Crossovers”. Then look for"
            " rejected or lost events on the pipeline board.",
            [query_target(verdict_rank_query("variant", _EXPERIMENT), "{{variant}}")],
            empty="no events yet",
            size=(12, 6),
            overrides=(),
        )
    )


def reasons_panel() -> JSON:
    """Return the timeline of the reasons and notes of the verdicts."""
    value_texts = {
        "0": {"text": "note", "color": CONTROL_GREY, "index": 0},
        "1": {"text": "reason", "color": "blue", "index": 1},
    }
    panel = state_timeline_panel(
        "Reasons for the verdict",
        "Codes of the reasons for each verdict (“reason”) and of further findings (“note”). Before you decide, read"
        " them as sentences with numbers: “Open in AB Monitor” at the top of the board. The codes are listed in"
        " docs/statistics.md.",
        [
            query_target(
                f"max by (variant, reason) (abmonitor_verdict_reason{{{_EXPERIMENT}}})", "{{variant}}: {{reason}}"
            )
        ],
        empty="no events yet",
        size=(12, 6),
        overrides=(),
    )
    panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": value_texts}]
    return panel


def days_to_resolve_panel() -> JSON:
    """Return the panel with the days until the smallest effect of interest is resolved."""
    return stat_panel(
        "Days until an effect of mde is detectable",
        "Days until an effect of `mde` would show with a probability of 50 %, if as many new students come each day"
        " as in the last week. If the number is too large, choose a larger `mde`, send more students, or end the"
        " experiment: the plan of the experiment in AB Monitor compares the choices. Empty if the effect would never"
        " show.",
        [query_target(f"max by (variant) (abmonitor_days_to_resolve{{{_EXPERIMENT}}})", "{{variant}}", instant=True)],
        links=[boards.MONITOR_PLAN_LINK],
        unit="d",
        decimals=0,
        size=(8, 4),
        overrides=(_BLUE,),
        empty="not yet, or never at this rate",
    )


def crossovers_panel() -> JSON:
    """Return the panel with the fraction of students who were shown several variants."""
    students = f"sum(max by (variant) (abmonitor_students{{{_EXPERIMENT}}}))"
    return stat_panel(
        "Crossovers: students who saw several variants",
        "Crossovers divided by all students. Crossovers are not compared. Above 1 % the verdict is “Invalid”: the"
        " assignment does not keep students in their variant, so correct it.",
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
        "Evidence against the intended split",
        "Result of the test for sample ratio mismatch (SRM): the natural logarithm of the e-value. Below 4.6 the"
        " split of the students is as intended. From 4.6 on the verdict is “Invalid”. Chance alone reaches 4.6 in at"
        " most one of 100 experiments. Then look for the cause in the assignment, in redirects and in lost events.",
        [query_target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "evidence (log e-value)", instant=True)],
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
        empty="not yet: needs 20 students per variant (that decides: whose windows are over)",
        size=(12, 9),
        overrides=(_BLUE, dash_override("lower", in_legend=False), dash_override("upper", in_legend=False)),
    )


def closed_effect_panel() -> JSON:
    """Return the graph of the closed effect, on which the verdict is based."""
    return effect_panel(
        "closed",
        "Effect on $metric (decides the verdict)",
        "Mean of each variant minus the mean of the control, in the unit of $metric. Dashed lines are the bounds of"
        " the confidence sequence, which you may read at any time. Only closed students count: their first"
        " `exposure_days` and feedback window are over. Both bounds above 0: the variant is better. Both below 0: the"
        " variant is worse. 0 between the bounds: wait. If lower values of $metric are better, the opposite holds."
        " Only the primary metric decides.",
    )


def live_effect_panel() -> JSON:
    """Return the graph of the live effect, over all responses so far."""
    return effect_panel(
        "live",
        "Effect on $metric so far (approximate)",
        "The live effect: the same difference over all responses so far. Students whose first days are not over"
        " count, too, so this graph is days ahead of the effect that decides. Its bounds are approximate. If the two"
        " effects differ, the effect may be fading or beginning. Do not decide by this graph.",
    )


def guardrails_panel() -> JSON:
    """Return the graph of the bounds of the harm on each guardrail, divided by the tolerable harm."""
    labels = "variant, guardrail"

    def bound(name: str) -> str:
        margin = f"max by ({labels}) (abmonitor_guardrail_margin{{{_EXPERIMENT}}})"
        return f"max by ({labels}) (abmonitor_guardrail_{name}_harm{{{_EXPERIMENT}}}) / {margin}"

    return time_series_panel(
        "Guardrails: harm as a percentage of the margin",
        "Bounds of the harm on each guardrail, divided by the margin, which is the tolerable harm. The upper bound is"
        " solid, the lower bound dashed. You may read them at any time. Upper bound below 100 %: the guardrail holds."
        " Lower bound above 100 %: the guardrail has failed, so stop the variant. Otherwise wait. The graph is empty"
        " with fewer than 50 closed students in a variant.",
        [
            query_target(bound("most"), "{{guardrail}}, {{variant}}", ref="most"),
            query_target(bound("least"), "{{guardrail}}, {{variant}}", ref="least"),
        ],
        unit="percentunit",
        decimals=0,
        empty="not yet: needs 50 students per variant whose windows are over",
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (1, RED)),
        overrides=(dash_override("least", in_legend=False),),
    )


def sample_ratio_history_panel() -> JSON:
    """Return the graph of the result of the SRM test over time."""
    return time_series_panel(
        "Evidence against the intended split, over time",
        "The result of the SRM test at each time, with its limit of 4.6 (dashed). A steady rise is an early sign of a"
        " wrong assignment. Compare “Share of students” with the intended shares, and find the deployment at the"
        " beginning of the rise.",
        [query_target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "evidence (log e-value)")],
        unit="short",
        decimals=1,
        empty="no students yet",
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (SAMPLE_RATIO_LOG_E_LIMIT, RED)),
    )
