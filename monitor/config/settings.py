"""The settings as frozen records.

Durations are milliseconds (`_ms`), instants are milliseconds since the Unix epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

from monitor.errors import UsageError

Gain = Literal["linear", "exp2"]
Discount = Literal["log2", "log2-from-2", "reciprocal"]
Ideal = Literal["shown", "constant"]
Population = Literal["rated", "all"]
Direction = Literal["up", "down"]
Client = Literal["kafka-python", "confluent"]

OTHER = "other"
NONE = "none"
"""Labels of what is in no declared category, and of what has none."""

RATED_SHARE = "rated_share"
LATENCY = "latency_ms"
FEEDBACK = "feedback:"
"""What guardrails may watch besides the experiment's metrics: the last stands before a kind of feedback."""


def is_share(metric: str) -> bool:
    """Return whether what a guardrail watches is a share of responses."""
    return metric == RATED_SHARE or metric.startswith(FEEDBACK)


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    bootstrap_servers: str = "localhost:9092"
    responses_topic: str = "chatbot.responses"
    feedback_topic: str = "student.feedback"
    dead_letter_topic: str = "ab-monitor.dead-letter"
    group_id: str = "ab-monitor"
    group_instance_id: str | None = None
    start: str = "earliest"
    """earliest, latest or an ISO time with an offset; used only where the store holds no position."""
    max_poll_records: int = 4000
    max_drift_ms: int = 4 * 3_600_000
    """How far a partition may be ahead of the slowest in event time while there is a backlog."""
    on_lost_history: Literal["stop", "continue"] = "stop"
    """What to do when Kafka no longer holds the next event to apply."""
    client: Client = "kafka-python"
    """What reads the events; confluent needs the extra `fast`."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str = "redis://localhost:6379/0"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    shards: int | None = None
    """Parts that the store is made of; None for as many as a cluster has masters, or one."""
    user_hash_key: str | None = field(default=None, repr=False)
    """Key of the hash under which user ids are stored; without one, the store makes its own at first use."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    host: str = "127.0.0.1"
    port: int = 9464
    tls_cert_file: str | None = None
    """PEM, the chain included; with it only HTTPS is spoken."""
    tls_key_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """What `Authorization: Bearer` has to bring, but for the health checks; None lets everybody in."""


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """What one event may be, and how many refused ones are bearable."""

    max_payload_bytes: int = 1_048_576
    max_items: int = 1000
    max_id_length: int = 256
    max_clock_skew_ms: int = 300_000
    max_refused_share: float = 0.5
    """of the last `refused_window` events; above it the service stops instead of draining a topic."""
    max_refused_run: int = 1000
    refused_window: int = 10_000


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    min_display_students: int = 1


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """One metric of an experiment, e.g. `dcg@5`."""

    name: str
    measure: Literal["cg", "dcg", "ndcg", "success", "rr", "p"]
    k: int


GradeRule = Literal["score"] | float | tuple[tuple[float, float], ...]
"""How a reaction maps to a grade: its score, a constant, or (threshold, grade) pairs in rising order."""


@dataclass(frozen=True, slots=True)
class DecaySpec:
    """One decay, named as in the file: an exponential half-life (`24h`) or `reciprocal-10d`."""

    name: str
    half_life_ms: int | None
    """None for reciprocal decay."""
    cutoff_ms: int | None = None
    """Age from which a reciprocal weight is 0; None for exponential decay."""


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """Intended shares of students from a moment on; variants that are not named have none."""

    from_ms: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GuardrailSettings:
    """What must not get worse: a metric, `rated_share`, `latency_ms`, or `feedback:` and a kind."""

    metric: str
    bad: Direction
    margin: float
    """Tolerable harm, in the metric's own unit; above 0."""
    worst_ms: float | None = None
    """Of `latency_ms`: the longest that an answer can take, such as the time-out; None if that is not known."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """What a verdict goes by. It is read when a verdict is made; stored sums depend on what is `watched` alone."""

    mde: float | None = None
    """The smallest effect on the primary metric that matters; None for a hundredth of the metric's largest value."""
    margin: float = 0.0
    """The loss on the primary metric that is tolerable."""
    alpha: float = 0.05
    min_days: float = 7.0
    population: Population = "rated"
    allocations: tuple[AllocationSettings, ...] = ()
    """Later shares, by rising time; until the first of them those of the experiment's `variants` hold."""
    guardrails: tuple[GuardrailSettings, ...] = (GuardrailSettings(RATED_SHARE, "down", 0.05),)


