"""The decision rule: a verdict on a treatment as a pure function of the evidence.

The verdict's state is the first that applies of `insufficient_data` → `invalid` → `stop_harm` → `ship` →
`non_inferior` → `futile` → `continue`. docs/statistics.md defines the states and explains why `ship` and `non_inferior`
wait for guardrails. Reasons explain the state; notes are further findings, whatever the state.

The interval is valid for the students who are compared. Further tests check who is compared, each at the level
`DecisionCriteria.sample_ratio_alpha`: the split at first exposure, within segments and hours of the day, of the
compared students and of the crossovers; the share of rated responses and of undefined values; the balance of the CUPED
covariate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, TypeAlias

import msgspec

from monitor.clock import HOURS_PER_DAY
from monitor.config import ChangeKind, DisplayTexts
from monitor.days import DayCalendar, day_calendar
from monitor.errors import count_noun
from monitor.stats.comparison import (
    MIN_UNITS_FOR_DECISION,
    VariantComparison,
    compare_variants,
    days_to_reach,
    information_to_resolve,
    split_alpha,
    tuned_mixture,
)
from monitor.stats.cuped import variance_reduction
from monitor.stats.data_quality import SHARE_MDE, DataQuality
from monitor.stats.estimates import shift_estimate
from monitor.stats.evidence import CupedAdjustment, EstimatePair, SegmentCounts, VerdictEvidence
from monitor.stats.guardrails import GuardrailResult, days_to_hold, evaluate_guardrail
from monitor.stats.rare_events import rare_event_variance
from monitor.stats.relative_effects import relative_confidence_sequence
from monitor.stats.srm import SrmResult, check_srm
from monitor.stats.wording import (
    capitalized_metric_label,
    describe_guardrail,
    format_amount,
    format_changes,
    metric_label,
    metric_unit,
)

VerdictState: TypeAlias = Literal[
    "insufficient_data", "invalid", "stop_harm", "ship", "non_inferior", "futile", "continue"
]
ReasonCode: TypeAlias = Literal[
    "incomplete", "few_students", "young", "no_variation",
    "sample_ratio", "empty_variant", "stray_traffic", "segment_sample_ratio", "hour_sample_ratio",
    "excluded_sample_ratio", "uneven_crossovers", "crossovers", "anonymous_units", "lost_events", "rejected_events",
    "uneven_rejections", "many_rejections",
    "worse", "guardrail_crossed",
    "better", "not_worse", "too_small", "undecided",
    "compared_sample_ratio", "undefined_disagree", "populations_disagree",
    "guardrail_held", "guardrail_open", "guardrail_idle",
    "adjusted", "covariate_unbalanced", "rated_share_differs", "undefined_share_differs", "metrics_disagree",
    "live_disagrees", "left_out_students", "low_power", "coarse_mde", "skipped_events", "delivery_differs",
    "rejections", "previous_definition", "complete_since", "criteria_changed", "shares_changed",
]  # fmt: skip
"""`incomplete` means that a backfill still counts events, `young` that fewer than `min_days` entry days are closed, and
`stray_traffic` that students are in a variant without a share; docs/statistics.md lists all codes."""

_WARNING_CODES: Final = frozenset[ReasonCode](
    {
        "sample_ratio", "empty_variant", "stray_traffic", "segment_sample_ratio", "hour_sample_ratio",
        "excluded_sample_ratio", "uneven_crossovers", "crossovers", "anonymous_units", "lost_events", "rejected_events",
        "uneven_rejections", "many_rejections", "worse",
        "guardrail_crossed",
    }
)  # fmt: skip
_HISTORY_CODES: Final = frozenset[ReasonCode](
    {"incomplete", "previous_definition", "complete_since", "criteria_changed", "shares_changed"}
)
_VALIDITY_CODES: Final = (_WARNING_CODES - {"worse", "guardrail_crossed"}) | _HISTORY_CODES | {"few_students", "young"}
_NOTICEABLE_VARIANCE_FRACTION: Final = 0.05
"""Rare events that add more than this part of the variance widen the interval by more than a fortieth."""
_POWER: Final = 0.8
"""The usual power for planning; 50 % is where the half width equals the mde."""
_REPAIR_PRODUCER: Final = "Correct the producer, then start a new experiment."
_MAX_LISTED_VARIANTS: Final = 3
_MAX_LISTED_CHANGES: Final = 5
_CHANGED_SUBJECTS: Final[Mapping[ChangeKind, str]] = {
    "criteria": "Decision criteria",
    "definition": "Definitions",
    "shares": "Intended shares",
    "variants": "Variants",
}
_LONG_DAYS: Final = 90.0
"""A longer wait for 80 % power is reported."""
_UNRESOLVED_MDES: Final = 3.0
"""An interval that is after `_LONG_DAYS` still wider than ± so many mdes cannot show the mde in a reasonable time."""
_COARSE_HALF_WIDTHS: Final = 5.0
"""An mde of more than so many half widths of the interval is coarse."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason or note of a verdict: a code from a fixed set for machines, a sentence for people."""

    code: ReasonCode
    text: str

    @property
    def is_warning(self) -> bool:
        """Whether the finding is harm, or makes the comparison invalid, whatever the state."""
        return self.code in _WARNING_CODES

    @property
    def is_about_validity(self) -> bool:
        """Whether the finding makes the comparison invalid or too early; its text contains no effect."""
        return self.code in _VALIDITY_CODES

    @property
    def is_about_history(self) -> bool:
        """Whether the finding is a change of the running experiment, or about events that are missing for a time."""
        return self.code in _HISTORY_CODES


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a treatment with reasons and statistics; all other fields follow from `evidence`."""

    state: VerdictState
    reasons: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    """Findings that are not reasons of the state."""
    days_to_resolve: float | None
    """Days until the half width of the primary metric's interval equals the mde: a power of 50 % for that effect.

    None if unknown, for example if rare values widen the interval (`monitor.stats.rare_events`), or if the mde is never
    resolved at the current rate.
    """
    days_to_power: float | None
    """Days until an effect of `mde` without any harm is shipped with a probability of at least 80 %, guardrails
    included. None as for `days_to_resolve`, or if a guardrail has no estimate yet."""
    primary: VariantComparison
    relative_bounds: tuple[float | None, float | None]
    """(lower, upper) of the relative effect on the primary metric; None where unknown or unbounded."""
    shrunken_effect: float | None
    """The effect on the primary metric, shrunken towards 0: its mean under the prior N(0, 1/ρ) of the mixture.

    The effect at the moment of a decision is too large on average, because a lucky moment decides earlier (winner's
    curse). With the information v the shrunken effect is v/(v + ρ) times the effect.
    """
    other_population: VariantComparison | None
    unadjusted: VariantComparison | None
    """The comparison of the primary metric without CUPED; None if `primary` is not adjusted."""
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, VariantComparison], ...]
    """(metric, comparison) of the metrics that do not decide."""
    sample_ratio: SrmResult
    evidence: VerdictEvidence

    @property
    def has_warnings(self) -> bool:
        """Whether a reason or note is harm, or makes the comparison invalid."""
        return any(reason.is_warning for reason in (*self.reasons, *self.notes))

    @property
    def variance_reduction(self) -> float | None:
        """The fraction by which CUPED lowered the variance of the effect; None without CUPED."""
        if self.unadjusted is None or self.evidence.adjustment is None:
            return None
        arms, unadjusted_arms = self.evidence.arms, self.evidence.adjustment.unadjusted
        return variance_reduction((unadjusted_arms.control, unadjusted_arms.treatment), (arms.control, arms.treatment))

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON; `parse_evidence` reads the value of `evidence`."""
        return {**msgspec.to_builtins(self), "sample_ratio": self.sample_ratio.to_json()}


