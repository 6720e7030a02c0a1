"""The verdict: a pure function of the evidence. The first state that applies, with the reasons for it.

`insufficient_data` → `invalid` → `stop_harm` → `ship` → `non_inferior` → `futile` → `continue`; what each asks for, and
why `ship` and `non_inferior` wait for guardrails, is in docs/statistics.md. Reasons are those of the state; notes are
what else the reader should know.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec

from monitor.stats.comparison import DECIDING_UNITS, Comparison, compare, days_to_resolve, split_alpha
from monitor.stats.cuped import variance_reduction
from monitor.stats.evidence import Arms, Evidence
from monitor.stats.guardrails import GuardrailResult, watch
from monitor.stats.rare_events import unseen_variance
from monitor.stats.srm import SampleRatio, sample_ratio_test

State: TypeAlias = Literal["insufficient_data", "invalid", "stop_harm", "ship", "non_inferior", "futile", "continue"]
Code: TypeAlias = Literal[
    "few_students", "young", "no_variation",
    "sample_ratio", "empty_variant", "stray_traffic", "crossovers", "lost_events", "refused_events",
    "worse", "guardrail_crossed",
    "better", "not_worse", "too_small", "undecided",
    "adjusted", "guardrail_held", "guardrail_open", "rated_share_differs", "populations_disagree", "metrics_disagree",
    "skipped_events",
]  # fmt: skip

_NOTICEABLE: Final = 0.05
"""Of the variance: what widens an interval by more than a fortieth."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason: a bounded code for machines, a sentence for people."""

    code: Code
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """A state, why, and every number that led there; `evidence` is enough to compute the rest again."""

    state: State
    reasons: tuple[Reason, ...]
    notes: tuple[Reason, ...]
    days_to_resolve: float | None
    """Until the primary's band is as narrow as the mde on either side.

    None if unknown, for example where rare values widen the band (`monitor.stats.rare_events`), or if never reached
    at today's rate.
    """
    primary: Comparison
    other_population: Comparison | None
    unadjusted: Comparison | None
    """The primary one without adjustment for students' means before the experiment; None if there was none."""
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, Comparison], ...]
    sample_ratio: SampleRatio
    evidence: Evidence

    @property
    def variance_reduction(self) -> float | None:
        """The part by which the adjustment lowered the variance of the effect; None without adjustment."""
        if self.evidence.adjustment is None:
            return None
        arms, raw = self.evidence.arms, self.evidence.adjustment.unadjusted
        return variance_reduction((raw.control, raw.treatment), (arms.control, arms.treatment))

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON; `evidence_from` reads its `evidence` back."""
        return {**msgspec.to_builtins(self), "sample_ratio": self.sample_ratio.to_json()}


def evidence_from(printed: object) -> Evidence:
    """Return the evidence that a verdict was printed with; raises `msgspec.ValidationError` where it is none."""
    return msgspec.convert(printed, Evidence)


def decide(evidence: Evidence, sample_ratio: SampleRatio | None = None) -> Verdict:
    """Return the verdict that follows from the evidence.

    `sample_ratio` is what the test says of its phases, where that is known: it is the same for every treatment.
    """
    criteria = evidence.criteria
    alpha = split_alpha(criteria.alpha, criteria.treatments)

    def compared(arms: Arms, mde: float, largest: float | None, largest_log_e: float | None = None) -> Comparison:
        pair = arms.control, arms.treatment
        return compare(*pair, alpha=alpha, mde=mde, largest=largest, largest_log_e=largest_log_e)

    other, largest = evidence.other_population, evidence.largest
    findings = _Findings(
        evidence,
        compared(evidence.arms, criteria.mde, largest, evidence.largest_log_e),
        None if other is None else compared(other, criteria.mde, largest),
        tuple(
            watch(each.guardrail, each.arms.control, each.arms.treatment, alpha=alpha) for each in evidence.guardrails
        ),
        tuple((each.name, compared(each.arms, each.mde, each.largest)) for each in evidence.diagnostics),
        sample_ratio
        or sample_ratio_test(
            evidence.phases, alpha=criteria.sample_ratio_alpha, largest_log_e=evidence.largest_sample_ratio_log_e
        ),
    )
    state, reasons = findings.state()
    adjustment = evidence.adjustment
    pair = evidence.arms.control, evidence.arms.treatment
    # Where events are rare the interval is noticeably wider than the variances say, for nobody knows how long.
    variances = [each.variance for each in pair if each.variance is not None]
    rare = len(variances) == len(pair) and unseen_variance(*pair, largest, alpha) > _NOTICEABLE * sum(variances)
    verdict = Verdict(
        state=state,
        reasons=reasons,
        notes=tuple(note for note in findings.notes() if note not in reasons),
        days_to_resolve=None
        if rare
        else days_to_resolve(*pair, evidence.students_per_day, alpha=alpha, mde=criteria.mde),
        primary=findings.primary,
        other_population=findings.other,
        unadjusted=None if adjustment is None else compared(adjustment.unadjusted, criteria.mde, largest),
        guardrails=findings.guardrails,
        diagnostics=findings.diagnostics,
        sample_ratio=findings.ratio,
        evidence=evidence,
    )
    return replace(verdict, notes=(*verdict.notes, *_adjusted(verdict)))


def _adjusted(verdict: Verdict) -> Iterator[Reason]:
    """Yield what was adjusted, and what would be said without it."""
    adjustment, reduction, raw = verdict.evidence.adjustment, verdict.variance_reduction, verdict.unadjusted
    if adjustment is not None and reduction is not None and raw is not None and raw.lower is not None:
        text = (
            f"{verdict.evidence.metric} is adjusted for what {adjustment.students} students were like before the "
            f"experiment, which makes the effect's variance {reduction:.1%} smaller; without it the effect is between "
            f"{raw.lower:+.4g} and {raw.upper:+.4g}"
        )
        yield Reason("adjusted", text)


@dataclass(frozen=True, slots=True)
class _Findings:
    """The statistics of the evidence, and what each of the gates says to them."""

    evidence: Evidence
    primary: Comparison
    other: Comparison | None
    guardrails: tuple[GuardrailResult, ...]
    diagnostics: tuple[tuple[str, Comparison], ...]
    ratio: SampleRatio

    def state(self) -> tuple[State, tuple[Reason, ...]]:
        """Return the first state that applies, and why."""
        lower, upper = self.primary.lower, self.primary.upper
        missing = tuple(self.missing())
        if missing or lower is None or upper is None:
            return "insufficient_data", missing
        if wrong := tuple(self.wrong()):
            return "invalid", wrong
        if harm := tuple(self.harm(upper)):
            return "stop_harm", harm
        return self.outcome(lower, upper)

    def outcome(self, lower: float, upper: float) -> tuple[State, tuple[Reason, ...]]:
        """Return what the primary metric says where nothing forbids to listen to it."""
        margin, mde = self.evidence.criteria.margin, self.evidence.criteria.mde
        bounds = f"{self.evidence.metric}: the effect is between {lower:+.4g} and {upper:+.4g}"
        if lower > -margin:
            gained = (Reason("better", f"{bounds}, so above 0"),) if lower > 0 else ()
            tolerable = (Reason("not_worse", f"{bounds}, so above the tolerable loss of {-margin:+.4g}"),)
            waiting = tuple(self.open_guardrails())
            doubted, disputed = tuple(self.disputes(0.0)), tuple(self.disputes(-margin))
            if gained and not (waiting or doubted):
                return "ship", (*gained, *self.held())
            if not (waiting or disputed):
                return "non_inferior", (*tolerable, *(doubted if gained else ()), *self.held())
            return "continue", (*(gained or tolerable), *waiting, *disputed)
        if upper < mde:
            return "futile", (Reason("too_small", f"{bounds}, so below the smallest of interest, {mde:+.4g}"),)
        needed = "neither a gain nor a tolerable loss is shown, and the effect of interest is still possible"
        return "continue", (Reason("undecided", f"{bounds}: {needed}"),)

    def missing(self) -> Iterator[Reason]:
        """Yield what there is too little of."""
        evidence = self.evidence
        few = min(self.primary.control.units, self.primary.treatment.units) < DECIDING_UNITS
        for name, estimate in ((evidence.control, self.primary.control), (evidence.treatment, self.primary.treatment)):
            if estimate.units < DECIDING_UNITS:
                text = f"{name} has {estimate.units} students whose window is over, of {DECIDING_UNITS} needed"
                yield Reason("few_students", text)
        if evidence.age_days < evidence.criteria.min_days:
            # Never rounded up to the days that are needed.
            days = math.floor(evidence.age_days * 100) / 100
            text = f"{days:g} days of {evidence.criteria.min_days:g} that it has to run"
            yield Reason("young", text)
        if not few and self.primary.difference.information is None:
            yield Reason("no_variation", f"{evidence.metric} does not vary yet, so nothing can be said about it")

    def wrong(self) -> Iterator[Reason]:
        """Yield what makes the data no fair comparison."""
        evidence, criteria, ratio = self.evidence, self.evidence.criteria, self.ratio
        if ratio.mismatch:
            worst = max(ratio.phases, key=lambda phase: phase.log_e)
            split = ", ".join(
                f"{arm.variant} {arm.observed:.2%} for {arm.intended:.2%}"
                for arm in worst.arms
                if arm.observed is not None
            )
            yield Reason("sample_ratio", f"students are not split as intended: {split} (anytime p = {ratio.p:.2g})")
        for variant in ratio.empty:
            yield Reason("empty_variant", f"{variant} has a share, but no student")
        for variant in ratio.stray:
            yield Reason("stray_traffic", f"{variant} has no share, but students were shown it")
        if evidence.crossovers > criteria.crossover_limit * evidence.students:
            share = f"{evidence.crossovers} of {evidence.students} students"
            yield Reason(
                "crossovers", f"{share} saw more than one variant; the limit is {criteria.crossover_limit:.2%}"
            )
        if evidence.lost_events:
            yield Reason("lost_events", f"{evidence.lost_events} events were lost before they were applied")
        if evidence.refused_share is not None and evidence.refused_share > criteria.refused_limit:
            share = f"{evidence.refused_share:.2%} of the newest events were refused"
            text = f"{share}; the limit is {criteria.refused_limit:.2%}"
            yield Reason("refused_events", text)

    def harm(self, upper: float) -> Iterator[Reason]:
        """Yield what is shown to be worse than tolerable."""
        margin = self.evidence.criteria.margin
        if upper < -margin:
            text = f"{self.evidence.metric}: the effect is below {upper:+.4g}; {-margin:+.4g} would be tolerable"
            yield Reason("worse", text)
        for result in self.guardrails:
            if result.state == "crossed" and result.least_harm is not None:
                rail = result.guardrail
                text = f"{rail.name} is worse by at least {result.least_harm:.4g}; {rail.margin:.4g} would be tolerable"
                yield Reason("guardrail_crossed", text)

    def held(self) -> Iterator[Reason]:
        """Yield the guardrails that are shown to be no worse than tolerable."""
        for result in self.guardrails:
            if result.state == "held" and result.most_harm is not None:
                rail = result.guardrail
                text = (
                    f"{rail.name} is worse by {max(result.most_harm, 0.0):.4g} at most, {rail.margin:.4g} is tolerable"
                )
                yield Reason("guardrail_held", text)

    def open_guardrails(self) -> Iterator[Reason]:
        """Yield the guardrails that keep the treatment from going out."""
        for result in self.guardrails:
            if result.state in {"open", "unknown"}:
                rail = result.guardrail
                known = "nothing is known yet" if result.most_harm is None else f"it may be {result.most_harm:.4g}"
                yield Reason(
                    "guardrail_open", f"{rail.name} is not shown to be worse by less than {rail.margin:.4g}: {known}"
                )

    def disputes(self, least: float) -> Iterator[Reason]:
        """Yield why the other population's lower bound has to be above `least`, too, if it has to and is not."""
        difference = self.rated_share_difference()
        if difference is None:
            return
        lower = None if self.other is None else self.other.lower
        if lower is None or lower <= least:
            known = "is not known" if lower is None else f"has a lower bound of {lower:+.4g}"
            text = f"rated shares differ by {difference:+.2%}, and the effect in the other population {known}"
            yield Reason("populations_disagree", f"{text}; it would have to be above {least:+.4g}")

    def rated_share_difference(self) -> float | None:
        """Return the observed difference of the rated shares if it is beyond its margin."""
        arms = self.evidence.rated_share
        if arms is None or arms.control.mean is None or arms.treatment.mean is None:
            return None
        difference = arms.treatment.mean - arms.control.mean
        return difference if abs(difference) > self.evidence.criteria.rated_share_margin else None

    def notes(self) -> Iterator[Reason]:
        """Yield what else the reader should know, whatever the state."""
        yield from self.wrong()
        yield from self.harm(self.primary.upper if self.primary.upper is not None else float("inf"))
        if self.evidence.skipped is not None:
            yield Reason("skipped_events", str(self.evidence.skipped))
        if (difference := self.rated_share_difference()) is not None:
            margin = self.evidence.criteria.rated_share_margin
            text = f"rated shares differ by {difference:+.2%}, more than {margin:.2%}: who rates may have changed"
            yield Reason("rated_share_differs", text)
        effect = self.primary.difference.effect
        for name, comparison in self.diagnostics:
            lower, upper = comparison.lower, comparison.upper
            if effect is None or lower is None or upper is None:
                continue
            if (lower > 0 > effect) or (upper < 0 < effect):
                text = f"{name} moves the other way ({lower:+.4g} to {upper:+.4g}); {self.evidence.metric} decides"
                yield Reason("metrics_disagree", text)
