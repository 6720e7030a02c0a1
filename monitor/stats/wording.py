"""Phrases with numbers and units for the sentences of verdicts: names of quantities, changes, intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from monitor.config import (
    EMPTY_METRIC,
    LATENCY_ABOVE_PREFIX,
    LATENCY_METRIC,
    NO_TEXTS,
    PER_STUDENT_PREFIX,
    RATED_SHARE_METRIC,
    RESPONSES_METRIC,
    RETURN_DAYS_METRIC,
    SESSION_RESPONSES_METRIC,
    SESSIONS_METRIC,
    SESSIONS_WITH_PREFIX,
    SHARE_PREFIX,
    DisplayTexts,
    is_proportion,
)
from monitor.stats.comparison import VariantComparison
from monitor.stats.guardrails import GuardrailResult, GuardrailState

_MINUS: Final = "\u2212"
_MAX_EXTRA_DECIMALS: Final = 3
_MAX_DECIMALS: Final = 9
_LARGE_AMOUNT: Final = 10_000
"""From here on, amounts are written as whole numbers, without an exponent."""
_OPEN: Final = ", so this is still open"
_LABELS: Final = {
    RATED_SHARE_METRIC: "share of rated responses",
    LATENCY_METRIC: "mean latency",
    EMPTY_METRIC: "share of empty responses",
    "items_shown": "number of items shown",
    RESPONSES_METRIC: "number of responses per student",
    RETURN_DAYS_METRIC: "number of days on which a student returns",
    SESSIONS_METRIC: "number of sessions per student",
    SESSION_RESPONSES_METRIC: "number of responses per session",
}
_PATTERNS: Final = {
    "score:": "mean score of '{}'",
    "sum:": "sum of '{}' per response",
    LATENCY_ABOVE_PREFIX: "share of responses slower than {} ms",
    PER_STUDENT_PREFIX: "sum of {} per student",
    SESSIONS_WITH_PREFIX: "share of sessions with {} above 0",
}
_UNITS: Final = {
    LATENCY_METRIC: " ms",
    RESPONSES_METRIC: " responses",
    RETURN_DAYS_METRIC: " days",
    SESSIONS_METRIC: " sessions",
    SESSION_RESPONSES_METRIC: " responses",
}
_CONCLUSIONS: Final[Mapping[GuardrailState, str]] = {
    "held": ", so the guardrail holds",
    "tolerable": ", so this is worse, but within the margin",
    "crossed": ", so the guardrail failed",
    "open": _OPEN,
    "unknown": _OPEN,
}


def metric_label(name: str, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the name of a metric or guardrail metric for readers, for the middle of a sentence.

    It is the label of the configuration, otherwise a phrase with the label of the kind of feedback.

    >>> metric_label("share:escalated"), metric_label("share:csat>=4"), metric_label("dcg@5")
    ("share of responses with feedback 'escalated'", "share of responses with feedback 'csat' of at least 4", 'dcg@5')
    >>> metric_label("score:csat"), metric_label("sum:watched_minutes"), metric_label("rated_share")
    ("mean score of 'csat'", "sum of 'watched_minutes' per response", 'share of rated responses')
    """
    if label := texts.metric_text(name).label:
        return label
    prefix, _, parameter = name.partition(":")
    if name.startswith(SHARE_PREFIX):
        kind, _, threshold = parameter.partition(">=")
        return f"share of responses with feedback '{texts.kind_label(kind)}'" + (
            f" of at least {threshold}" if threshold else ""
        )
    pattern = _PATTERNS.get(f"{prefix}:") if parameter else None
    if pattern is None:
        return _LABELS.get(name, name)
    is_of_kind = prefix in {"score", "sum"}
    return pattern.format(
        texts.kind_label(parameter) if is_of_kind else texts.metric_text(parameter).label or parameter
    )


