"""Months without any change: how often the alerts on decayed means fire, as their rules compute them.

A student's responses are correlated and come in a burst of hours; traffic changes with the hour of the day. Rules: see
deploy/prometheus/rules/ab-monitor.yml. "Fast" rules page somebody, "slow" rules warn.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from monitor.metrics import FloatArray
from monitor.stats import design_effect
from monitor.stats.estimates import RatioStatistic

DAYS: Final = 30
STEPS_PER_HOUR: Final = 6
"""A rule is evaluated every ten minutes, the `for` of the fast alerts."""
CORRELATION: Final = 0.3
RESPONSES_PER_HOUR: Final = (60, 600)
"""Mean of each variant."""
_RESPONSES_PER_STUDENT: Final = 6
_BURST_HOURS: Final = 6.0
_MEAN, _STANDARD_DEVIATION = 2.0, 1.3
_MIN_EFFECTIVE_COUNT: Final = 100


@dataclass(frozen=True)
class DropRule:
    """The rule of an alert: a drop of more than a share and of more than a number of standard errors."""

    name: str
    half_life_hours: float
    least_share: float
    errors: float
    past_hours: tuple[int, int] | None
    """(offset, length) of the earlier period whose mean is compared; None: comparison with the control."""
    history_hours: int
    """Hours of history without which the alert does not fire."""
    hold_steps: int
    """Evaluations in a row for which the drop must last."""


RULES: Final[Sequence[DropRule]] = (
    DropRule("AbMonitorDropFast", 1, 0.15, 4.56, (3, 24), 27, 2),
    DropRule("AbMonitorBehindControlFast", 1, 0.15, 4.56, None, 7, 2),
    DropRule("AbMonitorDropSlow", 24, 0.05, 3.72, (48, 96), 144, 7),
    DropRule("AbMonitorBehindControlSlow", 24, 0.05, 3.72, None, 54, 7),
)


@dataclass(frozen=True)
class DecayedSeries:
    """A variant's decayed mean by evaluation; NaN where too few responses have weight."""

    means: FloatArray
    standard_errors: FloatArray
    """Without the design effect."""
    design_effect: float


def simulate_bins(chance: np.random.Generator, responses_per_hour: int) -> tuple[FloatArray, float]:
    """Return the sums (n, Σy, Σy²) by evaluation step of a month of a variant, and the design effect."""
    steps = DAYS * 24 * STEPS_PER_HOUR
    candidates = chance.poisson(2 * responses_per_hour / _RESPONSES_PER_STUDENT * DAYS * 24)
    first_hours = chance.uniform(0, DAYS * 24, candidates)
    # Half of the candidates remain: traffic at night is a tenth of that at noon.
    first_hours = first_hours[chance.random(candidates) < 0.5 - 0.4 * np.cos(2 * np.pi * first_hours / 24)]
    counts = 1 + chance.poisson(_RESPONSES_PER_STUDENT - 1, len(first_hours))
    students = np.repeat(np.arange(len(first_hours)), counts)
    hours = first_hours[students] + chance.exponential(_BURST_HOURS, len(students))
    ability = chance.normal(0, CORRELATION**0.5, len(first_hours))
    values = _MEAN + _STANDARD_DEVIATION * (
        ability[students] + chance.normal(0, (1 - CORRELATION) ** 0.5, len(students))
    )
    is_in_month = hours < DAYS * 24
    students, bins, values = (
        students[is_in_month],
        (hours[is_in_month] * STEPS_PER_HOUR).astype(int),
        values[is_in_month],
    )
    sums = np.stack([np.bincount(bins, weights, steps) for weights in (np.ones(len(bins)), values, values**2)]).astype(
        np.float64
    )
    totals, numbers = np.bincount(students, values), np.bincount(students).astype(np.float64)
    clustered = RatioStatistic(
        int((numbers > 0).sum()),
        float(totals.sum()),
        float(numbers.sum()),
        float(totals @ totals),
        float(totals @ numbers),
        float(numbers @ numbers),
    ).estimate()
    independent_variance = float(values.var(ddof=1)) / len(values)
    return sums, design_effect(clustered.variance or 0.0, independent_variance) or 1.0


