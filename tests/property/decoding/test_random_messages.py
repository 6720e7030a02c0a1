"""Random bytes and headers in every format: a document, or `InvalidEvent`."""

from __future__ import annotations

import json
from typing import Any, Final, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from monitor.config import EnvelopeMode, WireFormat
from monitor.decoding import DocumentParser, SchemaRegistry
from monitor.decoding.avro import LocalAvroSchema, RegisteredAvroSchema
from monitor.decoding.framing import Frame
from monitor.decoding.protobuf import RegisteredProtobufFile
from monitor.errors import InvalidEvent
from monitor.events import REJECTION_REASONS
from tests.support.schemas import ANSWER, ANSWER_FILE, avro_bytes, descriptor_text, message_class, parse_file

_AVRO: Final = RegisteredAvroSchema(0, json.dumps(ANSWER), [])
_PROTOBUF: Final = RegisteredProtobufFile(1, descriptor_text(parse_file(ANSWER_FILE)), {})
_ANSWER: Final = message_class("bot.Answer", parse_file(ANSWER_FILE))


class _Registry:
    """Knows two schemas; other ids are Avro or Protobuf in turn, so that random ids lead to data."""

    def find_decoder(self, key: int | bytes) -> RegisteredAvroSchema | RegisteredProtobufFile:
        """Return a decoder for any key."""
        number = key if isinstance(key, int) else key[-1]
        return _PROTOBUF if number % 2 else _AVRO


_AVRO_BYTES: Final = avro_bytes(
    ANSWER, {"id": "r1", "at": 1_795_169_730_123, "arm": "B", "student": "s1", "items": [{"id": "v1", "rank": 1}] * 3}
)
_PROTOBUF_BYTES: Final = b"\x02\x02" + _ANSWER(id="r1", items=[{"id": "v1"}] * 3, sizes={"a": 1}).SerializeToString()
_VALUES: Final = (
    st.binary(max_size=80)
    | st.binary(max_size=40).map(lambda data: b"\x00\x00\x00\x00\x00" + data)
    | st.binary(max_size=40).map(lambda data: b"\x00\x00\x00\x00\x01\x02\x02" + data)
    | st.binary(max_size=40).map(lambda data: b"\x01" + bytes(16) + data)
)
_HEADERS: Final = st.lists(
    st.tuples(
        st.sampled_from(["__value_schema_id", "ce_specversion", "ce_id", "content-type", "trace"]),
        st.none()
        | st.binary(max_size=20)
        | st.sampled_from([b"\x01" + bytes(16), b"\x00" * 5, b"application/cloudevents+json", b"1.0"]),
    ),
    max_size=3,
)
_FORMATS: Final[list[WireFormat]] = ["auto", "json", "avro", "protobuf"]
_MODES: Final[list[EnvelopeMode]] = ["auto", "none"]


def _check(parser: DocumentParser, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
    try:
        document = parser.parse(value, headers)
    except InvalidEvent as error:
        assert error.reason in REJECTION_REASONS
        assert error.detail.isprintable()
    else:
        assert isinstance(document.fields, dict)


@pytest.mark.parametrize("mode", _MODES)
@pytest.mark.parametrize("wire_format", _FORMATS)
@given(value=_VALUES, headers=_HEADERS)
def test_random_bytes_are_a_document_or_a_rejection(
    wire_format: WireFormat, mode: EnvelopeMode, value: bytes, headers: list[tuple[str, bytes | None]]
) -> None:
    """Any other exception would stop the worker at this message for ever."""
    _check(DocumentParser(wire_format, mode, cast("SchemaRegistry", _Registry()), None), value, headers)


@given(value=_VALUES)
def test_random_bytes_with_a_local_schema_are_a_document_or_a_rejection(value: bytes) -> None:
    """Without framing, every byte is data."""
    schema = LocalAvroSchema(json.dumps(ANSWER))
    try:
        decoded, _ = schema.decode(value)
    except InvalidEvent as error:
        assert error.reason in REJECTION_REASONS
    else:
        assert isinstance(decoded, dict)


_NODE: Final = RegisteredAvroSchema(
    2,
    """{"type": "record", "name": "Node", "fields": [
        {"name": "next", "type": ["null", "Node"]},
        {"name": "nodes", "type": {"type": "array", "items": "Node"}},
        {"name": "by_name", "type": {"type": "map", "values": ["string", "Node"]}}
    ]}""",
    [],
)


@given(data=st.binary(max_size=200) | st.lists(st.sampled_from([0, 1, 2, 3, 4]), max_size=200).map(bytes))
def test_random_bytes_of_a_schema_that_contains_itself_are_a_value_or_a_rejection(data: bytes) -> None:
    """Small numbers are branches and counts, so they lead to deep values."""
    try:
        decoded, _ = _NODE.decode(Frame(2, data, None))
    except InvalidEvent as error:
        assert error.reason == "invalid_avro"
    else:
        assert isinstance(decoded, dict)


@pytest.mark.parametrize(("prefix", "data"), [(b"\x00" * 5, _AVRO_BYTES), (b"\x00\x00\x00\x00\x01", _PROTOBUF_BYTES)])
@given(
    changes=st.lists(st.tuples(st.integers(0, 79), st.integers(0, 255)), min_size=1, max_size=6),
    length=st.integers(0, 80),
)
def test_damaged_messages_are_a_document_or_a_rejection(
    prefix: bytes, data: bytes, changes: list[tuple[int, int]], length: int
) -> None:
    """Changed and missing bytes in the middle of valid data."""
    damaged = bytearray(data)
    for offset, byte in changes:
        damaged[offset % len(damaged)] = byte
    _check(
        DocumentParser("auto", "auto", cast("SchemaRegistry", _Registry()), None), prefix + bytes(damaged[:length]), []
    )


_NAMES: Final = st.sampled_from(
    [
        "specversion", "data", "data_base64", "schema", "payload", "op", "source", "before", "after", "type",
        "aggregatetype", "aggregateid", "fields",
    ]
)  # fmt: skip
_TEXTS: Final = ["1.0", "struct", "c", "d", "t", "{}", '{"a": 1}', "[1]", "e30=", "é"]
_JSON_VALUES: Final = st.recursive(
    st.none() | st.integers() | st.sampled_from(_TEXTS),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(_NAMES, inner, max_size=6),
    max_leaves=20,
)


@given(message=_JSON_VALUES, headers=_HEADERS)
def test_random_envelopes_are_a_document_or_a_rejection(message: Any, headers: list[tuple[str, bytes | None]]) -> None:
    """Fields of envelopes with values of any type, nested in any order."""
    _check(DocumentParser("json", "auto", None, None), json.dumps(message).encode(), headers)
