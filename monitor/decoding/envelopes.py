"""Removes envelopes: CloudEvents 1.0, Kafka Connect's JSON with a schema, Debezium's change events, outbox rows.

An envelope is removed only if all its marks are present. A message whose fields merely have the same names, such as
`data` or `payload`, remains as it is. Envelopes may be nested; they are removed from the outside in:

1. CloudEvents in structured mode (`specversion` and `data`), or attributes in headers `ce_…` (binary mode)
2. Kafka Connect: exactly the fields `schema`, with one of Connect's types, and `payload`
3. Debezium: `op`, the table `source`, and `before` or `after`
4. outbox: a row with `aggregatetype`, `aggregateid`, and a `payload` that is a JSON object in a string
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from monitor.decoding.framing import Headers
from monitor.decoding.json_objects import find_json_object, parse_json
from monitor.errors import InvalidEvent

_ATTRIBUTE_PREFIX: Final = "ce_"
VERSION_HEADER: Final = "ce_specversion"
CONTENT_TYPE_HEADERS: Final = frozenset({"content-type", "Content-Type"})
_STRUCTURED_MODE: Final = b"application/cloudevents"
_BATCH_MODE: Final = b"application/cloudevents-batch"
_CONNECT_FIELDS: Final = frozenset({"schema", "payload"})
_CONNECT_TYPES: Final = frozenset(
    {"struct", "map", "array", "string", "bytes", "boolean", "int8", "int16", "int32", "int64", "float", "double"}
)
_CHANGES: Final = frozenset({"c", "r", "u"})
"""Debezium's operations: created, read by a snapshot, updated."""
_REMOVALS: Final = frozenset({"d", "t"})
"""Deleted, truncated."""
_OUTBOX_FIELDS: Final = frozenset({"aggregatetype", "aggregateid", "payload"})
ENVELOPE_MARKS: Final = frozenset({"specversion", "schema", "op", "aggregatetype"})
"""Every envelope has one of these fields, or a header."""


class Envelope(NamedTuple):
    """The content of a message without its envelopes."""

    fields: dict[str, Any]
    attributes: dict[str, Any]
    """The attributes of all removed envelopes."""
    is_deletion: bool
    kinds: tuple[str, ...]


def remove_envelopes(value: object, headers: Headers) -> Envelope | None:
    """Return the content of a message, None if the message has no envelope; raises `InvalidEvent` for unusable data."""
    content_type = _find_header(headers, CONTENT_TYPE_HEADERS).strip().lower() if headers else b""
    is_binary = bool(headers) and any(name == VERSION_HEADER for name, _ in headers)
    is_structured = content_type.startswith(_STRUCTURED_MODE)
    if not is_binary and not is_structured and isinstance(value, dict) and ENVELOPE_MARKS.isdisjoint(value):
        return None
    if content_type.startswith(_BATCH_MODE):
        raise InvalidEvent("invalid_envelope", "content-type: a batch of CloudEvents, expected one event per message")
    unwrapping = _Unwrapping(value)
    if is_binary:
        unwrapping.read_attributes(headers)
    unwrapping.remove_cloud_event(is_declared=is_structured)
    unwrapping.remove_connect()
    unwrapping.remove_debezium()
    unwrapping.remove_outbox()
    return unwrapping.result()