def parse_evidence(content: object) -> VerdictEvidence:
    """Return the evidence from the JSON of a verdict's `evidence`; malformed JSON raises `msgspec.ValidationError`."""
    return msgspec.convert(content, VerdictEvidence)


@dataclass(frozen=True, slots=True)
class PartRatios:
    """SRM tests of parts of the students, which are the same for all treatments of an experiment."""

    excluded: SrmResult
    """The students with excluded responses."""
    compared: SrmResult
    """The compared students."""
    segments: tuple[tuple[str, SrmResult], ...]
    """Each segment; the segments share the level."""
    hours: tuple[tuple[str, SrmResult], ...]
    """Each hour of first exposure; the hours share the level."""


def check_part_ratios(evidence: VerdictEvidence) -> PartRatios:
    """Return the SRM tests of the parts of the students in the evidence on any treatment."""
    alpha = evidence.criteria.sample_ratio_alpha
    return PartRatios(
        excluded=check_srm(evidence.excluded_phases, alpha=alpha),
        compared=check_srm(evidence.compared_phases, alpha=alpha),
        segments=_check_parts(evidence.segments, alpha, len(evidence.segments)),
        hours=_check_parts(evidence.exposure_hours, alpha, HOURS_PER_DAY),
    )


def decide_verdict(
    evidence: VerdictEvidence, sample_ratio: SrmResult | None = None, part_ratios: PartRatios | None = None
) -> Verdict:
    """Return the verdict that follows from the evidence.

    `sample_ratio` is the SRM result of the evidence's phases, and `part_ratios` that of `check_part_ratios`. Both are
    the same for all treatments; None computes them.
    """
    criteria = evidence.criteria
    alpha = split_alpha(criteria.alpha, criteria.treatments)

    def compare_arms(
        arms: EstimatePair,
        mde: float,
        max_value: float | None,
        largest_log_e: float | None = None,
        min_value: float = evidence.min_value,
    ) -> VariantComparison:
        return compare_variants(
            arms.control,
            arms.treatment,
            alpha=alpha,
            mde=mde,
            max_value=max_value,
            min_value=min_value,
            largest_log_e=largest_log_e,
        )

    max_value = evidence.max_value
    adjustment = evidence.adjustment
    imbalances = () if adjustment is None else tuple(_covariate_imbalances(adjustment, evidence))
    arms, other_arms = evidence.arms, evidence.other_population
    if adjustment is not None and imbalances:
        arms, other_arms = adjustment.unadjusted, adjustment.unadjusted_other_population
    rule = _DecisionRule(
        evidence,
        primary=compare_arms(arms, criteria.mde, max_value, evidence.largest_log_e),
        other_population=None if other_arms is None else compare_arms(other_arms, criteria.mde, max_value),
        undefined_as_zero=None
        if evidence.undefined_as_zero is None
        else compare_arms(evidence.undefined_as_zero, criteria.mde, max_value),
        guardrails=tuple(
            evaluate_guardrail(
                item.guardrail,
                item.arms.control,
                item.arms.treatment,
                alpha=alpha,
                guardrails=len(evidence.guardrails),
            )
            for item in evidence.guardrails
        ),
        diagnostics=tuple(
            (metric.name, compare_arms(metric.arms, metric.mde, metric.max_value, min_value=metric.min_value))
            for metric in evidence.diagnostics
        ),
        sample_ratio=sample_ratio or check_srm(evidence.phases, alpha=criteria.sample_ratio_alpha),
        part_ratios=part_ratios or check_part_ratios(evidence),
        crossover_ratio=check_srm(evidence.left_out_phases, alpha=criteria.sample_ratio_alpha),
    )
    state, reasons = rule.decide_state()
    days_to_resolve, days_to_power = _days_to_decide(evidence, arms, rule.guardrails, alpha)
    verdict = Verdict(
        state=state,
        reasons=reasons,
        notes=tuple(reason for reason in rule.additional_findings() if reason not in reasons),
        days_to_resolve=days_to_resolve,
        days_to_power=days_to_power,
        primary=rule.primary,
        relative_bounds=relative_confidence_sequence(
            arms.control,
            arms.treatment,
            alpha=alpha,
            mde=criteria.mde,
            max_value=max_value,
            min_value=evidence.min_value,
        ),
        shrunken_effect=_shrink(rule.primary, criteria.mde, alpha),
        other_population=rule.other_population,
        unadjusted=None
        if adjustment is None or imbalances
        else compare_arms(adjustment.unadjusted, criteria.mde, max_value),
        guardrails=rule.guardrails,
        diagnostics=rule.diagnostics,
        sample_ratio=rule.sample_ratio,
        evidence=evidence,
    )
    if evidence.history.is_incomplete:
        return verdict
    return replace(
        verdict, notes=(*verdict.notes, *(imbalances or _cuped_findings(verdict)), *_power_findings(verdict))
    )


