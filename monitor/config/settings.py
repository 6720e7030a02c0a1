"""The settings as frozen records. Durations are in milliseconds, instants in milliseconds since the Unix epoch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from ipaddress import IPv4Network, IPv6Network
from types import MappingProxyType
from typing import Literal, get_args

from monitor.config.display_texts import NO_TEXTS, DisplayTexts
from monitor.config.paths import Path
from monitor.config.values import parse_choice
from monitor.days import UTC_ZONE, DayCalendar, day_calendar
from monitor.errors import UsageError, setting_text

NamedGain = Literal["linear", "exp2"]
NamedDiscount = Literal["log2", "log2-from-2", "reciprocal"]
NdcgIdeal = Literal["shown", "constant"]
Population = Literal["rated", "all"]
HarmfulDirection = Literal["up", "down"]
KafkaClientName = Literal["kafka-python", "confluent"]
EventType = Literal["response", "feedback"]
WireFormat = Literal["native", "auto", "json", "avro", "protobuf"]
"""Format of the messages of a source; native is the JSON of docs/events.md, without a mapping."""
EnvelopeMode = Literal["auto", "none"]
Tombstones = Literal["ignore", "reject"]
NotifyEvent = Literal["verdict", "harm", "sample_ratio", "silent", "discovered", "backfill", "end"]
"""Kind of the change that a message reports."""
NOTIFY_EVENTS: tuple[NotifyEvent, ...] = get_args(NotifyEvent)
Cast = Literal["text", "number", "truthy", "s", "ms", "us", "ns", "iso"]
FieldValue = str | float | bool
FieldPatterns = Mapping[str, tuple[str, ...]]
"""Field of a response → shell patterns as in `fnmatch`, with case. A response that matches any of them is excluded."""

UNIT_FIELDS: Mapping[str, str] = MappingProxyType({"user": "user_id", "group": "group_id"})
"""Unit of the assignment → field of its id. Any other unit is the name of the field."""
ASSIGNED_FIELDS = ("user_id", "group_id", "category")
"""The fields of every response that rules of exclusion may name; other names are attributes."""

OTHER_CATEGORY = "other"
NO_CATEGORY = "none"
"""Labels of responses of an undeclared category, and of responses without a category."""

RankingMeasure = Literal["cg", "dcg", "ndcg", "success", "rr", "p"]
AnswerMeasure = Literal["share", "score", "sum", "latency_ms", "latency_above_ms", "items_shown", "empty"]
"""Measures of an answer as a whole: of its feedback of a kind, or of the response event."""

SHARE_PREFIX = "share:"
LATENCY_METRIC = "latency_ms"
LATENCY_ABOVE_PREFIX = "latency_above_ms:"
EMPTY_METRIC = "empty"
RATED_SHARE_METRIC = "rated_share"
"""The last one is a guardrail metric only: the share of rated responses."""

RESPONSES_METRIC = "responses_per_student"
RETURN_DAYS_METRIC = "return_days"
SESSIONS_METRIC = "sessions_per_student"
SESSION_RESPONSES_METRIC = "responses_per_session"
PER_STUDENT_PREFIX = "per_student:"
SESSIONS_WITH_PREFIX = "sessions_with:"
"""Student metrics: a student has one value for the exposure window, so they have no value for a response.

A student's responses; the days with responses after the day of first exposure; the sessions; responses per session; the
sum of a metric over the responses; the share of sessions in which a response has a value of the metric above 0.
"""
STUDENT_METRICS = (RESPONSES_METRIC, RETURN_DAYS_METRIC, SESSIONS_METRIC, SESSION_RESPONSES_METRIC)
"""The student metrics without a prefix."""


def is_proportion(metric: str) -> bool:
    """Return whether a metric is a share of responses or sessions, between 0 and 1."""
    return metric in {RATED_SHARE_METRIC, EMPTY_METRIC} or metric.startswith(
        (SHARE_PREFIX, LATENCY_ABOVE_PREFIX, SESSIONS_WITH_PREFIX)
    )


@dataclass(frozen=True, slots=True)
class FieldMapping:
    """Where the value of an event's field is in a message, and how the value is converted."""

    paths: tuple[Path, ...] = ()
    """The first path with a value counts; none for a constant, which is then the default."""
    cast: Cast | None = None
    """None for the conversion that needs no declaration: see `monitor.decoding.mapping`."""
    zone: str | None = None
    """Time zone of ISO times without an offset."""
    values: Mapping[str, FieldValue] = field(default_factory=lambda: MappingProxyType({}))
    """Text of the value in the message → value of the field; `*` stands for every other value."""
    default: FieldValue | None = None
    """The value if no path has a value."""
    is_derived: bool = False
    """Whether the value is a hash of the values at all paths."""


