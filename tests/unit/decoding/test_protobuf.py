"""Protobuf data: values, message types, imports, and data that does not fit."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from monitor.decoding import Framing
from monitor.decoding.framing import Frame
from monitor.decoding.protobuf import RegisteredProtobufFile
from monitor.errors import InvalidEvent
from tests.support.schemas import ANSWER_FILE, descriptor_text, message_class, parse_file

_FILE = parse_file(ANSWER_FILE)
_ANSWER = message_class("bot.Answer", _FILE)
_PATH = b"\x02\x02"
"""[1] as zigzag varints, after their number."""
_UNSET = {
    "arm": "A", "score": 0.0, "big": 0, "done": False, "items": [], "tags": [], "arms": [], "sizes": {}, "by_id": {},
}  # fmt: skip
"""The fields of an empty message."""


def _registered(*references: tuple[str, str], text: str = ANSWER_FILE) -> RegisteredProtobufFile:
    return RegisteredProtobufFile(7, descriptor_text(parse_file(text)), dict(references))


def _decode(message: Any) -> Any:
    return _registered().decode(Frame(7, _PATH + message.SerializeToString(), None))[0]


@pytest.mark.parametrize(
    ("fields", "decoded"),
    [
        ({}, {}),
        ({"id": "r1"}, {"id": "r1"}),
        ({"score": 2.5, "big": 2**62, "done": True}, {"score": 2.5, "big": 2**62, "done": True}),
        ({"arm": "B", "arms": ["A", "B"]}, {"arm": "B", "arms": ["A", "B"]}),
        ({"arm": 9, "arms": [9]}, {"arm": 9, "arms": [9]}),
        ({"student": ""}, {"student": ""}),
        ({"text": ""}, {"text": ""}),
        ({"number": 0}, {"number": 0}),
        ({"raw": b"\xff"}, {"raw": b"\xff"}),
        ({"latency": {"value": 0}}, {"latency": 0}),
        ({"items": [{"id": "v1"}, {"rank": 2}]}, {"items": [{"id": "v1", "rank": 0}, {"rank": 2}]}),
        ({"tags": ["", "x"]}, {"tags": ["", "x"]}),
        ({"sizes": {"a": 0, "b": 2}}, {"sizes": {"a": 0, "b": 2}}),
        ({"by_id": {5: {"id": "v5"}}}, {"by_id": {"5": {"id": "v5", "rank": 0}}}),
        ({"parent": {"id": "r0"}}, {"parent": {**_UNSET, "id": "r0"}}),
        ({"took": {"seconds": 1, "nanos": 500_000_000}}, {"took": 1.5}),
        (
            {"extra": {"a": 1.5, "b": [True, None], "c": {"d": "x"}, "e": {}}},
            {"extra": {"a": 1.5, "b": [True, None], "c": {"d": "x"}, "e": {}}},
        ),
    ],
)
def test_a_message_is_a_dict_of_python_values(fields: dict[str, Any], decoded: dict[str, Any]) -> None:
    """Numbers without presence are kept, because 0 is a score; empty strings without presence are absent."""
    message = _ANSWER()
    extra = fields.pop("extra", None)
    message = _ANSWER(**fields)
    if extra is not None:
        message.extra.update(extra)
    assert _decode(message) == {**_UNSET, **decoded}


def test_a_timestamp_is_a_time_in_utc() -> None:
    """Nanoseconds are cut to microseconds; times before 1970 are valid."""
    message = _ANSWER()
    message.at.seconds, message.at.nanos = 1_795_169_730, 123_456_789
    assert _decode(message)["at"] == datetime(2026, 11, 20, 10, 15, 30, 123456, tzinfo=UTC)
    message.at.seconds, message.at.nanos = -1, 0
    assert _decode(message)["at"] == datetime(1969, 12, 31, 23, 59, 59, tzinfo=UTC)


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 10**12])
def test_a_timestamp_that_no_calendar_has_is_rejected(seconds: int) -> None:
    """Python's years end at 9999."""
    message = _ANSWER()
    message.at.seconds = seconds
    with pytest.raises(InvalidEvent, match="invalid_protobuf"):
        _decode(message)