def _check_parts(parts: tuple[SegmentCounts, ...], alpha: float, part_count: int) -> tuple[tuple[str, SrmResult], ...]:
    """Return (name, SRM result) of each part of the students; each test has an equal part of `alpha`."""
    return tuple((part.name, check_srm(part.phases, alpha=alpha / part_count)) for part in parts)


def _shrink(comparison: VariantComparison, mde: float, alpha: float) -> float | None:
    effect, information = comparison.difference.effect, comparison.difference.information
    if effect is None or information is None:
        return None
    return effect * information / (information + tuned_mixture(mde, alpha).rho)


def _days_to_decide(
    evidence: VerdictEvidence, arms: EstimatePair, guardrails: tuple[GuardrailResult, ...], alpha: float
) -> tuple[float | None, float | None]:
    """Return the days to a power of 50 % for an effect of the mde, and of 80 % for this effect and all guardrails.

    Each of the primary metric and the guardrails may fail with an equal part of the missing 20 %.
    """
    criteria, rates = evidence.criteria, evidence.students_per_day
    if _rare_events_matter(arms, evidence, alpha):
        # Rare events make the interval noticeably wider than the variances, for an unknown number of days.
        return None, None
    half_power_days = days_to_reach(information_to_resolve(criteria.mde, alpha), arms.control, arms.treatment, rates)
    power = 1 - (1 - _POWER) / (1 + len(guardrails))
    days = [
        days_to_reach(information_to_resolve(criteria.mde, alpha, power), arms.control, arms.treatment, rates),
        *(
            days_to_hold(result, power, evidence.students_per_day_with(result.control, result.treatment))
            for result in guardrails
        ),
    ]
    known_days = [number for number in days if number is not None]
    return half_power_days, max(known_days) if len(known_days) == len(days) else None


def _rare_events_matter(arms: EstimatePair, evidence: VerdictEvidence, alpha: float) -> bool:
    least, max_value = evidence.min_value, evidence.max_value
    control, treatment = shift_estimate(arms.control, -least), shift_estimate(arms.treatment, -least)
    max_value = None if max_value is None else max_value - least
    if control.variance is None or treatment.variance is None:
        return False
    added_variance = rare_event_variance(control, treatment, max_value, alpha)
    return added_variance > _NOTICEABLE_VARIANCE_FRACTION * (control.variance + treatment.variance)


def _bounds(comparison: VariantComparison) -> tuple[float, float] | None:
    """Return the interval of a comparison; None if it has none."""
    return None if comparison.lower is None or comparison.upper is None else (comparison.lower, comparison.upper)


def _excludes_zero(comparison: VariantComparison) -> bool:
    """Return whether a comparison has an interval that does not contain 0."""
    bounds = _bounds(comparison)
    return bounds is not None and not bounds[0] <= 0 <= bounds[1]


def _compare_shares(arms: EstimatePair, alpha: float) -> VariantComparison:
    return compare_variants(arms.control, arms.treatment, alpha=alpha, mde=SHARE_MDE, max_value=1.0)


def _share_difference(arms: EstimatePair | None, alpha: float) -> float | None:
    """Return the difference of two shares; None unless its interval excludes 0."""
    comparison = None if arms is None else _compare_shares(arms, alpha)
    return comparison.difference.effect if comparison is not None and _excludes_zero(comparison) else None


def _covariate_imbalances(adjustment: CupedAdjustment, evidence: VerdictEvidence) -> Iterator[Reason]:
    """Yield the reasons why the adjustment by CUPED cannot be used: variants that differed before the experiment."""
    criteria = evidence.criteria
    alpha = criteria.sample_ratio_alpha
    covariate = compare_variants(
        adjustment.covariate.control,
        adjustment.covariate.treatment,
        alpha=alpha,
        mde=criteria.mde,
        max_value=evidence.max_value,
        min_value=evidence.min_value,
    )
    covered_share = _compare_shares(adjustment.covered_share, alpha)
    for comparison, subject in (
        (covariate, "the results of the students from before the experiment"),
        (covered_share, "the shares of students with results from before the experiment"),
    ):
        if _excludes_zero(comparison):
            text = (
                f"The comparison is not adjusted by CUPED, because {subject} differ between the variants by more than "
                "chance explains. Assignment at random does not do that: check how students are assigned."
            )
            yield Reason("covariate_unbalanced", text)


def _power_findings(verdict: Verdict) -> Iterator[Reason]:
    """Yield a note if an open experiment needs long for 80 % power, or if the mde is far from what the data resolve."""
    days, evidence, primary = verdict.days_to_power, verdict.evidence, verdict.primary
    metric = evidence.metric
    mde, label = evidence.criteria.mde, metric_label(metric, evidence.texts)
    smallest = format_amount(metric, mde, evidence.texts)
    later_half_width = _half_width_after(_LONG_DAYS, verdict)
    advice = "Consider a larger `mde`, more students, or data from before the experiment (`pre_period`)."
    if (
        verdict.state in {"continue", "insufficient_data"}
        and later_half_width is not None
        and later_half_width > _UNRESOLVED_MDES * mde
    ):
        width = _width(metric, later_half_width, evidence.texts)
        text = (
            f"At the present number of new {evidence.unit_noun}s, the interval on {label} is still "
            f"\u00b1{width} after {_LONG_DAYS:.0f} days, over {_UNRESOLVED_MDES:.0f} times "
            f"the smallest effect of interest, {smallest}, which this experiment cannot show in a reasonable "
            f"time. {advice}"
        )
        yield Reason("low_power", text)
    elif verdict.state == "continue" and days is not None and days > _LONG_DAYS:
        text = (
            f"At the present number of new {evidence.unit_noun}s it takes about {_count(round(days), 'day')} until an "
            f"effect of {smallest} on {label} is shown with 80 % power, guardrails included. {advice}"
        )
        yield Reason("low_power", text)
    if primary.lower is None or primary.upper is None or verdict.state in {"insufficient_data", "invalid"}:
        return
    half_width = (primary.upper - primary.lower) / 2
    if half_width < mde / _COARSE_HALF_WIDTHS:
        text = (
            f"The smallest effect of interest on {label}, {smallest}, is coarse: the interval is already "
            f"\u00b1{_width(metric, half_width, evidence.texts)}, so the data show effects that are over "
            f"{_COARSE_HALF_WIDTHS:.0f} times smaller. Check that `mde` is the smallest effect that matters."
        )
        yield Reason("coarse_mde", text)