@dataclass(frozen=True, slots=True)
class ItemsMapping:
    """Where the ranked list of a response is in a message; the paths of an item begin at the element of the list."""

    elements: Path
    item_id: FieldMapping
    position: FieldMapping | None = None
    """None: the order of the elements."""
    first_position: int = 1
    """Position of the first item in the messages: 0 or 1."""
    may_be_absent: bool = False
    """Whether a message without the list is a response without items."""


@dataclass(frozen=True, slots=True)
class MessageFilter:
    """A condition on a message, or on an element of `SourceSettings.elements`."""

    path: Path
    values: frozenset[str] | None
    """Texts of the values that pass; None if every value but null passes."""


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Topics with events of one type, and how a message becomes events (`[[kafka.sources]]`)."""

    topics: tuple[str, ...]
    event_type: EventType
    wire_format: WireFormat = "auto"
    envelope: EnvelopeMode = "auto"
    """Whether the envelopes of CloudEvents, Debezium and Kafka Connect are removed."""
    avro_schema_file: str | None = None
    """Schema of Avro messages without a schema registry."""
    filters: tuple[MessageFilter, ...] = ()
    """Messages that do not pass all filters are ignored."""
    tombstones: Tombstones | None = None
    """None for `KafkaSettings.tombstones`."""
    elements: Path | None = None
    """A list whose elements are events; None if a message is one event."""
    fields: Mapping[str, FieldMapping] = field(default_factory=lambda: MappingProxyType({}))
    """Field of the event → mapping; empty for the native format."""
    items: ItemsMapping | None = None
    """None for feedback, and for the native format."""
    attributes: Mapping[str, FieldMapping] | None = None
    """Attribute of a response → mapping; None if the name of an attribute is its path."""
    exclude: FieldPatterns = field(default_factory=lambda: MappingProxyType({}))
    """Rules by which responses of the source are excluded from every experiment."""


@dataclass(frozen=True, slots=True)
class KafkaSettings:
    bootstrap_servers: str = "localhost:9092"
    responses_topic: str = "chatbot.responses"
    feedback_topic: str = "student.feedback"
    """The topics of the native format; not used if there are `sources`."""
    dead_letter_topic: str = "ab-monitor.dead-letter"
    group_id: str = "ab-monitor"
    group_instance_id: str | None = None
    start: str = "earliest"
    """earliest, latest or an ISO 8601 time with a UTC offset; for partitions without a stored Kafka offset."""
    max_poll_records: int = 4000
    max_watermark_skew_ms: int = 4 * 3_600_000
    """While there is a backlog, a partition this far ahead of the slowest partition in event time is paused."""
    on_lost_history: Literal["stop", "continue"] = "stop"
    """Whether to stop or to continue when Kafka has deleted events that were not applied yet."""
    client: KafkaClientName = "kafka-python"
    """The Kafka client that reads events; confluent needs the extra `fast`."""
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    ssl_key_password: str | None = field(default=None, repr=False)
    ssl_check_hostname: bool = True
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_username: str | None = None
    sasl_password: str | None = field(default=None, repr=False)
    sources: tuple[SourceSettings, ...] = ()
    tombstones: Tombstones = "ignore"
    """What becomes of records without a value: deletions in compacted topics."""

    @property
    def event_sources(self) -> tuple[SourceSettings, ...]:
        """The declared sources, or the sources of the two native topics."""
        sources = self.sources or (
            SourceSettings((self.responses_topic,), "response", "native"),
            SourceSettings((self.feedback_topic,), "feedback", "native"),
        )
        return tuple(replace(source, tombstones=source.tombstones or self.tombstones) for source in sources)

    @property
    def topics(self) -> tuple[str, ...]:
        """All topics with events, those with responses first."""
        return tuple(dict.fromkeys((*self.topics_of("response"), *self.topics_of("feedback"))))

    def topics_of(self, event_type: EventType) -> tuple[str, ...]:
        """Return the topics with events of a type."""
        return tuple(
            dict.fromkeys(
                topic for source in self.event_sources if source.event_type == event_type for topic in source.topics
            )
        )

    def topic_key(self, topic: str) -> str:
        """Return the key that names a topic, for messages about settings."""
        if topic == self.dead_letter_topic:
            return "kafka.dead_letter_topic"
        if not self.sources:
            return "kafka.responses_topic" if topic == self.responses_topic else "kafka.feedback_topic"
        index = next(index for index, source in enumerate(self.sources) if topic in source.topics)
        return f"kafka.sources[{index}].topics"

    @property
    def topic_labels(self) -> Mapping[str, str]:
        """Name by event type under which outcomes are counted; several topics are joined by commas."""
        return {"response": ",".join(self.topics_of("response")), "feedback": ",".join(self.topics_of("feedback"))}

    def topic_label(self, topic: str) -> str:
        """Return the name under which the records of a topic are counted: see `topic_labels`."""
        is_feedback = topic in self.topics_of("feedback") and topic not in self.topics_of("response")
        return self.topic_labels["feedback" if is_feedback else "response"]


@dataclass(frozen=True, slots=True)
class SchemaRegistrySettings:
    url: str | None = None
    """Address of the registry, or several separated by commas; None for no registry."""
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """Token for `Authorization: Bearer`."""
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None


@dataclass(frozen=True, slots=True)
class StoreSettings:
    url: str = "redis://localhost:6379/0"
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ssl_ca_file: str | None = None
    ssl_cert_file: str | None = None
    ssl_key_file: str | None = None
    shards: int | None = None
    """Number of shards of the store; None for the number of masters of a cluster, or one."""
    user_hash_key: str | None = field(default=None, repr=False)
    """Key of the hash of user ids; None for a random key that is created with the store."""


@dataclass(frozen=True, slots=True)
class HttpSettings:
    host: str = "127.0.0.1"
    port: int = 9464
    tls_cert_file: str | None = None
    """PEM file with the certificate chain; None for plain HTTP."""
    tls_key_file: str | None = None
    token: str | None = field(default=None, repr=False)
    """Token that `Authorization: Bearer` must contain, except for health checks; None for no authentication."""
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...] = ()
    """Addresses of reverse proxies that sign users in; empty without single sign-on."""
    user_header: str | None = None
    """Header in which a trusted proxy names the signed-in user; None without single sign-on."""
    proxy_secret: str | None = field(default=None, repr=False)
    """Text that a trusted proxy sends with each request; None: the address of the proxy is enough."""
    share_secret: str | None = field(default=None, repr=False)
    """Key of the signatures of share links; None: there are no share links."""
    public_url: str | None = None
    """Address at which readers reach the service, without a path; None for the address on which it listens."""

    @property
    def is_open(self) -> bool:
        """Whether everybody who reaches the port may read everything."""
        return self.token is None and not self.trusted_proxies

    @property
    def url(self) -> str:
        """The address of the service for its readers, with a slash at the end."""
        if self.public_url is not None:
            return f"{self.public_url}/"
        scheme = "https" if self.tls_cert_file else "http"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{scheme}://{host}:{self.port}/"


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """Limits of a single event, and of the number of rejected events."""

    max_payload_bytes: int = 1_048_576
    max_items: int = 1000
    max_id_length: int = 256
    max_clock_skew_ms: int = 300_000
    oldest_timestamp_ms: int = 1_000_000_000_000
    """The oldest event time that is accepted; the default is the first with 13 digits, of September 2001."""
    placeholder_ids: frozenset[str] = frozenset(
        {"", "-", "0", "anonymous", "n/a", "nan", "none", "null", "undefined", "unknown"}
    )
    """Texts in lower case that clients send instead of an id that they do not have."""
    repeated_items: Literal["first", "reject"] = "first"
    """If a response has an item more than once: keep the item's smallest position, or reject the response."""
    max_rejected_share: float = 0.5
    """Largest share of rejected events among about the last `rejection_window` events of a partition."""
    max_consecutive_rejected: int = 1000
    rejection_window: int = 10_000