@dataclass(frozen=True, slots=True)
class ItemSettings:
    """Which items are counted, and over which time."""

    days: int
    """Horizon."""
    catalogue: frozenset[str] | None = None
    """All items there are; None: whatever is shown. Others are counted together."""
    one_in: int = 1
    """Of so many items one is counted, chosen by its keyed hash."""
    expected_items: int = 10_000
    """Items that are expected: with more of them each takes more bytes."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """What the categories and the items of a day are compared with when they are read: nothing stored depends on it."""

    reference: int | Mapping[str, int] = 7
    """The first days of the experiment, or responses by category."""
    items_reference: int | Mapping[str, int] = 7
    """The first days of the experiment, or how often each item was shown."""
    alpha: float = 0.01
    """How often a day without a change may alarm, all variants together; for categories and for items."""

    @property
    def days(self) -> int:
        """Return the first days of the experiment that something is compared with."""
        return max(given for given in (0, self.reference, self.items_reference) if isinstance(given, int))


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    name: str
    control: str
    variants: Mapping[str, float]
    """Intended share of students by variant, in the file's order; sums to 1 after loading."""
    starts_at_ms: int | None = None
    ends_at_ms: int | None = None
    metrics: tuple[MetricSpec, ...] = ()
    primary: str = "dcg@5"
    gain: Gain | Mapping[float, float] = "linear"
    """A name, or a table grade → gain."""
    discount: Discount = "log2"
    ideal: Ideal = "shown"
    max_grade: float = 4
    relevant_grade: float = 3
    grades: Mapping[str, GradeRule] = field(default_factory=lambda: MappingProxyType({"rating": "score"}))
    feedback_window_ms: int = 86_400_000
    allowed_lateness_ms: int = 7 * 86_400_000
    retention_ms: int = 30 * 86_400_000
    decay: tuple[DecaySpec, ...] = ()
    categories: tuple[str, ...] = ()
    """Values of a response's `category` that are told apart; all others are "other"."""
    drift: DriftSettings = DriftSettings()
    items: ItemSettings | None = None
    """None: items are not counted."""
    exposure_days: int = 3
    """Length in UTC days of a student's closed window, from the day of first exposure."""
    novelty: bool = False
    """Whether the effect is kept by days since a student's first exposure."""
    pre_period_ms: int | None = None
    """How long before `starts_at_ms` responses count to what students were like before; None for not at all."""
    decision: DecisionSettings = DecisionSettings()

    @property
    def watched(self) -> tuple[str, ...]:
        """What guardrails watch that no metric says, sorted: kinds of feedback (with their prefix), then latency.

        These need sums of their own over all responses of a student.
        """
        names = {each.metric for each in self.decision.guardrails}
        return tuple(sorted(name for name in names if name == LATENCY or name.startswith(FEEDBACK)))

    @property
    def feedback_kinds(self) -> frozenset[str]:
        """Kinds of feedback that are graded or watched by a guardrail."""
        watched = {name.removeprefix(FEEDBACK) for name in self.watched if name.startswith(FEEDBACK)}
        return frozenset({*self.grades, *watched})

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments that students belong to, in the order in which they are stored; none if undeclared."""
        return (NONE, *sorted(self.categories), OTHER) if self.categories else ()

    @property
    def horizon_ms(self) -> int:
        """How far behind the watermark a response may lie and still change."""
        return self.feedback_window_ms + self.allowed_lateness_ms


@dataclass(frozen=True, slots=True)
class Settings:
    experiments: tuple[ExperimentSettings, ...]
    kafka: KafkaSettings = KafkaSettings()
    store: StoreSettings = StoreSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    display: DisplaySettings = DisplaySettings()

    def only(self, experiment: str, place: str = "--experiment") -> Settings:
        """Return the settings with just one of the experiments; raises `UsageError`, naming the place, if unknown."""
        chosen = tuple(each for each in self.experiments if each.name == experiment)
        if not chosen:
            known = ", ".join(each.name for each in self.experiments)
            raise UsageError(f"{place}: got {experiment!r}, expected one of {known}")
        return replace(self, experiments=chosen)
