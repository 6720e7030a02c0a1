"""The decision rule: a verdict on a treatment as a pure function of the evidence.

The verdict's state is the first that applies of `insufficient_data` → `invalid` → `stop_harm` → `ship` →
`non_inferior` → `futile` → `continue`. docs/statistics.md defines the states and explains why `ship` and `non_inferior`
wait for guardrails. Reasons explain the state; notes are further findings, whatever the state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec

from monitor.stats.comparison import (
    MIN_UNITS_FOR_DECISION,
    VariantComparison,
    compare_variants,
    days_to_resolve,
    split_alpha,
)
from monitor.stats.cuped import variance_reduction
from monitor.stats.evidence import EstimatePair, VerdictEvidence
from monitor.stats.guardrails import GuardrailResult, evaluate_guardrail
from monitor.stats.rare_events import rare_event_variance
from monitor.stats.srm import SrmResult, check_srm
from monitor.stats.wording import describe_guardrail, format_changes, metric_unit

VerdictState: TypeAlias = Literal[
    "insufficient_data", "invalid", "stop_harm", "ship", "non_inferior", "futile", "continue"
]
ReasonCode: TypeAlias = Literal[
    "few_students", "young", "no_variation",
    "sample_ratio", "empty_variant", "stray_traffic", "crossovers", "lost_events", "rejected_events",
    "worse", "guardrail_crossed",
    "better", "not_worse", "too_small", "undecided",
    "adjusted", "guardrail_held", "guardrail_open", "rated_share_differs", "populations_disagree", "metrics_disagree",
    "skipped_events",
]  # fmt: skip
"""`young` means that the experiment has not run for `min_days`; `stray_traffic` means students in a variant without a
share; docs/statistics.md lists all codes."""

_NOTICEABLE_VARIANCE_FRACTION: Final = 0.05
"""Rare events that add more than this part of the variance widen the interval by more than a fortieth."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A reason or note of a verdict: a code from a fixed set for machines, a sentence for people."""

    code: ReasonCode
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The state of a treatment with reasons and statistics; all other fields follow from `evidence`."""

    state: VerdictState
    reasons: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    """Findings that are not reasons of the state."""
    days_to_resolve: float | None
    """Days until the half width of the primary metric's interval equals the mde.

    None if unknown, for example if rare values widen the interval (`monitor.stats.rare_events`), or if the mde is never
    resolved at the current rate.
    """
    primary: VariantComparison
    other_population: VariantComparison | None
    unadjusted: VariantComparison | None
    """The comparison of the primary metric without CUPED; None if the evidence is not adjusted."""
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, VariantComparison], ...]
    """(metric, comparison) of the metrics that do not decide."""
    sample_ratio: SrmResult
    evidence: VerdictEvidence

    @property
    def variance_reduction(self) -> float | None:
        """The fraction by which CUPED lowered the variance of the effect; None without CUPED."""
        if self.evidence.adjustment is None:
            return None
        arms, unadjusted_arms = self.evidence.arms, self.evidence.adjustment.unadjusted
        return variance_reduction((unadjusted_arms.control, unadjusted_arms.treatment), (arms.control, arms.treatment))

    def to_json(self) -> dict[str, Any]:
        """Return all fields as JSON; `parse_evidence` reads the value of `evidence`."""
        return {**msgspec.to_builtins(self), "sample_ratio": self.sample_ratio.to_json()}


def parse_evidence(content: object) -> VerdictEvidence:
    """Return the evidence from the JSON of a verdict's `evidence`; malformed JSON raises `msgspec.ValidationError`."""
    return msgspec.convert(content, VerdictEvidence)


