"""The sequential sample-ratio test: are students split as intended? Watched at every look, and still right.

Against the intended shares p stands a Dirichlet(k·p) over shares; the marginal likelihood of the counts under it, over
their likelihood under p, is an e-process (Lindon & Malek, "Anytime-valid inference for multinomial count data", NeurIPS
2022). The mean of e-values over several k is one again: large k finds small deviations, small k large ones sooner.
Intended shares that change start a new phase with counts of its own; e-values of phases multiply.

The counts are students where they were first exposed, also those who later saw another variant.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from monitor.stats.argument_checks import level, positive
from monitor.stats.sequences import anytime_p, root

CONCENTRATIONS = (10.0, 100.0, 1_000.0, 10_000.0)
_SHARES_AGREE = 1e-6


@dataclass(frozen=True, slots=True)
class Phase:
    """A time of constant intended shares, and the students first exposed in it; both by variant."""

    shares: Mapping[str, float]
    students: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ArmShare:
    """A variant's part of a phase's students, beside the intended one."""

    variant: str
    students: int
    others: int
    """The phase's students in the other variants."""
    intended: float
    alpha: float

    @property
    def observed(self) -> float | None:
        """The share of the phase's students; None without any."""
        total = self.students + self.others
        return self.students / total if total else None

    def bounds(self) -> tuple[float, float]:
        """Return those of the confidence sequence of the true share, at the level of the alarm."""
        if self.intended == 1:
            return 0.0, 1.0
        return share_sequence(self.students, self.others, self.intended, self.alpha)

    def to_json(self) -> dict[str, Any]:
        lower, upper = self.bounds()
        shares = {"intended": self.intended, "observed": self.observed, "lower": lower, "upper": upper}
        return {"variant": self.variant, "students": self.students, **shares}


