"""The report on a sample of records: what the sources make of the records, and whether feedback finds its responses."""

from __future__ import annotations

import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Protocol

from monitor.config import ExperimentSettings, FieldMapping, Settings, SourceSettings, event_fields, similar_name
from monitor.decoding.mapping import MessageContext
from monitor.decoding.record_decoder import Record, RecordDecoder
from monitor.decoding.record_trace import RecordTrace, RecordTracer, Rejection
from monitor.decoding.suggestions import suggest_fields
from monitor.events import Feedback, Response

_DIGITS: Final = re.compile(r"\d+")
_MAX_MESSAGES: Final = 500
"""Number of messages of a source that suggestions are made from."""
_MIN_FILLED_SHARE: Final = 0.5
"""Share of events below which another path is suggested for a required field."""


class SampledRecord(Record, Protocol):
    """A record with its topic and partition, such as kafka-python's `ConsumerRecord`."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Spread:
    """Least, median and greatest of some times in ms."""

    least_ms: float
    median_ms: float
    greatest_ms: float

    @classmethod
    def of(cls, times_ms: Sequence[float]) -> Spread | None:
        """Return the spread; None without times."""
        return cls(min(times_ms), median(times_ms), max(times_ms)) if times_ms else None


@dataclass(slots=True)
class SourceSample:
    """The sampled records of one source."""

    key: str
    """Key of the source in the configuration."""
    settings: SourceSettings
    records: int = 0
    events: int = 0
    accepted: int = 0
    """Records with events."""
    framings: Counter[str] = field(default_factory=Counter)
    headers: Counter[str] = field(default_factory=Counter)
    ignored: Counter[str] = field(default_factory=Counter)
    rejections: Counter[tuple[str, str, str, str]] = field(default_factory=Counter)
    """(reason, path, shape, detail) → records; numbers differ within a group, the first of them is shown."""
    mapped: int = 0
    """Messages or elements whose fields were read."""
    filled: Counter[str] = field(default_factory=Counter)
    """Field → messages or elements with a value."""
    origins: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(field, path of the value) → messages or elements."""
    clock_differences_ms: list[float] = field(default_factory=list)
    """Event time minus Kafka's time of the record."""
    messages: list[MessageContext] = field(default_factory=list)
    _rejection_groups: dict[tuple[str, str, str, str], tuple[str, str, str, str]] = field(default_factory=dict)

    @property
    def rejected(self) -> int:
        """Number of rejected records."""
        return self.rejections.total()

    @property
    def rejected_share(self) -> float:
        """Share of rejected records among those that are not ignored."""
        return self.rejected / max(1, self.rejected + self.accepted)

    def count(self, record: SampledRecord, trace: RecordTrace) -> None:
        """Count a record."""
        self.records += 1
        self.framings[trace.framing] += 1
        self.headers.update({name for name, _ in record.headers})
        if trace.ignored_reason is not None:
            self.ignored[_ignored_text(trace)] += 1
            return
        if trace.message is not None and len(self.messages) < _MAX_MESSAGES:
            self.messages.append(trace.message)
        for origins in trace.origins:
            self.mapped += 1
            for name, path in origins.items():
                if path is not None:
                    self.filled[name] += 1
                    self.origins[name, path] += 1
        if trace.rejection is not None:
            self._count_rejection(trace.rejection)
            return
        self.accepted += 1
        self.events += len(trace.events)
        if record.timestamp is not None and record.timestamp >= 0:
            self.clock_differences_ms += [event.timestamp_ms - record.timestamp for event in trace.events]

    def _count_rejection(self, rejection: Rejection) -> None:
        group = (rejection.reason, rejection.path or "", rejection.shape, rejection.detail)
        normalized = (group[0], group[1], _DIGITS.sub("", group[2]), _DIGITS.sub("", group[3]))
        self.rejections[self._rejection_groups.setdefault(normalized, group)] += 1

    def empty_optional_fields(self) -> list[str]:
        """Return the optional fields with a mapping that found no value in the sample."""
        _, optional = event_fields(self.settings.event_type)
        return [name for name in optional if name in self.settings.fields and not self.filled[name]]

    def suggest(self) -> Mapping[str, str]:
        """Return field → TOML for required fields that mostly have no value or a rejected one; optional ones, too."""
        required, optional = event_fields(self.settings.event_type)
        rejected_fields = Counter[str]()
        for (_, _, _, detail), count in self.rejections.items():
            rejected_fields[re.split(r"[:\[]", detail)[0]] += count
        needed = {
            name
            for name in required
            if self.filled[name] < _MIN_FILLED_SHARE * self.mapped
            or rejected_fields[name] > _MIN_FILLED_SHARE * self.records
        }
        unmapped = {name for name in optional if not self.filled[name]}
        if not needed and not self.empty_optional_fields():
            return {}
        suggestions = suggest_fields(self.settings.event_type, self.messages)
        if self.settings.wire_format == "native":
            return suggestions
        return {
            name: text
            for name, text in suggestions.items()
            if name in needed | unmapped and not _is_same(self.settings.fields.get(name), text)
        }


def _is_same(mapping: FieldMapping | None, text: str) -> bool:
    """Return whether a suggestion is the present mapping of a field."""
    if mapping is None:
        return False
    suggestion = tomllib.loads(f"field = {text}")["field"]
    path, cast = (suggestion.get("from"), suggestion.get("as")) if isinstance(suggestion, dict) else (suggestion, None)
    present_cast = mapping.cast if mapping.zone is None else f"iso:{mapping.zone}"
    return cast == present_cast and path in [present_path.text for present_path in mapping.paths]


