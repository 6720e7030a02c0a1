"""The decoder of records: a record of a topic → its events, by the sources of the topic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from monitor.config import Settings, SourceSettings, mapping_digest
from monitor.decoding.documents import Document, DocumentParser
from monitor.decoding.framing import Headers
from monitor.decoding.mapping import EventMapper, MessageContext
from monitor.decoding.schema_registry import SchemaRegistry
from monitor.engine import EventDecoder, ExclusionRules, ResponseArm
from monitor.errors import InvalidEvent, UsageError
from monitor.events import Feedback, Response, WireResponse

ANY_TOPIC: Final = ""
"""Topic of records whose topic is unknown, such as the lines of a file."""
IgnoredReason = Literal["tombstone", "filtered", "no_elements"]
"""Why a record is neither an event nor rejected: no value, a filter, or an empty list of events."""


IGNORED_REASONS: Final[tuple[IgnoredReason, ...]] = get_args(IgnoredReason)


class Record(Protocol):
    """A record of a partition, such as kafka-python's `ConsumerRecord`."""

    @property
    def offset(self) -> int: ...

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def timestamp(self) -> int | None:
        """Kafka's time of the record in ms: when it was produced or appended; None or −1 if it has none."""

    @property
    def headers(self) -> Headers: ...


DecodedEvents: TypeAlias = "Sequence[Response | Feedback] | IgnoredReason"
PartitionDecoder: TypeAlias = "Callable[[Record, int], DecodedEvents]"
"""A function (record, current time in ms) → events; raises `InvalidEvent` or `DependencyUnavailable`."""


class RecordDecoder:
    """Decodes the records of all topics by the sources of the settings."""

    def __init__(self, settings: Settings, *, reads_files: bool = False) -> None:
        """Compile the mappings; raises `UsageError` if a library for a format is not installed.

        With `reads_files`, the records are lines of JSON, whatever the format of a topic is.
        """
        self._events = EventDecoder(settings)
        has_registry = settings.schema_registry.url is not None and not reads_files
        self.registry = SchemaRegistry(settings.schema_registry) if has_registry else None
        self.sources: list[SourceDecoder] = []
        for index, source in enumerate(settings.kafka.event_sources):
            if reads_files and source.wire_format != "native":
                source = replace(source, wire_format="json", avro_schema_file=None)  # noqa: PLW2901
            try:
                self.sources.append(SourceDecoder(source, self._events, self.registry, settings.attributes))
            except UsageError as error:
                raise UsageError(f"kafka.sources[{index}].{error}") from error
        self.has_mappings = bool(settings.kafka.sources)
        """Whether the records have another format than the native one."""
        self.mapping_digest = mapping_digest(settings.kafka)

    def close(self) -> None:
        """Close the connections to the schema registry."""
        if self.registry is not None:
            self.registry.close()

    def partition_decoder(self, topic: str, partition: str) -> PartitionDecoder:
        """Return the decoder of a partition's records. A record without an event and without an error is ignored."""
        if topic == ANY_TOPIC:
            return self._any_source_decoder(partition)
        return _join_decoders(
            [source.partition_decoder(topic, partition) for source in self.sources if topic in source.settings.topics]
        )

    def read_response_arms(self, topic: str, record: Record, now_ms: int) -> list[ResponseArm]:
        """Return (experiment, variant, event time or None) of each response in a rejected record, if readable."""
        if topic == ANY_TOPIC and not self.has_mappings:
            arm = self._events.read_response_arm(record.value, now_ms)
            return [] if arm is None else [arm]
        for source in self.sources:
            if source.settings.event_type == "response" and topic in (ANY_TOPIC, *source.settings.topics):
                arms = source.read_response_arms(topic, record, now_ms)
                if arms:
                    return arms
        return []

    def _any_source_decoder(self, partition: str) -> PartitionDecoder:
        """Return a decoder for records of an unknown topic: that of the first source that accepts a record."""
        if not self.has_mappings:
            return lambda record, now_ms: (self._events.decode_event(record.value, now_ms),)
        decoders = [(source, source.partition_decoder(ANY_TOPIC, partition)) for source in self.sources]
        topic_decoders: dict[SourceDecoder, PartitionDecoder] = {}
        """Source → the decoder of its topics, if they have several sources."""
        for source in self.sources:
            topics = set(source.settings.topics)
            sources_of_same_topics = [other for other in self.sources if topics.intersection(other.settings.topics)]
            if len(sources_of_same_topics) > 1:
                topic_decoders[source] = _join_decoders(
                    [other.partition_decoder(ANY_TOPIC, partition) for other in sources_of_same_topics]
                )

        def decode(record: Record, now_ms: int) -> DecodedEvents:
            errors: list[tuple[SourceDecoder, InvalidEvent]] = []
            ignored_reason: IgnoredReason = "filtered"
            for source, decode_by_source in decoders:
                try:
                    decoded = decode_by_source(record, now_ms)
                except InvalidEvent as error:
                    errors.append((source, error))
                    continue
                if not isinstance(decoded, str):
                    # Another source of the same topic may read other events of the same record.
                    return topic_decoders[source](record, now_ms) if source in topic_decoders else decoded
                ignored_reason = decoded
            if not errors:
                return ignored_reason
            raise _closest_error(errors)

        return decode