@dataclass(frozen=True, slots=True)
class DisplaySettings:
    min_display_students: int = 1
    """Number of students below which the page, Prometheus and reports leave out means, effects and drift."""
    grafana_url: str | None = None
    """Address of a Grafana with the boards of AB Monitor, without a slash at the end; None for no links."""


@dataclass(frozen=True, slots=True)
class DiscoverSettings:
    """Which undeclared experiments are recorded by name, and which are adopted automatically.

    Patterns are shell patterns as in `fnmatch`, with case; a name has to match one of them.
    """

    names: tuple[str, ...] = ("*",)
    """Patterns of the names that are recorded; responses of other undeclared experiments are only counted."""
    limit: int = 100
    """Largest number of experiments that are recorded by name."""
    auto_adopt: tuple[str, ...] = ()
    """Patterns of the names of the experiments that are adopted automatically."""
    auto_adopt_limit: int = 10
    """Largest number of experiments that are adopted automatically, over the life of a store."""

    def records(self, experiment: str) -> bool:
        """Return whether an undeclared experiment is recorded by name."""
        return any(fnmatchcase(experiment, pattern) for pattern in self.names)

    def adopts(self, experiment: str) -> bool:
        """Return whether an undeclared experiment may be adopted automatically."""
        return any(fnmatchcase(experiment, pattern) for pattern in self.auto_adopt)


