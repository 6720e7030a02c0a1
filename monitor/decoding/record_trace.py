"""The trace of a record: its framing, the events, the paths of their fields, or why the record is no event."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from monitor.config import native_fields
from monitor.decoding.documents import Document, DocumentParser
from monitor.decoding.framing import Framing, Headers, find_schema_header, framing_kind, read_frame, schema_id
from monitor.decoding.mapping import EventMapper, MessageContext, describe_shape
from monitor.decoding.record_decoder import IgnoredReason, Record, RecordDecoder, SourceDecoder
from monitor.errors import InvalidEvent
from monitor.events import Feedback, Response

_FIELD: Final = re.compile(r"[a-z_]+(?:\[(\d+)\](?:\.[a-z_]+)?)?(?=: )")
_ELEMENT: Final = re.compile(r"\(element (\d+) of the list of events\)$")
_TYPE_NAMES: Final = {"JSON": "JSON", "AVRO": "Avro", "PROTOBUF": "Protobuf"}


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a record is rejected, without its content."""

    reason: str
    detail: str
    path: str | None
    """Path of the value; None if the message as a whole is rejected."""
    shape: str
    """Type and size of the value, or of the message."""


@dataclass(frozen=True, slots=True)
class RecordTrace:
    """What one source makes of a record."""

    framing: str
    """How the message is encoded, in words."""
    events: Sequence[Response | Feedback] = ()
    origins: Sequence[Mapping[str, str | None]] = ()
    """For each event: field → path of its value; None for a field without a value."""
    ignored_reason: IgnoredReason | None = None
    failed_filter: str | None = None
    """Path of the filter that the message does not pass."""
    rejection: Rejection | None = None
    message: MessageContext | None = None
    """The content; None if the message cannot be parsed, or is a deletion."""


class RecordTracer:
    """Traces records through one source. The outcome is that of the source's decoder."""

    def __init__(self, source: SourceDecoder, decoder: RecordDecoder) -> None:
        self._source = source
        settings = source.settings
        if source.parser is None:
            # The native decoder has no documents. Its messages are shown as if the native names were mapped, and in
            # any format, so that the trace names the framing of messages that are not native.
            fields, items = native_fields(settings.event_type)
            settings = replace(settings, wire_format="auto", fields=fields, items=items)
            self._parser = DocumentParser("auto", "auto", decoder.registry, None)
        else:
            self._parser = source.parser
        self._mapper = EventMapper(settings, source.attributes)

    def trace(self, record: Record, topic: str, partition: str, now_ms: int) -> RecordTrace:
        """Return what becomes of a record; raises `DependencyUnavailable` if the registry does not answer."""
        value = record.value
        if value is None:
            document, framing = None, "no value"
        else:
            document, framing = self._parse(value, record.headers)
        message = None
        if document is not None and not document.is_deletion:
            message = MessageContext(
                document.fields, document.envelope, record.headers, record.key, record.timestamp, topic, partition,
                record.offset,
            )  # fmt: skip
        try:
            decoded = self._source.partition_decoder(topic, partition)(record, now_ms)
        except InvalidEvent as error:
            rejection = self._describe_rejection(error, message, value)
            return RecordTrace(framing, origins=self._origins(message), rejection=rejection, message=message)
        if isinstance(decoded, str):
            failed_filter = None if message is None else self._mapper.find_failed_filter(message)
            return RecordTrace(framing, ignored_reason=decoded, failed_filter=failed_filter, message=message)
        return RecordTrace(framing, decoded, self._origins(message), message=message)

    def _parse(self, value: bytes, headers: Headers) -> tuple[Document | None, str]:
        """Return the document of a message, None if it cannot be parsed, and the description of its framing."""
        try:
            document = self._parser.parse(value, headers)
        except InvalidEvent as error:
            return None, describe_unparsed(value, headers, error)
        return document, describe_framing(document.framing)

    def _origins(self, message: MessageContext | None) -> list[Mapping[str, str | None]]:
        if message is None:
            return []
        try:
            elements = self._mapper.select_elements(message)
        except InvalidEvent:
            return []
        return [self._mapper.find_origins(element) for element in elements]

    def _describe_rejection(
        self, error: InvalidEvent, message: MessageContext | None, value: bytes | None
    ) -> Rejection:
        message_shape = "no value" if value is None else f"{len(value):,} bytes"
        field = _FIELD.match(error.detail)
        if message is None or field is None:
            return Rejection(error.reason, error.detail, None, message_shape)
        element = _ELEMENT.search(error.detail)
        if element is not None:
            elements = self._mapper.select_elements(message)
            message = next((context for context in elements if context.index == int(element[1])), message)
        located = self._mapper.locate(field[0], None if field[1] is None else int(field[1]), message)
        if located is None:
            return Rejection(error.reason, error.detail, None, message_shape)
        path, found_value = located
        return Rejection(
            error.reason, error.detail, path, "no value" if found_value is None else describe_shape(found_value)
        )


def describe_framing(framing: Framing) -> str:
    """Return how a message is encoded, in words.

    >>> describe_framing(Framing("confluent id", "AVRO", 7, "search.Answer", ("Debezium",)))
    'Avro, schema id 7, search.Answer, in Debezium'
    """
    parts = [_TYPE_NAMES[framing.format]]
    if framing.schema_id is not None:
        kind = "GUID" if framing.kind == "confluent guid" else "id"
        parts.append(f"schema {kind} {framing.schema_id}")
    elif framing.kind == "avro single object":
        parts.append("single-object encoding")
    if framing.schema_name is not None:
        parts.append(framing.schema_name)
    if framing.envelopes:
        parts.append(f"in {', '.join(framing.envelopes)}")
    return ", ".join(parts)


def describe_unparsed(value: bytes, headers: Headers, error: InvalidEvent) -> str:
    """Return the framing of a message that cannot be parsed."""
    if not value:
        return "empty"
    try:
        frame = read_frame(value, find_schema_header(headers))
    except InvalidEvent:
        frame = None
    if frame is None:
        return "not JSON" if error.reason == "invalid_json" else "not readable"
    kind = "GUID" if framing_kind(frame.schema_key) == "confluent guid" else "id"
    return f"schema {kind} {schema_id(frame.schema_key)}, not readable"


def event_json(event: Response | Feedback, timestamp: str) -> dict[str, Any]:
    """Return an event as an object of the native format, without fields that have no value."""
    fields: dict[str, Any]
    if isinstance(event, Response):
        ranks = event.ranks or range(1, len(event.items) + 1)
        fields = {
            "response_id": event.response_id,
            "timestamp": timestamp,
            "experiment": event.experiment,
            "variant": event.variant,
            "items": [{"item_id": item, "position": rank} for item, rank in zip(event.items, ranks, strict=True)],
            "user_id": event.user_id,
            "query_id": event.query_id,
            "category": event.category,
            "latency_ms": event.latency_ms,
            "group_id": event.group_id,
            "session_id": event.session_id,
        }
    else:
        fields = {
            "feedback_id": event.feedback_id,
            "response_id": event.response_id,
            "timestamp": timestamp,
            "kind": event.kind,
            "user_id": event.user_id,
            "item_id": event.item_id,
            "score": event.score,
            "withdrawn": event.is_withdrawn or None,
        }
    return {name: value for name, value in fields.items() if value is not None}
