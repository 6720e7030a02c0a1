"""The panels of the decision: the verdict, the effects that it rests on, and what would make it invalid.

Verdicts are one series per state; for a board they are numbers, the most pressing state the largest.
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
    colored,
    dashed,
    graph,
    stat,
    states,
    steps,
    target,
)

STATES: Final = {
    "insufficient_data": ("too early", CONTROL_GREY),
    "continue": ("continue", TREATMENT_BLUE),
    "futile": ("futile", YELLOW),
    "non_inferior": ("not inferior", "light-green"),
    "ship": ("ship", GREEN),
    "invalid": ("invalid", ORANGE),
    "stop_harm": ("stop: harm", RED),
}
"""From the least to the most pressing: as it is exported, as it is read, its colour."""

SAMPLE_RATIO_ALARM: Final = math.log(100)
CROSSOVERS_ALARM: Final = 0.01

MAPPINGS: Final = [
    {
        "type": "value",
        "options": {
            str(rank): {"text": text, "color": color, "index": rank}
            for rank, (text, color) in enumerate(STATES.values())
        },
    }
]

_EXPERIMENT: Final = 'experiment="$experiment"'
_EFFECT: Final = f'{_EXPERIMENT}, metric="$metric"'
_BLUE: Final = colored("^treatment(,|$)", TREATMENT_BLUE)


def verdict(labels: str, selector: str = "") -> str:
    """Return the rank of the verdict in `STATES`, the most pressing one by those labels."""
    more = f"{selector}, " if selector else ""
    ranks = (f'{rank} * (abmonitor_verdict{{{more}state="{state}"}} == 1)' for rank, state in enumerate(STATES))
    return f"max by ({labels}) ({' or '.join(ranks)})"


def _with_words(panel: JSON) -> JSON:
    panel["fieldConfig"]["defaults"]["mappings"] = MAPPINGS
    return panel


def verdict_now() -> JSON:
    """Return each variant's verdict as a word."""
    return _with_words(
        stat(
            "Verdict",
            "What may be said of each variant, from students whose time is over, valid although everybody looks at it"
            " all day. “too early” and “continue”: wait. “ship”, “stop: harm”, “futile”: decide. “invalid”: mend the"
            " assignment or the data first. `ab-monitor verdict` gives the reasons.",
            [target(verdict("variant", _EXPERIMENT), "{{variant}}", instant=True)],
            unit="short",
            size=(5, 4),
            thresholds=steps(CONTROL_GREY),
        )
    )


def verdict_over_time() -> JSON:
    """Return the verdicts over time."""
    return _with_words(
        states(
            "Verdict over time",
            "When each variant's verdict changed. It may go from “continue” to a decision at any time. If it goes to"
            " “invalid”, see “Sample ratio” and “Crossovers”, and the board of the pipeline for refused or lost"
            " events.",
            [target(verdict("variant", _EXPERIMENT), "{{variant}}")],
            size=(12, 6),
            overrides=(),
        )
    )


def reasons() -> JSON:
    """Return what the verdicts rest on, over time."""
    words = {
        "0": {"text": "note", "color": CONTROL_GREY, "index": 0},
        "1": {"text": "because", "color": "blue", "index": 1},
    }
    panel = states(
        "Reasons for the verdict",
        "What each variant's verdict rests on (“because”), and what else is to be known (“note”), by the codes of"
        " docs/statistics.md. `ab-monitor verdict` says each in a sentence with its numbers: ask it before you decide.",
        [target(f"max by (variant, reason) (abmonitor_verdict_reason{{{_EXPERIMENT}}})", "{{variant}}: {{reason}}")],
        size=(12, 6),
        overrides=(),
    )
    panel["fieldConfig"]["defaults"]["mappings"] = [{"type": "value", "options": words}]
    return panel


def days_to_resolve() -> JSON:
    """Return how long it will take."""
    return stat(
        "Days to resolve",
        "Days until an effect as small as `mde` would be told from none, if students go on coming as in the last week."
        " Too many: set a larger `mde`, send more students, or end it. Empty if at this pace it never will be.",
        [target(f"max by (variant) (abmonitor_days_to_resolve{{{_EXPERIMENT}}})", "{{variant}}", instant=True)],
        unit="d",
        decimals=0,
        size=(8, 4),
        overrides=(_BLUE,),
        empty="–",
    )