@dataclass(frozen=True, slots=True)
class PhaseRatio:
    """The evidence of one phase, and how far its shares are off."""

    log_e: float
    students: int
    arms: tuple[ArmShare, ...]
    """Variants with a share."""

    @property
    def deviation(self) -> float:
        """The largest distance of an observed share from the intended one; 0 without students."""
        return max((abs(arm.observed - arm.intended) for arm in self.arms if arm.observed is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class SampleRatio:
    """What the test says about all phases together."""

    alpha: float
    log_e: float
    p: float
    mismatch: bool
    """Whether e has reached 1/alpha at this look or at an earlier one."""
    empty: tuple[str, ...]
    """Variants with a share that had no student in a phase where chance leaves none with probability alpha at most."""
    stray: tuple[str, ...]
    """Variants without a share that were shown to students nevertheless."""
    phases: tuple[PhaseRatio, ...]

    @property
    def alarm(self) -> bool:
        """Whether the split is not the intended one, in whichever way."""
        return self.mismatch or bool(self.empty or self.stray)

    def to_json(self) -> dict[str, Any]:
        return {
            "alpha": self.alpha,
            "log_e": self.log_e,
            "p": self.p,
            "mismatch": self.mismatch,
            "empty": list(self.empty),
            "stray": list(self.stray),
            "phases": [
                {"log_e": each.log_e, "students": each.students, "arms": [arm.to_json() for arm in each.arms]}
                for each in self.phases
            ],
            "alarm": self.alarm,
        }


def log_bayes_factor(counts: Sequence[int], shares: Sequence[float], prior: Sequence[float]) -> float:
    """Return ln e = ln B(a + n) − ln B(a) − Σ n·ln p, for counts n, shares p and a Dirichlet prior a.

    Lindon & Malek 2022; B is the multivariate beta function. By hand: one student in each of two equal arms
    under a = (1, 1): B(2, 2)/B(1, 1) = 1/6 against 1/4.

    >>> round(math.exp(log_bayes_factor([1, 1], [0.5, 0.5], [1, 1])), 12)
    0.666666666667
    """
    posterior = [a + n for a, n in zip(prior, counts, strict=True)]
    null = math.fsum(n * math.log(p) for n, p in zip(counts, shares, strict=True))
    return _log_beta(posterior) - _log_beta(prior) - null


def log_e_value(
    counts: Sequence[int], shares: Sequence[float], concentrations: Sequence[float] = CONCENTRATIONS
) -> float:
    """Return the ln of the mean of e over the concentrations k, with prior k·p; all shares must be above 0."""
    each = [log_bayes_factor(counts, shares, [k * p for p in shares]) for k in concentrations]
    largest = max(each)
    return largest + math.log(math.fsum(math.exp(log_e - largest) for log_e in each) / len(each))


def share_sequence(
    students: int, others: int, share: float, alpha: float, concentrations: Sequence[float] = CONCENTRATIONS
) -> tuple[float, float]:
    """Return the bounds of a variant's true share: every q that the test would not reject at this look.

    These are the q with students·ln q + others·ln(1 − q) ≥ ln(marginal likelihood) + ln α. With two variants the
    intended share is outside exactly when the test alarms.
    """
    level("alpha", alpha)
    level("share", share)
    marginal = log_e_value((students, others), (share, 1 - share), concentrations) + _log_likelihood(
        students, others, share
    )
    threshold = marginal + math.log(alpha)

    peak = students / (students + others) if students + others else share
    lower = root(lambda q: _log_likelihood(students, others, q) - threshold, 0.0, peak) if students else 0.0
    # In terms of what is left of 1, which may be too small to be seen beside it.
    rest = root(lambda q: _log_likelihood(others, students, q) - threshold, 0.0, 1 - peak) if others else 0.0
    return lower, 1 - rest


def sample_ratio_test(
    phases: Sequence[Phase], *, alpha: float = 0.01, largest_log_e: float | None = None
) -> SampleRatio:
    """Return the test's result; `largest_log_e` is that of earlier looks, if kept: an alarm once raised stays.

    A variant with a share p stays empty among n students with probability (1 − p)ⁿ. It alarms where that is below
    `alpha` divided by the number of such variants and phases; being empty can only end, so this, too, may be watched.
    """
    level("alpha", alpha)
    rest = alpha / max(1, sum(len(_intended(phase)) for phase in phases))
    ratios, empty, stray = [], set(), set()
    for phase in phases:
        shares = _intended(phase)
        counts = {variant: phase.students.get(variant, 0) for variant in shares}
        total = sum(counts.values())
        log_e = log_e_value(list(counts.values()), list(shares.values())) if total and len(shares) > 1 else 0.0
        arms = tuple(
            ArmShare(variant, counts[variant], total - counts[variant], share, alpha)
            for variant, share in shares.items()
        )
        ratios.append(PhaseRatio(log_e, total, arms))
        empty |= {arm.variant for arm in arms if not arm.students and (1 - arm.intended) ** total <= rest}
        stray |= {variant for variant, students in phase.students.items() if students and variant not in shares}
    log_e = math.fsum(ratio.log_e for ratio in ratios)
    largest = log_e if largest_log_e is None else max(log_e, largest_log_e)
    return SampleRatio(
        alpha=alpha,
        log_e=log_e,
        p=anytime_p(largest),
        mismatch=largest >= -math.log(alpha),
        empty=tuple(sorted(empty)),
        stray=tuple(sorted(stray)),
        phases=tuple(ratios),
    )


def _intended(phase: Phase) -> dict[str, float]:
    """Return the shares that are not 0, scaled to sum to exactly 1."""
    for variant, share in phase.shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"the share of {variant} is {share!r}, expected 0 to 1")
    total = positive("the sum of shares", math.fsum(phase.shares.values()))
    if abs(total - 1) > _SHARES_AGREE:
        raise ValueError(f"the sum of shares is {total!r}, expected 1")
    return {variant: share / total for variant, share in phase.shares.items() if share > 0}


def _log_beta(parameters: Sequence[float]) -> float:
    return math.fsum(map(math.lgamma, parameters)) - math.lgamma(math.fsum(parameters))


def _log_likelihood(students: int, others: int, share: float) -> float:
    return (students * math.log(share) if students else 0.0) + (others * math.log1p(-share) if others else 0.0)