@dataclass(frozen=True, slots=True)
class NotifySettings:
    """A channel: an address of Apprise, or a webhook with the secret that signs its requests."""

    name: str
    """Unique; in logs and metrics instead of the address, which may contain a secret."""
    url: str | None = field(default=None, repr=False)
    """Address of Apprise; None for a webhook."""
    webhook: str | None = field(default=None, repr=False)
    """Address of a webhook; None for an address of Apprise."""
    secret: str | None = field(default=None, repr=False)
    """Secret of Standard Webhooks; None for an address of Apprise."""
    events: tuple[NotifyEvent, ...] = NOTIFY_EVENTS
    experiments: tuple[str, ...] = ("*",)
    """Shell patterns as in `fnmatch`, with case."""

    def receives(self, event: str, experiment: str) -> bool:
        """Return whether a message about an event of an experiment is sent to the channel."""
        return event in self.events and any(fnmatchcase(experiment, pattern) for pattern in self.experiments)


@dataclass(frozen=True, slots=True)
class MetricSpec:
    """A metric of an experiment: of the ranking, such as `dcg@5`, or of the answer as a whole, such as `share:liked`.

    A ranking metric has a value for each rated response. An answer metric has a value for each response, unless the
    response has no reaction of the kind (`score`, without `silence`) or no latency.
    """

    name: str
    measure: RankingMeasure | AnswerMeasure
    k: int = 0
    """Of a ranking metric: the number of ranks that count."""
    kind: str = ""
    """Of `share`, `score` and `sum`: the kind of feedback."""
    threshold: float = 0.0
    """The smallest score that counts (`share`), or the latency in ms above which a response is slow."""
    least: float = 0.0
    most: float = 1.0
    """The range of an answer metric's values. Values above it are capped, except for scores, which are not counted."""
    silence: float | None = None
    """Of `score`: the value of a response without the reaction; None: the response has no value."""
    lower_is_better: bool = False
    is_guardrail_only: bool = False
    """Whether only a guardrail names the metric."""

    @property
    def is_ranking(self) -> bool:
        """Whether the metric is computed from the grades of ranked items."""
        return self.measure in get_args(RankingMeasure)

    @property
    def stored_unit(self) -> float:
        """The unit of stored values: 1024 ms for latencies, which are exact and do not overflow a student's sums."""
        return 1024.0 if self.measure == "latency_ms" else 1.0

    @property
    def may_be_silent(self) -> bool:
        """Whether responses without a reaction of the kind have no value."""
        return self.measure == "score" and self.silence is None

    @property
    def is_capped(self) -> bool:
        """Whether a value above the range counts as the largest value of the range."""
        return self.measure in {"sum", "latency_ms", "items_shown"}

    @property
    def depends_on_feedback(self) -> bool:
        """Whether the value depends on the reactions to the response."""
        return self.is_ranking or bool(self.kind)