def crossovers() -> JSON:
    """Return the share of students who saw more than one variant."""
    every = f"sum(max by (variant) (abmonitor_students{{{_EXPERIMENT}}}))"
    return stat(
        "Crossovers",
        "Share of students who saw more than one variant. They are left out of the comparison. Above 1 % the verdict is"
        " “invalid”: students do not keep to their variant, so mend the assignment.",
        [target(f"max(abmonitor_crossover_students{{{_EXPERIMENT}}}) / ({every} > 0)", "of students", instant=True)],
        unit="percentunit",
        decimals=2,
        size=(8, 4),
        thresholds=steps(GREEN, (CROSSOVERS_ALARM, RED)),
    )


def sample_ratio_now() -> JSON:
    """Return the evidence against the intended shares as a number."""
    return stat(
        "Sample ratio",
        "Evidence (natural logarithm of an e-value) that students are not divided as intended. From 4.6 on, a hundred"
        " to one, the verdict is “invalid”: look for the cause in the assignment, in redirects, in lost events."
        " Below, and below 0 in particular, all is well.",
        [target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "ln e", instant=True)],
        unit="short",
        decimals=1,
        size=(8, 4),
        thresholds=steps(GREEN, (SAMPLE_RATIO_ALARM, RED)),
    )


def effect(estimand: str, title: str, description: str) -> JSON:
    """Return the effects on the chosen metric with the bounds that hold at every look."""
    labels = f'{_EFFECT}, estimand="{estimand}"'
    return graph(
        title,
        description,
        [
            target(f"max by (variant) (abmonitor_effect{{{labels}}})", "{{variant}}", ref="effect"),
            target(f"max by (variant) (abmonitor_effect_lower{{{labels}}})", "{{variant}}", ref="lower"),
            target(f"max by (variant) (abmonitor_effect_upper{{{labels}}})", "{{variant}}", ref="upper"),
        ],
        unit="short",
        decimals=3,
        size=(12, 9),
        overrides=(_BLUE, dashed("lower", named=False), dashed("upper", named=False)),
    )


def closed_effect() -> JSON:
    """Return the effect that decides."""
    return effect(
        "closed",
        "Effect on $metric (decides)",
        "Each variant's mean minus the control's, over students whose first days are over, with bounds (dashed) that"
        " hold at every look. Both bounds above 0: better; both below: worse. As long as 0 is between them, wait. Of"
        " the metrics only the primary one decides.",
    )


def live_effect() -> JSON:
    """Return the effect so far."""
    return effect(
        "live",
        "Effect on $metric, live (approximate)",
        "The same over everything so far, students still on their way included, so it is days ahead and its bounds"
        " are approximate. If it goes another way than the one that decides, an effect may be wearing off or just"
        " beginning. Do not decide by it.",
    )


def guardrails() -> JSON:
    """Return what else may be worse: the bounds of each guardrail's harm in multiples of what is tolerable."""
    labels = "variant, guardrail"

    def bound(name: str) -> str:
        margin = f"max by ({labels}) (abmonitor_guardrail_margin{{{_EXPERIMENT}}})"
        return f"max by ({labels}) (abmonitor_guardrail_{name}_harm{{{_EXPERIMENT}}}) / {margin}"

    return graph(
        "Guardrails: harm as a share of the tolerable",
        "A variant may rate well and still annoy students. Upper bound of each guardrail's harm, and (dashed) its lower"
        " bound, both valid at every look. Upper bound under the line at 100 %: held, the variant may go out. Lower"
        " bound above it: crossed, stop the variant. In between, wait. Empty with fewer than 50 students per variant.",
        [
            target(bound("most"), "{{guardrail}}, {{variant}}", ref="most"),
            target(bound("least"), "{{guardrail}}, {{variant}}", ref="least"),
        ],
        unit="percentunit",
        decimals=0,
        size=(12, 8),
        thresholds=steps(GREEN, (1, RED)),
        overrides=(dashed("least", named=False),),
    )


def sample_ratio() -> JSON:
    """Return the evidence against the intended shares over time."""
    return graph(
        "Sample ratio over time",
        "The evidence of “Sample ratio” as it grew. A steady rise towards the dashed line is a wrong assignment long"
        " before it is certain: compare “Share of students” with the declared shares, and find what was deployed when"
        " it began to rise.",
        [target(f"max(abmonitor_sample_ratio_log_e{{{_EXPERIMENT}}})", "ln e")],
        unit="short",
        decimals=1,
        size=(12, 8),
        thresholds=steps(GREEN, (SAMPLE_RATIO_ALARM, RED)),
    )