def decide_verdict(evidence: VerdictEvidence, sample_ratio: SrmResult | None = None) -> Verdict:
    """Return the verdict that follows from the evidence.

    `sample_ratio` is the SRM result of the evidence's phases, which is the same for all treatments; None computes it.
    """
    criteria = evidence.criteria
    alpha = split_alpha(criteria.alpha, criteria.treatments)

    def compare_arms(
        arms: EstimatePair, mde: float, max_value: float | None, largest_log_e: float | None = None
    ) -> VariantComparison:
        return compare_variants(
            arms.control, arms.treatment, alpha=alpha, mde=mde, max_value=max_value, largest_log_e=largest_log_e
        )

    max_value = evidence.max_value
    rule = _DecisionRule(
        evidence,
        primary=compare_arms(evidence.arms, criteria.mde, max_value, evidence.largest_log_e),
        other_population=None
        if evidence.other_population is None
        else compare_arms(evidence.other_population, criteria.mde, max_value),
        guardrails=tuple(
            evaluate_guardrail(item.guardrail, item.arms.control, item.arms.treatment, alpha=alpha)
            for item in evidence.guardrails
        ),
        diagnostics=tuple(
            (metric.name, compare_arms(metric.arms, metric.mde, metric.max_value)) for metric in evidence.diagnostics
        ),
        sample_ratio=sample_ratio
        or check_srm(
            evidence.phases, alpha=criteria.sample_ratio_alpha, largest_log_e=evidence.largest_sample_ratio_log_e
        ),
    )
    state, reasons = rule.decide_state()
    adjustment = evidence.adjustment
    arms = evidence.arms.control, evidence.arms.treatment
    # Rare events make the interval noticeably wider than the variances, for an unknown number of days.
    variances = [estimate.variance for estimate in arms if estimate.variance is not None]
    rare_events_matter = len(variances) == len(arms) and rare_event_variance(
        *arms, max_value, alpha
    ) > _NOTICEABLE_VARIANCE_FRACTION * sum(variances)
    verdict = Verdict(
        state=state,
        reasons=reasons,
        notes=tuple(reason for reason in rule.additional_findings() if reason not in reasons),
        days_to_resolve=None
        if rare_events_matter
        else days_to_resolve(*arms, evidence.students_per_day, alpha=alpha, mde=criteria.mde),
        primary=rule.primary,
        other_population=rule.other_population,
        unadjusted=None if adjustment is None else compare_arms(adjustment.unadjusted, criteria.mde, max_value),
        guardrails=rule.guardrails,
        diagnostics=rule.diagnostics,
        sample_ratio=rule.sample_ratio,
        evidence=evidence,
    )
    return replace(verdict, notes=(*verdict.notes, *_cuped_findings(verdict)))


def _cuped_findings(verdict: Verdict) -> Iterator[Reason]:
    """Yield the note on CUPED, with the unadjusted interval, if the evidence is adjusted."""
    adjustment, reduction, unadjusted = verdict.evidence.adjustment, verdict.variance_reduction, verdict.unadjusted
    if adjustment is not None and reduction is not None and unadjusted is not None and unadjusted.lower is not None:
        metric = verdict.evidence.metric
        text = (
            f"{metric} is adjusted for the results of {_count(adjustment.students, 'student')} before the experiment "
            f"(CUPED). The adjustment reduces the variance of the effect by {_percent(reduction, 1)}. Without the "
            f"adjustment, the interval is {_interval(metric, unadjusted)}."
        )
        yield Reason("adjusted", text)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}".replace(",", "\u202f")


def _percent(fraction: float, decimals: int = 2) -> str:
    return f"{100 * fraction:.{decimals}f} %"


def _points(fraction: float, decimals: int = 1, *, sign: bool = False) -> str:
    points = f"{100 * fraction:{'+' if sign else ''}.{decimals}f} percentage points"
    return points.replace("-", "\u2212")


def _interval(metric: str, comparison: VariantComparison) -> str:
    """Return the bounds of a comparison that has bounds, with signs and unit."""
    assert comparison.lower is not None
    assert comparison.upper is not None
    low, high = format_changes(metric, [comparison.lower, comparison.upper], sign=True)
    return f"{low} to {high}{metric_unit(metric)}"