GradeRule = Literal["score"] | float | tuple[tuple[float, float], ...]
"""How a reaction becomes a grade: its score, a constant, or (threshold, grade) pairs by ascending threshold."""


@dataclass(frozen=True, slots=True)
class DecaySpec:
    """A decay, named as in the settings: an exponential half-life (`24h`) or `reciprocal-10d`."""

    name: str
    half_life_ms: int | None
    """None for reciprocal decay."""
    cutoff_ms: int | None = None
    """Age from which a reciprocal weight is 0; None for exponential decay."""


@dataclass(frozen=True, slots=True)
class AllocationSettings:
    """Intended shares of students from an instant on; variants without a share get no students."""

    from_ms: int
    shares: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class GuardrailSettings:
    """A metric that must not get worse: one of the experiment, or a guardrail metric named above."""

    metric: str
    harmful_direction: HarmfulDirection
    margin: float
    """Tolerable harm, in the metric's own unit, or as a fraction of the control's mean; above 0."""
    timeout_ms: float | None = None
    """For `latency_ms`: the latency at which the client gives up a response; None if unknown."""
    is_relative: bool = False
    """Whether `margin` is a fraction of the control's mean (the key `relative_margin`)."""


@dataclass(frozen=True, slots=True)
class DecisionSettings:
    """The criteria of verdicts. Stored sums depend only on the metrics that the guardrails need."""

    mde: float | None = None
    """The smallest effect on the primary metric that matters; None for a hundredth of the metric's largest value."""
    margin: float = 0.0
    """The tolerable loss on the primary metric."""
    alpha: float = 0.05
    min_days: float = 7.0
    population: Population = "rated"
    allocations: tuple[AllocationSettings, ...] = ()
    """Later shares by ascending time; the shares of `ExperimentSettings.variants` apply until the first of these."""
    guardrails: tuple[GuardrailSettings, ...] = (GuardrailSettings(RATED_SHARE_METRIC, "down", 0.1, is_relative=True),)


