"""Avro data: values, schema evolution, references, and data that does not fit."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro.schema
import pytest

from monitor.decoding import DocumentParser, Framing
from monitor.decoding.avro import RegisteredAvroSchema
from monitor.decoding.framing import Frame
from monitor.errors import InvalidEvent, UsageError
from tests.support.schemas import ANSWER, ITEM, avro_bytes

_AT = datetime(2026, 11, 20, 10, 15, 30, 123000, tzinfo=UTC)
_VALUE: dict[str, Any] = {"id": "r1", "at": _AT, "arm": "B", "student": "s1", "items": [{"id": "v1", "rank": 0}]}


def _record(*fields: tuple[str, object]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def _decode(schema: Any, data: bytes, *references: Any) -> Any:
    registered = RegisteredAvroSchema(7, json.dumps(schema), [json.dumps(each) for each in references])
    return registered.decode(Frame(7, data, None))[0]


def _schema_file(tmp_path: Path, schema: object) -> DocumentParser:
    path = tmp_path / "answer.avsc"
    path.write_text(json.dumps(schema))
    return DocumentParser("avro", "auto", None, str(path))


@pytest.mark.parametrize(
    ("kind", "value", "decoded"),
    [
        ({"type": "long", "logicalType": "timestamp-millis"}, _AT, _AT),
        ({"type": "long", "logicalType": "timestamp-micros"}, _AT, _AT),
        ({"type": "long", "logicalType": "local-timestamp-millis"}, _AT.replace(tzinfo=None), _AT.replace(tzinfo=None)),
        ({"type": "int", "logicalType": "date"}, date(2026, 11, 20), date(2026, 11, 20)),
        ({"type": "string", "logicalType": "uuid"}, UUID(int=5), UUID(int=5)),
        ({"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2}, Decimal("3.50"), Decimal("3.50")),
        ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
        ({"type": "fixed", "name": "F", "size": 2}, b"ab", b"ab"),
        (["null", "string"], None, None),
        (["null", "string"], "s1", "s1"),
        (["null", "string", "long"], 2**53 + 1, 2**53 + 1),
        (
            ["null", {"type": "record", "name": "I", "fields": [{"name": "id", "type": "string"}]}],
            {"id": "v"},
            {"id": "v"},
        ),
        ({"type": "map", "values": "int"}, {"a": 1}, {"a": 1}),
        ({"type": "array", "items": ["int", "string"]}, [1, "x"], [1, "x"]),
        ("bytes", b"\x00", b"\x00"),
        ("boolean", False, False),
    ],
)
def test_values_are_those_of_python(kind: object, value: object, decoded: object) -> None:
    """Logical types are converted, and the value of a union is without its branch."""
    schema = _record(("x", kind))
    assert _decode(schema, avro_bytes(schema, {"x": value})) == {"x": decoded}


def test_each_message_is_read_with_the_schema_that_it_was_written_with() -> None:
    """Added, removed and renamed fields appear as written; the mapping decides which of them count."""
    first = _record(("id", "string"), ("removed", "int"), ("old_name", "string"))
    second = _record(("id", "string"), ("added", ["null", "int"]), ("new_name", "string"))
    assert _decode(first, avro_bytes(first, {"id": "a", "removed": 1, "old_name": "x"})) == {
        "id": "a", "removed": 1, "old_name": "x",
    }  # fmt: skip
    assert _decode(second, avro_bytes(second, {"id": "b", "added": 5, "new_name": "y"})) == {
        "id": "b", "added": 5, "new_name": "y",
    }  # fmt: skip


def test_a_schema_may_refer_to_other_schemas() -> None:
    """References are parsed first, in the order of their own references."""
    page = {"type": "record", "name": "Page", "namespace": "bot", "fields": [{"name": "item", "type": "bot.Item"}]}
    answer = {"type": "record", "name": "Answer", "namespace": "bot", "fields": [{"name": "page", "type": "bot.Page"}]}
    inlined = json.loads(
        json.dumps(answer).replace('"bot.Page"', json.dumps(page).replace('"bot.Item"', json.dumps(ITEM)))
    )
    value = {"page": {"item": {"id": "v1", "rank": 3}}}
    assert _decode(answer, avro_bytes(inlined, value), ITEM, page) == value


def test_a_union_of_records_at_the_top_is_the_record() -> None:
    """One topic with several kinds of events."""
    other = _record(("y", "int"))
    union = [ANSWER, other]
    assert _decode(union, avro_bytes(union, {"y": 4})) == {"y": 4}


@pytest.mark.parametrize("schema", ["{", "{}", '"bot.Missing"', ""])
def test_a_text_that_is_no_schema_is_reported(schema: str) -> None:
    """The registry rejects such schemas; another server may not."""
    with pytest.raises(ValueError, match=r"^[A-Z]\w+"):
        RegisteredAvroSchema(7, schema, [])


@pytest.mark.parametrize("change", ["shortened", "lengthened", "empty"])
def test_data_must_fill_its_schema_exactly(change: str) -> None:
    """Bytes that are left over mean that the data has another schema."""
    data = avro_bytes(ANSWER, {**_VALUE, "id": "secret"})
    data = {"shortened": data[:-1], "lengthened": data + b"\x00", "empty": b""}[change]
    with pytest.raises(InvalidEvent, match=r"invalid_avro: .*schema 7") as error:
        _decode(ANSWER, data)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("string", b"\x01ab"),
        ("string", b"\x02\xff"),
        ("string", b"\xff" * 30),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\x08"),
        (["null", "string"], b"\x08"),
        (["null", "string"], b"\x01"),
        ({"type": "long", "logicalType": "timestamp-millis"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"),
        ({"type": "string", "logicalType": "uuid"}, b"\x04ab"),
        ({"type": "array", "items": "int"}, b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01\x00"),
    ],
)
def test_damaged_data_is_rejected(kind: object, data: bytes) -> None:
    """Whatever the library raises, one message is rejected and the next one is read."""
    with pytest.raises(InvalidEvent, match="invalid_avro"):
        _decode(_record(("x", kind)), data)


_NODE: dict[str, Any] = {
    "type": "record",
    "name": "Node",
    "namespace": "bot",
    "fields": [
        {"name": "next", "type": ["null", "Node"]},
        {"name": "children", "type": {"type": "array", "items": "Node"}},
        {"name": "by_name", "type": {"type": "map", "values": ["Node", "double", "boolean"]}},
        {"name": "time", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
        {"name": "hash", "type": {"type": "fixed", "name": "Hash", "size": 2}},
        {"name": "other_hash", "type": "Hash"},
        {"name": "text", "type": {"type": "string", "logicalType": "other"}},
    ],
}


def _node(**fields: object) -> dict[str, Any]:
    leaf: dict[str, Any] = {
        "next": None,
        "children": [],
        "by_name": {},
        "time": _AT,
        "kind": "A",
        "hash": b"ab",
        "other_hash": b"cd",
    }
    return {**leaf, "text": "x", **fields}


def test_a_schema_may_contain_itself() -> None:
    """Free-form attributes and trees of comments are such types."""
    value = _node(next=_node(), children=[_node(), _node(text="")], by_name={"a": _node(), "b": 1.5, "c": True})
    assert _decode(_NODE, avro_bytes(_NODE, value)) == value
    outer = {"type": "record", "name": "Outer", "fields": [{"name": "node", "type": "bot.Node"}]}
    assert _decode(outer, avro_bytes(_NODE, value), _NODE) == {"node": value}


@pytest.mark.parametrize("depth", [100, 101, 100_000])
def test_data_is_nested_at_most_a_hundred_levels(depth: int) -> None:
    """The library has no limit: a hundred thousand levels would end the process."""
    schema = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
    data = b"\x02" * (depth - 1) + b"\x00"
    if depth == 100:
        assert list(_decode(schema, data)) == ["next"]
    else:
        with pytest.raises(InvalidEvent, match="invalid_avro"):
            _decode(schema, data)


@pytest.mark.parametrize("length", range(0, 60, 3))
def test_truncated_data_of_a_schema_that_contains_itself_is_rejected(length: int) -> None:
    """At any byte."""
    data = avro_bytes(_NODE, _node(next=_node(), children=[_node()], by_name={"a": 1.5}))
    with pytest.raises(InvalidEvent, match="invalid_avro"):
        _decode(_NODE, data[:length])


@pytest.mark.parametrize("data", [b"\x01", b"\x00\xff\xff\xff\x0f", b"\x00\x00\x02\x01", b"\xff" * 11, b"\x00\x01\x00"])
def test_damaged_data_of_a_schema_that_contains_itself_is_rejected(data: bytes) -> None:
    """Negative branches and lengths, more values than bytes, long numbers."""
    with pytest.raises(InvalidEvent, match="invalid_avro"):
        _decode(_NODE, data)


def test_a_local_schema_reads_data_without_framing(tmp_path: Path) -> None:
    """Also where the first byte is the one of a schema id."""
    document = _schema_file(tmp_path, ANSWER).parse(avro_bytes(ANSWER, _VALUE), [])
    assert document.fields == _VALUE
    assert document.framing == Framing("none", "AVRO", None, "bot.Answer")
    empty_id = avro_bytes(ANSWER, {**_VALUE, "id": ""})
    assert empty_id[0] == 0
    assert _schema_file(tmp_path, ANSWER).parse(empty_id, []).fields["id"] == ""


def test_a_local_schema_reads_single_object_encoding(tmp_path: Path) -> None:
    """The fingerprint is the CRC-64 of the schema's canonical form."""
    fingerprint = fastavro.schema.fingerprint(fastavro.schema.to_parsing_canonical_form(ANSWER), "CRC-64-AVRO")
    value = b"\xc3\x01" + bytes.fromhex(fingerprint) + avro_bytes(ANSWER, _VALUE)
    document = _schema_file(tmp_path, ANSWER).parse(value, [])
    assert (document.fields, document.framing.kind) == (_VALUE, "avro single object")