@dataclass(frozen=True, slots=True)
class _DecisionRule:
    """The decision rule, applied to the statistics of a treatment."""

    evidence: VerdictEvidence
    primary: VariantComparison
    other_population: VariantComparison | None
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, VariantComparison], ...]
    sample_ratio: SrmResult

    def decide_state(self) -> tuple[VerdictState, tuple[Reason, ...]]:
        """Return the first state that applies, with the reasons."""
        lower, upper = self.primary.lower, self.primary.upper
        insufficiencies = tuple(self.insufficiencies())
        if insufficiencies or lower is None or upper is None:
            return "insufficient_data", insufficiencies
        if validity_failures := tuple(self.validity_failures()):
            return "invalid", validity_failures
        if harms := tuple(self.harms(upper)):
            return "stop_harm", harms
        return self.decide_by_primary_metric(lower, upper)

    def decide_by_primary_metric(self, lower: float, upper: float) -> tuple[VerdictState, tuple[Reason, ...]]:
        """Return the state and reasons from the primary metric's bounds, for sufficient, valid and harmless data."""
        margin, mde, metric = self.evidence.criteria.margin, self.evidence.criteria.mde, self.evidence.metric
        interval = _interval(metric, self.primary)
        if lower > -margin:
            gain = (Reason("better", f"{metric} is better: the whole interval is above 0."),) if lower > 0 else ()
            not_worse = f"{metric} is not worse than allowed: the interval is above the allowed loss of {margin:.4g}."
            tolerable_loss = (Reason("not_worse", not_worse),)
            open_guardrails = tuple(self.open_guardrails())
            gain_conflicts = tuple(self.population_conflicts(0.0))
            margin_conflicts = tuple(self.population_conflicts(-margin))
            if gain and not (open_guardrails or gain_conflicts):
                return "ship", (*gain, *self.held_guardrails())
            if not (open_guardrails or margin_conflicts):
                return "non_inferior", (*tolerable_loss, *(gain_conflicts if gain else ()), *self.held_guardrails())
            return "continue", (*(gain or tolerable_loss), *open_guardrails, *margin_conflicts)
        if upper < mde:
            text = f"The effect on {metric} is below {mde:.4g}, the smallest effect of interest."
            return "futile", (Reason("too_small", text),)
        text = (
            f"The effect on {metric} may be anywhere from {interval}. This includes a loss that is not allowed and "
            f"the smallest effect of interest, {mde:.4g}."
        )
        return "continue", (Reason("undecided", text),)

    def insufficiencies(self) -> Iterator[Reason]:
        """Yield the reasons why the data is insufficient for a decision."""
        evidence = self.evidence
        has_few_units = min(self.primary.control.units, self.primary.treatment.units) < MIN_UNITS_FOR_DECISION
        for name, estimate in ((evidence.control, self.primary.control), (evidence.treatment, self.primary.treatment)):
            if estimate.units < MIN_UNITS_FOR_DECISION:
                students = _count(estimate.units, "student")
                text = f"{name} has {students} with complete first days; at least {MIN_UNITS_FOR_DECISION} are needed."
                yield Reason("few_students", text)
        if evidence.age_days < evidence.criteria.min_days:
            # Rounded down, so that the text never shows the required number of days.
            days = math.floor(evidence.age_days * 100) / 100
            text = f"The experiment has run for {days:g} days; at least {evidence.criteria.min_days:g} are required."
            yield Reason("young", text)
        if not has_few_units and self.primary.difference.information is None:
            text = f"{evidence.metric} is the same for all students so far, so it has no interval yet."
            yield Reason("no_variation", text)

    def validity_failures(self) -> Iterator[Reason]:
        """Yield the reasons why the variants cannot be compared: SRM, crossovers, lost or rejected events."""
        evidence, criteria, sample_ratio = self.evidence, self.evidence.criteria, self.sample_ratio
        if sample_ratio.mismatch:
            worst_phase = max(sample_ratio.phases, key=lambda phase: phase.log_e)
            split = ", ".join(
                f"{arm.variant} has {_percent(arm.observed)} instead of {_percent(arm.intended)}"
                for arm in worst_phase.arms
                if arm.observed is not None
            )
            text = (
                f"Students are not split as intended: {split} (sample ratio mismatch, p = {sample_ratio.p:.2g}; "
                f"limit {sample_ratio.alpha:g})."
            )
            yield Reason("sample_ratio", text)
        for variant in sample_ratio.empty_variants:
            yield Reason("empty_variant", f"{variant} should get a share of the students, but has none.")
        for variant in sample_ratio.stray_variants:
            yield Reason("stray_traffic", f"{variant} should get no students, but was shown to some.")
        if evidence.crossovers > criteria.crossover_limit * evidence.students:
            share = _percent(evidence.crossovers / evidence.students) if evidence.students else "unknown share"
            text = (
                f"{evidence.crossovers} of {_count(evidence.students, 'student')} ({share}) saw more than one variant; "
                f"the limit is {_percent(criteria.crossover_limit)}."
            )
            yield Reason("crossovers", text)
        if evidence.lost_events:
            lost = f"{_count(evidence.lost_events, 'event')} {'was' if evidence.lost_events == 1 else 'were'} lost"
            yield Reason("lost_events", f"{lost} before the monitor could count them.")
        if evidence.rejected_share is not None and evidence.rejected_share > criteria.rejected_limit:
            share = f"{_percent(evidence.rejected_share)} of the newest events were rejected"
            text = f"{share}; the limit is {_percent(criteria.rejected_limit)}."
            yield Reason("rejected_events", text)

    def harms(self, upper: float) -> Iterator[Reason]:
        """Yield the harms above the margins: of the primary metric with upper bound `upper`, and of guardrails."""
        margin = self.evidence.criteria.margin
        if upper < -margin:
            metric = self.evidence.metric
            loss, allowed = format_changes(metric, [-upper, margin])
            allowance = f"the allowed loss is {allowed}" if margin else "no loss is allowed"
            text = f"{metric} is lower by at least {loss}{metric_unit(metric)}; {allowance}."
            yield Reason("worse", text)
        for result in self.guardrails:
            if result.state == "crossed" and result.least_harm is not None:
                yield Reason("guardrail_crossed", describe_guardrail(result))

    def held_guardrails(self) -> Iterator[Reason]:
        """Yield the held guardrails: the upper bound of the harm is below the margin."""
        for result in self.guardrails:
            if result.state == "held" and result.most_harm is not None:
                yield Reason("guardrail_held", describe_guardrail(result))

    def open_guardrails(self) -> Iterator[Reason]:
        """Yield the guardrails that prevent shipping: the upper bound of the harm is not below the margin."""
        for result in self.guardrails:
            if result.state in {"open", "unknown"}:
                yield Reason("guardrail_open", describe_guardrail(result))

    def population_conflicts(self, required_lower_bound: float) -> Iterator[Reason]:
        """Yield a reason if rated shares differ and the other population's lower bound is too low."""
        difference = self.excess_rated_share_difference()
        if difference is None:
            return
        lower = None if self.other_population is None else self.other_population.lower
        if lower is None or lower <= required_lower_bound:
            metric = self.evidence.metric
            known_bound = "unknown" if lower is None else f"{lower:+.4g}".replace("-", "\u2212")
            required_bound = f"{required_lower_bound:+.4g}".replace("-", "\u2212") if required_lower_bound else "0"
            text = (
                f"The shares of rated responses differ by {_points(difference, sign=True)}, so {metric} must also be "
                "good in the other population (all responses instead of rated responses, or the reverse). "
                f"There, the lower bound of its effect is {known_bound}; it must be above {required_bound}."
            )
            yield Reason("populations_disagree", text)

    def excess_rated_share_difference(self) -> float | None:
        """Return the difference of the observed rated shares; None if the margin is not exceeded."""
        arms = self.evidence.rated_share
        if arms is None or arms.control.mean is None or arms.treatment.mean is None:
            return None
        difference = arms.treatment.mean - arms.control.mean
        return difference if abs(difference) > self.evidence.criteria.rated_share_margin else None

    def additional_findings(self) -> Iterator[Reason]:
        """Yield the findings that are reported in every state; some may also be reasons of the state."""
        yield from self.validity_failures()
        yield from self.harms(self.primary.upper if self.primary.upper is not None else float("inf"))
        if self.evidence.skipped_events is not None:
            yield Reason("skipped_events", f"{str(self.evidence.skipped_events).rstrip('.')}.")
        if (difference := self.excess_rated_share_difference()) is not None:
            margin = self.evidence.criteria.rated_share_margin
            text = (
                f"The share of rated responses differs by {_points(difference, sign=True)}; the limit is "
                f"{_points(margin)}. Other students may rate in {self.evidence.treatment} than in "
                f"{self.evidence.control}."
            )
            yield Reason("rated_share_differs", text)
        effect = self.primary.difference.effect
        for name, comparison in self.diagnostics:
            lower, upper = comparison.lower, comparison.upper
            if effect is None or lower is None or upper is None:
                continue
            if (lower > 0 > effect) or (upper < 0 < effect):
                text = (
                    f"{name} moves in the other direction ({_interval(name, comparison)}); "
                    f"{self.evidence.metric} decides."
                )
                yield Reason("metrics_disagree", text)