def _half_width_after(days: float, verdict: Verdict) -> float | None:
    """Return half the width of the primary metric's interval after some days at the present rate; None if unknown."""
    primary, criteria = verdict.primary, verdict.evidence.criteria
    variance = 0.0
    for arm, rate in zip((primary.control, primary.treatment), verdict.evidence.students_per_day, strict=True):
        if arm.unit_variance is None or arm.units < MIN_UNITS_FOR_DECISION:
            return None
        variance += arm.unit_variance / (arm.units + rate * days)
    if not variance:
        return None
    return tuned_mixture(criteria.mde, primary.alpha).half_width(1 / variance, primary.alpha)


def _cuped_findings(verdict: Verdict) -> Iterator[Reason]:
    """Yield the note on CUPED, with the unadjusted interval, if the evidence is adjusted."""
    adjustment, reduction, unadjusted = verdict.evidence.adjustment, verdict.variance_reduction, verdict.unadjusted
    if adjustment is not None and reduction is not None and unadjusted is not None and unadjusted.lower is not None:
        metric, texts = verdict.evidence.metric, verdict.evidence.texts
        title = capitalized_metric_label(metric, texts)
        verb = "reduces" if reduction >= 0 else "increases"
        text = (
            f"{title} is adjusted for the results of {_count(adjustment.students, verdict.evidence.unit_noun)} before "
            f"the experiment (CUPED). The adjustment {verb} the variance of the effect by "
            f"{_percent(abs(reduction), 1)}. Without the adjustment, the interval is "
            f"{_interval(metric, unadjusted, texts)}."
        )
        yield Reason("adjusted", text)


def _width(metric: str, half_width: float, texts: DisplayTexts) -> str:
    """Return half the width of an interval with two significant digits, in the metric's unit."""
    return format_amount(metric, float(f"{half_width:.2g}"), texts)


def _count(number: int, noun: str) -> str:
    return count_noun(number, noun, separator="\u202f")


def _percent(fraction: float, decimals: int = 2) -> str:
    return f"{100 * fraction:.{decimals}f} %"


def _points(fraction: float, decimals: int = 1, *, sign: bool = False) -> str:
    points = f"{100 * fraction:{'+' if sign else ''}.{decimals}f} percentage points"
    return points.replace("-", "\u2212")


def _interval(metric: str, comparison: VariantComparison, texts: DisplayTexts) -> str:
    """Return the bounds of a comparison that has bounds, with signs and unit."""
    bounds = _bounds(comparison)
    assert bounds is not None
    low, high = format_changes(metric, bounds, sign=True)
    return f"{low} to {high}{metric_unit(metric, texts)}"