def _ignored_text(trace: RecordTrace) -> str:
    if trace.failed_filter is not None:
        return f"filter on {trace.failed_filter}"
    return {"tombstone": "no value (tombstone)", "no_elements": "no element in each", "filtered": "filter"}[
        trace.ignored_reason or "filtered"
    ]


@dataclass(slots=True)
class SampleReport:
    """What all sources make of a sample."""

    sources: list[SourceSample]
    arms: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(experiment, variant) → responses."""
    kinds: Counter[str] = field(default_factory=Counter)
    """Kind → feedback."""
    scores: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Kind → least and greatest score."""
    matched: int = 0
    """Feedback whose response is in the sample."""
    item_feedback: int = 0
    """Matched feedback about an item."""
    listed_item_feedback: int = 0
    """Matched feedback about an item of its response."""
    elsewhere: int = 0
    """Matched feedback in a partition with another number than that of its response."""
    delays_ms: list[float] = field(default_factory=list)
    """Time of matched feedback minus the time of its response."""
    id_lengths: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Event type → least and greatest number of characters of response_id."""
    users: int = 0
    shared_users: int = 0
    """Users with both responses and feedback."""
    scattered_users: int = 0
    """Of `shared_users`: those with records in partitions of different numbers."""
    divided: int = 0
    """Records that one source accepts and another source of the topic rejects, so that the service rejects them."""
    without_user: int = 0
    """Events without a user_id."""

    @property
    def feedback(self) -> int:
        """Number of feedback events."""
        return self.kinds.total()

    def sources_above(self, max_rejected_share: float) -> list[SourceSample]:
        """Return the sources of whose records a greater share is rejected."""
        return [source for source in self.sources if source.rejected_share > max_rejected_share]


def build_sample_report(
    settings: Settings, decoder: RecordDecoder, records: Iterable[SampledRecord], now_ms: int
) -> SampleReport:
    """Return the report on a sample; raises `DependencyUnavailable` if the schema registry does not answer."""
    tracers = [RecordTracer(source, decoder) for source in decoder.sources]
    samples = [
        SourceSample(
            f"kafka.sources[{index}]" if settings.kafka.sources else f"native {source.settings.event_type}",
            source.settings,
        )
        for index, source in enumerate(decoder.sources)
    ]
    report = SampleReport(samples)
    events: list[tuple[Response | Feedback, int]] = []
    for record in records:
        traces = []
        for sample, tracer in zip(samples, tracers, strict=True):
            if record.topic in sample.settings.topics:
                trace = tracer.trace(record, record.topic, f"{record.topic}:{record.partition}", now_ms)
                sample.count(record, trace)
                traces.append(trace)
        if all(trace.rejection is None for trace in traces):
            events += [(event, record.partition) for trace in traces for event in trace.events]
        elif any(trace.events for trace in traces):
            report.divided += 1
    _match_feedback(report, events)
    _compare_partitions(report, events)
    return report


def _match_feedback(report: SampleReport, events: Sequence[tuple[Response | Feedback, int]]) -> None:
    responses = {event.response_id: (event, partition) for event, partition in events if isinstance(event, Response)}
    lengths: defaultdict[str, set[int]] = defaultdict(set)
    for event, partition in events:
        if isinstance(event, Response):
            report.arms[event.experiment, event.variant] += 1
            lengths["response"].add(len(event.response_id))
            continue
        report.kinds[event.kind] += 1
        least, greatest = report.scores.get(event.kind, (event.score, event.score))
        report.scores[event.kind] = min(least, event.score), max(greatest, event.score)
        lengths["feedback"].add(len(event.response_id))
        if event.response_id not in responses:
            continue
        response, response_partition = responses[event.response_id]
        report.matched += 1
        report.elsewhere += partition != response_partition
        report.delays_ms.append(event.timestamp_ms - response.timestamp_ms)
        if event.item_id is not None:
            report.item_feedback += 1
            report.listed_item_feedback += event.item_id in response.items
    report.id_lengths = {event_type: (min(numbers), max(numbers)) for event_type, numbers in lengths.items()}


def _compare_partitions(report: SampleReport, events: Sequence[tuple[Response | Feedback, int]]) -> None:
    partitions: defaultdict[str, set[int]] = defaultdict(set)
    types: defaultdict[str, set[type]] = defaultdict(set)
    for event, partition in events:
        if event.user_id is None:
            report.without_user += 1
        else:
            partitions[event.user_id].add(partition)
            types[event.user_id].add(type(event))
    shared = [user for user, user_types in types.items() if len(user_types) > 1]
    report.users, report.shared_users = len(types), len(shared)
    report.scattered_users = sum(len(partitions[user]) > 1 for user in shared)


def find_undeclared_name(experiment: str, variant: str, experiments: Sequence[ExperimentSettings]) -> str | None:
    """Return "experiment" or "variant" with the most similar declared name if one is not declared; else None.

    >>> find_undeclared_name("ranker-v2", "A", [])
    'experiment not declared'
    """
    by_name = {settings.name: settings for settings in experiments}
    names = by_name if experiment not in by_name else by_name[experiment].variants
    kind, name = ("experiment", experiment) if experiment not in by_name else ("variant", variant)
    if name in names:
        return None
    similar = similar_name(name, names)
    hint = f"; did you mean {similar}?" if similar else f"; declared: {', '.join(names)}" if names else ""
    return f"{kind} not declared{hint}"