@dataclass(frozen=True, slots=True)
class ItemSettings:
    """Which items are counted, and over how many days."""

    horizon_days: int
    """Days up to the newest response whose counts are kept."""
    catalogue: frozenset[str] | None = None
    """Ids of the items that are counted separately; None for all shown items. Other items are counted together."""
    sample_one_in: int = 1
    """One of `sample_one_in` items is counted; the item's keyed hash selects the sample."""
    expected_items: int = 10_000
    """Expected number of items; with more items, each takes more bytes of the store."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """The references of the drift tests of categories and of items. Stored sums do not depend on the references."""

    reference: int | Mapping[str, int] = 7
    """Number of first days of the experiment, or responses by category."""
    items_reference: int | Mapping[str, int] = 7
    """Number of first days of the experiment, or number of times that each item was shown."""
    alpha: float = 0.01
    """Share of days without a change on which a test alarms, over all variants; the same for categories and items."""

    @property
    def reference_days(self) -> int:
        """The number of first days of the experiment that are part of a reference."""
        references = (0, self.reference, self.items_reference)
        return max(reference for reference in references if isinstance(reference, int))


@dataclass(frozen=True, slots=True)
class ExperimentSettings:
    name: str
    control: str
    variants: Mapping[str, float]
    """Intended share of students by variant, in the order of the settings; the sum is 1 after loading."""
    unit: str = "user"
    """The unit that is assigned to a variant: a student (user), or a group of students such as a class.

    A group has the field `group_id` (group), or the field that the unit names. With groups, every sum over students is
    over groups.
    """
    exclude: FieldPatterns = field(default_factory=lambda: MappingProxyType({}))
    """Rules by which responses are excluded: they are counted, but not compared."""
    starts_at_ms: int | None = None
    ends_at_ms: int | None = None
    metrics: tuple[MetricSpec, ...] = ()
    """In stored order: ranking metrics, then answer metrics, then answer metrics that only guardrails name."""
    primary: str = "dcg@5"
    gain: NamedGain | Mapping[float, float] = "linear"
    """A name, or a table grade → gain."""
    discount: NamedDiscount = "log2"
    ideal: NdcgIdeal = "shown"
    max_grade: float = 4
    relevant_grade: float = 3
    grades: Mapping[str, GradeRule] = field(default_factory=lambda: MappingProxyType({"rating": "score"}))
    student_metrics: tuple[str, ...] = ()
    """The student metrics of the settings and of the guardrails, sorted."""
    exclusive_kinds: tuple[tuple[str, ...], ...] = ()
    """Groups of kinds of feedback that replace each other, such as a thumb up and a thumb down."""
    additive_kinds: tuple[str, ...] = ()
    """Kinds whose reactions add up, instead of replacing the student's earlier reaction about the same item."""
    feedback_window_ms: int = 86_400_000
    closing_delay_ms: int = 0
    """How long after the feedback window a cohort is closed, so that late feedback has arrived."""
    feedback_clock_tolerance_ms: int = 5000
    """How far feedback may be before its response, because their times are from two clocks."""
    allowed_lateness_ms: int = 7 * 86_400_000
    retention_ms: int = 30 * 86_400_000
    decay: tuple[DecaySpec, ...] = ()
    categories: tuple[str, ...] = ()
    """Values of a response's `category` that are counted separately; all others are "other"."""
    drift: DriftSettings = DriftSettings()
    items: ItemSettings | None = None
    """None: items are not counted."""
    day_zone: str = UTC_ZONE
    """The time zone whose dates are the days of the experiment."""
    exposure_days: int = 3
    """Length of a student's exposure window in days of the experiment, including the day of first exposure."""
    novelty: bool = False
    """Whether effects by days since first exposure are computed."""
    pre_period_ms: int | None = None
    """Length of the pre-period for CUPED, which ends at `starts_at_ms`; None for no pre-period."""
    decision: DecisionSettings = DecisionSettings()
    owner: str = ""
    hypothesis: str = ""
    link: str = ""
    """An http or https address with more about the experiment."""
    texts: DisplayTexts = NO_TEXTS
    """Labels, units and descriptions for readers."""

    def intended_shares(self, at_ms: int) -> Mapping[str, float]:
        """Return variant → intended share of the students at a time; variants without a share may be absent."""
        past_shares = [allocation.shares for allocation in self.decision.allocations if allocation.from_ms <= at_ms]
        return past_shares[-1] if past_shares else self.variants

    @property
    def ranking_metrics(self) -> tuple[MetricSpec, ...]:
        """The metrics that are computed from the grades of ranked items; the first of `metrics`."""
        return tuple(metric for metric in self.metrics if metric.is_ranking)

    @property
    def unit_field(self) -> str:
        """The field with the id of the unit."""
        return UNIT_FIELDS.get(self.unit, self.unit)

    @property
    def attributes(self) -> frozenset[str]:
        """The attributes of a response that the experiment needs."""
        return frozenset({self.unit_field, *self.exclude}).difference(ASSIGNED_FIELDS)

    @property
    def answer_metrics(self) -> tuple[MetricSpec, ...]:
        """The metrics of an answer as a whole; the last of `metrics`."""
        return tuple(metric for metric in self.metrics if not metric.is_ranking)

    def find_metric(self, name: str) -> MetricSpec:
        """Return the metric with a name; raises KeyError for another name."""
        return {metric.name: metric for metric in self.metrics}[name]

    def is_lower_better(self, metric: str) -> bool:
        """Return whether a fall of a metric is an improvement; a student metric is like the metric in its name."""
        name = metric.removeprefix(PER_STUDENT_PREFIX).removeprefix(SESSIONS_WITH_PREFIX)
        return any(each.lower_is_better for each in self.metrics if each.name == name)

    def population_of(self, metric: str) -> Population:
        """Return the population over which a metric is judged; an answer metric is over the responses with a value."""
        return self.decision.population if self.find_metric(metric).is_ranking else "rated"

    @property
    def other_population(self) -> Population | None:
        """The population in which the primary metric is checked, too; None if every response has a value."""
        if self.find_metric(self.primary).is_ranking:
            return "all" if self.decision.population == "rated" else "rated"
        return "all" if self.find_metric(self.primary).may_be_silent else None

    @property
    def uses_sessions(self) -> bool:
        """Whether a student metric needs the sessions of responses."""
        return any("session" in name.partition(":")[0] for name in self.student_metrics)

    @property
    def primary_may_be_undefined(self) -> bool:
        """Whether the primary metric of a rated response can be undefined: nDCG without any gain."""
        return self.primary.startswith("ndcg")

    @property
    def answer_kinds(self) -> frozenset[str]:
        """Kinds of feedback that an answer metric needs, and the kinds that replace them."""
        kinds = {metric.kind for metric in self.metrics if metric.kind}
        groups = (group for group in self.exclusive_kinds if not kinds.isdisjoint(group))
        return frozenset(kinds.union(*groups))

    @property
    def feedback_kinds(self) -> frozenset[str]:
        """Kinds of feedback that are graded, or on which an answer metric depends."""
        return frozenset({*self.grades, *self.answer_kinds})

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments of students, in stored order; none without declared categories."""
        return (NO_CATEGORY, *sorted(self.categories), OTHER_CATEGORY) if self.categories else ()

    @property
    def calendar(self) -> DayCalendar:
        """The days of the experiment."""
        return day_calendar(self.day_zone)

    @property
    def closing_ms(self) -> int:
        """The time in ms from the end of a cohort's exposure window until the cohort is closed."""
        return self.feedback_window_ms + self.closing_delay_ms

    @property
    def horizon_ms(self) -> int:
        """The largest time in ms by which a response may be behind the watermark and still change."""
        return self.feedback_window_ms + self.allowed_lateness_ms