def decayed_series(sums: FloatArray, effect: float, half_life_hours: float) -> DecayedSeries:
    """Return the decayed mean after each step; a response of age a has the weight 2^(−a/half-life)."""
    steps = sums.shape[1]
    weights_by_age = 2.0 ** (-np.arange(steps) / (half_life_hours * STEPS_PER_HOUR))
    weight, total, _ = _convolve(sums, weights_by_age)
    squared_weight, squared_weight_total, squared_weight_square = _convolve(sums, weights_by_age**2)
    with np.errstate(invalid="ignore", divide="ignore"):
        # A smaller weight is the rounding error of the transform.
        is_readable = (weight > 1) & (weight**2 / squared_weight >= _MIN_EFFECTIVE_COUNT)
        mean = np.where(is_readable, total / weight, np.nan)
        spread = squared_weight_square - 2 * mean * squared_weight_total + mean**2 * squared_weight
        return DecayedSeries(mean, np.sqrt(np.maximum(spread, 0.0)) / weight, effect)


def _convolve(sums: FloatArray, kernel: FloatArray) -> FloatArray:
    """Return the convolution of each row with the kernel, as long as a row."""
    size = 2 * sums.shape[1]
    result: FloatArray = np.fft.irfft(np.fft.rfft(sums, size) * np.fft.rfft(kernel, size), size)[:, : sums.shape[1]]
    return result


def _past_means(means: FloatArray, offset_hours: int, length_hours: int) -> FloatArray:
    """Return the mean of the readable means in a period before each step."""
    totals, numbers = (np.concatenate([[0.0], np.cumsum(x)]) for x in (np.nan_to_num(means), ~np.isnan(means)))
    ends = np.maximum(np.arange(len(means)) + 1 - offset_hours * STEPS_PER_HOUR, 0)
    starts = np.maximum(ends - length_hours * STEPS_PER_HOUR, 0)
    with np.errstate(invalid="ignore", divide="ignore"):
        result: FloatArray = (totals[ends] - totals[starts]) / (numbers[ends] - numbers[starts])
    return result


def fires(
    rule: DropRule, treatment: DecayedSeries, control: DecayedSeries, *, with_share: bool, with_design_effect: bool
) -> bool:
    """Return whether a rule fires for the treatment in the month; two arguments omit parts of the rule."""
    error = treatment.standard_errors * (treatment.design_effect**0.5 if with_design_effect else 1.0)
    if rule.past_hours is None:
        reference = control.means
        control_error = control.standard_errors * (control.design_effect**0.5 if with_design_effect else 1.0)
        error = np.hypot(error, control_error)
    else:
        reference = _past_means(treatment.means, *rule.past_hours)
    with np.errstate(invalid="ignore"):
        is_below = reference - treatment.means > rule.errors * error
        if with_share:
            is_below &= 1 - treatment.means / reference > rule.least_share
    is_below[: rule.history_hours * STEPS_PER_HOUR] = False
    return bool(np.convolve(is_below, np.ones(rule.hold_steps), "valid").max() >= rule.hold_steps)


def month_alarms(chance: np.random.Generator, responses_per_hour: int) -> Iterator[tuple[bool, bool, bool]]:
    """Yield for each rule whether it fires, without its least share, and without share and design effect."""
    bins = [simulate_bins(chance, responses_per_hour) for _ in range(2)]
    for rule in RULES:
        control, treatment = (decayed_series(sums, effect, rule.half_life_hours) for sums, effect in bins)
        yield (
            fires(rule, treatment, control, with_share=True, with_design_effect=True),
            fires(rule, treatment, control, with_share=False, with_design_effect=True),
            fires(rule, treatment, control, with_share=False, with_design_effect=False),
        )