def capitalized_metric_label(name: str, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the label of a metric for the start of a sentence; names of metrics stay as they are.

    So do first words with a capital letter, such as eNPS.

    >>> capitalized_metric_label("latency_ms"), capitalized_metric_label("ndcg@5")
    ('Mean latency', 'ndcg@5')
    """
    label = metric_label(name, texts)
    is_name = label == name or not label.split()[0].islower()
    return label if is_name else label[0].upper() + label[1:]


def metric_unit(name: str, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the unit of a change of a metric, with a space before; empty for metrics without a unit.

    The unit of the configuration replaces the default one, except for shares.

    >>> metric_unit("rated_share"), metric_unit("latency_ms"), metric_unit("dcg@5")
    (' percentage points', ' ms', '')
    """
    if is_proportion(name):
        return " percentage points"
    return _configured_unit(name, texts) or _UNITS.get(name, "")


def mean_unit(name: str, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the unit of a metric's mean, with a space before: per cent for shares, otherwise that of a change.

    >>> mean_unit("rated_share")[1:], mean_unit("latency_ms"), mean_unit("dcg@5")
    ('%', ' ms', '')
    """
    return "\u202f%" if is_proportion(name) else metric_unit(name, texts)


def _configured_unit(name: str, texts: DisplayTexts) -> str:
    """Return the unit of the configuration with a space before; empty without one."""
    unit = texts.metric_text(name).unit
    return f" {unit}" if unit else ""


def format_changes(metric: str, values: Sequence[float], *, sign: bool = False) -> list[str]:
    """Return changes of a metric as numbers in its unit, all with the same number of decimals.

    Shares are in percentage points. The range of the values has two significant digits, and no value other than 0 is
    rounded to 0 if three more decimals suffice. `sign` adds a plus sign to positive numbers.

    >>> format_changes("dcg@5", [0.0512, 0.2877]), format_changes("share:escalated", [0.002, 0.01533], sign=True)
    (['0.05', '0.29'], ['+0.2', '+1.5'])
    """
    scaled = [100 * value if is_proportion(metric) else value for value in values]
    decimals = _count_decimals(scaled)
    return [
        f"{round(value, decimals) + 0.0:{'+' if sign else ''},.{decimals}f}".replace(",", "\u202f").replace("-", _MINUS)
        for value in scaled
    ]


def _count_decimals(values: Iterable[float]) -> int:
    numbers = list(values)
    span = max(numbers) - min(numbers) or max(map(abs, numbers))
    decimals = min(max(1 - math.floor(math.log10(span)), 0), _MAX_DECIMALS) if span > 0 else 0
    for extra in range(_MAX_EXTRA_DECIMALS):
        if all(round(value, decimals + extra) or not value for value in numbers):
            return decimals + extra
    return decimals


def format_amount(metric: str, value: float, texts: DisplayTexts = NO_TEXTS, *, sign: bool = False) -> str:
    """Return an amount by which a metric may change, in the metric's unit, rounded for readers.

    `sign` adds a plus sign to positive numbers.

    >>> format_amount("share:liked", 0.02), format_amount("latency_ms", 20), format_amount("dcg@5", 0.0525)
    ('2 percentage points', '20 ms', '0.0525')
    """
    amount = 100 * value if is_proportion(metric) else value
    number = f"{amount:{'+' if sign else ''}{'.4g' if abs(amount) < _LARGE_AMOUNT else '.0f'}}"
    return number.replace("-", _MINUS) + metric_unit(metric, texts)


def format_mean(metric: str, mean: float, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return the mean of a metric with its unit: per cent for shares, ms for latencies, otherwise the configured one.

    >>> [format_mean(name, 0.12345) for name in ("share:liked", "latency_ms", "score:csat")]
    ['12.35 %', '0.1 ms', '0.1235']
    """
    if is_proportion(metric):
        return f"{100 * mean:.2f} %"
    return f"{mean:.1f} ms" if metric == LATENCY_METRIC else f"{mean:.4f}{_configured_unit(metric, texts)}"


def format_difference(metric: str, difference: float, texts: DisplayTexts = NO_TEXTS, *, sign: bool = False) -> str:
    """Return a difference of two means with its unit for tables: points for shares, ms for latencies.

    The unit of other metrics is the configured one, if any. `sign` adds a plus sign to positive numbers.

    >>> format_difference("share:liked", 0.012, sign=True), format_difference("latency_ms", -20.25)
    ('+1.20 points', '−20.2 ms')
    """
    scale, decimals, unit = 1.0, 4, _configured_unit(metric, texts)
    if is_proportion(metric):
        scale, decimals, unit = 100.0, 2, " points"
    elif metric == LATENCY_METRIC:
        decimals, unit = 1, " ms"
    rounded = round(scale * difference, decimals) + 0.0
    return f"{rounded:{'+' if sign else ''}.{decimals}f}".replace("-", _MINUS) + unit


def format_level(alpha: float) -> str:
    """Return the confidence level 1 − `alpha` as a percentage.

    >>> format_level(0.05), format_level(0.05 / 3)
    ('95 %', '98.33 %')
    """
    return f"{100 * (1 - alpha):.4g} %"


def describe_change(
    metric: str, comparison: VariantComparison, texts: DisplayTexts = NO_TEXTS, *, lower_is_better: bool = False
) -> str:
    """Return a phrase with the effect on a metric, the confidence level and the interval.

    The verb follows from the interval: "improved" above 0 ("rose" if lower values are better), "fell" below 0,
    "changed" otherwise.
    """
    effect, lower, upper = comparison.difference.effect, comparison.lower, comparison.upper
    label, unit = metric_label(metric, texts), metric_unit(metric, texts)
    if effect is None:
        return f"the effect on {label} is not known yet"
    if lower is None or upper is None:
        (change,) = format_changes(metric, [effect], sign=True)
        return f"{label} changed by {change}{unit} (too few data for a confidence sequence)"
    level = f"{format_level(comparison.alpha)} confidence sequence"
    if lower <= 0 <= upper:
        change, low, high = format_changes(metric, [effect, lower, upper], sign=True)
        return f"{label} changed by {change}{unit} ({level} {low} to {high})"
    rise = "rose" if lower_is_better else "improved"
    verb, direction = (rise, 1) if lower > 0 else ("fell", -1)
    bounds = sorted((direction * lower, direction * upper))
    change, low, high = format_changes(metric, [direction * effect, *bounds])
    return f"{label} {verb} by {change}{unit} ({level} {low} to {high})"


def describe_guardrail(result: GuardrailResult, texts: DisplayTexts = NO_TEXTS) -> str:
    """Return a sentence with the bounds of a guardrail's change, the allowed change, and the state."""
    guardrail, least, most = result.guardrail, result.least_harm, result.most_harm
    name, unit, harm_rises = guardrail.name, metric_unit(guardrail.name, texts), guardrail.harmful_direction == "up"
    verb, noun = ("rose", "increase") if harm_rises else ("fell", "decrease")
    if most is None:
        (allowed,) = format_changes(name, [result.margin or 0.0])
        return f"The {metric_label(name, texts)} has no bounds yet; the allowed {noun} is {allowed}{unit}{_OPEN}."
    if most <= 0:
        change = "did not rise" if harm_rises else "did not fall"
        (allowed,) = format_changes(name, [result.margin or 0.0])
    elif least is not None and least > 0:
        low, high, allowed = format_changes(name, [least, most, result.margin or 0.0])
        change = f"{verb} by {low} to {high}{unit}"
    elif least is None or result.state == "held":
        high, allowed = format_changes(name, [most, result.margin or 0.0])
        change = f"did not {'rise' if harm_rises else 'fall'} by more than {high}{unit}"
    else:
        # The change has the sign of the metric, not of the harm.
        bounds = (least, most) if harm_rises else (-most, -least)
        low, high, _ = format_changes(name, [*bounds, result.margin or 0.0], sign=True)
        *_, allowed = format_changes(name, [*bounds, result.margin or 0.0])
        change = f"changed by {low} to {high}{unit}"
    allowance = f"the allowed {noun} is {allowed}{'' if is_proportion(name) and unit in change else unit}"
    return f"{capitalized_metric_label(name, texts)} {change}; {allowance}{_CONCLUSIONS[result.state]}."
