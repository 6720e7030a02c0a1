"""The evidence of a verdict: criteria and estimates, printed with the verdict and sufficient to recompute the verdict.

The field names are the keys of the printed JSON, unless a field has a `name` of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from monitor.config import NO_TEXTS, UNIT_FIELDS, DisplayTexts
from monitor.days import UTC_ZONE, day_calendar
from monitor.stats.argument_checks import check_level, check_non_negative, check_positive
from monitor.stats.data_quality import DataQuality
from monitor.stats.estimates import Estimate
from monitor.stats.experiment_history import ExperimentHistory
from monitor.stats.guardrails import Guardrail
from monitor.stats.srm import PhaseCounts


class DecisionCriteria(msgspec.Struct, frozen=True):
    """The criteria that are fixed before the experiment begins; values out of range raise ValueError."""

    mde: float
    """The smallest effect on the primary metric that matters to the product team, in the metric's own unit."""
    margin: float
    """The tolerable loss on the primary metric, in the metric's own unit; 0 tolerates none."""
    alpha: float = 0.05
    """The error rate of all treatments together; each treatment gets an equal part."""
    treatments: int = 1
    min_days: float = 7
    """The minimum number of entry days whose students have complete windows."""
    sample_ratio_alpha: float = 0.01
    """The error rate of each test of who is compared: SRM tests, undefined values, balance of the covariate."""
    crossover_limit: float = 0.01
    """The largest acceptable fraction of students who are crossovers."""
    anonymous_limit: float = 0.01
    """The largest acceptable fraction of units that are responses without a user id."""
    rejected_limit: float = 0.01
    """The largest acceptable fraction of events that are rejected."""

    def __post_init__(self) -> None:
        check_positive("mde", self.mde)
        check_level("alpha", self.alpha)
        check_level("sample_ratio_alpha", self.sample_ratio_alpha)
        for name in ("margin", "min_days", "crossover_limit", "anonymous_limit", "rejected_limit"):
            check_non_negative(name, getattr(self, name))
        if self.treatments < 1:
            raise ValueError(f"treatments is {self.treatments!r}, expected at least one besides the control")


class EstimatePair(msgspec.Struct, frozen=True):
    """The closed estimates of the control and of a treatment."""

    control: Estimate
    treatment: Estimate


@dataclass(frozen=True, slots=True)
class GuardrailEvidence:
    """A guardrail with the closed estimates of the guardrail's metric."""

    guardrail: Guardrail
    arms: EstimatePair


class DiagnosticMetric(msgspec.Struct, frozen=True):
    """The closed estimates of a metric that does not decide; `mde` tunes the interval."""

    name: str
    mde: float
    arms: EstimatePair
    max_value: float | None = msgspec.field(default=None, name="largest")
    """The largest value that a student can have; None if values are unbounded."""
    min_value: float = msgspec.field(default=0.0, name="smallest")
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class CupedAdjustment:
    """The CUPED adjustment of the primary metric: see `monitor.stats.cuped`."""

    theta: float
    students: int
    """Students of all variants with a mean from before the experiment and a mean within it."""
    unadjusted: EstimatePair
    unadjusted_other_population: EstimatePair | None
    covariate: EstimatePair
    """The means from before the experiment: assignment at random makes them equal but for chance."""
    covered_share: EstimatePair
    """The shares of the compared students with a mean from before the experiment, also equal but for chance."""


@dataclass(frozen=True, slots=True)
class SegmentCounts:
    """The students of a segment with complete windows, by allocation phase and variant."""

    name: str
    phases: tuple[PhaseCounts, ...]


@dataclass(frozen=True, slots=True)
class SkippedEventCounts:
    """Events of files that were skipped because the configuration did not contain the experiment."""

    responses: int
    reactions: int
    """Skipped feedback events about responses that were applied earlier."""
    unnamed: int
    """Skipped responses of experiments beyond the limit of separately counted ones; some may be of this experiment."""
    first_ms: int
    """The earliest event time of the skipped events."""
    last_ms: int
    """The latest event time of the skipped events."""

    def __str__(self) -> str:
        """Return a sentence with the counts, the period, the cause and the command that counts the events."""
        counts = ((self.responses, "response"), (self.reactions, "reaction"))
        phrases = [f"{count:,} {noun}{'s' * (count > 1)}" for count, noun in counts if count]
        if self.unnamed:
            phrases.append(f"perhaps some of {self.unnamed:,} responses of experiments that are not counted one by one")
        verb = "was" if self.responses + self.reactions + self.unnamed == 1 else "were"
        return (
            f"{' and '.join(phrases)} {verb} skipped, dated {_utc(self.first_ms)} to {_utc(self.last_ms)}, because "
            "the configuration did not have the experiment. To count them, `ab-monitor replay` all files into another "
            "database"
        )


def _utc(time_ms: int) -> str:
    return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"


