"""JSON messages with and without Confluent framing."""

from __future__ import annotations

from uuid import UUID

import pytest

from monitor.config import WireFormat
from monitor.decoding import DocumentParser, Framing
from monitor.errors import InvalidEvent, UsageError

_GUID = UUID("c7e1d2a0-0000-4000-8000-000000000001")
_ID_PREFIX = b"\x00\x00\x00\x01\x02"
_GUID_PREFIX = b"\x01" + _GUID.bytes


def _parser(wire_format: WireFormat = "auto") -> DocumentParser:
    return DocumentParser(wire_format, "auto", None, None)


@pytest.mark.parametrize("wire_format", ["auto", "json"])
@pytest.mark.parametrize(
    ("value", "headers", "framing"),
    [
        (b'{"a": 1}', [], Framing("none", "JSON")),
        (b' \n{"a": 1}', [], Framing("none", "JSON")),
        (b'{"a": 1}', [("traceparent", b"00-1"), ("empty", None)], Framing("none", "JSON")),
        (b'{"a": 1}', [("__value_schema_id", None)], Framing("none", "JSON")),
        (_ID_PREFIX + b'{"a": 1}', [], Framing("confluent id", "JSON", 258)),
        (_ID_PREFIX + b' {"a": 1}', [("traceparent", b"00-1")], Framing("confluent id", "JSON", 258)),
        (_GUID_PREFIX + b'{"a": 1}', [], Framing("confluent guid", "JSON", str(_GUID))),
        (b'{"a": 1}', [("__value_schema_id", _GUID_PREFIX)], Framing("confluent guid", "JSON", str(_GUID))),
        (b'{"a": 1}', [("__value_schema_id", _ID_PREFIX)], Framing("confluent id", "JSON", 258)),
        (
            _ID_PREFIX + b'{"a": 1}',
            [("__value_schema_id", _GUID_PREFIX)],
            Framing("confluent guid", "JSON", str(_GUID)),
        ),
        (b'{"a": 1}', [("__key_schema_id", _GUID_PREFIX)], Framing("none", "JSON")),
    ],
)
def test_json_is_read_with_any_framing_and_without_a_registry(
    wire_format: WireFormat, value: bytes, headers: list[tuple[str, bytes | None]], framing: Framing
) -> None:
    """The schema is not needed: the data describes itself."""
    document = _parser(wire_format).parse(value, headers)
    assert (document.fields, document.envelope, document.is_deletion) == ({"a": 1}, {}, False)
    assert document.framing == framing


@pytest.mark.parametrize(
    ("wire_format", "value", "reason"),
    [
        ("json", b"", "empty_payload"),
        ("json", b'{"a": secret', "invalid_json"),
        ("json", b"\xff", "invalid_json"),
        ("json", b'{"a": "\xff"}', "invalid_json"),
        ("json", b'{"a": "\\ud83d"}', "invalid_json"),
        ("json", b"[" * 100_000, "invalid_json"),
        ("json", b"\x00\x00\x00\x00\x01", "invalid_json"),
        ("json", b"\x00\x00\x00\x00\x01\x02secret", "invalid_json"),
        ("json", b"\x00\x00\x00\x00", "invalid_framing"),
        ("json", b"\x01\x00\x00\x00\x00{}", "invalid_framing"),
        ("json", b"[1]", "not_an_object"),
        ("json", b'"secret"', "not_an_object"),
        ("json", b"null", "not_an_object"),
        ("json", b"\x03\x00" + bytes(16) + b"secret", "invalid_framing"),
        ("auto", b"\x03\x05" + bytes(16) + b"secret", "invalid_framing"),
        ("auto", b"\x00\x00\x00\x00\x01\x02secret", "unknown_schema"),
        ("auto", b"\x00\x00\x00\x00\x01", "unknown_schema"),
        ("auto", b"\x00\x00\x00\x00\x01{secret", "invalid_json"),
        ("auto", _GUID_PREFIX + b"secret", "unknown_schema"),
        ("auto", b"\xc3\x01" + bytes(8) + b"secret", "unknown_schema"),
        ("auto", b"\x0asecret", "invalid_json"),
    ],
)
def test_a_message_that_cannot_be_read_is_rejected_without_its_content(
    wire_format: WireFormat, value: bytes, reason: str
) -> None:
    """The detail is logged, so it contains lengths and schema ids only."""
    with pytest.raises(InvalidEvent) as error:
        _parser(wire_format).parse(value, [])
    assert error.value.reason == reason
    assert "secret" not in error.value.detail


def test_framed_data_without_a_registry_names_the_setting_that_is_missing() -> None:
    """An engineer reads the sentence in the dead-letter topic."""
    with pytest.raises(InvalidEvent, match=r"schema 258 .* schema_registry\.url"):
        _parser().parse(_ID_PREFIX + b"\x02x", [])


@pytest.mark.parametrize("header", [b"", b"\x00\x00", b"\x01" + bytes(4), b"\x02" + bytes(16)])
def test_a_schema_header_of_another_form_is_invalid_framing(header: bytes) -> None:
    """Neither an id nor a GUID."""
    with pytest.raises(InvalidEvent, match="invalid_framing: header __value_schema_id"):
        _parser().parse(b"{}", [("__value_schema_id", header)])


@pytest.mark.parametrize("wire_format", ["avro", "protobuf"])
def test_binary_formats_need_a_schema(wire_format: WireFormat) -> None:
    """The parser reports it when it is created, not at the first message."""
    with pytest.raises(UsageError, match=r"needs schema_registry\.url"):
        _parser(wire_format)
