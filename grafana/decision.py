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
            "The decision on each variant. It stays valid however often you look. “Too early to decide” and"
            " “Keep running”: wait. “Ship”: better. “Acceptable”: the loss is within the margin. “No"
            " relevant gain”: an effect as large as `mde` is ruled out. “Stop”: stop the variant, it harms. “Invalid”:"
            " correct the assignment or the data first. For the reasons, run `ab-monitor verdict EXPERIMENT --config"
            " FILE`.",
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
            "The verdict on each variant at each time. It may change from “Keep running” to a decision at any time. If"
            " it changes to “Invalid”, see “Evidence against the intended split” and “Crossovers”, and look for"
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
        "The codes of the reasons for each verdict (“reason”) and of further findings (“note”). The codes are listed in"
        " docs/statistics.md. Before you decide, run `ab-monitor verdict EXPERIMENT --config FILE`, which prints each"
        " as a sentence with its numbers.",
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
        "Estimated days until an effect as small as the configured `mde` can be detected, at the rate of new students"
        " of the last week. If there are too many: set a larger `mde`, send more students, or end the experiment. Empty"
        " if this rate never suffices.",
        [query_target(f"max by (variant) (abmonitor_days_to_resolve{{{_EXPERIMENT}}})", "{{variant}}", instant=True)],
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
        "Number of crossovers divided by the number of all students. Crossovers are left out of the comparison. Above 1"
        " % the verdict is “Invalid”: the assignment does not keep students in their variant, so correct it.",
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
        "Natural logarithm of the e-value of the sample ratio mismatch (SRM) test. Below 4.6 the split is fine; values"
        " below 0 support it. From 4.6 on (by chance once in 100 experiments), the verdict is “Invalid”: look for the"
        " cause in the assignment, in redirects and in lost events.",
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
        "Mean of each variant minus mean of the control, in the unit of $metric, with the bounds of its confidence"
        " sequence (dashed), which are valid however often you look. Only closed students count: students whose first"
        " `exposure_days` and feedback window are over. Both bounds above 0: better. Both below 0: worse. 0 in between:"
        " wait. If lower values of $metric are better, below 0 is better. Only the primary metric decides.",
    )


def live_effect_panel() -> JSON:
    """Return the graph of the live effect, over all responses so far."""
    return effect_panel(
        "live",
        "Effect on $metric so far (approximate)",
        "The live effect: the same difference over all responses so far, including students who are not closed yet. It"
        " is days ahead of the effect that decides, and its bounds are approximate. If the two differ, the effect may"
        " be fading or beginning. Do not decide by this graph.",
    )


def guardrails_panel() -> JSON:
    """Return the graph of the bounds of the harm on each guardrail, divided by the tolerable harm."""
    labels = "variant, guardrail"

    def bound(name: str) -> str:
        margin = f"max by ({labels}) (abmonitor_guardrail_margin{{{_EXPERIMENT}}})"
        return f"max by ({labels}) (abmonitor_guardrail_{name}_harm{{{_EXPERIMENT}}}) / {margin}"

    return time_series_panel(
        "Guardrails: harm as a percentage of the margin",
        "Upper bound (solid) and lower bound (dashed) of the harm on each guardrail, divided by the tolerable harm (the"
        " margin). Both are valid however often you look. Upper bound below 100 %: the guardrail holds. Lower"
        " bound above 100 %: it has failed, stop the variant. Otherwise wait. Empty with fewer than 50 students per"
        " variant.",
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
        "The same evidence over time, with its limit of 4.6 (dashed). A steady rise is an early sign of a wrong"
        " assignment: compare “Share of students” with the declared shares. Find the deployment at the beginning of the"
        " rise.",
        [query_target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "evidence (log e-value)")],
        unit="short",
        decimals=1,
        empty="no students yet",
        size=(12, 8),
        thresholds=threshold_steps(GREEN, (SAMPLE_RATIO_LOG_E_LIMIT, RED)),
    )
