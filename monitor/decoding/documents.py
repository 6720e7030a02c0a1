"""The parser of messages in any supported format: bytes → `Document`.

With the format `auto`, the first bytes and the headers decide:

- Confluent framing: the type of the schema in the registry; without a registry, the data must be JSON
- anything else: JSON
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from monitor.config import EnvelopeMode, WireFormat
from monitor.decoding.avro import LocalAvroSchema
from monitor.decoding.envelopes import CONTENT_TYPE_HEADERS, ENVELOPE_MARKS, VERSION_HEADER, remove_envelopes
from monitor.decoding.framing import (
    SCHEMA_ID_HEADER,
    SINGLE_OBJECT_MAGIC,
    Frame,
    Framing,
    Headers,
    SchemaKey,
    check_supported,
    find_schema_header,
    framing_kind,
    has_prefix,
    read_frame,
    remove_prefix,
    schema_id,
)
from monitor.decoding.json_objects import parse_json
from monitor.decoding.schema_registry import SchemaRegistry
from monitor.errors import InvalidEvent, UsageError

_PLAIN_JSON: Final = Framing("none", "JSON")
_NO_ATTRIBUTES: Final[Mapping[str, Any]] = MappingProxyType({})
_RELEVANT_HEADERS: Final = frozenset({SCHEMA_ID_HEADER, VERSION_HEADER, *CONTENT_TYPE_HEADERS})
_JSON_START: Final = b"{"
_JSON_SPACE: Final = b" \t\r\n"
_NO_REGISTRY: Final = "expected schema_registry.url, the address of the registry, to be set"


class Document(NamedTuple):
    """The content of a message."""

    fields: dict[str, Any]
    """The event's fields as dict, list, str, int, float, bool, None, bytes, datetime, date, time, Decimal or UUID."""
    envelope: Mapping[str, Any]
    """The attributes of removed envelopes (CloudEvents, Debezium, outbox)."""
    is_deletion: bool
    """Whether the data is null: a deletion of Debezium, or an envelope without data."""
    framing: Framing


class DocumentParser:
    """Parses the messages of a source."""

    def __init__(
        self,
        wire_format: WireFormat,
        envelope: EnvelopeMode,
        registry: SchemaRegistry | None,
        avro_schema_file: str | None,
    ) -> None:
        self._removes_envelopes = envelope == "auto"
        self._registry = registry
        self._avro_schema = LocalAvroSchema.read(avro_schema_file) if avro_schema_file is not None else None
        self._expected_type = {"avro": "AVRO", "protobuf": "PROTOBUF"}.get(wire_format)
        self._takes_json = self._expected_type is None
        self._decode: Callable[[bytes, Headers], tuple[Any, Framing]]
        if wire_format == "json":
            self._decode = _decode_json
        elif wire_format == "auto":
            self._decode = self._detect
        elif self._avro_schema is not None:
            self._decode = self._decode_local_avro
        elif registry is not None:
            self._decode = self._decode_registered
        else:
            hint = " or avro_schema_file" if wire_format == "avro" else ""
            raise UsageError(f'format: got "{wire_format}", which needs schema_registry.url{hint}')

    def parse(self, value: bytes, headers: Headers) -> Document:
        """Return the content of a message.

        Raises `InvalidEvent` for a message that is rejected, and `DependencyUnavailable` if the registry cannot be
        reached: the same message can be parsed later.
        """
        if not value:
            raise InvalidEvent("empty_payload", "expected an event")
        if headers and _RELEVANT_HEADERS.isdisjoint([name for name, _ in headers]):
            headers = ()  # Those of tracing are on every message, and take the longer paths below.
        if self._takes_json and not headers and value.startswith(_JSON_START):
            fields = parse_json(value)  # most messages of most topics
            if not self._removes_envelopes or ENVELOPE_MARKS.isdisjoint(fields):
                return Document(fields, _NO_ATTRIBUTES, False, _PLAIN_JSON)  # noqa: FBT003  the fields of a tuple
            decoded, framing = fields, _PLAIN_JSON
        else:
            decoded, framing = self._decode(value, headers)
        if self._removes_envelopes:
            content = remove_envelopes(decoded, headers)
            if content is not None:
                framing = framing._replace(envelopes=content.kinds)
                return Document(content.fields, content.attributes, content.is_deletion, framing)
        if not isinstance(decoded, dict):
            raise InvalidEvent("not_an_object", "expected an object")
        return Document(decoded, _NO_ATTRIBUTES, False, framing)  # noqa: FBT003  the fields of a tuple

    def _detect(self, value: bytes, headers: Headers) -> tuple[Any, Framing]:
        """Decode a message of any format; see the module."""
        frame = read_frame(value, find_schema_header(headers))
        if frame is not None:
            return self._decode_frame(frame) if self._registry is not None else _decode_framed_json(frame)
        if value.startswith(SINGLE_OBJECT_MAGIC):
            raise InvalidEvent(
                "unknown_schema", "Avro's single-object encoding, expected the schema in avro_schema_file of the source"
            )
        check_supported(value)
        return parse_json(value), _PLAIN_JSON

    def _decode_registered(self, value: bytes, headers: Headers) -> tuple[Any, Framing]:
        """Decode a message that must have Confluent framing."""
        frame = read_frame(value, find_schema_header(headers))
        if frame is None:
            check_supported(value)
            raise InvalidEvent(
                "invalid_framing",
                f"no schema id, expected one after a byte 0 or 1, or in the header {SCHEMA_ID_HEADER}",
            )
        return self._decode_frame(frame)

    def _decode_frame(self, frame: Frame) -> tuple[Any, Framing]:
        """Decode a message with the registered schema."""
        assert self._registry is not None
        decoder = self._registry.find_decoder(frame.schema_key)
        if self._expected_type is not None and decoder.schema_type != self._expected_type:
            raise InvalidEvent(
                f"invalid_{self._expected_type.lower()}",
                f"schema {schema_id(frame.schema_key)} is of type {decoder.schema_type}, "
                f"expected {self._expected_type}: check the source's format",
            )
        return decoder.decode(frame)

    def _decode_local_avro(self, value: bytes, headers: Headers) -> tuple[Any, Framing]:
        """Decode a message without framing, or in Avro's single-object encoding, with the local schema."""
        del headers
        assert self._avro_schema is not None
        return self._avro_schema.decode(value)


def _decode_json(value: bytes, headers: Headers) -> tuple[Any, Framing]:
    """Decode JSON with or without Confluent framing; the schema is not needed."""
    frame = read_frame(value, find_schema_header(headers))
    if frame is None:
        check_supported(value)
        return parse_json(value), _PLAIN_JSON
    return parse_json(_json_data(frame)), _framed_json(frame.schema_key)


def _decode_framed_json(frame: Frame) -> tuple[Any, Framing]:
    """Decode JSON with Confluent framing; other data needs a registry."""
    data = _json_data(frame)
    if not data.lstrip(_JSON_SPACE).startswith(_JSON_START):
        raise InvalidEvent(
            "unknown_schema", f"schema {schema_id(frame.schema_key)} is needed to decode; {_NO_REGISTRY}"
        )
    return parse_json(data), _framed_json(frame.schema_key)


def _json_data(frame: Frame) -> bytes:
    """Return the JSON of a frame; after a schema id in the header, the value may have a prefix as well."""
    data = frame.data
    return remove_prefix(data) if data and has_prefix(data) else data


@lru_cache(maxsize=1000)
def _framed_json(key: SchemaKey) -> Framing:
    return Framing(framing_kind(key), "JSON", schema_id(key))