def _join_decoders(decoders: Sequence[PartitionDecoder]) -> PartitionDecoder:
    """Return a decoder that returns the events of all decoders."""
    if len(decoders) == 1:
        return decoders[0]

    def decode(record: Record, now_ms: int) -> DecodedEvents:
        events: list[Response | Feedback] = []
        ignored_reason: IgnoredReason = "filtered"
        for decode_by_source in decoders:
            decoded = decode_by_source(record, now_ms)
            if isinstance(decoded, str):
                ignored_reason = decoded
            else:
                events += decoded
        return events or ignored_reason

    return decode


def _closest_error(errors: Sequence[tuple[SourceDecoder, InvalidEvent]]) -> InvalidEvent:
    """Return the error of the source that the record fits best: one that fails for another reason than a field."""
    _, error = next((pair for pair in errors if pair[1].reason != "missing_field"), errors[0])
    if len({str(error) for _, error in errors}) == 1:
        return error
    details = "; ".join(
        f"as {source.settings.event_type} of {source.settings.topics[0]}: {e.detail}" for source, e in errors
    )
    return InvalidEvent(error.reason, details)


class SourceDecoder:
    """Decodes the records of one source."""

    def __init__(
        self,
        source: SourceSettings,
        events: EventDecoder,
        registry: SchemaRegistry | None,
        attributes: Sequence[str] = (),
    ) -> None:
        """`attributes` are the attributes of responses to read."""
        self.settings = source
        self.attributes = attributes
        self._events = events
        self._exclusion_rules = ExclusionRules(source.exclude) if source.exclude else None
        self.mapper = EventMapper(source, attributes)
        self.parser = (
            None
            if source.wire_format == "native"
            else DocumentParser(source.wire_format, source.envelope, registry, source.avro_schema_file)
        )

    def _decode_native(self, record: Record, now_ms: int) -> DecodedEvents:
        if record.value is None and self.settings.tombstones != "reject":
            return "tombstone"
        if self.settings.event_type == "feedback":
            return (self._events.decode_feedback(record.value, now_ms),)
        return (self._apply_rules(self._events.decode_response(record.value, now_ms)),)

    def _apply_rules(self, response: Response) -> Response:
        """Return the response, marked as excluded if a rule of the source excludes it."""
        if self._exclusion_rules is None or not self._exclusion_rules.match(response):
            return response
        return msgspec.structs.replace(response, is_excluded=True)

    def partition_decoder(self, topic: str, partition: str) -> PartitionDecoder:
        """Return the decoder of a partition's records."""
        if self.parser is None:
            return self._decode_native
        ignores_tombstones = self.settings.tombstones != "reject"
        has_elements = self.settings.elements is not None

        parser, check_size = self.parser, self._events.check_size

        def decode(record: Record, now_ms: int) -> DecodedEvents:
            if record.value is None and ignores_tombstones:
                return "tombstone"
            document = parser.parse(check_size(record.value), record.headers)
            message = _message_context(document, record, topic, partition)
            if document.is_deletion:
                if not self.mapper.passes_metadata_filters(message):
                    return "filtered"
                if ignores_tombstones:
                    return "tombstone"
                raise InvalidEvent("empty_payload", "expected an event instead of a deletion")
            if not self.mapper.passes_filters(message):
                return "filtered"
            if not has_elements:
                return (self._decode_element(message, now_ms),)
            elements = self.mapper.select_elements(message)
            return [self._decode_element(element, now_ms) for element in elements] or "no_elements"

        return decode

    def _decode_element(self, message: MessageContext, now_ms: int) -> Response | Feedback:
        try:
            event = self.mapper.map_event(message)
            if isinstance(event, WireResponse):
                attributes = self.mapper.read_attributes(message)
                return self._apply_rules(self._events.validate_response(event, now_ms, attributes))
            return self._events.validate_feedback(event, now_ms)
        except InvalidEvent as error:
            if message.index is None:
                raise
            raise InvalidEvent(
                error.reason, f"{error.detail} (element {message.index} of the list of events)"
            ) from None

    def read_response_arms(self, topic: str, record: Record, now_ms: int) -> list[ResponseArm]:
        """Return (experiment, variant, event time or None) of each response in a rejected record, if readable.

        Messages above the size limit are read, too: one variant may have more of them.
        """
        if self.parser is None:
            arm = self._events.read_response_arm(record.value, now_ms)
            return [] if arm is None else [arm]
        elements: list[MessageContext] = []
        with suppress(InvalidEvent):
            document = self.parser.parse(record.value or b"", record.headers)
            message = _message_context(document, record, topic, "")
            if not document.is_deletion and self.mapper.passes_filters(message):
                elements = self.mapper.select_elements(message)
        arms = [
            self._events.response_arm(
                self._try_read("experiment", element),
                self._try_read("variant", element),
                self._try_read("timestamp", element),
                now_ms,
            )
            for element in elements
        ]
        return [arm for arm in arms if arm is not None]

    def _try_read(self, field: str, message: MessageContext) -> object:
        """Return the value of a field; None if the field cannot be read."""
        with suppress(InvalidEvent):
            return self.mapper.readers[field].read(message)
        return None


def _message_context(document: Document, record: Record, topic: str, partition: str) -> MessageContext:
    timestamp = record.timestamp if record.timestamp is not None and record.timestamp >= 0 else None
    return MessageContext(
        document.fields, document.envelope, record.headers, record.key, timestamp, topic, partition, record.offset
    )