def test_the_fingerprint_is_the_one_of_the_specification() -> None:
    """The specification's table has 7275a51a3f395c8f for int; it is written with the lowest byte first."""
    assert fastavro.schema.fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"


def test_single_object_encoding_of_another_schema_is_an_unknown_schema(tmp_path: Path) -> None:
    """The data may fit by chance, so the fingerprint decides."""
    with pytest.raises(InvalidEvent, match="unknown_schema"):
        _schema_file(tmp_path, ANSWER).parse(b"\xc3\x01" + bytes(8) + avro_bytes(ANSWER, _VALUE), [])


def test_data_without_framing_may_begin_like_single_object_encoding(tmp_path: Path) -> None:
    """The two bytes are -98 as Avro's integer."""
    schema = _record(("x", "int"), ("y", "string"))
    value = {"x": -98, "y": "text"}
    assert avro_bytes(schema, value).startswith(b"\xc3\x01")
    assert _schema_file(tmp_path, schema).parse(avro_bytes(schema, value), []).fields == value


def test_avro_that_is_no_record_is_not_an_object(tmp_path: Path) -> None:
    """An event has fields."""
    with pytest.raises(InvalidEvent, match="not_an_object"):
        _schema_file(tmp_path, "int").parse(avro_bytes("int", 5), [])


@pytest.mark.parametrize("text", ["", "{", '{"type": "record"}', None])
def test_an_unusable_schema_file_is_reported_with_its_path(tmp_path: Path, text: str | None) -> None:
    """At start, with the expectation."""
    path = tmp_path / "answer.avsc"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"avro_schema_file: got .*answer\.avsc.*expected a file with an Avro schema"):
        DocumentParser("avro", "auto", None, str(path))


def test_an_envelope_may_be_encoded_in_avro(tmp_path: Path) -> None:
    """Debezium writes its change events with the converter of the connector."""
    row = {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "string"}]}
    source = {"type": "record", "name": "Source", "fields": [{"name": "table", "type": "string"}]}
    schema = _record(("before", ["null", row]), ("after", ["null", "Row"]), ("source", source), ("op", "string"))
    parser = _schema_file(tmp_path, schema)
    change = {"before": None, "after": {"id": "r1"}, "source": {"table": "answers"}, "op": "c"}
    document = parser.parse(avro_bytes(schema, change), [])
    assert (document.fields, document.envelope["op"]) == ({"id": "r1"}, "c")
    assert parser.parse(
        avro_bytes(schema, {**change, "before": {"id": "r1"}, "after": None, "op": "d"}), []
    ).is_deletion