@dataclass(frozen=True, slots=True)
class Settings:
    experiments: tuple[ExperimentSettings, ...]
    kafka: KafkaSettings = KafkaSettings()
    schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
    store: StoreSettings = StoreSettings()
    http: HttpSettings = HttpSettings()
    limits: LimitSettings = LimitSettings()
    display: DisplaySettings = DisplaySettings()
    discover: DiscoverSettings = DiscoverSettings()
    notify: tuple[NotifySettings, ...] = ()
    deselected_experiments: frozenset[str] = frozenset()
    """Names of the experiments of the file that the command leaves out."""

    @property
    def attributes(self) -> tuple[str, ...]:
        """The attributes of responses that an experiment or a source needs, sorted."""
        excluded_fields = (field for source in self.kafka.sources for field in source.exclude)
        names = {*excluded_fields, *(name for experiment in self.experiments for name in experiment.attributes)}
        return tuple(sorted(names.difference(ASSIGNED_FIELDS)))

    def excludes_responses(self, experiment: ExperimentSettings) -> bool:
        """Return whether responses of an experiment may be excluded, by its own rules or by those of a source."""
        return bool(experiment.exclude) or any(source.exclude for source in self.kafka.sources)

    def select_experiment(self, name: str, argument: str = "--experiment") -> Settings:
        """Return the settings with a single experiment; raises `UsageError` with `argument` for an unknown name."""
        if not self.experiments:
            raise UsageError(
                f"{argument}: got {setting_text(name)}, and no experiment is declared yet. Declare experiments in the "
                "configuration file, or with `ab-monitor experiments add FILE`"
            )
        selected = tuple(experiment for experiment in self.experiments if experiment.name == name)
        if not selected:
            parse_choice(argument, name, [experiment.name for experiment in self.experiments])
        names = frozenset(experiment.name for experiment in self.experiments)
        return replace(self, experiments=selected, deselected_experiments=names - {name})
