"""The formats with Apicurio, a registry of others that has Confluent's API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from confluent_kafka.schema_registry import Schema, SchemaReference, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.serialization import MessageField, SerializationContext

from monitor.config import SchemaRegistrySettings
from monitor.decoding import DocumentParser, SchemaRegistry
from monitor.errors import InvalidEvent
from tests.servers.apicurio import ApicurioRegistry
from tests.support.schemas import ITEM, avro_bytes

_PROTO: Final = 'syntax = "proto3";\nmessage Answer { string id = 1; }\n'
_JSON_SCHEMA: Final = {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Answer", "type": "object"}
_VALUE: Final = {"id": "v1", "rank": 1}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Yield the address of a registry for all tests of the module."""
    with ApicurioRegistry() as registry:
        yield registry.url


def _parse(address: str, schema_id: int, data: bytes) -> dict[str, Any]:
    parser = DocumentParser("auto", "auto", SchemaRegistry(SchemaRegistrySettings(address)), None)
    return parser.parse(b"\x00" + schema_id.to_bytes(4, "big") + data, []).fields


def test_avro_of_the_official_serializer_is_read(address: str) -> None:
    """The serializer registers the schema."""
    with SchemaRegistryClient({"url": address}) as client:
        value = AvroSerializer(client, json.dumps(ITEM))(_VALUE, SerializationContext("items", MessageField.VALUE))
    assert value is not None
    assert _parse(address, int.from_bytes(value[1:5], "big"), value[5:]) == _VALUE


def test_references_of_avro_are_resolved(address: str) -> None:
    """By subject and version."""
    page = {"type": "record", "name": "Page", "namespace": "bot", "fields": [{"name": "item", "type": "bot.Item"}]}
    with SchemaRegistryClient({"url": address}) as client:
        client.register_schema("item", Schema(json.dumps(ITEM), "AVRO"))
        reference = SchemaReference("bot.Item", "item", 1)
        schema_id = client.register_schema("pages-value", Schema(json.dumps(page), "AVRO", [reference]))
    assert _parse(address, schema_id, avro_bytes(ITEM, _VALUE)) == {"item": _VALUE}


def test_json_is_read(address: str) -> None:
    """The registry names the type of the schema."""
    with SchemaRegistryClient({"url": address}) as client:
        schema_id = client.register_schema("json-value", Schema(json.dumps(_JSON_SCHEMA), "JSON"))
    assert _parse(address, schema_id, b'{"id": "r1"}') == {"id": "r1"}


def test_an_unknown_id_is_rejected(address: str) -> None:
    """With the registry's code 40403."""
    with pytest.raises(InvalidEvent, match="unknown_schema: schema 99999: not in the registry"):
        _parse(address, 99999, b"x")


def test_a_guid_is_rejected_by_a_registry_without_guids(address: str) -> None:
    """Its status 404 has no code, so the client asks whether the address is that of a registry."""
    parser = DocumentParser("auto", "auto", SchemaRegistry(SchemaRegistrySettings(address)), None)
    with pytest.raises(InvalidEvent, match="unknown_schema: schema 00000000-"):
        parser.parse(b"\x01" + bytes(16) + b"x", [])


def test_protobuf_needs_a_registry_that_returns_descriptors(address: str) -> None:
    """Apicurio returns the text of the file, and the rejection explains it."""
    with SchemaRegistryClient({"url": address}) as client:
        schema_id = client.register_schema("proto-value", Schema(_PROTO, "PROTOBUF"))
    with pytest.raises(InvalidEvent, match=r"unknown_schema: .*format=serialized.*not every registry supports"):
        _parse(address, schema_id, b"\x00\x0a\x02r1")