@dataclass(frozen=True, slots=True)
class _DecisionRule:
    """The decision rule, applied to the statistics of a treatment."""

    evidence: VerdictEvidence
    primary: VariantComparison
    other_population: VariantComparison | None
    undefined_as_zero: VariantComparison | None
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, VariantComparison], ...]
    sample_ratio: SrmResult
    part_ratios: PartRatios
    crossover_ratio: SrmResult
    """The SRM test of the crossovers by first variant."""

    def variant_label(self, name: str) -> str:
        """Return the label of a variant for readers."""
        return self.evidence.texts.variant_label(name)

    def gain_bounds(self, comparison: VariantComparison) -> tuple[float, float] | None:
        """Return the interval of a comparison on the primary metric, turned so that a gain is positive."""
        bounds = _bounds(comparison)
        if bounds is None or not self.evidence.lower_is_better:
            return bounds
        return -bounds[1], -bounds[0]

    def decide_state(self) -> tuple[VerdictState, tuple[Reason, ...]]:
        """Return the first state that applies, with the reasons."""
        gain = self.gain_bounds(self.primary)
        insufficiencies = tuple(self.insufficiencies())
        if insufficiencies or gain is None:
            return "insufficient_data", insufficiencies
        if validity_failures := tuple(self.validity_failures()):
            return "invalid", validity_failures
        if harms := tuple(self.harms()):
            return "stop_harm", harms
        return self.decide_by_primary_metric(*gain)

    def decide_by_primary_metric(self, lower: float, upper: float) -> tuple[VerdictState, tuple[Reason, ...]]:
        """Return the state and reasons from the bounds of the gain, for sufficient, valid and harmless data."""
        margin, mde, metric = self.evidence.criteria.margin, self.evidence.criteria.mde, self.evidence.metric
        texts = self.evidence.texts
        interval, title = _interval(metric, self.primary, texts), capitalized_metric_label(metric, texts)
        label = metric_label(metric, texts)
        if lower > -margin:
            side = "below" if self.evidence.lower_is_better else "above"
            gain = (Reason("better", f"{title} is better: the whole interval is {side} 0."),) if lower > 0 else ()
            not_worse = (
                f"{title} is not worse than allowed: any loss is smaller than {format_amount(metric, margin, texts)}."
            )
            tolerable_loss = (Reason("not_worse", not_worse),)
            open_guardrails = tuple(self.open_guardrails())
            biases = tuple(self.comparison_biases())
            gain_conflicts = (*self.population_conflicts(0.0), *self.undefined_conflicts(0.0))
            margin_conflicts = (*self.population_conflicts(-margin), *self.undefined_conflicts(-margin))
            if gain and not (open_guardrails or biases or gain_conflicts):
                return "ship", (*gain, *self.held_guardrails())
            if not (open_guardrails or biases or margin_conflicts):
                return "non_inferior", (*tolerable_loss, *(gain_conflicts if gain else ()), *self.held_guardrails())
            return "continue", (*(gain or tolerable_loss), *open_guardrails, *biases, *margin_conflicts)
        if upper < mde:
            amount = format_amount(metric, mde, texts)
            text = f"A gain on {label} of {amount}, the smallest effect of interest, or more can be excluded."
            return "futile", (Reason("too_small", text),)
        text = (
            f"The effect on {label} may be anywhere from {interval}. This includes a loss that is not allowed and "
            f"the smallest effect of interest, {format_amount(metric, mde, texts)}."
        )
        return "continue", (Reason("undecided", text),)

    def insufficiencies(self) -> Iterator[Reason]:
        """Yield the reasons why the data is insufficient for a decision."""
        evidence = self.evidence
        backfill = evidence.history.backfill
        if evidence.history.is_incomplete and backfill is not None:
            text = (
                "The numbers are incomplete, because earlier events in Kafka are not counted yet: the experiment "
                f"{backfill.describe()}. Until all are counted, there is no decision."
            )
            yield Reason("incomplete", text)
        has_few_units = min(self.primary.control.units, self.primary.treatment.units) < MIN_UNITS_FOR_DECISION
        for name, estimate in ((evidence.control, self.primary.control), (evidence.treatment, self.primary.treatment)):
            if estimate.units < MIN_UNITS_FOR_DECISION:
                units = _count(estimate.units, evidence.unit_noun)
                label = self.variant_label(name)
                text = f"{label} has {units} with complete first days; at least {MIN_UNITS_FOR_DECISION} are needed."
                yield Reason("few_students", text)
        if evidence.closed_days < evidence.criteria.min_days:
            text = (
                f"The windows of the {evidence.unit_noun}s of {_count(evidence.closed_days, 'entry day')} are complete"
                f"; at least {evidence.criteria.min_days:g} entry days are required (min_days): "
                + (
                    f"about {_count(math.ceil(evidence.criteria.min_days - evidence.closed_days), 'more day')}."
                    if evidence.has_new_students
                    else f"no new {evidence.unit_noun}s have entered for a week, so the number does not grow. Lower "
                    f"min_days, or add {evidence.unit_noun}s."
                )
            )
            yield Reason("young", text)
        if not has_few_units and self.primary.difference.information is None:
            title = capitalized_metric_label(evidence.metric, evidence.texts)
            text = f"{title} is the same for all {evidence.unit_noun}s so far, so it has no interval yet."
            yield Reason("no_variation", text)

    def validity_failures(self) -> Iterator[Reason]:
        """Yield the reasons why the variants cannot be compared: SRM, crossovers, lost or rejected events."""
        evidence, criteria, sample_ratio = self.evidence, self.evidence.criteria, self.sample_ratio
        if sample_ratio.mismatch:
            worst_phase = max(sample_ratio.phases, key=lambda phase: phase.log_e)
            split = ", ".join(
                f"{self.variant_label(arm.variant)} has {_percent(arm.observed)} instead of {_percent(arm.intended)}"
                for arm in worst_phase.arms
                if arm.observed is not None
            )
            is_hidden = sample_ratio.log_e < -math.log(sample_ratio.alpha)
            finding = (
                f"were not split as intended, which later {evidence.unit_noun}s hide; now"
                if is_hidden
                else "are not split as intended:"
            )
            text = (
                f"{evidence.unit_noun.capitalize()}s {finding} {split} (sample ratio mismatch, p = {sample_ratio.p:.2g}"
                f"; limit {sample_ratio.alpha:g}){_detection_date(sample_ratio, day_calendar(evidence.day_zone))}. "
                "Repair the assignment, then start a new experiment."
            )
            yield Reason("sample_ratio", text)
        yield from self.segment_mismatches()
        yield from self.hour_mismatches()
        yield from self.excluded_mismatch()
        for variant in sample_ratio.empty_variants:
            yield Reason(
                "empty_variant",
                f"{self.variant_label(variant)} should get a share of the {evidence.unit_noun}s, but has none.",
            )
        for variant in sample_ratio.stray_variants:
            yield Reason(
                "stray_traffic",
                f"{self.variant_label(variant)} should get no {evidence.unit_noun}s, but was shown to some.",
            )
        if self.crossover_ratio.mismatch:
            text = (
                f"{evidence.unit_noun.capitalize()}s who saw more than one variant are left out, and their first "
                f"variants are not split as intended (p = {self.crossover_ratio.p:.2g}; "
                f"limit {self.crossover_ratio.alpha:g}), so the compared {evidence.unit_noun}s differ between the "
                "variants."
            )
            yield Reason("uneven_crossovers", text)
        if evidence.anonymous_units > criteria.anonymous_limit * evidence.units:
            field = evidence.unit_field
            text = (
                f"{_percent(evidence.anonymous_units / evidence.units)} of the compared units are responses without a "
                f"{field}; the limit is {_percent(criteria.anonymous_limit)}. Several of them may come from one "
                f"{evidence.unit_noun}, so the interval would be too narrow. Send a {field} with each response."
            )
            yield Reason("anonymous_units", text)
        if evidence.crossovers > criteria.crossover_limit * evidence.students:
            share = _percent(evidence.crossovers / evidence.students) if evidence.students else "unknown share"
            text = (
                f"{evidence.crossovers} of {_count(evidence.students, evidence.unit_noun)} ({share}) saw more than one "
                f"variant; the limit is {_percent(criteria.crossover_limit)}."
            )
            yield Reason("crossovers", text)
        if evidence.lost_events:
            verb, pronoun = ("was", "it") if evidence.lost_events == 1 else ("were", "them")
            lost = f"{_count(evidence.lost_events, 'event')} {verb} lost"
            yield Reason("lost_events", f"{lost} before the monitor could count {pronoun}.")
        if evidence.rejected_share is not None and evidence.rejected_share > criteria.rejected_limit:
            share = f"{_percent(evidence.rejected_share)} of the newest events were rejected"
            text = f"{share}; the limit is {_percent(criteria.rejected_limit)}."
            yield Reason("rejected_events", text)
        yield from self.harmful_rejections()

    def harmful_rejections(self) -> Iterator[Reason]:
        """Yield the reasons why missing responses make the comparison invalid: uneven, or enough to change it."""
        evidence, criteria, quality = self.evidence, self.evidence.criteria, self.evidence.data_quality
        if quality is None or not quality.missing:
            return
        control, treatment = evidence.control, evidence.treatment
        difference = quality.missing_share_difference(control, treatment, criteria.sample_ratio_alpha)
        # Pooled over phases of different shares, a day with many rejections alone makes the shares differ.
        have_shares_changed = len(evidence.phases) > 1
        if difference is not None and not have_shares_changed:
            shares = " and ".join(
                f"{_percent(quality.variants[name].missing_share)} of {self.variant_label(name)}"
                for name in (treatment, control)
            )
            text = (
                f"Responses are missing unevenly, because they were rejected or late: {shares}. The other responses "
                f"cannot be compared. {_REPAIR_PRODUCER}"
            )
            yield Reason("uneven_rejections", text)
        means = self.primary.control.mean, self.primary.treatment.mean
        if evidence.max_value is None or means[0] is None or means[1] is None:
            return
        change = quality.largest_effect_change(control, treatment, (means[0], means[1]), evidence.max_value)
        tolerable_change = criteria.margin or criteria.mde
        is_suspicious = quality.missing_share > criteria.rejected_limit or (
            difference is not None and have_shares_changed
        )
        if is_suspicious and change > tolerable_change:
            name = evidence.metric
            worst, limit = format_changes(name, [change, tolerable_change])
            unit = metric_unit(name, evidence.texts)
            text = (
                f"{_describe_missing(quality)} At worst, they would change the effect by {worst}{unit}; "
                f"the limit is {limit}{unit}. {_REPAIR_PRODUCER}"
            )
            yield Reason("many_rejections", text)

    def rejections(self) -> Iterator[Reason]:
        """Yield the missing responses, as a warning if their share is above the limit."""
        quality = self.evidence.data_quality
        if quality is not None and quality.missing:
            is_large = quality.missing_share > self.evidence.criteria.rejected_limit
            yield Reason("many_rejections" if is_large else "rejections", _describe_missing(quality))

    def harms(self) -> Iterator[Reason]:
        """Yield the harms above the margins: of the primary metric, and of guardrails."""
        margin, gain = self.evidence.criteria.margin, self.gain_bounds(self.primary)
        if gain is not None and gain[1] < -margin:
            metric = self.evidence.metric
            loss, allowed = format_changes(metric, [-gain[1], margin])
            allowance = f"the allowed loss is {allowed}" if margin else "no loss is allowed"
            direction = "higher" if self.evidence.lower_is_better else "lower"
            loss = f"{loss}{metric_unit(metric, self.evidence.texts)}"
            title = capitalized_metric_label(metric, self.evidence.texts)
            text = f"{title} is {direction} by at least {loss}; {allowance}."
            yield Reason("worse", text)
        for result in self.guardrails:
            if result.state == "crossed" and result.least_harm is not None:
                yield Reason("guardrail_crossed", describe_guardrail(result, self.evidence.texts))

    def held_guardrails(self) -> Iterator[Reason]:
        """Yield the held guardrails: the upper bound of the harm is below the margin."""
        for result in self.guardrails:
            if result.is_held and result.most_harm is not None:
                yield Reason("guardrail_held", describe_guardrail(result, self.evidence.texts))

    def open_guardrails(self) -> Iterator[Reason]:
        """Yield the guardrails that prevent shipping: the upper bound of the harm is not below the margin."""
        for result in self.guardrails:
            if result.state in {"open", "unknown"}:
                yield Reason("guardrail_open", describe_guardrail(result, self.evidence.texts))

    def segment_mismatches(self) -> Iterator[Reason]:
        """Yield a reason for each segment whose students are not split as intended."""
        for segment, result in self.part_ratios.segments:
            if result.mismatch:
                text = (
                    f"{self.evidence.unit_noun.capitalize()}s of {segment} are not split as intended (sample ratio "
                    f"mismatch, p = {result.p:.2g}; limit {result.alpha:.2g}). The split differs between kinds of "
                    f"{self.evidence.unit_noun}s or within the day."
                )
                yield Reason("segment_sample_ratio", text)

    def hour_mismatches(self) -> Iterator[Reason]:
        """Yield a reason with the hours of first exposure whose students are not split as intended."""
        mismatches = [(hour, result) for hour, result in self.part_ratios.hours if result.mismatch]
        if mismatches:
            hour, result = min(mismatches, key=lambda mismatch: mismatch[1].p)
            hours = f" and {_count(len(mismatches) - 1, 'other hour')}" if len(mismatches) > 1 else ""
            text = (
                f"{self.evidence.unit_noun.capitalize()}s first exposed at {hour}{hours} are not split as intended "
                f"(sample ratio mismatch, p = {result.p:.2g}; limit {result.alpha:.2g}). The split changes within the "
                f"day, so the variants have {self.evidence.unit_noun}s of different times of day."
            )
            yield Reason("hour_sample_ratio", text)

    def excluded_mismatch(self) -> Iterator[Reason]:
        """Yield the reason that the students with excluded responses are not split as intended."""
        result, noun = self.part_ratios.excluded, self.evidence.unit_noun
        if result.mismatch:
            worst_phase = max(result.phases, key=lambda phase: phase.log_e)
            split = ", ".join(
                f"{self.variant_label(arm.variant)} has {_count(arm.students, noun)} ({_percent(arm.observed)}) "
                f"instead of {_percent(arm.intended)}"
                for arm in worst_phase.arms
                if arm.observed is not None
            )
            detection = _detection_date(result, day_calendar(self.evidence.day_zone))
            text = (
                f"Excluded {noun}s are not split as intended: {split} (sample ratio mismatch, p = {result.p:.2g}; "
                f"limit {result.alpha:g}){detection}. So the exclusion depends on the variant, and the "
                f"compared {noun}s differ between the variants as well. Exclude only by fields that are known before "
                f"the {noun} is assigned to a variant."
            )
            yield Reason("excluded_sample_ratio", text)

    def comparison_biases(self) -> Iterator[Reason]:
        """Yield the reasons why the compared students may differ between the variants: no gain may be concluded."""
        if self.part_ratios.compared.alarm:
            phases = self.evidence.compared_phases
            # The test is over all variants, so another treatment may be the cause.
            variants = dict.fromkeys(variant for phase in phases for variant in (*phase.shares, *phase.students))
            noun = self.evidence.unit_noun
            split = " and ".join(
                f"{_count(sum(phase.students.get(variant, 0) for phase in phases), noun)} of "
                f"{self.variant_label(variant)}"
                for variant in variants
            )
            limit = (
                f" (p = {self.part_ratios.compared.p:.2g}; limit {self.part_ratios.compared.alpha:g})"
                if self.part_ratios.compared.mismatch
                else ""
            )
            text = (
                f"The comparison is over {split}, which is not the intended split{limit}. One variant has more "
                f"{noun}s without a value, for example because unhappy students stop rating, so no gain can be "
                "concluded."
            )
            yield Reason("compared_sample_ratio", text)

    def undefined_conflicts(self, required_lower_bound: float) -> Iterator[Reason]:
        """Yield a reason if undefined shares differ and the lower bound with undefined values as 0 is too low."""
        if self.undefined_as_zero is not None and self.undefined_share_difference() is not None:
            gain = self.gain_bounds(self.undefined_as_zero)
            lower = None if gain is None else gain[0]
            if lower is None or lower <= required_lower_bound:
                bound = (
                    "unknown"
                    if lower is None
                    else format_amount(self.evidence.metric, lower, self.evidence.texts, sign=True)
                )
                metric = metric_label(self.evidence.metric, self.evidence.texts)
                text = (
                    f"The shares of responses with an undefined {metric} differ, so {metric} must also be good if "
                    f"undefined values count as 0. Then the lower bound of the effect is {bound}."
                )
                yield Reason("undefined_disagree", text)

    def undefined_share_difference(self) -> float | None:
        """Return the difference of the shares of undefined values; None unless the interval excludes 0."""
        return _share_difference(self.evidence.undefined_share, self.evidence.criteria.sample_ratio_alpha)

    def population_conflicts(self, required_lower_bound: float) -> Iterator[Reason]:
        """Yield a reason if rated shares differ and the other population's lower bound is too low."""
        difference = self.rated_share_difference()
        if difference is None or self.other_population is None:
            return
        gain = self.gain_bounds(self.other_population)
        lower = None if gain is None else gain[0]
        if lower is None or lower <= required_lower_bound:
            metric, texts = self.evidence.metric, self.evidence.texts
            known_bound = "unknown" if lower is None else format_amount(metric, lower, texts, sign=True)
            required_bound = (
                format_amount(metric, required_lower_bound, texts, sign=True) if required_lower_bound else "0"
            )
            text = (
                f"The shares of rated responses differ by {_points(difference, sign=True)}, so "
                f"{metric_label(metric, texts)} must also be good in the other population (all responses instead of "
                "rated responses, or the reverse). "
                f"There, the lower bound of its gain is {known_bound}; it must be above {required_bound}."
            )
            yield Reason("populations_disagree", text)

    def rated_share_difference(self) -> float | None:
        """Return the difference of the rated shares; None unless the interval of the difference excludes 0."""
        return _share_difference(self.evidence.rated_share, self.evidence.criteria.sample_ratio_alpha)

    def additional_findings(self) -> Iterator[Reason]:
        """Yield the findings that are reported in every state; some may also be reasons of the state.

        Incomplete data have only findings about their history: students seem to have come later than they did.
        """
        yield from self.history_findings()
        if self.evidence.history.is_incomplete:
            return
        failures = tuple(self.validity_failures())
        yield from failures
        if not any(failure.code in {"uneven_rejections", "many_rejections"} for failure in failures):
            yield from self.rejections()
        yield from self.harms()
        if self.evidence.skipped_events is not None:
            yield Reason("skipped_events", f"{str(self.evidence.skipped_events).rstrip('.')}.")
        if (difference := self.rated_share_difference()) is not None:
            text = (
                f"The share of rated responses differs by {_points(difference, sign=True)}, more than chance explains. "
                f"Other students may rate in {self.evidence.treatment_label} than in "
                f"{self.evidence.control_label}."
            )
            yield Reason("rated_share_differs", text)
        yield from self.comparison_biases()
        if (difference := self.undefined_share_difference()) is not None:
            label = metric_label(self.evidence.metric, self.evidence.texts)
            text = (
                f"The share of rated responses with an undefined {label} differs by "
                f"{_points(difference, sign=True)}, more than chance explains."
            )
            yield Reason("undefined_share_differs", text)
        yield from self.late_arrivals()
        yield from self.idle_guardrails()
        yield from self.left_out_students()
        yield from self.live_conflicts()
        effect = self.primary.difference.effect
        for metric, (name, comparison) in zip(self.evidence.diagnostics, self.diagnostics, strict=True):
            lower, upper = comparison.lower, comparison.upper
            if effect is None or lower is None or upper is None:
                continue
            expected_sign = -1 if metric.lower_is_better != self.evidence.lower_is_better else 1
            if (lower > 0 > expected_sign * effect) or (upper < 0 < expected_sign * effect):
                texts = self.evidence.texts
                text = (
                    f"{capitalized_metric_label(name, texts)} moves in the other direction "
                    f"({_interval(name, comparison, texts)}); {metric_label(self.evidence.metric, texts)} decides."
                )
                yield Reason("metrics_disagree", text)

    def history_findings(self) -> Iterator[Reason]:
        """Yield notes on changes of the running experiment, and on events that its numbers do not contain."""
        history, noun = self.evidence.history, self.evidence.unit_noun
        if history.is_previous_definition:
            until = "" if history.definition_since_ms is None else f", up to {_utc_time(history.definition_since_ms)}"
            progress = "is being filled" if history.backfill is None else history.backfill.describe()
            text = f"Numbers of the previous definition{until}; the new definition {progress}."
            yield Reason("previous_definition", text)
        if history.complete_since_ms is not None:
            text = (
                f"Complete since {_utc_time(history.complete_since_ms)}: Kafka no longer had earlier events. "
                f"{noun.capitalize()}s who came earlier count from their first response after that time on."
            )
            if any(
                change.kind in ("shares", "variants") for change in history.changes_before(history.complete_since_ms)
            ):
                text += (
                    " Some of them were assigned under other shares than those of that time, so the split may differ "
                    "from the intended one: start a new experiment if a decision is needed."
                )
            yield Reason("complete_since", text)
        changes = self.changes_after_data("criteria", "definition")
        if changes:
            text = (
                f"{changes} The verdict is computed under the current ones. Criteria that were chosen after data had "
                "been seen make a verdict weaker evidence."
            )
            yield Reason("criteria_changed", text)
        share_changes = self.changes_after_data("shares", "variants")
        if share_changes or len(self.evidence.phases) > 1:
            text = (
                f"{share_changes or 'The intended shares have changed.'} Only "
                f"{noun}s who entered under the same shares are compared with each other, without the days of the "
                "change. The effect over all responses mixes the shares, so it has no interval."
            )
            yield Reason("shares_changed", text)

    def changes_after_data(self, *kinds: ChangeKind) -> str:
        """Return a sentence for each day with changes of the kinds after the first response, with the date."""
        first_ms, calendar = self.evidence.first_response_ms, day_calendar(self.evidence.day_zone)
        phrases: dict[tuple[ChangeKind, int], list[str]] = {}
        for change in self.evidence.history.changes:
            if change.kind in kinds and first_ms is not None and change.at_ms >= first_ms:
                phrases.setdefault((change.kind, calendar.day_number(change.at_ms)), []).append(change.text)
        return " ".join(
            f"{_CHANGED_SUBJECTS[kind]} changed on {_describe_day(day, calendar)}: {'; '.join(texts)}."
            for (kind, day), texts in list(phrases.items())[-_MAX_LISTED_CHANGES:]
        )

    def late_arrivals(self) -> Iterator[Reason]:
        """Yield a note if the events of one variant arrive late more often.

        The shares of late events are over all phases, so after a change of shares they may differ without a cause.
        """
        arms = self.evidence.late_arrivals if len(self.evidence.phases) == 1 else None
        if _share_difference(arms, self.evidence.criteria.sample_ratio_alpha) is not None and arms is not None:
            control_share, treatment_share = (_percent(arm.mean or 0.0) for arm in (arms.control, arms.treatment))
            text = (
                f"Events arrive late more often in one variant: {control_share} of "
                f"{self.evidence.control_label} and {treatment_share} of "
                f"{self.evidence.treatment_label} came more than an hour (or the closing_delay) after "
                "they happened. The newest closed days may lack them: set a longer closing_delay."
            )
            yield Reason("delivery_differs", text)

    def idle_guardrails(self) -> Iterator[Reason]:
        """Yield the guardrails that no harm can cross, because the margin is as large as the control's mean."""
        for result in self.guardrails:
            if result.control.units < MIN_UNITS_FOR_DECISION or (result.guardrail.is_relative and not result.margin):
                # The mean is not known well yet, or no other relative margin of a mean of 0 would be better.
                continue
            if not result.guardrail.can_be_crossed(result.control.mean) and result.margin is not None:
                name, texts = result.guardrail.name, self.evidence.texts
                unit = metric_unit(name, texts)
                margin, mean = format_changes(name, [result.margin, result.control.mean or 0.0])
                text = (
                    f"The guardrail on the {metric_label(name, texts)} cannot fail: it allows a change of {margin}"
                    f"{unit}, and {self.evidence.control_label} has {mean}{unit}. Set a smaller "
                    f"{'relative_margin' if result.guardrail.is_relative else 'margin, or a relative_margin'}."
                )
                yield Reason("guardrail_idle", text)

    def left_out_students(self) -> Iterator[Reason]:
        """Yield how far the crossovers, who are left out, could move the effect, if a bound of values is known."""
        max_value, control, treatment = self.evidence.max_value, self.primary.control.mean, self.primary.treatment.mean
        if max_value is None or control is None or treatment is None or not self.evidence.left_out_phases:
            return
        shares = {}
        for variant in (self.evidence.control, self.evidence.treatment):
            left_out = sum(phase.students.get(variant, 0) for phase in self.evidence.left_out_phases)
            compared = sum(phase.students.get(variant, 0) for phase in self.evidence.compared_phases)
            shares[variant] = left_out / (left_out + compared) if left_out else 0.0
        control_share, treatment_share = shares[self.evidence.control], shares[self.evidence.treatment]
        if not control_share + treatment_share:
            return
        min_value = self.evidence.min_value
        rise = treatment_share * (max_value - treatment) + control_share * (control - min_value)
        fall = treatment_share * (treatment - min_value) + control_share * (max_value - control)
        low, high = format_changes(self.evidence.metric, [fall, rise])
        text = (
            f"{self.evidence.unit_noun.capitalize()}s who saw more than one variant are left out "
            f"({_percent(control_share)} of {self.evidence.control_label}, {_percent(treatment_share)} of "
            f"{self.evidence.treatment_label}). At worst, with the most extreme values, they would lower the effect "
            f"by {low} or raise it by {high}{metric_unit(self.evidence.metric, self.evidence.texts)}."
        )
        yield Reason("left_out_students", text)

    def live_conflicts(self) -> Iterator[Reason]:
        """Yield a note if the interval over all responses and the interval that decides have no value in common."""
        arms, criteria = self.evidence.live, self.evidence.criteria
        if arms is None:
            return
        live = compare_variants(
            arms.control,
            arms.treatment,
            alpha=self.primary.alpha,
            mde=criteria.mde,
            max_value=self.evidence.max_value,
            min_value=self.evidence.min_value,
            estimand="live",
        )
        live_bounds, closed_bounds = _bounds(live), _bounds(self.primary)
        if live_bounds is None or closed_bounds is None:
            return
        if live_bounds[0] > closed_bounds[1] or live_bounds[1] < closed_bounds[0]:
            metric, texts = self.evidence.metric, self.evidence.texts
            text = (
                f"The effect over all responses so far ({_interval(metric, live, texts)}) and the effect that "
                f"decides ({_interval(metric, self.primary, texts)}) exclude each other. Active "
                f"{self.evidence.unit_noun}s, or {self.evidence.unit_noun}s who came later, differ from the others."
            )
            yield Reason("live_disagrees", text)