class VerdictEvidence(msgspec.Struct, frozen=True):
    """The evidence on a treatment against the control at an event time."""

    def __post_init__(self) -> None:
        day_calendar(self.day_zone)

    @property
    def unit_noun(self) -> str:
        """The noun for a unit in sentences: student or group."""
        return "student" if self.unit == "user" else "group"

    @property
    def unit_field(self) -> str:
        """The field with the id of the unit."""
        return UNIT_FIELDS.get(self.unit, self.unit)

    def students_per_day_with(self, control: Estimate, treatment: Estimate) -> tuple[float, float]:
        """Return (control, treatment) new students per day with a value of another metric than the primary one.

        Their ratio to those with a value of the primary metric, such as rated students, is assumed to stay as it is.
        """
        pairs = zip(self.students_per_day, (control, treatment), (self.arms.control, self.arms.treatment), strict=True)
        control_rate, treatment_rate = (
            rate * estimate.units / primary.units if primary.units else rate for rate, estimate, primary in pairs
        )
        return control_rate, treatment_rate

    @property
    def control_label(self) -> str:
        """The label of the control for readers."""
        return self.texts.variant_label(self.control)

    @property
    def treatment_label(self) -> str:
        """The label of the treatment for readers."""
        return self.texts.variant_label(self.treatment)

    control: str
    """The name of the control variant."""
    treatment: str
    """The name of the treatment variant."""
    metric: str
    """The name of the primary metric."""
    criteria: DecisionCriteria
    arms: EstimatePair
    """Closed estimates of the primary metric, adjusted if `adjustment` is not None."""
    closed_days: int
    """Days of first exposure, from the first one on, whose students have complete windows."""
    students_per_day: tuple[float, float]
    """(control, treatment) students who become closed per day at the current rate."""
    phases: tuple[PhaseCounts, ...]
    """Allocation phases with the numbers of students at first exposure."""
    compared_phases: tuple[PhaseCounts, ...] = ()
    """Allocation phases with the numbers of compared students: those with a value of the primary metric."""
    excluded_phases: tuple[PhaseCounts, ...] = ()
    """Allocation phases with the numbers of students at their first excluded response; empty without a rule."""
    left_out_phases: tuple[PhaseCounts, ...] = ()
    """Allocation phases with the numbers of crossovers among students with complete windows, by first variant."""
    segments: tuple[SegmentCounts, ...] = ()
    exposure_hours: tuple[SegmentCounts, ...] = ()
    """Students by hour of first exposure, instead of a segment; hours without students are left out."""
    day_zone: str = UTC_ZONE
    """The time zone whose dates are the days of the experiment."""
    has_new_students: bool = True
    """Whether students have entered in the last week; otherwise `closed_days` stops growing."""
    unit: str = "user"
    """What the units, which are called students, are: user, group, or the field with the id of the group."""
    anonymous_units: int = 0
    """Responses without the id of the unit; each is a unit."""
    units: int = 0
    """Students with one variant only, and responses without a user id."""
    crossovers: int = 0
    students: int = 0
    """Distinct students, including crossovers; both without those first exposed to another, dropped variant."""
    lost_events: int = 0
    rejected_share: float | None = None
    """Rejected fraction of the newest events of this experiment's topics; None if no events were counted."""
    skipped_events: SkippedEventCounts | None = msgspec.field(default=None, name="skipped")
    data_quality: DataQuality | None = None
    """Missing responses by variant; None if not counted."""
    lower_is_better: bool = False
    """Whether a fall of the primary metric is an improvement, as for latencies."""
    other_population: EstimatePair | None = None
    """The primary metric in the other population: over all responses if `arms` is over rated ones, and vice versa.

    None if every response has a value of the primary metric, so that there is no other population.
    """
    rated_share: EstimatePair | None = None
    """The shares of rated responses; None if every response has a value of the primary metric, rated or not."""
    undefined_share: EstimatePair | None = None
    """Students' shares of rated responses whose primary metric is undefined; None if it is always defined."""
    undefined_as_zero: EstimatePair | None = None
    """The primary metric over rated responses, with undefined values as 0."""
    late_arrivals: EstimatePair | None = None
    """The shares of events that arrived late: over an hour after they happened, or over a longer `closing_delay`.

    None if the records of Kafka have no timestamps.
    """
    live: EstimatePair | None = None
    """Live estimates of the primary metric; None if the intended shares have changed."""
    guardrails: tuple[GuardrailEvidence, ...] = ()
    diagnostics: tuple[DiagnosticMetric, ...] = ()
    largest_log_e: float | None = None
    """The largest ln e of the primary metric at earlier analyses, if the caller has it; used by the p-value only."""
    adjustment: CupedAdjustment | None = None
    """The CUPED adjustment of `arms` and `other_population`; None without students seen before the experiment."""
    max_value: float | None = msgspec.field(default=None, name="largest")
    """The largest value of the primary metric that a student can have; None if unbounded."""
    min_value: float = msgspec.field(default=0.0, name="smallest")
    """The smallest value of the primary metric that a student can have."""
    history: ExperimentHistory = ExperimentHistory()
    """How the experiment was changed while it ran, and which events are missing."""
    first_response_ms: int | None = None
    """The UTC hour of the first response, at its beginning; None without responses. Later changes saw data."""
    texts: DisplayTexts = NO_TEXTS
    """Labels and units of metrics, variants and kinds of feedback for the sentences of the verdict."""
