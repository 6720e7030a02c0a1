"""What a verdict follows from: numbers and criteria, printed with it, from which it can be computed again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from monitor.stats.argument_checks import level, not_negative, positive
from monitor.stats.estimates import Estimate
from monitor.stats.guardrails import Guardrail
from monitor.stats.srm import Phase


@dataclass(frozen=True, slots=True)
class Criteria:
    """What was decided before the experiment began; wrong ones raise ValueError."""

    mde: float
    """The smallest effect on the primary metric that the product team cares about, in the metric's own unit."""
    margin: float
    """The loss on the primary metric that is tolerable; 0 tolerates none."""
    alpha: float = 0.05
    """Over all treatments: each gets its equal part."""
    treatments: int = 1
    min_days: float = 7
    rated_share_margin: float = 0.05
    """The difference in rated shares from which both populations have to agree."""
    sample_ratio_alpha: float = 0.01
    crossover_limit: float = 0.01
    """Of students."""
    refused_limit: float = 0.01
    """Of events."""

    def __post_init__(self) -> None:
        positive("mde", self.mde)
        level("alpha", self.alpha)
        level("sample_ratio_alpha", self.sample_ratio_alpha)
        for name in ("margin", "min_days", "rated_share_margin", "crossover_limit", "refused_limit"):
            not_negative(name, getattr(self, name))
        if self.treatments < 1:
            raise ValueError(f"treatments is {self.treatments!r}, expected at least one besides the control")


class Arms(msgspec.Struct, frozen=True):
    """Closed-unit estimates of the two variants that are compared."""

    control: Estimate
    treatment: Estimate


@dataclass(frozen=True, slots=True)
class Watched:
    """A guardrail and what it is about; closed units."""

    guardrail: Guardrail
    arms: Arms


class Diagnostic(msgspec.Struct, frozen=True):
    """A metric that does not decide, such as nDCG; `mde` tunes its band."""

    name: str
    mde: float
    arms: Arms
    largest: float | None = None
    """See `Evidence`."""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """How the estimates of the primary metric were adjusted: see `monitor.stats.cuped`."""

    theta: float
    students: int
    """Of all variants, with a mean from before the experiment and one of now."""
    unadjusted: Arms


@dataclass(frozen=True, slots=True)
class Skipped:
    """Events that workers skipped because their configuration did not have the experiment."""

    responses: int
    reactions: int
    """To responses of before."""
    unnamed: int
    """Responses of experiments that are too many to be counted one by one: this one may be among them."""
    first_ms: int
    last_ms: int

    def __str__(self) -> str:
        """Return what is missing, and how it comes back."""
        counts = ((self.responses, "response"), (self.reactions, "reaction"))
        found = [f"{count:,} {what}{'s' * (count > 1)}" for count, what in counts if count]
        if self.unnamed:
            found.append(f"perhaps some of {self.unnamed:,} responses of experiments that are not counted one by one")
        verb = "was" if self.responses + self.reactions + self.unnamed == 1 else "were"
        return (
            f"{' and '.join(found)} {verb} skipped, dated {_utc(self.first_ms)} to {_utc(self.last_ms)}, because a "
            "worker's configuration did not have the experiment; `ab-monitor rebuild` counts them"
        )


def _utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


@dataclass(frozen=True, slots=True)
class Evidence:
    """One treatment against the control, at one moment."""

    control: str
    treatment: str
    metric: str
    """The primary one; `arms` is about it."""
    criteria: Criteria
    arms: Arms
    age_days: float
    """From the experiment's first event to its newest."""
    students_per_day: tuple[float, float]
    """At which (control, treatment) students' windows close now."""
    phases: tuple[Phase, ...]
    """Allocation phases with students at first exposure."""
    crossovers: int = 0
    students: int = 0
    """Different students, crossovers included."""
    lost_events: int = 0
    refused_share: float | None = None
    """Of the newest events of this experiment's topics; None where nobody has counted."""
    skipped: Skipped | None = None
    other_population: Arms | None = None
    """The primary metric over the other population: all responses where `arms` is about rated ones, or the reverse."""
    rated_share: Arms | None = None
    guardrails: tuple[Watched, ...] = ()
    diagnostics: tuple[Diagnostic, ...] = ()
    largest_log_e: float | None = None
    """Of the primary metric's sequence at earlier looks, if kept; only the printed p depends on it."""
    largest_sample_ratio_log_e: float | None = None
    """Of the sample-ratio test at earlier looks, if kept: an alarm once raised stays."""
    adjustment: Adjustment | None = None
    """What made `arms` and `other_population` from students' own means before the experiment, where there are any."""
    largest: float | None = None
    """The largest value of the primary metric that a student can have; the smallest is 0."""