@pytest.mark.parametrize(
    ("path", "name", "fields"),
    [
        (b"\x00", "bot.Ignored", {}),
        (b"\x02\x00", "bot.Ignored", {}),
        (b"\x04\x00\x00", "bot.Ignored.Inner", {"x": 0}),
        (b"\x04\x02\x00", "bot.Answer.Item", {"rank": 0}),
    ],
)
def test_the_path_names_the_message_type(path: bytes, name: str, fields: dict[str, Any]) -> None:
    """Indexes of the file's types, then of nested types; [0] may be a single byte."""
    registered = _registered()
    framing = Framing("confluent id", "PROTOBUF", 7, name)
    assert registered.decode(Frame(7, path, None)) == (fields, framing)
    assert registered.decode(Frame(7, b"", path)) == (fields, framing)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (b"", "invalid_framing"),
        (b"\x02", "invalid_framing"),
        (b"\x80", "invalid_framing"),
        (b"\x01", "invalid_framing"),
        (b"\x02\x01", "invalid_framing"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x00", "invalid_framing"),
        (b"\xfe\xff\x7f", "invalid_framing"),
        (b"\x02\x08", "invalid_protobuf"),
        (b"\x06\x00\x00\x00", "invalid_protobuf"),
    ],
)
def test_a_path_that_leads_nowhere_is_rejected(path: bytes, reason: str) -> None:
    """The bytes after the schema id may be of another format."""
    with pytest.raises(InvalidEvent, match=reason):
        _registered().decode(Frame(7, path, None))


@pytest.mark.parametrize("data", [b"\x0a\x05abc", b"\x0a\x01\xff", b"\x08\x01\x0a", b"\xff" * 20, b"\x0b"])
def test_damaged_data_is_rejected(data: bytes) -> None:
    """Truncated, not UTF-8, an unknown wire type."""
    with pytest.raises(InvalidEvent, match=r"invalid_protobuf: .*bot\.Answer of schema 7"):
        _registered().decode(Frame(7, _PATH + data, None))


def test_the_names_and_presence_of_proto2_fields_are_kept() -> None:
    """Every field of proto2 has presence, so an unset number is absent."""
    text = """
    name: "a.proto" package: "a"
    message_type {
      name: "M"
      field { name: "isSet" number: 1 type: TYPE_INT32 label: LABEL_OPTIONAL default_value: "5" }
      field { name: "text" number: 2 type: TYPE_STRING label: LABEL_REQUIRED }
    }"""
    registered = _registered(text=text)
    assert registered.decode(Frame(7, b"\x00\x12\x00", None))[0] == {"text": ""}
    assert registered.decode(Frame(7, b"\x00\x08\x00\x12\x00", None))[0] == {"isSet": 0, "text": ""}
    with pytest.raises(InvalidEvent, match="invalid_protobuf"):
        registered.decode(Frame(7, b"\x00\x12\x01\xff", None))


def test_a_file_may_import_other_files() -> None:
    """Nested imports are among the references, standard files are not."""
    base = 'name: "x" package: "b" message_type { name: "Id" field { name: "id" number: 1 type: TYPE_STRING } }'
    page = """
    name: "y" package: "p" dependency: "base.proto" dependency: "google/type/date.proto"
    message_type {
      name: "Page"
      field { name: "item" number: 1 type: TYPE_MESSAGE type_name: ".b.Id" }
      field { name: "day" number: 2 type: TYPE_MESSAGE type_name: ".google.type.Date" }
    }"""
    text = """
    dependency: "page.proto" dependency: "base.proto" dependency: "confluent/meta.proto"
    message_type {
      name: "Answer"
      field { name: "page" number: 1 type: TYPE_MESSAGE type_name: ".p.Page" }
      field { name: "id" number: 2 type: TYPE_MESSAGE type_name: ".b.Id" }
    }"""
    references = [("base.proto", descriptor_text(parse_file(base))), ("page.proto", descriptor_text(parse_file(page)))]
    for order in (references, references[::-1]):
        registered = _registered(*order, text=text)
        data = b"\x00\x0a\x0a\x0a\x04\x0a\x02v1\x12\x02\x10\x05\x12\x04\x0a\x02r1"
        value, framing = registered.decode(Frame(7, data, None))
        assert value["page"]["item"] == {"id": "v1"}
        assert value["page"]["day"]["month"] == 5
        assert value["id"] == {"id": "r1"}
        assert framing.schema_name == "Answer"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('dependency: "other.proto"', "import other.proto is not among the references"),
        ('dependency: "google/protobuf/missing.proto"', "import google/protobuf/missing.proto is not among"),
        (
            'message_type { name: "M" field { name: "x" number: 1 type_name: ".no.Where" type: TYPE_MESSAGE } }',
            "invalid",
        ),
    ],
)
def test_a_file_that_cannot_be_built_is_reported(text: str, message: str) -> None:
    """The registry checks its schemas; a damaged or foreign one must not stop the worker."""
    with pytest.raises(ValueError, match=message):
        _registered(text=text)


@pytest.mark.parametrize("text", ['syntax = "proto3";', "", "AAAA", "é"])
def test_a_registry_that_returns_text_instead_of_a_descriptor_is_reported(text: str) -> None:
    """Not every registry supports `format=serialized`."""
    with pytest.raises(ValueError, match="format=serialized"):
        RegisteredProtobufFile(7, text, {})