def _utc_time(time_ms: int) -> str:
    """Return a time in UTC with the precision of a minute."""
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M} UTC"


def _describe_missing(quality: DataQuality) -> str:
    """Return a sentence on the missing responses of an experiment, with the names of undeclared variants."""
    counts = [
        (sum(sum(variant.rejected.values()) for variant in quality.variants.values()), "rejected"),
        (sum(variant.late for variant in quality.variants.values()), "late"),
        (sum(quality.undeclared_variants.values()), "of undeclared variants"),
        (sum(quality.other_spellings.values()), "with another spelling of the experiment"),
    ]
    causes = ", ".join(f"{_count(count, 'response')} {cause}" for count, cause in counts if count)
    names = [
        f"{name!r}" + (f" (did you mean {similar_name}?)" if similar_name else "")
        for name in list(quality.undeclared_variants)[:_MAX_LISTED_VARIANTS]
        for similar_name in [quality.similar_variant(name)]
    ]
    names += [repr(name) for name in list(quality.other_spellings)[:_MAX_LISTED_VARIANTS]]
    listed_names = f" ({', '.join(names)})" if names else ""
    return (
        f"{_percent(quality.missing_share)} of the responses are missing from the comparison: {causes}{listed_names}."
    )


def _detection_date(result: SrmResult, calendar: DayCalendar) -> str:
    """Return the date of the alarm as the end of a sentence; empty without a date. The cause may be older."""
    return "" if result.mismatch_day is None else f", detected on {_describe_day(result.mismatch_day, calendar)}"


def _describe_day(day: int, calendar: DayCalendar) -> str:
    return f"{calendar.date_text(day)}{calendar.zone_note}"