class _Unwrapping:
    """A message whose envelopes are being removed."""

    def __init__(self, value: object) -> None:
        self._value = value
        self._attributes: dict[str, Any] = {}
        self._kinds: list[str] = []
        self._is_deletion = False

    def result(self) -> Envelope | None:
        """Return the content; None if no envelope was removed."""
        if not self._kinds:
            return None
        fields = {} if self._is_deletion else self._value
        if not isinstance(fields, dict):
            raise InvalidEvent("not_an_object", "expected an object in the envelope")
        return Envelope(fields, self._attributes, self._is_deletion, tuple(self._kinds))

    def read_attributes(self, headers: Headers) -> None:
        """Read the attributes of a CloudEvent in binary mode from its headers."""
        for name, content in headers:
            if content is not None and name.startswith(_ATTRIBUTE_PREFIX):
                self._attributes[name.removeprefix(_ATTRIBUTE_PREFIX)] = content.decode(errors="replace")
        content_type = _find_header(headers, CONTENT_TYPE_HEADERS)
        if content_type:
            self._attributes["datacontenttype"] = content_type.decode(errors="replace")
        self._kinds.append("CloudEvents (binary)")

    def remove_cloud_event(self, *, is_declared: bool) -> None:
        """Replace a CloudEvent in structured mode by its data; `is_declared`: the headers name the mode."""
        event = self._value
        if not isinstance(event, dict):
            return
        version = event.get("specversion")
        if not is_declared and not (isinstance(version, str) and ("data" in event or "data_base64" in event)):
            return
        if not isinstance(version, str) or not version.startswith("1."):
            raise InvalidEvent("invalid_envelope", "specversion: expected 1.0")
        data = event.get("data")
        if data is None and event.get("data_base64") is not None:
            data = _decode_base64(event["data_base64"])
        attributes = {name: value for name, value in event.items() if name not in {"data", "data_base64"}}
        self._replace("CloudEvents", "data", data, attributes)

    def remove_connect(self) -> None:
        """Replace a schema and payload of Kafka Connect by the payload."""
        message = self._value
        if not isinstance(message, dict) or message.keys() != _CONNECT_FIELDS:
            return
        schema = message["schema"]
        schema_type = schema.get("type") if isinstance(schema, dict) else None
        if schema is None or (isinstance(schema_type, str) and schema_type in _CONNECT_TYPES):
            self._replace("Kafka Connect", "payload", message["payload"], {})

    def remove_debezium(self) -> None:
        """Replace a change event of Debezium by the row after the change, or by the deleted row."""
        change = self._value
        if not isinstance(change, dict) or not isinstance(change.get("source"), dict):
            return
        operation = change.get("op")
        if not isinstance(operation, str):
            return
        attributes = {name: value for name, value in change.items() if name not in {"before", "after"}}
        if operation in _CHANGES and "after" in change:
            if change["after"] is None:
                raise InvalidEvent("invalid_envelope", "after: null, expected the row after the change")
            self._replace("Debezium", "after", change["after"], attributes)
        elif operation in _REMOVALS and ("before" in change or "after" in change):
            self._replace("Debezium", "before", None, attributes)

    def remove_outbox(self) -> None:
        """Replace a row of an outbox table, or a JSON object in a string, by the object."""
        row = self._value
        if isinstance(row, str):
            payload = find_json_object(row)
            attributes: Mapping[str, Any] = {}
        elif isinstance(row, dict) and row.keys() >= _OUTBOX_FIELDS and isinstance(row["payload"], str):
            payload = find_json_object(row["payload"])
            attributes = {name: value for name, value in row.items() if name != "payload"}
        else:
            return
        if payload is not None:
            self._replace("outbox", "payload", payload, attributes)

    def _replace(self, kind: str, name: str, data: object, attributes: Mapping[str, Any]) -> None:
        """Replace the message by the data of an envelope, which is an object, an object in a string, or null."""
        if isinstance(data, str):
            data = find_json_object(data)
            if data is None:
                raise InvalidEvent("invalid_envelope", f"{name}: a string, expected an object")
        elif data is None:
            self._is_deletion = True
        elif not isinstance(data, dict):
            raise InvalidEvent("invalid_envelope", f"{name}: expected an object")
        self._value = data
        self._attributes.update(attributes)
        self._kinds.append(kind)


def _find_header(headers: Headers, names: frozenset[str]) -> bytes:
    """Return the content of the first header that has one of the names; empty if absent."""
    for name, content in headers:
        if name in names and content is not None:
            return content
    return b""


def _decode_base64(text: object) -> object:
    try:
        return parse_json(b64decode(text, validate=True))  # type: ignore[arg-type]  # another type is a TypeError
    except (TypeError, ValueError, InvalidEvent):
        raise InvalidEvent("invalid_envelope", "data_base64: expected an event as JSON in base64") from None
